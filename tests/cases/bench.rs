//! One side of a queue pair on a bench: packets in, packets out, no device and no network around it.
//!
//! Packets are written as one line each, so that a test reads as a trace: `SendLast 102 ask [3]` is the last packet of
//! a SEND with PSN 0x102, the AckReq bit and 3 bytes of payload; `Nak PsnSequence 102 msn 1` is what it says.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use urxe::cq::Cq;
use urxe::ids::{Mtu, Psn, QKey, Qpn, RKey};
use urxe::mem::{Access, PdId, Registered, Table, copy};
use urxe::qp::recv::{Acceptance, RecvSide, Source};
use urxe::qp::send::{Connection, SendSide};
use urxe::qp::window::Window;
use urxe::qp::{Failure, Notices, Progress};
use urxe::time::Instant;
use urxe::verbs::{
    AsyncEvent, QpState, QpType, RecvWr, Remote, SendFlags, SendOp, SendWr, Sge, UdDest, Wc, WcStatus,
};
use urxe::wire::icrc::{Check, verify};
use urxe::wire::{
    Aeth, AtomicEth, Bth, Headers, IpId, NakCode, Opcode, Packet, Path, PathIcrc, Reth, Syndrome, TxBatch,
};

use crate::harness::{ALL_ACCESS, Buf, CAPS, poll};

pub(crate) const MTU: usize = 256;
pub(crate) const FIRST_PSN: u32 = 0x100;
/// The queue pair on the bench, and the one that it talks to.
pub(crate) const OURS: Qpn = Qpn(0x11);
pub(crate) const THEIRS: Qpn = Qpn(0x22);
const PD: PdId = PdId(1);

fn address(last: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, last], 4791))
}

fn path() -> Arc<Path> {
    Arc::new(Path::new(address(1), address(2), 0, 0, IpId::Zero))
}

/// A packet, taken apart.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Seen {
    pub(crate) headers: Headers,
    pub(crate) payload: Vec<u8>,
    /// The datagram as it left.
    pub(crate) bytes: Vec<u8>,
}

impl Seen {
    fn parse(bytes: Vec<u8>) -> Self {
        let icrc = PathIcrc::new(address(1), address(2));
        assert_eq!(verify(&icrc, Some(0), &bytes), Check::Match, "the ICRC of a packet that leaves is right");
        let packet = Packet::parse(&bytes).unwrap();
        Self { headers: packet.headers, payload: packet.payload.to_vec(), bytes }
    }
}

impl std::fmt::Display for Seen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let h = &self.headers;
        let psn = h.bth.psn.value();
        let name = format!("{:?}", h.bth.opcode);
        let name = ["Rc", "Uc", "Ud"].iter().fold(name.as_str(), |n, p| n.strip_prefix(p).unwrap_or(n));
        let name = name.replace("Rdma", "");
        match h.aeth.map(|a| (a.syndrome, h.bth.opcode)) {
            Some((Syndrome::Ack { credits: 31 }, Opcode::RcAcknowledge)) => write!(f, "Ack {psn:x}")?,
            Some((Syndrome::Nak(code), _)) => write!(f, "Nak {code:?} {psn:x}")?,
            Some((Syndrome::Rnr { timer }, _)) => write!(f, "Rnr {timer} {psn:x}")?,
            _ => write!(f, "{name} {psn:x}")?,
        }
        if let Some(aeth) = h.aeth {
            write!(f, " msn {}", aeth.msn)?;
        }
        if let Some(original) = h.atomic_ack {
            write!(f, " was {original}")?;
        }
        if let Some(reth) = h.reth {
            write!(f, " of {}", reth.len)?;
        }
        if let Some(imm) = h.immediate {
            write!(f, " imm {imm:02x?}")?;
        }
        if h.bth.ack_request {
            f.write_str(" ask")?;
        }
        if h.bth.solicited {
            f.write_str(" solicited")?;
        }
        if !self.payload.is_empty() {
            write!(f, " [{}]", self.payload.len())?;
        }
        Ok(())
    }
}

