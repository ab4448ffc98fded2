//! The copy routines whose faults are recoverable, and the handler that recovers them.
//!
//! Every routine is a leaf without a stack frame, so "return from it" is a single `ret` at any instruction, and one
//! landing pad serves all of them. The result is two registers: RAX is the value (or, after a fault, the faulting
//! address), RDX is 0 or, after a fault, 1.
//!
//! The signal actions are read and set by system call, since in the drop-in library `sigaction` is the program's.

#![allow(unsafe_code)]

use std::arch::{asm, global_asm};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering};

use libc::{c_int, c_void, siginfo_t};

/// What a routine returns.
#[repr(C)]
#[derive(Clone, Copy)]
pub(in crate::mem) struct Outcome {
    /// The result, or the address that faulted (0 if the processor does not tell).
    pub(in crate::mem) value: u64,
    /// 1 after a fault.
    pub(in crate::mem) fault: u64,
}

unsafe extern "C" {
    /// Copies into memory of ours. May read and write a byte twice.
    pub(in crate::mem) fn urxe_mem_copy_in(
        to: *mut u8,
        from: u64,
        len: usize,
        string_from: usize,
        wide: bool,
    ) -> Outcome;
    /// Copies out of memory of ours: no byte is written twice, stores are naturally aligned, the last word is last.
    pub(in crate::mem) fn urxe_mem_copy_out(
        to: u64,
        from: *const u8,
        len: usize,
        string_from: usize,
        wide: bool,
    ) -> Outcome;
    /// Compare and swap of an aligned word; the old value.
    pub(in crate::mem) fn urxe_mem_compare_swap(at: u64, compare: u64, swap: u64) -> Outcome;
    /// Fetch and add of an aligned word; the old value.
    pub(in crate::mem) fn urxe_mem_fetch_add(at: u64, add: u64) -> Outcome;

    fn urxe_mem_landing();
    fn urxe_mem_restorer();
    static urxe_mem_begin: u8;
    static urxe_mem_end: u8;
}

global_asm!(include_str!("copy_x86_64.s"));

/// From this length on, `rep movsb` beats the loops; never, on processors without fast strings.
static STRING_FROM: AtomicUsize = AtomicUsize::new(usize::MAX);
/// Whether the processor and the kernel have AVX.
static WIDE: AtomicBool = AtomicBool::new(false);

/// [`urxe_mem_copy_in`] in the way that suits this processor.
///
/// # Safety
/// `to` is valid for writes of `len` bytes; they are initialised unless the outcome is a fault.
#[inline(always)]
pub(in crate::mem) unsafe fn copy_in(to: *mut u8, from: u64, len: usize) -> Outcome {
    // SAFETY: by the caller; what is at `from` is guarded.
    unsafe {
        urxe_mem_copy_in(to, from, len, STRING_FROM.load(Ordering::Relaxed), WIDE.load(Ordering::Relaxed))
    }
}

/// [`urxe_mem_copy_out`] in the way that suits this processor.
///
/// # Safety
/// `from` is valid for reads of `len` bytes.
#[inline(always)]
pub(in crate::mem) unsafe fn copy_out(to: u64, from: *const u8, len: usize) -> Outcome {
    // SAFETY: by the caller; what is at `to` is guarded.
    unsafe {
        urxe_mem_copy_out(to, from, len, STRING_FROM.load(Ordering::Relaxed), WIDE.load(Ordering::Relaxed))
    }
}

fn detect_processor() {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    const ERMS: u32 = 1 << 9;
    let wide = std::arch::is_x86_feature_detected!("avx");
    WIDE.store(wide, Ordering::Relaxed);
    if __cpuid(0).eax >= 7 && __cpuid_count(7, 0).ebx & ERMS != 0 {
        // Measured on Sapphire Rapids: level with the AVX loop at 4 KiB, ahead of the SSE loop from 2 KiB.
        STRING_FROM.store(if wide { 4096 } else { 2048 }, Ordering::Relaxed);
    }
}

// ---- signal actions ----

const SIGNALS: [c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];
const SA_RESTORER: u64 = 0x0400_0000;
/// `si_code` of a fault that has no address, such as a non-canonical one.
const BUS_MCEERR_AO: c_int = 5;

