//! The comparison of two sets of samples.

use serde::Serialize;

use super::summary::{mean, stddev, student_t, two_sided_p};
use super::{CONFIDENCE, Interval, MeanDeviation, SigmaDifference};
use crate::record::Better;

/// Fewer samples than this in a set show nothing.
pub const MIN_SAMPLES: usize = 3;

/// What a comparison shows of the second set.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It is better.
    Better,
    /// It is worse.
    Worse,
    /// The noise is as large as the difference.
    NoDifferenceShown,
    /// A set has fewer than [`MIN_SAMPLES`] samples, which can show nothing.
    TooFewSamples,
}

impl Verdict {
    /// The verdict on a change that is beyond doubt.
    pub(super) fn of_change(difference: f64, better: Better) -> Self {
        match (difference.total_cmp(&0.0), better) {
            (std::cmp::Ordering::Equal, _) => Self::NoDifferenceShown,
            (std::cmp::Ordering::Greater, Better::More) | (std::cmp::Ordering::Less, Better::Less) => {
                Self::Better
            }
            _ => Self::Worse,
        }
    }

    /// As words.
    pub fn text(self) -> &'static str {
        match self {
            Self::Better => "better",
            Self::Worse => "worse",
            Self::NoDifferenceShown => "no difference shown",
            Self::TooFewSamples => "too few samples",
        }
    }
}

/// How the second of two sets of samples differs from the first.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Change {
    /// Second mean minus first mean, in the samples' unit.
    pub absolute: f64,
    /// The same in percent of the first mean; `None` if that is zero.
    pub percent: Option<f64>,
    /// Where the true difference of the means is (Welch: the sets may vary differently).
    pub interval: Option<Interval>,
    /// Probability of a difference of this size by noise alone (two-sided, Welch). Sets that do not vary are taken as exact.
    pub p_value: Option<f64>,
    /// Effect size: the distance in units of sigma, see [`SigmaDifference`].
    pub sigma: Option<f64>,
    /// Effect size: the difference in pooled standard deviations, corrected for few samples, with sign.
    pub hedges_g: Option<f64>,
    /// Effect size that outliers hardly move: how much more probable it is that a sample of the second set exceeds one of
    /// the first than the reverse, -1 to 1.
    pub cliffs_delta: f64,
}

impl Change {
    /// From `before` to `after`; `None` if one of them is empty.
    pub fn between(before: &[f64], after: &[f64]) -> Option<Self> {
        if before.is_empty() || after.is_empty() {
            return None;
        }
        let first = mean(before);
        let absolute = mean(after) - first;
        let deviations = MeanDeviation::of(before).zip(MeanDeviation::of(after));
        let welch = (before.len().min(after.len()) >= 2).then(|| Welch::of(before, after));
        Some(Self {
            absolute,
            percent: (first != 0.0).then(|| 100.0 * absolute / first.abs()),
            interval: welch.map(|w| w.interval(absolute)),
            p_value: welch
                .filter(|_| before.len().min(after.len()) >= MIN_SAMPLES)
                .map(|w| w.p_value(absolute)),
            sigma: deviations.map(|(a, b)| SigmaDifference::between(a, b).sigma).filter(|s| s.is_finite()),
            hedges_g: hedges_g(before, after).filter(|g| g.is_finite()),
            cliffs_delta: cliffs_delta(before, after),
        })
    }

    /// The verdict, where a difference that noise makes with probability `level` or less counts as shown.
    pub fn verdict(&self, better: Better, level: f64) -> Verdict {
        match self.p_value {
            None => Verdict::TooFewSamples,
            Some(p) if p <= level => Verdict::of_change(self.absolute, better),
            Some(_) => Verdict::NoDifferenceShown,
        }
    }
}

/// What Welch's test takes from the samples.
#[derive(Clone, Copy)]
struct Welch {
    standard_error: f64,
    degrees_of_freedom: f64,
}

impl Welch {
    /// Of at least two samples each.
    fn of(before: &[f64], after: &[f64]) -> Self {
        let share = |samples: &[f64]| stddev(samples, mean(samples)).powi(2) / samples.len() as f64;
        let (first, second) = (share(before), share(after));
        let freedom = |share: f64, samples: &[f64]| share.powi(2) / (samples.len() - 1) as f64;
        Self {
            standard_error: (first + second).sqrt(),
            degrees_of_freedom: (first + second).powi(2) / (freedom(first, before) + freedom(second, after)),
        }
    }

    fn interval(self, difference: f64) -> Interval {
        let half = match self.standard_error {
            0.0 => 0.0,
            error => student_t(self.degrees_of_freedom, CONFIDENCE) * error,
        };
        Interval { low: difference - half, high: difference + half, confidence: CONFIDENCE }
    }

    fn p_value(self, difference: f64) -> f64 {
        match self.standard_error {
            0.0 if difference == 0.0 => 1.0,
            0.0 => 0.0,
            error => two_sided_p(self.degrees_of_freedom, difference / error),
        }
    }
}

fn hedges_g(before: &[f64], after: &[f64]) -> Option<f64> {
    let (first, second) = (MeanDeviation::of(before)?, MeanDeviation::of(after)?);
    let freedom = (before.len() + after.len() - 2) as f64;
    let weighted = |d: MeanDeviation, samples: &[f64]| (samples.len() - 1) as f64 * d.stddev.powi(2);
    let pooled = ((weighted(first, before) + weighted(second, after)) / freedom).sqrt();
    Some((second.mean - first.mean) / pooled * (1.0 - 3.0 / (4.0 * freedom - 1.0)))
}

fn cliffs_delta(before: &[f64], after: &[f64]) -> f64 {
    let balance: i64 = after.iter().flat_map(|a| before.iter().map(move |b| a.total_cmp(b) as i64)).sum();
    balance as f64 / (before.len() * after.len()) as f64
}