/// The lines of packets.
pub(crate) fn lines(packets: &[Seen]) -> Vec<String> {
    packets.iter().map(Seen::to_string).collect()
}

pub(crate) fn drain(batch: &TxBatch) -> Vec<Seen> {
    let mut out = Vec::new();
    for run in batch.runs() {
        let mut bytes = Vec::new();
        for piece in batch.pieces(run) {
            let at = bytes.len();
            bytes.resize(at + piece.len, 0);
            copy::read(urxe::mem::HostAddr(piece.addr as u64), &mut bytes[at..]).unwrap();
        }
        out.extend(bytes.chunks(run.segment).map(|p| Seen::parse(p.to_vec())));
    }
    out
}

fn bth(opcode: Opcode, psn: u32) -> Bth {
    Bth::new(opcode, OURS, Psn::new(psn))
}

/// A request packet without extension headers, with the AckReq bit on the end of a message.
pub(crate) fn request(opcode: Opcode, psn: u32, payload: &[u8]) -> Seen {
    let mut headers = Headers::new(bth(opcode, psn));
    headers.bth.ack_request = opcode.info().position.is_end();
    headers.bth.pad = ((4 - payload.len() % 4) % 4) as u8;
    Seen { headers, payload: payload.to_vec(), bytes: Vec::new() }
}

/// An RDMA WRITE or READ request.
pub(crate) fn rdma(opcode: Opcode, psn: u32, to: Remote, len: u32, payload: &[u8]) -> Seen {
    let mut packet = request(opcode, psn, payload);
    packet.headers.reth = Some(Reth { addr: to.addr, rkey: to.rkey, len });
    packet
}

pub(crate) fn read_request(psn: u32, from: Remote, len: u32) -> Seen {
    rdma(Opcode::RcRdmaReadRequest, psn, from, len, &[])
}

pub(crate) fn fetch_add(psn: u32, at: Remote, add: u64) -> Seen {
    let mut packet = request(Opcode::RcFetchAdd, psn, &[]);
    packet.headers.atomic = Some(AtomicEth { addr: at.addr, rkey: at.rkey, swap_add: add, compare: 0 });
    packet
}

fn response(opcode: Opcode, psn: u32, syndrome: Syndrome, payload: &[u8]) -> Seen {
    let mut headers = Headers::new(bth(opcode, psn));
    headers.aeth = Some(Aeth { syndrome, msn: 0 });
    headers.bth.pad = ((4 - payload.len() % 4) % 4) as u8;
    Seen { headers, payload: payload.to_vec(), bytes: Vec::new() }
}

pub(crate) fn ack(psn: u32) -> Seen {
    response(Opcode::RcAcknowledge, psn, Syndrome::ACK, &[])
}
pub(crate) fn nak(psn: u32, code: NakCode) -> Seen {
    response(Opcode::RcAcknowledge, psn, Syndrome::Nak(code), &[])
}
pub(crate) fn rnr(psn: u32, timer: u8) -> Seen {
    response(Opcode::RcAcknowledge, psn, Syndrome::Rnr { timer }, &[])
}
pub(crate) fn read_response(opcode: Opcode, psn: u32, payload: &[u8]) -> Seen {
    response(opcode, psn, Syndrome::ACK, payload)
}
pub(crate) fn atomic_response(psn: u32, original: u64) -> Seen {
    let mut packet = response(Opcode::RcAtomicAcknowledge, psn, Syndrome::ACK, &[]);
    packet.headers.atomic_ack = Some(original);
    packet
}

/// What both benches have.
pub(crate) struct Memory {
    pub(crate) table: Table,
    pub(crate) buf: Buf,
    pub(crate) keys: Registered,
}

