use std::net::IpAddr;
use std::sync::Arc;

use super::*;
use crate::io::udp::{Receive, UdpLink};
use crate::io::wait::{Ready, Waker, wait};
use crate::io::{Link, Runs, RxBatch};
use crate::wire::batch::{IpId, Path, Piece, Run};

fn config(ip: &str) -> Config {
    let ip: IpAddr = ip.parse().unwrap();
    Config { addr: SocketAddr::new(ip, 0), receive_buffer: 1 << 20, ..Config::new(ip) }
}

/// A group and its members 0 to `members - 1`.
fn group(ip: &str, members: u8) -> (Group, Vec<UdpLink>) {
    let mut group = Group::open(&config(ip)).unwrap();
    let links = (0..members).map(|slot| member(&mut group, slot)).collect();
    (group, links)
}
fn member(group: &mut Group, slot: u8) -> UdpLink {
    let socket = group.socket(slot).unwrap();
    UdpLink::from_member(socket, slot, &config("127.0.0.1")).unwrap()
}

/// Packets of 20 bytes to a slot, in one send: it begins as a BTH does.
fn send(from: &UdpLink, to: SocketAddr, slot: u8, packets: usize) {
    let bytes: Vec<u8> = (0..packets).flat_map(|i| packet(slot, i)).collect();
    send_bytes(from, to, &bytes, 20);
}
fn packet(slot: u8, number: usize) -> [u8; 20] {
    let mut packet = [0; 20];
    packet[5] = slot;
    packet[19] = number as u8;
    packet
}
fn send_bytes(from: &UdpLink, to: SocketAddr, bytes: &[u8], segment: usize) {
    let path = Arc::new(Path::new(from.local(), to, 0, 0, IpId::Zero));
    let packets = bytes.len().div_ceil(segment);
    let run = Run { path, pieces: 0..1, segment, packets, bytes: bytes.len() };
    let piece = Piece { addr: bytes.as_ptr() as usize, len: bytes.len() };
    assert_eq!(from.send_runs(Runs { runs: &[run], pieces: &[piece] }).sent_packets, packets);
}

/// Everything that waits; over loopback a packet is there when the send returns.
fn take(link: &UdpLink) -> Vec<Vec<u8>> {
    let mut rx = RxBatch::new(8);
    let mut got = Vec::new();
    while link.recv(&mut rx).unwrap() > 0 {
        got.extend(rx.iter().flat_map(|d| d.packets().map(<[u8]>::to_vec).collect::<Vec<_>>()));
    }
    got
}

/// Each member gets its packets and nobody else's.
fn check_steering(sender: &UdpLink, to: SocketAddr, members: &[(u8, &UdpLink)]) {
    for packets in [1, 64] {
        for &(slot, _) in members {
            send(sender, to, slot, packets);
        }
        for (slot, link) in members {
            let expected: Vec<[u8; 20]> = (0..packets).map(|i| packet(*slot, i)).collect();
            assert_eq!(take(link), expected, "slot {slot}");
        }
    }
}
fn numbered(links: &[UdpLink]) -> Vec<(u8, &UdpLink)> {
    links.iter().enumerate().map(|(slot, link)| (slot as u8, link)).collect()
}

#[test]
fn each_member_gets_the_packets_of_its_slot() {
    for ip in ["127.0.0.1", "::1"] {
        let sender = UdpLink::open(&config(ip)).unwrap();
        let (group, links) = group(ip, 9);
        check_steering(&sender, group.local(), &numbered(&links));
        // A member as the sender, and to itself.
        check_steering(&links[3], group.local(), &numbered(&links));
    }
}

