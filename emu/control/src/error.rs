//! Why a call to the daemon failed.

use std::io;
use std::path::PathBuf;

use crate::protocol::Failure;

/// Why a call to the daemon failed. The message is one line for people.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no safe folder for the daemon's socket.
    #[error("no place for the daemon's socket: {path:?} {why}")]
    Folder {
        /// The folder that was tried.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The socket belongs to another user.
    #[error(
        "the daemon at {path:?} runs as user {uid}, not as this user; remove the socket if it is not wanted"
    )]
    Foreign {
        /// The socket.
        path: PathBuf,
        /// Whose it is.
        uid: u32,
    },
    /// The daemon speaks another version.
    #[error(
        "the daemon at {path:?} is of another version of urxe (its messages have version {theirs}, ours {}); stop the \
         programs that use it, then it leaves",
        crate::protocol::VERSION
    )]
    Version {
        /// The socket.
        path: PathBuf,
        /// Its version.
        theirs: u16,
    },
    /// None runs, and none could be started.
    #[error("the daemon cannot be started: {0}")]
    Start(String),
    /// It ended meanwhile, and none has taken its place yet.
    #[error("the connection to the daemon was lost: {0}")]
    Lost(String),
    /// It did not answer in time.
    #[error("the daemon did not answer within {} s", crate::client::PATIENCE.as_secs())]
    Timeout,
    /// It sent what cannot be.
    #[error("the daemon sent {0}")]
    Protocol(&'static str),
    /// The message is longer than a message can be.
    #[error("a message of {0} bytes is too long")]
    TooLong(usize),
    /// It says no.
    #[error("{0}")]
    Refused(#[from] Failure),
    /// A device that cannot be asked for as configured.
    #[error("{message}")]
    Device {
        /// What `errno` should say.
        errno: i32,
        /// What is wrong.
        message: String,
    },
    /// The client was made by the parent of this process.
    #[error("a child of fork cannot use its parent's connection to the daemon")]
    Forked,
    /// A [`crate::client::Listener`] called, on the one thread that could hear the answer.
    #[error("the daemon cannot be asked from within a notice")]
    Reentrant,
    /// The system said no.
    #[error("cannot {what}: {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// Why not.
        source: io::Error,
    },
}

impl Error {
    /// For [`Error::Io`].
    pub(crate) fn io(what: &'static str) -> impl FnOnce(rustix::io::Errno) -> Self {
        move |source| Self::Io { what, source: source.into() }
    }

    /// What `errno` should say.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Folder { .. } | Self::Foreign { .. } => libc::EACCES,
            Self::Version { .. } | Self::Protocol(_) => libc::EPROTO,
            Self::Start(_) => libc::ENODEV,
            Self::Lost(_) => libc::ECONNRESET,
            Self::Timeout => libc::ETIMEDOUT,
            Self::TooLong(_) => libc::EMSGSIZE,
            Self::Refused(failure) => failure.errno,
            Self::Device { errno, .. } => *errno,
            Self::Forked => libc::EBADF,
            Self::Reentrant => libc::EDEADLK,
            Self::Io { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
        }
    }
}
