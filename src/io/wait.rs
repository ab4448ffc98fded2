//! Blocks a thread until a link has something, another thread wakes it, or time is over.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use super::{Link, sys};

/// Wakes one waiting thread. Clones wake the same one.
#[derive(Clone, Debug)]
pub struct Waker(Arc<OwnedFd>);

impl Waker {
    /// A new one; it holds one descriptor.
    pub fn new() -> io::Result<Self> {
        Ok(Self(Arc::new(sys::eventfd()?)))
    }
    /// Ends the wait that runs now, or else the next one.
    pub fn wake(&self) {
        sys::eventfd_add(&self.0);
    }
    /// Waits until [`Waker::wake`] is called or `timeout_ns` is over, whatever links have to say.
    pub fn wait(&self, timeout_ns: Option<u64>) {
        if sys::poll_readable(&[self.0.as_raw_fd()], timeout_ns).is_ok_and(|bits| bits != 0) {
            sys::eventfd_take(&self.0);
        }
    }
}

impl AsRawFd for Waker {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// What ended a wait. Neither: the time-out or a signal.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ready {
    /// The link has something to receive.
    pub link: bool,
    /// [`Waker::wake`] was called.
    pub woken: bool,
}

/// Waits until `link` has something to receive, `waker` is woken, or `timeout_ns` is over.
pub fn wait(link: &dyn Link, waker: &Waker, timeout_ns: Option<u64>) -> io::Result<Ready> {
    let mut fds = [waker.as_raw_fd(); 3];
    let mut count = 1;
    for fd in link.fds().into_iter().flatten() {
        fds[count] = fd;
        count += 1;
    }
    let bits = sys::poll_readable(&fds[..count], timeout_ns)?;
    let woken = bits & 1 != 0;
    if woken {
        sys::eventfd_take(&waker.0);
    }
    Ok(Ready { link: bits & !1 != 0, woken })
}
