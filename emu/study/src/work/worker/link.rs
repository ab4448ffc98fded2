//! What the two workers of a pair tell each other: JSON values, a line each, over TCP.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::{Mutex, PoisonError};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::driver::DeviceFacts;
use crate::work::job::Job;
use crate::work::station::LaneEnd;

/// Both workers are of this version.
pub(super) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Longest message in bytes: there is room for more queue pairs than a job has.
const LONGEST: u64 = 64 << 20;

/// What an initiator tells its target. Each has one answer.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ToTarget {
    /// The first word.
    Hello { version: String, token: String },
    /// Make your end of a job. `Prepared`.
    Prepare(Job),
    /// Connect with this end, and serve. `Done`.
    Connect(Vec<LaneEnd>),
    /// The warm-up is over: make the pages what they have to be. `Done`.
    PreparePages,
    /// The measured part begins. `Done`.
    Measure,
    /// The measured part is over. `Cpu`.
    Measured,
    /// Fill your memory for a check. `Done`.
    Fill,
    /// There were so many more operations of each thread, and the job is over. `Done` if the data is right.
    Finish(Vec<u64>),
    /// The job has failed. `Abandoned`.
    Abandon,
}

/// What a target tells its initiator.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ToInitiator {
    Hello(DeviceFacts),
    Prepared(Vec<LaneEnd>),
    Done,
    /// CPU time of the measured part in ns.
    Cpu(u64),
    /// The job is not possible.
    Refused(String),
    /// The job has failed here; this may come at any time.
    Failed(String),
    /// The job is dropped.
    Abandoned,
}

/// The sending half.
#[derive(Debug)]
pub(super) struct Sender(Mutex<TcpStream>);

/// The receiving half.
#[derive(Debug)]
pub(super) struct Receiver(BufReader<TcpStream>);

/// Both halves of a connection.
pub(super) fn halves(stream: TcpStream) -> io::Result<(Sender, Receiver)> {
    stream.set_nodelay(true)?;
    Ok((Sender(Mutex::new(stream.try_clone()?)), Receiver(BufReader::new(stream))))
}

impl Sender {
    pub(super) fn send<T: Serialize>(&self, message: &T) -> io::Result<()> {
        let mut line = serde_json::to_vec(message)?;
        line.push(b'\n');
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write_all(&line)
    }
}

impl Receiver {
    /// The next message; `None` when the other end is gone.
    pub(super) fn receive<T: DeserializeOwned>(&mut self) -> io::Result<Option<T>> {
        let mut line = String::new();
        match self.0.by_ref().take(LONGEST).read_line(&mut line)? {
            0 => Ok(None),
            _ => Ok(Some(serde_json::from_str(&line)?)),
        }
    }
}
