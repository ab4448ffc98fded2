//! `ibv_wr_*`: work requests built by one function call for each part, and posted together.
//!
//! Between `ibv_wr_start` and `ibv_wr_complete` or `ibv_wr_abort` the builder belongs to the calling thread, as
//! ibv_wr_post(3) says; others wait in `ibv_wr_start`. The functions that build return nothing, so the first
//! mistake is kept and told by `ibv_wr_complete`, which then posts nothing.

use std::cell::{Cell, UnsafeCell};
use std::ffi::{c_int, c_void};

use device::ids::{LKey, RKey};
use device::verbs::{QpCaps, QpType, Remote, SendFlags, SendOp, SendWr, Sge, UdDest};
use parking_lot::RawMutex;
use parking_lot::lock_api::RawMutex as _;

use super::convert::{INVALID, UNSUPPORTED, post_error, sges};
use super::handle::Object;
use super::post::destination;
use super::queue_pair::{Pair, is_datagram};
use crate::abi::*;
use crate::boundary::{Errno, Outcome, errno, guarded};

/// The operations that the device has, by service (IBA 9.4.3, table of operations).
fn possible(kind: QpType) -> u64 {
    let send = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
    let write = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
    let read = IBV_QP_EX_WITH_RDMA_READ;
    let atomic = IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
    u64::from(match kind {
        QpType::Rc => send | write | read | atomic,
        QpType::Uc => send | write,
        QpType::Ud => send,
    })
}

/// Whether a queue pair can have these operations.
pub fn check_operations(ops: u64, kind: QpType) -> Outcome<()> {
    if ops & !possible(kind) == 0 { Ok(()) } else { Err(UNSUPPORTED) }
}

/// A request that is being built. Its elements and inline data are ranges of the builder's.
struct Request {
    id: u64,
    flags: SendFlags,
    op: SendOp,
    elements: (usize, usize),
    ud: Option<UdDest>,
}

/// What was built since `ibv_wr_start`.
#[derive(Default)]
struct Batch {
    requests: Vec<Request>,
    elements: Vec<Sge>,
    inline: Vec<u8>,
    error: Option<Errno>,
}

/// The builder of a queue pair.
pub struct Builder {
    lock: RawMutex,
    started: Cell<bool>,
    batch: UnsafeCell<Batch>,
    caps: QpCaps,
}

impl Builder {
    /// An empty one.
    pub fn new(caps: QpCaps) -> Self {
        Self {
            lock: RawMutex::INIT,
            started: Cell::new(false),
            batch: UnsafeCell::new(Batch::default()),
            caps,
        }
    }
}

impl Batch {
    fn clear(&mut self) {
        self.requests.clear();
        self.elements.clear();
        self.inline.clear();
        self.error = None;
    }

    fn fail(&mut self, error: Errno) {
        self.error.get_or_insert(error);
    }

    /// Sets the elements of the last request; those set before are forgotten.
    fn set_elements(&mut self, elements: &[Sge], inline: bool) {
        let Some(last) = self.requests.last_mut() else { return self.fail(INVALID) };
        last.flags.0 &= !SendFlags::INLINE.0;
        if inline {
            last.flags = last.flags.with(SendFlags::INLINE);
        }
        let start = self.elements.len();
        self.elements.extend_from_slice(elements);
        last.elements = (start, self.elements.len());
    }
}

/// Runs `body` on the batch of a queue pair that was started.
///
/// # Safety
/// `qp` is null or readable, and the calling thread called `ibv_wr_start`.
unsafe fn building(
    qp: *mut ibv_qp_ex,
    body: impl FnOnce(&mut Batch, &Builder, &Object<Pair>) -> Outcome<()>,
) {
    _ = guarded(|| {
        // SAFETY: by contract.
        let object = unsafe { Object::<Pair>::recognise(qp.cast())? };
        let builder = object.private.builder.as_ref().ok_or(INVALID)?;
        if !builder.started.get() {
            return Err(INVALID);
        }
        // SAFETY: the lock is held since the start, by this thread.
        let batch = unsafe { &mut *builder.batch.get() };
        if batch.error.is_none()
            && let Err(error) = guarded(|| body(batch, builder, object))
        {
            batch.fail(error);
        }
        Ok(())
    });
}

/// Begins a request with the `wr_id` and `wr_flags` that the program has set.
unsafe fn begin(qp: *mut ibv_qp_ex, op: SendOp) {
    // SAFETY: the program's contract; the structure lives with the object.
    unsafe {
        building(qp, |batch, builder, object| {
            let (id, flags) = ((*object.abi()).wr_id, (*object.abi()).wr_flags);
            // Inline is decided by the function that sets the data.
            let known = SendFlags::FENCE.with(SendFlags::SIGNALED).with(SendFlags::SOLICITED);
            if flags & !known.0 != 0 {
                return Err(INVALID);
            }
            if batch.requests.len() >= builder.caps.max_send_wr as usize {
                return Err(Errno(libc::ENOMEM));
            }
            let at = batch.elements.len();
            batch.requests.push(Request { id, flags: SendFlags(flags), op, elements: (at, at), ud: None });
            Ok(())
        });
    }
}

