//! Shared receive queues and completion queues.

use std::sync::Arc;

use urxe::io::impair::Impairments;
use urxe::srq::SrqAttr;
use urxe::time::Latency;
use urxe::verbs::{AsyncEvent, QpState, RecvWr, SendOp, WcStatus};

use crate::harness::{
    Buf, End, EndInit, MS, Rng, SECOND, US, Wiring, World, connect, good, pair, perfect, poll, seeds,
    set_state,
};

#[test]
fn queue_pairs_share_receives_each_is_used_once_and_the_limit_is_told_once() {
    for seed in seeds(&[31, 32]) {
        eprintln!("seed {seed}");
        let bad = Impairments {
            loss: 0.05,
            reorder: 0.05,
            duplicate: 0.05,
            delay: Latency::Uniform(US, 9 * US),
            ..Default::default()
        };
        let mut world = World::new(seed, bad, 2);
        let target = &world.devices[1];
        let pd = target.alloc_pd();
        let srq = target.create_srq(pd, SrqAttr { max_wr: 64, max_sge: 4, limit: 0 });
        let slots = Buf::new(64 * 1024);
        let keys = slots.register(target, pd, crate::harness::ALL_ACCESS);
        let sge =
            |slot: u64| urxe::verbs::Sge { addr: slots.addr() + slot * 1024, len: 1024, lkey: keys.lkey };

        let wiring = Wiring { mtu: urxe::ids::Mtu::B256, ..Default::default() };
        let ends: Vec<(End, End)> = (0..4)
            .map(|_| {
                let a = End::new(&world.devices[0], EndInit::default());
                let init = EndInit { srq: Some((pd, srq.clone())), ..Default::default() };
                let b = End::new(&world.devices[1], init);
                connect(&a.qp, (b.ip, &b.qp), &wiring);
                connect(&b.qp, (a.ip, &a.qp), &wiring);
                (a, b)
            })
            .collect();
        let limits = || {
            let events: Vec<_> = ends.iter().flat_map(|(_, b)| b.events.take()).collect();
            assert!(events.iter().all(|e| matches!(e, AsyncEvent::SrqLimitReached(id) if *id == srq.id)));
            events.len()
        };

        let mut rng = Rng(seed);
        let mut free: Vec<u64> = (0..64).collect();
        let (mut posted, mut sent, mut next) = ([0u64; 4], [0u64; 4], [0u64; 4]);
        let (mut done, mut told, mut armed) = (0, 0, 0);
        for _ in 0..100_000 {
            if done == 400 {
                break;
            }
            // Receives come late and in groups, so that the queue runs empty and senders hear RNR.
            if free.len() > 52 && rng.percent(5) {
                for _ in 0..rng.below(20) {
                    let Some(slot) = free.pop() else { break };
                    srq.post(&RecvWr { id: slot, sges: &[sge(slot)] }).unwrap();
                }
                if srq.attr().limit == 0 && free.len() < 56 {
                    assert!(srq.set_limit(5));
                    armed += 1;
                    // Below the limit already: due at once.
                    if srq.take_limit_event() {
                        told += 1;
                    }
                }
            }
            for (i, (a, _)) in ends.iter().enumerate() {
                if posted[i] < 100 && posted[i] < sent[i] + 32 && rng.percent(20) {
                    let len = 16 + rng.below(900) as usize;
                    let at = (posted[i] % 32) as usize * 1024;
                    let mut bytes = Rng(posted[i] << 8 | i as u64).bytes(len);
                    bytes[..8].copy_from_slice(&posted[i].to_be_bytes());
                    a.buf.write(at, &bytes);
                    a.post(posted[i], SendOp::Send, &[a.sge(at, len)]);
                    posted[i] += 1;
                }
                sent[i] += a.poll().iter().inspect(|wc| _ = good(wc)).count() as u64;
            }
            for (i, (_, b)) in ends.iter().enumerate() {
                for wc in b.poll() {
                    let (slot, _, len) = good(&wc);
                    let bytes = slots.read(slot as usize * 1024, len as usize);
                    let n = u64::from_be_bytes(bytes[..8].try_into().unwrap());
                    assert_eq!(n, next[i], "messages of one queue pair arrive in order");
                    assert!(bytes[8..] == Rng(n << 8 | i as u64).bytes(len as usize)[8..]);
                    assert!(!free.contains(&slot));
                    free.push(slot);
                    next[i] += 1;
                    done += 1;
                }
            }
            told += limits();
            if !world.step(0) {
                world.advance_to(world.now().plus(MS));
            }
            assert!(told <= armed);
        }
        assert_eq!(done, 400, "{next:?}");
        world.quiesce(SECOND);
        told += limits();
        assert!(
            armed > 1 && (told == armed || srq.attr().limit > 0 && told + 1 == armed),
            "{told} of {armed}"
        );

        // One that fails leaves the others theirs, and says that it takes no more.
        let left = 64 - free.len();
        set_state(&ends[0].1.qp, QpState::Err);
        assert_eq!(ends[0].1.events.take(), [AsyncEvent::LastWqeReached(ends[0].1.qp.number())]);
        assert!(ends[0].1.poll().is_empty());
        for slot in free.drain(..) {
            srq.post(&RecvWr { id: slot, sges: &[sge(slot)] }).unwrap();
        }
        assert!(srq.post(&RecvWr { id: 0, sges: &[] }).is_err());
        let mut used = 0;
        for n in 0..64 {
            let (a, b) = &ends[1 + n % 3];
            a.post(1, SendOp::Send, &[a.sge(0, 8)]);
            world.run_until("a message of the others", SECOND, |_| !b.cq.is_empty());
            used += b.poll().len();
        }
        assert_eq!(used, 64, "{left} were left and all can be used");
    }
}

