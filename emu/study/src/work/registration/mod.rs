//! Who knows the key of the local buffer of an operation: the caller, or the cache.

use std::collections::VecDeque;
use std::sync::Arc;

mod cache;
#[cfg(test)]
mod tests;

pub use cache::Cache;

use super::job::Registration;
use crate::verbs::{Access, Mapping, MemoryRegion, ProtectionDomain, Result};

/// The cache of the process.
pub(super) type RegionCache = Cache<MemoryRegion>;

/// How the operations of a thread find their keys.
#[derive(Debug)]
pub(super) struct Keys {
    /// Key of the memory that the caller has registered.
    own: u32,
    lookups: Option<Lookups>,
}

#[derive(Debug)]
struct Lookups {
    cache: Arc<RegionCache>,
    domain: Arc<ProtectionDomain>,
    memory: Arc<Mapping>,
    /// Operations of a hundred that look up.
    percent: u32,
    /// What the operations so far have left over.
    due: u32,
    /// For each queue pair, the regions of the operations under way, in their order.
    held: Vec<VecDeque<Option<Arc<MemoryRegion>>>>,
}

/// The share of operations that look up, if any do.
pub(super) fn percent(registration: Registration) -> Option<u32> {
    match registration {
        Registration::None => None,
        Registration::Cached { .. } => Some(100),
        Registration::Hybrid { unregistered_percent, .. } => Some(unregistered_percent),
    }
}

/// The cache that a job needs.
pub(super) fn cache(registration: Registration) -> Option<Arc<RegionCache>> {
    match registration {
        Registration::None => None,
        Registration::Cached { capacity } | Registration::Hybrid { capacity, .. } => {
            Some(Arc::new(Cache::new(capacity)))
        }
    }
}

impl Keys {
    /// The caller knows them.
    pub(super) fn given(own: u32) -> Self {
        Self { own, lookups: None }
    }

    /// The cache knows those of so many operations of a hundred.
    pub(super) fn looked_up(
        own: u32,
        cache: Arc<RegionCache>,
        domain: Arc<ProtectionDomain>,
        memory: Arc<Mapping>,
        percent: u32,
        queues: u32,
    ) -> Self {
        let held = (0..queues).map(|_| VecDeque::new()).collect();
        Self { own, lookups: Some(Lookups { cache, domain, memory, percent, due: 0, held }) }
    }

    /// The key for an operation's memory.
    #[inline]
    pub(super) fn key(&mut self, queue: usize, offset: u64, length: u32) -> Result<u32> {
        match &mut self.lookups {
            None => Ok(self.own),
            Some(lookups) => lookups.key(self.own, queue, offset, length),
        }
    }

    /// Operations of a queue pair, in their order, are over.
    #[inline]
    pub(super) fn release(&mut self, queue: usize, count: u32) {
        if let Some(lookups) = &mut self.lookups {
            lookups.held[queue].drain(..count as usize);
        }
    }
}

impl Lookups {
    fn key(&mut self, own: u32, queue: usize, offset: u64, length: u32) -> Result<u32> {
        self.due += self.percent;
        if self.due < 100 {
            self.held[queue].push_back(None);
            return Ok(own);
        }
        self.due -= 100;
        let (memory, base) = (&self.memory, self.memory.address());
        let start = base + offset;
        let region = self.cache.lookup(start..start + u64::from(length), |range| {
            self.domain.register(memory, range.start - base..range.end - base, Access::Pinned, false)
        })?;
        let key = region.local_key();
        self.held[queue].push_back(Some(region));
        Ok(key)
    }
}

impl Drop for Lookups {
    /// The thread's memory is about to be unmapped.
    fn drop(&mut self) {
        let start = self.memory.address();
        self.cache.invalidate(start..start + self.memory.len());
    }
}
