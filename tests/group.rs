//! One address, many processes: devices on the slots of a group of sockets.
#![allow(unsafe_code)]

#[path = "sim/harness.rs"]
#[allow(dead_code)]
mod harness;
#[path = "veth/mod.rs"]
mod veth;

use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use harness::{ALL_ACCESS, Buf, End, EndInit, Rng, Wiring, connect, good, masks, vector};
use parking_lot::{Condvar, Mutex};
use urxe::config::Config;
use urxe::cq::CqNotify;
use urxe::device::{Clock, Device, Lease, QpInit, QueuePair};
use urxe::ids::{Mtu, Psn, Qpn, RKey};
use urxe::io::udp::group::Group;
use urxe::io::udp::{self, OpenError, UdpLink};
use urxe::io::{Backlog, Counters, Limits, Link, Runs, RxBatch, SendOutcome};
use urxe::verbs::*;
use urxe::wire::batch::{IpId, Path, Run};
use urxe::wire::{Bth, Headers, Opcode, TxBatch};

const PATIENCE: Duration = Duration::from_secs(20);

/// A group on a loopback address that nobody else has.
fn group() -> Group {
    // Tests of several processes should not try the same ones first.
    let start = std::process::id().wrapping_mul(0x9e37_79b9) >> 10;
    for i in 0..1 << 22 {
        let low = (start + i) & 0x3f_ffff;
        let ip = Ipv4Addr::from(0x7fc0_0000 | low);
        match Group::open(&udp::Config::new(ip.into())) {
            Ok(group) => return group,
            Err(OpenError::AddressInUse { .. }) => {}
            Err(other) => panic!("{other}"),
        }
    }
    panic!("no address is free");
}

fn lease(group: &mut Group, slot: u8) -> Lease {
    Lease { slot, socket: group.socket(slot).unwrap(), anchor: group.anchor().unwrap() }
}
fn member(group: &mut Group, slot: u8) -> Device {
    Device::open_member(&Config::default(), lease(group, slot)).unwrap()
}

fn counter(device: &Device, name: &str) -> u64 {
    device.counters().into_iter().find(|(n, _)| *n == name).unwrap().1
}

/// Polls devices until `done`.
#[track_caller]
fn wait(devices: &[&Device], mut done: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !done() {
        devices.iter().for_each(|device| device.poll());
        let counters = || devices.iter().map(|device| device.counters()).collect::<Vec<_>>();
        assert!(Instant::now() < end, "{:?}", counters());
    }
}

#[test]
fn members_talk_to_each_other_and_to_themselves_whoever_ends() {
    let mut owner = group();
    let devices: Vec<Device> = [1, 2, 254].map(|slot| member(&mut owner, slot)).into();
    // The owner's end changes nothing: each device holds the anchor.
    drop(owner);
    let ip = devices[0].port().ip;
    assert!(devices.iter().all(|device| device.port().ip == ip));
    let mut ends = Vec::new();
    for a in &devices {
        for b in &devices {
            let (one, two) = (End::new(a, EndInit::default()), End::new(b, EndInit::default()));
            assert_eq!(one.qp.number().0 >> 16, u32::from(a.slot()));
            connect(&one.qp, (ip, &two.qp), &Wiring::default());
            connect(&two.qp, (ip, &one.qp), &Wiring::default());
            ends.push((one, two));
        }
    }
    let all: Vec<&Device> = devices.iter().collect();
    let exchange = |ends: &[(End, End)], devices: &[&Device]| {
        for (i, (a, b)) in ends.iter().enumerate() {
            a.buf.write(0, &Rng(i as u64).bytes(30_000));
            b.recv(1, &[b.sge(0, 30_000)]);
            a.post(2, SendOp::Send, &[a.sge(0, 30_000)]);
            a.post(3, SendOp::Read(b.remote(0)), &[a.sge(30_000, 30_000)]);
        }
        for (i, (a, b)) in ends.iter().enumerate() {
            let (mut sent, mut received) = (0, 0);
            wait(devices, || {
                sent += a.poll().iter().inspect(|wc| _ = good(wc)).count();
                received += b.poll().iter().inspect(|wc| _ = good(wc)).count();
                (sent, received) == (2, 1)
            });
            let bytes = Rng(i as u64).bytes(30_000);
            assert!(a.buf.read(30_000, 30_000) == bytes && b.buf.read(0, 30_000) == bytes, "pair {i}");
        }
    };
    exchange(&ends, &all);
    let status = devices[0].status(1000);
    assert_eq!(status.len(), 6);
    assert!(status.iter().all(|qp| qp.state == QpState::Rts && qp.peer.is_some_and(|(peer, _)| peer == ip)));
    assert_eq!(devices[0].status(2).len(), 2);

    // A member that ends takes only its own traffic with it.
    let ends: Vec<_> = ends.into_iter().enumerate().filter(|(i, _)| [4, 5, 7, 8].contains(i)).collect();
    let ends: Vec<_> = ends.into_iter().map(|(_, pair)| pair).collect();
    let mut devices = devices.into_iter();
    drop(devices.next());
    let rest: Vec<Device> = devices.collect();
    exchange(&ends, &rest.iter().collect::<Vec<_>>());
    for device in &rest {
        assert_eq!((counter(device, "other_process_pkts"), counter(device, "unknown_qp")), (0, 0));
    }
}

