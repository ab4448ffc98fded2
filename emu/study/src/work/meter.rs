//! Counting operations and their times.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use super::WINDOW;
use super::job::Amount;
use crate::stats::Latency;

/// Says when a phase is over, and counts what it does.
#[derive(Debug)]
pub(super) struct Meter {
    left: u64,
    end: Option<Instant>,
    /// What the clock said when it was last looked at.
    now: Instant,
    started: Instant,
    operations: u64,
    counted: u64,
    /// Operations that were over in each window since the start.
    windows: Vec<f64>,
    /// Windows from the start to the last look at the clock.
    at: f64,
    samples: Samples,
    posting: Duration,
}

impl Meter {
    /// Begins now. There are no more operations than `most`, whatever the amount.
    pub(super) fn new(amount: Amount, most: u64) -> Self {
        let now = Instant::now();
        let (left, end) = match amount {
            Amount::Operations(count) => (count, None),
            Amount::Milliseconds(time) => (u64::MAX, Some(now + Duration::from_millis(time))),
        };
        Self {
            left: left.min(most),
            end,
            now,
            started: now,
            operations: 0,
            counted: 0,
            windows: Vec::new(),
            at: 0.0,
            samples: Samples::new(),
            posting: Duration::ZERO,
        }
    }

    /// Takes one of the operations that are left to do.
    #[inline]
    pub(super) fn take(&mut self) -> bool {
        let more = self.left > 0;
        self.left -= u64::from(more);
        more
    }

    /// Operations that are left to do; unknown, and many, until the time is over.
    #[inline]
    pub(super) fn left(&self) -> u64 {
        self.left
    }

    /// Operations are over.
    #[inline]
    pub(super) fn done(&mut self, count: u64) {
        self.operations += count;
    }

    /// Looks at the clock: after something is over, but not each time.
    #[inline]
    pub(super) fn tick(&mut self) {
        self.now = Instant::now();
        if self.end.is_some_and(|end| self.now >= end) {
            self.left = 0;
        }
        self.spread(nanoseconds(self.now - self.started) / nanoseconds(WINDOW));
    }

    /// Counts what was over since the last look at the clock, evenly over that time, which ends so many windows after the
    /// start. One completion stands for many operations: all of them in the window in which it came would make the best
    /// window too good.
    #[inline]
    fn spread(&mut self, to: f64) {
        let from = std::mem::replace(&mut self.at, to);
        let count = (self.operations - self.counted) as f64;
        self.counted = self.operations;
        let (first, last) = (from as usize, to as usize);
        if last >= self.windows.len() {
            self.windows.resize(last + 1, 0.0);
        }
        if first == last {
            self.windows[last] += count;
            return;
        }
        let share = count / (to - from);
        for (window, there) in self.windows.iter_mut().enumerate().take(last + 1).skip(first) {
            let (start, end) = (from.max(window as f64), to.min((window + 1) as f64));
            *there += share * (end - start);
        }
    }

    /// What the clock said when it was last looked at.
    pub(super) fn now(&self) -> Instant {
        self.now
    }

    /// An operation is over, and took this long.
    #[inline]
    pub(super) fn sample(&mut self, time: Duration) {
        self.operations += 1;
        self.samples.add(nanoseconds(time));
    }

    /// A burst of operations was posted in this time.
    pub(super) fn burst(&mut self, time: Duration, count: u64) {
        self.posting += time;
        self.operations += count;
        self.samples.add(nanoseconds(time) / count.max(1) as f64);
    }

    /// What was counted.
    pub(super) fn finish(self) -> Tally {
        Tally {
            started: self.started,
            ended: Instant::now(),
            operations: self.operations,
            windows: self.windows,
            samples: self.samples,
            posting: self.posting,
        }
    }
}

/// What a thread has counted in a phase.
#[derive(Debug)]
pub(super) struct Tally {
    pub(super) started: Instant,
    pub(super) ended: Instant,
    pub(super) operations: u64,
    windows: Vec<f64>,
    pub(super) samples: Samples,
    pub(super) posting: Duration,
}

/// Operations for each second in the best window of all threads together. The first window and the last are not whole;
/// `None` if there is no other.
pub(super) fn peak(tallies: &[Tally]) -> Option<f64> {
    let whole = tallies.iter().map(|tally| tally.windows.len()).min()?.checked_sub(1)?;
    let in_window = |window: usize| tallies.iter().map(|tally| tally.windows[window]).sum::<f64>();
    (1..whole).map(in_window).reduce(f64::max).map(|most| most / WINDOW.as_secs_f64())
}

#[inline]
fn nanoseconds(time: Duration) -> f64 {
    time.as_nanos() as u64 as f64
}

/// Times of operations in ns.
#[derive(Clone, Debug)]
pub(super) struct Samples {
    histogram: Histogram<u64>,
    sum: f64,
    squares: f64,
    min: f64,
    max: f64,
}

