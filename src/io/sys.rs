//! The system calls of this folder. All of its `unsafe` is here.
#![allow(unsafe_code)]

use std::io;
use std::mem::{MaybeUninit, size_of, zeroed};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

use libc::{c_int, c_void, cmsghdr, iovec, mmsghdr, msghdr, socklen_t};

use crate::wire::batch::Piece;

pub(super) const SOL_UDP: c_int = 17;
pub(super) const UDP_SEGMENT: c_int = 103;
pub(super) const UDP_GRO: c_int = 104;

/// The errno of the call before.
pub(super) fn errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// A non-blocking socket that is closed on exec.
pub(super) fn socket(family: c_int, kind: c_int, protocol: c_int) -> io::Result<OwnedFd> {
    let kind = kind | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no memory is passed; the descriptor is new and owned by nobody else.
    unsafe { Ok(OwnedFd::from_raw_fd(check(libc::socket(family, kind, protocol))?)) }
}

pub(super) fn eventfd() -> io::Result<OwnedFd> {
    // SAFETY: no memory is passed; the descriptor is new and owned by nobody else.
    unsafe { Ok(OwnedFd::from_raw_fd(check(libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK))?)) }
}

pub(super) fn eventfd_add(fd: &OwnedFd) {
    let one = 1u64;
    // SAFETY: 8 readable bytes. A full counter is as good as one more.
    unsafe { libc::write(fd.as_raw_fd(), ptr::from_ref(&one).cast(), 8) };
}

pub(super) fn eventfd_take(fd: &OwnedFd) {
    let mut value = 0u64;
    // SAFETY: 8 writable bytes.
    unsafe { libc::read(fd.as_raw_fd(), ptr::from_mut(&mut value).cast(), 8) };
}

/// `ppoll` for readability. Returns a bit per descriptor that is readable or in error; 0 after the time-out or a signal.
pub(super) fn poll_readable(fds: &[RawFd], timeout_ns: Option<u64>) -> io::Result<u32> {
    let mut polled = [libc::pollfd { fd: -1, events: libc::POLLIN, revents: 0 }; 8];
    for (p, &fd) in polled.iter_mut().zip(fds) {
        p.fd = fd;
    }
    let timeout = timeout_ns.map(|ns| libc::timespec {
        tv_sec: (ns / 1_000_000_000).min(i64::MAX as u64) as libc::time_t,
        tv_nsec: (ns % 1_000_000_000) as libc::c_long,
    });
    let timeout = timeout.as_ref().map_or(ptr::null(), ptr::from_ref);
    let count = fds.len().min(polled.len());
    // SAFETY: `count` valid entries; the time-out is null or valid; no signal mask.
    let ready = unsafe { libc::ppoll(polled.as_mut_ptr(), count as libc::nfds_t, timeout, ptr::null()) };
    if ready < 0 {
        let error = io::Error::last_os_error();
        return if error.kind() == io::ErrorKind::Interrupted { Ok(0) } else { Err(error) };
    }
    Ok(polled[..count].iter().enumerate().fold(0, |bits, (i, p)| bits | (u32::from(p.revents != 0) << i)))
}

pub(super) fn set_int(fd: &OwnedFd, level: c_int, name: c_int, value: c_int) -> io::Result<()> {
    let len = size_of::<c_int>() as socklen_t;
    // SAFETY: `value` is readable for `len` bytes.
    check(unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, ptr::from_ref(&value).cast(), len) })?;
    Ok(())
}

pub(super) fn int(fd: &OwnedFd, level: c_int, name: c_int) -> io::Result<c_int> {
    let mut value: c_int = 0;
    let mut len = size_of::<c_int>() as socklen_t;
    // SAFETY: `value` is writable for `len` bytes.
    check(unsafe {
        libc::getsockopt(fd.as_raw_fd(), level, name, ptr::from_mut(&mut value).cast(), &mut len)
    })?;
    Ok(value)
}

/// `setsockopt` with a structure.
fn set<T: Copy>(fd: &OwnedFd, level: c_int, name: c_int, value: &T) -> io::Result<()> {
    let len = size_of::<T>() as socklen_t;
    // SAFETY: `value` is readable for `len` bytes.
    check(unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, ptr::from_ref(value).cast(), len) })?;
    Ok(())
}

