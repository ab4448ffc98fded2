//! What is on a path that nobody acknowledges.

use std::sync::atomic::{AtomicI64, AtomicU8, Ordering};

const UNKNOWN: u8 = 0;
const YES: u8 = 1;
const NO: u8 = 2;

/// Bytes of unreliable queue pairs that have left and that the peer has not told to have taken. Shared by all queue
/// pairs that use the path. See `qp/send/unacknowledged.rs`.
#[derive(Debug, Default)]
pub struct Flow {
    in_flight: AtomicI64,
    echoes: AtomicU8,
}

impl Flow {
    /// Bytes on the way.
    pub fn in_flight(&self) -> u64 {
        self.in_flight.load(Ordering::Relaxed).max(0) as u64
    }
    /// Changes what is on the way.
    pub fn charge(&self, delta: i64) {
        self.in_flight.fetch_add(delta, Ordering::Relaxed);
    }
    /// Whether the peer says what it has taken. `None` if that is not known.
    pub fn echoes(&self) -> Option<bool> {
        match self.echoes.load(Ordering::Relaxed) {
            UNKNOWN => None,
            answer => Some(answer == YES),
        }
    }
    /// The peer has answered, or it has not.
    pub fn set_echoes(&self, echoes: bool) {
        self.echoes.store(if echoes { YES } else { NO }, Ordering::Relaxed);
    }
}
