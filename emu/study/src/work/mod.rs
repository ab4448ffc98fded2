//! What workers do: one job after the other, each with the other end of a pair.
//!
//! A job is described in [`job`]. The loops of the measuring end are in `initiate`, those of the other end in `serve`;
//! both work on a `lane`, which is one thread's queue pairs and memory, and reach the device through an `endpoint`.
//! [`worker`] has the processes around them.

use std::time::Duration;

mod data;
mod endpoint;
mod error;
mod initiate;
pub mod job;
mod lane;
mod layout;
mod meter;
pub mod null;
mod pages;
pub mod registration;
mod serve;
mod station;
pub mod worker;

pub use error::{Error, Result};
pub use job::{
    Amount, Api, CacheCounts, Counters, Job, LatencyIs, Long, Measure, Memory, Operation, Outcome, Pages,
    Payload, Registration,
};

use meter::{Samples, Tally};

/// Length of the windows of [`Outcome::peak_per_second`].
pub const WINDOW: Duration = Duration::from_millis(10);

/// Most bytes of an operation.
pub(crate) const LARGEST: u64 = 1 << 30;

/// Refuses what is not possible on any device. Says which value is wrong, and which would be right.
pub fn check_job(job: &Job) -> Result<()> {
    let number = |name: &str, value: u64, least: u64, most: u64| match (least..=most).contains(&value) {
        true => Ok(()),
        false => Err(Error::Refused(format!("{name} {value}: a number from {least} to {most} is possible"))),
    };
    number("bytes", job.bytes, 1, LARGEST)?;
    number("queue pairs", job.queue_pairs.into(), 1, 1024)?;
    number("threads", job.threads.into(), 1, 256)?;
    number("depth", job.depth.into(), 1, 16_384)?;
    number("region", job.region, 0, 1 << 36)?;
    number("stride", job.stride, 0, 1 << 30)?;
    let refuse = |why: &str| Err(Error::Refused(why.to_owned()));
    if !(0.0..=1.0).contains(&job.touched) {
        return refuse(&format!("touched {}: a share from 0 to 1 is possible", job.touched));
    }
    let active = matches!(job.operation, Operation::AmShort | Operation::AmLong(_));
    if job.operation == Operation::FetchAdd && job.bytes != 8 {
        return refuse(&format!("bytes {}: an atomic operation has 8", job.bytes));
    }
    if active && job.measure == Measure::Initiation {
        return refuse(
            "the initiation of active messages is not measured: put, get, send, fetch_add or gather is",
        );
    }
    let inline = matches!(job.operation, Operation::Put | Operation::Send | Operation::AmShort);
    if job.payload == Payload::Inline && !inline {
        return refuse("inline payload: put, send or am_short can have it");
    }
    if (active || job.operation == Operation::Send || ping_pong(job))
        && job.registration != Registration::None
    {
        return refuse("a registration cache: put (not its latency), get, fetch_add or gather can have it");
    }
    if let Registration::Hybrid { unregistered_percent, .. } = job.registration {
        number("unregistered percent", unregistered_percent.into(), 0, 100)?;
    }
    if let Operation::AmLong(Long::Pipeline { chunk, buffers }) = job.operation {
        number("bytes of a bounce buffer", chunk.into(), 64, 1 << 24)?;
        number("bounce buffers", buffers.into(), 1, 4096)?;
    }
    match job.amount {
        Amount::Operations(count) => number("operations", count, 1, u64::MAX),
        Amount::Milliseconds(time) => number("milliseconds", time, 1, 3_600_000),
    }
}

fn ping_pong(job: &Job) -> bool {
    job.measure == Measure::Latency && matches!(job.operation, Operation::Put | Operation::Send)
}

/// What the threads of the initiator have counted, as an outcome. What they do not know is 0.
fn outcome(job: &Job, tallies: &[Tally]) -> Outcome {
    let operations = tallies.iter().map(|tally| tally.operations).sum();
    let mut samples = Samples::new();
    tallies.iter().for_each(|tally| samples.merge(&tally.samples));
    let started = tallies.iter().map(|tally| tally.started).min();
    let ended = tallies.iter().map(|tally| tally.ended).max();
    let elapsed = match job.measure {
        Measure::Initiation => {
            tallies.iter().map(|tally| tally.posting).sum::<Duration>() / tallies.len().max(1) as u32
        }
        _ => ended.zip(started).map_or(Duration::ZERO, |(ended, started)| ended - started),
    };
    let share = if job.latency_is() == LatencyIs::HalfRoundTrip { 2.0 } else { 1.0 };
    Outcome {
        operations,
        bytes: operations * job.bytes,
        elapsed_ns: elapsed.as_nanos() as u64,
        initiator_cpu_ns: 0,
        target_cpu_ns: 0,
        peak_per_second: if job.measure == Measure::Flood { meter::peak(tallies) } else { None },
        latency: samples.summary(share),
        register_ns: 0,
        prefetch_ns: None,
        cache: None,
        counters: Counters::default(),
    }
}
