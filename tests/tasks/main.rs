//! Tasks in workers: each mode moves the same bytes, and queue pairs come and go under load.

#[allow(dead_code)]
#[path = "../sim/harness.rs"]
mod harness;
#[allow(dead_code)]
#[path = "../sim/traffic.rs"]
mod traffic;

mod load;
mod mixed;
mod settings;

use std::sync::Arc;
use std::time::Duration;

use urxe::device::Device;

use crate::harness::{End, EndInit, Wiring, connect};

const MODES: [&str; 3] = ["inline", "workqueue", "auto"];
const PATIENCE: Duration = Duration::from_secs(60);

/// Two connected ends on devices of their own.
fn pair(a: &Device, b: &Device, init: &EndInit) -> (End, End) {
    let (a, b) = (End::new(a, init.clone()), End::new(b, init.clone()));
    join(&a, &b, 0xff_fff0);
    (a, b)
}

/// Connects two ends. What was sent before a reset may still arrive, so a PSN should not be used again soon.
fn join(a: &End, b: &End, psn: u32) {
    let wiring = Wiring { timeout: 16, psn, ..Wiring::default() };
    connect(&a.qp, (b.ip, &b.qp), &wiring);
    connect(&b.qp, (a.ip, &a.qp), &wiring);
}

/// A test that hangs must fail: runs it in a thread and gives it limited time.
fn in_time(name: &str, test: impl FnOnce() + Send + 'static) {
    let (done, end) = std::sync::mpsc::channel();
    let name: Arc<str> = name.into();
    let thread = std::thread::Builder::new().name(name.to_string());
    let thread = thread.spawn(move || {
        test();
        let _ = done.send(());
    });
    match end.recv_timeout(3 * PATIENCE) {
        Err(std::sync::mpsc::RecvTimeoutError::Timeout) => panic!("{name} hangs"),
        _ => thread.unwrap().join().unwrap(),
    }
}