/// Writes of several queue pairs of one process and one run of datagrams: none may end in another process's socket.
#[test]
fn a_run_never_mixes_processes() {
    let path = Arc::new(Path::new(
        "127.0.0.1:4791".parse().unwrap(),
        "127.0.0.2:4791".parse().unwrap(),
        0,
        0,
        IpId::Zero,
    ));
    let mut batch = TxBatch::new();
    for qpn in [0x01_0001, 0x01_0002, 0x02_0001, 0x02_0001, 0x01_0001] {
        let bth = Bth::new(Opcode::Cnp, Qpn(qpn), Psn::new(0));
        batch.begin(&path, &Headers::new(bth), 0, 0);
        batch.finish();
    }
    let runs: Vec<usize> = batch.runs().iter().map(|run| run.packets).collect();
    assert_eq!(runs, [2, 2, 1]);
    // And a datagram queue pair sends to both in one list.
    let mut owner = group();
    let [sender, one, two] = [1, 2, 3].map(|slot| member(&mut owner, slot));
    let init = EndInit { kind: QpType::Ud, ..EndInit::default() };
    let [a, b, c] = [&sender, &one, &two].map(|device| End::new(device, init.clone()));
    for end in [&a, &b, &c] {
        connect(&end.qp, (end.ip, &end.qp), &Wiring::default());
    }
    let handle = sender.resolve(&vector(a.ip)).unwrap();
    for i in 0..32u64 {
        b.recv(i, &[b.sge(i as usize * 200, 200)]);
        c.recv(i, &[c.sge(i as usize * 200, 200)]);
        a.buf.write(i as usize * 100, &Rng(i).bytes(100));
    }
    let sges: Vec<[Sge; 1]> = (0..32).map(|i| [a.sge(i * 100, 100)]).collect();
    let requests = sges.iter().enumerate().flat_map(|(i, sges)| {
        [&b, &c].map(|to| SendWr {
            id: i as u64,
            op: SendOp::Send,
            flags: SendFlags::default(),
            sges,
            ud: Some(UdDest {
                path: handle.clone(),
                qpn: to.qp.number(),
                qkey: urxe::ids::QKey(Wiring::default().qkey),
            }),
        })
    });
    a.qp.post_send_all(requests.collect::<Vec<_>>().into_iter()).unwrap();
    let mut got = [0; 2];
    wait(&[&sender, &one, &two], || {
        for (count, end) in got.iter_mut().zip([&b, &c]) {
            *count += end.poll().iter().inspect(|wc| _ = good(wc)).count();
        }
        got == [32, 32]
    });
    for end in [&b, &c] {
        for i in 0..32u64 {
            assert_eq!(end.buf.read(i as usize * 200 + 40, 100), Rng(i).bytes(100));
        }
    }
    assert_eq!(counter(&one, "other_process_pkts") + counter(&two, "other_process_pkts"), 0);
}

