//! The completer: what responses and time do to outstanding requests.

use super::{SendSide, Timers};
use crate::ids::Psn;
use crate::mem::odp::By;
use crate::mem::{Access, Key, Memory, Miss, copy};
use crate::qp::{Cause, Notices, PageFault, Part, rnr_wait_ns};
use crate::time::Instant;
use crate::verbs::{QpState, QpType, SendFlags, SendOp, Wc, WcStatus};
use crate::wire::{Headers, NakCode, Operation, Syndrome};

impl SendSide {
    /// A response packet of a reliable connection.
    pub fn handle_response(
        &mut self,
        now: Instant,
        headers: &Headers,
        payload: &[u8],
        mem: &dyn Memory,
        notices: &mut Notices,
    ) {
        self.now = now;
        if self.kind != QpType::Rc || !matches!(self.state, QpState::Rts | QpState::Sqd) {
            return;
        }
        // The response at `una` is to be asked for again. What comes until then comes again too.
        if self.response_gate.is_waiting() {
            return;
        }
        let psn = headers.bth.psn;
        // IBA 9.7.5.1: responses to nothing that is outstanding are ghosts of earlier ones. Responses below what was
        // ever sent but above `next_psn` are legal after going back.
        if psn.is_before(self.una) || !psn.is_before(self.max_psn) {
            return;
        }
        match headers.bth.opcode.info().operation {
            Operation::Acknowledge => self.handle_acknowledge(psn, headers, notices),
            Operation::ReadResponse => self.handle_read_response(psn, payload, mem, notices),
            Operation::AtomicAcknowledge => {
                if let Some(original) = headers.atomic_ack {
                    self.handle_atomic_response(psn, original, mem, notices);
                }
            }
            _ => {}
        }
        self.check_stuck(notices);
    }

    fn handle_acknowledge(&mut self, psn: Psn, headers: &Headers, notices: &mut Notices) {
        let Some(aeth) = headers.aeth else { return };
        match aeth.syndrome {
            Syndrome::Ack { .. } => {
                if self.acknowledge(psn.plus(1)) {
                    self.recover(self.una);
                }
            }
            Syndrome::Rnr { timer } => {
                self.acknowledge(psn);
                if self.una != psn {
                    return;
                }
                self.handle_rnr(psn, timer, notices);
            }
            Syndrome::Nak(code) => {
                self.guess_rtt();
                self.acknowledge(psn);
                if self.una != psn {
                    return;
                }
                let (status, text) = match code {
                    NakCode::PsnSequence => return self.recover(psn),
                    NakCode::InvalidRequest => (WcStatus::RemInvReqErr, "invalid request"),
                    NakCode::RemoteAccess => (WcStatus::RemAccessErr, "remote access error"),
                    NakCode::RemoteOperational => (WcStatus::RemOpErr, "remote operational error"),
                    _ => return,
                };
                self.fail_front(status, Cause::Nak(text, psn.value()), notices);
            }
            Syndrome::Reserved(_) => {}
        }
    }

    /// IBA 9.7.5.2.8: wait for the time that the responder asked for, whatever the other timers say.
    fn handle_rnr(&mut self, psn: Psn, timer: u8, notices: &mut Notices) {
        let Some(conn) = &self.conn else { return };
        if self.rnr_until.is_some() {
            return;
        }
        let forever = conn.rnr_retry == 7;
        self.rnr_tries += 1;
        if !forever && self.rnr_left == 0 {
            let tries = self.rnr_tries;
            return self.fail_front(WcStatus::RnrRetryExcErr, Cause::Rnr(tries), notices);
        }
        if !forever {
            self.rnr_left -= 1;
        }
        self.rewind(psn);
        self.rnr_until = Some(self.now.plus(rnr_wait_ns(timer)));
        self.timers = Timers { ack: Instant::NEVER, probe: Instant::NEVER, probes: 0 };
    }

    /// Something was lost at `psn`: go back, but not again for the same loss within a round trip.
    fn recover(&mut self, psn: Psn) {
        if psn == self.next_psn || self.rnr_until.is_some() {
            return;
        }
        let Some(conn) = &self.conn else { return };
        let rtt = conn.window.rtt();
        if let Some((at, when)) = self.rewound
            && at == psn
            && self.now.since(when) < rtt
        {
            return;
        }
        conn.window.cut(self.now);
        self.rewound = Some((psn, self.now));
        self.resent = self.now;
        self.rewind(psn);
    }

    /// Before a round trip was measured, a probe is answered: how long that took is the best guess.
    fn guess_rtt(&mut self) {
        if let Some(conn) = &self.conn
            && self.backoff > 0
            && conn.window.measured_rtt().is_none()
        {
            conn.window.sample_rtt(self.now.since(self.resent));
            self.backoff = 0;
        }
    }

