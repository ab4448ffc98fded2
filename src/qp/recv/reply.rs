//! What the responder has to send: acknowledgements, READ responses, results of atomics, in the order of their PSNs.

use std::collections::VecDeque;

use super::RecvSide;
use crate::ids::{PKey, Psn, RKey};
use crate::mem::odp::By;
use crate::mem::{Access, Key, MemError, Memory, Miss, copy};
use crate::qp::checksum;
use crate::qp::gate::Gate;
use crate::qp::pace::Pace;
use crate::qp::{Cause, Failure, Notices, PageFault, Part, Progress};
use crate::time::Instant;
use crate::verbs::{AsyncEvent, WcStatus};
use crate::wire::batch::REFERENCE_FROM;
use crate::wire::{Aeth, Bth, Headers, NakCode, Opcode, Syndrome, TxBatch};

/// Duplicates may ask for more READs than the peer may have outstanding; this bounds what waits.
const MAX_WAITING: usize = 300;

/// What is sent between pauses when the peer loses READ responses, in bytes of full packets.
const SLOW_BURST: u32 = 16 * 1024;

/// Who repeats a READ request for more bytes than this does not limit what it asks for by what it can take.
const LONG_READ: u32 = 128 * 1024;

/// An RDMA READ that is being answered.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadJob {
    pub(super) addr: u64,
    pub(super) rkey: RKey,
    pub(super) len: u32,
    pub(super) packets: u32,
    /// Packets of the response that were emitted.
    pub(super) next: u32,
    /// It answers a duplicate request: the payload is copied, since it may be in flux (see `REFERENCE_FROM`).
    pub(super) again: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// A plain ACK. It may wait for company.
    Ack,
    Nak(Syndrome),
    Read(ReadJob),
    Atomic {
        original: u64,
    },
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Reply {
    pub(super) psn: Psn,
    pub(super) msn: u32,
    pub(super) kind: Kind,
}

impl Reply {
    fn last_psn(&self) -> Psn {
        match self.kind {
            Kind::Read(job) => self.psn.plus(job.packets - 1),
            _ => self.psn,
        }
    }
}

/// The replies that wait.
#[derive(Debug)]
pub(super) struct Replies {
    pace: Pace,
    queue: VecDeque<Reply>,
    /// Replies of the queue that are in the present batch, complete.
    emitted: usize,
    /// For each packet of the present batch: which reply, and which packet of it.
    packets: Vec<(usize, u32)>,
    /// The next READ response waits for a page.
    pub(super) gate: Gate,
}

impl Default for Replies {
    fn default() -> Self {
        Self {
            pace: Pace::new(),
            queue: VecDeque::new(),
            emitted: 0,
            packets: Vec::new(),
            gate: Gate::default(),
        }
    }
}

impl Replies {
    /// Acknowledges everything up to `psn`.
    pub(super) fn acknowledge(&mut self, psn: Psn, msn: u32) {
        if !self.extend(psn, msn) {
            self.queue.push_back(Reply { psn, msn, kind: Kind::Ack });
        }
    }

    /// Lets an acknowledgement that waits already cover `psn` too.
    pub(super) fn extend(&mut self, psn: Psn, msn: u32) -> bool {
        match self.queue.back_mut() {
            Some(last) if matches!(last.kind, Kind::Ack) => {
                last.psn = psn;
                last.msn = msn;
                true
            }
            _ => false,
        }
    }

    pub(super) fn refuse(&mut self, psn: Psn, msn: u32, syndrome: Syndrome) {
        self.queue.push_back(Reply { psn, msn, kind: Kind::Nak(syndrome) });
    }

    /// Whether there is room for one more READ or atomic.
    pub(super) fn has_room(&self) -> bool {
        self.queue.len() < MAX_WAITING
    }

    pub(super) fn push(&mut self, reply: Reply) {
        self.queue.push_back(reply);
    }

