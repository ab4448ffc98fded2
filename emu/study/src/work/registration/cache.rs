//! A registration cache: one for the process, shared by all threads.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::work::CacheCounts;

const PAGE: u64 = 4096;

/// Registered regions by their addresses. Regions do not overlap. A lookup takes the lock, finds the region that covers
/// the whole buffer and makes it the most recently used one. A miss registers the pages of the buffer, together with
/// what regions it overlaps; if there are too many then, the least recently used one goes.
///
/// Whoever has got a region may use it as long as he likes: it is deregistered when the last one has given it back.
/// Whoever unmaps memory calls [`Cache::invalidate`] first, as the hook of a memory monitor would.
#[derive(Debug)]
pub struct Cache<R> {
    capacity: usize,
    inner: Mutex<Inner<R>>,
}

#[derive(Debug)]
struct Inner<R> {
    /// By their first address.
    regions: BTreeMap<u64, Entry<R>>,
    /// First addresses by the time of the last use.
    order: BTreeMap<u64, u64>,
    clock: u64,
    counts: CacheCounts,
}

#[derive(Debug)]
struct Entry<R> {
    end: u64,
    used: u64,
    region: Arc<R>,
}

impl<R> Cache<R> {
    /// A cache that holds up to `capacity` regions, but at least one.
    pub fn new(capacity: u32) -> Self {
        let inner = Inner {
            regions: BTreeMap::new(),
            order: BTreeMap::new(),
            clock: 0,
            counts: CacheCounts::default(),
        };
        Self { capacity: capacity.max(1) as usize, inner: Mutex::new(inner) }
    }

    fn lock(&self) -> MutexGuard<'_, Inner<R>> {
        // A panic of `register` leaves nothing half done.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The region that covers these addresses; `register` makes one if there is none.
    pub fn lookup<E>(
        &self,
        buffer: Range<u64>,
        register: impl FnOnce(Range<u64>) -> Result<R, E>,
    ) -> Result<Arc<R>, E> {
        let mut inner = self.lock();
        if let Some(region) = inner.find(&buffer) {
            inner.counts.hits += 1;
            return Ok(region);
        }
        inner.counts.misses += 1;
        let pages = buffer.start & !(PAGE - 1)..buffer.end.next_multiple_of(PAGE);
        let merged = inner.merged(pages);
        // The old regions stay until there is a new one.
        let region = Arc::new(register(merged.clone())?);
        inner.remove(&merged);
        inner.insert(merged, region.clone());
        while inner.regions.len() > self.capacity {
            inner.evict();
        }
        Ok(region)
    }

    /// Forgets all regions that overlap these addresses, which are about to be unmapped.
    pub fn invalidate(&self, range: Range<u64>) {
        let mut inner = self.lock();
        let gone = inner.remove(&range);
        inner.counts.invalidations += gone;
    }

    /// What it has done so far.
    pub fn counts(&self) -> CacheCounts {
        self.lock().counts
    }
}

impl<R> Inner<R> {
    fn find(&mut self, buffer: &Range<u64>) -> Option<Arc<R>> {
        let (start, entry) = self.regions.range_mut(..=buffer.start).next_back()?;
        if entry.end < buffer.end {
            return None;
        }
        self.clock += 1;
        self.order.remove(&entry.used);
        self.order.insert(self.clock, *start);
        entry.used = self.clock;
        Some(entry.region.clone())
    }

    fn overlapping(&self, range: &Range<u64>) -> impl Iterator<Item = (u64, u64)> {
        let before = self.regions.range(..range.start).next_back();
        let within = self.regions.range(range.start..range.end.max(range.start));
        let after_start = range.start;
        before
            .into_iter()
            .filter(move |(_, entry)| entry.end > after_start)
            .chain(within)
            .map(|(start, entry)| (*start, entry.end))
    }

    /// A range together with all regions that it overlaps.
    fn merged(&self, range: Range<u64>) -> Range<u64> {
        self.overlapping(&range)
            .fold(range.clone(), |all, (start, end)| all.start.min(start)..all.end.max(end))
    }

    /// Removes what overlaps a range; returns how many regions that were.
    fn remove(&mut self, range: &Range<u64>) -> u64 {
        let starts: Vec<_> = self.overlapping(range).map(|(start, _)| start).collect();
        for start in &starts {
            if let Some(entry) = self.regions.remove(start) {
                self.order.remove(&entry.used);
            }
        }
        starts.len() as u64
    }

    fn insert(&mut self, range: Range<u64>, region: Arc<R>) {
        self.clock += 1;
        self.order.insert(self.clock, range.start);
        self.regions.insert(range.start, Entry { end: range.end, used: self.clock, region });
    }

    fn evict(&mut self) {
        if let Some((_, start)) = self.order.pop_first() {
            self.regions.remove(&start);
            self.counts.evictions += 1;
        }
    }
}
