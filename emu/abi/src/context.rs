//! The device, the context and the two tables of operations that the inline functions of verbs.h call.

use std::ffi::{c_char, c_int, c_uint, c_void};

use libc::pthread_mutex_t;

use super::objects::*;
use super::requests::*;

/// An operation that this device does not have: the entry stays null, and the inline functions of verbs.h
/// answer `EOPNOTSUPP` by themselves. Its arguments are of no interest here.
pub type NoOperation = Option<unsafe extern "C" fn()>;

c_types! {
    struct _ibv_device_ops { _dummy1: NoOperation, _dummy2: NoOperation }

    struct ibv_device {
        _ops: _ibv_device_ops,
        node_type: c_int,
        transport_type: c_int,
        name: [c_char; 64],
        dev_name: [c_char; 64],
        dev_path: [c_char; 256],
        ibdev_path: [c_char; 256],
    }

    struct ibv_context_ops {
        _compat_query_device: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_device_attr) -> c_int>,
        _compat_query_port: Option<unsafe extern "C" fn(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int>,
        _compat_alloc_pd: NoOperation,
        _compat_dealloc_pd: NoOperation,
        _compat_reg_mr: NoOperation,
        _compat_rereg_mr: NoOperation,
        _compat_dereg_mr: NoOperation,
        alloc_mw: Option<unsafe extern "C" fn(*mut ibv_pd, u32) -> *mut ibv_mw>,
        bind_mw: Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_mw, *mut ibv_mw_bind) -> c_int>,
        dealloc_mw: Option<unsafe extern "C" fn(*mut ibv_mw) -> c_int>,
        _compat_create_cq: NoOperation,
        poll_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int>,
        req_notify_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int>,
        _compat_cq_event: NoOperation,
        _compat_resize_cq: NoOperation,
        _compat_destroy_cq: NoOperation,
        _compat_create_srq: NoOperation,
        _compat_modify_srq: NoOperation,
        _compat_query_srq: NoOperation,
        _compat_destroy_srq: NoOperation,
        post_srq_recv:
            Option<unsafe extern "C" fn(*mut ibv_srq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int>,
        _compat_create_qp: NoOperation,
        _compat_query_qp: NoOperation,
        _compat_modify_qp: NoOperation,
        _compat_destroy_qp: NoOperation,
        post_send:
            Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int>,
        post_recv:
            Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int>,
        _compat_create_ah: NoOperation,
        _compat_destroy_ah: NoOperation,
        _compat_attach_mcast: NoOperation,
        _compat_detach_mcast: NoOperation,
        _compat_async_event: NoOperation,
    }

    struct ibv_context {
        device: *mut ibv_device,
        ops: ibv_context_ops,
        cmd_fd: c_int,
        async_fd: c_int,
        num_comp_vectors: c_int,
        mutex: pthread_mutex_t,
        abi_compat: *mut c_void,
    }

    // Programs reach its fields backwards from the `ibv_context` they hold, after they compared `sz` with the
    // distance, so the newest layout serves old programs too. It grows at the front.
    struct verbs_context {
        free_buf: NoOperation,
        alloc_buf: NoOperation,
        dm_export_dmabuf_fd: NoOperation,
        reg_mr_ex: Option<unsafe extern "C" fn(*mut ibv_pd, *mut ibv_mr_init_attr) -> *mut ibv_mr>,
        dealloc_dmah: NoOperation,
        alloc_dmah: NoOperation,
        query_port: Option<unsafe extern "C" fn(*mut ibv_context, u8, *mut ibv_port_attr, usize) -> c_int>,
        advise_mr: Option<unsafe extern "C" fn(*mut ibv_pd, u32, u32, *mut ibv_sge, u32) -> c_int>,
        alloc_null_mr: Option<unsafe extern "C" fn(*mut ibv_pd) -> *mut ibv_mr>,
        read_counters: NoOperation,
        attach_counters_point_flow: NoOperation,
        create_counters: NoOperation,
        destroy_counters: NoOperation,
        reg_dm_mr: Option<unsafe extern "C" fn(*mut ibv_pd, *mut ibv_dm, u64, usize, c_uint) -> *mut ibv_mr>,
        alloc_dm: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_alloc_dm_attr) -> *mut ibv_dm>,
        free_dm: Option<unsafe extern "C" fn(*mut ibv_dm) -> c_int>,
        modify_flow_action_esp: NoOperation,
        destroy_flow_action: NoOperation,
        create_flow_action_esp: NoOperation,
        modify_qp_rate_limit: NoOperation,
        alloc_parent_domain:
            Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_parent_domain_init_attr) -> *mut ibv_pd>,
        dealloc_td: Option<unsafe extern "C" fn(*mut ibv_td) -> c_int>,
        alloc_td: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_td_init_attr) -> *mut ibv_td>,
        modify_cq: Option<unsafe extern "C" fn(*mut ibv_cq, *mut ibv_modify_cq_attr) -> c_int>,
        post_srq_ops: NoOperation,
        destroy_rwq_ind_table: NoOperation,
        create_rwq_ind_table: NoOperation,
        destroy_wq: NoOperation,
        modify_wq: NoOperation,
        create_wq: NoOperation,
        query_rt_values: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_values_ex) -> c_int>,
        create_cq_ex:
            Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex>,
        r#priv as "priv": *mut c_void,
        query_device_ex: Option<
            unsafe extern "C" fn(
                *mut ibv_context,
                *const ibv_query_device_ex_input,
                *mut ibv_device_attr_ex,
                usize,
            ) -> c_int,
        >,
        ibv_destroy_flow: NoOperation,
        ABI_placeholder2: NoOperation,
        ibv_create_flow: NoOperation,
        ABI_placeholder1: NoOperation,
        open_qp: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_qp_open_attr) -> *mut ibv_qp>,
        create_qp_ex: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_qp_init_attr_ex) -> *mut ibv_qp>,
        get_srq_num: Option<unsafe extern "C" fn(*mut ibv_srq, *mut u32) -> c_int>,
        create_srq_ex:
            Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_srq_init_attr_ex) -> *mut ibv_srq>,
        open_xrcd: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_xrcd_init_attr) -> *mut ibv_xrcd>,
        close_xrcd: Option<unsafe extern "C" fn(*mut ibv_xrcd) -> c_int>,
        _ABI_placeholder3: u64,
        sz: usize,
        context: ibv_context,
    }
}
