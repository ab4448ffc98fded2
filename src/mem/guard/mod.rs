//! The guard around every copy: a page fault that the kernel cannot resolve ends the copy, not the program.
//!
//! A program may hand the device a wild pointer, or unmap, protect or truncate memory that is still registered. There
//! are two ways to survive that:
//!
//! - [`GuardMode::Signal`] (x86-64): the copies are short leaf routines in assembly whose code is one contiguous
//!   range. A handler for SIGSEGV and SIGBUS looks at the interrupted program counter; inside that range it moves it to
//!   a landing pad that returns the faulting address, outside it does what the program's own action says. This
//!   needs no per-thread state, so it works in any thread, on any stack and in a child after `fork`, and costs nothing
//!   until a fault happens.
//! - [`GuardMode::Kernel`]: `process_vm_readv` and `process_vm_writev` on ourselves. They return EFAULT, at the price of
//!   a system call for each copy (0.4 µs against 2 ns, for 64 bytes). For programs that insist on owning the signals
//!   or on blocking them (see [`ready_thread`]). Its atomics have a gap that user space cannot close: see
//!   [`kernel`].
//!
//! Handlers are installed by the first registration of memory, never earlier, and re-checked by each later
//! one. A program that installs its own afterwards would displace them, so the drop-in library sends its `sigaction` and
//! `signal` through [`program_sigaction`]. A program that escapes that (a raw system call) takes the signals
//! until the next registration, which puts ours in front of it again.

pub mod kernel;
#[cfg(target_arch = "x86_64")]
pub(super) mod x86_64;

use std::sync::atomic::{AtomicU8, Ordering};

/// How copies survive bad pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GuardMode {
    /// Signal handlers; x86-64 only, elsewhere the same as [`GuardMode::Kernel`].
    Signal,
    /// System calls.
    Kernel,
}

const WANT_SIGNAL: u8 = 0;
const WANT_KERNEL: u8 = 1;
const SIGNAL: u8 = 2;

/// Until the handlers are in place, copies go through the kernel, so there is no moment without a guard.
static MODE: AtomicU8 = AtomicU8::new(WANT_SIGNAL);

/// Chooses the mode for the whole process, from now on. Handlers that are installed already stay, and pass on what is
/// not theirs.
pub fn set_mode(mode: GuardMode) {
    let value = match mode {
        GuardMode::Signal => WANT_SIGNAL,
        GuardMode::Kernel => WANT_KERNEL,
    };
    MODE.store(value, Ordering::Release);
    if mode == GuardMode::Signal {
        ensure();
    }
}

/// The mode that copies use at this moment.
pub fn mode() -> GuardMode {
    if is_signal() { GuardMode::Signal } else { GuardMode::Kernel }
}

#[inline(always)]
pub(super) fn is_signal() -> bool {
    cfg!(target_arch = "x86_64") && MODE.load(Ordering::Relaxed) == SIGNAL
}

/// Installs the handlers if the mode wants them, or puts them back in front if something displaced them. Called by
/// each registration; cheap when there is nothing to do (two system calls).
pub fn ensure() {
    #[cfg(target_arch = "x86_64")]
    if MODE.load(Ordering::Acquire) != WANT_KERNEL && x86_64::ensure() {
        // Only from WANT_SIGNAL: a concurrent set_mode(Kernel) must win.
        let _ = MODE.compare_exchange(WANT_SIGNAL, SIGNAL, Ordering::Release, Ordering::Relaxed);
    }
}

/// Makes sure that the calling thread can take a guarded fault: a thread that blocks SIGSEGV is killed by one, with its
/// process. Programs do create threads with all signals blocked and poll completion queues in them.
///
/// To be called where a program's thread enters the device, and at the start of our own threads (which block every
/// signal but these two). After the first time in a thread this is one look at a thread-local. It does nothing
/// while the mode is not [`GuardMode::Signal`].
#[inline]
pub fn ready_thread() {
    #[cfg(target_arch = "x86_64")]
    {
        thread_local! {
            static READY: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
        }
        READY.with(|ready| {
            if !ready.get() && is_signal() {
                x86_64::unblock();
                ready.set(true);
            }
        });
    }
}

/// Runs `f` with all signals blocked, so that a thread that it starts does not take the program's. Faults are not blocked:
/// a guarded copy handles them.
#[allow(unsafe_code)]
pub fn without_signals<T>(f: impl FnOnce() -> T) -> T {
    // SAFETY: the sets are initialised by the calls that get them, and the old mask is put back.
    unsafe {
        let mut all = std::mem::zeroed();
        let mut old = std::mem::zeroed();
        libc::sigfillset(&mut all);
        for fault in [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP] {
            libc::sigdelset(&mut all, fault);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut old);
        let result = f();
        libc::pthread_sigmask(libc::SIG_SETMASK, &old, std::ptr::null_mut());
        result
    }
}

/// What an interposed `sigaction` calls first. Returns whether it is done; if not, the real function must be called.
///
/// While the guard holds SIGSEGV and SIGBUS, the program's action is only recorded as the one to pass foreign
/// faults to, with its mask and flags mirrored to the kernel, and `old` gets the program's own previous action: the
/// program cannot tell that the guard is there. Async-signal-safe, as `sigaction` has to be.
///
/// In a child process that has not registered memory itself, this declines: after `vfork` the child shares this
/// record with its parent but not the signal actions.
pub fn program_sigaction(
    signal: libc::c_int,
    new: Option<&libc::sigaction>,
    old: Option<&mut libc::sigaction>,
) -> bool {
    #[cfg(target_arch = "x86_64")]
    return x86_64::program_sigaction(signal, new, old);
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = (signal, new, old);
        false
    }
}

#[cfg(test)]
pub(in crate::mem) mod tests;
