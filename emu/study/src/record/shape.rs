//! What a well-formed record looks like, how it grows, and how to find one's way in it.

use std::time::UNIX_EPOCH;

use thiserror::Error;

use super::{Better, Cell, Ended, FORMAT, Metric, Record, facts};
use crate::stats::{Latency, Summary};

/// Why a record cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum Malformed {
    /// Cells have different parameters.
    #[error("cell {at} has the parameters ({found}), the first cell has ({expected})")]
    Parameters {
        /// Which cell, from 1.
        at: usize,
        /// Its parameters.
        found: String,
        /// Those of the first cell.
        expected: String,
    },
    /// Two cells have the same parameters.
    #[error("there are two cells with {0}")]
    Twice(String),
    /// A sample is no finite number.
    #[error("{metric} at {at} has the sample {sample}, which is no number to compute with")]
    Sample {
        /// The metric.
        metric: String,
        /// The parameters of its cell.
        at: String,
        /// The sample.
        sample: String,
    },
}

impl Record {
    /// A record without cells that begins now on this machine. It counts as interrupted until its study says otherwise.
    pub fn begin(study: &str, command: Vec<String>, device: String, settings: Vec<(String, String)>) -> Self {
        let started = UNIX_EPOCH.elapsed().map_or(0, |time| time.as_secs());
        Self {
            format: FORMAT,
            study: study.into(),
            command,
            started,
            ended: Ended::Interrupted,
            device,
            settings,
            facts: facts(),
            cells: Vec::new(),
        }
    }

    /// The cell with these parameters, which is added if it is not there.
    pub fn cell(&mut self, at: &[(String, String)]) -> &mut Cell {
        let index = self.cells.iter().position(|cell| cell.at == at).unwrap_or_else(|| {
            self.cells.push(Cell { at: at.to_vec(), metrics: Vec::new() });
            self.cells.len() - 1
        });
        &mut self.cells[index]
    }

    /// Names of the parameters, in order; none if there are no cells.
    pub fn parameter_names(&self) -> Vec<&str> {
        self.cells.first().map(Cell::names).unwrap_or_default()
    }

    /// Names of the metrics of all cells, in the order in which they first appear.
    pub fn metric_names(&self) -> Vec<&str> {
        distinct(self.cells.iter().flat_map(|cell| &cell.metrics).map(|metric| metric.name.as_str()))
    }

    /// Values that a parameter has, in the order in which they first appear.
    pub fn values(&self, parameter: &str) -> Vec<&str> {
        distinct(self.cells.iter().filter_map(|cell| cell.value(parameter)))
    }

    /// Checks what the types do not say.
    pub fn check(&self) -> Result<(), Malformed> {
        let expected = self.parameter_names();
        for (index, cell) in self.cells.iter().enumerate() {
            if cell.names() != expected {
                let (found, expected) = (cell.names().join(", "), expected.join(", "));
                return Err(Malformed::Parameters { at: index + 1, found, expected });
            }
            if self.cells[..index].iter().any(|earlier| earlier.at == cell.at) {
                return Err(Malformed::Twice(cell.place()));
            }
            cell.metrics.iter().try_for_each(|metric| metric.check(cell))?;
        }
        Ok(())
    }
}

impl Metric {
    /// The median of its samples; `None` if there are none.
    pub fn median(&self) -> Option<f64> {
        Some(Summary::of(&self.samples)?.median)
    }
}

impl Cell {
    /// Adds a sample to a metric, which is added if it is not there.
    pub fn add(&mut self, name: &str, unit: &str, better: Better, sample: f64) {
        if let Some(metric) = self.metrics.iter_mut().find(|metric| metric.name == name) {
            metric.samples.push(sample);
            return;
        }
        let samples = vec![sample];
        self.metrics.push(Metric { name: name.into(), unit: unit.into(), better, samples });
    }

    /// Adds a sample to each of perftest's columns of latencies.
    pub fn add_latency(&mut self, latency: &Latency) {
        for (name, value) in Latency::NAMES.into_iter().zip(latency.values()) {
            self.add(name, "us", Better::Less, value);
        }
    }

    /// The value of a parameter.
    pub fn value(&self, parameter: &str) -> Option<&str> {
        self.at.iter().find(|(name, _)| name == parameter).map(|(_, value)| value.as_str())
    }

    /// The metric of a name.
    pub fn metric(&self, name: &str) -> Option<&Metric> {
        self.metrics.iter().find(|metric| metric.name == name)
    }

    /// The median of a metric's samples; `None` if there are none.
    pub fn median(&self, name: &str) -> Option<f64> {
        self.metric(name)?.median()
    }

    /// Its parameters as one line: `tasks=inline, bytes=8`.
    pub fn place(&self) -> String {
        place(&self.at)
    }

    fn names(&self) -> Vec<&str> {
        self.at.iter().map(|(name, _)| name.as_str()).collect()
    }
}

impl Metric {
    fn check(&self, cell: &Cell) -> Result<(), Malformed> {
        match self.samples.iter().find(|sample| !sample.is_finite()) {
            Some(sample) => Err(Malformed::Sample {
                metric: self.name.clone(),
                at: cell.place(),
                sample: sample.to_string(),
            }),
            None => Ok(()),
        }
    }
}

/// Parameters as one line: `tasks=inline, bytes=8`.
pub(crate) fn place(at: &[(String, String)]) -> String {
    at.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(", ")
}

/// Each once, in the order in which they first appear.
pub(crate) fn distinct<'a>(names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut seen = Vec::new();
    for name in names {
        if !seen.contains(&name) {
            seen.push(name);
        }
    }
    seen
}
