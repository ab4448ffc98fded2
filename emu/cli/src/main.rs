//! The `urxe` command: `run`, `pair`, `devices`, `stat`, `daemon`, `study`.

mod args;
mod devices;
mod dropin;
mod fabric;
mod pair;
mod run;
mod sockets;
mod stat;
mod study;

use std::process::ExitCode;

/// Exit code of the command's own errors, as env(1) has it.
const OWN_ERROR: u8 = 125;

/// What ends the command: the code, and the one line to say unless something else has said it.
struct Failure {
    code: u8,
    message: String,
}

impl From<String> for Failure {
    fn from(message: String) -> Self {
        Self { code: OWN_ERROR, message }
    }
}

impl From<urxe::config::Error> for Failure {
    fn from(error: urxe::config::Error) -> Self {
        error.to_string().into()
    }
}

fn main() -> ExitCode {
    let result = args::parse(std::env::args_os()).and_then(|command| match command {
        args::Command::Run(options) => Err(run::run(&options)),
        args::Command::Pair(options) => pair::pair(&options),
        args::Command::Devices { flags, json } => devices::devices(&flags, json),
        args::Command::Stat(options) => stat::stat(&options),
        args::Command::Daemon { flags, options } => daemon(&flags, &options),
        args::Command::Study(options) => study::study(options),
        args::Command::StudyWorker => study::worker(),
        args::Command::Print(text) => {
            print(&text);
            Ok(0)
        }
    });
    match result {
        Ok(code) => code.into(),
        Err(failure) => {
            complain(&failure.message);
            failure.code.into()
        }
    }
}

fn daemon(flags: &args::Flags, options: &urxe_daemon::Options) -> Result<u8, Failure> {
    let config = urxe::config::Config::resolve(std::env::vars_os(), flags)?;
    urxe_daemon::run(&config, options).map(|()| 0).map_err(|e| e.to_string().into())
}

/// Writes to standard output; a closed pipe is no error.
fn print(text: &str) {
    use std::io::Write;
    let _ = std::io::stdout().write_all(text.as_bytes());
}

/// One line on standard error.
fn complain(message: &str) {
    use std::io::Write;
    let _ = std::io::stderr().write_all(format!("urxe: {message}\n").as_bytes());
}
