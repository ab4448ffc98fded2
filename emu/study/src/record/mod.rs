//! What a study has measured, as it is kept in a file.
//!
//! The file is JSON: every field by its name, settings, facts and parameters as objects in the order in which they are
//! shown. Readers ignore fields that they do not know, so adding one needs no new version of the format.

mod facts;
mod file;
mod pairs;
mod shape;

pub use facts::{facts, facts_in};
pub(crate) use file::write_whole;
pub use file::{LoadError, SaveError};
pub(crate) use pairs::serialize as serialize_pairs;
pub use shape::Malformed;
pub(crate) use shape::{distinct, place};

use serde::{Deserialize, Serialize};

/// Version of the format. A reader takes this one only.
pub const FORMAT: u32 = 1;

/// The results of one run of a study.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Record {
    /// [`FORMAT`].
    pub format: u32,
    /// Name of the study.
    pub study: String,
    /// The command that repeats it.
    pub command: Vec<String>,
    /// When it began, in seconds since 1970 (UTC).
    pub started: u64,
    /// How it ended.
    pub ended: Ended,
    /// What the workloads ran on: `urxe 0.1.0`, or the name of another verbs device and its driver's.
    pub device: String,
    /// The settings of the whole run, in the order in which they are shown.
    #[serde(with = "pairs")]
    pub settings: Vec<(String, String)>,
    /// The machine.
    #[serde(with = "pairs")]
    pub facts: Vec<(String, String)>,
    /// What was measured, in the order in which it is shown.
    pub cells: Vec<Cell>,
}

/// How a run ended.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    /// It measured all it wanted.
    Complete,
    /// It was interrupted; there may be fewer cells or samples than it wanted.
    Interrupted,
    /// It could not go on, with the reason.
    Failed(String),
}

/// The place of a measurement among the others, and its metrics.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Cell {
    /// The parameters that tell it from the other cells: `tasks` = `inline`, `queue pairs` = `8`, `bytes` = `65536`.
    /// All cells of a study have the same names in the same order.
    #[serde(with = "pairs")]
    pub at: Vec<(String, String)>,
    /// What was measured there.
    pub metrics: Vec<Metric>,
}

/// One quantity, once for each repetition.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Metric {
    /// As tools of the field print it: `BW average`, `t_typical`.
    pub name: String,
    /// `MB/s`, `us`, `Mops/s`, ...
    pub unit: String,
    /// Which values are better.
    pub better: Better,
    /// One value for each repetition, in the order in which they were measured.
    pub samples: Vec<f64>,
}

/// Which values are better.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Better {
    /// Higher ones.
    More,
    /// Lower ones.
    Less,
}
