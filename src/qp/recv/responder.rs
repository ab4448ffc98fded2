//! The responder: executes request packets.

use super::check::{Order, check_length, check_psn, check_sequence};
use super::reply::{Kind, ReadJob, Reply};
use super::{Message, Receives, RecvSide, SavedAtomic, Source};
use crate::ids::{Gid, Lid, Psn};
use crate::mem::odp::By;
use crate::mem::{Access, Key, MemError, Memory, Miss, copy};
use crate::qp::{Cause, Failure, Notices, PageFault, Part};
use crate::srq::RecvWqe;
use crate::time::Instant;
use crate::verbs::{AsyncEvent, QpState, QpType, Wc, WcOpcode, WcStatus, limits};
use crate::wire::{AtomicEth, Headers, NakCode, Operation, Reth, Service, Syndrome};

/// Why a request is not executed.
enum Refusal {
    /// The receiver is not ready: nothing was done, the peer tries later.
    NotReady,
    /// The peer's fault: it hears the code, and both queue pairs fail.
    Nak(NakCode, Cause),
    /// Our own receive's fault: its completion says so, the peer hears the code.
    Receive(RecvWqe, WcStatus, NakCode, Cause),
    /// Not now and without an answer; the peer will repeat it.
    Drop,
    /// A page is not present: the packet has to be executed anew when it is. Nothing was done that may not be done twice.
    NotPresent(Miss, By),
}

impl Refusal {
    /// The refusal of an access to remote memory.
    fn access(cause: Cause, by: By) -> Self {
        match cause.miss() {
            Some(miss) => Self::NotPresent(miss, by),
            None => Self::Nak(NakCode::RemoteAccess, cause),
        }
    }
}

impl RecvSide {
    /// A request packet.
    pub fn handle_request(
        &mut self,
        now: Instant,
        headers: &Headers,
        payload: &[u8],
        source: &Source,
        mem: &dyn Memory,
        notices: &mut Notices,
    ) {
        self.now = now;
        self.written = 0;
        let info = headers.bth.opcode.info();
        let ours = match self.kind {
            QpType::Rc => Service::Rc,
            QpType::Uc => Service::Uc,
            QpType::Ud => Service::Ud,
        };
        let ready = matches!(self.state, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe);
        if !ready || info.service != ours {
            self.drops.state += 1;
            return;
        }
        if self.state == QpState::Rtr && !self.established && self.kind != QpType::Ud {
            self.established = true;
            notices.events.push(AsyncEvent::CommEstablished(self.qpn));
        }
        if self.kind == QpType::Rc {
            if self.parked.is_empty() {
                self.handle_ready(headers, payload, source, mem, notices);
            } else {
                self.keep(headers, payload, source);
            }
        } else if !self.park(headers, payload, source) {
            self.handle_ready(headers, payload, source, mem, notices);
        }
    }

    /// A packet that need not wait for those before it. If it meets an absent page it is the first one that waits.
    pub(super) fn handle_ready(
        &mut self,
        headers: &Headers,
        payload: &[u8],
        source: &Source,
        mem: &dyn Memory,
        notices: &mut Notices,
    ) {
        let waits = match self.kind {
            QpType::Rc => self.handle_reliable(headers, payload, mem, notices),
            QpType::Uc => self.handle_unreliable(headers, payload, mem, notices),
            QpType::Ud => self.handle_datagram(headers, payload, source, mem, notices),
        };
        if waits {
            self.keep_first(headers, payload, source);
        } else if self.kind != QpType::Rc {
            self.echo(headers, source);
        }
    }

    /// Waits for a page. Returns true: the packet is to be kept.
    fn await_page(&mut self, psn: Psn, miss: Miss, by: By, notices: &mut Notices) -> bool {
        self.gate.wait(psn, miss);
        notices.faults.push(PageFault { part: Part::Responder, by, miss });
        true
    }

