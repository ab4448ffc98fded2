//! The answers of functions that the device does not have, one for each return convention. They take no
//! arguments, which the C calling conventions of the supported platforms allow: what the caller passed is
//! simply not looked at. `exports.txt` binds the names.

use std::ffi::{c_int, c_uint, c_void};

use crate::boundary::{Errno, set_errno};

/// Returns `EOPNOTSUPP`.
pub extern "C" fn unsupported_errno() -> c_int {
    libc::EOPNOTSUPP
}

/// Returns -1 and sets `errno`.
pub extern "C" fn unsupported_minus_one() -> isize {
    set_errno(Errno(libc::EOPNOTSUPP));
    -1
}

/// Returns null and sets `errno`.
pub extern "C" fn unsupported_pointer() -> *mut c_void {
    set_errno(Errno(libc::EOPNOTSUPP));
    std::ptr::null_mut()
}

/// Returns 0, where the convention has no error.
pub extern "C" fn unsupported_zero() -> c_uint {
    0
}

/// Returns nothing.
pub extern "C" fn unsupported_nothing() {}
