//! The handler of active messages.

use std::collections::VecDeque;

use crate::verbs::{Completion, Kind, Verb};
use crate::work::endpoint::{Endpoint, Id, Place, Tag};
use crate::work::error::{Error, Result};
use crate::work::initiate::Announcement;
use crate::work::job::{Long, Operation};
use crate::work::lane::Lane;
use crate::work::layout::bounce;

/// What the target says by the immediate data of an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Answer {
    /// Messages that are over.
    pub(crate) messages: u16,
    /// Bounce buffers that are free again.
    pub(crate) buffers: u16,
}

impl Answer {
    fn pack(self) -> u32 {
        u32::from(self.buffers) << 16 | u32::from(self.messages)
    }

    pub(crate) fn unpack(immediate: u32) -> Self {
        Self { messages: immediate as u16, buffers: (immediate >> 16) as u16 }
    }
}

/// What is owed to the initiator on a queue pair.
#[derive(Default, Debug)]
struct Owed {
    /// Messages that are over.
    messages: u16,
    /// Bounce buffers that are free again.
    buffers: u16,
    /// Messages that were announced.
    announced: VecDeque<Announcement>,
    /// READs under way.
    reads: u32,
    /// What has come of the present message, and where it goes.
    received: u64,
    place: u64,
}

/// Handles messages until the job is over.
pub(super) fn serve<E: Endpoint>(lane: &mut Lane<E>) -> Result<()> {
    let mut owed: Vec<Owed> = (0..lane.queues()).map(|_| Owed::default()).collect();
    loop {
        let count = lane.poll()?;
        for index in 0..count {
            let (id, completion) = lane.completion(index);
            match completion.kind {
                Kind::Receive => receive(lane, &mut owed[usize::from(id.queue)], id, completion)?,
                Kind::Request if id.tag == Tag::Payload => {
                    let owed = &mut owed[usize::from(id.queue)];
                    owed.reads -= 1;
                    owed.messages += 1;
                }
                Kind::Request => {}
            }
        }
        if count > 0 {
            for (queue, owed) in owed.iter_mut().enumerate() {
                pay(lane, queue, owed)?;
            }
        }
    }
}

/// Takes what has come.
fn receive<E: Endpoint>(lane: &mut Lane<E>, owed: &mut Owed, id: Id, completion: Completion) -> Result<()> {
    let queue = usize::from(id.queue);
    match lane.job.operation {
        Operation::AmLong(Long::Read) => {
            let mut bytes = [0; Announcement::LENGTH];
            lane.endpoint.memory().copy_out(lane.control_buffer(queue, id.number).offset, &mut bytes);
            let announced = Announcement::parse(bytes);
            if announced.length != u64::from(lane.layout.bytes) || announced.offset >= lane.layout.inbox {
                return Err(Error::Data(format!("an announcement says {announced:?}")));
            }
            owed.announced.push_back(announced);
        }
        Operation::AmLong(Long::Pipeline { .. }) => copy_out(lane, owed, id, completion.bytes)?,
        _ => owed.messages += 1,
    }
    lane.post_receive(queue, id.number)
}

/// Copies a piece to its place in the handler's buffer.
fn copy_out<E: Endpoint>(lane: &mut Lane<E>, owed: &mut Owed, id: Id, length: u32) -> Result<()> {
    let (bytes, length) = (u64::from(lane.layout.bytes), u64::from(length));
    if owed.received == 0 {
        owed.place = lane.layout.inbox + lane.walk.next(&lane.layout);
    }
    if owed.received + length > bytes {
        return Err(Error::Data(format!(
            "{length} bytes of a message of {bytes} came after {}",
            owed.received
        )));
    }
    let from = lane.bounce_buffer(id.queue.into(), id.number).offset;
    lane.endpoint.memory().copy_within(from, owed.place + owed.received, length);
    owed.received += length;
    owed.buffers += 1;
    if owed.received == bytes {
        owed.received = 0;
        owed.messages += 1;
    }
    Ok(())
}

/// Posts what is owed, as far as there is room.
fn pay<E: Endpoint>(lane: &mut Lane<E>, queue: usize, owed: &mut Owed) -> Result<()> {
    while lane.outgoing[queue].room()
        && let Some(announced) = owed.announced.pop_front()
    {
        let offset = lane.layout.inbox + lane.walk.next(&lane.layout);
        let place = Place { offset, length: announced.length as u32, key: lane.key };
        let verb = Verb::Read(lane.remote.at(announced.offset));
        lane.post_tagged(queue, verb, place, crate::verbs::Flags::NONE, Tag::Payload, true)?;
        owed.reads += 1;
    }
    match lane.job.operation {
        Operation::AmShort => {
            while owed.messages > 0 && lane.outgoing[queue].room() {
                owed.messages -= 1;
                lane.post_operation(queue, false)?;
            }
            Ok(())
        }
        _ => say(lane, queue, owed),
    }
}

/// Says what is over. Buffers alone are worth a message when there are some.
fn say<E: Endpoint>(lane: &mut Lane<E>, queue: usize, owed: &mut Owed) -> Result<()> {
    let (_, buffers) = bounce(&lane.job);
    let worth = owed.messages > 0 || owed.buffers > 0 && u32::from(owed.buffers) * 4 >= buffers;
    if !worth || !lane.outgoing[queue].room() {
        return Ok(());
    }
    let answer = Answer { messages: owed.messages, buffers: owed.buffers };
    (owed.messages, owed.buffers) = (0, 0);
    let nothing = Place { offset: lane.layout.control_out, length: 0, key: lane.key };
    lane.post(queue, Verb::SendImmediate(answer.pack()), nothing, false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_travels_in_immediate_data() {
        for answer in [Answer { messages: 1, buffers: 0 }, Answer { messages: 515, buffers: 65_535 }] {
            assert_eq!(Answer::unpack(answer.pack()), answer);
        }
    }
}
