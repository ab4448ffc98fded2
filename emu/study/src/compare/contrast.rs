//! Two values of a parameter within one record, in the form in which the work-request API was judged.

use super::show::tone;
use crate::output::number::{number, percent_of};
use crate::output::table::{Column, Row, Table};
use crate::record::{Cell, Metric, Record, place};
use crate::stats::{MeanDeviation, SigmaDifference, Verdict};

/// A metric with one value of a parameter and with another one, all else being equal.
#[derive(Clone, PartialEq, Debug)]
pub struct Contrast {
    /// The other parameters.
    pub at: Vec<(String, String)>,
    /// The metric with the first value.
    pub metric: Metric,
    /// Mean and standard deviation with the first value.
    pub first: MeanDeviation,
    /// With the second one.
    pub second: MeanDeviation,
    /// From the first to the second.
    pub difference: SigmaDifference,
    /// What that shows of the second, where a difference counts from the threshold on.
    pub verdict: Verdict,
}

/// Puts the cells with `parameter` = `first` beside those with `second`; a difference counts from `threshold` sigma on.
/// What has no counterpart, or fewer than two samples, is left out.
pub fn contrast(
    record: &Record,
    parameter: &str,
    first: &str,
    second: &str,
    threshold: f64,
) -> Vec<Contrast> {
    let others = |cell: &Cell| {
        cell.at.iter().filter(|(name, _)| name != parameter).cloned().collect::<Vec<(String, String)>>()
    };
    let with = |value| record.cells.iter().filter(move |cell| cell.value(parameter) == Some(value));
    let mut contrasts = Vec::new();
    for cell in with(first) {
        let Some(counterpart) = with(second).find(|other| others(other) == others(cell)) else { continue };
        for metric in &cell.metrics {
            let other = counterpart.metric(&metric.name);
            contrasts
                .extend(other.and_then(|other| Contrast::between(others(cell), metric, other, threshold)));
        }
    }
    contrasts
}

impl Contrast {
    fn between(at: Vec<(String, String)>, before: &Metric, after: &Metric, threshold: f64) -> Option<Self> {
        let (first, second) = (MeanDeviation::of(&before.samples)?, MeanDeviation::of(&after.samples)?);
        let difference = SigmaDifference::between(first, second);
        let verdict = difference.verdict(before.better, threshold);
        Some(Self { at, metric: before.clone(), first, second, difference, verdict })
    }
}

/// Contrasts as a table, whose columns of means have the names of the two values.
pub fn contrast_table(contrasts: &[Contrast], first: &str, second: &str) -> Table {
    let columns = vec![
        Column::left("metric"),
        Column::right(first),
        Column::right(second),
        Column::right("difference"),
        Column::right("sigma"),
        Column::left(format!("verdict on {second}")),
    ];
    let row = |contrast: &Contrast| Row {
        cells: vec![
            format!("{} {} [{}]", place(&contrast.at), contrast.metric.name, contrast.metric.unit)
                .trim()
                .into(),
            mean_and_deviation(contrast.first),
            mean_and_deviation(contrast.second),
            number(contrast.difference.difference),
            format!("{:.4}", contrast.difference.sigma),
            contrast.verdict.text().into(),
        ],
        tone: tone(contrast.verdict),
    };
    let note = "Means ± standard deviation; sigma = |difference| / sqrt(s1² + s2²).";
    Table {
        caption: String::new(),
        columns,
        rows: contrasts.iter().map(row).collect(),
        notes: vec![note.into()],
    }
}

/// `10.0907 ± 0.1495 (1.5 %)`.
fn mean_and_deviation(value: MeanDeviation) -> String {
    let share = if value.mean == 0.0 {
        String::new()
    } else {
        format!(" ({})", percent_of(value.stddev, value.mean))
    };
    format!("{} ± {}{share}", number(value.mean), number(value.stddev))
}