impl Memory {
    fn new(access: Access) -> Self {
        let (table, buf) = (Table::with_seed(1), Buf::new(1 << 16));
        let keys = table.register(PD, buf.addr(), buf.len() as u64, buf.addr(), access).unwrap();
        Self { table, buf, keys }
    }
    pub(crate) fn sge(&self, at: usize, len: usize) -> Sge {
        Sge { addr: self.buf.addr() + at as u64, len: len as u32, lkey: self.keys.lkey }
    }
    pub(crate) fn remote(&self, at: usize) -> Remote {
        Remote { addr: self.buf.addr() + at as u64, rkey: self.keys.rkey }
    }
    /// No key at all.
    pub(crate) fn nowhere(&self) -> Remote {
        Remote { addr: self.buf.addr(), rkey: RKey(self.keys.rkey.0 ^ 0x5555) }
    }
    pub(crate) fn word(&self, at: usize) -> u64 {
        u64::from_ne_bytes(self.buf.read(at, 8).try_into().unwrap())
    }
}

/// A receive side alone.
pub(crate) struct Responder {
    pub(crate) side: RecvSide,
    pub(crate) mem: Memory,
    pub(crate) cq: Arc<Cq>,
    pub(crate) now: Instant,
    pub(crate) events: Vec<AsyncEvent>,
    pub(crate) failures: Vec<Failure>,
    pub(crate) fatal: bool,
}

impl Responder {
    pub(crate) fn rc() -> Self {
        Self::new(QpType::Rc, |_| {})
    }

    pub(crate) fn new(kind: QpType, change: impl FnOnce(&mut Acceptance)) -> Self {
        let cq = Arc::new(Cq::new(1, 1024, None));
        let mut accept = Acceptance {
            path: (kind != QpType::Ud).then(path),
            dest_qpn: THEIRS,
            mtu: Mtu::B256,
            qkey: QKey(0x1234),
            access: ALL_ACCESS,
            max_dest_rd_atomic: 4,
            min_rnr_timer: 12,
        };
        change(&mut accept);
        let mut side = RecvSide::new(kind, OURS, PD, CAPS, cq.clone(), None);
        side.set_state(QpState::Init);
        side.listen(accept, Psn::new(FIRST_PSN));
        side.set_state(QpState::Rtr);
        side.set_state(QpState::Rts);
        Self {
            side,
            mem: Memory::new(ALL_ACCESS),
            cq,
            now: Instant::ZERO,
            events: Vec::new(),
            failures: Vec::new(),
            fatal: false,
        }
    }

    pub(crate) fn post(&mut self, id: u64, sges: &[Sge]) {
        self.side.post(&RecvWr { id, sges }).unwrap();
    }

    pub(crate) fn hears(&mut self, packet: &Seen) {
        let source = Source {
            src: address(2),
            dst: IpAddr::from([10, 0, 0, 1]),
            traffic_class: 0,
            hop_limit: 64,
            udp_len: packet.payload.len() + 12,
        };
        let mut notices = Notices::default();
        let Seen { headers, payload, .. } = packet;
        self.side.handle_request(self.now, headers, payload, &source, &self.mem.table, &mut notices);
        self.note(notices);
    }

    fn note(&mut self, notices: Notices) {
        self.events.extend(notices.events);
        self.failures.extend(notices.failures);
        self.fatal |= notices.fatal;
        if notices.fatal {
            self.side.set_state(QpState::Err);
        }
    }

    /// What it sends now.
    pub(crate) fn sends(&mut self) -> Vec<Seen> {
        let mut out = Vec::new();
        loop {
            let mut batch = TxBatch::new();
            let mut notices = Notices::default();
            let progress = self.side.poll_transmit(self.now, &self.mem.table, &mut batch, &mut notices);
            out.extend(drain(&batch));
            self.side.handle_sent(batch.packets());
            self.note(notices);
            if progress == Progress::Wait {
                return out;
            }
        }
    }

    /// One request in; the replies.
    pub(crate) fn answer(&mut self, packet: &Seen) -> Vec<String> {
        self.hears(packet);
        lines(&self.sends())
    }

    pub(crate) fn completions(&mut self) -> Vec<Wc> {
        self.side.deliver();
        poll(&self.cq)
    }
}

/// A send side alone.
pub(crate) struct Requester {
    pub(crate) side: SendSide,
    pub(crate) mem: Memory,
    pub(crate) cq: Arc<Cq>,
    pub(crate) window: Arc<Window>,
    pub(crate) now: Instant,
    pub(crate) failures: Vec<Failure>,
    pub(crate) fatal: bool,
}

