//! A bad network on purpose: loss, duplication, reordering, corruption, delay and a limited rate, from a seed.
//!
//! [`Impaired`] wraps any link. What happens to a packet is decided by dice when it is sent (or received), so the same
//! seed and the same packets give the same fates. Packets with nothing to fear pass as they are, in whole runs. Those
//! that take time are copied, since their memory may change after their request has completed, and wait in a
//! [way](way::Way) until somebody calls [`Impaired::release`]; [`Impaired::next_release`] says when.
//!
//! The [simulated network](super::sim) takes the same settings.
//!
//! | module | what it is |
//! |---|---|
//! | `dice` | chance, from a seed |
//! | `way` | one direction: the packets that are kept back, and until when |
//! | `bundle` | packets that are due, as runs |

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

use super::split::{self, Split};
use super::{Backlog, Counters, Limits, Link, Meta, Runs, RxBatch, SendOutcome, Why};
use crate::time::{Instant, Latency};
use crate::wire::batch::{IpId, MAX_RUN_BYTES, Path, Run};
use bundle::Bundle;
pub(super) use dice::{Dice, spoil};
use way::Way;

mod bundle;
mod dice;
mod way;

/// Bytes of the IPv4 and UDP headers, which use up the rate too.
pub(super) const PACKET_HEADERS: u64 = 28;
/// Times that a receive looks for more packets to keep back.
const ROUNDS: usize = 16;

/// What happens to packets on the way. The default is nothing.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub struct Impairments {
    /// Probability that a packet is lost, 0 to 1.
    pub loss: f64,
    /// Probability that it arrives twice.
    pub duplicate: f64,
    /// Probability that later packets overtake it.
    pub reorder: f64,
    /// Probability that one bit of it is wrong.
    pub corrupt: f64,
    /// Time on the way. In the simulated network at least 1 us, which is what it takes there without a delay.
    pub delay: Latency,
    /// Bytes per second, if limited; IP and UDP headers count.
    pub rate: Option<u64>,
    /// Bytes that may wait for the rate, the rest is dropped. `None` is what 10 ms of the rate carry, at least 256 KiB.
    /// Not in the simulated network, where it has no end.
    pub queue: Option<u64>,
}

impl Impairments {
    /// Whether anything happens.
    pub fn any(&self) -> bool {
        *self != Self { queue: self.queue, ..Self::default() }
    }

    fn queue_bytes(&self) -> u64 {
        const LEAST: u64 = 256 << 10;
        self.queue.unwrap_or_else(|| LEAST.max(self.rate.unwrap_or_default() / 100))
    }
}

/// Which packets are impaired.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Direction {
    /// Those that are sent.
    #[default]
    Send,
    /// Those that are received.
    Receive,
    /// All, with dice of their own for each direction.
    Both,
}

/// A link that spoils what passes it.
pub struct Impaired<L> {
    inner: L,
    clock: Box<dyn Fn() -> Instant + Send + Sync>,
    outward: Option<Lane<Arc<Path>, Segments>>,
    inward: Option<Lane<Meta, Buffers>>,
}

/// Packets of a run to each destination, as the link below has it.
type Segments = HashMap<IpAddr, usize>;

struct Buffers {
    received: RxBatch,
    /// What becomes one datagram.
    joined: Vec<u8>,
}

/// One direction with its lock, and what working on it needs.
struct Lane<T, B> {
    state: Mutex<(Way<T>, B)>,
    /// When something is to be released next, in ns.
    next: AtomicU64,
}

impl<T: Clone, B> Lane<T, B> {
    fn new(way: Way<T>, beside: B) -> Self {
        Self { state: Mutex::new((way, beside)), next: AtomicU64::new(u64::MAX) }
    }

    fn next(&self) -> Instant {
        Instant(self.next.load(Ordering::SeqCst))
    }

    fn with<R>(&self, work: impl FnOnce(&mut Way<T>, &mut B) -> R) -> R {
        self.with_locked(self.state.lock(), work)
    }

    fn with_locked<R>(
        &self,
        mut state: MutexGuard<'_, (Way<T>, B)>,
        work: impl FnOnce(&mut Way<T>, &mut B) -> R,
    ) -> R {
        let (way, beside) = &mut *state;
        let result = work(way, beside);
        self.next.store(way.next().0, Ordering::SeqCst);
        result
    }
}

