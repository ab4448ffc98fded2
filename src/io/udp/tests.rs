use std::sync::Arc;
use std::time::{Duration, Instant};

use super::*;
use crate::io::wait::{Ready, Waker, wait};
use crate::io::{Meta, Why};
use crate::wire::batch::{Path, Piece, Run};

/// Runs over memory that the test owns.
#[derive(Default)]
struct Message {
    runs: Vec<Run>,
    pieces: Vec<Piece>,
}

impl Message {
    /// Adds packets of `segment` bytes, cut from `bytes`, in pieces of at most `piece` bytes.
    fn run(mut self, path: &Arc<Path>, bytes: &[u8], segment: usize, piece: usize) -> Self {
        let first = self.pieces.len();
        self.pieces.extend(bytes.chunks(piece).map(|p| Piece { addr: p.as_ptr() as usize, len: p.len() }));
        let packets = bytes.len().div_ceil(segment);
        let pieces = first..self.pieces.len();
        self.runs.push(Run { path: path.clone(), pieces, segment, packets, bytes: bytes.len() });
        self
    }
    fn view(&self) -> Runs<'_> {
        Runs { runs: &self.runs, pieces: &self.pieces }
    }
}

fn config(ip: &str) -> Config {
    Config { addr: SocketAddr::new(ip.parse().unwrap(), 0), ..Config::new(ip.parse().unwrap()) }
}
fn open(ip: &str) -> UdpLink {
    UdpLink::open(&config(ip)).unwrap()
}
fn path(from: &UdpLink, to: &UdpLink) -> Arc<Path> {
    path_with(from, to, 0)
}
fn path_with(from: &UdpLink, to: &UdpLink, traffic_class: u8) -> Arc<Path> {
    Arc::new(Path::new(from.local(), to.local(), traffic_class, 0, IpId::Zero))
}
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i as u32).wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect()
}
const DONE: fn(usize) -> SendOutcome = |sent_packets| SendOutcome { sent_packets, why: Why::Done };

/// Receives until `packets` packets are there or nothing comes for a while.
fn collect(link: &UdpLink, packets: usize) -> Vec<(Meta, Vec<u8>)> {
    let mut got: Vec<(Meta, Vec<u8>)> = Vec::new();
    let mut rx = RxBatch::new(8);
    let waker = Waker::new().unwrap();
    while got.len() < packets {
        if link.recv(&mut rx).unwrap() == 0 {
            if wait(link, &waker, Some(500_000_000)).unwrap() == Ready::default() {
                break;
            }
            continue;
        }
        for datagram in rx.iter() {
            got.extend(datagram.packets().map(|p| (datagram.meta, p.to_vec())));
        }
    }
    got
}
fn payloads(link: &UdpLink, packets: usize) -> Vec<Vec<u8>> {
    collect(link, packets).into_iter().map(|(_, bytes)| bytes).collect()
}

#[test]
fn every_size_arrives_as_sent() {
    for ip in ["127.0.0.1", "::1"] {
        let (a, b) = (open(ip), open(ip));
        let path = path(&a, &b);
        let bytes = pattern(4200);
        for len in 1..=4200 {
            let sent = a.send_runs(Message::default().run(&path, &bytes[..len], len, 1000).view());
            assert_eq!(sent, DONE(1));
            let got = collect(&b, 1);
            assert_eq!(got.len(), 1, "{len} bytes over {ip}");
            assert_eq!(got[0].0.src, a.local());
            assert!(got[0].1 == bytes[..len], "{len} bytes over {ip}");
        }
    }
}