/// What a receiving NIC merges: packets of one flow, whatever their QPN.
#[test]
fn packets_for_another_process_in_a_merged_datagram_are_counted_and_dropped() {
    let mut owner = group();
    let [mine, other] = [1, 2].map(|slot| member(&mut owner, slot));
    let [a, b] = [&mine, &other].map(|device| End::new(device, EndInit::default()));
    // Connected queue pairs listen to their peer alone: this address is the peer.
    let link = UdpLink::open_first_free(&udp::Config::new(Ipv4Addr::LOCALHOST.into())).unwrap();
    for end in [&a, &b] {
        connect(&end.qp, (link.local().ip(), &end.qp), &Wiring::default());
        for i in 0..4 {
            end.recv(i, &[end.sge(i as usize * 100, 100)]);
        }
    }
    let to = SocketAddr::new(a.ip, 4791);
    let path = Arc::new(Path::new(link.local(), to, 0, 0, IpId::Zero));
    let mut batch = TxBatch::new();
    // Five to the first, and two to the second in between.
    for (end, psn) in [(&a, 0), (&a, 1), (&b, 0), (&a, 2), (&b, 1)] {
        let psn = Psn::new(Wiring::default().psn).plus(psn);
        let bth = Bth { ack_request: true, ..Bth::new(Opcode::RcSendOnly, end.qp.number(), psn) };
        batch.begin(&path, &Headers::new(bth), 8, 0);
        batch
            .stage::<()>(8, |bytes| {
                bytes.fill(7);
                Ok(())
            })
            .unwrap();
        batch.finish();
    }
    let bytes: usize = batch.runs().iter().map(|run| run.bytes).sum();
    let segment = batch.runs()[0].segment;
    let merged = Run { path: path.clone(), pieces: 0..batch.all_pieces().len(), segment, packets: 5, bytes };
    let outcome = link.send_runs(Runs { runs: &[merged], pieces: batch.all_pieces() });
    assert_eq!(outcome.sent_packets, 5);
    let mut received = 0;
    wait(&[&mine, &other], || {
        received += a.poll().iter().inspect(|wc| _ = good(wc)).count();
        received == 3
    });
    assert_eq!((counter(&mine, "other_process_pkts"), counter(&mine, "unknown_qp")), (2, 0));
    // An accident is no reason to receive packets one by one.
    let anchor = owner.anchor().unwrap();
    assert!(udp::group::merges(&anchor).unwrap());
    assert!(b.poll().is_empty());
    // But it is the rule here.
    let mut runs = 0;
    wait(&[&mine], || {
        let merged =
            Run { path: path.clone(), pieces: 0..batch.all_pieces().len(), segment, packets: 5, bytes };
        runs += link.send_runs(Runs { runs: &[merged], pieces: batch.all_pieces() }).sent_packets / 5;
        !udp::group::merges(&anchor).unwrap()
    });
    assert!((31..200).contains(&runs), "{runs}");
    // Nor has a new process merged packets.
    assert_eq!(counter(&mine, "other_process_pkts") % 2, 0);
    let late = member(&mut owner, 9);
    assert!(!udp::group::merges(&anchor).unwrap());
    drop(late);
    assert_eq!((counter(&other, "rcvd_pkts"), counter(&other, "other_process_pkts")), (0, 0));
}

/// A link that segments until its first run, and then not any more.
struct Fickle<L> {
    link: L,
    failed: AtomicBool,
}

impl<L: Link> Link for Fickle<L> {
    fn local(&self) -> SocketAddr {
        self.link.local()
    }
    fn send_runs(&self, runs: Runs<'_>) -> SendOutcome {
        let outcome = self.link.send_runs(runs);
        if runs.runs.iter().any(|run| run.packets > 1) && !self.failed.swap(true, Ordering::Relaxed) {
            self.link.counters().gso_fallbacks.add(1);
        }
        outcome
    }
    fn recv(&self, rx: &mut RxBatch) -> std::io::Result<usize> {
        self.link.recv(rx)
    }
    fn fds(&self) -> [Option<RawFd>; 2] {
        self.link.fds()
    }
    fn limits(&self, destination: IpAddr) -> Limits {
        let limits = self.link.limits(destination);
        match self.failed.load(Ordering::Relaxed) {
            true => Limits { packets: 1, ..limits },
            false => Limits { ip_id: IpId::Counting, ..limits },
        }
    }
    fn mtu(&self) -> u32 {
        self.link.mtu()
    }
    fn counters(&self) -> &Counters {
        self.link.counters()
    }
    fn join(&self, group: IpAddr) -> std::io::Result<()> {
        self.link.join(group)
    }
    fn leave(&self, group: IpAddr) {
        self.link.leave(group);
    }
    fn backlog(&self) -> Option<Backlog> {
        self.link.backlog()
    }
}

