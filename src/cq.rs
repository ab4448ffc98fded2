//! Completion queues.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::ids::Qpn;
use crate::verbs::{Wc, WcStatus};

/// Hears that an armed completion queue has something.
pub trait CqNotify: Send + Sync {
    /// Called once for each time the queue was armed.
    fn completed(&self);
}

/// What an armed queue waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
enum Armed {
    No = 0,
    /// A solicited or a failed completion.
    Solicited = 1,
    Any = 2,
}

/// Whether a completion is what an armed queue waits for.
fn wakes(armed: u8, wc: &Wc) -> bool {
    armed == Armed::Any as u8
        || armed == Armed::Solicited as u8 && (wc.solicited || wc.status != WcStatus::Success)
}

/// A position in the order of all completions of a queue. A send queue's slots are free again when the program has
/// polled past the ticket of their completion.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Ticket(pub u64);

/// A completion queue.
pub struct Cq {
    /// The device's number for it.
    pub id: u32,
    entries: Mutex<Entries>,
    capacity: AtomicU32,
    produced: AtomicU64,
    consumed: AtomicU64,
    armed: AtomicU8,
    /// The program has looked since it was last notified.
    looked: AtomicBool,
    overrun: AtomicBool,
    overrun_reported: AtomicBool,
    /// Lost completions are what the program wants.
    may_overrun: AtomicBool,
    notify: Option<Arc<dyn CqNotify>>,
    vector: u32,
}

/// What waits in a queue.
#[derive(Default)]
struct Entries {
    /// In order. Those that were purged are left as holes, so that tickets keep their meaning.
    queue: VecDeque<Option<Wc>>,
    /// How many of them are holes.
    holes: usize,
}

impl Entries {
    fn len(&self) -> usize {
        self.queue.len() - self.holes
    }
}

impl std::fmt::Debug for Cq {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cq").field("id", &self.id).field("len", &self.len()).finish_non_exhaustive()
    }
}

impl Cq {
    /// An empty queue for `capacity` completions.
    pub fn new(id: u32, capacity: u32, notify: Option<Arc<dyn CqNotify>>) -> Self {
        Self {
            id,
            entries: Mutex::default(),
            capacity: AtomicU32::new(capacity),
            produced: AtomicU64::new(0),
            consumed: AtomicU64::new(0),
            armed: AtomicU8::new(Armed::No as u8),
            looked: AtomicBool::new(true),
            overrun: AtomicBool::new(false),
            overrun_reported: AtomicBool::new(false),
            may_overrun: AtomicBool::new(false),
            notify,
            vector: 0,
        }
    }

    /// The same on a completion vector: a choice of who makes its completions, if workers do.
    #[must_use]
    pub fn with_vector(mut self, vector: u32) -> Self {
        self.vector = vector;
        self
    }

    /// Its completion vector.
    pub fn vector(&self) -> u32 {
        self.vector
    }

    /// How many completions it holds at most.
    pub fn capacity(&self) -> u32 {
        self.capacity.load(Ordering::Relaxed)
    }

    /// How many completions wait.
    pub fn len(&self) -> usize {
        let consumed = self.consumed.load(Ordering::Acquire);
        self.produced.load(Ordering::Acquire).saturating_sub(consumed) as usize
    }

    /// Whether none waits. Costs two loads.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether a program waits to be notified.
    pub fn is_armed(&self) -> bool {
        self.armed.load(Ordering::Relaxed) != Armed::No as u8
    }

    /// Whether completions were lost because nobody polled.
    pub fn is_overrun(&self) -> bool {
        self.overrun.load(Ordering::Relaxed)
    }

    /// Whether completions that do not fit are lost without consequences. They are an error, if nothing is said.
    pub fn allow_overrun(&self, allowed: bool) {
        self.may_overrun.store(allowed, Ordering::Relaxed);
    }

    /// True once, for whoever is to report the overrun.
    pub(crate) fn report_overrun(&self) -> bool {
        self.is_overrun() && !self.overrun_reported.swap(true, Ordering::Relaxed)
    }

