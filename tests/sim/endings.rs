//! Queue pairs that end in the middle of things.

use std::collections::VecDeque;

use urxe::io::impair::Impairments;
use urxe::time::Latency;
use urxe::verbs::{AsyncEvent, AttrMask, QpAttr, QpState, SendFlags, SendOp, WcOpcode, WcStatus};

use crate::harness::{
    End, EndInit, MS, Rng, SECOND, US, Wiring, World, connect, good, masks, pair, perfect, seeds, set_state,
};

fn bad() -> Impairments {
    Impairments {
        loss: 0.1,
        duplicate: 0.1,
        reorder: 0.1,
        delay: Latency::Uniform(US, 50 * US),
        ..Default::default()
    }
}

/// Posts a little of everything on both ends; returns the ids of sends and receives of each.
fn post_some(rng: &mut Rng, a: &End, b: &End, n: u64) -> [(VecDeque<u64>, VecDeque<u64>); 2] {
    let mut ids = [(VecDeque::new(), VecDeque::new()), (VecDeque::new(), VecDeque::new())];
    for i in 0..n {
        for (k, (me, peer)) in [(a, b), (b, a)].into_iter().enumerate() {
            let len = rng.below(20_000) as usize;
            me.recv(1000 + i, &[me.sge(32 << 10, 20_000)]);
            ids[k].1.push_back(1000 + i);
            let op = match rng.below(5) {
                0 | 1 => SendOp::Send,
                2 => SendOp::Write(peer.remote(0)),
                3 => SendOp::Read(peer.remote(0)),
                _ => SendOp::FetchAdd { remote: peer.remote(0), add: 1 },
            };
            let len = if matches!(op, SendOp::FetchAdd { .. }) { 8 } else { len };
            me.post(i, op, &[me.sge(0, len)]);
            ids[k].0.push_back(i);
        }
    }
    ids
}

/// Takes completions off the ids, which must be in order; after the first failure all must be flushes.
fn take(end: &End, ids: &mut (VecDeque<u64>, VecDeque<u64>), failed: &mut bool) {
    for wc in end.poll() {
        let queue = if matches!(wc.opcode, WcOpcode::Recv | WcOpcode::RecvRdmaWithImm) {
            &mut ids.1
        } else {
            &mut ids.0
        };
        assert_eq!(queue.pop_front(), Some(wc.id), "in order and once: {wc:?}");
        match wc.status {
            WcStatus::Success => assert!(!*failed, "a success after a failure: {wc:?}"),
            WcStatus::WrFlushErr => *failed = true,
            _ => panic!("{wc:?}"),
        }
    }
}

#[test]
fn a_queue_pair_that_goes_to_error_flushes_all_that_was_posted_once_and_in_order() {
    for seed in seeds(&[41, 42, 43]) {
        eprintln!("seed {seed}");
        let mut rng = Rng(seed);
        let mut world = World::new(seed, bad(), 2);
        for round in 0..10 {
            let init = EndInit { bytes: 64 << 10, ..Default::default() };
            let (a, b) = pair(&world, &init, &Wiring::default());
            let (other, peer) = pair(&world, &init, &Wiring::default());
            let mut ids = post_some(&mut rng, &a, &b, 20);
            let mut failed = [false, false];
            world.pass(rng.below(3 * MS));
            take(&a, &mut ids[0], &mut failed[0]);
            take(&b, &mut ids[1], &mut failed[1]);
            set_state(&a.qp, QpState::Err);
            take(&a, &mut ids[0], &mut failed[0]);
            assert!(ids[0].0.is_empty() && ids[0].1.is_empty(), "all of it at once: {:?}", ids[0]);
            // What is posted later is flushed too.
            a.recv(7, &[]);
            a.post(8, SendOp::Send, &[]);
            assert!(a.poll().iter().all(|wc| wc.status == WcStatus::WrFlushErr));
            // The peer hears nothing any more, and gives up or has nothing left to ask.
            set_state(&b.qp, QpState::Err);
            take(&b, &mut ids[1], &mut failed[1]);
            assert!(ids[1].0.is_empty() && ids[1].1.is_empty());
            world.quiesce(SECOND);
            assert_eq!(world.devices[0].in_flight(world.ip(1)), 0, "round {round}");
            // Others do not notice.
            peer.recv(1, &[]);
            other.post(1, SendOp::Send, &[]);
            world.run_until("another queue pair's message", SECOND, |_| !other.cq.is_empty());
            good(&other.poll()[0]);
        }
    }
}