impl<L: Link> Impaired<L> {
    /// Wraps a link. `clock` is the time that [`release`](Self::release) is told.
    pub fn new(
        inner: L,
        impairments: Impairments,
        direction: Direction,
        seed: u64,
        clock: impl Fn() -> Instant + Send + Sync + 'static,
    ) -> Self {
        let outward = || Lane::new(Way::new(impairments, seed), Segments::new());
        let inward = || {
            let buffers = Buffers { received: RxBatch::new(1), joined: Vec::new() };
            Lane::new(Way::new(impairments, !seed), buffers)
        };
        Self {
            inner,
            clock: Box::new(clock),
            outward: (direction != Direction::Receive).then(outward),
            inward: (direction != Direction::Send).then(inward),
        }
    }

    /// The link below.
    pub fn inner(&self) -> &L {
        &self.inner
    }

    /// When packets are to be released next, or can be received that were kept back.
    pub fn next_release(&self) -> Instant {
        self.next_to_send().min(self.inward.as_ref().map_or(Instant::NEVER, Lane::next))
    }

    /// When packets are to be released next.
    pub fn next_to_send(&self) -> Instant {
        self.outward.as_ref().map_or(Instant::NEVER, Lane::next)
    }

    /// Sends the packets whose time has come.
    pub fn release(&self, now: Instant) {
        if let Some(outward) = self.outward.as_ref().filter(|outward| outward.next() <= now) {
            outward.with(|way, segments| self.send_due(way, segments, now));
        }
    }

    /// The same for somebody who can wait for the link no longer than that. Returns false if it was not to be had.
    pub fn try_release(&self, now: Instant, patience: Duration) -> bool {
        self.try_send(patience, |way, segments| self.send_due(way, segments, now))
    }

    /// Sends all packets that were kept back. Returns false if the link was not to be had.
    pub fn flush(&self, patience: Duration) -> bool {
        self.try_send(patience, |way, segments| {
            let now = (self.clock)();
            way.hurry(now, self.counters());
            self.send_due(way, segments, now);
        })
    }

    fn try_send(&self, patience: Duration, work: impl FnOnce(&mut Way<Arc<Path>>, &mut Segments)) -> bool {
        let Some(outward) = &self.outward else { return true };
        let state = outward.state.try_lock_for(patience);
        state.map(|state| outward.with_locked(state, work)).is_some()
    }

    fn send_due(&self, way: &mut Way<Arc<Path>>, segments: &mut Segments, now: Instant) {
        loop {
            let due = way.due(now, self.counters());
            if due == 0 {
                return;
            }
            let bundle = Bundle::new(way.packets().take(due), |path| self.segments_to(segments, path));
            let SendOutcome { sent_packets, why } = self.inner.send_runs(bundle.runs());
            way.leave(sent_packets);
            match why {
                Why::Done => {}
                Why::WouldBlock => return way.met_full_link(now),
                // As if the network had lost it; the link has counted it.
                Why::Failed(_) => way.leave(1),
            }
        }
    }

    /// Packets of a run on a path. One that is taken apart would not get the identifications that its packets were made for.
    fn segments_to(&self, known: &mut Segments, path: &Path) -> usize {
        let ip = path.dst.ip();
        *known.entry(ip).or_insert_with(|| {
            let limits = self.inner.limits(ip);
            if limits.ip_id == IpId::Zero { limits.packets.max(1) } else { 1 }
        })
    }

    /// Sends `packets` of a run from number `first` on, untouched.
    fn send_part(&self, runs: Runs<'_>, run: &Run, first: usize, packets: usize) -> SendOutcome {
        if (first, packets) == (0, run.packets) {
            return self.inner.send_runs(Runs { runs: std::slice::from_ref(run), pieces: runs.pieces });
        }
        let mut split = Split::new(runs, run);
        let mut pieces = Vec::new();
        let mut bytes = 0;
        for index in 0..first + packets {
            if index == first {
                pieces.clear();
            }
            let len = split.next_packet(&mut pieces).unwrap_or(0);
            bytes += if index < first { 0 } else { len };
        }
        let part =
            Run { path: run.path.clone(), pieces: 0..pieces.len(), segment: run.segment, packets, bytes };
        self.inner.send_runs(Runs { runs: &[part], pieces: &pieces })
    }

