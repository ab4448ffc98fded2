//! Messages for people go through `tracing`; who embeds the device decides where they end up. Here is only what keeps
//! them few.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::time::Instant;

/// Lets a few messages a second through and counts the rest: a program whose every request fails is told so, but is not
/// slowed down by it.
#[derive(Debug, Default)]
pub(crate) struct Throttle {
    /// The second it counts for.
    second: AtomicU64,
    passed: AtomicU64,
    suppressed: AtomicU64,
}

impl Throttle {
    const PER_SECOND: u64 = 20;

    /// Whether a message may pass now.
    pub(crate) fn passes(&self, now: Instant) -> bool {
        let second = now.0 / 1_000_000_000;
        if self.second.swap(second, Ordering::Relaxed) != second {
            self.passed.store(0, Ordering::Relaxed);
            let n = self.suppressed.swap(0, Ordering::Relaxed);
            if n > 0 {
                tracing::warn!("{n} more messages of this kind were left out");
            }
        }
        let passes = self.passed.fetch_add(1, Ordering::Relaxed) < Self::PER_SECOND;
        if !passes {
            self.suppressed.fetch_add(1, Ordering::Relaxed);
        }
        passes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_cut_to_a_few_lines_a_second() {
        let t = Throttle::default();
        let passed = (0..1000).filter(|_| t.passes(Instant(5_000_000_000))).count();
        assert_eq!(passed as u64, Throttle::PER_SECOND);
        assert!(t.passes(Instant(6_000_000_000)));
    }
}
