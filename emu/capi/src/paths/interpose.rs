//! libc's path functions. Each asks [`is_ours`] and goes on to the real function unchanged if not, which is
//! nearly always; else it calls the real function on the path of the private tree.
//!
//! `/dev/infiniband/uverbs0` looks like the character device that programs check for with `stat` and `access`.
//! Opening it fails with `ENXIO`, what the kernel answers for a device node without a device: what a program
//! would do with the descriptor is the kernel's private protocol, which only libibverbs speaks.
//!
//! A variadic function (`open`) is written with its optional argument: on the supported platforms it arrives
//! where a fixed one would, and libc looks at it only if the flags say that it is there.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use libc::{AT_FDCWD, DIR, FILE, mode_t, size_t, ssize_t, stat64 as Status, statx as Statx};

use super::real::{Real, real};
use super::{Rewritten, is_ours, outside, rewrite};
use crate::boundary::{Errno, Outcome, guarded, set_errno};

/// Defines an interposed function. In the unit tests it keeps its Rust name, so that the test program's own
/// libc calls stay as they are.
macro_rules! interposed {
    ($(fn $name:ident($($argument:ident: $type:ty),*) -> $result:ty $body:block)*) => {$(
        /// libc's function of that name.
        ///
        /// # Safety
        /// As for libc's.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> $result {
            // SAFETY: the arguments are those of libc's function, whose contract the caller keeps.
            unsafe { $body }
        }
    )*};
}

/// Calls `function` with the path in the tree.
///
/// # Safety
/// `path` is a C string that is ours.
unsafe fn within<T>(path: *const c_char, failed: T, function: impl FnOnce(&Rewritten) -> T) -> T {
    // SAFETY: by contract.
    match guarded(|| unsafe { rewrite(path) }) {
        Ok(rewritten) => function(&rewritten),
        Err(error) => {
            set_errno(error);
            failed
        }
    }
}

// ----------------------------------------------------------------------------------------------- opening

/// Opens a path of the tree as sysfs and a device node without a device would.
fn open_ours(path: &Rewritten, flags: c_int) -> Outcome<c_int> {
    const WRITING: c_int = libc::O_CREAT | libc::O_TRUNC;
    // Bits that would change the tree, and __O_TMPFILE without the O_DIRECTORY that is part of O_TMPFILE.
    let unsafe_flags =
        libc::O_ACCMODE | WRITING | libc::O_EXCL | libc::O_APPEND | (libc::O_TMPFILE & !libc::O_DIRECTORY);
    // SAFETY: a terminated path; the descriptor is closed unless it is returned.
    unsafe {
        let open = real!(open: fn(*const c_char, c_int, mode_t) -> c_int);
        let descriptor = open(path.as_ptr(), flags & !unsafe_flags, 0);
        if descriptor < 0 {
            return Err(crate::boundary::last_errno());
        }
        let mut status: libc::stat = std::mem::zeroed();
        let known = libc::fstat(descriptor, &mut status) == 0;
        let folder = known && status.st_mode & libc::S_IFMT == libc::S_IFDIR;
        let error = if folder && flags & (libc::O_ACCMODE | WRITING) != 0 {
            libc::EISDIR
        } else if path.device && !folder {
            libc::ENXIO
        } else if flags & (libc::O_ACCMODE | WRITING) != 0 {
            libc::EACCES
        } else {
            return Ok(descriptor);
        };
        libc::close(descriptor);
        Err(Errno(error))
    }
}

unsafe fn open_within(path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: passed on.
    unsafe {
        within(path, -1, |path| match open_ours(path, flags) {
            Ok(descriptor) => descriptor,
            Err(error) => {
                set_errno(error);
                -1
            }
        })
    }
}

/// The flags of `open` for a mode of `fopen`.
unsafe fn flags_of(mode: *const c_char) -> c_int {
    if mode.is_null() {
        return libc::O_RDWR | libc::O_CREAT;
    }
    // SAFETY: fopen's mode is a C string.
    let mode = unsafe { CStr::from_ptr(mode) }.to_bytes();
    let mut flags = match mode.first() {
        Some(b'r') if !mode.contains(&b'+') => libc::O_RDONLY,
        _ => libc::O_RDWR | libc::O_CREAT,
    };
    if mode.contains(&b'e') {
        flags |= libc::O_CLOEXEC;
    }
    flags
}

