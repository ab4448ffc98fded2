//! Why a job ends early.

use crate::verbs;

/// Result of a step of a job.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a job ends early.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It is not possible, on this device or at all.
    #[error("{0}")]
    Refused(String),
    /// A verb failed.
    #[error(transparent)]
    Verbs(#[from] verbs::Error),
    /// The system refused something.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        source: std::io::Error,
    },
    /// The other end has failed or is gone.
    #[error("the {0}")]
    Peer(String),
    /// What has arrived is not what was sent.
    #[error("wrong data: {0}")]
    Data(String),
    /// The job was stopped; somebody else knows why.
    #[error("stopped")]
    Stopped,
}

impl Error {
    pub(crate) fn system(what: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::System { what, source }
    }

    /// Whether the job is not possible, rather than something went wrong.
    pub(crate) fn is_refusal(&self) -> bool {
        match self {
            Self::Refused(_) => true,
            Self::Verbs(error) => error.is_unsupported(),
            _ => false,
        }
    }
}
