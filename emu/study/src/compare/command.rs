//! `urxe study compare`.

use std::path::PathBuf;

use super::{FailIf, compare};
use crate::output::terminal;
use crate::record::Record;

/// What to compare.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Results to compare with (--json of a study)
    #[arg(value_name = "FIRST")]
    pub before: PathBuf,
    /// Results to judge
    #[arg(value_name = "SECOND")]
    pub after: PathBuf,
    /// Exit with 1 if a metric is shown to be worse by more than a share, such as worse:5%
    #[arg(long, value_name = "worse:P%")]
    pub fail_if: Option<FailIf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// What is printed, and what the exit code says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// For standard output.
    pub text: String,
    /// For standard error: which metrics fail. If there are any, the exit code is 1.
    pub failing: Vec<String>,
}

/// Compares two files. Errors are one line.
pub fn compare_files(args: &Args) -> Result<Outcome, String> {
    let load = |path| Record::load(path).map_err(|error| error.to_string());
    let (before, after) = (load(&args.before)?, load(&args.after)?);
    let comparison = compare(&before, &after).map_err(|error| {
        format!("{} and {} cannot be compared: {error}", args.before.display(), args.after.display())
    })?;
    let text = if args.json {
        serde_json::to_string_pretty(&comparison).map_err(|error| error.to_string())? + "\n"
    } else {
        terminal::render(&comparison.table(), terminal::Colour::of_stdout())
    };
    let failing = args.fail_if.map(|condition| condition.failing(&comparison)).unwrap_or_default();
    let line = |row: &&super::Row| match row.change.percent {
        Some(percent) => format!("{} is worse by {:.1} %", row.place(), percent.abs()),
        None => format!("{} is worse", row.place()),
    };
    Ok(Outcome { text, failing: failing.iter().map(line).collect() })
}
