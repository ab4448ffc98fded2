//! `urxe study`: the crate `urxe-study`, with this command as what starts its workers.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use clap::{Arg, ArgMatches, Args as _, FromArgMatches as _, value_parser};
use urxe::config::{Config, Source};
use urxe_study::command::Args;
use urxe_study::compare::{self, compare_files};
use urxe_study::driver::{self, Interrupt, Options, Peer};
use urxe_study::output::{ReportArgs, report_file};
use urxe_study::studies::{self, Study};
use urxe_study::work::worker;

use crate::args::{Flags, config_flags, flags};
use crate::{Failure, OWN_ERROR, complain, print};

/// Exit code of `compare` when what must not be is.
const FAILING: u8 = 1;

/// What `urxe study` is to do.
pub(crate) enum Command {
    /// Show which studies there are.
    List,
    /// Carry one out.
    Run { study: &'static Study, args: Box<Args>, on: On, peer: Peer },
    /// Put two results beside each other.
    Compare(compare::Args),
    /// Make a page of results.
    Report(ReportArgs),
    /// Start workers for studies of another machine.
    Serve { at: Option<SocketAddr>, on: On },
}

/// What workers run on.
pub(crate) struct On {
    /// Of urxe, for all workers on this machine.
    flags: Flags,
    /// Another verbs device than urxe.
    device: Option<String>,
    gid_index: Option<u32>,
}

/// Flags that say what workers run on.
fn device_args(command: clap::Command) -> clap::Command {
    let device = "Another verbs device than urxe, as `ibv_devices` lists it";
    command
        // `--device` is the verbs device here, as with perftest.
        .args(config_flags().filter(|flag| flag.get_id() != "device"))
        .arg(Arg::new("device").long("device").short('d').value_name("NAME").help(device))
        .arg(
            Arg::new("gid-index")
                .long("gid-index")
                .short('x')
                .value_name("NUMBER")
                .value_parser(value_parser!(u32))
                .help("GID of the device's port; the best one if not given"),
        )
}

pub(crate) fn command() -> clap::Command {
    let client = format!(
        "The peer's machine, where `urxe study --server` runs; TCP port {} if none is given",
        driver::PORT
    );
    let of_study = |study: &Study| {
        let command =
            clap::Command::new(study.name).override_usage(format!("urxe study {} [OPTION...]", study.name));
        Args::augment_args(device_args(command))
            .about(study.question)
            .arg(Arg::new("client").long("client").value_name("HOST[:PORT]").help(client.clone()))
    };
    let compare = clap::Command::new("compare").about("Compares two results, metric by metric");
    let report = clap::Command::new("report").about("Makes a page of results");
    let server = format!(
        "Start workers for `--client` on another machine, whoever asks; at the address of --addr, else only from this machine; TCP port {} if none is given",
        driver::PORT
    );
    let command = clap::Command::new("study")
        .about("Answers trade-off questions by measurements")
        .override_usage("urxe study [NAME [OPTION...] | compare | report | --server]; without a name it lists the studies")
        .args_conflicts_with_subcommands(true)
        // A study that does not exist is answered by those that do.
        .allow_external_subcommands(true)
        .subcommands(studies::ALL.iter().map(of_study))
        .subcommand(compare::Args::augment_args(compare))
        .subcommand(ReportArgs::augment_args(report));
    device_args(command).arg(
        Arg::new("server")
            .long("server")
            .value_name("ADDRESS[:PORT]")
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value("")
            .value_parser(parse_server)
            .help(server),
    )
}

/// Where a server listens; nothing means where the device is.
fn parse_server(text: &str) -> Result<Option<SocketAddr>, String> {
    let with_port = text.parse::<SocketAddr>().ok();
    let without = || text.parse::<IpAddr>().ok().map(|ip| SocketAddr::new(ip, driver::PORT));
    match with_port.or_else(without) {
        None if !text.is_empty() => {
            Err("expected an address of this machine, as 10.0.0.5 or [fd00::5]:18591".into())
        }
        at => Ok(at),
    }
}

impl Command {
    pub(crate) fn from_matches(matches: &ArgMatches) -> Result<Self, Failure> {
        let bad = |error: clap::Error| Failure::from(error.to_string());
        Ok(match matches.subcommand() {
            Some(("compare", m)) => Self::Compare(compare::Args::from_arg_matches(m).map_err(bad)?),
            Some(("report", m)) => Self::Report(ReportArgs::from_arg_matches(m).map_err(bad)?),
            Some((name, m)) => Self::Run {
                study: studies::find(name)?,
                args: Box::new(Args::from_arg_matches(m).map_err(bad)?),
                on: On::of(m),
                peer: m.get_one::<String>("client").map_or(Peer::Local, |host| Peer::Agent(host.clone())),
            },
            None => match matches.get_one::<Option<SocketAddr>>("server") {
                Some(at) => Self::Serve { at: *at, on: On::of(matches) },
                None => Self::List,
            },
        })
    }
}

impl On {
    fn of(matches: &ArgMatches) -> Self {
        Self {
            flags: flags(matches).into_iter().filter(|(flag, _)| flag != "device").collect(),
            device: matches.get_one::<String>("device").cloned(),
            gid_index: matches.get_one::<u32>("gid-index").copied(),
        }
    }

