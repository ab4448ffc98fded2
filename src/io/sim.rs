//! An in-memory network with virtual time, for tests.
//!
//! Nothing happens by itself: packets wait until [`SimNet::advance_to`] moves the time past their arrival. The same
//! seed and the same calls give the same trace.
//!
//! ```
//! use urxe::io::{impair::Impairments, sim::SimNet, Link, RxBatch};
//!
//! let net = SimNet::new(7, Impairments { loss: 0.05, ..Impairments::default() });
//! let (a, b) = (net.link("10.0.0.1:4791".parse().unwrap()), net.link("10.0.0.2:4791".parse().unwrap()));
//! // a.send(&batch), then until both are idle:
//! while let Some(at) = net.next_event() {
//!     net.advance_to(at);
//!     let mut rx = RxBatch::new(8);
//!     while b.recv(&mut rx).unwrap() > 0 { /* hand it to the engine */ }
//! }
//! # drop(a);
//! ```

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;
use std::sync::Arc;

use parking_lot::Mutex;

use super::impair::{Dice, Impairments, PACKET_HEADERS, spoil};
use super::{Backlog, Counters, Limits, Link, Meta, Runs, RxBatch, SendOutcome, Why, split};
use crate::time::Instant;
use crate::wire::batch::IpId;

/// What a packet takes at least, in ns.
const LEAST_DELAY: u64 = 1000;

/// The network.
pub struct SimNet {
    state: Mutex<State>,
}

struct State {
    now: Instant,
    dice: Dice,
    everywhere: Impairments,
    /// One direction only, from and to.
    between: HashMap<(IpAddr, IpAddr), Impairments>,
    directions: HashMap<(IpAddr, IpAddr), Direction>,
    /// By arrival, then in the order in which they were sent.
    flying: BTreeMap<(Instant, u64), Flying>,
    sequence: u64,
    links: HashMap<SocketAddr, Arc<Inbox>>,
    /// Who is in a group, in the order of joining.
    groups: HashMap<IpAddr, Vec<SocketAddr>>,
    trace: VecDeque<Traced>,
    trace_limit: usize,
}

/// What a direction remembers.
#[derive(Default)]
struct Direction {
    /// The rate limit is busy until then.
    busy: Instant,
    /// Later packets do not arrive before that, unless reordered.
    last_arrival: Instant,
}

struct Flying {
    meta: Meta,
    to: SocketAddr,
    bytes: Vec<u8>,
}

/// What waits at one address.
struct Inbox {
    local: SocketAddr,
    counters: Counters,
    queue: Mutex<Queue>,
}

struct Queue {
    datagrams: VecDeque<(Meta, Vec<u8>)>,
    bytes: usize,
    limit: usize,
    /// Packets that may still be sent before the link says that it is full.
    send_room: Option<usize>,
}

/// What became of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// It was sent; it arrives then.
    Sent(Instant),
    /// As `Sent`, and later ones may overtake it.
    Reordered(Instant),
    /// As `Sent`, with a wrong bit.
    Corrupted(Instant),
    /// As `Sent`, a second time.
    Duplicated(Instant),
    /// It got lost.
    Lost,
    /// It arrived.
    Arrived,
    /// It arrived at a full queue.
    Overflowed,
    /// Nobody has the address.
    Unreachable,
}

/// One line of the trace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Traced {
    /// When.
    pub at: Instant,
    /// Who sent it.
    pub src: SocketAddr,
    /// Where it went.
    pub dst: SocketAddr,
    /// What happened.
    pub event: Event,
    /// Bytes of the UDP payload.
    pub len: usize,
    /// The BTH (IBA 9.2), or what there is of it.
    pub bth: [u8; 12],
}

