//! A bad network on purpose: loss, duplication, reordering and corruption, from a seed.
//!
//! [`Impaired`] wraps any link and spoils what is sent; the [simulated network](super::sim) takes the same settings
//! and adds delay and rate, which need a clock.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;
use std::sync::Arc;

use parking_lot::Mutex;

use super::split::{self, Split};
use super::{Backlog, Counters, Limits, Link, Runs, RxBatch, SendOutcome, Why};
use crate::wire::batch::{IpId, Path, Piece, Run};

/// What happens to packets on the way. The default is nothing.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Impairments {
    /// Probability that a packet is lost, 0 to 1.
    pub loss: f64,
    /// Probability that it arrives twice.
    pub duplicate: f64,
    /// Probability that later packets overtake it.
    pub reorder: f64,
    /// Probability that one bit of it is wrong.
    pub corrupt: f64,
    /// Nanoseconds on the way, least and most. Only in the simulated network.
    pub delay_ns: (u64, u64),
    /// Bytes per second, if limited. Only in the simulated network.
    pub rate: Option<u64>,
}

impl Default for Impairments {
    fn default() -> Self {
        Self { loss: 0.0, duplicate: 0.0, reorder: 0.0, corrupt: 0.0, delay_ns: (1000, 1000), rate: None }
    }
}

/// What the dice say about one packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Fate {
    pub(super) lost: bool,
    pub(super) twice: bool,
    pub(super) late: bool,
    /// Which bit is wrong, as a number that is to be taken modulo the packet's bits.
    pub(super) wrong_bit: Option<u64>,
}

impl Fate {
    fn is_harmless(self) -> bool {
        self == Self::default()
    }
}

/// Random numbers from a seed (SplitMix64).
#[derive(Clone, Debug)]
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    fn chance(&mut self, probability: f64) -> bool {
        probability > 0.0 && ((self.next() >> 11) as f64) < probability * (1u64 << 53) as f64
    }
    /// A number from `low` to `high`, both included.
    pub(super) fn between(&mut self, (low, high): (u64, u64)) -> u64 {
        if high <= low { low } else { low + self.next() % (high - low + 1) }
    }
    pub(super) fn fate(&mut self, impairments: &Impairments) -> Fate {
        if self.chance(impairments.loss) {
            return Fate { lost: true, ..Fate::default() };
        }
        Fate {
            lost: false,
            twice: self.chance(impairments.duplicate),
            late: self.chance(impairments.reorder),
            wrong_bit: self.chance(impairments.corrupt).then(|| self.next()),
        }
    }
}

/// Inverts a bit.
pub(super) fn spoil(bytes: &mut [u8], bit: u64) {
    if !bytes.is_empty() {
        let bit = (bit % (bytes.len() as u64 * 8)) as usize;
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
}

/// A link that spoils what is sent over it.
#[derive(Debug)]
pub struct Impaired<L> {
    inner: L,
    impairments: Impairments,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    dice: Dice,
    /// Packets that are late: how many others go first, and the packet.
    held: Vec<(u32, Arc<Path>, Vec<u8>)>,
    /// Fates of packets that a full link did not take: they are tried again, but not drawn again.
    drawn: std::collections::VecDeque<Fate>,
}

impl<L: Link> Impaired<L> {
    /// Wraps a link.
    pub fn new(inner: L, impairments: Impairments, seed: u64) -> Self {
        let state = State { dice: Dice::new(seed), held: Vec::new(), drawn: Default::default() };
        Self { inner, impairments, state: Mutex::new(state) }
    }

    /// The link below.
    pub fn inner(&self) -> &L {
        &self.inner
    }

    /// Sends the packets that are late now.
    pub fn flush(&self) {
        self.release(&mut self.state.lock(), usize::MAX);
    }

    /// Sends one packet of our own.
    fn send_copy(&self, path: &Arc<Path>, bytes: &[u8]) -> Why {
        let pieces = [Piece { addr: bytes.as_ptr() as usize, len: bytes.len() }];
        let run =
            Run { path: path.clone(), pieces: 0..1, segment: bytes.len(), packets: 1, bytes: bytes.len() };
        self.inner.send_runs(Runs { runs: &[run], pieces: &pieces }).why
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

    /// Sends one run; the fates of its packets are at the front of `drawn`.
    fn send_run(&self, state: &mut State, runs: Runs<'_>, run: &Run) -> SendOutcome {
        let mut sent_packets = 0;
        while sent_packets < run.packets {
            let harmless =
                state.drawn.iter().take(run.packets - sent_packets).take_while(|f| f.is_harmless()).count();
            if harmless > 0 {
                let sent = self.send_part(runs, run, sent_packets, harmless);
                state.drawn.drain(..sent.sent_packets);
                sent_packets += sent.sent_packets;
                self.release(state, sent.sent_packets);
                if sent.why != Why::Done {
                    return SendOutcome { sent_packets, why: sent.why };
                }
                continue;
            }
            let fate = state.drawn.front().copied().unwrap_or_default();
            if !fate.lost {
                let mut bytes = match split::copy_packet(runs, run, sent_packets) {
                    Ok(bytes) => bytes,
                    Err(errno) => return SendOutcome { sent_packets, why: Why::Failed(errno) },
                };
                if let Some(bit) = fate.wrong_bit {
                    spoil(&mut bytes, bit);
                }
                if !fate.late {
                    match self.send_copy(&run.path, &bytes) {
                        Why::Done => self.release(state, 1),
                        why => return SendOutcome { sent_packets, why },
                    }
                }
                if fate.twice {
                    // Where there is no room for it, nobody misses it.
                    self.send_copy(&run.path, &bytes);
                }
                if fate.late {
                    let others = state.dice.between((1, 8)) as u32;
                    state.held.push((others, run.path.clone(), bytes));
                }
            }
            state.drawn.pop_front();
            sent_packets += 1;
        }
        SendOutcome { sent_packets, why: Why::Done }
    }

    /// Sends late packets that `passed` others have overtaken.
    fn release(&self, state: &mut State, passed: usize) {
        if state.held.is_empty() {
            return;
        }
        for (others, _, _) in &mut state.held {
            *others = others.saturating_sub(u32::try_from(passed).unwrap_or(u32::MAX));
        }
        // What finds no room stays for the next time.
        state
            .held
            .retain(|(others, path, bytes)| *others > 0 || self.send_copy(path, bytes) == Why::WouldBlock);
    }
}

impl<L: Link> Link for Impaired<L> {
    fn local(&self) -> SocketAddr {
        self.inner.local()
    }
    fn send_runs(&self, runs: Runs<'_>) -> SendOutcome {
        let mut state = self.state.lock();
        let missing = runs.packets().saturating_sub(state.drawn.len());
        for _ in 0..missing {
            let fate = state.dice.fate(&self.impairments);
            state.drawn.push_back(fate);
        }
        let mut sent_packets = 0;
        for run in runs.runs {
            let sent = self.send_run(&mut state, runs, run);
            sent_packets += sent.sent_packets;
            if sent.why != Why::Done {
                return SendOutcome { sent_packets, why: sent.why };
            }
        }
        SendOutcome { sent_packets, why: Why::Done }
    }
    fn recv(&self, rx: &mut RxBatch) -> io::Result<usize> {
        self.inner.recv(rx)
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
        match limits.ip_id {
            IpId::Zero => limits,
            // A run that is taken apart would not get the identifications that its packets were made for.
            IpId::Counting => Limits { packets: 1, ip_id: IpId::Zero, ..limits },
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
