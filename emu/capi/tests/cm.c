/*
 * Programs of librdmacm with both ends in one process, run over the drop-in library; the argument names the
 * scenario. Where it waits it has a limit, so that a missing event is a failure and not a hang.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

static struct rdma_event_channel *channel;

static int readable(int fd, int ms)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };
	return poll(&p, 1, ms) == 1;
}

/* The next event, which has to be of this kind. */
static struct rdma_cm_event *next_of(struct rdma_event_channel *from, enum rdma_cm_event_type kind, int line)
{
	struct rdma_cm_event *event;

	if (!readable(from->fd, 10000)) {
		printf("line %d: no event, wanted %s\n", line, rdma_event_str(kind));
		exit(1);
	}
	if (rdma_get_cm_event(from, &event)) {
		printf("line %d: rdma_get_cm_event: %m\n", line);
		exit(1);
	}
	if (event->event != kind) {
		printf("line %d: %s with status %d, wanted %s\n", line, rdma_event_str(event->event), event->status,
		       rdma_event_str(kind));
		exit(1);
	}
	return event;
}
#define NEXT(kind) next_of(channel, RDMA_CM_EVENT_##kind, __LINE__)
#define ACK(event) CHECK(rdma_ack_cm_event(event) == 0)

static struct sockaddr_in address(const char *text, int port)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons(port) };
	inet_pton(AF_INET, text, &a.sin_addr);
	return a;
}

