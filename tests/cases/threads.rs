//! Several threads of a program on one device, over real sockets.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use urxe::config::Config;
use urxe::device::Device;
use urxe::verbs::{QpState, SendOp};

use crate::harness::{End, EndInit, Rng, Wiring, connect, good, set_state};

/// Polls both ends until `done`.
#[track_caller]
fn wait(devices: &[Device; 2], end: Instant, mut done: impl FnMut() -> bool) {
    while !done() {
        devices.iter().for_each(Device::poll);
        assert!(Instant::now() < end, "{:?}\n{:?}", devices[0].counters(), devices[1].counters());
    }
}

#[test]
fn threads_share_devices_while_others_make_and_destroy_queue_pairs() {
    let devices = [0, 1].map(|_| Device::open(&Config::default()).unwrap());
    let end = Instant::now() + Duration::from_secs(60);
    let stop = AtomicBool::new(false);
    let new_pair = || {
        let init = EndInit { bytes: 1 << 18, ..EndInit::default() };
        let (a, b) = (End::new(&devices[0], init.clone()), End::new(&devices[1], init));
        connect(&a.qp, (b.ip, &b.qp), &Wiring::default());
        connect(&b.qp, (a.ip, &a.qp), &Wiring::default());
        (a, b)
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..3u64)
            .map(|t| {
                let (devices, new_pair) = (&devices, &new_pair);
                scope.spawn(move || {
                    let mut rng = Rng(t);
                    let (a, b) = new_pair();
                    for i in 0..300u64 {
                        let len = rng.below(60_000) as usize;
                        a.buf.write(0, &rng.bytes(len));
                        b.recv(i, &[b.sge(0, 60_000)]);
                        a.post(i, SendOp::Send, &[a.sge(0, len)]);
                        a.post(i, SendOp::Read(b.remote(0)), &[a.sge(100_000, len)]);
                        let (mut sent, mut received) = (0, 0);
                        wait(devices, end, || {
                            sent += a.poll().iter().inspect(|wc| _ = good(wc)).count();
                            received += b.poll().iter().inspect(|wc| _ = good(wc)).count();
                            (sent, received) == (2, 1)
                        });
                        let want = a.buf.read(0, len);
                        assert!(b.buf.read(0, len) == want && a.buf.read(100_000, len) == want);
                    }
                })
            })
            .collect();
        let churn = {
            let (stop, new_pair) = (&stop, &new_pair);
            scope.spawn(move || {
                let mut made = 0;
                // Memory of the program that is registered and may be written to stays until the end.
                let mut kept = Vec::new();
                while !stop.load(Ordering::Relaxed) && made < 2000 {
                    let (a, b) = new_pair();
                    for i in 0..4 {
                        b.recv(i, &[b.sge(0, 10_000)]);
                        a.post(i, SendOp::Send, &[a.sge(0, 10_000)]);
                        a.post(i, SendOp::Read(b.remote(0)), &[a.sge(0, 10_000)]);
                    }
                    match made % 3 {
                        0 => set_state(&a.qp, QpState::Err),
                        1 => set_state(&b.qp, QpState::Reset),
                        _ => {}
                    }
                    let (End { qp: qp_a, buf: buf_a, .. }, End { qp: qp_b, buf: buf_b, .. }) = (a, b);
                    drop((qp_a, qp_b));
                    kept.push((buf_a, buf_b));
                    if kept.len() == 8 {
                        kept.clear();
                    }
                    made += 1;
                }
                made
            })
        };
        for worker in workers {
            worker.join().unwrap();
        }
        stop.store(true, Ordering::Relaxed);
        let made = churn.join().unwrap();
        assert!(made > 10, "{made}");
    });
    assert_eq!([devices[0].queue_pairs(), devices[1].queue_pairs()], [0, 0]);
    let peers = [devices[0].port().ip, devices[1].port().ip];
    assert_eq!([devices[0].in_flight(peers[1]), devices[1].in_flight(peers[0])], [0, 0]);
}
