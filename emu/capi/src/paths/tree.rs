//! The private tree: real files in a folder of the user, so that every libc function works on them.
//!
//! A tree is written once, named by a hash of its contents, and never changed: processes that describe the
//! same device share it, and whoever loses the race to create it uses the winner's. The number of trees is
//! bounded: making one removes those that have not been used for a day, and the oldest above a limit.

use std::ffi::{CStr, CString, OsString};
use std::fmt::Write as _;
use std::fs::{self, DirBuilder};
use std::hash::{Hash, Hasher};
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use urxe_control::place::runtime_folder;

use super::facts::{CM_NUMBER, Facts, verbs_number};

/// Trees older than this are removed when another one is made.
const UNUSED: Duration = Duration::from_secs(24 * 60 * 60);
/// A tree that is being made is older than this only if its maker died.
const ABANDONED: Duration = Duration::from_secs(60);
/// How many trees there may be at most.
const LIMIT: usize = 512;

/// The tree in use and its sysfs folder. Leaked, as it lives until the process ends.
struct Tree {
    root: CString,
    sysfs: CString,
    facts: Vec<Facts>,
}

// No lock: a child forked while another thread held it could never look at a path again. Two threads may make
// the same tree at the same time, which is harmless.
static TREE: AtomicPtr<Tree> = AtomicPtr::new(ptr::null_mut());

/// The root of the tree, which is made if it does not exist. `None` if no folder can be written.
pub fn root() -> Option<&'static CStr> {
    current().map(|tree| tree.root.as_c_str())
}

/// The `sys` folder of the tree.
pub fn sysfs() -> Option<&'static CStr> {
    current().map(|tree| tree.sysfs.as_c_str())
}

/// Describes other devices from now on: called when they are opened and their addresses are known.
pub fn describe(facts: &[Facts]) {
    if let Some(tree) = make(facts) {
        TREE.store(Box::into_raw(Box::new(tree)), Ordering::Release);
    }
}

fn current() -> Option<&'static Tree> {
    let known = TREE.load(Ordering::Acquire);
    if !known.is_null() {
        // SAFETY: what is stored is a leaked box.
        let tree = unsafe { &*known };
        if Path::new(std::ffi::OsStr::from_bytes(tree.root.to_bytes())).exists() {
            return Some(tree);
        }
        // Someone removed it under us (a cleaner of /tmp): make it again.
    }
    // SAFETY: null or a leaked box.
    let facts = unsafe { known.as_ref() }.map_or_else(Facts::before_open, |tree| tree.facts.clone());
    let made = Box::into_raw(Box::new(make(&facts)?));
    match TREE.compare_exchange(known, made, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: leaked, as above.
        Ok(_) => Some(unsafe { &*made }),
        Err(other) => {
            // SAFETY: `made` was not shared; `other` is a leaked box.
            unsafe {
                drop(Box::from_raw(made));
                Some(&*other)
            }
        }
    }
}

/// Makes the tree of some facts, or finds it made.
fn make(facts: &[Facts]) -> Option<Tree> {
    // Without symbolic links, so that what realpath(3) says of a file in it is known again.
    let folder = runtime_folder().map_err(io::Error::other).and_then(|folder| folder.canonicalize());
    let result = folder.and_then(|folder| make_in(&folder, facts));
    match result {
        Ok(path) => {
            let root = CString::new(path.as_os_str().as_bytes()).ok()?;
            let sysfs = CString::new(path.join("sys").as_os_str().as_bytes()).ok()?;
            Some(Tree { root, sysfs, facts: facts.to_vec() })
        }
        Err(error) => {
            tracing::warn!(
                "no folder for the device's files ({error}): programs that look for them find none"
            );
            None
        }
    }
}

pub(crate) fn make_in(folder: &Path, facts: &[Facts]) -> io::Result<PathBuf> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let entries: Vec<_> = facts.iter().flat_map(entries).chain(common(facts)).collect();
    let mut hasher = std::hash::DefaultHasher::new();
    entries.hash(&mut hasher);
    let tree = folder.join(format!("tree-{:016x}", hasher.finish()));
    if tree.is_dir() {
        touch(&tree);
        return Ok(tree);
    }
    let unfinished =
        folder.join(format!("new-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed)));
    // The name may be there from an earlier process of that number.
    _ = fs::remove_dir_all(&unfinished);
    let written = write(&unfinished, &entries).and_then(|()| match fs::rename(&unfinished, &tree) {
        Err(_) if tree.is_dir() => fs::remove_dir_all(&unfinished),
        other => other,
    });
    if let Err(error) = written {
        _ = fs::remove_dir_all(&unfinished);
        return Err(error);
    }
    prune(folder, &tree);
    Ok(tree)
}

/// Marks a tree as used.
fn touch(tree: &Path) {
    if let Ok(path) = CString::new(tree.as_os_str().as_bytes()) {
        // SAFETY: a C string, and null times for "now".
        unsafe { libc::utimensat(libc::AT_FDCWD, path.as_ptr(), ptr::null(), 0) };
    }
}

/// Removes what nobody uses.
fn prune(folder: &Path, keep: &Path) {
    let Ok(listing) = fs::read_dir(folder) else { return };
    let now = SystemTime::now();
    let mut trees: Vec<(Duration, PathBuf)> = Vec::new();
    for entry in listing.flatten() {
        let name: OsString = entry.file_name();
        let age = entry.metadata().and_then(|metadata| metadata.modified()).ok();
        let age = age.and_then(|modified| now.duration_since(modified).ok()).unwrap_or_default();
        let path = entry.path();
        if name.as_bytes().starts_with(b"new-") && age > ABANDONED {
            _ = fs::remove_dir_all(&path);
        } else if name.as_bytes().starts_with(b"tree-") && path != keep {
            trees.push((age, path));
        }
    }
    trees.sort();
    for (position, (age, path)) in trees.iter().enumerate() {
        if *age > UNUSED || position + 1 >= LIMIT {
            _ = fs::remove_dir_all(path);
        }
    }
}

/// What is at a path of the tree.
#[derive(Hash)]
enum Entry {
    File(String),
    /// A symbolic link, relative as in sysfs.
    Link(String),
}

fn write(root: &Path, entries: &[(String, Entry)]) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(root)?;
    for (path, entry) in entries {
        let path = root.join(path);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        match entry {
            Entry::File(text) => {
                let mode = if path.strip_prefix(root).is_ok_and(|path| path.starts_with("dev")) {
                    0o600
                } else {
                    0o444
                };
                let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&path)?;
                file.write_all(text.as_bytes())?;
            }
            Entry::Link(to) => symlink(to, &path)?,
        }
    }
    Ok(())
}

