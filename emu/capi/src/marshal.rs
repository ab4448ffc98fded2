//! `ibv_copy_*`: between the kernel's attribute structures and the library's. librdmacm and a few programs
//! call them with structures that they own.

use crate::abi::cm::ibv_sa_path_rec;
use crate::abi::kernel::*;
use crate::abi::*;
use crate::boundary::nothing;
use crate::memory;

fn address(source: &ib_uverbs_ah_attr) -> ibv_ah_attr {
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: source.grh.dgid },
            flow_label: source.grh.flow_label,
            sgid_index: source.grh.sgid_index,
            hop_limit: source.grh.hop_limit,
            traffic_class: source.grh.traffic_class,
        },
        dlid: source.dlid,
        sl: source.sl,
        src_path_bits: source.src_path_bits,
        static_rate: source.static_rate,
        is_global: source.is_global,
        port_num: source.port_num,
    }
}

/// Translates an address.
///
/// # Safety
/// The pointers are what the program passed.
pub unsafe extern "C" fn ibv_copy_ah_attr_from_kern(to: *mut ibv_ah_attr, from: *const ib_uverbs_ah_attr) {
    nothing(|| {
        // SAFETY: the caller's pointers; memory checks them.
        unsafe { memory::write(to, address(&memory::read(from)?)) }
    });
}

/// Translates QP attributes. The state itself is not copied, as in rdma-core.
///
/// # Safety
/// The pointers are what the program passed.
pub unsafe extern "C" fn ibv_copy_qp_attr_from_kern(to: *mut ibv_qp_attr, from: *const ib_uverbs_qp_attr) {
    nothing(|| {
        // SAFETY: the caller's pointers; memory checks them.
        let (mut attributes, source) = unsafe { (memory::read(to)?, memory::read(from)?) };
        attributes.cur_qp_state = source.cur_qp_state;
        attributes.path_mtu = source.path_mtu;
        attributes.path_mig_state = source.path_mig_state;
        attributes.qkey = source.qkey;
        attributes.rq_psn = source.rq_psn;
        attributes.sq_psn = source.sq_psn;
        attributes.dest_qp_num = source.dest_qp_num;
        attributes.qp_access_flags = source.qp_access_flags;
        attributes.cap = ibv_qp_cap {
            max_send_wr: source.max_send_wr,
            max_recv_wr: source.max_recv_wr,
            max_send_sge: source.max_send_sge,
            max_recv_sge: source.max_recv_sge,
            max_inline_data: source.max_inline_data,
        };
        attributes.ah_attr = address(&source.ah_attr);
        attributes.alt_ah_attr = address(&source.alt_ah_attr);
        attributes.pkey_index = source.pkey_index;
        attributes.alt_pkey_index = source.alt_pkey_index;
        attributes.en_sqd_async_notify = source.en_sqd_async_notify;
        attributes.sq_draining = source.sq_draining;
        attributes.max_rd_atomic = source.max_rd_atomic;
        attributes.max_dest_rd_atomic = source.max_dest_rd_atomic;
        attributes.min_rnr_timer = source.min_rnr_timer;
        attributes.port_num = source.port_num;
        attributes.timeout = source.timeout;
        attributes.retry_cnt = source.retry_cnt;
        attributes.rnr_retry = source.rnr_retry;
        attributes.alt_port_num = source.alt_port_num;
        attributes.alt_timeout = source.alt_timeout;
        // SAFETY: the caller's pointer; memory checks it.
        unsafe { memory::write(to, attributes) }
    });
}

/// Translates a path record.
///
/// # Safety
/// The pointers are what the program passed.
pub unsafe extern "C" fn ibv_copy_path_rec_from_kern(
    to: *mut ibv_sa_path_rec,
    from: *const ib_user_path_rec,
) {
    nothing(|| {
        // SAFETY: the caller's pointers; memory checks them.
        let source = unsafe { memory::read(from)? };
        let record = ibv_sa_path_rec {
            dgid: ibv_gid { raw: source.dgid },
            sgid: ibv_gid { raw: source.sgid },
            dlid: source.dlid,
            slid: source.slid,
            raw_traffic: source.raw_traffic.cast_signed(),
            flow_label: source.flow_label,
            hop_limit: source.hop_limit,
            traffic_class: source.traffic_class,
            reversible: source.reversible.cast_signed(),
            numb_path: source.numb_path,
            pkey: source.pkey,
            sl: source.sl,
            mtu_selector: source.mtu_selector,
            mtu: source.mtu as u8,
            rate_selector: source.rate_selector,
            rate: source.rate,
            packet_life_time_selector: source.packet_life_time_selector,
            packet_life_time: source.packet_life_time,
            preference: source.preference,
        };
        // SAFETY: the caller's pointer; memory checks it.
        unsafe { memory::write(to, record) }
    });
}

/// Translates a path record the other way.
///
/// # Safety
/// The pointers are what the program passed.
pub unsafe extern "C" fn ibv_copy_path_rec_to_kern(to: *mut ib_user_path_rec, from: *const ibv_sa_path_rec) {
    nothing(|| {
        // SAFETY: the caller's pointers; memory checks them. The GIDs are plain bytes.
        let (source, dgid, sgid) = unsafe {
            let source = memory::read(from)?;
            (source, source.dgid.raw, source.sgid.raw)
        };
        let record = ib_user_path_rec {
            dgid,
            sgid,
            dlid: source.dlid,
            slid: source.slid,
            raw_traffic: source.raw_traffic.cast_unsigned(),
            flow_label: source.flow_label,
            reversible: source.reversible.cast_unsigned(),
            mtu: source.mtu.into(),
            pkey: source.pkey,
            hop_limit: source.hop_limit,
            traffic_class: source.traffic_class,
            numb_path: source.numb_path,
            sl: source.sl,
            mtu_selector: source.mtu_selector,
            rate_selector: source.rate_selector,
            rate: source.rate,
            packet_life_time_selector: source.packet_life_time_selector,
            packet_life_time: source.packet_life_time,
            preference: source.preference,
        };
        // SAFETY: the caller's pointer; memory checks it.
        unsafe { memory::write(to, record) }
    });
}
