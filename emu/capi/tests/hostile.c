/*
 * A program that passes wild pointers, null attributes and garbage everywhere, and checks that it gets an
 * errno. Run over the drop-in library; dying by a signal is the failure.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

/* Null with this errno; -1 with it; the errno itself. */
#define NONE(call, error) CHECK((call) == NULL && errno == (error))

static void *const wild[] = { NULL, (void *)8, (void *)0xdeadbeef000, (void *)-1, (void *)1 };
#define EACH_WILD(p) for (size_t i_ = 0; i_ < sizeof(wild) / sizeof(*wild); i_++) for (void *p = wild[i_], *o_ = &failures; o_; o_ = NULL)

static char buffer_of_17[17];
static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;

static struct ibv_qp_init_attr qp_init(void)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 2, .max_recv_sge = 2, .max_inline_data = 16 },
	};
	return init;
}

static void devices(void)
{
	struct ibv_device **list;
	union ibv_gid gid;
	struct ibv_port_attr port;
	struct ibv_device_attr device;
	struct ibv_device_attr_ex device_ex;
	struct ibv_query_device_ex_input input = { .comp_mask = 1 };
	struct ibv_gid_entry entry;
	uint16_t pkey;
	int count = -1;

	EACH_WILD(p) {
		NONE(ibv_open_device(p), p && 0 ? 0 : EINVAL);
		CHECK(ibv_get_device_name(p) == NULL);
		CHECK(ibv_get_device_guid(p) == 0);
		MINUS(ibv_close_device(p), EINVAL);
		CHECK(ibv_query_device(p, &device) == EINVAL);
		MINUS(ibv_query_gid(p, 1, 0, &gid), EINVAL);
		MINUS(ibv_query_pkey(p, 1, 0, &pkey), EINVAL);
		ibv_free_device_list(p);
		if (p)
			CHECK(ibv_query_device(context, p) == EFAULT);
	}
	list = ibv_get_device_list(NULL);
	CHECK(list && list[0] && !list[1]);
	ibv_free_device_list(list);
	ibv_free_device_list(list);
	CHECK(ibv_query_device(context, NULL) == EINVAL);
	CHECK(ibv_query_device_ex(context, &input, &device_ex) == EINVAL);
	CHECK(ibv_query_port(context, 0, &port) == EINVAL);
	CHECK(ibv_query_port(context, 2, &port) == EINVAL);
	CHECK(ibv_query_port(context, 1, (void *)8) == EFAULT);
	MINUS(ibv_query_gid(context, 1, -1, &gid), EINVAL);
	MINUS(ibv_query_gid(context, 1, 1000, &gid), EINVAL);
	MINUS(ibv_query_gid(context, 9, 0, &gid), EINVAL);
	CHECK(ibv_query_gid(context, 1, 0, &gid) == 0);
	CHECK(ibv_query_gid_ex(context, 1, 0, &entry, 1) == EOPNOTSUPP);
	CHECK(ibv_query_gid_ex(context, 1, 7, &entry, 0) == EINVAL);
	CHECK(_ibv_query_gid_ex(context, 1, 0, &entry, 0, 3) == EINVAL);
	CHECK(_ibv_query_gid_ex(context, 1, 0, &entry, 0, (size_t)-1) == EINVAL);
	CHECK(ibv_query_gid_table(context, &entry, 0, 0) == -EINVAL);
	CHECK(ibv_query_gid_table(context, &entry, 1, 0) == 1);
	CHECK(ibv_query_gid_table(context, (void *)8, 1, 0) == -EFAULT);
	MINUS(ibv_query_pkey(context, 1, 1, &pkey), EINVAL);
	MINUS(ibv_get_pkey_index(context, 1, 0x1234), EINVAL);
	CHECK(ibv_get_pkey_index(context, 1, 0xffff) == 0);
	(void)count;
}

