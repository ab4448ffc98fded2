//! How noisy a run was.

use serde::Serialize;

use super::Summary;
use crate::record::{Cell, Record};

/// How one metric varied between the repetitions of a cell.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Noise {
    /// The metric.
    pub metric: String,
    /// Number of cells with at least two samples.
    pub cells: usize,
    /// Standard deviation in percent of the mean: the median of the cells.
    pub median_percent: f64,
    /// The same of the noisiest cell.
    pub max_percent: f64,
    /// The noisiest cell's parameters.
    pub noisiest: Vec<(String, String)>,
}

/// The noise of each metric, in the order in which they first appear. Metrics without repetitions are left out.
pub fn noise(record: &Record) -> Vec<Noise> {
    record.metric_names().into_iter().filter_map(|name| noise_of(record, name)).collect()
}

fn noise_of(record: &Record, name: &str) -> Option<Noise> {
    let percents: Vec<(f64, &Cell)> = record
        .cells
        .iter()
        .filter_map(|cell| {
            let summary = Summary::of(&cell.metric(name)?.samples)?;
            Some((summary.percent_stddev()?, cell))
        })
        .collect();
    let values: Vec<f64> = percents.iter().map(|(percent, _)| *percent).collect();
    let (max_percent, noisiest) = percents.into_iter().max_by(|a, b| a.0.total_cmp(&b.0))?;
    Some(Noise {
        metric: name.into(),
        cells: values.len(),
        median_percent: Summary::of(&values)?.median,
        max_percent,
        noisiest: noisiest.at.clone(),
    })
}
