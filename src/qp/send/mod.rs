//! The send side of a queue pair: the send queue, the requester that turns it into packets, and the completer that
//! turns responses into completions.

mod completer;
mod requester;
mod unacknowledged;

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;

use super::gate::Gate;
use super::pace::Pace;
use super::window::{PACKET_OVERHEAD, Window};
use super::{Cause, Failure, Notices, SgeList, ack_timeout_ns};
use crate::cq::{Cq, Ticket};
use crate::ids::{Mtu, Psn, QKey, Qpn};
use crate::mem::{HostAddr, PdId, copy};
use crate::time::Instant;
use crate::verbs::{
    PostError, QpCaps, QpState, QpType, SendFlags, SendOp, SendWr, UdDest, Wc, WcOpcode, WcStatus, limits,
};
use crate::wire::Path;
use unacknowledged::Unacknowledged;

/// A send work request in the queue.
#[derive(Debug)]
struct Wqe {
    id: u64,
    op: SendOp,
    flags: SendFlags,
    len: u32,
    sges: SgeList,
    /// Position of inline data in the running count of the queue's inline bytes.
    inline_at: u64,
    /// PSN of the first packet.
    psn: Psn,
    /// PSNs that the request takes: its packets, or those of a READ's response.
    packets: u32,
    /// What earlier requests charge to the window, running.
    charge_before: u64,
    ud: Option<UdDest>,
}

impl Wqe {
    fn end(&self) -> Psn {
        self.psn.plus(self.packets)
    }
    fn opcode(&self) -> WcOpcode {
        match self.op {
            SendOp::Send | SendOp::SendImm(_) => WcOpcode::Send,
            SendOp::Write(_) | SendOp::WriteImm(..) => WcOpcode::RdmaWrite,
            SendOp::Read(_) => WcOpcode::RdmaRead,
            SendOp::CompareSwap { .. } => WcOpcode::CompSwap,
            SendOp::FetchAdd { .. } => WcOpcode::FetchAdd,
        }
    }
    /// Whether the peer answers with data, so that a plain acknowledgement does not complete it.
    fn wants_response(&self) -> bool {
        matches!(self.op, SendOp::Read(_) | SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. })
    }
}

/// What is fixed when a queue pair is connected (`modify` to RTR and RTS).
#[derive(Clone, Debug)]
pub struct Connection {
    /// Where the peer is. `None` for datagram queue pairs.
    pub path: Option<Arc<Path>>,
    /// The window shared with all queue pairs that talk to the peer.
    pub window: Arc<Window>,
    /// The peer's queue pair.
    pub dest_qpn: Qpn,
    /// Payload bytes of a full packet.
    pub mtu: Mtu,
    /// Q_Key of a datagram queue pair.
    pub qkey: QKey,
    /// READs and atomics that may be outstanding.
    pub max_rd_atomic: u8,
    /// Code of the local ACK timeout.
    pub timeout: u8,
    /// How often a time-out is retried.
    pub retry_cnt: u8,
    /// How often an RNR NAK is retried; 7 is forever.
    pub rnr_retry: u8,
}

/// A READ or atomic request whose response is awaited: the PSNs `first .. end`.
#[derive(Clone, Copy, Debug)]
struct Awaited {
    first: Psn,
    end: Psn,
}

/// What a lost acknowledgement is met with. The local ACK timeout of IBA 9.9.2 is far longer than a round trip here, so
/// before it the tail is probed; probes do not count towards `retry_cnt`.
#[derive(Clone, Copy, Debug)]
struct Timers {
    /// IB local ACK timeout.
    ack: Instant,
    /// Next probe.
    probe: Instant,
    /// Probes since the last progress.
    probes: u32,
}

/// Why a request of the front of the queue cannot be completed, once all before it are.
#[derive(Debug)]
struct Stuck {
    /// Its position in the running count of requests.
    wqe: u64,
    status: WcStatus,
    cause: Cause,
}

/// How many small requests may wait for others, and their bytes.
const FEW: usize = 48;
const LITTLE: u64 = 48 << 10;

