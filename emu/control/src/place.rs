//! Where the daemon of a user, a network namespace and a fabric is found.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::Error;

/// Longest path of a Unix socket, without the NUL.
const LONGEST: usize = 107;

/// The files of a daemon.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place {
    /// The fabric.
    pub fabric: String,
    /// The socket on which it listens.
    pub socket: PathBuf,
    /// The file that it has locked while it lives.
    pub lock: PathBuf,
}

impl Place {
    /// The place for a fabric in the network namespace of the calling thread.
    pub fn of(fabric: &str) -> Result<Self, Error> {
        // A namespace of its own has addresses of its own, so a daemon of its own.
        let namespace = fs::metadata("/proc/thread-self/ns/net").map_or(0, |m| m.ino());
        let name = format!("{fabric}-{namespace}.sock");
        let mut folder = runtime_folder()?;
        if folder.join(&name).as_os_str().len() > LONGEST {
            folder = private(shared_folder())?;
        }
        let socket = folder.join(name);
        let lock = socket.with_extension("lock");
        Ok(Self { fabric: fabric.into(), socket, lock })
    }
}

/// A folder for this user's short-lived files: `$XDG_RUNTIME_DIR/urxe`, else `/tmp/urxe-UID`.
pub fn runtime_folder() -> Result<PathBuf, Error> {
    let given = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    // sudo and containers pass on the variable of another user or of another root folder.
    let own = |d: &PathBuf| d.is_absolute() && fs::metadata(d).is_ok_and(|m| m.is_dir() && m.uid() == user());
    match given.filter(own).map(|d| private(d.join("urxe"))) {
        Some(Ok(folder)) => Ok(folder),
        _ => private(shared_folder()),
    }
}

/// Not `$TMPDIR`: programs with different ones should still meet.
fn shared_folder() -> PathBuf {
    format!("/tmp/urxe-{}", user()).into()
}

fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Makes the folder if it is not there. /tmp is everyone's, so what is there must prove to be ours.
fn private(path: PathBuf) -> Result<PathBuf, Error> {
    match check(&path, user()) {
        Ok(()) => Ok(path),
        Err(why) => Err(Error::Folder { path, why }),
    }
}

fn check(path: &Path, user: u32) -> Result<(), String> {
    match fs::DirBuilder::new().mode(0o700).create(path) {
        Err(e) if e.kind() != ErrorKind::AlreadyExists => return Err(format!("cannot be made: {e}")),
        _ => {}
    }
    // Not through a symbolic link, which whoever made it could turn to elsewhere later.
    let meta = fs::symlink_metadata(path).map_err(|e| format!("cannot be examined: {e}"))?;
    if !meta.is_dir() {
        return Err("is not a folder".into());
    }
    if meta.uid() != user {
        return Err(format!("belongs to user {}", meta.uid()));
    }
    if meta.mode() & 0o077 != 0 {
        return Err(format!("can be used by others (mode {:o}); it needs mode 700", meta.mode() & 0o777));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn only_a_private_folder_is_taken() {
        let base = std::env::temp_dir().join(format!("urxe-place-test-{}", std::process::id()));
        let _ = fs::remove_dir_all(&base);
        let open = base.join("open");
        let link = base.join("link");
        let file = base.join("file");
        fs::create_dir(&base).unwrap();
        private(base.join("new")).unwrap();
        private(base.join("new")).unwrap();
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o755)).unwrap();
        symlink(base.join("new"), &link).unwrap();
        fs::write(&file, "").unwrap();
        for path in [open, link, file] {
            let error = private(path.clone()).unwrap_err();
            assert!(matches!(&error, Error::Folder { path: p, .. } if *p == path), "{error}");
            assert_eq!(error.errno(), libc::EACCES);
        }
        assert!(check(&base.join("new"), user() + 1).unwrap_err().contains("belongs to user"));
        fs::remove_dir_all(base).unwrap();
    }

    #[test]
    fn each_fabric_has_a_place_of_its_own() {
        let [a, b] = ["default", "other"].map(|f| Place::of(f).unwrap());
        assert_eq!(Place::of("default").unwrap(), a);
        assert_ne!(a.socket, b.socket);
        assert_ne!(a.socket, a.lock);
        let long = Place::of(&"f".repeat(63)).unwrap();
        assert!(long.socket.as_os_str().len() <= LONGEST);
    }
}
