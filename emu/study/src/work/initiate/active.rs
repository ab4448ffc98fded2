//! Active messages: operations that are over when the target's handler has said so.

use crate::verbs::{Completion, Flags, Kind, Verb};
use crate::work::endpoint::{Endpoint, Id, Place, Tag};
use crate::work::error::{Error, Result};
use crate::work::job::{Long, Operation};
use crate::work::lane::Lane;
use crate::work::layout::{CONTROL, bounce};
use crate::work::meter::Meter;
use crate::work::serve::Answer;

/// Keeps as many messages under way as the target has room for.
pub(super) fn flood<E: Endpoint>(lane: &mut Lane<E>, meter: &mut Meter) -> Result<()> {
    let depth = lane.job.depth;
    loop {
        for queue in 0..lane.queues() {
            while step(lane, queue, meter, depth)? {}
        }
        if meter.left() == 0 && lane.streams.iter().all(|stream| stream.waiting == 0) {
            return Ok(());
        }
        let over = take_answers(lane)?;
        if over > 0 {
            meter.done(over.into());
            meter.tick();
        }
    }
}

/// One message at a time.
pub(super) fn latency<E: Endpoint>(lane: &mut Lane<E>, meter: &mut Meter) -> Result<()> {
    let mut queue = 0;
    meter.tick();
    loop {
        let before = meter.now();
        while !lane.outgoing[queue].room() {
            take_answers(lane)?;
        }
        if !step(lane, queue, meter, 1)? {
            return Ok(());
        }
        while lane.streams[queue].waiting > 0 {
            while step(lane, queue, meter, 1)? {}
            take_answers(lane)?;
        }
        meter.tick();
        meter.sample(meter.now() - before);
        queue = (queue + 1) % lane.queues();
    }
}

/// Posts the next request of a queue pair; `false` if there is none, or no room for it.
fn step<E: Endpoint>(lane: &mut Lane<E>, queue: usize, meter: &mut Meter, depth: u32) -> Result<bool> {
    let bytes = lane.layout.bytes;
    if !lane.outgoing[queue].room() {
        return Ok(false);
    }
    if lane.streams[queue].left == 0 {
        if lane.streams[queue].waiting >= depth || !meter.take() {
            return Ok(false);
        }
        let next = lane.walk.next(&lane.layout);
        let stream = &mut lane.streams[queue];
        stream.waiting += 1;
        (stream.left, stream.next) = (bytes.into(), next);
    }
    let next = lane.streams[queue].next;
    match lane.job.operation {
        Operation::AmLong(Long::Read) => announce(lane, queue, next)?,
        Operation::AmLong(Long::Pipeline { .. }) => return send_piece(lane, queue),
        _ => {
            let place = lane.local(next, lane.key);
            lane.post_tagged(queue, Verb::Send, place, lane.payload(), Tag::Plain, false)?;
        }
    }
    lane.streams[queue].left = 0;
    Ok(true)
}

/// Says where a message is.
fn announce<E: Endpoint>(lane: &mut Lane<E>, queue: usize, at: u64) -> Result<()> {
    let header = Announcement { offset: at, length: lane.layout.bytes.into() };
    let stream = &mut lane.streams[queue];
    let index =
        queue as u64 * u64::from(lane.layout.receives) + stream.used % u64::from(lane.layout.receives);
    stream.used += 1;
    let offset = lane.layout.control_out + index * CONTROL;
    lane.endpoint.memory().copy_in(offset, &header.bytes());
    let place = Place { offset, length: Announcement::LENGTH as u32, key: lane.key };
    lane.post(queue, Verb::Send, place, false)
}

/// Copies a piece of the message into a bounce buffer and sends it; `false` if the target has no buffer for it.
fn send_piece<E: Endpoint>(lane: &mut Lane<E>, queue: usize) -> Result<bool> {
    let (chunk, buffers) = bounce(&lane.job);
    let stream = &mut lane.streams[queue];
    if stream.credits == 0 {
        return Ok(false);
    }
    // There is room in the send queue, which is as long as there are buffers: the oldest one is free.
    let index = queue as u64 * u64::from(buffers) + stream.used % u64::from(buffers);
    let offset = lane.layout.bounce_out + index * chunk;
    let length = stream.left.min(chunk);
    lane.endpoint.memory().copy_within(stream.next, offset, length);
    stream.credits -= 1;
    stream.used += 1;
    stream.left -= length;
    stream.next += length;
    let place = Place { offset, length: length as u32, key: lane.key };
    lane.post_tagged(queue, Verb::Send, place, Flags::NONE, Tag::Plain, false)?;
    Ok(true)
}

/// Takes what the target says; returns how many messages are over.
fn take_answers<E: Endpoint>(lane: &mut Lane<E>) -> Result<u32> {
    let mut over = 0;
    for index in 0..lane.poll()? {
        let (id, completion) = lane.completion(index);
        if completion.kind == Kind::Receive {
            over += take_answer(lane, id, completion)?;
        }
    }
    Ok(over)
}

fn take_answer<E: Endpoint>(lane: &mut Lane<E>, id: Id, completion: Completion) -> Result<u32> {
    let queue = usize::from(id.queue);
    let answer = match lane.job.operation {
        Operation::AmShort => Answer { messages: 1, buffers: 0 },
        _ => Answer::unpack(completion.immediate),
    };
    lane.post_receive(queue, id.number)?;
    let stream = &mut lane.streams[queue];
    let too_many = || {
        Error::Data(format!("an answer to {} messages, of which {} wait", answer.messages, stream.waiting))
    };
    stream.waiting = stream.waiting.checked_sub(answer.messages.into()).ok_or_else(too_many)?;
    stream.credits = stream.credits.saturating_add(answer.buffers.into());
    Ok(answer.messages.into())
}

/// Where a long message is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Announcement {
    /// In the initiator's memory.
    pub(crate) offset: u64,
    /// In bytes.
    pub(crate) length: u64,
}

impl Announcement {
    pub(crate) const LENGTH: usize = 16;

    fn bytes(self) -> [u8; Self::LENGTH] {
        let mut bytes = [0; Self::LENGTH];
        bytes[..8].copy_from_slice(&self.offset.to_be_bytes());
        bytes[8..].copy_from_slice(&self.length.to_be_bytes());
        bytes
    }

    pub(crate) fn parse(bytes: [u8; Self::LENGTH]) -> Self {
        let number = |at: usize| bytes[at..at + 8].iter().fold(0, |all, byte| all << 8 | u64::from(*byte));
        Self { offset: number(0), length: number(8) }
    }
}