    /// Changes the capacity. Fails if more completions wait than that.
    pub fn resize(&self, capacity: u32) -> bool {
        let entries = self.entries.lock();
        if entries.len() > capacity as usize {
            return false;
        }
        self.capacity.store(capacity, Ordering::Relaxed);
        true
    }

    /// Adds completions in order. Returns the ticket of the first. The ones that do not fit are lost, and
    /// [`Cq::is_overrun`] says so ever after.
    pub fn push_all(&self, completions: impl Iterator<Item = Wc>) -> Ticket {
        let mut wake = false;
        let first;
        {
            let mut entries = self.entries.lock();
            let mut produced = self.produced.load(Ordering::Relaxed);
            first = Ticket(produced);
            let armed = self.armed.load(Ordering::Relaxed);
            let capacity = self.capacity.load(Ordering::Relaxed) as usize;
            for wc in completions {
                if entries.len() >= capacity {
                    if !self.may_overrun.load(Ordering::Relaxed) {
                        self.overrun.store(true, Ordering::Relaxed);
                    }
                    continue;
                }
                wake |= wakes(armed, &wc);
                entries.queue.push_back(Some(wc));
                produced += 1;
            }
            self.produced.store(produced, Ordering::Release);
            if wake {
                self.armed.store(Armed::No as u8, Ordering::Relaxed);
                self.looked.store(false, Ordering::Relaxed);
            }
        }
        if wake && let Some(notify) = &self.notify {
            notify.completed();
        }
        first
    }

    /// Takes completions, oldest first. Returns how many.
    pub fn poll(&self, out: &mut [Wc]) -> usize {
        let mut n = 0;
        self.poll_with(out.len(), |wc| {
            out[n] = wc;
            n += 1;
        });
        n
    }

    /// Takes up to `max` completions, oldest first. Returns how many.
    pub fn poll_with(&self, max: usize, mut take: impl FnMut(Wc)) -> usize {
        if self.is_empty() {
            // A plain load in the common case: others write to this line.
            if !self.looked.load(Ordering::Relaxed) {
                self.looked.store(true, Ordering::Relaxed);
            }
            return 0;
        }
        let mut entries = self.entries.lock();
        self.looked.store(true, Ordering::Relaxed);
        let (mut taken, mut passed) = (0, 0);
        while taken < max {
            match entries.queue.pop_front() {
                Some(Some(wc)) => {
                    take(wc);
                    taken += 1;
                    passed += 1;
                }
                Some(None) => {
                    entries.holes -= 1;
                    passed += 1;
                }
                None => break,
            }
        }
        self.consumed.fetch_add(passed, Ordering::Release);
        taken
    }

    /// Whether the program has polled past a ticket.
    pub fn has_consumed(&self, ticket: Ticket) -> bool {
        self.consumed.load(Ordering::Acquire) > ticket.0
    }

    /// Asks for one notification at the next completion (or the next solicited or failed one).
    ///
    /// One that has come since the program last looked counts as next: programs that do not look again (UCX) rely on
    /// adapters, which do the same. But not between a notification and the look that it leads to: then a program that
    /// is sure to find something (`ibv_rc_pingpong -e -t`) would be called for nothing afterwards.
    pub fn arm(&self, solicited_only: bool) {
        let want = if solicited_only { Armed::Solicited } else { Armed::Any };
        {
            let entries = self.entries.lock();
            let looked = self.looked.load(Ordering::Relaxed);
            if !looked || !entries.queue.iter().flatten().any(|wc| wakes(want as u8, wc)) {
                // A request for any completion is not weakened by a later one for solicited ones (ibv_req_notify_cq(3)).
                self.armed.fetch_max(want as u8, Ordering::Relaxed);
                return;
            }
            self.armed.store(Armed::No as u8, Ordering::Relaxed);
            self.looked.store(false, Ordering::Relaxed);
        }
        if let Some(notify) = &self.notify {
            notify.completed();
        }
    }

