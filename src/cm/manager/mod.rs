//! All endpoints of a host's devices, and what they say to their peers.
//!
//! | module | what it is |
//! |---|---|
//! | `state` | what an endpoint is in |
//! | `command` | what owners ask for |
//! | `receive` | messages of peers |
//! | `held` | requests that nobody hears yet |
//! | [`counters`] | what happened how often |
//!
//! A connection, active side on the left; each row is a [`Command`], a message, or an [`EventKind`]:
//!
//! ```text
//! Connect            REQ ->
//!                                   Request
//!                    <- REP         Accept
//! Response
//! Establish          RTU ->
//!                                   Established
//! Disconnect         DREQ ->
//!                                   Disconnected
//!                    <- DREP        Disconnect
//! Disconnected
//! TimewaitExit                      TimewaitExit
//! ```
//!
//! Messages may be lost, repeated and overtake one another. REQ, REP, DREQ and SIDR_REQ are repeated until they are
//! answered; whoever receives one again sends its answer again, or an MRA if its program has not answered yet.

mod command;
pub mod counters;
mod held;
mod receive;
mod state;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;

pub use counters::Counters;
use held::Held;
use state::{Connection, Entry, Phase, State};

use super::mad::Mad;
use super::message::{Message, reason};
use super::ports::Ports;
use super::types::{Answer, Command, Endpoint, Event, EventKind, Owner, Refused};
use crate::time::Instant;

/// Endpoints that there can be. One takes less than 1 KiB.
pub const MAX_ENDPOINTS: usize = 65_536;
/// Endpoints that one owner can have.
pub const MAX_OWNED: usize = 32_768;
/// Requests of one device that may wait for the answers of programs.
pub const MAX_WAITING_OF_ONE: u32 = 1_024;
/// Endpoints without owner that still speak or remember.
const MAX_ABANDONED: usize = 16_384;

/// A management datagram to send, from QP 1 to QP 1.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Transmit {
    /// Our device.
    pub from: IpAddr,
    /// The peer's.
    pub to: IpAddr,
    /// For the IP header.
    pub traffic_class: u8,
    /// Service level.
    pub sl: u8,
    /// The datagram.
    pub mad: Mad,
}

/// What a peer's number is of: the two are chosen independently.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Kind {
    Connection,
    Service,
}

/// Where a connection can be found: by our number, by the peer's, by the peer's QP.
type Keys = (Option<u32>, Option<(Kind, IpAddr, u32)>, Option<(IpAddr, u32)>);

/// The connection manager of a host's devices. It has no sockets and no clock: whoever holds it
///
/// - says which devices there are: [`add_device`](Self::add_device), [`remove_device`](Self::remove_device),
/// - passes on what owners want: [`command`](Self::command), [`owner_gone`](Self::owner_gone),
/// - passes on what arrives at QP 1 and the time: [`handle_mad`](Self::handle_mad),
///   [`handle_timeout`](Self::handle_timeout) at [`deadline`](Self::deadline),
/// - after each of these sends what [`poll_transmit`](Self::poll_transmit) gives and delivers what
///   [`poll_event`](Self::poll_event) gives, until there is nothing more.
///
/// Peers on devices of the same manager are like any other: what is sent to them has to be handed in again.
#[derive(Debug)]
pub struct Manager {
    seed: u64,
    drawn: u64,
    first_unprivileged: u16,
    devices: BTreeSet<IpAddr>,
    entries: BTreeMap<Endpoint, Entry>,
    next_endpoint: u64,
    owned: BTreeSet<(Owner, Endpoint)>,
    abandoned: usize,
    ports: Ports,
    /// By our number.
    by_local_id: BTreeMap<u32, Endpoint>,
    /// By the peer and its number.
    by_remote_id: BTreeMap<(Kind, IpAddr, u32), Endpoint>,
    /// By the peer and its QPN, while we believe that the QP is connected or about to be.
    by_remote_qpn: BTreeMap<(IpAddr, u32), Endpoint>,
    /// Requests of each device that wait for the answer of a program.
    waiting: BTreeMap<IpAddr, u32>,
    timers: BTreeSet<(Instant, Endpoint)>,
    held: VecDeque<Held>,
    /// How long a request waits that nobody hears, in nanoseconds.
    patience: u64,
    transmits: VecDeque<Transmit>,
    events: VecDeque<(Owner, Event)>,
    counters: Counters,
}

