//! UDP sockets with segmentation offload.
//!
//! One unconnected socket is bound to the device's address. Path MTU discovery is in PROBE mode: the kernel then sets
//! DF and sends IPv4 identification 0, so the ICRC, which covers both, can be computed without seeing the IP header.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use parking_lot::RwLock;

use super::{Backlog, Counters, Limits, Link, ROCE_PORT, Runs, RxBatch, SendOutcome, route, sys};
use crate::wire::batch::IpId;

pub mod group;
mod multicast;
mod raw;
mod recv;
mod send;
#[cfg(test)]
mod tests;

/// How datagrams are received.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Receive {
    /// From the UDP socket, with GRO.
    #[default]
    Udp,
    /// From a raw socket, which shows the IP header and so the identification that a peer's ICRC covers. Needs
    /// CAP_NET_RAW. IPv4 only: IPv6 has no identification, so there it is the same as [`Receive::Udp`].
    Raw,
}

/// What a UDP link is opened with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// The device's address; the port is [`ROCE_PORT`] but in tests.
    pub addr: SocketAddr,
    /// Bytes of the receive queue that are asked for.
    pub receive_buffer: usize,
    /// Bytes of the send queue that are asked for.
    pub send_buffer: usize,
    /// Whether several packets leave in one call.
    pub gso: bool,
    /// Whether the kernel may keep packets together on receive.
    pub gro: bool,
    /// How datagrams are received.
    pub receive: Receive,
}

impl Config {
    /// The usual settings for a device address.
    pub fn new(ip: IpAddr) -> Self {
        Self {
            addr: SocketAddr::new(ip, ROCE_PORT),
            receive_buffer: 4 << 20,
            send_buffer: 4 << 20,
            gso: true,
            gro: true,
            receive: Receive::Udp,
        }
    }
}

/// Why a link could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another socket has the address.
    #[error("{addr} is taken: another device runs on it; stop that or choose another address")]
    AddressInUse {
        /// The address.
        addr: SocketAddr,
    },
    /// No interface has the address.
    #[error(
        "{addr} is not an address of this host; choose one that `ip address` shows or one of 127.0.0.0/16"
    )]
    NotLocal {
        /// The address.
        addr: IpAddr,
    },
    /// The process may not do this.
    #[error("no permission to {what} on {addr}{}", if *.what == "open a raw socket" { ": it needs CAP_NET_RAW" } else { "" })]
    PermissionDenied {
        /// The address.
        addr: SocketAddr,
        /// What is not allowed.
        what: &'static str,
    },
    /// All of 127.0.0.0/16 are taken.
    #[error(
        "UDP port {port} is taken on all of 127.0.0.1 to 127.0.255.254 (a socket on 0.0.0.0 takes them all)"
    )]
    NoFreeAddress {
        /// The port.
        port: u16,
    },
    /// What was handed over is not the group of sockets of this address.
    #[error("what was handed over for {addr} is not its group of sockets: {what}")]
    NotTheGroup {
        /// The address.
        addr: SocketAddr,
        /// What is wrong with it.
        what: String,
    },
    /// Another failure.
    #[error("cannot {what} for {addr}: {source}")]
    Io {
        /// The address.
        addr: SocketAddr,
        /// What failed.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
}

/// A UDP link.
#[derive(Debug)]
pub struct UdpLink {
    socket: OwnedFd,
    raw: Option<raw::RawSocket>,
    local: SocketAddr,
    interface: route::Interface,
    max_segments: usize,
    gro: bool,
    receive_buffer: usize,
    send_buffer: usize,
    /// Destinations where the kernel refused to segment.
    unsegmented: RwLock<Vec<IpAddr>>,
    /// Whether `unsegmented` has any.
    any_unsegmented: AtomicBool,
    /// Whether segmentation is off altogether.
    gso_off: AtomicBool,
    /// The socket's own count of dropped packets when last seen.
    overflow_seen: AtomicU32,
    /// The last receive ended before the queue was empty.
    more: AtomicBool,
    groups: multicast::Groups,
    counters: Counters,
    #[cfg(test)]
    faults: parking_lot::Mutex<std::collections::VecDeque<Option<i32>>>,
}

impl UdpLink {
    /// Opens a link on the address of the configuration.
    pub fn open(config: &Config) -> Result<Self, OpenError> {
        let socket = new_socket(config)?;
        bind(&socket, config.addr)?;
        Self::set_up(socket, None, config)
    }

