//! Devices with impairments in virtual time: everything arrives, and nothing arrives too early.

use urxe::ids::Mtu;
use urxe::verbs::SendOp;

use crate::harness::{
    EndInit, MS, Rng, SECOND, US, Wiring, World, config, counter, good, pair, perfect, seeds,
};
use crate::traffic::{Plan, Simulated, exchange};

const ALL: [(&str, &str); 6] = [
    ("loss", "5%"),
    ("duplicate", "5%"),
    ("reorder", "5%"),
    ("corrupt", "1%"),
    ("delay", "1us-30us"),
    ("rate", "1GB/s"),
];

fn world(seed: u64, settings: &[(&str, &str)]) -> World {
    World::with_config(seed, perfect(), 2, &config(settings))
}

fn traffic(world: World, seed: u64, messages: usize) -> World {
    let end = world.now().plus(2000 * SECOND);
    let mut fabric = Simulated { world, rng: Rng(seed), end };
    let plan = Plan { messages, connections: 4, max_len: 200_000, large_percent: 5 };
    assert_eq!(exchange(&mut fabric, seed, &plan).messages, messages);
    fabric.world
}

#[test]
fn every_byte_arrives_whatever_is_spoiled_and_where() {
    for seed in seeds(&[1]) {
        for direction in ["send", "receive", "both"] {
            eprintln!("seed {seed}, {direction}");
            let number = (seed as u32).to_string();
            let own = [("impair", direction), ("impair_seed", number.as_str())];
            let world = traffic(world(seed, &[&ALL[..], &own].concat()), seed, 1000);
            for device in &world.devices {
                for name in ["lost", "duplicated", "reordered", "corrupted", "delayed"] {
                    assert!(counter(device, &format!("impaired_{name}")) > 10, "{name}");
                }
                assert!(counter(device, "icrc_errors") > 10);
            }
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_packets_and_another_one_others() {
    let trace =
        |seed: &str| traffic(world(3, &[&ALL[..], &[("impair_seed", seed)]].concat()), 3, 120).net.trace();
    assert_eq!(trace("1"), trace("1"));
    assert_ne!(trace("1"), trace("2"));
}

/// When a WRITE of `len` bytes is complete.
fn time_of_write(settings: &[(&str, &str)], len: usize) -> u64 {
    let mut world = world(1, settings);
    let (a, b) = pair(&world, &EndInit { bytes: len, ..EndInit::default() }, &Wiring::default());
    a.post(1, SendOp::Write(b.remote(0)), &[a.sge(0, len)]);
    world.run_until("the completion", 10 * SECOND, |_| !a.cq.is_empty());
    assert_eq!(good(&a.poll()[0]).0, 1);
    world.now().0
}

#[test]
fn a_delay_is_added_to_each_way() {
    assert_eq!(time_of_write(&[], 8), 2 * US);
    assert_eq!(time_of_write(&[("delay", "1ms")], 8), 2 * MS + 2 * US);
}

#[test]
fn a_rate_decides_how_long_a_message_takes() {
    let took = time_of_write(&[("rate", "10MB/s")], 2_000_000);
    assert!((200 * MS..300 * MS).contains(&took), "{took} ns");
}

#[test]
fn a_small_queue_costs_packets_but_no_bytes() {
    let settings = [("rate", "100MB/s"), ("delay", "100us"), ("rate_queue", "32KiB")];
    let took = time_of_write(&settings, 2_000_000);
    // The best would be 20 ms, but most of the first window is lost before the peer has ever answered.
    assert!((20 * MS..200 * MS).contains(&took), "{took} ns");
}

/// Bytes per second of a stream of WRITEs of 64 KiB over 3 GB/s and 10 us each way.
fn goodput(seed: u64, loss: &str) -> u64 {
    const LEN: usize = 64 * 1024;
    const MESSAGES: u64 = 500;
    let mut world =
        world(seed, &[("rate", "3GB/s"), ("delay", "10us"), ("loss", loss), ("rate_queue", "4MiB")]);
    let wiring = Wiring { mtu: Mtu::B4096, ..Wiring::default() };
    let (a, b) = pair(&world, &EndInit { bytes: LEN, ..EndInit::default() }, &wiring);
    let (mut posted, mut done) = (0, 0);
    while done < MESSAGES {
        while posted < MESSAGES.min(done + 128) {
            a.post(posted, SendOp::Write(b.remote(0)), &[a.sge(0, LEN)]);
            posted += 1;
        }
        assert!(world.step(0));
        done += a.poll().iter().map(good).count() as u64;
    }
    MESSAGES * LEN as u64 * SECOND / world.now().0
}

#[test]
fn loss_costs_a_stream_goodput_but_no_time_outs() {
    for seed in [1, 2, 3] {
        let [none, one, five] = ["0", "1%", "5%"].map(|loss| goodput(seed, loss));
        assert!(one > none / 3, "1 %: {one} of {none} bytes per second");
        assert!(five > none / 40, "5 %: {five} of {none} bytes per second");
    }
}