/// `struct sigaction` as the kernel has it.
#[repr(C)]
#[derive(Clone, Copy)]
struct Action {
    handler: usize,
    flags: u64,
    restorer: usize,
    mask: u64,
}

impl Action {
    const DEFAULT: Self = Self { handler: libc::SIG_DFL, flags: 0, restorer: 0, mask: 0 };

    fn from_libc(action: &libc::sigaction) -> Self {
        // SAFETY: a sigset_t is an array of words, of which the kernel uses the first 64 bits.
        let mask = unsafe { (&raw const action.sa_mask).cast::<u64>().read_unaligned() };
        Self {
            handler: action.sa_sigaction,
            flags: u64::from(action.sa_flags as u32),
            restorer: action.sa_restorer.map_or(0, |f| f as usize),
            mask,
        }
    }

    fn to_libc(self, out: &mut libc::sigaction) {
        out.sa_sigaction = self.handler;
        out.sa_flags = self.flags as u32 as c_int;
        // SAFETY: as above; a function pointer that the program gave us goes back as it was, and 0 is None.
        unsafe {
            (&raw mut out.sa_mask).write_bytes(0, 1);
            (&raw mut out.sa_mask).cast::<u64>().write_unaligned(self.mask);
            out.sa_restorer = std::mem::transmute::<usize, Option<extern "C" fn()>>(self.restorer);
        }
    }

    fn is_ours(&self) -> bool {
        self.handler == entry as *const () as usize
    }

    /// Our handler, dressed so that the kernel prepares a foreign fault exactly as `program` asks for.
    fn in_front_of(program: &Self) -> Self {
        const MIRRORED: u64 = (libc::SA_ONSTACK | libc::SA_NODEFER | libc::SA_RESTART) as u64;
        let (flags, mask) = match program.handler {
            libc::SIG_DFL | libc::SIG_IGN => ((libc::SA_ONSTACK | libc::SA_RESTART) as u64, 0),
            _ => (program.flags & MIRRORED, program.mask),
        };
        Self {
            handler: entry as *const () as usize,
            flags: flags | libc::SA_SIGINFO as u64 | SA_RESTORER,
            restorer: urxe_mem_restorer as *const () as usize,
            mask,
        }
    }

    /// What the handler needs to know, in one word: user addresses leave the top bit free.
    fn packed(&self) -> u64 {
        let once = if self.flags & u64::from(libc::SA_RESETHAND as u32) != 0 { ONCE } else { 0 };
        self.handler as u64 & !ONCE | once
    }
}

const ONCE: u64 = 1 << 63;

/// The program's present actions, packed; what a foreign fault goes to.
static PROGRAM: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
/// What [`PROGRAM`] was when a handler displaced ours.
static DISPLACED: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
/// The actions before the guard came.
static ORIGINAL: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
static INSTALLED: AtomicBool = AtomicBool::new(false);
/// The process that the record below belongs to.
static OWNER: AtomicI32 = AtomicI32::new(0);

/// The program's actions in full; [`Lock`] guards them.
struct Record(UnsafeCell<[Action; 2]>);
// SAFETY: only touched while `Lock` is held.
unsafe impl Sync for Record {}
static RECORD: Record = Record(UnsafeCell::new([Action::DEFAULT; 2]));

static LOCKED: AtomicBool = AtomicBool::new(false);

/// A spin lock that may be taken in a signal handler, because its holder cannot be interrupted by one.
struct Lock {
    blocked_before: u64,
}

impl Lock {
    fn take() -> Self {
        let blocked_before = change_mask(libc::SIG_SETMASK, u64::MAX);
        while LOCKED.compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
            std::hint::spin_loop();
        }
        Self { blocked_before }
    }

    fn record(&mut self) -> &mut [Action; 2] {
        // SAFETY: the lock is held, and the borrow ends before it is released.
        unsafe { &mut *RECORD.0.get() }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        LOCKED.store(false, Ordering::Release);
        change_mask(libc::SIG_SETMASK, self.blocked_before);
    }
}

