//! A transport that completes everything at once, and moves no data: what is left of a job is its own bookkeeping.

use std::collections::VecDeque;
use std::sync::Arc;

use super::endpoint::{Endpoint, Place, Work};
use super::error::{Error, Result};
use super::job::{Job, Long, Measure, Operation, Outcome, Registration};
use super::lane::{Lane, Patience, RemoteMemory, Role, Stop};
use super::layout::Layout;
use super::registration::Keys;
use super::{check_job, initiate, outcome};
use crate::verbs::{self, Completion, Flags, Kind, Mapping, PageSize, Verb};

/// Requests in a queue; no device has more.
const DEPTH: u32 = 32_768;

/// Completions of a poll.
const BATCH: usize = 32;

#[derive(Debug)]
struct NullEndpoint {
    memory: Mapping,
    done: VecDeque<Completion>,
    taken: usize,
    receives: Vec<VecDeque<u64>>,
    /// Whether the peer answers what is sent.
    answers: bool,
    /// Whether it answers what is written.
    pongs: bool,
}

impl NullEndpoint {
    fn new(job: &Job, memory: Mapping) -> Self {
        let latency = job.measure == Measure::Latency;
        Self {
            memory,
            done: VecDeque::new(),
            taken: 0,
            receives: (0..job.queue_pairs).map(|_| VecDeque::new()).collect(),
            answers: match job.operation {
                Operation::AmShort | Operation::AmLong(_) => true,
                _ => latency,
            },
            pongs: latency && job.operation == Operation::Put,
        }
    }
}

impl Endpoint for NullEndpoint {
    fn post(&mut self, queue: usize, work: &Work) -> verbs::Result<()> {
        let completion = Completion { id: work.id, kind: Kind::Request, bytes: 0, immediate: 0 };
        if work.flags.has(Flags::SIGNALED) {
            self.done.push_back(completion);
        }
        match work.verb {
            Verb::Send | Verb::SendImmediate(_) if self.answers => {
                if let Some(id) = self.receives[queue].pop_front() {
                    self.done.push_back(Completion { id, kind: Kind::Receive, bytes: 0, immediate: 1 });
                }
            }
            Verb::Write(remote) if self.pongs => {
                let last = u64::from(work.place.length) - 1;
                let byte = self.memory.read(work.place.offset + last);
                self.memory.write(remote.address + last, byte);
            }
            _ => {}
        }
        Ok(())
    }

    fn post_receive(&mut self, queue: usize, id: u64, _place: Place) -> verbs::Result<()> {
        self.receives[queue].push_back(id);
        Ok(())
    }

    fn poll(&mut self) -> verbs::Result<usize> {
        self.done.drain(..self.taken);
        self.taken = self.done.len().min(BATCH);
        Ok(self.taken)
    }

    fn completion(&self, index: usize) -> Completion {
        self.done[index]
    }

    fn memory(&self) -> &Mapping {
        &self.memory
    }
}

/// Runs a job's measured part, in one thread, on a transport that completes everything at once.
pub fn run(job: &Job) -> Result<Outcome> {
    check_job(job)?;
    if matches!(job.operation, Operation::AmLong(Long::Pipeline { .. })) {
        return Err(Error::Refused("the null transport has no bounce buffers to give back".to_owned()));
    }
    if job.registration != Registration::None {
        return Err(Error::Refused("the null transport has no memory to register".to_owned()));
    }
    let layout = Layout::of(job, DEPTH);
    let memory = Mapping::new(layout.length, PageSize::System).map_err(Error::system("mmap"))?;
    let patience = Patience::new(Arc::new(Stop::default()), 1);
    let endpoint = NullEndpoint::new(job, memory);
    let mut lane = Lane::new(endpoint, Role::Initiator, job, layout, 0, Keys::given(0), patience);
    lane.remote = RemoteMemory { address: 0, key: 0 };
    lane.post_receives()?;
    let tally = initiate::phase(&mut lane, job.amount, u64::MAX)?;
    Ok(outcome(job, &[tally]))
}