impl Samples {
    /// None yet. Percentiles are exact to 0.1 %.
    pub(super) fn new() -> Self {
        #[expect(clippy::unwrap_used, reason = "the arguments are constants that hdrhistogram takes")]
        let histogram = Histogram::new_with_bounds(1, 60_000_000_000, 3).unwrap();
        Self { histogram, sum: 0.0, squares: 0.0, min: f64::INFINITY, max: 0.0 }
    }

    #[inline]
    pub(super) fn add(&mut self, time: f64) {
        // To the nearest one, which `round` of an f64 takes a call for.
        self.histogram.saturating_record((time + 0.5) as u64);
        self.sum += time;
        self.squares += time * time;
        self.min = self.min.min(time);
        self.max = self.max.max(time);
    }

    /// Takes those of another thread in.
    pub(super) fn merge(&mut self, other: &Self) {
        // The bounds are the same, so it cannot fail.
        let _ = self.histogram.add(&other.histogram);
        self.sum += other.sum;
        self.squares += other.squares;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
    }

    /// The summary, each time divided by `share`; `None` if there are no times.
    pub(super) fn summary(&self, share: f64) -> Option<Latency> {
        let count = self.histogram.len();
        if count == 0 {
            return None;
        }
        let in_us = |time: f64| time / 1e3 / share;
        let mean = self.sum / count as f64;
        let variance = (self.squares / count as f64 - mean * mean).max(0.0);
        let at = |quantile| in_us(self.histogram.value_at_quantile(quantile) as f64).min(in_us(self.max));
        Some(Latency {
            count,
            min: in_us(self.min),
            max: in_us(self.max),
            typical: at(0.5),
            average: in_us(mean),
            deviation: in_us(variance.sqrt()),
            p99: at(0.99),
            p999: at(0.999),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_agrees_with_what_was_computed_by_hand() {
        let mut samples = Samples::new();
        for time in [2000.0, 4000.0, 4000.0, 4000.0, 5000.0, 5000.0, 7000.0, 9000.0] {
            samples.add(time);
        }
        let summary = samples.summary(1.0).unwrap();
        assert_eq!((summary.count, summary.min, summary.max), (8, 2.0, 9.0));
        assert_eq!((summary.average, summary.deviation), (5.0, 2.0));
        assert!((summary.typical - 4.0).abs() < 0.01, "{summary:?}");
        assert_eq!(samples.summary(2.0).unwrap().average, 2.5);
        assert_eq!(Samples::new().summary(1.0), None);
    }

    #[test]
    fn bursts_of_less_than_a_nanosecond_each_are_not_nothing() {
        let mut meter = Meter::new(Amount::Operations(8), 8);
        meter.burst(Duration::from_nanos(3), 4);
        meter.burst(Duration::from_nanos(7), 4);
        let summary = meter.finish().samples.summary(1.0).unwrap();
        assert_eq!((summary.min, summary.average, summary.max), (0.000_75, 0.001_25, 0.001_75));
    }

    #[test]
    fn merged_samples_are_as_if_one_thread_had_taken_them() {
        let (mut all, mut one, mut other) = (Samples::new(), Samples::new(), Samples::new());
        for time in 1..1000 {
            let part = if time % 3 == 0 { &mut one } else { &mut other };
            part.add(f64::from(time * 17));
            all.add(f64::from(time * 17));
        }
        one.merge(&other);
        assert_eq!(one.summary(1.0), all.summary(1.0));
    }

    #[test]
    fn the_peak_is_that_of_the_sum_of_whole_windows() {
        let now = Instant::now();
        let tally = |windows: &[f64]| Tally {
            started: now,
            ended: now,
            operations: 0,
            windows: windows.to_vec(),
            samples: Samples::new(),
            posting: Duration::ZERO,
        };
        let tallies = [tally(&[90.0, 10.0, 20.0, 5.0, 1.0]), tally(&[0.0, 10.0, 5.0, 30.0])];
        assert_eq!(peak(&tallies), Some(2500.0));
        assert_eq!(peak(&[tally(&[90.0, 10.0])]), None);
    }

    #[test]
    fn what_one_completion_stands_for_is_spread_over_the_windows_since_the_one_before() {
        let mut meter = Meter::new(Amount::Milliseconds(1), u64::MAX);
        for (at, count) in [(0.5, 10), (1.5, 20), (3.5, 40), (3.75, 6)] {
            meter.done(count);
            meter.spread(at);
        }
        assert_eq!(meter.windows, [20.0, 20.0, 20.0, 16.0]);
    }

    #[test]
    fn a_number_of_operations_is_taken_exactly() {
        let mut meter = Meter::new(Amount::Operations(2), 10);
        assert_eq!([meter.take(), meter.take(), meter.take()], [true, true, false]);
    }
}