    /// What is wrong with the configuration shows here, before a worker starts.
    fn options(self, peer: Peer) -> Result<(Options, Config), Failure> {
        if let Some((device, (flag, _))) = self.device.as_ref().zip(self.flags.first()) {
            return Err(format!("--{flag} is a setting of urxe; device {device} does not take it").into());
        }
        let config = Config::resolve(std::env::vars_os(), &self.flags)?;
        let urxe = std::env::current_exe().map_err(|e| format!("cannot find myself: {e}"))?;
        let (device, gid_index) = (self.device, self.gid_index);
        // What the environment and files say decides as flags do, and is recorded with the results.
        let chosen =
            config.entries().filter(|(_, _, source)| device.is_none() && **source != Source::Default);
        let flags =
            chosen.map(|(key, value, _)| (key.flag(), value)).filter(|(flag, _)| flag != "device").collect();
        Ok((Options { device, gid_index, flags, peer, ..Options::local(urxe) }, config))
    }
}

pub(crate) fn study(command: Command) -> Result<u8, Failure> {
    match command {
        Command::List => {
            print(&studies_text());
            Ok(0)
        }
        Command::Run { study, args, on, peer } => {
            let (options, _) = on.options(peer)?;
            let interrupt = Interrupt::new().map_err(failure)?;
            let line = std::iter::once("urxe".to_owned()).chain(std::env::args().skip(1)).collect();
            urxe_study::command::run(study, &args, line, &options, &interrupt).map_err(Failure::from)
        }
        Command::Compare(args) => {
            let outcome = compare_files(&args)?;
            print(&outcome.text);
            outcome.failing.iter().for_each(|failing| complain(failing));
            Ok(if outcome.failing.is_empty() { 0 } else { FAILING })
        }
        Command::Report(args) => {
            let index = report_file(&args, studies::page)?;
            print(&format!("{}\n", index.display()));
            Ok(0)
        }
        Command::Serve { at, on } => serve(at, on),
    }
}

fn studies_text() -> String {
    format!(
        "{}\nurxe study NAME runs one; urxe study NAME --help has its options.\n",
        urxe_study::command::list()
    )
}

fn serve(at: Option<SocketAddr>, on: On) -> Result<u8, Failure> {
    let (options, config) = on.options(Peer::Local)?;
    let ip = config.addr.unwrap_or(Ipv4Addr::LOCALHOST.into());
    let at = at.unwrap_or(SocketAddr::new(ip, driver::PORT));
    let interrupt = Interrupt::new().map_err(failure)?;
    let listens = |address| complain(&format!("waits for studies at {address}"));
    match driver::serve(&[at], &options, &interrupt, listens) {
        Err(driver::Error::Interrupted) => Ok(interrupt.signal().map_or(0, |number| 128 + number as u8)),
        other => other.map(|()| 0).map_err(failure),
    }
}

/// Runs one end of a pair. What goes wrong is told to the driver by the worker itself, and here to whoever started it.
pub(crate) fn worker() -> Result<u8, Failure> {
    worker::run().map(|()| 0).map_err(|message| Failure { code: OWN_ERROR, message })
}

fn failure(error: driver::Error) -> Failure {
    error.to_string().into()
}
