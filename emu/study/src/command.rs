//! `urxe study NAME`, but for the flags of the device, which are the `urxe` command's.

use std::io::Write;
use std::path::{Path, PathBuf};

use crate::driver::{self, Interrupt, Options, Pair, Setting};
use crate::output::{Progress, report, save_csv, terminal};
use crate::record::{Ended, Record};
use crate::studies::{self, Bench, Plan, Scope, Study};
use crate::work::{Job, Outcome};

/// What to study, and what to do with the results.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    scope: Scope,
    /// Write the results to a file that `compare` and `report` read
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write every single sample to a file
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Write a page with plots, and the results, to a folder
    #[arg(long, value_name = "DIR")]
    report: Option<PathBuf>,
}

/// A line for each study.
pub fn list() -> String {
    let width = studies::ALL.iter().map(|study| study.name.len()).max().unwrap_or(0);
    studies::ALL.iter().map(|study| format!("{:width$}  {}\n", study.name, study.question)).collect()
}

/// Runs a study; `command` is what repeats it. Returns the exit code: 0, 1 if it could not go on, 128 and the number of the
/// signal if it was interrupted. Whatever was measured is shown and written. An error, in one line, is one that was found
/// before anything was measured.
pub fn run(
    study: &Study,
    args: &Args,
    command: Vec<String>,
    options: &Options,
    interrupt: &Interrupt,
) -> Result<u8, String> {
    args.check()?;
    let first = match Pair::start(&Setting::default(), options, interrupt) {
        Ok(first) => first,
        Err(error) => return not_started(&error, interrupt),
    };
    let facts = first.device().clone();
    let plan = (study.plan)(&args.scope, &facts)?;
    let device =
        if facts.is_urxe() { facts.driver.clone() } else { format!("{} ({})", facts.name, facts.driver) };
    let mut record = Record::begin(study.name, command, device, settings(&plan, &facts, options));
    let mut pairs = match Pairs::start(&plan, first, options, interrupt) {
        Ok(pairs) => pairs,
        Err(error) => return not_started(&error, interrupt),
    };
    let progress = Progress::new(plan.steps.len() as u64 * u64::from(plan.repetitions));
    studies::run(&plan, &mut pairs, &mut record, &progress);
    drop((progress, pairs));
    let told = args.tell(&record);
    let kept = match (&told, record.cells.is_empty()) {
        (_, true) => "nothing was measured yet",
        (Ok(()), false) => "what was measured is kept",
        (Err(_), false) => "not all of what was measured is kept",
    };
    let code = match &record.ended {
        Ended::Complete if record.cells.is_empty() => {
            return Err("nothing was measured: the device can do none of it".to_owned());
        }
        Ended::Complete => 0,
        Ended::Interrupted => {
            eprintln!("urxe: interrupted; {kept}");
            signalled(interrupt)
        }
        Ended::Failed(reason) => {
            eprintln!("urxe: the study could not go on: {reason}; {kept}");
            1
        }
    };
    told.map(|()| code)
}

/// What ends a study before anything is measured.
fn not_started(error: &driver::Error, interrupt: &Interrupt) -> Result<u8, String> {
    match error {
        driver::Error::Interrupted => {
            eprintln!("urxe: interrupted; nothing was measured yet");
            Ok(signalled(interrupt))
        }
        error => Err(error.to_string()),
    }
}

/// The exit code after a signal.
fn signalled(interrupt: &Interrupt) -> u8 {
    interrupt.signal().map_or(1, |number| 128 + number as u8)
}

/// What was the same for all that was measured.
fn settings(plan: &Plan, facts: &driver::DeviceFacts, options: &Options) -> Vec<(String, String)> {
    let mut all = vec![
        ("link layer".to_owned(), facts.link_layer.clone()),
        ("path MTU".to_owned(), facts.mtu.to_string()),
        ("repetitions".to_owned(), plan.repetitions.to_string()),
    ];
    if let driver::Peer::Agent(host) = &options.peer {
        all.push(("peer".to_owned(), host.clone()));
    }
    all.extend(options.flags.iter().map(|(flag, value)| (format!("--{flag}"), value.clone())));
    all.extend(plan.said.iter().cloned());
    all
}

impl Args {
    /// Finds out before hours of measuring whether results can be written.
    fn check(&self) -> Result<(), String> {
        if let Some(folder) = &self.report {
            report::check_writable(folder).map_err(|error| error.to_string())?;
        }
        for file in self.json.iter().chain(&self.csv) {
            let folder = file.parent().filter(|f| !f.as_os_str().is_empty()).unwrap_or(Path::new("."));
            if file.is_dir() || !folder.is_dir() {
                return Err(format!(
                    "cannot write results to {}: it has to be a file in a folder that exists",
                    file.display()
                ));
            }
            // Others, such as /dev/stdout, are written as they are.
            if file.is_file() || !file.exists() {
                report::probe(folder)
                    .map_err(|error| format!("cannot write results to {}: {error}", file.display()))?;
            }
        }
        Ok(())
    }

    /// Shows results, and writes them where they are wanted.
    fn tell(&self, record: &Record) -> Result<(), String> {
        let page = studies::page(record);
        if record.cells.is_empty() {
            return Ok(());
        }
        terminal::print(&page.tables(record));
        page.findings.iter().for_each(|finding| say(finding));
        let json = self.json.iter().map(|file| record.save(file).map_err(|error| error.to_string()));
        let csv = self.csv.iter().map(|file| {
            save_csv(record, file).map_err(|error| format!("cannot write {}: {error}", file.display()))
        });
        let report = self.report.iter().map(|folder| {
            let index = report::report(folder, record, &page).map_err(|error| error.to_string())?;
            say(&format!("report: {}", index.display()));
            Ok(())
        });
        // If one cannot be written, the others still are.
        let failed: Vec<String> = json.chain(csv).chain(report).filter_map(Result::err).collect();
        if failed.is_empty() { Ok(()) } else { Err(failed.join("; ")) }
    }
}

/// A line on standard output. A closed pipe is no error: the files are still to be written.
fn say(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// A pair of workers for each setting of a plan.
struct Pairs(Vec<Pair>);

impl Pairs {
    /// `first` serves the setting that has nothing special, if there is one.
    fn start(
        plan: &Plan,
        first: Pair,
        options: &Options,
        interrupt: &Interrupt,
    ) -> Result<Self, driver::Error> {
        let mut first = Some(first);
        let pairs =
            plan.settings.iter().map(|setting| match first.take_if(|_| *setting == Setting::default()) {
                Some(pair) => Ok(pair),
                None => Pair::start(setting, options, interrupt),
            });
        pairs.collect::<Result<_, _>>().map(Self)
    }
}

impl Bench for Pairs {
    fn run(&mut self, setting: usize, job: &Job) -> Result<Outcome, driver::Error> {
        self.0[setting].run(job)
    }
}