    fn handle_reliable(
        &mut self,
        headers: &Headers,
        payload: &[u8],
        mem: &dyn Memory,
        notices: &mut Notices,
    ) -> bool {
        let psn = headers.bth.psn;
        match check_psn(psn, self.epsn) {
            Order::Expected => {}
            Order::Duplicate => {
                self.handle_duplicate(headers, mem);
                return false;
            }
            Order::Gap => {
                // One sequence NAK a gap (IBA 9.7.5.2.8).
                if !self.nak_sent {
                    self.nak_sent = true;
                    self.replies.refuse(self.epsn, self.msn, Syndrome::Nak(NakCode::PsnSequence));
                }
                return false;
            }
        }
        let result = self.execute(headers, payload, mem, notices);
        self.nak_sent = false;
        match result {
            Ok(()) => {
                let last = self.epsn.minus(1);
                if headers.bth.ack_request && !self.answers_itself(headers) {
                    self.replies.acknowledge(last, self.msn);
                } else if !self.answers_itself(headers) {
                    self.replies.extend(last, self.msn);
                }
            }
            Err(Refusal::NotReady) => self.refuse_not_ready(psn),
            Err(Refusal::NotPresent(miss, by)) => {
                if !self.refuse_faults {
                    return self.await_page(psn, miss, by, notices);
                }
                // One wait at a time: a packet that is repeated early is refused again.
                if !self.gate.is_waiting() {
                    self.await_page(psn, miss, by, notices);
                }
                self.refuse_not_ready(psn);
            }
            Err(Refusal::Drop) => {}
            Err(Refusal::Nak(code, cause)) => self.refuse(psn, code, None, cause, notices),
            Err(Refusal::Receive(wqe, status, code, cause)) => {
                self.refuse(psn, code, Some((wqe, status)), cause, notices);
            }
        }
        false
    }

    /// RNR NAK: the peer tries again later.
    fn refuse_not_ready(&mut self, psn: Psn) {
        self.nak_sent = true;
        let timer = self.accept.as_ref().map_or(0, |a| a.min_rnr_timer);
        self.replies.refuse(psn, self.msn, Syndrome::Rnr { timer });
    }

    fn answers_itself(&self, headers: &Headers) -> bool {
        matches!(
            headers.bth.opcode.info().operation,
            Operation::ReadRequest | Operation::CompareSwap | Operation::FetchAdd
        )
    }

    /// A refusal that ends the connection (IBA 9.9.3: class C and D faults).
    fn refuse(
        &mut self,
        psn: Psn,
        code: NakCode,
        receive: Option<(RecvWqe, WcStatus)>,
        cause: Cause,
        notices: &mut Notices,
    ) {
        self.replies.refuse(psn, self.msn, Syndrome::Nak(code));
        notices.events.extend(match code {
            NakCode::RemoteAccess => Some(AsyncEvent::QpAccessError(self.qpn)),
            NakCode::InvalidRequest if receive.is_none() => Some(AsyncEvent::QpRequestError(self.qpn)),
            _ => None,
        });
        let status = match (&receive, code) {
            (Some((_, status)), _) => *status,
            (None, NakCode::RemoteAccess) => WcStatus::RemAccessErr,
            (None, _) => WcStatus::RemInvReqErr,
        };
        let wr_id = receive.as_ref().map(|(wqe, _)| wqe.id);
        if let Some((wqe, status)) = receive {
            let wc = Wc::failed(wqe.id, WcOpcode::Recv, self.qpn, status);
            self.complete(Wc { vendor_error: cause.code(), ..wc });
        }
        notices.failures.push(Failure { qpn: self.qpn, wr_id, status, cause });
        notices.fatal = true;
        self.state = QpState::Err;
        self.flush();
    }

