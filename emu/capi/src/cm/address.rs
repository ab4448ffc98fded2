//! Socket addresses, and where they lead: which device reaches a destination, and which device is there.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, UdpSocket};

use libc::{sockaddr, sockaddr_in, sockaddr_in6};

use crate::abi::cm::rdma_socket_address;
use crate::boundary::{Errno, Outcome};
use crate::memory;
use crate::verbs::convert::INVALID;

/// The port of RoCE v2.
const ROCE_PORT: u16 = 4791;

/// Reads an address of the program. Only IPv4 and IPv6: as on systems without `AF_IB`, it is `EINVAL`.
///
/// # Safety
/// The pointer is what the program passed.
pub unsafe fn read(from: *const sockaddr) -> Outcome<SocketAddr> {
    // SAFETY: memory checks the pointer; every bit pattern is a socket address.
    unsafe {
        match i32::from(memory::read(from.cast::<libc::sa_family_t>())?) {
            libc::AF_INET => {
                let address = memory::read(from.cast::<sockaddr_in>())?;
                let ip = Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr));
                Ok(SocketAddr::V4(SocketAddrV4::new(ip, u16::from_be(address.sin_port))))
            }
            libc::AF_INET6 => {
                let address = memory::read(from.cast::<sockaddr_in6>())?;
                Ok(SocketAddr::V6(SocketAddrV6::new(
                    Ipv6Addr::from(address.sin6_addr.s6_addr),
                    u16::from_be(address.sin6_port),
                    u32::from_be(address.sin6_flowinfo),
                    address.sin6_scope_id,
                )))
            }
            _ => Err(INVALID),
        }
    }
}

/// An address for the program.
pub fn socket_address(address: SocketAddr) -> rdma_socket_address {
    // SAFETY: plain numbers, for which zero is a value.
    let mut out: rdma_socket_address = unsafe { std::mem::zeroed() };
    match address {
        SocketAddr::V4(v4) => {
            out.ipv4 = sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from(*v4.ip()).to_be() },
                sin_zero: [0; 8],
            };
        }
        SocketAddr::V6(v6) => {
            out.ipv6 = sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo().to_be(),
                sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                sin6_scope_id: v6.scope_id(),
            };
        }
    }
    out
}

/// The wildcard of an address's family.
pub fn unspecified(like: SocketAddr) -> SocketAddr {
    match like {
        SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
        SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
    }
}

/// Whether two addresses are of one family.
pub fn same_family(one: SocketAddr, other: SocketAddr) -> bool {
    one.is_ipv4() == other.is_ipv4()
}

/// What the host says of an address; the tests have a host of their own.
pub trait Host {
    /// The address that the host would send from, to this destination, from this source if one is given.
    fn route(&self, source: Option<IpAddr>, destination: SocketAddr) -> io::Result<IpAddr>;
    /// Whether it is an address of the host itself.
    fn is_local(&self, address: SocketAddr) -> bool;
    /// Whether somebody on this host has a device at this address.
    fn has_device(&self, ip: IpAddr) -> bool;
}

/// The host that this process runs on.
pub struct ThisHost;

fn with_port(address: SocketAddr, port: u16) -> SocketAddr {
    let mut address = address;
    address.set_port(port);
    address
}

impl Host for ThisHost {
    fn route(&self, source: Option<IpAddr>, destination: SocketAddr) -> io::Result<IpAddr> {
        let source = match (source, destination) {
            (None, _) => unspecified(destination),
            (Some(IpAddr::V6(ip)), SocketAddr::V6(to)) if ip.is_unicast_link_local() => {
                SocketAddr::V6(SocketAddrV6::new(ip, 0, 0, to.scope_id()))
            }
            (Some(ip), _) => SocketAddr::new(ip, 0),
        };
        // Connecting a UDP socket asks for the route and sends nothing.
        let socket = UdpSocket::bind(source)?;
        socket.connect(with_port(destination, ROCE_PORT))?;
        Ok(socket.local_addr()?.ip())
    }

    fn is_local(&self, address: SocketAddr) -> bool {
        UdpSocket::bind(with_port(address, 0)).is_ok()
    }

    fn has_device(&self, ip: IpAddr) -> bool {
        let table = match ip {
            IpAddr::V4(_) => "/proc/net/udp",
            IpAddr::V6(_) => "/proc/net/udp6",
        };
        fs::read_to_string(table).is_ok_and(|text| is_bound(&text, ip))
    }
}

