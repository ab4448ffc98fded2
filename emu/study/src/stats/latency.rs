//! Latencies as perftest sums them up.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// The columns of ib_send_lat, in microseconds, and how many latencies they are of.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Latency {
    /// How many there are.
    pub count: u64,
    /// Smallest.
    pub min: f64,
    /// Largest.
    pub max: f64,
    /// The median.
    pub typical: f64,
    /// The mean.
    pub average: f64,
    /// Standard deviation of the single latencies.
    pub deviation: f64,
    /// 99 % are at most this.
    pub p99: f64,
    /// 99.9 % are at most this.
    pub p999: f64,
}

impl Latency {
    /// Names of the columns, in perftest's order.
    pub const NAMES: [&str; 7] = ["t_min", "t_max", "t_typical", "t_avg", "t_stdev", "99 %", "99.9 %"];

    /// Sums up a histogram of nanoseconds; `None` if it is empty. Accurate to the histogram's resolution.
    pub fn of(nanoseconds: &Histogram<u64>) -> Option<Self> {
        if nanoseconds.is_empty() {
            return None;
        }
        let quantile = |q| nanoseconds.value_at_quantile(q) as f64 / 1e3;
        Some(Self {
            count: nanoseconds.len(),
            min: nanoseconds.min() as f64 / 1e3,
            max: nanoseconds.max() as f64 / 1e3,
            typical: quantile(0.5),
            average: nanoseconds.mean() / 1e3,
            deviation: nanoseconds.stdev() / 1e3,
            p99: quantile(0.99),
            p999: quantile(0.999),
        })
    }

    /// The columns' values, in the order of [`Self::NAMES`].
    pub fn values(&self) -> [f64; 7] {
        [self.min, self.max, self.typical, self.average, self.deviation, self.p99, self.p999]
    }
}
