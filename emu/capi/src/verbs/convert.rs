//! Between C's structures and numbers and the device's types. What comes from the program is checked here.

use std::net::IpAddr;

use device::config::LinkLayer;
use device::device::Device;
use device::ids::{Gid, LKey, Lid, Mtu, Psn, QKey, Qpn};
use device::mem::{Access, AdviseError, RegisterError};
use device::verbs::{AddressVector, AttrMask, PostError, QpAttr, QpCaps, QpState, QpType, RecvWr, Sge, Wc};

use crate::abi::*;
use crate::boundary::{Errno, Outcome};
use crate::memory;

/// `EINVAL`.
pub const INVALID: Errno = Errno(libc::EINVAL);
/// `EOPNOTSUPP`.
pub const UNSUPPORTED: Errno = Errno(libc::EOPNOTSUPP);

// A program's scatter/gather list is passed on as it is.
const _: () = {
    assert!(size_of::<Sge>() == size_of::<ibv_sge>() && align_of::<Sge>() == align_of::<ibv_sge>());
    assert!(std::mem::offset_of!(Sge, addr) == std::mem::offset_of!(ibv_sge, addr));
    assert!(std::mem::offset_of!(Sge, len) == std::mem::offset_of!(ibv_sge, length));
    assert!(std::mem::offset_of!(Sge, lkey) == std::mem::offset_of!(ibv_sge, lkey));
    assert!(size_of::<LKey>() == size_of::<u32>());
};

/// A work request's scatter/gather list.
///
/// # Safety
/// Nobody changes or unmaps `list` while the result is used.
#[inline]
pub unsafe fn sges<'a>(list: *const ibv_sge, count: i32) -> Outcome<&'a [Sge]> {
    match usize::try_from(count) {
        Ok(0) => Ok(&[]),
        // More than any queue takes; the exact limit is the queue's.
        Ok(count) if count <= 1024 && !list.is_null() && list.is_aligned() => {
            memory::readable(list, count)?;
            // SAFETY: it is readable and stays so by contract, and the layouts are the same.
            Ok(unsafe { std::slice::from_raw_parts(list.cast(), count) })
        }
        _ => Err(INVALID),
    }
}

/// A receive request.
///
/// # Safety
/// `wr` is valid.
#[inline]
pub unsafe fn receive<'a>(wr: &ibv_recv_wr) -> Outcome<RecvWr<'a>> {
    // SAFETY: by contract.
    Ok(RecvWr { id: wr.wr_id, sges: unsafe { sges(wr.sg_list, wr.num_sge)? } })
}

/// The service of a queue pair.
pub fn kind(value: u32) -> Outcome<QpType> {
    match value {
        IBV_QPT_RC => Ok(QpType::Rc),
        IBV_QPT_UC => Ok(QpType::Uc),
        IBV_QPT_UD => Ok(QpType::Ud),
        IBV_QPT_RAW_PACKET | IBV_QPT_XRC_SEND | IBV_QPT_XRC_RECV | IBV_QPT_DRIVER => Err(UNSUPPORTED),
        _ => Err(INVALID),
    }
}

fn state(value: u32) -> Outcome<QpState> {
    Ok(match value {
        IBV_QPS_RESET => QpState::Reset,
        IBV_QPS_INIT => QpState::Init,
        IBV_QPS_RTR => QpState::Rtr,
        IBV_QPS_RTS => QpState::Rts,
        IBV_QPS_SQD => QpState::Sqd,
        IBV_QPS_SQE => QpState::Sqe,
        IBV_QPS_ERR => QpState::Err,
        _ => return Err(INVALID),
    })
}

/// Sizes of a queue pair.
pub fn caps(cap: &ibv_qp_cap) -> QpCaps {
    QpCaps {
        max_send_wr: cap.max_send_wr,
        max_recv_wr: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_sge: cap.max_recv_sge,
        max_inline_data: cap.max_inline_data,
    }
}

