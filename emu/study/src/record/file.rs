//! Records in files.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use thiserror::Error;

use super::{FORMAT, Malformed, Record};

/// Why a file could not be read as results.
#[derive(Debug, Error)]
pub enum LoadError {
    /// The file cannot be read.
    #[error("cannot read {path}: {error}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// It has another version of the format.
    #[error("{path} has results of format {found}; this urxe reads format {FORMAT}")]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version, as it is written there.
        found: String,
    },
    /// It is no results file.
    #[error("{path} is no results file of urxe study: {reason}")]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        reason: String,
    },
}

/// Why results could not be written.
#[derive(Debug, Error)]
pub enum SaveError {
    /// The file cannot be written.
    #[error("cannot write {path}: {error}")]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// No reader would take it.
    #[error("these results cannot be kept: {0}")]
    Malformed(#[from] Malformed),
}

/// What is looked at before anything else.
#[derive(Deserialize)]
struct Version {
    format: serde_json::Value,
}

impl Record {
    /// Reads a file.
    pub fn load(path: &Path) -> Result<Self, LoadError> {
        let text = fs::read_to_string(path).map_err(|error| LoadError::Read { path: path.into(), error })?;
        Self::parse(&text, path)
    }

    /// Reads the content of a file; `path` is for errors only.
    fn parse(text: &str, path: &Path) -> Result<Self, LoadError> {
        let content =
            |error: &dyn ToString| LoadError::Content { path: path.into(), reason: error.to_string() };
        let version: Version = serde_json::from_str(text).map_err(|e| content(&e))?;
        if version.format != FORMAT {
            return Err(LoadError::Version { path: path.into(), found: version.format.to_string() });
        }
        let record: Self = serde_json::from_str(text).map_err(|e| content(&e))?;
        record.check().map_err(|e| content(&e))?;
        Ok(record)
    }

    /// Its JSON, indented, with a newline at the end.
    pub fn to_json(&self) -> Result<String, Malformed> {
        self.check()?;
        let json = serde_json::to_string_pretty(self).expect("strings and finite numbers are JSON");
        Ok(json + "\n")
    }

    /// Writes a file, which is either all there or not changed.
    pub fn save(&self, path: &Path) -> Result<(), SaveError> {
        write_whole(path, &self.to_json()?).map_err(|error| SaveError::Write { path: path.into(), error })
    }
}

/// Replaces a file by one of this content. What is no regular file (`/dev/stdout`) is written as it is.
pub(crate) fn write_whole(path: &Path, content: &str) -> io::Result<()> {
    if fs::metadata(path).is_ok_and(|there| !there.is_file()) {
        return fs::write(path, content);
    }
    let mut name = path.file_name().ok_or(io::ErrorKind::InvalidFilename)?.to_owned();
    name.push(format!(".{}", std::process::id()));
    let beside = path.with_file_name(name);
    fs::write(&beside, content).and_then(|()| fs::rename(&beside, path)).inspect_err(|_| {
        let _ = fs::remove_file(&beside);
    })
}
