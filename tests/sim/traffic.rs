//! Random traffic over RC with every byte checked against a model, on any fabric.
//!
//! Each end of each connection posts a random sequence of SENDs, RDMA WRITEs (with and without immediate data), READs
//! and atomics, of random sizes and scattered at random. The model executes the same sequence on a copy of the peer's
//! memory. Receives are posted early, just in time, or too late (then the sender hears RNR), as the dice say.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;

use urxe::cq::Cq;
use urxe::device::{Device, QpInit, QueuePair};
use urxe::ids::{LKey, Mtu};
use urxe::mem::{Access, PdId, Registered};
use urxe::verbs::{
    QpCaps, QpType, RecvWr, Remote, SendFlags, SendOp, SendWr, Sge, Wc, WcOpcode, WcStatus, limits,
};

use crate::harness::{ALL_ACCESS, Buf, MS, Rng, US, Wiring, World, connect, poll};

/// What carries the traffic.
pub(crate) trait Fabric {
    fn device(&self, end: usize) -> &Device;
    /// Memory to be registered.
    fn buffer(&self, len: usize) -> Buf {
        Buf::new(len)
    }
    /// What is registered allows this.
    fn access(&self) -> Access {
        ALL_ACCESS
    }
    /// Lets something happen.
    fn progress(&mut self);
    /// Fails if it takes too long; `state` says what is missing.
    fn check_time(&self, state: &dyn Fn() -> String);
}

/// Two devices with sockets, polled by this thread. Not every test that moves traffic has them.
#[allow(dead_code)]
pub(crate) struct Sockets {
    pub(crate) devices: [Device; 2],
    pub(crate) end: std::time::Instant,
}

impl Fabric for Sockets {
    fn device(&self, end: usize) -> &Device {
        &self.devices[end]
    }
    fn progress(&mut self) {
        for device in &self.devices {
            device.poll();
        }
    }
    fn check_time(&self, state: &dyn Fn() -> String) {
        let counters = || self.devices.each_ref().map(Device::counters);
        assert!(std::time::Instant::now() < self.end, "stalled:\n{}{:?}", state(), counters());
    }
}

/// Two simulated devices, with a limit to the time that may pass.
#[allow(dead_code)]
pub(crate) struct Simulated {
    pub(crate) world: World,
    /// For how far time jumps.
    pub(crate) rng: Rng,
    pub(crate) end: urxe::time::Instant,
}

impl Fabric for Simulated {
    fn device(&self, end: usize) -> &Device {
        &self.world.devices[end]
    }
    fn progress(&mut self) {
        let slack = if self.rng.percent(50) { 0 } else { self.rng.below(20 * US) };
        if !self.world.step(slack) {
            // Only we can make something happen.
            self.world.advance_to(self.world.now().plus(MS));
        }
    }
    fn check_time(&self, state: &dyn Fn() -> String) {
        assert!(self.world.now() < self.end, "stalled in virtual time:\n{}", state());
    }
}

/// How much traffic, and of what kind.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// Of all ends together.
    pub(crate) messages: usize,
    pub(crate) connections: usize,
    pub(crate) max_len: u32,
    /// How often in a hundred a message is larger than a few packets.
    pub(crate) large_percent: u64,
}

/// What was moved.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Totals {
    pub(crate) messages: usize,
    pub(crate) bytes: u64,
    pub(crate) by_kind: [usize; 7],
}

const SLOT_EXTRA: usize = 64;
const SLOTS: usize = 20;
const SOURCE: usize = 4 << 20;

/// Memory for receives and READs, a slot each.
struct Arena {
    buf: Buf,
    keys: Registered,
    slot: usize,
    free: Vec<usize>,
}

/// A request's local memory: pieces of a slot, in the order in which the message fills them.
struct Place {
    slot: usize,
    start: usize,
    room: usize,
    pieces: Vec<(usize, usize)>,
}

impl Arena {
    fn new(fabric: &dyn Fabric, end: usize, pd: PdId, max_len: u32) -> Self {
        let slot = max_len as usize + SLOT_EXTRA;
        let buf = fabric.buffer(slot * SLOTS);
        let keys = buf.register(fabric.device(end), pd, fabric.access());
        Self { buf, keys, slot, free: (0..SLOTS).collect() }
    }