fn in_addr(ip: Ipv4Addr) -> libc::in_addr {
    libc::in_addr { s_addr: u32::from_ne_bytes(ip.octets()) }
}

/// Packets to groups leave by the interface of this address.
pub(super) fn send_groups_from(fd: &OwnedFd, local: Ipv4Addr) -> io::Result<()> {
    set(fd, libc::IPPROTO_IP, libc::IP_MULTICAST_IF, &in_addr(local))
}

/// Joins a group on the interface of an address.
pub(super) fn join_v4(fd: &OwnedFd, group: Ipv4Addr, local: Ipv4Addr) -> io::Result<()> {
    let request = libc::ip_mreq { imr_multiaddr: in_addr(group), imr_interface: in_addr(local) };
    set(fd, libc::IPPROTO_IP, libc::IP_ADD_MEMBERSHIP, &request)
}

/// Joins a group on an interface.
pub(super) fn join_v6(fd: &OwnedFd, group: Ipv6Addr, interface: u32) -> io::Result<()> {
    let address = libc::in6_addr { s6_addr: group.octets() };
    let request = libc::ipv6_mreq { ipv6mr_multiaddr: address, ipv6mr_interface: interface };
    set(fd, libc::IPPROTO_IPV6, libc::IPV6_ADD_MEMBERSHIP, &request)
}

/// The number of an interface.
pub(super) fn interface_index(name: &str) -> io::Result<u32> {
    let name = std::ffi::CString::new(name).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: a terminated string.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => Err(io::Error::last_os_error()),
        index => Ok(index),
    }
}

/// A descriptor that stands for many.
pub(super) fn epoll() -> io::Result<OwnedFd> {
    // SAFETY: no memory is passed; the descriptor is new and owned by nobody else.
    unsafe { Ok(OwnedFd::from_raw_fd(check(libc::epoll_create1(libc::EPOLL_CLOEXEC))?)) }
}

/// Makes `epoll` readable while `fd` is.
pub(super) fn epoll_add(epoll: &OwnedFd, fd: &OwnedFd) -> io::Result<()> {
    let raw = fd.as_raw_fd();
    let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: u64::from(raw.cast_unsigned()) };
    // SAFETY: `event` is readable.
    check(unsafe { libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, raw, &mut event) })?;
    Ok(())
}

/// Takes `fd` out. Closing alone would not, while a forked process holds the same socket.
pub(super) fn epoll_remove(epoll: &OwnedFd, fd: &OwnedFd) {
    // SAFETY: no memory is passed.
    unsafe { libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_DEL, fd.as_raw_fd(), ptr::null_mut()) };
}

/// Fills `ready` with descriptors that are readable now and returns how many.
pub(super) fn epoll_ready<const N: usize>(epoll: &OwnedFd, ready: &mut [RawFd; N]) -> io::Result<usize> {
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; N];
    // SAFETY: `events` is writable for N entries.
    let count = unsafe { libc::epoll_wait(epoll.as_raw_fd(), events.as_mut_ptr(), N as c_int, 0) };
    if count < 0 {
        let error = io::Error::last_os_error();
        return if error.kind() == io::ErrorKind::Interrupted { Ok(0) } else { Err(error) };
    }
    for (fd, event) in ready.iter_mut().zip(&events[..count as usize]) {
        *fd = event.u64 as RawFd;
    }
    Ok(count as usize)
}

/// Bytes of the receive queue in use and its limit.
pub(super) fn receive_memory(fd: &OwnedFd) -> Option<(usize, usize)> {
    memory(fd).map(|values| (values[0] as usize, values[1] as usize))
}

/// Packets that a socket has dropped since it was made.
pub(super) fn dropped(fd: &OwnedFd) -> u32 {
    memory(fd).map_or(0, |values| values[8])
}

/// `SO_MEMINFO`: memory and limits of the queues, and drops.
fn memory(fd: &OwnedFd) -> Option<[u32; 9]> {
    let mut values = [0u32; 9];
    let mut len = size_of_val(&values) as socklen_t;
    // SAFETY: `values` is writable for `len` bytes.
    let result = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MEMINFO,
            values.as_mut_ptr().cast(),
            &mut len,
        )
    };
    (result == 0 && len >= 8).then_some(values)
}

