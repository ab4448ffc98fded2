//! What is counted about on-demand paging. Names are those of the kernel's ODP statistics where it has them.

use std::sync::atomic::{AtomicU64, Ordering};

use hdrhistogram::Histogram;

use super::By;

/// A number that only rises.
#[derive(Default, Debug)]
pub(super) struct Count(AtomicU64);

impl Count {
    pub(super) fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }
    fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Default, Debug)]
pub(super) struct Stats {
    /// By who met them: requester, responder, receive.
    by: [Count; 3],
    write: Count,
    /// Pages that faults have made present.
    pub(super) pages: Count,
    /// Faults on what the program does not have.
    pub(super) failed: Count,
    pub(super) prefetches: Count,
    pub(super) prefetched: Count,
    invalidations: Count,
    invalidated: Count,
}

impl Stats {
    pub(super) fn fault(&self, by: By, write: bool) {
        self.by[by as usize].add(1);
        if write {
            self.write.add(1);
        }
    }

    pub(super) fn add_invalidations(&self, events: u64, pages: u64) {
        self.invalidations.add(events);
        self.invalidated.add(pages);
    }

    pub(super) fn snapshot(&self, times: &Times) -> RegionStats {
        let [requester, responder, receive] = self.by.each_ref().map(Count::value);
        let faults = requester + responder + receive;
        let write = self.write.value();
        RegionStats {
            faults,
            write_faults: write,
            read_faults: faults.saturating_sub(write),
            requester_faults: requester,
            responder_faults: responder,
            receive_faults: receive,
            faulted_pages: self.pages.value(),
            failed_faults: self.failed.value(),
            prefetches: self.prefetches.value(),
            prefetched_pages: self.prefetched.value(),
            invalidations: self.invalidations.value(),
            invalidated_pages: self.invalidated.value(),
            resolve_p50_ns: times.quantile(0.5),
            resolve_p99_ns: times.quantile(0.99),
            resolve_max_ns: times.quantile(1.0),
        }
    }
}

/// What a region, or a device, has counted.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[allow(missing_docs)]
pub struct RegionStats {
    pub faults: u64,
    pub read_faults: u64,
    pub write_faults: u64,
    pub requester_faults: u64,
    pub responder_faults: u64,
    pub receive_faults: u64,
    /// Pages that faults have made present.
    pub faulted_pages: u64,
    /// Faults on memory that the program does not have.
    pub failed_faults: u64,
    /// Calls of `ibv_advise_mr`.
    pub prefetches: u64,
    pub prefetched_pages: u64,
    /// Times that the program took pages away.
    pub invalidations: u64,
    pub invalidated_pages: u64,
    /// From the fault to its resolution.
    pub resolve_p50_ns: u64,
    pub resolve_p99_ns: u64,
    pub resolve_max_ns: u64,
}

impl RegionStats {
    /// All, with their names. The first three are those of `rdma statistic` in Linux.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, u64)> {
        [
            ("page_faults", self.faults),
            ("page_invalidations", self.invalidations),
            ("page_prefetch", self.prefetches),
            ("odp_read_faults", self.read_faults),
            ("odp_write_faults", self.write_faults),
            ("odp_requester_faults", self.requester_faults),
            ("odp_responder_faults", self.responder_faults),
            ("odp_receive_faults", self.receive_faults),
            ("odp_failed_faults", self.failed_faults),
            ("odp_faulted_pages", self.faulted_pages),
            ("odp_invalidated_pages", self.invalidated_pages),
            ("odp_prefetched_pages", self.prefetched_pages),
            ("odp_resolve_p50_ns", self.resolve_p50_ns),
            ("odp_resolve_p99_ns", self.resolve_p99_ns),
            ("odp_resolve_max_ns", self.resolve_max_ns),
        ]
        .into_iter()
    }
}

/// How long faults took. Made when the first one is recorded: most regions have none.
#[derive(Default, Debug)]
pub(super) struct Times(Option<Box<Histogram<u32>>>);

impl Times {
    /// From 100 ns to 100 s, to 1 part in 10.
    pub(super) fn record(&mut self, ns: u64) {
        if self.0.is_none() {
            self.0 = Histogram::new_with_bounds(100, 100_000_000_000, 1).ok().map(Box::new);
        }
        if let Some(histogram) = &mut self.0 {
            histogram.saturating_record(ns);
        }
    }

    fn quantile(&self, q: f64) -> u64 {
        self.0.as_ref().map_or(0, |histogram| histogram.value_at_quantile(q))
    }
}