impl Manager {
    /// A manager without devices. Numbers that others should not guess are made from `seed`. Ports below
    /// `first_unprivileged` are refused: 0 if the user may have all.
    pub fn new(seed: u64, first_unprivileged: u16) -> Self {
        Self {
            seed,
            drawn: 0,
            first_unprivileged,
            devices: BTreeSet::new(),
            entries: BTreeMap::new(),
            next_endpoint: 1,
            owned: BTreeSet::new(),
            abandoned: 0,
            ports: Ports::default(),
            by_local_id: BTreeMap::new(),
            by_remote_id: BTreeMap::new(),
            by_remote_qpn: BTreeMap::new(),
            waiting: BTreeMap::new(),
            timers: BTreeSet::new(),
            held: VecDeque::new(),
            patience: 0,
            transmits: VecDeque::new(),
            events: VecDeque::new(),
            counters: Counters::default(),
        }
    }

    /// A request that nobody hears waits so many nanoseconds for somebody to listen before it is refused. Without this it
    /// is refused at once.
    ///
    /// Some programs tell each other to connect before the server listens, and rely on its being quicker: perftest with
    /// -R is one, for which a refusal is the end. Where both run on one host with few processors that often goes wrong.
    pub fn set_patience(&mut self, ns: u64) {
        self.patience = ns;
    }

    /// There is a device with this address.
    pub fn add_device(&mut self, device: IpAddr) {
        self.devices.insert(device);
    }

    /// The device is gone, and nothing can be sent from it: connections end, listeners no longer hear it.
    pub fn remove_device(&mut self, device: IpAddr) {
        if !self.devices.remove(&device) {
            return;
        }
        self.ports.remove_device(device);
        self.held.retain(|held| held.at != device);
        let ended: Vec<Endpoint> = self
            .entries
            .iter()
            .filter(|(_, e)| matches!(&e.state, State::Speaking(c) if c.addresses.local_device == device))
            .map(|(endpoint, _)| *endpoint)
            .collect();
        for endpoint in ended {
            let Some(connection) = self.take(endpoint) else { continue };
            match connection.phase {
                Phase::Established { .. } | Phase::ReleaseSent(_) => {
                    self.tell_disconnected(endpoint, Vec::new())
                }
                Phase::Timewait => self.tell(endpoint, EventKind::TimewaitExit),
                Phase::ReleaseReceived { .. } | Phase::Answered(_) => {}
                _ => self.tell(endpoint, EventKind::Unreachable),
            }
            self.close(endpoint);
        }
    }

    /// The devices.
    pub fn devices(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.devices.iter().copied()
    }

    /// Does what an owner asks for.
    pub fn command(&mut self, now: Instant, owner: Owner, command: Command) -> Result<Answer, Refused> {
        self.execute(now, owner, command)
    }

    /// Everything of an owner is destroyed, as by [`Command::Destroy`].
    pub fn owner_gone(&mut self, now: Instant, owner: Owner) {
        let all: Vec<Endpoint> = self
            .owned
            .range((owner, Endpoint(0))..=(owner, Endpoint(u64::MAX)))
            .map(|(_, endpoint)| *endpoint)
            .collect();
        for endpoint in all {
            self.destroy(now, endpoint);
        }
    }

    /// A management datagram came to QP 1 of the device `at`, from the device `from`. What is none of ours is counted
    /// and ignored.
    pub fn handle_mad(&mut self, now: Instant, at: IpAddr, from: IpAddr, mad: &[u8]) {
        self.receive(now, at, from, mad);
    }