    /// A request that was executed before (IBA 9.7.5.1.5, and 13 of the public cases): SEND and WRITE are acknowledged
    /// again, READ is executed again, atomics are answered from their saved results.
    fn handle_duplicate(&mut self, headers: &Headers, mem: &dyn Memory) {
        let psn = headers.bth.psn;
        match headers.bth.opcode.info().operation {
            Operation::ReadRequest => {
                let (Some(reth), Some(accept)) = (headers.reth, &self.accept) else { return };
                let packets = reth.len.div_ceil(accept.mtu.bytes()).max(1);
                // It must not reach beyond what was executed.
                if psn.plus(packets).is_after(self.epsn)
                    || self.check_remote(&reth, Access::REMOTE_READ, mem).is_err()
                {
                    return;
                }
                let Reth { addr, rkey, len } = reth;
                let job = ReadJob { addr, rkey, len, packets, next: 0, again: true };
                self.replies.push_again(Reply { psn, msn: self.msn, kind: Kind::Read(job) });
            }
            Operation::CompareSwap | Operation::FetchAdd => {
                if let Some(saved) = self.saved.iter().find(|s| s.psn == psn).copied() {
                    let kind = Kind::Atomic { original: saved.original };
                    self.replies.push_again(Reply { psn, msn: saved.msn, kind });
                }
            }
            _ => {
                // Not beyond a READ whose response waits: the acknowledgement goes behind it.
                self.replies.acknowledge(self.epsn.minus(1), self.msn);
            }
        }
    }

    fn execute(
        &mut self,
        headers: &Headers,
        payload: &[u8],
        mem: &dyn Memory,
        notices: &mut Notices,
    ) -> Result<(), Refusal> {
        let info = headers.bth.opcode.info();
        if !check_sequence(&self.message, info.operation, info.position) {
            return Err(invalid("a packet that does not belong to the message before it"));
        }
        let Some(mtu) = self.accept.as_ref().map(|a| a.mtu.bytes()) else { return Err(Refusal::Drop) };
        match info.operation {
            Operation::Send => {
                // SEND with invalidate needs memory windows, which this device does not offer.
                if headers.invalidate.is_some() {
                    return Err(invalid("SEND with invalidate, but the device has no memory windows"));
                }
                if !check_length(info.position, payload.len(), mtu) {
                    return Err(invalid("a SEND packet of a wrong length"));
                }
                self.receive_send(headers, payload, mem, notices)
            }
            Operation::RdmaWrite => {
                if !check_length(info.position, payload.len(), mtu) {
                    return Err(invalid("an RDMA WRITE packet of a wrong length"));
                }
                self.receive_write(headers, payload, mem, notices)
            }
            Operation::ReadRequest => self.receive_read(headers, mtu, mem),
            Operation::CompareSwap | Operation::FetchAdd => self.receive_atomic(headers, mem),
            _ => Err(invalid("an operation that this device does not know")),
        }
    }

    /// Takes the next receive.
    fn take_receive(&mut self, notices: &mut Notices) -> Option<RecvWqe> {
        if self.claimed.is_some() {
            return self.claimed.take();
        }
        match &mut self.receives {
            Receives::Own(queue) => queue.pop_front(),
            Receives::Shared(srq) => {
                let (wqe, limit_reached) = srq.take()?;
                if limit_reached {
                    notices.events.push(AsyncEvent::SrqLimitReached(srq.id));
                }
                Some(wqe)
            }
        }
    }

    fn receive_send(
        &mut self,
        headers: &Headers,
        payload: &[u8],
        mem: &dyn Memory,
        notices: &mut Notices,
    ) -> Result<(), Refusal> {
        let position = headers.bth.opcode.info().position;
        let (wqe, received) = if position.is_start() {
            (self.take_receive(notices).ok_or(Refusal::NotReady)?, 0)
        } else {
            match std::mem::replace(&mut self.message, Message::None) {
                Message::Send { wqe, received } => (wqe, received),
                _ => return Err(Refusal::Drop),
            }
        };
        let have = received + payload.len() as u64;
        let room = wqe.sges.total();
        if have > room {
            // IBA 9.7.5.2.8: a message that does not fit its receive is an invalid request.
            let cause = Cause::RecvTooShort { have, room };
            return Err(Refusal::Receive(wqe, WcStatus::LocLenErr, NakCode::InvalidRequest, cause));
        }
        if let Err(cause) = self.scatter(&wqe, received, payload, headers, mem) {
            if let Some(miss) = cause.miss() {
                if position.is_start() {
                    self.claimed = Some(wqe);
                } else {
                    self.message = Message::Send { wqe, received };
                }
                return Err(Refusal::NotPresent(miss, By::Receive));
            }
            return Err(Refusal::Receive(wqe, WcStatus::LocProtErr, NakCode::RemoteOperational, cause));
        }
        self.epsn = self.epsn.plus(1);
        if position.is_end() {
            self.msn = (self.msn + 1) & Psn::MASK;
            let mut wc = Wc::new(wqe.id, WcOpcode::Recv, self.qpn, have as u32);
            wc.immediate = headers.immediate;
            wc.solicited = headers.bth.solicited;
            self.complete(self.with_peer(wc));
        } else {
            self.message = Message::Send { wqe, received: have };
        }
        Ok(())
    }