    /// Forgets the completions of a queue pair that is destroyed or reset. Tickets keep their meaning.
    pub fn purge(&self, qpn: Qpn) {
        let entries = &mut *self.entries.lock();
        for e in entries.queue.iter_mut() {
            if e.is_some_and(|wc| wc.qpn == qpn) {
                *e = None;
                entries.holes += 1;
            }
        }
        while let Some(None) = entries.queue.front() {
            entries.queue.pop_front();
            entries.holes -= 1;
            self.consumed.fetch_add(1, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::WcOpcode;
    use std::sync::atomic::AtomicUsize;

    #[derive(Default)]
    struct Count(AtomicUsize);
    impl CqNotify for Count {
        fn completed(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn wc(id: u64, qpn: u32) -> Wc {
        Wc::new(id, WcOpcode::Send, Qpn(qpn), 0)
    }

    #[test]
    fn tickets_survive_a_purge() {
        let cq = Cq::new(1, 8, None);
        cq.push_all([wc(1, 7), wc(2, 8), wc(3, 7)].into_iter());
        let last = cq.push_all([wc(4, 8)].into_iter());
        cq.purge(Qpn(7));
        let mut out = [wc(0, 0); 8];
        assert_eq!(cq.poll(&mut out[..1]), 1);
        assert_eq!(out[0].id, 2);
        assert!(!cq.has_consumed(last));
        assert_eq!(cq.poll(&mut out), 1);
        assert_eq!(out[0].id, 4);
        assert!(cq.has_consumed(last));
        assert!(cq.is_empty());
    }

    #[test]
    fn what_was_purged_takes_no_room() {
        let cq = Cq::new(1, 3, None);
        cq.push_all([wc(1, 7), wc(2, 8), wc(3, 8)].into_iter());
        cq.purge(Qpn(8));
        cq.push_all([wc(4, 7), wc(5, 7)].into_iter());
        assert!(!cq.is_overrun());
        assert!(!cq.resize(2) && cq.resize(3));
        let mut ids = Vec::new();
        assert_eq!(cq.poll_with(9, |wc| ids.push(wc.id)), 3);
        assert_eq!(ids, [1, 4, 5]);
        cq.push_all((0..3).map(|i| wc(i, 7)));
        assert!(!cq.is_overrun());
    }

    #[test]
    fn a_queue_that_may_overrun_loses_completions_and_nothing_else() {
        let cq = Cq::new(1, 2, None);
        cq.allow_overrun(true);
        cq.push_all((0..3).map(|i| wc(i, 1)));
        assert!(!cq.is_overrun());
        assert_eq!(cq.poll_with(9, drop), 2);
    }

    #[test]
    fn overrun_keeps_what_fits_and_is_remembered() {
        let cq = Cq::new(1, 2, None);
        cq.push_all((0..3).map(|i| wc(i, 1)));
        assert!(cq.is_overrun());
        let mut out = [wc(0, 0); 4];
        assert_eq!(cq.poll(&mut out), 2);
    }

    #[test]
    fn an_armed_queue_notifies_once() {
        let count = Arc::new(Count::default());
        let cq = Cq::new(1, 8, Some(count.clone()));
        cq.push_all([wc(1, 1)].into_iter());
        cq.arm(true);
        cq.push_all([wc(1, 1)].into_iter());
        assert_eq!(count.0.load(Ordering::Relaxed), 0);
        cq.push_all([Wc { solicited: true, ..wc(1, 1) }].into_iter());
        cq.push_all([Wc { solicited: true, ..wc(1, 1) }].into_iter());
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
        cq.poll_with(9, drop);
        cq.arm(false);
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
        cq.push_all([wc(1, 1)].into_iter());
        assert_eq!(count.0.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn a_queue_that_is_armed_with_something_in_it_notifies_at_once() {
        let count = Arc::new(Count::default());
        let cq = Cq::new(1, 8, Some(count.clone()));
        cq.push_all([wc(1, 1)].into_iter());
        cq.arm(true);
        assert_eq!(count.0.load(Ordering::Relaxed), 0, "it is not solicited");
        cq.arm(false);
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
        cq.push_all([wc(1, 1)].into_iter());
        cq.arm(false);
        assert_eq!(count.0.load(Ordering::Relaxed), 1, "the program has not looked since");
        cq.poll_with(1, drop);
        cq.arm(false);
        assert_eq!(count.0.load(Ordering::Relaxed), 2, "it left one");
    }
}
