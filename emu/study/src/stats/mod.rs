//! Summaries of samples, and comparisons of them.
//!
//! A *sample* is the figure of one repetition. Repetitions are few (3 to 100), so intervals come from exact small-sample
//! distributions: Student's t for means, the binomial distribution of order statistics for medians.

mod change;
mod latency;
mod noise;
mod sigma;
mod summary;

pub use change::{Change, MIN_SAMPLES, Verdict};
pub use latency::Latency;
pub use noise::{Noise, noise};
pub use sigma::{MeanDeviation, SigmaDifference};
pub use summary::{Interval, Summary};

/// How sure intervals and verdicts are, as a share of 1.
pub const CONFIDENCE: f64 = 0.95;
