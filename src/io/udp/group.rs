//! One address, many processes: a group of sockets.
//!
//! All sockets of a group are bound to the device's address with SO_REUSEPORT. A classic BPF program, which needs no
//! privilege, picks the one that gets a packet by the top 8 bits of its destination QPN: the slot. Socket i of the group
//! is that of slot i. So the kernel brings each packet to its process; nobody forwards anything.
//!
//! When a socket of a group is closed, the kernel moves the last one into its place, and packets go astray. So none may
//! be closed while the group is in use. The group's **anchor** sees to that: a Unix socket in whose receive queue
//! duplicates of all sockets wait, in order, one message a socket. Everybody who uses a member holds the anchor too. The
//! end of the process that made the group changes nothing then, and another one takes the group over
//! ([`Group::take_over`]): it reads the anchor without taking anything from it.
//!
//! A member that is not in use has a filter that takes no packets, so it holds no memory.
//! [`UdpLink::from_member`](super::UdpLink::from_member) removes it.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use super::{Config, OpenError, bind, new_socket, raw, scoped};
use crate::io::sys;

/// What others may be doing with the anchor at the same time can make a look at it fail; not for ever.
const TRIES: usize = 100;

/// Slots of a group, that of its owner (0) included. 255 is none: QPN 0xffffff means multicast.
pub const SLOTS: usize = 255;

/// A group of sockets. It lives as long as somebody holds its anchor.
#[derive(Debug)]
pub struct Group {
    addr: SocketAddr,
    /// By slot.
    sockets: Vec<OwnedFd>,
    /// Sockets that the steering knows.
    steered: usize,
    /// What is sent here waits in the anchor. It waits there itself, beside the first socket.
    writer: OwnedFd,
    anchor: OwnedFd,
}

impl Group {
    /// Opens a group on the address of the configuration, with the socket of slot 0.
    pub fn open(config: &Config) -> Result<Self, OpenError> {
        let failed = |what| move |source| OpenError::Io { addr: config.addr, what, source };
        let first = idle_socket(config)?;
        // Bound before it may be shared, so no other socket has the address: nor can two owners meet in one group.
        bind(&first, config.addr)?;
        set_shared(&first).map_err(failed("share the address"))?;
        let addr = sys::local_addr(&first).map_err(failed("read the address of the socket"))?;
        let (writer, anchor) = sys::unix_pair().map_err(failed("make the anchor"))?;
        // 256 small messages must fit.
        let _ = sys::set_int(&writer, libc::SOL_SOCKET, libc::SO_SNDBUF, 1 << 20);
        sys::send_fds(&writer, 0, &[&first, &writer]).map_err(failed("fill the anchor"))?;
        Ok(Self { addr, sockets: vec![first], steered: 1, writer, anchor })
    }

    /// Takes over a group whose owner is gone. Whoever hands over the anchor may be hostile: each descriptor is looked at.
    pub fn take_over(anchor: OwnedFd, config: &Config) -> Result<Self, OpenError> {
        let addr = scoped(config.addr);
        let refused = |what: String| OpenError::NotTheGroup { addr, what };
        let unreadable = |e: io::Error| refused(format!("it cannot be read ({e})"));
        if !is_kind(&anchor, libc::AF_UNIX, libc::SOCK_STREAM) {
            return Err(refused("it is no Unix stream socket".into()));
        }
        let here = new_socket(config)?;
        let namespace = sys::namespace(&here).ok();
        let mut sockets: Vec<OwnedFd> = Vec::new();
        let mut cookies = Vec::new();
        let mut writer = None;
        while let Some((slot, mut fds)) = peek(&anchor, sockets.len()).map_err(unreadable)? {
            let expected = if slot == 0 { 2 } else { 1 };
            if slot != sockets.len() || slot >= SLOTS || fds.len() != expected {
                return Err(refused(format!("message {} is not that of this slot", sockets.len())));
            }
            if slot == 0 {
                writer = fds.pop().filter(|fd| is_kind(fd, libc::AF_UNIX, libc::SOCK_STREAM));
            }
            let Some(socket) = fds.pop() else { continue };
            check_kind(&socket, addr)?;
            let local = sys::local_addr(&socket).map_err(unreadable)?;
            if local != addr {
                return Err(refused(format!("the socket of slot {slot} has the address {local}")));
            }
            let cookie = sys::cookie(&socket).map_err(unreadable)?;
            if cookies.contains(&cookie) {
                return Err(refused(format!("the socket of slot {slot} is there twice")));
            }
            if sys::namespace(&socket).ok() != namespace {
                return Err(refused(format!("the socket of slot {slot} is of another network")));
            }
            cookies.push(cookie);
            sockets.push(socket);
        }
        let Some(writer) = writer else { return Err(refused("it is empty, or not to be added to".into())) };
        // The steering stays as it is until the group is used: all sockets that anybody has are known to it.
        Ok(Self { addr, sockets, steered: 0, writer, anchor })
    }

    /// The address.
    pub fn local(&self) -> SocketAddr {
        self.addr
    }

    /// Slots that have a socket.
    pub fn len(&self) -> usize {
        self.sockets.len()
    }

    /// Never: there is a slot 0.
    pub fn is_empty(&self) -> bool {
        self.sockets.is_empty()
    }

