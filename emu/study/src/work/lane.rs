//! One thread's end of a job: its queue pairs, memory, and where it is with its operations.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use super::endpoint::{Endpoint, Id, Place, Tag, Work};
use super::error::{Error, Result};
use super::job::{Job, Long, Operation, Payload};
use super::layout::{CONTROL, Layout, Walk, bounce};
use super::registration::Keys;
use crate::verbs::{Completion, Flags, Kind, Remote, Verb};

/// Tells the threads of a job to stop.
#[derive(Default, Debug)]
pub(super) struct Stop(AtomicU8);

impl Stop {
    const OVER: u8 = 1;
    const LOST: u8 = 2;

    /// The job is over.
    pub(super) fn over(&self) {
        self.0.fetch_max(Self::OVER, Ordering::Relaxed);
    }

    /// The other end is gone.
    pub(super) fn lost(&self) {
        self.0.store(Self::LOST, Ordering::Relaxed);
    }

    pub(super) fn is_over(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }
}

/// Empty polls after which a thread lets others run, if there are more threads than CPUs, and if not. With a CPU of its own
/// it should not: each time costs a tenth of a microsecond, which latencies show.
const SPINS: [u32; 2] = [4, 2000];

/// What a thread does while there is nothing to do.
#[derive(Debug)]
pub(super) struct Patience {
    stop: Arc<Stop>,
    most: u32,
    empty: u32,
}

impl Patience {
    /// For one of so many threads on the CPUs of this process.
    pub(super) fn new(stop: Arc<Stop>, threads: u32) -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        Self { stop, most: SPINS[usize::from(threads as usize <= cpus)], empty: 0 }
    }

    /// There was nothing.
    #[inline]
    pub(super) fn idle(&mut self) -> Result<()> {
        if self.stop.is_over() {
            return Err(Error::Stopped);
        }
        self.empty += 1;
        if self.empty >= self.most {
            self.empty = 0;
            std::thread::yield_now();
        }
        Ok(())
    }

    /// There was something.
    #[inline]
    pub(super) fn busy(&mut self) {
        self.empty = 0;
    }
}

/// What a send queue has under way. Not every request has a completion; one stands for those before it.
#[derive(Debug)]
pub(super) struct Outgoing {
    capacity: u32,
    every: u32,
    open: u32,
    silent: u32,
}

impl Outgoing {
    pub(super) fn new(capacity: u32) -> Self {
        Self { capacity, every: (capacity / 4).clamp(1, 32), open: 0, silent: 0 }
    }

    #[inline]
    pub(super) fn room(&self) -> bool {
        self.open < self.capacity
    }

    pub(super) fn is_empty(&self) -> bool {
        self.open == 0
    }

    /// Whether there is something under way, and nothing of it will have a completion.
    pub(super) fn is_silent(&self) -> bool {
        self.open > 0 && self.open == self.silent
    }

    /// Requests that go without a completion at most.
    pub(super) fn every(&self) -> u32 {
        self.every
    }

    /// One more; the requests that its completion stands for, if it has one.
    #[inline]
    fn add(&mut self, loud: bool) -> Option<u32> {
        self.open += 1;
        self.silent += 1;
        let loud = loud || self.silent >= self.every || self.open == self.capacity;
        loud.then(|| std::mem::take(&mut self.silent))
    }

    #[inline]
    fn completed(&mut self, count: u32) {
        self.open -= count;
    }
}

/// What of a message is under way on a queue pair, for operations that have an answer.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Stream {
    /// Messages without an answer.
    pub(super) waiting: u32,
    /// Bytes of the current message that are not yet sent, and where they are.
    pub(super) left: u64,
    pub(super) next: u64,
    /// Bounce buffers that the target has for us.
    pub(super) credits: u32,
    /// Bounce buffers, or control messages, used so far.
    pub(super) used: u64,
}

/// Memory of the peer's thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct RemoteMemory {
    pub(super) address: u64,
    pub(super) key: u32,
}