    /// The peer asks again: answer in the order of PSNs. If the answer waits already, that one will do.
    pub(super) fn push_again(&mut self, reply: Reply) {
        if !self.has_room() {
            return;
        }
        let waits = self.queue.iter().skip(self.emitted).any(|r| match r.kind {
            Kind::Read(job) => {
                let at = reply.psn.since(r.psn);
                at >= job.next as i32 && at < job.packets as i32
            }
            _ => false,
        });
        if let Kind::Read(job) = reply.kind {
            if waits {
                return;
            }
            // A peer that asks for little at a time sets the pace itself, and may only be impatient.
            if job.len > LONG_READ {
                self.pace.slow_down();
            }
        }
        let begun = self.queue.iter().skip(self.emitted).take_while(|r| match r.kind {
            Kind::Read(job) => job.next > 0,
            _ => false,
        });
        let from = self.emitted + begun.count();
        let at = (from..self.queue.len())
            .find(|&i| self.queue[i].last_psn().is_after(reply.psn))
            .unwrap_or(self.queue.len());
        self.queue.insert(at, reply);
    }

    /// Whether something waits that should not wait for company.
    pub(super) fn is_urgent(&self) -> bool {
        self.queue.len() > 1 || self.queue.front().is_some_and(|r| !matches!(r.kind, Kind::Ack))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// The queue pair failed: only refusals are still told.
    pub(super) fn keep_naks(&mut self) {
        self.queue.retain(|r| matches!(r.kind, Kind::Nak(_)));
        self.emitted = 0;
        self.packets.clear();
        self.gate = Gate::default();
    }
}

impl RecvSide {
    /// Whether replies wait that should leave now. A plain acknowledgement alone may wait until the program has
    /// answered, so that both leave together.
    pub fn is_urgent(&self) -> bool {
        self.replies.is_urgent()
    }

    /// Bytes of the RDMA WRITE that the last packet has ended; 0 if it was another packet.
    pub fn just_written(&self) -> u32 {
        self.written
    }

    /// Whether an acknowledgement waits.
    pub fn has_replies(&self) -> bool {
        !self.replies.is_empty()
    }

    /// When READ responses that are held back may go on; [`Instant::NEVER`] if none are.
    pub fn deadline(&self) -> Instant {
        match self.replies.queue.front() {
            Some(Reply { kind: Kind::Read(_), .. }) if self.replies.pace.not_before() > self.now => {
                self.replies.pace.not_before()
            }
            _ => Instant::NEVER,
        }
    }

    /// Fills `batch` with replies. Afterwards [`handle_sent`](Self::handle_sent) must hear how many packets left.
    pub fn poll_transmit(
        &mut self,
        now: Instant,
        mem: &dyn Memory,
        batch: &mut TxBatch,
        notices: &mut Notices,
    ) -> Progress {
        self.now = now;
        let Some(accept) = self.accept.as_ref() else { return Progress::Wait };
        let Some(path) = accept.path.clone() else { return Progress::Wait };
        let (dest, mtu) = (accept.dest_qpn, accept.mtu.bytes());
        while let Some(reply) = self.replies.queue.get(self.replies.emitted).copied() {
            let read = matches!(reply.kind, Kind::Read(_));
            if read && (now < self.replies.pace.not_before() || self.replies.gate.is_waiting()) {
                return Progress::Wait;
            }
            if read && self.replies.pace.is_slow() && batch.packets() as u32 * mtu >= SLOW_BURST {
                self.replies.pace.speed_up();
                self.replies.pace.pause(now);
                return Progress::Wait;
            }
            if !batch.has_room(mtu as usize) {
                return Progress::More;
            }
            let index = self.replies.emitted;
            let aeth = |syndrome| Some(Aeth { syndrome, msn: reply.msn });
            let bth = |opcode, psn| Bth { pkey: PKey::DEFAULT, mig_req: true, ..Bth::new(opcode, dest, psn) };
            match reply.kind {
                Kind::Ack | Kind::Nak(_) | Kind::Atomic { .. } => {
                    let (opcode, syndrome, original) = match reply.kind {
                        Kind::Nak(syndrome) => (Opcode::RcAcknowledge, syndrome, None),
                        Kind::Atomic { original } => {
                            (Opcode::RcAtomicAcknowledge, Syndrome::ACK, Some(original))
                        }
                        _ => (Opcode::RcAcknowledge, Syndrome::ACK, None),
                    };
                    let mut headers = Headers::new(bth(opcode, reply.psn));
                    headers.aeth = aeth(syndrome);
                    headers.atomic_ack = original;
                    batch.begin(&path, &headers, 0, reply.psn.value());
                    batch.finish();
                    self.replies.packets.push((index, 0));
                }
                Kind::Read(job) => {
                    let k = job.next;
                    let offset = u64::from(k) * u64::from(mtu);
                    let len = (u64::from(job.len) - offset).min(u64::from(mtu)) as usize;
                    let opcode = match (k == 0, k + 1 == job.packets) {
                        (true, true) => Opcode::RcRdmaReadResponseOnly,
                        (true, false) => Opcode::RcRdmaReadResponseFirst,
                        (false, true) => Opcode::RcRdmaReadResponseLast,
                        (false, false) => Opcode::RcRdmaReadResponseMiddle,
                    };
                    let mut headers = Headers::new(bth(opcode, reply.psn.plus(k)));
                    headers.bth.pad = ((4 - len % 4) % 4) as u8;
                    if opcode != Opcode::RcRdmaReadResponseMiddle {
                        headers.aeth = aeth(Syndrome::ACK);
                    }
                    batch.begin(&path, &headers, len, headers.bth.psn.value());
                    let psn = headers.bth.psn;
                    if let Err(cause) = self.append_read(&job, psn, offset, len, mem, batch) {
                        if let Some(miss) = cause.miss() {
                            let miss = Miss { ahead: u64::from(job.len) - offset - len as u64, ..miss };
                            self.replies.gate.wait(psn, miss);
                            let (part, by) = (Part::Reply, By::Responder);
                            notices.faults.push(PageFault { part, by, miss });
                            return Progress::Wait;
                        }
                        self.refuse_read(reply, k, cause, notices);
                        continue;
                    }
                    batch.finish();
                    self.replies.packets.push((index, k));
                    if let Some(Reply { kind: Kind::Read(job), .. }) = self.replies.queue.get_mut(index) {
                        job.next += 1;
                        if job.next < job.packets {
                            continue;
                        }
                    }
                }
            }
            self.replies.emitted += 1;
        }
        Progress::Wait
    }