/// The first run was given ICRCs for identifications 0, 1, 2, ...; a receiver that sees headers drops all but the first.
/// Afterwards every packet has identification 0, and its ICRC must say so, on paths that exist as on new ones.
#[test]
fn after_the_end_of_segmentation_checksums_are_for_identification_0() {
    let net = urxe::io::sim::SimNet::new(1, harness::perfect());
    let clock = Arc::new(std::sync::atomic::AtomicU64::new(1_000_000));
    let link = net.link("10.0.0.1:4791".parse().unwrap());
    let link = Arc::new(Fickle { link, failed: AtomicBool::new(false) });
    let device =
        Device::on_link(&Config::default(), link, "sim".into(), 1 << 20, Clock::Manual(clock)).unwrap();
    let peer: IpAddr = "10.0.0.2".parse().unwrap();
    let path = device.resolve(&vector(peer)).unwrap();
    let other = device.resolve(&vector("10.0.0.3".parse().unwrap())).unwrap();
    assert_eq!((path.ip_id(), other.ip_id()), (IpId::Counting, IpId::Counting));
    let end = End::new(&device, EndInit::default());
    connect(&end.qp, (peer, &end.qp), &Wiring { mtu: Mtu::B256, ..Wiring::default() });
    // A single packet needs no segmentation.
    end.post(1, SendOp::Send, &[end.sge(0, 100)]);
    assert_eq!(path.ip_id(), IpId::Counting);
    end.post(2, SendOp::Send, &[end.sge(0, 10_000)]);
    assert_eq!((path.ip_id(), other.ip_id()), (IpId::Zero, IpId::Zero));
    let new = device.resolve(&vector("10.0.0.4".parse().unwrap())).unwrap();
    assert_eq!(new.ip_id(), IpId::Zero);
}

#[test]
fn numbers_begin_at_a_place_that_cannot_be_guessed() {
    let mut owner = group();
    let mut first = |slot| {
        let device = member(&mut owner, slot);
        End::new(&device, EndInit::default()).qp.number().0
    };
    let numbers: Vec<u32> = (1..=6).map(|slot| first(slot) & 0xffff).collect();
    assert!(numbers.windows(2).any(|pair| pair[1].wrapping_sub(pair[0]) > 1), "{numbers:?}");
}