impl fmt::Display for Traced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let b = &self.bth;
        let number = |at: usize| u32::from_be_bytes([0, b[at], b[at + 1], b[at + 2]]);
        let Self { at, src, dst, event, len, .. } = self;
        write!(
            f,
            "{:>12.3} us {src} -> {dst} opcode {:#04x} qp {:#08x} psn {:#08x} {len} bytes: ",
            at.0 as f64 / 1000.0,
            b[0],
            number(5),
            number(9)
        )?;
        match event {
            Event::Sent(t) => write!(f, "sent, arrives at {:.3}", t.0 as f64 / 1000.0),
            Event::Reordered(t) => write!(f, "reordered, arrives at {:.3}", t.0 as f64 / 1000.0),
            Event::Corrupted(t) => write!(f, "corrupted, arrives at {:.3}", t.0 as f64 / 1000.0),
            Event::Duplicated(t) => write!(f, "duplicated, arrives at {:.3}", t.0 as f64 / 1000.0),
            Event::Lost => f.write_str("lost"),
            Event::Arrived => f.write_str("arrived"),
            Event::Overflowed => f.write_str("dropped at a full queue"),
            Event::Unreachable => f.write_str("nobody there"),
        }
    }
}

impl SimNet {
    /// Lines of the trace that are kept, if nothing else is set.
    pub const TRACE_LINES: usize = 10_000;
    /// Bytes that wait at an address, if nothing else is set.
    pub const QUEUE_BYTES: usize = 4 << 20;

    /// A network where all directions have these impairments.
    pub fn new(seed: u64, everywhere: Impairments) -> Arc<Self> {
        let state = State {
            now: Instant::ZERO,
            dice: Dice::new(seed),
            everywhere,
            between: HashMap::new(),
            directions: HashMap::new(),
            flying: BTreeMap::new(),
            sequence: 0,
            links: HashMap::new(),
            groups: HashMap::new(),
            trace: VecDeque::new(),
            trace_limit: Self::TRACE_LINES,
        };
        Arc::new(Self { state: Mutex::new(state) })
    }

    /// Sets the impairments of one direction.
    pub fn impair(&self, from: IpAddr, to: IpAddr, impairments: Impairments) {
        self.state.lock().between.insert((from, to), impairments);
    }

    /// Sets the impairments of all directions that have none of their own.
    pub fn impair_all(&self, impairments: Impairments) {
        self.state.lock().everywhere = impairments;
    }

    /// The link at an address. A second one at the same address takes the first one's place.
    pub fn link(self: &Arc<Self>, local: SocketAddr) -> Arc<SimLink> {
        let queue = Queue { datagrams: VecDeque::new(), bytes: 0, limit: Self::QUEUE_BYTES, send_room: None };
        let inbox = Arc::new(Inbox { local, counters: Counters::default(), queue: Mutex::new(queue) });
        self.state.lock().links.insert(local, inbox.clone());
        Arc::new(SimLink { net: self.clone(), inbox })
    }

    /// The time.
    pub fn now(&self) -> Instant {
        self.state.lock().now
    }

    /// When the next packet arrives.
    pub fn next_event(&self) -> Option<Instant> {
        self.state.lock().flying.keys().next().map(|&(at, _)| at)
    }

    /// Moves the time, and with it the packets that arrive until then. Time does not run backwards.
    pub fn advance_to(&self, now: Instant) {
        let state = &mut *self.state.lock();
        state.now = state.now.max(now);
        while let Some(entry) = state.flying.first_entry()
            && entry.key().0 <= state.now
        {
            let ((at, _), Flying { meta, to, bytes }) = entry.remove_entry();
            let event = match state.links.get(&to) {
                Some(inbox) => inbox.accept(meta, &bytes),
                None => Event::Unreachable,
            };
            state.note(at, meta.src, to, event, &bytes);
        }
    }

    /// Keeps that many lines of the trace.
    pub fn keep_trace(&self, lines: usize) {
        self.state.lock().trace_limit = lines;
    }

    /// What happened, oldest first.
    pub fn trace(&self) -> Vec<Traced> {
        self.state.lock().trace.iter().cloned().collect()
    }

    /// The last lines of the trace as text, for the message of a failed test.
    pub fn tail(&self, lines: usize) -> String {
        let state = self.state.lock();
        let skip = state.trace.len().saturating_sub(lines);
        state.trace.iter().skip(skip).map(|line| format!("{line}\n")).collect()
    }
}

