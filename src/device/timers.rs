//! Which queue pair is due when.
//!
//! A queue pair is in the heap at most a few times, not once for every packet: while its deadline moves back, the old
//! entry stays, and when that comes up it is put in again.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::ids::Qpn;
use crate::time::Instant;

pub(crate) struct Timers {
    heap: Mutex<BinaryHeap<Reverse<(Instant, Qpn)>>>,
    next: AtomicU64,
}

impl Timers {
    pub(crate) fn new() -> Self {
        Self { heap: Mutex::new(BinaryHeap::new()), next: AtomicU64::new(u64::MAX) }
    }

    /// When the first entry is due.
    pub(crate) fn next(&self) -> Instant {
        Instant(self.next.load(Ordering::Relaxed))
    }

    /// Adds an entry. Returns whether it is the first now.
    pub(crate) fn add(&self, at: Instant, qpn: Qpn) -> bool {
        let mut heap = self.heap.lock();
        heap.push(Reverse((at, qpn)));
        let first = at.0 < self.next.load(Ordering::Relaxed);
        if first {
            self.next.store(at.0, Ordering::Relaxed);
        }
        first
    }

    /// Takes an entry that is due.
    pub(crate) fn take_due(&self, now: Instant) -> Option<(Instant, Qpn)> {
        if self.next() > now {
            return None;
        }
        let mut heap = self.heap.lock();
        let due = match heap.peek() {
            Some(&Reverse((at, qpn))) if at <= now => {
                heap.pop();
                Some((at, qpn))
            }
            _ => None,
        };
        let next = heap.peek().map_or(u64::MAX, |Reverse((at, _))| at.0);
        self.next.store(next, Ordering::Relaxed);
        due
    }
}
