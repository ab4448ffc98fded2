//! Devices with impairments on loopback sockets, in each mode of tasks.

use std::time::{Duration, Instant};

use urxe::device::Device;
use urxe::verbs::{QpType, SendOp};

use crate::harness::{End, EndInit, Wiring, config, connect, counter, good, wait};
use crate::traffic::{Plan, Sockets, exchange};

const MODES: [&str; 3] = ["inline", "workqueue", "auto"];
const PATIENCE: Duration = Duration::from_secs(120);

fn ends(settings: &[(&str, &str)], kind: QpType, bytes: usize) -> ([Device; 2], End, End) {
    let devices = [0, 1].map(|_| Device::open(&config(settings)).unwrap());
    let init = EndInit { kind, bytes, ..EndInit::default() };
    let [a, b] = devices.each_ref().map(|device| End::new(device, init.clone()));
    connect(&a.qp, (b.ip, &b.qp), &Wiring::default());
    connect(&b.qp, (a.ip, &a.qp), &Wiring::default());
    (devices, a, b)
}

fn every_byte_arrives(settings: &[(&str, &str)]) -> [Device; 2] {
    let devices = [0, 1].map(|_| Device::open(&config(settings)).unwrap());
    let mut fabric = Sockets { devices, end: Instant::now() + PATIENCE };
    let plan = Plan { messages: 2000, connections: 4, max_len: 100_000, large_percent: 10 };
    assert_eq!(exchange(&mut fabric, 7, &plan).messages, plan.messages);
    for device in &fabric.devices {
        assert_eq!(counter(device, "failed_requests"), 0);
    }
    fabric.devices
}

#[test]
fn every_byte_arrives_through_loss_in_each_mode() {
    for mode in MODES {
        for loss in ["1%", "5%"] {
            let devices = every_byte_arrives(&[("tasks", mode), ("loss", loss)]);
            assert!(devices.iter().all(|d| counter(d, "impaired_lost") > 10), "{mode}, {loss}");
        }
    }
}

#[test]
fn every_byte_arrives_through_all_that_can_go_wrong_in_each_mode() {
    for mode in MODES {
        let devices = every_byte_arrives(&[
            ("tasks", mode),
            ("loss", "1%"),
            ("duplicate", "2%"),
            ("reorder", "2%"),
            ("corrupt", "2%"),
            ("delay", "10us-50us"),
            ("rate", "1GB/s"),
            ("impair", "both"),
        ]);
        for device in &devices {
            for name in ["lost", "duplicated", "reordered", "corrupted", "delayed"] {
                assert!(counter(device, &format!("impaired_{name}")) > 10, "{mode}, {name}");
            }
            assert!(counter(device, "icrc_errors") > 10, "wrong bits are found");
        }
    }
}

#[test]
fn a_delay_of_a_millisecond_makes_round_trips_of_two_in_each_mode() {
    for mode in MODES {
        let (devices, a, b) = ends(&[("tasks", mode), ("delay", "1ms")], QpType::Rc, 4096);
        for id in 0..5 {
            let start = Instant::now();
            a.post(id, SendOp::Write(b.remote(0)), &[a.sge(0, 64)]);
            assert_eq!(good(&wait(&devices[0], &a)).0, id);
            assert!(start.elapsed() >= Duration::from_millis(2), "{mode}: {:?}", start.elapsed());
        }
    }
}

/// The receive thread sees to it.
#[test]
fn delayed_packets_leave_although_nobody_polls() {
    let (_devices, a, b) = ends(&[("delay", "1ms"), ("impair", "both")], QpType::Rc, 4096);
    a.buf.write(0, &[7; 64]);
    let end = Instant::now() + PATIENCE;
    for id in 0..5 {
        a.post(id, SendOp::Write(b.remote(0)), &[a.sge(0, 64)]);
        while a.cq.is_empty() {
            assert!(Instant::now() < end);
            std::thread::yield_now();
        }
        assert_eq!(good(&a.poll()[0]).0, id);
    }
    assert_eq!(b.buf.read(0, 64), [7; 64]);
}

#[test]
fn ten_megabytes_a_second_take_two_megabytes_a_fifth_of_a_second_in_each_mode() {
    for mode in MODES {
        let (devices, a, b) = ends(&[("tasks", mode), ("rate", "10MB/s")], QpType::Rc, 2_000_000);
        let bytes: Vec<u8> = (0..2_000_000_u32).map(|i| ((i * 7) >> 3) as u8).collect();
        a.buf.write(0, &bytes);
        let start = Instant::now();
        a.post(1, SendOp::Write(b.remote(0)), &[a.sge(0, 2_000_000)]);
        assert_eq!(good(&wait(&devices[0], &a)).0, 1);
        assert!(start.elapsed() >= Duration::from_millis(200), "{mode}: {:?}", start.elapsed());
        assert!(b.buf.read(0, 2_000_000) == bytes);
    }
}

#[test]
fn what_a_device_has_sent_leaves_although_the_device_ends() {
    let ([first, second], a, b) = ends(&[("delay", "20ms")], QpType::Uc, 4096);
    b.recv(1, &[b.sge(0, 64)]);
    a.post(1, SendOp::Send, &[a.sge(0, 64)]);
    drop(a);
    drop(first);
    assert_eq!(good(&wait(&second, &b)).0, 1);
}