#[test]
fn all_slots_exist_and_a_slot_more_does_not() {
    let sender = UdpLink::open(&config("127.0.0.1")).unwrap();
    let (mut group, links) = group("127.0.0.1", 255);
    check_steering(&sender, group.local(), &numbered(&links));
    assert_eq!(group.socket(255).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    assert_eq!(group.len(), SLOTS);
}

#[test]
fn what_no_member_has_goes_to_slot_0() {
    let sender = UdpLink::open(&config("127.0.0.1")).unwrap();
    let (group, links) = group("127.0.0.1", 3);
    for slot in [3, 4, 200, 254, 255] {
        for _ in 0..8 {
            send(&sender, group.local(), slot, 1);
        }
        assert_eq!(take(&links[0]).len(), 8, "slot {slot}");
    }
    for len in 1..=5 {
        send_bytes(&sender, group.local(), &[1; 5][..len], len);
        assert_eq!(take(&links[0]), [vec![1; len]]);
    }
    assert!(take(&links[1]).is_empty() && take(&links[2]).is_empty());
}

#[test]
fn the_end_of_the_owner_and_of_members_changes_nothing() {
    let sender = UdpLink::open(&config("127.0.0.1")).unwrap();
    let (owned, mut links) = group("127.0.0.1", 8);
    let to = owned.local();
    let anchor = owned.anchor().unwrap();
    drop(owned);
    check_steering(&sender, to, &numbered(&links));
    // The daemon's own socket, the last, and some in between.
    for slot in [7, 5, 2, 0] {
        drop(links.remove(slot));
    }
    let rest = [1, 3, 4, 6];
    let members: Vec<_> = rest.into_iter().zip(&links).collect();
    check_steering(&sender, to, &members);

    let mut group = Group::take_over(anchor, &Config { addr: to, ..config("127.0.0.1") }).unwrap();
    assert_eq!((group.local(), group.len()), (to, 8));
    let first = member(&mut group, 0);
    let new = member(&mut group, 9);
    // What came while nobody read it is still there.
    assert_eq!(take(&first).len(), 0);
    let mut members: Vec<_> = rest.into_iter().zip(&links).collect();
    members.extend([(0, &first), (9, &new)]);
    check_steering(&sender, to, &members);

    // And once more, by an anchor that has grown.
    let anchor = group.anchor().unwrap();
    drop(group);
    let group = Group::take_over(anchor, &Config { addr: to, ..config("127.0.0.1") }).unwrap();
    assert_eq!(group.len(), 10);
    check_steering(&sender, to, &members);
}

#[test]
fn a_group_ends_with_its_last_anchor() {
    let (owned, links) = group("127.0.0.1", 4);
    let to = Config { addr: owned.local(), ..config("127.0.0.1") };
    let anchor = owned.anchor().unwrap();
    drop((owned, links));
    assert!(matches!(Group::open(&to), Err(OpenError::AddressInUse { .. })));
    drop(anchor);
    // The kernel closes sockets in a queue a little later.
    let again = (0..100).find_map(|_| {
        std::thread::yield_now();
        Group::open(&to).ok()
    });
    assert!(again.is_some());
}

#[test]
fn an_address_has_one_owner() {
    let (mut owned, _links) = group("127.0.0.1", 2);
    let same = Config { addr: owned.local(), ..config("127.0.0.1") };
    let is_taken = |e: &OpenError| matches!(e, OpenError::AddressInUse { addr } if *addr == same.addr);
    assert!(is_taken(&Group::open(&same).unwrap_err()));
    assert!(is_taken(&UdpLink::open(&same).unwrap_err()));
    assert!(owned.socket(2).is_ok());
    let single = UdpLink::open(&config("127.0.0.1")).unwrap();
    let same = Config { addr: single.local(), ..config("127.0.0.1") };
    assert!(matches!(Group::open(&same), Err(OpenError::AddressInUse { addr }) if addr == same.addr));
    assert!(matches!(Group::open(&config("198.51.100.7")), Err(OpenError::NotLocal { .. })));
}

#[test]
fn a_member_that_is_not_in_use_takes_nothing() {
    let sender = UdpLink::open(&config("127.0.0.1")).unwrap();
    let (mut group, links) = group("127.0.0.1", 2);
    let to = group.local();
    let socket = group.socket(2).unwrap();
    send(&sender, to, 2, 64);
    assert_eq!(sys::receive_memory(&socket).unwrap().0, 0);
    let second = UdpLink::from_member(socket, 2, &config("127.0.0.1")).unwrap();
    assert!(take(&second).is_empty());
    // Drops from before it was used are none of its overflows.
    send(&sender, to, 2, 1);
    assert_eq!((take(&second).len(), second.counters().rx_overflow.value()), (1, 0));

    send(&sender, to, 2, 64);
    send(&sender, to, 2, 1);
    send(&sender, to, 1, 1);
    drop(second);
    assert_eq!(group.drain(2).unwrap(), 2);
    send(&sender, to, 2, 3);
    assert_eq!(group.drain(2).unwrap(), 0);
    let again = member(&mut group, 2);
    assert!(take(&again).is_empty());
    send(&sender, to, 2, 3);
    assert_eq!((take(&again).len(), take(&links[1]).len()), (3, 1));
    // A slot that never had a socket has nothing to drain.
    assert_eq!(group.drain(77).unwrap(), 0);
}

#[test]
fn a_member_wakes_its_own_waiter() {
    let (group, links) = group("127.0.0.1", 3);
    let waker = Waker::new().unwrap();
    send(&links[0], group.local(), 2, 1);
    assert_eq!(wait(&links[2], &waker, None).unwrap(), Ready { link: true, woken: false });
    assert_eq!(wait(&links[1], &waker, Some(0)).unwrap(), Ready::default());
}

#[test]
fn raw_members_take_only_their_own() {
    let sender = UdpLink::open(&config("127.0.0.1")).unwrap();
    let mut group = Group::open(&config("127.0.0.1")).unwrap();
    let raw = Config { receive: Receive::Raw, gso: true, ..config("127.0.0.1") };
    let mut links = Vec::new();
    for slot in 0..4 {
        match UdpLink::from_member(group.socket(slot).unwrap(), slot, &raw) {
            Ok(link) => links.push(link),
            // Not for everybody.
            Err(OpenError::PermissionDenied { .. }) => return,
            Err(other) => panic!("{other}"),
        }
    }
    assert!(links.iter().all(UdpLink::is_raw));
    for (slot, _) in numbered(&links) {
        send(&sender, group.local(), slot, 1);
    }
    for (slot, link) in numbered(&links) {
        assert_eq!(take(link), [packet(slot, 0)], "slot {slot}");
    }
    // Back to the plain socket: the filter of before does not stay.
    drop(links.pop());
    let plain = member(&mut group, 3);
    send(&sender, group.local(), 3, 1);
    assert_eq!((take(&plain), take(&links[1]).len()), (vec![packet(3, 0).to_vec()], 0));
}

#[test]
fn raw_filters_without_privilege_know_the_slot_too() {
    // What `raw_members_take_only_their_own` uses where eBPF is not allowed.
    let Ok(socket) = sys::socket(libc::AF_INET, libc::SOCK_RAW, libc::IPPROTO_UDP) else { return };
    let mut group = Group::open(&config("127.0.0.1")).unwrap();
    let port = u32::from(group.local().port());
    sys::attach_filter(&socket, &raw::single_filter(port, Some(2))).unwrap();
    sys::bind(&socket, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let sender = member(&mut group, 1);
    for slot in 0..4 {
        send(&sender, group.local(), slot, 1);
    }
    let mut buffer = [0; 100];
    let got = sys::receive(&socket, &mut buffer).unwrap();
    assert_eq!((got.len, buffer[20 + 8 + 5]), (20 + 8 + 20, 2));
    assert_eq!(sys::receive(&socket, &mut buffer).err(), Some(libc::EAGAIN));
}

#[test]
fn what_is_no_anchor_is_refused() {
    let take = |anchor: OwnedFd, addr: SocketAddr| {
        let error = Group::take_over(anchor, &Config { addr, ..config("127.0.0.1") }).unwrap_err();
        assert!(matches!(error, OpenError::NotTheGroup { .. }), "{error:?}");
        error.to_string()
    };
    let (mut real, _links) = group("127.0.0.1", 3);
    let addr = real.local();
    let pair = |messages: &[(u8, &[&OwnedFd])]| {
        let (writer, reader) = sys::unix_pair().unwrap();
        for (byte, fds) in messages {
            sys::send_fds(&writer, *byte, fds).unwrap();
        }
        reader
    };
    let (zero, one) = (real.socket(0).unwrap(), real.socket(1).unwrap());
    let writer = real.writer.try_clone().unwrap();
    let (_, other_end) = sys::unix_pair().unwrap();
    let alone = UdpLink::open(&config("127.0.0.1")).unwrap();
    let foreign = Group::open(&config("127.0.0.1")).unwrap();

    assert!(take(zero.try_clone().unwrap(), addr).contains("no Unix stream socket"));
    assert!(take(pair(&[]), addr).contains("it is empty"));
    assert!(take(pair(&[(0, &[])]), addr).contains("message 0"));
    assert!(take(pair(&[(0, &[&zero])]), addr).contains("message 0"));
    assert!(take(pair(&[(1, &[&zero, &writer])]), addr).contains("message 0"));
    assert!(take(pair(&[(0, &[&zero, &one])]), addr).contains("not to be added to"));
    assert!(take(pair(&[(0, &[&writer, &writer])]), addr).contains("no shared UDP socket"));
    assert!(take(pair(&[(0, &[&alone.socket, &writer])]), addr).contains("no shared UDP socket"));
    assert!(take(pair(&[(0, &[&foreign.sockets[0], &writer])]), addr).contains("has the address"));
    assert!(take(pair(&[(0, &[&zero, &writer]), (1, &[&zero])]), addr).contains("there twice"));
    assert!(take(pair(&[(0, &[&zero, &writer]), (2, &[&one])]), addr).contains("message 1"));
    let elsewhere = SocketAddr::from(([127, 0, 0, 2], addr.port()));
    assert!(take(real.anchor().unwrap(), elsewhere).contains("has the address"));

    // An anchor that is not the end of its writer is found out before a socket is given to anybody.
    let fake = pair(&[(0, &[&zero, &other_end]), (1, &[&one])]);
    let mut fake = Group::take_over(fake, &Config { addr, ..config("127.0.0.1") }).unwrap();
    assert!(fake.socket(2).is_err());
    drop(fake);
    // Nothing of this has hurt the real one.
    let sender = UdpLink::open(&config("127.0.0.1")).unwrap();
    let links: Vec<_> = (0..3).map(|slot| member(&mut real, slot)).collect();
    check_steering(&sender, addr, &numbered(&links));
}
