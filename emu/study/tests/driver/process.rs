//! Processes of a test: finding those that a driver has started, and programs that run beside the test.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

/// For what takes milliseconds unless the machine is very busy.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A process on a fabric.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) pid: i32,
    pub(crate) command: String,
}

/// Processes whose environment or command line names a fabric that begins like this. Zombies have neither.
pub(crate) fn on_fabric(prefix: &str) -> Vec<Found> {
    let read = |pid: i32, what: &str| {
        let bytes = fs::read(format!("/proc/{pid}/{what}")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).replace('\0', " ")
    };
    let pids = fs::read_dir("/proc").expect("there is /proc").flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter_map(|pid| {
        let command = read(pid, "cmdline");
        let there =
            command.contains(prefix) || read(pid, "environ").contains(&format!("URXE_FABRIC={prefix}"));
        there.then_some(Found { pid, command })
    })
    .collect()
}

/// Waits until something is so.
pub(crate) fn eventually(what: &str, mut is: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is() {
        assert!(Instant::now() < end, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Waits until nothing of the fabrics is left.
pub(crate) fn gone(prefix: &str) {
    eventually(&format!("the end of {:?}", on_fabric(prefix)), || on_fabric(prefix).is_empty());
}

pub(crate) fn kill(pid: i32, signal: Signal) {
    rustix::process::kill_process(Pid::from_raw(pid).expect("a process"), signal).expect("it is there");
}

/// A program that runs beside the test, with the lines that it writes to both outputs.
pub(crate) struct Program {
    pub(crate) child: Child,
    lines: Receiver<String>,
}

impl Program {
    pub(crate) fn start(command: &mut Command) -> Self {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        let twin = writer.try_clone().expect("a pipe");
        let child =
            command.stdin(Stdio::null()).stdout(writer).stderr(twin).spawn().expect("it can be started");
        // Let go of the pipe, so that it ends with the program.
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            BufReader::new(reader).lines().map_while(Result::ok).for_each(|line| {
                // Reading goes on when nobody listens, so that a full pipe stops nobody.
                let _ = sender.send(line);
            });
        });
        Self { child, lines }
    }

    pub(crate) fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// Waits for a line with these words.
    pub(crate) fn wait_for(&self, words: &str) -> String {
        let end = Instant::now() + PATIENCE;
        let mut before = Vec::new();
        loop {
            match self.lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(line) if line.contains(words) => return line,
                Ok(line) => before.push(line),
                Err(_) => panic!("no {words:?} after {before:?}"),
            }
        }
    }

    pub(crate) fn wait(&mut self) -> Option<i32> {
        let end = Instant::now() + PATIENCE;
        loop {
            match self.child.try_wait().expect("it is our child") {
                Some(status) => return status.code(),
                None => assert!(Instant::now() < end, "it does not end"),
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
