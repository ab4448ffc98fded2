//! The command line. The configuration's flags come from its table of keys.

use std::ffi::OsString;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{Arg, ArgAction, ArgMatches, value_parser};
use urxe::config::{KEYS, doc_text};

use crate::{Failure, study};

/// Flags of the configuration, as given: name without dashes, value.
pub(crate) type Flags = Vec<(String, String)>;

pub(crate) enum Command {
    Run(Run),
    Pair(Pair),
    Devices { flags: Flags, json: bool },
    Daemon { flags: Flags, options: urxe_daemon::Options },
    Stat(Stat),
    Study(study::Command),
    StudyWorker,
    Print(String),
}

pub(crate) struct Run {
    pub(crate) flags: Flags,
    /// End when the parent does.
    pub(crate) with_parent: bool,
    pub(crate) command: Vec<OsString>,
}

pub(crate) struct Stat {
    pub(crate) flags: Flags,
    /// Show it again and again.
    pub(crate) watch: Option<Duration>,
    pub(crate) json: bool,
}

pub(crate) struct Pair {
    pub(crate) flags: Flags,
    pub(crate) client_addr: Option<String>,
    pub(crate) server_args: Vec<OsString>,
    pub(crate) client_args: Vec<OsString>,
    /// How long to wait for the server to listen.
    pub(crate) wait: Duration,
    /// How long one side may outlive the other.
    pub(crate) grace: Duration,
    pub(crate) timeout: Option<Duration>,
    pub(crate) command: Vec<OsString>,
}

const PAIR_HELP: &str = "\
Starts COMMAND as the server, waits until it listens (by TCP or rdma_cm), then starts COMMAND with the server's address as
its last argument, or wherever its arguments say {server}. Each is a device of its own. Their lines are labelled; the exit code is the worse of the two.

The arguments stay as they are, so pairs that run at the same time need ports of their own (perftest: -p PORT).
Programs whose sides differ: urxe pair --server-arg=-s --client-arg=-c --client-arg=-a -- rping -C 3";

pub(crate) fn config_flags() -> impl Iterator<Item = Arg> {
    KEYS.iter().map(|k| {
        Arg::new(k.name)
            .long(k.flag())
            .value_name("VALUE")
            .help(format!("{} [{}; default: {}]", doc_text(k), (k.accepted)(), k.default()))
            .help_heading("Configuration (also in the environment and the file, see docs/configuration.md)")
    })
}

fn command_arg() -> Arg {
    Arg::new("command")
        .value_name("COMMAND")
        .help("The program and its arguments")
        .required(true)
        .num_args(1..)
        .trailing_var_arg(true)
        .value_parser(value_parser!(OsString))
}

fn cli() -> clap::Command {
    let seconds = |name: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name("SECONDS").value_parser(value_parser!(u32)).help(help)
    };
    let side_arg = |name: &'static str, help: &'static str| {
        Arg::new(name)
            .long(name)
            .value_name("ARGUMENT")
            .value_parser(value_parser!(OsString))
            .action(ArgAction::Append)
            .allow_hyphen_values(true)
            .help(help)
    };
    clap::Command::new("urxe")
        .about("Runs InfiniBand verbs programs, unmodified, on a software RDMA device")
        .version(env!("CARGO_PKG_VERSION"))
        .override_usage("urxe run|pair|devices|stat|study|daemon [FLAG...]; urxe help COMMAND explains")
        .subcommand_required(true)
        .subcommand(
            clap::Command::new("run")
                .about("Runs a program on a device")
                .override_usage("urxe run [FLAG...] -- COMMAND [ARGUMENT...]")
                .args(config_flags())
                .arg(Arg::new("with-parent").long("with-parent").action(ArgAction::SetTrue).hide(true))
                .arg(command_arg()),
        )
        .subcommand(
            clap::Command::new("pair")
                .about("Runs a program as server and as client, each on a device of its own")
                .long_about(PAIR_HELP)
                .override_usage("urxe pair [FLAG...] -- COMMAND [ARGUMENT...]")
                .args(config_flags())
                .arg(
                    Arg::new("client-addr")
                        .long("client-addr")
                        .value_name("ADDRESS")
                        .help("Address of the client's device; --addr is then the server's"),
                )
                .arg(side_arg("server-arg", "One more argument for the server"))
                .arg(side_arg("client-arg", "One more argument for the client, before the server's address"))
                .arg(seconds("wait", "How long the server may take to listen before the client is started").default_value("10"))
                .arg(seconds("grace", "How long one side may outlive the other").default_value("10"))
                .arg(seconds("timeout", "Stop both after this time; exit code 124"))
                .arg(command_arg()),
        )
        .subcommand(
            clap::Command::new("devices")
                .about("Shows the device that programs would get, and where each value of its configuration came from")
                .override_usage("urxe devices [FLAG...]")
                .args(config_flags())
                .arg(Arg::new("json").long("json").action(ArgAction::SetTrue).help("As JSON")),
        )
        .subcommand(
            clap::Command::new("stat")
                .about("Shows the devices of a fabric, the processes on them, their queue pairs and counters")
                .override_usage("urxe stat [FLAG...]")
                .args(config_flags())
                .arg(
                    Arg::new("watch")
                        .long("watch")
                        .value_name("SECONDS")
                        .num_args(0..=1)
                        .default_missing_value("2")
                        .value_parser(value_parser!(u32).range(1..))
                        .help("Show it again and again, with this pause"),
                )
                .arg(Arg::new("json").long("json").action(ArgAction::SetTrue).help("As JSON, a line each time")),
        )
        .subcommand(
            clap::Command::new("daemon")
                .about("Runs the daemon of a fabric, which programs otherwise start when they need it")
                .override_usage("urxe daemon [FLAG...]")
                .args(config_flags())
                .arg(seconds("linger", "How long it stays after its last client").default_value("3"))
                .arg(
                    Arg::new("stay")
                        .long("stay")
                        .action(ArgAction::SetTrue)
                        .help("Stay until a signal comes: for a service unit"),
                )
                .arg(Arg::new("detached").long("detached").action(ArgAction::SetTrue).hide(true)),
        )
        .subcommand(study::command())
        .subcommand(
            clap::Command::new("study-worker")
                .about("One end of a pair of `study`")
                .hide(true)
                // For who looks at processes; what it is to do stands on its standard input.
                .arg(Arg::new("end").value_parser(["initiator", "target"])),
        )
}

