//! On-demand paging: regions whose pages the device does not take for present before it has made them so.
//!
//! | module | what it is |
//! |---|---|
//! | [`pages`] | which pages of a region are present, read by every packet |
//! | [`watch`] | what the program does to its mappings, by a userfaultfd |
//! | [`populate`] | making pages present |
//! | [`queue`] | faults that wait for a worker |
//! | [`stats`] | what is counted |
//!
//! A translation that meets an absent page ends in [`MemError::NotPresent`](super::MemError) with a [`Miss`]. Its user puts
//! itself aside and hands the miss to the [`queue::Faults`], a worker resolves it ([`Demand::resolve`]), and the
//! user tries again.

pub(crate) mod pages;
mod populate;
pub mod queue;
pub mod stats;
mod watch;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::{Fault, HostAddr};
use crate::ids::LKey;
pub(crate) use pages::Root;
use pages::{PAGE, PAGE_BITS};
use stats::{RegionStats, Stats, Times};
use watch::{Watch, Watched};

/// Most bytes that a fault makes present beyond those it needs.
const MOST_AHEAD: u64 = 4 << 20;
/// Bytes that a prefetch makes present in one go. Others get their turn in between.
const PREFETCH_STEP: u64 = 8 << 20;

/// A range that is not present as it is needed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Miss {
    /// The key of its region.
    pub key: u32,
    /// Where it is in this process.
    pub host: HostAddr,
    /// Its length; not 0.
    pub len: u64,
    /// Bytes after it that will be needed next.
    pub ahead: u64,
    /// It is to be written.
    pub write: bool,
}

impl std::fmt::Display for Miss {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { key, host, len, .. } = self;
        write!(f, "key {key:#010x}: memory at {host:?}, length {len:#x} is not present")
    }
}

/// Who met a fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum By {
    /// A send, or the response to a request of ours.
    Requester,
    /// A peer's WRITE, READ or atomic.
    Responder,
    /// A peer's SEND, for a receive.
    Receive,
}

/// What a program advises.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Advice {
    /// Make present for reading.
    Read,
    /// Make present for writing.
    Write,
    /// Take as present what is in memory.
    Resident,
}

/// The pages that hold `[start, end)`, if they can be a program's.
fn whole_pages(start: u64, end: u64) -> Result<(u64, u64), Fault> {
    /// No program has addresses from here on.
    const TOP: u64 = 1 << 57;
    match end > TOP {
        true => Err(Fault { addr: start }),
        false => Ok((start & !(PAGE - 1), end.next_multiple_of(PAGE))),
    }
}

/// A region that is paged on demand.
#[derive(Debug)]
struct Region {
    key: u32,
    host: u64,
    len: u64,
    root: Root,
    watched: &'static Watched,
    stats: Stats,
    times: Mutex<Times>,
}

impl std::fmt::Debug for Watched {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watched").finish_non_exhaustive()
    }
}

impl Region {
    /// The page of an address, counted from the region's first.
    fn page(&self, addr: u64) -> u64 {
        (addr >> PAGE_BITS) - (self.host >> PAGE_BITS)
    }
    fn has(&self, start: u64, end: u64, write: bool) -> bool {
        self.root.has(self.page(start), self.page(end - 1), write)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        self.watched.leave();
        self.root.free();
    }
}

/// All regions of a device that are paged on demand.
#[derive(Default)]
pub(super) struct Demand {
    regions: Mutex<HashMap<u32, Arc<Region>>>,
    watch: Mutex<Option<Arc<Watch>>>,
    /// It was said that there is no userfaultfd.
    told: AtomicBool,
    totals: Stats,
    times: Mutex<Times>,
}

impl Demand {
    /// A tree for a region. `None` if there is no memory.
    pub(super) fn tree(host: u64, len: u64) -> Option<Root> {
        Root::new((host.saturating_add(len - 1) >> PAGE_BITS) - (host >> PAGE_BITS) + 1)
    }

    /// Takes a region in, with its tree.
    pub(super) fn enter(&self, key: u32, host: u64, len: u64, root: Root) {
        let watched = Watched::enter(host, host.saturating_add(len - 1), root);
        let (stats, times) = (Stats::default(), Mutex::default());
        let region = Arc::new(Region { key, host, len, root, watched, stats, times });
        self.regions.lock().insert(key, region);
    }

    /// Forgets a region. Nothing looks it up any more: its entry in the table is gone.
    pub(super) fn leave(&self, key: u32) {
        let region = self.regions.lock().remove(&key);
        if let Some(region) = region {
            self.totals.add_invalidations(
                region.watched.invalidations.load(Ordering::Relaxed),
                region.watched.pages.load(Ordering::Relaxed),
            );
        }
    }

    fn find(&self, key: u32) -> Option<Arc<Region>> {
        self.regions.lock().get(&key).cloned()
    }

    /// The page of a guarded access that has failed is not what it was taken for.
    #[cold]
    pub(super) fn forget(&self, key: u32, addr: u64) {
        if let Some(region) = self.find(key)
            && addr.wrapping_sub(region.host) < region.len
        {
            region.root.clear(region.page(addr), region.page(addr));
        }
    }