static void memory(void)
{
	char buffer[64];
	struct ibv_mr *mr;
	char *mapped;

	EACH_WILD(p) {
		NONE(ibv_alloc_pd(p), EINVAL);
		CHECK(ibv_dealloc_pd(p) == EINVAL);
		NONE(ibv_reg_mr(p, buffer, sizeof(buffer), 0), EINVAL);
		CHECK(ibv_dereg_mr(p) == EINVAL);
		CHECK(ibv_rereg_mr(p, 0, NULL, NULL, 0, 0) == IBV_REREG_MR_ERR_INPUT && errno == EINVAL);
		if (p)
			NONE(ibv_reg_mr(pd, p, 100, 0), p == (void *)-1 ? EINVAL : EFAULT);
	}
	NONE(ibv_reg_mr(pd, buffer, 0, 0), EINVAL);
	NONE(ibv_reg_mr(pd, buffer, (size_t)-1, 0), EINVAL);
	NONE(ibv_reg_mr(pd, buffer, 64, IBV_ACCESS_REMOTE_WRITE), EINVAL);
	NONE(ibv_reg_mr(pd, buffer, 64, 1 << 15), EINVAL);
	NONE(ibv_reg_mr(pd, (void *)"constant", 4, IBV_ACCESS_LOCAL_WRITE), EFAULT);
	NONE(ibv_alloc_mw(pd, IBV_MW_TYPE_1), EOPNOTSUPP);
	mr = ibv_reg_mr(pd, buffer, 64, IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr && mr->lkey && mr->addr == buffer && mr->length == 64 && mr->pd == pd && mr->context == context);
	CHECK(ibv_rereg_mr(mr, 1 << 20, NULL, NULL, 0, 0) == IBV_REREG_MR_ERR_INPUT);
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, NULL, 10, 0) == IBV_REREG_MR_ERR_INPUT);
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, (void *)8, 10, 0) == IBV_REREG_MR_ERR_INPUT);
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, (void *)8, NULL, 0, 0) == IBV_REREG_MR_ERR_INPUT);
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, buffer + 8, 16, 0) == 0 && mr->length == 16);
	CHECK(ibv_dealloc_pd(pd) == EBUSY);
	CHECK(ibv_dereg_mr(mr) == 0);
	CHECK(ibv_dereg_mr(mr) == EINVAL);
	/* Memory that goes while it is registered. */
	mapped = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	mr = ibv_reg_mr(pd, mapped, 4096, IBV_ACCESS_LOCAL_WRITE);
	munmap(mapped, 4096);
	CHECK(mr && ibv_dereg_mr(mr) == 0);
}