/// A system call that leaves errno alone, since it is used inside signal handlers.
///
/// # Safety
/// As for the call that is made.
unsafe fn syscall4(number: i64, a: usize, b: usize, c: usize, d: usize) -> isize {
    let result: isize;
    // SAFETY: the system call convention of x86-64; rcx and r11 are lost.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d,
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    result
}

fn change_mask(how: c_int, mask: u64) -> u64 {
    let mut old = 0_u64;
    // SAFETY: both sets are 8 bytes, as the last argument says.
    unsafe {
        syscall4(libc::SYS_rt_sigprocmask, how as usize, &raw const mask as usize, &raw mut old as usize, 8);
    }
    old
}

/// See [`super::ready_thread`].
pub(super) fn unblock() {
    change_mask(libc::SIG_UNBLOCK, SIGNALS.iter().fold(0, |mask, signal| mask | 1 << (signal - 1)));
}

fn read_action(signal: c_int) -> Option<Action> {
    let mut old = Action::DEFAULT;
    // SAFETY: `old` has the kernel's layout; no new action is given.
    let result = unsafe { syscall4(libc::SYS_rt_sigaction, signal as usize, 0, &raw mut old as usize, 8) };
    (result == 0).then_some(old)
}

fn set_action(signal: c_int, new: &Action) -> Option<Action> {
    let mut old = Action::DEFAULT;
    // SAFETY: both have the kernel's layout. The handler is ours, or one that the program gave to the kernel.
    let result = unsafe {
        syscall4(
            libc::SYS_rt_sigaction,
            signal as usize,
            std::ptr::from_ref(new) as usize,
            &raw mut old as usize,
            8,
        )
    };
    (result == 0).then_some(old)
}

fn process_id() -> i32 {
    // SAFETY: has no arguments and cannot fail.
    unsafe { syscall4(libc::SYS_getpid, 0, 0, 0, 0) as i32 }
}

/// See [`super::ensure`]. Whether the handlers are in place.
pub(super) fn ensure() -> bool {
    let in_place = || SIGNALS.iter().all(|&s| read_action(s).is_some_and(|a| a.is_ours()));
    let pid = process_id();
    if INSTALLED.load(Ordering::Acquire) && OWNER.load(Ordering::Relaxed) == pid && in_place() {
        return true;
    }
    let mut lock = Lock::take();
    detect_processor();
    let first = !INSTALLED.load(Ordering::Relaxed);
    let mut done = true;
    for (i, &signal) in SIGNALS.iter().enumerate() {
        let Some(mut present) = read_action(signal) else { return false };
        // Each turn puts the record right for what stands there, then swaps; another thread that sets an action in
        // between makes a second turn necessary.
        loop {
            if present.is_ours() {
                break;
            }
            if first {
                ORIGINAL[i].store(present.packed(), Ordering::Release);
            } else {
                DISPLACED[i].store(PROGRAM[i].load(Ordering::Relaxed), Ordering::Release);
            }
            PROGRAM[i].store(present.packed(), Ordering::Release);
            lock.record()[i] = present;
            match set_action(signal, &Action::in_front_of(&present)) {
                None => {
                    done = false;
                    break;
                }
                Some(old) if old.packed() == present.packed() || old.is_ours() => break,
                Some(old) => present = old,
            }
        }
    }
    if done {
        OWNER.store(pid, Ordering::Relaxed);
        INSTALLED.store(true, Ordering::Release);
    }
    done
}

/// See [`super::program_sigaction`].
pub(super) fn program_sigaction(
    signal: c_int,
    new: Option<&libc::sigaction>,
    old: Option<&mut libc::sigaction>,
) -> bool {
    let Some(i) = SIGNALS.iter().position(|&s| s == signal) else { return false };
    if !INSTALLED.load(Ordering::Acquire) || OWNER.load(Ordering::Relaxed) != process_id() {
        return false;
    }
    let new = new.map(Action::from_libc);
    let mut lock = Lock::take();
    if !read_action(signal).is_some_and(|a| a.is_ours()) {
        return false;
    }
    let mut previous = lock.record()[i];
    if PROGRAM[i].load(Ordering::Relaxed) == libc::SIG_DFL as u64 {
        // SA_RESETHAND has been used up since.
        previous.handler = libc::SIG_DFL;
    }
    if let Some(new) = new {
        lock.record()[i] = new;
        PROGRAM[i].store(new.packed(), Ordering::Release);
        set_action(signal, &Action::in_front_of(&new));
    }
    if let Some(old) = old {
        previous.to_libc(old);
    }
    true
}

