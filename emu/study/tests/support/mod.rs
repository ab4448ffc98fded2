//! Made-up results.
#![allow(dead_code, reason = "no test uses all of them")]

use urxe_study::record::{Better, Cell, Ended, FORMAT, Metric, Record};

/// A complete record of these cells.
pub(crate) fn record(cells: Vec<Cell>) -> Record {
    Record {
        format: FORMAT,
        study: "made-up".into(),
        command: ["urxe", "study", "made-up"].map(Into::into).into(),
        started: 1_796_000_000,
        ended: Ended::Complete,
        device: "urxe 0.1.0".into(),
        settings: vec![("repetitions".into(), "3".into())],
        facts: vec![("CPUs".into(), "0-1".into())],
        cells,
    }
}

/// A cell of one metric where less is better.
pub(crate) fn latency(at: &[(&str, &str)], samples: &[f64]) -> Cell {
    cell(at, vec![metric("t_typical", "us", Better::Less, samples)])
}

pub(crate) fn cell(at: &[(&str, &str)], metrics: Vec<Metric>) -> Cell {
    Cell { at: at.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect(), metrics }
}

pub(crate) fn metric(name: &str, unit: &str, better: Better, samples: &[f64]) -> Metric {
    Metric { name: name.into(), unit: unit.into(), better, samples: samples.into() }
}
