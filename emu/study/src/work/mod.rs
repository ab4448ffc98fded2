//! What workers do: one job after the other, each with the other end of a pair.

use std::time::Duration;

pub mod job;

pub use job::{
    Amount, Api, CacheCounts, Counters, Job, Latency, LatencyIs, Long, Measure, Memory, Operation, Outcome,
    Pages, Payload, Registration,
};

/// Length of the windows of [`Outcome::peak_per_second`].
pub const WINDOW: Duration = Duration::from_millis(10);
