//! A worker process, as the driver sees it.

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use serde::Serialize;

use super::{Error, Options, Setting};
use crate::work::worker::{self, Report};

/// How long a worker may take to end when it is asked to.
const PATIENCE: Duration = Duration::from_secs(2);
/// Lines of its standard error that are kept.
const LINES: usize = 20;

/// What a driver waits for.
#[derive(Debug)]
pub(super) enum Event {
    /// A worker says something.
    Report(Side, Report),
    /// A worker's standard output is closed: it ends.
    Ended(Side),
    /// The agent says why the target is gone.
    Lost(String),
    /// A signal has come.
    Interrupted,
}

/// Which worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Side {
    Initiator,
    Target,
}

impl Side {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Initiator => "initiator",
            Self::Target => "target",
        }
    }
}

/// A worker. It ends with this value.
#[derive(Debug)]
pub(super) struct Process {
    side: Side,
    child: Child,
    input: Option<ChildStdin>,
    output: Option<JoinHandle<()>>,
    complaints: Arc<Mutex<VecDeque<String>>>,
    errors: Option<JoinHandle<()>>,
}

impl Process {
    /// Starts a worker, in a process group of its own, so that signals of the terminal reach only the driver. What it
    /// says goes to `events`.
    pub(super) fn start(
        side: Side,
        flags: &[(String, String)],
        options: &Options,
        worker: &worker::Options,
        events: Sender<Event>,
    ) -> Result<Self, Error> {
        let cannot = |e: io::Error| Error::Failed(format!("cannot start the {}: {e}", side.name()));
        let mut command = Command::new(&options.urxe);
        if options.device.is_none() {
            command.args(["run", "--with-parent"]);
            command.args(flags.iter().map(|(flag, value)| format!("--{flag}={value}")));
            command.arg("--").arg(&options.urxe);
        }
        command.args(["study-worker", side.name()]).process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(cannot)?;
        let complaints = Arc::new(Mutex::new(VecDeque::new()));
        let output =
            child.stdout.take().map(|output| std::thread::spawn(move || forward(side, output, &events)));
        let kept = complaints.clone();
        let errors = child.stderr.take().map(|errors| std::thread::spawn(move || keep(errors, &kept)));
        let mut process = Self { side, input: child.stdin.take(), child, output, complaints, errors };
        // If it has ended already, its end says why.
        let _ = process.tell(worker);
        Ok(process)
    }

    /// The process's number.
    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Tells it something.
    pub(super) fn tell<T: Serialize>(&mut self, message: &T) -> io::Result<()> {
        let mut line = serde_json::to_vec(message)?;
        line.push(b'\n');
        self.input.as_mut().ok_or(io::ErrorKind::BrokenPipe)?.write_all(&line)
    }

    /// Why it has ended, after it has: its last words, or how.
    pub(super) fn last_words(&mut self) -> String {
        let status = self.stop();
        let complaints = self.complaints.lock().unwrap_or_else(PoisonError::into_inner);
        match complaints.iter().rev().find(|line| !line.trim().is_empty()) {
            Some(line) => line.trim().trim_start_matches("urxe: ").to_owned(),
            None => status.map_or("it ended".to_owned(), |status| format!("it ended ({status})")),
        }
    }

    /// Ends it, gently first: a worker ends when its standard input does.
    pub(super) fn stop(&mut self) -> Option<std::process::ExitStatus> {
        self.input = None;
        if let Ok(Some(status)) = self.child.try_wait() {
            self.join();
            return Some(status);
        }
        let end = Instant::now() + PATIENCE;
        if !ends_until(&self.child, end)
            && let Some(group) = Pid::from_raw(self.child.id() as i32)
        {
            // It may just have ended.
            let _ = kill_process_group(group, Signal::KILL);
        }
        let status = self.child.wait().ok();
        self.join();
        status
    }

    fn join(&mut self) {
        for reader in [self.output.take(), self.errors.take()].into_iter().flatten() {
            // Readers do not panic; if one did there would be nothing to say.
            let _ = reader.join();
        }
    }

    /// The side.
    pub(super) fn side(&self) -> Side {
        self.side
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Waits for the end of a child; it is still to be waited for afterwards.
fn ends_until(child: &Child, end: Instant) -> bool {
    use rustix::process::{PidfdFlags, pidfd_open};
    let Some(pid) = Pid::from_raw(child.id() as i32) else { return false };
    let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { return false };
    let left = end.saturating_duration_since(Instant::now());
    let timeout =
        rustix::time::Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
    let mut wanted = [rustix::event::PollFd::new(&process, rustix::event::PollFlags::IN)];
    rustix::event::poll(&mut wanted, Some(&timeout)).is_ok_and(|count| count > 0)
}

/// Forwards what a worker reports.
fn forward(side: Side, output: impl Read, events: &Sender<Event>) {
    for line in BufReader::new(output).lines().map_while(Result::ok) {
        // What a library has printed is not for us.
        if let Ok(report) = serde_json::from_str(&line)
            && events.send(Event::Report(side, report)).is_err()
        {
            break;
        }
    }
    // Nobody may wait any more.
    let _ = events.send(Event::Ended(side));
}

/// Keeps the last lines of a worker's standard error.
fn keep(errors: impl Read, lines: &Mutex<VecDeque<String>>) {
    for line in BufReader::new(errors).lines().map_while(Result::ok) {
        let mut lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() == LINES {
            lines.pop_front();
        }
        lines.push_back(line);
    }
}

/// The next event before `end`.
pub(super) fn next(events: &Receiver<Event>, end: Instant) -> Option<Event> {
    events.recv_timeout(end.saturating_duration_since(Instant::now())).ok()
}

/// Flags of `urxe run` of one side: later ones override earlier ones.
pub(super) fn flags(
    options: &Options,
    setting: &Setting,
    more: &[(String, String)],
) -> Vec<(String, String)> {
    let mut all: Vec<(String, String)> = Vec::new();
    for (flag, value) in options.flags.iter().chain(more).chain(&setting.flags) {
        all.retain(|(earlier, _)| earlier != flag);
        all.push((flag.clone(), value.clone()));
    }
    all
}
