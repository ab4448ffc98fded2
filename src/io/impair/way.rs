//! One direction: the packets that are kept back, and until when.

use std::collections::VecDeque;

use super::Impairments;
use super::dice::{Dice, Fate, spoil};
use crate::io::Counters;
use crate::time::{Instant, Latency};

/// A packet that is late lets so many others go first,
const OVERTAKEN: (u64, u64) = (1, 8);
/// but waits no longer than this for them, in ns.
const LATEST: u64 = 500_000;
/// How long a link that is full is left alone, in ns.
const FULL_PAUSE: u64 = 50_000;
/// Packets that are released at a time.
const AT_ONCE: usize = 64;
/// Bytes that may be on the way at once.
const MOST_BYTES: usize = 256 << 20;

/// Packets on their way; `T` says where each goes, or where it came from.
#[derive(Debug)]
pub(super) struct Way<T> {
    impairments: Impairments,
    dice: Dice,
    /// Fates of packets that a full link did not take: they are tried again, but not drawn again.
    drawn: VecDeque<Fate>,
    late: Vec<Late<T>>,
    /// In the order in which they are released.
    queue: VecDeque<(Instant, Packet<T>)>,
    queued_bytes: usize,
    /// The rate is used up until then.
    busy: Instant,
    /// The link below was full; nothing is released before.
    full_until: Instant,
}

#[derive(Clone, Debug)]
pub(super) struct Packet<T> {
    pub(super) place: T,
    pub(super) bytes: Box<[u8]>,
}

#[derive(Debug)]
struct Late<T> {
    /// How many others go first.
    others: u64,
    /// When it goes even if they do not.
    until: Instant,
    packet: Packet<T>,
}

impl<T: Clone> Way<T> {
    pub(super) fn new(impairments: Impairments, seed: u64) -> Self {
        Self {
            impairments,
            dice: Dice::new(seed),
            drawn: VecDeque::new(),
            late: Vec::new(),
            queue: VecDeque::new(),
            queued_bytes: 0,
            busy: Instant::ZERO,
            full_until: Instant::ZERO,
        }
    }

    /// Decides about the next `packets` packets.
    pub(super) fn draw(&mut self, packets: usize) {
        while self.drawn.len() < packets {
            self.drawn.push_back(self.dice.fate(&self.impairments));
        }
    }

    /// Of the next `packets` packets, those to which nothing happens at all.
    pub(super) fn untouched(&self, packets: usize) -> usize {
        if self.is_slow() || !self.queue.is_empty() {
            return 0;
        }
        self.drawn.iter().take(packets).take_while(|fate| fate.is_harmless()).count()
    }

    /// Whether the next packet is lost.
    pub(super) fn loses_next(&self) -> bool {
        self.drawn.front().is_some_and(|fate| fate.lost)
    }

    /// Whether packets take time.
    pub(super) fn is_slow(&self) -> bool {
        self.impairments.delay != Latency::None || self.impairments.rate.is_some()
    }

    /// Whether what is due could not leave, because the link was full.
    pub(super) fn is_stuck(&self) -> bool {
        !self.is_slow() && !self.queue.is_empty()
    }

    /// The next packets have passed untouched.
    pub(super) fn pass(&mut self, now: Instant, packets: usize, counters: &Counters) {
        self.drawn.drain(..packets);
        self.overtake(now, packets, counters);
    }

    /// The next packet sets out.
    pub(super) fn enter(&mut self, now: Instant, place: T, bytes: &[u8], counters: &Counters) {
        let fate = self.drawn.pop_front().unwrap_or_default();
        if fate.lost {
            counters.impaired_lost.add(1);
            return;
        }
        let mut packet = Packet { place, bytes: bytes.into() };
        if let Some(bit) = fate.wrong_bit {
            counters.impaired_corrupted.add(1);
            spoil(&mut packet.bytes, bit);
        }
        let twin = fate.twice.then(|| packet.clone());
        if fate.late {
            counters.impaired_reordered.add(1);
            let others = self.dice.between(OVERTAKEN);
            self.late.push(Late { others, until: now.plus(LATEST), packet });
        } else {
            self.queue(now, packet, counters);
            self.overtake(now, 1, counters);
        }
        if let Some(twin) = twin {
            counters.impaired_duplicated.add(1);
            self.queue(now, twin, counters);
        }
    }