static struct ibv_qp_init_attr qp_attr(enum ibv_qp_type type)
{
	struct ibv_qp_init_attr attr = {
		.qp_type = type, .sq_sig_all = 1,
		.cap = { .max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	return attr;
}

static struct rdma_cm_id *make(enum rdma_port_space space, void *context)
{
	struct rdma_cm_id *id;
	NEED(rdma_create_id(channel, &id, context, space) == 0);
	CHECK(id->channel == channel && id->context == context && id->ps == space && !id->verbs);
	return id;
}

static struct rdma_cm_id *listening(enum rdma_port_space space, const char *at, int *port)
{
	struct rdma_cm_id *id = make(space, &failures);
	struct sockaddr_in a = address(at, 0);
	NEED(rdma_bind_addr(id, (void *)&a) == 0);
	*port = ntohs(rdma_get_src_port(id));
	NEED(*port != 0);
	NEED(rdma_listen(id, 8) == 0);
	return id;
}

static void resolve(struct rdma_cm_id *id, const char *to, int port)
{
	struct sockaddr_in a = address(to, port);
	struct rdma_cm_event *event;

	NEED(rdma_resolve_addr(id, NULL, (void *)&a, 2000) == 0);
	event = NEXT(ADDR_RESOLVED);
	CHECK(event->id == id && event->status == 0);
	ACK(event);
	NEED(id->verbs && id->pd && id->port_num == 1);
	CHECK(ntohs(rdma_get_dst_port(id)) == port && rdma_get_src_port(id) != 0);
	CHECK(((struct sockaddr_in *)rdma_get_local_addr(id))->sin_addr.s_addr != 0);
	NEED(rdma_resolve_route(id, 2000) == 0);
	event = NEXT(ROUTE_RESOLVED);
	CHECK(event->id == id);
	ACK(event);
	NEED(id->route.num_paths == 1 && id->route.path_rec);
	CHECK(id->route.path_rec->pkey == htons(0xffff) && id->route.path_rec->mtu >= 1);
}

/* A message each way over two connected identifiers. */
static void talk(struct rdma_cm_id *one, struct rdma_cm_id *other)
{
	static char out[64], in[64];
	struct ibv_mr *out_mr, *in_mr;
	struct ibv_wc wc;

	for (int turn = 0; turn < 2; turn++) {
		struct rdma_cm_id *from = turn ? other : one, *to = turn ? one : other;
		snprintf(out, sizeof(out), "turn %d", turn);
		memset(in, 0, sizeof(in));
		NEED((out_mr = rdma_reg_msgs(from, out, sizeof(out))));
		NEED((in_mr = rdma_reg_msgs(to, in, sizeof(in))));
		NEED(rdma_post_recv(to, NULL, in, sizeof(in), in_mr) == 0);
		NEED(rdma_post_send(from, NULL, out, sizeof(out), out_mr, 0) == 0);
		NEED(rdma_get_send_comp(from, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
		NEED(rdma_get_recv_comp(to, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
		CHECK(strcmp(in, out) == 0);
		rdma_dereg_mr(out_mr);
		rdma_dereg_mr(in_mr);
	}
}

/* Connects a new identifier to the listener, both with queue pairs. */
static void connected(struct rdma_cm_id *listener, const char *to, int port, struct rdma_cm_id **active,
		      struct rdma_cm_id **passive)
{
	struct rdma_cm_event *event;
	struct ibv_qp_init_attr attr = qp_attr(IBV_QPT_RC);
	struct rdma_conn_param param = { .private_data = "hello", .private_data_len = 6, .responder_resources = 3,
					 .initiator_depth = 5, .retry_count = 6, .rnr_retry_count = 5 };

	*active = make(RDMA_PS_TCP, NULL);
	resolve(*active, to, port);
	NEED(rdma_create_qp(*active, NULL, &attr) == 0);
	CHECK((*active)->qp && (*active)->send_cq && (*active)->recv_cq_channel);
	NEED(rdma_connect(*active, &param) == 0);

	event = NEXT(CONNECT_REQUEST);
	CHECK(event->listen_id == listener && event->id->context == listener->context && event->status == 0);
	CHECK(event->param.conn.private_data_len == 56 && !strcmp(event->param.conn.private_data, "hello"));
	CHECK(event->param.conn.responder_resources == 5 && event->param.conn.initiator_depth == 3);
	CHECK(event->param.conn.retry_count == 6 && event->param.conn.rnr_retry_count == 5);
	CHECK(event->param.conn.qp_num == (*active)->qp->qp_num);
	*passive = event->id;
	CHECK((*passive)->verbs && (*passive)->pd && (*passive)->route.num_paths == 1);
	CHECK(ntohs(rdma_get_src_port(*passive)) == port);
	CHECK(rdma_get_dst_port(*passive) == rdma_get_src_port(*active));
	CHECK((*passive)->route.path_rec->flow_label == (*active)->route.path_rec->flow_label);
	ACK(event);
	attr = qp_attr(IBV_QPT_RC);
	NEED(rdma_create_qp(*passive, NULL, &attr) == 0);
	param.private_data = "welcome";
	param.private_data_len = 8;
	param.responder_resources = RDMA_MAX_RESP_RES;
	param.initiator_depth = RDMA_MAX_INIT_DEPTH;
	NEED(rdma_accept(*passive, &param) == 0);

	/* Which of the two comes first is open. */
	for (int n = 0; n < 2; n++) {
		event = NEXT(ESTABLISHED);
		if (event->id == *active) {
			CHECK(event->param.conn.private_data_len == 196);
			CHECK(!strcmp(event->param.conn.private_data, "welcome"));
			CHECK(event->param.conn.responder_resources == 3 && event->param.conn.initiator_depth == 5);
		} else {
			CHECK(event->id == *passive);
		}
		ACK(event);
	}
	CHECK((*active)->qp->state == IBV_QPS_RTS && (*passive)->qp->state == IBV_QPS_RTS);
}

static void finish(struct rdma_cm_id *id)
{
	if (id->qp)
		rdma_destroy_qp(id);
	CHECK(rdma_destroy_id(id) == 0);
}

static void disconnect(struct rdma_cm_id *one, struct rdma_cm_id *other)
{
	struct rdma_cm_event *event;
	int ends = 0, exits = 0;

	NEED(rdma_disconnect(one) == 0);
	CHECK(one->qp->state == IBV_QPS_ERR);
	while (ends < 2) {
		NEED(readable(channel->fd, 10000));
		NEED(rdma_get_cm_event(channel, &event) == 0);
		if (event->event == RDMA_CM_EVENT_DISCONNECTED) {
			ends++;
			if (event->id == other)
				CHECK(rdma_disconnect(other) == 0);
		} else {
			CHECK(event->event == RDMA_CM_EVENT_TIMEWAIT_EXIT);
			exits++;
		}
		ACK(event);
	}
	for (; exits < 2; exits++)
		ACK(NEXT(TIMEWAIT_EXIT));
}

static void connect_and_talk(void)
{
	int port;
	struct rdma_cm_id *listener = listening(RDMA_PS_TCP, "0.0.0.0", &port), *active, *passive;
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;

	connected(listener, "127.0.0.1", port, &active, &passive);
	talk(active, passive);
	NEED(ibv_query_qp(active->qp, &attr, 0, &init) == 0);
	CHECK(attr.max_rd_atomic == 5 && attr.max_dest_rd_atomic == 3 && attr.retry_cnt == 6 && attr.rnr_retry == 5);
	NEED(ibv_query_qp(passive->qp, &attr, 0, &init) == 0);
	CHECK(attr.max_rd_atomic == 3 && attr.max_dest_rd_atomic == 5);
	MINUS(rdma_connect(active, NULL), EINVAL);
	MINUS(rdma_accept(passive, NULL), EINVAL);
	disconnect(active, passive);
	finish(active);
	finish(passive);
	/* Again, from the other side, and destroyed without a word. */
	connected(listener, "127.0.0.1", port, &active, &passive);
	disconnect(passive, active);
	finish(passive);
	finish(active);
	connected(listener, "127.0.0.1", port, &active, &passive);
	finish(passive);
	ACK(NEXT(DISCONNECTED));
	finish(active);
	finish(listener);
	CHECK(!readable(channel->fd, 0));
}

/* Pages of memory in use. */
static long resident(void)
{
	long size, pages = 0;
	FILE *file = fopen("/proc/self/statm", "r");

	NEED(file != NULL && fscanf(file, "%ld %ld", &size, &pages) == 2);
	fclose(file);
	return pages;
}

static void many(void)
{
	int port;
	struct rdma_cm_id *listener = listening(RDMA_PS_TCP, "0.0.0.0", &port), *active, *passive;
	int fd = dup(0), again;
	long first = 0;

	close(fd);
	for (int n = 0; n < 10000; n++) {
		/* By then everything has found its size. */
		if (n == 2000)
			first = resident();
		connected(listener, "127.0.0.1", port, &active, &passive);
		NEED(rdma_disconnect(active) == 0);
		ACK(NEXT(DISCONNECTED));
		NEED(rdma_disconnect(passive) == 0);
		ACK(NEXT(DISCONNECTED));
		/* Their ports and numbers rest for a while, but nobody waits for that. */
		finish(active);
		finish(passive);
	}
	/* Pages; what is forgotten for each connection would be more. */
	printf("%ld pages more\n", resident() - first);
	CHECK(resident() - first < 200);
	finish(listener);
	again = dup(0);
	CHECK(again == fd);
	close(again);
}

static void rejecting(void)
{
	int port;
	struct rdma_cm_id *listener = listening(RDMA_PS_TCP, "0.0.0.0", &port), *active, *passive;
	struct rdma_cm_event *event;
	struct ibv_qp_init_attr attr = qp_attr(IBV_QPT_RC);
	struct rdma_conn_param param = { .retry_count = 7 };

	active = make(RDMA_PS_TCP, NULL);
	resolve(active, "127.0.0.1", port);
	NEED(rdma_create_qp(active, NULL, &attr) == 0);
	NEED(rdma_connect(active, &param) == 0);
	event = NEXT(CONNECT_REQUEST);
	passive = event->id;
	ACK(event);
	NEED(rdma_reject(passive, "no", 3) == 0);
	MINUS(rdma_reject(passive, "no", 3), EINVAL);
	event = NEXT(REJECTED);
	CHECK(event->id == active && event->status == 28);
	CHECK(event->param.conn.private_data_len == 148 && !strcmp(event->param.conn.private_data, "no"));
	CHECK(active->qp->state == IBV_QPS_ERR);
	ACK(event);
	finish(active);
	finish(passive);

	/* Nobody listens. */
	finish(listener);
	active = make(RDMA_PS_TCP, NULL);
	resolve(active, "127.0.0.1", port);
	attr = qp_attr(IBV_QPT_RC);
	NEED(rdma_create_qp(active, NULL, &attr) == 0);
	NEED(rdma_connect(active, &param) == 0);
	event = NEXT(REJECTED);
	CHECK(event->status == 8);
	ACK(event);
	finish(active);

	/* A listener that goes away refuses what it has not taken. */
	listener = listening(RDMA_PS_TCP, "0.0.0.0", &port);
	active = make(RDMA_PS_TCP, NULL);
	resolve(active, "127.0.0.1", port);
	attr = qp_attr(IBV_QPT_RC);
	NEED(rdma_create_qp(active, NULL, &attr) == 0);
	NEED(rdma_connect(active, &param) == 0);
	NEED(readable(channel->fd, 10000));
	finish(listener);
	event = NEXT(REJECTED);
	CHECK(event->id == active);
	ACK(event);
	finish(active);
	CHECK(!readable(channel->fd, 0));
}

/* The program brings its queue pairs itself, as UCX and others do. */
static void own_queue_pairs(void)
{
	int port, mask;
	struct rdma_cm_id *listener = listening(RDMA_PS_TCP, "0.0.0.0", &port), *active, *passive;
	struct rdma_cm_event *event;
	struct ibv_qp_init_attr init = qp_attr(IBV_QPT_RC);
	struct ibv_qp *qp[2];
	struct ibv_cq *cq;
	struct ibv_qp_attr attr;
	struct ibv_ece ece = { .vendor_id = 0x15b3, .options = 0x1234 };
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1, .retry_count = 7 };

	active = make(RDMA_PS_TCP, NULL);
	resolve(active, "127.0.0.1", port);
	NEED((cq = ibv_create_cq(active->verbs, 32, NULL, NULL, 0)));
	init.send_cq = init.recv_cq = cq;
	NEED((qp[0] = ibv_create_qp(active->pd, &init)));
	NEED((qp[1] = ibv_create_qp(active->pd, &init)));
	MINUS(rdma_connect(active, NULL), EINVAL);
	param.qp_num = qp[0]->qp_num;
	CHECK(rdma_set_local_ece(active, &ece) == 0);
	NEED(rdma_connect(active, &param) == 0);
	event = NEXT(CONNECT_REQUEST);
	passive = event->id;
	CHECK(event->param.conn.qp_num == qp[0]->qp_num);
	ACK(event);
	memset(&ece, 0, sizeof(ece));
	CHECK(rdma_get_remote_ece(passive, &ece) == 0 && ece.vendor_id == 0x15b3 && ece.options == 0x1234);
	for (int state = IBV_QPS_INIT; state <= IBV_QPS_RTS; state++) {
		memset(&attr, 0, sizeof(attr));
		attr.qp_state = state;
		NEED(rdma_init_qp_attr(passive, &attr, &mask) == 0);
		CHECK((int)attr.qp_state == state);
		if (state == IBV_QPS_RTR)
			CHECK(attr.dest_qp_num == qp[0]->qp_num);
		NEED(ibv_modify_qp(qp[1], &attr, mask) == 0);
	}
	param.qp_num = qp[1]->qp_num;
	NEED(rdma_accept(passive, &param) == 0);
	event = NEXT(CONNECT_RESPONSE);
	CHECK(event->id == active && event->param.conn.qp_num == qp[1]->qp_num);
	ACK(event);
	for (int state = IBV_QPS_INIT; state <= IBV_QPS_RTS; state++) {
		memset(&attr, 0, sizeof(attr));
		attr.qp_state = state;
		NEED(rdma_init_qp_attr(active, &attr, &mask) == 0);
		NEED(ibv_modify_qp(qp[0], &attr, mask) == 0);
	}
	NEED(rdma_establish(active) == 0);
	MINUS(rdma_establish(active), EINVAL);
	event = NEXT(ESTABLISHED);
	CHECK(event->id == passive);
	ACK(event);
	NEED(rdma_disconnect(passive) == 0);
	event = NEXT(DISCONNECTED);
	CHECK(event->id == active);
	ACK(event);
	NEED(rdma_disconnect(active) == 0);
	event = NEXT(DISCONNECTED);
	CHECK(event->id == passive);
	ACK(event);
	ibv_destroy_qp(qp[0]);
	ibv_destroy_qp(qp[1]);
	ibv_destroy_cq(cq);
	finish(active);
	finish(passive);
	finish(listener);
}

static void datagrams(void)
{
	int port;
	struct rdma_cm_id *listener = listening(RDMA_PS_UDP, "0.0.0.0", &port), *active, *passive;
	struct rdma_cm_event *event;
	struct ibv_qp_init_attr attr = qp_attr(IBV_QPT_UD);
	struct rdma_conn_param param = { .private_data = "who", .private_data_len = 4 };
	static char out[64] = "datagram", in[64 + 40];
	struct ibv_mr *out_mr, *in_mr;
	struct ibv_ah *ah;
	struct ibv_wc wc;
	uint32_t qpn, qkey;

	active = make(RDMA_PS_UDP, NULL);
	CHECK(active->qp_type == IBV_QPT_UD);
	resolve(active, "127.0.0.1", port);
	NEED(rdma_create_qp(active, NULL, &attr) == 0);
	CHECK(active->qp->state == IBV_QPS_RTS);
	NEED(rdma_connect(active, &param) == 0);
	event = NEXT(CONNECT_REQUEST);
	passive = event->id;
	CHECK(event->param.ud.private_data_len == 180 && !strcmp(event->param.ud.private_data, "who"));
	ACK(event);
	attr = qp_attr(IBV_QPT_UD);
	NEED(rdma_create_qp(passive, NULL, &attr) == 0);
	param.private_data = "me";
	param.private_data_len = 3;
	param.qp_num = passive->qp->qp_num;
	NEED(rdma_accept(passive, &param) == 0);
	event = NEXT(ESTABLISHED);
	CHECK(event->id == active && event->param.ud.qp_num == passive->qp->qp_num);
	CHECK(event->param.ud.qkey == RDMA_UDP_QKEY && !strcmp(event->param.ud.private_data, "me"));
	CHECK(event->param.ud.ah_attr.is_global && event->param.ud.ah_attr.port_num == 1);
	qpn = event->param.ud.qp_num;
	qkey = event->param.ud.qkey;
	NEED((ah = ibv_create_ah(active->pd, &event->param.ud.ah_attr)));
	ACK(event);

	NEED((out_mr = rdma_reg_msgs(active, out, sizeof(out))));
	NEED((in_mr = rdma_reg_msgs(passive, in, sizeof(in))));
	NEED(rdma_post_recv(passive, NULL, in, sizeof(in), in_mr) == 0);
	(void)qkey;
	NEED(rdma_post_ud_send(active, NULL, out, sizeof(out), out_mr, 0, ah, qpn) == 0);
	NEED(rdma_get_send_comp(active, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	NEED(rdma_get_recv_comp(passive, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	CHECK(!strcmp(in + 40, "datagram"));
	rdma_dereg_mr(out_mr);
	rdma_dereg_mr(in_mr);
	ibv_destroy_ah(ah);
	CHECK(rdma_disconnect(active) == 0);
	finish(active);
	finish(passive);

	/* Refused. */
	active = make(RDMA_PS_UDP, NULL);
	resolve(active, "127.0.0.1", port);
	NEED(rdma_connect(active, NULL) == 0);
	event = NEXT(CONNECT_REQUEST);
	passive = event->id;
	ACK(event);
	NEED(rdma_reject(passive, NULL, 0) == 0);
	event = NEXT(UNREACHABLE);
	CHECK(event->id == active && event->status == 2);
	ACK(event);
	finish(active);
	finish(passive);
	finish(listener);
}

static void *server(void *argument)
{
	struct rdma_cm_id *listener = argument, *id;
	static char in[32], out[32];
	struct ibv_mr *in_mr, *out_mr;
	struct ibv_wc wc;

	NEED(rdma_get_request(listener, &id) == 0);
	NEED(id->event && id->event->event == RDMA_CM_EVENT_CONNECT_REQUEST && id->qp);
	NEED((in_mr = rdma_reg_msgs(id, in, sizeof(in))));
	NEED((out_mr = rdma_reg_msgs(id, out, sizeof(out))));
	NEED(rdma_post_recv(id, NULL, in, sizeof(in), in_mr) == 0);
	NEED(rdma_accept(id, NULL) == 0);
	CHECK(id->event && id->event->event == RDMA_CM_EVENT_ESTABLISHED);
	NEED(rdma_get_recv_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	memcpy(out, in, sizeof(out));
	NEED(rdma_post_send(id, NULL, out, sizeof(out), out_mr, 0) == 0);
	NEED(rdma_get_send_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	NEED(rdma_disconnect(id) == 0);
	CHECK(rdma_disconnect(id) == 0);
	rdma_dereg_mr(in_mr);
	rdma_dereg_mr(out_mr);
	rdma_destroy_ep(id);
	return NULL;
}

static void synchronous(void)
{
	struct rdma_addrinfo hints = { .ai_flags = RAI_PASSIVE, .ai_port_space = RDMA_PS_TCP }, *passive, *active;
	struct ibv_qp_init_attr attr = qp_attr(IBV_QPT_RC);
	struct rdma_cm_id *listener, *id;
	static char in[32], out[32] = "around";
	struct ibv_mr *in_mr, *out_mr;
	struct ibv_wc wc;
	pthread_t thread;
	char port[8];
	uint16_t number;

	NEED(rdma_getaddrinfo(NULL, "0", &hints, &passive) == 0);
	CHECK(passive->ai_flags == RAI_PASSIVE && passive->ai_qp_type == IBV_QPT_RC && passive->ai_src_addr);
	NEED(rdma_create_ep(&listener, passive, NULL, &attr) == 0);
	rdma_freeaddrinfo(passive);
	NEED(rdma_listen(listener, 1) == 0);
	number = ntohs(rdma_get_src_port(listener));
	NEED(number != 0);
	NEED(pthread_create(&thread, NULL, server, listener) == 0);

	snprintf(port, sizeof(port), "%d", number);
	hints.ai_flags = RAI_NUMERICHOST;
	NEED(rdma_getaddrinfo("127.0.0.1", port, &hints, &active) == 0);
	CHECK(active->ai_port_space == RDMA_PS_TCP && active->ai_dst_len == sizeof(struct sockaddr_in));
	attr = qp_attr(IBV_QPT_RC);
	NEED(rdma_create_ep(&id, active, NULL, &attr) == 0);
	rdma_freeaddrinfo(active);
	NEED(id->qp && id->verbs && id->route.num_paths == 1);
	NEED((in_mr = rdma_reg_msgs(id, in, sizeof(in))));
	NEED((out_mr = rdma_reg_msgs(id, out, sizeof(out))));
	NEED(rdma_post_recv(id, NULL, in, sizeof(in), in_mr) == 0);
	NEED(rdma_connect(id, NULL) == 0);
	CHECK(id->event && id->event->event == RDMA_CM_EVENT_ESTABLISHED);
	NEED(rdma_post_send(id, NULL, out, sizeof(out), out_mr, 0) == 0);
	NEED(rdma_get_send_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	NEED(rdma_get_recv_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	CHECK(!strcmp(in, "around"));
	NEED(rdma_disconnect(id) == 0);
	NEED(pthread_join(thread, NULL) == 0);
	rdma_dereg_mr(in_mr);
	rdma_dereg_mr(out_mr);
	rdma_destroy_ep(id);

	/* Nobody takes it: refused. */
	hints.ai_flags = 0;
	NEED(rdma_getaddrinfo("127.0.0.1", "1", &hints, &active) == 0);
	attr = qp_attr(IBV_QPT_RC);
	NEED(rdma_create_ep(&id, active, NULL, &attr) == 0);
	MINUS(rdma_connect(id, NULL), ECONNREFUSED);
	rdma_freeaddrinfo(active);
	rdma_destroy_ep(id);
	rdma_destroy_ep(listener);

	CHECK(rdma_getaddrinfo("no such name", NULL, NULL, &active) != 0);
	MINUS(rdma_getaddrinfo(NULL, NULL, NULL, &active), EINVAL);
}

static void binding(void)
{
	struct rdma_cm_id *one = make(RDMA_PS_TCP, NULL), *two = make(RDMA_PS_TCP, NULL), *three = make(RDMA_PS_UDP, NULL);
	struct sockaddr_in a = address("0.0.0.0", 0), device;
	struct sockaddr_in6 six = { .sin6_family = AF_INET6 };
	struct sockaddr other = { .sa_family = 27 };
	struct ibv_context **list;
	union ibv_gid gid;
	int count = -1, on = 1, found = 0;
	uint8_t tos = 0x20;

	NEED((list = rdma_get_devices(&count)) && count == 1 && list[0] && !list[1]);
	for (int n = 0; !ibv_query_gid(list[0], 1, n, &gid); n++)
		if (gid.raw[10] == 0xff && gid.raw[11] == 0xff) {
			device = address("0.0.0.0", 0);
			memcpy(&device.sin_addr, gid.raw + 12, 4);
			found = 1;
		}
	NEED(found);
	MINUS(rdma_bind_addr(one, NULL), EINVAL);
	MINUS(rdma_bind_addr(one, &other), EINVAL);
	NEED(rdma_bind_addr(one, (void *)&a) == 0);
	CHECK(!one->verbs);
	MINUS(rdma_bind_addr(one, (void *)&a), EINVAL);
	a.sin_port = rdma_get_src_port(one);
	device.sin_port = a.sin_port;
	MINUS(rdma_bind_addr(two, (void *)&a), EADDRINUSE);
	MINUS(rdma_bind_addr(two, (void *)&device), EADDRINUSE);
	/* Another port space has ports of its own. */
	NEED(rdma_bind_addr(three, (void *)&device) == 0);
	CHECK(three->verbs == list[0] && three->pd && three->port_num == 1);
	CHECK(three->route.addr.addr.ibaddr.pkey == htons(0xffff));
	device.sin_port = 0;
	NEED(rdma_bind_addr(two, (void *)&device) == 0);
	CHECK(two->verbs == list[0]);
	finish(two);
	finish(one);
	finish(three);

	one = make(RDMA_PS_TCP, NULL);
	a = address("203.0.113.7", 0);
	MINUS(rdma_bind_addr(one, (void *)&a), EADDRNOTAVAIL);
	MINUS(rdma_listen(one, -1) == 0 ? -1 : 0, 0);
	CHECK(rdma_get_src_port(one) != 0);
	finish(one);

	one = make(RDMA_PS_TCP, NULL);
	CHECK(rdma_set_option(one, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &on, sizeof(on)) == 0);
	CHECK(rdma_set_option(one, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &on, sizeof(on)) == 0);
	CHECK(rdma_set_option(one, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos, 1) == 0);
	MINUS(rdma_set_option(one, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos, 2), EINVAL);
	MINUS(rdma_set_option(one, RDMA_OPTION_ID, 99, &tos, 1), ENOSYS);
	MINUS(rdma_set_option(one, 7, 0, &tos, 1), ENOSYS);
	NEED(rdma_bind_addr(one, (void *)&six) == 0);
	MINUS(rdma_set_option(one, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &on, sizeof(on)), EINVAL);
	two = make(RDMA_PS_TCP, NULL);
	a = address("0.0.0.0", ntohs(rdma_get_src_port(one)));
	CHECK(rdma_bind_addr(two, (void *)&a) == 0);
	finish(one);
	finish(two);

	/* No way there: the event says so, and it may be tried again. */
	one = make(RDMA_PS_TCP, NULL);
	a = address("203.0.113.7", 7);
	NEED(rdma_resolve_addr(one, NULL, (void *)&a, 100) == 0);
	struct rdma_cm_event *event = NEXT(ADDR_ERROR);
	CHECK(event->status < 0);
	ACK(event);
	MINUS(rdma_resolve_route(one, 100), EINVAL);
	MINUS(rdma_disconnect(one), EINVAL);
	resolve(one, "127.0.0.1", 7);
	MINUS(rdma_resolve_addr(one, NULL, (void *)&a, 100), EINVAL);
	MINUS(rdma_listen(one, 1), EINVAL);
	finish(one);
	rdma_free_devices(list);
	rdma_free_devices(list);
}

static void moving(void)
{
	int port;
	struct rdma_cm_id *listener = listening(RDMA_PS_TCP, "0.0.0.0", &port), *id;
	struct rdma_event_channel *second = rdma_create_event_channel();
	struct sockaddr_in a = address("127.0.0.1", port);
	struct rdma_cm_event *event;

	NEED(second);
	id = make(RDMA_PS_TCP, NULL);
	NEED(rdma_resolve_addr(id, NULL, (void *)&a, 2000) == 0);
	CHECK(readable(channel->fd, 0) && !readable(second->fd, 0));
	NEED(rdma_migrate_id(id, second) == 0);
	CHECK(id->channel == second && !readable(channel->fd, 0) && readable(second->fd, 0));
	ACK(next_of(second, RDMA_CM_EVENT_ADDR_RESOLVED, __LINE__));
	/* To a channel of its own: then calls wait for their events. */
	NEED(rdma_migrate_id(id, NULL) == 0);
	MINUS(rdma_migrate_id(id, NULL), EINVAL);
	NEED(rdma_resolve_route(id, 2000) == 0);
	CHECK(id->event && id->event->event == RDMA_CM_EVENT_ROUTE_RESOLVED);
	NEED(rdma_migrate_id(id, channel) == 0);
	CHECK(!id->event && id->channel == channel);
	rdma_destroy_event_channel(second);

	/* A non-blocking channel says that there is nothing. */
	fcntl(channel->fd, F_SETFL, O_NONBLOCK);
	MINUS(rdma_get_cm_event(channel, &event), EAGAIN);
	fcntl(channel->fd, F_SETFL, 0);
	finish(id);
	finish(listener);
}

/* One identifier sends to a group that another has joined. */
static void groups(void)
{
	struct rdma_cm_id *id[2];
	struct ibv_qp_init_attr attr;
	struct sockaddr_in device = address("0.0.0.0", 0), group = address("239.7.8.9", 0);
	struct rdma_cm_event *event;
	struct ibv_context **list;
	static char out[64] = "to all", in[64 + 40];
	struct ibv_mr *out_mr, *in_mr;
	struct ibv_ah *ah = NULL;
	struct ibv_wc wc;
	union ibv_gid gid;
	int count;

	NEED((list = rdma_get_devices(&count)));
	for (int n = 0; !ibv_query_gid(list[0], 1, n, &gid); n++)
		if (gid.raw[10] == 0xff && gid.raw[11] == 0xff)
			memcpy(&device.sin_addr, gid.raw + 12, 4);
	for (int n = 0; n < 2; n++) {
		id[n] = make(RDMA_PS_UDP, NULL);
		MINUS(rdma_join_multicast(id[n], (void *)&group, NULL), EINVAL);
		NEED(rdma_bind_addr(id[n], (void *)&device) == 0);
		attr = qp_attr(IBV_QPT_UD);
		NEED(rdma_create_qp(id[n], NULL, &attr) == 0);
		MINUS(rdma_join_multicast(id[n], (void *)&device, NULL), EINVAL);
		NEED(rdma_join_multicast(id[n], (void *)&group, &count) == 0);
		event = NEXT(MULTICAST_JOIN);
		CHECK(event->id == id[n] && event->status == 0 && event->param.ud.private_data == &count);
		CHECK(event->param.ud.qp_num == 0xffffff && event->param.ud.qkey == RDMA_UDP_QKEY);
		CHECK(!memcmp(event->param.ud.ah_attr.grh.dgid.raw + 12, &group.sin_addr, 4));
		if (!ah)
			NEED((ah = ibv_create_ah(id[0]->pd, &event->param.ud.ah_attr)));
		ACK(event);
	}
	NEED((out_mr = rdma_reg_msgs(id[0], out, sizeof(out))));
	NEED((in_mr = rdma_reg_msgs(id[1], in, sizeof(in))));
	NEED(rdma_post_recv(id[1], NULL, in, sizeof(in), in_mr) == 0);
	NEED(rdma_post_ud_send(id[0], NULL, out, sizeof(out), out_mr, 0, ah, 0xffffff) == 0);
	NEED(rdma_get_send_comp(id[0], &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	NEED(rdma_get_recv_comp(id[1], &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	CHECK(!strcmp(in + 40, "to all"));
	NEED(rdma_leave_multicast(id[1], (void *)&group) == 0);
	MINUS(rdma_leave_multicast(id[1], (void *)&group), EADDRNOTAVAIL);
	/* One leaves before it has heard that it joined, the other by its end. */
	NEED(rdma_join_multicast(id[1], (void *)&group, NULL) == 0);
	NEED(rdma_leave_multicast(id[1], (void *)&group) == 0);
	CHECK(!readable(channel->fd, 0));
	rdma_dereg_mr(out_mr);
	rdma_dereg_mr(in_mr);
	ibv_destroy_ah(ah);
	finish(id[1]);
	CHECK(rdma_leave_multicast(id[0], (void *)&group) == 0);
	finish(id[0]);
	rdma_free_devices(list);
}

static void kill_daemon(void)
{
	char path[4096];
	glob_t found;
	FILE *lock;
	int pid = 0;

	snprintf(path, sizeof(path), "%s/urxe/%s-*.lock", getenv("XDG_RUNTIME_DIR"), getenv("URXE_FABRIC"));
	NEED(glob(path, 0, NULL, &found) == 0 && found.gl_pathc == 1);
	NEED((lock = fopen(found.gl_pathv[0], "r")) && fscanf(lock, "%d", &pid) == 1 && pid > 1);
	fclose(lock);
	globfree(&found);
	NEED(kill(pid, SIGKILL) == 0);
}

/* What is connected goes on without the daemon; what listens is there again with the next one. */
static void daemon_dies(void)
{
	int port, rejected = 0, reached = 0;
	struct rdma_cm_id *listener = listening(RDMA_PS_TCP, "0.0.0.0", &port), *active, *passive, *waiting, *ready, *request;
	struct ibv_qp_init_attr attr = qp_attr(IBV_QPT_RC);
	struct rdma_conn_param param = { .retry_count = 7 };
	struct rdma_cm_event *event;

	connected(listener, "127.0.0.1", port, &active, &passive);
	ready = make(RDMA_PS_TCP, NULL);
	resolve(ready, "127.0.0.1", port);
	waiting = make(RDMA_PS_TCP, NULL);
	resolve(waiting, "127.0.0.1", port);
	NEED(rdma_create_qp(waiting, NULL, &attr) == 0);
	NEED(rdma_connect(waiting, &param) == 0);
	event = NEXT(CONNECT_REQUEST);
	request = event->id;
	ACK(event);

	kill_daemon();
	event = NEXT(UNREACHABLE);
	CHECK(event->id == waiting && event->status < 0);
	ACK(event);
	MINUS(rdma_accept(request, &param), EINVAL);
	finish(waiting);
	finish(request);
	talk(active, passive);
	NEED(rdma_disconnect(active) == 0);
	event = NEXT(DISCONNECTED);
	CHECK(event->id == active);
	ACK(event);
	ACK(NEXT(TIMEWAIT_EXIT));
	NEED(rdma_disconnect(passive) == 0);
	event = NEXT(DISCONNECTED);
	CHECK(event->id == passive);
	ACK(event);
	ACK(NEXT(TIMEWAIT_EXIT));
	finish(active);
	finish(passive);

	/* With its old port, from one that was ready to connect before. The listener may come a moment later. */
	attr = qp_attr(IBV_QPT_RC);
	NEED(rdma_create_qp(ready, NULL, &attr) == 0);
	while (!reached) {
		NEED(rdma_connect(ready, &param) == 0);
		NEED(readable(channel->fd, 10000) && rdma_get_cm_event(channel, &event) == 0);
		reached = event->event == RDMA_CM_EVENT_CONNECT_REQUEST;
		if (reached) {
			passive = event->id;
			CHECK(event->listen_id == listener && ntohs(rdma_get_src_port(passive)) == port);
			ACK(event);
			break;
		}
		CHECK(event->event == RDMA_CM_EVENT_REJECTED && event->status == 8);
		ACK(event);
		NEED(++rejected < 1000);
		finish(ready);
		ready = make(RDMA_PS_TCP, NULL);
		resolve(ready, "127.0.0.1", port);
		attr = qp_attr(IBV_QPT_RC);
		NEED(rdma_create_qp(ready, NULL, &attr) == 0);
	}
	finish(passive);
	ACK(NEXT(REJECTED));
	finish(ready);
	finish(listener);
}

static void *destroy_later(void *id)
{
	CHECK(rdma_destroy_id(id) == 0);
	return NULL;
}

static void hostile(void)
{
	static void *const wild[] = { NULL, (void *)8, (void *)0xdeadbeef000, (void *)-1, (void *)1, &failures };
	struct sockaddr_in a = address("127.0.0.1", 9);
	struct rdma_cm_id *id = make(RDMA_PS_TCP, NULL), *made;
	struct rdma_cm_event *event;
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR };
	struct ibv_qp_init_attr init = qp_attr(IBV_QPT_RC);
	struct rdma_addrinfo *info;
	struct ibv_ece ece;
	pthread_t thread;
	int mask, status = -1;
	pid_t child;

	for (size_t n = 0; n < sizeof(wild) / sizeof(*wild); n++) {
		void *p = wild[n];
		if (p)
			MINUS(rdma_create_id(p, &made, NULL, RDMA_PS_TCP), EINVAL);
		if (p != &failures) {
			CHECK(rdma_create_id(channel, p, NULL, RDMA_PS_TCP) == -1);
			CHECK(rdma_bind_addr(id, p) == -1);
			CHECK(rdma_resolve_addr(id, NULL, p, 1) == -1);
			CHECK(rdma_get_cm_event(channel, p) == -1);
			CHECK(rdma_init_qp_attr(id, p, &mask) == -1);
			CHECK(rdma_init_qp_attr(id, &attr, p) == -1);
			CHECK(rdma_create_qp(id, NULL, p) == -1);
			CHECK(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, p, 1) == -1);
			CHECK(rdma_getaddrinfo("127.0.0.1", NULL, NULL, p) == -1);
			CHECK(rdma_set_local_ece(id, p) == -1);
			CHECK(rdma_get_remote_ece(id, p) == -1);
			if (p) {
				CHECK(rdma_getaddrinfo(p, NULL, NULL, &info) == -1);
				CHECK(rdma_getaddrinfo(NULL, "1", p, &info) == -1);
			}
		}
		MINUS(rdma_destroy_id(p), EINVAL);
		MINUS(rdma_bind_addr(p, (void *)&a), EINVAL);
		MINUS(rdma_resolve_addr(p, NULL, (void *)&a, 1), EINVAL);
		MINUS(rdma_resolve_route(p, 1), EINVAL);
		MINUS(rdma_listen(p, 1), EINVAL);
		MINUS(rdma_connect(p, NULL), EINVAL);
		MINUS(rdma_accept(p, NULL), EINVAL);
		MINUS(rdma_reject(p, NULL, 0), EINVAL);
		MINUS(rdma_establish(p), EINVAL);
		MINUS(rdma_disconnect(p), EINVAL);
		MINUS(rdma_notify(p, IBV_EVENT_COMM_EST), EINVAL);
		MINUS(rdma_create_qp(p, NULL, &init), EINVAL);
		MINUS(rdma_init_qp_attr(p, &attr, &mask), EINVAL);
		MINUS(rdma_migrate_id(p, channel), EINVAL);
		MINUS(rdma_set_option(p, 0, 0, &mask, 1), EINVAL);
		MINUS(rdma_join_multicast(p, (void *)&a, NULL), EINVAL);
		MINUS(rdma_leave_multicast(p, (void *)&a), EINVAL);
		MINUS(rdma_get_request(p, &made), EINVAL);
		MINUS(rdma_ack_cm_event(p), EINVAL);
		MINUS(rdma_get_remote_ece(p, &ece), EINVAL);
		MINUS(rdma_get_cm_event(p, &event), EINVAL);
		if (p != &failures)
			CHECK(rdma_create_ep(&made, p, NULL, NULL) == -1);
		CHECK(rdma_get_src_port(p) == 0 && rdma_get_dst_port(p) == 0);
		rdma_destroy_qp(p);
		rdma_destroy_srq(p);
		rdma_destroy_ep(p);
		rdma_freeaddrinfo(p);
		rdma_free_devices(p);
		rdma_destroy_event_channel(p);
	}
	MINUS(rdma_create_id(channel, &made, NULL, 0x1234), EINVAL);
	/* In the wrong order. */
	MINUS(rdma_connect(id, NULL), EINVAL);
	MINUS(rdma_accept(id, NULL), EINVAL);
	MINUS(rdma_reject(id, NULL, 0), EINVAL);
	MINUS(rdma_establish(id), EINVAL);
	MINUS(rdma_disconnect(id), EINVAL);
	MINUS(rdma_notify(id, IBV_EVENT_COMM_EST), EINVAL);
	MINUS(rdma_create_qp(id, NULL, &init), EINVAL);
	MINUS(rdma_init_qp_attr(id, &attr, &mask), EINVAL);
	MINUS(rdma_join_multicast(id, (void *)&a, NULL), EINVAL);
	MINUS(rdma_leave_multicast(id, (void *)&a), EADDRNOTAVAIL);

	/* Destroying waits for the acknowledgement, and works once. */
	NEED(rdma_resolve_addr(id, NULL, (void *)&a, 1) == 0);
	event = NEXT(ADDR_RESOLVED);
	NEED(pthread_create(&thread, NULL, destroy_later, id) == 0);
	ACK(event);
	MINUS(rdma_ack_cm_event(event), EINVAL);
	NEED(pthread_join(thread, NULL) == 0);
	MINUS(rdma_destroy_id(id), EINVAL);

	/* A child of fork cannot use what its parent has, and leaves cleanly. */
	id = make(RDMA_PS_TCP, NULL);
	child = fork();
	if (child == 0) {
		int wrong = rdma_bind_addr(id, (void *)&a) == 0 || rdma_destroy_id(id) == 0;
		exit(wrong);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	CHECK(rdma_destroy_id(id) == 0);
}

int main(int argc, char **argv)
{
	static const struct { const char *name; void (*run)(void); } scenarios[] = {
		{ "connect_and_talk", connect_and_talk }, { "many", many },
		{ "rejecting", rejecting },		  { "own_queue_pairs", own_queue_pairs },
		{ "datagrams", datagrams },		  { "synchronous", synchronous },
		{ "binding", binding },			  { "moving", moving },
		{ "groups", groups },			  { "hostile", hostile },
		{ "daemon_dies", daemon_dies },
	};
	setvbuf(stdout, NULL, _IOLBF, 0);
	alarm(60);
	NEED((channel = rdma_create_event_channel()));
	for (size_t n = 0; n < sizeof(scenarios) / sizeof(*scenarios); n++)
		if (argc > 1 && !strcmp(argv[1], scenarios[n].name)) {
			scenarios[n].run();
			rdma_destroy_event_channel(channel);
			return failures != 0;
		}
	return 2;
}