#[test]
fn the_peer_of_a_queue_pair_that_vanished_ends_in_a_retry_error_after_its_retries() {
    let mut world = World::new(1, perfect(), 2);
    let wiring = Wiring { timeout: 17, retry_cnt: 2, ..Default::default() };
    let (a, b) = pair(&world, &EndInit::default(), &wiring);
    for i in 0..3 {
        a.post(i, SendOp::Send, &[]);
    }
    drop(b.qp);
    world.run_until("an error", 60 * SECOND, |_| !a.cq.is_empty());
    let done: Vec<_> = a.poll().iter().map(|wc| (wc.id, wc.status)).collect();
    assert_eq!(done, [(0, WcStatus::RetryExcErr), (1, WcStatus::WrFlushErr), (2, WcStatus::WrFlushErr)]);
    // 4.096 us * 2^17, three times.
    let expected = 3 * (4096 << 17);
    assert!((expected..expected + 100 * MS).contains(&world.now().0), "{:?}", world.now());
    assert_eq!(a.qp.state(), QpState::Err);
    world.quiesce(SECOND);
    assert_eq!(world.devices[0].in_flight(world.ip(1)), 0);
}

#[test]
fn a_queue_pair_that_was_reset_forgets_everything_and_can_be_connected_again() {
    for seed in seeds(&[51, 52]) {
        eprintln!("seed {seed}");
        let mut rng = Rng(seed);
        let mut world = World::new(seed, bad(), 2);
        let init = EndInit { bytes: 64 << 10, ..Default::default() };
        let (a, b) = pair(&world, &init, &Wiring::default());
        for round in 0..10u32 {
            post_some(&mut rng, &a, &b, 1 + u64::from(round));
            world.pass(rng.below(2 * MS));
            for end in [&a, &b] {
                set_state(&end.qp, QpState::Reset);
                assert!(end.poll().is_empty(), "the completions of a queue pair that was reset are gone");
                assert_eq!(end.qp.query(), QpAttr::default());
                end.events.take();
            }
            assert_eq!(world.devices[0].in_flight(world.ip(1)), 0);
            assert_eq!(world.devices[1].in_flight(world.ip(0)), 0);
            // Packets of the old connection are still on their way.
            let wiring = Wiring { psn: rng.next() as u32, ..Default::default() };
            connect(&a.qp, (b.ip, &b.qp), &wiring);
            connect(&b.qp, (a.ip, &a.qp), &wiring);
            let bytes = rng.bytes(10_000);
            a.buf.write(0, &bytes);
            b.recv(5, &[b.sge(20_000, 10_000)]);
            a.post(6, SendOp::Send, &[a.sge(0, 10_000)]);
            world.run_until("a message of the new connection", 10 * SECOND, |_| {
                !a.cq.is_empty() && !b.cq.is_empty()
            });
            assert_eq!(good(&a.poll()[0]).0, 6);
            assert_eq!(good(&b.poll()[0]), (5, WcOpcode::Recv, 10_000));
            assert!(b.buf.read(20_000, 10_000) == bytes);
        }
    }
}

#[test]
fn queue_pairs_that_are_destroyed_leave_no_charge_no_timer_and_no_completion() {
    for seed in seeds(&[61, 62]) {
        eprintln!("seed {seed}");
        let mut rng = Rng(seed);
        let mut world = World::new(seed, bad(), 2);
        let init = EndInit { bytes: 64 << 10, ..Default::default() };
        let (survivor, peer) = pair(&world, &init, &Wiring::default());
        for _ in 0..20 {
            let (a, b) = pair(&world, &init, &Wiring::default());
            post_some(&mut rng, &a, &b, 10);
            peer.recv(1, &[]);
            survivor.post(1, SendOp::Send, &[]);
            world.pass(rng.below(2 * MS));
            // The memory stays: it is still registered.
            let End { qp: qp_a, cq: cq_a, buf: _memory_a, .. } = a;
            let End { qp: qp_b, cq: cq_b, buf: _memory_b, .. } = b;
            drop(qp_a);
            assert_eq!(crate::harness::poll(&cq_a).len(), 0);
            world.pass(rng.below(MS));
            drop(qp_b);
            assert_eq!(crate::harness::poll(&cq_b).len(), 0);
            world.run_until("the survivor's message", 10 * SECOND, |_| !survivor.cq.is_empty());
            good(&survivor.poll()[0]);
            assert_eq!(world.devices[0].in_flight(world.ip(1)), 0);
        }
        world.quiesce(10 * SECOND);
        assert_eq!(world.devices[0].queue_pairs(), 1);
    }
}