static void queues(void)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct ibv_cq *event_cq, *got;
	struct ibv_wc wc[2];
	struct pollfd poller;
	void *got_context;
	struct ibv_cq_init_attr_ex init_ex = { .cqe = 4 };
	struct ibv_poll_cq_attr poll_attr = {};
	struct ibv_cq_ex *cq_ex;

	EACH_WILD(p) {
		NONE(ibv_create_comp_channel(p), EINVAL);
		CHECK(ibv_destroy_comp_channel(p) == EINVAL);
		NONE(ibv_create_cq(p, 4, NULL, NULL, 0), EINVAL);
		CHECK(ibv_destroy_cq(p) == EINVAL);
		CHECK(ibv_resize_cq(p, 4) == EINVAL);
		MINUS(ibv_get_cq_event(p, &got, &got_context), EINVAL);
		ibv_ack_cq_events(p, 1);
		if (p)
			NONE(ibv_create_cq(context, 4, NULL, p, 0), EINVAL);
	}
	NONE(ibv_create_cq(context, 0, NULL, NULL, 0), EINVAL);
	NONE(ibv_create_cq(context, -1, NULL, NULL, 0), EINVAL);
	NONE(ibv_create_cq(context, 0x7fffffff, NULL, NULL, 0), EINVAL);
	NONE(ibv_create_cq(context, 4, NULL, NULL, -1), EINVAL);
	NONE(ibv_create_cq(context, 4, NULL, NULL, 100000), EINVAL);
	CHECK(context->ops.poll_cq(NULL, 1, wc) < 0);
	CHECK(ibv_poll_cq(cq, -1, wc) < 0);
	CHECK(ibv_poll_cq(cq, 0, NULL) == 0);
	CHECK(ibv_poll_cq(cq, 1, NULL) < 0);
	CHECK(ibv_poll_cq(cq, 2, wc) == 0);
	CHECK(ibv_resize_cq(cq, 0) == EINVAL);
	CHECK(ibv_resize_cq(cq, 50) == 0 && cq->cqe == 50);
	CHECK(ibv_req_notify_cq(cq, 0) == 0);

	event_cq = ibv_create_cq(context, 4, &failures, channel, 0);
	CHECK(event_cq && event_cq->cq_context == &failures && event_cq->channel == channel && channel->refcnt == 1);
	CHECK(ibv_destroy_comp_channel(channel) == EBUSY);
	CHECK(fcntl(channel->fd, F_SETFL, O_NONBLOCK) == 0);
	MINUS(ibv_get_cq_event(channel, &got, &got_context), EAGAIN);
	MINUS(ibv_get_cq_event(channel, NULL, &got_context), EINVAL);
	poller = (struct pollfd){ .fd = channel->fd, .events = POLLIN };
	CHECK(poll(&poller, 1, 0) == 0);
	ibv_ack_cq_events(event_cq, 1000);
	CHECK(ibv_destroy_cq(event_cq) == 0);
	CHECK(ibv_destroy_cq(event_cq) == EINVAL);
	CHECK(ibv_destroy_comp_channel(channel) == 0);

	NONE(ibv_create_cq_ex(context, NULL), EINVAL);
	NONE(ibv_create_cq_ex(context, (void *)8), EFAULT);
	init_ex.wc_flags = IBV_WC_EX_WITH_CVLAN;
	NONE(ibv_create_cq_ex(context, &init_ex), EOPNOTSUPP);
	init_ex.wc_flags = 0;
	init_ex.comp_mask = 1u << 31;
	NONE(ibv_create_cq_ex(context, &init_ex), EINVAL);
	init_ex.comp_mask = 0;
	cq_ex = ibv_create_cq_ex(context, &init_ex);
	CHECK(cq_ex != NULL);
	CHECK(ibv_start_poll(cq_ex, &poll_attr) == ENOENT);
	CHECK(ibv_start_poll(cq_ex, NULL) == ENOENT);
	CHECK(ibv_next_poll(cq_ex) == EINVAL);
	ibv_end_poll(cq_ex);
	poll_attr.comp_mask = 4;
	CHECK(ibv_start_poll(cq_ex, &poll_attr) == EINVAL);
	CHECK(ibv_poll_cq(ibv_cq_ex_to_cq(cq_ex), 1, wc) == 0);
	CHECK(ibv_destroy_cq(ibv_cq_ex_to_cq(cq_ex)) == 0);
}