/// The send side.
#[derive(Debug)]
pub struct SendSide {
    kind: QpType,
    qpn: Qpn,
    pd: PdId,
    state: QpState,
    caps: QpCaps,
    sig_all: bool,
    cq: Arc<Cq>,
    conn: Option<Connection>,

    wqes: VecDeque<Wqe>,
    /// Running count of requests taken out of `wqes`; with it, positions stay valid.
    popped: u64,
    /// Requests whose slot is not free until their completion (or one after it) is polled.
    reap: VecDeque<(u64, Ticket)>,
    freed: u64,
    inline: VecDeque<u8>,
    inline_popped: u64,
    /// PSN and charge that the next posted request gets.
    post_psn: Psn,
    post_charge: u64,

    /// Index into `wqes` of the request that is being sent.
    next: usize,
    /// Next PSN to send.
    next_psn: Psn,
    /// Oldest PSN that is not acknowledged.
    una: Psn,
    /// One past the highest PSN ever sent: below it, sending is resending.
    max_psn: Psn,
    sent_charge: u64,
    acked_charge: u64,
    awaited: VecDeque<Awaited>,
    /// Charge since a packet last asked for an acknowledgement.
    unasked: u32,

    timers: Timers,
    rnr_until: Option<Instant>,
    retries_left: u8,
    rnr_left: u8,
    rnr_tries: u32,
    rewound: Option<(Psn, Instant)>,
    /// When something was last sent again.
    resent: Instant,
    rtt_probe: Option<(Psn, Instant)>,
    /// Doublings of the probe interval, until the measured round trip proves to be right.
    backoff: u32,
    stuck: Option<Stuck>,
    /// Of unreliable queue pairs, and what they sent since the last pause.
    pace: Pace,
    burst: u32,
    unacknowledged: Unacknowledged,
    notify_drained: bool,

    /// What is to be sent waits for a page.
    gate: Gate,
    /// The response at `una` waits for a page. It was dropped, and is asked for again when the page is there.
    response_gate: Gate,
    /// A response has had to wait: from now on its memory is looked at before a request asks for it.
    look_ahead: bool,

    /// Completions that are not in the queue yet, with the position of their request.
    done: Vec<(Wc, u64)>,
    now: Instant,
}

impl SendSide {
    /// The send side of a new queue pair, in RESET.
    pub fn new(kind: QpType, qpn: Qpn, pd: PdId, caps: QpCaps, sig_all: bool, cq: Arc<Cq>) -> Self {
        Self {
            kind,
            qpn,
            pd,
            state: QpState::Reset,
            caps,
            sig_all,
            cq,
            conn: None,
            wqes: VecDeque::new(),
            popped: 0,
            reap: VecDeque::new(),
            freed: 0,
            inline: VecDeque::new(),
            inline_popped: 0,
            post_psn: Psn::new(0),
            post_charge: 0,
            next: 0,
            next_psn: Psn::new(0),
            una: Psn::new(0),
            max_psn: Psn::new(0),
            sent_charge: 0,
            acked_charge: 0,
            awaited: VecDeque::new(),
            unasked: 0,
            timers: Timers { ack: Instant::NEVER, probe: Instant::NEVER, probes: 0 },
            rnr_until: None,
            retries_left: 0,
            rnr_left: 0,
            rnr_tries: 0,
            rewound: None,
            resent: Instant::ZERO,
            rtt_probe: None,
            backoff: 0,
            stuck: None,
            pace: Pace::new(),
            burst: 0,
            unacknowledged: Unacknowledged::default(),
            notify_drained: false,
            gate: Gate::default(),
            response_gate: Gate::default(),
            look_ahead: false,
            done: Vec::new(),
            now: Instant::ZERO,
        }
    }

