//! Chance, from a seed.

use super::Impairments;
use crate::time::Latency;

/// Random numbers from a seed (SplitMix64).
#[derive(Clone, Debug)]
pub(in crate::io) struct Dice(u64);

/// What the dice say about one packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(in crate::io) struct Fate {
    pub(in crate::io) lost: bool,
    pub(in crate::io) twice: bool,
    pub(in crate::io) late: bool,
    /// Which bit is wrong, as a number that is to be taken modulo the packet's bits.
    pub(in crate::io) wrong_bit: Option<u64>,
}

impl Fate {
    pub(super) fn is_harmless(self) -> bool {
        self == Self::default()
    }
}

impl Dice {
    pub(in crate::io) fn new(seed: u64) -> Self {
        Self(seed)
    }
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    fn chance(&mut self, probability: f64) -> bool {
        probability > 0.0 && ((self.next() >> 11) as f64) < probability * (1u64 << 53) as f64
    }
    /// A number from `low` to `high`, both included.
    pub(in crate::io) fn between(&mut self, (low, high): (u64, u64)) -> u64 {
        if high <= low { low } else { low + self.next() % (high - low + 1) }
    }
    /// A time in ns.
    pub(in crate::io) fn latency(&mut self, latency: Latency) -> u64 {
        match latency {
            Latency::None | Latency::Fixed(_) => latency.sample(0),
            Latency::Uniform(..) | Latency::Exponential(_) => latency.sample(self.next()),
        }
    }
    pub(in crate::io) fn fate(&mut self, impairments: &Impairments) -> Fate {
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
pub(in crate::io) fn spoil(bytes: &mut [u8], bit: u64) {
    if !bytes.is_empty() {
        let bit = (bit % (bytes.len() as u64 * 8)) as usize;
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
}
