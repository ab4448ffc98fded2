//! Mixed operations with every byte checked.

use std::time::Instant;

use urxe::device::Device;

use crate::harness::{config, counter};
use crate::traffic::{Plan, Sockets, exchange};
use crate::{MODES, PATIENCE};

fn mixed(modes: [&str; 2], workers: &str) -> Sockets {
    let devices = modes.map(|mode| Device::open(&config(&[("tasks", mode), ("workers", workers)])).unwrap());
    let mut fabric = Sockets { devices, end: Instant::now() + 3 * PATIENCE };
    let plan = Plan { messages: 64 * 128, connections: 64, max_len: 100_000, large_percent: 10 };
    let totals = exchange(&mut fabric, 7, &plan);
    assert_eq!(totals.messages, plan.messages);
    assert!(totals.by_kind.iter().all(|&n| n > 0), "{totals:?}");
    for device in &fabric.devices {
        assert_eq!(counter(device, "failed_requests"), 0);
        assert_eq!(counter(device, "icrc_errors") + counter(device, "malformed_pkts"), 0);
    }
    fabric
}

#[test]
fn sixty_four_queue_pairs_move_every_byte_inline() {
    let fabric = mixed([MODES[0]; 2], "2");
    for device in &fabric.devices {
        assert_eq!(counter(device, "queued_runs") + counter(device, "inline_runs"), 0);
    }
}

#[test]
fn sixty_four_queue_pairs_move_every_byte_in_workers() {
    let fabric = mixed([MODES[1]; 2], "3");
    for device in &fabric.devices {
        assert_eq!(counter(device, "inline_runs"), 0);
        let busy =
            device.threads().into_iter().filter_map(|t| t.worker).map(|w| w.batches.iter().sum::<u64>());
        let busy: Vec<u64> = busy.collect();
        assert!(busy.len() == 3 && busy.iter().all(|&turns| turns > 100), "{busy:?}");
    }
}

#[test]
fn sixty_four_queue_pairs_move_every_byte_in_automatic_mode() {
    let fabric = mixed([MODES[2]; 2], "2");
    for device in &fabric.devices {
        assert!(counter(device, "inline_runs") > 1000);
    }
}

#[test]
fn modes_talk_to_each_other() {
    mixed([MODES[1], MODES[0]], "1");
}
