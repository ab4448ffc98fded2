//! Datagrams to groups.

use urxe::device::multicast::GroupError;
use urxe::ids::{Gid, QKey, Qpn};
use urxe::io::impair::Impairments;
use urxe::verbs::{AddressVector, QpType, SendFlags, SendOp, SendWr, UdDest, WcOpcode, limits};

use crate::harness::{End, EndInit, MS, Wiring, World, connect, counter, good, perfect, set_state, vector};

const GRH: usize = 40;
const SLOT: usize = 1024;
const QKEY: u32 = 0x1111;

fn group(last: u8) -> Gid {
    Gid::from_ip(std::net::IpAddr::from([239, 7, 7, last]))
}

fn datagram_end(world: &World, device: usize) -> End {
    let end = End::new(&world.devices[device], EndInit { kind: QpType::Ud, ..Default::default() });
    connect(&end.qp, (end.ip, &end.qp), &Wiring::default());
    for id in 0..4 {
        end.recv(id, &[end.sge(id as usize * SLOT, SLOT)]);
    }
    end
}

fn send(world: &World, end: &End, device: usize, av: &AddressVector, qpn: Qpn, qkey: u32) {
    let path = world.devices[device].resolve(av).unwrap();
    let ud = Some(UdDest { path, qpn, qkey: QKey(qkey) });
    end.buf.write(end.buf.len() - 8, b"to group");
    let sges = [end.sge(end.buf.len() - 8, 8)];
    let flags = SendFlags::default();
    end.qp.post_send([SendWr { id: 99, op: SendOp::SendImm(*b"imm."), flags, sges: &sges, ud }]).unwrap();
}

fn to(gid: Gid) -> AddressVector {
    AddressVector { dgid: gid, is_global: true, port: 1, ..AddressVector::default() }
}

/// Datagrams that have arrived, checked, with their receives.
#[track_caller]
fn arrived(end: &End, from: &End, gid: Gid) -> usize {
    let mut count = 0;
    for wc in end.poll() {
        if wc.opcode == WcOpcode::Send {
            continue;
        }
        let (id, _, len) = good(&wc);
        assert_eq!((len as usize, wc.grh, wc.immediate), (GRH + 8, true, Some(*b"imm.")));
        assert_eq!(wc.src_qpn, from.qp.number());
        let bytes = end.buf.read(id as usize * SLOT, GRH + 8);
        assert_eq!(&bytes[GRH..], b"to group");
        // An IPv4 header in the second half: from, to.
        let (std::net::IpAddr::V4(src), std::net::IpAddr::V4(dst)) = (from.ip, gid.to_ip()) else {
            unreachable!("the network is IPv4")
        };
        assert_eq!(bytes[32..36], src.octets());
        assert_eq!(bytes[36..40], dst.octets());
        count += 1;
    }
    count
}

#[test]
fn each_member_of_a_group_gets_one_copy_and_the_sender_too_unless_it_does_not_want_it() {
    for deaf in [false, true] {
        let mut world = World::new(1, perfect(), 3);
        let sender = datagram_end(&world, 0);
        let (same_device, other_device) = (datagram_end(&world, 0), datagram_end(&world, 1));
        let stranger = datagram_end(&world, 2);
        sender.qp.hear_itself(!deaf);
        for member in [&sender, &same_device, &other_device] {
            member.qp.attach(group(1)).unwrap();
        }
        stranger.qp.attach(group(2)).unwrap();
        send(&world, &sender, 0, &to(group(1)), Qpn::MULTICAST, QKEY);
        world.pass(MS);
        assert_eq!(arrived(&sender, &sender, group(1)), usize::from(!deaf), "itself, deaf: {deaf}");
        assert_eq!(arrived(&same_device, &sender, group(1)), 1);
        assert_eq!(arrived(&other_device, &sender, group(1)), 1);
        assert_eq!(arrived(&stranger, &sender, group(1)), 0, "it is in another group");
        // One that does not want to hear itself hears the others of its device.
        send(&world, &same_device, 0, &to(group(1)), Qpn::MULTICAST, QKEY);
        world.pass(MS);
        assert_eq!(arrived(&sender, &same_device, group(1)), 1);
        assert_eq!(arrived(&same_device, &same_device, group(1)), 1);
    }
}