    fn watch(&self) -> Option<Arc<Watch>> {
        let mut watch = self.watch.lock();
        if watch.is_none() && !self.told.load(Ordering::Relaxed) {
            match Watch::get() {
                Ok(new) => *watch = Some(new),
                Err(error) => {
                    self.told.store(true, Ordering::Relaxed);
                    tracing::warn!(%error, "no userfaultfd: what the program unmaps is noticed only when it is used");
                }
            }
        }
        watch.clone()
    }

    /// Makes sure that what happens to `[start, end)` from now on is heard, and what has happened is known.
    fn listen(&self, start: u64, end: u64) {
        if let Some(watch) = self.watch() {
            watch.cover(start, end);
            watch.settle();
        }
    }

    /// Makes `[start, end)` of a region present and books it.
    fn fetch(&self, region: &Region, start: u64, end: u64, write: bool) -> Result<u64, Fault> {
        let (first, last) = (region.page(start), region.page(end - 1));
        let (start, end) = whole_pages(start, end)?;
        self.listen(start, end);
        region.root.begin(first, last);
        populate::populate(start, end, write)?;
        Ok(region.root.commit(first, last, write))
    }

    /// Resolves a miss. On an error the program has no such memory, or not for this. A region that is gone is no error:
    /// who asks again will hear it.
    pub(super) fn resolve(&self, miss: &Miss, by: By) -> Result<(), Fault> {
        let Some(region) = self.find(miss.key) else { return Ok(()) };
        let start = miss.host.0;
        let inside = start.wrapping_sub(region.host);
        if miss.len == 0 || inside >= region.len || miss.len > region.len - inside {
            return Ok(()); // it was registered anew, elsewhere
        }
        for stats in [&region.stats, &self.totals] {
            stats.fault(by, miss.write);
        }
        let end = start + miss.len;
        if region.has(start, end, miss.write) {
            return Ok(()); // another's fault has done it
        }
        let far = end + miss.ahead.min(MOST_AHEAD).min(region.len - inside - miss.len);
        let pages = match self.fetch(&region, start, far, miss.write) {
            // What is ahead may not be there, and need not be.
            Err(_) if far > end => self.fetch(&region, start, end, miss.write),
            result => result,
        };
        match pages {
            Ok(pages) => {
                for stats in [&region.stats, &self.totals] {
                    stats.pages.add(pages);
                }
                Ok(())
            }
            Err(_) => {
                for stats in [&region.stats, &self.totals] {
                    stats.failed.add(1);
                }
                Err(Fault { addr: self.first_bad(start, end, miss.write) })
            }
        }
    }

    /// The first address of a range that cannot be made present.
    fn first_bad(&self, start: u64, end: u64, write: bool) -> u64 {
        let Ok((mut page, end)) = whole_pages(start, end) else { return start };
        while page < end {
            if populate::populate(page, page + PAGE, write).is_err() {
                return page.max(start);
            }
            page += PAGE;
        }
        start
    }

    /// Books how long a fault took from when it was met, in ns.
    pub(super) fn took(&self, key: u32, ns: u64) {
        if let Some(region) = self.find(key) {
            region.times.lock().record(ns);
        }
        self.times.lock().record(ns);
    }

    /// Does a part of what a program advises, and returns where to go on; `None` at the end.
    pub(super) fn prefetch(
        &self,
        key: u32,
        start: u64,
        end: u64,
        advice: Advice,
    ) -> Result<Option<u64>, Fault> {
        let Some(region) = self.find(key) else { return Ok(None) };
        let limit = region.host.saturating_add(region.len);
        if start < region.host || end > limit || start >= end {
            return Ok(None);
        }
        let step = end.min(start.saturating_add(PREFETCH_STEP) & !(PAGE - 1));
        let pages = match advice {
            Advice::Read | Advice::Write => self.fetch(&region, start, step, advice == Advice::Write)?,
            Advice::Resident => {
                let (from, to) = whole_pages(start, step)?;
                self.listen(from, to);
                let (first, last) = (region.page(start), region.page(step - 1));
                region.root.begin(first, last);
                let mut pages = 0;
                populate::resident(from, to, |a, b| {
                    pages += region.root.commit(region.page(a), region.page(b - 1), false);
                })?;
                pages
            }
        };
        for stats in [&region.stats, &self.totals] {
            stats.prefetched.add(pages);
        }
        Ok((step < end).then_some(step))
    }

    /// One call of a program that advises.
    pub(super) fn advised(&self, key: u32) {
        if let Some(region) = self.find(key) {
            region.stats.prefetches.add(1);
        }
        self.totals.prefetches.add(1);
    }

    /// What all regions, also those that are gone, have counted.
    pub(super) fn totals(&self) -> RegionStats {
        let mut all = self.totals.snapshot(&self.times.lock());
        for region in self.regions.lock().values() {
            all.invalidations += region.watched.invalidations.load(Ordering::Relaxed);
            all.invalidated_pages += region.watched.pages.load(Ordering::Relaxed);
        }
        all
    }

    /// What each region has counted.
    pub(super) fn each(&self) -> Vec<(LKey, RegionStats)> {
        let regions: Vec<_> = self.regions.lock().values().cloned().collect();
        let snapshot = |region: &Region| {
            let mut one = region.stats.snapshot(&region.times.lock());
            one.invalidations = region.watched.invalidations.load(Ordering::Relaxed);
            one.invalidated_pages = region.watched.pages.load(Ordering::Relaxed);
            (LKey(region.key), one)
        };
        regions.iter().map(|region| snapshot(region)).collect()
    }
}

#[cfg(test)]
mod tests;
