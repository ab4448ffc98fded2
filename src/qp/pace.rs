//! The pace of what nobody acknowledges: READ responses, and the messages of unreliable queue pairs.
//!
//! There is no window for them, so a receiver may be sent more than its queue holds. It can only say so: by asking
//! again for a READ, or by a congestion notification packet. Then the sender pauses after each batch, and shortens the
//! pause again while it hears nothing.

use crate::time::Instant;

/// How long to pause, and until when.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// Pause after each batch, in ns. 0 until something was lost.
    pause: u64,
    not_before: Instant,
}

impl Pace {
    const FIRST: u64 = 25_000;
    /// Far below the time after which a peer takes silence for a loss.
    const LONGEST: u64 = 1_000_000;

    /// No pauses.
    pub(super) const fn new() -> Self {
        Self { pause: 0, not_before: Instant::ZERO }
    }
    /// The receiver has too much.
    pub(super) fn slow_down(&mut self) {
        self.pause = (self.pause * 2).clamp(Self::FIRST, Self::LONGEST);
    }
    /// A batch went by without complaint.
    pub(super) fn speed_up(&mut self) {
        self.pause -= self.pause / 32;
        if self.pause < Self::FIRST / 8 {
            self.pause = 0;
        }
    }
    /// Whether there are pauses.
    pub(super) const fn is_slow(&self) -> bool {
        self.pause > 0
    }
    /// A batch is full: pause. Without pauses, others get their turn and the sender goes on at the next opportunity.
    pub(super) fn pause(&mut self, now: Instant) {
        self.not_before = now.plus(self.pause.max(1));
    }
    /// When the pause is over.
    pub(super) const fn not_before(&self) -> Instant {
        self.not_before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_under_complaints_and_fade_without() {
        let mut pace = Pace::new();
        assert!(!pace.is_slow());
        pace.slow_down();
        pace.slow_down();
        pace.pause(Instant(1000));
        assert_eq!(pace.not_before(), Instant(1000 + 2 * Pace::FIRST));
        for _ in 0..20 {
            pace.slow_down();
        }
        pace.pause(Instant(0));
        assert_eq!(pace.not_before(), Instant(Pace::LONGEST));
        for _ in 0..1000 {
            pace.speed_up();
        }
        assert!(!pace.is_slow());
    }
}
