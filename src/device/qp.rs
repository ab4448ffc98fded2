//! A queue pair: both sides of the engine with their locks, and its timers. What its tasks send leaves by
//! [`transmit`](super::transmit).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, MutexGuard};

use super::{Core, EventSink};
use crate::config::Tasks;
use crate::cq::Cq;
use crate::ids::Qpn;
use crate::mem::odp::queue::Job;
use crate::mem::{self, Fault, Miss, PdId};
use crate::qp::recv::RecvSide;
use crate::qp::send::SendSide;
use crate::qp::{Notices, PageFault, Part};
use crate::srq::Srq;
use crate::task::{Lane, Scheduler, Side};
use crate::time::Instant;
use crate::verbs::{AsyncEvent, PostError, QpAttr, QpCaps, QpState, QpType, RecvWr, SendWr, limits};
use crate::wire::TxBatch;

/// Batches that a queue pair may still send when it is destroyed or its process ends.
pub(super) const LAST_BATCHES: usize = 16;

/// What a queue pair is made of.
pub struct QpInit {
    /// Its service.
    pub kind: QpType,
    /// Its protection domain.
    pub pd: PdId,
    /// Where its sends complete.
    pub send_cq: Arc<Cq>,
    /// Where its receives complete.
    pub recv_cq: Arc<Cq>,
    /// Where its receives come from, if not from its own queue.
    pub srq: Option<Arc<Srq>>,
    /// Sizes of its queues.
    pub caps: QpCaps,
    /// Every send makes a completion.
    pub sig_all: bool,
    /// Who hears its events.
    pub events: Option<Arc<dyn EventSink>>,
}

/// Where the tasks of a queue pair run, where that is not what the configuration says.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Placement {
    /// As the configuration's `tasks`.
    pub tasks: Option<Tasks>,
    /// The worker of both sides. Without it, the completion vectors of the queue pair's completion queues choose, if the
    /// program uses more than one, and else queue pairs are spread over all workers.
    pub worker: Option<usize>,
}

/// Why a queue pair cannot be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CreateError {
    /// A size is above the device's limit.
    #[error("{what} is {have}, but the device allows {max}")]
    TooLarge {
        /// Which.
        what: &'static str,
        /// Asked for.
        have: u32,
        /// Allowed.
        max: u32,
    },
    /// There is no such worker.
    #[error("worker {have}, but the device has {workers} of them, counted from 0")]
    NoWorker {
        /// Asked for.
        have: usize,
        /// That there are.
        workers: usize,
    },
    /// All numbers are taken.
    #[error("the device has {} queue pairs already", limits::MAX_QP)]
    TooMany,
}

/// A queue pair as the device knows it.
pub(crate) struct Qp {
    pub(crate) number: Qpn,
    pub(crate) kind: QpType,
    pub(crate) send: Mutex<SendSide>,
    pub(crate) recv: Mutex<RecvSide>,
    /// A completion of it did not fit its completion queue: [`Qp::tell`] has to end it.
    overran: AtomicBool,
    /// It is in the receiver's list of waiting acknowledgements.
    pub(crate) lazy: AtomicBool,
    /// Requests of it wait for the program's next poll.
    pub(super) gathered: AtomicBool,
    /// When its entry in the timers is due; `u64::MAX` if it has none.
    timer: AtomicU64,
    pub(super) attr: Mutex<QpAttr>,
    pub(super) caps: QpCaps,
    pub(super) has_srq: bool,
    /// What it sends to a group that it is in, it does not want to receive.
    pub(super) deaf_to_itself: AtomicBool,
    send_cq: Arc<Cq>,
    recv_cq: Arc<Cq>,
    events: Option<Arc<dyn EventSink>>,
    /// Who runs its tasks.
    pub(crate) scheduler: &'static dyn Scheduler,
    /// The same, as the setting.
    pub(super) tasks: Tasks,
    send_lane: Lane,
    recv_lane: Lane,
    /// For those who schedule it: a scheduled task holds its queue pair.
    pub(crate) me: Weak<Qp>,
}

/// The program's handle of a queue pair. Dropping it destroys the queue pair.
pub struct QueuePair {
    pub(super) core: Arc<Core>,
    pub(super) qp: Arc<Qp>,
}

impl std::fmt::Debug for QueuePair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("QueuePair").field("number", &self.qp.number).finish_non_exhaustive()
    }
}

