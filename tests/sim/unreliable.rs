//! UC and UD on a network that loses, repeats and reorders.

use std::collections::HashSet;

use urxe::ids::{Mtu, QKey};
use urxe::io::impair::Impairments;
use urxe::time::Latency;
use urxe::verbs::{QpType, SendFlags, SendOp, SendWr, UdDest, WcOpcode};

use crate::harness::{End, EndInit, MS, Rng, SECOND, US, Wiring, World, good, pair, seeds, vector};

const SLOT: usize = 4096;
const MESSAGES: u64 = 400;

/// What message `i` is: its length and bytes follow from its number, which is in the first bytes.
fn message(i: u64, max: usize) -> Vec<u8> {
    let mut rng = Rng(i);
    let len = 8 + rng.below(max as u64 - 8) as usize;
    let mut bytes = rng.bytes(len);
    bytes[..8].copy_from_slice(&i.to_be_bytes());
    bytes
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_be_bytes(bytes[..8].try_into().unwrap())
}

/// Sends messages one after the other and returns those that arrived, in order, each checked.
fn send_all(world: &mut World, a: &End, b: &End, grh: usize, max: usize) -> Vec<u64> {
    let path = world.devices[0].resolve(&vector(b.ip)).unwrap();
    let mut arrived = Vec::new();
    let mut next_slot = 0;
    let mut slot_of = std::collections::VecDeque::new();
    let take = |slot_of: &mut std::collections::VecDeque<usize>, arrived: &mut Vec<u64>| {
        for wc in b.poll() {
            let (id, opcode, len) = good(&wc);
            assert_eq!(opcode, WcOpcode::Recv);
            let slot = slot_of.pop_front().unwrap();
            assert_eq!(id, slot as u64, "receives complete in order");
            let bytes = b.buf.read(slot * SLOT + grh, len as usize - grh);
            let i = number(&bytes);
            assert!(bytes == message(i, max), "message {i} is not what was sent");
            arrived.push(i);
        }
    };
    for i in 0..MESSAGES {
        while slot_of.len() < 4 {
            let slot = next_slot % 16;
            next_slot += 1;
            b.recv(slot as u64, &[b.sge(slot * SLOT, 100), b.sge(slot * SLOT + 100, SLOT - 100)]);
            slot_of.push_back(slot);
        }
        let bytes = message(i, max);
        a.buf.write((i as usize % 16) * SLOT, &bytes);
        let sges = [a.sge((i as usize % 16) * SLOT, bytes.len())];
        let ud = (a.qp.kind() == QpType::Ud).then(|| UdDest {
            path: path.clone(),
            qpn: b.qp.number(),
            qkey: QKey(0x1111),
        });
        let wr = SendWr { id: i, op: SendOp::Send, flags: SendFlags::default(), sges: &sges, ud };
        a.qp.post_send([wr]).unwrap();
        world.pass(30 * US);
        let sent = a.poll();
        assert_eq!(sent.iter().map(|wc| good(wc).0).collect::<Vec<_>>(), [i], "done when it has left");
        take(&mut slot_of, &mut arrived);
    }
    world.quiesce(SECOND);
    take(&mut slot_of, &mut arrived);
    arrived
}

#[test]
fn unreliable_connected_messages_arrive_whole_and_in_order_or_not_at_all() {
    for seed in seeds(&[21]) {
        eprintln!("seed {seed}");
        let lossy = Impairments { loss: 0.1, ..Default::default() };
        let mut world = World::new(seed, lossy, 2);
        let init = EndInit { kind: QpType::Uc, ..Default::default() };
        let (a, b) = pair(&world, &init, &Wiring { mtu: Mtu::B256, ..Default::default() });
        let arrived = send_all(&mut world, &a, &b, 0, 2000);
        assert!(arrived.is_sorted_by(|x, y| x < y), "{arrived:?}");
        // Four packets on average: about two thirds arrive.
        assert!((150..380).contains(&arrived.len()), "{} of {MESSAGES}", arrived.len());
    }
}

#[test]
fn unreliable_connected_messages_are_never_mixed_up_by_repeated_and_late_packets() {
    for seed in seeds(&[22]) {
        eprintln!("seed {seed}");
        let bad = Impairments {
            loss: 0.05,
            duplicate: 0.1,
            reorder: 0.1,
            corrupt: 0.02,
            delay: Latency::Uniform(US, 10 * US),
            ..Default::default()
        };
        let mut world = World::new(seed, bad, 2);
        let init = EndInit { kind: QpType::Uc, ..Default::default() };
        let (a, b) = pair(&world, &init, &Wiring { mtu: Mtu::B256, ..Default::default() });
        let arrived = send_all(&mut world, &a, &b, 0, 2000);
        assert!(arrived.len() > 50, "{} of {MESSAGES}", arrived.len());
    }
}

