//! The requester: turns posted requests into packets.

use super::{Awaited, Cause, SendSide, Stuck, Wqe};
use crate::ids::{PKey, Psn, QKey, Qpn};
use crate::mem::odp::By;
use crate::mem::{Access, Fault, Key, MemError, Memory, Miss, copy};
use crate::qp::checksum;
use crate::qp::{Notices, PageFault, Part, Progress};
use crate::time::Instant;
use crate::verbs::{QpState, QpType, SendFlags, SendOp, WcStatus};
use crate::wire::batch::REFERENCE_FROM;
use crate::wire::{
    AtomicEth, Bth, Deth, Extra, Headers, Opcode, Operation, Position, Reth, Service, TxBatch,
};

/// Most bytes that one READ request asks for. A longer READ is asked for in pieces, as after a loss, so that responses
/// are paced by the requester that has to take them. Pieces begin at multiples of this, so that a piece which is asked
/// for again never reaches beyond what the responder has seen a request for.
const READ_CHUNK: u32 = 128 * 1024;
/// Outstanding PSNs are bounded far below half of the space, so that old and new stay apart.
const MAX_OUTSTANDING: i32 = 1 << 21;
/// How long after a packet the tail is probed, at least: one packet too many is cheap.
const TAIL_PROBE_FLOOR: u64 = 500_000;
/// The same if that was not answered, and everything is sent again: the peer may be waiting for a CPU.
const PROBE_FLOOR: u64 = 4_000_000;
/// The same, at most.
const PROBE_CEILING: u64 = 1_000_000_000;
/// The same for a peer of whom nothing was heard yet.
const FIRST_PROBE: u64 = 100_000_000;

/// What an unreliable queue pair sends between pauses, in bytes of full packets.
const SLOW_BURST: u32 = 64 * 1024;
const FAST_BURST: u32 = 256 * 1024;

/// Why the requester does not go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Blocked {
    /// RNR NAK: the receiver asked to wait.
    Rnr,
    /// The peer's window, or the PSN space, is used up.
    Window,
    /// As many READs and atomics are outstanding as the peer allows.
    ReadCredits,
    /// The request is fenced and earlier READs and atomics are outstanding.
    Fence,
    /// SQD: no new request is begun.
    Draining,
    /// The request failed here; the ones before it are outstanding.
    Stuck,
    /// The receiver of unreliable messages cannot keep up.
    Pace,
    /// A page that is not present.
    Page,
}

/// One packet of a request.
struct Shape {
    /// Packets of the request before this one.
    k: u32,
    offset: u64,
    len: u32,
    position: Position,
}

/// A miss at `offset` of a request: the rest of its scatter/gather element will be needed next.
#[cold]
fn look_ahead(wqe: &Wqe, offset: u64, cause: Cause) -> Cause {
    let Some(miss) = cause.miss() else { return cause };
    let left = u64::from(wqe.len).saturating_sub(offset);
    let part = wqe.sges.slices(offset, left).next().map_or(0, |part| u64::from(part.len));
    Cause::Local(MemError::NotPresent(Miss { ahead: part.saturating_sub(miss.len), ..miss }))
}

