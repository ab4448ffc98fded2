//! Workers without work cost nothing. Alone in its program, so that all workers are this test's.

#[allow(dead_code)]
#[path = "sim/harness.rs"]
mod harness;

use std::time::{Duration, Instant};

use urxe::config::{Config, Source};
use urxe::device::Device;
use urxe::verbs::SendOp;

use harness::{End, EndInit, Wiring, connect, good};

/// Threads that have nothing to do sleep.
#[test]
fn idle_workers_use_no_cpu() {
    let mut config = Config::default();
    config.set("tasks", "workqueue", Source::Default).unwrap();
    config.set("workers", "4", Source::Default).unwrap();
    let device = Device::open(&config).unwrap();
    let peer = Device::open(&Config::default()).unwrap();
    let (a, b) = (End::new(&device, EndInit::default()), End::new(&peer, EndInit::default()));
    connect(&a.qp, (b.ip, &b.qp), &Wiring::default());
    connect(&b.qp, (a.ip, &a.qp), &Wiring::default());
    a.post(1, SendOp::Write(b.remote(0)), &[a.sge(0, 5000)]);
    let end = Instant::now() + Duration::from_secs(20);
    while a.cq.is_empty() {
        peer.poll();
        assert!(Instant::now() < end);
    }
    assert_eq!(good(&a.poll()[0]).0, 1);
    let used = || {
        let mut total = 0;
        for task in std::fs::read_dir("/proc/self/task").unwrap().flatten() {
            let read = |file| std::fs::read_to_string(task.path().join(file)).unwrap_or_default();
            if read("comm").starts_with("urxe-task") {
                // Time on a CPU, in ns.
                let stat = read("schedstat");
                total += stat.split(' ').next().and_then(|ns| ns.parse::<u64>().ok()).unwrap_or(0);
            }
        }
        total
    };
    // Time has to pass; nothing else shows that nothing happens.
    std::thread::sleep(Duration::from_millis(50));
    let before = used();
    std::thread::sleep(Duration::from_millis(500));
    let spent = used() - before;
    assert!(before > 0, "workers have worked");
    assert!(spent < 5_000_000, "{spent} ns of 500 ms");
}