unsafe fn fopen_within(path: *const c_char, mode: *const c_char) -> *mut FILE {
    // SAFETY: passed on; the descriptor belongs to the stream once fdopen succeeded.
    unsafe {
        let descriptor = open_within(path, flags_of(mode));
        if descriptor < 0 {
            return std::ptr::null_mut();
        }
        let stream = libc::fdopen(descriptor, mode);
        if stream.is_null() {
            libc::close(descriptor);
        }
        stream
    }
}

interposed! {
    fn open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        if is_ours(path) { return open_within(path, flags) }
        real!(open: fn(*const c_char, c_int, mode_t) -> c_int)(path, flags, mode)
    }
    fn open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        if is_ours(path) { return open_within(path, flags) }
        real!(open64: fn(*const c_char, c_int, mode_t) -> c_int)(path, flags, mode)
    }
    fn __open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        if is_ours(path) { return open_within(path, flags) }
        real!(__open: fn(*const c_char, c_int, mode_t) -> c_int)(path, flags, mode)
    }
    fn __open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        if is_ours(path) { return open_within(path, flags) }
        real!(__open64: fn(*const c_char, c_int, mode_t) -> c_int)(path, flags, mode)
    }
    fn __open_2(path: *const c_char, flags: c_int) -> c_int {
        if is_ours(path) { return open_within(path, flags) }
        real!(__open_2: fn(*const c_char, c_int) -> c_int)(path, flags)
    }
    fn __open64_2(path: *const c_char, flags: c_int) -> c_int {
        if is_ours(path) { return open_within(path, flags) }
        real!(__open64_2: fn(*const c_char, c_int) -> c_int)(path, flags)
    }
    fn openat(folder: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        if is_ours(path) { return open_within(path, flags) }
        real!(openat: fn(c_int, *const c_char, c_int, mode_t) -> c_int)(folder, path, flags, mode)
    }
    fn openat64(folder: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        if is_ours(path) { return open_within(path, flags) }
        real!(openat64: fn(c_int, *const c_char, c_int, mode_t) -> c_int)(folder, path, flags, mode)
    }
    fn __openat_2(folder: c_int, path: *const c_char, flags: c_int) -> c_int {
        if is_ours(path) { return open_within(path, flags) }
        real!(__openat_2: fn(c_int, *const c_char, c_int) -> c_int)(folder, path, flags)
    }
    fn __openat64_2(folder: c_int, path: *const c_char, flags: c_int) -> c_int {
        if is_ours(path) { return open_within(path, flags) }
        real!(__openat64_2: fn(c_int, *const c_char, c_int) -> c_int)(folder, path, flags)
    }
    fn fopen(path: *const c_char, mode: *const c_char) -> *mut FILE {
        if is_ours(path) { return fopen_within(path, mode) }
        real!(fopen: fn(*const c_char, *const c_char) -> *mut FILE)(path, mode)
    }
    fn fopen64(path: *const c_char, mode: *const c_char) -> *mut FILE {
        if is_ours(path) { return fopen_within(path, mode) }
        real!(fopen64: fn(*const c_char, *const c_char) -> *mut FILE)(path, mode)
    }
}

// ------------------------------------------------------------------------------------------------- status

/// The status of a path of the tree: a device node is a character device that everyone may use.
fn status_of(path: &Rewritten, status: *mut Status, flags: c_int) -> c_int {
    // SAFETY: a terminated path, and the caller's buffer, which libc writes in any case.
    unsafe {
        let result = libc::syscall(libc::SYS_newfstatat, AT_FDCWD, path.as_ptr(), status, flags) as c_int;
        if result == 0 && path.device && (*status).st_mode & libc::S_IFMT == libc::S_IFREG {
            (*status).st_mode = libc::S_IFCHR | 0o666;
            (*status).st_rdev = libc::makedev(path.number.0, path.number.1);
            (*status).st_size = 0;
        }
        result
    }
}

unsafe fn status_within(path: *const c_char, status: *mut Status, flags: c_int) -> c_int {
    // SAFETY: passed on.
    unsafe { within(path, -1, |path| status_of(path, status, flags)) }
}

