//! Packets that wait: unreliable messages that the program has no receive for yet, and, of any service, what has met an
//! absent page, with all that came after it.
//!
//! An adapter drops them. But an adapter also is not the thread that the program needs to post its receives: here the
//! messages of a whole time slice arrive at once. So they wait a while, as if the network had been slower, and the
//! sender hears that they are not taken (see `qp/send/unacknowledged.rs`).

use std::collections::VecDeque;
use std::net::IpAddr;

use super::{Message, Receives, RecvSide, Source};
use crate::ids::{Psn, Qpn};
use crate::mem::{Fault, Memory, Miss};
use crate::qp::{Notices, Part};
use crate::time::Instant;
use crate::verbs::QpType;
use crate::wire::{Headers, Operation};

/// Most bytes that wait for one queue pair, and what a packet counts besides its payload.
const ROOM: usize = 1 << 20;
const OVERHEAD: usize = 256;
/// How long they wait for a receive.
const PATIENCE: u64 = 200_000_000;
/// How often a queue pair that has such messages is looked at, if nobody posts to it.
const INTERVAL: u64 = 300_000;

/// A packet that waits.
#[derive(Debug)]
struct Packet {
    headers: Headers,
    payload: Box<[u8]>,
    source: Source,
}

impl Packet {
    fn new(headers: &Headers, payload: &[u8], source: &Source) -> Self {
        Self { headers: *headers, payload: payload.into(), source: *source }
    }
}

impl Parked {
    pub(super) fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }
}

/// Tells the sender of a marked packet that it was taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Echo {
    /// The sender's address.
    pub to: IpAddr,
    /// Its queue pair.
    pub qpn: Qpn,
    /// The packet.
    pub psn: Psn,
}

/// What waits, and the echoes to be sent.
#[derive(Debug, Default)]
pub(super) struct Parked {
    packets: VecDeque<Packet>,
    bytes: usize,
    /// When the first one is given up.
    end: Instant,
    echoes: Vec<Echo>,
}

impl RecvSide {
    /// Whether messages wait for a receive (if for a page, [`handle_page`](Self::handle_page) will tell). Then [`resume`](Self::resume) is to be called at
    /// [`look_again`](Self::look_again), and when a receive was posted.
    pub fn has_parked(&self) -> bool {
        !self.parked.packets.is_empty() && !self.gate.is_waiting()
    }

    /// When to look again.
    pub fn look_again(&self, now: Instant) -> Instant {
        now.plus(INTERVAL)
    }

    /// Echoes to be sent.
    pub fn take_echoes(&mut self) -> Vec<Echo> {
        std::mem::take(&mut self.parked.echoes)
    }

    /// Takes the packet if it has to wait. Otherwise it is to be handled now.
    pub(super) fn park(&mut self, headers: &Headers, payload: &[u8], source: &Source) -> bool {
        if self.parked.packets.is_empty() {
            if !self.lacks_receive(headers) {
                return false;
            }
            self.parked.end = self.now.plus(PATIENCE);
        }
        if !self.keep(headers, payload, source) {
            self.drops.no_receive += 1;
            self.echo(headers, source);
        }
        true
    }

    /// Keeps a packet behind those that wait, if there is room. What is dropped of a reliable connection is sent again.
    pub(super) fn keep(&mut self, headers: &Headers, payload: &[u8], source: &Source) -> bool {
        let room = self.parked.bytes + payload.len() + OVERHEAD <= ROOM;
        if room {
            self.parked.bytes += payload.len() + OVERHEAD;
            self.parked.packets.push_back(Packet::new(headers, payload, source));
        }
        room
    }

    /// Keeps a packet that has met an absent page before those that wait.
    #[cold]
    pub(super) fn keep_first(&mut self, headers: &Headers, payload: &[u8], source: &Source) {
        self.parked.bytes += payload.len() + OVERHEAD;
        self.parked.packets.push_front(Packet::new(headers, payload, source));
    }

    /// A page that was waited for is present, or will never be. Afterwards what has waited is handled, and there may be replies.
    pub fn handle_page(
        &mut self,
        now: Instant,
        part: Part,
        miss: &Miss,
        outcome: Result<(), Fault>,
        mem: &dyn Memory,
        notices: &mut Notices,
    ) {
        self.now = now;
        if part == Part::Reply {
            self.replies.gate.resolved(miss, outcome);
        } else if self.gate.resolved(miss, outcome) {
            self.parked.end = now.plus(PATIENCE);
            self.resume(now, mem, notices);
        }
    }

    /// Whether the packet begins a message, or ends one, that takes a receive which is not there. Reliable ones are refused
    /// then.
    fn lacks_receive(&self, headers: &Headers) -> bool {
        if self.kind == QpType::Rc {
            return false;
        }
        let info = headers.bth.opcode.info();
        let takes = match (self.kind, info.operation) {
            (QpType::Ud, _) => {
                headers.deth.is_some_and(|d| Some(d.qkey) == self.accept.as_ref().map(|a| a.qkey))
            }
            // A message that is given up for this one leaves its receive.
            (_, Operation::Send) => info.position.is_start() && !matches!(self.message, Message::Send { .. }),
            (_, Operation::RdmaWrite) => {
                headers.immediate.is_some() && matches!(self.message, Message::Write { .. } | Message::None)
            }
            _ => false,
        };
        takes
            && self.claimed.is_none()
            && match &self.receives {
                Receives::Own(queue) => queue.is_empty(),
                Receives::Shared(srq) => srq.front_room().is_none(),
            }
    }

    /// Handles what has waited, as far as there are receives now.
    pub fn resume(&mut self, now: Instant, mem: &dyn Memory, notices: &mut Notices) {
        self.now = now;
        while !self.gate.is_waiting()
            && let Some(front) = self.parked.packets.front()
        {
            let late = now >= self.parked.end;
            if self.lacks_receive(&front.headers) && !late {
                break;
            }
            let Some(packet) = self.parked.packets.pop_front() else { break };
            self.parked.bytes -= packet.payload.len() + OVERHEAD;
            if !late {
                self.parked.end = now.plus(PATIENCE);
            }
            self.handle_ready(&packet.headers, &packet.payload, &packet.source, mem, notices);
        }
    }

    /// The packet was taken, or dropped.
    pub(super) fn echo(&mut self, headers: &Headers, source: &Source) {
        if !headers.bth.fecn {
            return;
        }
        let qpn = match (headers.deth, &self.accept) {
            (Some(deth), _) => deth.src_qpn,
            (None, Some(accept)) => accept.dest_qpn,
            (None, None) => return,
        };
        self.parked.echoes.push(Echo { to: source.src.ip(), qpn, psn: headers.bth.psn });
    }
}