/// Three processes on each of two hosts, all connected to all of the other host, over links of both usual MTUs (CASES 28),
/// as they are and with a receiver that merges packets as adapters do.
#[test]
fn processes_on_two_hosts_talk_whatever_the_link_carries_and_merges() {
    if veth::skipped() {
        return;
    }
    for (mtu, active, merges) in
        [(1500, Mtu::B1024, false), (9000, Mtu::B4096, false), (1500, Mtu::B1024, true)]
    {
        let step = veth::Step::default();
        let exchange = [Mutex::new(Vec::new()), Mutex::new(Vec::new())];
        let side = |host: usize, own: &str, device: &str| {
            veth::ip(&format!("link set {device} mtu {mtu}"));
            if merges {
                // veth merges only if the sender is not trusted to have done it.
                for arguments in [["-K", device, "gro", "on"], ["-K", device, "tso", "off"]] {
                    let set = Command::new("ethtool").args(arguments).status();
                    eprintln!("ethtool {}: {set:?}", arguments.join(" "));
                }
            }
            step.wait();
            let mut owner = Group::open(&udp::Config::new(own.parse().unwrap())).unwrap();
            let devices: Vec<Device> = (1..4).map(|slot| member(&mut owner, slot)).collect();
            assert!(devices.iter().all(|device| device.port().mtu == active));
            // By own process, other process.
            let ends: Vec<End> = (0..9)
                .map(|i| End::new(&devices[i / 3], EndInit { bytes: 1 << 17, ..EndInit::default() }))
                .collect();
            *exchange[host].lock() = ends.iter().map(|end| end.qp.number()).collect();
            step.wait();
            let peer = if host == 0 { veth::B } else { veth::A };
            for (i, end) in ends.iter().enumerate() {
                let number = exchange[1 - host].lock()[i % 3 * 3 + i / 3];
                harness::to_init(&end.qp, &Wiring::default());
                for round in 0..40 {
                    end.recv(round, &[end.sge(round as usize * 64, 64)]);
                }
                to_rts_with(&end.qp, peer.parse().unwrap(), number, active);
                // Small messages, which are merged, and large ones.
                end.buf.write(8192, &Rng(i as u64).bytes(50_000));
            }
            step.wait();
            for round in 0..40 {
                for end in &ends {
                    end.post(round, SendOp::Send, &[end.sge(8192, 64)]);
                }
            }
            for end in &ends {
                end.post(100, SendOp::Send, &[end.sge(8192, 50_000)]);
            }
            let all: Vec<&Device> = devices.iter().collect();
            let mut got = vec![(0, 0); 9];
            wait(&all, || {
                for (end, (sent, received)) in ends.iter().zip(&mut got) {
                    for wc in end.poll() {
                        match good(&wc).1 {
                            WcOpcode::Recv => *received += 1,
                            _ => *sent += 1,
                        }
                        if *received == 40 && wc.opcode == WcOpcode::Recv {
                            end.recv(1000, &[end.sge(60_000, 50_000)]);
                        }
                    }
                }
                got.iter().all(|&done| done == (41, 41))
            });
            for (i, end) in ends.iter().enumerate() {
                let bytes = Rng((i % 3 * 3 + i / 3) as u64).bytes(50_000);
                assert!(end.buf.read(60_000, 50_000) == bytes && end.buf.read(39 * 64, 64) == bytes[..64]);
            }
            let strays: Vec<u64> = devices.iter().map(|d| counter(d, "other_process_pkts")).collect();
            let received: Vec<u64> = devices.iter().map(|d| counter(d, "rcvd_pkts")).collect();
            eprintln!("host {host} mtu {mtu} merges {merges}: strays {strays:?} of {received:?}");
            assert!(merges || strays.iter().all(|&strays| strays == 0), "{strays:?}");
            step.wait();
            drop(ends);
        };
        veth::joined(|| side(0, veth::A, "va"), || side(1, veth::B, "vb"));
    }
}

// ------------------------------------------------------------------------------------------- all-to-all

const ROUNDS: usize = 4;
/// Bytes of a message slot; and each queue pair's part of the memory: receives, sends, target, result.
const SLOT: usize = 4096;
const PART: usize = (2 * ROUNDS + 2) * SLOT;

#[test]
fn processes_with_many_queue_pairs_talk_all_to_all() {
    all_to_all(16, 6);
}

/// 64 processes with 126 queue pairs each.
#[test]
fn sixty_four_processes_with_a_hundred_queue_pairs_talk_all_to_all() {
    all_to_all(64, 2);
}

/// What a process is told.
const ROLE: &str = "URXE_GROUP_TEST";

/// Starts processes on one address; each has `per_pair` queue pairs to each other one.
fn all_to_all(processes: usize, per_pair: usize) {
    let mut owner = group();
    let mut members = Vec::new();
    for index in 0..processes {
        // Slot 0 is the owner's, and who has which should not matter.
        let slot = 254 - 3 * index as u8;
        let Lease { socket, anchor, .. } = lease(&mut owner, slot);
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_read_timeout(Some(Duration::from_secs(600))).unwrap();
        let [socket, anchor, theirs] = [socket, anchor, theirs.into()].map(inheritable);
        let role = [index, processes, per_pair, slot.into()].map(|n| n.to_string()).join(" ");
        let fds = [&socket, &anchor, &theirs].map(|fd| fd.as_raw_fd().to_string()).join(" ");
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "a_process_of_an_all_to_all", "--ignored", "--nocapture"])
            .env(ROLE, format!("{role} {fds}"))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        members.push((Running(child), BufReader::new(ours)));
    }
    // The order of the group does not depend on its maker.
    drop(owner);
    let table: String = members.iter_mut().map(|(_, stream)| line(stream)).collect();
    for (_, stream) in &mut members {
        stream.get_mut().write_all(table.as_bytes()).unwrap();
    }
    for step in ["ready\n", "done\n"] {
        for (_, stream) in &mut members {
            assert_eq!(line(stream), step);
        }
        for (_, stream) in &mut members {
            stream.get_mut().write_all(b"go\n").unwrap();
        }
    }
    for (Running(child), _) in &mut members {
        assert!(child.wait().unwrap().success());
    }
}

