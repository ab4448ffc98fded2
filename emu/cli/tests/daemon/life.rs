//! How a daemon comes, goes, and comes back.

use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Instant;

use rustix::process::Signal;
use urxe::cm::{Answer, Command as CmCommand, PortSpace};
use urxe_control::Error;
use urxe_control::client::CmError;
use urxe_control::protocol::DeviceSpec;

use crate::support::{Fabric, Heard, Member, PATIENCE, URXE, eventually, hear, spec};

#[test]
fn connected_processes_outlive_the_daemon_and_the_next_one_knows_them() {
    let fabric = Fabric::new();
    let (a, heard_a) = fabric.client();
    let (b, heard_b) = fabric.client();
    let one = Member::new(a.lease(&spec(0)).unwrap());
    let two = Member::new(b.lease(&spec(0)).unwrap());
    assert_eq!((one.slot, two.slot), (1, 2));
    let first = fabric.daemon();
    for round in 0..2 {
        fabric.signal(Signal::KILL);
        for heard in [&heard_a, &heard_b] {
            assert!(matches!(hear(heard), Heard::Lost));
            assert!(matches!(hear(heard), Heard::Restored));
        }
        one.check(&[&two]);
        two.check(&[&one]);
        let (c, _heard) = fabric.client();
        let three = Member::new(c.lease(&spec(0)).unwrap());
        // The slot of the one before waits for its process, which does not come.
        assert_eq!((three.address, three.slot), (one.address, 3 + round));
        three.check(&[&one, &two]);
        let other = Member::new(c.lease(&spec(1)).unwrap());
        assert_ne!(other.address, one.address);
    }
    assert_ne!(fabric.daemon(), first);
    a.release(one.address, one.slot).unwrap();
    two.check(&[]);
}

#[test]
fn calls_wait_for_the_next_daemon_and_fail_clearly_without_one() {
    let fabric = Fabric::new();
    let (client, heard) = fabric.client();
    fabric.signal(Signal::KILL);
    let lease = client.lease(&spec(0));
    // It may have been on its way when the daemon died; then it says so.
    assert!(matches!(&lease, Ok(_) | Err(Error::Lost(_))), "{lease:?}");
    assert!(matches!(hear(&heard), Heard::Lost));
    assert!(matches!(hear(&heard), Heard::Restored));
    client.lease(&spec(0)).unwrap();
}

#[test]
fn a_new_process_that_comes_before_the_old_ones_gets_their_address() {
    let fabric = Fabric::new();
    let (old, heard) = fabric.client();
    let one = Member::new(old.lease(&spec(0)).unwrap());
    fabric.signal(Signal::KILL);
    let (new, _heard) = fabric.client();
    let two = Member::new(new.lease(&spec(0)).unwrap());
    assert_eq!((two.address, two.slot), (one.address, 2));
    assert!(matches!(hear(&heard), Heard::Lost));
    assert!(matches!(hear(&heard), Heard::Restored));
    one.check(&[&two]);
    two.check(&[&one]);
}

#[test]
fn many_clients_at_once_start_one_daemon() {
    let fabric = Fabric::new();
    let daemons: BTreeSet<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..12)
            .map(|_| {
                scope.spawn(|| {
                    let (client, _heard) = fabric.client();
                    client.device(&spec(0)).unwrap();
                    fabric.daemon().unwrap()
                })
            })
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    assert_eq!(daemons.len(), 1);
}

#[test]
fn a_daemon_leaves_after_its_last_client_and_nothing_stays() {
    let fabric = Fabric::new();
    let (client, _heard) = fabric.client();
    let lease = client.lease(&spec(0)).unwrap();
    let daemon = fabric.daemon().unwrap();
    drop(lease);
    let end = Instant::now();
    drop(client);
    // Who only looks does not keep it.
    eventually("the daemon is gone", || {
        fabric.looked_at();
        !std::path::Path::new(&format!("/proc/{daemon}")).exists()
    });
    assert!(end.elapsed() >= urxe_daemon::LINGER, "it did not linger");
    assert!(!fabric.place.socket.exists() && !fabric.place.lock.exists());
}