/// Whether the kernel's table of UDP sockets has one at this address and RoCE's port. Trying to bind would tell it
/// too, but would be in the way of somebody who opens a device there at that moment.
fn is_bound(table: &str, ip: IpAddr) -> bool {
    // The address is written as the words in memory are.
    let address: String = match ip {
        IpAddr::V4(v4) => format!("{:08X}", u32::from_ne_bytes(v4.octets())),
        IpAddr::V6(v6) => {
            let octets = v6.octets();
            let words = octets
                .chunks_exact(4)
                .map(|word| format!("{:08X}", u32::from_ne_bytes([word[0], word[1], word[2], word[3]])));
            words.collect()
        }
    };
    let wanted = format!("{address}:{ROCE_PORT:04X}");
    table.lines().skip(1).any(|line| line.split_whitespace().nth(1) == Some(&wanted))
}

/// What a local address means to this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Local {
    /// Every device (0.0.0.0 or ::).
    Any,
    /// The device of this number.
    Device(usize),
    /// Another address of this host: programs on it mean their own device.
    Alias,
}

/// The addresses that a fabric gives out are in blocks: 127.0.B.0/24 with B from 1 to 190. One fabric's devices do not
/// reach another's, whatever else the host has at its loopback addresses.
fn block(ip: IpAddr) -> Option<u8> {
    match ip {
        IpAddr::V4(v4) => match v4.octets() {
            [127, 0, block @ 1..=190, _] => Some(block),
            _ => None,
        },
        IpAddr::V6(_) => None,
    }
}

/// Whether two devices are in one block.
fn same_block(device: IpAddr, other: IpAddr) -> bool {
    block(device).is_some() && block(device) == block(other)
}

/// Whether somebody else's device may be at a local address: not on loopback beside a block.
fn may_be_strangers(host: &impl Host, devices: &[IpAddr], ip: IpAddr) -> bool {
    !(ip.is_loopback() && devices.iter().any(|device| block(*device).is_some())) && host.has_device(ip)
}

/// What an address to bind to means: `EADDRNOTAVAIL` if it is not of this host, `ENODEV` if it is the address of
/// somebody else's device.
pub fn local(host: &impl Host, devices: &[IpAddr], address: SocketAddr) -> Outcome<Local> {
    let ip = address.ip();
    if ip.is_unspecified() {
        return Ok(Local::Any);
    }
    if let Some(rail) = devices.iter().position(|device| *device == ip) {
        return Ok(Local::Device(rail));
    }
    // The system lets sockets bind to groups, but a group is nobody's address.
    if ip.is_multicast() || !host.is_local(address) {
        return Err(Errno(libc::EADDRNOTAVAIL));
    }
    if devices.iter().any(|device| same_block(*device, ip)) {
        // The place of another emulated machine.
        return Err(Errno(libc::EADDRNOTAVAIL));
    }
    if may_be_strangers(host, devices, ip) {
        return Err(Errno(libc::ENODEV));
    }
    Ok(Local::Alias)
}

/// How a destination is reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reached {
    /// The own device.
    pub rail: usize,
    /// The own address, as the program sees it.
    pub local: IpAddr,
    /// The address of the device at the other end.
    pub peer_device: IpAddr,
}