fn line(stream: &mut BufReader<UnixStream>) -> String {
    let mut line = String::new();
    stream.read_line(&mut line).unwrap();
    line
}

/// A duplicate that a child gets; closed when dropped.
fn inheritable(fd: OwnedFd) -> OwnedFd {
    // SAFETY: a new descriptor that nobody else owns.
    unsafe { OwnedFd::from_raw_fd(libc::dup(fd.as_raw_fd())) }
}

/// Ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

/// Wakes the thread that waits for completions.
#[derive(Default)]
struct Bell {
    rung: Mutex<bool>,
    changed: Condvar,
}

impl CqNotify for Bell {
    fn completed(&self) {
        *self.rung.lock() = true;
        self.changed.notify_one();
    }
}

impl Bell {
    #[track_caller]
    fn wait(&self, end: Instant, device: &Device) {
        let mut rung = self.rung.lock();
        while !std::mem::take(&mut *rung) {
            let late = self.changed.wait_until(&mut rung, end).timed_out();
            assert!(!late, "{:?}", device.counters());
        }
    }
}

/// What one queue pair sends in a round, or what is its target's content.
fn message(from: usize, to: usize, pair: usize, round: usize) -> Vec<u8> {
    let mut rng = Rng((((from * 64 + to) * 64 + pair) * 64 + round) as u64);
    let len = 1 + rng.below(SLOT as u64) as usize;
    rng.bytes(len)
}

