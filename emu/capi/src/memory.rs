//! Reading the program's structures and writing to them, on calls that are not on the data path.
//!
//! A pointer may be null, misaligned or wild. The copy is made by the kernel (`process_vm_readv` on the own
//! process), which answers `EFAULT` where a direct access would kill the program. Where a sandbox forbids
//! that call, the copy is direct: then a wild pointer does what it does in any C library.

use std::ffi::{CStr, c_char, c_void};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, Ordering};

use device::mem::{HostAddr, copy as guarded};

use crate::boundary::{Errno, Outcome, last_errno};

/// Whether the kernel refused to copy for us, once.
static DIRECT: AtomicBool = AtomicBool::new(false);

/// Copies `length` bytes of the program's memory.
///
/// # Safety
/// `to` is valid for writes of `length` bytes and this library's own; `from` may be anything.
pub unsafe fn read_bytes(to: *mut u8, from: *const u8, length: usize) -> Outcome<()> {
    // SAFETY: passed on.
    unsafe { copy(to, from, length, false) }
}

/// Copies `length` bytes to the program's memory.
///
/// # Safety
/// `from` is valid for reads of `length` bytes and this library's own; `to` may be anything.
pub unsafe fn write_bytes(to: *mut u8, from: *const u8, length: usize) -> Outcome<()> {
    // SAFETY: passed on.
    unsafe { copy(to, from, length, true) }
}

/// Whether `count` values can be read: for lists on the data path, where a system call would cost too much. They are
/// copied once under the device's guard, a few nanoseconds each, and then used where they are.
#[inline]
pub fn readable<T>(list: *const T, count: usize) -> Outcome<()> {
    let mut scratch = [MaybeUninit::<u8>::uninit(); 512];
    let (start, mut left) = (list.addr() as u64, count * size_of::<T>());
    let mut at = start;
    while left > 0 {
        let piece = left.min(scratch.len());
        guarded::read_uninit(HostAddr(at), &mut scratch[..piece]).map_err(|_| Errno(libc::EFAULT))?;
        at += piece as u64;
        left -= piece;
    }
    Ok(())
}

/// Writes a value to the program's memory, on the data path.
#[inline]
pub fn write_guarded<T: Copy>(to: *mut T, value: &T) -> Outcome<()> {
    // SAFETY: the bytes of a value that lives; padding is not looked at, only copied.
    let bytes = unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast::<u8>(), size_of::<T>()) };
    guarded::write(HostAddr(to.addr() as u64), bytes).map_err(|_| Errno(libc::EFAULT))
}

unsafe fn copy(to: *mut u8, from: *const u8, length: usize, write: bool) -> Outcome<()> {
    if to.is_null() || from.is_null() {
        return Err(Errno(libc::EINVAL));
    }
    if !DIRECT.load(Ordering::Relaxed) {
        let to_vector = libc::iovec { iov_base: to.cast(), iov_len: length };
        let from_vector = libc::iovec { iov_base: from.cast_mut().cast(), iov_len: length };
        // SAFETY: the local vector is this library's memory by the contract above, and the kernel checks the
        // remote one. getpid is that of this process, so a fork's child reads its own memory.
        let copied = unsafe {
            let process = libc::getpid();
            if write {
                libc::process_vm_writev(process, &from_vector, 1, &to_vector, 1, 0)
            } else {
                libc::process_vm_readv(process, &to_vector, 1, &from_vector, 1, 0)
            }
        };
        if usize::try_from(copied) == Ok(length) {
            return Ok(());
        }
        if copied >= 0 || last_errno() == Errno(libc::EFAULT) {
            return Err(Errno(libc::EFAULT));
        }
        DIRECT.store(true, Ordering::Relaxed);
    }
    // SAFETY: as good as the program's pointer.
    unsafe { std::ptr::copy_nonoverlapping(from, to, length) };
    Ok(())
}

/// Reads a structure.
///
/// # Safety
/// Every bit pattern is valid for `T`; `from` may be anything.
pub unsafe fn read<T: Copy>(from: *const T) -> Outcome<T> {
    let mut value = MaybeUninit::<T>::uninit();
    // SAFETY: `value` is ours, and fully written when the copy succeeds.
    unsafe {
        read_bytes(value.as_mut_ptr().cast(), from.cast(), size_of::<T>())?;
        Ok(value.assume_init())
    }
}

/// Reads the first `length` bytes of a structure whose size the caller knows differently; the rest is zero.
///
/// # Safety
/// Every bit pattern is valid for `T`, all zeroes too; `from` may be anything.
pub unsafe fn read_prefix<T: Copy>(from: *const T, length: usize) -> Outcome<T> {
    let mut value = MaybeUninit::<T>::zeroed();
    // SAFETY: `value` is ours and initialised.
    unsafe {
        read_bytes(value.as_mut_ptr().cast(), from.cast(), length.min(size_of::<T>()))?;
        Ok(value.assume_init())
    }
}

