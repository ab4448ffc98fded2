//! Acknowledgements wait for the program's answer.
//!
//! A program that looks at its memory for what a peer writes there answers at once, if it gets the CPU. The peer then has
//! both, the answer and after it the acknowledgement, while it still polls. An acknowledgement that comes first
//! lets it stop polling and look at its own memory, and then nobody receives the answer before its device notices.

use super::Core;
use crate::io::wait::{Waker, wait};

/// How long the program gets to begin an answer, in ns.
const HOLD: u64 = 15_000;
/// How often it gets that time again while it sends.
const AGAIN: u32 = 8;
/// A round with no more packets than this may always be half of a conversation.
const FEW: usize = 4;
/// The longest RDMA WRITE that may have an answer as long. A longer one does not fit the window, so that acknowledgements of
/// the answer are needed before all of it has left.
const LONGEST: u32 = 256 << 10;
/// Larger rounds that are not held after one that had no answer: a target that does not answer is the usual case.
const PAUSE: u32 = 64;

/// Whether it is worth it to wait.
#[derive(Default)]
pub(super) struct Holding {
    /// Bytes of the RDMA WRITE with which the last round has ended; 0 if it has not.
    pub(super) written: u32,
    /// Larger rounds until the program gets time to answer one again.
    pause: u32,
}

impl Holding {
    /// Whether the acknowledgements of a round of so many packets wait.
    pub(super) fn is_due(&mut self, packets: usize) -> bool {
        if packets <= FEW {
            return true;
        }
        if !self.may_be_answered() {
            return false;
        }
        let due = self.pause == 0;
        self.pause = self.pause.saturating_sub(1);
        due
    }

    fn may_be_answered(&self) -> bool {
        (1..=LONGEST).contains(&self.written)
    }

    fn ended(&mut self, answered: bool) {
        self.pause = if answered { 0 } else { PAUSE };
    }
}

impl Core {
    /// Waits for the program's answer. Returns whether more has come; otherwise the acknowledgements are to be sent now, if
    /// they have not left with an answer.
    pub(crate) fn hold(&self, waker: &Waker) -> bool {
        for _ in 0..=AGAIN {
            if wait(&*self.link, waker, Some(HOLD)).is_ok_and(|ready| ready.link) {
                return true;
            }
            let mut rx = self.receiver.lock();
            let answered = rx.lazy.is_empty();
            rx.holding.ended(answered);
            // In the middle of an answer the program needs its CPU.
            if !rx.holding.may_be_answered() || !rx.lazy.iter().any(|qp| qp.send.is_locked()) {
                return false;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_writes_wait_for_an_answer_as_long_as_there_are_answers() {
        let mut holding = Holding { written: 65_536, ..Holding::default() };
        for _ in 0..100 {
            assert!(holding.is_due(16));
            holding.ended(true);
        }
        holding.ended(false);
        let waits = (0..4 * PAUSE).filter(|_| {
            let due = holding.is_due(16);
            if due {
                holding.ended(false);
            }
            due
        });
        assert_eq!(waits.count(), 3, "it tries again now and then");
    }

    #[test]
    fn what_has_no_answer_of_its_length_does_not_wait_unless_it_is_short() {
        for written in [0, LONGEST + 1] {
            let mut holding = Holding { written, ..Holding::default() };
            assert!(!holding.is_due(FEW + 1), "{written}");
            assert!(holding.is_due(FEW), "{written}");
        }
    }
}
