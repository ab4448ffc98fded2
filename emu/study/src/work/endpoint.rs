//! Where requests go: a device, or nothing at all, which is how the loops themselves are measured.
#![allow(unsafe_code)]

use std::sync::Arc;

use crate::verbs::{
    Completion, CompletionQueue, Error, Flags, Mapping, QueuePair, Receive, Request, Result, Verb,
};

/// A part of the endpoint's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Place {
    pub(super) offset: u64,
    pub(super) length: u32,
    /// The key with which it is registered.
    pub(super) key: u32,
}

/// The number of a request, which its completion has: what it belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Id {
    /// Queue pair of the endpoint.
    pub(super) queue: u16,
    /// What kind of request it is.
    pub(super) tag: Tag,
    /// Of a request: requests that its completion stands for. Of a receive: its buffer.
    pub(super) number: u32,
}

/// What kind of request it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Tag {
    /// Nothing special.
    Plain,
    /// The READ of a long active message.
    Payload,
}

impl Id {
    #[inline]
    pub(super) fn pack(self) -> u64 {
        u64::from(self.queue) << 48 | (self.tag as u64) << 32 | u64::from(self.number)
    }

    #[inline]
    pub(super) fn unpack(id: u64) -> Self {
        let tag = if id >> 32 & 0xffff == 0 { Tag::Plain } else { Tag::Payload };
        Self { queue: (id >> 48) as u16, tag, number: id as u32 }
    }
}

/// A request of an endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Work {
    pub(super) id: u64,
    pub(super) verb: Verb,
    pub(super) flags: Flags,
    pub(super) place: Place,
}

/// Queue pairs of one thread, with their completion queue and memory.
pub(super) trait Endpoint: Send {
    /// Posts a request to a queue pair.
    fn post(&mut self, queue: usize, work: &Work) -> Result<()>;
    /// Posts a receive to a queue pair.
    fn post_receive(&mut self, queue: usize, id: u64, place: Place) -> Result<()>;
    /// Takes completions, and returns how many.
    fn poll(&mut self) -> Result<usize>;
    /// A completion of the last poll.
    fn completion(&self, index: usize) -> Completion;
    /// The memory.
    fn memory(&self) -> &Mapping;
}

/// Queue pairs of a device.
#[derive(Debug)]
pub(super) struct DeviceEndpoint {
    pub(super) queues: Vec<QueuePair>,
    pub(super) completions: CompletionQueue,
    pub(super) memory: Arc<Mapping>,
}

impl DeviceEndpoint {
    #[inline]
    fn address(&self, place: Place) -> Result<u64> {
        let address = self.memory.address_of(place.offset, place.length.into());
        address.ok_or_else(|| Error::Unsupported(format!("{place:?} is not in the memory of the thread")))
    }
}

impl Endpoint for DeviceEndpoint {
    #[inline]
    fn post(&mut self, queue: usize, work: &Work) -> Result<()> {
        let address = self.address(work.place)?;
        let Work { id, verb, flags, place } = *work;
        let request = Request { id, verb, flags, address, length: place.length, key: place.key };
        // SAFETY: the memory is a mapping's, to which there are no references, and lives as long as the queue pairs.
        unsafe { self.queues[queue].post(&request) }
    }

    #[inline]
    fn post_receive(&mut self, queue: usize, id: u64, place: Place) -> Result<()> {
        let address = self.address(place)?;
        let receive = Receive { id, address, length: place.length, key: place.key };
        // SAFETY: as above.
        unsafe { self.queues[queue].post_receive(&receive) }
    }

    #[inline]
    fn poll(&mut self) -> Result<usize> {
        self.completions.poll()
    }

    #[inline]
    fn completion(&self, index: usize) -> Completion {
        self.completions.completion(index)
    }

    fn memory(&self) -> &Mapping {
        &self.memory
    }
}