impl Requester {
    pub(crate) fn rc() -> Self {
        Self::new(QpType::Rc, |_| {})
    }

    pub(crate) fn new(kind: QpType, change: impl FnOnce(&mut Connection)) -> Self {
        let cq = Arc::new(Cq::new(1, 4096, None));
        let window = Arc::new(Window::new(1 << 20));
        let mut conn = Connection {
            path: (kind != QpType::Ud).then(path),
            window: window.clone(),
            dest_qpn: THEIRS,
            mtu: Mtu::B256,
            qkey: QKey(0x1234),
            max_rd_atomic: 4,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
        };
        change(&mut conn);
        let mut side = SendSide::new(kind, OURS, PD, CAPS, true, cq.clone());
        side.set_state(QpState::Init, false);
        side.connect(conn);
        side.set_state(QpState::Rtr, false);
        side.start(Psn::new(FIRST_PSN));
        side.set_state(QpState::Rts, false);
        Self {
            side,
            mem: Memory::new(ALL_ACCESS),
            cq,
            window,
            now: Instant::ZERO,
            failures: Vec::new(),
            fatal: false,
        }
    }

    pub(crate) fn post(&mut self, id: u64, op: SendOp, sges: &[Sge]) {
        self.post_with(id, op, SendFlags::default(), sges);
    }
    pub(crate) fn post_with(&mut self, id: u64, op: SendOp, flags: SendFlags, sges: &[Sge]) {
        self.side.post(&SendWr { id, op, flags, sges, ud: None }).unwrap();
    }
    pub(crate) fn post_to(&mut self, id: u64, qkey: u32, sges: &[Sge]) {
        let ud = Some(UdDest { path: path(), qpn: THEIRS, qkey: QKey(qkey) });
        let flags = SendFlags::default();
        self.side.post(&SendWr { id, op: SendOp::Send, flags, sges, ud }).unwrap();
    }

    fn note(&mut self, notices: Notices) {
        self.failures.extend(notices.failures);
        self.fatal |= notices.fatal;
    }

    /// Sends what it wants to send now.
    pub(crate) fn sends(&mut self) -> Vec<Seen> {
        self.sends_at_most(usize::MAX)
    }

    /// The same, but the system takes only so many packets.
    pub(crate) fn sends_at_most(&mut self, room: usize) -> Vec<Seen> {
        let mut out = Vec::new();
        loop {
            let mut batch = TxBatch::new();
            let mut notices = Notices::default();
            let progress = self.side.poll_transmit(self.now, &self.mem.table, &mut batch, &mut notices);
            let mut packets = drain(&batch);
            packets.truncate(room - out.len().min(room));
            self.side.handle_sent(packets.len(), batch.tags(), &mut notices);
            self.note(notices);
            let blocked = packets.len() < batch.packets();
            out.extend(packets);
            if progress == Progress::Wait || blocked {
                return out;
            }
        }
    }

    /// The same as lines.
    pub(crate) fn says(&mut self) -> Vec<String> {
        lines(&self.sends())
    }

    pub(crate) fn hears(&mut self, packet: &Seen) {
        let mut notices = Notices::default();
        let Seen { headers, payload, .. } = packet;
        self.side.handle_response(self.now, headers, payload, &self.mem.table, &mut notices);
        self.note(notices);
    }

    /// Lets time pass up to an instant, as a device does.
    pub(crate) fn wait_until(&mut self, at: u64) {
        self.now = Instant(at);
        let mut notices = Notices::default();
        if self.side.deadline() <= self.now {
            self.side.handle_timeout(self.now, &mut notices);
        }
        self.note(notices);
    }

    pub(crate) fn completions(&mut self) -> Vec<Wc> {
        self.side.deliver();
        poll(&self.cq)
    }

    /// Completions as `(id, status)`.
    pub(crate) fn done(&mut self) -> Vec<(u64, WcStatus)> {
        self.completions().iter().map(|wc| (wc.id, wc.status)).collect()
    }
}