#[test]
fn a_member_that_was_attached_twice_gets_one_copy_and_one_that_was_detached_none() {
    let mut world = World::new(1, perfect(), 2);
    let (sender, member) = (datagram_end(&world, 0), datagram_end(&world, 1));
    member.qp.attach(group(1)).unwrap();
    member.qp.attach(group(1)).unwrap();
    assert!(member.qp.is_attached());
    send(&world, &sender, 0, &to(group(1)), Qpn::MULTICAST, QKEY);
    world.pass(MS);
    assert_eq!(arrived(&member, &sender, group(1)), 1);
    member.qp.detach(group(1)).unwrap();
    assert!(!member.qp.is_attached());
    assert!(matches!(member.qp.detach(group(1)), Err(GroupError::NotAttached(_))));
    send(&world, &sender, 0, &to(group(1)), Qpn::MULTICAST, QKEY);
    world.pass(MS);
    assert_eq!(arrived(&member, &sender, group(1)), 0);
    // A destroyed member takes its place with it.
    let other = datagram_end(&world, 1);
    member.qp.attach(group(1)).unwrap();
    other.qp.attach(group(1)).unwrap();
    drop(member);
    send(&world, &sender, 0, &to(group(1)), Qpn::MULTICAST, QKEY);
    world.pass(MS);
    assert_eq!(arrived(&other, &sender, group(1)), 1);
    drop(other);
    let before = counter(&world.devices[1], "rx_datagrams");
    send(&world, &sender, 0, &to(group(1)), Qpn::MULTICAST, QKEY);
    world.pass(MS);
    assert_eq!(counter(&world.devices[1], "rx_datagrams"), before, "the device has left the group");
}

#[test]
fn a_wrong_key_or_state_keeps_a_datagram_from_one_member_alone() {
    let mut world = World::new(1, perfect(), 2);
    let sender = datagram_end(&world, 0);
    let (good_one, failed) = (datagram_end(&world, 1), datagram_end(&world, 1));
    let other_key = End::new(&world.devices[1], EndInit { kind: QpType::Ud, ..Default::default() });
    connect(&other_key.qp, (sender.ip, &sender.qp), &Wiring { qkey: 0x2222, ..Default::default() });
    other_key.recv(0, &[other_key.sge(0, SLOT)]);
    for member in [&other_key, &failed, &good_one] {
        member.qp.attach(group(1)).unwrap();
    }
    set_state(&failed.qp, urxe::verbs::QpState::Err);
    failed.poll();
    send(&world, &sender, 0, &to(group(1)), Qpn::MULTICAST, QKEY);
    world.pass(MS);
    assert_eq!(arrived(&good_one, &sender, group(1)), 1);
    assert_eq!(other_key.poll().len(), 0);
    assert_eq!(failed.poll().len(), 0);
}

#[test]
fn a_datagram_is_for_a_group_by_address_and_number_or_dropped() {
    let mut world = World::new(1, perfect(), 2);
    let (sender, member) = (datagram_end(&world, 0), datagram_end(&world, 1));
    member.qp.attach(group(1)).unwrap();
    send(&world, &sender, 0, &to(group(1)), member.qp.number(), QKEY);
    send(&world, &sender, 0, &vector(member.ip), Qpn::MULTICAST, QKEY);
    world.pass(MS);
    assert_eq!(member.poll().len(), 0);
    assert_eq!(counter(&world.devices[1], "dropped_multicast"), 2);
    // Between others that are for the queue pair alone, too.
    for (av, qpn) in [
        (vector(member.ip), member.qp.number()),
        (to(group(1)), member.qp.number()),
        (to(group(1)), Qpn::MULTICAST),
        (vector(member.ip), member.qp.number()),
    ] {
        send(&world, &sender, 0, &av, qpn, QKEY);
    }
    world.pass(MS);
    assert_eq!(member.poll().len(), 3);
    assert_eq!(counter(&world.devices[1], "dropped_multicast"), 3);
}

