#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};

use libc::{c_int, c_void};

use super::*;
use crate::mem::{Access, Fault, HostAddr, PdId, Table, copy};

pub(in crate::mem) const PAGE: usize = 4096;
const READ: c_int = libc::PROT_READ;
const WRITE: c_int = libc::PROT_READ | libc::PROT_WRITE;

/// Some pages, unmapped at the end. All access is through pointers: others fault on it, protect it and write it.
pub(in crate::mem) struct Mapping {
    pub(in crate::mem) at: *mut u8,
    pages: usize,
}

// SAFETY: a range of addresses; the tests take care of who does what.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub(in crate::mem) fn new(pages: usize) -> Self {
        // SAFETY: a new private mapping.
        let at = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            libc::mmap(std::ptr::null_mut(), pages * PAGE, WRITE, flags, -1, 0)
        };
        assert_ne!(at, libc::MAP_FAILED);
        Self { at: at.cast(), pages }
    }

    /// Shared pages of a file that has only `present` of them.
    fn of_truncated_file(pages: usize, present: usize) -> Self {
        // SAFETY: a descriptor of our own, closed again; the mapping keeps the file.
        unsafe {
            let fd = libc::memfd_create(c"guard".as_ptr(), libc::MFD_CLOEXEC);
            assert!(fd >= 0);
            assert_eq!(libc::ftruncate(fd, (pages * PAGE) as i64), 0);
            let at = libc::mmap(std::ptr::null_mut(), pages * PAGE, WRITE, libc::MAP_SHARED, fd, 0);
            assert_ne!(at, libc::MAP_FAILED);
            assert_eq!(libc::ftruncate(fd, (present * PAGE) as i64), 0);
            libc::close(fd);
            Self { at: at.cast(), pages }
        }
    }

    pub(in crate::mem) fn host(&self, offset: usize) -> HostAddr {
        HostAddr(self.at as u64 + offset as u64)
    }

    pub(in crate::mem) fn protect(&self, page: usize, protection: c_int) {
        // SAFETY: inside the mapping.
        let result = unsafe { libc::mprotect(self.at.add(page * PAGE).cast(), PAGE, protection) };
        assert_eq!(result, 0);
    }

    /// Takes a page away, but keeps its addresses from being given to somebody else: nothing else in this process maps
    /// with a fixed address, and the hole is between our pages.
    fn unmap(&self, page: usize) {
        // SAFETY: inside the mapping.
        assert_eq!(unsafe { libc::munmap(self.at.add(page * PAGE).cast(), PAGE) }, 0);
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: what `new` mapped.
        unsafe { libc::munmap(self.at.cast(), self.pages * PAGE) };
    }
}

#[derive(PartialEq, Debug)]
enum End {
    Exit(c_int),
    Signal(c_int),
}

