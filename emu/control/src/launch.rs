//! Finding a daemon, and starting one from within somebody else's program.

use std::cell::Cell;
use std::ffi::CString;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::Error;
use crate::client::PATIENCE;
use crate::connection::{Connection, wait};
use crate::place::Place;

mod spawn;

pub(crate) use spawn::with_signals_blocked;

/// The daemon's first word on its standard output when it listens; anything else is why it does not.
pub const READY: &str = "ready\n";

thread_local! {
    static CONTROL: Cell<bool> = const { Cell::new(false) };
}

/// The calling thread is the one that hears the daemon.
pub(crate) fn mark_control_thread() {
    CONTROL.set(true);
}

/// Whether it is.
pub(crate) fn is_control_thread() -> bool {
    CONTROL.get()
}

/// How to reach a daemon.
#[derive(Debug)]
pub struct Launch {
    place: Place,
}

impl Launch {
    /// For a fabric, in the network namespace of the calling thread.
    pub fn new(fabric: &str) -> Result<Self, Error> {
        Ok(Self { place: Place::of(fabric)? })
    }

    /// The fabric.
    pub fn fabric(&self) -> &str {
        &self.place.fabric
    }

    /// Connects to the daemon if one runs.
    pub fn find(&self) -> Result<Option<Connection>, Error> {
        Connection::open(&self.place.socket)
    }

    /// Connects to the daemon, and starts it if none runs.
    pub fn connect(&self) -> Result<Connection, Error> {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(connection) = self.find()? {
                return Ok(connection);
            }
            // If several do this at once, all but one of the daemons leave it to that one. And one that is about to
            // leave may have been asked just now; hence the loop.
            self.start(end)?;
            if let Some(connection) = self.find()? {
                return Ok(connection);
            }
            if Instant::now() >= end {
                return Err(Error::Start("it does not accept connections".into()));
            }
        }
    }

    /// Starts a daemon and waits until it listens.
    fn start(&self, end: Instant) -> Result<(), Error> {
        let program = program()?;
        let arguments = ["daemon", "--detached", "--fabric", &self.place.fabric];
        let output = spawn::spawn(&program, &arguments)
            .map_err(|e| Error::Start(format!("{} cannot be executed: {e}", program.display())))?;
        let text = read_to_end(output, end)?;
        match text.as_str() {
            READY => Ok(()),
            "" => Err(Error::Start(format!("{} ended without a word", program.display()))),
            why => Err(Error::Start(why.lines().next().unwrap_or_default().to_owned())),
        }
    }
}

fn read_to_end(output: OwnedFd, end: Instant) -> Result<String, Error> {
    const LONGEST: usize = 4096;
    let mut file = std::fs::File::from(output);
    let mut text = Vec::new();
    let mut buffer = [0; 512];
    while text.len() < LONGEST {
        if wait(&[file.as_fd()], Some(end))?.first() != Some(&true) {
            return Err(Error::Start(format!("it was not ready within {} s", PATIENCE.as_secs())));
        }
        match file.read(&mut buffer) {
            Ok(0) => break,
            Ok(n) => text.extend_from_slice(buffer.get(..n).unwrap_or_default()),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(Error::Io { what: "hear the daemon start", source: e }),
        }
    }
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// The `urxe` command: this program itself, or the one that was installed with the library in which this code is.
fn program() -> Result<PathBuf, Error> {
    const NAME: &str = "urxe";
    let object = object_of(program as fn() -> _ as usize)
        .or_else(|| std::fs::read_link("/proc/self/exe").ok())
        .ok_or_else(|| Error::Start("/proc does not say where the urxe command is".into()))?;
    let folder = object.parent().unwrap_or(Path::new("/"));
    // Beside the library or the program, or as bin/urxe to lib/liburxe.so and lib/urxe/liburxe.so; a test's program
    // is one folder below.
    let places = [NAME, "../bin/urxe", "../../bin/urxe", "../urxe"].map(|place| folder.join(place));
    let found = places.iter().find(|p| p.is_file());
    found.cloned().ok_or_else(|| {
        Error::Start(format!("there is no {NAME} command beside {} (nor in ../bin)", object.display()))
    })
}

/// The file from which the code at an address was loaded.
fn object_of(address: usize) -> Option<PathBuf> {
    let maps = std::fs::read("/proc/self/maps").ok()?;
    let line = maps.split(|b| *b == b'\n').find(|line| {
        let range = line.split(|b| *b == b' ').next().and_then(|r| std::str::from_utf8(r).ok());
        let ends = range.and_then(|r| r.split_once('-'));
        let ends = ends.map(|(a, b)| (usize::from_str_radix(a, 16), usize::from_str_radix(b, 16)));
        matches!(ends, Some((Ok(from), Ok(to))) if (from..to).contains(&address))
    })?;
    let path = line.get(line.iter().position(|b| *b == b'/')?..)?;
    let path = path.strip_suffix(b" (deleted)").unwrap_or(path);
    Some(Path::new(std::ffi::OsStr::from_bytes(path)).to_owned())
}

/// The environment of a daemon: that of this program, without what would load other libraries into it.
fn environment() -> Vec<CString> {
    const NOT: [&[u8]; 3] = [b"LD_PRELOAD", b"LD_LIBRARY_PATH", b"LD_AUDIT"];
    let kept = std::env::vars_os().filter(|(name, _)| !NOT.contains(&name.as_bytes()));
    kept.filter_map(|(name, value)| CString::new([name.as_bytes(), b"=", value.as_bytes()].concat()).ok())
        .collect()
}
