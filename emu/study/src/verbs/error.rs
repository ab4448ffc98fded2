//! What can go wrong with a verb.

use std::io;

/// Result of a verb.
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no library.
    #[error("libibverbs.so.1 cannot be used: {0}")]
    Library(String),
    /// No device has this name.
    #[error("there is no verbs device {wanted}; {}", list(there))]
    NoDevice {
        /// The name, or `at all`.
        wanted: String,
        /// The devices that there are.
        there: Vec<String>,
    },
    /// A verb failed.
    #[error("{verb}: {source}")]
    Verb {
        /// Its name in C.
        verb: &'static str,
        /// Its errno.
        source: io::Error,
    },
    /// The device or the library does not have what is asked for.
    #[error("{0}")]
    Unsupported(String),
    /// A request ended with an error.
    #[error("a request ended with status {status}: {text}")]
    Completion {
        /// `IBV_WC_*`.
        status: u32,
        /// The library's words for it.
        text: String,
    },
}

fn list(there: &[String]) -> String {
    match there {
        [] => "the system has none (`ibv_devices` lists them)".to_owned(),
        some => format!("there are: {}", some.join(", ")),
    }
}

impl Error {
    /// From what a verb has returned: an errno, or -1 with errno set.
    pub(super) fn of(verb: &'static str, returned: i32) -> Self {
        let source = match returned {
            ..=-1 => io::Error::last_os_error(),
            errno => io::Error::from_raw_os_error(errno),
        };
        Self::Verb { verb, source }
    }

    /// From errno, which a verb has set.
    pub(super) fn last(verb: &'static str) -> Self {
        Self::Verb { verb, source: io::Error::last_os_error() }
    }

    /// The errno of a verb that failed.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Verb { source, .. } => source.raw_os_error(),
            _ => None,
        }
    }

    /// Whether the device does not have it, rather than something went wrong.
    pub fn is_unsupported(&self) -> bool {
        match self {
            Self::Unsupported(_) => true,
            Self::Verb { .. } => matches!(self.errno(), Some(libc::EOPNOTSUPP | libc::ENOSYS)),
            _ => false,
        }
    }
}

/// Turns what most verbs return into a result.
pub(super) fn check(verb: &'static str, returned: i32) -> Result<()> {
    match returned {
        0 => Ok(()),
        other => Err(Error::of(verb, other)),
    }
}