interposed! {
    fn stat(path: *const c_char, status: *mut Status) -> c_int {
        if is_ours(path) { return status_within(path, status, 0) }
        real!(stat: fn(*const c_char, *mut Status) -> c_int)(path, status)
    }
    fn stat64(path: *const c_char, status: *mut Status) -> c_int {
        if is_ours(path) { return status_within(path, status, 0) }
        real!(stat64: fn(*const c_char, *mut Status) -> c_int)(path, status)
    }
    fn lstat(path: *const c_char, status: *mut Status) -> c_int {
        if is_ours(path) { return status_within(path, status, libc::AT_SYMLINK_NOFOLLOW) }
        real!(lstat: fn(*const c_char, *mut Status) -> c_int)(path, status)
    }
    fn lstat64(path: *const c_char, status: *mut Status) -> c_int {
        if is_ours(path) { return status_within(path, status, libc::AT_SYMLINK_NOFOLLOW) }
        real!(lstat64: fn(*const c_char, *mut Status) -> c_int)(path, status)
    }
    fn fstatat(folder: c_int, path: *const c_char, status: *mut Status, flags: c_int) -> c_int {
        if is_ours(path) { return status_within(path, status, flags) }
        real!(fstatat: fn(c_int, *const c_char, *mut Status, c_int) -> c_int)(folder, path, status, flags)
    }
    fn fstatat64(folder: c_int, path: *const c_char, status: *mut Status, flags: c_int) -> c_int {
        if is_ours(path) { return status_within(path, status, flags) }
        real!(fstatat64: fn(c_int, *const c_char, *mut Status, c_int) -> c_int)(folder, path, status, flags)
    }
    fn __xstat(version: c_int, path: *const c_char, status: *mut Status) -> c_int {
        if is_ours(path) { return status_within(path, status, 0) }
        real!(__xstat: fn(c_int, *const c_char, *mut Status) -> c_int)(version, path, status)
    }
    fn __xstat64(version: c_int, path: *const c_char, status: *mut Status) -> c_int {
        if is_ours(path) { return status_within(path, status, 0) }
        real!(__xstat64: fn(c_int, *const c_char, *mut Status) -> c_int)(version, path, status)
    }
    fn __lxstat(version: c_int, path: *const c_char, status: *mut Status) -> c_int {
        if is_ours(path) { return status_within(path, status, libc::AT_SYMLINK_NOFOLLOW) }
        real!(__lxstat: fn(c_int, *const c_char, *mut Status) -> c_int)(version, path, status)
    }
    fn __lxstat64(version: c_int, path: *const c_char, status: *mut Status) -> c_int {
        if is_ours(path) { return status_within(path, status, libc::AT_SYMLINK_NOFOLLOW) }
        real!(__lxstat64: fn(c_int, *const c_char, *mut Status) -> c_int)(version, path, status)
    }
    fn __fxstatat(version: c_int, folder: c_int, path: *const c_char, status: *mut Status, flags: c_int) -> c_int {
        if is_ours(path) { return status_within(path, status, flags) }
        real!(__fxstatat: fn(c_int, c_int, *const c_char, *mut Status, c_int) -> c_int)(
            version, folder, path, status, flags)
    }
    fn __fxstatat64(version: c_int, folder: c_int, path: *const c_char, status: *mut Status, flags: c_int) -> c_int {
        if is_ours(path) { return status_within(path, status, flags) }
        real!(__fxstatat64: fn(c_int, c_int, *const c_char, *mut Status, c_int) -> c_int)(
            version, folder, path, status, flags)
    }
    fn statx(folder: c_int, path: *const c_char, flags: c_int, mask: c_uint, status: *mut Statx) -> c_int {
        let statx = real!(statx: fn(c_int, *const c_char, c_int, c_uint, *mut Statx) -> c_int);
        if !is_ours(path) { return statx(folder, path, flags, mask, status) }
        within(path, -1, |path| {
            let result = statx(AT_FDCWD, path.as_ptr(), flags, mask | libc::STATX_TYPE, status);
            if result == 0 && path.device && u32::from((*status).stx_mode) & libc::S_IFMT == libc::S_IFREG {
                (*status).stx_mode = (libc::S_IFCHR | 0o666) as u16;
                (*status).stx_rdev_major = path.number.0;
                (*status).stx_rdev_minor = path.number.1;
                (*status).stx_size = 0;
            }
            result
        })
    }
}