/// Not for itself: a child of [`all_to_all`].
#[test]
#[ignore = "started by another test"]
fn a_process_of_an_all_to_all() {
    let role = std::env::var(ROLE).expect("started by another test");
    let role: Vec<usize> = role.split(' ').map(|n| n.parse().unwrap()).collect();
    let [index, processes, per_pair, slot, socket, anchor, stream] = role[..] else { panic!("{role:?}") };
    // SAFETY: descriptors that were inherited for this and that nobody else owns.
    let own = |fd: usize| unsafe { OwnedFd::from_raw_fd(fd as RawFd) };
    let lease = Lease { slot: slot as u8, socket: own(socket), anchor: own(anchor) };
    let mut stream = BufReader::new(UnixStream::from(own(stream)));
    let device = Device::open_member(&Config::default(), lease).unwrap();
    let ip = device.port().ip;

    let peers: Vec<usize> = (0..processes).filter(|&peer| peer != index).collect();
    let pairs: Vec<(usize, usize)> =
        peers.iter().flat_map(|&peer| (0..per_pair).map(move |pair| (peer, pair))).collect();
    let pd = device.alloc_pd();
    let bell = Arc::new(Bell::default());
    let cq = device.create_cq((pairs.len() * (2 * ROUNDS + 2)) as u32, Some(bell.clone()));
    let buf = Buf::new(pairs.len() * PART);
    let keys = buf.register(&device, pd, ALL_ACCESS);
    let caps =
        QpCaps { max_send_wr: 8, max_recv_wr: 8, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
    let sge =
        |at: usize, len: usize| [Sge { addr: buf.addr() + at as u64, len: len as u32, lkey: keys.lkey }];
    let qps: Vec<QueuePair> = (0..pairs.len())
        .map(|i| {
            let (send_cq, recv_cq) = (cq.clone(), cq.clone());
            let init = QpInit {
                kind: QpType::Rc,
                pd,
                send_cq,
                recv_cq,
                srq: None,
                caps,
                sig_all: true,
                events: None,
            };
            let qp = device.create_qp(init).unwrap();
            // Receives are posted in INIT at the earliest.
            harness::to_init(&qp, &Wiring::default());
            for round in 0..ROUNDS {
                qp.post_recv(&RecvWr { id: 0, sges: &sge(i * PART + round * SLOT, SLOT) }).unwrap();
            }
            qp
        })
        .collect();

    // Number, key and address of all: mine go out, everybody's come in.
    let numbers: Vec<String> = qps.iter().map(|qp| qp.number().0.to_string()).collect();
    let mine = format!("{} {} {}\n", keys.rkey.0, buf.addr(), numbers.join(" "));
    stream.get_mut().write_all(mine.as_bytes()).unwrap();
    let table: Vec<Vec<u64>> = (0..processes)
        .map(|_| line(&mut stream).split_whitespace().map(|n| n.parse().unwrap()).collect())
        .collect();
    // Where a peer has its queue pair to this process.
    let place = |peer: usize, pair: usize| (index - usize::from(index > peer)) * per_pair + pair;
    for (qp, &(peer, pair)) in qps.iter().zip(&pairs) {
        to_rts(qp, ip, Qpn(table[peer][2 + place(peer, pair)] as u32));
    }
    stream.get_mut().write_all(b"ready\n").unwrap();
    assert_eq!(line(&mut stream), "go\n");

    for (i, (qp, &(peer, pair))) in qps.iter().zip(&pairs).enumerate() {
        let send = |op, at: usize, len: usize| {
            qp.post_send([SendWr { id: 1, op, flags: SendFlags::default(), sges: &sge(at, len), ud: None }])
                .unwrap();
        };
        let target = Remote {
            rkey: RKey(table[peer][0] as u32),
            addr: table[peer][1] + (place(peer, pair) * PART + 2 * ROUNDS * SLOT) as u64,
        };
        for round in 0..ROUNDS {
            let (at, bytes) = (i * PART + (ROUNDS + round) * SLOT, message(index, peer, pair, round));
            buf.write(at, &bytes);
            send(SendOp::Send, at, bytes.len());
            if round == 0 {
                send(SendOp::Write(target), at, bytes.len());
            }
        }
        let len = message(index, peer, pair, 0).len();
        send(SendOp::Read(target), i * PART + (2 * ROUNDS + 1) * SLOT, len);
    }
    let end = Instant::now() + Duration::from_secs(400);
    let mut left = pairs.len() * (2 * ROUNDS + 2);
    while left > 0 {
        cq.arm(false);
        device.attend();
        let before = left;
        for wc in harness::poll(&cq) {
            good(&wc);
            left -= 1;
        }
        if left == before {
            bell.wait(end, &device);
        }
    }
    for (i, &(peer, pair)) in pairs.iter().enumerate() {
        for round in 0..ROUNDS {
            let bytes = message(peer, index, pair, round);
            assert_eq!(buf.read(i * PART + round * SLOT, bytes.len()), bytes, "{peer} {pair} {round}");
        }
        let (theirs, mine) = (message(peer, index, pair, 0), message(index, peer, pair, 0));
        assert_eq!(buf.read(i * PART + 2 * ROUNDS * SLOT, theirs.len()), theirs);
        assert_eq!(buf.read(i * PART + (2 * ROUNDS + 1) * SLOT, mine.len()), mine);
    }
    for name in ["other_process_pkts", "unknown_qp", "wrong_peer", "icrc_errors"] {
        assert_eq!(counter(&device, name), 0, "{name}");
    }
    stream.get_mut().write_all(b"done\n").unwrap();
    // The peers may still need answers.
    assert_eq!(line(&mut stream), "go\n");
}

/// From INIT to RTS, connected to a queue pair of another process.
fn to_rts(qp: &QueuePair, ip: IpAddr, peer: Qpn) {
    to_rts_with(qp, ip, peer, Mtu::B4096);
}

fn to_rts_with(qp: &QueuePair, ip: IpAddr, peer: Qpn, path_mtu: Mtu) {
    use AttrMask as M;
    let wiring = Wiring::default();
    let attr = QpAttr {
        state: QpState::Rtr,
        path_mtu,
        dest_qpn: peer,
        rq_psn: Psn::new(wiring.psn),
        max_dest_rd_atomic: 4,
        min_rnr_timer: 1,
        av: vector(ip),
        ..QpAttr::default()
    };
    let mask =
        [M::STATE, M::AV, M::PATH_MTU, M::DEST_QPN, M::RQ_PSN, M::MAX_DEST_RD_ATOMIC, M::MIN_RNR_TIMER];
    qp.modify(&attr, masks(&mask)).unwrap();
    // Long: other processes may have the processors for a while.
    harness::to_rts(qp, &Wiring { timeout: 18, retry_cnt: 7, rnr_retry: 7, ..wiring });
}
