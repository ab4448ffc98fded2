//! What concerns the process and the machine instead of a device: fork, sysfs files, provider registration.

use std::ffi::{c_char, c_int, c_void};

use crate::abi::IBV_FORK_UNNEEDED;
use crate::boundary::{Errno, minus_one};
use crate::{memory, paths};

/// ibv_fork_init(3). No page is pinned and nothing is shared with hardware, so `fork` needs no preparation.
pub extern "C" fn ibv_fork_init() -> c_int {
    0
}

/// ibv_is_fork_initialized(3)
pub extern "C" fn ibv_is_fork_initialized() -> u32 {
    IBV_FORK_UNNEEDED
}

/// Keeps a range out of children: not needed here.
pub extern "C" fn ibv_dontfork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}

/// Undoes [`ibv_dontfork_range`].
pub extern "C" fn ibv_dofork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}

/// Where sysfs is: the private tree, so that a program finds the device there without the interposer too.
pub extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    paths::sysfs_path().as_ptr()
}

/// Reads the file `directory`/`file`, drops the newline at its end and terminates it. Returns the length.
///
/// # Safety
/// The pointers are what the program passed.
pub unsafe extern "C" fn ibv_read_sysfs_file(
    directory: *const c_char,
    file: *const c_char,
    buffer: *mut c_char,
    size: usize,
) -> c_int {
    minus_one(|| {
        // SAFETY: memory checks the caller's pointers.
        let (directory, file) =
            unsafe { (memory::read_string(directory, 4096)?, memory::read_string(file, 4096)?) };
        let mut path = directory;
        path.push(b'/');
        path.extend_from_slice(&file);
        let mut text = paths::read_file(&path, size.min(1 << 20))?;
        if text.last() == Some(&b'\n') {
            text.pop();
        }
        if text.len() >= size {
            return Err(Errno(libc::EINVAL));
        }
        let length = text.len();
        text.push(0);
        // SAFETY: `text` is ours, `buffer` the caller's.
        unsafe { memory::write_bytes(buffer.cast(), text.as_ptr(), text.len())? };
        Ok(length as c_int)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    #[test]
    fn a_file_is_read_without_its_newline() {
        let folder = std::env::temp_dir().join(format!("urxe-sysfs-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("the temporary folder is writable");
        std::fs::write(folder.join("rate"), "100 Gb/sec\n").expect("writable");
        let directory = std::ffi::CString::new(folder.to_str().expect("UTF-8")).expect("no NUL");
        let mut buffer = [1 as c_char; 32];
        // SAFETY: all pointers are good.
        unsafe {
            let read = |size, buffer: &mut [c_char; 32]| {
                ibv_read_sysfs_file(directory.as_ptr(), c"rate".as_ptr(), buffer.as_mut_ptr(), size)
            };
            assert_eq!(read(32, &mut buffer), 10);
            assert_eq!(CStr::from_ptr(buffer.as_ptr()), c"100 Gb/sec");
            assert_eq!(read(10, &mut buffer), -1, "no room for the terminator");
            assert_eq!(read(0, &mut buffer), -1);
            assert_eq!(
                ibv_read_sysfs_file(directory.as_ptr(), c"absent".as_ptr(), buffer.as_mut_ptr(), 32),
                -1
            );
            assert_eq!(ibv_read_sysfs_file(std::ptr::null(), c"x".as_ptr(), buffer.as_mut_ptr(), 32), -1);
        }
        std::fs::remove_dir_all(&folder).expect("removable");
    }
}
