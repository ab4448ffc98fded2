//! Tasks run at once, in the thread that gave them work: the lowest latency.

use super::{Scheduler, Side};
use crate::device::Core;
use crate::device::qp::Qp;
use crate::qp::Notices;
use crate::qp::recv::RecvSide;
use crate::qp::send::SendSide;
use crate::time::Instant;

/// Runs tasks in the caller.
pub(super) struct Inline;

impl Scheduler for Inline {
    fn sends_pending(&self, core: &Core, qp: &Qp, side: &mut SendSide, now: Instant, notices: &mut Notices) {
        qp.run_send(core, side, now, notices, usize::MAX, None);
    }

    fn replies_pending(
        &self,
        core: &Core,
        qp: &Qp,
        side: &mut RecvSide,
        now: Instant,
        notices: &mut Notices,
    ) {
        if side.is_urgent() {
            qp.send_replies(core, side, now, notices, None);
        }
    }

    fn leaves_packets(&self, _: &Qp, _: Side, _: usize, _: bool) -> bool {
        false
    }

    fn timer_due(&self, _: &Core, _: &Qp) -> bool {
        false
    }
}
