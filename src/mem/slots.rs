//! The array of regions: read by every packet without a lock, written under the table's mutex.
//!
//! Chunks are added as needed and live as long as the array, so a reader never meets freed memory. Each slot is
//! one cache line with a sequence counter: a reader that meets a writer, or whose copy was overtaken by one, reports
//! the slot as empty if that goes on. It never waits, so a writer that is interrupted (or was lost in a
//! `fork`) cannot block the data path; and a key that is being created or removed may be answered either way.

#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};

use super::odp::Root;
use super::{Access, PdId, keys};

const CHUNK_BITS: u32 = 9;
const CHUNK: usize = 1 << CHUNK_BITS;
const CHUNKS: usize = 1 << (keys::INDEX_BITS - CHUNK_BITS);
/// Slots that an array can have.
pub(super) const MAX: u32 = 1 << keys::INDEX_BITS;

/// What a slot holds. Key 0 means empty.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Entry {
    pub(super) key: u32,
    pub(super) pd: PdId,
    pub(super) access: Access,
    pub(super) start: u64,
    pub(super) len: u64,
    pub(super) host: u64,
    /// Its tree of pages, if it is paged on demand.
    pub(super) pages: Root,
}

#[repr(C, align(64))]
struct Slot {
    /// Odd while a writer is at work.
    sequence: AtomicU32,
    key: AtomicU32,
    pd: AtomicU32,
    access: AtomicU32,
    start: AtomicU64,
    len: AtomicU64,
    host: AtomicU64,
    pages: AtomicU64,
    /// How often the slot has been given out; only the writer looks.
    uses: AtomicU32,
}

/// Attempts of a reader that is overtaken by writers. One suffices unless regions are re-registered all the time.
const ATTEMPTS: u32 = 64;

impl Slot {
    #[inline(always)]
    fn read(&self) -> Option<Entry> {
        for _ in 0..ATTEMPTS {
            let before = self.sequence.load(Ordering::Acquire);
            let entry = Entry {
                key: self.key.load(Ordering::Relaxed),
                pd: PdId(self.pd.load(Ordering::Relaxed)),
                access: Access(self.access.load(Ordering::Relaxed)),
                start: self.start.load(Ordering::Relaxed),
                len: self.len.load(Ordering::Relaxed),
                host: self.host.load(Ordering::Relaxed),
                pages: Root(self.pages.load(Ordering::Relaxed)),
            };
            // The loads above come before the next one.
            fence(Ordering::Acquire);
            if before & 1 == 0 && self.sequence.load(Ordering::Relaxed) == before {
                return Some(entry);
            }
            std::hint::spin_loop();
        }
        None
    }

    fn write(&self, entry: &Entry) {
        let before = self.sequence.load(Ordering::Relaxed);
        self.sequence.store(before.wrapping_add(1), Ordering::Relaxed);
        // The stores below come after the one above.
        fence(Ordering::Release);
        self.key.store(entry.key, Ordering::Relaxed);
        self.pd.store(entry.pd.0, Ordering::Relaxed);
        self.access.store(entry.access.0, Ordering::Relaxed);
        self.start.store(entry.start, Ordering::Relaxed);
        self.len.store(entry.len, Ordering::Relaxed);
        self.host.store(entry.host, Ordering::Relaxed);
        self.pages.store(entry.pages.0, Ordering::Relaxed);
        self.sequence.store(before.wrapping_add(2), Ordering::Release);
    }
}

/// See the module.
pub(super) struct Slots {
    chunks: Box<[AtomicPtr<Slot>]>,
}

const LAYOUT: Layout = Layout::new::<[Slot; CHUNK]>();

impl Slots {
    pub(super) fn new() -> Self {
        Self { chunks: (0..CHUNKS).map(|_| AtomicPtr::new(std::ptr::null_mut())).collect() }
    }

    #[inline(always)]
    fn slot(&self, index: u32) -> Option<&Slot> {
        let chunk = self.chunks.get(index as usize >> CHUNK_BITS)?.load(Ordering::Acquire);
        if chunk.is_null() {
            return None;
        }
        // SAFETY: a published chunk has CHUNK slots and lives as long as `self`; the index is masked to them.
        Some(unsafe { &*chunk.add(index as usize & (CHUNK - 1)) })
    }

