//! `struct ibv_cq_ex`: completions one by one, each of whose fields is asked for by a function.

use std::cell::Cell;
use std::ffi::{c_int, c_uint};

use device::verbs::Wc;
use parking_lot::RawMutex;
use parking_lot::lock_api::RawMutex as _;

use super::completion::{Init, Queue, create};
use super::convert::{INVALID, UNSUPPORTED, flags, immediate};
use super::handle::Object;
use crate::abi::*;
use crate::boundary::{Outcome, errno, guarded, pointer};
use crate::memory;

/// What the queue can tell about a completion.
const SUPPORTED: u64 = (IBV_WC_STANDARD_FLAGS
    | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP
    | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK) as u64;

/// The state of polling: the completion that the program looks at. Between `start_poll` and `end_poll` it
/// belongs to the thread that polls, and others wait, unless the program promised that there are none.
pub struct Extended {
    lock: RawMutex,
    single_threaded: bool,
    /// Whether a poll was started and not ended.
    polling: Cell<bool>,
    current: Cell<Wc>,
}

impl Extended {
    fn new(single_threaded: bool) -> Self {
        let nothing = Wc::new(0, device::verbs::WcOpcode::Send, device::ids::Qpn(0), 0);
        Self { lock: RawMutex::INIT, single_threaded, polling: Cell::new(false), current: Cell::new(nothing) }
    }
}

/// `ibv_create_cq_ex` of verbs.h.
///
/// # Safety
/// The pointers are what the program passed.
pub unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    init: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    pointer(|| {
        // SAFETY: memory checks the pointer.
        let init =
            unsafe { memory::read_prefix(init, std::mem::offset_of!(ibv_cq_init_attr_ex, parent_domain))? };
        if init.wc_flags & !SUPPORTED != 0 {
            return Err(UNSUPPORTED);
        }
        if init.comp_mask & !(IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD) != 0 {
            return Err(INVALID);
        }
        let flags = if init.comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS != 0 { init.flags } else { 0 };
        if flags & !(IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN) != 0 {
            return Err(INVALID);
        }
        // SAFETY: null pointers and numbers.
        let mut abi: ibv_cq_ex = unsafe { std::mem::zeroed() };
        functions(&mut abi);
        let extended = Extended::new(flags & IBV_CREATE_CQ_ATTR_SINGLE_THREADED != 0);
        let cq = create(
            context,
            abi,
            Init {
                entries: init.cqe.into(),
                cq_context: init.cq_context,
                channel: init.channel,
                vector: init.comp_vector.into(),
                extended: Some(extended),
            },
        )?;
        // SAFETY: it was made just now, and nobody else knows it.
        let queue = unsafe { Object::<Queue>::find(cq)? };
        queue.private.cq.allow_overrun(flags & IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN != 0);
        Ok(cq.cast())
    })
}

fn functions(abi: &mut ibv_cq_ex) {
    abi.start_poll = Some(start_poll);
    abi.next_poll = Some(next_poll);
    abi.end_poll = Some(end_poll);
    abi.read_opcode = Some(read_opcode);
    abi.read_vendor_err = Some(read_vendor_err);
    abi.read_byte_len = Some(read_byte_len);
    abi.read_imm_data = Some(read_imm_data);
    abi.read_qp_num = Some(read_qp_num);
    abi.read_src_qp = Some(read_src_qp);
    abi.read_wc_flags = Some(read_wc_flags);
    abi.read_slid = Some(read_slid);
    abi.read_sl = Some(read_sl);
    abi.read_dlid_path_bits = Some(read_dlid_path_bits);
    abi.read_completion_ts = Some(read_completion_ts);
    abi.read_completion_wallclock_ns = Some(read_completion_wallclock_ns);
    abi.read_cvlan = Some(read_cvlan);
    abi.read_flow_tag = Some(read_flow_tag);
    abi.read_tm_info = Some(read_tm_info);
}

/// # Safety
/// `cq` is null or readable.
#[inline]
unsafe fn parts<'a>(cq: *const ibv_cq_ex) -> Outcome<(&'a Object<Queue>, &'a Extended)> {
    // SAFETY: by contract.
    let object = unsafe { Object::<Queue>::recognise(cq.cast())? };
    Ok((object, object.private.extended.as_ref().ok_or(INVALID)?))
}

