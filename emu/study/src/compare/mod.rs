//! The comparison of two results of a study.

mod command;
mod contrast;
mod fail_if;
mod show;

pub use command::{Args, Outcome, compare_files};
pub use contrast::{Contrast, contrast, contrast_table};
pub use fail_if::FailIf;

use serde::Serialize;
use thiserror::Error;

use crate::record::{self, Better, Cell, Ended, Metric, Record};
use crate::stats::{CONFIDENCE, Change, Summary, Verdict};

/// Two results of a study, metric by metric.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Comparison {
    /// Name of the study.
    pub study: String,
    /// Every metric of every cell that both have, in the first one's order.
    pub rows: Vec<Row>,
    /// Cells that only one has, because the other's run did not end well.
    pub missing: Vec<String>,
    /// Settings and facts that differ: name, first, second. What explains a change may be among them.
    pub differing: Vec<Differing>,
}

/// One metric of one cell.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Row {
    /// The cell's parameters.
    #[serde(serialize_with = "record::serialize_pairs")]
    pub at: Vec<(String, String)>,
    /// The metric.
    pub metric: String,
    /// Its unit.
    pub unit: String,
    /// Which values are better.
    pub better: Better,
    /// The first one's samples.
    pub before: Summary,
    /// The second one's samples.
    pub after: Summary,
    /// How they differ.
    pub change: Change,
    /// What that shows of the second.
    pub verdict: Verdict,
}

/// A setting or fact that differs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Differing {
    /// Its name.
    pub name: String,
    /// In the first; empty if it is not there.
    pub before: String,
    /// In the second; empty if it is not there.
    pub after: String,
}

/// Why two results cannot be compared.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum NotComparable {
    /// They answer different questions.
    #[error("the first is of study '{0}', the second of '{1}': only results of one study can be compared")]
    Study(String, String),
    /// Their cells have different parameters.
    #[error("the first has the parameters ({0}), the second ({1})")]
    Parameters(String, String),
    /// A cell is in one of them only, and that one's run was complete.
    #[error("only the {which} has measured {place}; run both with the same options")]
    Cell {
        /// `first` or `second`.
        which: &'static str,
        /// The cell's parameters.
        place: String,
    },
    /// The metrics of a cell differ.
    #[error("at {place} the first has {before}, the second {after}")]
    Metrics {
        /// The cell's parameters.
        place: String,
        /// The first one's metrics with their units.
        before: String,
        /// The second one's.
        after: String,
    },
    /// They have no cell in common.
    #[error("they have no measurement in common")]
    Nothing,
}

/// Compares `after` with `before`.
///
/// With many metrics some differ by chance. Verdicts are therefore those of the procedure of Benjamini and Hochberg: of the
/// metrics that are called better or worse 5 % are expected to be so by chance, and if nothing has changed, the probability
/// that any is called so is 5 %.
pub fn compare(before: &Record, after: &Record) -> Result<Comparison, NotComparable> {
    check_same_question(before, after)?;
    let mut missing = cells_of_one(after, before, "second")?;
    missing.extend(cells_of_one(before, after, "first")?);
    let mut rows = Vec::new();
    for cell in &before.cells {
        if let Some(other) = find(after, cell) {
            rows.extend(compare_cells(cell, other)?);
        }
    }
    if rows.is_empty() {
        return Err(NotComparable::Nothing);
    }
    judge(&mut rows);
    let differing = differing(before, after);
    Ok(Comparison { study: before.study.clone(), rows, missing, differing })
}

fn check_same_question(before: &Record, after: &Record) -> Result<(), NotComparable> {
    if before.study != after.study {
        return Err(NotComparable::Study(before.study.clone(), after.study.clone()));
    }
    let (first, second) = (before.parameter_names(), after.parameter_names());
    if first != second {
        return Err(NotComparable::Parameters(first.join(", "), second.join(", ")));
    }
    Ok(())
}

fn find<'a>(record: &'a Record, cell: &Cell) -> Option<&'a Cell> {
    record.cells.iter().find(|other| other.at == cell.at)
}

/// The cells that only `owner` has, which is an error unless the other one's run did not end well.
fn cells_of_one(owner: &Record, other: &Record, which: &'static str) -> Result<Vec<String>, NotComparable> {
    let alone = owner.cells.iter().filter(|cell| find(other, cell).is_none()).map(Cell::place);
    if other.ended == Ended::Complete {
        let mut alone = alone;
        return alone.next().map_or(Ok(Vec::new()), |place| Err(NotComparable::Cell { which, place }));
    }
    Ok(alone.collect())
}

/// Metrics without samples, of a run that did not end well, are left out.
fn compare_cells(before: &Cell, after: &Cell) -> Result<Vec<Row>, NotComparable> {
    let names = |cell: &Cell| {
        let name = |m: &Metric| format!("{} in {}", m.name, m.unit);
        cell.metrics.iter().map(name).collect::<Vec<_>>().join(", ")
    };
    if names(before) != names(after) {
        return Err(NotComparable::Metrics {
            place: before.place(),
            before: names(before),
            after: names(after),
        });
    }
    let pairs = before.metrics.iter().zip(&after.metrics);
    Ok(pairs.filter_map(|(first, second)| row(before, first, second)).collect())
}

fn row(cell: &Cell, before: &Metric, after: &Metric) -> Option<Row> {
    Some(Row {
        at: cell.at.clone(),
        metric: before.name.clone(),
        unit: before.unit.clone(),
        better: before.better,
        before: Summary::of(&before.samples)?,
        after: Summary::of(&after.samples)?,
        change: Change::between(&before.samples, &after.samples)?,
        verdict: Verdict::NoDifferenceShown,
    })
}

/// What makes a difference count: the k-th smallest of n probabilities is at most k / n of the level, for the largest such k.
fn judge(rows: &mut [Row]) {
    let mut p_values: Vec<f64> = rows.iter().filter_map(|row| row.change.p_value).collect();
    p_values.sort_by(f64::total_cmp);
    let step = (1.0 - CONFIDENCE) / p_values.len() as f64;
    let shown = p_values.iter().enumerate().rev().find(|(rank, p)| **p <= (rank + 1) as f64 * step);
    let limit = shown.map_or(-1.0, |(_, p)| *p);
    for row in rows {
        row.verdict = row.change.verdict(row.better, limit);
    }
}

fn differing(before: &Record, after: &Record) -> Vec<Differing> {
    let device = |record: &Record| ("device".to_string(), record.device.clone());
    let all = |record: &Record| {
        let pairs = std::iter::once(device(record));
        pairs.chain(record.settings.clone()).chain(record.facts.clone()).collect::<Vec<_>>()
    };
    let (first, second) = (all(before), all(after));
    let value = |pairs: &[(String, String)], name: &str| {
        pairs.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone()).unwrap_or_default()
    };
    let mut names: Vec<&String> = first.iter().map(|(name, _)| name).collect();
    names.extend(second.iter().map(|(name, _)| name).filter(|name| value(&first, name).is_empty()));
    names
        .into_iter()
        .map(|name| Differing {
            name: name.clone(),
            before: value(&first, name),
            after: value(&second, name),
        })
        .filter(|differing| differing.before != differing.after)
        .collect()
}