impl State {
    fn note(&mut self, at: Instant, src: SocketAddr, dst: SocketAddr, event: Event, bytes: &[u8]) {
        if self.trace_limit == 0 {
            return;
        }
        while self.trace.len() >= self.trace_limit {
            self.trace.pop_front();
        }
        let mut bth = [0; 12];
        let head = bytes.len().min(bth.len());
        bth[..head].copy_from_slice(&bytes[..head]);
        self.trace.push_back(Traced { at, src, dst, event, len: bytes.len(), bth });
    }

    fn send(&mut self, meta: Meta, to: SocketAddr, bytes: &[u8]) {
        if !to.ip().is_multicast() {
            return self.send_to(meta, to, bytes);
        }
        match self.groups.get(&to.ip()).cloned() {
            Some(members) => members.into_iter().for_each(|member| self.send_to(meta, member, bytes)),
            None => self.note(self.now, meta.src, to, Event::Unreachable, bytes),
        }
    }

    /// One packet to one link; `meta` has the address that it was sent to.
    fn send_to(&mut self, meta: Meta, to: SocketAddr, bytes: &[u8]) {
        let direction = (meta.src.ip(), to.ip());
        let impairments = *self.between.get(&direction).unwrap_or(&self.everywhere);
        let fate = self.dice.fate(&impairments);
        let now = self.now;
        if fate.lost {
            return self.note(now, meta.src, to, Event::Lost, bytes);
        }
        let delay = self.dice.latency(impairments.delay).max(LEAST_DELAY);
        let Direction { busy, last_arrival } = self.directions.entry(direction).or_default();
        if let Some(rate) = impairments.rate {
            let wire_bytes = bytes.len() as u64 + PACKET_HEADERS;
            *busy = now.max(*busy).plus(wire_bytes.saturating_mul(1_000_000_000) / rate.max(1));
        }
        let leaves = now.max(*busy);
        let mut arrival = leaves.plus(delay).max(*last_arrival);
        if !fate.late {
            *last_arrival = arrival;
        } else {
            // Late by up to four times its delay, at least 10 µs.
            arrival = arrival.plus(self.dice.between((1000, (4 * delay).max(10_000))));
        }
        let mut bytes = bytes.to_vec();
        let mut event = if fate.late { Event::Reordered(arrival) } else { Event::Sent(arrival) };
        if let Some(bit) = fate.wrong_bit {
            spoil(&mut bytes, bit);
            event = Event::Corrupted(arrival);
        }
        self.note(now, meta.src, to, event, &bytes);
        if fate.twice {
            let again = arrival.plus(self.dice.between((0, delay)));
            self.note(now, meta.src, to, Event::Duplicated(again), &bytes);
            self.fly(again, Flying { meta, to, bytes: bytes.clone() });
        }
        self.fly(arrival, Flying { meta, to, bytes });
    }

    fn fly(&mut self, arrival: Instant, packet: Flying) {
        self.sequence += 1;
        self.flying.insert((arrival, self.sequence), packet);
    }
}

impl Inbox {
    fn accept(&self, meta: Meta, bytes: &[u8]) -> Event {
        let mut queue = self.queue.lock();
        if queue.bytes + bytes.len() > queue.limit {
            self.counters.rx_overflow.add(1);
            return Event::Overflowed;
        }
        queue.bytes += bytes.len();
        // As GRO does: packets of one sender and one length stay together, a shorter one ends them.
        let joins = queue.datagrams.back_mut().filter(|(last, all)| {
            let key = |m: &Meta| (m.src, m.dst, m.traffic_class);
            key(last) == key(&meta)
                && bytes.len() <= last.segment
                && all.len() % last.segment == 0
                && all.len() / last.segment < 64
                && all.len() + bytes.len() <= 65_507
        });
        match joins {
            Some((_, all)) => all.extend_from_slice(bytes),
            None => queue.datagrams.push_back((meta, bytes.to_vec())),
        }
        Event::Arrived
    }
}

