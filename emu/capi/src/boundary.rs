//! The way in and out of every exported function: nothing unwinds into C, and an error takes the form that
//! the function's manual page gives it.
//!
//! verbs has three conventions: a positive errno returned, -1 with `errno` set, and a null pointer with
//! `errno` set. A body returns `Result<_, Errno>` and names the convention by the function it is wrapped in.

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

/// An errno value, never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub c_int);

/// What a body returns.
pub type Outcome<T> = Result<T, Errno>;

/// What a caught panic is reported as: the device failed, not the argument.
const PANICKED: Errno = Errno(libc::EIO);

/// Sets the calling thread's `errno`.
pub fn set_errno(error: Errno) {
    // SAFETY: __errno_location returns the address of the calling thread's errno.
    unsafe { *libc::__errno_location() = error.0 }
}

/// The calling thread's `errno`.
pub fn last_errno() -> Errno {
    // SAFETY: as in set_errno.
    Errno(unsafe { *libc::__errno_location() })
}

/// Keeps a panic of this library from writing to the program's standard error; it goes to the log instead.
/// The hook belongs to this library's own copy of std, so a Rust program's hook stays as it is.
pub fn quiet_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        std::panic::set_hook(Box::new(|info| tracing::error!("internal error: {info}")));
    });
}

/// Runs a body; a panic becomes an error like any other.
pub fn guarded<T>(body: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(outcome) => outcome,
        Err(payload) => {
            // Dropping the payload runs code that may panic in its turn.
            std::mem::forget(payload);
            Err(PANICKED)
        }
    }
}

/// 0, or a positive errno.
pub fn errno(body: impl FnOnce() -> Outcome<()>) -> c_int {
    match guarded(body) {
        Ok(()) => 0,
        Err(error) => error.0,
    }
}

/// A value of 0 or more, or -1 with `errno` set.
pub fn minus_one(body: impl FnOnce() -> Outcome<c_int>) -> c_int {
    match guarded(body) {
        Ok(value) => value,
        Err(error) => {
            set_errno(error);
            -1
        }
    }
}

/// As [`minus_one`], for functions that return a size.
pub fn minus_one_size(body: impl FnOnce() -> Outcome<isize>) -> isize {
    match guarded(body) {
        Ok(value) => value,
        Err(error) => {
            set_errno(error);
            -1
        }
    }
}

/// A pointer, or null with `errno` set.
pub fn pointer<T>(body: impl FnOnce() -> Outcome<*mut T>) -> *mut T {
    match guarded(body) {
        Ok(pointer) => pointer,
        Err(error) => {
            set_errno(error);
            std::ptr::null_mut()
        }
    }
}

/// A value that cannot be an error: `fallback` stands for it if the body fails.
pub fn value<T>(fallback: T, body: impl FnOnce() -> Outcome<T>) -> T {
    guarded(body).unwrap_or(fallback)
}

/// No result: an error is not told.
pub fn nothing(body: impl FnOnce() -> Outcome<()>) {
    _ = guarded(body);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_an_error_of_each_convention() {
        quiet_panics();
        assert_eq!(errno(|| panic!("inside")), libc::EIO);
        assert_eq!(minus_one(|| panic!("inside")), -1);
        assert_eq!(last_errno(), Errno(libc::EIO));
        assert!(pointer::<u8>(|| panic!("inside")).is_null());
        assert_eq!(value(7, || panic!("inside")), 7);
        nothing(|| panic!("inside"));
    }

    #[test]
    fn an_error_is_returned_as_each_convention_says() {
        assert_eq!(errno(|| Err(Errno(libc::EINVAL))), libc::EINVAL);
        assert_eq!(minus_one(|| Err(Errno(libc::EAGAIN))), -1);
        assert_eq!(last_errno(), Errno(libc::EAGAIN));
        assert!(pointer::<u8>(|| Err(Errno(libc::ENOMEM))).is_null());
        assert_eq!(last_errno(), Errno(libc::ENOMEM));
    }
}