/// Reads the command line. `--help` and `--version` become [`Command::Print`].
pub(crate) fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Command, Failure> {
    let matches = match cli().try_get_matches_from(args) {
        Ok(matches) => matches,
        Err(e) if matches!(e.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            return Ok(Command::Print(e.render().to_string()));
        }
        Err(e) => return Err(one_line(&e.render().to_string()).into()),
    };
    Ok(match matches.subcommand() {
        Some(("run", m)) => Command::Run(Run {
            flags: flags(m),
            with_parent: m.get_flag("with-parent"),
            command: texts(m, "command"),
        }),
        Some(("pair", m)) => {
            let seconds = |name| m.get_one::<u32>(name).map(|s| Duration::from_secs((*s).into()));
            Command::Pair(Pair {
                flags: flags(m),
                client_addr: m.get_one::<String>("client-addr").cloned(),
                server_args: texts(m, "server-arg"),
                client_args: texts(m, "client-arg"),
                wait: seconds("wait").unwrap_or_default(),
                grace: seconds("grace").unwrap_or_default(),
                timeout: seconds("timeout"),
                command: texts(m, "command"),
            })
        }
        Some(("devices", m)) => Command::Devices { flags: flags(m), json: m.get_flag("json") },
        Some(("stat", m)) => Command::Stat(Stat {
            flags: flags(m),
            watch: m.get_one::<u32>("watch").map(|s| Duration::from_secs((*s).into())),
            json: m.get_flag("json"),
        }),
        Some(("study", m)) => Command::Study(study::Command::from_matches(m)?),
        Some(("study-worker", _)) => Command::StudyWorker,
        Some(("daemon", m)) => {
            let linger = m.get_one::<u32>("linger").map(|s| Duration::from_secs((*s).into()));
            let options = urxe_daemon::Options {
                linger: linger.filter(|_| !m.get_flag("stay")),
                detached: m.get_flag("detached"),
            };
            Command::Daemon { flags: flags(m), options }
        }
        _ => return Err("which command? run, pair, devices, stat, study or daemon".to_owned().into()),
    })
}

pub(crate) fn flags(matches: &ArgMatches) -> Flags {
    KEYS.iter().filter_map(|k| Some((k.flag(), matches.get_one::<String>(k.name)?.clone()))).collect()
}

fn texts(matches: &ArgMatches, name: &str) -> Vec<OsString> {
    matches.get_many::<OsString>(name).into_iter().flatten().cloned().collect()
}

/// clap's message without its paragraphs: what is wrong; tip; usage.
fn one_line(message: &str) -> String {
    let parts = message
        .trim_start_matches("error: ")
        .split("\n\n")
        .map(|paragraph| paragraph.split_whitespace().collect::<Vec<_>>().join(" "));
    parts.filter(|p| !p.is_empty() && !p.starts_with("For more information")).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Command, Failure> {
        parse(line.split(' ').map(OsString::from))
    }

    #[test]
    fn the_definition_is_consistent() {
        cli().debug_assert();
    }

    #[test]
    fn the_programs_own_flags_are_left_alone() {
        for line in ["urxe run --mtu 512 -- prog --addr 1 -- -h", "urxe run --mtu 512 prog --addr 1 -- -h"] {
            let Ok(Command::Run(run)) = parsed(line) else { panic!("{line}") };
            assert_eq!(run.flags, [("mtu".to_owned(), "512".to_owned())]);
            assert_eq!(run.command, ["prog", "--addr", "1", "--", "-h"]);
        }
    }

    #[test]
    fn a_wrong_command_line_is_one_line_and_says_what_is_right() {
        for (line, wanted) in [
            ("urxe", "run, pair, devices"),
            ("urxe rnu", "run"),
            ("urxe run", "COMMAND"),
            ("urxe run --adr 1 -- ls", "--addr"),
            ("urxe run --mtu", "--mtu"),
            ("urxe pair --grace x -- ls", "--grace"),
            ("urxe devices x", "urxe devices [FLAG...]"),
        ] {
            let Err(failure) = parsed(line) else { panic!("{line} must be refused") };
            let message = failure.message;
            assert!(message.contains(wanted) && message.lines().count() == 1, "{line}: {message}");
        }
    }
}
