//! What the system offers only to those who promise something.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Closes all descriptors but the standard ones.
pub(crate) fn close_inherited() {
    // SAFETY: called before anything here has opened one, so nobody's descriptor is closed under them. On kernels that do
    // not know the call they stay open, which only keeps them open longer.
    unsafe {
        libc::syscall(libc::SYS_close_range, 3, libc::c_int::MAX, 0);
    }
}

/// A descriptor to wait on.
pub(crate) fn watch(descriptor: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an OwnedFd has the same open descriptor as long as it lives, and it lives in what is returned.
    unsafe { AsyncFd::register_with_interest(descriptor, interest) }.map_err(io::Error::from)
}
