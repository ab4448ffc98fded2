//! The daemon of a fabric: owns the addresses of its devices for the processes that use them.
//!
//! It is started by the first process that needs it and leaves soon after the last one. It is not on the data path: each
//! process has a socket of its own, to which the kernel brings the packets for its queue pairs
//! ([`urxe::io::udp::group`]). The daemon keeps the tables that processes share: addresses, LIDs, slots, multicast groups,
//! and the connection manager, which speaks to other hosts' through QP1.
//!
//! | module | what it does |
//! |---|---|
//! | [`claim`](mod@claim) | at most one daemon for each user, network namespace and fabric |
//! | [`addresses`] | which address a device has |
//! | [`device`] | the sockets of an address, and who has which slot |
//! | [`client`] | a connection: messages in, a bounded queue out |
//! | [`server`] | what requests do |
//! | [`qp1`] | management datagrams to and from the wire |
//!
//! One thread does everything, so that no table needs a lock.

mod addresses;
mod claim;
mod client;
mod device;
mod log;
mod qp1;
mod server;
mod status;
mod sys;

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use urxe::config::Config;
use urxe_control::place::Place;

/// How the daemon runs.
#[derive(Clone, Debug)]
pub struct Options {
    /// How long it stays after the last client; `None`: until a signal ends it.
    pub linger: Option<Duration>,
    /// It was started by a client, which waits for [`urxe_control::launch::READY`] on its standard output.
    pub detached: bool,
}

/// How long a daemon stays after its last client, unless it is told otherwise.
pub const LINGER: Duration = Duration::from_secs(3);

/// Why the daemon cannot run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no safe folder for its files.
    #[error(transparent)]
    Place(#[from] urxe_control::Error),
    /// Another daemon has the fabric.
    #[error("a daemon of fabric {fabric} runs already{}", .pid.map_or(String::new(), |p| format!(" (process {p})")))]
    Running {
        /// The fabric.
        fabric: String,
        /// Its process, if it says so.
        pid: Option<u32>,
    },
    /// The system said no.
    #[error("cannot {what} {path:?}: {source}")]
    File {
        /// What was tried.
        what: &'static str,
        /// With what.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// The system said no.
    #[error("cannot {what}: {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// Why not.
        source: std::io::Error,
    },
}

/// Runs the daemon of the configured fabric until it has nothing left to do.
pub fn run(config: &Config, options: &Options) -> Result<(), Error> {
    // The current folder changes.
    let log_file = config.log_file.as_ref().map(|path| std::path::absolute(path).unwrap_or(path.clone()));
    if options.detached {
        detach();
    }
    log::install(config, log_file.as_deref(), options.detached);
    let place = Place::of(config.fabric.as_str())?;
    let claim = match options.detached {
        // Several clients may have started one each; all but one leave the fabric to that one.
        true => claim::Claim::take_or_wait(&place)?,
        false => Some(claim::Claim::take(&place)?),
    };
    let Some(mut claim) = claim else {
        ready();
        return Ok(());
    };
    let listener = claim.listen()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|source| Error::Io { what: "start the runtime", source })?;
    runtime.block_on(server::serve(config.clone(), claim, listener, options.clone()))
}

/// A daemon that a program has started must not keep anything of it.
fn detach() {
    // The client that starts it has done this too, where its kernel can.
    let _ = rustix::process::setsid();
    let _ = std::env::set_current_dir("/");
    sys::close_inherited();
}

/// Tells the client that has started this daemon to go on, and lets go of its pipe.
fn ready() {
    let mut out = std::io::stdout();
    // The client may be gone; others come.
    let _ = out.write_all(urxe_control::launch::READY.as_bytes()).and_then(|()| out.flush());
    if let Ok(null) = std::fs::File::options().read(true).write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdout(&null);
        let _ = rustix::stdio::dup2_stderr(&null);
    }
}