    /// The present state.
    pub fn state(&self) -> QpState {
        self.state
    }
    /// Whether responses from this address are its business: those of its peer alone.
    pub fn listens_to(&self, from: IpAddr) -> bool {
        let peer = self.conn.as_ref().and_then(|c| c.path.as_ref());
        peer.is_some_and(|path| path.dst.ip() == from)
    }
    /// The connection, once there is one.
    pub fn connection(&self) -> Option<&Connection> {
        self.conn.as_ref()
    }
    /// The connection, to change what may be changed later.
    pub fn connection_mut(&mut self) -> Option<&mut Connection> {
        self.conn.as_mut()
    }
    /// Requests that have left and are not acknowledged.
    pub fn under_way(&self) -> usize {
        self.next
    }
    /// Whether what has not left is small enough to wait for more.
    pub fn may_wait(&self) -> bool {
        let waiting = self.wqes.len() - self.next;
        self.kind == QpType::Rc
            && self.state == QpState::Rts
            && (1..FEW).contains(&waiting)
            && self.post_charge - self.wqes[self.next].charge_before < LITTLE
    }
    /// Requests in the queue.
    pub fn len(&self) -> usize {
        self.wqes.len()
    }
    /// Whether the queue is empty.
    pub fn is_empty(&self) -> bool {
        self.wqes.is_empty()
    }
    /// The next PSN that a posted request gets.
    pub fn sq_psn(&self) -> Psn {
        self.post_psn
    }

    /// Connects: to RTR.
    pub fn connect(&mut self, conn: Connection) {
        self.conn = Some(conn);
    }

    /// Sets the first PSN: to RTS.
    pub fn start(&mut self, sq_psn: Psn) {
        self.post_psn = sq_psn;
        self.next_psn = sq_psn;
        self.una = sq_psn;
        self.max_psn = sq_psn;
        if let Some(c) = &self.conn {
            self.retries_left = c.retry_cnt;
            self.rnr_left = c.rnr_retry;
        }
    }

    /// Enters a state. RESET forgets everything, ERR flushes.
    pub fn set_state(&mut self, state: QpState, notify_drained: bool) {
        self.state = state;
        self.notify_drained = state == QpState::Sqd && notify_drained;
        match state {
            QpState::Reset => self.reset(),
            QpState::Err => self.flush(),
            _ => {}
        }
    }

    fn reset(&mut self) {
        self.release_window();
        let cq = self.cq.clone();
        *self = Self::new(self.kind, self.qpn, self.pd, self.caps, self.sig_all, cq);
    }

    /// Gives back what the queue pair holds of the peer's window.
    pub fn release_window(&mut self) {
        self.unacknowledged = Unacknowledged::default();
        if let Some(conn) = &self.conn {
            conn.window.charge(self.acked_charge as i64 - self.sent_charge as i64);
        }
        self.acked_charge = self.sent_charge;
    }

    /// Takes a request. It is not sent until [`poll_transmit`](Self::poll_transmit).
    pub fn post(&mut self, wr: &SendWr<'_>) -> Result<(), PostError> {
        let (len, packets) = self.check(wr)?;
        let inline_at = self.inline_popped + self.inline.len() as u64;
        if wr.flags.has(SendFlags::INLINE) && self.state != QpState::Err {
            self.copy_inline(wr, len)?;
        }
        let wqe = Wqe {
            id: wr.id,
            op: wr.op,
            flags: if self.sig_all { wr.flags.with(SendFlags::SIGNALED) } else { wr.flags },
            len,
            sges: SgeList::new(if wr.flags.has(SendFlags::INLINE) { &[] } else { wr.sges }),
            inline_at,
            psn: self.post_psn,
            packets,
            charge_before: self.post_charge,
            ud: wr.ud.clone(),
        };
        self.post_psn = self.post_psn.plus(packets);
        self.post_charge += u64::from(len) + u64::from(packets) * u64::from(PACKET_OVERHEAD);
        self.wqes.push_back(wqe);
        // IBA 10.3.1: a request posted in the error state is flushed; UD and UC likewise in SQE.
        if matches!(self.state, QpState::Err | QpState::Sqe) {
            self.flush();
        }
        Ok(())
    }

