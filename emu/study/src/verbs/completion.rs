//! Completion queues.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::mem::zeroed;
use std::sync::Arc;

use urxe_abi::*;

use super::context::Context;
use super::error::{Error, Result};
use super::library::library;

/// Completions that are taken at once.
const BATCH: usize = 32;

/// A completion queue, polled by one thread.
pub struct CompletionQueue {
    pub(super) queue: Arc<Queue>,
    poll: unsafe extern "C" fn(*mut ibv_cq, i32, *mut ibv_wc) -> i32,
    taken: Box<[ibv_wc; BATCH]>,
}

/// The object of the library, which queue pairs hold as well.
#[derive(Debug)]
pub(super) struct Queue {
    pub(super) raw: *mut ibv_cq,
    _context: Arc<Context>,
}

// SAFETY: verbs may be called by any thread, and the pointer is never changed.
unsafe impl Send for Queue {}
// SAFETY: as above.
unsafe impl Sync for Queue {}

/// What has completed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A request of a send queue.
    Request,
    /// A receive.
    Receive,
}

/// A request that was successful.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// The request's number.
    pub id: u64,
    /// What it was.
    pub kind: Kind,
    /// Bytes that a receive has taken.
    pub bytes: u32,
    /// Immediate data of a receive; 0 if there was none.
    pub immediate: u32,
}

impl CompletionQueue {
    /// A queue with room for so many completions.
    pub fn new(context: &Arc<Context>, room: u32) -> Result<Self> {
        let room = i32::try_from(room).unwrap_or(i32::MAX);
        let (nothing, no_channel) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the context is open.
        let raw = unsafe { (library()?.ibv_create_cq)(context.raw, room, nothing, no_channel, 0) };
        if raw.is_null() {
            return Err(Error::last("ibv_create_cq"));
        }
        let queue = Arc::new(Queue { raw, _context: context.clone() });
        // SAFETY: the context is open.
        let poll = unsafe { (*context.raw).ops.poll_cq };
        let poll = poll.ok_or_else(|| Error::Unsupported("the device has no ibv_poll_cq".to_owned()))?;
        // SAFETY: numbers.
        let taken = Box::new([unsafe { zeroed() }; BATCH]);
        Ok(Self { queue, poll, taken })
    }

    /// Takes completions, and returns how many: see [`Self::completion`]. A request with an error is one.
    #[inline]
    pub fn poll(&mut self) -> Result<usize> {
        // SAFETY: there is room for so many.
        let count = unsafe { (self.poll)(self.queue.raw, BATCH as i32, self.taken.as_mut_ptr()) };
        let Ok(count) = usize::try_from(count) else { return Err(Error::last("ibv_poll_cq")) };
        match self.taken[..count].iter().find(|wc| wc.status != IBV_WC_SUCCESS) {
            None => Ok(count),
            Some(failed) => Err(failure(failed.status)),
        }
    }

    /// A completion of the last poll.
    #[inline]
    pub fn completion(&self, index: usize) -> Completion {
        let wc = &self.taken[index];
        let receive = wc.opcode & IBV_WC_RECV != 0;
        let with_immediate = wc.wc_flags & IBV_WC_WITH_IMM != 0;
        Completion {
            id: wc.wr_id,
            kind: if receive { Kind::Receive } else { Kind::Request },
            bytes: if receive { wc.byte_len } else { 0 },
            immediate: if with_immediate { u32::from_be(wc.imm_data) } else { 0 },
        }
    }
}

#[cold]
fn failure(status: u32) -> Error {
    let text = library().map(|library| {
        // SAFETY: the result is a constant text.
        unsafe { CStr::from_ptr((library.ibv_wc_status_str)(status)) }.to_string_lossy().into_owned()
    });
    Error::Completion { status, text: text.unwrap_or_default() }
}

impl std::fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CompletionQueue").field("queue", &self.queue).finish_non_exhaustive()
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        if let Ok(library) = library() {
            // SAFETY: its queue pairs hold it, and so are gone.
            unsafe { (library.ibv_destroy_cq)(self.raw) };
        }
    }
}
