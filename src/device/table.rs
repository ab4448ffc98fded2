//! Which queue pair a number is.

use std::sync::Arc;

use parking_lot::RwLock;

use super::qp::Qp;
use crate::ids::Qpn;

/// Bits of a QPN that number queue pairs of one process; the bits above, its slot, say which process.
const INDEX_BITS: u32 = 16;
const CAPACITY: u32 = 1 << INDEX_BITS;

/// All queue pairs of a device.
pub(crate) struct QpTable {
    slot: u8,
    inner: RwLock<Inner>,
}

struct Inner {
    slots: Vec<Option<Arc<Qp>>>,
    /// Numbers are given out round and round, so that a late packet does not meet a new queue pair of an old number.
    next: u32,
    len: usize,
}

impl QpTable {
    /// A table for a process with this slot, which begins to number at `start`.
    pub(crate) fn new(slot: u8, start: u32) -> Self {
        Self { slot, inner: RwLock::new(Inner { slots: Vec::new(), next: start % CAPACITY, len: 0 }) }
    }

    /// Which process this is.
    pub(crate) fn slot(&self) -> u8 {
        self.slot
    }

    /// Adds the queue pair that `make` makes for its number. `None` if all numbers are taken.
    pub(crate) fn insert(&self, make: impl FnOnce(Qpn) -> Arc<Qp>) -> Option<Arc<Qp>> {
        let mut t = self.inner.write();
        if t.len >= CAPACITY as usize {
            return None;
        }
        let mut index = t.next;
        while t.slots.get(index as usize).is_some_and(Option::is_some) {
            index = (index + 1) % CAPACITY;
        }
        t.next = (index + 1) % CAPACITY;
        if t.slots.len() <= index as usize {
            t.slots.resize(index as usize + 1, None);
        }
        let qp = make(Qpn(u32::from(self.slot) << INDEX_BITS | index));
        t.slots[index as usize] = Some(qp.clone());
        t.len += 1;
        Some(qp)
    }

    pub(crate) fn find(&self, qpn: Qpn) -> Option<Arc<Qp>> {
        if qpn.slot() != self.slot {
            return None;
        }
        self.inner.read().slots.get((qpn.0 & (CAPACITY - 1)) as usize)?.clone()
    }

    pub(crate) fn remove(&self, qpn: Qpn) {
        let mut t = self.inner.write();
        if let Some(slot) = t.slots.get_mut((qpn.0 & (CAPACITY - 1)) as usize)
            && slot.take().is_some()
        {
            t.len -= 1;
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.inner.read().len
    }

    /// Those with the lowest numbers, at most `limit`.
    pub(crate) fn first(&self, limit: usize) -> Vec<Arc<Qp>> {
        self.inner.read().slots.iter().flatten().take(limit).cloned().collect()
    }

    pub(crate) fn clear(&self) {
        let mut t = self.inner.write();
        t.slots.clear();
        t.len = 0;
    }
}
