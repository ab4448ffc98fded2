//! Two values of a parameter beside each other, for what pages say.

use crate::output::number::binary;
use crate::record::{Cell, Metric, Record};
use crate::reference::Series;
use crate::stats::{CONFIDENCE, Change, Verdict};

/// A metric with one value of a parameter and with another one, at some place along a second parameter.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Beside {
    /// The place.
    pub(super) at: u64,
    /// The median with the first value.
    pub(super) first: f64,
    /// The median with the second one.
    pub(super) second: f64,
    /// What is shown of the second.
    pub(super) verdict: Verdict,
}

impl Beside {
    /// The second median as a multiple of the first.
    pub(super) fn ratio(&self) -> f64 {
        self.second / self.first
    }
}

/// Which cells are put beside each other, and what of them is compared.
#[derive(Clone, Copy, Debug)]
pub(super) struct Question<'a> {
    /// The parameter and its two values.
    pub(super) of: (&'a str, &'a str, &'a str),
    /// Only cells with this value of another parameter.
    pub(super) only: Option<(&'a str, &'a str)>,
    /// The parameter along which places are, a number.
    pub(super) along: &'a str,
    /// The metric.
    pub(super) metric: &'a str,
}

impl Question<'_> {
    /// The answer at each place that has both, in ascending order. A difference is shown if noise makes it with 5 % or less
    /// at any of the places (Bonferroni).
    pub(super) fn ask(&self, record: &Record) -> Vec<Beside> {
        let (parameter, first, second) = self.of;
        let both: Vec<_> = self
            .cells(record, parameter, first)
            .filter_map(|(at, a)| {
                let (_, b) = self.cells(record, parameter, second).find(|(other, _)| *other == at)?;
                Some((at, a, b))
            })
            .collect();
        let level = (1.0 - CONFIDENCE) / both.len().max(1) as f64;
        let mut all: Vec<_> = both.into_iter().filter_map(|(at, a, b)| beside(at, a, b, level)).collect();
        all.sort_by_key(|beside| beside.at);
        all
    }

    fn cells<'r>(
        &self,
        record: &'r Record,
        parameter: &str,
        value: &str,
    ) -> impl Iterator<Item = (u64, &'r Metric)> {
        let is = |cell: &Cell, name: &str, value: &str| cell.value(name) == Some(value);
        let wanted = move |cell: &&Cell| {
            is(cell, parameter, value) && self.only.is_none_or(|(name, value)| is(cell, name, value))
        };
        let metric =
            |cell: &'r Cell| Some((cell.value(self.along)?.parse().ok()?, cell.metric(self.metric)?));
        record.cells.iter().filter(wanted).filter_map(metric)
    }
}

fn beside(at: u64, first: &Metric, second: &Metric, level: f64) -> Option<Beside> {
    let verdict = Change::between(&first.samples, &second.samples)?.verdict(first.better, level);
    Some(Beside { at, first: first.median()?, second: second.median()?, verdict })
}

/// Two published curves beside each other, at the places that both have.
pub(super) fn published(first: &Series, second: &Series) -> Vec<(u64, f64, f64)> {
    let both = first.points.iter().filter_map(|(place, a)| {
        let (_, b) = second.points.iter().find(|(other, _)| other == place)?;
        Some((place.parse().ok()?, *a, *b))
    });
    both.collect()
}

/// Where the second of two curves is above the first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Crossover {
    /// Everywhere.
    Everywhere,
    /// From this place to the end, and not just before it.
    From(u64),
    /// Not at the end.
    NotAtTheEnd,
}

/// Finds it on points in ascending order: place, first, second. `None` if there are none.
pub(super) fn crossover(points: &[(u64, f64, f64)]) -> Option<Crossover> {
    let (first, ..) = points.first()?;
    let above = points.iter().rev().take_while(|(_, first, second)| second > first);
    Some(match above.last() {
        None => Crossover::NotAtTheEnd,
        Some((place, ..)) if place == first => Crossover::Everywhere,
        Some((place, ..)) => Crossover::From(*place),
    })
}

/// The places where a verdict holds, runs of neighbours as ranges: `1 B to 64 B, 256 B`; `None` if there are none.
pub(super) fn places(all: &[Beside], verdict: Verdict, name: fn(u64) -> String) -> Option<String> {
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for (index, _) in all.iter().enumerate().filter(|(_, beside)| beside.verdict == verdict) {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == index => *last = index,
            _ => ranges.push((index, index)),
        }
    }
    let range = |&(first, last): &(usize, usize)| match first == last {
        true => name(all[first].at),
        false => format!("{} to {}", name(all[first].at), name(all[last].at)),
    };
    (!ranges.is_empty()).then(|| ranges.iter().map(range).collect::<Vec<_>>().join(", "))
}

/// What is shown of the second, and where: `better at 1 B to 8 B; not shown to differ at 16 B`.
pub(super) fn verdicts(all: &[Beside], name: fn(u64) -> String) -> String {
    let words = [
        (Verdict::Better, "better"),
        (Verdict::Worse, "worse"),
        (Verdict::NoDifferenceShown, "not shown to differ"),
        (Verdict::TooFewSamples, "not yet to be judged"),
    ];
    let part = |(verdict, words)| Some(format!("{words} at {}", places(all, verdict, name)?));
    words.into_iter().filter_map(part).collect::<Vec<_>>().join("; ")
}

/// A size for people: `512 B`, `64 KiB`.
pub(super) fn size(bytes: u64) -> String {
    let text = binary(bytes as f64);
    if text.contains(' ') { format!("{text}B") } else { format!("{text} B") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crossover_is_where_the_second_stays_above() {
        assert_eq!(crossover(&[]), None);
        assert_eq!(crossover(&[(1, 2.0, 1.0), (2, 1.0, 2.0), (4, 1.0, 3.0)]), Some(Crossover::From(2)));
        assert_eq!(crossover(&[(1, 1.0, 2.0), (2, 2.0, 1.0), (4, 1.0, 3.0)]), Some(Crossover::From(4)));
        assert_eq!(crossover(&[(1, 1.0, 2.0), (2, 1.0, 2.0)]), Some(Crossover::Everywhere));
        assert_eq!(crossover(&[(1, 1.0, 2.0), (2, 1.0, 1.0)]), Some(Crossover::NotAtTheEnd));
    }

    #[test]
    fn neighbours_with_the_same_verdict_are_a_range() {
        let at = |at, verdict| Beside { at, first: 1.0, second: 2.0, verdict };
        use Verdict::{Better, NoDifferenceShown};
        let all = [at(1, Better), at(2, Better), at(4, NoDifferenceShown), at(2048, Better)];
        assert_eq!(places(&all, Better, size).as_deref(), Some("1 B to 2 B, 2 KiB"));
        assert_eq!(places(&all, Verdict::Worse, size), None);
        assert_eq!(verdicts(&all, size), "better at 1 B to 2 B, 2 KiB; not shown to differ at 4 B");
    }
}