static void queue_pairs(void)
{
	struct ibv_qp_init_attr init = qp_init(), out;
	struct ibv_qp_init_attr_ex init_ex = {};
	struct ibv_qp_attr attr = {};
	struct ibv_ah_attr ah_attr = { .port_num = 1, .is_global = 1 };
	struct ibv_send_wr wr = { .wr_id = 7 }, second = wr, *bad;
	struct ibv_recv_wr receive = { .wr_id = 8 }, *bad_receive;
	struct ibv_srq_init_attr srq_init = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_srq_attr srq_attr;
	struct ibv_srq *srq;
	struct ibv_qp_ex *ex;
	struct ibv_qp *qp;
	struct ibv_sge sge = { .addr = (uintptr_t)&attr, .length = 4 };

	EACH_WILD(p) {
		init = qp_init();
		NONE(ibv_create_qp(p, &init), EINVAL);
		NONE(ibv_create_qp(pd, p), p ? EFAULT : EINVAL);
		CHECK(ibv_destroy_qp(p) == EINVAL);
		CHECK(ibv_modify_qp(p, &attr, IBV_QP_STATE) == EINVAL);
		CHECK(ibv_query_qp(p, &attr, IBV_QP_STATE, &out) == EINVAL);
		CHECK(ibv_qp_to_qp_ex(p) == NULL);
		NONE(ibv_create_ah(p, &ah_attr), EINVAL);
		NONE(ibv_create_ah(pd, p), p ? EFAULT : EINVAL);
		CHECK(ibv_destroy_ah(p) == EINVAL);
		NONE(ibv_create_srq(p, &srq_init), EINVAL);
		CHECK(ibv_destroy_srq(p) == EINVAL);
		CHECK(ibv_modify_srq(p, &srq_attr, 0) == EINVAL);
		init.send_cq = p;
		NONE(ibv_create_qp(pd, &init), EINVAL);
		init = qp_init();
		init.recv_cq = p;
		NONE(ibv_create_qp(pd, &init), EINVAL);
		init = qp_init();
		if (p) {
			init.srq = p;
			NONE(ibv_create_qp(pd, &init), EINVAL);
		}
	}
	init = qp_init();
	init.qp_type = 77;
	NONE(ibv_create_qp(pd, &init), EINVAL);
	init.qp_type = IBV_QPT_RAW_PACKET;
	NONE(ibv_create_qp(pd, &init), EOPNOTSUPP);
	init = qp_init();
	init.cap.max_send_wr = 0xffffffff;
	NONE(ibv_create_qp(pd, &init), EINVAL);
	init = qp_init();
	init.cap.max_send_sge = 1000;
	NONE(ibv_create_qp(pd, &init), EINVAL);

	init = qp_init();
	qp = ibv_create_qp(pd, &init);
	CHECK(qp && qp->qp_num && qp->state == IBV_QPS_RESET && init.cap.max_send_wr >= 4);
	CHECK(ibv_qp_to_qp_ex(qp) == NULL);
	CHECK(ibv_destroy_cq(cq) == EBUSY);
	CHECK(ibv_dealloc_pd(pd) == EBUSY);
	CHECK(ibv_modify_qp(qp, NULL, IBV_QP_STATE) == EINVAL);
	CHECK(ibv_modify_qp(qp, (void *)8, IBV_QP_STATE) == EFAULT);
	attr.qp_state = 99;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == EINVAL);
	attr.qp_state = IBV_QPS_RTS;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == EINVAL);
	attr.qp_state = IBV_QPS_INIT;
	attr.port_num = 200;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS) == EINVAL);
	CHECK(qp->state == IBV_QPS_RESET);
	CHECK(ibv_modify_qp(qp, &attr, -1) != 0);
	CHECK(ibv_post_recv(qp, &receive, &bad_receive) == EINVAL && bad_receive == &receive);
	attr.port_num = 1;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS) == 0);
	CHECK(qp->state == IBV_QPS_INIT);
	CHECK(ibv_query_qp(qp, NULL, IBV_QP_STATE, &out) == EINVAL);
	CHECK(ibv_query_qp(qp, &attr, IBV_QP_STATE, (void *)8) == EFAULT);
	CHECK(ibv_query_qp(qp, &attr, IBV_QP_STATE, &out) == 0 && attr.qp_state == IBV_QPS_INIT && out.recv_cq == cq);

	receive.num_sge = -1;
	CHECK(ibv_post_recv(qp, &receive, &bad_receive) == EINVAL && bad_receive == &receive);
	receive.num_sge = 3;
	receive.sg_list = NULL;
	CHECK(ibv_post_recv(qp, &receive, &bad_receive) == EINVAL);
	receive.num_sge = 1;
	receive.sg_list = &sge;
	for (int i = 0; i < 4; i++)
		CHECK(ibv_post_recv(qp, &receive, &bad_receive) == 0);
	CHECK(ibv_post_recv(qp, &receive, &bad_receive) == ENOMEM && bad_receive == &receive);
	CHECK(ibv_post_send(qp, &wr, &bad) == EINVAL && bad == &wr);
	CHECK(context->ops.post_send(NULL, &wr, &bad) == EINVAL && bad == &wr);
	attr.qp_state = IBV_QPS_ERR;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0);
	wr.opcode = 99;
	CHECK(ibv_post_send(qp, &wr, &bad) == EINVAL && bad == &wr);
	wr.opcode = IBV_WR_SEND;
	wr.next = &second;
	second.opcode = IBV_WR_SEND;
	second.send_flags = 1u << 30;
	CHECK(ibv_post_send(qp, &wr, &bad) == EINVAL && bad == &second);
	/* Wild lists: the requests themselves, their elements, and where completions go. */
	struct ibv_send_wr *wild = (struct ibv_send_wr *)0x10;
	CHECK(ibv_post_send(qp, wild, &bad) == EFAULT && bad == wild);
	CHECK(ibv_post_send(qp, wild, (struct ibv_send_wr **)0x10) == EFAULT);
	wr.next = wild;
	wr.send_flags = 0;
	wr.num_sge = 0;
	CHECK(ibv_post_send(qp, &wr, &bad) == EFAULT && bad == wild);
	wr.next = NULL;
	wr.num_sge = 1;
	wr.sg_list = (struct ibv_sge *)0x10;
	CHECK(ibv_post_send(qp, &wr, &bad) == EFAULT && bad == &wr);
	receive.sg_list = (struct ibv_sge *)0x10;
	CHECK(ibv_post_recv(qp, &receive, &bad_receive) == EFAULT && bad_receive == &receive);
	CHECK(ibv_post_recv(qp, (struct ibv_recv_wr *)0x10, &bad_receive) == EFAULT);
	CHECK(ibv_poll_cq(cq, 1, (struct ibv_wc *)0x10) < 0);
	receive.sg_list = &sge;
	CHECK(ibv_attach_mcast(qp, NULL, 0) == EINVAL);
	CHECK(ibv_attach_mcast(qp, (union ibv_gid *)0x10, 0) == EFAULT);
	CHECK(ibv_attach_mcast((struct ibv_qp *)0x10, NULL, 0) == EINVAL);
	CHECK(ibv_detach_mcast((struct ibv_qp *)-1, NULL, 0) == EINVAL);
	CHECK(ibv_destroy_qp(qp) == 0);
	CHECK(ibv_destroy_qp(qp) == EINVAL);

	NONE(ibv_create_qp_ex(context, (struct ibv_qp_init_attr_ex *)&(struct ibv_qp_init_attr_ex){ .comp_mask = 1u << 30 }), EOPNOTSUPP);
	init_ex = (struct ibv_qp_init_attr_ex){
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .pd = pd, .cap = qp_init().cap,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .send_ops_flags = IBV_QP_EX_WITH_TSO,
	};
	NONE(ibv_create_qp_ex(context, &init_ex), EOPNOTSUPP);
	init_ex.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE;
	qp = ibv_create_qp_ex(context, &init_ex);
	CHECK(qp != NULL);
	ex = ibv_qp_to_qp_ex(qp);
	CHECK(ex != NULL);
	CHECK(ibv_wr_complete(ex) == EINVAL);
	ibv_wr_abort(ex);
	ibv_wr_send(ex);
	ibv_wr_start(ex);
	ibv_wr_send(ex);
	ibv_wr_set_inline_data(ex, buffer_of_17, 17);
	CHECK(ibv_wr_complete(ex) == EINVAL);
	ibv_wr_start(ex);
	ibv_wr_set_sge(ex, 0, 0, 0);
	CHECK(ibv_wr_complete(ex) == EINVAL);
	ibv_wr_start(ex);
	ibv_wr_local_inv(ex, 5);
	CHECK(ibv_wr_complete(ex) == EOPNOTSUPP);
	ibv_wr_start(ex);
	ex->wr_flags = 0xffffffff;
	ibv_wr_send(ex);
	CHECK(ibv_wr_complete(ex) == EINVAL);
	ex->wr_flags = 0;
	ibv_wr_start(ex);
	ibv_wr_send(ex);
	ibv_wr_set_sge_list(ex, (size_t)-1, NULL);
	CHECK(ibv_wr_complete(ex) == EINVAL);
	ibv_wr_start(ex);
	ibv_wr_abort(ex);
	CHECK(ibv_destroy_qp(qp) == 0);

	NONE(ibv_create_ah(pd, &ah_attr), EINVAL);
	ah_attr.port_num = 9;
	NONE(ibv_create_ah(pd, &ah_attr), EINVAL);

	srq = ibv_create_srq(pd, &srq_init);
	CHECK(srq && srq_init.attr.max_wr >= 4);
	CHECK(ibv_query_srq(srq, &srq_attr) == 0 && srq_attr.max_wr == srq_init.attr.max_wr);
	srq_attr.max_wr = 0xffffffff;
	CHECK(ibv_modify_srq(srq, &srq_attr, IBV_SRQ_MAX_WR) == EINVAL);
	srq_attr.max_wr = 8;
	CHECK(ibv_modify_srq(srq, &srq_attr, IBV_SRQ_MAX_WR) == 0);
	CHECK(ibv_query_srq(srq, &srq_attr) == 0 && srq_attr.max_wr == 8);
	srq_attr.srq_limit = 100;
	CHECK(ibv_modify_srq(srq, &srq_attr, IBV_SRQ_LIMIT) == EINVAL);
	CHECK(ibv_modify_srq(srq, &srq_attr, 1 << 12) == EINVAL);
	receive.num_sge = 5;
	CHECK(ibv_post_srq_recv(srq, &receive, &bad_receive) == EINVAL && bad_receive == &receive);
	receive.num_sge = 1;
	CHECK(ibv_post_srq_recv(srq, &receive, &bad_receive) == 0);
	CHECK(ibv_destroy_srq(srq) == 0);
}