/// Writes a structure.
///
/// # Safety
/// `to` may be anything.
pub unsafe fn write<T: Copy>(to: *mut T, value: T) -> Outcome<()> {
    // SAFETY: `value` is ours.
    unsafe { write_bytes(to.cast(), (&raw const value).cast(), size_of::<T>()) }
}

/// Writes as much of a structure as the caller has room for, and zeroes beyond it.
///
/// # Safety
/// `to` may be anything.
pub unsafe fn write_sized<T: Copy>(to: *mut c_void, value: T, size: usize) -> Outcome<()> {
    let known = size.min(size_of::<T>());
    // SAFETY: `value` and `zeroes` are ours.
    unsafe {
        write_bytes(to.cast(), (&raw const value).cast(), known)?;
        let zeroes = [0u8; 256];
        let mut at = known;
        while at < size {
            let part = (size - at).min(zeroes.len());
            write_bytes(to.cast::<u8>().wrapping_add(at), zeroes.as_ptr(), part)?;
            at += part;
        }
    }
    Ok(())
}

/// Reads a C string of at most `limit` bytes.
///
/// # Safety
/// `from` may be anything.
pub unsafe fn read_string(from: *const c_char, limit: usize) -> Outcome<Vec<u8>> {
    let mut text = Vec::new();
    let mut chunk = [0u8; 256];
    while text.len() <= limit {
        let at = from.cast::<u8>().wrapping_add(text.len());
        // Not across a page: the string may end before an unmapped one.
        let part = (4096 - at.addr() % 4096).min(chunk.len());
        // SAFETY: `chunk` is ours.
        unsafe { read_bytes(chunk.as_mut_ptr(), at, part)? };
        if let Ok(end) = CStr::from_bytes_until_nul(&chunk[..part]) {
            text.extend_from_slice(end.to_bytes());
            return Ok(text);
        }
        text.extend_from_slice(&chunk[..part]);
    }
    Err(Errno(libc::ENAMETOOLONG))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wild_and_null_pointers_are_errors() {
        // SAFETY: what is tested is that anything may be passed.
        unsafe {
            assert_eq!(read::<u64>(std::ptr::null()), Err(Errno(libc::EINVAL)));
            assert_eq!(read(0x10 as *const u64), Err(Errno(libc::EFAULT)));
            assert_eq!(read(0xdead_beef_0000 as *const u64), Err(Errno(libc::EFAULT)));
            assert_eq!(write(0x8000_0000_0000_0000 as *mut u64, 1), Err(Errno(libc::EFAULT)));
            let constant: &'static [u8; 4] = b"text";
            assert_eq!(write(constant.as_ptr().cast_mut(), 1), Err(Errno(libc::EFAULT)), "read-only memory");
        }
    }

    #[test]
    fn values_are_copied() {
        let mut there = 5u32;
        // SAFETY: as above.
        unsafe {
            assert_eq!(read(&raw const there), Ok(5));
            write(&raw mut there, 9).expect("writable");
        }
        assert_eq!(there, 9);
    }

    #[test]
    fn a_shorter_or_longer_caller_gets_what_fits_and_zeroes() {
        let mut room = [0xffu8; 600];
        // SAFETY: as above.
        unsafe {
            write_sized(room.as_mut_ptr().cast(), 0x0102_0304u32.to_be(), 2).expect("writable");
            assert_eq!(room[..3], [1, 2, 0xff]);
            write_sized(room.as_mut_ptr().cast(), 0x0102_0304u32.to_be(), 599).expect("writable");
        }
        assert_eq!(room[..5], [1, 2, 3, 4, 0]);
        assert_eq!(room[598..], [0, 0xff]);
    }

    #[test]
    fn a_string_that_ends_at_the_end_of_a_mapping_is_read() {
        let size = 8192;
        // SAFETY: a fresh anonymous mapping whose second page is taken away again.
        unsafe {
            let map = libc::mmap(
                std::ptr::null_mut(),
                size,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            assert_ne!(map, libc::MAP_FAILED);
            libc::munmap(map.byte_add(4096), 4096);
            let text = map.cast::<u8>().add(4096 - 4);
            text.copy_from_nonoverlapping(c"abc".as_ptr().cast(), 4);
            assert_eq!(read_string(text.cast(), 100).expect("readable"), b"abc");
            *text.add(3) = b'd';
            assert_eq!(read_string(text.cast(), 100), Err(Errno(libc::EFAULT)));
            assert_eq!(read_string(text.cast(), 3), Err(Errno(libc::ENAMETOOLONG)));
            libc::munmap(map, 4096);
        }
    }
}
