//! On-demand memory before the measured part: which pages are there.

use std::time::{Duration, Instant};

use super::error::{Error, Result};
use super::job::{Job, Memory, Operation, Pages};
use super::lane::Role;
use super::layout::Layout;
use crate::verbs::{Mapping, MemoryRegion, Prefetch};

const PAGE: u64 = 4096;

/// What is to be done with the pages of a job.
pub(super) fn of(job: &Job) -> Option<Pages> {
    match job.memory {
        Memory::Pinned => None,
        Memory::OnDemand(pages) | Memory::Implicit(pages) => Some(pages),
    }
}

/// Operations of a thread before the measured part: enough to use every page that has to be used.
pub(super) fn warm_up(job: &Job, layout: &Layout) -> u64 {
    match of(job) {
        Some(Pages::Warm) => job.warm_up.max(layout.slots),
        Some(Pages::Cold) if job.touched > 0.0 => job.warm_up.max(layout.slots),
        _ => job.warm_up,
    }
}

/// Operations of a thread in the measured part at most: after one walk nothing is cold any more.
pub(super) fn most(job: &Job, layout: &Layout) -> u64 {
    match of(job) {
        Some(Pages::Cold) => layout.slots,
        _ => u64::MAX,
    }
}

/// Makes the pages of a thread what the job says; returns how long prefetching took.
pub(super) fn prepare(
    memory: &Mapping,
    region: &MemoryRegion,
    layout: &Layout,
    job: &Job,
    role: Role,
) -> Result<Option<Duration>> {
    let kept = match of(job) {
        Some(Pages::Cold) => job.touched,
        Some(Pages::Prefetched) => 0.0,
        Some(Pages::Warm) | None => return Ok(None),
    };
    for area in [0, layout.inbox] {
        discard(memory, area, layout.inbox, kept)?;
    }
    if of(job) != Some(Pages::Prefetched) {
        return Ok(None);
    }
    let reads = matches!(job.operation, Operation::Get | Operation::Gather | Operation::FetchAdd);
    let start = Instant::now();
    // The initiator's own area is written by what it reads; the target's inbox by everything else.
    let how = |written: bool| if written { Prefetch::Write } else { Prefetch::Read };
    let remote = !reads || job.operation == Operation::FetchAdd;
    let (own, inbox) = match role {
        Role::Initiator => (how(reads), Prefetch::Write),
        Role::Target => (Prefetch::Read, how(remote)),
    };
    region.prefetch(memory.address(), layout.inbox, own)?;
    region.prefetch(memory.address() + layout.inbox, layout.inbox, inbox)?;
    Ok(Some(start.elapsed()))
}

/// Gives the pages of an area back, but for a share that is spread evenly.
fn discard(memory: &Mapping, area: u64, length: u64, kept: f64) -> Result<()> {
    let discard = |range| memory.discard(range).map_err(Error::system("madvise"));
    if kept == 0.0 {
        return discard(area..area + length);
    }
    for page in (0..length / PAGE).filter(|page| !is_kept(*page, kept)) {
        let start = area + page * PAGE;
        discard(start..start + PAGE)?;
    }
    Ok(())
}

fn is_kept(page: u64, share: f64) -> bool {
    ((page + 1) as f64 * share).floor() > (page as f64 * share).floor()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kept_share_is_exact_and_spread() {
        let kept = |share| (0..1000).filter(|page| is_kept(*page, share)).count();
        assert_eq!([kept(0.0), kept(0.25), kept(0.5), kept(1.0)], [0, 250, 500, 1000]);
        assert!((0..10).all(|part| (part * 100..part * 100 + 100).any(|page| is_kept(page, 0.02))));
    }
}