#[test]
fn runs_of_mixed_sizes_arrive_in_order_with_and_without_offload() {
    for (gso, gro) in [(true, true), (true, false), (false, true)] {
        let a = UdpLink::open(&Config { gso, ..config("127.0.0.1") }).unwrap();
        let b = UdpLink::open(&Config { gro, ..config("127.0.0.1") }).unwrap();
        let path = path(&a, &b);
        let bytes = pattern(64 * 1024);
        let message = Message::default()
            .run(&path, &bytes[..15 * 4124], 4124, 4096)
            .run(&path, &bytes[5..25], 20, 7)
            .run(&path, &bytes[..64 * 40], 40, 64 * 40)
            .run(&path, &bytes[9..9 + 3 * 1052 + 17], 1052, 100);
        let expected: Vec<&[u8]> = bytes[..15 * 4124]
            .chunks(4124)
            .chain([&bytes[5..25]])
            .chain(bytes[..64 * 40].chunks(40))
            .chain(bytes[9..9 + 3 * 1052 + 17].chunks(1052))
            .collect();
        assert_eq!(a.send_runs(message.view()), DONE(84));
        let got = payloads(&b, 84);
        assert_eq!(got.len(), 84, "gso {gso} gro {gro}");
        assert!(got == expected, "gso {gso} gro {gro}");
        assert_eq!(
            (a.counters().tx_packets.value(), b.counters().rx_bytes.value()),
            (84, expected.iter().map(|p| p.len() as u64).sum())
        );
        let merged = gso && gro;
        assert_eq!(b.counters().rx_datagrams.value() == 4, merged, "gso {gso} gro {gro}: {:?}", b.counters());
    }
}

#[test]
fn many_runs_of_one_packet_arrive_in_order() {
    let (a, b) = (open("127.0.0.1"), open("127.0.0.1"));
    let path = path(&a, &b);
    let bytes = pattern(300);
    let message = (1..=100).fold(Message::default(), |m, len| m.run(&path, &bytes[..len], len, 300));
    assert_eq!(a.send_runs(message.view()), DONE(100));
    let lengths: Vec<usize> = payloads(&b, 100).iter().map(Vec::len).collect();
    assert_eq!(lengths, (1..=100).collect::<Vec<_>>());
}

#[test]
fn memory_that_was_gone_for_a_moment_does_not_end_segmentation() {
    let (a, b) = (open("127.0.0.1"), open("127.0.0.1"));
    let path = path(&a, &b);
    let bytes = pattern(40 * 1000 + 1);
    let message = Message::default().run(&path, &bytes, 1000, 333);
    a.faults.lock().push_back(Some(libc::EFAULT));
    assert_eq!(a.send_runs(message.view()), DONE(41));
    assert_eq!(payloads(&b, 41).concat(), bytes);
    assert_eq!((a.counters().gso_fallbacks.value(), a.limits(b.local().ip()).packets), (0, a.max_segments));
}

#[test]
fn refused_segmentation_falls_back_and_is_not_tried_again() {
    for errno in [libc::EIO, libc::EINVAL, libc::EMSGSIZE] {
        let (a, b) = (open("127.0.0.1"), open("127.0.0.1"));
        let path = path(&a, &b);
        let bytes = pattern(40 * 1000 + 1);
        let message = Message::default().run(&path, &bytes, 1000, 333);
        assert_eq!(a.limits(b.local().ip()).packets, a.max_segments);
        a.faults.lock().push_back(Some(errno));
        assert_eq!(a.send_runs(message.view()), DONE(41));
        assert_eq!(payloads(&b, 41).concat(), bytes);
        assert_eq!(a.counters().gso_fallbacks.value(), 1);
        assert_eq!(a.limits(b.local().ip()).packets, 1);
        assert_eq!(a.limits("127.0.0.9".parse().unwrap()).packets, a.max_segments);
        // Nothing is injected now: it is sent packet by packet without asking again.
        assert_eq!(a.send_runs(message.view()), DONE(41));
        let got = collect(&b, 41);
        assert!(got.iter().all(|(meta, _)| meta.segment <= 1000));
        assert_eq!(b.counters().rx_datagrams.value(), 82);
    }
}