/// Values of `uc_link`, which the kernel leaves 0 and does not read, while a foreign fault is being handed on: how often
/// this handler has done so for the same signal.
const HANDED_ON: [usize; 2] = [0x7572_7865_0001, 0x7572_7865_0002];

/// The handler.
///
/// A handler that displaced ours may know it as its predecessor, and pass on what is not its own. Once ours is in
/// front again, the two would call each other for ever; so the second time goes to what the displaced one stood for
/// and the third to what was there before the guard. (The return address would not tell who calls: handlers pass on by
/// tail calls.)
extern "C" fn entry(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    let context_in_full = context.cast::<libc::ucontext_t>();
    // SAFETY: the kernel passes valid pointers to both, and a chained handler hands on the same.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr() as i64) };
    // Positive codes come from the processor; kill, tgkill and sigqueue have zero or negative ones. A memory error that
    // needs no action may hit any thread at any time.
    let synchronous = code > 0 && !(signal == libc::SIGBUS && code == BUS_MCEERR_AO);
    if synchronous {
        // SAFETY: the third argument of an SA_SIGINFO handler is the interrupted context.
        let registers = unsafe { &mut (*context_in_full).uc_mcontext.gregs };
        let at = registers[libc::REG_RIP as usize] as usize;
        if at >= &raw const urxe_mem_begin as usize && at < &raw const urxe_mem_end as usize {
            registers[libc::REG_RAX as usize] = address;
            registers[libc::REG_RIP as usize] = urxe_mem_landing as *const () as usize as i64;
            return;
        }
    }
    let Some(i) = SIGNALS.iter().position(|&s| s == signal) else { return };
    // SAFETY: as above.
    let link = unsafe { (*context_in_full).uc_link };
    let (next, mark) = match HANDED_ON.iter().position(|&mark| mark == link as usize) {
        None => (&PROGRAM[i], HANDED_ON[0]),
        Some(0) => (&DISPLACED[i], HANDED_ON[1]),
        Some(_) => (&ORIGINAL[i], HANDED_ON[1]),
    };
    let packed = next.load(Ordering::Acquire);
    match (packed & !ONCE) as usize {
        libc::SIG_DFL => die(signal, info, synchronous),
        // The kernel does not let a program ignore a fault either.
        libc::SIG_IGN if synchronous => die(signal, info, synchronous),
        libc::SIG_IGN => {}
        handler => {
            if packed & ONCE != 0 {
                let _ =
                    next.compare_exchange(packed, libc::SIG_DFL as u64, Ordering::AcqRel, Ordering::Relaxed);
            }
            // SAFETY: the program gave this address to sigaction as a handler. One without SA_SIGINFO takes only the
            // first argument; the kernel, too, always passes three.
            unsafe {
                let handler: extern "C" fn(c_int, *mut siginfo_t, *mut c_void) =
                    std::mem::transmute::<usize, _>(handler);
                (*context_in_full).uc_link = mark as *mut libc::ucontext_t;
                handler(signal, info, context);
                (*context_in_full).uc_link = link;
            }
        }
    }
}

/// The default action: restored, so that the faulting instruction, run again, ends the process with the right signal,
/// address and core dump. A signal that somebody sent is sent again.
fn die(signal: c_int, info: *mut siginfo_t, synchronous: bool) {
    set_action(signal, &Action::DEFAULT);
    if !synchronous {
        // SAFETY: `info` is what the kernel passed. The signal is blocked until our handler returns.
        unsafe {
            let thread = syscall4(libc::SYS_gettid, 0, 0, 0, 0) as usize;
            syscall4(
                libc::SYS_rt_tgsigqueueinfo,
                process_id() as usize,
                thread,
                signal as usize,
                info as usize,
            );
        }
    }
}