#[test]
fn memory_that_is_deregistered_under_way_ends_in_an_error_and_not_in_wrong_bytes() {
    for seed in seeds(&[71]) {
        eprintln!("seed {seed}");
        let mut rng = Rng(seed);
        for round in 0..20 {
            let slow = Impairments { rate: Some(100_000_000), delay: Latency::Fixed(10 * US), ..perfect() };
            let mut world = World::new(seed + round, slow, 2);
            let init = EndInit { bytes: 1 << 20, ..Default::default() };
            let (a, b) = pair(&world, &init, &Wiring::default());
            let bytes = rng.bytes(1 << 20);
            a.buf.write(0, &bytes);
            b.buf.write(0, &bytes);
            let (op, write) = if round % 2 == 0 {
                (SendOp::Write(b.remote(0)), true)
            } else {
                (SendOp::Read(b.remote(0)), false)
            };
            let new = vec![0x77; 1 << 20];
            a.buf.write(0, &new);
            a.post(1, op, &[a.sge(0, 1 << 20)]);
            world.pass(1 + rng.below(10 * MS));
            let done = a.poll();
            if done.len() == 1 {
                good(&done[0]);
                continue;
            }
            world.devices[1].deregister(b.keys.lkey).unwrap();
            let before = b.buf.read(0, 1 << 20);
            world.run_until("an error", 10 * SECOND, |_| !a.cq.is_empty());
            assert!(b.buf.read(0, 1 << 20) == before, "nothing was written after it was deregistered");
            let wc = a.poll()[0];
            if wc.status == WcStatus::Success {
                // The last packet was executed, or read, before.
                assert!(if write { before == new } else { a.buf.read(0, 1 << 20) == bytes });
                continue;
            }
            assert_eq!(wc.status, WcStatus::RemAccessErr);
            assert_eq!(b.events.take(), [AsyncEvent::QpAccessError(b.qp.number())]);
        }
    }
}

#[test]
fn a_send_queue_that_drains_ends_what_was_sent_and_says_so() {
    let mut world = World::new(81, bad(), 2);
    let (a, b) = pair(&world, &EndInit::default(), &Wiring::default());
    for i in 0..4 {
        b.recv(i, &[b.sge(0, 30_000)]);
    }
    a.post(0, SendOp::Send, &[a.sge(0, 30_000)]);
    a.post_with(1, SendOp::Send, SendFlags::SOLICITED, &[a.sge(0, 30_000)]);
    let attr = QpAttr { state: QpState::Sqd, en_sqd_async_notify: true, ..Default::default() };
    a.qp.modify(&attr, masks(&[AttrMask::STATE, AttrMask::EN_SQD_ASYNC_NOTIFY])).unwrap();
    a.post(2, SendOp::Send, &[a.sge(0, 100)]);
    let mut events = Vec::new();
    world.run_until("the event", 60 * SECOND, |_| {
        events.extend(a.events.take());
        !events.is_empty()
    });
    assert_eq!(events, [AsyncEvent::SqDrained(a.qp.number())]);
    let done: Vec<u64> = a.poll().iter().map(|wc| good(wc).0).collect();
    assert!(done == [0, 1] || done == [0], "{done:?}");
    world.quiesce(10 * SECOND);
    assert!(a.cq.is_empty());
    set_state(&a.qp, QpState::Rts);
    let left = 3 - done.len();
    let mut more = Vec::new();
    world.run_until("the rest", 60 * SECOND, |_| {
        more.extend(a.poll());
        more.len() == left
    });
    assert_eq!(more.last().map(|wc| good(wc).0), Some(2));
}
