//! Small requests of a stream wait for the next ones.
//!
//! A program that keeps many small messages under way posts them one by one, and polls between. Sent one by one, each is a
//! system call here and a datagram to receive at the peer. So what a program posts while many are under way stays in the
//! send queue until it polls next, which it does as soon as it needs anything, and then leaves together, those of all queue
//! pairs. Nothing is forgotten if it does not: what is under way is acknowledged or timed out, and whoever sees to that
//! sends the rest. Who has little under way never waits: an answer that a program expects without polling, by looking at its
//! memory, may depend on every single request.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::Core;
use super::qp::{LAST_BATCHES, Qp};
use crate::config::Tasks;
use crate::mem;
use crate::qp::Notices;
use crate::qp::send::SendSide;
use crate::task::Side;
use crate::time::Instant;

/// So many requests that a queue pair has under way make a stream.
const STREAM: usize = 8;

/// Queue pairs with requests that wait for the next poll.
#[derive(Default)]
pub(super) struct Gathering {
    any: AtomicBool,
    qps: Mutex<Vec<Arc<Qp>>>,
}

impl Core {
    /// Whether what was posted to this side may wait for the program's next poll; it then does. The caller holds the side.
    pub(super) fn gathers(&self, qp: &Qp, side: &SendSide, now: Instant) -> bool {
        if qp.tasks == Tasks::Workqueue || self.thread_receives {
            return false;
        }
        if side.under_way() < STREAM || !side.may_wait() || !self.attention.just_polled(now) {
            return false;
        }
        if !qp.gathered.swap(true, Ordering::Relaxed)
            && let Some(qp) = qp.me.upgrade()
        {
            self.gathering.qps.lock().push(qp);
            self.gathering.any.store(true, Ordering::Release);
        }
        true
    }

    /// Sends what has waited for it.
    #[inline]
    pub(super) fn send_gathered(&self, now: Instant) {
        if self.gathering.any.load(Ordering::Acquire) {
            self.send_all_gathered(now);
        }
    }

    /// The same at the end of a process. Whoever holds a lock may never let go of it.
    pub(super) fn send_gathered_until(&self, now: Instant, end: std::time::Instant) {
        let Some(mut qps) = self.gathering.qps.try_lock_until(end) else { return };
        for qp in qps.drain(..) {
            qp.gathered.store(false, Ordering::Relaxed);
            if let Some(mut side) = qp.send.try_lock_until(end) {
                // What this has to tell comes too late for the program.
                qp.run_send(self, &mut side, now, &mut Notices::default(), LAST_BATCHES, None);
            }
        }
    }

    fn send_all_gathered(&self, now: Instant) {
        mem::guard::ready_thread();
        let qps = {
            let mut qps = self.gathering.qps.lock();
            self.gathering.any.store(false, Ordering::Relaxed);
            std::mem::take(&mut *qps)
        };
        let mut outbox = self.take_batch();
        for qp in qps {
            qp.gathered.store(false, Ordering::Relaxed);
            let mut notices = Notices::default();
            let mut side = qp.send.lock();
            if qp.lane(Side::Send).state.is_idle() {
                qp.run_send(self, &mut side, now, &mut notices, usize::MAX, Some(&mut outbox));
            } else {
                qp.scheduler.sends_pending(self, &qp, &mut side, now, &mut notices);
            }
            qp.deliver_send(self, &mut side);
            drop(side);
            qp.tell(self, notices);
        }
        self.flush(&mut outbox);
        self.give_batch(outbox);
    }
}