/// Sizes of a queue pair, for the program.
pub fn cap(caps: &QpCaps) -> ibv_qp_cap {
    ibv_qp_cap {
        max_send_wr: caps.max_send_wr,
        max_recv_wr: caps.max_recv_wr,
        max_send_sge: caps.max_send_sge,
        max_recv_sge: caps.max_recv_sge,
        max_inline_data: caps.max_inline_data,
    }
}

/// An address.
pub fn address(attr: &ibv_ah_attr) -> AddressVector {
    AddressVector {
        // SAFETY: any bytes are a GID.
        dgid: Gid(unsafe { attr.grh.dgid.raw }),
        flow_label: attr.grh.flow_label & 0x000f_ffff,
        sgid_index: attr.grh.sgid_index,
        hop_limit: attr.grh.hop_limit,
        traffic_class: attr.grh.traffic_class,
        dlid: Lid(attr.dlid),
        sl: attr.sl,
        src_path_bits: attr.src_path_bits,
        static_rate: attr.static_rate,
        is_global: attr.is_global != 0,
        port: attr.port_num,
    }
}

/// An address, for the program.
pub fn ah_attr(vector: &AddressVector) -> ibv_ah_attr {
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: vector.dgid.0 },
            flow_label: vector.flow_label,
            sgid_index: vector.sgid_index,
            hop_limit: vector.hop_limit,
            traffic_class: vector.traffic_class,
        },
        dlid: vector.dlid.0,
        sl: vector.sl,
        src_path_bits: vector.src_path_bits,
        static_rate: vector.static_rate,
        is_global: vector.is_global.into(),
        port_num: vector.port,
    }
}

/// The attributes that a mask names; what it does not name is not looked at.
pub fn attributes(attr: &ibv_qp_attr, mask: AttrMask) -> Outcome<QpAttr> {
    let mut new = QpAttr::default();
    if mask.has(AttrMask::STATE) {
        new.state = state(attr.qp_state)?;
    }
    if mask.has(AttrMask::CUR_STATE) {
        new.cur_state = state(attr.cur_qp_state)?;
    }
    if mask.has(AttrMask::PATH_MTU) {
        new.path_mtu = u8::try_from(attr.path_mtu).ok().and_then(Mtu::from_code).ok_or(INVALID)?;
    }
    // PSNs have 24 bits; what is above is ignored, as adapters do (programs pass random 32-bit numbers).
    new.rq_psn = Psn::new(attr.rq_psn & Psn::MASK);
    new.sq_psn = Psn::new(attr.sq_psn & Psn::MASK);
    new.qkey = QKey(attr.qkey);
    new.dest_qpn = Qpn(attr.dest_qp_num);
    new.access = Access(attr.qp_access_flags);
    new.av = address(&attr.ah_attr);
    new.pkey_index = attr.pkey_index;
    new.en_sqd_async_notify = attr.en_sqd_async_notify != 0;
    new.max_rd_atomic = attr.max_rd_atomic;
    new.max_dest_rd_atomic = attr.max_dest_rd_atomic;
    new.min_rnr_timer = attr.min_rnr_timer;
    new.port = attr.port_num;
    new.timeout = attr.timeout;
    new.retry_cnt = attr.retry_cnt;
    new.rnr_retry = attr.rnr_retry;
    Ok(new)
}

/// Present attributes, for the program.
pub fn qp_attr(attr: &QpAttr, caps: &QpCaps) -> ibv_qp_attr {
    // SAFETY: plain numbers, for which zero is a value.
    let mut out: ibv_qp_attr = unsafe { std::mem::zeroed() };
    out.qp_state = attr.state as u32;
    out.cur_qp_state = attr.cur_state as u32;
    out.path_mtu = attr.path_mtu as u32;
    out.path_mig_state = IBV_MIG_MIGRATED;
    out.qkey = attr.qkey.0;
    out.rq_psn = attr.rq_psn.value();
    out.sq_psn = attr.sq_psn.value();
    out.dest_qp_num = attr.dest_qpn.0;
    out.qp_access_flags = attr.access.0;
    out.cap = cap(caps);
    out.ah_attr = ah_attr(&attr.av);
    out.pkey_index = attr.pkey_index;
    out.en_sqd_async_notify = attr.en_sqd_async_notify.into();
    out.sq_draining = (attr.state == QpState::Sqd).into();
    out.max_rd_atomic = attr.max_rd_atomic;
    out.max_dest_rd_atomic = attr.max_dest_rd_atomic;
    out.min_rnr_timer = attr.min_rnr_timer;
    out.port_num = attr.port;
    out.timeout = attr.timeout;
    out.retry_cnt = attr.retry_cnt;
    out.rnr_retry = attr.rnr_retry;
    out
}