    /// Opens a link on the socket of a slot of a [`Group`](group::Group): it gets the packets whose QPN begins with the
    /// slot. What the configuration says of the address is not used.
    pub fn from_member(socket: OwnedFd, slot: u8, config: &Config) -> Result<Self, OpenError> {
        let failed = |source| OpenError::Io { addr: config.addr, what: "use a socket of its group", source };
        let local = sys::local_addr(&socket).map_err(failed)?;
        group::check_kind(&socket, local)?;
        let link = Self::set_up(socket, Some(slot), &Config { addr: local, ..config.clone() })?;
        // Only now: an unused member takes nothing.
        if link.raw.is_none() {
            sys::detach_filter(&link.socket).map_err(failed)?;
        }
        Ok(link)
    }

    /// Opens a link on the first free address of 127.0.0.0/16; the IP address of the configuration is not used.
    ///
    /// The bind itself decides, so two processes never get the same one.
    pub fn open_first_free(config: &Config) -> Result<Self, OpenError> {
        let mut config = config.clone();
        let port = config.addr.port();
        config.addr = SocketAddr::from(([127, 0, 0, 1], port));
        let socket = new_socket(&config)?;
        for low in 1..=0xfffe_u16 {
            config.addr = SocketAddr::from((Ipv4Addr::from(0x7f00_0000 | u32::from(low)), port));
            match bind(&socket, config.addr) {
                Ok(()) => return Self::set_up(socket, None, &config),
                Err(OpenError::AddressInUse { .. }) => {}
                Err(other) => return Err(other),
            }
        }
        Err(OpenError::NoFreeAddress { port })
    }

    fn set_up(socket: OwnedFd, slot: Option<u8>, config: &Config) -> Result<Self, OpenError> {
        let addr = config.addr;
        let failed = |what| move |source| OpenError::Io { addr, what, source };
        let set = |level, name, value| sys::set_int(&socket, level, name, value);
        let local = sys::local_addr(&socket).map_err(failed("read the address of the socket"))?;
        let interface = route::interface(local.ip())
            .map_err(failed("list the interfaces"))?
            .ok_or(OpenError::NotLocal { addr: addr.ip() })?;
        match local {
            SocketAddr::V4(_) => set(libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE),
            SocketAddr::V6(_) => set(libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_PROBE),
        }
        .map_err(failed("set the path MTU mode"))?;
        multicast::prepare(&socket, local.ip(), &interface);
        let receive_buffer =
            set_buffer(&socket, config.receive_buffer, libc::SO_RCVBUFFORCE, libc::SO_RCVBUF);
        let send_buffer = set_buffer(&socket, config.send_buffer, libc::SO_SNDBUFFORCE, libc::SO_SNDBUF);
        // Both are conveniences: a kernel without them only counts less or is slower.
        let _ = set(libc::SOL_SOCKET, libc::SO_RXQ_OVFL, 1);
        let is_raw = config.receive == Receive::Raw && local.is_ipv4();
        // In raw mode, merged packets of a peer on this host can only be taken apart by the UDP socket.
        let wanted = config.gro || is_raw;
        let gro = set(sys::SOL_UDP, sys::UDP_GRO, i32::from(wanted)).is_ok() && wanted;
        let raw = match is_raw {
            true => Some(raw::RawSocket::open(&socket, local, slot, config, gro)?),
            false => None,
        };
        let max_segments = if config.gso { send::probe_segments() } else { 1 };
        // A member of a group has been used before.
        let overflow_seen = AtomicU32::new(sys::dropped(&socket));
        Ok(Self {
            socket,
            raw,
            local,
            interface,
            max_segments,
            gro,
            receive_buffer,
            send_buffer,
            unsegmented: RwLock::default(),
            any_unsegmented: AtomicBool::new(false),
            gso_off: AtomicBool::new(max_segments == 1),
            overflow_seen,
            more: AtomicBool::new(false),
            groups: multicast::Groups::default(),
            counters: Counters::default(),
            #[cfg(test)]
            faults: Default::default(),
        })
    }

    /// Bytes of the receive queue that the kernel granted, in its own accounting (twice what was asked for, at most).
    pub fn receive_buffer(&self) -> usize {
        self.receive_buffer
    }
    /// Bytes of the send queue that the kernel granted.
    pub fn send_buffer(&self) -> usize {
        self.send_buffer
    }
    /// The interface of the address.
    pub fn interface(&self) -> &route::Interface {
        &self.interface
    }
    /// Whether the kernel keeps received packets together.
    pub fn gro(&self) -> bool {
        self.gro
    }
    /// Whether IP identifications of received packets are known.
    pub fn is_raw(&self) -> bool {
        self.raw.is_some()
    }

    /// Packets that one send to this address may have.
    fn segments_to(&self, destination: IpAddr) -> usize {
        // Of what goes to a group the kernel makes copies, and segments each in its own way.
        let off = destination.is_multicast()
            || self.gso_off.load(Relaxed)
            || self.any_unsegmented.load(Relaxed) && self.unsegmented.read().contains(&destination);
        if off { 1 } else { self.max_segments }
    }