// ------------------------------------------------------------------------------------------------- access

interposed! {
    fn access(path: *const c_char, mode: c_int) -> c_int {
        let access = real!(access: fn(*const c_char, c_int) -> c_int);
        if !is_ours(path) { return access(path, mode) }
        within(path, -1, |path| access(path.as_ptr(), mode))
    }
    fn euidaccess(path: *const c_char, mode: c_int) -> c_int {
        let access = real!(euidaccess: fn(*const c_char, c_int) -> c_int);
        if !is_ours(path) { return access(path, mode) }
        within(path, -1, |path| access(path.as_ptr(), mode))
    }
    fn eaccess(path: *const c_char, mode: c_int) -> c_int {
        let access = real!(eaccess: fn(*const c_char, c_int) -> c_int);
        if !is_ours(path) { return access(path, mode) }
        within(path, -1, |path| access(path.as_ptr(), mode))
    }
    fn faccessat(folder: c_int, path: *const c_char, mode: c_int, flags: c_int) -> c_int {
        let faccessat = real!(faccessat: fn(c_int, *const c_char, c_int, c_int) -> c_int);
        if !is_ours(path) { return faccessat(folder, path, mode, flags) }
        within(path, -1, |path| faccessat(AT_FDCWD, path.as_ptr(), mode, flags))
    }
}

// ------------------------------------------------------------------------------------------------ folders

type Filter = Option<unsafe extern "C" fn(*const libc::dirent64) -> c_int>;
type Order = Option<unsafe extern "C" fn(*mut *const libc::dirent64, *mut *const libc::dirent64) -> c_int>;
type Names = *mut *mut *mut libc::dirent64;

interposed! {
    fn opendir(path: *const c_char) -> *mut DIR {
        let opendir = real!(opendir: fn(*const c_char) -> *mut DIR);
        if !is_ours(path) { return opendir(path) }
        within(path, std::ptr::null_mut(), |path| opendir(path.as_ptr()))
    }
    fn chdir(path: *const c_char) -> c_int {
        let chdir = real!(chdir: fn(*const c_char) -> c_int);
        if !is_ours(path) { return chdir(path) }
        within(path, -1, |path| chdir(path.as_ptr()))
    }
    fn scandir(path: *const c_char, names: Names, filter: Filter, order: Order) -> c_int {
        let scandir = real!(scandir: fn(*const c_char, Names, Filter, Order) -> c_int);
        if !is_ours(path) { return scandir(path, names, filter, order) }
        within(path, -1, |path| scandir(path.as_ptr(), names, filter, order))
    }
    fn scandir64(path: *const c_char, names: Names, filter: Filter, order: Order) -> c_int {
        let scandir = real!(scandir64: fn(*const c_char, Names, Filter, Order) -> c_int);
        if !is_ours(path) { return scandir(path, names, filter, order) }
        within(path, -1, |path| scandir(path.as_ptr(), names, filter, order))
    }
    fn scandirat(folder: c_int, path: *const c_char, names: Names, filter: Filter, order: Order) -> c_int {
        let scandirat = real!(scandirat: fn(c_int, *const c_char, Names, Filter, Order) -> c_int);
        if !is_ours(path) { return scandirat(folder, path, names, filter, order) }
        within(path, -1, |path| scandirat(AT_FDCWD, path.as_ptr(), names, filter, order))
    }
    fn scandirat64(folder: c_int, path: *const c_char, names: Names, filter: Filter, order: Order) -> c_int {
        let scandirat = real!(scandirat64: fn(c_int, *const c_char, Names, Filter, Order) -> c_int);
        if !is_ours(path) { return scandirat(folder, path, names, filter, order) }
        within(path, -1, |path| scandirat(AT_FDCWD, path.as_ptr(), names, filter, order))
    }
}

// -------------------------------------------------------------------------------------------------- links