    fn send_run(
        &self,
        way: &mut Way<Arc<Path>>,
        segments: &mut Segments,
        now: Instant,
        runs: Runs<'_>,
        run: &Run,
    ) -> SendOutcome {
        way.draw(run.packets);
        let longest = self.segments_to(segments, &run.path);
        let mut copy = None;
        let mut sent_packets = 0;
        while sent_packets < run.packets {
            let untouched = way.untouched(run.packets - sent_packets).min(longest);
            if untouched > 0 {
                let sent = self.send_part(runs, run, sent_packets, untouched);
                way.pass(now, sent.sent_packets, self.counters());
                sent_packets += sent.sent_packets;
                if sent.why != Why::Done {
                    return SendOutcome { sent_packets, why: sent.why };
                }
            } else if way.is_stuck() {
                return SendOutcome { sent_packets, why: Why::WouldBlock };
            } else {
                if copy.is_none() && !way.loses_next() {
                    match split::copy_run(runs, run) {
                        Ok(bytes) => copy = Some(bytes),
                        Err(errno) => return SendOutcome { sent_packets, why: Why::Failed(errno) },
                    }
                }
                let packet = copy.iter().flat_map(|copy| copy.chunks(run.segment.max(1))).nth(sent_packets);
                way.enter(now, run.path.clone(), packet.unwrap_or_default(), self.counters());
                sent_packets += 1;
            }
            self.send_due(way, segments, now);
        }
        SendOutcome { sent_packets, why: Why::Done }
    }

    /// Takes what has arrived and keeps it back for as long as it has to be.
    fn take_in(&self, way: &mut Way<Meta>, received: &mut RxBatch, now: Instant) -> io::Result<()> {
        for _ in 0..ROUNDS {
            if self.inner.recv(received)? == 0 {
                break;
            }
            for datagram in received.iter() {
                way.draw(datagram.packets().len());
                for packet in datagram.packets() {
                    let meta = Meta { segment: packet.len(), ..datagram.meta };
                    way.enter(now, meta, packet, self.counters());
                }
            }
        }
        Ok(())
    }

    /// Hands over what is due, packets of equal length in a row as one datagram.
    fn hand_over(&self, way: &mut Way<Meta>, joined: &mut Vec<u8>, now: Instant, rx: &mut RxBatch) {
        while !rx.is_full() {
            let due = way.due(now, self.counters());
            let mut packets = way.packets().take(due);
            let Some(first) = packets.next() else { return };
            let meta = first.place;
            joined.clear();
            joined.extend_from_slice(&first.bytes);
            let mut count = 1;
            for packet in packets {
                let alike = Meta { segment: meta.segment, ..packet.place } == meta;
                let fits = joined.len() == count * meta.segment
                    && packet.bytes.len() <= meta.segment
                    && joined.len() + packet.bytes.len() <= MAX_RUN_BYTES;
                if !(alike && fits) {
                    break;
                }
                joined.extend_from_slice(&packet.bytes);
                count += 1;
            }
            rx.push(meta, joined);
            way.leave(count);
        }
    }
}

impl<L: Link> Link for Impaired<L> {
    fn local(&self) -> SocketAddr {
        self.inner.local()
    }
    fn send_runs(&self, runs: Runs<'_>) -> SendOutcome {
        let Some(outward) = &self.outward else { return self.inner.send_runs(runs) };
        outward.with(|way, segments| {
            let now = (self.clock)();
            self.send_due(way, segments, now);
            let mut sent_packets = 0;
            for run in runs.runs {
                let sent = self.send_run(way, segments, now, runs, run);
                sent_packets += sent.sent_packets;
                if sent.why != Why::Done {
                    return SendOutcome { sent_packets, why: sent.why };
                }
            }
            SendOutcome { sent_packets, why: Why::Done }
        })
    }
    fn recv(&self, rx: &mut RxBatch) -> io::Result<usize> {
        let Some(inward) = &self.inward else { return self.inner.recv(rx) };
        inward.with(|way, Buffers { received, joined }| {
            let now = (self.clock)();
            rx.clear();
            self.take_in(way, received, now)?;
            self.hand_over(way, joined, now, rx);
            Ok(rx.len())
        })
    }
    fn fds(&self) -> [Option<RawFd>; 2] {
        self.inner.fds()
    }
    fn join(&self, group: IpAddr) -> io::Result<()> {
        self.inner.join(group)
    }
    fn leave(&self, group: IpAddr) {
        self.inner.leave(group);
    }
    fn limits(&self, destination: IpAddr) -> Limits {
        let limits = self.inner.limits(destination);
        match (limits.ip_id, &self.outward) {
            (IpId::Zero, _) | (_, None) => limits,
            // Packets leave one by one, so that each has the identification that it was made for.
            (IpId::Counting, Some(_)) => Limits { packets: 1, ip_id: IpId::Zero, ..limits },
        }
    }
    fn mtu(&self) -> u32 {
        self.inner.mtu()
    }
    fn counters(&self) -> &Counters {
        self.inner.counters()
    }
    fn show_headers(&self) -> io::Result<()> {
        self.inner.show_headers()
    }
    fn backlog(&self) -> Option<Backlog> {
        self.inner.backlog()
    }
}

impl<L: std::fmt::Debug> std::fmt::Debug for Impaired<L> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Impaired").field("inner", &self.inner).finish_non_exhaustive()
    }
}