    /// A duplicate of the socket of a slot. Sockets up to that slot are made.
    pub fn socket(&mut self, slot: u8) -> io::Result<OwnedFd> {
        if usize::from(slot) >= SLOTS {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "slot 255 does not exist"));
        }
        while self.sockets.len() <= usize::from(slot) {
            self.grow()?;
        }
        self.steer()?;
        self.sockets[usize::from(slot)].try_clone()
    }

    /// Ends the use of a slot: from now on its socket takes nothing, and what was in its queue is dropped. Returns how
    /// many datagrams that were. For a socket that is not read any more.
    pub fn drain(&self, slot: u8) -> io::Result<u64> {
        let Some(socket) = self.sockets.get(usize::from(slot)) else { return Ok(0) };
        sys::attach_filter(socket, raw::NOTHING)?;
        let mut dropped = 0;
        while sys::discard(socket)? {
            dropped += 1;
        }
        Ok(dropped)
    }

    /// A duplicate of the anchor.
    pub fn anchor(&self) -> io::Result<OwnedFd> {
        self.anchor.try_clone()
    }

    /// Adds the socket of the next slot.
    fn grow(&mut self) -> io::Result<()> {
        let plain = |e: OpenError| match e {
            OpenError::Io { source, .. } => source,
            other => io::Error::other(other.to_string()),
        };
        let config = Config::new(self.addr.ip());
        let slot = self.sockets.len();
        let socket = idle_socket(&config).map_err(plain)?;
        set_shared(&socket)?;
        // Until the steering knows the socket it gets no packets, and until it is in the anchor it is given to nobody: if
        // this process ends in between, the group is as before.
        sys::bind(&socket, &self.addr)?;
        sys::send_fds(&self.writer, slot as u8, &[&socket]).map_err(explained)?;
        let found = peek(&self.anchor, slot)?;
        let same = |fds: &[OwnedFd]| matches!(fds, [fd] if sys::cookie(fd).ok() == sys::cookie(&socket).ok());
        if !found.is_some_and(|(at, fds)| at == slot && same(&fds)) {
            return Err(io::Error::other("the group's anchor is damaged: somebody has read it"));
        }
        self.sockets.push(socket);
        Ok(())
    }

    fn steer(&mut self) -> io::Result<()> {
        // A socket alone is no group to the kernel.
        if self.sockets.len() > 1 && self.steered < self.sockets.len() {
            sys::attach_steering(&self.sockets[0], &raw::steering(self.sockets.len() as u32))?;
            self.steered = self.sockets.len();
        }
        Ok(())
    }
}

/// The message of a slot: its number, and the socket beside it. The place in the queue at which a look begins belongs to
/// the anchor, so another process that looks at the same time moves it: then it is tried again. `None` if there is no
/// such message.
fn peek(anchor: &OwnedFd, slot: usize) -> io::Result<Option<(usize, Vec<OwnedFd>)>> {
    let mut found = None;
    for _ in 0..TRIES {
        found = sys::peek_fds(anchor, slot)?.map(|(byte, fds)| (usize::from(byte), fds));
        if found.as_ref().is_some_and(|&(at, _)| at == slot) {
            break;
        }
    }
    Ok(found)
}

/// Has the kernel merge no packets for any member from now on. It merges those of one flow whatever their QPN, if the
/// socket that it asks, which may be any member's, wants merged packets.
pub fn stop_merging(anchor: &OwnedFd) -> io::Result<()> {
    let mut slot = 0;
    while let Some((at, fds)) = peek(anchor, slot)? {
        if at == slot
            && let Some(socket) = fds.first()
        {
            sys::set_int(socket, sys::SOL_UDP, sys::UDP_GRO, 0)?;
        }
        slot += 1;
    }
    Ok(())
}

/// Whether the group's sockets may have merged packets: that of slot 0 tells for all.
pub fn merges(anchor: &OwnedFd) -> io::Result<bool> {
    let Some((0, fds)) = peek(anchor, 0)? else { return Ok(true) };
    fds.first().map_or(Ok(true), |socket| Ok(sys::int(socket, sys::SOL_UDP, sys::UDP_GRO)? != 0))
}

/// A member that takes nothing.
fn idle_socket(config: &Config) -> Result<OwnedFd, OpenError> {
    let socket = new_socket(config)?;
    sys::attach_filter(&socket, raw::NOTHING).map_err(|source| OpenError::Io {
        addr: config.addr,
        what: "attach a filter",
        source,
    })?;
    // The kernel asks one member, whichever, whether packets may be merged for all.
    let _ = sys::set_int(&socket, sys::SOL_UDP, sys::UDP_GRO, 1);
    Ok(socket)
}

fn set_shared(socket: &OwnedFd) -> io::Result<()> {
    sys::set_int(socket, libc::SOL_SOCKET, libc::SO_REUSEPORT, 1)
}

fn explained(error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(libc::ETOOMANYREFS) => io::Error::new(
            error.kind(),
            "the user has as many descriptors in Unix sockets as the limit of open files allows (ulimit -n)",
        ),
        _ => error,
    }
}

/// Whether it is a UDP socket that shares the address.
pub(super) fn check_kind(socket: &OwnedFd, addr: SocketAddr) -> Result<(), OpenError> {
    let family = if addr.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let option = |name| sys::int(socket, libc::SOL_SOCKET, name).ok();
    if is_kind(socket, family, libc::SOCK_DGRAM)
        && option(libc::SO_PROTOCOL) == Some(libc::IPPROTO_UDP)
        && option(libc::SO_REUSEPORT) == Some(1)
    {
        return Ok(());
    }
    Err(OpenError::NotTheGroup { addr, what: "there is a descriptor that is no shared UDP socket".into() })
}

fn is_kind(fd: &OwnedFd, family: libc::c_int, kind: libc::c_int) -> bool {
    let option = |name| sys::int(fd, libc::SOL_SOCKET, name).ok();
    option(libc::SO_DOMAIN) == Some(family) && option(libc::SO_TYPE) == Some(kind)
}

#[cfg(test)]
#[path = "group_tests.rs"]
mod tests;