/// Finds the way to a destination. `source` is what the program has bound to, and `rail` the device that this means,
/// if it means one.
pub fn reach(
    host: &impl Host,
    devices: &[IpAddr],
    source: Option<IpAddr>,
    rail: Option<usize>,
    destination: SocketAddr,
) -> Outcome<Reached> {
    let ip = destination.ip();
    let no_device = Errno(libc::ENODEV);
    let usable = |number: &usize| devices[*number].is_ipv4() == ip.is_ipv4();
    let candidates = || rail.map_or(0..devices.len(), |rail| rail..rail + 1).filter(usable);
    let first = candidates().next();
    let on = |rail: usize, peer_device: IpAddr| Reached {
        rail,
        local: source.filter(|source| !source.is_unspecified()).unwrap_or(devices[rail]),
        peer_device,
    };
    if ip.is_unspecified() {
        // As the kernel has it: this host, and there the own device.
        let rail = first.ok_or(no_device)?;
        return Ok(on(rail, devices[rail]));
    }
    if ip.is_multicast() {
        // A group: from the bound device, else the one that packets leave by, else the first.
        let routed = host.route(None, destination).ok();
        let way = candidates().find(|rail| Some(devices[*rail]) == routed).or(first);
        return Ok(on(way.ok_or(no_device)?, ip));
    }
    if let Some(own) = devices.iter().position(|device| *device == ip) {
        return Ok(on(rail.filter(usable).unwrap_or(own), ip));
    }
    if let Some(neighbour) = candidates().find(|rail| same_block(devices[*rail], ip)) {
        return Ok(on(neighbour, ip));
    }
    let routed = host
        .route(None, destination)
        .map_err(|error| Errno(error.raw_os_error().unwrap_or(libc::ENETUNREACH)))?;
    if ip.is_loopback() || routed == ip || host.is_local(SocketAddr::new(ip, 0)) {
        // This very host.
        let on_loopback = candidates().find(|rail| devices[*rail].is_loopback() == ip.is_loopback());
        let rail = on_loopback.or(first).or(rail);
        if may_be_strangers(host, devices, ip) {
            return Ok(on(rail.filter(usable).ok_or(no_device)?, ip));
        }
        // No device there: it means the own one, whatever its family (::1 over an IPv4 device).
        let rail = rail.unwrap_or(0);
        let device = *devices.get(rail).ok_or(no_device)?;
        let local = source.filter(|source| !source.is_unspecified()).unwrap_or(routed);
        return Ok(Reached { rail, local, peer_device: device });
    }
    let way = candidates().find(|rail| devices[*rail] == routed).or_else(|| {
        candidates()
            .filter(|rail| !devices[*rail].is_loopback())
            .find(|rail| host.route(Some(devices[*rail]), destination).is_ok())
    });
    Ok(on(way.ok_or(no_device)?, ip))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 127/8, ::1 and 10.0.0.1 are local; 10.0.0.0/24 and 192.168.0.0/24 can be reached; others have devices at some.
    struct Example {
        others: Vec<IpAddr>,
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    impl Host for Example {
        fn route(&self, source: Option<IpAddr>, destination: SocketAddr) -> io::Result<IpAddr> {
            if let Some(source) = source {
                return Ok(source);
            }
            match destination.ip() {
                to if to.is_loopback() => Ok(match to {
                    IpAddr::V4(_) => ip("127.0.0.1"),
                    IpAddr::V6(_) => to,
                }),
                IpAddr::V4(to) if to.octets()[..3] == [10, 0, 0] => Ok(ip("10.0.0.1")),
                IpAddr::V4(to) if to.octets()[0] == 192 => Ok(ip("192.168.0.1")),
                _ => Err(io::Error::from_raw_os_error(libc::ENETUNREACH)),
            }
        }
        fn is_local(&self, address: SocketAddr) -> bool {
            address.ip().is_loopback() || address.ip() == ip("10.0.0.1")
        }
        fn has_device(&self, ip: IpAddr) -> bool {
            self.others.contains(&ip)
        }
    }

    fn host(others: &[&str]) -> Example {
        Example { others: others.iter().map(|text| ip(text)).collect() }
    }

    fn to(devices: &[&str], others: &[&str], destination: &str) -> Result<(usize, String, String), i32> {
        let devices: Vec<IpAddr> = devices.iter().map(|text| ip(text)).collect();
        reach(&host(others), &devices, None, None, SocketAddr::new(ip(destination), 7471))
            .map(|way| (way.rail, way.local.to_string(), way.peer_device.to_string()))
            .map_err(|error| error.0)
    }

    fn way(rail: usize, local: &str, peer: &str) -> Result<(usize, String, String), i32> {
        Ok((rail, local.to_owned(), peer.to_owned()))
    }

    #[test]
    fn a_neighbour_in_the_block_is_reached_from_the_device() {
        assert_eq!(to(&["127.0.1.1"], &[], "127.0.1.2"), way(0, "127.0.1.1", "127.0.1.2"));
        assert_eq!(to(&["127.0.1.1"], &[], "127.0.1.1"), way(0, "127.0.1.1", "127.0.1.1"));
        assert_eq!(to(&["127.0.1.1", "127.0.1.2"], &[], "127.0.1.2"), way(1, "127.0.1.2", "127.0.1.2"));
    }

    #[test]
    fn other_addresses_of_the_host_mean_the_own_device() {
        for (alias, from) in [("127.0.0.1", "127.0.0.1"), ("10.0.0.1", "10.0.0.1"), ("::1", "::1")] {
            assert_eq!(to(&["127.0.1.1"], &[], alias), way(0, from, "127.0.1.1"), "{alias}");
        }
        assert_eq!(to(&["127.0.1.1"], &[], "0.0.0.0"), way(0, "127.0.1.1", "127.0.1.1"));
    }

    #[test]
    fn an_address_of_the_host_with_a_device_is_that_device() {
        assert_eq!(to(&["127.0.1.1"], &["10.0.0.1"], "10.0.0.1"), way(0, "127.0.1.1", "10.0.0.1"));
        assert_eq!(to(&["127.0.0.5"], &["127.0.0.6"], "127.0.0.6"), way(0, "127.0.0.5", "127.0.0.6"));
        assert_eq!(to(&["127.0.0.5"], &[], "127.0.0.6"), way(0, "127.0.0.1", "127.0.0.5"));
        // Another fabric's.
        for strange in ["127.0.9.1", "127.0.0.1"] {
            assert_eq!(to(&["127.0.1.1"], &[strange], strange), way(0, "127.0.0.1", "127.0.1.1"));
        }
    }

    #[test]
    fn a_remote_address_needs_a_device_that_is_not_on_loopback() {
        assert_eq!(to(&["127.0.1.1"], &[], "10.0.0.7"), Err(libc::ENODEV));
        assert_eq!(to(&["10.0.0.1"], &[], "10.0.0.7"), way(0, "10.0.0.1", "10.0.0.7"));
        assert_eq!(to(&["127.0.1.1", "10.0.0.1"], &[], "192.168.0.9"), way(1, "10.0.0.1", "192.168.0.9"));
        assert_eq!(to(&["10.0.0.1"], &[], "8.8.8.8"), Err(libc::ENETUNREACH));
        assert_eq!(to(&[], &[], "127.0.0.1"), Err(libc::ENODEV));
    }

    #[test]
    fn a_group_is_reached_from_the_device_that_its_packets_leave_by() {
        assert_eq!(to(&["127.0.1.1"], &[], "239.1.1.1"), way(0, "127.0.1.1", "239.1.1.1"));
        let devices = [ip("127.0.1.1"), ip("127.0.1.2")];
        let group = SocketAddr::new(ip("239.1.1.1"), 0);
        let way = reach(&host(&[]), &devices, None, Some(1), group).expect("reached");
        assert_eq!((way.rail, way.local), (1, ip("127.0.1.2")));
        assert_eq!(local(&host(&[]), &devices, group), Err(Errno(libc::EADDRNOTAVAIL)));
    }

    #[test]
    fn what_is_bound_is_kept() {
        let devices = [ip("127.0.1.1"), ip("127.0.1.2")];
        let destination = SocketAddr::new(ip("127.0.1.1"), 1);
        let way = reach(&host(&[]), &devices, Some(ip("127.0.1.2")), Some(1), destination).expect("reached");
        assert_eq!(way, Reached { rail: 1, local: ip("127.0.1.2"), peer_device: ip("127.0.1.1") });
    }

    #[test]
    fn binding_tells_devices_aliases_and_strangers_apart() {
        let devices = [ip("127.0.1.1")];
        let bind = |text: &str| {
            local(&host(&["127.0.9.1", "10.0.0.1"]), &devices, SocketAddr::new(ip(text), 0))
                .map_err(|error| error.0)
        };
        assert_eq!(bind("0.0.0.0"), Ok(Local::Any));
        assert_eq!(bind("::"), Ok(Local::Any));
        assert_eq!(bind("127.0.1.1"), Ok(Local::Device(0)));
        assert_eq!(bind("127.0.0.1"), Ok(Local::Alias));
        assert_eq!(bind("127.0.1.2"), Err(libc::EADDRNOTAVAIL), "another machine's");
        assert_eq!(bind("127.0.9.1"), Ok(Local::Alias), "fabrics do not see each other");
        assert_eq!(bind("10.0.0.1"), Err(libc::ENODEV), "somebody else's device");
        assert_eq!(bind("10.0.0.9"), Err(libc::EADDRNOTAVAIL));
    }

    #[test]
    fn the_kernels_table_is_read() {
        let socket = UdpSocket::bind("127.7.7.7:4791").expect("nobody else has it");
        assert!(ThisHost.has_device(ip("127.7.7.7")));
        assert!(!ThisHost.has_device(ip("127.7.7.8")));
        drop(socket);
        assert!(!ThisHost.has_device(ip("127.7.7.7")));
        let table = "  sl  local_address\n 1: 00000000000000000000000001000000:12B7 x\n";
        assert_eq!(is_bound(table, ip("::1")), cfg!(target_endian = "little"));
    }

    #[test]
    fn addresses_survive_the_way_through_c() {
        for text in ["127.0.0.1:80", "[fe80::1%3]:4791", "[::]:0"] {
            let address: SocketAddr = text.parse().expect("an address");
            let there = socket_address(address);
            // SAFETY: it is a valid address.
            assert_eq!(unsafe { read((&raw const there).cast()) }, Ok(address));
        }
        let other = libc::sockaddr { sa_family: 27, sa_data: [0; 14] };
        // SAFETY: as above.
        assert_eq!(unsafe { read(&raw const other) }, Err(INVALID));
    }
}
