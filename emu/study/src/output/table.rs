//! Tables of a record, before they are drawn on a terminal or a page.

use super::chart::{Chart, Curve, Figure, Origin, Point};
use super::number::{number, with_error};
use crate::record::{Cell, Metric, Record};
use crate::stats::{Summary, noise};

/// A table of text.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Table {
    /// What all rows have in common; may be empty.
    pub caption: String,
    /// Titles of the columns.
    pub columns: Vec<Column>,
    /// As many cells each as there are columns.
    pub rows: Vec<Row>,
    /// Lines to be read below it.
    pub notes: Vec<String>,
}

/// A column.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Column {
    /// Its title, with the unit.
    pub title: String,
    /// The side to which its cells keep.
    pub side: Side,
}

/// Where text of a column begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// Names.
    Left,
    /// Numbers.
    Right,
}

/// A row.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Row {
    /// Its text.
    pub cells: Vec<String>,
    /// Whether it is good news.
    pub tone: Tone,
}

/// Whether something is good news; shown as a colour where there are colours.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tone {
    /// It is no news.
    Plain,
    /// It is.
    Good,
    /// It is bad news.
    Bad,
}

/// How a record's cells are laid out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Layout {
    /// A column for each parameter and each metric; medians with their errors.
    Uncertain,
    /// Columns named and rounded as perftest does; medians.
    Perftest,
    /// A table for each figure: a row for each x, a column for each curve, as OSU's benchmarks have it.
    Figures,
}

/// What is said below tables with the sign ±.
const ERROR_NOTE: &str = "± covers the median with 95 %; of fewer than 6 repetitions it is their range.";

impl Column {
    /// A column of names.
    pub fn left(title: impl Into<String>) -> Self {
        Self { title: title.into(), side: Side::Left }
    }

    /// A column of numbers.
    pub fn right(title: impl Into<String>) -> Self {
        Self { title: title.into(), side: Side::Right }
    }
}

impl Row {
    /// A row that is no news.
    pub fn plain(cells: Vec<String>) -> Self {
        Self { cells, tone: Tone::Plain }
    }
}

/// The results of a record. [`Layout::Uncertain`] and [`Layout::Perftest`] have a table for all cells with the same metrics;
/// parameters that do not differ within it are in its caption. `figures` are for [`Layout::Figures`].
pub fn tables(record: &Record, layout: Layout, figures: &[Figure]) -> Vec<Table> {
    let cells = |heading| groups(record).iter().map(|cells| table(cells, heading)).collect();
    let (mut tables, notes): (Vec<Table>, _) = match layout {
        Layout::Uncertain => (cells(Heading::Plain), vec![ERROR_NOTE.into()]),
        Layout::Perftest => (cells(Heading::Perftest), noise_notes(record)),
        Layout::Figures => {
            let charts = figures.iter().filter_map(|figure| figure.chart(record).ok());
            (charts.map(|chart| of_chart(&chart)).collect(), vec![ERROR_NOTE.into()])
        }
    };
    if let Some(last) = tables.last_mut() {
        last.notes = notes;
    }
    tables
}

/// A figure as a table: a row for each x, a column for each curve.
pub fn of_chart(chart: &Chart) -> Table {
    let mut columns = vec![Column::right(chart.x.label.clone())];
    columns.extend(chart.curves.iter().map(|curve| Column::right(curve.title())));
    let value = |curve: &Curve, place: &str| {
        let point = curve.points.iter().find(|point| point.place == place);
        let text = |point: &Point| match curve.origin {
            Origin::Measured => with_error(point.value, point.error()),
            // As it was published.
            Origin::Published(_) => point.value.to_string(),
        };
        point.map(text).unwrap_or_default()
    };
    let row = |place: &String| {
        let values = chart.curves.iter().map(|curve| value(curve, place));
        Row::plain(std::iter::once(place.clone()).chain(values).collect())
    };
    let caption = format!("{}, {}", chart.title, chart.y.label);
    Table { caption, columns, rows: chart.places.iter().map(row).collect(), notes: Vec::new() }
}