/// The service level that completions of datagrams report. RoCE has none; adapters say there what kind of
/// header the packet had (IBA annex A17.4.5.1 asks for such a flag), with bit 3 for UDP and 1 for IPv6 or 2
/// for IPv4 below, and UCX decides by it where the destination's GID is.
pub fn datagram_sl(device: &Device) -> u8 {
    match (device.config().link_layer, device.port().ip) {
        (LinkLayer::InfiniBand, _) => 0,
        (LinkLayer::Ethernet, IpAddr::V4(_)) => 0b1010,
        (LinkLayer::Ethernet, IpAddr::V6(_)) => 0b1001,
    }
}

/// A completion, for the program. `sl` is [`datagram_sl`].
#[inline]
pub fn completion(wc: &Wc, sl: u8) -> ibv_wc {
    ibv_wc {
        wr_id: wc.id,
        status: wc.status as u32,
        opcode: wc.opcode as u32,
        vendor_err: wc.vendor_error,
        byte_len: wc.byte_len,
        imm_data: immediate(wc),
        qp_num: wc.qpn.0,
        src_qp: wc.src_qpn.0,
        wc_flags: flags(wc),
        pkey_index: 0,
        slid: wc.slid.0,
        sl: if wc.grh { sl } else { 0 },
        dlid_path_bits: 0,
    }
}

/// Immediate data as C has it: the bytes of the wire, in memory order.
#[inline]
pub fn immediate(wc: &Wc) -> u32 {
    wc.immediate.map_or(0, u32::from_ne_bytes)
}

/// The flags of a completion.
#[inline]
pub fn flags(wc: &Wc) -> u32 {
    let grh = if wc.grh { IBV_WC_GRH } else { 0 };
    let immediate = if wc.immediate.is_some() { IBV_WC_WITH_IMM } else { 0 };
    grh | immediate
}

/// Why a request was not posted, as errno: `ENOMEM` is "the queue is full" (ibv_post_send(3)).
pub fn post_error(error: PostError) -> Errno {
    tracing::debug!("request refused: {error}");
    Errno(match error {
        PostError::Full(_) => libc::ENOMEM,
        PostError::Fault(_) => libc::EFAULT,
        PostError::State(_)
        | PostError::TooManySges { .. }
        | PostError::InlineTooLong { .. }
        | PostError::TooLong { .. }
        | PostError::Unsupported(..)
        | PostError::NoAddress
        | PostError::HasSrq => libc::EINVAL,
    })
}

/// Why advice was not taken, as errno.
pub fn advise_error(error: AdviseError) -> Errno {
    tracing::debug!("advice refused: {error}");
    Errno(match error {
        AdviseError::UnknownKey(_) => libc::ENOENT,
        AdviseError::NotAllowed(_) => libc::EPERM,
        AdviseError::OutOfBounds { .. } | AdviseError::NotMapped(_) => libc::EFAULT,
    })
}

/// Why memory was not registered, as errno.
pub fn register_error(error: RegisterError) -> Errno {
    tracing::debug!("memory region refused: {error}");
    Errno(match error {
        RegisterError::NotMapped(_) | RegisterError::Protected { .. } => libc::EFAULT,
        RegisterError::Unsupported(_) => libc::EOPNOTSUPP,
        RegisterError::TableFull => libc::ENOMEM,
        RegisterError::UnknownAccess(_)
        | RegisterError::NeedsLocalWrite(_)
        | RegisterError::Empty
        | RegisterError::Overflow { .. }
        | RegisterError::UnknownKey(_) => libc::EINVAL,
    })
}
