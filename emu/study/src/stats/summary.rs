//! What a set of samples says about its middle, and how surely.

use serde::Serialize;
use statrs::distribution::{Binomial, ContinuousCDF, DiscreteCDF, StudentsT};

use super::CONFIDENCE;

/// A range that holds the true value with a given probability.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Interval {
    /// Its lower end.
    pub low: f64,
    /// Its upper end.
    pub high: f64,
    /// The probability, as a share of 1: [`CONFIDENCE`], or less where so few samples cannot give that much.
    pub confidence: f64,
}

/// The middle and the spread of samples, in the samples' unit.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Summary {
    /// Number of samples, at least 1.
    pub count: usize,
    /// Smallest sample.
    pub min: f64,
    /// Largest sample.
    pub max: f64,
    /// Middle sample, or the mean of the two in the middle.
    pub median: f64,
    /// Arithmetic mean.
    pub mean: f64,
    /// Sample standard deviation (divided by `count - 1`); `None` for one sample.
    pub stddev: Option<f64>,
    /// Where the true mean is, by Student's t; `None` for one sample.
    pub mean_interval: Option<Interval>,
    /// Where the true median is, whatever the distribution: the narrowest pair of order statistics that is sure enough,
    /// else the whole range with the confidence that it has. `None` for one sample.
    pub median_interval: Option<Interval>,
}

impl Summary {
    /// Summarises finite `samples`; `None` if there are none.
    pub fn of(samples: &[f64]) -> Option<Self> {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (&min, &max) = (sorted.first()?, sorted.last()?);
        let mean = mean(samples);
        let stddev = (samples.len() > 1).then(|| stddev(samples, mean));
        Some(Self {
            count: samples.len(),
            min,
            max,
            median: median(&sorted),
            mean,
            stddev,
            mean_interval: stddev.map(|stddev| mean_interval(samples.len(), mean, stddev)),
            median_interval: median_interval(&sorted),
        })
    }

    /// Standard deviation in percent of the mean; `None` for one sample or a mean of zero.
    pub fn percent_stddev(&self) -> Option<f64> {
        self.stddev.filter(|_| self.mean != 0.0).map(|stddev| 100.0 * stddev / self.mean.abs())
    }

    /// The larger distance from the median to an end of its interval: the figure after the sign ±.
    pub fn median_error(&self) -> Option<f64> {
        self.median_interval.map(|i| (i.high - self.median).max(self.median - i.low))
    }
}

/// Of at least one sample; exact if all are equal, so that rounding does not look like noise.
pub(super) fn mean(samples: &[f64]) -> f64 {
    if samples.iter().all(|s| *s == samples[0]) {
        return samples[0];
    }
    samples.iter().sum::<f64>() / samples.len() as f64
}

/// Sample standard deviation of at least two samples.
pub(super) fn stddev(samples: &[f64], mean: f64) -> f64 {
    let squares: f64 = samples.iter().map(|s| (s - mean).powi(2)).sum();
    (squares / (samples.len() - 1) as f64).sqrt()
}

fn median(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[middle] } else { f64::midpoint(sorted[middle - 1], sorted[middle]) }
}

/// Half the width of the two-sided interval of `confidence`, in standard errors.
pub(super) fn student_t(degrees_of_freedom: f64, confidence: f64) -> f64 {
    student(degrees_of_freedom).inverse_cdf(f64::midpoint(1.0, confidence))
}

/// Probability of at least `t` standard errors from zero, in either direction, where there is no difference.
pub(super) fn two_sided_p(degrees_of_freedom: f64, t: f64) -> f64 {
    2.0 * student(degrees_of_freedom).sf(t.abs())
}

fn student(degrees_of_freedom: f64) -> StudentsT {
    StudentsT::new(0.0, 1.0, degrees_of_freedom).expect("degrees of freedom are positive")
}

fn mean_interval(count: usize, mean: f64, stddev: f64) -> Interval {
    let half = student_t((count - 1) as f64, CONFIDENCE) * stddev / (count as f64).sqrt();
    Interval { low: mean - half, high: mean + half, confidence: CONFIDENCE }
}

/// The k-th smallest and the k-th largest sample miss the median with probability `2 P(B < k)`, where B counts the samples
/// below it: binomial, n trials, one half.
fn median_interval(sorted: &[f64]) -> Option<Interval> {
    let count = sorted.len();
    if count < 2 {
        return None;
    }
    let below = Binomial::new(0.5, count as u64).expect("one half is a probability");
    let confidence = |k: usize| 1.0 - 2.0 * below.cdf(k as u64 - 1);
    let k = (1..=count / 2).rev().find(|&k| confidence(k) >= CONFIDENCE).unwrap_or(1);
    Some(Interval { low: sorted[k - 1], high: sorted[count - k], confidence: confidence(k) })
}
