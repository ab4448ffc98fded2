//! Ten thousand messages over RC, every byte checked: in a bad simulated network, and between two devices on loopback.

#[path = "sim/harness.rs"]
#[allow(dead_code)]
mod harness;
#[path = "sim/traffic.rs"]
mod traffic;

use std::time::{Duration, Instant};

use harness::{Rng, SECOND, US, World, seeds};
use traffic::{Plan, Simulated, Sockets, exchange};
use urxe::config::Config;
use urxe::device::Device;
use urxe::io::impair::Impairments;
use urxe::time::Latency;

#[test]
fn ten_thousand_messages_arrive_through_loss_duplication_and_reordering() {
    for seed in seeds(&[1]) {
        eprintln!("seed {seed}");
        let bad = Impairments {
            loss: 0.05,
            duplicate: 0.05,
            reorder: 0.05,
            delay: Latency::Uniform(US, 20 * US),
            ..Impairments::default()
        };
        let world = World::new(seed, bad, 2);
        let end = world.now().plus(2000 * SECOND);
        let mut fabric = Simulated { world, rng: Rng(seed), end };
        let plan = Plan { messages: 10_000, connections: 4, max_len: 1 << 20, large_percent: 3 };
        let start = Instant::now();
        let totals = exchange(&mut fabric, seed, &plan);
        eprintln!(
            "{totals:?} in {:.1} s of virtual time, {:.1} s of real time, {} steps",
            fabric.world.now().0 as f64 / 1e9,
            start.elapsed().as_secs_f64(),
            fabric.world.steps
        );
        assert_eq!(totals.messages, 10_000);
    }
}

#[test]
fn ten_thousand_messages_arrive_between_two_devices_on_loopback() {
    for seed in seeds(&[]) {
        eprintln!("seed {seed}");
        let devices = [0, 1].map(|_| Device::open(&Config::default()).unwrap());
        let start = Instant::now();
        let mut fabric = Sockets { devices, end: start + Duration::from_secs(120) };
        let plan = Plan { messages: 10_000, connections: 4, max_len: 1 << 20, large_percent: 3 };
        let totals = exchange(&mut fabric, seed, &plan);
        eprintln!("{totals:?} in {:.1} s", start.elapsed().as_secs_f64());
        assert_eq!(totals.messages, 10_000);
    }
}
