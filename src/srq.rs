//! Shared receive queues.

use std::collections::VecDeque;

use parking_lot::Mutex;

use crate::mem::PdId;
use crate::qp::SgeList;
use crate::verbs::{PostError, RecvWr};

/// A receive work request in a queue.
#[derive(Clone, Debug)]
pub struct RecvWqe {
    /// The program's name for it.
    pub id: u64,
    /// Its memory.
    pub sges: SgeList,
}

/// A shared receive queue.
#[derive(Debug)]
pub struct Srq {
    /// The device's number for it.
    pub id: u32,
    /// The protection domain of its memory.
    pub pd: PdId,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    wqes: VecDeque<RecvWqe>,
    max_wr: u32,
    max_sge: u32,
    limit: u32,
}

/// What can be asked about a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SrqAttr {
    /// Receives that it holds at most.
    pub max_wr: u32,
    /// Scatter/gather elements of one.
    pub max_sge: u32,
    /// An event is raised when fewer wait than this; 0 is never.
    pub limit: u32,
}

impl Srq {
    /// An empty queue.
    pub fn new(id: u32, pd: PdId, attr: SrqAttr) -> Self {
        let SrqAttr { max_wr, max_sge, limit } = attr;
        Self { id, pd, inner: Mutex::new(Inner { wqes: VecDeque::new(), max_wr, max_sge, limit }) }
    }

    /// Its sizes.
    pub fn attr(&self) -> SrqAttr {
        let q = self.inner.lock();
        SrqAttr { max_wr: q.max_wr, max_sge: q.max_sge, limit: q.limit }
    }

    /// Changes how many receives it holds. Fails if more wait, and nothing changes then.
    pub fn resize(&self, max_wr: u32) -> bool {
        let mut q = self.inner.lock();
        let fits = q.wqes.len() <= max_wr as usize && q.limit <= max_wr;
        if fits {
            q.max_wr = max_wr;
        }
        fits
    }

    /// Arms the limit event. Fails if the limit is above the size.
    pub fn set_limit(&self, limit: u32) -> bool {
        let mut q = self.inner.lock();
        let fits = limit <= q.max_wr;
        if fits {
            q.limit = limit;
        }
        fits
    }

    /// Whether the limit event is due now; it disarms the limit.
    pub fn take_limit_event(&self) -> bool {
        let mut q = self.inner.lock();
        let due = (q.wqes.len() as u32) < q.limit;
        if due {
            q.limit = 0;
        }
        due
    }

    /// Adds a receive.
    pub fn post(&self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        let mut q = self.inner.lock();
        if wr.sges.len() > q.max_sge as usize {
            return Err(PostError::TooManySges { have: wr.sges.len(), max: q.max_sge });
        }
        if q.wqes.len() >= q.max_wr as usize {
            return Err(PostError::Full(q.max_wr));
        }
        q.wqes.push_back(RecvWqe { id: wr.id, sges: SgeList::new(wr.sges) });
        Ok(())
    }

    /// Bytes that the oldest receive has room for.
    pub(crate) fn front_room(&self) -> Option<u64> {
        self.inner.lock().wqes.front().map(|w| w.sges.total())
    }

    /// Gives a receive back that was not used up.
    pub(crate) fn put_back(&self, wqe: RecvWqe) {
        self.inner.lock().wqes.push_front(wqe);
    }

    /// Takes the oldest receive, and says whether the limit was reached by that.
    pub(crate) fn take(&self) -> Option<(RecvWqe, bool)> {
        let mut q = self.inner.lock();
        let wqe = q.wqes.pop_front()?;
        let reached = (q.wqes.len() as u32) < q.limit;
        if reached {
            q.limit = 0;
        }
        Some((wqe, reached))
    }
}