pub(super) fn create(core: &Arc<Core>, init: QpInit, placement: Placement) -> Result<QueuePair, CreateError> {
    let c = init.caps;
    for (what, have, max) in [
        ("max_send_wr", c.max_send_wr, limits::MAX_QP_WR),
        ("max_recv_wr", c.max_recv_wr, limits::MAX_QP_WR),
        ("max_send_sge", c.max_send_sge, limits::MAX_SGE),
        ("max_recv_sge", c.max_recv_sge, limits::MAX_SGE),
        ("max_inline_data", c.max_inline_data, limits::MAX_INLINE),
    ] {
        if have > max {
            return Err(CreateError::TooLarge { what, have, max });
        }
    }
    let QpInit { kind, pd, send_cq, recv_cq, srq, caps, sig_all, events } = init;
    if kind == QpType::Ud
        && let Err(e) = core.link.show_headers()
    {
        tracing::warn!(error = %e, "the GRH of datagrams will show no traffic class and hop limit");
    }
    let has_srq = srq.is_some();
    let workers = core.pool.size();
    if let Some(have) = placement.worker.filter(|&worker| worker >= workers) {
        return Err(CreateError::NoWorker { have, workers });
    }
    let tasks = match placement.tasks.unwrap_or(core.config.tasks) {
        // A device without threads has nobody else; and if workers cannot be had, it goes without.
        tasks if tasks == Tasks::Inline || core.manual || !core.pool.ensure() => Tasks::Inline,
        tasks => tasks,
    };
    let [send_worker, recv_worker] = match placement.worker {
        Some(worker) => [worker; 2],
        None if core.vectors_used.load(Ordering::Relaxed) => {
            [&send_cq, &recv_cq].map(|cq| cq.vector() as usize % workers)
        }
        None => [core.pool.any(); 2],
    };
    let qp = core.qps.insert(|number| {
        let send = SendSide::new(kind, number, pd, caps, sig_all, send_cq.clone());
        let mut recv = RecvSide::new(kind, number, pd, caps, recv_cq.clone(), srq);
        recv.set_refuse_faults(core.refuses_faults());
        Arc::new_cyclic(|me| Qp {
            number,
            kind,
            send: Mutex::new(send),
            recv: Mutex::new(recv),
            overran: AtomicBool::new(false),
            lazy: AtomicBool::new(false),
            gathered: AtomicBool::new(false),
            timer: AtomicU64::new(u64::MAX),
            attr: Mutex::new(QpAttr::default()),
            caps,
            has_srq,
            deaf_to_itself: AtomicBool::new(false),
            send_cq,
            recv_cq,
            events,
            scheduler: crate::task::scheduler(tasks),
            tasks,
            send_lane: Lane::new(send_worker),
            recv_lane: Lane::new(recv_worker),
            me: me.clone(),
        })
    });
    let qp = qp.ok_or(CreateError::TooMany)?;
    Ok(QueuePair { core: core.clone(), qp })
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        self.qp.leave_workers(&self.core);
        // The peer waits for acknowledgements of what has completed here.
        self.qp.run_replies(&self.core, self.core.clock.now(), None);
        self.core.leave_all(&self.qp);
        self.core.qps.remove(self.qp.number);
        self.qp.enter(QpState::Reset, false);
    }
}

impl QueuePair {
    /// Its number.
    pub fn number(&self) -> Qpn {
        self.qp.number
    }
    /// Its service.
    pub fn kind(&self) -> QpType {
        self.qp.kind
    }
    /// Its state.
    pub fn state(&self) -> QpState {
        self.qp.send.lock().state()
    }
    /// Sizes of its queues.
    pub fn caps(&self) -> QpCaps {
        self.qp.caps
    }

