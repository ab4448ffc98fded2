//! `sigaction` and `signal` for SIGSEGV and SIGBUS: the guard that keeps a wild pointer from killing the
//! program has to stay in front of the program's own handlers, without the program noticing.
//!
//! Every other signal goes to libc untouched. Nothing here allocates, and the device's side is
//! async-signal-safe, as these functions have to be.

use std::ffi::{c_int, c_void};

use device::mem::guard::program_sigaction;
use libc::{sigaction as Action, sighandler_t};

use crate::paths::real::{Real, real};

/// Whether the guard may care about the signal.
fn is_fault(signal: c_int) -> bool {
    signal == libc::SIGSEGV || signal == libc::SIGBUS
}

/// `signal` as a call of `sigaction` with these flags; `None` if the guard does not want it.
fn replaced(signal: c_int, handler: sighandler_t, flags: c_int, masked: bool) -> Option<sighandler_t> {
    // SAFETY: an all-zero sigaction is valid: the default action, an empty mask. sigaddset gets a valid set.
    unsafe {
        let mut new: Action = std::mem::zeroed();
        let mut old: Action = std::mem::zeroed();
        new.sa_sigaction = handler;
        new.sa_flags = flags;
        if masked {
            libc::sigaddset(&mut new.sa_mask, signal);
        }
        program_sigaction(signal, Some(&new), Some(&mut old)).then_some(old.sa_sigaction)
    }
}

/// sigaction(2)
///
/// # Safety
/// As for libc's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn sigaction(signal: c_int, new: *const Action, old: *mut Action) -> c_int {
    // SAFETY: the pointers are null or good by sigaction's contract.
    unsafe {
        if is_fault(signal) && program_sigaction(signal, new.as_ref(), old.as_mut()) {
            return 0;
        }
        real!(sigaction: fn(c_int, *const Action, *mut Action) -> c_int)(signal, new, old)
    }
}

/// The name that libc's own parts and some programs use for [`sigaction`].
///
/// # Safety
/// As for libc's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn __sigaction(signal: c_int, new: *const Action, old: *mut Action) -> c_int {
    // SAFETY: passed on.
    unsafe { sigaction(signal, new, old) }
}

/// Defines one of libc's relatives of `signal`.
macro_rules! signal_functions {
    ($($(#[$doc:meta])* $name:ident, $flags:expr, $masked:literal;)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// As for libc's.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name(signal: c_int, handler: sighandler_t) -> sighandler_t {
            if is_fault(signal) && let Some(old) = replaced(signal, handler, $flags, $masked) {
                return old;
            }
            // SAFETY: the arguments are those of libc's function.
            unsafe { real!($name: fn(c_int, sighandler_t) -> sighandler_t)(signal, handler) }
        }
    )*};
}

signal_functions! {
    /// signal(2), with BSD's meaning as glibc has it.
    signal, libc::SA_RESTART, true;
    /// Another name of [`signal`].
    bsd_signal, libc::SA_RESTART, true;
    /// Another name of [`signal`].
    ssignal, libc::SA_RESTART, true;
    /// sysv_signal(3): the handler runs once, and the signal is not blocked while it does.
    sysv_signal, libc::SA_RESETHAND | libc::SA_NODEFER, false;
    /// The name under which `signal` of a System V program arrives.
    __sysv_signal, libc::SA_RESETHAND | libc::SA_NODEFER, false;
}
