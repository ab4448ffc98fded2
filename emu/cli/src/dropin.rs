//! The folder that stands in for the system's verbs libraries: links named libibverbs.so.1, librdmacm.so.1 and so on
//! to the one shared object. The loader sees one inode under all names, so a process has one engine.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

const LIBRARY: &str = "liburxe.so";
const FOLDER: &str = "urxe-dropin";
/// The name that is preloaded.
pub(crate) const PRELOADED: &str = "libibverbs.so.1";
const NAMES: [&str; 4] = [PRELOADED, "libibverbs.so", "librdmacm.so.1", "librdmacm.so"];

/// The folder, made if it is not there: beside the library if that is writable, else in the user's runtime directory.
pub(crate) fn folder() -> Result<PathBuf, String> {
    let exe =
        std::env::current_exe().and_then(fs::canonicalize).map_err(|e| format!("cannot find myself: {e}"))?;
    let dir = exe.parent().unwrap_or(Path::new("/"));
    let places = [dir.to_owned(), dir.join("../lib/urxe"), dir.join("../lib")];
    let library =
        places.iter().map(|d| d.join(LIBRARY)).find_map(|l| fs::canonicalize(l).ok()).ok_or_else(|| {
            format!(
                "{LIBRARY} is not in {} (nor in ../lib/urxe, ../lib); `cargo xtask build` makes it",
                dir.display()
            )
        })?;

    let beside = library.with_file_name(FOLDER);
    if can_be_named(&beside) && populate(&beside, &library).is_ok() {
        return Ok(beside);
    }
    let runtime = runtime_folder(&library).map_err(|e| format!("no place for the drop-in folder: {e}"))?;
    if !can_be_named(&runtime) {
        return Err(format!("the loader cannot take a folder of this name: {runtime:?}"));
    }
    populate(&runtime, &library).map_err(|e| format!("cannot make the drop-in folder {runtime:?}: {e}"))?;
    Ok(runtime)
}

/// ld.so(8) splits LD_PRELOAD at spaces and colons, LD_LIBRARY_PATH at colons and semicolons, and expands `$`.
fn can_be_named(path: &Path) -> bool {
    !path.as_os_str().as_bytes().iter().any(|b| b" :;$\n\t".contains(b))
}

/// Makes the links. Any number of processes and threads may do so at once.
fn populate(folder: &Path, library: &Path) -> io::Result<()> {
    match fs::create_dir(folder) {
        Err(e) if e.kind() != ErrorKind::AlreadyExists => return Err(e),
        _ => {}
    }
    for name in NAMES {
        let link = folder.join(name);
        if fs::read_link(&link).is_ok_and(|to| to == library) {
            continue;
        }
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let temporary = folder.join(format!(".{name}.{}.{count}", std::process::id()));
        let _ = fs::remove_file(&temporary);
        symlink(library, &temporary)?;
        fs::rename(&temporary, &link).inspect_err(|_| {
            let _ = fs::remove_file(&temporary);
        })?;
    }
    Ok(())
}

/// A folder of this user and this library.
fn runtime_folder(library: &Path) -> Result<PathBuf, urxe_control::Error> {
    let mut hash = DefaultHasher::new();
    library.hash(&mut hash);
    Ok(urxe_control::place::runtime_folder()?.join(format!("{:016x}", hash.finish())))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn the_links_are_made_once_and_repaired() {
        let dir = std::env::temp_dir().join(format!("urxe-dropin-test-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        let library = dir.join(LIBRARY);
        fs::write(&library, "x").unwrap();
        let folder = dir.join(FOLDER);
        std::thread::scope(|s| {
            for _ in 0..8 {
                s.spawn(|| populate(&folder, &library).unwrap());
            }
        });
        fs::remove_file(folder.join("librdmacm.so")).unwrap();
        symlink("/nonexistent", folder.join("librdmacm.so")).unwrap();
        populate(&folder, &library).unwrap();
        let inode = fs::metadata(&library).unwrap().ino();
        for name in NAMES {
            assert_eq!(fs::metadata(folder.join(name)).unwrap().ino(), inode);
        }
        assert_eq!(fs::read_dir(&folder).unwrap().count(), NAMES.len(), "no temporary is left");
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn names_that_the_loader_would_split_are_refused() {
        assert!(can_be_named(Path::new("/a/b-c_d.e")));
        for path in ["/a b", "/a:b", "/a;b", "/$ORIGIN"] {
            assert!(!can_be_named(Path::new(path)));
        }
    }
}
