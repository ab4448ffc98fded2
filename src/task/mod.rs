//! Who runs the tasks of a queue pair, and when.
//!
//! A queue pair has two tasks: the requester with the completer, and the responder. Their bodies are in
//! [`crate::device`]; a [`Scheduler`] decides where they run.
//!
//! | module | what it is |
//! |---|---|
//! | [`inline`] | tasks run in whoever gives them work |
//! | [`workqueue`] | tasks run in workers |
//! | [`auto`] | what is short runs inline, the rest in workers where that is faster |
//! | [`trial`] | which of both is faster now |
//! | [`state`] | the states of a task that runs in workers |
//! | [`lane`] | a task and what waits for it |
//! | [`pool`] | the workers |
//! | [`affinity`] | CPUs |
//! | [`progress`] | the receive thread |
//! | [`faults`] | the threads that resolve page faults |

pub(crate) mod affinity;
mod auto;
pub(crate) mod faults;
mod inline;
pub(crate) mod lane;
pub(crate) mod pool;
pub(crate) mod progress;
mod state;
pub(crate) mod trial;
mod workqueue;

pub(crate) use faults::FaultWorkers;
pub(crate) use lane::{Lane, Side};
pub(crate) use pool::Pool;
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

    /// Whether packets for a side are left to a worker, and not worked on by whoever received them. `loaded` says that
    /// receiving does not keep up, and that workers were found to help.
    fn leaves_packets(&self, qp: &Qp, side: Side, bytes: usize, loaded: bool) -> bool;

    /// A timer of the queue pair has run out. False if the caller is to see to it.
    fn timer_due(&self, core: &Core, qp: &Qp) -> bool;
}

/// The scheduler of a setting.
pub(crate) fn scheduler(tasks: Tasks) -> &'static dyn Scheduler {
    match tasks {
        Tasks::Inline => &inline::Inline,
        Tasks::Workqueue => &workqueue::Workqueue,
        Tasks::Auto => &auto::Auto,
    }
}