/// Attaches a classic BPF program that decides how many bytes of a packet the socket takes; 0 drops it.
pub(super) fn attach_filter(fd: &OwnedFd, program: &[libc::sock_filter]) -> io::Result<()> {
    let fprog = libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
    let len = size_of::<libc::sock_fprog>() as socklen_t;
    // SAFETY: `fprog` and the program behind it are readable; the kernel copies both and writes neither.
    check(unsafe {
        let value = ptr::from_ref(&fprog).cast();
        libc::setsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, value, len)
    })?;
    Ok(())
}

/// Attaches a classic BPF program that picks the socket of a SO_REUSEPORT group which gets a packet. It sees the packet
/// from the UDP payload on.
pub(super) fn attach_steering(fd: &OwnedFd, program: &[libc::sock_filter]) -> io::Result<()> {
    let fprog = libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
    let len = size_of::<libc::sock_fprog>() as socklen_t;
    let name = libc::SO_ATTACH_REUSEPORT_CBPF;
    // SAFETY: `fprog` and the program behind it are readable; the kernel copies both and writes neither.
    check(unsafe {
        libc::setsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, name, ptr::from_ref(&fprog).cast(), len)
    })?;
    Ok(())
}

/// Takes away what [`attach_filter`] or [`attach_program`] attached, if there is any.
pub(super) fn detach_filter(fd: &OwnedFd) -> io::Result<()> {
    match set_int(fd, libc::SOL_SOCKET, libc::SO_DETACH_FILTER, 0) {
        Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(()),
        result => result,
    }
}

/// A number that the kernel gives to one socket only (`SO_COOKIE`).
pub(super) fn cookie(fd: &OwnedFd) -> io::Result<u64> {
    long(fd, libc::SO_COOKIE)
}

/// The number of the network namespace of a socket; kernels before 5.14 do not tell.
pub(super) fn namespace(fd: &OwnedFd) -> io::Result<u64> {
    const SO_NETNS_COOKIE: c_int = 71;
    long(fd, SO_NETNS_COOKIE)
}

fn long(fd: &OwnedFd, name: c_int) -> io::Result<u64> {
    let mut value = 0u64;
    let mut len = size_of::<u64>() as socklen_t;
    // SAFETY: `value` is writable for `len` bytes.
    check(unsafe {
        libc::getsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, name, ptr::from_mut(&mut value).cast(), &mut len)
    })?;
    Ok(value)
}

/// Takes one datagram from the queue without a look at it. False if there is none.
pub(super) fn discard(fd: &OwnedFd) -> io::Result<bool> {
    // SAFETY: no byte is written to a buffer of length 0.
    let len = unsafe { libc::recv(fd.as_raw_fd(), ptr::null_mut(), 0, libc::MSG_DONTWAIT | libc::MSG_TRUNC) };
    match if len < 0 { errno() } else { 0 } {
        0 | libc::EINTR => Ok(true),
        libc::EAGAIN => Ok(false),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

/// Two Unix stream sockets that are connected.
pub(super) fn unix_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    let mut fds = [-1; 2];
    // SAFETY: two writable descriptors; those that come are new and owned by nobody else.
    unsafe {
        check(libc::socketpair(libc::AF_UNIX, kind, 0, fds.as_mut_ptr()))?;
        Ok((OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])))
    }
}

/// Most descriptors of one message of [`send_fds`].
const MOST_FDS: usize = 4;