/// Runs `body` in a forked child and tells how that ended. A panic is exit code 101, success is 0.
fn in_child(body: impl FnOnce()) -> End {
    // SAFETY: the child only runs `body` and ends without returning into the test harness.
    unsafe {
        let child = libc::fork();
        assert!(child >= 0);
        if child == 0 {
            let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            libc::setrlimit(libc::RLIMIT_CORE, &none);
            // A test that hangs must end too.
            libc::alarm(20);
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
            libc::_exit(if result.is_ok() { 0 } else { 101 });
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        if libc::WIFSIGNALED(status) {
            End::Signal(libc::WTERMSIG(status))
        } else {
            End::Exit(libc::WEXITSTATUS(status))
        }
    }
}

fn action(handler: usize, flags: c_int) -> libc::sigaction {
    // SAFETY: all-zero bytes are a valid sigaction.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler;
    action.sa_flags = flags;
    action
}

fn set(signal: c_int, action: &libc::sigaction) -> libc::sigaction {
    // SAFETY: valid structures; the handlers of these tests do only what a handler may.
    unsafe {
        let mut old = std::mem::zeroed();
        assert_eq!(libc::sigaction(signal, action, &raw mut old), 0);
        old
    }
}

/// Both signals as in a program that never heard of them. The test harness of Rust has handlers of its own.
fn defaults() {
    set(libc::SIGSEGV, &action(libc::SIG_DFL, 0));
    set(libc::SIGBUS, &action(libc::SIG_DFL, 0));
}

fn wild_write(at: *mut u8) {
    // SAFETY: none; that is the point.
    unsafe { at.write_volatile(1) };
}

fn assert_guarded() {
    let missing = HostAddr(24);
    assert_eq!(copy::read(missing, &mut [0; 8]), Err(Fault { addr: 24 }));
    assert_eq!(copy::write(missing, &[0; 8]), Err(Fault { addr: 24 }));
}

static HANDLED: AtomicU64 = AtomicU64::new(0);
static HANDLED_AT: AtomicU64 = AtomicU64::new(0);
static BLOCKED_IN_HANDLER: AtomicU64 = AtomicU64::new(0);
static STACK_IN_HANDLER: AtomicU64 = AtomicU64::new(0);

/// A handler as garbage collectors have it: makes the page accessible, so that the access succeeds.
extern "C" fn make_accessible(signal: c_int, info: *mut libc::siginfo_t, _context: *mut c_void) {
    // SAFETY: called by the kernel, or by our handler with what it got from there.
    unsafe {
        let at = (*info).si_addr() as u64;
        HANDLED.fetch_add(1, Ordering::Relaxed);
        HANDLED_AT.store(at, Ordering::Relaxed);
        let mut blocked: libc::sigset_t = std::mem::zeroed();
        libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &raw mut blocked);
        let bits = [libc::SIGSEGV, libc::SIGUSR1].map(|s| u64::from(libc::sigismember(&blocked, s) == 1));
        BLOCKED_IN_HANDLER.store(bits[0] | bits[1] << 1, Ordering::Relaxed);
        STACK_IN_HANDLER.store((&raw const blocked) as u64, Ordering::Relaxed);
        if signal == libc::SIGSEGV && (*info).si_code > 0 {
            let page = at & !(PAGE as u64 - 1);
            libc::mprotect(page as *mut c_void, PAGE, WRITE);
        }
    }
}

/// One without SA_SIGINFO: it knows the page by itself.
extern "C" fn plain(_signal: c_int) {
    HANDLED.fetch_add(1, Ordering::Relaxed);
    // SAFETY: the mapping of the test that installed this.
    unsafe { libc::mprotect(PLAIN_PAGE.load(Ordering::Relaxed) as *mut c_void, PAGE, WRITE) };
}
static PLAIN_PAGE: AtomicU64 = AtomicU64::new(0);

fn handled() -> u64 {
    HANDLED.load(Ordering::Relaxed)
}

fn siginfo_handler() -> usize {
    make_accessible as *const () as usize
}

// ---- faults of ours ----

struct Path {
    read: fn(HostAddr, &mut [u8]) -> Result<(), Fault>,
    write: fn(HostAddr, &[u8]) -> Result<(), Fault>,
    add: fn(HostAddr, u64) -> Result<u64, Fault>,
}

fn both_modes() -> [Path; 2] {
    ensure();
    [
        Path { read: copy::read, write: copy::write, add: copy::fetch_add },
        Path {
            read: kernel::read,
            write: kernel::write,
            add: |at, n| kernel::atomic(at, |word| word.fetch_add(n, Ordering::AcqRel)),
        },
    ]
}

