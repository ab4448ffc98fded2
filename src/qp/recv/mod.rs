//! The receive side of a queue pair: the receive queue and the responder.
//!
//! A request packet passes ordered checks (`check`), is executed (`responder`), and leaves replies that
//! [`RecvSide::poll_transmit`] sends in the order of their PSNs (`reply`).

mod check;
mod parked;
mod reply;
mod responder;

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use super::SgeList;
use super::gate::Gate;
use crate::cq::Cq;
use crate::ids::{Mtu, Psn, QKey, Qpn, RKey};
use crate::mem::{Access, PdId};
use crate::srq::{RecvWqe, Srq};
use crate::time::Instant;
use crate::verbs::{PostError, QpCaps, QpState, QpType, RecvWr, Wc, WcOpcode, WcStatus};
use crate::wire::Path;
pub use parked::Echo;
use parked::Parked;
use reply::Replies;

/// Where a packet came from: what a datagram's GRH tells.
#[derive(Clone, Copy, Debug)]
pub struct Source {
    /// The sender.
    pub src: SocketAddr,
    /// The address it was sent to.
    pub dst: IpAddr,
    /// IP type of service.
    pub traffic_class: u8,
    /// IP time to live.
    pub hop_limit: u8,
    /// UDP payload bytes.
    pub udp_len: usize,
}

/// What is fixed when a queue pair is connected (`modify` to RTR).
#[derive(Clone, Debug)]
pub struct Acceptance {
    /// Where replies go. `None` for datagram queue pairs.
    pub path: Option<Arc<Path>>,
    /// The peer's queue pair.
    pub dest_qpn: Qpn,
    /// Payload bytes of a full packet.
    pub mtu: Mtu,
    /// Q_Key of a datagram queue pair.
    pub qkey: QKey,
    /// What the peer may do.
    pub access: Access,
    /// READs and atomics that the peer may have outstanding.
    pub max_dest_rd_atomic: u8,
    /// Code of the time that a peer waits when we have no receive.
    pub min_rnr_timer: u8,
}

/// Where receives come from.
#[derive(Debug)]
enum Receives {
    Own(VecDeque<RecvWqe>),
    Shared(Arc<Srq>),
}

/// The message that is being received.
#[derive(Debug)]
enum Message {
    /// None: the next packet begins one.
    None,
    /// A SEND into a receive.
    Send { wqe: RecvWqe, received: u64 },
    /// An RDMA WRITE.
    Write { addr: u64, rkey: RKey, total: u32, received: u32 },
    /// Unreliable: packets were lost, the rest of the message is skipped.
    Skip,
}

/// Packets dropped, by reason.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Drops {
    /// Datagram with a wrong Q_Key.
    pub qkey: u64,
    /// Datagram that does not fit the receive.
    pub too_long: u64,
    /// Unreliable message without a posted receive.
    pub no_receive: u64,
    /// Not possible in the queue pair's state, or not of its service.
    pub state: u64,
    /// Unreliable message with lost packets, or a request without access.
    pub unreliable: u64,
}

/// A saved result of an atomic, for the case that its response is lost (IBA 9.4.5).
#[derive(Clone, Copy, Debug)]
struct SavedAtomic {
    psn: Psn,
    msn: u32,
    original: u64,
}

/// The receive side.
#[derive(Debug)]
pub struct RecvSide {
    kind: QpType,
    qpn: Qpn,
    pd: PdId,
    state: QpState,
    caps: QpCaps,
    cq: Arc<Cq>,
    receives: Receives,
    accept: Option<Acceptance>,

    /// PSN that is expected next.
    epsn: Psn,
    /// Completed messages, 24 bits.
    msn: u32,
    /// A sequence NAK (or RNR NAK) was sent for the gap at `epsn`: one for each gap.
    nak_sent: bool,
    message: Message,
    /// Bytes of the RDMA WRITE that the last packet has ended; 0 if it was another packet.
    written: u32,
    saved: VecDeque<SavedAtomic>,
    replies: Replies,
    parked: Parked,
    /// The first parked packet waits for a page.
    gate: Gate,
    /// The receive that it has taken already.
    claimed: Option<RecvWqe>,
    /// A peer is told that we are not ready when it meets an absent page, instead of what it sent being kept.
    refuse_faults: bool,
    established: bool,
    drops: Drops,

    done: Vec<Wc>,
    now: Instant,
}

impl RecvSide {
    /// The receive side of a new queue pair, in RESET.
    pub fn new(kind: QpType, qpn: Qpn, pd: PdId, caps: QpCaps, cq: Arc<Cq>, srq: Option<Arc<Srq>>) -> Self {
        Self {
            kind,
            qpn,
            pd,
            state: QpState::Reset,
            caps,
            cq,
            receives: srq.map_or_else(|| Receives::Own(VecDeque::new()), Receives::Shared),
            accept: None,
            epsn: Psn::new(0),
            msn: 0,
            nak_sent: false,
            message: Message::None,
            written: 0,
            saved: VecDeque::new(),
            replies: Replies::default(),
            parked: Parked::default(),
            gate: Gate::default(),
            claimed: None,
            refuse_faults: false,
            established: false,
            drops: Drops::default(),
            done: Vec::new(),
            now: Instant::ZERO,
        }
    }