/// Cells with the same metrics, in the order in which the first of each appears.
pub(super) fn groups(record: &Record) -> Vec<Vec<&Cell>> {
    let metrics =
        |cell: &Cell| cell.metrics.iter().map(|m| (m.name.clone(), m.unit.clone())).collect::<Vec<_>>();
    let mut groups: Vec<(_, Vec<&Cell>)> = Vec::new();
    for cell in &record.cells {
        let key = metrics(cell);
        match groups.iter_mut().find(|(known, _)| *known == key) {
            Some((_, cells)) => cells.push(cell),
            None => groups.push((key, vec![cell])),
        }
    }
    groups.into_iter().map(|(_, cells)| cells).collect()
}

/// Of cells with the same metrics, at least one.
fn table(cells: &[&Cell], heading: Heading) -> Table {
    let first = cells[0];
    let varies = |name: &str| cells.iter().any(|cell| cell.value(name) != first.value(name));
    let (varying, constant): (Vec<_>, Vec<_>) = first.at.iter().cloned().partition(|(name, _)| varies(name));
    let parameter = |name: &String| match numeric(cells, name) {
        true => Column::right(heading.parameter_title(name)),
        false => Column::left(heading.parameter_title(name)),
    };
    let mut columns: Vec<Column> = varying.iter().map(|(name, _)| parameter(name)).collect();
    columns.extend(first.metrics.iter().map(|metric| Column::right(heading.metric_title(metric))));
    let row = |cell: &&Cell| {
        let parameters = varying.iter().map(|(name, _)| cell.value(name).unwrap_or_default().to_string());
        Row::plain(parameters.chain(cell.metrics.iter().map(|metric| heading.value(metric))).collect())
    };
    let caption = crate::record::place(&constant);
    Table { caption, columns, rows: cells.iter().map(row).collect(), notes: Vec::new() }
}

fn numeric(cells: &[&Cell], parameter: &str) -> bool {
    cells.iter().all(|cell| cell.value(parameter).is_some_and(|value| value.parse::<f64>().is_ok()))
}

/// How sure medians without an error are.
fn noise_notes(record: &Record) -> Vec<String> {
    let all = noise(record);
    let share = |n: &crate::stats::Noise| format!("{} {:.1} %", n.metric, n.median_percent);
    if all.is_empty() {
        return vec!["Of one repetition, so nothing is known of the noise.".into()];
    }
    let shares = all.iter().map(share).collect::<Vec<_>>().join(", ");
    vec![format!("Medians of the repetitions. Standard deviation between them: {shares}.")]
}

/// How columns are named and values rounded.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Heading {
    Plain,
    Perftest,
}

impl Heading {
    fn parameter_title(self, name: &str) -> String {
        match (self, name) {
            (Self::Perftest, "bytes" | "iterations") => format!("#{name}"),
            _ => name.into(),
        }
    }

    fn metric_title(self, metric: &Metric) -> String {
        if self == Self::Plain {
            return format!("{} [{}]", metric.name, metric.unit);
        }
        let unit = match metric.unit.as_str() {
            "MB/s" => "MB/sec",
            "us" => "usec",
            "Mops/s" => "Mpps",
            other => other,
        };
        let name = metric.name.replace(" %", "% percentile");
        format!("{name}[{unit}]")
    }

    /// Empty for a metric without samples.
    fn value(self, metric: &Metric) -> String {
        let Some(summary) = Summary::of(&metric.samples) else { return String::new() };
        match (self, metric.unit.as_str()) {
            (Self::Plain, _) => with_error(summary.median, summary.median_error()),
            (Self::Perftest, "MB/s" | "us") => format!("{:.2}", summary.median),
            (Self::Perftest, "Mpps" | "Mops/s") => format!("{:.6}", summary.median),
            (Self::Perftest, _) => number(summary.median),
        }
    }
}
