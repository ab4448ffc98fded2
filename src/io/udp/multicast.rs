//! Groups of IP multicast.
//!
//! Each group that is joined has a socket of its own, bound to the group's address: the kernel gives a copy of each
//! packet to every such socket of the host, so that several processes and devices each hear it. The membership is on
//! the device's interface, and the socket hears no other's.
//!
//! All fabrics of a host share the loopback interface, where a group is one for all. A fabric's devices have the
//! addresses of one 127.x.y.0/24; a filter drops what comes from others before it takes room in the queue.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use parking_lot::RwLock;

use super::{UdpLink, set_buffer};
use crate::io::rx::{BUFFER, RxBatch};
use crate::io::{route, sys};

/// Receives after which the groups come first, so that a stream to the device itself does not keep them waiting.
const TURN: u32 = 16;
/// Sockets that are looked at in one receive.
const READY: usize = 16;

/// The groups that a link has joined.
#[derive(Debug, Default)]
pub(super) struct Groups {
    any: AtomicBool,
    turn: AtomicU32,
    /// Readable when a socket of a group is. Made with the first group, and kept.
    epoll: OnceLock<OwnedFd>,
    members: RwLock<Vec<Membership>>,
}

#[derive(Debug)]
struct Membership {
    group: IpAddr,
    socket: OwnedFd,
    overflow_seen: AtomicU32,
}

/// Lets a device's socket send to groups: by the device's interface, and to members on this host too. A system that
/// does not allow it says so when something is sent.
pub(super) fn prepare(socket: &OwnedFd, local: IpAddr, interface: &route::Interface) {
    let _ = match local {
        IpAddr::V4(local) => sys::send_groups_from(socket, local),
        IpAddr::V6(_) => sys::interface_index(&interface.name).and_then(|index| {
            sys::set_int(socket, libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_IF, index.cast_signed())
        }),
    };
}

impl Groups {
    /// Whether there are groups.
    pub(super) fn any(&self) -> bool {
        self.any.load(Relaxed)
    }

    /// Whether there are groups and this receive is one where they come first.
    pub(super) fn have_a_turn(&self) -> bool {
        self.any() && self.turn.fetch_add(1, Relaxed).is_multiple_of(TURN)
    }

    /// Readable when something for a group has arrived.
    pub(super) fn descriptor(&self) -> Option<RawFd> {
        self.epoll.get().map(AsRawFd::as_raw_fd)
    }

    pub(super) fn leave(&self, group: IpAddr) {
        let mut members = self.members.write();
        // Its last descriptor closed, a socket leaves the group.
        members.retain(|member| {
            let stays = member.group != group;
            if !stays && let Some(epoll) = self.epoll.get() {
                sys::epoll_remove(epoll, &member.socket);
            }
            stays
        });
        self.any.store(!members.is_empty(), Relaxed);
    }
}

impl UdpLink {
    pub(super) fn join_group(&self, group: IpAddr) -> io::Result<()> {
        if !group.is_multicast() || group.is_ipv4() != self.local.is_ipv4() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut members = self.groups.members.write();
        if members.iter().any(|member| member.group == group) {
            return Ok(());
        }
        let epoll = match self.groups.epoll.get() {
            Some(epoll) => epoll,
            None => {
                let epoll = sys::epoll()?;
                if let Some(raw) = &self.raw {
                    sys::epoll_add(&epoll, raw.socket())?;
                }
                self.groups.epoll.get_or_init(|| epoll)
            }
        };
        let socket = self.group_socket(group)?;
        sys::epoll_add(epoll, &socket)?;
        members.push(Membership { group, socket, overflow_seen: AtomicU32::new(0) });
        self.groups.any.store(true, Relaxed);
        Ok(())
    }

