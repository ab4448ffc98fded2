//! What waits for one side of a queue pair that runs in a worker.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use parking_lot::Mutex;

use super::state::TaskState;
use crate::io::{Meta, RxBatch};

/// Received bytes, and packets of one run or more, that may wait for one side. More is dropped, as by a full socket.
const BYTES: usize = 4 << 20;
const RUNS: usize = 4096;
/// What one turn takes of it, so that others have theirs.
const TURN_BYTES: usize = 256 << 10;
const TURN_RUNS: usize = 64;

/// A side of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Side {
    /// Requester and completer.
    Send,
    /// Responder.
    Recv,
}

/// Packets in a row for one side, in the buffer into which they were received. Their ICRC is not verified yet.
pub(crate) struct Run {
    pub(crate) batch: Arc<RxBatch>,
    /// Which of its datagrams, and which of its bytes.
    pub(crate) datagram: usize,
    pub(crate) start: usize,
    pub(crate) end: usize,
    /// The socket's queue was long when they were received.
    pub(crate) congested: bool,
}

impl Run {
    /// The packets.
    pub(crate) fn packets(&self) -> impl Iterator<Item = (Meta, &[u8])> {
        let datagram = self.batch.iter().nth(self.datagram);
        datagram.into_iter().flat_map(|d| {
            let bytes = d.bytes.get(self.start..self.end).unwrap_or_default();
            bytes.chunks(d.meta.segment.max(1)).map(move |packet| (d.meta, packet))
        })
    }

    fn len(&self) -> usize {
        self.end - self.start
    }
}

/// The task of one side, and what waits for it.
pub(crate) struct Lane {
    pub(crate) state: TaskState,
    /// The worker that runs it.
    pub(crate) worker: usize,
    /// A timer has run out.
    pub(crate) due: AtomicBool,
    inbox: Mutex<Inbox>,
}

#[derive(Default)]
struct Inbox {
    runs: VecDeque<Run>,
    bytes: usize,
    closed: bool,
}

impl Lane {
    pub(crate) fn new(worker: usize) -> Self {
        Self { state: TaskState::new(), worker, due: AtomicBool::new(false), inbox: Mutex::default() }
    }

    /// Leaves packets. False if they are dropped, since there is no room.
    pub(crate) fn push(&self, run: Run) -> bool {
        let mut inbox = self.inbox.lock();
        if inbox.closed || inbox.runs.len() >= RUNS || inbox.bytes + run.len() > BYTES {
            return false;
        }
        inbox.bytes += run.len();
        inbox.runs.push_back(run);
        true
    }

    /// Takes what one turn may work on. Returns whether there is more.
    pub(crate) fn take(&self, out: &mut Vec<Run>) -> bool {
        let mut inbox = self.inbox.lock();
        let mut bytes = 0;
        while out.len() < TURN_RUNS && bytes < TURN_BYTES {
            let Some(run) = inbox.runs.pop_front() else { break };
            bytes += run.len();
            out.push(run);
        }
        inbox.bytes -= bytes;
        !inbox.runs.is_empty()
    }

    /// Lets nothing run and nothing in until it is opened again.
    pub(crate) fn close(&self) {
        self.state.drain();
        let mut inbox = self.inbox.lock();
        *inbox = Inbox { closed: true, ..Inbox::default() };
    }

    /// After [`close`](Self::close).
    pub(crate) fn open(&self) {
        // In this order: what is left now is scheduled.
        self.state.resume();
        self.inbox.lock().closed = false;
    }
}