/// The functions of a queue pair's structure.
pub fn functions(abi: &mut ibv_qp_ex) {
    abi.wr_start = Some(wr_start);
    abi.wr_complete = Some(wr_complete);
    abi.wr_abort = Some(wr_abort);
    abi.wr_send = Some(wr_send);
    abi.wr_send_imm = Some(wr_send_imm);
    abi.wr_rdma_write = Some(wr_rdma_write);
    abi.wr_rdma_write_imm = Some(wr_rdma_write_imm);
    abi.wr_rdma_read = Some(wr_rdma_read);
    abi.wr_atomic_cmp_swp = Some(wr_atomic_cmp_swp);
    abi.wr_atomic_fetch_add = Some(wr_atomic_fetch_add);
    abi.wr_set_ud_addr = Some(wr_set_ud_addr);
    abi.wr_set_sge = Some(wr_set_sge);
    abi.wr_set_sge_list = Some(wr_set_sge_list);
    abi.wr_set_inline_data = Some(wr_set_inline_data);
    abi.wr_set_inline_data_list = Some(wr_set_inline_data_list);
    // Programs call these without asking for them at their own risk; the answer is EOPNOTSUPP.
    abi.wr_bind_mw = Some(wr_bind_mw);
    abi.wr_local_inv = Some(wr_refuse_key);
    abi.wr_send_inv = Some(wr_refuse_key);
    abi.wr_set_xrc_srqn = Some(wr_refuse_key);
    abi.wr_send_tso = Some(wr_send_tso);
    abi.wr_atomic_write = Some(wr_atomic_write);
    abi.wr_flush = Some(wr_flush);
}

unsafe extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    _ = guarded(|| {
        // SAFETY: null or readable.
        let object = unsafe { Object::<Pair>::recognise(qp.cast())? };
        let builder = object.private.builder.as_ref().ok_or(INVALID)?;
        builder.lock.lock();
        builder.started.set(true);
        // SAFETY: the lock is held.
        unsafe { &mut *builder.batch.get() }.clear();
        Ok(())
    });
}

/// Ends the thread's ownership of the builder after `body`.
unsafe fn end(
    qp: *mut ibv_qp_ex,
    body: impl FnOnce(&mut Batch, &Object<Pair>) -> Outcome<()>,
) -> Outcome<()> {
    // SAFETY: null or readable.
    let object = unsafe { Object::<Pair>::recognise(qp.cast())? };
    let builder = object.private.builder.as_ref().ok_or(INVALID)?;
    if !builder.started.get() {
        return Err(INVALID);
    }
    // SAFETY: the lock is held since the start, by this thread.
    let result = guarded(|| body(unsafe { &mut *builder.batch.get() }, object));
    builder.started.set(false);
    // SAFETY: as above.
    unsafe { builder.lock.unlock() };
    result
}

unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    // SAFETY: the program's contract.
    errno(|| unsafe {
        end(qp, |batch, object| {
            if let Some(error) = batch.error {
                return Err(error);
            }
            let inline = batch.inline.as_ptr().addr() as u64;
            for request in batch.requests.iter().filter(|request| request.flags.has(SendFlags::INLINE)) {
                for element in &mut batch.elements[request.elements.0..request.elements.1] {
                    element.addr += inline;
                }
            }
            let requests = batch.requests.iter().map(|request| SendWr {
                id: request.id,
                op: request.op,
                flags: request.flags,
                sges: &batch.elements[request.elements.0..request.elements.1],
                ud: request.ud.clone(),
            });
            object.private.qp.post_send_all(requests).map_err(|(_, error)| post_error(error))
        })
    })
}

unsafe extern "C" fn wr_abort(qp: *mut ibv_qp_ex) {
    // SAFETY: the program's contract.
    _ = guarded(|| unsafe { end(qp, |_, _| Ok(())) });
}

unsafe extern "C" fn wr_send(qp: *mut ibv_qp_ex) {
    // SAFETY: the program's contract, here and below.
    unsafe { begin(qp, SendOp::Send) }
}

unsafe extern "C" fn wr_send_imm(qp: *mut ibv_qp_ex, immediate: u32) {
    // SAFETY: as above.
    unsafe { begin(qp, SendOp::SendImm(immediate.to_ne_bytes())) }
}

unsafe extern "C" fn wr_rdma_write(qp: *mut ibv_qp_ex, rkey: u32, addr: u64) {
    // SAFETY: as above.
    unsafe { begin(qp, SendOp::Write(Remote { addr, rkey: RKey(rkey) })) }
}

unsafe extern "C" fn wr_rdma_write_imm(qp: *mut ibv_qp_ex, rkey: u32, addr: u64, immediate: u32) {
    let remote = Remote { addr, rkey: RKey(rkey) };
    // SAFETY: as above.
    unsafe { begin(qp, SendOp::WriteImm(remote, immediate.to_ne_bytes())) }
}

