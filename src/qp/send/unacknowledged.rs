//! What bounds UC and UD, which nobody acknowledges: a datagram socket drops what does not fit, and a program that
//! counts on a network without loss, as adapters have it, then waits forever.
//!
//! Now and then a packet has FECN set in its BTH. A urxe that has taken it answers with a congestion notification packet
//! that has FECN set and the PSN of the marked packet: an echo. The sender knows by it that all before has been taken,
//! and keeps what has not within a limit. Other peers ignore the bit (IBA 9.2.5 leaves it to congestion control, which
//! RoCEv2 does by IP's ECN); when a peer has never answered, there is no limit but the pace that its congestion
//! notifications set.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::ids::Psn;
use crate::time::Instant;
use crate::wire::{IpId, Path};

/// What a packet takes of a socket's buffer besides its payload; small ones take far more than their bytes.
const OVERHEAD: u32 = 512;
/// What each queue pair may have on the way whatever others have.
const SHARE: u64 = 32 * 1024;
/// How long an echo may take. A peer may wait for the processor, or hold what its program has no receive for.
const PATIENCE: u64 = 500_000_000;
/// The same for the first echo of all: from a peer on this host, which is a urxe, and from one that may not be.
const FIRST_PATIENCE: u64 = 200_000_000;
const STRANGER_PATIENCE: u64 = 10_000_000;
/// Most paths whose bytes are counted apart.
const PATHS: usize = 16;

/// A packet whose echo is awaited.
#[derive(Debug)]
struct Mark {
    path: Arc<Path>,
    psn: Psn,
    /// Bytes since the mark before, this packet included.
    bytes: u64,
    end: Instant,
}

/// What a queue pair has sent and not heard of.
#[derive(Debug, Default)]
pub(super) struct Unacknowledged {
    marks: VecDeque<Mark>,
    /// Bytes since the last mark.
    open: Vec<(Arc<Path>, u64)>,
}

impl Unacknowledged {
    fn own(&self, path: &Arc<Path>) -> u64 {
        let marked = self.marks.iter().filter(|m| Arc::ptr_eq(&m.path, path)).map(|m| m.bytes).sum::<u64>();
        marked + self.open.iter().find(|(p, _)| Arc::ptr_eq(p, path)).map_or(0, |(_, bytes)| *bytes)
    }

    /// Whether an echo has to come before more is sent. Then one is awaited.
    pub(super) fn blocks(&self, path: &Arc<Path>, limit: u64) -> bool {
        path.flow.in_flight() >= limit && path.flow.echoes() != Some(false) && self.own(path) >= SHARE
    }

    /// A packet is sent. Returns whether it is to be marked.
    pub(super) fn sent(
        &mut self,
        now: Instant,
        path: &Arc<Path>,
        psn: Psn,
        len: u32,
        limit: u64,
        last: bool,
    ) -> bool {
        let bytes = u64::from(len + OVERHEAD);
        path.flow.charge(bytes as i64);
        let at = match self.open.iter().position(|(p, _)| Arc::ptr_eq(p, path)) {
            Some(at) => at,
            None => {
                if self.open.len() == PATHS {
                    let (old, bytes) = self.open.swap_remove(0);
                    old.flow.charge(-(bytes as i64));
                }
                self.open.push((path.clone(), 0));
                self.open.len() - 1
            }
        };
        let open = &mut self.open[at].1;
        *open += bytes;
        let due = *open >= limit / 8
            || last && *open >= limit / 32
            || *open >= SHARE / 2 && path.flow.in_flight() >= limit;
        if due {
            let (path, bytes) = self.open.swap_remove(at);
            self.expire(now);
            let patience = match (path.flow.echoes(), path.ip_id()) {
                (Some(true), _) => PATIENCE,
                (_, IpId::Zero) => FIRST_PATIENCE,
                (_, IpId::Counting) => STRANGER_PATIENCE,
            };
            self.marks.push_back(Mark { path, psn, bytes, end: now.plus(patience) });
        }
        due
    }

    /// The packet last told of by [`sent`](Self::sent) is not sent after all.
    pub(super) fn take_back(&mut self, path: &Arc<Path>, psn: Psn, len: u32) {
        let bytes = u64::from(len + OVERHEAD);
        path.flow.charge(-(bytes as i64));
        if let Some(mark) = self.marks.pop_back_if(|m| m.psn == psn) {
            // What else it stood for is as before.
            self.open.push((mark.path, mark.bytes.saturating_sub(bytes)));
        } else if let Some((_, open)) = self.open.iter_mut().find(|(p, _)| Arc::ptr_eq(p, path)) {
            *open = open.saturating_sub(bytes);
        }
    }

