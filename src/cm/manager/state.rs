//! What an endpoint is in, and the messages that follow from it.

use std::net::IpAddr;

use super::super::mad::Mad;
use super::super::message::{About, Drep, Dreq, Message, Mra, Rej, Rtu, padded, reason};
use super::super::types::{Addresses, Endpoint, Owner, PathFacts, PortSpace, Transport};
use super::Transmit;
use crate::ids::Gid;
use crate::time::Instant;

pub(super) const MS: u64 = 1_000_000;
pub(super) const SECOND: u64 = 1_000 * MS;

/// How long a peer may take to answer, as an exponent: 4.3 s. What the kernel says and allows.
pub(super) const RESPONSE_TIMEOUT: u8 = 20;
/// How often a message is repeated at that pace, at most; likewise. Together they are the time before we give up.
pub(super) const MAX_RETRIES: u8 = 15;
/// The program takes longer than expected: that long, 69 s. Likewise.
pub(super) const SERVICE_TIMEOUT: u8 = 24;
/// The first repetition. Peers answer in microseconds or, when the program takes long, say so at the first repetition;
/// a lost message should not cost seconds. The pause doubles until it is the response time-out.
const FIRST_RETRY: u64 = 100 * MS;
/// How long we ask for the release of a connection whose owner waits for the answer.
pub(super) const RELEASE_BUDGET: u64 = 16 * SECOND;
/// And if nobody waits.
pub(super) const ABANDONED_BUDGET: u64 = 5 * SECOND;
/// How long an answer is remembered that the peer may not have got.
pub(super) const ANSWER_MEMORY: u64 = 2 * SECOND;

/// 4.096 us * 2^n, with the longest that we believe.
pub(super) fn time_of(exponent: u8) -> u64 {
    4096 << exponent.min(SERVICE_TIMEOUT)
}

/// One endpoint.
#[derive(Debug)]
pub(super) struct Entry {
    /// None if it was destroyed: it finishes alone what the peer has to know.
    pub(super) owner: Option<Owner>,
    /// The port that it has reserved. Endpoints that came of a request have none.
    pub(super) port: Option<(PortSpace, u16)>,
    /// When it wants to be woken.
    pub(super) timer: Instant,
    pub(super) state: State,
}

#[derive(Debug)]
pub(super) enum State {
    /// It has a port and nothing else.
    Bound,
    /// It hears requests.
    Listening {
        /// How many may wait.
        backlog: u32,
        /// How many do.
        waiting: u32,
    },
    /// It speaks with a peer.
    Speaking(Box<Connection>),
    /// It has spoken.
    Closed,
}

/// A connection, or the resolution of a service.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) phase: Phase,
    pub(super) addresses: Addresses,
    pub(super) path: PathFacts,
    pub(super) transport: Transport,
    /// For SIDR and for the ports.
    pub(super) service_id: u64,
    /// Of the request; all messages have it but those of the release.
    pub(super) transaction: u64,
    /// Our number; of a SIDR_REQ the request's.
    pub(super) local_id: u32,
    /// The peer's; 0 while it is not known.
    pub(super) remote_id: u32,
    pub(super) local_qpn: u32,
    pub(super) remote_qpn: u32,
    /// With the QPN and the transaction it tells a REQ from another with the same number.
    pub(super) remote_psn: u32,
    /// Longest pause between repetitions.
    pub(super) pause: u64,
    /// How long to try.
    pub(super) budget: u64,
}

/// How far it is. `Retry` is the message that waits for an answer.
#[derive(Debug)]
pub(super) enum Phase {
    /// REQ sent.
    RequestSent(Retry),
    /// REQ received: the program has to answer. It counts as waiting with the listener.
    RequestReceived(Endpoint),
    /// REP sent.
    ReplySent(Retry),
    /// REP received: the program has to make its QP ready.
    ReplyReceived,
    /// Data flows.
    Established {
        /// We sent the RTU, and send it again to who asks.
        active: bool,
    },
    /// DREQ sent.
    ReleaseSent(Retry),
    /// DREQ received: the program has to disconnect.
    ReleaseReceived {
        /// Of the DREQ.
        transaction: u64,
    },
    /// Packets of the connection may still be under way.
    Timewait,
    /// SIDR_REQ sent.
    ServiceRequestSent(Retry),
    /// SIDR_REQ received: the program has to answer. It counts as waiting with the listener.
    ServiceRequestReceived(Endpoint),
    /// REJ or SIDR_REP sent: kept for a while, as nothing tells that it has arrived.
    Answered(Box<Mad>),
}

