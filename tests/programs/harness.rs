//! Runs `urxe`, with an end to everything it starts.

use std::fs;
use std::io::{BufRead, BufReader, Read, Seek, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

/// For one program or pair.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// What a command did.
pub(crate) struct Output {
    /// `None`: it was killed, by us or by a signal.
    pub(crate) code: Option<i32>,
    /// Standard output and error as they came.
    pub(crate) text: String,
}

/// target/<profile>.
pub(crate) fn profile_folder() -> PathBuf {
    let exe = std::env::current_exe().expect("a test has an executable");
    exe.ancestors().nth(2).expect("it is in target/<profile>/deps").into()
}

/// Where `cargo xtask test` installs the crate sideway.
pub(crate) fn sideway() -> PathBuf {
    profile_folder().with_file_name("sideway")
}

pub(crate) fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Builds `urxe` and the drop-in library: no test of the root package depends on them. Once for each run of nextest,
/// which starts a process for each test.
pub(crate) fn build() {
    let Some(run) = std::env::var_os("NEXTEST_RUN_ID") else { return build_now() };
    let path = profile_folder().with_file_name("programs.built");
    let mut stamp = fs::File::options().read(true).write(true).create(true).truncate(false).open(&path);
    let stamp = stamp.as_mut().expect("the target folder is writable");
    stamp.lock().expect("files can be locked");
    let mut built = String::new();
    let _ = stamp.read_to_string(&mut built);
    if run.to_str() != Some(&built) {
        build_now();
        let _ = stamp.set_len(0).and_then(|()| stamp.rewind());
        let _ = stamp.write_all(run.as_encoded_bytes());
    }
}

fn build_now() {
    let profile = match profile_folder().file_name().and_then(|n| n.to_str()) {
        Some("debug") | None => "dev".to_owned(),
        Some(name) => name.to_owned(),
    };
    let cargo = std::env::var_os("CARGO").unwrap_or("cargo".into());
    let status = Command::new(cargo)
        .args(["build", "--quiet", "--workspace", "--profile", &profile])
        .current_dir(repository())
        .status();
    assert!(status.is_ok_and(|s| s.success()), "`cargo build --workspace` fails");
}

/// `urxe` with arguments, free of the configuration of whoever runs the tests.
pub(crate) fn urxe<S: AsRef<std::ffi::OsStr>>(arguments: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(profile_folder().join("urxe"));
    command.args(arguments).stdin(Stdio::null());
    for (name, _) in std::env::vars_os().filter(|(n, _)| n.as_encoded_bytes().starts_with(b"URXE_")) {
        command.env_remove(name);
    }
    command.env("URXE_CONFIG", "");
    command
}

/// Runs a command to its end, or kills it. `urxe` takes what it started with it.
pub(crate) fn run(command: &mut Command, patience: Duration) -> Result<Output, String> {
    let (mut reader, writer) = std::io::pipe().map_err(|e| format!("no pipe: {e}"))?;
    let twin = writer.try_clone().map_err(|e| format!("no pipe: {e}"))?;
    let child = command.stdout(writer).stderr(twin).spawn();
    // Let go of the pipe, so that it ends with the child.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = child.map_err(|e| format!("cannot run {command:?}: {e}"))?;
    let text = thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = reader.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    });
    let end = Instant::now() + patience;
    let status = loop {
        match child.try_wait().map_err(|e| e.to_string())? {
            Some(status) => break Some(status),
            None if Instant::now() >= end => break None,
            None => thread::sleep(Duration::from_millis(5)),
        }
    };
    if status.is_none() {
        let _ = child.kill();
        let _ = child.wait();
    }
    let text = text.join().map_err(|_| "the reader of the output panicked")?;
    Ok(Output { code: status.and_then(|s| s.code()), text })
}

/// A program that runs beside the test; it ends with this value. `urxe run` becomes the program, so nobody is between.
pub(crate) struct Background {
    child: Child,
    lines: Receiver<String>,
    /// What it has said so far.
    text: String,
}

impl Background {
    pub(crate) fn start(command: &mut Command) -> Result<Self, String> {
        let (reader, writer) = std::io::pipe().map_err(|e| format!("no pipe: {e}"))?;
        let twin = writer.try_clone().map_err(|e| format!("no pipe: {e}"))?;
        let child = command.stdout(writer).stderr(twin).spawn();
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let child = child.map_err(|e| format!("cannot run {command:?}: {e}"))?;
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            let mut reader = BufReader::new(reader);
            let mut line = Vec::new();
            while let Ok(1..) = reader.read_until(b'\n', &mut line) {
                // Reading goes on when nobody listens, so that a full pipe stops nobody.
                let _ = sender.send(String::from_utf8_lossy(&line).into_owned());
                line.clear();
            }
        });
        Ok(Self { child, lines, text: String::new() })
    }

    /// Waits until it says `words`. Programs that buffer what they write into pipes run under `stdbuf -oL`.
    pub(crate) fn wait_for(&mut self, words: &str) -> Result<(), String> {
        let end = Instant::now() + PATIENCE;
        while !self.text.contains(words) {
            let left = end.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) => self.text += &line,
                Err(_) => {
                    return Err(format!("no {words:?} from the program in the background:\n{}", self.text));
                }
            }
        }
        Ok(())
    }

    /// Waits until this is so, which the program does not say itself.
    pub(crate) fn wait_until(&mut self, what: &str, is: impl Fn() -> bool) -> Result<(), String> {
        let end = Instant::now() + PATIENCE;
        while !is() {
            let ended = matches!(self.child.try_wait(), Ok(Some(_)));
            if ended || Instant::now() >= end {
                self.text.extend(self.lines.try_iter());
                return Err(format!("the program in the background {what}: no\n{}", self.text));
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Ends it, and gives what it said.
    pub(crate) fn stop(mut self) -> Output {
        self.kill();
        while let Ok(line) = self.lines.recv_timeout(Duration::from_secs(1)) {
            self.text += &line;
        }
        Output { code: None, text: std::mem::take(&mut self.text) }
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Waits until it ends.
    pub(crate) fn finish(mut self) -> Result<Output, String> {
        let end = Instant::now() + PATIENCE;
        // Its output ends when it and its children do.
        while let Ok(line) = self.lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
            self.text += &line;
        }
        if Instant::now() >= end {
            return Err(format!("the program in the background does not end:\n{}", self.text));
        }
        let status = self.child.wait().map_err(|e| e.to_string())?;
        Ok(Output { code: status.code(), text: std::mem::take(&mut self.text) })
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Whether somebody listens at this TCP port.
pub(crate) fn listens(port: u16) -> bool {
    let here = format!(":{port:04X}");
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|table| {
        let table = fs::read_to_string(table).unwrap_or_default();
        let mut rows = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        rows.any(|row| row.len() > 3 && row[1].ends_with(&here) && row[3] == "0A")
    })
}

/// A TCP port that nobody listens on.
pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr());
    listener.expect("there is a free port").port()
}
