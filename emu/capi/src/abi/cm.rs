//! `rdma/rdma_cma.h` and `infiniband/sa.h`.

use std::ffi::{c_char, c_int, c_void};

use libc::{sockaddr, sockaddr_storage, socklen_t};

use super::context::ibv_context;
use super::objects::*;

/// The source or the destination of an `rdma_addr`: any socket address.
#[repr(C)]
#[derive(Clone, Copy)]
pub union rdma_socket_address {
    pub any: sockaddr,
    pub ipv4: libc::sockaddr_in,
    pub ipv6: libc::sockaddr_in6,
    pub storage: sockaddr_storage,
}

/// What a `rdma_cm_event` carries, by its kind.
#[repr(C)]
#[derive(Clone, Copy)]
pub union rdma_cm_event_param {
    pub conn: rdma_conn_param,
    pub ud: rdma_ud_param,
    pub arg: u64,
}

c_types! {
    struct ibv_sa_path_rec {
        dgid: ibv_gid,
        sgid: ibv_gid,
        dlid: u16,
        slid: u16,
        raw_traffic: c_int,
        flow_label: u32,
        hop_limit: u8,
        traffic_class: u8,
        reversible: c_int,
        numb_path: u8,
        pkey: u16,
        sl: u8,
        mtu_selector: u8,
        mtu: u8,
        rate_selector: u8,
        rate: u8,
        packet_life_time_selector: u8,
        packet_life_time: u8,
        preference: u8,
    }

    struct rdma_ib_addr { sgid: ibv_gid, dgid: ibv_gid, pkey: u16 }

    struct rdma_addr {
        source as "src_addr": rdma_socket_address,
        destination as "dst_addr": rdma_socket_address,
        ibaddr as "addr.ibaddr": rdma_ib_addr,
    }

    struct rdma_route { addr: rdma_addr, path_rec: *mut ibv_sa_path_rec, num_paths: c_int }

    struct rdma_event_channel { fd: c_int }

    struct rdma_cm_id {
        verbs: *mut ibv_context,
        channel: *mut rdma_event_channel,
        context: *mut c_void,
        qp: *mut ibv_qp,
        route: rdma_route,
        ps: u32,
        port_num: u8,
        event: *mut rdma_cm_event,
        send_cq_channel: *mut ibv_comp_channel,
        send_cq: *mut ibv_cq,
        recv_cq_channel: *mut ibv_comp_channel,
        recv_cq: *mut ibv_cq,
        srq: *mut ibv_srq,
        pd: *mut ibv_pd,
        qp_type: u32,
    }

    struct rdma_conn_param {
        private_data: *const c_void,
        private_data_len: u8,
        responder_resources: u8,
        initiator_depth: u8,
        flow_control: u8,
        retry_count: u8,
        rnr_retry_count: u8,
        srq: u8,
        qp_num: u32,
    }

    struct rdma_ud_param {
        private_data: *const c_void,
        private_data_len: u8,
        ah_attr: ibv_ah_attr,
        qp_num: u32,
        qkey: u32,
    }

    struct rdma_cm_event {
        id: *mut rdma_cm_id,
        listen_id: *mut rdma_cm_id,
        event: u32,
        status: c_int,
        param: rdma_cm_event_param,
    }

    struct rdma_addrinfo {
        ai_flags: c_int,
        ai_family: c_int,
        ai_qp_type: c_int,
        ai_port_space: c_int,
        ai_src_len: socklen_t,
        ai_dst_len: socklen_t,
        ai_src_addr: *mut sockaddr,
        ai_dst_addr: *mut sockaddr,
        ai_src_canonname: *mut c_char,
        ai_dst_canonname: *mut c_char,
        ai_route_len: usize,
        ai_route: *mut c_void,
        ai_connect_len: usize,
        ai_connect: *mut c_void,
        ai_next: *mut rdma_addrinfo,
    }

    struct rdma_cm_join_mc_attr_ex { comp_mask: u32, join_flags: u32, addr: *mut sockaddr }
}
