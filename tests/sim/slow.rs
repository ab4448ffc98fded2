//! Networks that are slow or far away.

use urxe::ids::Mtu;
use urxe::io::impair::Impairments;
use urxe::time::Latency;
use urxe::verbs::SendOp;

use crate::harness::{EndInit, MS, SECOND, Wiring, World, good, pair, perfect};

/// Moves 8 messages of 1 MiB; returns seconds and bytes sent for a byte of payload, both ways together.
fn transfer(
    rate: u64,
    one_way: u64,
    op: impl Fn(u64, &crate::harness::End, &crate::harness::End),
) -> (f64, f64) {
    let slow = Impairments { rate: Some(rate), delay: Latency::Fixed(one_way), ..perfect() };
    let mut world = World::new(1, slow, 2);
    let init = EndInit { bytes: 1 << 20, ..Default::default() };
    let (a, b) = pair(&world, &init, &Wiring { mtu: Mtu::B4096, ..Default::default() });
    for i in 0..8 {
        b.recv(i, &[b.sge(0, 1 << 20)]);
        op(i, &a, &b);
    }
    let mut done = 0;
    world.run_until("the messages", 600 * SECOND, |_| {
        done += a.poll().iter().inspect(|wc| _ = good(wc)).count();
        done == 8
    });
    let sent: u64 = world
        .devices
        .iter()
        .flat_map(|d| d.counters())
        .filter(|(name, _)| *name == "tx_bytes")
        .map(|(_, value)| value)
        .sum();
    (world.now().0 as f64 / 1e9, sent as f64 / (8 << 20) as f64)
}

#[test]
fn a_slow_or_distant_peer_is_neither_given_up_nor_flooded() {
    for (rate, one_way) in
        [(2_000_000, MS), (10_000_000, 30 * MS), (125_000_000, 100 * MS), (1_250_000_000, 5 * MS)]
    {
        let send = transfer(rate, one_way, |i, a, _| a.post(i, SendOp::Send, &[a.sge(0, 1 << 20)]));
        let read = transfer(rate, one_way, |i, a, b| {
            a.post(i, SendOp::Read(b.remote(0)), &[a.sge(0, 1 << 20)]);
        });
        // At most 1 MiB is in flight, so it takes at least eight round trips where those are long.
        let (wire, trips) = ((8 << 20) as f64 / rate as f64, 16.0 * one_way as f64 / 1e9);
        for (seconds, sent) in [send, read] {
            let what = format!("{rate} bytes/s, {one_way} ns: {seconds} s, {sent} bytes a byte");
            assert!(seconds < 1.5 * wire + 3.0 * trips, "{what}");
            assert!(sent < 1.1, "nothing was lost, so hardly anything is sent again: {what}");
        }
    }
}

#[test]
fn queue_pairs_that_share_a_full_window_do_not_wait_for_timers() {
    const BYTES: usize = 64 << 10;
    let mut world = World::new(1, perfect(), 2);
    let init = EndInit { bytes: BYTES, ..Default::default() };
    let ends: Vec<_> = (0..64).map(|_| pair(&world, &init, &Wiring::default())).collect();
    for (a, b) in &ends {
        for i in 0..4 {
            a.post(i, SendOp::Write(b.remote(0)), &[a.sge(0, BYTES)]);
        }
    }
    let mut done = 0;
    world.run_until("the messages", SECOND, |_| {
        done += ends.iter().flat_map(|(a, _)| a.poll()).inspect(|wc| _ = good(wc)).count();
        done == 4 * ends.len()
    });
    // It takes 16 MiB some 20 round trips of 2 us. A probe comes after 4 ms at the earliest, and 100 ms if no round trip
    // was measured.
    assert!(world.now().0 < MS, "{} ns", world.now().0);
}
