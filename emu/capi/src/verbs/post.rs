//! Posting work requests: the data path.

use std::ffi::c_int;

use device::ids::{QKey, Qpn, RKey};
use device::verbs::{Remote, SendFlags, SendOp, SendWr, UdDest};

use super::address::Address;
use super::convert::{INVALID, post_error, receive, sges};
use super::handle::Object;
use super::queue_pair::{Pair, is_datagram};
use crate::abi::*;
use crate::boundary::{Errno, Outcome, errno};
use crate::memory;

/// `ibv_post_send` of verbs.h.
///
/// # Safety
/// `qp` is null or readable; `wr` is a list of valid requests, and `bad` valid.
pub unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    errno(|| {
        // SAFETY: by contract.
        let pair = match unsafe { Object::<Pair>::recognise(qp) } {
            Ok(object) => &object.private,
            // SAFETY: by contract.
            Err(error) => return Err(unsafe { refuse(bad, wr, error) }),
        };
        let datagram = is_datagram(pair);
        let mut next = wr.cast_const();
        // The request that was given out last, and the first one that could not even be given out.
        let mut last = wr.cast_const();
        let mut malformed = None;
        let requests = std::iter::from_fn(|| {
            if next.is_null() {
                return None;
            }
            last = next;
            if let Err(error) = memory::readable(next, 1) {
                malformed = Some(error);
                return None;
            }
            // SAFETY: it is readable, and by contract a request.
            let request = unsafe { &*next };
            next = request.next;
            // SAFETY: by contract.
            match unsafe { send_request(request, datagram) } {
                Ok(converted) => Some(converted),
                Err(error) => {
                    malformed = Some(error);
                    None
                }
            }
        });
        let result = pair.qp.post_send(requests);
        let error = match (result, malformed) {
            (Ok(()), None) => return Ok(()),
            (Err((_, error)), _) => post_error(error),
            (Ok(()), Some(error)) => error,
        };
        // Either way it is the request that was looked at last.
        // SAFETY: by contract.
        Err(unsafe { refuse(bad, last.cast_mut(), error) })
    })
}

/// Tells which request was not taken.
///
/// # Safety
/// `bad` is null or valid.
pub unsafe fn refuse<T>(bad: *mut *mut T, request: *mut T, error: Errno) -> Errno {
    if !bad.is_null() {
        // Where a pointer is wild there is nobody to tell.
        let _ = memory::write_guarded(bad, &request);
    }
    error
}

/// A request as the device takes it.
///
/// # Safety
/// The request and what it points to are valid.
unsafe fn send_request<'a>(wr: &ibv_send_wr, datagram: bool) -> Outcome<SendWr<'a>> {
    if wr.send_flags & !SendFlags::ALL.0 != 0 {
        return Err(INVALID);
    }
    // SAFETY: the opcode says which member of a union is meant; they are all plain numbers.
    let (op, sges) = unsafe {
        let rdma = |rdma: ibv_send_wr_rdma| Remote { addr: rdma.remote_addr, rkey: RKey(rdma.rkey) };
        let atomic =
            |atomic: ibv_send_wr_atomic| Remote { addr: atomic.remote_addr, rkey: RKey(atomic.rkey) };
        let immediate = wr.imm_data.to_ne_bytes();
        let op = match wr.opcode {
            IBV_WR_SEND => SendOp::Send,
            IBV_WR_SEND_WITH_IMM => SendOp::SendImm(immediate),
            IBV_WR_RDMA_WRITE => SendOp::Write(rdma(wr.wr.rdma)),
            IBV_WR_RDMA_WRITE_WITH_IMM => SendOp::WriteImm(rdma(wr.wr.rdma), immediate),
            IBV_WR_RDMA_READ => SendOp::Read(rdma(wr.wr.rdma)),
            IBV_WR_ATOMIC_CMP_AND_SWP => SendOp::CompareSwap {
                remote: atomic(wr.wr.atomic),
                compare: wr.wr.atomic.compare_add,
                swap: wr.wr.atomic.swap,
            },
            IBV_WR_ATOMIC_FETCH_AND_ADD => {
                SendOp::FetchAdd { remote: atomic(wr.wr.atomic), add: wr.wr.atomic.compare_add }
            }
            // Never silence: ibv_post_send(3) has EINVAL for a request that is not possible.
            _ => return Err(INVALID),
        };
        (op, sges(wr.sg_list, wr.num_sge)?)
    };
    let ud = match datagram {
        false => None,
        // SAFETY: the datagram member is the one that counts; recognise checks the handle.
        true => Some(unsafe {
            let ud = wr.wr.ud;
            destination(ud.ah, ud.remote_qpn, ud.remote_qkey)?
        }),
    };
    Ok(SendWr { id: wr.wr_id, op, flags: SendFlags(wr.send_flags), sges, ud })
}

/// Where a datagram goes.
///
/// # Safety
/// `ah` is null or readable.
pub unsafe fn destination(ah: *const ibv_ah, qpn: u32, qkey: u32) -> Outcome<UdDest> {
    // SAFETY: by contract.
    let path = unsafe { Object::<Address>::recognise(ah)? }.private.path.clone();
    if qpn > Qpn::MULTICAST.0 {
        return Err(INVALID);
    }
    Ok(UdDest { path, qpn: Qpn(qpn), qkey: QKey(qkey) })
}

/// `ibv_post_recv` of verbs.h.
///
/// # Safety
/// As for [`post_send`].
pub unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    errno(|| {
        // SAFETY: by contract.
        unsafe {
            match Object::<Pair>::recognise(qp) {
                Ok(object) => {
                    post_receives(wr, bad, |wr| object.private.qp.post_recv(wr).map_err(post_error))
                }
                Err(error) => Err(refuse(bad, wr, error)),
            }
        }
    })
}

/// Posts a list of receives with `post` and tells which one failed.
///
/// # Safety
/// `wr` is a list of valid requests, and `bad` valid.
pub unsafe fn post_receives(
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
    post: impl Fn(&device::verbs::RecvWr<'_>) -> Outcome<()>,
) -> Outcome<()> {
    let mut next = wr;
    // SAFETY: by contract, null ends the list.
    unsafe {
        while !next.is_null() {
            if let Err(error) = memory::readable(next, 1) {
                return Err(refuse(bad, next, error));
            }
            let request = &*next;
            if let Err(error) = receive(request).and_then(|request| post(&request)) {
                return Err(refuse(bad, next, error));
            }
            next = request.next;
        }
    }
    Ok(())
}