/// `realpath` of a path of the tree, told as the path that the program believes in.
unsafe fn resolve_within(path: *const c_char, resolved: *mut c_char) -> *mut c_char {
    // SAFETY: a buffer of PATH_MAX is what realpath wants; the caller's is as large by realpath's contract.
    unsafe {
        let realpath = real!(realpath: fn(*const c_char, *mut c_char) -> *mut c_char);
        within(path, std::ptr::null_mut(), |path| {
            let mut buffer = [0 as c_char; libc::PATH_MAX as usize];
            if realpath(path.as_ptr(), buffer.as_mut_ptr()).is_null() {
                return std::ptr::null_mut();
            }
            // Out of the tree by way of "..": there the program would have found the system's folders.
            let Some(name) = outside(CStr::from_ptr(buffer.as_ptr()).to_bytes()) else {
                set_errno(Errno(libc::ENOENT));
                return std::ptr::null_mut();
            };
            let result =
                if resolved.is_null() { libc::malloc(name.len() + 1).cast::<c_char>() } else { resolved };
            if !result.is_null() {
                result.copy_from_nonoverlapping(name.as_ptr().cast(), name.len());
                *result.add(name.len()) = 0;
            }
            result
        })
    }
}

interposed! {
    fn realpath(path: *const c_char, resolved: *mut c_char) -> *mut c_char {
        if is_ours(path) { return resolve_within(path, resolved) }
        real!(realpath: fn(*const c_char, *mut c_char) -> *mut c_char)(path, resolved)
    }
    fn __realpath_chk(path: *const c_char, resolved: *mut c_char, size: size_t) -> *mut c_char {
        if is_ours(path) && size >= libc::PATH_MAX as usize { return resolve_within(path, resolved) }
        real!(__realpath_chk: fn(*const c_char, *mut c_char, size_t) -> *mut c_char)(path, resolved, size)
    }
    fn canonicalize_file_name(path: *const c_char) -> *mut c_char {
        if is_ours(path) { return resolve_within(path, std::ptr::null_mut()) }
        real!(canonicalize_file_name: fn(*const c_char) -> *mut c_char)(path)
    }
    fn readlink(path: *const c_char, buffer: *mut c_char, size: size_t) -> ssize_t {
        let readlink = real!(readlink: fn(*const c_char, *mut c_char, size_t) -> ssize_t);
        if !is_ours(path) { return readlink(path, buffer, size) }
        within(path, -1, |path| readlink(path.as_ptr(), buffer, size))
    }
    fn __readlink_chk(path: *const c_char, buffer: *mut c_char, size: size_t, room: size_t) -> ssize_t {
        let readlink = real!(__readlink_chk: fn(*const c_char, *mut c_char, size_t, size_t) -> ssize_t);
        if !is_ours(path) { return readlink(path, buffer, size, room) }
        within(path, -1, |path| readlink(path.as_ptr(), buffer, size, room))
    }
    fn readlinkat(folder: c_int, path: *const c_char, buffer: *mut c_char, size: size_t) -> ssize_t {
        let readlinkat = real!(readlinkat: fn(c_int, *const c_char, *mut c_char, size_t) -> ssize_t);
        if !is_ours(path) { return readlinkat(folder, path, buffer, size) }
        within(path, -1, |path| readlinkat(AT_FDCWD, path.as_ptr(), buffer, size))
    }
    fn __readlinkat_chk(
        folder: c_int, path: *const c_char, buffer: *mut c_char, size: size_t, room: size_t
    ) -> ssize_t {
        let readlinkat =
            real!(__readlinkat_chk: fn(c_int, *const c_char, *mut c_char, size_t, size_t) -> ssize_t);
        if !is_ours(path) { return readlinkat(folder, path, buffer, size, room) }
        within(path, -1, |path| readlinkat(AT_FDCWD, path.as_ptr(), buffer, size, room))
    }
}

// ---------------------------------------------------------------------------------------------- attributes

interposed! {
    fn getxattr(path: *const c_char, name: *const c_char, value: *mut c_void, size: size_t) -> ssize_t {
        let getxattr = real!(getxattr: fn(*const c_char, *const c_char, *mut c_void, size_t) -> ssize_t);
        if !is_ours(path) { return getxattr(path, name, value, size) }
        within(path, -1, |path| getxattr(path.as_ptr(), name, value, size))
    }
    fn lgetxattr(path: *const c_char, name: *const c_char, value: *mut c_void, size: size_t) -> ssize_t {
        let getxattr = real!(lgetxattr: fn(*const c_char, *const c_char, *mut c_void, size_t) -> ssize_t);
        if !is_ours(path) { return getxattr(path, name, value, size) }
        within(path, -1, |path| getxattr(path.as_ptr(), name, value, size))
    }
}