#[test]
fn datagrams_arrive_whole_or_not_at_all() {
    for seed in seeds(&[23]) {
        eprintln!("seed {seed}");
        let bad = Impairments {
            loss: 0.1,
            duplicate: 0.1,
            reorder: 0.1,
            corrupt: 0.05,
            delay: Latency::Uniform(US, 10 * US),
            ..Default::default()
        };
        let mut world = World::new(seed, bad, 2);
        let init = EndInit { kind: QpType::Ud, ..Default::default() };
        let (a, b) = pair(&world, &init, &Wiring::default());
        let arrived = send_all(&mut world, &a, &b, 40, 4000);
        let different: HashSet<u64> = arrived.iter().copied().collect();
        assert!((300..400).contains(&different.len()), "{} of {MESSAGES}", different.len());
        assert!(arrived.len() > different.len(), "the network repeats some, and a datagram has no memory");
    }
}

/// Six times what the receiver's socket takes, with receives for four messages at a time.
#[test]
fn a_receiver_that_sleeps_and_posts_few_receives_loses_nothing() {
    const LEN: usize = 100_000;
    const COUNT: u64 = 240;
    for kind in [QpType::Uc, QpType::Ud] {
        let mut world = World::new(1, Impairments::default(), 2);
        let init = EndInit { kind, bytes: 4 * LEN, ..Default::default() };
        let (a, b) = pair(&world, &init, &Wiring { mtu: Mtu::B4096, ..Default::default() });
        let len = if kind == QpType::Uc { LEN } else { 4000 };
        let path = world.devices[0].resolve(&vector(b.ip)).unwrap();
        let ud = (kind == QpType::Ud).then(|| UdDest { path, qpn: b.qp.number(), qkey: QKey(0x1111) });
        let sges = [a.sge(0, len)];
        let wr =
            |id| SendWr { id, op: SendOp::Send, flags: SendFlags::default(), sges: &sges, ud: ud.clone() };
        a.qp.post_send((0..COUNT).map(wr)).unwrap();
        let receive = |id: u64| b.recv(id, &[b.sge(id as usize % 4 * LEN, LEN)]);
        (0..4).for_each(receive);
        let mut arrived = 0;
        for _ in 0..2000 {
            // A time slice of 20 ms without the receiver.
            for _ in 0..20 {
                world.devices[0].run();
                world.advance_to(world.now().plus(MS));
            }
            world.devices[1].run();
            for wc in b.poll() {
                assert_eq!(good(&wc).0, arrived, "in order, and none is missing");
                receive(arrived + 4);
                arrived += 1;
            }
        }
        assert_eq!(arrived, COUNT, "{kind:?} {:?}", world.devices[1].counters());
        assert_eq!(a.poll().len(), COUNT as usize);
        world.quiesce(SECOND);
    }
}

#[test]
fn a_datagram_waits_a_while_for_a_receive_and_then_is_dropped() {
    let mut world = World::new(1, Impairments::default(), 2);
    let init = EndInit { kind: QpType::Ud, ..Default::default() };
    let (a, b) = pair(&world, &init, &Wiring::default());
    let path = world.devices[0].resolve(&vector(b.ip)).unwrap();
    let sges = [a.sge(0, 100)];
    let send = |id| {
        let ud = Some(UdDest { path: path.clone(), qpn: b.qp.number(), qkey: QKey(0x1111) });
        a.qp.post_send([SendWr { id, op: SendOp::Send, flags: SendFlags::default(), sges: &sges, ud }])
            .unwrap();
    };
    send(1);
    world.pass(100 * MS);
    b.recv(1, &[b.sge(0, SLOT)]);
    assert_eq!(b.poll().len(), 1, "it is there when the receive is posted");
    send(2);
    world.pass(300 * MS);
    b.recv(2, &[b.sge(0, SLOT)]);
    world.pass(MS);
    assert_eq!(b.poll().len(), 0, "that was too late");
    send(3);
    world.pass(MS);
    assert_eq!(b.poll().len(), 1);
}