#[test]
fn a_completion_queue_that_overruns_says_so_once_and_its_queue_pairs_fail_while_others_go_on() {
    let mut world = World::new(1, perfect(), 2);
    let small = EndInit { cqe: 4, ..Default::default() };
    let end = |device: usize, init: &EndInit| End::new(&world.devices[device], init.clone());
    let join = |a: End, b: End| {
        connect(&a.qp, (b.ip, &b.qp), &Wiring::default());
        connect(&b.qp, (a.ip, &a.qp), &Wiring::default());
        (a, b)
    };
    let large = EndInit::default();
    let (a, a_peer) = join(end(0, &small), end(1, &large));
    let (b_peer, b) = join(end(0, &large), end(1, &small));
    let (c, d) = join(end(0, &large), end(1, &large));
    for i in 0..10 {
        for receiver in [&a_peer, &b, &d] {
            receiver.recv(i, &[]);
        }
        for sender in [&a, &b_peer, &c] {
            sender.post(i, SendOp::Send, &[]);
        }
    }
    world.pass(10 * SECOND);
    for end in [&a, &b] {
        let events = end.events.take();
        assert_eq!(events, [AsyncEvent::CqError(end.cq.id), AsyncEvent::QpFatal(end.qp.number())]);
        assert_eq!(end.qp.state(), QpState::Err);
        assert!(end.cq.is_overrun());
    }
    assert_eq!(a.poll().iter().map(|wc| wc.id).collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert_eq!(b.poll().iter().map(|wc| wc.id).collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert_eq!(c.poll().len(), 10);
    assert_eq!(d.poll().len(), 10);
    assert_eq!(world.devices[0].in_flight(world.ip(1)), 0);
    assert_eq!(c.qp.state(), QpState::Rts);
    // The queue stays as it is: the next queue pair that completes to it fails as well.
    let (mut e, f) = pair(&world, &EndInit::default(), &Wiring::default());
    e.cq = a.cq.clone();
    e.qp = world.devices[0]
        .create_qp(urxe::device::QpInit {
            kind: urxe::verbs::QpType::Rc,
            pd: e.pd,
            send_cq: a.cq.clone(),
            recv_cq: a.cq.clone(),
            srq: None,
            caps: crate::harness::CAPS,
            sig_all: true,
            events: Some(e.events.clone()),
        })
        .unwrap();
    set_state(&f.qp, QpState::Reset);
    connect(&e.qp, (f.ip, &f.qp), &Wiring::default());
    connect(&f.qp, (e.ip, &e.qp), &Wiring::default());
    f.recv(0, &[]);
    e.post(1, SendOp::Send, &[]);
    world.pass(SECOND);
    assert_eq!(e.events.take(), [AsyncEvent::QpFatal(e.qp.number())]);
    assert_eq!(e.qp.state(), QpState::Err);
}

#[test]
fn many_queue_pairs_on_one_completion_queue_find_their_completions() {
    let mut world = World::new(3, Impairments { loss: 0.02, ..Default::default() }, 2);
    let device = &world.devices[0];
    let (pd, cq) = (device.alloc_pd(), device.create_cq(4096, None));
    let ends: Vec<(End, End)> = (0..50)
        .map(|_| {
            let mut a = End::new(&world.devices[0], EndInit { bytes: 64, ..Default::default() });
            a.pd = pd;
            a.cq = cq.clone();
            a.qp = world.devices[0]
                .create_qp(urxe::device::QpInit {
                    kind: urxe::verbs::QpType::Rc,
                    pd,
                    send_cq: cq.clone(),
                    recv_cq: cq.clone(),
                    srq: None,
                    caps: crate::harness::CAPS,
                    sig_all: true,
                    events: None,
                })
                .unwrap();
            let b = End::new(&world.devices[1], EndInit { bytes: 64, ..Default::default() });
            connect(&a.qp, (b.ip, &b.qp), &Wiring::default());
            connect(&b.qp, (a.ip, &a.qp), &Wiring::default());
            (a, b)
        })
        .collect();
    for (a, b) in &ends {
        for i in 0..20 {
            b.recv(i, &[]);
            a.post(i, SendOp::Send, &[]);
        }
    }
    let mut next = std::collections::HashMap::new();
    let mut done = 0;
    world.run_until("all completions", 60 * SECOND, |_| {
        for wc in poll(&cq) {
            assert_eq!(wc.status, WcStatus::Success);
            let n = next.entry(wc.qpn).or_insert(0);
            assert_eq!(wc.id, *n, "of one queue pair in order");
            *n += 1;
            done += 1;
        }
        done == 50 * 20
    });
    assert_eq!(Arc::strong_count(&cq), 1 + 50 * 4 + 50, "each queue pair has it for both sides, twice");
}
