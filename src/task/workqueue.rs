//! Tasks run in workers: who posts or receives only leaves work, so a busy worker finds more of it at a time.

use std::sync::atomic::Ordering;

use super::{Scheduler, Side};
use crate::device::Core;
use crate::device::qp::Qp;
use crate::qp::Notices;
use crate::qp::recv::RecvSide;
use crate::qp::send::SendSide;
use crate::time::Instant;

/// Leaves everything to workers.
pub(super) struct Workqueue;

impl Scheduler for Workqueue {
    fn sends_pending(&self, core: &Core, qp: &Qp, _: &mut SendSide, _: Instant, _: &mut Notices) {
        core.pool.schedule(qp, Side::Send);
    }

    fn replies_pending(&self, core: &Core, qp: &Qp, _: &mut RecvSide, _: Instant, _: &mut Notices) {
        core.pool.schedule(qp, Side::Recv);
    }

    fn leaves_packets(&self, _: &Qp, _: Side, _: usize, _: bool) -> bool {
        true
    }

    fn timer_due(&self, core: &Core, qp: &Qp) -> bool {
        for side in [Side::Send, Side::Recv] {
            qp.lane(side).due.store(true, Ordering::Release);
            core.pool.schedule(qp, side);
        }
        true
    }
}
