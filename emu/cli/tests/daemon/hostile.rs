//! Clients that are not what they should be. The others go on.

use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};
use urxe_control::connection::{self, GREETING, decode, version_of};
use urxe_control::launch::Launch;
use urxe_control::protocol::{Failure, MAGIC, Numbered, Request, VERSION, Welcome};

use crate::support::{Fabric, Member, PATIENCE, URXE, eventually, spec};

fn raw(path: &std::path::Path) -> OwnedFd {
    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    rustix::net::connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    socket
}

/// The next packet, or that the daemon has hung up.
fn next(socket: &OwnedFd) -> Option<Vec<u8>> {
    let mut buffer = vec![0; 64 << 10];
    let end = Instant::now() + PATIENCE;
    loop {
        match connection::receive(socket.as_fd(), &mut buffer, &mut Vec::new()) {
            Ok(0) | Err(rustix::io::Errno::CONNRESET) => return None,
            Ok(length) => return Some(buffer[..length].to_vec()),
            Err(rustix::io::Errno::AGAIN) => assert!(Instant::now() < end, "the daemon says nothing"),
            Err(e) => panic!("{e}"),
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn refused(message: &[u8]) -> Failure {
    assert_eq!(version_of(message), Some(VERSION));
    match decode(&message[GREETING..]).unwrap() {
        Welcome::Refused(failure) => failure,
        other => panic!("{other:?}"),
    }
}

fn greeting(version: u16, rest: &[u8]) -> Vec<u8> {
    [&MAGIC[..], &version.to_le_bytes(), rest].concat()
}

#[test]
fn old_and_foreign_programs_are_refused_with_a_reason() {
    let fabric = Fabric::new();
    let (client, _heard) = fabric.client();
    let member = Member::new(client.lease(&spec(0)).unwrap());
    for (hello, errno, words) in [
        (greeting(VERSION + 1, b"\x01x"), rustix::io::Errno::PROTO, "version"),
        (b"GET / HTTP/1.0\r\n\r\n".to_vec(), rustix::io::Errno::PROTO, "protocol"),
        (greeting(VERSION, b"\xff\xff\xff\xff\xff"), rustix::io::Errno::PROTO, "greeting"),
        (vec![7; 4096], rustix::io::Errno::PROTO, "greeting"),
    ] {
        let socket = raw(&fabric.place.socket);
        connection::send(socket.as_fd(), &hello, &[]).unwrap();
        let failure = refused(&next(&socket).expect("an answer"));
        assert_eq!(failure.errno, errno.raw_os_error());
        assert!(failure.message.contains(words), "{failure}");
        assert_eq!(next(&socket), None, "then it hangs up");
    }
    client.device(&spec(0)).unwrap();
    member.check(&[]);
}

#[test]
fn garbage_ends_the_connection_of_its_sender_only() {
    let fabric = Fabric::new();
    let (client, _heard) = fabric.client();
    let member = Member::new(client.lease(&spec(0)).unwrap());
    let good = connection::encode(&Numbered { number: 1, body: Request::Lease(spec(0)) }).unwrap();
    let mut long = good.clone();
    long.push(0);
    for garbage in [vec![0xff; 100], good[..good.len() - 1].to_vec(), long, vec![1; 64 << 10]] {
        let socket = raw(&fabric.place.socket);
        connection::send(socket.as_fd(), &greeting(VERSION, b"\x01x"), &[]).unwrap();
        let message = next(&socket).expect("a welcome");
        assert!(matches!(decode(&message[GREETING..]), Ok(Welcome::Ready { .. })));
        connection::send(socket.as_fd(), &garbage, &[]).unwrap();
        assert_eq!(next(&socket), None, "it hangs up");
    }
    // Descriptors that nobody asked for are closed.
    let daemon = fabric.daemon().unwrap();
    let count = || std::fs::read_dir(format!("/proc/{daemon}/fd")).unwrap().count();
    let before = count();
    let connection = Launch::new(fabric.name()).unwrap().find().unwrap().unwrap();
    let own = std::fs::File::open("/dev/null").unwrap();
    for number in 0..20 {
        connection.send(number, &Request::Device(spec(0)), &[own.as_fd(), own.as_fd()]).unwrap();
    }
    drop(connection);
    eventually("they are closed", || count() <= before);
    member.check(&[]);
}

#[test]
fn lies_about_slots_are_refused() {
    let fabric = Fabric::new();
    let (client, _heard) = fabric.client();
    let lease = client.lease(&spec(0)).unwrap();
    let (address, slot) = (lease.address, lease.slot);
    let liar = Launch::new(fabric.name()).unwrap().find().unwrap().unwrap();
    let resume = |address, slot| Request::Resume { spec: spec(0), address, slot };
    let null = std::fs::File::open("/dev/null").unwrap();
    let (pipe, _end) = std::io::pipe().unwrap();
    let foreign = "127.0.189.77".parse().unwrap();
    let refuse = |request: &Request, beside: &[std::os::fd::BorrowedFd<'_>]| {
        liar.ask(request, beside, |_| ()).expect_err("must be refused").to_string()
    };
    // Somebody else's slot, one that does not exist, the daemon's own; with the right anchor, another, or none.
    for slot in [slot, slot + 1, 0, 255] {
        refuse(&resume(address, slot), &[lease.anchor.as_fd()]);
        refuse(&resume(address, slot), &[null.as_fd()]);
    }
    refuse(&resume(address, slot), &[]);
    refuse(&resume(address, slot), &[lease.anchor.as_fd(), lease.anchor.as_fd()]);
    refuse(&resume(foreign, 1), &[pipe.as_fd()]);
    refuse(&resume(foreign, 1), &[lease.anchor.as_fd()]);
    refuse(&Request::Release { address, slot }, &[]);
    for wrong in ["0.0.0.0", "::", "224.0.0.1", "ff02::1", "192.0.2.1"] {
        let spec = urxe_control::protocol::DeviceSpec { address: Some(wrong.parse().unwrap()), ..spec(0) };
        let message = refuse(&Request::Lease(spec), &[]);
        assert!(message.contains(wrong), "{message}");
    }
    let lid = |lid| urxe_control::protocol::DeviceSpec { lid: Some(lid), ..spec(0) };
    let message = refuse(&Request::Lease(lid(9)), &[]);
    assert!(message.contains("two LIDs"), "{message}");
    Member::new(lease).check(&[]);
}

#[test]
fn a_client_that_does_not_read_is_dropped() {
    let fabric = Fabric::new();
    let (client, _heard) = fabric.client();
    let connection = Launch::new(fabric.name()).unwrap().find().unwrap().unwrap();
    let deaf = std::thread::spawn(move || {
        (0..1_000_000).find_map(|number| connection.send(number, &Request::Device(spec(0)), &[]).err())
    });
    // Meanwhile others are served.
    while !deaf.is_finished() {
        client.device(&spec(0)).unwrap();
    }
    assert!(deaf.join().unwrap().is_some(), "it could send for ever");
    let daemon = fabric.daemon().unwrap();
    let status = std::fs::read_to_string(format!("/proc/{daemon}/status")).unwrap();
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).unwrap();
    let kilobytes: u64 = line.split_whitespace().next().unwrap().parse().unwrap();
    assert!(kilobytes < 32 * 1024, "{kilobytes} KiB");
}

/// The role of the process that has another user.
const FOREIGN: &str = "TEST_SOCKET_OF_ANOTHER_USER";

#[test]
fn another_user_is_refused_by_both_ends() {
    if let Some(path) = std::env::var_os(FOREIGN) {
        let path = std::path::Path::new(&path);
        let error = connection::Connection::open(path).unwrap_err().to_string();
        assert!(error.contains("runs as user 0"), "{error}");
        let socket = raw(path);
        let _ = connection::send(socket.as_fd(), &greeting(VERSION, b"\x01x"), &[]);
        let failure = refused(&next(&socket).expect("an answer"));
        assert_eq!(failure.errno, rustix::io::Errno::ACCESS.raw_os_error());
        assert!(failure.message.contains("user 65534"), "{failure}");
        return;
    }
    if !rustix::process::geteuid().is_root() {
        eprintln!("needs root to be another user");
        return;
    }
    // A folder of its own, which is then opened to others as it never should be.
    let folder = std::path::PathBuf::from(format!("/tmp/urxe-test-foreign-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    let mut daemon = Command::new(URXE)
        .args(["daemon", "--stay", "--fabric", "foreign"])
        .env("XDG_RUNTIME_DIR", &folder)
        .env("URXE_CONFIG", "")
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let own = folder.join("urxe");
    let find = || {
        let entries = std::fs::read_dir(&own).ok()?;
        entries.flatten().map(|e| e.path()).find(|p| p.extension().is_some_and(|e| e == "sock"))
    };
    eventually("it listens", || find().is_some());
    let socket = find().unwrap();
    std::fs::set_permissions(&folder, PermissionsExt::from_mode(0o711)).unwrap();
    std::fs::set_permissions(&own, PermissionsExt::from_mode(0o711)).unwrap();
    std::fs::set_permissions(&socket, PermissionsExt::from_mode(0o666)).unwrap();
    // Where another user can execute it.
    let copy = folder.join("test");
    std::fs::copy(std::env::current_exe().unwrap(), &copy).unwrap();
    let output = Command::new(&copy)
        .args(["--exact", "hostile::another_user_is_refused_by_both_ends", "--nocapture"])
        .env(FOREIGN, &socket)
        .uid(65534)
        .gid(65534)
        .current_dir("/")
        .output()
        .unwrap();
    daemon.kill().unwrap();
    daemon.wait().unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    std::io::stderr().write_all(&output.stderr).unwrap();
}
