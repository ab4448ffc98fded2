/*
 * Multicast groups: what is refused, and who gets a copy. Each queue pair has the device to itself but for the others.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "check.h"

enum { GRH = 40, SLOT = 128, QKEY = 0x1234, MEMBERS = 3 };

static struct ibv_context *context;
static struct ibv_pd *pd;
static char memory[(MEMBERS + 1) * SLOT];
static struct ibv_mr *mr;

struct member {
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	char *slot;
};

static struct ibv_qp *make(struct ibv_cq *cq, enum ibv_qp_type type, unsigned flags)
{
	struct ibv_qp_init_attr_ex init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = type, .sq_sig_all = 1, .pd = pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS, .create_flags = flags,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
	};

	return ibv_create_qp_ex(context, &init);
}

static void receive(struct member *m)
{
	struct ibv_sge sge = { .addr = (uintptr_t)m->slot, .length = SLOT, .lkey = mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;

	NEED(!ibv_post_recv(m->qp, &wr, &bad));
}

static struct member member(int i, unsigned flags)
{
	struct member m = { .cq = ibv_create_cq(context, 16, NULL, NULL, 0), .slot = memory + i * SLOT };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY };

	NEED(m.cq);
	m.qp = make(m.cq, IBV_QPT_UD, flags);
	NEED(m.qp);
	NEED(!ibv_modify_qp(m.qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY));
	attr.qp_state = IBV_QPS_RTR;
	NEED(!ibv_modify_qp(m.qp, &attr, IBV_QP_STATE));
	attr.qp_state = IBV_QPS_RTS;
	NEED(!ibv_modify_qp(m.qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN));
	receive(&m);
	return m;
}

static void send_to(struct member *m, struct ibv_ah *ah)
{
	struct ibv_sge sge = { .addr = (uintptr_t)memory + MEMBERS * SLOT, .length = 8, .lkey = mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;

	wr.wr.ud.ah = ah;
	wr.wr.ud.remote_qpn = 0xffffff;
	wr.wr.ud.remote_qkey = QKEY;
	memcpy(memory + MEMBERS * SLOT, "to group", 8);
	NEED(!ibv_post_send(m->qp, &wr, &bad));
}

/* Datagrams that arrive until nothing has come for a while. */
static int arrived(struct member *m, struct member *from, const union ibv_gid *group)
{
	struct timespec start, now;
	struct ibv_wc wc;
	int count = 0;

	clock_gettime(CLOCK_MONOTONIC, &start);
	do {
		clock_gettime(CLOCK_MONOTONIC, &now);
		if (ibv_poll_cq(m->cq, 1, &wc) != 1)
			continue;
		NEED(wc.status == IBV_WC_SUCCESS);
		if (wc.opcode != IBV_WC_RECV)
			continue;
		NEED(wc.byte_len == GRH + 8 && wc.wc_flags == IBV_WC_GRH && wc.src_qp == from->qp->qp_num);
		NEED(!memcmp(m->slot + GRH, "to group", 8));
		NEED(!memcmp(m->slot + 36, group->raw + 12, 4));
		memset(m->slot, 0, SLOT);
		receive(m);
		count++;
		start = now;
	} while ((now.tv_sec - start.tv_sec) * 1000 + (now.tv_nsec - start.tv_nsec) / 1000000 < 100);
	return count;
}

