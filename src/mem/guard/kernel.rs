//! Copies that the kernel does for us: it looks up the pages and returns EFAULT where a fault would be.

#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering, fence};

use crate::mem::{Fault, HostAddr};

#[derive(Clone, Copy)]
enum Direction {
    In,
    Out,
}

/// Moves `len` bytes between `ours` and `theirs`.
///
/// # Safety
/// `ours` must be valid for `len` bytes: to be written for `In`, to be read for `Out`.
unsafe fn transfer(direction: Direction, ours: *mut u8, theirs: u64, len: usize) -> Result<(), Fault> {
    let mut done = 0_usize;
    while done < len {
        let addr = theirs.wrapping_add(done as u64);
        let local = libc::iovec { iov_base: ours.wrapping_add(done).cast(), iov_len: len - done };
        let remote = libc::iovec { iov_base: addr as *mut libc::c_void, iov_len: len - done };
        // SAFETY: the local side is ours and inside the buffer. The remote side is checked by the kernel. Our own
        // process may always be accessed so.
        let moved = unsafe {
            let pid = libc::getpid();
            match direction {
                Direction::In => libc::process_vm_readv(pid, &local, 1, &remote, 1, 0),
                Direction::Out => libc::process_vm_writev(pid, &local, 1, &remote, 1, 0),
            }
        };
        // It stops short at the page that it cannot have, so the next turn starts there and gets the error.
        match usize::try_from(moved) {
            Ok(0) | Err(_) => return Err(Fault { addr }),
            Ok(moved) => done += moved,
        }
    }
    Ok(())
}

pub(in crate::mem) fn read(from: HostAddr, into: &mut [u8]) -> Result<(), Fault> {
    // SAFETY: a unique borrow of the whole slice.
    unsafe { transfer(Direction::In, into.as_mut_ptr(), from.0, into.len()) }
}

pub(in crate::mem) fn write(to: HostAddr, from: &[u8]) -> Result<(), Fault> {
    let Some(last) = (from.len() as u64).checked_sub(1) else { return Ok(()) };
    // The last word separately and after all others: the kernel promises no order within a call.
    let word = (to.0.wrapping_add(last) & !7).max(to.0);
    let body = (word - to.0) as usize;
    let ours = from.as_ptr().cast_mut();
    // SAFETY: `body` is less than the length; `Out` only reads.
    unsafe { transfer(Direction::Out, ours, to.0, body)? };
    fence(Ordering::Release);
    // SAFETY: as above.
    unsafe { transfer(Direction::Out, ours.add(body), word, from.len() - body) }
}

/// Runs an atomic of the processor on memory that was writable a moment ago.
///
/// No system call does a 64-bit atomic with a fault as its result. So the page is made present and writable first,
/// which fails if that is not possible; then the instruction runs bare. Memory that the program unmaps between the two
/// kills it. With handlers ([`super::GuardMode::Signal`]) there is no such gap.
pub(in crate::mem) fn atomic(at: HostAddr, operation: impl FnOnce(&AtomicU64) -> u64) -> Result<u64, Fault> {
    let fault = Fault { addr: at.0 };
    let mut probe = [0; 8];
    read(at, &mut probe)?;
    // SAFETY: only asks for a page to be present and writable; nothing is changed.
    let populated = unsafe {
        let size = page_size();
        libc::madvise((at.0 & !(size - 1)) as *mut libc::c_void, size as usize, libc::MADV_POPULATE_WRITE)
    };
    if populated != 0 {
        let errno = std::io::Error::last_os_error().raw_os_error();
        // Before Linux 5.14 the advice is unknown: look at the permission of the mapping instead.
        if errno != Some(libc::EINVAL) || crate::mem::mapped::check(at.0, 8, true).is_err() {
            return Err(fault);
        }
    }
    if !at.0.is_multiple_of(8) {
        return Err(fault);
    }
    // SAFETY: aligned, and mapped and writable as far as can be known (see above); it is used as an atomic only.
    Ok(operation(unsafe { AtomicU64::from_ptr(at.0 as *mut u64) }))
}

pub(in crate::mem) fn page_size() -> u64 {
    // SAFETY: no preconditions.
    u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}