    fn group_socket(&self, group: IpAddr) -> io::Result<OwnedFd> {
        let family = if group.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        let socket = sys::socket(family, libc::SOCK_DGRAM, libc::IPPROTO_UDP)?;
        let set = |level, name, value| sys::set_int(&socket, level, name, value);
        // Every process and device has its own, whichever user it belongs to.
        set(libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)?;
        // As for the device's socket: a kernel without it only counts less.
        let _ = set(libc::SOL_SOCKET, libc::SO_RXQ_OVFL, 1);
        set_buffer(&socket, self.receive_buffer / 2, libc::SO_RCVBUFFORCE, libc::SO_RCVBUF);
        let port = self.local.port();
        match (group, self.local.ip()) {
            (IpAddr::V4(group), IpAddr::V4(local)) => {
                if local.is_loopback() {
                    sys::attach_filter(&socket, &same_fabric(local))?;
                }
                set(libc::IPPROTO_IP, libc::IP_RECVTOS, 1)?;
                set(libc::IPPROTO_IP, libc::IP_RECVTTL, 1)?;
                set(libc::IPPROTO_IP, libc::IP_MULTICAST_ALL, 0)?;
                sys::bind(&socket, &SocketAddr::from((group, port)))?;
                sys::join_v4(&socket, group, local)?;
            }
            (IpAddr::V6(group), _) => {
                let index = sys::interface_index(&self.interface.name)?;
                set(libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 1)?;
                set(libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, 1)?;
                set(libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT, 1)?;
                set(libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_ALL, 0)?;
                let name = std::net::SocketAddrV6::new(group, port, 0, index);
                sys::bind(&socket, &name.into())?;
                sys::join_v6(&socket, group, index)?;
            }
            (IpAddr::V4(_), IpAddr::V6(_)) => return Err(io::ErrorKind::InvalidInput.into()),
        }
        Ok(socket)
    }

    /// Takes what has arrived for groups. Returns the number of datagrams that are now in `rx`.
    pub(super) fn receive_groups(&self, rx: &mut RxBatch) -> io::Result<usize> {
        let Some(epoll) = self.groups.epoll.get() else { return Ok(rx.len()) };
        let mut ready = [0; READY];
        let count = sys::epoll_ready(epoll, &mut ready)?;
        let members = self.groups.members.read();
        for fd in &ready[..count] {
            let Some(member) = members.iter().find(|member| member.socket.as_raw_fd() == *fd) else {
                continue;
            };
            while !rx.is_full() {
                let (free, start) = rx.free();
                match sys::receive(&member.socket, &mut free[..BUFFER]) {
                    Ok(incoming) => self.accept(rx, start, incoming, member.group, &member.overflow_seen),
                    Err(libc::EINTR) => {}
                    Err(libc::EAGAIN) => break,
                    Err(errno) => return Err(io::Error::from_raw_os_error(errno)),
                }
            }
        }
        Ok(rx.len())
    }
}

