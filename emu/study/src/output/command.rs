//! `urxe study report`.

use std::path::PathBuf;

use super::report::{Page, report};
use crate::record::Record;

/// What to make a report of.
#[derive(Clone, Debug, clap::Args)]
pub struct ReportArgs {
    /// Results of a study (its --json)
    #[arg(value_name = "FILE")]
    pub results: PathBuf,
    /// The folder to write to
    #[arg(long, value_name = "DIR")]
    pub report: PathBuf,
}

/// Makes a report of a file of results; `page` says what its study has to say about it. Returns the path of the page.
/// Errors are one line.
pub fn report_file(args: &ReportArgs, page: impl FnOnce(&Record) -> Page) -> Result<PathBuf, String> {
    let record = Record::load(&args.results).map_err(|error| error.to_string())?;
    report(&args.report, &record, &page(&record)).map_err(|error| error.to_string())
}
