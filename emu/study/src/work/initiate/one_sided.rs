//! Operations that are over when their request has completed.

use std::time::Instant;

use crate::verbs::Kind;
use crate::work::endpoint::Endpoint;
use crate::work::error::Result;
use crate::work::lane::Lane;
use crate::work::meter::Meter;

/// Keeps the send queues full.
pub(super) fn flood<E: Endpoint>(lane: &mut Lane<E>, meter: &mut Meter) -> Result<()> {
    // So near to the end every request has a completion: nobody knows which is a queue pair's last one.
    let loud_below = lane.queues() as u64 * u64::from(lane.outgoing[0].every());
    loop {
        for queue in 0..lane.queues() {
            while lane.outgoing[queue].room() && meter.take() {
                lane.post_operation(queue, meter.left() < loud_below)?;
            }
        }
        if meter.left() == 0 && !rouse(lane)? {
            return Ok(());
        }
        let count = lane.poll()?;
        for index in 0..count {
            let (id, completion) = lane.completion(index);
            if completion.kind == Kind::Request {
                meter.done(id.number.into());
            }
        }
        if count > 0 {
            meter.tick();
        }
    }
}

/// Whether there is something under way. What would end without a completion gets one more operation that has one: a
/// time may end anywhere.
fn rouse<E: Endpoint>(lane: &mut Lane<E>) -> Result<bool> {
    for queue in 0..lane.queues() {
        if lane.outgoing[queue].is_silent() {
            lane.post_operation(queue, true)?;
        }
    }
    Ok(lane.outgoing.iter().any(|outgoing| !outgoing.is_empty()))
}

/// One operation at a time.
pub(super) fn latency<E: Endpoint>(lane: &mut Lane<E>, meter: &mut Meter) -> Result<()> {
    let mut queue = 0;
    meter.tick();
    while meter.take() {
        let before = meter.now();
        lane.post_operation(queue, true)?;
        while !lane.outgoing[queue].is_empty() {
            lane.take_completions()?;
        }
        meter.tick();
        meter.sample(meter.now() - before);
        queue = (queue + 1) % lane.queues();
    }
    Ok(())
}

/// Bursts that fill a send queue; only posting them counts.
pub(super) fn initiation<E: Endpoint>(lane: &mut Lane<E>, meter: &mut Meter) -> Result<()> {
    let mut queue = 0;
    loop {
        let mut count = 0;
        let start = Instant::now();
        while lane.outgoing[queue].room() && meter.take() {
            lane.post_operation(queue, meter.left() == 0)?;
            count += 1;
        }
        let time = start.elapsed();
        if count == 0 {
            return Ok(());
        }
        // The last request of a burst has a completion: it fills the queue, or is the last of all.
        while !lane.outgoing[queue].is_empty() {
            lane.take_completions()?;
        }
        meter.burst(time, count);
        meter.tick();
        queue = (queue + 1) % lane.queues();
    }
}
