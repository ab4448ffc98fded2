//! One UDP socket as the device uses it: unconnected, non-blocking, with GRO.
#![allow(unsafe_code)]

use std::io;
use std::mem::{size_of, size_of_val, zeroed};
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsRawFd;

use libc::{c_int, iovec, msghdr, sockaddr_in, socklen_t};

const SOL_UDP: c_int = 17;
const UDP_SEGMENT: c_int = 103;
const UDP_GRO: c_int = 104;

/// Room for ancillary data.
#[repr(C, align(8))]
struct Control([u8; 64]);

pub(crate) struct Socket {
    socket: UdpSocket,
    peer: sockaddr_in,
    /// Who sent the last datagram.
    from: std::cell::Cell<sockaddr_in>,
}

fn address(port: u16) -> sockaddr_in {
    sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: port.to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(Ipv4Addr::LOCALHOST.octets()) },
        sin_zero: [0; 8],
    }
}

/// CPU time that this process has used.
pub(crate) fn cpu_time() -> std::time::Duration {
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `ts` is a valid place for the result.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut ts) };
    std::time::Duration::new(ts.tv_sec as u64, ts.tv_nsec as u32)
}

/// Pins the calling thread to a CPU, if there is that one.
pub(crate) fn pin(cpu: usize) {
    // SAFETY: all zero bytes are an empty set, `cpu` is within its 1024, and it is readable for its size.
    unsafe {
        let mut set: libc::cpu_set_t = zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &set);
    }
}

/// Lets the kernel end this process when its parent ends: nothing may go on spinning.
pub(crate) fn end_with_parent() {
    // SAFETY: no memory is passed.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
}

impl Socket {
    pub(crate) fn new() -> io::Result<Self> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        socket.set_nonblocking(true)?;
        let made = Self { socket, peer: address(0), from: address(0).into() };
        made.set(SOL_UDP, UDP_GRO, 1)?;
        made.set(libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE)?;
        for (forced, plain) in
            [(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF), (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)]
        {
            made.set(libc::SOL_SOCKET, forced, 4 << 20)
                .or_else(|_| made.set(libc::SOL_SOCKET, plain, 4 << 20))?;
        }
        Ok(made)
    }

    fn set(&self, level: c_int, name: c_int, value: c_int) -> io::Result<()> {
        let len = size_of::<c_int>() as socklen_t;
        // SAFETY: `value` is readable for `len` bytes.
        match unsafe {
            libc::setsockopt(self.socket.as_raw_fd(), level, name, (&raw const value).cast(), len)
        } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    pub(crate) fn port(&self) -> io::Result<u16> {
        Ok(self.socket.local_addr()?.port())
    }
    pub(crate) fn set_peer(&mut self, port: u16) {
        self.peer = address(port);
    }
    /// From now on, sends go to who sent the last datagram.
    pub(crate) fn answer(&mut self) {
        self.peer = self.from.get();
    }

    /// Sends bytes, as packets of `segment` bytes if given. A full socket is tried again.
    pub(crate) fn send(&self, bytes: &[u8], segment: Option<u16>) -> io::Result<()> {
        let mut iov = iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let mut control = Control([0; 64]);
        // SAFETY: all zero bytes are a valid header; everything in it is readable for its length during the call;
        // the control memory is aligned and larger than the one item in it.
        unsafe {
            let mut header: msghdr = zeroed();
            header.msg_name = (&raw const self.peer).cast_mut().cast();
            header.msg_namelen = size_of::<sockaddr_in>() as socklen_t;
            header.msg_iov = &mut iov;
            header.msg_iovlen = 1;
            if let Some(segment) = segment {
                header.msg_control = control.0.as_mut_ptr().cast();
                header.msg_controllen = libc::CMSG_SPACE(size_of::<u16>() as u32) as _;
                let item = libc::CMSG_FIRSTHDR(&header);
                (*item).cmsg_level = SOL_UDP;
                (*item).cmsg_type = UDP_SEGMENT;
                (*item).cmsg_len = libc::CMSG_LEN(size_of::<u16>() as u32) as _;
                libc::CMSG_DATA(item).cast::<u16>().write_unaligned(segment);
            }
            loop {
                if libc::sendmsg(self.socket.as_raw_fd(), &header, libc::MSG_DONTWAIT) >= 0 {
                    return Ok(());
                }
                let error = io::Error::last_os_error();
                match error.raw_os_error() {
                    Some(libc::EAGAIN | libc::ENOBUFS | libc::EINTR) => {}
                    _ => return Err(error),
                }
            }
        }
    }

    /// Receives one datagram, of several packets with GRO; `None` if there is none.
    pub(crate) fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        let mut iov = iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
        let mut control = Control([0; 64]);
        // SAFETY: all zero bytes are a valid header; everything in it is writable for its length during the call.
        let len = unsafe {
            let mut header: msghdr = zeroed();
            header.msg_name = self.from.as_ptr().cast();
            header.msg_namelen = size_of::<sockaddr_in>() as socklen_t;
            header.msg_iov = &mut iov;
            header.msg_iovlen = 1;
            header.msg_control = control.0.as_mut_ptr().cast();
            header.msg_controllen = size_of::<Control>() as _;
            libc::recvmsg(self.socket.as_raw_fd(), &mut header, libc::MSG_DONTWAIT)
        };
        if len >= 0 {
            return Ok(Some(len as usize));
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EAGAIN | libc::EINTR) => Ok(None),
            _ => Err(error),
        }
    }

    /// Blocks until a datagram is there.
    pub(crate) fn wait(&self) -> io::Result<()> {
        let mut polled = libc::pollfd { fd: self.socket.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid entry.
        match unsafe { libc::poll(&mut polled, 1, -1) } {
            result if result < 0 => {
                let error = io::Error::last_os_error();
                if error.kind() == io::ErrorKind::Interrupted { Ok(()) } else { Err(error) }
            }
            _ => Ok(()),
        }
    }
}