#[test]
fn a_full_socket_counts_exactly_what_left() {
    let bytes = pattern(40 * 100);
    for errno in [libc::EAGAIN, libc::ENOBUFS] {
        // 40 runs leave in two calls, of 32 and 8 runs.
        let (a, b) = (open("127.0.0.1"), open("127.0.0.1"));
        let path = path(&a, &b);
        let message = bytes.chunks(100).fold(Message::default(), |m, part| m.run(&path, part, 50, 60));
        a.faults.lock().extend([None, Some(errno)]);
        assert_eq!(a.send_runs(message.view()), SendOutcome { sent_packets: 64, why: Why::WouldBlock });
        assert_eq!(payloads(&b, 64).concat(), bytes[..3200]);
        assert_eq!((a.counters().tx_packets.value(), a.counters().tx_blocked.value()), (64, 1));
        a.faults.lock().push_back(Some(errno));
        assert_eq!(a.send_runs(message.view()), SendOutcome { sent_packets: 0, why: Why::WouldBlock });
    }
    // Without segmentation it can end within a run: 40 packets are two calls of 32 and 8.
    let a = UdpLink::open(&Config { gso: false, ..config("127.0.0.1") }).unwrap();
    let b = open("127.0.0.1");
    let path = path(&a, &b);
    let bytes = pattern(40 * 100);
    let message = Message::default().run(&path, &bytes, 100, 60);
    a.faults.lock().extend([None, Some(libc::EAGAIN)]);
    assert_eq!(a.send_runs(message.view()), SendOutcome { sent_packets: 32, why: Why::WouldBlock });
    assert_eq!(payloads(&b, 32).concat(), bytes[..3200]);
    assert_eq!(a.counters().tx_packets.value(), 32);
}

#[test]
fn an_icmp_error_of_an_earlier_packet_does_not_stop_a_send() {
    let (a, b) = (open("127.0.0.1"), open("127.0.0.1"));
    let bytes = pattern(100);
    let message = Message::default().run(&path(&a, &b), &bytes, 100, 100);
    a.faults.lock().extend([Some(libc::ECONNREFUSED), Some(libc::EINTR)]);
    assert_eq!(a.send_runs(message.view()), DONE(1));
    a.faults.lock().extend([Some(libc::ENETUNREACH), Some(libc::ENETUNREACH)]);
    assert_eq!(
        a.send_runs(message.view()),
        SendOutcome { sent_packets: 0, why: Why::Failed(libc::ENETUNREACH) }
    );
    assert_eq!(a.counters().tx_failed.value(), 1);
    assert_eq!(payloads(&b, 2).len(), 1);
}

#[test]
fn memory_that_is_gone_is_reported_with_its_packet() {
    let (a, b) = (open("127.0.0.1"), open("127.0.0.1"));
    let bytes = pattern(5 * 100);
    let mut message = Message::default().run(&path(&a, &b), &bytes, 100, 50);
    // The second half of packet 3.
    message.pieces[7].addr = 16;
    assert_eq!(a.send_runs(message.view()), SendOutcome { sent_packets: 3, why: Why::Failed(libc::EFAULT) });
    assert_eq!(payloads(&b, 5).concat(), bytes[..300]);
    // That was not segmentation's fault.
    assert_eq!(a.limits(b.local().ip()).packets, a.max_segments);
}

#[test]
fn a_packet_longer_than_the_mtu_fails_and_segmentation_stays() {
    let (a, b) = (open("127.0.0.1"), open("127.0.0.1"));
    let bytes = pattern(66_000);
    let message = Message::default().run(&path(&a, &b), &bytes[..100], 100, 100).run(
        &path(&a, &b),
        &bytes,
        66_000,
        66_000,
    );
    let sent = a.send_runs(message.view());
    assert_eq!(sent.sent_packets, 1);
    assert!(matches!(sent.why, Why::Failed(libc::EMSGSIZE | libc::EINVAL)), "{sent:?}");
    assert_eq!(a.limits(b.local().ip()).packets, a.max_segments);
}

#[test]
fn a_run_beyond_the_limits_is_sent_in_parts() {
    let (a, b) = (open("127.0.0.1"), open("127.0.0.1"));
    let bytes = pattern(300 * 10);
    let message = Message::default().run(&path(&a, &b), &bytes, 10, 1);
    assert_eq!(a.send_runs(message.view()), DONE(300));
    assert_eq!(payloads(&b, 300).concat(), bytes);
    assert_eq!(a.limits(b.local().ip()).packets, a.max_segments);
}

#[test]
fn traffic_class_and_hop_limit_are_seen() {
    for ip in ["127.0.0.1", "::1"] {
        let (a, b) = (open(ip), open(ip));
        b.show_headers().unwrap();
        let bytes = pattern(200);
        let message = Message::default().run(&path_with(&a, &b, 0x6a), &bytes, 50, 200);
        assert_eq!(a.send_runs(message.view()), DONE(4));
        for (meta, _) in collect(&b, 4) {
            assert_eq!((meta.traffic_class, meta.hop_limit), (0x6a, 64), "{ip}");
            assert_eq!((meta.dst, meta.ip_id), (b.local().ip(), None));
        }
    }
}