/// A message that is repeated.
#[derive(Debug)]
pub(super) struct Retry {
    pub(super) mad: Box<Mad>,
    /// Until the next time, after the one that is coming.
    pub(super) pause: u64,
    pub(super) give_up: Instant,
}

impl Retry {
    /// The message has just been sent. Gives the time of the first repetition too.
    pub(super) fn new(now: Instant, mad: Mad, budget: u64) -> (Self, Instant) {
        let retry = Self { mad: Box::new(mad), pause: 2 * FIRST_RETRY, give_up: now.plus(budget) };
        let first = now.plus(FIRST_RETRY.min(budget));
        (retry, first)
    }

    /// The time of the next repetition, if this is the time of one.
    pub(super) fn next(&mut self, now: Instant, longest: u64) -> Option<Instant> {
        if now >= self.give_up {
            return None;
        }
        let pause = self.pause.min(longest);
        self.pause = pause.saturating_mul(2);
        Some(now.plus(pause).min(self.give_up))
    }

    /// The peer has it and takes its time. Asking again does no harm: it says so again, and an answer that was lost
    /// comes again.
    pub(super) fn postpone(&mut self, now: Instant, service: u64, longest: u64, budget: u64) -> Instant {
        self.give_up = self.give_up.max(now.plus(service.saturating_add(budget)));
        self.pause = longest;
        now.plus(service.min(longest))
    }
}

impl Connection {
    /// Nanoseconds in which packets of the connection die out (IBA 12.9.8.4), within reason: both ends are done.
    pub(super) fn timewait(&self) -> u64 {
        time_of(self.path.ack_timeout).clamp(50 * MS, SECOND)
    }

    /// A packet that carries `mad` to the peer.
    pub(super) fn transmit(&self, mad: Mad) -> Transmit {
        Transmit {
            from: self.addresses.local_device,
            to: self.addresses.peer_device,
            traffic_class: self.path.traffic_class,
            sl: self.path.sl,
            mad,
        }
    }

    /// Whether a packet is of this connection's peer.
    pub(super) fn is_between(&self, at: IpAddr, from: IpAddr) -> bool {
        self.addresses.local_device == at && self.addresses.peer_device == from
    }

    fn about(&self) -> About {
        match self.phase {
            Phase::RequestReceived(_) => About::Request,
            Phase::ReplyReceived => About::Reply,
            _ => About::Other,
        }
    }

    pub(super) fn rej(&self, reason: u16, private_data: &[u8]) -> Mad {
        let (mut info, mut info_len) = ([0; 72], 0);
        if reason == reason::TIMEOUT {
            // Who it is, in case that the receiver knows us by our number only (IBA 12.6.7.2).
            info[..8].copy_from_slice(&Gid::eui64_of(self.addresses.local_device).to_be_bytes());
            info_len = 8;
        }
        let rej = Rej {
            local_id: self.local_id,
            remote_id: self.remote_id,
            about: self.about(),
            reason,
            info,
            info_len,
            private_data: padded(private_data),
        };
        Message::Rej(rej).emit(self.transaction)
    }

    pub(super) fn mra(&self) -> Mad {
        Message::Mra(Mra {
            local_id: self.local_id,
            remote_id: self.remote_id,
            about: self.about(),
            service_timeout: SERVICE_TIMEOUT,
        })
        .emit(self.transaction)
    }

    pub(super) fn rtu(&self) -> Mad {
        Message::Rtu(Rtu { local_id: self.local_id, remote_id: self.remote_id, private_data: [0; 224] })
            .emit(self.transaction)
    }

    pub(super) fn dreq(&self, transaction: u64) -> Mad {
        Message::Dreq(Dreq {
            local_id: self.local_id,
            remote_id: self.remote_id,
            remote_qpn: self.remote_qpn,
            private_data: [0; 220],
        })
        .emit(transaction)
    }

    pub(super) fn drep(&self, transaction: u64) -> Mad {
        Message::Drep(Drep { local_id: self.local_id, remote_id: self.remote_id, private_data: [0; 224] })
            .emit(transaction)
    }
}