    /// Whether [`post`](Self::post) would take all these requests. If not, says which it would refuse, and why.
    pub fn check_all<'a>(
        &mut self,
        requests: impl Iterator<Item = SendWr<'a>>,
    ) -> Result<(), (usize, PostError)> {
        let max = self.caps.max_send_wr;
        for (i, wr) in requests.enumerate() {
            self.check(&wr).map_err(|e| (i, e))?;
            if self.occupied() + i >= max as usize {
                return Err((i, PostError::Full(max)));
            }
        }
        Ok(())
    }

    /// Everything about a request that can be refused at once. Returns its length and packets.
    fn check(&mut self, wr: &SendWr<'_>) -> Result<(u32, u32), PostError> {
        match self.state {
            QpState::Rts | QpState::Sqd | QpState::Sqe | QpState::Err => {}
            state => return Err(PostError::State(state)),
        }
        let name = match (wr.op, self.kind) {
            (SendOp::Send | SendOp::SendImm(_), _) => None,
            (SendOp::Write(_) | SendOp::WriteImm(..), QpType::Rc | QpType::Uc) => None,
            (SendOp::Read(_) | SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. }, QpType::Rc) => None,
            (SendOp::Write(_) | SendOp::WriteImm(..), _) => Some("an RDMA WRITE"),
            (SendOp::Read(_), _) => Some("an RDMA READ"),
            (SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. }, _) => Some("an atomic"),
        };
        if let Some(name) = name {
            return Err(PostError::Unsupported(name, self.kind));
        }
        if wr.flags.0 & !SendFlags::ALL.0 != 0 {
            return Err(PostError::Unsupported("an unknown send flag", self.kind));
        }
        let wants_data =
            matches!(wr.op, SendOp::Read(_) | SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. });
        let inline = wr.flags.has(SendFlags::INLINE);
        if inline && wants_data {
            return Err(PostError::Unsupported("inline data with a request that returns data", self.kind));
        }
        if wr.sges.len() > self.caps.max_send_sge as usize && !inline {
            return Err(PostError::TooManySges { have: wr.sges.len(), max: self.caps.max_send_sge });
        }
        let mut have: u64 = wr.sges.iter().map(|s| u64::from(s.len)).sum();
        if matches!(wr.op, SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. }) {
            if have < 8 {
                return Err(PostError::Unsupported(
                    "an atomic whose local buffer is below 8 bytes",
                    self.kind,
                ));
            }
            have = 8;
        }
        if inline && have > u64::from(self.caps.max_inline_data) {
            return Err(PostError::InlineTooLong { have, max: self.caps.max_inline_data });
        }
        let mtu = self.conn.as_ref().map_or(Mtu::B256, |c| c.mtu).bytes();
        let max = if self.kind == QpType::Ud { u64::from(mtu) } else { limits::MAX_MESSAGE };
        if have > max {
            return Err(PostError::TooLong { have, max });
        }
        if self.kind == QpType::Ud && wr.ud.is_none() {
            return Err(PostError::NoAddress);
        }
        if self.occupied() >= self.caps.max_send_wr as usize {
            return Err(PostError::Full(self.caps.max_send_wr));
        }
        let packets = (have.div_ceil(u64::from(mtu)) as u32).max(1);
        Ok((have as u32, packets))
    }

    /// Slots in use. A slot is free when its request is done and the program has polled the completions up to it,
    /// so that a completion queue as deep as the send queue never overruns.
    fn occupied(&mut self) -> usize {
        let posted = self.popped + self.wqes.len() as u64;
        if posted - self.freed < u64::from(self.caps.max_send_wr) {
            return (posted - self.freed) as usize;
        }
        while let Some(&(wqe, ticket)) = self.reap.front() {
            if !self.cq.has_consumed(ticket) {
                break;
            }
            self.freed = wqe + 1;
            self.reap.pop_front();
        }
        if self.reap.is_empty() {
            self.freed = self.popped;
        }
        (posted - self.freed) as usize
    }

    fn copy_inline(&mut self, wr: &SendWr<'_>, len: u32) -> Result<(), PostError> {
        let start = self.inline.len();
        let mut buf = [0; limits::MAX_INLINE as usize];
        let mut at = 0;
        for s in wr.sges {
            let part = &mut buf[at..at + s.len as usize];
            copy::read(HostAddr(s.addr), part).map_err(|f| PostError::Fault(f.addr))?;
            at += s.len as usize;
        }
        debug_assert_eq!(at, len as usize);
        self.inline.extend(&buf[..at]);
        debug_assert_eq!(self.inline.len(), start + at);
        Ok(())
    }

    /// Takes the front request out of the queue, with or without a completion.
    fn retire(&mut self, completion: Option<Wc>) {
        let Some(wqe) = self.wqes.pop_front() else { return };
        if wqe.flags.has(SendFlags::INLINE) {
            let end = wqe.inline_at + u64::from(wqe.len);
            let n = (end - self.inline_popped) as usize;
            self.inline.drain(..n.min(self.inline.len()));
            self.inline_popped = end;
        }
        if let Some(wc) = completion {
            self.done.push((Wc { timestamp: self.now.0, ..wc }, self.popped));
        }
        self.popped += 1;
        self.next = self.next.saturating_sub(1);
    }

    /// Fails the front request: with it the queue pair (RC), or its send queue (UC, UD), is in error.
    fn fail_front(&mut self, status: WcStatus, cause: Cause, notices: &mut Notices) {
        let Some(front) = self.wqes.front() else { return };
        let wc = Wc { vendor_error: cause.code(), ..Wc::failed(front.id, front.opcode(), self.qpn, status) };
        notices.failures.push(Failure { qpn: self.qpn, wr_id: Some(front.id), status, cause });
        self.retire(Some(wc));
        if self.kind == QpType::Rc {
            self.state = QpState::Err;
            notices.fatal = true;
        } else {
            self.state = QpState::Sqe;
        }
        self.flush();
    }

    /// Completes all requests with a flush error.
    fn flush(&mut self) {
        while let Some(front) = self.wqes.front() {
            let wc = Wc::failed(front.id, front.opcode(), self.qpn, WcStatus::WrFlushErr);
            self.retire(Some(wc));
        }
        self.release_window();
        self.next_psn = self.post_psn;
        self.una = self.post_psn;
        self.max_psn = self.post_psn;
        self.sent_charge = self.post_charge;
        self.acked_charge = self.post_charge;
        self.awaited.clear();
        self.stuck = None;
        self.rnr_until = None;
        self.gate = Gate::default();
        self.response_gate = Gate::default();
        self.timers = Timers { ack: Instant::NEVER, probe: Instant::NEVER, probes: 0 };
    }

    /// Moves finished completions into the completion queue. To be called before the side's lock is given up.
    /// Returns whether the completion queue has overrun.
    pub fn deliver(&mut self) -> bool {
        if self.done.is_empty() {
            return false;
        }
        let Ticket(first) = self.cq.push_all(self.done.iter().map(|(wc, _)| *wc));
        for (i, (_, wqe)) in self.done.drain(..).enumerate() {
            self.reap.push_back((wqe, Ticket(first + i as u64)));
        }
        self.cq.is_overrun()
    }

    /// What a position in the sequence of packets has charged to the window.
    fn charge_at(&self, index: usize, psn: Psn) -> u64 {
        match (self.wqes.get(index), &self.conn) {
            (Some(wqe), Some(conn)) => {
                let k = u64::from(psn.ahead_of(wqe.psn));
                let full = u64::from(conn.mtu.bytes() + PACKET_OVERHEAD);
                wqe.charge_before + k * full
            }
            _ => self.post_charge,
        }
    }

    fn set_sent_charge(&mut self, charge: u64) {
        if let Some(conn) = &self.conn {
            conn.window.charge(charge as i64 - self.sent_charge as i64);
        }
        self.sent_charge = charge;
    }

    /// The IB local ACK timeout in ns. A peer that shares a busy CPU may not run for tens of milliseconds, which no
    /// adapter does, so short ones are raised to a floor.
    fn ack_timeout(&self) -> Option<u64> {
        const FLOOR: u64 = 250_000_000;
        self.conn.as_ref().and_then(|c| ack_timeout_ns(c.timeout)).map(|t| t.max(FLOOR))
    }
}
