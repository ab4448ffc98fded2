//! Tasks run inline as long as that is short, and in workers under load.
//!
//! What decides is what can be seen at once: whether a worker has the side already (then order demands that it goes on),
//! how much there is to do, and whether the socket's queue grows although somebody receives. Then receiving is left to do
//! nothing but receive, and workers do the rest, if that is found to be faster ([`trial`](super::trial)); as soon as the
//! socket is empty again, inline it is.

use super::{Scheduler, Side, inline, workqueue};
use crate::device::Core;
use crate::device::qp::Qp;
use crate::qp::Notices;
use crate::qp::recv::RecvSide;
use crate::qp::send::SendSide;
use crate::time::Instant;

/// Decides each time.
pub(super) struct Auto;

/// Received bytes that are worked on at once even under load: to hand them over costs as much.
const SHORT: usize = 1024;

impl Scheduler for Auto {
    fn sends_pending(&self, core: &Core, qp: &Qp, side: &mut SendSide, now: Instant, notices: &mut Notices) {
        match qp.lane(Side::Send).state.is_idle() {
            true => inline::Inline.sends_pending(core, qp, side, now, notices),
            false => workqueue::Workqueue.sends_pending(core, qp, side, now, notices),
        }
    }

    fn replies_pending(
        &self,
        core: &Core,
        qp: &Qp,
        side: &mut RecvSide,
        now: Instant,
        notices: &mut Notices,
    ) {
        inline::Inline.replies_pending(core, qp, side, now, notices);
    }

    fn leaves_packets(&self, qp: &Qp, side: Side, bytes: usize, loaded: bool) -> bool {
        loaded && bytes > SHORT || !qp.lane(side).state.is_idle()
    }

    fn timer_due(&self, core: &Core, qp: &Qp) -> bool {
        let idle = |side| qp.lane(side).state.is_idle();
        !(idle(Side::Send) && idle(Side::Recv)) && workqueue::Workqueue.timer_due(core, qp)
    }
}
