//! The only code that touches application memory.
//!
//! Each function moves bytes between a [`HostAddr`] and memory of ours, by raw copies: the program may change its memory
//! at the same time, and what is read is whatever was there. A page that is missing, protected, or beyond the
//! end of a truncated file gives [`Fault`]; then an unknown part of the range has been copied, up to the fault
//! or a little less.

#![allow(unsafe_code)]

use std::fmt;
use std::sync::atomic::Ordering;

use super::HostAddr;
use super::guard::kernel;
#[cfg(target_arch = "x86_64")]
use super::guard::{self, x86_64 as signal};

/// A page of application memory could not be accessed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// The first address that could not be accessed, or the start of the copy if the processor does not tell.
    pub addr: u64,
}

impl fmt::Debug for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fault({:#x})", self.addr)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "memory at {:#x} is registered but cannot be accessed", self.addr)
    }
}

impl std::error::Error for Fault {}

/// Whether the range has an end at all. What lies there is left to the guard.
#[inline(always)]
fn bounded(at: HostAddr, len: usize) -> Result<(), Fault> {
    match at.0.checked_add(len as u64) {
        Some(_) => Ok(()),
        None => Err(Fault { addr: at.0 }),
    }
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn finish(outcome: signal::Outcome, at: HostAddr, len: usize) -> Result<u64, Fault> {
    if outcome.fault == 0 { Ok(outcome.value) } else { Err(fault_in(outcome.value, at, len)) }
}

#[cfg(target_arch = "x86_64")]
#[cold]
fn fault_in(addr: u64, at: HostAddr, len: usize) -> Fault {
    // A non-canonical address is reported as 0.
    let inside = addr.wrapping_sub(at.0) < len as u64;
    Fault { addr: if inside { addr } else { at.0 } }
}

/// Copies from application memory.
#[inline]
pub fn read(from: HostAddr, into: &mut [u8]) -> Result<(), Fault> {
    bounded(from, into.len())?;
    #[cfg(target_arch = "x86_64")]
    if guard::is_signal() {
        // SAFETY: `into` is ours and as long as said; accesses to `from` are guarded.
        let outcome = unsafe { signal::copy_in(into.as_mut_ptr(), from.0, into.len()) };
        return finish(outcome, from, into.len()).map(drop);
    }
    kernel::read(from, into)
}

/// Copies to application memory, as an RDMA WRITE has to.
///
/// Programs poll on the end of what they expect. So the last word (the part of the last naturally aligned 8 bytes that the
/// range covers) is stored after everything else, with release order, and no byte is written twice: a program
/// that has consumed and reset a flag does not see it set again. A range that is one aligned word is a single store.
#[inline]
pub fn write(to: HostAddr, from: &[u8]) -> Result<(), Fault> {
    bounded(to, from.len())?;
    #[cfg(target_arch = "x86_64")]
    if guard::is_signal() {
        // SAFETY: `from` is ours and as long as said; accesses to `to` are guarded.
        let outcome = unsafe { signal::copy_out(to.0, from.as_ptr(), from.len()) };
        return finish(outcome, to, from.len()).map(drop);
    }
    kernel::write(to, from)
}

/// How much [`with_bytes`] copies at a time: fits the first-level cache beside the tables of a checksum.
pub const CHUNK: usize = 4096;

/// Shows a range of application memory to `look`, in pieces of at most [`CHUNK`] bytes that are copied out first: for a
/// checksum over bytes which are sent from where they are.
pub fn with_bytes(from: HostAddr, len: u64, mut look: impl FnMut(&[u8])) -> Result<(), Fault> {
    /// Aligned, so that what reads it in vectors gets its values from single stores that are still in flight.
    #[repr(align(64))]
    struct Scratch([std::mem::MaybeUninit<u8>; CHUNK]);
    let mut scratch = Scratch([std::mem::MaybeUninit::uninit(); CHUNK]);
    let mut done = 0;
    while done < len {
        let piece = (len - done).min(CHUNK as u64) as usize;
        let at = HostAddr(from.0.checked_add(done).ok_or(Fault { addr: from.0 })?);
        look(read_uninit(at, &mut scratch.0[..piece])?);
        done += piece as u64;
    }
    Ok(())
}

/// [`read`] into memory that needs no value before; the same bytes, initialised.
#[inline]
pub fn read_uninit(from: HostAddr, into: &mut [std::mem::MaybeUninit<u8>]) -> Result<&mut [u8], Fault> {
    bounded(from, into.len())?;
    #[cfg(target_arch = "x86_64")]
    if guard::is_signal() {
        // SAFETY: `into` is ours and as long as said; accesses to `from` are guarded. Without a fault, all of it has been
        // written.
        return unsafe {
            let outcome = signal::copy_in(into.as_mut_ptr().cast(), from.0, into.len());
            finish(outcome, from, into.len())?;
            Ok(into.assume_init_mut())
        };
    }
    into.fill(std::mem::MaybeUninit::new(0));
    // SAFETY: just filled.
    let into = unsafe { into.assume_init_mut() };
    kernel::read(from, into)?;
    Ok(into)
}

/// Compare and swap of 8 aligned bytes in host order, atomic for every processor and device of the host. Returns what
/// was there. An address that is not aligned is a fault: the caller should have answered it already.
pub fn compare_swap(at: HostAddr, compare: u64, swap: u64) -> Result<u64, Fault> {
    aligned(at)?;
    #[cfg(target_arch = "x86_64")]
    if guard::is_signal() {
        // SAFETY: accesses to `at` are guarded.
        return finish(unsafe { signal::urxe_mem_compare_swap(at.0, compare, swap) }, at, 8);
    }
    kernel::atomic(at, |word| {
        match word.compare_exchange(compare, swap, Ordering::AcqRel, Ordering::Acquire) {
            Ok(old) | Err(old) => old,
        }
    })
}

/// Adds to 8 aligned bytes in host order, wrapping. Otherwise as [`compare_swap`].
pub fn fetch_add(at: HostAddr, add: u64) -> Result<u64, Fault> {
    aligned(at)?;
    #[cfg(target_arch = "x86_64")]
    if guard::is_signal() {
        // SAFETY: accesses to `at` are guarded.
        return finish(unsafe { signal::urxe_mem_fetch_add(at.0, add) }, at, 8);
    }
    kernel::atomic(at, |word| word.fetch_add(add, Ordering::AcqRel))
}

fn aligned(at: HostAddr) -> Result<(), Fault> {
    if at.0.is_multiple_of(8) { Ok(()) } else { Err(Fault { addr: at.0 }) }
}

#[cfg(test)]
#[path = "copy_tests.rs"]
mod tests;
