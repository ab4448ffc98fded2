//! The simulated network, the impairments and the capture, through their public interface.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use proptest::prelude::*;
use urxe::io::capture::Captured;
use urxe::io::impair::{Direction, Impaired, Impairments};
use urxe::io::sim::{Event, SimLink, SimNet};
use urxe::io::{Link, Runs, RxBatch, SendOutcome, Why};
use urxe::time::{Instant, Latency};
use urxe::wire::batch::{IpId, Path, Piece, Run};

fn addr(last: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, last], 4791))
}
fn path(ip_id: IpId) -> Arc<Path> {
    Arc::new(Path::new(addr(1), addr(2), 0, 0, ip_id))
}

/// Sends `bytes` as one run of packets of `segment` bytes.
fn send(link: &dyn Link, path: &Arc<Path>, bytes: &[u8], segment: usize) -> SendOutcome {
    let pieces: Vec<Piece> =
        bytes.chunks(333).map(|p| Piece { addr: p.as_ptr() as usize, len: p.len() }).collect();
    let packets = bytes.len().div_ceil(segment);
    let run = Run { path: path.clone(), pieces: 0..pieces.len(), segment, packets, bytes: bytes.len() };
    link.send_runs(Runs { runs: &[run], pieces: &pieces })
}

/// Packet `i` says so in its first four bytes.
fn numbered(count: u32, len: usize) -> Vec<u8> {
    (0..count)
        .flat_map(|i| i.to_be_bytes().into_iter().chain((4..len).map(move |k| (k as u32 ^ i) as u8)))
        .collect()
}

fn drain(net: &SimNet, link: &dyn Link) -> Vec<Vec<u8>> {
    let mut got = Vec::new();
    let mut rx = RxBatch::new(4);
    while let Some(at) = net.next_event() {
        net.advance_to(at);
        while link.recv(&mut rx).unwrap() > 0 {
            got.extend(rx.iter().flat_map(|d| d.packets().map(<[u8]>::to_vec).collect::<Vec<_>>()));
        }
    }
    got
}
fn number(packet: &[u8]) -> u32 {
    u32::from_be_bytes(packet[..4].try_into().unwrap())
}

fn pair(seed: u64, impairments: Impairments) -> (Arc<SimNet>, Arc<SimLink>, Arc<SimLink>) {
    let net = SimNet::new(seed, impairments);
    let (a, b) = (net.link(addr(1)), net.link(addr(2)));
    (net, a, b)
}

fn impaired(net: &Arc<SimNet>, link: Arc<SimLink>, bad: Impairments, seed: u64) -> Impaired<Arc<SimLink>> {
    let net = net.clone();
    Impaired::new(link, bad, Direction::Send, seed, move || net.now())
}

fn chance() -> impl Strategy<Value = f64> {
    prop_oneof![Just(0.0), 0.0..0.3]
}

