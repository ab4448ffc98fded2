//! The measuring end: the loops that post operations and count those that are over.

mod active;
mod one_sided;
mod ping_pong;

use super::endpoint::Endpoint;
use super::error::Result;
use super::job::{Amount, Measure, Operation};
use super::lane::Lane;
use super::meter::{Meter, Tally};

pub(super) use active::Announcement;
pub(super) use ping_pong::await_receive;

/// Runs operations of a thread, up to an amount and a number. Nothing is under way before and after it.
pub(super) fn phase<E: Endpoint>(lane: &mut Lane<E>, amount: Amount, most: u64) -> Result<Tally> {
    let mut meter = Meter::new(amount, most);
    match (lane.job.measure, lane.job.operation) {
        (Measure::Initiation, _) => one_sided::initiation(lane, &mut meter)?,
        (Measure::Flood, Operation::AmShort | Operation::AmLong(_)) => active::flood(lane, &mut meter)?,
        (Measure::Flood, _) => one_sided::flood(lane, &mut meter)?,
        (Measure::Latency, Operation::AmShort | Operation::AmLong(_)) => active::latency(lane, &mut meter)?,
        (Measure::Latency, Operation::Put) => ping_pong::put(lane, &mut meter)?,
        (Measure::Latency, Operation::Send) => ping_pong::send(lane, &mut meter)?,
        (Measure::Latency, _) => one_sided::latency(lane, &mut meter)?,
    }
    Ok(meter.finish())
}
