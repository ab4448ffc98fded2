//! The receive thread, and when it stands back.
//!
//! While a program polls its completion queues it receives by itself, with no other thread in between, which is the
//! fastest there is ([`Core::poll`]). The thread then sleeps and only looks now and then whether the program still
//! polls. If not, it takes over: it waits for packets and runs what they and the timers demand, so that one-sided
//! operations progress although the target never calls a verb.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;

use crate::device::Core;
use crate::io::wait::{Waker, wait};
use crate::time::Instant;

/// A program that has polled within this time is taken to poll on.
const POLLING: u64 = 100_000;
/// How long the thread sleeps at most while a program polls.
const LONGEST_NAP: u64 = 800_000;

/// The receive thread's handle.
pub(crate) struct Progress {
    waker: Option<Waker>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Progress {
    /// Starts the thread, if there is to be one.
    pub(crate) fn start(core: &Arc<Core>, threaded: bool) -> io::Result<Self> {
        if !threaded {
            return Ok(Self { waker: None, thread: Mutex::new(None) });
        }
        let waker = Waker::new()?;
        let thread = {
            let (core, waker) = (core.clone(), waker.clone());
            signals::blocked(|| {
                std::thread::Builder::new().name("urxe-rx".into()).stack_size(256 * 1024).spawn(move || {
                    if let Some(cpu) = core.config.rx_cpu {
                        signals::pin(cpu.0);
                    }
                    run(&core, &waker);
                })
            })?
        };
        Ok(Self { waker: Some(waker), thread: Mutex::new(Some(thread)) })
    }

    /// Ends a wait or a nap of the thread.
    pub(crate) fn wake(&self) {
        if let Some(waker) = &self.waker {
            waker.wake();
        }
        if let Some(thread) = &*self.thread.lock() {
            thread.thread().unpark();
        }
    }

    /// Ends the thread. [`Core::stop`] is set.
    pub(crate) fn stop(&self) {
        self.wake();
        if let Some(thread) = self.thread.lock().take() {
            // A device may be dropped by the thread itself only if somebody gave it a handle, which nobody does.
            let _ = thread.join();
        }
    }
}

fn run(core: &Core, waker: &Waker) {
    crate::mem::guard::ready_thread();
    let mut nap = POLLING;
    let spin = core.config.spin.duration().as_nanos() as u64;
    let mut busy_until = Instant::ZERO;
    while !core.stop.load(Ordering::Relaxed) {
        let now = core.clock.now();
        if now.since(Instant(core.last_poll.load(Ordering::Relaxed))) < POLLING {
            std::thread::park_timeout(Duration::from_nanos(nap));
            nap = (nap * 2).min(LONGEST_NAP);
            continue;
        }
        nap = POLLING;
        if core.run_all() {
            busy_until = core.clock.now().plus(spin);
            continue;
        }
        let now = core.clock.now();
        if now < busy_until {
            std::thread::yield_now();
            continue;
        }
        let next = core.timers.next();
        let timeout = (next != Instant::NEVER).then(|| next.since(now));
        if let Err(e) = wait(&*core.link, waker, timeout) {
            tracing::warn!(error = %e, "waiting for packets failed");
            std::thread::park_timeout(Duration::from_millis(1));
        }
    }
}

/// What a thread inside somebody else's program must not do: take its signals.
#[allow(unsafe_code)]
mod signals {
    /// Runs `f` with all signals blocked, so that a thread that it starts has them blocked. Faults are not: a guarded
    /// copy handles them.
    pub(super) fn blocked<T>(f: impl FnOnce() -> T) -> T {
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

    /// Pins the calling thread to a CPU. If that fails it stays where it may run.
    pub(super) fn pin(cpu: usize) {
        // SAFETY: the set is ours and zero is a valid one; CPU_SET checks its bound.
        unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            if cpu < libc::CPU_SETSIZE as usize {
                libc::CPU_SET(cpu, &mut set);
                libc::sched_setaffinity(0, size_of_val(&set), &set);
            }
        }
    }
}
