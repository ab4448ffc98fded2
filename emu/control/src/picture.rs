//! What a daemon and the processes of its fabric say of themselves, and how a daemon is sent away.

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::Error;
use crate::connection::Connection;
use crate::launch::Launch;
use crate::protocol::{DaemonStatus, Notice, ProcessStatus, Reply, Request, ToClient};

/// How long processes may take to answer; the daemon gives up sooner.
const PATIENCE: Duration = Duration::from_secs(3);

/// All that there is to see of a fabric.
#[derive(Clone, Debug)]
pub struct Picture {
    /// The daemon.
    pub daemon: DaemonStatus,
    /// The processes that answered, by their numbers.
    pub processes: Vec<ProcessStatus>,
    /// Processes that did not answer.
    pub silent: u32,
}

impl Picture {
    /// Asks the daemon of a fabric and, through it, all processes; `None` if no daemon runs.
    pub fn of(fabric: &str) -> Result<Option<Self>, Error> {
        let Some(connection) = Launch::new(fabric)?.find()? else { return Ok(None) };
        let mut picture = Self { daemon: status(&connection)?, processes: Vec::new(), silent: 0 };
        let end = Instant::now() + PATIENCE;
        loop {
            match connection.next(end)? {
                (ToClient::Notice(Notice::Process(process)), _) => picture.processes.push(process),
                (ToClient::Notice(Notice::End { silent }), _) => {
                    picture.silent = silent;
                    break;
                }
                _ => {}
            }
        }
        picture.processes.sort_by_key(|p| p.pid);
        Ok(Some(picture))
    }
}

/// What a daemon says of itself. What its processes say comes after it.
pub fn status(connection: &Connection) -> Result<DaemonStatus, Error> {
    match connection.ask(&Request::Status, &[], |_| ())? {
        (Reply::Status(daemon), _) => Ok(daemon),
        _ => Err(Error::Protocol("another answer than its status")),
    }
}

/// Ends the daemon of a fabric that nobody needs any more, so that its addresses are free at once and not some seconds
/// later, when it would leave by itself.
pub fn dismiss(fabric: &str) {
    let daemon = || status(&Launch::new(fabric).ok()?.find().ok()??).ok();
    if let Some(pid) = daemon().and_then(|daemon| Pid::from_raw(daemon.pid.try_into().ok()?)) {
        // It may have left meanwhile.
        let _ = kill_process(pid, Signal::TERM);
    }
}