#[test]
fn bad_pages_give_a_fault_with_the_first_bad_address() {
    for path in both_modes() {
        // What is behind the good page; whether it can still be read.
        let protected = Mapping::new(3);
        protected.protect(1, libc::PROT_NONE);
        let read_only = Mapping::new(3);
        read_only.protect(1, READ);
        let unmapped = Mapping::new(3);
        unmapped.unmap(1);
        let truncated = Mapping::of_truncated_file(3, 1);
        for (memory, readable) in
            [(&protected, false), (&read_only, true), (&unmapped, false), (&truncated, false)]
        {
            let bad = memory.host(PAGE).0;
            for len in [1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 64, 65, 100, 500, 1000, 2000, 4000] {
                for before in [0, 1, 2, 3, 5, 8, 9, 13, 16, 31, 64, 100, 999] {
                    let from = memory.host(PAGE - before);
                    let mut buffer = vec![7; len];
                    let expected = if before >= len { Ok(()) } else { Err(Fault { addr: bad }) };
                    let case = format!("{len} bytes, {before} of them good");
                    // A wide access that starts in the good page may report its own start in the bad one only.
                    assert_eq!((path.write)(from, &buffer), expected, "write of {case}");
                    let expected = if readable { Ok(()) } else { expected };
                    assert_eq!((path.read)(from, &mut buffer), expected, "read of {case}");
                }
                assert_eq!((path.write)(memory.host(PAGE + 8), &vec![0; len]), Err(Fault { addr: bad + 8 }));
            }
            for at in [bad, bad + 8, bad + PAGE as u64 - 8] {
                assert_eq!((path.add)(HostAddr(at), 1), Err(Fault { addr: at }));
            }
            assert_eq!((path.add)(memory.host(PAGE - 8), 1), Ok(u64::from_ne_bytes([7; 8])));
        }
    }
}

#[test]
fn addresses_that_no_process_has_give_a_fault() {
    for path in both_modes() {
        for at in
            [0, 1, 0x1000, 1 << 47, 0x8000_0000_0000_0000, 0xffff_8000_0000_0000, u64::MAX - 8, u64::MAX]
        {
            for len in [1, 4, 8, 40, 5000] {
                let mut buffer = vec![0; len];
                let at = HostAddr(at);
                // A range that wraps is caught before; kernel mode is only called with ranges that do not.
                if at.0.checked_add(len as u64).is_none() {
                    assert_eq!(copy::read(at, &mut buffer), Err(Fault { addr: at.0 }));
                    assert_eq!(copy::write(at, &buffer), Err(Fault { addr: at.0 }));
                    continue;
                }
                assert_eq!((path.read)(at, &mut buffer), Err(Fault { addr: at.0 }), "{at:?} {len}");
                if len > 8 || at.0.is_multiple_of(8) {
                    assert_eq!((path.write)(at, &buffer), Err(Fault { addr: at.0 }), "{at:?} {len}");
                }
            }
        }
        for at in [0, 8, 1 << 47, u64::MAX - 7] {
            assert_eq!((path.add)(HostAddr(at), 1), Err(Fault { addr: at }));
        }
    }
}

#[test]
fn what_was_copied_before_the_fault_is_right_and_nothing_else_is_touched() {
    for path in both_modes() {
        let memory = Mapping::new(2);
        memory.protect(1, libc::PROT_NONE);
        let data: Vec<u8> = (0..4000_u32).map(|i| (i % 251) as u8 + 1).collect();
        for good in [1, 10, 63, 64, 100, 1500] {
            // SAFETY: the first page is accessible.
            unsafe { memory.at.write_bytes(0, PAGE) };
            let start = PAGE - good;
            assert!((path.write)(memory.host(start), &data).is_err());
            // SAFETY: as above, and nobody writes now.
            let page = unsafe { std::slice::from_raw_parts(memory.at, PAGE) };
            assert!(page[..start].iter().all(|&b| b == 0), "wrote before the range");
            for (i, &byte) in page[start..].iter().enumerate() {
                assert!(byte == 0 || byte == data[i]);
            }
        }
    }
}

