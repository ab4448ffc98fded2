//! The state of a task that workers run: one side of a queue pair.
//!
//! Work is left for the task first, and then it is scheduled. Whoever [`TaskState::schedule`] tells to puts it into a
//! worker's queue; the worker runs it between [`begin`](TaskState::begin) and [`finish`](TaskState::finish). So a task is
//! in one worker at a time, and none is forgotten: what comes while it runs makes it run again.
//!
//! | state | in a queue | in a worker | what `schedule` does |
//! |---|---|---|---|
//! | idle | no | no | scheduled: to be queued |
//! | scheduled | yes | no | nothing |
//! | running | no | yes | again |
//! | again | no | yes | nothing |
//! | draining | no | yes | nothing: somebody waits for the end of the run |
//! | drained | maybe | no | nothing |
//!
//! An entry of a queue is a hint: one whose task was drained meanwhile finds nothing to begin.

#[cfg(loom)]
use loom::sync::{Condvar, Mutex, atomic::AtomicU8};
use std::sync::atomic::Ordering;
#[cfg(not(loom))]
use std::sync::{Condvar, Mutex, atomic::AtomicU8};

const IDLE: u8 = 0;
const SCHEDULED: u8 = 1;
const RUNNING: u8 = 2;
const AGAIN: u8 = 3;
const DRAINING: u8 = 4;
const DRAINED: u8 = 5;

/// See the module.
pub(crate) struct TaskState {
    state: AtomicU8,
    /// For those who wait for the end of a run.
    drain: Mutex<()>,
    drained: Condvar,
}

impl TaskState {
    pub(crate) fn new() -> Self {
        Self { state: AtomicU8::new(IDLE), drain: Mutex::new(()), drained: Condvar::new() }
    }

    /// Whether nothing is left for it.
    pub(crate) fn is_idle(&self) -> bool {
        self.state.load(Ordering::Acquire) == IDLE
    }

    /// There is work for it. Returns whether the caller has to put it into a queue.
    pub(crate) fn schedule(&self) -> bool {
        let next = |state| match state {
            IDLE => Some(SCHEDULED),
            RUNNING => Some(AGAIN),
            _ => None,
        };
        self.change(next) == Ok(IDLE)
    }

    /// A worker has taken it from a queue. Returns whether it is to run it.
    pub(crate) fn begin(&self) -> bool {
        self.change(|state| (state == SCHEDULED).then_some(RUNNING)).is_ok()
    }

    /// The run is over; with `more`, it has left work. Returns whether the caller has to put it into a queue again.
    pub(crate) fn finish(&self, more: bool) -> bool {
        let next = |state| match state {
            RUNNING if !more => Some(IDLE),
            RUNNING | AGAIN => Some(SCHEDULED),
            _ => Some(DRAINED),
        };
        match self.change(next) {
            Ok(DRAINING) => {
                // Under the lock, so that nobody is between looking at the state and waiting.
                let _held = self.drain.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                self.drained.notify_all();
                false
            }
            Ok(RUNNING) => more,
            Ok(AGAIN) => true,
            _ => false,
        }
    }

    /// Keeps it from running until [`resume`](Self::resume). When this returns it does not run. Not to be called by the run
    /// itself.
    pub(crate) fn drain(&self) {
        let next = |state| match state {
            IDLE | SCHEDULED => Some(DRAINED),
            RUNNING | AGAIN => Some(DRAINING),
            _ => None,
        };
        let _ = self.change(next);
        let mut held = self.drain.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        while self.state.load(Ordering::Acquire) == DRAINING {
            held = self.drained.wait(held).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
    }

    /// Lets it run again when it is scheduled.
    pub(crate) fn resume(&self) {
        let _ = self.change(|state| (state == DRAINED).then_some(IDLE));
    }

    fn change(&self, next: impl FnMut(u8) -> Option<u8>) -> Result<u8, u8> {
        self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, next)
    }
}

