/* Several devices of a process, which it shares with others: argv[1] is how many there are. */
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

static int wanted;

struct facts {
	char name[IBV_SYSFS_NAME_MAX];
	uint64_t guid;
	union ibv_gid gid;
	unsigned lid, slot;
};

static int read_text(const char *device, const char *file, char *text, int size)
{
	char path[256];
	FILE *f;
	int ok;

	snprintf(path, sizeof(path), "/sys/class/infiniband/%s/%s", device, file);
	f = fopen(path, "r");
	if (!f)
		return 0;
	ok = fgets(text, size, f) != NULL;
	fclose(f);
	return ok;
}

/* What verbs say, and what the files of sysfs say. */
static void look(struct facts *facts)
{
	int count = -1;
	struct ibv_device **list = ibv_get_device_list(&count);

	CHECK(list && count == wanted && !list[count]);
	if (!list || count != wanted)
		exit(1);
	for (int i = 0; i < count; i++) {
		struct facts *f = facts + i;
		struct ibv_context *context = ibv_open_device(list[i]);
		struct ibv_port_attr port;
		struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC,
			.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 } };
		struct ibv_pd *pd;
		struct ibv_qp *qp;
		char text[128], expected[128];
		const uint8_t *g = f->gid.raw;

		CHECK(context != NULL);
		if (!context)
			exit(1);
		snprintf(f->name, sizeof(f->name), "%s", ibv_get_device_name(list[i]));
		f->guid = ibv_get_device_guid(list[i]);
		CHECK(!ibv_query_port(context, 1, &port) && port.gid_tbl_len >= 1);
		CHECK(!ibv_query_gid(context, 1, 0, &f->gid));
		f->lid = port.lid;
		pd = ibv_alloc_pd(context);
		init.send_cq = init.recv_cq = ibv_create_cq(context, 4, NULL, NULL, 0);
		qp = ibv_create_qp(pd, &init);
		CHECK(qp != NULL);
		f->slot = qp ? qp->qp_num >> 16 : 0;

		CHECK(read_text(f->name, "ports/1/lid", text, sizeof(text)) && strtoul(text, NULL, 0) == port.lid);
		snprintf(expected, sizeof(expected),
			 "%02x%02x:%02x%02x:%02x%02x:%02x%02x:%02x%02x:%02x%02x:%02x%02x:%02x%02x\n", g[0], g[1],
			 g[2], g[3], g[4], g[5], g[6], g[7], g[8], g[9], g[10], g[11], g[12], g[13], g[14], g[15]);
		CHECK(read_text(f->name, "ports/1/gids/0", text, sizeof(text)) && !strcmp(text, expected));
		snprintf(text, sizeof(text), "/dev/infiniband/%s", list[i]->dev_name);
		CHECK(!access(text, R_OK | W_OK));
		snprintf(text, sizeof(text), "%s/ports/1/lid", list[i]->ibdev_path);
		CHECK(!access(text, R_OK));
		CHECK(!qp || !ibv_destroy_qp(qp));
		CHECK(!ibv_destroy_cq(init.send_cq) && !ibv_dealloc_pd(pd) && !ibv_close_device(context));
	}
	ibv_free_device_list(list);
	/* Connection management needs the daemon. */
	if (!getenv("URXE_DAEMON")) {
		struct stat st;

		CHECK(!access("/sys/class/misc/rdma_cm/abi_version", R_OK));
		CHECK(!stat("/dev/infiniband/rdma_cm", &st) && S_ISCHR(st.st_mode) && st.st_rdev == makedev(10, 58));
	}
	for (int i = 0; i < count; i++)
		for (int j = 0; j < i; j++)
			CHECK(strcmp(facts[i].name, facts[j].name) && facts[i].guid != facts[j].guid &&
			      facts[i].lid != facts[j].lid && memcmp(&facts[i].gid, &facts[j].gid, 16));
}

/* The devices of another process on this machine are the same ones, but its queue pairs have other numbers. */
static void same_devices(const struct facts *mine, int other_slots)
{
	struct facts facts[8] = {0};

	look(facts);
	for (int i = 0; i < wanted; i++) {
		CHECK(!strcmp(facts[i].name, mine[i].name) && facts[i].guid == mine[i].guid);
		CHECK(facts[i].lid == mine[i].lid && !memcmp(&facts[i].gid, &mine[i].gid, 16));
		CHECK((facts[i].slot != mine[i].slot) == other_slots);
	}
}

int main(int argc, char **argv)
{
	struct facts mine[8] = {0};
	int status = -1;
	pid_t child;

	if (argc == 3 && !strcmp(argv[1], "refused")) {
		int count = 7;

		CHECK(!ibv_get_device_list(&count) && errno == atoi(argv[2]) && count == 0);
		return failures != 0;
	}
	if (argc == 3 && !strcmp(argv[1], "descriptors")) {
		/* With room for more and more descriptors it works at last, and until then says why not. */
		struct ibv_device **list = NULL;
		int limit, refused = 0;

		wanted = 1;
		for (limit = 5; !list && limit < 64; limit++) {
			struct rlimit few = { limit, 256 };

			setrlimit(RLIMIT_NOFILE, &few);
			errno = 0;
			list = ibv_get_device_list(NULL);
			if (!list) {
				int why = errno;

				CHECK(why == EMFILE || why == ENODEV || why == EPROTO);
				refused++;
			}
		}
		CHECK(list && refused > 0);
		setrlimit(RLIMIT_NOFILE, &(struct rlimit){ 256, 256 });
		look(mine);
		return failures != 0;
	}
	wanted = argc > 1 ? atoi(argv[1]) : 1;
	look(mine);
	same_devices(mine, 0);
	child = fork();
	if (child == 0) {
		failures = 0;
		/* Without a daemon it has an address of its own. */
		if (!getenv("URXE_DAEMON"))
			same_devices(mine, 1);
		fflush(stdout);
		_exit(failures != 0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	for (int i = 0; i < wanted; i++) {
		char address[INET6_ADDRSTRLEN];

		inet_ntop(AF_INET6, &mine[i].gid, address, sizeof(address));
		printf("%s %s %#x %u\n", mine[i].name, address, mine[i].lid, mine[i].slot);
	}
	return failures != 0;
}