#[test]
fn threads_unmap_and_map_while_others_copy() {
    ensure();
    let memory = Arc::new(Mapping::new(4));
    let stop = Arc::new(AtomicBool::new(false));
    let copiers: Vec<_> = (0..3_usize)
        .map(|kind| {
            let (memory, stop) = (memory.clone(), stop.clone());
            std::thread::spawn(move || {
                let (mut good, mut bad) = (0_u64, 0_u64);
                let mut buffer = vec![kind as u8; 3 * PAGE];
                let mut len = 1;
                while !stop.load(Ordering::Relaxed) || good == 0 || bad == 0 {
                    len = len * 7 % 12_281;
                    let from = memory.host(PAGE - (len % 61));
                    let result = match kind {
                        0 => copy::read(from, &mut buffer[..len]),
                        1 => copy::write(from, &buffer[..len]),
                        _ => copy::fetch_add(memory.host(PAGE + len % 512 * 8), 1).map(drop),
                    };
                    match result {
                        Ok(()) => good += 1,
                        Err(Fault { addr }) => {
                            let offset = addr - memory.host(0).0;
                            assert!((PAGE as u64..4 * PAGE as u64).contains(&offset), "{offset:#x}");
                            bad += 1;
                        }
                    }
                }
                (good, bad)
            })
        })
        .collect();
    let started = std::time::Instant::now();
    while started.elapsed().as_millis() < 500 {
        for protection in [libc::PROT_NONE, WRITE, READ, WRITE] {
            // SAFETY: replaces two pages of the mapping, atomically, so that nobody else can be given the addresses.
            unsafe {
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
                let at = memory.at.add(PAGE).cast();
                assert_eq!(libc::mmap(at, 2 * PAGE, protection, flags, -1, 0), at);
            }
            std::thread::yield_now();
        }
    }
    stop.store(true, Ordering::Relaxed);
    // They end once both outcomes have been seen, which needs pages that go on changing for a slow machine.
    while copiers.iter().any(|c| !c.is_finished()) {
        for protection in [libc::PROT_NONE, WRITE] {
            // SAFETY: as above.
            unsafe { libc::mprotect(memory.at.add(PAGE).cast(), 2 * PAGE, protection) };
            std::thread::yield_now();
        }
    }
    for copier in copiers {
        let (good, bad) = copier.join().unwrap();
        assert!(good > 0 && bad > 0);
    }
}

// ---- the kernel mode as such ----

#[test]
fn kernel_mode_installs_nothing_and_survives_blocked_signals() {
    let end = in_child(|| {
        defaults();
        set_mode(GuardMode::Kernel);
        let memory = Mapping::new(1);
        let table = Table::with_seed(1);
        table.register(PdId(1), memory.host(0).0, PAGE as u64, 0, Access::LOCAL_WRITE).unwrap();
        assert_eq!(mode(), GuardMode::Kernel);
        for signal in [libc::SIGSEGV, libc::SIGBUS] {
            assert_eq!(set(signal, &action(libc::SIG_DFL, 0)).sa_sigaction, libc::SIG_DFL);
        }
        // SAFETY: blocks everything in this child.
        unsafe {
            let mut all: libc::sigset_t = std::mem::zeroed();
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_BLOCK, &all, std::ptr::null_mut());
        }
        assert_guarded();
        assert_eq!(copy::fetch_add(HostAddr(24), 1), Err(Fault { addr: 24 }));
        copy::write(memory.host(3), b"hello, kernel").unwrap();
        let mut back = [0; 13];
        copy::read(memory.host(3), &mut back).unwrap();
        assert_eq!(&back, b"hello, kernel");
        assert_eq!(copy::fetch_add(memory.host(64), 5), Ok(0));
        assert_eq!(copy::compare_swap(memory.host(64), 5, 9), Ok(5));
        assert_eq!(copy::compare_swap(memory.host(64), 5, 1), Ok(9));
    });
    assert_eq!(end, End::Exit(0));
}

#[test]
fn copies_before_the_first_registration_are_guarded_too() {
    let end = in_child(|| {
        // Another test of this process may have registered.
        MODE.store(WANT_SIGNAL, Ordering::Relaxed);
        defaults();
        assert_guarded();
    });
    assert_eq!(end, End::Exit(0));
}

// ---- faults of others ----

#[cfg(target_arch = "x86_64")]
mod chaining {
    use super::*;

    #[test]
    fn without_a_handler_a_foreign_fault_kills_as_ever() {
        let end = in_child(|| {
            defaults();
            ensure();
            assert_guarded();
            wild_write(24 as *mut u8);
        });
        assert_eq!(end, End::Signal(libc::SIGSEGV));
        let end = in_child(|| {
            defaults();
            let truncated = Mapping::of_truncated_file(1, 0);
            ensure();
            assert_guarded();
            wild_write(truncated.at);
        });
        assert_eq!(end, End::Signal(libc::SIGBUS));
    }