#[test]
fn a_signal_ends_the_daemon_cleanly() {
    for signal in [Signal::TERM, Signal::INT] {
        let fabric = Fabric::new();
        let mut daemon = fabric.urxe("daemon", &["--stay"]).stderr(Stdio::piped()).spawn().unwrap();
        eventually("it listens", || fabric.place.socket.exists());
        let second = fabric.urxe("daemon", &[]).output().unwrap();
        let text = String::from_utf8_lossy(&second.stderr).into_owned();
        assert_eq!(second.status.code(), Some(125));
        assert!(text.contains("runs already") && text.contains(&daemon.id().to_string()), "{text}");
        fabric.signal(signal);
        assert!(daemon.wait().unwrap().success());
        assert!(!fabric.place.socket.exists() && !fabric.place.lock.exists());
    }
}

/// The role of the process in which [`a_program_does_not_see_the_daemon_as_its_child`] looks.
const PARENT: &str = "TEST_PARENT_OF_NOBODY";

#[test]
fn a_program_does_not_see_the_daemon_as_its_child() {
    if std::env::var_os(PARENT).is_some() {
        let fabric = Fabric::new();
        let descriptor = std::fs::File::open("/proc/self/stat").unwrap();
        // Without CLOEXEC, as programs have them.
        let leaked = rustix::io::dup(&descriptor).unwrap();
        let (client, _heard) = fabric.client();
        client.device(&spec(0)).unwrap();
        let none = rustix::process::wait(rustix::process::WaitOptions::NOHANG);
        assert_eq!(none.err(), Some(rustix::io::Errno::CHILD), "wait() finds a child");
        let daemon = fabric.daemon().unwrap();
        let stat = std::fs::read_to_string(format!("/proc/{daemon}/stat")).unwrap();
        let fields: Vec<_> = stat.rsplit_once(')').unwrap().1.split_whitespace().map(str::to_owned).collect();
        assert_ne!(fields[1], std::process::id().to_string(), "parent");
        assert_eq!(fields[3], daemon.to_string(), "it has a session of its own");
        let open = std::fs::read_dir(format!("/proc/{daemon}/fd")).unwrap();
        let targets: Vec<_> = open.flatten().filter_map(|e| std::fs::read_link(e.path()).ok()).collect();
        assert!(targets.iter().all(|t| !t.ends_with("stat")), "{targets:?}");
        let environment = std::fs::read(format!("/proc/{daemon}/environ")).unwrap();
        assert!(!String::from_utf8_lossy(&environment).contains("LD_PRELOAD"));
        assert_eq!(std::fs::read_link(format!("/proc/{daemon}/cwd")).unwrap(), std::path::Path::new("/"));
        let status = std::fs::read_to_string(format!("/proc/{daemon}/status")).unwrap();
        let line = |name| status.lines().find_map(|l: &str| l.strip_prefix(name)).unwrap().trim().to_owned();
        assert_eq!(line("SigBlk:"), "0000000000000000");
        drop(leaked);
        return;
    }
    // A test's process has other threads with children; this needs one that has none.
    let name = "life::a_program_does_not_see_the_daemon_as_its_child";
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(PARENT, "1")
        .env("LD_PRELOAD", "libm.so.6")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The role of the process that [`a_process_that_dies_gives_its_slot_back_although_its_child_lives`] kills.
const DYING: &str = "TEST_FABRIC_OF_THE_DYING";

#[test]
fn a_process_that_dies_gives_its_slot_back_although_its_child_lives() {
    if let Some(name) = std::env::var_os(DYING) {
        let flags = [("fabric".to_owned(), name.into_string().unwrap())];
        let config = urxe::config::Config::resolve([], &flags).unwrap();
        let launch = urxe_control::launch::Launch::new(config.fabric.as_str()).unwrap();
        let connection = launch.connect().unwrap();
        let request = urxe_control::protocol::Request::Lease(spec(0));
        connection.ask(&request, &[], |_| ()).unwrap();
        // The child inherits the connection.
        let flags = rustix::io::fcntl_getfd(connection.as_fd()).unwrap();
        rustix::io::fcntl_setfd(connection.as_fd(), flags - rustix::io::FdFlags::CLOEXEC).unwrap();
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        println!("child {}", child.id());
        let _ = child.wait();
        return;
    }
    let fabric = Fabric::new();
    let (client, _heard) = fabric.client();
    let name = "life::a_process_that_dies_gives_its_slot_back_although_its_child_lives";
    let mut dying = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(DYING, fabric.name())
        .stdout(Stdio::piped())
        .process_group(0)
        .spawn()
        .unwrap();
    let slots = || fabric.status().0.devices.first().map_or(0, |d| d.slots);
    eventually("it has a slot", || slots() == 1);
    let mut out = std::io::BufReader::new(dying.stdout.take().unwrap());
    let mut line = String::new();
    while !line.contains("child ") {
        line.clear();
        assert!(std::io::BufRead::read_line(&mut out, &mut line).unwrap() > 0, "no child");
    }
    dying.kill().unwrap();
    dying.wait().unwrap();
    eventually("the slot came back", || slots() == 0);
    let second = client.lease(&spec(0)).unwrap();
    assert_eq!(second.slot, 2, "the first is in quarantine");
    let group = rustix::process::Pid::from_raw(dying.id() as i32).unwrap();
    rustix::process::kill_process_group(group, Signal::KILL).unwrap();
}

#[test]
fn a_slot_is_used_again_after_its_quarantine() {
    let fabric = Fabric::new();
    let (client, _heard) = fabric.client();
    let lease = client.lease(&spec(0)).unwrap();
    let first = Instant::now();
    client.release(lease.address, lease.slot).unwrap();
    assert_eq!(client.release(lease.address, lease.slot).unwrap_err().errno(), libc_einval());
    assert_eq!(client.lease(&spec(0)).unwrap().slot, 2);
    eventually("slot 1 again", || client.lease(&spec(0)).unwrap().slot == 1);
    assert!(first.elapsed().as_millis() >= 1000);
}

fn libc_einval() -> i32 {
    rustix::io::Errno::INVAL.raw_os_error()
}

#[test]
fn the_255th_process_is_refused_and_the_others_go_on() {
    let fabric = Fabric::new();
    let (client, _heard) = fabric.client();
    let mut leases: Vec<_> = (1..=254).map(|_| client.lease(&spec(0)).unwrap()).collect();
    let error = client.lease(&spec(0)).unwrap_err();
    assert_eq!(error.errno(), rustix::io::Errno::NOSPC.raw_os_error());
    assert!(error.to_string().contains("254 processes"), "{error}");
    let last = Member::new(leases.pop().unwrap());
    let first = Member::new(leases.remove(0));
    last.check(&[&first]);
    first.check(&[&last]);
    // One that waits for the end of a quarantine gets the slot.
    client.release(first.address, first.slot).unwrap();
    assert_eq!(client.lease(&spec(0)).unwrap().slot, first.slot);
    client.lease(&spec(1)).unwrap();
}

#[test]
fn clients_that_come_and_go_leave_nothing() {
    let fabric = Fabric::new();
    let (client, _heard) = fabric.client();
    let _lease = client.lease(&spec(0)).unwrap();
    let daemon = fabric.daemon().unwrap();
    let count = || std::fs::read_dir(format!("/proc/{daemon}/fd")).unwrap().count();
    let own = || std::fs::read_dir("/proc/self/task").unwrap().count();
    // Sockets of slots are made once and stay.
    for _ in 0..20 {
        fabric.client().0.lease(&spec(0)).unwrap();
    }
    let slots = fabric.status().0.devices[0].draining + 1;
    let before = (count(), slots);
    for round in 0..300 {
        let (client, _heard) = fabric.client();
        if round % 10 == 0 {
            client.device(&spec(0)).unwrap();
        }
    }
    eventually("all descriptors are closed", || count() <= before.0);
    assert!(own() < 100, "threads are left");
}

#[test]
fn an_idle_daemon_is_small() {
    let fabric = Fabric::new();
    let (client, _heard) = fabric.client();
    for node in 0..4 {
        client.lease(&spec(node)).unwrap();
    }
    let status = std::fs::read_to_string(format!("/proc/{}/status", fabric.daemon().unwrap())).unwrap();
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).unwrap();
    let kilobytes: u64 = line.split_whitespace().next().unwrap().parse().unwrap();
    assert!(kilobytes < 20 * 1024, "{kilobytes} KiB");
}