/// Sends one byte over a Unix socket, and duplicates of descriptors beside it.
pub(super) fn send_fds(fd: &OwnedFd, byte: u8, fds: &[&OwnedFd]) -> io::Result<()> {
    let mut control = Control::new();
    let raw = |i: usize| fds[i].as_raw_fd().to_ne_bytes();
    match fds.len() {
        0 => {}
        1 => control.push(libc::SOL_SOCKET, libc::SCM_RIGHTS, raw(0)),
        2 => {
            let mut both = [0; 8];
            both[..4].copy_from_slice(&raw(0));
            both[4..].copy_from_slice(&raw(1));
            control.push(libc::SOL_SOCKET, libc::SCM_RIGHTS, both);
        }
        _ => return Err(io::ErrorKind::InvalidInput.into()),
    }
    let mut data = iovec { iov_base: ptr::from_ref(&byte).cast_mut().cast(), iov_len: 1 };
    // SAFETY: all zero bytes are a valid header.
    let mut header: msghdr = unsafe { zeroed() };
    header.msg_iov = &mut data;
    header.msg_iovlen = 1;
    if control.len > 0 {
        header.msg_control = control.bytes.as_mut_ptr().cast();
        header.msg_controllen = control.len as _;
    }
    // SAFETY: all memory in the header is readable for its length.
    let sent = unsafe { libc::sendmsg(fd.as_raw_fd(), &header, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Looks at the byte at an offset of the receive queue of a Unix stream socket, and makes duplicates of the descriptors
/// beside it. The queue stays as it is. `None` if it has no such byte.
pub(super) fn peek_fds(fd: &OwnedFd, offset: usize) -> io::Result<Option<(u8, Vec<OwnedFd>)>> {
    set_int(fd, libc::SOL_SOCKET, libc::SO_PEEK_OFF, offset as c_int)?;
    let mut byte = 0u8;
    let mut control = Control::new();
    let mut data = iovec { iov_base: ptr::from_mut(&mut byte).cast(), iov_len: 1 };
    // SAFETY: all zero bytes are a valid header.
    let mut header: msghdr = unsafe { zeroed() };
    header.msg_iov = &mut data;
    header.msg_iovlen = 1;
    header.msg_control = control.bytes.as_mut_ptr().cast();
    header.msg_controllen = size_of::<cmsghdr>() + MOST_FDS * size_of::<RawFd>();
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: all memory in the header is writable for its length.
    let len = unsafe { libc::recvmsg(fd.as_raw_fd(), &mut header, flags) };
    if len < 0 {
        return if errno() == libc::EAGAIN { Ok(None) } else { Err(io::Error::last_os_error()) };
    }
    let mut fds = Vec::new();
    // SAFETY: the kernel has just filled in the header: its control memory is valid and the macros stay within it. The
    // descriptors are new and owned by nobody else.
    unsafe {
        let mut at = libc::CMSG_FIRSTHDR(&header);
        while let Some(item) = at.as_ref() {
            if (item.cmsg_level, item.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                let count = (item.cmsg_len - size_of::<cmsghdr>()) / size_of::<RawFd>();
                let data = libc::CMSG_DATA(item).cast::<RawFd>();
                fds.extend((0..count).map(|i| OwnedFd::from_raw_fd(data.add(i).read_unaligned())));
            }
            at = libc::CMSG_NXTHDR(&header, item);
        }
    }
    Ok((len > 0).then_some((byte, fds)))
}

/// An address in the kernel's form.
#[derive(Clone, Copy)]
pub(super) struct Name {
    storage: libc::sockaddr_in6,
    len: socklen_t,
}

impl Name {
    pub(super) fn new(addr: &SocketAddr) -> Self {
        // SAFETY: all zero bytes are a valid sockaddr.
        let mut storage: libc::sockaddr_in6 = unsafe { zeroed() };
        let len = match addr {
            SocketAddr::V4(a) => {
                let name = libc::sockaddr_in {
                    sin_family: libc::AF_INET as u16,
                    sin_port: a.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(a.ip().octets()) },
                    sin_zero: [0; 8],
                };
                // SAFETY: sockaddr_in is smaller than sockaddr_in6 and needs no stricter alignment.
                unsafe { ptr::from_mut(&mut storage).cast::<libc::sockaddr_in>().write(name) };
                size_of::<libc::sockaddr_in>()
            }
            SocketAddr::V6(a) => {
                storage.sin6_family = libc::AF_INET6 as u16;
                storage.sin6_port = a.port().to_be();
                storage.sin6_addr.s6_addr = a.ip().octets();
                storage.sin6_scope_id = a.scope_id();
                size_of::<libc::sockaddr_in6>()
            }
        };
        Self { storage, len: len as socklen_t }
    }

    fn empty() -> Self {
        // SAFETY: all zero bytes are a valid sockaddr.
        Self { storage: unsafe { zeroed() }, len: size_of::<libc::sockaddr_in6>() as socklen_t }
    }

    fn decode(&self) -> Option<SocketAddr> {
        match c_int::from(self.storage.sin6_family) {
            libc::AF_INET => {
                // SAFETY: the family says that it is a sockaddr_in, which is smaller than the storage.
                let name = unsafe { ptr::from_ref(&self.storage).cast::<libc::sockaddr_in>().read() };
                let ip = Ipv4Addr::from(name.sin_addr.s_addr.to_ne_bytes());
                Some(SocketAddrV4::new(ip, u16::from_be(name.sin_port)).into())
            }
            libc::AF_INET6 => {
                let name = &self.storage;
                let ip = Ipv6Addr::from(name.sin6_addr.s6_addr);
                Some(SocketAddrV6::new(ip, u16::from_be(name.sin6_port), 0, name.sin6_scope_id).into())
            }
            _ => None,
        }
    }
}

pub(super) fn bind(fd: &OwnedFd, addr: &SocketAddr) -> io::Result<()> {
    let name = Name::new(addr);
    // SAFETY: `name` is readable for its length.
    check(unsafe { libc::bind(fd.as_raw_fd(), ptr::from_ref(&name.storage).cast(), name.len) })?;
    Ok(())
}

pub(super) fn local_addr(fd: &OwnedFd) -> io::Result<SocketAddr> {
    let mut name = Name::empty();
    // SAFETY: `name` is writable for its length.
    check(unsafe {
        libc::getsockname(fd.as_raw_fd(), ptr::from_mut(&mut name.storage).cast(), &mut name.len)
    })?;
    name.decode().ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Room for the ancillary data of one message.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub(super) struct Control {
    bytes: [u8; Self::SIZE],
    len: usize,
}

impl Control {
    /// Enough for the five that a receiver may get (24 bytes each) and one unforeseen.
    const SIZE: usize = 160;

    pub(super) fn new() -> Self {
        Self { bytes: [0; Self::SIZE], len: 0 }
    }

    /// Appends one item of ancillary data.
    pub(super) fn push<const N: usize>(&mut self, level: c_int, kind: c_int, value: [u8; N]) {
        let header_len = size_of::<cmsghdr>();
        let space = (header_len + N).next_multiple_of(align_of::<cmsghdr>());
        assert!(self.len + space <= Self::SIZE, "ancillary data has a fixed number of items");
        // SAFETY: all zero bytes are a valid header.
        let mut header: cmsghdr = unsafe { zeroed() };
        header.cmsg_len = (header_len + N) as _;
        header.cmsg_level = level;
        header.cmsg_type = kind;
        // SAFETY: `space` bytes fit behind `len` (checked above), which is a multiple of the header's alignment.
        unsafe {
            let at = self.bytes.as_mut_ptr().add(self.len);
            at.cast::<cmsghdr>().write(header);
            at.add(header_len).cast::<[u8; N]>().write(value);
        }
        self.len += space;
    }
}

/// One message to send.
pub(super) struct Outgoing<'a> {
    pub(super) to: &'a Name,
    pub(super) control: &'a Control,
    pub(super) pieces: &'a [Piece],
}

impl Outgoing<'_> {
    fn header(&self) -> msghdr {
        // SAFETY: all zero bytes are a valid header (null pointers, zero lengths).
        let mut header: msghdr = unsafe { zeroed() };
        header.msg_name = ptr::from_ref(&self.to.storage).cast_mut().cast();
        header.msg_namelen = self.to.len;
        // A piece has the layout of an iovec (asserted below).
        header.msg_iov = self.pieces.as_ptr().cast_mut().cast::<iovec>();
        header.msg_iovlen = self.pieces.len() as _;
        if self.control.len > 0 {
            header.msg_control = self.control.bytes.as_ptr().cast_mut().cast::<c_void>();
            header.msg_controllen = self.control.len as _;
        }
        header
    }
}

const _: () = {
    assert!(size_of::<Piece>() == size_of::<iovec>() && align_of::<Piece>() == align_of::<iovec>());
    assert!(std::mem::offset_of!(Piece, addr) == std::mem::offset_of!(iovec, iov_base));
    assert!(std::mem::offset_of!(Piece, len) == std::mem::offset_of!(iovec, iov_len));
};

/// Sends one message. The pieces need not be mapped: then it is `EFAULT`.
pub(super) fn send(fd: &OwnedFd, message: &Outgoing<'_>) -> Result<usize, i32> {
    let header = message.header();
    // SAFETY: name and control are readable for their lengths; the kernel checks the memory of the pieces.
    let sent = unsafe { libc::sendmsg(fd.as_raw_fd(), &header, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) };
    if sent < 0 { Err(errno()) } else { Ok(sent as usize) }
}

/// Messages of one [`send_many`].
pub(super) const MANY: usize = 32;

/// Sends up to [`MANY`] messages and returns how many left; the errno of the first if none did.
pub(super) fn send_many<'a>(
    fd: &OwnedFd,
    messages: impl Iterator<Item = Outgoing<'a>>,
) -> Result<usize, i32> {
    let mut headers = [const { MaybeUninit::<mmsghdr>::uninit() }; MANY];
    let mut count = 0;
    for (header, message) in headers.iter_mut().zip(messages) {
        header.write(mmsghdr { msg_hdr: message.header(), msg_len: 0 });
        count += 1;
    }
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the first `count` headers are written; what they point to outlives the call ('a); as in `send`.
    let sent = unsafe { libc::sendmmsg(fd.as_raw_fd(), headers.as_mut_ptr().cast(), count as _, flags as _) };
    if sent < 0 { Err(errno()) } else { Ok(sent as usize) }
}

/// What came with a datagram.
pub(super) struct Incoming {
    pub(super) src: Option<SocketAddr>,
    pub(super) len: usize,
    pub(super) truncated: bool,
    pub(super) segment: Option<usize>,
    pub(super) traffic_class: u8,
    pub(super) hop_limit: u8,
    /// The socket's count of dropped packets, if there are any.
    pub(super) overflow: Option<u32>,
}

fn incoming(header: &msghdr, name: &Name, len: usize) -> Incoming {
    let mut known = Incoming {
        src: name.decode(),
        len,
        truncated: header.msg_flags & libc::MSG_TRUNC != 0,
        segment: None,
        traffic_class: 0,
        hop_limit: 0,
        overflow: None,
    };
    // SAFETY: the header is one that the kernel has just filled in: its control memory is valid, and the
    // macros stay within it.
    unsafe {
        let mut at = libc::CMSG_FIRSTHDR(header);
        while let Some(item) = at.as_ref() {
            let data = libc::CMSG_DATA(item);
            let int = || data.cast::<c_int>().read_unaligned();
            match (item.cmsg_level, item.cmsg_type) {
                (SOL_UDP, UDP_GRO) => known.segment = Some(int().max(1) as usize),
                (libc::SOL_SOCKET, libc::SO_RXQ_OVFL) => known.overflow = Some(int() as u32),
                (libc::IPPROTO_IP, libc::IP_TOS) => known.traffic_class = data.read(),
                (libc::IPPROTO_IP, libc::IP_TTL) => known.hop_limit = int() as u8,
                (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => known.traffic_class = int() as u8,
                (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => known.hop_limit = int() as u8,
                _ => {}
            }
            at = libc::CMSG_NXTHDR(header, item);
        }
    }
    known
}

/// Receives one datagram.
pub(super) fn receive(fd: &OwnedFd, buffer: &mut [u8]) -> Result<Incoming, i32> {
    let mut name = Name::empty();
    let mut control = MaybeUninit::<Control>::uninit();
    let mut buffer = iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: all zero bytes are a valid header; the control memory may be uninitialised, the kernel only writes to
    // it and `incoming` reads only what it wrote.
    let mut header: msghdr = unsafe { zeroed() };
    header.msg_name = ptr::from_mut(&mut name.storage).cast();
    header.msg_namelen = size_of::<libc::sockaddr_in6>() as socklen_t;
    header.msg_iov = &mut buffer;
    header.msg_iovlen = 1;
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = Control::SIZE as _;
    // SAFETY: all memory in the header is writable for its length.
    let len = unsafe { libc::recvmsg(fd.as_raw_fd(), &mut header, libc::MSG_DONTWAIT) };
    if len < 0 { Err(errno()) } else { Ok(incoming(&header, &name, len as usize)) }
}

/// Copies memory that need not be mapped into `out`, whose length is that of all pieces.
pub(super) fn copy_in(pieces: &[Piece], out: &mut [u8]) -> Result<(), i32> {
    let local = iovec { iov_base: out.as_mut_ptr().cast(), iov_len: out.len() };
    let mut done = 0;
    // The kernel takes no more than IOV_MAX pieces a call.
    for pieces in pieces.chunks(1024) {
        let local = iovec {
            // SAFETY: `done` bytes are within `out`: it is at most the sum of what was copied.
            iov_base: unsafe { local.iov_base.cast::<u8>().add(done) }.cast(),
            iov_len: local.iov_len - done,
        };
        let wanted: usize = pieces.iter().map(|p| p.len).sum();
        // SAFETY: `local` is writable; the kernel checks the memory of the pieces (layout of iovec, asserted above).
        let copied = unsafe {
            let remote = pieces.as_ptr().cast::<iovec>();
            libc::process_vm_readv(libc::getpid(), &local, 1, remote, pieces.len() as _, 0)
        };
        match copied {
            n if n < 0 => return Err(errno()),
            n if (n as usize) < wanted => return Err(libc::EFAULT),
            n => done += n as usize,
        }
    }
    if done == out.len() { Ok(()) } else { Err(libc::EFAULT) }
}

/// One address of an interface.
pub(super) struct InterfaceAddress {
    pub(super) name: String,
    pub(super) ip: IpAddr,
    pub(super) prefix: u32,
    pub(super) scope_id: u32,
}

/// All addresses of the host's interfaces.
pub(super) fn interface_addresses() -> io::Result<Vec<InterfaceAddress>> {
    let mut list: *mut libc::ifaddrs = ptr::null_mut();
    // SAFETY: `list` is writable; on success it is freed below.
    check(unsafe { libc::getifaddrs(&mut list) })?;
    let mut found = Vec::new();
    let mut at = list;
    // SAFETY: a list of getifaddrs is valid until freed; addresses have the length that their family says.
    unsafe {
        while let Some(entry) = at.as_ref() {
            at = entry.ifa_next;
            let name = std::ffi::CStr::from_ptr(entry.ifa_name).to_string_lossy().into_owned();
            if let Some((ip, scope_id)) = decode_ip(entry.ifa_addr) {
                let prefix = match decode_ip(entry.ifa_netmask) {
                    Some((IpAddr::V4(mask), _)) => mask.to_bits().leading_ones(),
                    Some((IpAddr::V6(mask), _)) => mask.to_bits().leading_ones(),
                    None => 0,
                };
                found.push(InterfaceAddress { name, ip, prefix, scope_id });
            }
        }
        libc::freeifaddrs(list);
    }
    Ok(found)
}

/// # Safety
/// `addr` is null or points to a socket address of the length that its family says.
unsafe fn decode_ip(addr: *const libc::sockaddr) -> Option<(IpAddr, u32)> {
    // SAFETY: the caller's promise.
    unsafe {
        match c_int::from(addr.as_ref()?.sa_family) {
            libc::AF_INET => {
                let name = addr.cast::<libc::sockaddr_in>().read_unaligned();
                Some((IpAddr::from(name.sin_addr.s_addr.to_ne_bytes()), 0))
            }
            libc::AF_INET6 => {
                let name = addr.cast::<libc::sockaddr_in6>().read_unaligned();
                Some((IpAddr::from(name.sin6_addr.s6_addr), name.sin6_scope_id))
            }
            _ => None,
        }
    }
}

/// The MTU of an interface.
pub(super) fn interface_mtu(name: &str) -> io::Result<u32> {
    let fd = socket(libc::AF_INET, libc::SOCK_DGRAM, 0)?;
    // SAFETY: all zero bytes are a valid request.
    let mut request: libc::ifreq = unsafe { zeroed() };
    if name.len() >= request.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    // SAFETY: SIOCGIFMTU reads the name and writes the MTU into the request.
    unsafe {
        check(libc::ioctl(fd.as_raw_fd(), libc::SIOCGIFMTU as _, &mut request))?;
        Ok(request.ifr_ifru.ifru_mtu as u32)
    }
}

/// One eBPF instruction.
const fn insn(code: u8, dst: u8, src: u8, offset: i16, value: i32) -> u64 {
    let [o0, o1] = offset.to_le_bytes();
    let [v0, v1, v2, v3] = value.to_le_bytes();
    u64::from_ne_bytes([code, src << 4 | dst, o0, o1, v0, v1, v2, v3])
}

/// Offset of `gso_size` in `struct __sk_buff`.
const SKB_GSO_SIZE: i16 = 176;

/// Socket filters for a raw socket, which takes single packets to `port`, and for its UDP socket, which takes merged
/// ones. With a slot, the raw socket takes only packets whose QPN begins with it. Needs CAP_BPF.
pub(super) fn gso_filters(port: u16, slot: Option<u8>) -> io::Result<(OwnedFd, OwnedFd)> {
    let exit = insn(0x95, 0, 0, 0, 0);
    let drop = insn(0xb7, 0, 0, 0, 0); // r0 = 0
    let take = insn(0xb7, 0, 0, 0, 0x7fff_ffff); // r0 = all
    let more = if slot.is_some() { 2 } else { 0 };
    let mut single = vec![
        insn(0xbf, 6, 1, 0, 0),                      // r6 = context
        insn(0x61, 7, 6, SKB_GSO_SIZE, 0),           // r7 = gso_size
        insn(0x55, 7, 0, 7 + more, 0),               // if r7 != 0 goto drop
        insn(0x30, 0, 0, 0, 0),                      // r0 = first byte
        insn(0x57, 0, 0, 0, 0xf),                    // r0 &= 0xf
        insn(0x67, 0, 0, 0, 2),                      // r0 <<= 2: length of the IP header
        insn(0xbf, 7, 0, 0, 0),                      // r7 = r0
        insn(0x48, 0, 7, 0, 2),                      // r0 = 16 bits at r7 + 2
        insn(0x55, 0, 0, 2 + more, i32::from(port)), // if r0 != port goto drop
    ];
    if let Some(slot) = slot {
        single.extend([
            insn(0x50, 0, 7, 0, 8 + 5), // r0 = byte 5 of the BTH, behind 8 bytes of UDP header
            insn(0x55, 0, 0, 2, i32::from(slot)), // if r0 != slot goto drop
        ]);
    }
    single.extend([take, exit, drop, exit]);
    let merged = [
        insn(0x61, 7, 1, SKB_GSO_SIZE, 0), // r7 = gso_size
        insn(0x15, 7, 0, 2, 0),            // if r7 == 0 goto drop
        take,
        exit,
        drop,
        exit,
    ];
    Ok((load_program(&single)?, load_program(&merged)?))
}

fn load_program(program: &[u64]) -> io::Result<OwnedFd> {
    /// The head of `union bpf_attr` for BPF_PROG_LOAD.
    #[repr(C)]
    struct ProgLoad {
        prog_type: u32,
        insn_cnt: u32,
        insns: u64,
        license: u64,
        log_level: u32,
        log_size: u32,
        log_buf: u64,
        kern_version: u32,
        prog_flags: u32,
    }
    const PROG_LOAD: libc::c_long = 5;
    const SOCKET_FILTER: u32 = 1;
    let attr = ProgLoad {
        prog_type: SOCKET_FILTER,
        insn_cnt: program.len() as u32,
        insns: program.as_ptr() as u64,
        license: c"Dual MIT/GPL".as_ptr() as u64,
        log_level: 0,
        log_size: 0,
        log_buf: 0,
        kern_version: 0,
        prog_flags: 0,
    };
    // SAFETY: `attr` and what it points to are readable for the call; the descriptor is new and owned by nobody else.
    unsafe {
        let fd = libc::syscall(libc::SYS_bpf, PROG_LOAD, &attr, size_of::<ProgLoad>());
        Ok(OwnedFd::from_raw_fd(check(fd as c_int)?))
    }
}

/// Attaches an eBPF socket filter.
pub(super) fn attach_program(fd: &OwnedFd, program: &OwnedFd) -> io::Result<()> {
    set_int(fd, libc::SOL_SOCKET, libc::SO_ATTACH_BPF, program.as_raw_fd())
}