    #[test]
    fn a_signal_that_somebody_sent_follows_the_programs_action() {
        for signal in [libc::SIGSEGV, libc::SIGBUS] {
            // SAFETY: signals to the child itself.
            let send = move || unsafe { libc::raise(signal) };
            let end = in_child(|| {
                defaults();
                ensure();
                send();
            });
            assert_eq!(end, End::Signal(signal), "default");
            let end = in_child(|| {
                defaults();
                set(signal, &action(libc::SIG_IGN, 0));
                ensure();
                send();
                assert_guarded();
                send();
            });
            assert_eq!(end, End::Exit(0), "ignored");
            let end = in_child(|| {
                defaults();
                set(signal, &action(siginfo_handler(), libc::SA_SIGINFO));
                ensure();
                send();
                assert_eq!(handled(), 1);
            });
            assert_eq!(end, End::Exit(0), "handled");
        }
    }

    #[test]
    fn ignoring_does_not_help_against_a_real_fault() {
        let end = in_child(|| {
            set(libc::SIGSEGV, &action(libc::SIG_IGN, 0));
            ensure();
            assert_guarded();
            wild_write(24 as *mut u8);
        });
        assert_eq!(end, End::Signal(libc::SIGSEGV));
    }

    #[test]
    fn a_handler_that_was_there_before_gets_its_faults() {
        let end = in_child(|| {
            defaults();
            set(libc::SIGSEGV, &action(siginfo_handler(), libc::SA_SIGINFO));
            ensure();
            let memory = Mapping::new(1);
            for round in 1..=3 {
                memory.protect(0, libc::PROT_NONE);
                wild_write(memory.at.wrapping_add(5));
                assert_eq!(handled(), round);
                assert_eq!(HANDLED_AT.load(Ordering::Relaxed), memory.host(5).0);
                assert_eq!(BLOCKED_IN_HANDLER.load(Ordering::Relaxed), 1, "only the signal itself");
                assert_guarded();
                assert_eq!(handled(), round, "our faults are not the program's");
            }
        });
        assert_eq!(end, End::Exit(0));
    }

    #[test]
    fn a_plain_handler_that_resets_itself_gets_one_fault() {
        let end = in_child(|| {
            defaults();
            set(libc::SIGSEGV, &action(plain as *const () as usize, libc::SA_RESETHAND));
            ensure();
            let memory = Mapping::new(1);
            PLAIN_PAGE.store(memory.host(0).0, Ordering::Relaxed);
            memory.protect(0, libc::PROT_NONE);
            wild_write(memory.at);
            assert_eq!(handled(), 1);
            assert_guarded();
            // SAFETY: all-zero bytes are a valid sigaction.
            let mut old: libc::sigaction = unsafe { std::mem::zeroed() };
            assert!(program_sigaction(libc::SIGSEGV, None, Some(&mut old)));
            assert_eq!(old.sa_sigaction, libc::SIG_DFL, "used up");
            memory.protect(0, libc::PROT_NONE);
            wild_write(memory.at);
        });
        assert_eq!(end, End::Signal(libc::SIGSEGV));
    }

    #[test]
    fn a_handler_that_comes_later_is_recorded_and_reported() {
        let end = in_child(|| {
            defaults();
            // SAFETY: all-zero bytes are a valid sigaction.
            let mut old: libc::sigaction = unsafe { std::mem::zeroed() };
            let mut later = action(siginfo_handler(), libc::SA_SIGINFO | libc::SA_NODEFER);
            // SAFETY: a valid set.
            unsafe { libc::sigaddset(&raw mut later.sa_mask, libc::SIGUSR1) };
            assert!(!program_sigaction(libc::SIGSEGV, Some(&later), Some(&mut old)), "not ours yet");
            ensure();
            assert!(!program_sigaction(libc::SIGUSR1, Some(&later), Some(&mut old)), "never ours");
            assert!(program_sigaction(libc::SIGSEGV, Some(&later), Some(&mut old)));
            assert_eq!(old.sa_sigaction, libc::SIG_DFL);
            let memory = Mapping::new(1);
            memory.protect(0, libc::PROT_NONE);
            wild_write(memory.at.wrapping_add(9));
            assert_eq!((handled(), HANDLED_AT.load(Ordering::Relaxed)), (1, memory.host(9).0));
            assert_eq!(BLOCKED_IN_HANDLER.load(Ordering::Relaxed), 2, "its mask, and SA_NODEFER");
            assert_guarded();
            let default = action(libc::SIG_DFL, 0);
            assert!(program_sigaction(libc::SIGSEGV, Some(&default), Some(&mut old)));
            assert_eq!(old.sa_sigaction, siginfo_handler());
            assert_eq!(old.sa_flags & !0x0400_0000, libc::SA_SIGINFO | libc::SA_NODEFER);
            // SAFETY: a valid set.
            assert_eq!(unsafe { libc::sigismember(&old.sa_mask, libc::SIGUSR1) }, 1);
            assert_guarded();
            assert_eq!(handled(), 1);
            wild_write(24 as *mut u8);
        });
        assert_eq!(end, End::Signal(libc::SIGSEGV));
    }

