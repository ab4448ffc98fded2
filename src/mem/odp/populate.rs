//! Makes pages of the program present.

#![allow(unsafe_code)]

use std::sync::atomic::{AtomicBool, Ordering};

use super::pages::PAGE;
use crate::mem::{Fault, HostAddr, copy};

/// Set once the kernel has been found to be older than MADV_POPULATE_READ and _WRITE (Linux 5.14).
static UNKNOWN: AtomicBool = AtomicBool::new(false);

/// Makes the pages of `[start, end)`, which are bounds of pages, present; for writing if `write`. On an error some of
/// them may be present.
pub(super) fn populate(start: u64, end: u64, write: bool) -> Result<(), Fault> {
    let advice = if write { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
    while !UNKNOWN.load(Ordering::Relaxed) {
        // SAFETY: asks for pages to be present, which changes nothing that a program can see. Where nothing is mapped it
        // is an error.
        if unsafe { libc::madvise(start as *mut libc::c_void, (end - start) as usize, advice) } == 0 {
            return Ok(());
        }
        match std::io::Error::last_os_error().raw_os_error() {
            Some(libc::EINTR | libc::EAGAIN) => {}
            // Memory of a driver, or an old kernel.
            Some(libc::EINVAL) => break,
            _ => return Err(Fault { addr: start }),
        }
    }
    touch(start, end, write)
}

/// The same by accesses under the guard.
fn touch(start: u64, end: u64, write: bool) -> Result<(), Fault> {
    let mut at = start;
    while at < end {
        copy::read(HostAddr(at), &mut [0])?;
        if write {
            copy::fetch_add(HostAddr(at), 0)?;
        }
        at += PAGE;
    }
    Ok(())
}

/// Shows those pages of `[start, end)` that are in memory now, as ranges. Nothing is faulted in.
pub(super) fn resident(start: u64, end: u64, mut show: impl FnMut(u64, u64)) -> Result<(), Fault> {
    const AT_ONCE: usize = 1024;
    let mut at = start;
    while at < end {
        let mut resident = [0_u8; AT_ONCE];
        let pages = ((end - at) / PAGE).min(AT_ONCE as u64);
        // SAFETY: the kernel writes one byte a page; the array has so many.
        let done =
            unsafe { libc::mincore(at as *mut libc::c_void, (pages * PAGE) as usize, resident.as_mut_ptr()) };
        if done != 0 {
            match std::io::Error::last_os_error().raw_os_error() {
                Some(libc::EAGAIN) => continue,
                _ => return Err(Fault { addr: at }),
            }
        }
        let mut page = 0;
        while page < pages as usize {
            let from = page;
            while page < pages as usize && resident[page] & 1 == 1 {
                page += 1;
            }
            if page > from {
                show(at + from as u64 * PAGE, at + page as u64 * PAGE);
            }
            page += 1;
        }
        at += pages * PAGE;
    }
    Ok(())
}