    /// Everything before `end` is acknowledged, but READs and atomics only by their responses (IBA 9.7.5.1.1): they
    /// stop it. Returns whether one did, which means that its response was lost.
    fn acknowledge(&mut self, end: Psn) -> bool {
        let mut end = end;
        let mut implied_nak = false;
        if let Some(first) = self.awaited.front().map(|a| a.first)
            && end.is_after(first)
        {
            end = first;
            implied_nak = true;
        }
        if end.is_after(self.next_psn) {
            end = self.data_free_until(end);
        }
        self.advance(end);
        implied_nak
    }

    /// How far from `next_psn` towards `end` no request wants data back: an acknowledgement of packets that we went
    /// back over does not bring that data.
    fn data_free_until(&self, end: Psn) -> Psn {
        for wqe in self.wqes.range(self.next..) {
            if !end.is_after(wqe.psn) {
                break;
            }
            if wqe.wants_response() {
                return if wqe.psn.is_before(self.next_psn) { self.next_psn } else { wqe.psn };
            }
        }
        end
    }

    fn advance(&mut self, end: Psn) {
        if !end.is_after(self.una) {
            return;
        }
        let progress_beyond_next = end.is_after(self.next_psn);
        if progress_beyond_next {
            // We went back, but the peer had the packets after all: no need to send them again.
            self.skip_to(end);
        }
        self.una = end;
        while let Some(front) = self.wqes.front() {
            let left = end.ahead_of(front.psn);
            if left < front.packets {
                break;
            }
            let len = front.len;
            let wc = Wc::new(front.id, front.opcode(), self.qpn, len);
            let signaled = front.flags.has(SendFlags::SIGNALED);
            self.retire(signaled.then_some(wc));
            if self.wqes.is_empty() {
                break;
            }
        }
        let charge = if self.next_psn == self.una { self.sent_charge } else { self.charge_at(0, self.una) };
        let acked = charge.saturating_sub(self.acked_charge);
        if let Some(conn) = &self.conn {
            conn.window.charge(-(acked as i64));
            conn.window.grow(acked);
            self.retries_left = conn.retry_cnt;
            self.rnr_left = conn.rnr_retry;
            if let Some((psn, when)) = self.rtt_probe
                && end.is_after(psn)
            {
                conn.window.sample_rtt(self.now.since(when));
                self.rtt_probe = None;
                self.backoff = 0;
            } else if let Some(rtt) = conn.window.measured_rtt()
                && (rtt / 4..=2 * rtt).contains(&self.now.since(self.resent))
            {
                // The answer came as long after the repetition as answers do: the first try was lost.
                self.backoff = 0;
            }
        }
        self.rnr_tries = 0;
        self.acked_charge += acked;
        self.timers.probes = 0;
        if self.rnr_until.is_none() {
            self.arm_timers();
        }
    }

    /// Moves the requester forward to `psn`, past what need not be sent again.
    fn skip_to(&mut self, psn: Psn) {
        while let Some(wqe) = self.wqes.get(self.next) {
            let done = psn.ahead_of(wqe.psn);
            if done < wqe.packets {
                break;
            }
            self.next += 1;
        }
        self.next_psn = psn;
        self.set_sent_charge(self.charge_at(self.next, psn));
    }

    fn handle_read_response(&mut self, psn: Psn, payload: &[u8], mem: &dyn Memory, notices: &mut Notices) {
        // It implies that the requests before it were executed (IBA 9.7.5.1.1).
        let Some(&awaited) = self.awaited.front() else { return };
        if psn.is_before(awaited.first) {
            return;
        }
        self.acknowledge(psn);
        if self.una != psn {
            return self.recover(self.una);
        }
        let Some(mtu) = self.conn.as_ref().map(|c| c.mtu.bytes()) else { return };
        let Some(front) = self.wqes.front() else { return };
        if !matches!(front.op, SendOp::Read(_)) {
            return;
        }
        let offset = u64::from(psn.ahead_of(front.psn)) * u64::from(mtu);
        let want = (u64::from(front.len) - offset).min(u64::from(mtu)) as usize;
        if payload.len() != want {
            let cause = Cause::BadResponse { psn: psn.value(), have: payload.len(), want };
            return self.fail_front(WcStatus::BadRespErr, cause, notices);
        }
        if let Err(cause) = self.scatter(offset, payload, mem) {
            return match cause.miss() {
                Some(miss) => self.await_page(psn, miss, notices),
                None => self.fail_front(WcStatus::LocProtErr, cause, notices),
            };
        }
        self.responded(psn);
    }