int main(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	union ibv_gid group = { .raw = { [10] = 0xff, [11] = 0xff, 239, 8, 9, 10 } }, other = group, unicast;
	struct ibv_ah_attr to = { .is_global = 1, .port_num = 1, .dlid = 0xc001, .grh = { .hop_limit = 1 } };
	struct member m[MEMBERS];
	struct ibv_device_attr attr;
	struct ibv_qp *connected;
	struct ibv_ah *ah;
	union ibv_gid many;
	int i, r;

	NEED(list && list[0]);
	context = ibv_open_device(list[0]);
	ibv_free_device_list(list);
	NEED(context);
	pd = ibv_alloc_pd(context);
	NEED(pd);
	mr = ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE);
	NEED(mr);
	NEED(!ibv_query_gid(context, 1, 0, &unicast));
	NEED(!ibv_query_device(context, &attr));
	NEED(attr.max_mcast_grp > 0 && attr.max_mcast_qp_attach > 0);
	NEED(attr.max_total_mcast_qp_attach >= attr.max_mcast_qp_attach);
	other.raw[15]++;

	for (i = 0; i < MEMBERS; i++)
		m[i] = member(i, i == 0 ? IBV_QP_CREATE_BLOCK_SELF_MCAST_LB : 0);

	/* Refused. */
	connected = make(m[0].cq, IBV_QPT_RC, 0);
	NEED(connected);
	NEED(ibv_attach_mcast(connected, &group, 0) == EINVAL);
	NEED(!make(m[0].cq, IBV_QPT_RC, IBV_QP_CREATE_BLOCK_SELF_MCAST_LB) && errno == EOPNOTSUPP);
	NEED(!make(m[0].cq, IBV_QPT_UD, 1 << 8) && errno == EOPNOTSUPP);
	NEED(ibv_attach_mcast(NULL, &group, 0) == EINVAL);
	NEED(ibv_attach_mcast(m[0].qp, NULL, 0) == EINVAL);
	NEED(ibv_attach_mcast(m[0].qp, (void *)8, 0) == EFAULT);
	NEED(ibv_attach_mcast(m[0].qp, &unicast, 0) == EINVAL);
	NEED(ibv_detach_mcast(m[0].qp, &group, 0) == EINVAL);

	/* Each gets one copy, attached twice or not; the first sender none. */
	for (i = 0; i < MEMBERS; i++)
		NEED(!ibv_attach_mcast(m[i].qp, &group, 0xc001));
	NEED(!ibv_attach_mcast(m[1].qp, &group, 0xc001));
	to.grh.dgid = group;
	ah = ibv_create_ah(pd, &to);
	NEED(ah);
	for (i = 0; i < MEMBERS; i++) {
		send_to(&m[i], ah);
		for (r = 0; r < MEMBERS; r++)
			NEED(arrived(&m[r], &m[i], &group) == !(i == 0 && r == 0));
	}

	/* A member of another group gets nothing. */
	NEED(!ibv_detach_mcast(m[1].qp, &group, 0xc001));
	NEED(ibv_detach_mcast(m[1].qp, &group, 0xc001) == EINVAL);
	NEED(!ibv_attach_mcast(m[1].qp, &other, 0xc001));
	send_to(&m[0], ah);
	NEED(arrived(&m[1], &m[0], &group) == 0);
	NEED(arrived(&m[2], &m[0], &group) == 1);

	/* As many groups as the device says, and not one more. */
	NEED(!ibv_detach_mcast(m[1].qp, &other, 0));
	many = group;
	many.raw[13]++;
	for (i = 1; i < attr.max_mcast_grp; i++) {
		many.raw[15] = i;
		NEED(!ibv_attach_mcast(m[1].qp, &many, 0));
	}
	many.raw[15] = i;
	NEED(ibv_attach_mcast(m[1].qp, &many, 0) == ENOMEM);
	for (i = 1; i < attr.max_mcast_grp; i++) {
		many.raw[15] = i;
		NEED(!ibv_detach_mcast(m[1].qp, &many, 0));
	}

	/* Attached, it cannot be destroyed. */
	NEED(ibv_destroy_qp(m[0].qp) == EBUSY);
	NEED(!ibv_detach_mcast(m[0].qp, &group, 0xc001));
	NEED(!ibv_detach_mcast(m[2].qp, &group, 0xc001));
	NEED(!ibv_destroy_ah(ah));
	NEED(!ibv_destroy_qp(connected));
	for (i = 0; i < MEMBERS; i++)
		NEED(!ibv_destroy_qp(m[i].qp) && !ibv_destroy_cq(m[i].cq));
	NEED(!ibv_dereg_mr(mr) && !ibv_dealloc_pd(pd) && !ibv_close_device(context));
	return 0;
}