    /// What becomes of a reliable request that meets an absent page: it is kept until the page is there, or its sender is
    /// told to try again later (RNR NAK), as by adapters.
    pub fn set_refuse_faults(&mut self, refuse: bool) {
        self.refuse_faults = refuse;
    }

    /// Receives that wait in its own queue; 0 if it has a shared one.
    pub fn waiting(&self) -> usize {
        match &self.receives {
            Receives::Own(queue) => queue.len(),
            Receives::Shared(_) => 0,
        }
    }
    /// The present state.
    pub fn state(&self) -> QpState {
        self.state
    }
    /// PSN that is expected next.
    pub fn rq_psn(&self) -> Psn {
        self.epsn
    }
    /// Whether packets from this address are its business: a connected queue pair listens to its peer alone, whatever QPN
    /// and PSN a stranger guesses.
    pub fn listens_to(&self, from: IpAddr) -> bool {
        let peer = self.accept.as_ref().and_then(|a| a.path.as_ref());
        peer.is_none_or(|path| path.dst.ip() == from)
    }
    /// What peers may do, once connected.
    pub fn acceptance(&self) -> Option<&Acceptance> {
        self.accept.as_ref()
    }
    /// The same, to change what may be changed later.
    pub fn acceptance_mut(&mut self) -> Option<&mut Acceptance> {
        self.accept.as_mut()
    }
    /// Packets dropped so far.
    pub fn drops(&self) -> Drops {
        self.drops
    }

    /// Becomes ready to receive: to RTR.
    pub fn listen(&mut self, accept: Acceptance, rq_psn: Psn) {
        self.accept = Some(accept);
        self.epsn = rq_psn;
    }

    /// Enters a state. RESET forgets everything, ERR flushes.
    pub fn set_state(&mut self, state: QpState) {
        self.state = state;
        match state {
            QpState::Reset => {
                let srq = match &self.receives {
                    Receives::Shared(srq) => Some(srq.clone()),
                    Receives::Own(_) => None,
                };
                let refuse_faults = self.refuse_faults;
                *self = Self::new(self.kind, self.qpn, self.pd, self.caps, self.cq.clone(), srq);
                self.refuse_faults = refuse_faults;
            }
            QpState::Err => self.flush(),
            _ => {}
        }
    }

    /// Takes a receive.
    pub fn post(&mut self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        if self.state == QpState::Reset {
            return Err(PostError::State(self.state));
        }
        let Receives::Own(queue) = &mut self.receives else { return Err(PostError::HasSrq) };
        if wr.sges.len() > self.caps.max_recv_sge as usize {
            return Err(PostError::TooManySges { have: wr.sges.len(), max: self.caps.max_recv_sge });
        }
        if queue.len() >= self.caps.max_recv_wr as usize {
            return Err(PostError::Full(self.caps.max_recv_wr));
        }
        queue.push_back(RecvWqe { id: wr.id, sges: SgeList::new(wr.sges) });
        if self.state == QpState::Err {
            self.flush();
        }
        Ok(())
    }

    /// Completes all receives with a flush error. Those of a shared queue stay there for others.
    fn flush(&mut self) {
        if let Message::Send { wqe, .. } = std::mem::replace(&mut self.message, Message::None) {
            self.complete(Wc::failed(wqe.id, WcOpcode::Recv, self.qpn, WcStatus::WrFlushErr));
        }
        if let Some(wqe) = self.claimed.take() {
            self.complete(Wc::failed(wqe.id, WcOpcode::Recv, self.qpn, WcStatus::WrFlushErr));
        }
        if let Receives::Own(queue) = &mut self.receives {
            let flushed = std::mem::take(queue);
            for wqe in flushed {
                self.complete(Wc::failed(wqe.id, WcOpcode::Recv, self.qpn, WcStatus::WrFlushErr));
            }
        }
        self.replies.keep_naks();
        self.parked = Parked::default();
        self.gate = Gate::default();
    }

    fn complete(&mut self, wc: Wc) {
        self.done.push(Wc { timestamp: self.now.0, ..wc });
    }

    /// Whether [`deliver`](Self::deliver) will wake a program.
    pub fn will_notify(&self) -> bool {
        !self.done.is_empty() && self.cq.is_armed()
    }

    /// Moves finished completions into the completion queue. To be called before the side's lock is given up.
    /// Returns whether the completion queue has overrun.
    pub fn deliver(&mut self) -> bool {
        if self.done.is_empty() {
            return false;
        }
        self.cq.push_all(self.done.drain(..));
        self.cq.is_overrun()
    }
}
