//! How much may be in flight to one peer. Shared by all queue pairs that talk to it.
//!
//! A datagram socket drops what does not fit its buffer, and a loss costs a go-back-N. So the sender bounds what it has
//! outstanding, grows the bound while all is well, and halves it at a loss (additive increase, multiplicative decrease).

use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};

use crate::time::Instant;

/// What a packet occupies in a receive buffer besides its payload.
pub const PACKET_OVERHEAD: u32 = 128;
/// What each queue pair may have in flight even if others have used up the peer's window: nobody starves.
pub const MIN_SHARE: u32 = 8 * 1024;

const MIN_LIMIT: u32 = 16 * 1024;
const FIRST_RTT: u64 = 2_000_000;

/// Bytes in flight to one peer, and how long it takes them.
#[derive(Debug)]
pub struct Window {
    in_flight: AtomicI64,
    limit: AtomicU32,
    max: u32,
    /// Smoothed round-trip time, ns. 0: none measured.
    srtt: AtomicU64,
    /// Its mean deviation, ns.
    rtt_var: AtomicU64,
    last_cut: AtomicU64,
}

impl Window {
    /// A window that may grow up to `max` bytes.
    pub fn new(max: u32) -> Self {
        let max = max.max(MIN_LIMIT);
        Self {
            in_flight: AtomicI64::new(0),
            limit: AtomicU32::new((max / 2).max(MIN_LIMIT)),
            max,
            srtt: AtomicU64::new(0),
            rtt_var: AtomicU64::new(0),
            last_cut: AtomicU64::new(0),
        }
    }

    /// Whether a queue pair that has `own` bytes in flight may send `more`.
    pub fn allows(&self, own: u64, more: u32) -> bool {
        own + u64::from(more) <= u64::from(MIN_SHARE) || own == 0 || u64::from(more) <= self.room()
    }

    /// Bytes until the window is full.
    pub fn room(&self) -> u64 {
        (i64::from(self.limit.load(Ordering::Relaxed)) - self.in_flight.load(Ordering::Relaxed)).max(0) as u64
    }

    /// Bytes in flight, with [`PACKET_OVERHEAD`] for each packet. 0 when every queue pair is idle.
    pub fn in_flight(&self) -> i64 {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// The present limit in bytes.
    pub fn limit(&self) -> u32 {
        self.limit.load(Ordering::Relaxed)
    }

    /// What the limit may grow to.
    pub fn max(&self) -> u32 {
        self.max
    }

    /// Changes what is in flight.
    pub fn charge(&self, delta: i64) {
        self.in_flight.fetch_add(delta, Ordering::Relaxed);
    }

    /// Bytes were acknowledged: additive increase by about one packet a round trip.
    pub fn grow(&self, acked: u64) {
        let limit = self.limit.load(Ordering::Relaxed);
        if limit < self.max {
            let step = (acked.min(1 << 20) as u32).saturating_mul(4096) / limit;
            self.limit.store(limit.saturating_add(step.max(1)).min(self.max), Ordering::Relaxed);
        }
    }

    /// A packet was lost: halve, at most once a round trip.
    pub fn cut(&self, now: Instant) {
        let last = self.last_cut.load(Ordering::Relaxed);
        if last != 0 && now.0.saturating_sub(last) < self.rtt() {
            return;
        }
        self.last_cut.store(now.0, Ordering::Relaxed);
        let limit = self.limit.load(Ordering::Relaxed);
        self.limit.store((limit / 2).max(MIN_LIMIT), Ordering::Relaxed);
    }

    /// A round trip took `ns`.
    pub fn sample_rtt(&self, ns: u64) {
        let old = self.srtt.load(Ordering::Relaxed);
        let new = if old == 0 { ns } else { old - old / 8 + ns / 8 };
        self.srtt.store(new.max(1), Ordering::Relaxed);
        let var = self.rtt_var.load(Ordering::Relaxed);
        let new = if old == 0 { ns / 2 } else { var - var / 4 + old.abs_diff(ns) / 4 };
        self.rtt_var.store(new, Ordering::Relaxed);
    }

    /// The round-trip time in ns: measured, or a guess.
    pub fn rtt(&self) -> u64 {
        self.measured_rtt().unwrap_or(FIRST_RTT)
    }

    /// After how long an answer is overdue, in ns, once round trips were measured: a peer that shares a busy CPU answers
    /// now in microseconds, now in milliseconds.
    pub fn patience(&self) -> Option<u64> {
        self.measured_rtt().map(|rtt| 2 * rtt + 4 * self.rtt_var.load(Ordering::Relaxed))
    }

    /// The round-trip time in ns, once it was measured.
    pub fn measured_rtt(&self) -> Option<u64> {
        Some(self.srtt.load(Ordering::Relaxed)).filter(|&ns| ns != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn window_halves_once_a_round_trip_and_grows_back() {
        let w = Window::new(1 << 20);
        w.sample_rtt(1000);
        let start = w.limit();
        w.cut(Instant(10_000));
        w.cut(Instant(10_500));
        assert_eq!(w.limit(), start / 2);
        w.cut(Instant(12_000));
        assert_eq!(w.limit(), start / 4);
        for _ in 0..100_000 {
            w.grow(4096);
        }
        assert_eq!(w.limit(), 1 << 20);
    }

    #[test]
    fn a_queue_pair_with_nothing_in_flight_may_always_send() {
        let w = Window::new(1 << 20);
        w.charge(1 << 21);
        assert!(w.allows(0, 4096));
        assert!(!w.allows(8192, 4096));
        w.charge(-(1 << 21));
        assert!(w.allows(8192, 4096));
    }
}