    /// Fills in who sent it.
    fn with_peer(&self, wc: Wc) -> Wc {
        let Some(accept) = &self.accept else { return wc };
        let slid = accept.path.as_ref().map_or(Lid(0), |p| lid_of(p.dst.ip()));
        Wc { src_qpn: accept.dest_qpn, slid, ..wc }
    }

    fn scatter(
        &self,
        wqe: &RecvWqe,
        offset: u64,
        payload: &[u8],
        headers: &Headers,
        mem: &dyn Memory,
    ) -> Result<(), Cause> {
        let pd = match &self.receives {
            Receives::Own(_) => self.pd,
            Receives::Shared(srq) => srq.pd,
        };
        let psn = headers.bth.psn;
        let mut rest = payload;
        for part in wqe.sges.slices(offset, payload.len() as u64) {
            let (now, later) = rest.split_at(part.len as usize);
            let range = (pd, Key::Local(part.lkey), part.addr, u64::from(part.len), Access::LOCAL_WRITE);
            let copied = self
                .gate
                .translate(mem, psn, range)
                .and_then(|at| copy::write(at, now).map_err(|fault| self.gate.fault(mem, psn, fault, range)));
            if let Err(cause) = copied {
                let offset = offset + (payload.len() - rest.len()) as u64;
                return Err(look_ahead(wqe, offset, headers, cause));
            }
            rest = later;
        }
        Ok(())
    }

    /// Key, range and permission of remote memory (IBA 9.7.4.1.5). Not looked at for no bytes.
    fn check_remote(&self, reth: &Reth, need: Access, mem: &dyn Memory) -> Result<(), Cause> {
        if reth.len == 0 {
            return Ok(());
        }
        let allowed = self.accept.as_ref().is_some_and(|a| a.access.contains(need));
        if !allowed {
            return Err(Cause::BadRequest(match need {
                Access::REMOTE_WRITE => "an RDMA WRITE, but the queue pair does not allow REMOTE_WRITE",
                Access::REMOTE_READ => "an RDMA READ, but the queue pair does not allow REMOTE_READ",
                _ => "an atomic, but the queue pair does not allow REMOTE_ATOMIC",
            }));
        }
        mem.check(self.pd, Key::Remote(reth.rkey), reth.addr, u64::from(reth.len), need)
            .map_err(|denial| Cause::Remote(denial.into()))
    }

