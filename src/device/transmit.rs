//! How the packets of a queue pair leave.
//!
//! A side of a queue pair fills a batch, the batch is sent, and the side hears how much of it has left. Where one thread
//! works for several queue pairs, their small packets gather in its *outbox* and leave in one system call: for a peer with
//! many queue pairs that is one datagram to receive, not many. What is in an outbox counts as sent; if the system then
//! does not take it, it is a loss like others. So only reliable queue pairs use it, and only for packets that do not
//! reference the program's memory.

use std::sync::atomic::Ordering;

use super::Core;
use super::qp::Qp;
use crate::io::Why;
use crate::qp::recv::RecvSide;
use crate::qp::send::SendSide;
use crate::qp::{Notices, Progress};
use crate::time::Instant;
use crate::verbs::QpType;
use crate::wire::TxBatch;

/// How long a queue pair waits when the system takes no more packets, in ns.
const BLOCKED_PAUSE: u64 = 50_000;

impl Core {
    /// Sends what several queue pairs have left.
    pub(crate) fn flush(&self, outbox: &mut TxBatch) {
        if !outbox.is_empty() {
            self.send_counted(outbox);
            outbox.clear();
        }
    }

    /// Sends a batch. Returns how many packets have left, and why not all. Memory that vanished between checksum and send
    /// is no failure to be told: the next round copies it, and names what is missing.
    fn send_counted(&self, batch: &TxBatch) -> (usize, Why) {
        let outcome = self.send(batch);
        let rest = batch.packets().saturating_sub(outcome.sent_packets) as u64;
        self.counters.sent_pkts.add(outcome.sent_packets as u64);
        match outcome.why {
            Why::Done | Why::Failed(libc::EFAULT) => {}
            Why::WouldBlock => self.counters.send_blocked.add(rest),
            Why::Failed(errno) => {
                self.counters.send_errors.add(rest);
                if self.throttle.passes(self.clock.now()) {
                    tracing::warn!(errno, packets = rest, "the system refuses to send");
                }
            }
        }
        (outcome.sent_packets, outcome.why)
    }
}

impl Qp {
    /// The requester's task: sends what may be sent now, at most in so many batches. The caller holds the side. Returns
    /// whether there is more.
    pub(crate) fn run_send(
        &self,
        core: &Core,
        side: &mut SendSide,
        now: Instant,
        notices: &mut Notices,
        mut batches: usize,
        outbox: Option<&mut TxBatch>,
    ) -> Progress {
        let outbox = outbox.filter(|_| self.kind == QpType::Rc);
        let together = outbox.is_some();
        let mut own = None;
        let batch = outbox.unwrap_or_else(|| &mut **own.insert(core.take_batch()));
        let mut end = Progress::Wait;
        loop {
            if batches == 0 {
                end = Progress::More;
                break;
            }
            batches -= 1;
            let first = batch.packets();
            let progress = side.poll_transmit(now, &core.mem, batch, notices);
            if batch.packets() == first {
                if progress == Progress::Wait {
                    break;
                }
                core.flush(batch);
                continue;
            }
            let requests = batch.packets();
            // An acknowledgement that waits leaves with the last requests.
            let mut ack = None;
            if progress == Progress::Wait
                && self.lazy.load(Ordering::Relaxed)
                && let Some(mut recv) = self.recv.try_lock()
                && recv.has_replies()
                && !recv.is_urgent()
            {
                recv.poll_transmit(now, &core.mem, batch, notices);
                if batch.packets() > requests {
                    ack = Some(recv);
                }
            }
            let stays = together && progress == Progress::Wait && !batch.references_memory();
            let (sent, why) = if stays { (batch.packets(), Why::Done) } else { core.send_counted(batch) };
            if let Some(mut recv) = ack.take() {
                recv.handle_sent(usize::from(sent > requests));
            }
            let tags = &batch.tags()[first..requests];
            let sent = match why {
                // As if the network had lost them: what must arrive is sent again, what need not is gone.
                Why::Failed(errno) if errno != libc::EFAULT => tags.len(),
                _ => sent.saturating_sub(first).min(tags.len()),
            };
            side.handle_sent(sent, tags, notices);
            if !stays {
                batch.clear();
            }
            if why == Why::WouldBlock {
                self.arm(core, now.plus(BLOCKED_PAUSE));
                break;
            }
            if progress == Progress::Wait && why == Why::Done {
                break;
            }
        }
        if let Some(own) = own {
            core.give_batch(own);
        }
        self.arm(core, side.deadline());
        end
    }

    /// The responder's task: sends the replies that wait. The caller holds the side.
    pub(crate) fn send_replies(
        &self,
        core: &Core,
        side: &mut RecvSide,
        now: Instant,
        notices: &mut Notices,
        outbox: Option<&mut TxBatch>,
    ) {
        let together = outbox.is_some();
        let mut own = None;
        let batch = outbox.unwrap_or_else(|| &mut **own.insert(core.take_batch()));
        loop {
            let first = batch.packets();
            let progress = side.poll_transmit(now, &core.mem, batch, notices);
            let count = batch.packets() - first;
            if count == 0 {
                if progress == Progress::Wait {
                    break;
                }
                core.flush(batch);
                continue;
            }
            if together && progress == Progress::Wait && !batch.references_memory() {
                side.handle_sent(count);
                break;
            }
            let (sent, why) = core.send_counted(batch);
            batch.clear();
            match why {
                Why::Failed(errno) if errno != libc::EFAULT => side.handle_sent(count),
                _ => side.handle_sent(sent.saturating_sub(first)),
            }
            if why == Why::WouldBlock {
                self.arm(core, now.plus(BLOCKED_PAUSE));
                break;
            }
            // Memory that vanished is found, and refused, by the next round.
            if progress == Progress::Wait && why != Why::Failed(libc::EFAULT) {
                break;
            }
        }
        if let Some(own) = own {
            core.give_batch(own);
        }
        self.arm(core, side.deadline());
    }
}
