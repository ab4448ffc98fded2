//! What a well-formed record looks like, and how to find one's way in it.

use thiserror::Error;

use super::{Cell, Metric, Record};

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

impl Cell {
    /// The value of a parameter.
    pub fn value(&self, parameter: &str) -> Option<&str> {
        self.at.iter().find(|(name, _)| name == parameter).map(|(_, value)| value.as_str())
    }

    /// The metric of a name.
    pub fn metric(&self, name: &str) -> Option<&Metric> {
        self.metrics.iter().find(|metric| metric.name == name)
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
