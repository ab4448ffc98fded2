//! Faults that wait for a worker, and the latency that can be added to them.
//!
//! A device with threads has workers that take jobs as they come; one without (a simulation) is asked by its owner
//! for what is due. Either way a worker has one job at a time, so that few workers and a long latency make a queue, as
//! the page fault handling of an adapter does.

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::{Advice, By, Miss};
use crate::ids::Qpn;
use crate::time::{Instant, Latency};

/// Which part of a queue pair waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// What is to be sent.
    Requester,
    /// The response to a READ or atomic of ours.
    Completer,
    /// A request of the peer.
    Responder,
    /// The response to a READ of the peer.
    Reply,
}

/// A job of a worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Job {
    /// A fault, and who waits for it.
    Fault {
        /// The queue pair.
        qpn: Qpn,
        /// Its part.
        part: Part,
        /// For the statistics.
        by: By,
        /// What is not present.
        miss: Miss,
        /// When it was met.
        met: Instant,
    },
    /// What a program advises and does not wait for.
    Prefetch {
        /// The region.
        key: u32,
        /// Host address.
        start: u64,
        /// End of the range.
        end: u64,
        /// How.
        advice: Advice,
    },
}

/// The queue.
pub struct Faults {
    inner: Mutex<Inner>,
    arrived: Condvar,
    ended: Condvar,
    latency: Latency,
}

struct Inner {
    jobs: VecDeque<(Job, u64)>,
    /// Jobs with a time at which they are done, for devices without threads.
    timed: Vec<(Instant, Job)>,
    /// When each worker is free, for the same.
    free: Vec<Instant>,
    random: u64,
    stop: bool,
}

impl Faults {
    /// An empty queue for so many workers, with random latencies that follow from `seed`.
    pub fn new(workers: usize, latency: Latency, seed: u64) -> Self {
        Self {
            inner: Mutex::new(Inner {
                jobs: VecDeque::new(),
                timed: Vec::new(),
                free: vec![Instant::ZERO; workers.max(1)],
                random: seed,
                stop: false,
            }),
            arrived: Condvar::new(),
            ended: Condvar::new(),
            latency,
        }
    }

    fn latency_of(&self, job: &Job, inner: &mut Inner) -> u64 {
        if self.latency == Latency::None || !matches!(job, Job::Fault { .. }) {
            return 0;
        }
        // SplitMix64
        inner.random = inner.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (inner.random ^ (inner.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        self.latency.sample(z ^ (z >> 31))
    }

    /// Adds a job for a worker thread.
    pub fn push(&self, job: Job) {
        let mut inner = self.inner.lock();
        let latency = self.latency_of(&job, &mut inner);
        inner.jobs.push_back((job, latency));
        drop(inner);
        self.arrived.notify_one();
    }

    /// Sleeps for the latency of a job that its thread does itself.
    pub fn delay(&self, job: &Job) {
        let mut inner = self.inner.lock();
        let latency = self.latency_of(job, &mut inner);
        self.sleep(&mut inner, latency);
    }

    fn sleep(&self, inner: &mut MutexGuard<'_, Inner>, ns: u64) {
        let end = std::time::Instant::now() + Duration::from_nanos(ns);
        while ns > 0 && !inner.stop && !self.ended.wait_until(inner, end).timed_out() {}
    }

    /// Waits for a job, and for its latency. `None`: the device ends.
    pub fn next(&self) -> Option<Job> {
        let mut inner = self.inner.lock();
        let (job, latency) = loop {
            if inner.stop {
                return None;
            }
            match inner.jobs.pop_front() {
                Some(job) => break job,
                None => self.arrived.wait(&mut inner),
            }
        };
        self.sleep(&mut inner, latency);
        (!inner.stop).then_some(job)
    }

    /// Adds a job to be done by [`due`](Self::due).
    pub fn schedule(&self, now: Instant, job: Job) {
        let mut inner = self.inner.lock();
        let latency = self.latency_of(&job, &mut inner);
        let Some(free) = inner.free.iter_mut().min() else { return };
        let at = now.max(*free).plus(latency);
        *free = at;
        inner.timed.push((at, job));
    }

    /// A job whose time has come.
    pub fn due(&self, now: Instant) -> Option<Job> {
        let mut inner = self.inner.lock();
        let (index, _) = inner.timed.iter().enumerate().min_by_key(|(i, (at, _))| (*at, *i))?;
        (inner.timed[index].0 <= now).then(|| inner.timed.remove(index).1)
    }

    /// When the next job is due.
    pub fn deadline(&self) -> Instant {
        self.inner.lock().timed.iter().map(|(at, _)| *at).min().unwrap_or(Instant::NEVER)
    }

    /// Ends all workers.
    pub fn stop(&self) {
        self.inner.lock().stop = true;
        self.arrived.notify_all();
        self.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::HostAddr;

    fn fault(n: u64) -> Job {
        let miss = Miss { key: 1, host: HostAddr(n), len: 1, ahead: 0, write: false };
        Job::Fault { qpn: Qpn(1), part: Part::Requester, by: By::Requester, miss, met: Instant::ZERO }
    }

    #[test]
    fn few_workers_and_a_long_latency_make_a_queue() {
        let faults = Faults::new(2, Latency::Fixed(100), 1);
        for n in 0..4 {
            faults.schedule(Instant(10), fault(n));
        }
        assert_eq!(faults.deadline(), Instant(110));
        assert_eq!(faults.due(Instant(109)), None);
        let at = |now| std::iter::from_fn(|| faults.due(Instant(now))).collect::<Vec<_>>();
        assert_eq!(at(110), [fault(0), fault(1)]);
        assert_eq!(faults.deadline(), Instant(210));
        assert_eq!(at(500), [fault(2), fault(3)]);
        assert_eq!(faults.deadline(), Instant::NEVER);
    }

    #[test]
    fn stopping_ends_workers_that_wait_and_workers_in_the_middle_of_a_latency() {
        let faults = std::sync::Arc::new(Faults::new(2, Latency::Fixed(3_600_000_000_000), 1));
        faults.push(fault(0));
        let workers: Vec<_> = (0..2)
            .map(|_| {
                let faults = faults.clone();
                std::thread::spawn(move || faults.next())
            })
            .collect();
        faults.stop();
        for worker in workers {
            assert_eq!(worker.join().unwrap(), None);
        }
    }
}
