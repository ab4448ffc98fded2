//! The link alone: which packets it spoils, and when it lets them go.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use urxe::io::impair::{Direction, Impaired, Impairments};
use urxe::io::sim::{SimLink, SimNet};
use urxe::io::udp::{self, UdpLink};
use urxe::io::{Link, Runs, RxBatch, SendOutcome, Why};
use urxe::time::{Instant, Latency};
use urxe::wire::batch::{IpId, Path, Piece, Run};

use crate::harness::US;

const LEN: usize = 100;

fn path(from: SocketAddr, to: SocketAddr) -> Arc<Path> {
    Arc::new(Path::new(from, to, 0, 0, IpId::Zero))
}

/// Packets whose first byte is their number.
fn packets(count: u8) -> Vec<u8> {
    (0..count).flat_map(|i| [i; LEN]).collect()
}

fn send(link: &dyn Link, path: &Arc<Path>, bytes: &[u8]) -> SendOutcome {
    let pieces = [Piece { addr: bytes.as_ptr() as usize, len: bytes.len() }];
    let packets = bytes.len().div_ceil(LEN);
    let run = Run { path: path.clone(), pieces: 0..1, segment: LEN, packets, bytes: bytes.len() };
    link.send_runs(Runs { runs: &[run], pieces: &pieces })
}

fn receive(link: &dyn Link) -> Vec<Vec<u8>> {
    let mut got = Vec::new();
    let mut rx = RxBatch::new(4);
    while link.recv(&mut rx).unwrap() > 0 {
        got.extend(rx.iter().flat_map(|d| d.packets().map(<[u8]>::to_vec).collect::<Vec<_>>()));
    }
    got
}

struct Line {
    net: Arc<SimNet>,
    bad: Impaired<Arc<SimLink>>,
    peer: Arc<SimLink>,
    out: Arc<Path>,
}

fn line(impairments: Impairments, direction: Direction) -> Line {
    let net = SimNet::new(1, Impairments::default());
    let [a, b] = [1, 2].map(|i| net.link(SocketAddr::from(([10, 0, 0, i], 4791))));
    let clock = net.clone();
    let out = path(a.local(), b.local());
    let bad = Impaired::new(a, impairments, direction, 1, move || clock.now());
    Line { net, bad, peer: b, out }
}

impl Line {
    fn pass_time(&self, until: u64) {
        while let Some(at) = self.net.next_event().into_iter().chain([self.bad.next_release()]).min()
            && at <= Instant(until)
        {
            self.net.advance_to(at);
            self.bad.release(at);
        }
        self.net.advance_to(Instant(until));
    }
}

#[test]
fn what_is_delayed_is_what_memory_held_when_it_was_sent() {
    let delay = Latency::Fixed(50 * US);
    let line = line(Impairments { delay, ..Impairments::default() }, Direction::Send);
    let mut bytes = packets(3);
    assert_eq!(send(&line.bad, &line.out, &bytes), SendOutcome { sent_packets: 3, why: Why::Done });
    bytes.fill(0xff);
    line.pass_time(50 * US);
    assert_eq!(receive(&*line.peer).len(), 0, "they leave after 50 us and arrive after 51");
    line.pass_time(51 * US);
    assert_eq!(receive(&*line.peer).concat(), packets(3));
    assert_eq!(line.bad.next_release(), Instant::NEVER);
    assert_eq!(line.bad.counters().impaired_delayed.value(), 3);
}

#[test]
fn the_rate_spaces_packets_and_drops_what_does_not_fit_its_queue() {
    // 128 bytes with headers at 1 MB/s take 128 us. Eight wait at most.
    let rate = Some(1_000_000);
    let queue = Some(8 * (LEN as u64 + 28));
    let line = line(Impairments { rate, queue, ..Impairments::default() }, Direction::Send);
    assert_eq!(
        send(&line.bad, &line.out, &packets(20)).sent_packets,
        20,
        "a wire does not say that it drops"
    );
    let dropped = line.bad.counters().impaired_overflowed.value();
    assert_eq!(dropped, 12);
    for i in 1..=8 {
        assert_eq!(line.bad.next_release(), Instant(i * 128 * US));
        line.pass_time(i * 128 * US + US);
        assert_eq!(receive(&*line.peer), [[i as u8 - 1; LEN]]);
    }
    assert_eq!(line.bad.next_release(), Instant::NEVER);
}

#[test]
fn a_late_packet_is_overtaken_or_else_comes_half_a_millisecond_late() {
    let line = line(Impairments { reorder: 1.0, ..Impairments::default() }, Direction::Send);
    assert_eq!(send(&line.bad, &line.out, &packets(1)).sent_packets, 1);
    line.pass_time(400 * US);
    assert_eq!(receive(&*line.peer).len(), 0);
    line.pass_time(600 * US);
    assert_eq!(receive(&*line.peer), [[0; LEN]]);
    assert_eq!(line.bad.counters().impaired_reordered.value(), 1);
}

#[test]
fn what_is_received_can_be_spoiled_too() {
    let delay = Latency::Fixed(30 * US);
    let all = Impairments { loss: 0.5, delay, ..Impairments::default() };
    let line = line(all, Direction::Receive);
    assert_eq!(send(&line.bad, &line.out, &packets(10)).sent_packets, 10);
    assert_eq!(
        send(&*line.peer, &path(line.peer.local(), line.bad.local()), &packets(100)).sent_packets,
        100
    );
    line.net.advance_to(Instant(US));
    assert_eq!(receive(&*line.peer).len(), 10, "what is sent passes");
    assert_eq!(receive(&line.bad).len(), 0);
    assert_eq!(line.bad.next_release(), Instant(31 * US));
    assert_eq!(line.bad.next_to_send(), Instant::NEVER);
    line.net.advance_to(Instant(31 * US));
    let got = receive(&line.bad);
    let lost = line.bad.counters().impaired_lost.value() as usize;
    assert!((20..80).contains(&lost) && got.len() == 100 - lost, "{lost} lost, {} came", got.len());
    assert!(got.is_sorted());
}

/// The fates of 1000 packets over real sockets.
fn survivors(seed: u64) -> Vec<Vec<u8>> {
    let open = || UdpLink::open_first_free(&udp::Config::new([127, 0, 0, 1].into())).unwrap();
    let (a, b) = (open(), open());
    let out = path(a.local(), b.local());
    let impairments =
        Impairments { loss: 0.1, duplicate: 0.1, reorder: 0.1, corrupt: 0.1, ..Impairments::default() };
    let link = Impaired::new(a, impairments, Direction::Send, seed, || Instant::ZERO);
    let mut got = Vec::new();
    for _ in 0..10 {
        assert_eq!(send(&link, &out, &packets(100)).sent_packets, 100);
        got.extend(receive(&b));
    }
    link.flush(Duration::ZERO);
    got.extend(receive(&b));
    let c = link.counters();
    let changed = [&c.impaired_lost, &c.impaired_duplicated, &c.impaired_reordered, &c.impaired_corrupted];
    assert!(changed.iter().all(|counter| (50..160).contains(&counter.value())), "{c:?}");
    assert_eq!(got.len() as u64, 1000 - changed[0].value() + changed[1].value());
    assert!(!got.is_sorted());
    got
}

#[test]
fn the_same_seed_has_the_same_fates_on_real_sockets() {
    assert_eq!(survivors(5), survivors(5));
    assert_ne!(survivors(5), survivors(6));
}