    /// The entry of a slot, if there is one that can be read now.
    #[inline(always)]
    pub(super) fn read(&self, index: u32) -> Option<Entry> {
        self.slot(index)?.read()
    }

    /// Makes sure that a slot exists. `false` if there is no memory for it, or no such index. Only under the mutex.
    pub(super) fn grow_to(&self, index: u32) -> bool {
        if self.slot(index).is_some() {
            return true;
        }
        let Some(place) = self.chunks.get(index as usize >> CHUNK_BITS) else { return false };
        // SAFETY: the layout is not empty, and all-zero bytes are valid slots: atomics, and empty.
        let chunk = unsafe { alloc_zeroed(LAYOUT) }.cast::<Slot>();
        if chunk.is_null() {
            return false;
        }
        place.store(chunk, Ordering::Release);
        true
    }

    /// Fills a slot that [`Self::grow_to`] made. Only under the mutex.
    pub(super) fn write(&self, index: u32, entry: &Entry) {
        if let Some(slot) = self.slot(index) {
            slot.write(entry);
        }
    }

    /// Empties a slot. Only under the mutex.
    pub(super) fn clear(&self, index: u32) {
        let pages = Root::NONE;
        let empty = Entry { key: 0, pd: PdId(0), access: Access(0), start: 0, len: 0, host: 0, pages };
        self.write(index, &empty);
    }

    /// Counts one more use of a slot; the count before. Only under the mutex.
    pub(super) fn next_use(&self, index: u32) -> u32 {
        let Some(slot) = self.slot(index) else { return 0 };
        let uses = slot.uses.load(Ordering::Relaxed);
        slot.uses.store(uses.wrapping_add(1), Ordering::Relaxed);
        uses
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        for chunk in &mut self.chunks {
            let chunk = *chunk.get_mut();
            if !chunk.is_null() {
                // SAFETY: allocated with this layout, and nobody can reach it any more.
                unsafe { dealloc(chunk.cast(), LAYOUT) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn a_slot_is_one_cache_line() {
        assert_eq!(size_of::<Slot>(), 64);
    }

    #[test]
    fn readers_never_see_half_of_an_entry() {
        let slots = Arc::new(Slots::new());
        assert!(slots.grow_to(3));
        let stop = Arc::new(AtomicBool::new(false));
        let entry = |n: u64| Entry {
            key: n as u32,
            pd: PdId(n as u32),
            access: Access(n as u32),
            start: n,
            len: n,
            host: n,
            pages: Root(n),
        };
        slots.write(3, &entry(1));
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let (slots, stop) = (slots.clone(), stop.clone());
                std::thread::spawn(move || {
                    let (mut seen, mut last) = (0_u64, 0);
                    while !stop.load(Ordering::Relaxed) {
                        if let Some(e) = slots.read(3) {
                            assert_eq!(e, entry(e.host), "torn");
                            assert!(e.host >= last, "went back");
                            seen += u64::from(e.host != last);
                            last = e.host;
                        }
                    }
                    seen
                })
            })
            .collect();
        let started = std::time::Instant::now();
        let mut n = 1;
        while started.elapsed().as_millis() < 300 {
            for _ in 0..1000 {
                n += 1;
                slots.write(3, &entry(n));
            }
            std::thread::yield_now();
        }
        stop.store(true, Ordering::Relaxed);
        for reader in readers {
            assert!(reader.join().unwrap() > 1, "the reader saw the writer at work");
        }
    }

    #[test]
    fn chunks_appear_where_they_are_needed() {
        let slots = Slots::new();
        assert!(slots.read(0).is_none());
        assert!(slots.grow_to(MAX - 1));
        assert!(slots.read(MAX - 1).is_some_and(|e| e.key == 0));
        assert!(slots.read(0).is_none());
        assert!(!slots.grow_to(MAX));
        assert!(slots.read(u32::MAX).is_none());
    }
}
