//! Who runs the tasks of a queue pair, and when.
//!
//! A queue pair has two tasks: the requester with the completer, and the responder. Their bodies are in
//! [`crate::device`]; a [`Scheduler`] decides where they run.

pub(crate) mod faults;
mod inline;
pub(crate) mod progress;

pub(crate) use faults::FaultWorkers;
pub(crate) use progress::{Attention, Progress};

use crate::config::Tasks;
use crate::device::Core;
use crate::device::qp::Qp;
use crate::qp::Notices;
use crate::qp::recv::RecvSide;
use crate::qp::send::SendSide;
use crate::time::Instant;

/// Decides where tasks run. It is called with the side's lock held, by whoever gave the task its work.
pub(crate) trait Scheduler: Send + Sync {
    /// The send side may have something to send.
    fn sends_pending(&self, core: &Core, qp: &Qp, side: &mut SendSide, now: Instant, notices: &mut Notices);

    /// The receive side may have replies.
    fn replies_pending(&self, core: &Core, qp: &Qp, side: &mut RecvSide, now: Instant, notices: &mut Notices);
}

/// The scheduler of a configuration.
pub(crate) fn scheduler(tasks: Tasks) -> Box<dyn Scheduler> {
    match tasks {
        Tasks::Inline => Box::new(inline::Inline),
    }
}
