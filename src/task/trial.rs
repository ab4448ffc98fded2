//! Whether it is worth to hand packets over to workers, found out by trying.
//!
//! Handing over costs time, and brings some only if workers have a CPU that nobody else wants; how that is differs by machine
//! and moment. So under load `auto` now and then receives for a while in each way, and then goes on in the one that took
//! more bytes in its time.

use crate::time::Instant;

/// How long each way is tried, in ns. What waits in workers' queues when a try ends must be little beside what it took.
const TRY: u64 = 20_000_000;
/// How long the better one is kept then, in ns: trying the worse one should cost little.
const KEEP: u64 = 400_000_000;
/// After such a pause, in ns, what was seen before it says nothing.
const PAUSE: u64 = 5_000_000;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// Inline is tried.
    Inline,
    /// Workers are tried, and inline took so many bytes.
    Workers { inline: u64 },
    /// It is decided: for workers or not.
    Decided { workers: bool },
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Trial {
    phase: Phase,
    since: Instant,
    last: Instant,
    bytes: u64,
}

impl Trial {
    pub(crate) const fn new() -> Self {
        Self { phase: Phase::Decided { workers: false }, since: Instant::ZERO, last: Instant::ZERO, bytes: 0 }
    }

    /// So many bytes were received under load. Returns whether they are for workers.
    pub(crate) fn for_workers(&mut self, now: Instant, bytes: usize) -> bool {
        let trying = !matches!(self.phase, Phase::Decided { .. });
        if trying && now.since(self.last) > PAUSE {
            self.enter(Phase::Inline, now);
        }
        self.last = now;
        let end = if trying { TRY } else { KEEP };
        if now.since(self.since) >= end {
            let next = match self.phase {
                Phase::Inline => Phase::Workers { inline: self.bytes },
                // Equal is not enough: the threads of others may want the CPU.
                Phase::Workers { inline } => Phase::Decided { workers: self.bytes > inline + inline / 10 },
                Phase::Decided { .. } => Phase::Inline,
            };
            self.enter(next, now);
        }
        self.bytes += bytes as u64;
        matches!(self.phase, Phase::Workers { .. } | Phase::Decided { workers: true })
    }

    fn enter(&mut self, phase: Phase, now: Instant) {
        (self.phase, self.since, self.bytes) = (phase, now, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Receives for a second where one way takes `inline` bytes at a time and the other `workers`; returns how often each was
    /// chosen.
    fn second(trial: &mut Trial, start: u64, inline: usize, workers: usize) -> [u32; 2] {
        let (mut chosen, mut bytes) = ([0; 2], inline);
        for step in 0..10_000 {
            let way = trial.for_workers(Instant(start + step * 100_000), bytes);
            chosen[usize::from(way)] += 1;
            bytes = if way { workers } else { inline };
        }
        chosen
    }

    #[test]
    fn the_way_that_takes_more_is_kept_and_the_other_is_tried_rarely() {
        let mut trial = Trial::new();
        let start = 5_000_000_000;
        let [inline, workers] = second(&mut trial, start, 1000, 700);
        assert!(workers > 0 && workers * 15 < inline, "{inline} {workers}");
        second(&mut trial, start + 1_000_000_000, 700, 1000);
        let [inline, workers] = second(&mut trial, start + 2_000_000_000, 700, 1000);
        assert!(inline > 0 && inline * 15 < workers, "it follows a change: {inline} {workers}");
    }

    #[test]
    fn a_try_that_was_interrupted_does_not_count() {
        let mut trial = Trial::new();
        let mut now = KEEP;
        assert!(!trial.for_workers(Instant(now), 1), "inline is tried");
        for _ in 0..50 {
            now += PAUSE + 1;
            assert!(!trial.for_workers(Instant(now), 1), "and again from its beginning");
        }
    }
}
