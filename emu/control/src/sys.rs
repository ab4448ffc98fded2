//! A system call that others wrap with a promise that does not hold.

#![allow(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Who is at the other end of a Unix socket, as of when it connected or listened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Peer {
    /// The process; `None` if it has no number here (it is in another container).
    pub process: Option<rustix::process::Pid>,
    /// Its effective user.
    pub user: u32,
}

/// Asks who it is.
pub fn peer(socket: BorrowedFd<'_>) -> io::Result<Peer> {
    let mut credentials = MaybeUninit::<libc::ucred>::zeroed();
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the option writes at most `length` bytes, and zeros are valid where it does not.
    let credentials = unsafe {
        let at = credentials.as_mut_ptr().cast();
        if libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, at, &mut length) != 0 {
            return Err(io::Error::last_os_error());
        }
        credentials.assume_init()
    };
    Ok(Peer { process: rustix::process::Pid::from_raw(credentials.pid), user: credentials.uid })
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn the_other_end_of_a_pair_is_this_process() {
        let (a, _b) = std::os::unix::net::UnixStream::pair().unwrap();
        let peer = peer(a.as_fd()).unwrap();
        assert_eq!(peer.process, Some(rustix::process::getpid()));
        assert_eq!(peer.user, rustix::process::geteuid().as_raw());
    }
}