    /// The peer has taken the marked packet.
    pub(super) fn echoed(&mut self, psn: Psn) {
        let Some(last) = self.marks.iter().rposition(|m| m.psn == psn) else { return };
        let path = self.marks[last].path.clone();
        path.flow.set_echoes(true);
        let mut index = 0;
        self.marks.retain(|m| {
            let done = index <= last && Arc::ptr_eq(&m.path, &path);
            index += 1;
            if done {
                m.path.flow.charge(-(m.bytes as i64));
            }
            !done
        });
    }

    /// When the patience with the oldest mark ends.
    pub(super) fn deadline(&self) -> Instant {
        self.marks.front().map_or(Instant::NEVER, |m| m.end)
    }

    /// Gives up the marks that nobody answered.
    pub(super) fn expire(&mut self, now: Instant) {
        while let Some(mark) = self.marks.pop_front_if(|m| m.end <= now) {
            mark.path.flow.charge(-(mark.bytes as i64));
            mark.path.flow.set_echoes(false);
        }
    }

    /// Packets from `psn` on did not leave.
    pub(super) fn unsent(&mut self, psn: Psn) {
        while let Some(mark) = self.marks.pop_back_if(|m| !m.psn.is_before(psn)) {
            mark.path.flow.charge(-(mark.bytes as i64));
        }
    }
}

impl Drop for Unacknowledged {
    fn drop(&mut self) {
        for mark in &self.marks {
            mark.path.flow.charge(-(mark.bytes as i64));
        }
        for (path, bytes) in &self.open {
            path.flow.charge(-(*bytes as i64));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: u64 = 512 * 1024;

    fn path() -> Arc<Path> {
        let at = |a: &str| a.parse().unwrap();
        Arc::new(Path::new(at("10.0.0.1:4791"), at("10.0.0.2:4791"), 0, 0, IpId::Zero))
    }

    fn fill(u: &mut Unacknowledged, now: Instant, path: &Arc<Path>, psn: &mut u32) -> Vec<Psn> {
        let mut marked = Vec::new();
        while !u.blocks(path, LIMIT) {
            if u.sent(now, path, Psn::new(*psn), 4096, LIMIT, false) {
                marked.push(Psn::new(*psn));
            }
            *psn += 1;
        }
        marked
    }

    #[test]
    fn what_was_not_echoed_stays_within_the_limit() {
        let (path, mut u, mut psn) = (path(), Unacknowledged::default(), 0);
        for _ in 0..10 {
            let marked = fill(&mut u, Instant(1), &path, &mut psn);
            assert!(path.flow.in_flight() <= LIMIT + 8192);
            assert!(!marked.is_empty());
            u.echoed(*marked.last().unwrap());
            assert!(path.flow.in_flight() < LIMIT / 4);
        }
        drop(u);
        assert_eq!(path.flow.in_flight(), 0);
    }

    #[test]
    fn a_packet_that_is_taken_back_leaves_no_trace() {
        let (path, mut u) = (path(), Unacknowledged::default());
        for psn in 0..100 {
            let before = (path.flow.in_flight(), u.own(&path), u.marks.len());
            u.sent(Instant(1), &path, Psn::new(psn), 4096, LIMIT, false);
            u.take_back(&path, Psn::new(psn), 4096);
            assert_eq!((path.flow.in_flight(), u.own(&path), u.marks.len()), before);
            u.sent(Instant(1), &path, Psn::new(psn), 4096, LIMIT, false);
        }
        assert!(!u.marks.is_empty(), "also those that would have been marked");
        drop(u);
        assert_eq!(path.flow.in_flight(), 0);
    }

    #[test]
    fn a_peer_that_never_answers_sets_no_limit_and_one_that_answers_again_does() {
        let (path, mut u, mut psn) = (path(), Unacknowledged::default(), 0);
        fill(&mut u, Instant(1), &path, &mut psn);
        u.expire(u.deadline());
        assert!(!u.blocks(&path, LIMIT));
        let mut last = None;
        for i in 0..1000 {
            if u.sent(Instant(2), &path, Psn::new(psn + i), 4096, LIMIT, false) {
                last = Some(Psn::new(psn + i));
            }
        }
        assert!(!u.blocks(&path, LIMIT));
        u.echoed(last.unwrap());
        psn += 1000;
        fill(&mut u, Instant(3), &path, &mut psn);
        assert!(u.blocks(&path, LIMIT));
    }

    #[test]
    fn every_queue_pair_has_a_share() {
        let (path, mut a, mut b, mut psn) = (path(), Unacknowledged::default(), Unacknowledged::default(), 0);
        fill(&mut a, Instant(1), &path, &mut psn);
        let marked = fill(&mut b, Instant(1), &path, &mut psn);
        assert!(!marked.is_empty(), "or it would wait for nothing");
    }
}
