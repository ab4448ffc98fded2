//! The files by which programs find a device: `/sys/class/infiniband*` and `/dev/infiniband`.
//!
//! Programs read these by themselves, beside the verbs calls. They are answered from a private tree of the
//! user ([`tree`]); [`interpose`] stands in front of libc's path functions and rewrites exactly the paths
//! below the prefixes here. Every other path goes through untouched.

pub mod facts;
pub mod interpose;
pub mod real;
pub mod tree;

use std::ffi::{CStr, CString, OsStr, c_char};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;

use crate::boundary::{Errno, Outcome};

/// Longest rewritten path. What exists in the tree is far shorter.
const LONGEST: usize = 1024;

/// What begins one of our paths, with what may follow it.
const PREFIXES: &[(&[u8], &[u8])] = &[
    (b"/sys/class/infiniband", b"/_"),
    (b"/sys/class/misc/rdma_cm", b"/"),
    (b"/dev/infiniband", b"/"),
    // Where the links of the tree lead; the name is ours, so no such folder exists.
    (b"/sys/devices/virtual/urxe", b"/"),
];

/// A path of the tree, ready for a system call.
pub struct Rewritten {
    text: [u8; LONGEST],
    /// Whether the path names something in `/dev/infiniband`.
    pub device: bool,
    /// If so, its device number: major, minor.
    pub number: (u32, u32),
}

impl Rewritten {
    /// The path as C takes it.
    pub fn as_ptr(&self) -> *const c_char {
        self.text.as_ptr().cast()
    }
}

/// Whether a path is one of ours: the test that every call of every program goes through, so it looks at no
/// more bytes than needed and allocates nothing.
///
/// # Safety
/// `path` is null or a C string.
#[inline]
pub unsafe fn is_ours(path: *const c_char) -> bool {
    if path.is_null() {
        return false;
    }
    let path = path.cast::<u8>();
    // SAFETY: a byte is read only if those before it are not the terminator.
    unsafe {
        if *path != b'/' {
            return false;
        }
        match *path.add(1) {
            b's' | b'd' => PREFIXES.iter().any(|(prefix, follow)| begins(path, prefix, follow)),
            _ => false,
        }
    }
}

/// # Safety
/// `path` is a C string.
unsafe fn begins(path: *const u8, prefix: &[u8], follow: &[u8]) -> bool {
    // SAFETY: the prefix has no NUL, so the comparison ends at the path's terminator at the latest.
    unsafe {
        if !prefix.iter().enumerate().all(|(at, byte)| *path.add(at) == *byte) {
            return false;
        }
        let next = *path.add(prefix.len());
        next == 0 || follow.contains(&next)
    }
}

/// The path in the private tree. Errors are `ENAMETOOLONG`, and `ENOENT` if there is no tree.
///
/// # Safety
/// `path` is a C string for which [`is_ours`] holds.
pub unsafe fn rewrite(path: *const c_char) -> Outcome<Rewritten> {
    // SAFETY: by contract.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes();
    let root = tree::root().ok_or(Errno(libc::ENOENT))?.to_bytes();
    let device = path.starts_with(b"/dev/");
    let number = if device { number(path) } else { (0, 0) };
    let mut rewritten = Rewritten { text: [0; LONGEST], device, number };
    let length = root.len() + path.len();
    if length >= LONGEST {
        return Err(Errno(libc::ENAMETOOLONG));
    }
    rewritten.text[..root.len()].copy_from_slice(root);
    rewritten.text[root.len()..length].copy_from_slice(path);
    Ok(rewritten)
}

/// The device number of a device node, as the kernel gives them out.
fn number(path: &[u8]) -> (u32, u32) {
    let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    if name == b"rdma_cm" {
        return facts::CM_NUMBER;
    }
    let rail = name.strip_prefix(b"uverbs").and_then(|rest| std::str::from_utf8(rest).ok()?.parse().ok());
    facts::verbs_number(rail.unwrap_or(0u8).into())
}

/// Turns a canonical path of the tree back into the one that the program believes in.
pub fn outside(path: &[u8]) -> Option<&[u8]> {
    let root = tree::root()?.to_bytes();
    match path.strip_prefix(root)? {
        b"" => Some(b"/"),
        rest if rest[0] == b'/' => Some(rest),
        _ => None,
    }
}

/// Where the tree's sysfs is, or the system's if there is no tree.
pub fn sysfs_path() -> &'static CStr {
    tree::sysfs().unwrap_or(c"/sys")
}

/// Reads a file of sysfs, ours or the system's; more than `limit` bytes are cut off after one more.
pub fn read_file(path: &[u8], limit: usize) -> Outcome<Vec<u8>> {
    let failed = |error: std::io::Error| Errno(error.raw_os_error().unwrap_or(libc::EIO));
    let text = CString::new(path).map_err(|_| Errno(libc::EINVAL))?;
    // SAFETY: `text` is a C string. Not every program that calls this has the interposer in front of libc.
    let ours = unsafe { is_ours(text.as_ptr()) };
    let rewritten;
    let name = if ours {
        // SAFETY: as above.
        rewritten = unsafe { rewrite(text.as_ptr())? };
        // SAFETY: a rewritten path is terminated.
        unsafe { CStr::from_ptr(rewritten.as_ptr()) }.to_bytes()
    } else {
        path
    };
    let file = std::fs::File::open(OsStr::from_bytes(name)).map_err(failed)?;
    let mut contents = Vec::new();
    file.take(limit as u64 + 1).read_to_end(&mut contents).map_err(failed)?;
    Ok(contents)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ours(path: &CStr) -> bool {
        // SAFETY: a C string.
        unsafe { is_ours(path.as_ptr()) }
    }

    #[test]
    fn exactly_the_prefixes_are_ours() {
        for path in [
            c"/sys/class/infiniband",
            c"/sys/class/infiniband/",
            c"/sys/class/infiniband/urxe0/ports/1/state",
            c"/sys/class/infiniband_verbs/abi_version",
            c"/sys/class/infiniband_cm",
            c"/sys/class/misc/rdma_cm/abi_version",
            c"/dev/infiniband",
            c"/dev/infiniband/uverbs0",
            c"/sys/devices/virtual/urxe/device0/numa_node",
        ] {
            assert!(ours(path), "{path:?}");
        }
        for path in [
            c"",
            c"/",
            c"/s",
            c"/sys",
            c"/sys/class",
            c"/sys/class/infinibandx",
            c"/sys/class/misc/rdma_cmx",
            c"/sys/class/net",
            c"/dev",
            c"/dev/infinibands",
            c"/dev/null",
            c"sys/class/infiniband",
            c"/sys/devices/virtual/urxes",
        ] {
            assert!(!ours(path), "{path:?}");
        }
        // SAFETY: null is allowed.
        assert!(!unsafe { is_ours(std::ptr::null()) });
    }

    #[test]
    fn device_nodes_have_numbers_of_their_own() {
        assert_eq!(number(b"/dev/infiniband/uverbs0"), (231, 192));
        assert_eq!(number(b"/dev/infiniband/uverbs3"), (231, 195));
        assert_eq!(number(b"/dev/infiniband/rdma_cm"), (10, 58));
        assert_eq!(number(b"/dev/infiniband/uverbs99999"), (231, 192));
    }

    #[test]
    fn a_long_path_is_refused() {
        let long = CString::new(format!("/dev/infiniband/{}", "x".repeat(2000))).expect("no NUL");
        // SAFETY: a C string that is ours.
        let result = unsafe { rewrite(long.as_ptr()) };
        assert_eq!(result.err(), Some(Errno(libc::ENAMETOOLONG)));
    }
}
