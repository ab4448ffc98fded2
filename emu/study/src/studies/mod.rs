//! The studies: what each measures, and what it says about it.
//!
//! A [`Study`] turns the options of a run ([`Scope`]) and the facts of the device into a [`Plan`]: settings of the device,
//! and steps, each a job under one of the settings. [`run()`] carries a plan out, repetition by repetition, so that what is
//! compared takes turns. The study's `page` then reads the record; it knows nothing else, so that a file of results can be
//! shown again later.

mod beside;
mod impaired;
mod inject;
mod link;
mod long_am;
mod loss;
mod metrics;
mod odp;
mod plan;
mod registration;
mod run;
mod scope;
mod tasks;
mod wr_api;

pub use metrics::Shows;
pub use plan::{Plan, Step};
pub use run::{Bench, Progressing, run};
pub use scope::{Choice, Pin, Scope};

use crate::driver::DeviceFacts;
use crate::output::report::Page;
use crate::record::Record;

/// A study.
#[derive(Clone, Copy, Debug)]
pub struct Study {
    /// Its name on the command line and in files.
    pub name: &'static str,
    /// What it answers, as a question.
    pub question: &'static str,
    /// What to measure. The error is one line, about an option.
    pub plan: fn(&Scope, &DeviceFacts) -> Result<Plan, String>,
    /// What to say about its records.
    pub page: fn(&Record) -> Page,
}

/// All of them, in the order in which they are listed.
pub const ALL: &[Study] = &[
    tasks::STUDY,
    wr_api::STUDY,
    registration::STUDY,
    long_am::STUDY,
    inject::STUDY,
    odp::STUDY,
    loss::STUDY,
    link::STUDY,
];

/// The study of a name; the error lists all.
pub fn find(name: &str) -> Result<&'static Study, String> {
    ALL.iter().find(|study| study.name == name).ok_or_else(|| {
        let names: Vec<_> = ALL.iter().map(|study| study.name).collect();
        format!("there is no study {name:?}; the studies are {}", names.join(", "))
    })
}

/// What can be said of a record, whichever study it is of.
pub fn page(record: &Record) -> Page {
    ALL.iter().find(|study| study.name == record.study).map_or_else(|| Page::of(record), |s| (s.page)(record))
}
