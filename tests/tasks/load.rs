//! Queue pairs are reset and destroyed while workers are busy with them.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use urxe::device::Device;
use urxe::verbs::{AttrMask, QpAttr, QpState, SendOp, WcStatus};

use crate::harness::{EndInit, Rng, config, counter, wait};
use crate::{MODES, in_time, join, pair};

const BYTES: usize = 1 << 18;

/// Requests that keep both sides of both ends busy, and that are not waited for.
fn burden(end: &crate::harness::End, peer: &crate::harness::End, rng: &mut Rng) {
    for id in 0..8 {
        let len = 1 + rng.below(60_000) as usize;
        let at = rng.below((BYTES - len) as u64) as usize;
        let op = match rng.below(3) {
            0 => SendOp::Write(peer.remote(at)),
            1 => SendOp::Read(peer.remote(at)),
            _ => SendOp::Send,
        };
        if matches!(op, SendOp::Send) {
            peer.recv(id, &[peer.sge(0, BYTES)]);
        }
        end.post(id, op, &[end.sge(at, len)]);
    }
}

/// Some threads tear down what is busy; others see to it that their own connection goes on as if nothing were.
fn torn_down(mode: &'static str, reset: bool) {
    let devices = [0, 1].map(|_| Device::open(&config(&[("tasks", mode), ("workers", "2")])).unwrap());
    let [near, far] = &devices;
    let init = EndInit { bytes: BYTES, ..EndInit::default() };
    let stop = AtomicBool::new(false);
    let (torn, calm) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for seed in 0..2 {
            let (stop, torn, init) = (&stop, &torn, &init);
            scope.spawn(move || {
                let mut rng = Rng(seed);
                let (mut a, mut b) = pair(near, far, init);
                while !stop.load(Ordering::Relaxed) {
                    burden(&a, &b, &mut rng);
                    burden(&b, &a, &mut rng);
                    for _ in 0..rng.below(200) {
                        near.poll();
                        std::hint::spin_loop();
                    }
                    if reset {
                        let attr = QpAttr { state: QpState::Reset, ..QpAttr::default() };
                        for end in [&a, &b] {
                            end.qp.modify(&attr, AttrMask::STATE).unwrap();
                            assert_eq!(end.poll().len(), 0, "a reset takes completions with it");
                        }
                        join(&a, &b, rng.next() as u32 & 0xff_ffff);
                        // It works as if it were new.
                        a.post(77, SendOp::Write(b.remote(0)), &[a.sge(0, 9000)]);
                        let wc = wait(near, &a);
                        assert_eq!((wc.id, wc.status), (77, WcStatus::Success));
                    } else {
                        let old = (a, b);
                        (a, b) = pair(near, far, init);
                        for end in [&old.0, &old.1] {
                            let device = if end.ip == near.port().ip { near } else { far };
                            device.deregister(end.keys.lkey).unwrap();
                        }
                        drop(old);
                    }
                    torn.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let (a, b) = pair(near, far, &init);
        let data = Rng(1).bytes(BYTES);
        a.buf.write(0, &data);
        let end = Instant::now() + Duration::from_secs(3);
        while Instant::now() < end || torn.load(Ordering::Relaxed) < 20 {
            b.buf.write(0, &[0; 70_000]);
            a.post(1, SendOp::Write(b.remote(0)), &[a.sge(0, 70_000)]);
            assert_eq!(wait(near, &a).status, WcStatus::Success);
            assert!(b.buf.read(0, 70_000) == data[..70_000]);
            calm.fetch_add(1, Ordering::Relaxed);
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(calm.load(Ordering::Relaxed) > 0);
    for device in &devices {
        assert_eq!(device.queue_pairs(), 0);
        assert_eq!(counter(device, "icrc_errors"), 0);
    }
}

#[test]
fn queue_pairs_are_destroyed_under_load() {
    for mode in MODES {
        in_time(mode, move || torn_down(mode, false));
    }
}

#[test]
fn queue_pairs_are_reset_under_load() {
    for mode in MODES {
        in_time(mode, move || torn_down(mode, true));
    }
}

/// Tasks of both are scheduled; nobody waits for anybody.
#[test]
fn a_device_is_dropped_under_load_before_its_queue_pairs() {
    for mode in MODES {
        in_time(mode, move || {
            for round in 0..10 {
                let [near, far] =
                    [0, 1].map(|_| Device::open(&config(&[("tasks", mode), ("workers", "2")])).unwrap());
                let init = EndInit { bytes: BYTES, ..EndInit::default() };
                let ends: Vec<_> = (0..8).map(|_| pair(&near, &far, &init)).collect();
                let mut rng = Rng(round);
                for (a, b) in &ends {
                    burden(a, b, &mut rng);
                    burden(b, a, &mut rng);
                }
                drop(near);
                // What is left of a device takes requests and does nothing.
                burden(&ends[0].0, &ends[0].1, &mut rng);
                drop(ends);
                drop(far);
            }
        });
    }
}