    fn poison(at: usize) -> u8 {
        (at as u8).wrapping_mul(31) ^ 0xa5
    }

    /// Room for `room` bytes, filled with poison.
    fn take(&mut self, rng: &mut Rng, room: usize) -> Option<Place> {
        let slot = self.free.pop()?;
        let start = slot * self.slot + rng.below(16) as usize;
        let mut at = start;
        let mut pieces: Vec<(usize, usize)> = split(rng, room)
            .into_iter()
            .map(|len| {
                at += len;
                (at - len, len)
            })
            .collect();
        if rng.percent(50) {
            shuffle(rng, &mut pieces);
        }
        let poison: Vec<u8> = (start..start + room).map(Self::poison).collect();
        self.buf.write(start, &poison);
        Some(Place { slot, start, room, pieces })
    }

    fn sges(&self, rng: &mut Rng, place: &Place) -> Vec<Sge> {
        let base = self.buf.addr();
        place.pieces.iter().map(|&(at, len)| sge(rng, base + at as u64, len, self.keys.lkey)).collect()
    }

    /// Checks that a message is where it should be and that nothing else changed.
    #[track_caller]
    fn check(&mut self, place: Place, message: &[u8], what: &str) {
        let mut want: Vec<u8> = (place.start..place.start + place.room).map(Self::poison).collect();
        let mut rest = message;
        for (at, len) in place.pieces {
            let (now, later) = rest.split_at(len.min(rest.len()));
            want[at - place.start..at - place.start + now.len()].copy_from_slice(now);
            rest = later;
        }
        assert!(rest.is_empty());
        let have = self.buf.read(place.start, place.room);
        assert_same(&have, &want, what);
        self.free.push(place.slot);
    }
}

#[track_caller]
fn assert_same(have: &[u8], want: &[u8], what: &str) {
    if have != want {
        let at = have.iter().zip(want).position(|(a, b)| a != b).unwrap_or(have.len().min(want.len()));
        let wrong = have.iter().zip(want).filter(|(a, b)| a != b).count();
        panic!("{what}: {wrong} of {} bytes are wrong, the first at {at}", want.len());
    }
}

/// Cuts `len` into 1 to 32 parts, some of them empty.
fn split(rng: &mut Rng, len: usize) -> Vec<usize> {
    let parts = match rng.below(4) {
        0 | 1 => 1,
        2 => 1 + rng.below(4) as usize,
        _ => 1 + rng.below(u64::from(limits::MAX_SGE)) as usize,
    };
    let mut cuts: Vec<usize> = (1..parts).map(|_| rng.below(len as u64 + 1) as usize).collect();
    cuts.sort_unstable();
    cuts.push(len);
    let mut last = 0;
    cuts.into_iter().map(|c| c - std::mem::replace(&mut last, c)).collect()
}

fn shuffle<T>(rng: &mut Rng, items: &mut [T]) {
    for i in (1..items.len()).rev() {
        items.swap(i, rng.below(i as u64 + 1) as usize);
    }
}

/// An element; an empty one may say anything.
fn sge(rng: &mut Rng, addr: u64, len: usize, lkey: LKey) -> Sge {
    if len == 0 && rng.percent(50) {
        return Sge { addr: rng.next(), len: 0, lkey: LKey(rng.next() as u32) };
    }
    Sge { addr, len: len as u32, lkey }
}

/// A message that takes a receive.
struct Expected {
    opcode: WcOpcode,
    len: u32,
    immediate: Option<[u8; 4]>,
    /// What the receive gets; a WRITE puts its data elsewhere.
    data: Vec<u8>,
    solicited: bool,
}

/// What is known of a posted request.
struct Posted {
    id: u64,
    signaled: bool,
    opcode: WcOpcode,
    len: u32,
    /// The remote range that it reads, if it does.
    reads: Option<(usize, usize)>,
    /// Where the answer goes, and what it should be.
    answer: Option<(Place, Vec<u8>)>,
}