    fn receive_write(
        &mut self,
        headers: &Headers,
        payload: &[u8],
        mem: &dyn Memory,
        notices: &mut Notices,
    ) -> Result<(), Refusal> {
        let position = headers.bth.opcode.info().position;
        let access = |cause| Refusal::Nak(NakCode::RemoteAccess, cause);
        let (addr, rkey, total, received) = if position.is_start() {
            let Some(reth) = headers.reth else { return Err(Refusal::Drop) };
            if u64::from(reth.len) > limits::MAX_MESSAGE {
                return Err(invalid("an RDMA WRITE of more than 2^31 bytes"));
            }
            self.check_remote(&reth, Access::REMOTE_WRITE, mem).map_err(access)?;
            (reth.addr, reth.rkey, reth.len, 0)
        } else {
            match &self.message {
                Message::Write { addr, rkey, total, received } => (*addr, *rkey, *total, *received),
                _ => return Err(Refusal::Drop),
            }
        };
        let have = u64::from(received) + payload.len() as u64;
        if have > u64::from(total) || position.is_end() && have != u64::from(total) {
            return Err(invalid("an RDMA WRITE whose packets do not add up to its length"));
        }
        let receive = match headers.immediate {
            Some(_) => Some(self.take_receive(notices).ok_or(Refusal::NotReady)?),
            None => None,
        };
        if !payload.is_empty() {
            let at = addr.wrapping_add(u64::from(received));
            let len = payload.len() as u64;
            let range = (self.pd, Key::Remote(rkey), at, len, Access::REMOTE_WRITE);
            let psn = headers.bth.psn;
            let copied = self.gate.translate(mem, psn, range).map_err(remote).and_then(|host| {
                copy::write(host, payload).map_err(|fault| self.gate.fault(mem, psn, fault, range))
            });
            if let Err(cause) = copied {
                let refusal = Refusal::access(cause, By::Responder);
                if let Refusal::NotPresent(miss, by) = refusal {
                    self.claimed = receive;
                    let miss = Miss { ahead: u64::from(total) - have, ..miss };
                    return Err(Refusal::NotPresent(miss, by));
                }
                return Err(refusal);
            }
        }
        self.epsn = self.epsn.plus(1);
        if position.is_end() {
            self.message = Message::None;
            self.written = total;
            self.msn = (self.msn + 1) & Psn::MASK;
            if let Some(wqe) = receive {
                let mut wc = Wc::new(wqe.id, WcOpcode::RecvRdmaWithImm, self.qpn, total);
                wc.immediate = headers.immediate;
                wc.solicited = headers.bth.solicited;
                self.complete(self.with_peer(wc));
            }
        } else {
            self.message = Message::Write { addr, rkey, total, received: have as u32 };
        }
        Ok(())
    }

    fn receive_read(&mut self, headers: &Headers, mtu: u32, mem: &dyn Memory) -> Result<(), Refusal> {
        let (Some(reth), Some(accept)) = (headers.reth, &self.accept) else { return Err(Refusal::Drop) };
        if accept.max_dest_rd_atomic == 0 {
            return Err(invalid("an RDMA READ, but max_dest_rd_atomic is 0"));
        }
        if u64::from(reth.len) > limits::MAX_MESSAGE {
            return Err(invalid("an RDMA READ of more than 2^31 bytes"));
        }
        self.check_remote(&reth, Access::REMOTE_READ, mem)
            .map_err(|c| Refusal::Nak(NakCode::RemoteAccess, c))?;
        if !self.replies.has_room() {
            return Err(Refusal::Drop);
        }
        // Otherwise the response waits, and requests after it do not.
        if self.refuse_faults && reth.len > 0 {
            let len = u64::from(reth.len);
            let range = (self.pd, Key::Remote(reth.rkey), reth.addr, len, Access::REMOTE_READ);
            let found = self.gate.translate(mem, headers.bth.psn, range).map_err(remote);
            found.map_err(|cause| Refusal::access(cause, By::Responder))?;
        }
        let packets = reth.len.div_ceil(mtu).max(1);
        let psn = self.epsn;
        self.epsn = psn.plus(packets);
        self.msn = (self.msn + 1) & Psn::MASK;
        let Reth { addr, rkey, len } = reth;
        let job = ReadJob { addr, rkey, len, packets, next: 0, again: false };
        self.replies.push(Reply { psn, msn: self.msn, kind: Kind::Read(job) });
        Ok(())
    }