    /// Posts send requests, in order. On an error, returns with it how many were taken: the request with that index is
    /// the first that was not.
    pub fn post_send<'a>(
        &self,
        requests: impl IntoIterator<Item = SendWr<'a>>,
    ) -> Result<(), (usize, PostError)> {
        mem::guard::ready_thread();
        self.post_locked(self.qp.send.lock(), requests)
    }

    /// Posts all of these send requests, or, if one is refused, none.
    pub fn post_send_all<'a>(
        &self,
        requests: impl ExactSizeIterator<Item = SendWr<'a>> + Clone,
    ) -> Result<(), (usize, PostError)> {
        mem::guard::ready_thread();
        let mut side = self.qp.send.lock();
        if requests.len() > 1 {
            side.check_all(requests.clone())?;
        }
        self.post_locked(side, requests)
    }

    fn post_locked<'a>(
        &self,
        mut side: MutexGuard<'_, SendSide>,
        requests: impl IntoIterator<Item = SendWr<'a>>,
    ) -> Result<(), (usize, PostError)> {
        let mut result = Ok(());
        for (i, wr) in requests.into_iter().enumerate() {
            if let Err(e) = side.post(&wr) {
                result = Err((i, e));
                break;
            }
        }
        let mut notices = Notices::default();
        let now = self.core.clock.now();
        if !self.core.gathers(&self.qp, &side, now) {
            self.qp.scheduler.sends_pending(&self.core, &self.qp, &mut side, now, &mut notices);
        }
        self.qp.deliver_send(&self.core, &mut side);
        drop(side);
        self.qp.tell(&self.core, notices);
        result
    }

    /// Posts a receive request.
    pub fn post_recv(&self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        let mut side = self.qp.recv.lock();
        let result = side.post(wr);
        if side.has_parked() {
            self.qp.resume(&self.core, side, self.core.clock.now());
        } else {
            self.qp.deliver_recv(&self.core, &mut side);
            drop(side);
            self.qp.tell(&self.core, Notices::default());
        }
        result
    }
}

impl Qp {
    /// The task of a side.
    pub(crate) fn lane(&self, side: Side) -> &Lane {
        match side {
            Side::Send => &self.send_lane,
            Side::Recv => &self.recv_lane,
        }
    }

    /// It is destroyed: no worker will run it any more. What was posted leaves, as it would have at once without workers
    /// and without others to wait for.
    fn leave_workers(&self, core: &Core) {
        if self.tasks == Tasks::Inline && !self.gathered.load(Ordering::Relaxed) {
            return;
        }
        mem::guard::ready_thread();
        self.send_lane.close();
        self.recv_lane.close();
        let mut notices = Notices::default();
        let mut side = self.send.lock();
        self.run_send(core, &mut side, core.clock.now(), &mut notices, LAST_BATCHES, None);
        drop(side);
        self.tell(core, notices);
    }

    /// Messages that have waited for a receive.
    fn resume(&self, core: &Core, mut side: MutexGuard<'_, RecvSide>, now: Instant) {
        mem::guard::ready_thread();
        let mut notices = Notices::default();
        side.resume(now, &core.mem, &mut notices);
        self.deliver_recv(core, &mut side);
        self.tend_parked(core, &mut side, now);
        drop(side);
        self.tell(core, notices);
    }

    /// Sends echoes, and looks again later if messages wait for a receive.
    pub(super) fn tend_parked(&self, core: &Core, side: &mut RecvSide, now: Instant) {
        for echo in side.take_echoes() {
            core.send_echo(echo);
        }
        if side.has_parked() {
            self.arm(core, side.look_again(now));
        }
    }

    /// Sends all replies, plain acknowledgements included, those perhaps together with other queue pairs'.
    pub(crate) fn run_replies(&self, core: &Core, now: Instant, outbox: Option<&mut TxBatch>) {
        let mut notices = Notices::default();
        let mut side = self.recv.lock();
        if side.has_replies() {
            self.send_replies(core, &mut side, now, &mut notices, outbox);
        }
        drop(side);
        self.tell(core, notices);
    }

    /// A page that one of its parts waits for is present, or will never be.
    pub(crate) fn page_arrived(
        &self,
        core: &Core,
        part: Part,
        miss: &Miss,
        outcome: Result<(), Fault>,
        now: Instant,
    ) {
        let mut notices = Notices::default();
        match part {
            Part::Requester | Part::Completer => {
                let mut side = self.send.lock();
                side.handle_page(now, part, miss, outcome);
                self.scheduler.sends_pending(core, self, &mut side, now, &mut notices);
                self.deliver_send(core, &mut side);
            }
            Part::Responder | Part::Reply => {
                let mut side = self.recv.lock();
                side.handle_page(now, part, miss, outcome, &core.mem, &mut notices);
                if side.has_replies() {
                    self.send_replies(core, &mut side, now, &mut notices, None);
                }
                self.deliver_recv(core, &mut side);
                self.tend_parked(core, &mut side, now);
            }
        }
        self.tell(core, notices);
    }