/// The files that are there once.
fn common(facts: &[Facts]) -> Vec<(String, Entry)> {
    let mut entries = Vec::new();
    let mut file = |path: &str, text: String| entries.push((path.to_owned(), Entry::File(text)));
    file("sys/class/infiniband_verbs/abi_version", "6\n".into());
    if facts.iter().any(|facts| facts.connection_manager) {
        let (major, minor) = CM_NUMBER;
        file("dev/infiniband/rdma_cm", String::new());
        file("sys/class/misc/rdma_cm/abi_version", "1\n".into());
        file("sys/class/misc/rdma_cm/dev", format!("{major}:{minor}\n"));
    }
    entries
}

/// The files of a device, as the kernel has them for an adapter on a bus: the class folders hold links to the device's.
fn entries(facts: &Facts) -> Vec<(String, Entry)> {
    let Facts { rail, device, node, interface, .. } = facts;
    let bus = format!("sys/devices/virtual/urxe/device{rail}");
    let (major, minor) = verbs_number(*rail);
    let mut entries = Vec::new();
    let mut file = |path: String, text: String| entries.push((path, Entry::File(text)));

    let infiniband = format!("{bus}/infiniband/{device}");
    let guid = groups(&facts.guid.to_be_bytes());
    file(format!("{infiniband}/node_type"), "1: CA\n".into());
    file(format!("{infiniband}/node_guid"), format!("{guid}\n"));
    file(format!("{infiniband}/sys_image_guid"), format!("{guid}\n"));
    file(format!("{infiniband}/node_desc"), format!("{device}\n"));
    file(format!("{infiniband}/fw_ver"), format!("{}\n", facts.version));
    file(format!("{infiniband}/parent"), format!("{interface}\n"));

    let port = format!("{infiniband}/ports/1");
    file(format!("{port}/state"), "4: ACTIVE\n".into());
    file(format!("{port}/phys_state"), "5: LinkUp\n".into());
    file(format!("{port}/lid"), format!("{:#x}\n", facts.lid));
    file(format!("{port}/lid_mask_count"), "0\n".into());
    file(format!("{port}/sm_lid"), "0x0\n".into());
    file(format!("{port}/sm_sl"), "0\n".into());
    file(format!("{port}/cap_mask"), "0x00010000\n".into());
    file(format!("{port}/rate"), format!("{}\n", facts.rate));
    file(format!("{port}/link_layer"), format!("{}\n", facts.link_layer));
    file(format!("{port}/pkeys/0"), "0xffff\n".into());
    for (index, entry) in facts.gids.iter().enumerate() {
        file(format!("{port}/gids/{index}"), format!("{}\n", groups(&entry.gid)));
        file(format!("{port}/gid_attrs/types/{index}"), format!("{}\n", entry.kind));
        file(format!("{port}/gid_attrs/ndevs/{index}"), format!("{}\n", entry.interface));
    }

    let verbs = format!("{bus}/infiniband_verbs/{node}");
    file(format!("{verbs}/ibdev"), format!("{device}\n"));
    file(format!("{verbs}/abi_version"), "1\n".into());
    file(format!("{verbs}/dev"), format!("{major}:{minor}\n"));

    // No processor is nearer than another.
    file(format!("{bus}/numa_node"), "-1\n".into());
    // What describes the interface is its own; only a program's search for its name is answered.
    file(format!("{bus}/net/{interface}/dev_id"), "0x0\n".into());
    file(format!("{bus}/net/{interface}/dev_port"), "0\n".into());

    // Their mode and kind are told by the interposer.
    file(format!("dev/infiniband/{node}"), String::new());

    let mut link = |path: String, to: String| entries.push((path, Entry::Link(to)));
    link(format!("{infiniband}/device"), format!("../../../device{rail}"));
    link(format!("{verbs}/device"), format!("../../../device{rail}"));
    let class = format!("../../devices/virtual/urxe/device{rail}");
    link(format!("sys/class/infiniband/{device}"), format!("{class}/infiniband/{device}"));
    link(format!("sys/class/infiniband_verbs/{node}"), format!("{class}/infiniband_verbs/{node}"));
    entries
}

/// Bytes as the kernel prints a GUID or a GID: `0000:0000:…`, two bytes in a group.
fn groups(bytes: &[u8]) -> String {
    let mut text = String::new();
    for (index, pair) in bytes.chunks(2).enumerate() {
        let separator = if index == 0 { "" } else { ":" };
        let _ = write!(text, "{separator}{:02x}{:02x}", pair[0], pair[1]);
    }
    text
}

#[cfg(test)]
#[path = "tree_tests.rs"]
mod tests;