    /// Late packets that have let `passed` more others go first, or have waited for long enough, go on.
    fn overtake(&mut self, now: Instant, passed: usize, counters: &Counters) {
        if self.late.is_empty() {
            return;
        }
        for late in &mut self.late {
            late.others = late.others.saturating_sub(passed as u64);
        }
        let ready = |late: &mut Late<T>| late.others == 0 || late.until <= now;
        for late in self.late.extract_if(.., ready).collect::<Vec<_>>() {
            self.queue(now, late.packet, counters);
        }
    }

    /// Queues a packet until it has used its part of the rate and its delay is over. Order is kept.
    fn queue(&mut self, now: Instant, packet: Packet<T>, counters: &Counters) {
        let len = packet.bytes.len();
        let Impairments { delay, rate, .. } = self.impairments;
        let mut release = now;
        if let Some(rate) = rate {
            let waiting = bytes_in(self.busy.since(now), rate);
            if waiting + len as u64 > self.impairments.queue_bytes() {
                return counters.impaired_overflowed.add(1);
            }
            self.busy = self.busy.max(now).plus(ns_of(len as u64 + super::PACKET_HEADERS, rate));
            release = self.busy;
        }
        if self.queued_bytes + len > MOST_BYTES {
            return counters.impaired_overflowed.add(1);
        }
        release = release.plus(self.dice.latency(delay));
        if let Some((last, _)) = self.queue.back() {
            release = release.max(*last);
        }
        if release > now {
            counters.impaired_delayed.add(1);
        }
        self.queued_bytes += len;
        self.queue.push_back((release, packet));
    }

    /// Lets late packets go on that have waited for long enough, and says how many packets are due.
    pub(super) fn due(&mut self, now: Instant, counters: &Counters) -> usize {
        self.overtake(now, 0, counters);
        if now < self.full_until {
            return 0;
        }
        self.queue.iter().take(AT_ONCE).take_while(|(release, _)| *release <= now).count()
    }

    /// Makes everything due.
    pub(super) fn hurry(&mut self, now: Instant, counters: &Counters) {
        self.overtake(now, usize::MAX, counters);
        self.full_until = Instant::ZERO;
        for (release, _) in &mut self.queue {
            *release = now;
        }
    }

    /// The packets that are on the way, the first to be released first.
    pub(super) fn packets(&self) -> impl Iterator<Item = &Packet<T>> {
        self.queue.iter().map(|(_, packet)| packet)
    }

    /// The first packets have been released.
    pub(super) fn leave(&mut self, packets: usize) {
        for (_, packet) in self.queue.drain(..packets) {
            self.queued_bytes -= packet.bytes.len();
        }
    }

    /// The link below was full.
    pub(super) fn met_full_link(&mut self, now: Instant) {
        self.full_until = now.plus(FULL_PAUSE);
    }

    /// When something is due next.
    pub(super) fn next(&self) -> Instant {
        let late = self.late.iter().map(|late| late.until).min().unwrap_or(Instant::NEVER);
        let queued = self.queue.front().map(|(release, _)| self.full_until.max(*release));
        late.min(queued.unwrap_or(Instant::NEVER))
    }
}

/// How long so many bytes take.
fn ns_of(bytes: u64, rate: u64) -> u64 {
    (u128::from(bytes) * 1_000_000_000 / u128::from(rate.max(1))).min(u64::MAX.into()) as u64
}

/// How many bytes pass in that time.
fn bytes_in(ns: u64, rate: u64) -> u64 {
    (u128::from(ns) * u128::from(rate) / 1_000_000_000).min(u64::MAX.into()) as u64
}
