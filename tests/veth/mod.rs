//! Two network namespaces that a veth pair joins. Not a test itself.
#![allow(unsafe_code, dead_code)]

use std::process::Command;
use std::sync::{Barrier, Condvar, Mutex, mpsc};
use std::time::{Duration, Instant};

/// The addresses of the two ends, for each scope there is.
pub(crate) const A: &str = "10.77.91.1";
pub(crate) const B: &str = "10.77.91.2";
pub(crate) const A6: &str = "fd77:91::1";
pub(crate) const B6: &str = "fd77:91::2";
pub(crate) const A_LINK: &str = "fe80::91:1";
pub(crate) const B_LINK: &str = "fe80::91:2";

/// Whether there can be no namespaces here; says why.
pub(crate) fn skipped() -> bool {
    // SAFETY: no arguments.
    let root = unsafe { libc::geteuid() } == 0;
    let why = if !root {
        "needs root"
    } else if Command::new("ip").arg("-V").output().is_err() {
        "needs the ip command (Debian: iproute2)"
    } else if !can_make_namespaces() {
        "may not make network namespaces here"
    } else {
        return false;
    };
    eprintln!("skipped: {why}");
    true
}

fn can_make_namespaces() -> bool {
    std::thread::spawn(|| enter_new_namespace().is_ok()).join().unwrap()
}

/// Moves the calling thread into a new network namespace, which ends with the thread and its sockets.
fn enter_new_namespace() -> std::io::Result<()> {
    // SAFETY: affects only this thread.
    match unsafe { libc::unshare(libc::CLONE_NEWNET) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// Runs `ip` in the calling thread's namespace.
pub(crate) fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split_whitespace()).output().unwrap();
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

fn addresses(device: &str, all: [&str; 3]) {
    let [v4, v6, link] = all;
    ip(&format!("address add {v4}/24 dev {device}"));
    // Nobody else has them, so they are there at once.
    ip(&format!("address add {v6}/64 dev {device} nodad"));
    ip(&format!("address add {link}/64 dev {device} nodad"));
}

/// Waits until packets leave by a device, and those to its addresses are taken: the kernel notices that its peer is
/// there, and adds the routes of IPv6 addresses, a moment later.
fn until_ready(device: &str, addresses: [&str; 2]) {
    let start = Instant::now();
    let says = |arguments: &[&str], words: &[String]| {
        let output = Command::new("ip").args(arguments).output().unwrap().stdout;
        let text = String::from_utf8_lossy(&output);
        words.iter().all(|word| text.contains(word))
    };
    let local = addresses.map(|address| format!("local {address} "));
    while !says(&["-o", "link", "show", device], &["state UP".into()])
        || !says(&["-6", "route", "show", "table", "local"], &local)
    {
        assert!(start.elapsed() < Duration::from_secs(10), "{device} does not come up");
    }
}

/// Tells the calling side of [`joined`] its neighbour's link address: while the kernel asks for it, it keeps but few
/// packets. `a`: whether it is side A.
pub(crate) fn meet(a: bool) {
    let (device, own, other, neighbours) = match a {
        true => ("va", "02:00:00:00:91:01", "02:00:00:00:91:02", [B, B6, B_LINK]),
        false => ("vb", "02:00:00:00:91:02", "02:00:00:00:91:01", [A, A6, A_LINK]),
    };
    ip(&format!("link set {device} address {own}"));
    for neighbour in neighbours {
        ip(&format!("neighbor replace {neighbour} lladdr {other} nud permanent dev {device}"));
    }
}

/// Runs `a` and `b` in two namespaces that a veth pair joins: `va` with address A and `vb` with address B.
pub(crate) fn joined<T: Send>(a: impl FnOnce() -> T + Send, b: impl FnOnce() -> T + Send) -> (T, T) {
    let (tid, tid_of_b) = mpsc::channel();
    let (ready, done) = (&Barrier::new(2), &Barrier::new(2));
    std::thread::scope(|scope| {
        let a = scope.spawn(move || {
            enter_new_namespace().unwrap();
            let other: libc::pid_t = tid_of_b.recv().unwrap();
            ip(&format!("link add va type veth peer name vb netns {other}"));
            ip("link set lo up");
            ip("link set va addrgenmode none");
            ip("link set va up");
            addresses("va", [A, A6, A_LINK]);
            ready.wait();
            ready.wait();
            until_ready("va", [A6, A_LINK]);
            ready.wait();
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(a));
            done.wait();
            result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        let b = scope.spawn(move || {
            enter_new_namespace().unwrap();
            // SAFETY: no arguments.
            tid.send(unsafe { libc::gettid() }).unwrap();
            ready.wait();
            ip("link set lo up");
            ip("link set vb addrgenmode none");
            ip("link set vb up");
            addresses("vb", [B, B6, B_LINK]);
            ready.wait();
            until_ready("vb", [B6, B_LINK]);
            ready.wait();
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(b));
            done.wait();
            result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        (a.join().unwrap(), b.join().unwrap())
    })
}

/// Where two threads meet, unless one of them has failed: then the other does too, after a while.
#[derive(Default)]
pub(crate) struct Step(Mutex<u64>, Condvar);

impl Step {
    #[track_caller]
    pub(crate) fn wait(&self) {
        let mut arrivals = self.0.lock().unwrap();
        *arrivals += 1;
        let both = arrivals.next_multiple_of(2);
        self.1.notify_all();
        let (_arrivals, waited) = self
            .1
            .wait_timeout_while(arrivals, Duration::from_secs(20), |arrivals| *arrivals < both)
            .unwrap();
        assert!(!waited.timed_out(), "the other side does not come");
    }
}
