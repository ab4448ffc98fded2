//! Differences in units of sigma, as the published comparison of the work-request API gives them.

use serde::Serialize;

use super::Summary;
use crate::record::Better;
use crate::stats::Verdict;

/// The mean of samples and their standard deviation.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct MeanDeviation {
    /// Mean.
    pub mean: f64,
    /// Sample standard deviation.
    pub stddev: f64,
}

impl MeanDeviation {
    /// Of at least two samples.
    pub fn of(samples: &[f64]) -> Option<Self> {
        let summary = Summary::of(samples)?;
        Some(Self { mean: summary.mean, stddev: summary.stddev? })
    }
}

/// How far two means are apart, measured by how far single samples stray.
///
/// This is an effect size, not a test: it does not grow with the number of samples.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct SigmaDifference {
    /// Second mean minus first mean.
    pub difference: f64,
    /// The distance in units of the standard deviation of a difference of single samples, `sqrt(s1² + s2²)`.
    /// Infinite if neither set varies and they differ.
    pub sigma: f64,
}

impl SigmaDifference {
    /// From the first to the second.
    pub fn between(before: MeanDeviation, after: MeanDeviation) -> Self {
        let difference = after.mean - before.mean;
        let unit = before.stddev.hypot(after.stddev);
        let sigma = if difference == 0.0 { 0.0 } else { difference.abs() / unit };
        Self { difference, sigma }
    }

    /// The verdict on the second where a difference counts from `threshold` sigma on.
    pub fn verdict(&self, better: Better, threshold: f64) -> Verdict {
        if self.sigma < threshold {
            Verdict::NoDifferenceShown
        } else {
            Verdict::of_change(self.difference, better)
        }
    }
}
