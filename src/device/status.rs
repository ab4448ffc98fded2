//! What a device tells of its queue pairs, for people.

use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Device;
use crate::ids::Qpn;
use crate::task::affinity;
use crate::verbs::{QpState, QpType};

/// A queue pair, at a moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpStatus {
    /// Its number.
    pub number: Qpn,
    /// Its type.
    pub kind: QpType,
    /// Its state.
    pub state: QpState,
    /// Where it is connected to.
    pub peer: Option<(IpAddr, Qpn)>,
    /// Requests in the send queue.
    pub send_queue: usize,
    /// Receives in its own receive queue.
    pub receive_queue: usize,
}

/// A thread of the device, at a moment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ThreadStatus {
    /// Its name, as the system shows it.
    pub name: String,
    /// The CPU on which it last ran.
    pub cpu: Option<usize>,
    /// The CPU to which it is pinned.
    pub pinned: Option<usize>,
    /// What it knows besides if it is a worker.
    pub worker: Option<WorkerStatus>,
}

/// A worker, at a moment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WorkerStatus {
    /// Tasks in its queue.
    pub queued: usize,
    /// Turns of tasks by the number of packets that they found: 0, 1, 2 to 3, 4 to 7 and so on; the last is open.
    pub batches: Vec<u64>,
}

impl fmt::Display for ThreadStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.name)?;
        match (self.pinned, self.cpu) {
            (Some(cpu), _) => write!(f, " pinned to CPU {cpu}")?,
            (None, Some(cpu)) => write!(f, " on CPU {cpu}")?,
            (None, None) => {}
        }
        let Some(worker) = &self.worker else { return Ok(()) };
        write!(f, ", {} tasks queued, turns by packets", worker.queued)?;
        let last = worker.batches.len() - 1;
        let mut any = false;
        for (size, count) in worker.batches.iter().enumerate().filter(|(_, count)| **count > 0) {
            let low = (1_usize << size) >> 1;
            let high = (1_usize << size) - 1;
            any = true;
            match size {
                0 | 1 => write!(f, " {low}: {count}")?,
                _ if size == last => write!(f, " {low}+: {count}")?,
                _ => write!(f, " {low}-{high}: {count}")?,
            }
        }
        if any { Ok(()) } else { write!(f, " none") }
    }
}

impl Device {
    /// The threads that receive and run tasks: the receive thread, then the workers.
    pub fn threads(&self) -> Vec<ThreadStatus> {
        let core = &self.core;
        let cpu = |thread| if thread == 0 { None } else { affinity::last_cpu(thread) };
        let receiver = core.attention.thread.load(Ordering::Relaxed);
        let receiver = (receiver != 0).then(|| ThreadStatus {
            name: "urxe-rx".into(),
            cpu: cpu(receiver),
            pinned: core.config.rx_cpu.map(|cpu| cpu.0),
            worker: None,
        });
        let workers = core.pool.workers().iter().enumerate().map(|(index, worker)| ThreadStatus {
            name: format!("urxe-task{index}"),
            cpu: cpu(worker.facts.thread.load(Ordering::Relaxed)),
            pinned: worker.facts.cpu,
            worker: Some(WorkerStatus {
                queued: worker.queued(),
                batches: worker.facts.sizes.iter().map(|count| count.load(Ordering::Relaxed)).collect(),
            }),
        });
        receiver.into_iter().chain(workers).collect()
    }

    /// Its queue pairs in the order of their numbers, at most `limit`. One that is busy for long is left out.
    pub fn status(&self, limit: usize) -> Vec<QpStatus> {
        const PATIENCE: Duration = Duration::from_millis(5);
        let all = self.core.qps.first(limit).into_iter();
        let status = all.filter_map(|qp| {
            let (state, peer, send_queue) = {
                let side = qp.send.try_lock_for(PATIENCE)?;
                let connection = side.connection();
                let peer = connection.and_then(|c| c.path.as_ref().map(|path| (path.dst.ip(), c.dest_qpn)));
                (side.state(), peer, side.len())
            };
            let receive_queue = qp.recv.try_lock_for(PATIENCE)?.waiting();
            Some(QpStatus { number: qp.number, kind: qp.kind, state, peer, send_queue, receive_queue })
        });
        status.collect()
    }
}