fn bad() -> impl Strategy<Value = Impairments> {
    (chance(), chance(), chance(), 0u64..5000, 0u64..5000, proptest::option::of(1_000_000u64..10_000_000_000))
        .prop_map(|(loss, duplicate, reorder, low, more, rate)| Impairments {
            loss,
            duplicate,
            reorder,
            corrupt: 0.0,
            delay: Latency::Uniform(low, low + more),
            rate,
            queue: None,
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_same_seed_gives_the_same_trace(seed: u64, bad in bad(), segment in 4usize..3000, count in 1u32..40) {
        let run = || {
            let (net, a, b) = pair(seed, bad);
            let bytes = numbered(count, segment);
            prop_assert_eq!(send(&*a, &path(IpId::Zero), &bytes, segment).why, Why::Done);
            let got = drain(&net, &*b);
            Ok((net.trace(), got))
        };
        prop_assert_eq!(run()?, run()?);
    }

    #[test]
    fn every_packet_is_accounted_for(seed: u64, bad in bad(), segment in 4usize..3000, count in 1u32..40) {
        let (net, a, b) = pair(seed, bad);
        let bytes = numbered(count, segment);
        prop_assert_eq!(send(&*a, &path(IpId::Zero), &bytes, segment).sent_packets, count as usize);
        let got = drain(&net, &*b);
        let trace = net.trace();
        let lines = |wanted: fn(&Event) -> bool| trace.iter().filter(|t| wanted(&t.event)).count();
        let lost = lines(|e| matches!(e, Event::Lost));
        let twice = lines(|e| matches!(e, Event::Duplicated(_)));
        prop_assert_eq!(got.len(), count as usize - lost + twice, "{}", net.tail(100));
        for packet in &got {
            let i = number(packet) as usize;
            prop_assert_eq!(packet, &bytes[i * segment..(i + 1) * segment]);
        }
        if bad.reorder == 0.0 && bad.duplicate == 0.0 {
            prop_assert!(got.iter().map(|p| number(p)).is_sorted());
        }
    }

    #[test]
    fn an_impaired_link_accounts_for_every_packet(seed: u64, bad in bad(), corrupt in chance(), room in 0usize..50) {
        let (net, a, b) = pair(seed, Impairments::default());
        let link = impaired(&net, a.clone(), Impairments { corrupt, ..bad }, seed);
        let bytes = numbered(40, 64);
        let path = path(IpId::Zero);
        a.set_send_room(Some(room));
        let first = send(&link, &path, &bytes, 64);
        a.set_send_room(None);
        let rest = &bytes[first.sent_packets * 64..];
        if !rest.is_empty() {
            prop_assert_eq!(send(&link, &path, rest, 64), SendOutcome { sent_packets: 40 - first.sent_packets, why: Why::Done });
        }
        link.flush(Duration::ZERO);
        let got = drain(&net, &*b);
        let intact: BTreeSet<u32> = got.iter().filter(|p| (number(p) as usize) < 40)
            .filter(|p| **p == bytes[number(p) as usize * 64..][..64]).map(|p| number(p)).collect();
        let numbers: Vec<u32> = got.iter().map(|p| number(p)).collect();
        if bad.loss == 0.0 && corrupt == 0.0 {
            prop_assert_eq!(intact.len(), 40);
        }
        if bad.reorder == 0.0 && corrupt == 0.0 {
            prop_assert!(numbers.is_sorted());
        }
        if bad.duplicate == 0.0 {
            prop_assert!(got.len() <= 40);
        }
        prop_assert!(got.iter().all(|p| p.len() == 64));
    }
}

#[test]
fn impairments_happen_about_as_often_as_asked_for() {
    let bad =
        Impairments { loss: 0.1, duplicate: 0.05, reorder: 0.2, corrupt: 0.02, ..Impairments::default() };
    let (net, a, b) = pair(11, bad);
    net.keep_trace(100_000);
    let bytes = numbered(50, 100);
    for _ in 0..200 {
        assert_eq!(send(&*a, &path(IpId::Zero), &bytes, 100).sent_packets, 50);
    }
    let got = drain(&net, &*b);
    let count = |wanted: fn(&Event) -> bool| net.trace().iter().filter(|t| wanted(&t.event)).count();
    let (lost, twice) = (count(|e| *e == Event::Lost), count(|e| matches!(e, Event::Duplicated(_))));
    assert!((900..1100).contains(&lost), "{lost} of 10,000 lost");
    assert!((380..520).contains(&twice), "{twice} duplicated");
    assert_eq!(got.len(), 10_000 - lost + twice);
    let wrong =
        got.iter().filter(|p| number(p) >= 50 || **p != bytes[number(p) as usize * 100..][..100]).count();
    assert!((120..260).contains(&wrong), "{wrong} corrupted");
    assert!(!got.is_sorted_by_key(|p| number(p)));
}

#[test]
fn one_direction_can_be_bad_alone() {
    let (net, a, b) = pair(1, Impairments::default());
    net.impair(addr(1).ip(), addr(2).ip(), Impairments { loss: 1.0, ..Impairments::default() });
    let back = Arc::new(Path::new(addr(2), addr(1), 0, 0, IpId::Zero));
    let bytes = numbered(5, 40);
    assert_eq!(send(&*a, &path(IpId::Zero), &bytes, 40).sent_packets, 5);
    assert_eq!(send(&*b, &back, &bytes, 40).sent_packets, 5);
    assert_eq!(drain(&net, &*a).len(), 5);
    assert_eq!(net.trace().iter().filter(|t| t.event == Event::Lost).count(), 5);
    let nobody = Arc::new(Path::new(addr(1), addr(9), 0, 0, IpId::Zero));
    assert_eq!(send(&*a, &nobody, &bytes, 40).sent_packets, 5);
    drain(&net, &*a);
    assert!(net.tail(1).contains("10.0.0.1:4791 -> 10.0.0.9:4791") && net.tail(1).contains("nobody there"));
}

#[test]
fn delay_and_rate_decide_when_packets_arrive() {
    // 1000 bytes with headers at 1 GB/s are 1 µs each.
    let slow =
        Impairments { delay: Latency::Fixed(5000), rate: Some(1_000_000_000), ..Impairments::default() };
    let (net, a, b) = pair(1, slow);
    let bytes = numbered(3, 972);
    assert_eq!(send(&*a, &path(IpId::Zero), &bytes, 972).sent_packets, 3);
    let mut rx = RxBatch::new(4);
    for expected in [6000, 7000, 8000] {
        assert_eq!(net.next_event(), Some(Instant(expected)));
        net.advance_to(Instant(expected - 1));
        assert_eq!(b.recv(&mut rx).unwrap(), 0);
        net.advance_to(Instant(expected));
        assert_eq!(b.recv(&mut rx).unwrap(), 1);
    }
    assert_eq!((net.next_event(), net.now()), (None, Instant(8000)));
    net.advance_to(Instant(10));
    assert_eq!(net.now(), Instant(8000));
}

#[test]
fn equal_packets_arrive_together_as_with_gro() {
    let (net, a, b) = pair(1, Impairments::default());
    let bytes = numbered(10, 100);
    assert_eq!(send(&*a, &path(IpId::Zero), &bytes[..950], 100).sent_packets, 10);
    assert_eq!(send(&*a, &path(IpId::Zero), &bytes[..100], 100).sent_packets, 1);
    net.advance_to(Instant(1_000_000));
    let mut rx = RxBatch::new(4);
    assert_eq!(b.recv(&mut rx).unwrap(), 2);
    let sizes: Vec<Vec<usize>> = rx.iter().map(|d| d.packets().map(<[u8]>::len).collect()).collect();
    assert_eq!(sizes, [[vec![100; 9], vec![50]].concat(), vec![100]]);
}

#[test]
fn full_queues_drop_and_full_links_count_what_left() {
    let (net, a, b) = pair(1, Impairments::default());
    b.limit_queue(350);
    a.set_send_room(Some(5));
    let bytes = numbered(10, 100);
    let sent = send(&*a, &path(IpId::Zero), &bytes, 100);
    assert_eq!(sent, SendOutcome { sent_packets: 5, why: Why::WouldBlock });
    net.advance_to(Instant(1_000_000));
    assert_eq!(b.backlog().unwrap().used, 300);
    assert_eq!((b.counters().rx_overflow.value(), a.counters().tx_packets.value()), (2, 5));
    let mut rx = RxBatch::new(4);
    assert_eq!(b.recv(&mut rx).unwrap(), 1);
    assert_eq!(rx.iter().next().unwrap().bytes, &bytes[..300]);
}

#[test]
fn memory_that_is_gone_fails_with_its_packet() {
    let (_net, a, _b) = pair(1, Impairments::default());
    let bytes = [7u8; 50];
    let pieces = [Piece { addr: bytes.as_ptr() as usize, len: 50 }, Piece { addr: 8, len: 50 }];
    let run = Run { path: path(IpId::Zero), pieces: 0..2, segment: 50, packets: 2, bytes: 100 };
    let sent = a.send_runs(Runs { runs: &[run], pieces: &pieces });
    assert_eq!(sent, SendOutcome { sent_packets: 1, why: Why::Failed(14) });
}

#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The packets of a pcapng file: way, bytes from the IP header on.
fn packets_of(file: &[u8]) -> Vec<(u32, Vec<u8>)> {
    let word = |at: usize| u32::from_ne_bytes(file[at..at + 4].try_into().unwrap()) as usize;
    let mut found = Vec::new();
    let mut at = 0;
    while at < file.len() {
        let (kind, len) = (word(at), word(at + 4));
        assert_eq!(word(at + len - 4), len, "a block ends with its length");
        if kind == 6 {
            let captured = word(at + 20);
            assert_eq!(word(at + 24), captured);
            let bytes = file[at + 28..at + 28 + captured].to_vec();
            let options = at + 28 + captured.next_multiple_of(4);
            found.push((word(options + 4) as u32, bytes));
        }
        at += len;
    }
    found
}

#[test]
fn a_capture_holds_whole_packets_of_both_ways() {
    let (net, a, b) = pair(1, Impairments::default());
    let (out, inn) = (Shared::default(), Shared::default());
    let (a, b) = (Captured::new(a, out.clone()).unwrap(), Captured::new(b, inn.clone()).unwrap());
    let bytes = numbered(3, 101);
    assert_eq!(send(&a, &path(IpId::Counting), &bytes, 101).sent_packets, 3);
    assert_eq!(drain(&net, &b).concat(), bytes);
    a.flush().unwrap();
    for (file, way, ids) in [(out, 2, [0, 1, 2]), (inn, 1, [0, 0, 0])] {
        let file = file.0.lock().unwrap().clone();
        assert_eq!(file[..4], 0x0a0d_0d0a_u32.to_ne_bytes());
        let packets = packets_of(&file);
        assert_eq!(packets.len(), 3);
        for (i, (found_way, packet)) in packets.iter().enumerate() {
            assert_eq!(*found_way, way);
            assert_eq!(packet[28..], bytes[i * 101..(i + 1) * 101]);
            assert_eq!(packet[..4], [0x45, 0, 0, 129]);
            assert_eq!(u16::from_be_bytes([packet[4], packet[5]]), ids[i]);
            assert_eq!(packet[12..20], [10, 0, 0, 1, 10, 0, 0, 2]);
            assert_eq!(packet[20..28], [0x12, 0xb7, 0x12, 0xb7, 0, 109, 0, 0]);
            let sum: u32 = packet[..20].chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1])).sum();
            assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff, "the header's checksum is right");
        }
    }
}

#[test]
fn only_what_left_is_captured() {
    let (_net, a, _b) = pair(1, Impairments::default());
    a.set_send_room(Some(2));
    let out = Shared::default();
    let link = Captured::new(a, out.clone()).unwrap();
    assert_eq!(send(&link, &path(IpId::Zero), &numbered(5, 20), 20).sent_packets, 2);
    assert_eq!(packets_of(&out.0.lock().unwrap()).len(), 2);
}