impl RemoteMemory {
    #[inline]
    pub(super) fn at(&self, offset: u64) -> Remote {
        Remote { address: self.address + offset, key: self.key }
    }
}

/// Which end of a pair it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Role {
    /// The one that measures.
    Initiator,
    /// The other one.
    Target,
}

/// One thread's end.
#[derive(Debug)]
pub(super) struct Lane<E> {
    pub(super) endpoint: E,
    pub(super) role: Role,
    pub(super) job: Job,
    pub(super) layout: Layout,
    /// Key of the whole memory.
    pub(super) key: u32,
    pub(super) keys: Keys,
    pub(super) remote: RemoteMemory,
    pub(super) outgoing: Vec<Outgoing>,
    pub(super) streams: Vec<Stream>,
    pub(super) patience: Patience,
    /// Where the next operation is in its area, and where the next receive.
    pub(super) walk: Walk,
    receive_walk: Walk,
    random: u64,
    /// Pings so far.
    pub(super) pings: u64,
}

impl<E: Endpoint> Lane<E> {
    pub(super) fn new(
        endpoint: E,
        role: Role,
        job: &Job,
        layout: Layout,
        key: u32,
        keys: Keys,
        patience: Patience,
    ) -> Self {
        let queues = job.queue_pairs as usize;
        // With operations that have no answer the depth is the send queue's.
        let depth = match job.operation {
            Operation::AmShort | Operation::AmLong(_) => layout.sends,
            _ => job.depth.min(layout.sends),
        };
        let (_, credits) = bounce(job);
        let capacity = if credits > 0 { credits } else { depth };
        Self {
            endpoint,
            role,
            job: job.clone(),
            layout,
            key,
            keys,
            remote: RemoteMemory { address: 0, key: 0 },
            outgoing: (0..queues).map(|_| Outgoing::new(capacity)).collect(),
            streams: vec![Stream { credits, ..Stream::default() }; queues],
            patience,
            walk: Walk::default(),
            receive_walk: Walk::default(),
            random: 0x9e37_79b9_7f4a_7c15,
            pings: 0,
        }
    }

    pub(super) fn queues(&self) -> usize {
        self.outgoing.len()
    }

    /// Posts a request, with a completion if `loud` or if it is time for one.
    #[inline]
    pub(super) fn post(&mut self, queue: usize, verb: Verb, place: Place, loud: bool) -> Result<()> {
        self.post_tagged(queue, verb, place, Flags::NONE, Tag::Plain, loud)
    }

    #[inline(always)]
    pub(super) fn post_tagged(
        &mut self,
        queue: usize,
        verb: Verb,
        place: Place,
        flags: Flags,
        tag: Tag,
        loud: bool,
    ) -> Result<()> {
        let (number, flags) = match self.outgoing[queue].add(loud) {
            Some(count) => (count, flags.with(Flags::SIGNALED)),
            None => (0, flags),
        };
        let id = Id { queue: queue as u16, tag, number }.pack();
        Ok(self.endpoint.post(queue, &Work { id, verb, flags, place })?)
    }

    /// Posts the next operation that has no answer.
    #[inline(always)]
    pub(super) fn post_operation(&mut self, queue: usize, loud: bool) -> Result<()> {
        let offset = self.walk.next(&self.layout);
        let key = self.keys.key(queue, offset, self.layout.bytes)?;
        let there = self.remote.at(self.layout.inbox + offset);
        let verb = match self.job.operation {
            Operation::Put => Verb::Write(there),
            Operation::Get => Verb::Read(there),
            Operation::FetchAdd => Verb::FetchAdd(there, 1),
            Operation::Gather => Verb::Read(self.random_remote()),
            Operation::Send | Operation::AmShort | Operation::AmLong(_) => Verb::Send,
        };
        self.post_tagged(queue, verb, self.local(offset, key), self.payload(), Tag::Plain, loud)
    }

    /// An operation's memory in the own area.
    #[inline]
    pub(super) fn local(&self, offset: u64, key: u32) -> Place {
        Place { offset, length: self.layout.bytes, key }
    }