/// A link of the simulated network.
pub struct SimLink {
    net: Arc<SimNet>,
    inbox: Arc<Inbox>,
}

impl SimLink {
    /// Bytes that may wait here; more are dropped.
    pub fn limit_queue(&self, bytes: usize) {
        self.inbox.queue.lock().limit = bytes;
    }

    /// Takes that many packets, then says that it is full until this is called again; `None` is no limit.
    pub fn set_send_room(&self, packets: Option<usize>) {
        self.inbox.queue.lock().send_room = packets;
    }
}

impl fmt::Debug for SimLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimLink").field("local", &self.inbox.local).finish_non_exhaustive()
    }
}

impl fmt::Debug for SimNet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.lock();
        f.debug_struct("SimNet")
            .field("now", &state.now)
            .field("flying", &state.flying.len())
            .finish_non_exhaustive()
    }
}

impl Link for SimLink {
    fn local(&self) -> SocketAddr {
        self.inbox.local
    }

    fn send_runs(&self, runs: Runs<'_>) -> SendOutcome {
        let mut room = self.inbox.queue.lock().send_room;
        let state = &mut *self.net.state.lock();
        let counters = &self.inbox.counters;
        let mut sent_packets = 0;
        let mut why = Why::Done;
        split::copy_packets(runs, |index, packet| {
            let path = &runs.runs[index].path;
            match (packet, &mut room) {
                (Err(errno), _) => why = Why::Failed(errno),
                (_, Some(0)) => why = Why::WouldBlock,
                (Ok(bytes), room) => {
                    let meta = Meta {
                        src: self.inbox.local,
                        dst: path.dst.ip(),
                        traffic_class: path.traffic_class,
                        hop_limit: if path.hop_limit == 0 { 64 } else { path.hop_limit },
                        ip_id: None,
                        segment: bytes.len(),
                    };
                    state.send(meta, path.dst, bytes);
                    sent_packets += 1;
                    counters.tx_bytes.add(bytes.len() as u64);
                    if let Some(room) = room {
                        *room -= 1;
                    }
                }
            }
            why == Why::Done
        });
        self.inbox.queue.lock().send_room = room;
        counters.tx_packets.add(sent_packets as u64);
        match why {
            Why::Done => {}
            Why::WouldBlock => counters.tx_blocked.add(1),
            Why::Failed(_) => counters.tx_failed.add(1),
        }
        SendOutcome { sent_packets, why }
    }

    fn recv(&self, rx: &mut RxBatch) -> io::Result<usize> {
        rx.clear();
        let mut queue = self.inbox.queue.lock();
        while !rx.is_full()
            && let Some((meta, bytes)) = queue.datagrams.pop_front()
        {
            queue.bytes -= bytes.len();
            self.inbox.counters.rx_datagrams.add(1);
            self.inbox.counters.rx_bytes.add(bytes.len() as u64);
            rx.push(meta, &bytes);
        }
        Ok(rx.len())
    }

    fn fds(&self) -> [Option<RawFd>; 2] {
        [None; 2]
    }
    fn join(&self, group: IpAddr) -> io::Result<()> {
        if !group.is_multicast() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut state = self.net.state.lock();
        let members = state.groups.entry(group).or_default();
        if !members.contains(&self.inbox.local) {
            members.push(self.inbox.local);
        }
        Ok(())
    }
    fn leave(&self, group: IpAddr) {
        let mut state = self.net.state.lock();
        if let Some(members) = state.groups.get_mut(&group) {
            members.retain(|member| *member != self.inbox.local);
            if members.is_empty() {
                state.groups.remove(&group);
            }
        }
    }
    fn limits(&self, _destination: IpAddr) -> Limits {
        Limits { packets: 64, bytes: 65_507, pieces: 1024, ip_id: IpId::Zero }
    }
    fn mtu(&self) -> u32 {
        65_536
    }
    fn counters(&self) -> &Counters {
        &self.inbox.counters
    }
    fn backlog(&self) -> Option<Backlog> {
        let queue = self.inbox.queue.lock();
        Some(Backlog { used: queue.bytes, limit: queue.limit })
    }
}
