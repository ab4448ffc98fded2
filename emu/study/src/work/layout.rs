//! Where things are in the memory of a thread. Both ends have the same layout, so an offset means the same to both.

use super::job::{Job, Long, Operation};

/// Bytes of a control message, and of the room for one.
pub(super) const CONTROL: u64 = 64;
/// Receives of a queue pair, unless the job needs more or the device takes less.
const RECEIVES: u32 = 512;
const PAGE: u64 = 4096;

/// Where things are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Layout {
    /// Bytes of an operation.
    pub(super) bytes: u32,
    /// From one operation's memory to the next one's.
    pub(super) stride: u64,
    /// Operations' memories in each of the two areas.
    pub(super) slots: u64,
    /// What the peer writes and reads; the other area, from 0, is the thread's own.
    pub(super) inbox: u64,
    /// Control messages to the peer.
    pub(super) control_out: u64,
    /// Control messages of the peer.
    pub(super) control_in: u64,
    /// Bounce buffers to the peer.
    pub(super) bounce_out: u64,
    /// Bounce buffers of the peer.
    pub(super) bounce_in: u64,
    /// Of the whole.
    pub(super) length: u64,
    /// Requests in a send queue.
    pub(super) sends: u32,
    /// Receives in a receive queue; 0 if nothing is sent.
    pub(super) receives: u32,
}

impl Layout {
    /// For a job on a device that has queues of at most `most` requests.
    pub(super) fn of(job: &Job, most: u32) -> Self {
        let stride = job.stride.max(job.bytes).max(1).next_multiple_of(8);
        let slots = (job.region / stride).max(1);
        let area = (slots * stride).next_multiple_of(PAGE);
        let (chunk, buffers) = bounce(job);
        let sends = if buffers > 0 { buffers + 16 } else { 2 * job.depth + 16 }.min(most);
        let receives = match job.operation {
            Operation::Send | Operation::AmShort | Operation::AmLong(Long::Read) => {
                RECEIVES.max(2 * job.depth + 16)
            }
            Operation::AmLong(Long::Pipeline { .. }) => buffers + 2 * job.depth,
            _ => 0,
        };
        let receives = receives.min(most);
        let queues = u64::from(job.queue_pairs);
        let control = (CONTROL * queues * u64::from(receives)).next_multiple_of(PAGE);
        let bounce = (chunk * queues * u64::from(buffers)).next_multiple_of(PAGE);
        let inbox = area;
        let control_out = inbox + area;
        let control_in = control_out + control;
        let bounce_out = control_in + control;
        let bounce_in = bounce_out + bounce;
        Self {
            bytes: job.bytes as u32,
            stride,
            slots,
            inbox,
            control_out,
            control_in,
            bounce_out,
            bounce_in,
            length: bounce_in + bounce,
            sends,
            receives,
        }
    }
}

/// Bytes and number of the bounce buffers of a queue pair; zeros if there are none.
pub(super) fn bounce(job: &Job) -> (u64, u32) {
    match job.operation {
        Operation::AmLong(Long::Pipeline { chunk, buffers }) => (chunk.into(), buffers),
        _ => (0, 0),
    }
}

/// Walks through the slots, round and round.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Walk(u64);

impl Walk {
    /// Offset of the next slot in its area.
    #[inline]
    pub(super) fn next(&mut self, layout: &Layout) -> u64 {
        let slot = self.0;
        self.0 = if slot + 1 == layout.slots { 0 } else { slot + 1 };
        slot * layout.stride
    }
}