    /// Repeats what has not been answered, gives up, and forgets.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(&(when, endpoint)) = self.timers.first()
            && when <= now
        {
            self.timers.pop_first();
            if let Some(entry) = self.entries.get_mut(&endpoint) {
                entry.timer = Instant::NEVER;
            }
            self.expire(now, endpoint);
        }
        self.refuse_held(now);
    }

    /// When [`handle_timeout`](Self::handle_timeout) wants to be called; [`Instant::NEVER`] if nothing is due.
    pub fn deadline(&self) -> Instant {
        let timer = self.timers.first().map_or(Instant::NEVER, |(when, _)| *when);
        timer.min(self.held.front().map_or(Instant::NEVER, |held| held.until))
    }

    /// The next datagram to send.
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        self.transmits.pop_front()
    }

    /// The next event, and who has to know.
    pub fn poll_event(&mut self) -> Option<(Owner, Event)> {
        self.events.pop_front()
    }

    /// What happened so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Endpoints, with those that nobody owns any more.
    pub fn endpoints(&self) -> usize {
        self.entries.len()
    }

    /// Who hears requests; one that listens twice is here twice.
    pub fn listeners(&self) -> impl Iterator<Item = Owner> + '_ {
        self.entries.values().filter(|e| matches!(e.state, State::Listening { .. })).filter_map(|e| e.owner)
    }

    /// Ports in use.
    pub fn ports(&self) -> usize {
        self.ports.len()
    }

    /// A number that cannot be guessed without the seed.
    fn random(&mut self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.seed, self.drawn, "urxe connection manager").hash(&mut hasher);
        self.drawn += 1;
        hasher.finish()
    }

    /// A number for a communication that no other has; not 0, which means none.
    fn new_local_id(&mut self, endpoint: Endpoint) -> u32 {
        loop {
            let id = self.random() as u32;
            if id != 0 && !self.by_local_id.contains_key(&id) {
                self.by_local_id.insert(id, endpoint);
                return id;
            }
        }
    }

    fn new_endpoint(&mut self, owner: Owner, state: State) -> Endpoint {
        let endpoint = Endpoint(self.next_endpoint);
        self.next_endpoint += 1;
        self.owned.insert((owner, endpoint));
        self.entries.insert(endpoint, Entry { owner: Some(owner), port: None, timer: Instant::NEVER, state });
        endpoint
    }

    /// Whether `owner` can have one more.
    fn has_room(&self, owner: Owner) -> bool {
        // Counting costs as much as there is to count: only when it matters.
        self.entries.len() < MAX_ENDPOINTS
            && (self.entries.len() < MAX_OWNED
                || self.owned.range((owner, Endpoint(0))..=(owner, Endpoint(u64::MAX))).count() < MAX_OWNED)
    }

    fn tell(&mut self, endpoint: Endpoint, kind: EventKind) {
        if let Some(owner) = self.entries.get(&endpoint).and_then(|e| e.owner) {
            self.events.push_back((owner, Event { endpoint, kind }));
        }
    }

    fn tell_disconnected(&mut self, endpoint: Endpoint, private_data: Vec<u8>) {
        self.tell(endpoint, EventKind::Disconnected { private_data });
    }

    fn transmit(&mut self, transmit: Transmit) {
        self.counters.sent += 1;
        self.transmits.push_back(transmit);
    }

    fn set_timer(&mut self, endpoint: Endpoint, when: Instant) {
        let Some(entry) = self.entries.get_mut(&endpoint) else { return };
        if entry.timer != Instant::NEVER {
            self.timers.remove(&(entry.timer, endpoint));
        }
        entry.timer = when;
        if when != Instant::NEVER {
            self.timers.insert((when, endpoint));
        }
    }

    fn connection(&self, endpoint: Endpoint) -> Option<&Connection> {
        match &self.entries.get(&endpoint)?.state {
            State::Speaking(connection) => Some(connection),
            _ => None,
        }
    }

    /// Takes the connection out, to go on with it: [`Self::put`] or [`Self::close`] have to follow. It no longer waits,
    /// neither for the program nor for the clock.
    fn take(&mut self, endpoint: Endpoint) -> Option<Box<Connection>> {
        let state = &mut self.entries.get_mut(&endpoint)?.state;
        let connection = match std::mem::replace(state, State::Closed) {
            State::Speaking(connection) => connection,
            other => {
                *state = other;
                return None;
            }
        };
        if let Phase::RequestReceived(listener) | Phase::ServiceRequestReceived(listener) = connection.phase {
            let device = connection.addresses.peer_device;
            if let Some(waiting) = self.waiting.get_mut(&device) {
                *waiting = waiting.saturating_sub(1);
                if *waiting == 0 {
                    self.waiting.remove(&device);
                }
            }
            if let Some(Entry { state: State::Listening { waiting, .. }, .. }) =
                self.entries.get_mut(&listener)
            {
                *waiting = waiting.saturating_sub(1);
            }
        }
        self.unindex(endpoint, &connection);
        self.set_timer(endpoint, Instant::NEVER);
        Some(connection)
    }

    /// Puts a connection into a phase.
    fn put(&mut self, endpoint: Endpoint, mut connection: Box<Connection>, phase: Phase, timer: Instant) {
        connection.phase = phase;
        self.index(endpoint, &connection);
        if let Some(entry) = self.entries.get_mut(&endpoint) {
            entry.state = State::Speaking(connection);
        }
        self.set_timer(endpoint, timer);
    }

    fn keys(connection: &Connection) -> Keys {
        let peer = connection.addresses.peer_device;
        let local = Some(connection.local_id).filter(|id| *id != 0);
        let remote = Some(connection.remote_id).filter(|id| *id != 0);
        // QPs 0 and 1 are connected to nobody; programs without a QP say 0.
        let qpn = Some((peer, connection.remote_qpn)).filter(|(_, qpn)| *qpn > 1);
        match connection.phase {
            Phase::RequestSent(_) | Phase::ServiceRequestSent(_) => (local, None, None),
            Phase::ServiceRequestReceived(_) => {
                (None, Some((Kind::Service, peer, connection.remote_id)), None)
            }
            // A refused REQ has a number of ours, the answer to a SIDR_REQ has none.
            Phase::Answered(_) if local.is_none() => {
                (None, Some((Kind::Service, peer, connection.remote_id)), None)
            }
            Phase::RequestReceived(_)
            | Phase::ReplySent(_)
            | Phase::ReplyReceived
            | Phase::Established { .. } => (local, remote.map(|id| (Kind::Connection, peer, id)), qpn),
            // The peer is done with its QP, and may connect it anew.
            Phase::ReleaseSent(_) | Phase::ReleaseReceived { .. } | Phase::Timewait | Phase::Answered(_) => {
                (local, remote.map(|id| (Kind::Connection, peer, id)), None)
            }
        }
    }

    fn index(&mut self, endpoint: Endpoint, connection: &Connection) {
        let (local, remote, qpn) = Self::keys(connection);
        if let Some(key) = local {
            self.by_local_id.insert(key, endpoint);
        }
        if let Some(key) = remote {
            self.by_remote_id.insert(key, endpoint);
        }
        if let Some(key) = qpn {
            self.by_remote_qpn.insert(key, endpoint);
        }
    }

    fn unindex(&mut self, endpoint: Endpoint, connection: &Connection) {
        fn remove<K: Ord>(map: &mut BTreeMap<K, Endpoint>, key: Option<K>, endpoint: Endpoint) {
            // It may have been taken over by a newer one.
            if let Some(key) = key
                && map.get(&key) == Some(&endpoint)
            {
                map.remove(&key);
            }
        }
        let (local, remote, qpn) = Self::keys(connection);
        remove(&mut self.by_local_id, local, endpoint);
        remove(&mut self.by_remote_id, remote, endpoint);
        remove(&mut self.by_remote_qpn, qpn, endpoint);
    }

    /// The end of what was taken. The owner, if there is one, keeps the name until it destroys it.
    fn close(&mut self, endpoint: Endpoint) {
        if self.entries.get(&endpoint).is_some_and(|e| e.owner.is_none()) {
            self.entries.remove(&endpoint);
            self.abandoned -= 1;
        }
    }

    /// Sends a DREQ and waits for the answer.
    fn release(&mut self, now: Instant, endpoint: Endpoint, connection: Box<Connection>, budget: u64) {
        // A transaction of its own, so that nothing that belongs to the request can be taken for its answer.
        let transaction = connection.transaction ^ u64::from(connection.local_id) << 32 | 1;
        let mad = connection.dreq(transaction);
        self.transmit(connection.transmit(mad));
        let (retry, first) = state::Retry::new(now, mad, budget);
        self.put(endpoint, connection, Phase::ReleaseSent(retry), first);
    }

    /// Both ends are done; the numbers are kept until late packets are gone.
    fn enter_timewait(&mut self, now: Instant, endpoint: Endpoint, connection: Box<Connection>) {
        let until = now.plus(connection.timewait());
        self.put(endpoint, connection, Phase::Timewait, until);
    }

    /// The timer of an endpoint.
    fn expire(&mut self, now: Instant, endpoint: Endpoint) {
        let Some(entry) = self.entries.get_mut(&endpoint) else { return };
        let State::Speaking(connection) = &mut entry.state else { return };
        let longest = connection.pause;
        let next = match &mut connection.phase {
            Phase::RequestSent(retry)
            | Phase::ReplySent(retry)
            | Phase::ReleaseSent(retry)
            | Phase::ServiceRequestSent(retry) => retry.next(now, longest).map(|next| (next, *retry.mad)),
            _ => None,
        };
        if let Some((next, mad)) = next {
            let transmit = connection.transmit(mad);
            self.counters.retries += 1;
            self.transmit(transmit);
            self.set_timer(endpoint, next);
            return;
        }
        let Some(connection) = self.take(endpoint) else { return };
        match connection.phase {
            Phase::RequestSent(_) | Phase::ReplySent(_) => {
                // If it is only that we hear nothing, the peer should know (IBA 12.9.7).
                self.transmit(connection.transmit(connection.rej(reason::TIMEOUT, &[])));
                self.tell(endpoint, EventKind::Unreachable);
                self.close(endpoint);
            }
            Phase::ServiceRequestSent(_) => {
                self.tell(endpoint, EventKind::Unreachable);
                self.close(endpoint);
            }
            Phase::ReleaseSent(_) => {
                self.tell_disconnected(endpoint, Vec::new());
                self.enter_timewait(now, endpoint, connection);
            }
            Phase::Timewait => {
                self.tell(endpoint, EventKind::TimewaitExit);
                self.close(endpoint);
            }
            _ => self.close(endpoint),
        }
    }

    fn answer(&mut self, at: IpAddr, from: IpAddr, transaction: u64, message: &Message) {
        let mad = message.emit(transaction);
        self.transmit(Transmit { from: at, to: from, traffic_class: 0, sl: 0, mad });
    }
}