/// One end of a connection.
struct Flow {
    device: usize,
    peer: usize,
    qp: QueuePair,
    mtu: u32,
    source: usize,
    remote: Remote,
    /// What the peer writes to and reads from.
    region: Buf,
    region_keys: Registered,
    /// What the peer's region should hold when all that we posted is done.
    model: Vec<u8>,
    arena: Arena,
    left: usize,
    until_barrier: u64,
    posted: VecDeque<Posted>,
    next_id: u64,
    /// Requests of ours that are decided but not posted.
    planned: VecDeque<Planned>,
    /// Messages of the peer for which no receive is posted.
    awaited: VecDeque<Expected>,
    /// Messages of the peer, and the receives for them.
    receives: VecDeque<(u64, Place, Expected)>,
}

/// A request that is decided.
struct Planned {
    op: SendOp,
    flags: SendFlags,
    sges: Vec<Sge>,
    posted: Posted,
}

struct Traffic<'a> {
    fabric: &'a mut dyn Fabric,
    rng: Rng,
    plan: &'a Plan,
    flows: Vec<Flow>,
    cqs: [Arc<Cq>; 2],
    /// For each device: random bytes that messages are made of.
    sources: [(Buf, Registered, Vec<u8>); 2],
    /// For each device: inline data, overwritten as soon as it is posted.
    scratch: [Buf; 2],
    totals: Totals,
}

/// Runs the traffic of a plan to its end.
pub(crate) fn exchange(fabric: &mut dyn Fabric, seed: u64, plan: &Plan) -> Totals {
    let mut rng = Rng(seed ^ 0x7261_6666_6963);
    let caps = QpCaps {
        max_send_wr: 24,
        max_recv_wr: 24,
        max_send_sge: limits::MAX_SGE,
        max_recv_sge: limits::MAX_SGE,
        max_inline_data: limits::MAX_INLINE,
    };
    let ips: [IpAddr; 2] = [0, 1].map(|end| fabric.device(end).port().ip);
    let pds = [0, 1].map(|end| fabric.device(end).alloc_pd());
    let cqs = [0, 1].map(|end| fabric.device(end).create_cq(plan.connections as u32 * 48, None));
    let sources = [0, 1].map(|end| {
        let bytes = rng.bytes(SOURCE);
        let buf = fabric.buffer(SOURCE);
        buf.write(0, &bytes);
        let keys = buf.register(fabric.device(end), pds[end], fabric.access());
        (buf, keys, bytes)
    });

    let mut flows: Vec<Flow> = Vec::new();
    for connection in 0..plan.connections {
        let wiring = Wiring {
            mtu: Mtu::ALL[(connection + rng.below(2) as usize) % Mtu::ALL.len()],
            // Most wrap soon.
            psn: if rng.percent(75) { 0xff_ffff - rng.below(2000) as u32 } else { rng.next() as u32 },
            min_rnr_timer: 1 + rng.below(12) as u8,
            max_rd_atomic: 1 + rng.below(16) as u8,
            ..Wiring::default()
        };
        let pair: Vec<QueuePair> = (0..2)
            .map(|end| {
                let cq = &cqs[end];
                fabric
                    .device(end)
                    .create_qp(QpInit {
                        kind: QpType::Rc,
                        pd: pds[end],
                        send_cq: cq.clone(),
                        recv_cq: cq.clone(),
                        srq: None,
                        caps,
                        sig_all: false,
                        events: None,
                    })
                    .unwrap()
            })
            .collect();
        connect(&pair[0], (ips[1], &pair[1]), &wiring);
        connect(&pair[1], (ips[0], &pair[0]), &wiring);
        for (end, qp) in pair.into_iter().enumerate() {
            let region = fabric.buffer(plan.max_len as usize + 4096);
            let bytes = rng.bytes(region.len());
            region.write(0, &bytes);
            let device = fabric.device(end);
            let region_keys = region.register(device, pds[end], fabric.access());
            flows.push(Flow {
                device: end,
                peer: 2 * connection + (1 - end),
                qp,
                mtu: wiring.mtu.bytes(),
                source: end,
                remote: Remote::default(),
                region,
                region_keys,
                model: Vec::new(),
                arena: Arena::new(fabric, end, pds[end], plan.max_len),
                left: plan.messages / (2 * plan.connections),
                until_barrier: 50,
                posted: VecDeque::new(),
                next_id: 1,
                planned: VecDeque::new(),
                awaited: VecDeque::new(),
                receives: VecDeque::new(),
            });
        }
    }
    for i in 0..flows.len() {
        let peer = &flows[flows[i].peer];
        let remote = Remote { addr: peer.region.addr(), rkey: peer.region_keys.rkey };
        let model = peer.region.read(0, peer.region.len());
        flows[i].remote = remote;
        flows[i].model = model;
    }
    let scratch = [0, 1].map(|_| Buf::new(limits::MAX_INLINE as usize));
    let totals = Totals::default();
    let mut traffic = Traffic { fabric, rng, plan, flows, cqs, sources, scratch, totals };
    traffic.run();
    traffic.totals
}

