//! What a key's 32 bits are: a slot and a generation, scrambled so that no key tells anything about another.
//!
//! ```text
//! bits 31..8   a keyed permutation of: slot index (20 bits), high generation (4 bits)
//! bits  7..0   low generation (8 bits), the key byte
//! ```
//!
//! The 12 generation bits of a slot come from a keyed permutation of its use count, so a slot repeats a key only after
//! 4096 uses. Finding the slot needs the upper 24 bits only; then the slot's whole key is compared. That
//! leaves room for what IBA 10.6.3.3 gives to the owner of a type 2 window or a fast-register key: he
//! may choose the low byte, and the slot just stores another one.

/// Bits of a slot index.
pub(super) const INDEX_BITS: u32 = 20;
/// Bits of a generation.
const GENERATION_BITS: u32 = 12;
const HALF: u32 = (1 << 12) - 1;

/// The secret of one table.
pub(super) struct Scrambler {
    /// Multiplier and offset of each Feistel round over 12-bit halves: multiply-shift hashing with a 64-bit secret.
    rounds: [(u64, u64); 4],
    generation: u64,
}

impl Scrambler {
    /// Words of secret that [`Self::new`] takes.
    pub(super) const SECRET_WORDS: usize = 9;

    pub(super) fn new(secret: [u64; Self::SECRET_WORDS]) -> Self {
        let round = |i: usize| (secret[2 * i] | 1, secret[2 * i + 1]);
        Self { rounds: [round(0), round(1), round(2), round(3)], generation: secret[8] }
    }

    #[inline(always)]
    fn round(&self, i: usize, half: u32) -> u32 {
        let (multiplier, offset) = self.rounds[i];
        (u64::from(half).wrapping_mul(multiplier).wrapping_add(offset) >> 52) as u32
    }

    /// The key of a slot at its `uses`-th use. May be one of the values that no key should have.
    pub(super) fn key(&self, index: u32, uses: u32) -> u32 {
        let generation = self.generation(index, uses);
        let plain = index << 4 | generation >> 8;
        let (mut left, mut right) = (plain >> 12, plain & HALF);
        for i in 0..4 {
            (left, right) = (right, left ^ self.round(i, right));
        }
        left << 20 | right << 8 | generation & 0xff
    }

    /// The slot that a key would be in.
    #[inline(always)]
    pub(super) fn index(&self, key: u32) -> u32 {
        let (mut left, mut right) = (key >> 20, key >> 8 & HALF);
        // Not a loop, so that it stays straight code in unoptimised builds too.
        (left, right) = (right ^ self.round(3, left), left);
        (left, right) = (right ^ self.round(2, left), left);
        (left, right) = (right ^ self.round(1, left), left);
        (left, right) = (right ^ self.round(0, left), left);
        (left << 12 | right) >> 4
    }

    /// A permutation of 12 bits for each slot: Feistel over 6-bit halves. Runs at registration only.
    fn generation(&self, index: u32, uses: u32) -> u32 {
        let uses = uses & ((1 << GENERATION_BITS) - 1);
        let (mut left, mut right) = (uses >> 6, uses & 0x3f);
        for i in 0..6_u64 {
            let input = self.generation ^ (u64::from(index) << 32 | i << 8 | u64::from(right));
            (left, right) = (right, left ^ (mix(input.wrapping_add(self.rounds[2].1)) >> 58) as u32);
        }
        left << 6 | right
    }
}

/// Mixes all bits of a word (the finaliser of splitmix64).
fn mix(mut z: u64) -> u64 {
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scrambler(seed: u64) -> Scrambler {
        Scrambler::new(std::array::from_fn(|i| {
            mix(seed.wrapping_add(i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15))
        }))
    }

    #[test]
    fn every_key_leads_back_to_its_slot() {
        let s = scrambler(1);
        for index in (0..1 << INDEX_BITS).step_by(7) {
            let key = s.key(index, index);
            assert_eq!(s.index(key), index);
            assert_eq!(s.index(key ^ 0xa5), index, "whatever the key byte");
        }
    }

    #[test]
    fn upper_24_bits_are_a_permutation() {
        let s = scrambler(2);
        let mut seen = vec![0_u8; 1 << INDEX_BITS];
        for upper in 0..1_u32 << 24 {
            seen[s.index(upper << 8) as usize] += 1;
        }
        assert!(seen.iter().all(|&n| n == 16), "each slot has 16 upper parts");
    }

    #[test]
    fn a_slot_has_4096_different_keys_before_one_repeats() {
        let s = scrambler(3);
        for index in [0, 1, 77_777, (1 << INDEX_BITS) - 1] {
            let keys: std::collections::HashSet<u32> = (0..4096).map(|uses| s.key(index, uses)).collect();
            assert_eq!(keys.len(), 4096);
            assert_eq!(s.key(index, 4096), s.key(index, 0));
        }
    }

    #[test]
    fn neighbouring_slots_and_uses_and_tables_have_unrelated_keys() {
        // The mean Hamming distance of unrelated 32-bit words is 16. Keys that could be derived from each other by
        // adding, xoring or rotating a constant would show as a distance or a difference that keeps coming back.
        let tables: Vec<_> = (0..8).map(|i| scrambler(100 + i)).collect();
        type At = fn(u32) -> (u32, u32);
        for (name, at) in [("slots", (|i| (i, 0)) as At), ("uses", |i| (5, i))] {
            let (mut distance, mut pairs) = (0, 0);
            let mut differences = std::collections::HashMap::new();
            for s in &tables {
                for i in 0..2000 {
                    let ((index, uses), (next_index, next_uses)) = (at(i), at(i + 1));
                    let (a, b) = (s.key(index, uses), s.key(next_index, next_uses));
                    distance += (a ^ b).count_ones();
                    pairs += 1;
                    *differences.entry(a ^ b).or_insert(0) += 1;
                }
            }
            let mean = f64::from(distance) / f64::from(pairs);
            assert!((14.0..18.0).contains(&mean), "{name}: mean distance {mean}");
            assert!(differences.values().all(|&n| n < 64), "{name}: a difference repeats");
        }
        let same = (0..2000).filter(|&i| tables[0].key(i, 0) == tables[1].key(i, 0)).count();
        assert_eq!(same, 0);
    }
}
