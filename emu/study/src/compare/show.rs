//! A comparison as a table.

use super::{Comparison, Row};
use crate::output::number::{number, percent, with_error};
use crate::output::table::{self, Column, Table, Tone};
use crate::stats::Verdict;

impl Comparison {
    /// A row for each metric of each cell.
    pub fn table(&self) -> Table {
        let names = self.rows.first().map(|row| &row.at[..]).unwrap_or_default();
        let mut columns: Vec<Column> = names.iter().map(|(name, _)| Column::left(name)).collect();
        columns.push(Column::left("metric"));
        columns.extend(["first", "second", "change", "95 % interval", "sigma", "delta"].map(Column::right));
        columns.push(Column::left("verdict"));
        let rows = self.rows.iter().map(Row::cells).collect();
        Table { caption: format!("study {}", self.study), columns, rows, notes: self.notes() }
    }

    fn notes(&self) -> Vec<String> {
        let count = |verdict| self.rows.iter().filter(|row| row.verdict == verdict).count();
        let counts = [Verdict::Better, Verdict::Worse, Verdict::NoDifferenceShown, Verdict::TooFewSamples]
            .map(|verdict| (count(verdict), verdict.text()))
            .into_iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, text)| format!("{count} {text}"))
            .collect::<Vec<_>>()
            .join(", ");
        let mut notes = vec![
            format!("Of {} metrics: {counts}.", self.rows.len()),
            "Means ± standard deviation; sigma = |change| / sqrt(s1² + s2²); delta = Cliff's, -1 to 1."
                .into(),
        ];
        notes.extend(self.differing.iter().map(|differing| {
            let or_none =
                |value: &str| if value.is_empty() { "nothing".into() } else { format!("'{value}'") };
            format!("{}: {} and {}", differing.name, or_none(&differing.before), or_none(&differing.after))
        }));
        notes.extend(self.missing.iter().map(|place| format!("in one of them only: {place}")));
        notes
    }
}

impl Row {
    fn cells(&self) -> table::Row {
        let change = &self.change;
        let relative = |value: f64| {
            let first = self.before.mean.abs();
            if first == 0.0 { number(value) } else { percent(100.0 * value / first) }
        };
        let mut cells: Vec<String> = self.at.iter().map(|(_, value)| value.clone()).collect();
        cells.push(format!("{} [{}]", self.metric, self.unit));
        cells.push(with_error(self.before.mean, self.before.stddev));
        cells.push(with_error(self.after.mean, self.after.stddev));
        cells.push(relative(change.absolute));
        let interval = |i: crate::stats::Interval| format!("{} to {}", relative(i.low), relative(i.high));
        cells.push(change.interval.map(interval).unwrap_or_default());
        cells.push(change.sigma.map(|sigma| format!("{sigma:.2}")).unwrap_or_default());
        cells.push(format!("{:+.2}", change.cliffs_delta));
        cells.push(self.verdict.text().into());
        table::Row { cells, tone: tone(self.verdict) }
    }

    /// The metric and its place as one line.
    pub(super) fn place(&self) -> String {
        format!("{} at {}", self.metric, crate::record::place(&self.at))
    }
}

pub(super) fn tone(verdict: Verdict) -> Tone {
    match verdict {
        Verdict::Better => Tone::Good,
        Verdict::Worse => Tone::Bad,
        Verdict::NoDifferenceShown | Verdict::TooFewSamples => Tone::Plain,
    }
}
