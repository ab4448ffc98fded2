/*
 * A program forks while its other threads make and destroy objects. Each child does the same and exits.
 */
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

enum { THREADS = 2, FORKS = 200 };

static struct ibv_context *context;
static struct ibv_pd *pd;
static volatile int over;

/* One round: a region, a completion queue and a list. 0 if all went well. */
static int round_of_calls(int lists)
{
	static __thread char memory[4096];
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE);
	struct ibv_cq *cq = ibv_create_cq(context, 4, NULL, NULL, 0);

	if (!mr || !cq || ibv_dereg_mr(mr) || ibv_destroy_cq(cq))
		return 1;
	if (lists) {
		struct ibv_device **list = ibv_get_device_list(NULL);

		if (!list)
			return 2;
		ibv_free_device_list(list);
	}
	return 0;
}

static void *busy(void *unused)
{
	while (!over)
		NEED(!round_of_calls(1));
	return unused;
}

int main(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	pthread_t threads[THREADS];
	int i, status;
	pid_t child;

	NEED(list && list[0]);
	context = ibv_open_device(list[0]);
	NEED(context);
	pd = ibv_alloc_pd(context);
	NEED(pd);
	for (i = 0; i < THREADS; i++)
		NEED(!pthread_create(&threads[i], NULL, busy, NULL));
	for (i = 0; i < FORKS; i++) {
		child = fork();
		NEED(child >= 0);
		if (child == 0) {
			/* A lock that nobody gives free ends it by this signal. */
			alarm(10);
			_exit(round_of_calls(0));
		}
		NEED(waitpid(child, &status, 0) == child);
		if (status) {
			printf("child %d: status %#x\n", i, status);
			exit(1);
		}
	}
	over = 1;
	for (i = 0; i < THREADS; i++)
		NEED(!pthread_join(threads[i], NULL));
	ibv_free_device_list(list);
	NEED(!ibv_dealloc_pd(pd) && !ibv_close_device(context));
	return 0;
}