#[cfg(all(test, loom))]
mod models {
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicUsize, Ordering};
    use loom::thread;

    use super::TaskState;

    /// A task, the work that is left for it, and a queue of one worker, as a count of entries.
    struct World {
        state: TaskState,
        work: AtomicUsize,
        entries: AtomicUsize,
        running: AtomicUsize,
        done: AtomicUsize,
    }

    impl World {
        fn new() -> Arc<Self> {
            Arc::new(Self {
                state: TaskState::new(),
                work: AtomicUsize::new(0),
                entries: AtomicUsize::new(0),
                running: AtomicUsize::new(0),
                done: AtomicUsize::new(0),
            })
        }

        fn leave_work(&self) {
            self.work.fetch_add(1, Ordering::AcqRel);
            if self.state.schedule() {
                self.entries.fetch_add(1, Ordering::AcqRel);
            }
        }

        /// Takes one entry, if there is one, and runs it, at most one piece of work a run.
        fn worker(&self) {
            let take = |n: usize| n.checked_sub(1);
            if self.entries.fetch_update(Ordering::AcqRel, Ordering::Acquire, take).is_err() {
                return;
            }
            if !self.state.begin() {
                return;
            }
            assert_eq!(self.running.fetch_add(1, Ordering::AcqRel), 0, "in one worker at a time");
            if self.work.fetch_update(Ordering::AcqRel, Ordering::Acquire, take).is_ok() {
                self.done.fetch_add(1, Ordering::AcqRel);
            }
            let more = self.work.load(Ordering::Acquire) > 0;
            self.running.fetch_sub(1, Ordering::AcqRel);
            if self.state.finish(more) {
                self.entries.fetch_add(1, Ordering::AcqRel);
            }
        }

        fn run_dry(&self) {
            while self.entries.load(Ordering::Acquire) > 0 {
                self.worker();
            }
        }
    }

    #[test]
    fn work_that_comes_while_it_runs_is_not_forgotten() {
        loom::model(|| {
            let world = World::new();
            world.leave_work();
            let other = world.clone();
            let worker = thread::spawn(move || other.worker());
            world.leave_work();
            worker.join().unwrap();
            world.run_dry();
            assert_eq!(world.done.load(Ordering::Acquire), 2);
            assert!(world.state.is_idle());
        });
    }

    #[test]
    fn two_workers_never_run_it_together() {
        loom::model(|| {
            let world = World::new();
            world.leave_work();
            let others = [world.clone(), world.clone()];
            let workers = others.map(|other| thread::spawn(move || other.worker()));
            world.leave_work();
            for worker in workers {
                worker.join().unwrap();
            }
            world.run_dry();
            assert_eq!(world.done.load(Ordering::Acquire), 2);
        });
    }

    #[test]
    fn when_a_drain_returns_it_does_not_run_and_is_not_run_again() {
        loom::model(|| {
            let world = World::new();
            world.leave_work();
            let other = world.clone();
            let worker = thread::spawn(move || {
                other.worker();
                other.worker();
            });
            world.state.drain();
            assert_eq!(world.running.load(Ordering::Acquire), 0);
            let done = world.done.load(Ordering::Acquire);
            world.leave_work();
            worker.join().unwrap();
            world.run_dry();
            assert_eq!(world.done.load(Ordering::Acquire), done);
        });
    }

    #[test]
    fn a_task_that_is_drained_while_scheduled_runs_again_after_it_is_resumed() {
        loom::model(|| {
            let world = World::new();
            world.leave_work();
            let other = world.clone();
            let worker = thread::spawn(move || other.worker());
            world.state.drain();
            world.work.store(0, Ordering::Release);
            world.done.store(0, Ordering::Release);
            world.state.resume();
            world.leave_work();
            worker.join().unwrap();
            world.run_dry();
            assert_eq!(world.done.load(Ordering::Acquire), 1);
            assert!(world.state.is_idle());
        });
    }

    #[test]
    fn two_that_drain_it_both_come_back() {
        // All orders of three threads are too many.
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(2);
        model.check(|| {
            let world = World::new();
            world.leave_work();
            let others = [world.clone(), world.clone()];
            let [drainer, worker] = others;
            let drainer = thread::spawn(move || {
                drainer.state.drain();
                drainer.state.resume();
            });
            let worker = thread::spawn(move || worker.worker());
            world.state.drain();
            world.state.resume();
            drainer.join().unwrap();
            worker.join().unwrap();
            world.run_dry();
            assert_eq!(world.running.load(Ordering::Acquire), 0);
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::TaskState;

    #[test]
    fn it_is_queued_once_and_again_if_work_came_while_it_ran() {
        let task = TaskState::new();
        assert!(task.is_idle() && task.schedule() && !task.schedule());
        assert!(task.begin() && !task.begin());
        assert!(!task.schedule(), "the run notices");
        assert!(task.finish(false));
        assert!(task.begin() && !task.finish(false) && task.is_idle());
        assert!(task.schedule() && task.begin() && task.finish(true), "it left work");
    }

    #[test]
    fn a_drained_task_is_not_run_by_the_entry_that_is_still_in_a_queue() {
        let task = TaskState::new();
        assert!(task.schedule());
        task.drain();
        assert!(!task.begin() && !task.schedule());
        task.resume();
        assert!(task.schedule() && task.begin() && !task.begin());
    }
}