#[test]
fn network_namespaces_do_not_share_a_daemon() {
    let fabric = Fabric::new();
    let (client, _heard) = fabric.client();
    client.device(&spec(0)).unwrap();
    let script = format!("ip link set lo up && exec {URXE} devices --fabric {}", fabric.name());
    let mut there = Command::new("unshare");
    there.args(["--net", "--", "sh", "-c", &script]).env("URXE_CONFIG", "");
    let output = there.output().unwrap();
    if !output.status.success() && !rustix::process::geteuid().is_root() {
        eprintln!("needs root to make a network namespace: {}", String::from_utf8_lossy(&output.stderr));
        return;
    }
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // Another daemon served it: this one has no slot that was used.
    assert_eq!(fabric.status().0.devices[0].draining, 0);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let address = client.device(&spec(0)).unwrap().0;
    assert!(text.contains(&address.to_string()), "the same address in another network: {text}");
}

#[test]
fn processes_tell_what_they_have() {
    let fabric = Fabric::new();
    let (client, _heard) = fabric.client();
    let (other, _heard) = fabric.client();
    let lease = client.lease(&spec(2)).unwrap();
    let group = "239.1.2.3".parse().unwrap();
    client.multicast(lease.address, group, true).unwrap();
    assert!(other.multicast(lease.address, group, true).is_err(), "it has no slot there");
    let (status, processes, silent) = fabric.status();
    assert_eq!((processes.len(), silent), (1, 0));
    assert_eq!(processes[0].pid, std::process::id());
    assert_eq!(processes[0].leases, [(lease.address, lease.slot)]);
    let device = &processes[0].report.devices[0];
    assert_eq!(device.counters, [("sent_pkts".to_owned(), 7)]);
    assert!((100..512).contains(&device.qps.len()), "as many as fit: {}", device.qps.len());
    assert_eq!(status.devices[0].node, 2);
    assert_eq!(status.devices[0].groups, [(group, 1)]);
    client.multicast(lease.address, group, false).unwrap();
    assert!(fabric.status().0.devices[0].groups.is_empty());

    let output = fabric.urxe("stat", &[]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("sent_pkts=7") && text.contains(&lease.address.to_string()), "{text}");
    let output = fabric.urxe("stat", &["--json"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.starts_with('{') && text.contains("\"sent_pkts\":7"), "{text}");
}

#[test]
fn stat_without_a_daemon_says_so_and_starts_none() {
    let fabric = Fabric::new();
    let output = fabric.urxe("stat", &[]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && text.contains("no daemon of fabric"), "{text}");
    assert_eq!(fabric.daemon(), None);
}

#[test]
fn endpoints_of_a_process_end_with_the_daemon() {
    let fabric = Fabric::new();
    let (client, heard) = fabric.client();
    let lease = client.lease(&spec(0)).unwrap();
    let bind = |port| CmCommand::Bind {
        space: PortSpace::Tcp,
        address: (lease.address, port).into(),
        devices: vec![lease.address],
        reuse: false,
        v6_only: false,
    };
    let Answer::Bound { endpoint, port } = client.cm(bind(0)).unwrap() else { panic!("not bound") };
    assert!(matches!(client.cm(bind(port)), Err(CmError::Refused(urxe::cm::Refused::AddressInUse))));
    fabric.signal(Signal::KILL);
    assert!(matches!(heard.recv_timeout(PATIENCE), Ok(Heard::Lost)));
    assert!(matches!(heard.recv_timeout(PATIENCE), Ok(Heard::Restored)));
    let old = client.cm(CmCommand::Listen { endpoint, backlog: 0 });
    assert!(matches!(old, Err(CmError::Refused(urxe::cm::Refused::NoEndpoint))), "{old:?}");
    client.cm(bind(port)).unwrap();
}

#[test]
fn a_configured_address_is_given_up_when_nobody_uses_it() {
    let fabric = Fabric::new();
    let (client, _heard) = fabric.client();
    let [.., high, low] = std::process::id().to_be_bytes();
    let address: std::net::IpAddr = [127, 78, high, low].into();
    let there = DeviceSpec { address: Some(address), ..spec(0) };
    let first = Member::new(client.lease(&there).unwrap());
    assert_eq!(first.address, address);
    // Another process, perhaps of another terminal, shares it; another fabric cannot.
    let (terminal, _heard) = fabric.client();
    let second = Member::new(terminal.lease(&there).unwrap());
    first.check(&[&second]);
    let other = Fabric::new();
    let (stranger, _heard) = other.client();
    let error = stranger.lease(&there).unwrap_err();
    assert_eq!(error.errno(), rustix::io::Errno::ADDRINUSE.raw_os_error(), "{error}");
    assert!(error.to_string().contains(&address.to_string()), "{error}");
    client.release(first.address, first.slot).unwrap();
    drop((first, second, terminal));
    let devices = || fabric.status().0.devices;
    eventually("the device is closed", || devices().is_empty());
    stranger.lease(&there).unwrap();
}
