//! What waits when a page is not present: the queue pair, or the peer.

use urxe::verbs::SendOp;

use crate::faults::{ODP, Paged, completions};
use crate::harness::{EndInit, MS, Wiring, World, config, counter, good, pair, perfect};
use crate::memory::{Map, PAGE};

#[test]
fn a_refusing_responder_answers_rnr_nak_and_the_peer_tries_again_after_its_timer() {
    for (what, op) in [("write", 0), ("read", 1), ("atomic", 2), ("send", 3)] {
        let mut world = World::with_config(1, perfect(), 2, &config(&[("odp_fault", "rnr")]));
        // Code 20 is 10.24 ms.
        let wiring = Wiring { min_rnr_timer: 20, ..Wiring::default() };
        let (a, b) = pair(&world, &EndInit::default(), &wiring);
        let far = Paged::new(&world.devices[1], b.pd, Map::anonymous(16 * PAGE), ODP);
        let remote = far.remote(0);
        if op == 3 {
            b.recv(5, &[far.sge(0, 8 * PAGE)]);
        }
        let (op, len) = match op {
            0 => (SendOp::Write(remote), 8 * PAGE),
            1 => (SendOp::Read(remote), 8 * PAGE),
            2 => (SendOp::FetchAdd { remote, add: 1 }, 8),
            _ => (SendOp::Send, 8 * PAGE),
        };
        let start = world.now().0;
        a.post(1, op, &[a.sge(0, len)]);
        assert_eq!(good(&completions(&mut world, &a, 1)[0]).0, 1, "{what}");
        let took = world.now().0 - start;
        assert!((10 * MS..40 * MS).contains(&took), "{what}: {took} ns");
        assert!(counter(&world.devices[1], "page_faults") >= 1, "{what}");
    }
}

#[test]
fn a_queue_pair_that_parks_needs_no_retry_of_the_peer() {
    let mut world = World::with_config(2, perfect(), 2, &config(&[("odp_latency", "2000us")]));
    let wiring = Wiring { retry_cnt: 0, rnr_retry: 0, ..Wiring::default() };
    let (a, b) = pair(&world, &EndInit::default(), &wiring);
    let far = Paged::new(&world.devices[1], b.pd, Map::anonymous(64 * PAGE), ODP);
    b.recv(7, &[far.sge(0, PAGE)]);
    a.post(1, SendOp::Send, &[a.sge(0, 100)]);
    a.post(2, SendOp::Write(far.remote(PAGE)), &[a.sge(0, 8 * PAGE)]);
    a.post(3, SendOp::Read(far.remote(32 * PAGE)), &[a.sge(0, 8 * PAGE)]);
    let ids: Vec<_> = completions(&mut world, &a, 3).iter().map(|wc| good(wc).0).collect();
    assert_eq!(ids, [1, 2, 3]);
    assert_eq!(good(&b.poll()[0]).0, 7);
}