impl SendSide {
    /// Adds to `batch` what may be sent now. After the batch was sent, [`handle_sent`](Self::handle_sent) must hear
    /// how much of it left.
    pub fn poll_transmit(
        &mut self,
        now: Instant,
        mem: &dyn Memory,
        batch: &mut TxBatch,
        notices: &mut Notices,
    ) -> Progress {
        self.now = now;
        if !matches!(self.state, QpState::Rts | QpState::Sqd) || self.conn.is_none() {
            return Progress::Wait;
        }
        let first = batch.packets();
        while self.next < self.wqes.len() {
            if self.blocked().is_some() {
                break;
            }
            let wqe = &self.wqes[self.next];
            let mtu = self.conn.as_ref().map_or(0, |c| c.mtu.bytes());
            if !batch.has_room(mtu as usize) {
                return Progress::More;
            }
            let k = self.next_psn.ahead_of(wqe.psn);
            let emitted = match wqe.op {
                SendOp::Read(_) => self.emit_read(k, mem, batch),
                SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } => self.emit_atomic(mem, batch),
                _ => self.emit_data(k, mtu, mem, batch),
            };
            if let Err((status, cause)) = emitted {
                if let Some(miss) = cause.miss() {
                    self.gate.wait(self.next_psn, miss);
                    let (part, by) = (Part::Requester, By::Requester);
                    notices.faults.push(PageFault { part, by, miss });
                    break;
                }
                let wqe = self.popped + self.next as u64;
                self.stuck = Some(Stuck { wqe, status, cause });
                self.check_stuck(notices);
                break;
            }
            if let Some(wqe) = self.wqes.get(self.next)
                && self.next_psn == wqe.end()
            {
                self.next += 1;
            }
        }
        if batch.packets() == first {
            self.check_drained(notices);
        }
        Progress::Wait
    }

    /// What keeps the requester from sending its next packet.
    fn blocked(&self) -> Option<Blocked> {
        let wqe = self.wqes.get(self.next)?;
        let conn = self.conn.as_ref()?;
        let begins = self.next_psn == wqe.psn;
        if self.state == QpState::Sqd && begins && !self.next_psn.is_before(self.max_psn) {
            return Some(Blocked::Draining);
        }
        if self.gate.is_waiting() || self.response_gate.is_waiting() {
            return Some(Blocked::Page);
        }
        if self.kind != QpType::Rc {
            if self.unechoed() {
                return Some(Blocked::Window);
            }
            return (self.now < self.pace.not_before()).then_some(Blocked::Pace);
        }
        if self.rnr_until.is_some() {
            return Some(Blocked::Rnr);
        }
        if self.stuck.as_ref().is_some_and(|s| s.wqe <= self.popped + self.next as u64) {
            return Some(Blocked::Stuck);
        }
        if begins && wqe.flags.has(SendFlags::FENCE) && !self.awaited.is_empty() {
            return Some(Blocked::Fence);
        }
        if wqe.wants_response() && self.awaited.len() >= usize::from(conn.max_rd_atomic) {
            return Some(Blocked::ReadCredits);
        }
        let more = match wqe.op {
            SendOp::Read(_) => wqe.len.min(READ_CHUNK),
            _ => wqe.len.min(conn.mtu.bytes()),
        };
        // Who stops must have asked for the acknowledgement that lets it go on; so one packet more, which asks.
        let full = self.window_is_full(more) && self.unasked == 0;
        (full || self.next_psn.since(self.una) >= MAX_OUTSTANDING).then_some(Blocked::Window)
    }

    /// Whether the peer's window has no room for `more` bytes of this queue pair.
    fn window_is_full(&self, more: u32) -> bool {
        let own = self.sent_charge - self.acked_charge;
        self.conn.as_ref().is_some_and(|conn| !conn.window.allows(own, more))
    }

    /// Unreliable: whether the peer has to take what is on the way first.
    pub(super) fn unechoed(&self) -> bool {
        let (Some(wqe), Some(conn)) = (self.wqes.get(self.next), &self.conn) else { return false };
        let path = wqe.ud.as_ref().map(|ud| &ud.path).or(conn.path.as_ref());
        path.is_some_and(|path| self.unacknowledged.blocks(path, u64::from(conn.window.max() / 2)))
    }

    fn shape(wqe: &Wqe, k: u32, mtu: u32) -> Shape {
        let offset = u64::from(k) * u64::from(mtu);
        let len = (u64::from(wqe.len) - offset).min(u64::from(mtu)) as u32;
        let position = match (k == 0, k + 1 == wqe.packets) {
            (true, true) => Position::Only,
            (true, false) => Position::First,
            (false, true) => Position::Last,
            (false, false) => Position::Middle,
        };
        Shape { k, offset, len, position }
    }

    fn service(&self) -> Service {
        match self.kind {
            QpType::Rc => Service::Rc,
            QpType::Uc => Service::Uc,
            QpType::Ud => Service::Ud,
        }
    }

    fn bth(&self, opcode: Opcode, dest: Qpn, psn: Psn) -> Bth {
        Bth { pkey: PKey::DEFAULT, mig_req: true, ..Bth::new(opcode, dest, psn) }
    }

    /// One packet of a SEND or RDMA WRITE.
    fn emit_data(
        &mut self,
        k: u32,
        mtu: u32,
        mem: &dyn Memory,
        batch: &mut TxBatch,
    ) -> Result<(), (WcStatus, Cause)> {
        let wqe = &self.wqes[self.next];
        let conn = self.conn.as_ref().ok_or((WcStatus::LocQpOpErr, Cause::NoPath))?;
        let shape = Self::shape(wqe, k, mtu);
        let (operation, remote, immediate) = match wqe.op {
            SendOp::Send => (Operation::Send, None, None),
            SendOp::SendImm(imm) => (Operation::Send, None, Some(imm)),
            SendOp::Write(remote) => (Operation::RdmaWrite, Some(remote), None),
            SendOp::WriteImm(remote, imm) => (Operation::RdmaWrite, Some(remote), Some(imm)),
            _ => return Err((WcStatus::LocQpOpErr, Cause::NoPath)),
        };
        let immediate = immediate.filter(|_| shape.position.is_end());
        let extra = if immediate.is_some() { Extra::Immediate } else { Extra::None };
        let opcode = Opcode::find(self.service(), operation, shape.position, extra)
            .ok_or((WcStatus::LocQpOpErr, Cause::NoPath))?;

        let (path, dest) = match (&wqe.ud, &conn.path) {
            (Some(ud), _) if self.kind == QpType::Ud => (&ud.path, ud.qpn),
            (_, Some(path)) => (path, conn.dest_qpn),
            _ => return Err((WcStatus::LocQpOpErr, Cause::NoPath)),
        };
        let mut bth = self.bth(opcode, dest, self.next_psn);
        bth.pad = ((4 - shape.len % 4) % 4) as u8;
        bth.solicited = shape.position.is_end()
            && wqe.flags.has(SendFlags::SOLICITED)
            && !matches!(wqe.op, SendOp::Write(_));
        let charge = shape.len + super::PACKET_OVERHEAD;
        let ask = self.kind == QpType::Rc
            && (shape.position.is_end()
                || self.unasked + charge > conn.window.limit() / 4
                || self.window_is_full(shape.len));
        bth.ack_request = ask;
        if self.kind != QpType::Rc {
            let limit = u64::from(conn.window.max() / 2);
            let last = shape.position.is_end() && self.next + 1 == self.wqes.len();
            bth.fecn = self.unacknowledged.sent(self.now, path, self.next_psn, shape.len, limit, last);
        }
        let mut headers = Headers::new(bth);
        headers.immediate = immediate;
        if let Some(remote) = remote
            && shape.position.is_start()
        {
            headers.reth = Some(Reth { addr: remote.addr, rkey: remote.rkey, len: wqe.len });
        }
        if let Some(ud) = &wqe.ud
            && self.kind == QpType::Ud
        {
            // IBA 10.2.5: with its top bit set, the Q_Key of the request means the queue pair's own.
            let qkey = if ud.qkey.0 & 0x8000_0000 != 0 { conn.qkey } else { QKey(ud.qkey.0) };
            headers.deth = Some(Deth { qkey, src_qpn: self.qpn });
        }

        batch.begin(path, &headers, shape.len as usize, self.next_psn.value());
        let resent = self.next_psn.is_before(self.max_psn);
        if wqe.flags.has(SendFlags::INLINE) {
            let at = (wqe.inline_at - self.inline_popped + shape.offset) as usize;
            let inline = &self.inline;
            let staged = batch.stage(shape.len as usize, |out| {
                for (o, b) in out.iter_mut().zip(inline.range(at..)) {
                    *o = *b;
                }
                Ok::<_, Cause>(())
            });
            staged.map_err(|c| (WcStatus::LocQpOpErr, c))?;
        } else {
            let psn = self.next_psn;
            let mut done = 0;
            let mut result = Ok(());
            for part in wqe.sges.slices(shape.offset, u64::from(shape.len)) {
                let len = part.len as usize;
                let range =
                    (self.pd, Key::Local(part.lkey), part.addr, u64::from(part.len), Access::LOCAL_READ);
                let at = match self.gate.translate(mem, psn, range) {
                    Ok(at) => at,
                    Err(cause) => {
                        batch.abandon();
                        result = Err(cause);
                        break;
                    }
                };
                // A program that changes memory while it is sent would break the ICRC of a referenced packet; the
                // copy of a resent one is checked and sent as one, so that it gets through.
                let added = if len < REFERENCE_FROM || resent {
                    batch.stage(len, |out| copy::read(at, out))
                } else {
                    batch.reference(at.0, len, |icrc| checksum(at, len, icrc))
                };
                if let Err(fault) = added {
                    result = Err(self.gate.fault(mem, psn, fault, range));
                    break;
                }
                done += len as u64;
            }
            if let Err(cause) = result {
                if self.kind != QpType::Rc {
                    self.unacknowledged.take_back(path, psn, shape.len);
                }
                return Err((WcStatus::LocProtErr, look_ahead(wqe, shape.offset + done, cause)));
            }
        }
        batch.finish();

        self.unasked = if ask || self.kind != QpType::Rc { 0 } else { self.unasked + charge };
        let last = shape.k + 1 == wqe.packets;
        let charge = if last { self.charge_after(self.next) } else { self.sent_charge + u64::from(charge) };
        self.sent(1, charge);
        Ok(())
    }

    /// Whether the local memory for a response is present. Waiting for it before the peer is asked is better than dropping
    /// what it sends. Other errors show when the response comes.
    fn await_local(&self, offset: u64, len: u64, mem: &dyn Memory) -> Result<(), (WcStatus, Cause)> {
        let wqe = &self.wqes[self.next];
        let mut done = 0;
        for part in wqe.sges.slices(offset, len) {
            let range = (self.pd, Key::Local(part.lkey), part.addr, u64::from(part.len), Access::LOCAL_WRITE);
            if let Err(cause) = self.gate.translate(mem, self.next_psn, range)
                && cause.miss().is_some()
            {
                return Err((WcStatus::LocProtErr, look_ahead(wqe, offset + done, cause)));
            }
            done += u64::from(part.len);
        }
        Ok(())
    }

    /// A READ request for a piece, or for the rest of it after a loss.
    fn emit_read(&mut self, k: u32, mem: &dyn Memory, batch: &mut TxBatch) -> Result<(), (WcStatus, Cause)> {
        let wqe = &self.wqes[self.next];
        let conn = self.conn.as_ref().ok_or((WcStatus::LocQpOpErr, Cause::NoPath))?;
        let (SendOp::Read(remote), Some(path)) = (wqe.op, &conn.path) else {
            return Err((WcStatus::LocQpOpErr, Cause::NoPath));
        };
        let mtu = conn.mtu.bytes();
        // After a loss in smaller pieces, so that another one does not cost so much.
        let again = self.next_psn.is_before(self.max_psn);
        let chunk = if again { READ_CHUNK / 8 } else { READ_CHUNK } / mtu;
        let packets = (wqe.packets - k).min(chunk - k % chunk);
        let offset = u64::from(k) * u64::from(mtu);
        let len = (u64::from(wqe.len) - offset).min(u64::from(packets) * u64::from(mtu)) as u32;
        if self.look_ahead {
            self.await_local(offset, u64::from(len), mem)?;
        }
        let mut bth = self.bth(Opcode::RcRdmaReadRequest, conn.dest_qpn, self.next_psn);
        bth.ack_request = true;
        let mut headers = Headers::new(bth);
        headers.reth = Some(Reth { addr: remote.addr.wrapping_add(offset), rkey: remote.rkey, len });
        batch.begin(path, &headers, 0, self.next_psn.value());
        batch.finish();

        let charge = if k + packets == wqe.packets {
            self.charge_after(self.next)
        } else {
            self.sent_charge + u64::from(packets) * u64::from(mtu + super::PACKET_OVERHEAD)
        };
        let end = self.next_psn.plus(packets);
        self.awaited.push_back(Awaited { first: self.next_psn, end });
        self.unasked = 0;
        self.sent(packets, charge);
        Ok(())
    }

    fn emit_atomic(&mut self, mem: &dyn Memory, batch: &mut TxBatch) -> Result<(), (WcStatus, Cause)> {
        if self.look_ahead {
            self.await_local(0, 8, mem)?;
        }
        let wqe = &self.wqes[self.next];
        let conn = self.conn.as_ref().ok_or((WcStatus::LocQpOpErr, Cause::NoPath))?;
        let path = conn.path.as_ref().ok_or((WcStatus::LocQpOpErr, Cause::NoPath))?;
        let (opcode, remote, swap_add, compare) = match wqe.op {
            SendOp::CompareSwap { remote, compare, swap } => (Opcode::RcCompareSwap, remote, swap, compare),
            SendOp::FetchAdd { remote, add } => (Opcode::RcFetchAdd, remote, add, 0),
            _ => return Err((WcStatus::LocQpOpErr, Cause::NoPath)),
        };
        let mut bth = self.bth(opcode, conn.dest_qpn, self.next_psn);
        bth.ack_request = true;
        let mut headers = Headers::new(bth);
        headers.atomic = Some(AtomicEth { addr: remote.addr, rkey: remote.rkey, swap_add, compare });
        batch.begin(path, &headers, 0, self.next_psn.value());
        batch.finish();
        self.awaited.push_back(Awaited { first: self.next_psn, end: self.next_psn.plus(1) });
        self.unasked = 0;
        self.sent(1, self.charge_after(self.next));
        Ok(())
    }

    fn charge_after(&self, index: usize) -> u64 {
        self.wqes.get(index + 1).map_or(self.post_charge, |w| w.charge_before)
    }

    /// Books packets as sent and arms the timers.
    fn sent(&mut self, packets: u32, charge: u64) {
        // Going back to the oldest packet is not idleness: the ACK timeout goes on until there is progress.
        let was_idle = self.max_psn == self.una;
        let psn = self.next_psn;
        self.next_psn = psn.plus(packets);
        if self.kind != QpType::Rc {
            self.max_psn = self.next_psn;
            self.count_burst();
            return;
        }
        self.set_sent_charge(charge);
        if self.next_psn.is_after(self.max_psn) {
            self.max_psn = self.next_psn;
            if self.rtt_probe.is_none() {
                self.rtt_probe = Some((psn, self.now));
            }
        }
        if was_idle || self.timers.probe == Instant::NEVER {
            self.arm_timers();
        }
    }

    /// Unreliable: a few batches at a time, so that a complaint of the receiver is heard in between.
    fn count_burst(&mut self) {
        let mtu = self.conn.as_ref().map_or(0, |c| c.mtu.bytes());
        self.burst += mtu;
        let most = if self.pace.is_slow() { SLOW_BURST } else { FAST_BURST };
        if self.burst >= most {
            self.burst = 0;
            self.pace.speed_up();
            self.pace.pause(self.now);
        }
    }

    /// The peer of an unreliable queue pair has taken the marked packet `psn`, and all before it.
    pub fn handle_echo(&mut self, now: Instant, psn: Psn) {
        self.now = now;
        self.unacknowledged.echoed(psn);
    }

    /// A congestion notification packet: the receiver's queue grows.
    pub fn handle_congestion(&mut self, now: Instant) {
        self.now = now;
        if self.kind == QpType::Rc {
            if let Some(conn) = &self.conn {
                conn.window.cut(now);
            }
        } else {
            self.pace.slow_down();
        }
    }

    /// Starts the timers anew: something was sent when nothing was outstanding, or there was progress.
    pub(super) fn arm_timers(&mut self) {
        if self.kind != QpType::Rc || self.next_psn == self.una {
            self.timers.ack = Instant::NEVER;
            self.timers.probe = Instant::NEVER;
            return;
        }
        self.timers.ack = self.ack_timeout().map_or(Instant::NEVER, |ns| self.now.plus(ns));
        self.timers.probe = self.now.plus(self.probe_interval());
    }

    /// Some round trips. While none was measured, or since probes were needed, longer: what is taken for a loss may be a
    /// long way, and as long as packets are sent again before they are answered, its length cannot be measured.
    pub(super) fn probe_interval(&self) -> u64 {
        let patience = self.conn.as_ref().and_then(|c| c.window.patience());
        let floor = if self.timers.probes == 0 { TAIL_PROBE_FLOOR } else { PROBE_FLOOR };
        patience.map_or(FIRST_PROBE, |ns| ns.clamp(floor, PROBE_CEILING)) << self.backoff.min(6)
    }

    /// A page that was waited for is present, or will never be. Afterwards [`poll_transmit`](Self::poll_transmit) goes on.
    pub fn handle_page(&mut self, now: Instant, part: Part, miss: &Miss, outcome: Result<(), Fault>) {
        self.now = now;
        match part {
            Part::Completer => {
                if self.response_gate.resolved(miss, outcome) {
                    self.look_ahead = true;
                    self.rewind(self.una);
                    self.arm_timers();
                }
            }
            _ => {
                self.gate.resolved(miss, outcome);
            }
        }
    }

    /// Hears how many packets of the batch left. `tags` are the PSNs of all of them, in order. What did not leave is
    /// sent again by the next [`poll_transmit`](Self::poll_transmit); datagram and unreliable requests that left are done.
    pub fn handle_sent(&mut self, sent: usize, tags: &[u32], notices: &mut Notices) {
        if let Some(&psn) = tags.get(sent) {
            self.unacknowledged.unsent(Psn::new(psn));
            self.rewind(Psn::new(psn));
        }
        if self.kind == QpType::Rc {
            return;
        }
        self.una = self.next_psn;
        while self.next > 0 {
            let wqe = &self.wqes[0];
            let wc = crate::verbs::Wc::new(wqe.id, wqe.opcode(), self.qpn, wqe.len);
            let signaled = wqe.flags.has(SendFlags::SIGNALED);
            self.retire(signaled.then_some(wc));
        }
        self.check_stuck(notices);
    }

    /// Goes back to `psn`, which is in `una .. next_psn`: it and what follows is sent again (go-back-N).
    pub(super) fn rewind(&mut self, psn: Psn) {
        if self.wqes.is_empty() {
            return;
        }
        let mut left = psn.ahead_of(self.wqes[0].psn);
        let mut index = 0;
        while index < self.wqes.len() && left >= self.wqes[index].packets {
            left -= self.wqes[index].packets;
            index += 1;
        }
        if index > self.next || index >= self.wqes.len() {
            return;
        }
        self.next = index;
        self.next_psn = psn;
        if self.kind == QpType::Rc {
            self.set_sent_charge(self.charge_at(index, psn).max(self.acked_charge));
            while self.awaited.back().is_some_and(|a| a.end.is_after(psn)) {
                self.awaited.pop_back();
            }
            // A READ request of which part was answered is asked for anew from `psn` on; what is before `psn` was.
            self.rtt_probe = None;
            self.unasked = (self.sent_charge - self.acked_charge).min(u64::from(u32::MAX)) as u32;
        }
    }

    fn check_drained(&mut self, notices: &mut Notices) {
        if self.state == QpState::Sqd && self.notify_drained && self.next_psn == self.una {
            self.notify_drained = false;
            notices.events.push(crate::verbs::AsyncEvent::SqDrained(self.qpn));
        }
    }

    /// Completes the request that failed here once all before it are done.
    pub(super) fn check_stuck(&mut self, notices: &mut Notices) {
        if self.stuck.as_ref().is_some_and(|s| s.wqe == self.popped)
            && let Some(stuck) = self.stuck.take()
        {
            self.fail_front(stuck.status, stuck.cause, notices);
        }
    }
}
