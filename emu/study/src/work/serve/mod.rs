//! The other end: what it does so that the operations of the measuring one can be.

mod active;

use super::endpoint::Endpoint;
use super::error::{Error, Result};
use super::initiate::await_receive;
use super::job::{Job, Measure, Operation};
use super::lane::Lane;

pub(super) use active::Answer;

/// Whether a target's threads have something to do; otherwise its device does everything.
pub(super) fn is_needed(job: &Job) -> bool {
    match job.operation {
        Operation::Send | Operation::AmShort | Operation::AmLong(_) => true,
        Operation::Put => job.measure == Measure::Latency,
        Operation::Get | Operation::FetchAdd | Operation::Gather => false,
    }
}

/// Serves until the job is over.
pub(super) fn serve<E: Endpoint>(lane: &mut Lane<E>) -> Result<()> {
    let result = match (lane.job.operation, lane.job.measure) {
        (Operation::Put, _) => answer_puts(lane),
        (Operation::Send, Measure::Latency) => answer_sends(lane),
        (Operation::Send, _) => drain(lane),
        _ => active::serve(lane),
    };
    match result {
        Err(Error::Stopped) => Ok(()),
        other => other,
    }
}

/// Takes what comes.
fn drain<E: Endpoint>(lane: &mut Lane<E>) -> Result<()> {
    loop {
        for index in 0..lane.poll()? {
            let (id, _) = lane.completion(index);
            lane.post_receive(id.queue.into(), id.number)?;
        }
    }
}

/// Answers each SEND by one. They come one at a time.
fn answer_sends<E: Endpoint>(lane: &mut Lane<E>) -> Result<()> {
    loop {
        let ping = await_receive(lane)?;
        let queue = ping.queue.into();
        lane.make_room(queue)?;
        lane.post_operation(queue, false)?;
        lane.post_receive(queue, ping.number)?;
    }
}

/// Answers each RDMA WRITE by one.
fn answer_puts<E: Endpoint>(lane: &mut Lane<E>) -> Result<()> {
    let mut queue = 0;
    loop {
        lane.exchange_put(queue)?;
        queue = (queue + 1) % lane.queues();
    }
}