/// Moves on to the next completion. Whether there is one.
fn advance(object: &Object<Queue>, extended: &Extended) -> bool {
    let queue = &object.private;
    let take = || queue.cq.poll_with(1, |wc| extended.current.set(wc));
    if take() == 0 {
        queue.look();
        if take() == 0 {
            return false;
        }
    }
    let wc = extended.current.get();
    // SAFETY: the structure lives with the object, and only the polling thread looks at these.
    unsafe {
        let abi = object.abi();
        (*abi).wr_id = wc.id;
        (*abi).status = wc.status as u32;
    }
    true
}

/// `ibv_start_poll`: 0, `ENOENT` if the queue is empty, or an error; only after 0 the poll has to be ended.
unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    errno(|| {
        // SAFETY: the caller's contract is that of `parts`; memory checks the attributes.
        let (object, extended) = unsafe {
            // Programs pass attributes of zeroes on every call: no system call for that.
            if !attr.is_null() && attr.is_aligned() && (*attr).comp_mask != 0 {
                return Err(INVALID);
            }
            parts(cq)?
        };
        if !extended.single_threaded {
            extended.lock.lock();
        }
        extended.polling.set(true);
        if advance(object, extended) {
            return Ok(());
        }
        stop(extended);
        Err(crate::boundary::Errno(libc::ENOENT))
    })
}

unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    errno(|| {
        // SAFETY: the caller's contract.
        let (object, extended) = unsafe { parts(cq)? };
        if !extended.polling.get() {
            return Err(INVALID);
        }
        if advance(object, extended) { Ok(()) } else { Err(crate::boundary::Errno(libc::ENOENT)) }
    })
}

unsafe extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    _ = guarded(|| {
        // SAFETY: the caller's contract.
        let (_, extended) = unsafe { parts(cq)? };
        if extended.polling.get() {
            stop(extended);
        }
        Ok(())
    });
}

fn stop(extended: &Extended) {
    extended.polling.set(false);
    if !extended.single_threaded {
        // SAFETY: `polling` was set, so start_poll took the lock and nobody gave it back since.
        unsafe { extended.lock.unlock() };
    }
}

/// Defines the functions that read a field of the present completion.
macro_rules! readers {
    ($($name:ident -> $type:ty: |$queue:ident, $wc:ident| $value:expr;)*) => {$(
        unsafe extern "C" fn $name(cq: *mut ibv_cq_ex) -> $type {
            // SAFETY: the caller's contract.
            match unsafe { parts(cq) } {
                Ok(($queue, extended)) => {
                    let $wc = extended.current.get();
                    let _ = ($queue, &$wc);
                    $value
                }
                Err(_) => Default::default(),
            }
        }
    )*};
}

readers! {
    read_opcode -> u32: |_queue, wc| wc.opcode as u32;
    read_vendor_err -> u32: |_queue, wc| wc.vendor_error;
    read_byte_len -> u32: |_queue, wc| wc.byte_len;
    read_imm_data -> u32: |_queue, wc| immediate(&wc);
    read_qp_num -> u32: |_queue, wc| wc.qpn.0;
    read_src_qp -> u32: |_queue, wc| wc.src_qpn.0;
    read_wc_flags -> c_uint: |_queue, wc| flags(&wc);
    read_slid -> u32: |_queue, wc| wc.slid.0.into();
    read_sl -> u8: |queue, wc| if wc.grh { queue.private.datagram_sl } else { 0 };
    read_dlid_path_bits -> u8: |_queue, _wc| 0;
    read_completion_ts -> u64: |_queue, wc| wc.timestamp;
    read_completion_wallclock_ns -> u64: |queue, wc| wall_clock(queue, wc.timestamp);
    read_cvlan -> u16: |_queue, _wc| 0;
    read_flow_tag -> u32: |_queue, _wc| 0;
}

unsafe extern "C" fn read_tm_info(_cq: *mut ibv_cq_ex, _info: *mut ibv_wc_tm_info) {}

/// A time of the device's clock, as time of day.
fn wall_clock(queue: &Object<Queue>, timestamp: u64) -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a place for the result.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &mut now) };
    let now = now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64;
    now.wrapping_sub(queue.private.shared.device.now().0.wrapping_sub(timestamp))
}