unsafe extern "C" fn wr_rdma_read(qp: *mut ibv_qp_ex, rkey: u32, addr: u64) {
    // SAFETY: as above.
    unsafe { begin(qp, SendOp::Read(Remote { addr, rkey: RKey(rkey) })) }
}

unsafe extern "C" fn wr_atomic_cmp_swp(qp: *mut ibv_qp_ex, rkey: u32, addr: u64, compare: u64, swap: u64) {
    let remote = Remote { addr, rkey: RKey(rkey) };
    // SAFETY: as above.
    unsafe { begin(qp, SendOp::CompareSwap { remote, compare, swap }) }
}

unsafe extern "C" fn wr_atomic_fetch_add(qp: *mut ibv_qp_ex, rkey: u32, addr: u64, add: u64) {
    let remote = Remote { addr, rkey: RKey(rkey) };
    // SAFETY: as above.
    unsafe { begin(qp, SendOp::FetchAdd { remote, add }) }
}

unsafe extern "C" fn wr_set_ud_addr(qp: *mut ibv_qp_ex, ah: *mut ibv_ah, qpn: u32, qkey: u32) {
    // SAFETY: as above; the handle is null or readable.
    unsafe {
        building(qp, |batch, _, object| {
            if !is_datagram(&object.private) {
                return Err(INVALID);
            }
            let to = destination(ah, qpn, qkey)?;
            batch.requests.last_mut().ok_or(INVALID)?.ud = Some(to);
            Ok(())
        });
    }
}

unsafe extern "C" fn wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    // SAFETY: as above.
    unsafe {
        building(qp, |batch, _, _| {
            batch.set_elements(&[Sge { addr, len: length, lkey: LKey(lkey) }], false);
            Ok(())
        });
    }
}

unsafe extern "C" fn wr_set_sge_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
    // SAFETY: as above; the list is the program's.
    unsafe {
        building(qp, |batch, builder, _| {
            if count > builder.caps.max_send_sge as usize {
                return Err(INVALID);
            }
            batch.set_elements(sges(list, count as i32)?, false);
            Ok(())
        });
    }
}

unsafe extern "C" fn wr_set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    let buffer = ibv_data_buf { addr, length };
    // SAFETY: as above; the buffer is the program's.
    unsafe { wr_set_inline_data_list(qp, 1, &buffer) }
}

/// The data is copied now: the program may use its memory again at once.
unsafe extern "C" fn wr_set_inline_data_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_data_buf) {
    // SAFETY: as above; list and buffers are the program's.
    unsafe {
        building(qp, |batch, builder, _| {
            // More buffers than bytes would be a mistake as well.
            if count > 1 << 16 || count > 0 && (list.is_null() || !list.is_aligned()) {
                return Err(INVALID);
            }
            let start = batch.inline.len();
            for index in 0..count {
                let buffer = list.add(index).read();
                let used = batch.inline.len() - start;
                if buffer.length > builder.caps.max_inline_data as usize - used {
                    return Err(INVALID);
                }
                if buffer.length > 0 {
                    if buffer.addr.is_null() {
                        return Err(INVALID);
                    }
                    let data = std::slice::from_raw_parts(buffer.addr.cast::<u8>(), buffer.length);
                    batch.inline.extend_from_slice(data);
                }
            }
            // The copy may still move: ibv_wr_complete makes an address of the offset.
            let length = batch.inline.len() - start;
            let element = Sge { addr: start as u64, len: length as u32, lkey: LKey(0) };
            batch.set_elements(&[element], true);
            Ok(())
        });
    }
}

/// Keeps `EOPNOTSUPP` for `ibv_wr_complete`.
unsafe fn refuse(qp: *mut ibv_qp_ex) {
    // SAFETY: as above.
    unsafe { building(qp, |_, _, _| Err(UNSUPPORTED)) }
}

unsafe extern "C" fn wr_refuse_key(qp: *mut ibv_qp_ex, _number: u32) {
    // SAFETY: as above.
    unsafe { refuse(qp) }
}

unsafe extern "C" fn wr_bind_mw(
    qp: *mut ibv_qp_ex,
    _mw: *mut ibv_mw,
    _rkey: u32,
    _info: *const ibv_mw_bind_info,
) {
    // SAFETY: as above.
    unsafe { refuse(qp) }
}

unsafe extern "C" fn wr_send_tso(qp: *mut ibv_qp_ex, _header: *mut c_void, _size: u16, _mss: u16) {
    // SAFETY: as above.
    unsafe { refuse(qp) }
}

unsafe extern "C" fn wr_atomic_write(qp: *mut ibv_qp_ex, _rkey: u32, _addr: u64, _value: *const c_void) {
    // SAFETY: as above.
    unsafe { refuse(qp) }
}

unsafe extern "C" fn wr_flush(
    qp: *mut ibv_qp_ex,
    _rkey: u32,
    _addr: u64,
    _len: usize,
    _kind: u8,
    _level: u8,
) {
    // SAFETY: as above.
    unsafe { refuse(qp) }
}
