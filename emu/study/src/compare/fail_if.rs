//! The condition under which a comparison fails.

use std::fmt;
use std::str::FromStr;

use super::{Comparison, Row};
use crate::stats::Verdict;

/// A metric is shown to be worse, by more than a share.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct FailIf {
    /// In percent of the first mean, not negative.
    percent: f64,
}

impl FromStr for FailIf {
    type Err = String;

    /// Of the form `worse:5%`.
    fn from_str(text: &str) -> Result<Self, String> {
        let percent = text.strip_prefix("worse:").and_then(|rest| rest.strip_suffix('%'));
        percent
            .and_then(|number| number.parse().ok())
            .filter(|percent: &f64| percent.is_finite() && *percent >= 0.0)
            .map(|percent| Self { percent })
            .ok_or_else(|| format!("'{text}' is no condition; it has the form worse:5%"))
    }
}

impl fmt::Display for FailIf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "worse:{}%", self.percent)
    }
}

impl FailIf {
    /// The rows of which it is true. A metric that was zero and is worse is worse by more than any share.
    pub fn failing<'a>(&self, comparison: &'a Comparison) -> Vec<&'a Row> {
        let percent = |row: &Row| row.change.percent.map_or(f64::INFINITY, f64::abs);
        let fails = |row: &&Row| row.verdict == Verdict::Worse && percent(row) > self.percent;
        comparison.rows.iter().filter(fails).collect()
    }
}