    fn handle_atomic_response(&mut self, psn: Psn, original: u64, mem: &dyn Memory, notices: &mut Notices) {
        let Some(&awaited) = self.awaited.front() else { return };
        if psn.is_before(awaited.first) {
            return;
        }
        self.acknowledge(psn);
        if self.una != psn {
            return self.recover(self.una);
        }
        let Some(front) = self.wqes.front() else { return };
        if !matches!(front.op, SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. }) {
            return;
        }
        // The value is delivered in the byte order of the host.
        if let Err(cause) = self.scatter(0, &original.to_ne_bytes(), mem) {
            return match cause.miss() {
                Some(miss) => self.await_page(psn, miss, notices),
                None => self.fail_front(WcStatus::LocProtErr, cause, notices),
            };
        }
        self.responded(psn);
    }

    /// The response at `psn`, which is the oldest outstanding PSN, has arrived.
    fn responded(&mut self, psn: Psn) {
        if let Some(awaited) = self.awaited.front_mut() {
            awaited.first = psn.plus(1);
            if awaited.first == awaited.end {
                self.awaited.pop_front();
            }
        }
        self.advance(psn.plus(1));
    }

    /// The response at `psn` meets an absent page. It is dropped and nothing is waited for from the peer until the page
    /// is there.
    fn await_page(&mut self, psn: Psn, miss: Miss, notices: &mut Notices) {
        self.response_gate.wait(psn, miss);
        notices.faults.push(PageFault { part: Part::Completer, by: By::Requester, miss });
        self.timers = Timers { ack: Instant::NEVER, probe: Instant::NEVER, probes: 0 };
    }

    /// Writes response data to the local memory of the front request.
    fn scatter(&self, offset: u64, payload: &[u8], mem: &dyn Memory) -> Result<(), Cause> {
        let Some(front) = self.wqes.front() else { return Ok(()) };
        let mut rest = payload;
        for part in front.sges.slices(offset, payload.len() as u64) {
            let (now, later) = rest.split_at(part.len as usize);
            let range = (self.pd, Key::Local(part.lkey), part.addr, u64::from(part.len), Access::LOCAL_WRITE);
            let at = self.response_gate.translate(mem, self.una, range)?;
            copy::write(at, now).map_err(|fault| self.response_gate.fault(mem, self.una, fault, range))?;
            rest = later;
        }
        Ok(())
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due.
    pub fn deadline(&self) -> Instant {
        if let Some(until) = self.rnr_until {
            return until;
        }
        if self.kind != QpType::Rc {
            let waits = self.next < self.wqes.len() && self.state == QpState::Rts && !self.gate.is_waiting();
            return match waits {
                true if self.unechoed() => self.unacknowledged.deadline(),
                true => self.pace.not_before(),
                false => Instant::NEVER,
            };
        }
        self.timers.ack.min(self.timers.probe)
    }

    /// Time has passed. Afterwards [`poll_transmit`](Self::poll_transmit) may have something to send.
    pub fn handle_timeout(&mut self, now: Instant, notices: &mut Notices) {
        self.now = now;
        if let Some(until) = self.rnr_until {
            if now >= until {
                self.rnr_until = None;
            }
            return;
        }
        if self.kind != QpType::Rc {
            self.unacknowledged.expire(now);
            return;
        }
        if self.next_psn == self.una {
            self.timers = Timers { ack: Instant::NEVER, probe: Instant::NEVER, probes: 0 };
            return;
        }
        if now >= self.timers.ack {
            self.handle_ack_timeout(notices);
        } else if now >= self.timers.probe {
            self.probe();
        }
    }

    /// IBA 9.9.2.1: the oldest request is retried from its first unacknowledged packet.
    fn handle_ack_timeout(&mut self, notices: &mut Notices) {
        let Some(conn) = &self.conn else { return };
        if self.retries_left == 0 {
            let cause = Cause::Timeout {
                peer: conn.path.as_ref().map_or_else(String::new, |p| p.dst.ip().to_string()),
                tries: u32::from(conn.retry_cnt) + 1,
                timeout_us: self.ack_timeout().unwrap_or(0) / 1000,
                psn: self.una.value(),
            };
            return self.fail_front(WcStatus::RetryExcErr, cause, notices);
        }
        // A peer that is late has lost nothing, and if it has, it says so when it hears the repetition ([`recover`](Self::recover)). Only
        // one that stays silent may be drowning.
        if self.retries_left < conn.retry_cnt {
            conn.window.cut(self.now);
        }
        self.retries_left -= 1;
        self.resent = self.now;
        self.rewind(self.una);
        self.timers.ack = self.ack_timeout().map_or(Instant::NEVER, |ns| self.now.plus(ns));
        self.timers.probe = self.now.plus(self.probe_interval());
    }

    /// Nothing was heard for a few round trips. The last packet is sent again: if the peer has it, it acknowledges; if
    /// it misses one before, it says which. If that was not answered either, or the peer has said before that it misses the
    /// oldest packet, which it does only once (IBA 9.7.5.2.8), everything is sent again.
    fn probe(&mut self) {
        let tail = self.next_psn.minus(1);
        let told = self.rewound.is_some_and(|(psn, _)| psn == self.una);
        let psn = match self.awaited.back() {
            _ if told || self.timers.probes > 0 => self.una,
            Some(a) if !tail.is_before(a.first) => a.first,
            _ if !tail.is_before(self.una) => tail,
            _ => self.una,
        };
        // The repetition of what was lost was lost too. A peer that is only silent may be late.
        if told && let Some(conn) = &self.conn {
            conn.window.cut(self.now);
        }
        self.timers.probes += 1;
        self.backoff += 1;
        self.resent = self.now;
        self.rewind(psn);
        self.rtt_probe = None;
        self.timers.probe = self.now.plus(self.probe_interval());
    }
}
