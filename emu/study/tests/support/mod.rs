//! Made-up results.
#![allow(dead_code, reason = "no test uses all of them")]

pub(crate) mod samples;

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

/// Numbers that are the same in every run: splitmix64.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Above 0, at most 1.
    pub(crate) fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (((bits ^ (bits >> 31)) >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    /// Mean 0, standard deviation 1: Box and Muller.
    pub(crate) fn normal(&mut self) -> f64 {
        (-2.0 * self.uniform().ln()).sqrt() * (std::f64::consts::TAU * self.uniform()).cos()
    }
}