#[test]
fn an_ipv6_gid_is_a_group_on_an_ipv4_device_too() {
    let mut world = World::new(1, perfect(), 2);
    let (sender, member) = (datagram_end(&world, 0), datagram_end(&world, 1));
    let gid = Gid::from_ip("ff01::2:c985:0:0:0:1".parse().unwrap());
    let other = Gid::from_ip("ff01::2:c985:0:0:0:2".parse().unwrap());
    member.qp.attach(gid).unwrap();
    send(&world, &sender, 0, &to(gid), Qpn::MULTICAST, QKEY);
    send(&world, &sender, 0, &to(other), Qpn::MULTICAST, QKEY);
    world.pass(MS);
    assert_eq!(member.poll().len(), 1);
}

#[test]
fn what_is_no_group_and_too_many_of_them_are_refused() {
    let world = World::new(1, perfect(), 1);
    let end = datagram_end(&world, 0);
    let connected = End::new(&world.devices[0], EndInit::default());
    assert!(matches!(connected.qp.attach(group(1)), Err(GroupError::NotDatagram(QpType::Rc))));
    assert!(matches!(end.qp.attach(Gid::from_ip(end.ip)), Err(GroupError::NotMulticast(_))));
    assert!(matches!(end.qp.attach(Gid::default()), Err(GroupError::NotMulticast(_))));
    assert!(matches!(end.qp.detach(group(1)), Err(GroupError::NotAttached(_))));
    for last in 0..limits::MAX_GROUPS {
        end.qp.attach(group(last as u8)).unwrap();
    }
    assert!(matches!(end.qp.attach(group(200)), Err(GroupError::TooManyGroups)));
    let others: Vec<End> = (1..limits::MAX_GROUP_QPS)
        .map(|_| {
            let other = End::new(&world.devices[0], EndInit { kind: QpType::Ud, ..Default::default() });
            other.qp.attach(group(0)).unwrap();
            other
        })
        .collect();
    let last = datagram_end(&world, 0);
    assert!(matches!(last.qp.attach(group(0)), Err(GroupError::TooManyMembers)));
    drop(others);
    last.qp.attach(group(0)).unwrap();
    end.qp.detach(group(1)).unwrap();
    last.qp.attach(group(200)).unwrap();
}

#[test]
fn members_on_a_bad_network_get_whole_datagrams_of_their_group_alone() {
    let bad = Impairments { loss: 0.2, duplicate: 0.1, reorder: 0.1, corrupt: 0.05, ..Default::default() };
    let mut world = World::new(31, bad, 4);
    let sender = datagram_end(&world, 0);
    let members: Vec<End> = (1..4).map(|device| datagram_end(&world, device)).collect();
    members.iter().for_each(|member| member.qp.attach(group(1)).unwrap());
    let mut counts = [0; 3];
    for _ in 0..200 {
        send(&world, &sender, 0, &to(group(1)), Qpn::MULTICAST, QKEY);
        send(&world, &sender, 0, &to(group(2)), Qpn::MULTICAST, QKEY);
        world.pass(MS);
        sender.poll();
        for (member, count) in members.iter().zip(&mut counts) {
            for wc in member.poll() {
                let (id, ..) = good(&wc);
                assert_eq!(member.buf.read(id as usize * SLOT + GRH, 8), b"to group");
                member.recv(id, &[member.sge(id as usize * SLOT, SLOT)]);
                *count += 1;
            }
        }
    }
    // 200 * 0.8 * 0.95 * 1.1
    assert!(counts.iter().all(|count| (130..205).contains(count)), "{counts:?}");
    assert!(counts[0] != counts[1] || counts[1] != counts[2], "each has losses of its own: {counts:?}");
}