    fn receive_atomic(&mut self, headers: &Headers, mem: &dyn Memory) -> Result<(), Refusal> {
        let (Some(atomic), Some(accept)) = (headers.atomic, &self.accept) else { return Err(Refusal::Drop) };
        let AtomicEth { addr, rkey, swap_add, compare } = atomic;
        let depth = usize::from(accept.max_dest_rd_atomic);
        if depth == 0 {
            return Err(invalid("an atomic, but max_dest_rd_atomic is 0"));
        }
        if addr % 8 != 0 {
            return Err(invalid("an atomic on an address that is not a multiple of 8"));
        }
        let access = |cause| Refusal::Nak(NakCode::RemoteAccess, cause);
        self.check_remote(&Reth { addr, rkey, len: 8 }, Access::REMOTE_ATOMIC, mem).map_err(access)?;
        if !self.replies.has_room() {
            return Err(Refusal::Drop);
        }
        let range = (self.pd, Key::Remote(rkey), addr, 8, Access::REMOTE_ATOMIC);
        let psn = headers.bth.psn;
        let access = |cause| Refusal::access(cause, By::Responder);
        let host = self.gate.translate(mem, psn, range).map_err(remote).map_err(access)?;
        let original = match headers.bth.opcode.info().operation {
            Operation::CompareSwap => copy::compare_swap(host, compare, swap_add),
            _ => copy::fetch_add(host, swap_add),
        }
        .map_err(|fault| access(self.gate.fault(mem, psn, fault, range)))?;
        let psn = self.epsn;
        self.epsn = psn.plus(1);
        self.msn = (self.msn + 1) & Psn::MASK;
        if self.saved.len() >= depth {
            self.saved.pop_front();
        }
        self.saved.push_back(SavedAtomic { psn, msn: self.msn, original });
        self.replies.push(Reply { psn, msn: self.msn, kind: Kind::Atomic { original } });
        Ok(())
    }

    /// Unreliable connected: what is lost is lost, and a message with a hole is dropped whole (IBA 9.8.2).
    fn handle_unreliable(
        &mut self,
        headers: &Headers,
        payload: &[u8],
        mem: &dyn Memory,
        notices: &mut Notices,
    ) -> bool {
        let info = headers.bth.opcode.info();
        let psn = headers.bth.psn;
        let in_order = psn == self.epsn;
        let goes_on = in_order && check_sequence(&self.message, info.operation, info.position);
        if !goes_on {
            self.drop_message();
            if !info.position.is_start() {
                self.epsn = psn.plus(1);
                self.message = Message::Skip;
                self.drops.unreliable += 1;
                return false;
            }
        }
        self.epsn = psn;
        if let Err(refusal) = self.execute(headers, payload, mem, notices) {
            match refusal {
                Refusal::NotPresent(miss, by) => return self.await_page(psn, miss, by, notices),
                Refusal::NotReady => self.drops.no_receive += 1,
                Refusal::Receive(wqe, status, _, cause) => {
                    let wc = Wc::failed(wqe.id, WcOpcode::Recv, self.qpn, status);
                    self.complete(Wc { vendor_error: cause.code(), ..wc });
                    let wr_id = Some(wqe.id);
                    notices.failures.push(Failure { qpn: self.qpn, wr_id, status, cause });
                    notices.fatal = true;
                }
                Refusal::Nak(..) | Refusal::Drop => {
                    if !self.drop_message() {
                        self.drops.unreliable += 1;
                    }
                }
            }
            self.epsn = psn.plus(1);
            self.message = if info.position.is_end() { Message::None } else { Message::Skip };
        }
        false
    }

    /// Gives up the message that is being received; its receive is used for the next one. Returns whether it had one.
    fn drop_message(&mut self) -> bool {
        let Message::Send { wqe, .. } = std::mem::replace(&mut self.message, Message::None) else {
            return false;
        };
        self.drops.unreliable += 1;
        match &mut self.receives {
            Receives::Own(queue) => queue.push_front(wqe),
            Receives::Shared(srq) => srq.put_back(wqe),
        }
        true
    }

