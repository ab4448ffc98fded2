//! The workers: threads that run tasks from queues.
//!
//! Each worker has a queue of its own, and each task belongs to one worker. So its packets stay in order and in that
//! CPU's cache, and completion vector k is served by worker k. A task has a turn of limited length and then goes to the
//! end of the queue.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender};
use parking_lot::Mutex;

use super::affinity;
use super::lane::{Run, Side};
use crate::config::Config;
use crate::device::Core;
use crate::device::qp::Qp;
use crate::device::queued::Turn;

/// Workers there are at most without being asked for.
const MOST: usize = 4;
/// How long the packets of a turn may wait for those of others, in ns.
const TOGETHER: u64 = 30_000;
/// Powers of two that sizes of batches are sorted by; the last takes all above.
pub(crate) const SIZES: usize = 9;

/// What a worker finds in its queue.
enum Entry {
    /// A task, which holds its queue pair.
    Task(Arc<Qp>, Side),
    /// The device ends.
    Stop,
}

/// A worker, for those who give it work.
pub(crate) struct Worker {
    queue: Sender<Entry>,
    pub(crate) facts: Arc<Facts>,
}

/// What is known of a worker.
#[derive(Default)]
pub(crate) struct Facts {
    pub(crate) thread: AtomicU32,
    /// To which it is pinned.
    pub(crate) cpu: Option<usize>,
    /// Turns by the number of packets that they found: 0, 1, 2 to 3, 4 to 7 and so on.
    pub(crate) sizes: [AtomicU64; SIZES],
    /// Held during a turn.
    turn: Mutex<()>,
}

impl Facts {
    pub(crate) fn count(&self, packets: usize) {
        let size = (usize::BITS - packets.leading_zeros()) as usize;
        self.sizes[size.min(SIZES - 1)].fetch_add(1, Ordering::Relaxed);
    }
}

/// The workers of a device. They are started when the first queue pair wants them.
pub(crate) struct Pool {
    size: usize,
    workers: OnceLock<Vec<Worker>>,
    threads: Mutex<(Weak<Core>, Vec<JoinHandle<()>>)>,
    /// The worker of the next queue pair for which nobody chose.
    next: AtomicUsize,
}

/// How many workers a configuration means.
pub(crate) fn size(config: &Config) -> usize {
    match config.workers {
        Some(workers) => workers.value() as usize,
        None => std::thread::available_parallelism().map_or(1, usize::from).min(MOST),
    }
}

