//! A transport that completes everything at once, and moves no data: what is left of a job is its own bookkeeping.

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

/// A queue with room for as many entries as there ever are: a transport that does nothing must not cost anything.
#[derive(Debug)]
struct Ring<T> {
    entries: Box<[T]>,
    first: usize,
    end: usize,
}

impl<T: Copy> Ring<T> {
    fn new(room: usize, nothing: T) -> Self {
        Self { entries: vec![nothing; room.next_power_of_two()].into(), first: 0, end: 0 }
    }

    #[inline]
    fn push(&mut self, entry: T) {
        let last = self.entries.len() - 1;
        self.entries[self.end & last] = entry;
        self.end += 1;
    }

    #[inline]
    fn pop(&mut self) -> Option<T> {
        let entry = (self.first < self.end).then(|| self.at(0));
        self.first += usize::from(entry.is_some());
        entry
    }

    #[inline]
    fn at(&self, index: usize) -> T {
        self.entries[(self.first + index) & (self.entries.len() - 1)]
    }
}

#[derive(Debug)]
struct NullEndpoint {
    memory: Mapping,
    done: Ring<Completion>,
    taken: usize,
    receives: Vec<Ring<u64>>,
    /// Whether the peer answers what is sent.
    answers: bool,
    /// Whether it answers what is written.
    pongs: bool,
}

impl NullEndpoint {
    fn new(job: &Job, layout: &Layout, memory: Mapping) -> Self {
        let latency = job.measure == Measure::Latency;
        let nothing = Completion { id: 0, kind: Kind::Request, bytes: 0, immediate: 0 };
        let (sends, receives) = (layout.sends as usize, layout.receives as usize);
        Self {
            memory,
            done: Ring::new(job.queue_pairs as usize * (sends + receives), nothing),
            taken: 0,
            receives: (0..job.queue_pairs).map(|_| Ring::new(receives, 0)).collect(),
            answers: match job.operation {
                Operation::AmShort | Operation::AmLong(_) => true,
                _ => latency,
            },
            pongs: latency && job.operation == Operation::Put,
        }
    }
}

impl Endpoint for NullEndpoint {
    // A call that does nothing would be counted as bookkeeping.
    #[inline(always)]
    fn post(&mut self, queue: usize, work: &Work) -> verbs::Result<()> {
        let completion = Completion { id: work.id, kind: Kind::Request, bytes: 0, immediate: 0 };
        if work.flags.has(Flags::SIGNALED) {
            self.done.push(completion);
        }
        match work.verb {
            Verb::Send | Verb::SendImmediate(_) if self.answers => {
                if let Some(id) = self.receives[queue].pop() {
                    self.done.push(Completion { id, kind: Kind::Receive, bytes: 0, immediate: 1 });
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

    #[inline]
    fn post_receive(&mut self, queue: usize, id: u64, _place: Place) -> verbs::Result<()> {
        self.receives[queue].push(id);
        Ok(())
    }

    #[inline]
    fn poll(&mut self) -> verbs::Result<usize> {
        self.done.first += self.taken;
        self.taken = (self.done.end - self.done.first).min(BATCH);
        Ok(self.taken)
    }

    #[inline]
    fn completion(&self, index: usize) -> Completion {
        self.done.at(index)
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
    let endpoint = NullEndpoint::new(job, &layout, memory);
    let mut lane = Lane::new(endpoint, Role::Initiator, job, layout, 0, Keys::given(0), patience);
    lane.remote = RemoteMemory { address: 0, key: 0 };
    lane.post_receives()?;
    let tally = initiate::phase(&mut lane, job.amount, u64::MAX)?;
    Ok(outcome(job, &[tally]))
}