    fn append_read(
        &self,
        job: &ReadJob,
        psn: Psn,
        offset: u64,
        len: usize,
        mem: &dyn Memory,
        batch: &mut TxBatch,
    ) -> Result<(), Cause> {
        if len == 0 {
            return Ok(());
        }
        let addr = job.addr.wrapping_add(offset);
        let range = (self.pd, Key::Remote(job.rkey), addr, len as u64, Access::REMOTE_READ);
        let at = match self.replies.gate.translate(mem, psn, range) {
            Ok(at) => at,
            Err(cause) => {
                batch.abandon();
                return Err(match cause {
                    Cause::Local(error @ MemError::Denied(_)) => Cause::Remote(error),
                    cause => cause,
                });
            }
        };
        let added = if len < REFERENCE_FROM || job.again {
            batch.stage(len, |out| copy::read(at, out))
        } else {
            batch.reference(at.0, len, |icrc| checksum(at, len, icrc))
        };
        added.map_err(|fault| self.replies.gate.fault(mem, psn, fault, range))
    }

    /// The memory went away while a READ was being answered.
    fn refuse_read(&mut self, reply: Reply, k: u32, cause: Cause, notices: &mut Notices) {
        let index = self.replies.emitted;
        self.replies.queue.truncate(index);
        self.replies.refuse(reply.psn.plus(k), reply.msn, Syndrome::Nak(NakCode::RemoteAccess));
        notices.failures.push(Failure { qpn: self.qpn, wr_id: None, status: WcStatus::RemAccessErr, cause });
        notices.events.push(AsyncEvent::QpAccessError(self.qpn));
        notices.fatal = true;
    }

    /// Hears how many packets of the batch left. What did not leave is sent again.
    pub fn handle_sent(&mut self, sent: usize) {
        let replies = &mut self.replies;
        match replies.packets.get(sent) {
            None => {
                replies.queue.drain(..replies.emitted.min(replies.queue.len()));
            }
            Some(&(index, k)) => {
                replies.queue.drain(..index.min(replies.queue.len()));
                for (i, reply) in replies.queue.iter_mut().enumerate() {
                    if let Kind::Read(job) = &mut reply.kind {
                        job.next = if i == 0 { k } else { 0 };
                    }
                }
            }
        }
        replies.packets.clear();
        replies.emitted = 0;
    }
}
