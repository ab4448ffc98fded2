//! At most one daemon for each user, network namespace and fabric: a locked file says who.

use std::fs::{self, File, TryLockError};
use std::io::{ErrorKind, Read, Seek, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use urxe_control::client::PATIENCE;
use urxe_control::connection::Connection;
use urxe_control::place::Place;

use crate::Error;

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 512;

/// The right to be the fabric's daemon. Giving it up removes its files.
pub(crate) struct Claim {
    place: Place,
    file: File,
    listening: bool,
    /// See [`Claim::inherited`].
    inherited: bool,
    /// See [`Claim::block`].
    block: Option<u8>,
}

impl Claim {
    /// Takes it, if nobody has it.
    pub(crate) fn take(place: &Place) -> Result<Self, Error> {
        let failed = |what| move |source| Error::File { what, path: place.lock.clone(), source };
        loop {
            let mut file = File::options()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .open(&place.lock)
                .map_err(failed("open"))?;
            let mut text = String::new();
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    let _ = file.read_to_string(&mut text);
                    let pid = parse(&text).map(|(pid, _)| pid);
                    return Err(Error::Running { fabric: place.fabric.clone(), pid });
                }
                Err(TryLockError::Error(e)) => return Err(failed("lock")(e)),
            }
            // Its owner may have removed it after it was opened here: then the lock means nothing.
            let own = file.metadata().map_err(failed("examine"))?;
            match fs::metadata(&place.lock) {
                Ok(there) if (there.dev(), there.ino()) == (own.dev(), own.ino()) => {}
                _ => continue,
            }
            let _ = file.read_to_string(&mut text);
            let previous = parse(&text);
            let mut claim = Self {
                place: place.clone(),
                file,
                listening: false,
                inherited: previous.is_some(),
                block: previous.and_then(|(_, block)| block),
            };
            claim.write().map_err(failed("write"))?;
            return Ok(claim);
        }
    }

    /// Takes it, or waits for the daemon that has it: `None` if that accepts connections.
    pub(crate) fn take_or_wait(place: &Place) -> Result<Option<Self>, Error> {
        let end = Instant::now() + PATIENCE;
        loop {
            match Self::take(place) {
                Err(Error::Running { .. }) if Instant::now() < end => {}
                result => return result.map(Some),
            }
            if matches!(Connection::open(&place.socket), Ok(Some(_))) {
                return Ok(None);
            }
            // It has just started, or it leaves: there is no event for either.
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The daemon before this one died without giving it up: it may have clients that come back.
    pub(crate) fn inherited(&self) -> bool {
        self.inherited
    }

    /// The address block of the previous daemon, if it died without giving it up: its clients still use it.
    pub(crate) fn block(&self) -> Option<u8> {
        self.block
    }

    /// Writes down the address block for whoever comes after this daemon.
    pub(crate) fn set_block(&mut self, block: u8) {
        self.block = Some(block);
        if let Err(e) = self.write() {
            tracing::warn!("{}: {e}", self.place.lock.display());
        }
    }

    fn write(&mut self) -> std::io::Result<()> {
        let block = self.block.map_or(String::new(), |b| format!(" {b}"));
        self.file.set_len(0)?;
        self.file.rewind()?;
        writeln!(self.file, "{}{block}", std::process::id())
    }

    /// Listens on the fabric's socket.
    pub(crate) fn listen(&mut self) -> Result<OwnedFd, Error> {
        let path = &self.place.socket;
        let failed = |what| {
            move |source: rustix::io::Errno| Error::File { what, path: path.clone(), source: source.into() }
        };
        match fs::remove_file(path) {
            Err(source) if source.kind() != ErrorKind::NotFound => {
                return Err(Error::File { what: "remove the old", path: path.clone(), source });
            }
            _ => {}
        }
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
            .map_err(failed("make"))?;
        let address = SocketAddrUnix::new(path).map_err(failed("name"))?;
        rustix::net::bind(&socket, &address).map_err(failed("bind"))?;
        self.listening = true;
        // Before it listens nobody can connect.
        rustix::fs::chmod(path, rustix::fs::Mode::from_raw_mode(0o600)).map_err(failed("protect"))?;
        rustix::net::listen(&socket, BACKLOG).map_err(failed("listen on"))?;
        Ok(socket)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if self.listening {
            let _ = fs::remove_file(&self.place.socket);
        }
        // While it is locked: whoever opens it now sees that it is gone.
        let _ = fs::remove_file(&self.place.lock);
    }
}

/// Process and address block.
fn parse(text: &str) -> Option<(u32, Option<u8>)> {
    let mut words = text.split_whitespace();
    Some((words.next()?.parse().ok()?, words.next().and_then(|w| w.parse().ok())))
}
