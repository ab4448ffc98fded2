//! Starts a program that is nobody's child, from within a program that knows nothing of it.
//!
//! The program may have many threads, handlers of SIGCHLD, and calls of wait() that take any child. So there is no
//! fork, whose handlers are the program's and which copies its page tables; instead a first process is cloned that
//! shares the memory (as posix_spawn does), makes a second one that executes the daemon, and ends. The first one sends no
//! signal when it ends and is not found by wait(); the second one is an orphan from the start.

#![allow(unsafe_code)]

use std::ffi::{CString, c_char, c_int, c_void};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::pipe::PipeFlags;

/// Stack of each of the two processes.
const STACK: usize = 64 << 10;

/// What the two processes work on. It is made before the first one starts: they must not allocate.
struct Plan {
    path: *const c_char,
    arguments: *const *const c_char,
    environment: *const *const c_char,
    /// Becomes standard output and standard error.
    output: RawFd,
    /// Becomes standard input.
    null: RawFd,
    /// Top of the second one's stack.
    stack: *mut c_void,
    /// Why it went wrong; 0 if it did not.
    error: c_int,
}

/// Executes a program; returns the reading end of a pipe that is its standard output and standard error.
pub(super) fn spawn(program: &Path, arguments: &[&str]) -> io::Result<OwnedFd> {
    let path = CString::new(program.as_os_str().as_bytes())?;
    let mut texts = vec![path.clone()];
    for argument in arguments {
        texts.push(CString::new(*argument)?);
    }
    let environment = super::environment();
    let pointers = |texts: &[CString]| {
        texts.iter().map(|t| t.as_ptr()).chain([std::ptr::null()]).collect::<Vec<*const c_char>>()
    };
    let (argument_list, environment_list) = (pointers(&texts), pointers(&environment));
    let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    let writer = above_standard(writer)?;
    let null = above_standard(std::fs::File::options().read(true).write(true).open("/dev/null")?.into())?;
    let mut stacks = [vec![0u128; STACK / 16], vec![0u128; STACK / 16]];
    let [first, second] = stacks.each_mut().map(|s| s.as_mut_ptr_range().end.cast::<c_void>());
    let mut plan = Plan {
        path: path.as_ptr(),
        arguments: argument_list.as_ptr(),
        environment: environment_list.as_ptr(),
        output: writer.as_raw_fd(),
        null: null.as_raw_fd(),
        stack: second,
        error: 0,
    };
    // Handlers of the program must not run in its children, which share its memory.
    let pid = with_all_signals_blocked(|| {
        // SAFETY: the stack is ours alone and long enough for what `first_process` does; the parent does not run before
        // the child has ended (VFORK), so the plan and what it points to outlive it. No exit signal: wait() without
        // __WCLONE does not find it.
        unsafe {
            let flags = libc::CLONE_VM | libc::CLONE_VFORK;
            match libc::clone(first_process, first, flags, (&raw mut plan).cast()) {
                -1 => Err(io::Error::last_os_error()),
                pid => Ok(pid),
            }
        }
    })?;
    reap(pid);
    match plan.error {
        0 => Ok(reader),
        number => Err(io::Error::from_raw_os_error(number)),
    }
}

/// The program may have closed its standard descriptors; what is moved onto them must not be one of them.
fn above_standard(descriptor: OwnedFd) -> io::Result<OwnedFd> {
    if descriptor.as_raw_fd() > 2 {
        return Ok(descriptor);
    }
    Ok(rustix::io::fcntl_dupfd_cloexec(&descriptor, 3)?)
}

fn reap(pid: c_int) {
    loop {
        // SAFETY: no status is asked for.
        let result = unsafe { libc::waitpid(pid, std::ptr::null_mut(), libc::__WCLONE) };
        if result != -1 || io::Error::last_os_error().raw_os_error() != Some(libc::EINTR) {
            return;
        }
    }
}

/// Makes the second process and ends.
extern "C" fn first_process(plan: *mut c_void) -> c_int {
    // SAFETY: the plan is alive (see `spawn`) and nobody else uses it until this process has ended. Only system calls
    // are made here and in `second_process`. The second stack is free until the second process has executed or ended.
    unsafe {
        let flags = libc::CLONE_VM | libc::CLONE_VFORK;
        let pid = libc::clone(second_process, (*plan.cast::<Plan>()).stack, flags, plan);
        if pid == -1 {
            (*plan.cast::<Plan>()).error = *libc::__errno_location();
        }
    }
    0
}

/// Executes the program.
extern "C" fn second_process(plan: *mut c_void) -> c_int {
    /// Bytes of the kernel's signal set.
    const SET: usize = 8;
    // SAFETY: as in `first_process`. The lists end with a null pointer and their texts with a NUL. Bare system calls
    // throughout: the functions of these names may be the program's own. Zeros are the kernel's `struct sigaction` for
    // the default action, and an empty signal set.
    unsafe {
        let plan = plan.cast::<Plan>();
        libc::syscall(libc::SYS_setsid);
        // Signals that the program ignores or blocks are not the daemon's business.
        let zeros = [0u64; 4];
        for signal in 1..32 {
            libc::syscall(libc::SYS_rt_sigaction, signal, zeros.as_ptr(), std::ptr::null_mut::<u64>(), SET);
        }
        let moved = [((*plan).null, 0), ((*plan).output, 1), ((*plan).output, 2)]
            .iter()
            .all(|(from, to)| libc::syscall(libc::SYS_dup3, *from, *to, 0) != -1);
        // What the program has open without CLOEXEC stays the program's. Kernels before 5.11 do not know the call; then
        // the daemon closes them.
        libc::syscall(libc::SYS_close_range, 3, c_int::MAX, libc::CLOSE_RANGE_CLOEXEC);
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            zeros.as_ptr(),
            std::ptr::null_mut::<u64>(),
            SET,
        );
        if moved {
            libc::syscall(libc::SYS_execve, (*plan).path, (*plan).arguments, (*plan).environment);
        }
        (*plan).error = *libc::__errno_location();
    }
    127
}

/// Runs `f` with every signal blocked.
fn with_all_signals_blocked<T>(f: impl FnOnce() -> T) -> T {
    with_mask(&[], f)
}

/// Runs `f` with all signals blocked, so that a thread that it starts has them blocked: a thread inside somebody else's
/// program must not take its signals. Faults are its own.
pub(crate) fn with_signals_blocked<T>(f: impl FnOnce() -> T) -> T {
    with_mask(&[libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP], f)
}

fn with_mask<T>(open: &[c_int], f: impl FnOnce() -> T) -> T {
    // SAFETY: the sets are initialised by the calls that get them, and the old mask is put back.
    unsafe {
        let mut all = std::mem::zeroed();
        let mut old = std::mem::zeroed();
        libc::sigfillset(&mut all);
        for signal in open {
            libc::sigdelset(&mut all, *signal);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut old);
        let result = f();
        libc::pthread_sigmask(libc::SIG_SETMASK, &old, std::ptr::null_mut());
        result
    }
}