    fn handle_datagram(
        &mut self,
        headers: &Headers,
        payload: &[u8],
        source: &Source,
        mem: &dyn Memory,
        notices: &mut Notices,
    ) -> bool {
        const GRH: usize = 40;
        let (Some(deth), Some(accept)) = (headers.deth, &self.accept) else { return false };
        if deth.qkey != accept.qkey {
            self.drops.qkey += 1;
            return false;
        }
        let len = GRH + payload.len();
        let room = match (&self.claimed, &self.receives) {
            (Some(wqe), _) => Some(wqe.sges.total()),
            (None, Receives::Own(queue)) => queue.front().map(|w| w.sges.total()),
            (None, Receives::Shared(srq)) => srq.front_room(),
        };
        match room {
            None => {
                self.drops.no_receive += 1;
                return false;
            }
            Some(room) if room < len as u64 => {
                self.drops.too_long += 1;
                return false;
            }
            Some(_) => {}
        }
        let Some(wqe) = self.take_receive(notices) else { return false };
        let result = self
            .scatter(&wqe, 0, &grh(source), headers, mem)
            .and_then(|()| self.scatter(&wqe, GRH as u64, payload, headers, mem));
        if let Some(miss) = result.as_ref().err().and_then(Cause::miss) {
            self.claimed = Some(wqe);
            return self.await_page(headers.bth.psn, miss, By::Receive, notices);
        }
        match result {
            Ok(()) => {
                let mut wc = Wc::new(wqe.id, WcOpcode::Recv, self.qpn, len as u32);
                wc.immediate = headers.immediate;
                wc.solicited = headers.bth.solicited;
                wc.src_qpn = deth.src_qpn;
                wc.slid = lid_of(source.src.ip());
                wc.grh = true;
                self.complete(wc);
            }
            Err(cause) => {
                let wc = Wc::failed(wqe.id, WcOpcode::Recv, self.qpn, WcStatus::LocProtErr);
                self.complete(Wc { vendor_error: cause.code(), ..wc });
                let (wr_id, status) = (Some(wqe.id), WcStatus::LocProtErr);
                notices.failures.push(Failure { qpn: self.qpn, wr_id, status, cause });
                notices.fatal = true;
            }
        }
        false
    }
}

/// A refused translation of a peer's key.
fn remote(cause: Cause) -> Cause {
    match cause {
        Cause::Local(error @ MemError::Denied(_)) => Cause::Remote(error),
        cause => cause,
    }
}

/// A miss at `offset` of a receive. If the message goes on, so will the element of the receive.
#[cold]
fn look_ahead(wqe: &RecvWqe, offset: u64, headers: &Headers, cause: Cause) -> Cause {
    /// How long the message is, nobody knows.
    const MOST: u64 = 1 << 20;
    let Some(miss) = cause.miss() else { return cause };
    let left = match headers.bth.opcode.info().position.is_end() {
        true => 0,
        false => wqe.sges.total().saturating_sub(offset),
    };
    let part = wqe.sges.slices(offset, left).next().map_or(0, |part| u64::from(part.len));
    Cause::Local(MemError::NotPresent(Miss { ahead: part.saturating_sub(miss.len).min(MOST), ..miss }))
}

fn invalid(what: &'static str) -> Refusal {
    Refusal::Nak(NakCode::InvalidRequest, Cause::BadRequest(what))
}

/// The LID of a peer: see [`Lid`].
fn lid_of(ip: std::net::IpAddr) -> Lid {
    let o = Gid::from_ip(ip).0;
    Lid(u16::from_be_bytes([o[14], o[15]]))
}

/// The 40 bytes before a datagram: an IPv6 header, or 20 bytes of nothing and an IPv4 header (IBA A17.4.5.2).
fn grh(source: &Source) -> [u8; 40] {
    let mut out = [0; 40];
    let udp_len = source.udp_len as u16 + 8;
    match (source.src.ip(), source.dst) {
        (std::net::IpAddr::V4(src), std::net::IpAddr::V4(dst)) => {
            let ip = &mut out[20..];
            ip[0] = 0x45;
            ip[1] = source.traffic_class;
            ip[2..4].copy_from_slice(&(udp_len + 20).to_be_bytes());
            ip[6] = 0x40;
            ip[8] = source.hop_limit;
            ip[9] = 17;
            ip[12..16].copy_from_slice(&src.octets());
            ip[16..20].copy_from_slice(&dst.octets());
            let sum: u32 = ip.chunks_exact(2).map(|c| u32::from(u16::from_be_bytes([c[0], c[1]]))).sum();
            let sum = (sum & 0xffff) + (sum >> 16);
            let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
            ip[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        (src, dst) => {
            out[0] = 0x60 | source.traffic_class >> 4;
            out[1] = source.traffic_class << 4;
            out[4..6].copy_from_slice(&udp_len.to_be_bytes());
            out[6] = 17;
            out[7] = source.hop_limit;
            out[8..24].copy_from_slice(&Gid::from_ip(src).0);
            out[24..40].copy_from_slice(&Gid::from_ip(dst).0);
        }
    }
    out
}