    /// Its entry in the timers came up.
    pub(crate) fn run_timer(&self, core: &Core, at: Instant, now: Instant) {
        if self.timer.load(Ordering::Relaxed) == at.0 {
            self.timer.store(u64::MAX, Ordering::Relaxed);
        }
        if self.scheduler.timer_due(core, self) {
            return;
        }
        let mut notices = Notices::default();
        {
            let mut side = self.send.lock();
            if side.deadline() <= now {
                side.handle_timeout(now, &mut notices);
            }
            self.scheduler.sends_pending(core, self, &mut side, now, &mut notices);
            self.deliver_send(core, &mut side);
        }
        self.tell(core, notices);
        let recv = self.recv.lock();
        if recv.has_parked() {
            self.resume(core, recv, now);
        } else {
            drop(recv);
        }
        self.run_replies(core, now, None);
    }

    /// Makes sure that it is looked at no later than `at`.
    pub(super) fn arm(&self, core: &Core, at: Instant) {
        if at.0 < self.timer.load(Ordering::Relaxed) {
            self.timer.store(at.0, Ordering::Relaxed);
            if core.timers.add(at, self.number) {
                core.attention.due(at);
            }
        }
    }

    pub(crate) fn deliver_send(&self, core: &Core, side: &mut MutexGuard<'_, SendSide>) {
        if side.deliver() {
            self.overrun(core, &self.send_cq);
        }
    }

    pub(crate) fn deliver_recv(&self, core: &Core, side: &mut MutexGuard<'_, RecvSide>) {
        if side.deliver() {
            self.overrun(core, &self.recv_cq);
        }
    }

    fn overrun(&self, _core: &Core, cq: &Cq) {
        self.overran.store(true, Ordering::Relaxed);
        if cq.report_overrun() {
            tracing::warn!(
                cq = cq.id,
                entries = cq.capacity(),
                "completion queue overrun: completions are lost"
            );
            if let Some(sink) = &self.events {
                sink.event(AsyncEvent::CqError(cq.id));
            }
        }
    }

    /// Passes on what a side had to tell. To be called without its lock.
    pub(crate) fn tell(&self, core: &Core, mut notices: Notices) {
        if self.overran.load(Ordering::Relaxed) && self.overran.swap(false, Ordering::Relaxed) {
            // A completion queue that has overrun is of no use any more: whatever completes to it fails with its queue
            // pair (IBA 11.6.3.2: CQ error, and local work queue catastrophic error).
            let over = matches!(self.attr.lock().state, QpState::Err | QpState::Reset);
            if !over && !notices.fatal {
                notices.fatal = true;
                notices.events.push(AsyncEvent::QpFatal(self.number));
            }
        }
        if notices.is_empty() {
            return;
        }
        for PageFault { part, by, miss } in notices.faults {
            core.counters.odp_waits.add(1);
            let met = core.clock.now();
            core.submit(Job::Fault { qpn: self.number, part, by, miss, met });
        }
        for f in &notices.failures {
            core.counters.failed_requests.add(1);
            if !core.throttle.passes(core.clock.now()) {
                continue;
            }
            let wr_id = f.wr_id.map_or_else(|| "none (a peer's request)".into(), |id| format!("{id:#x}"));
            tracing::warn!(qpn = %f.qpn, wr_id, status = ?f.status, "request failed: {}", f.cause);
        }
        if notices.fatal {
            self.enter(QpState::Err, false);
            if self.has_srq {
                self.tell_last_wqe();
            }
            // Refusals still have to be told.
            self.run_replies(core, core.clock.now(), None);
        }
        if let Some(sink) = &self.events {
            for event in notices.events {
                sink.event(event);
            }
        }
    }

    /// IBA 11.6.3.4: no more receives of the shared queue will complete on this queue pair.
    pub(super) fn tell_last_wqe(&self) {
        if let Some(sink) = &self.events {
            sink.event(AsyncEvent::LastWqeReached(self.number));
        }
    }

    /// Takes both sides to a state.
    pub(super) fn enter(&self, state: QpState, notify_drained: bool) {
        let drain = state == QpState::Reset && self.tasks != Tasks::Inline;
        if drain {
            self.send_lane.close();
            self.recv_lane.close();
        }
        let mut send = self.send.lock();
        let mut recv = self.recv.lock();
        send.set_state(state, notify_drained);
        recv.set_state(state);
        send.deliver();
        recv.deliver();
        self.attr.lock().state = state;
        if state == QpState::Reset {
            self.send_cq.purge(self.number);
            self.recv_cq.purge(self.number);
        }
        drop((send, recv));
        if drain {
            self.send_lane.open();
            self.recv_lane.open();
        }
    }
}