#[test]
fn packets_that_overflow_the_queue_are_counted() {
    let a = open("127.0.0.1");
    let b = UdpLink::open(&Config { receive_buffer: 1, ..config("127.0.0.1") }).unwrap();
    let bytes = pattern(1000);
    let message = Message::default().run(&path(&a, &b), &bytes, 1000, 1000);
    for _ in 0..100 {
        assert_eq!(a.send_runs(message.view()), DONE(1));
    }
    assert!(b.backlog().is_some_and(|b| b.used > 0 && b.limit > 0 && b.limit < 10_000));
    let kept = collect(&b, 100).len();
    assert!(kept < 100);
    // The kernel reports drops with the next packet that it keeps.
    assert_eq!(a.send_runs(message.view()), DONE(1));
    assert_eq!(collect(&b, 1).len(), 1);
    assert_eq!(b.counters().rx_overflow.value(), 100 - kept as u64);
}

#[test]
fn a_taken_or_foreign_address_is_an_error_that_says_so() {
    let first = open("127.0.0.1");
    let again = UdpLink::open(&Config { addr: first.local(), ..config("127.0.0.1") });
    assert!(matches!(&again, Err(OpenError::AddressInUse { addr }) if *addr == first.local()), "{again:?}");
    assert!(again.unwrap_err().to_string().starts_with(&format!("{} is taken", first.local())));
    let foreign = UdpLink::open(&config("198.51.100.7"));
    assert!(matches!(foreign, Err(OpenError::NotLocal { .. })), "{foreign:?}");
}

#[test]
fn first_free_addresses_differ_and_a_freed_one_is_taken_again() {
    let port = open("127.0.0.1").local().port();
    let config = Config { addr: SocketAddr::from(([0, 0, 0, 0], port)), ..config("127.0.0.1") };
    let links: Vec<UdpLink> = (0..3).map(|_| UdpLink::open_first_free(&config).unwrap()).collect();
    let mut ips: Vec<IpAddr> = links.iter().map(|l| l.local().ip()).collect();
    ips.sort();
    ips.dedup();
    assert_eq!(ips.len(), 3);
    assert!(ips.iter().all(|ip| matches!(ip, IpAddr::V4(ip) if ip.octets()[..2] == [127, 0])));
    let freed = links[0].local();
    drop(links);
    assert_eq!(UdpLink::open_first_free(&config).unwrap().local(), freed);
}

#[test]
fn wait_ends_by_packet_by_waker_and_by_time() {
    let (a, b) = (open("127.0.0.1"), open("127.0.0.1"));
    let waker = Waker::new().unwrap();
    let start = Instant::now();
    assert_eq!(wait(&b, &waker, Some(2_000_000)).unwrap(), Ready::default());
    assert!(start.elapsed() >= Duration::from_millis(2));
    waker.clone().wake();
    assert_eq!(wait(&b, &waker, None).unwrap(), Ready { link: false, woken: true });
    assert_eq!(wait(&b, &waker, Some(0)).unwrap(), Ready::default());
    let bytes = [1; 20];
    assert_eq!(a.send_runs(Message::default().run(&path(&a, &b), &bytes, 20, 20).view()), DONE(1));
    assert_eq!(wait(&b, &waker, None).unwrap(), Ready { link: true, woken: false });
}

#[test]
fn a_truncated_datagram_is_counted_and_dropped() {
    let (a, b) = (open("127.0.0.1"), open("127.0.0.1"));
    let bytes = pattern(100);
    let message = Message::default().run(&path(&a, &b), &bytes, 100, 100);
    assert_eq!(a.send_runs(message.view()), DONE(1));
    let mut rx = RxBatch::new(2);
    // No real datagram is longer than a buffer, so this one is read into a short one.
    let (free, start) = rx.free();
    let incoming = sys::receive(&b.socket, &mut free[..60]).unwrap();
    b.accept(&mut rx, start, incoming, b.local.ip(), &b.overflow_seen);
    assert_eq!((rx.len(), b.counters().rx_truncated.value(), b.counters().rx_datagrams.value()), (0, 1, 0));
}