    #[test]
    fn the_handler_runs_on_the_stack_that_it_asked_for() {
        let end = in_child(|| {
            defaults();
            ensure();
            let stack = Mapping::new(16);
            let on = libc::stack_t { ss_sp: stack.at.cast(), ss_flags: 0, ss_size: 16 * PAGE };
            // SAFETY: the mapping lives as long as the child uses it.
            assert_eq!(unsafe { libc::sigaltstack(&on, std::ptr::null_mut()) }, 0);
            let memory = Mapping::new(1);
            for (flags, alternate) in [(0, false), (libc::SA_ONSTACK, true), (0, false)] {
                let handler = action(siginfo_handler(), libc::SA_SIGINFO | flags);
                assert!(program_sigaction(libc::SIGSEGV, Some(&handler), None));
                memory.protect(0, libc::PROT_NONE);
                wild_write(memory.at);
                let at = STACK_IN_HANDLER.load(Ordering::Relaxed);
                assert_eq!((stack.host(0).0..stack.host(16 * PAGE).0).contains(&at), alternate);
                assert_guarded();
            }
        });
        assert_eq!(end, End::Exit(0));
    }

    #[test]
    fn a_thread_that_blocks_everything_survives_once_it_is_ready() {
        for ready in [false, true] {
            let end = in_child(|| {
                defaults();
                ensure();
                let threads = std::thread::spawn(move || {
                    // SAFETY: the mask of this thread only.
                    unsafe {
                        let mut all: libc::sigset_t = std::mem::zeroed();
                        libc::sigfillset(&raw mut all);
                        libc::pthread_sigmask(libc::SIG_BLOCK, &all, std::ptr::null_mut());
                    }
                    if ready {
                        ready_thread();
                    }
                    assert_guarded();
                    ready_thread();
                    assert_guarded();
                });
                threads.join().unwrap();
            });
            assert_eq!(end, if ready { End::Exit(0) } else { End::Signal(libc::SIGSEGV) });
        }
    }

    static PREDECESSOR: AtomicU64 = AtomicU64::new(0);