    /// How the payload goes.
    #[inline]
    pub(super) fn payload(&self) -> Flags {
        match self.job.payload {
            Payload::Registered => Flags::NONE,
            Payload::Inline => Flags::INLINE,
        }
    }

    /// The memory of an element at random (xorshift).
    #[inline]
    fn random_remote(&mut self) -> Remote {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        // The high part of a product, instead of a division.
        let slot = ((u128::from(self.random) * u128::from(self.layout.slots)) >> 64) as u64;
        self.remote.at(self.layout.inbox + slot * self.layout.stride)
    }

    /// Posts all receives of all queue pairs.
    pub(super) fn post_receives(&mut self) -> Result<()> {
        let count = match self.bounces() {
            true => bounce(&self.job).1,
            false => self.layout.receives,
        };
        for queue in 0..self.queues() {
            for buffer in 0..count {
                self.post_receive(queue, buffer)?;
            }
        }
        Ok(())
    }

    /// Posts a receive (again).
    #[inline]
    pub(super) fn post_receive(&mut self, queue: usize, buffer: u32) -> Result<()> {
        let place = match self.job.operation {
            Operation::AmLong(_) if self.bounces() => self.bounce_buffer(queue, buffer),
            Operation::AmLong(_) => self.control_buffer(queue, buffer),
            _ => Place {
                offset: self.layout.inbox + self.receive_walk.next(&self.layout),
                ..self.local(0, self.key)
            },
        };
        let id = Id { queue: queue as u16, tag: Tag::Plain, number: buffer }.pack();
        Ok(self.endpoint.post_receive(queue, id, place)?)
    }

    /// Where a control message is received.
    pub(super) fn control_buffer(&self, queue: usize, buffer: u32) -> Place {
        let index = queue as u64 * u64::from(self.layout.receives) + u64::from(buffer);
        Place { offset: self.layout.control_in + index * CONTROL, length: CONTROL as u32, key: self.key }
    }

    /// Where a piece of a message is received.
    pub(super) fn bounce_buffer(&self, queue: usize, buffer: u32) -> Place {
        let (chunk, buffers) = bounce(&self.job);
        let index = queue as u64 * u64::from(buffers) + u64::from(buffer);
        Place { offset: self.layout.bounce_in + index * chunk, length: chunk as u32, key: self.key }
    }

    /// Whether what arrives are pieces of messages.
    fn bounces(&self) -> bool {
        self.role == Role::Target && matches!(self.job.operation, Operation::AmLong(Long::Pipeline { .. }))
    }

    /// A completion of the last poll. Requests are accounted for.
    // Always inlined, as are the two above: calling them was half of the bookkeeping of a short operation.
    #[inline(always)]
    pub(super) fn completion(&mut self, index: usize) -> (Id, Completion) {
        let completion = self.endpoint.completion(index);
        let id = Id::unpack(completion.id);
        if completion.kind == Kind::Request {
            self.outgoing[usize::from(id.queue)].completed(id.number);
            self.keys.release(usize::from(id.queue), id.number);
        }
        (id, completion)
    }

    /// Waits until a queue pair has room for one more request. Nothing may arrive meanwhile, and no completions of an
    /// earlier poll may be left.
    #[inline]
    pub(super) fn make_room(&mut self, queue: usize) -> Result<()> {
        while !self.outgoing[queue].room() {
            self.take_completions()?;
        }
        Ok(())
    }

    /// Polls, and only accounts for what has completed.
    pub(super) fn take_completions(&mut self) -> Result<()> {
        for index in 0..self.poll()? {
            self.completion(index);
        }
        Ok(())
    }

    /// Polls; when there is nothing, it may let others run.
    #[inline]
    pub(super) fn poll(&mut self) -> Result<usize> {
        let count = self.endpoint.poll()?;
        match count {
            0 => self.patience.idle()?,
            _ => self.patience.busy(),
        }
        Ok(count)
    }
}