impl Pool {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            size: size(config),
            workers: OnceLock::new(),
            threads: Mutex::new((Weak::new(), Vec::new())),
            next: AtomicUsize::new(0),
        }
    }

    /// Workers that there are, or will be.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// From now on workers can be started.
    pub(crate) fn enable(&self, core: &Arc<Core>) {
        self.threads.lock().0 = Arc::downgrade(core);
    }

    /// Starts the workers if they do not run. Returns whether they run.
    pub(crate) fn ensure(&self) -> bool {
        if self.workers.get().is_some() {
            return true;
        }
        let mut threads = self.threads.lock();
        if self.workers.get().is_some() {
            return true;
        }
        let Some(core) = threads.0.upgrade() else { return false };
        let mut workers = Vec::new();
        for index in 0..self.size {
            let (queue, entries) = crossbeam_channel::unbounded();
            let cpus = core.config.cpus.as_ref().map(|cpus| cpus.as_slice()).unwrap_or_default();
            let cpu = (!cpus.is_empty()).then(|| cpus[index % cpus.len()]);
            let facts = Arc::new(Facts { cpu, ..Facts::default() });
            let worker = Worker { queue: queue.clone(), facts: facts.clone() };
            let core = core.clone();
            let thread = crate::mem::guard::without_signals(|| {
                let builder = std::thread::Builder::new();
                let builder = builder.name(format!("urxe-task{index}")).stack_size(512 * 1024);
                builder.spawn(move || run(&core, &facts, &queue, &entries))
            });
            match thread {
                Ok(thread) => threads.1.push(thread),
                Err(error) => {
                    tracing::warn!(%error, "a worker could not be started; tasks run inline");
                    for worker in workers {
                        stop(&worker);
                    }
                    return false;
                }
            }
            workers.push(worker);
        }
        self.workers.set(workers).is_ok()
    }

    /// The next worker in turn.
    pub(crate) fn any(&self) -> usize {
        self.next.fetch_add(1, Ordering::Relaxed) % self.size
    }

    /// The workers, once they run.
    pub(crate) fn workers(&self) -> &[Worker] {
        self.workers.get().map(Vec::as_slice).unwrap_or_default()
    }

    /// There is work for a side of a queue pair.
    pub(crate) fn schedule(&self, qp: &Qp, side: Side) {
        let lane = qp.lane(side);
        if lane.state.schedule()
            && let Some(worker) = self.workers().get(lane.worker)
            && let Some(qp) = qp.me.upgrade()
        {
            // A worker that has ended has ended with its device.
            let _ = worker.queue.send(Entry::Task(qp, side));
        }
    }

    /// Returns when each worker has been between two turns: what it has looked up before it has done with.
    pub(crate) fn wait_for_turns(&self) {
        for worker in self.workers() {
            drop(worker.facts.turn.lock());
        }
    }

    /// Ends the workers, and lets none start again. What is scheduled is not run any more.
    pub(crate) fn stop(&self) {
        let threads = {
            let mut threads = self.threads.lock();
            threads.0 = Weak::new();
            std::mem::take(&mut threads.1)
        };
        for worker in self.workers() {
            stop(worker);
        }
        for thread in threads {
            // It ends by itself; that it panicked would change nothing. A worker may itself be who drops the device.
            if thread.thread().id() != std::thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}

impl Worker {
    /// Tasks in its queue.
    pub(crate) fn queued(&self) -> usize {
        self.queue.len()
    }
}

fn stop(worker: &Worker) {
    let _ = worker.queue.send(Entry::Stop);
}

thread_local! {
    static WORKER: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is a worker.
pub(crate) fn is_worker() -> bool {
    WORKER.get()
}

/// A worker's thread.
fn run(core: &Core, facts: &Facts, queue: &Sender<Entry>, entries: &Receiver<Entry>) {
    WORKER.set(true);
    facts.thread.store(affinity::thread_id(), Ordering::Relaxed);
    if let Some(cpu) = facts.cpu {
        affinity::pin(cpu);
    }
    crate::mem::guard::ready_thread();
    let spin = core.config.worker_spin.duration();
    let mut runs: Vec<Run> = Vec::new();
    let mut outbox = core.take_batch();
    let mut done: Vec<(Arc<Qp>, Side, Turn)> = Vec::new();
    while let Some(first) = next(entries, spin) {
        let began = core.clock.now();
        let mut stop = false;
        let mut entry = Some(first);
        let copying = facts.turn.lock();
        while let Some(task) = entry.take() {
            let Entry::Task(qp, side) = task else {
                stop = true;
                break;
            };
            if qp.lane(side).state.begin() {
                let turn = match side {
                    Side::Send => core.turn_of_send_side(&qp, &mut runs, &mut outbox),
                    Side::Recv => core.turn_of_recv_side(&qp, &mut runs, &mut outbox),
                };
                facts.count(turn.packets);
                done.push((qp, side, turn));
            }
            if !outbox.is_empty() && core.clock.now().since(began) < TOGETHER {
                entry = entries.try_recv().ok();
            }
        }
        core.flush(&mut outbox);
        drop(copying);
        // Only now are the turns over: what is sent inline afterwards must not overtake what they have sent.
        for (qp, side, turn) in &done {
            if qp.lane(*side).state.finish(turn.more) {
                let _ = queue.send(Entry::Task(qp.clone(), *side));
            }
        }
        // Whoever hears it may destroy a queue pair, which waits for the end of its turn.
        for (qp, _, turn) in done.drain(..) {
            qp.tell(core, turn.notices);
        }
        if stop || core.stop.load(Ordering::Relaxed) {
            break;
        }
    }
    // Whoever drains a task must not wait for one that is in the queue.
    while entries.try_recv().is_ok() {}
}

/// The next entry. For a while it is looked for, and then waited for.
fn next(entries: &Receiver<Entry>, spin: std::time::Duration) -> Option<Entry> {
    if let Ok(entry) = entries.try_recv() {
        return Some(entry);
    }
    if !spin.is_zero() {
        let end = std::time::Instant::now() + spin;
        while std::time::Instant::now() < end {
            std::hint::spin_loop();
            if let Ok(entry) = entries.try_recv() {
                return Some(entry);
            }
        }
    }
    entries.recv().ok()
}