    /// As UCX does it: notes the fault, then hands on to whoever was there before.
    extern "C" fn note_and_pass_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
        HANDLED.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the handler that sigaction returned, with the arguments of this one.
        unsafe {
            let next: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) =
                std::mem::transmute(PREDECESSOR.load(Ordering::Relaxed) as usize);
            next(signal, info, context);
        }
    }

    #[test]
    fn a_handler_that_went_around_us_and_passes_on_works_and_ends_in_what_was_there_before() {
        let end = in_child(|| {
            defaults();
            ensure();
            // Not by program_sigaction: displaces ours.
            let displacing = action(note_and_pass_on as *const () as usize, libc::SA_SIGINFO);
            let ours = set(libc::SIGSEGV, &displacing);
            PREDECESSOR.store(ours.sa_sigaction as u64, Ordering::Relaxed);
            assert_guarded();
            assert_eq!(handled(), 2, "it saw our faults and passed them on");
            // SAFETY: all-zero bytes are a valid sigaction.
            let mut old: libc::sigaction = unsafe { std::mem::zeroed() };
            assert!(!program_sigaction(libc::SIGSEGV, None, Some(&mut old)), "not ours at the moment");
            // The next registration is in front again.
            ensure();
            assert_guarded();
            assert_eq!(handled(), 2);
            // A foreign fault: ours, its, ours again as its predecessor, then the default. No endless loop.
            wild_write(24 as *mut u8);
        });
        assert_eq!(end, End::Signal(libc::SIGSEGV));
    }

    #[test]
    fn two_handlers_that_went_around_us_one_after_the_other_do_not_loop() {
        let end = in_child(|| {
            defaults();
            ensure();
            let displacing = action(note_and_pass_on as *const () as usize, libc::SA_SIGINFO);
            for _ in 0..2 {
                let ours = set(libc::SIGSEGV, &displacing);
                PREDECESSOR.store(ours.sa_sigaction as u64, Ordering::Relaxed);
                ensure();
            }
            assert_guarded();
            wild_write(24 as *mut u8);
        });
        assert_eq!(end, End::Signal(libc::SIGSEGV));
    }

    #[test]
    fn what_a_displacing_handler_passes_on_reaches_the_one_that_it_displaced() {
        let end = in_child(|| {
            defaults();
            ensure();
            assert!(program_sigaction(
                libc::SIGSEGV,
                Some(&action(siginfo_handler(), libc::SA_SIGINFO)),
                None
            ));
            let displacing = action(note_and_pass_on as *const () as usize, libc::SA_SIGINFO);
            let ours = set(libc::SIGSEGV, &displacing);
            PREDECESSOR.store(ours.sa_sigaction as u64, Ordering::Relaxed);
            let memory = Mapping::new(1);
            for round in 1..=2 {
                // The first time it is in front of ours, the second time behind.
                memory.protect(0, libc::PROT_NONE);
                wild_write(memory.at.wrapping_add(round));
                assert_eq!(HANDLED_AT.load(Ordering::Relaxed), memory.host(round).0);
                ensure();
            }
            assert_eq!(handled(), 4);
        });
        assert_eq!(end, End::Exit(0));
    }

    #[test]
    fn actions_change_while_threads_fault() {
        let end = in_child(|| {
            defaults();
            ensure();
            let stop = AtomicBool::new(false);
            let turns = AtomicI32::new(0);
            std::thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| {
                        while !stop.load(Ordering::Relaxed) {
                            assert_guarded();
                            turns.fetch_add(1, Ordering::Relaxed);
                        }
                    });
                }
                scope.spawn(|| {
                    for i in 0..2000 {
                        let flags =
                            if i % 2 == 0 { libc::SA_SIGINFO } else { libc::SA_SIGINFO | libc::SA_ONSTACK };
                        let new = action(siginfo_handler(), flags);
                        assert!(program_sigaction(libc::SIGSEGV, Some(&new), None));
                        ensure();
                    }
                    while turns.load(Ordering::Relaxed) < 1000 {
                        std::thread::yield_now();
                    }
                    stop.store(true, Ordering::Relaxed);
                });
            });
            assert_eq!(handled(), 0, "no fault of ours reached the program");
        });
        assert_eq!(end, End::Exit(0));
    }

    #[test]
    fn a_child_uses_memory_and_declines_to_keep_records() {
        let end = in_child(|| {
            defaults();
            let table = Table::with_seed(5);
            let memory = Mapping::new(1);
            let register =
                || table.register(PdId(1), memory.host(0).0, PAGE as u64, 0, Access::LOCAL_WRITE).is_ok();
            assert!(register());
            let quiet = table.quiesce();
            assert!(quiet.is_some());
            let inner = {
                let table = &table;
                move || {
                    drop(quiet);
                    assert_guarded();
                    // SAFETY: all-zero bytes are a valid sigaction.
                    let mut old: libc::sigaction = unsafe { std::mem::zeroed() };
                    assert!(!program_sigaction(libc::SIGSEGV, None, Some(&mut old)));
                    assert!(register());
                    assert_eq!(table.len(), 2);
                    assert!(program_sigaction(libc::SIGSEGV, None, Some(&mut old)), "registered itself");
                    assert_guarded();
                    wild_write(24 as *mut u8);
                }
            };
            assert_eq!(in_child(inner), End::Signal(libc::SIGSEGV));
            assert_guarded();
        });
        assert_eq!(end, End::Exit(0));
    }
}