static void events(void)
{
	struct ibv_async_event event = { .event_type = IBV_EVENT_QP_FATAL, .element.qp = (void *)8 };

	CHECK(fcntl(context->async_fd, F_SETFL, O_NONBLOCK) == 0);
	MINUS(ibv_get_async_event(context, &event), EAGAIN);
	MINUS(ibv_get_async_event(context, NULL), EINVAL);
	MINUS(ibv_get_async_event((void *)8, &event), EINVAL);
	ibv_ack_async_event(&event);
	ibv_ack_async_event(NULL);
	ibv_ack_async_event((void *)8);
	event.event_type = 12345;
	ibv_ack_async_event(&event);
}

static volatile sig_atomic_t handled;
static void handler(int signal)
{
	handled = signal;
}

/* The program's own handlers, set before and after memory was registered. */
static void signals(void)
{
	struct sigaction action = { .sa_handler = handler }, old;
	void (*before)(int);

	before = signal(SIGSEGV, handler);
	CHECK(before == SIG_DFL);
	raise(SIGSEGV);
	CHECK(handled == SIGSEGV);
	handled = 0;
	CHECK(sigaction(SIGBUS, &action, NULL) == 0);
	CHECK(sigaction(SIGBUS, NULL, &old) == 0 && old.sa_handler == handler);
	raise(SIGBUS);
	CHECK(handled == SIGBUS);
	CHECK(signal(SIGSEGV, SIG_DFL) == handler);
	CHECK(signal(SIGUSR1, handler) == SIG_DFL);
	raise(SIGUSR1);
	CHECK(handled == SIGUSR1);
	CHECK(signal(12345, handler) == SIG_ERR);
}

int main(void)
{
	struct ibv_device **list;
	int count = 0, status = -1;
	pid_t child;

	NONE(ibv_open_device((void *)8), ENODEV);
	list = ibv_get_device_list(&count);
	if (!list || count != 1) {
		printf("no device: errno %d\n", errno);
		return 1;
	}
	context = ibv_open_device(list[0]);
	ibv_free_device_list(list);
	pd = ibv_alloc_pd(context);
	cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	if (!context || !pd || !cq) {
		printf("no objects: errno %d\n", errno);
		return 1;
	}
	devices();
	memory();
	queues();
	queue_pairs();
	events();
	signals();
	/* A child can run and exit, and could even open a device of its own. */
	child = fork();
	if (child == 0)
		exit(0);
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	child = fork();
	if (child == 0) {
		list = ibv_get_device_list(&count);
		_exit(list && count == 1 && ibv_open_device(list[0]) ? 0 : 1);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);

	CHECK(ibv_destroy_cq(cq) == 0);
	CHECK(ibv_dealloc_pd(pd) == 0);
	CHECK(ibv_close_device(context) == 0);
	MINUS(ibv_close_device(context), EINVAL);
	return failures != 0;
}
