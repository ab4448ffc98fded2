//! The receive thread, and when it stands back.
//!
//! While a program polls its completion queues it receives by itself, with no other thread in between, which is the
//! fastest there is ([`Core::poll`]). The thread then sleeps and only looks now and then whether the program still
//! polls. If not, it takes over: it waits for packets and runs what they and the timers demand, so that one-sided
//! operations progress although the target never calls a verb.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread::JoinHandle;

use parking_lot::Mutex;

use super::affinity;
use crate::device::Core;
use crate::device::receive::Ran;
use crate::io::wait::{Waker, wait};
use crate::time::Instant;

/// A program that has polled within this time is taken to poll on.
const POLLING: u64 = 100_000;
/// How long the thread sleeps at most while a program polls.
const LONGEST_NAP: u64 = 800_000;
/// How long, in ns, what the link is to send is left to a program that polls, before the thread sends it.
const FIRST_GO: u64 = 50_000;

/// The receive thread's handle.
pub(crate) struct Progress {
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// What the receive thread and those who want something of it share.
pub(crate) struct Attention {
    waker: Option<Waker>,
    /// When a program last looked for completions itself, in ns.
    last_poll: AtomicU64,
    /// What the thread does, in ns: [`RUNNING`], [`NAPPING`], or the time until which it waits for packets.
    waits_until: AtomicU64,
    /// Until when it naps, in ns; 0 if it does not.
    naps_until: AtomicU64,
    /// The system's number of the thread.
    pub(crate) thread: AtomicU32,
}

const RUNNING: u64 = 0;
const NAPPING: u64 = 1;

impl Attention {
    /// With a thread or without.
    pub(crate) fn new(threaded: bool) -> io::Result<Self> {
        Ok(Self {
            waker: if threaded { Some(Waker::new()?) } else { None },
            last_poll: AtomicU64::new(0),
            waits_until: AtomicU64::new(RUNNING),
            naps_until: AtomicU64::new(0),
            thread: AtomicU32::new(0),
        })
    }

    /// The program polls: the thread may stand back.
    pub(crate) fn program_polls(&self, now: Instant) {
        self.last_poll.store(now.0, Ordering::Relaxed);
    }

    /// Whether a program has just polled, and will soon poll again.
    pub(crate) fn just_polled(&self, now: Instant) -> bool {
        self.waker.is_some() && now.since(Instant(self.last_poll.load(Ordering::Relaxed))) < POLLING
    }

    /// The program will not poll for a while: the thread takes over now.
    pub(crate) fn program_sleeps(&self) {
        self.last_poll.store(0, Ordering::SeqCst);
        if self.waits_until.load(Ordering::SeqCst) == NAPPING {
            self.wake();
        }
    }

    /// There is more to wait for: a wait that has begun begins again.
    pub(crate) fn waits_for_more(&self) {
        self.due(Instant::ZERO);
    }

    /// Something is due at `at`: a thread that would wait beyond must not.
    pub(crate) fn due(&self, at: Instant) {
        if self.waits_until.load(Ordering::SeqCst) > at.0 {
            self.wake();
        }
    }

    /// The link sends something at `at`. A program that polls now may not do so any more by then, so a nap ends too.
    pub(crate) fn sends(&self, at: Instant) {
        if self.naps_until.load(Ordering::SeqCst) > at.plus(FIRST_GO).0 {
            self.wake();
        }
    }

    fn wake(&self) {
        if let Some(waker) = &self.waker {
            waker.wake();
        }
    }
}

impl Progress {
    /// Starts the thread, if there is to be one.
    pub(crate) fn start(core: &Arc<Core>) -> io::Result<Self> {
        let Some(waker) = core.attention.waker.clone() else { return Ok(Self { thread: Mutex::new(None) }) };
        let core = core.clone();
        let thread = crate::mem::guard::without_signals(|| {
            std::thread::Builder::new().name("urxe-rx".into()).stack_size(256 * 1024).spawn(move || {
                core.attention.thread.store(affinity::thread_id(), Ordering::Relaxed);
                if let Some(cpu) = core.config.rx_cpu {
                    affinity::pin(cpu.0);
                }
                if core.keeps_back() {
                    affinity::punctual();
                }
                run(&core, &waker);
            })
        })?;
        Ok(Self { thread: Mutex::new(Some(thread)) })
    }

    /// Ends the thread. [`Core::stop`] is set.
    pub(crate) fn stop(&self, core: &Core) {
        core.attention.wake();
        if let Some(thread) = self.thread.lock().take() {
            // It ends by itself; that it panicked would change nothing.
            let _ = thread.join();
        }
    }
}

fn run(core: &Core, waker: &Waker) {
    crate::mem::guard::ready_thread();
    let attention = &core.attention;
    let spin = core.config.spin.duration().as_nanos() as u64;
    let mut nap = POLLING;
    let mut busy_until = Instant::ZERO;
    while !core.stop.load(Ordering::Relaxed) {
        let now = core.clock.now();
        attention.waits_until.store(NAPPING, Ordering::SeqCst);
        if now.since(Instant(attention.last_poll.load(Ordering::SeqCst))) < POLLING {
            take_nap(core, waker, now.plus(nap));
            nap = (nap * 2).min(LONGEST_NAP);
            continue;
        }
        attention.waits_until.store(RUNNING, Ordering::SeqCst);
        nap = POLLING;
        let ran = match core.run_all(true) {
            Ran::Held if !core.hold(waker) => core.run_all(false),
            ran => ran,
        };
        if ran != Ran::Nothing {
            busy_until = core.clock.now().plus(spin);
            continue;
        }
        if core.clock.now() < busy_until {
            std::hint::spin_loop();
            continue;
        }
        // First say until when it waits, then look: whoever adds an earlier time either is seen here or sees this.
        attention.waits_until.store(u64::MAX, Ordering::SeqCst);
        // A wait above may have taken the wake-up that was to end this thread.
        if core.stop.load(Ordering::SeqCst) {
            break;
        }
        let next = core.timers.next().min(core.next_release());
        attention.waits_until.store(next.0.max(NAPPING + 1), Ordering::SeqCst);
        let now = core.clock.now();
        let timeout = (next != Instant::NEVER).then(|| next.since(now));
        if let Err(e) = wait(&*core.link, waker, timeout) {
            tracing::warn!(error = %e, "waiting for packets failed");
            waker.wait(Some(1_000_000));
        }
    }
}

/// Sleeps until `end`, or until the link has something to send. In this order: whoever adds that sees until when the nap
/// lasts, or else is seen here.
fn take_nap(core: &Core, waker: &Waker, end: Instant) {
    let attention = &core.attention;
    attention.naps_until.store(end.0, Ordering::SeqCst);
    let end = end.min(core.next_to_send().plus(FIRST_GO));
    attention.naps_until.store(end.0, Ordering::SeqCst);
    waker.wait(Some(end.since(core.clock.now())));
    attention.naps_until.store(0, Ordering::SeqCst);
    core.release(core.clock.now());
}
