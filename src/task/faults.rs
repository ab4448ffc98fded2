//! The threads that resolve page faults, and what else waits for the system to find pages.
//!
//! They are started by the first fault or prefetch: most programs never have one.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

use parking_lot::Mutex;

use crate::device::Core;
use crate::mem::odp::queue::Job;

/// The handle of the threads.
pub(crate) struct FaultWorkers {
    core: Mutex<Weak<Core>>,
    threads: Mutex<Option<Vec<JoinHandle<()>>>>,
}

impl FaultWorkers {
    pub(crate) fn new() -> Self {
        Self { core: Mutex::new(Weak::new()), threads: Mutex::new(None) }
    }

    /// From now on threads can be started.
    pub(crate) fn enable(&self, core: &Arc<Core>) {
        *self.core.lock() = Arc::downgrade(core);
    }

    /// Starts the threads if they do not run. Returns whether there are any.
    pub(crate) fn ensure(&self) -> bool {
        let mut threads = self.threads.lock();
        if let Some(threads) = &*threads {
            return !threads.is_empty();
        }
        let Some(core) = self.core.lock().upgrade() else { return false };
        let new: Vec<_> = (0..core.config.odp_workers.value())
            .map_while(|i| {
                let core = core.clone();
                let start = || {
                    let builder =
                        std::thread::Builder::new().name(format!("urxe-odp{i}")).stack_size(256 * 1024);
                    builder.spawn(move || run(&core))
                };
                crate::mem::guard::without_signals(start)
                    .inspect_err(
                        |error| tracing::warn!(%error, "a thread for page faults could not be started"),
                    )
                    .ok()
            })
            .collect();
        let any = !new.is_empty();
        *threads = Some(new);
        any
    }

    /// Ends the threads, and lets none start again.
    pub(crate) fn stop(&self, core: &Core) {
        core.faults.stop();
        *self.core.lock() = Weak::new();
        let threads = self.threads.lock().replace(Vec::new());
        for thread in threads.into_iter().flatten() {
            // It ends by itself; that it panicked would change nothing.
            let _ = thread.join();
        }
    }
}

fn run(core: &Core) {
    crate::mem::guard::ready_thread();
    while let Some(job) = core.faults.next() {
        if let Some(rest) = work(core, job) {
            core.faults.push(rest);
        }
    }
}

thread_local! {
    /// What [`here`] has still to do.
    static HERE: RefCell<VecDeque<Job>> = const { RefCell::new(VecDeque::new()) };
    static AT_WORK: Cell<bool> = const { Cell::new(false) };
}

/// Does a job in this thread, before the call returns. What goes on after it may meet the next fault, and so on: that is
/// done in turn, not in depth.
pub(crate) fn here(core: &Core, job: Job) {
    HERE.with_borrow_mut(|jobs| jobs.push_back(job));
    if AT_WORK.replace(true) {
        return;
    }
    while let Some(job) = HERE.with_borrow_mut(VecDeque::pop_front) {
        if let Some(rest) = work(core, job) {
            HERE.with_borrow_mut(|jobs| jobs.push_back(rest));
        }
    }
    AT_WORK.set(false);
}

/// Does a job, or a part of it; returns the rest.
pub(crate) fn work(core: &Core, job: Job) -> Option<Job> {
    match job {
        Job::Fault { qpn, part, by, miss, met } => {
            let outcome = core.mem.resolve(&miss, by);
            let now = core.clock.now();
            core.mem.took(miss.key, now.since(met));
            core.counters.odp_waits_ended.add(1);
            if let Some(qp) = core.qps.find(qpn) {
                // Who deregisters waits for what was translated before to be copied.
                let _copying = core.page_work.read_recursive();
                qp.page_arrived(core, part, &miss, outcome, now);
            }
            None
        }
        // Memory that is not there is no error: nobody waits for the answer.
        Job::Prefetch { key, start, end, advice } => {
            let next = core.mem.prefetch(key, start, end, advice).ok().flatten();
            next.map(|start| Job::Prefetch { key, start, end, advice })
        }
    }
}
