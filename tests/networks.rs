//! Whole devices on real networks: IPv6, and two network namespaces that a veth pair joins.
//!
//! The latter need root and the `ip` command; without them such a test says so and passes.

#[path = "sim/harness.rs"]
#[allow(dead_code)]
mod harness;
mod veth;

use std::net::IpAddr;
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use harness::{CAPS, End, EndInit, Wiring, connect, good, vector};
use urxe::config::Config;
use urxe::device::Device;
use urxe::ids::{Gid, Mtu, QKey, Qpn};
use urxe::verbs::{AddressVector, QpType, SendFlags, SendOp, SendWr, UdDest, WcOpcode};
use veth::{A, A_LINK, A6, B, B_LINK, B6, Step, joined, skipped};

/// One at a time has this address.
static LOOPBACK: Mutex<()> = Mutex::new(());

const GRH: usize = 40;
const LEN: usize = 100_000;

fn open(ip: &str) -> Device {
    let mut config = Config::default();
    config.addr = Some(ip.parse().unwrap());
    Device::open(&config).unwrap()
}

/// Waits for completions of one kind.
#[track_caller]
fn wait(device: &Device, end: &End, kind: WcOpcode, count: usize) -> usize {
    let start = Instant::now();
    let mut bytes = 0;
    let mut got = 0;
    while got < count {
        for wc in end.poll() {
            let (_, opcode, len) = good(&wc);
            if opcode == kind {
                got += 1;
                bytes = len as usize;
            }
        }
        device.poll();
        assert!(
            start.elapsed() < Duration::from_secs(10),
            "{}: {got} of {count} completions; {:?}",
            device.port().ip,
            device.counters()
        );
    }
    bytes
}

fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| ((i + seed) as u32).wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect()
}

/// One side of a conversation: a SEND each way, then a WRITE and a READ by the first side.
fn converse(device: &Device, own: &End, peer: &End, first: bool, step: &Step) {
    let (mine, theirs) = if first { (1, 2) } else { (2, 1) };
    own.buf.write(0, &pattern(mine, LEN));
    own.recv(1, &[own.sge(LEN, LEN)]);
    step.wait();
    own.post(2, SendOp::Send, &[own.sge(0, LEN)]);
    assert_eq!(wait(device, own, WcOpcode::Recv, 1), LEN);
    assert!(own.buf.read(LEN, LEN) == pattern(theirs, LEN));
    step.wait();
    if first {
        own.post(3, SendOp::Write(peer.remote(LEN)), &[own.sge(0, LEN)]);
        wait(device, own, WcOpcode::RdmaWrite, 1);
        assert!(peer.buf.read(LEN, LEN) == pattern(mine, LEN));
        own.post(4, SendOp::Read(peer.remote(LEN)), &[own.sge(2 * LEN, LEN)]);
        wait(device, own, WcOpcode::RdmaRead, 1);
        assert!(own.buf.read(2 * LEN, LEN) == pattern(mine, LEN));
    }
    step.wait();
}

fn to(gid: Gid) -> AddressVector {
    AddressVector { dgid: gid, is_global: true, port: 1, hop_limit: 1, ..Default::default() }
}

/// The 40 bytes before a datagram name both ends.
fn check_grh(end: &End, from: IpAddr, to: IpAddr) {
    let header = end.buf.read(0, GRH);
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            assert_eq!((&header[32..36], &header[36..]), (&from.octets()[..], &to.octets()[..]));
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            assert_eq!((&header[8..24], &header[24..]), (&from.octets()[..], &to.octets()[..]));
        }
        _ => panic!("one family"),
    }
}

fn send_datagram(device: &Device, end: &End, av: &AddressVector, qpn: Qpn, len: usize) {
    let ud = Some(UdDest { path: device.resolve(av).unwrap(), qpn, qkey: QKey(Wiring::default().qkey) });
    let sges = [end.sge(LEN, len)];
    let flags = SendFlags::default();
    end.qp.post_send([SendWr { id: 7, op: SendOp::Send, flags, sges: &sges, ud }]).unwrap();
}

/// Both sides of a test with a queue pair of some kind each, at these addresses.
fn both(kind: QpType, a: &str, b: &str, test: impl Fn(&Device, &End, &End, bool, &Step) + Sync) {
    let (step, ends) = (&Step::default(), &[OnceLock::new(), OnceLock::new()]);
    let test = &test;
    let side = |own: usize, address: &'static str| {
        move || {
            let device = open(address);
            let end = End::new(&device, EndInit { kind, bytes: 3 * LEN, caps: CAPS, ..Default::default() });
            assert!(ends[own].set(end).is_ok());
            step.wait();
            let (own_end, peer) = (ends[own].get().unwrap(), ends[1 - own].get().unwrap());
            let wiring = Wiring { mtu: Mtu::B1024, ..Default::default() };
            connect(&own_end.qp, (peer.ip, &peer.qp), &wiring);
            step.wait();
            test(&device, own_end, peer, own == 0, step);
            step.wait();
            let wrong = ["icrc_errors", "malformed_pkts"];
            for (name, value) in device.counters() {
                assert!(value == 0 || !wrong.contains(&name), "{name}: {value}");
            }
        }
    };
    // The addresses are constants.
    let name = |ip: &str| -> &'static str {
        [A, B, A6, B6, A_LINK, B_LINK].into_iter().find(|known| *known == ip).expect("one of the veth pair's")
    };
    joined(side(0, name(a)), side(1, name(b)));
}