    /// Stops segmentation to an address.
    fn stop_segmenting(&self, destination: IpAddr) {
        /// Where many paths fail, all do.
        const MANY: usize = 64;
        let mut list = self.unsegmented.write();
        if !list.contains(&destination) {
            list.push(destination);
            self.any_unsegmented.store(true, Relaxed);
            if list.len() >= MANY {
                self.gso_off.store(true, Relaxed);
            }
        }
    }
}

impl Link for UdpLink {
    fn local(&self) -> SocketAddr {
        self.local
    }
    fn send_runs(&self, runs: Runs<'_>) -> SendOutcome {
        self.send_batch(runs)
    }
    fn recv(&self, rx: &mut RxBatch) -> io::Result<usize> {
        self.receive_batch(rx)
    }
    fn fds(&self) -> [Option<RawFd>; 2] {
        // The descriptor of the groups stands for the raw socket too.
        let raw = self.raw.as_ref().map(|raw| raw.socket().as_raw_fd());
        [Some(self.socket.as_raw_fd()), self.groups.descriptor().or(raw)]
    }
    fn join(&self, group: IpAddr) -> io::Result<()> {
        self.join_group(group)
    }
    fn leave(&self, group: IpAddr) {
        self.groups.leave(group);
    }
    fn limits(&self, destination: IpAddr) -> Limits {
        let packets = self.segments_to(destination);
        let within_host = packets == 1 || route::is_loopback_path(destination);
        Limits {
            packets,
            bytes: send::MAX_BYTES,
            pieces: send::MAX_PIECES,
            ip_id: if within_host { IpId::Zero } else { IpId::Counting },
        }
    }
    fn mtu(&self) -> u32 {
        self.interface.mtu
    }
    fn counters(&self) -> &Counters {
        &self.counters
    }
    fn show_headers(&self) -> io::Result<()> {
        let set = |level, name| sys::set_int(&self.socket, level, name, 1);
        match self.local {
            SocketAddr::V4(_) => {
                set(libc::IPPROTO_IP, libc::IP_RECVTOS).and_then(|()| set(libc::IPPROTO_IP, libc::IP_RECVTTL))
            }
            SocketAddr::V6(_) => set(libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS)
                .and_then(|()| set(libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT)),
        }
    }
    fn backlog(&self) -> Option<Backlog> {
        let socket = self.raw.as_ref().map_or(&self.socket, |raw| raw.socket());
        sys::receive_memory(socket).map(|(used, limit)| Backlog { used, limit })
    }
}

fn new_socket(config: &Config) -> Result<OwnedFd, OpenError> {
    let family = if config.addr.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let open = |source| OpenError::Io { addr: config.addr, what: "open a UDP socket", source };
    let socket = sys::socket(family, libc::SOCK_DGRAM, libc::IPPROTO_UDP).map_err(open)?;
    if family == libc::AF_INET6 {
        sys::set_int(&socket, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 1).map_err(open)?;
    }
    Ok(socket)
}

/// A link-local address means nothing without its interface; if none is named, it is the one that has the address.
fn scoped(addr: SocketAddr) -> SocketAddr {
    match addr {
        SocketAddr::V6(mut v6) if v6.ip().is_unicast_link_local() && v6.scope_id() == 0 => {
            let found = route::interface(addr.ip()).ok().flatten();
            v6.set_scope_id(found.map_or(0, |interface| interface.scope_id));
            v6.into()
        }
        _ => addr,
    }
}

/// Binds without SO_REUSEADDR, so that a taken address is an error.
fn bind(socket: &OwnedFd, addr: SocketAddr) -> Result<(), OpenError> {
    let addr = scoped(addr);
    sys::bind(socket, &addr).map_err(|source| match source.raw_os_error() {
        Some(libc::EADDRINUSE) => OpenError::AddressInUse { addr },
        Some(libc::EADDRNOTAVAIL) => OpenError::NotLocal { addr: addr.ip() },
        Some(libc::EACCES | libc::EPERM) => OpenError::PermissionDenied { addr, what: "bind a socket" },
        _ => OpenError::Io { addr, what: "bind a socket", source },
    })
}

/// Asks for a buffer, beyond the system's limit if we may, and returns what the kernel granted.
fn set_buffer(socket: &OwnedFd, bytes: usize, forced: libc::c_int, plain: libc::c_int) -> usize {
    let wanted = i32::try_from(bytes).unwrap_or(i32::MAX / 2);
    if sys::set_int(socket, libc::SOL_SOCKET, forced, wanted).is_err() {
        let _ = sys::set_int(socket, libc::SOL_SOCKET, plain, wanted);
    }
    sys::int(socket, libc::SOL_SOCKET, plain).map_or(0, |granted| granted.max(0) as usize)
}