/// Takes packets from the /24 of an address.
fn same_fabric(local: Ipv4Addr) -> [libc::sock_filter; 5] {
    /// The IPv4 header, wherever the filter's own data begins, and the source address in it.
    const SOURCE: u32 = (libc::SKF_NET_OFF + 12).cast_unsigned();
    const MASK: u32 = 0xffff_ff00;
    let step = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    [
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, SOURCE),
        step(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, 0, 0, MASK),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, local.to_bits() & MASK),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, u32::MAX),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, 0),
    ]
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::io::udp::Config;
    use crate::io::wait::{Waker, wait};
    use crate::io::{Link, Meta, Runs};
    use crate::wire::batch::{IpId, Path, Piece, Run};

    const GROUP: IpAddr = IpAddr::V4(Ipv4Addr::new(239, 66, 3, 9));

    /// Links at addresses of 127.0.0.0/16 with one port.
    fn open(hosts: &[[u8; 2]]) -> Vec<UdpLink> {
        let mut port = 0;
        let mut link = |host: &[u8; 2]| {
            let ip = IpAddr::from([127, 0, host[0], host[1]]);
            let config = Config { addr: SocketAddr::new(ip, port), ..Config::new(ip) };
            let link = UdpLink::open(&config).unwrap();
            port = link.local().port();
            link
        };
        hosts.iter().map(&mut link).collect()
    }

    fn send(from: &UdpLink, to: IpAddr, hop_limit: u8, bytes: &[u8], segment: usize) {
        let dst = SocketAddr::new(to, from.local().port());
        let path = Arc::new(Path::new(from.local(), dst, 0, 0, IpId::Zero).with_hop_limit(hop_limit));
        let pieces = [Piece { addr: bytes.as_ptr() as usize, len: bytes.len() }];
        let packets = bytes.len().div_ceil(segment);
        let run = Run { path, pieces: 0..1, segment, packets, bytes: bytes.len() };
        let sent = from.send_runs(Runs { runs: &[run], pieces: &pieces });
        assert_eq!(sent.sent_packets, packets, "{sent:?}");
    }

    /// What arrives: at least `count` packets, or what there is after a while.
    fn collect(link: &UdpLink, count: usize) -> Vec<(Meta, Vec<u8>)> {
        let (mut rx, waker) = (RxBatch::new(1), Waker::new().unwrap());
        let mut got = Vec::new();
        while got.len() < count {
            if link.recv(&mut rx).unwrap() == 0 {
                if !wait(link, &waker, Some(500_000_000)).unwrap().link {
                    break;
                }
                continue;
            }
            got.extend(rx.iter().flat_map(|d| d.packets().map(move |p| (d.meta, p.to_vec()))));
        }
        got
    }

    #[test]
    fn every_member_of_the_fabric_gets_a_copy_and_a_woken_wait() {
        let links = open(&[[201, 1], [201, 2], [201, 3], [202, 1]]);
        let [sender, member, outsider, stranger] = &links[..] else { unreachable!() };
        for link in [sender, member, stranger] {
            link.join(GROUP).unwrap();
            link.join(GROUP).unwrap();
        }
        let bytes: Vec<u8> = (0..250).collect();
        send(sender, GROUP, 7, &bytes, 100);
        for link in [sender, member] {
            let got = collect(link, 3);
            assert_eq!(got.iter().map(|(_, bytes)| bytes.len()).collect::<Vec<_>>(), [100, 100, 50]);
            assert!(got.iter().flat_map(|(_, bytes)| bytes).eq(&bytes));
            for (meta, _) in got {
                assert_eq!((meta.src, meta.dst, meta.hop_limit), (sender.local(), GROUP, 7));
            }
        }
        // What comes next is the first that it hears.
        for link in [outsider, stranger] {
            send(link, link.local().ip(), 0, &bytes[..8], 8);
            let got = collect(link, 1);
            assert_eq!((got[0].0.dst, got[0].1.len()), (link.local().ip(), 8), "{}", link.local());
        }
        member.leave(GROUP);
        send(sender, GROUP, 1, &bytes, 250);
        send(sender, member.local().ip(), 0, &bytes[..8], 8);
        assert_eq!(collect(sender, 1).len(), 1);
        let got = collect(member, 1);
        assert_eq!((got[0].0.dst, got[0].1.len()), (member.local().ip(), 8));
        member.join(GROUP).unwrap();
        send(sender, GROUP, 1, &bytes, 250);
        assert_eq!(collect(member, 1)[0].0.dst, GROUP);
    }

    #[test]
    fn a_stream_to_the_device_does_not_keep_a_group_waiting() {
        let links = open(&[[201, 4]]);
        let link = &links[0];
        link.join(GROUP).unwrap();
        for _ in 0..4 * TURN {
            send(link, link.local().ip(), 0, &[1; 8], 8);
        }
        send(link, GROUP, 1, &[2; 8], 8);
        let place = collect(link, 4 * TURN as usize + 1).iter().position(|(meta, _)| meta.dst == GROUP);
        assert!(place.is_some_and(|place| place <= TURN as usize), "{place:?}");
    }

    #[test]
    fn what_is_no_group_of_the_family_is_refused() {
        let links = open(&[[201, 5]]);
        for wrong in ["127.0.0.9", "10.0.0.1", "ff0e::1", "255.255.255.255"] {
            let error = links[0].join(wrong.parse().unwrap()).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{wrong}");
        }
        links[0].leave(GROUP);
    }
}