#[test]
fn a_connection_over_ipv6_loopback_with_itself() {
    let _mine = LOOPBACK.lock();
    let device = open("::1");
    let init = || EndInit { bytes: 3 * LEN, ..Default::default() };
    let (a, b) = (End::new(&device, init()), End::new(&device, init()));
    connect(&a.qp, (b.ip, &b.qp), &Wiring::default());
    connect(&b.qp, (a.ip, &a.qp), &Wiring::default());
    let step = &Step::default();
    std::thread::scope(|scope| {
        scope.spawn(|| converse(&device, &a, &b, true, step));
        scope.spawn(|| converse(&device, &b, &a, false, step));
    });
}

#[test]
fn a_datagram_over_ipv6_loopback_names_its_sender() {
    let _mine = LOOPBACK.lock();
    let device = open("::1");
    let init = || EndInit { kind: QpType::Ud, bytes: 3 * LEN, ..Default::default() };
    let (a, b) = (End::new(&device, init()), End::new(&device, init()));
    connect(&a.qp, (b.ip, &b.qp), &Wiring::default());
    connect(&b.qp, (a.ip, &a.qp), &Wiring::default());
    b.recv(1, &[b.sge(0, 4096)]);
    a.buf.write(LEN, &pattern(3, 777));
    send_datagram(&device, &a, &vector(b.ip), b.qp.number(), 777);
    assert_eq!(wait(&device, &b, WcOpcode::Recv, 1), GRH + 777);
    check_grh(&b, a.ip, b.ip);
    assert!(b.buf.read(GRH, 777) == pattern(3, 777));
}

#[test]
fn connections_between_hosts_over_each_kind_of_address() {
    if skipped() {
        return;
    }
    for kind in [QpType::Rc] {
        for (a, b) in [(A, B), (A6, B6), (A_LINK, B_LINK)] {
            both(kind, a, b, converse);
        }
    }
}

#[test]
fn datagrams_between_hosts_over_each_kind_of_address() {
    if skipped() {
        return;
    }
    for (a, b) in [(A, B), (A6, B6), (A_LINK, B_LINK)] {
        both(QpType::Ud, a, b, |device, own, peer, _, step| {
            own.recv(1, &[own.sge(0, 4096)]);
            own.buf.write(LEN, &pattern(3, 1024));
            step.wait();
            send_datagram(device, own, &vector(peer.ip), peer.qp.number(), 1024);
            assert_eq!(wait(device, own, WcOpcode::Recv, 1), GRH + 1024);
            check_grh(own, peer.ip, own.ip);
            assert!(own.buf.read(GRH, 1024) == pattern(3, 1024));
        });
    }
}

#[test]
fn members_of_a_group_on_both_hosts_get_a_copy() {
    if skipped() {
        return;
    }
    for (a, b, group) in [
        (A, B, "239.77.91.5"),
        (A, B, "224.0.0.91"),
        (A6, B6, "ff0e::91"),
        (A6, B6, "ff02::91"),
        (A6, B6, "ff01::91"),
        (A_LINK, B_LINK, "ff02::91"),
    ] {
        let gid = Gid::from_ip(group.parse().unwrap());
        both(QpType::Ud, a, b, |device, own, peer, first, step| {
            own.qp.attach(gid).unwrap();
            for id in 0..3 {
                own.recv(id, &[own.sge(id as usize * 2048, 2048)]);
            }
            own.buf.write(LEN, &pattern(3, 1024));
            step.wait();
            if first {
                send_datagram(device, own, &to(gid), Qpn::MULTICAST, 1024);
            }
            assert_eq!(wait(device, own, WcOpcode::Recv, 1), GRH + 1024, "{group}");
            let (from, at) = if first { (own.ip, own) } else { (peer.ip, own) };
            check_grh(at, from, urxe::device::multicast::group_of(gid, own.ip).unwrap());
            assert!(own.buf.read(GRH, 1024) == pattern(3, 1024));
            // And no second copy: what comes next is a datagram to the queue pair alone.
            step.wait();
            send_datagram(device, own, &vector(peer.ip), peer.qp.number(), 8);
            assert_eq!(wait(device, own, WcOpcode::Recv, 1), GRH + 8, "{group}");
            own.qp.detach(gid).unwrap();
        });
    }
}