impl Traffic<'_> {
    fn run(&mut self) {
        loop {
            let mut open = false;
            for i in 0..self.flows.len() {
                self.plan_some(i);
                self.post_receives(i);
                self.post_sends(i);
                open |= !self.is_done(i);
            }
            self.poll();
            if !open {
                break;
            }
            self.fabric.progress();
            self.poll();
            let flows = &self.flows;
            self.fabric.check_time(&|| flows.iter().map(describe).collect());
        }
        for i in 0..self.flows.len() {
            self.compare(i);
        }
    }

    fn is_done(&self, i: usize) -> bool {
        let f = &self.flows[i];
        f.left == 0
            && f.posted.is_empty()
            && f.planned.is_empty()
            && f.awaited.is_empty()
            && f.receives.is_empty()
    }

    /// The peer's memory against the model, when nothing is under way.
    fn compare(&self, i: usize) {
        let f = &self.flows[i];
        let peer = &self.flows[f.peer];
        let have = peer.region.read(0, peer.region.len());
        assert_same(&have, &f.model, &format!("memory that queue pair {} writes to", f.qp.number()));
    }

    fn size(&mut self, mtu: u32) -> u32 {
        let rng = &mut self.rng;
        let large = rng.percent(self.plan.large_percent);
        let len = match rng.below(10) {
            _ if large && rng.percent(30) => rng.below(u64::from(self.plan.max_len) + 1),
            _ if large => rng.below(65_537),
            0 => 0,
            1 | 2 => rng.below(65),
            3 | 4 => rng.below(2048),
            // Around multiples of a packet.
            5..=7 => (u64::from(mtu) * rng.below(6) + rng.below(5)).saturating_sub(2),
            8 => rng.below(u64::from(mtu) + 1),
            _ => rng.below(10_000),
        };
        len.min(u64::from(self.plan.max_len)) as u32
    }

    /// Decides on requests, a few ahead of posting them.
    fn plan_some(&mut self, i: usize) {
        while self.flows[i].planned.len() < 6 && self.flows[i].left > 0 && self.rng.percent(70) {
            if self.flows[i].until_barrier == 0 {
                let f = &self.flows[i];
                if !f.posted.is_empty() || !f.planned.is_empty() {
                    return;
                }
                self.compare(i);
                self.flows[i].until_barrier = 20 + self.rng.below(200);
            }
            if !self.plan_one(i) {
                return;
            }
            let f = &mut self.flows[i];
            f.left -= 1;
            f.until_barrier -= 1;
        }
    }

    /// False if there is no memory for it now.
    fn plan_one(&mut self, i: usize) -> bool {
        let kind = match self.rng.below(20) {
            0..=3 => 0,
            4..=5 => 1,
            6..=9 => 2,
            10..=11 => 3,
            12..=15 => 4,
            16..=17 => 5,
            _ => 6,
        };
        let len = if kind >= 5 { 8 } else { self.size(self.flows[i].mtu) };
        let f = &mut self.flows[i];
        let rng = &mut self.rng;
        let immediate = (rng.next() as u32).to_ne_bytes();
        let mut flags = SendFlags::default();
        let signaled = rng.percent(60) || f.left == 1 || f.until_barrier == 1 || f.next_id.is_multiple_of(8);
        if signaled {
            flags = flags.with(SendFlags::SIGNALED);
        }
        if rng.percent(5) {
            flags = flags.with(SendFlags::FENCE);
        }
        let solicited = rng.percent(20);
        if solicited {
            flags = flags.with(SendFlags::SOLICITED);
        }

        // The remote range of one-sided operations.
        let room = f.model.len() - len as usize;
        let mut at = rng.below(room as u64 + 1) as usize;
        if kind >= 5 {
            at &= !7;
        }
        let range = (at, at + len as usize);
        let remote = Remote { addr: f.remote.addr + at as u64, rkey: f.remote.rkey };
        // A request that changes what an earlier READ may still be reading waits for it (IBA 10.8.3.3).
        let overlaps = f
            .posted
            .iter()
            .map(|p| &p.reads)
            .chain(f.planned.iter().map(|p| &p.posted.reads))
            .flatten()
            .any(|r| r.0 < range.1 && range.0 < r.1);
        if overlaps && matches!(kind, 2 | 3 | 5 | 6) {
            flags = flags.with(SendFlags::FENCE);
        }

        let (source, keys, bytes) = &self.sources[f.source];
        let (mut sges, mut data) = (Vec::new(), Vec::new());
        let mut answer = None;
        if kind < 4 {
            data.reserve(len as usize);
            for part in split(rng, len as usize) {
                let from = rng.below((SOURCE - part) as u64 + 1) as usize;
                data.extend_from_slice(&bytes[from..from + part]);
                sges.push(sge(rng, source.addr() + from as u64, part, keys.lkey));
            }
            if len <= limits::MAX_INLINE && rng.percent(30) {
                flags = flags.with(SendFlags::INLINE);
            }
        } else {
            let Some(place) = f.arena.take(rng, len as usize) else { return false };
            sges = f.arena.sges(rng, &place);
            answer = Some((place, f.model[range.0..range.1].to_vec()));
        }
        let word = match kind {
            5.. => u64::from_ne_bytes(f.model[range.0..range.1].try_into().unwrap()),
            _ => 0,
        };
        let (op, opcode) = match kind {
            0 => (SendOp::Send, WcOpcode::Send),
            1 => (SendOp::SendImm(immediate), WcOpcode::Send),
            2 => (SendOp::Write(remote), WcOpcode::RdmaWrite),
            3 => (SendOp::WriteImm(remote, immediate), WcOpcode::RdmaWrite),
            4 => (SendOp::Read(remote), WcOpcode::RdmaRead),
            5 => {
                let compare = if rng.percent(60) { word } else { rng.next() };
                (SendOp::CompareSwap { remote, compare, swap: rng.next() }, WcOpcode::CompSwap)
            }
            _ => (SendOp::FetchAdd { remote, add: rng.next() }, WcOpcode::FetchAdd),
        };
        match op {
            SendOp::Write(_) | SendOp::WriteImm(..) => f.model[range.0..range.1].copy_from_slice(&data),
            SendOp::CompareSwap { compare, swap, .. } if compare == word => {
                f.model[range.0..range.1].copy_from_slice(&swap.to_ne_bytes());
            }
            SendOp::FetchAdd { add, .. } => {
                f.model[range.0..range.1].copy_from_slice(&word.wrapping_add(add).to_ne_bytes());
            }
            _ => {}
        }
        let reads = matches!(op, SendOp::Read(_)).then_some(range);
        let id = f.next_id;
        f.next_id += 1;
        let posted = Posted { id, signaled, opcode, len, reads, answer };
        f.planned.push_back(Planned { op, flags, sges, posted });
        let peer = f.peer;
        let expected = match kind {
            0 | 1 => Some((WcOpcode::Recv, (kind == 1).then_some(immediate), data)),
            3 => Some((WcOpcode::RecvRdmaWithImm, Some(immediate), Vec::new())),
            _ => None,
        };
        if let Some((opcode, immediate, data)) = expected {
            let expected = Expected { opcode, len, immediate, data, solicited };
            self.flows[peer].awaited.push_back(expected);
        }
        self.totals.messages += 1;
        self.totals.bytes += u64::from(len);
        self.totals.by_kind[kind] += 1;
        true
    }

    fn post_receives(&mut self, i: usize) {
        let rng = &mut self.rng;
        let f = &mut self.flows[i];
        while !f.awaited.is_empty() && f.receives.len() < SLOTS / 2 && rng.percent(50) {
            let want = f.awaited.front().map_or(0, |e| e.data.len());
            let room = want + if rng.percent(50) { 0 } else { rng.below(SLOT_EXTRA as u64 - 16) as usize };
            let Some(place) = f.arena.take(rng, room) else { return };
            let Some(expected) = f.awaited.pop_front() else { return };
            let id = f.next_id << 32;
            f.next_id += 1;
            let sges = f.arena.sges(rng, &place);
            f.qp.post_recv(&RecvWr { id, sges: &sges }).unwrap();
            f.receives.push_back((id, place, expected));
        }
    }

    fn post_sends(&mut self, i: usize) {
        let scratch = &self.scratch[self.flows[i].device];
        let source = &self.sources[self.flows[i].source].0;
        let f = &mut self.flows[i];
        while f.posted.len() < 20 && self.rng.percent(60) {
            let Some(Planned { op, flags, mut sges, posted }) = f.planned.pop_front() else { return };
            if flags.has(SendFlags::INLINE) {
                let mut used = 0;
                for s in &mut sges {
                    if s.len > 0 {
                        let from = (s.addr - source.addr()) as usize;
                        scratch.write(used, &source.read(from, s.len as usize));
                        *s = Sge { addr: scratch.addr() + used as u64, lkey: LKey(7), ..*s };
                        used += s.len as usize;
                    } else {
                        s.addr = scratch.addr();
                    }
                }
            }
            f.qp.post_send([SendWr { id: posted.id, op, flags, sges: &sges, ud: None }]).unwrap();
            if flags.has(SendFlags::INLINE) {
                // Inline data is the program's again at once (ibv_post_send(3)).
                scratch.write(0, &[0xee; limits::MAX_INLINE as usize]);
            }
            f.posted.push_back(posted);
        }
    }

    fn poll(&mut self) {
        for end in 0..2 {
            for wc in poll(&self.cqs[end]) {
                self.completed(end, &wc);
            }
        }
    }

    fn completed(&mut self, end: usize, wc: &Wc) {
        assert_eq!(wc.status, WcStatus::Success, "{wc:?}");
        let f = self.flows.iter_mut().find(|f| f.device == end && f.qp.number() == wc.qpn);
        let f = f.unwrap_or_else(|| panic!("a completion of an unknown queue pair: {wc:?}"));
        if matches!(wc.opcode, WcOpcode::Recv | WcOpcode::RecvRdmaWithImm) {
            let (id, place, expected) =
                f.receives.pop_front().unwrap_or_else(|| panic!("a receive too many: {wc:?}"));
            assert_eq!(wc.id, id, "receives complete in the order in which they were posted");
            assert_eq!((wc.opcode, wc.byte_len), (expected.opcode, expected.len), "{wc:?}");
            assert_eq!((wc.immediate, wc.solicited), (expected.immediate, expected.solicited), "{wc:?}");
            let what = format!("receive {id:#x} of queue pair {}", wc.qpn);
            f.arena.check(place, &expected.data, &what);
            return;
        }
        loop {
            let posted = f
                .posted
                .pop_front()
                .unwrap_or_else(|| panic!("a completion of nothing that was posted: {wc:?}"));
            if let Some((place, data)) = posted.answer {
                let what = format!("answer to request {} of queue pair {}", posted.id, wc.qpn);
                f.arena.check(place, &data, &what);
            }
            if posted.id == wc.id {
                assert!(posted.signaled, "a completion that was not asked for: {wc:?}");
                assert_eq!((wc.opcode, wc.byte_len), (posted.opcode, posted.len), "{wc:?}");
                return;
            }
            assert!(!posted.signaled, "request {} was left out before {wc:?}", posted.id);
        }
    }
}

fn describe(f: &Flow) -> String {
    format!(
        "queue pair {} of device {}, MTU {}: {} to plan, {} planned, {} posted (first {:?}), {} receives posted, {} awaited\n",
        f.qp.number(),
        f.device,
        f.mtu,
        f.left,
        f.planned.len(),
        f.posted.len(),
        f.posted.front().map(|p| (p.id, p.opcode, p.len)),
        f.receives.len(),
        f.awaited.len()
    )
}
