//! Messages of peers. Each may be late, repeated, forged or nonsense.

use std::net::{IpAddr, SocketAddr};

use super::super::mad::Mad;
use super::super::message::{
    About, Drep, Dreq, IpHeader, Message, Mra, Rej, Rep, Req, Rtu, SidrRep, SidrReq, padded, reason, status,
};
use super::super::types::{Addresses, Ece, Endpoint, EventKind, Parameters, PathFacts, PortSpace, Transport};
use super::held::Unheard;
use super::state::{
    Connection, Entry, MAX_RETRIES, MS, Phase, RELEASE_BUDGET, RESPONSE_TIMEOUT, State, time_of,
};
use super::{Kind, MAX_WAITING_OF_ONE, Manager};
use crate::ids::Gid;
use crate::time::Instant;

/// Of a request that has no path: a SIDR_REQ. The program answers datagrams by what they say themselves.
const DATAGRAM_PATH: PathFacts =
    PathFacts { mtu: 5, ack_timeout: 0, flow_label: 0, traffic_class: 0, hop_limit: 64, sl: 0 };

/// Private data of messages that programs hardly use: nothing rather than zeros.
fn trimmed(data: &[u8]) -> Vec<u8> {
    if data.iter().all(|byte| *byte == 0) { Vec::new() } else { data.to_vec() }
}

/// Port space and port of a service identifier, if it is one of IP ports.
pub(super) fn port_of(service_id: u64) -> Option<(PortSpace, u16)> {
    let space = [PortSpace::Tcp, PortSpace::Udp, PortSpace::Ib]
        .into_iter()
        .find(|space| *space as u64 == service_id >> 16)?;
    Some((space, service_id as u16))
}

/// The answer to what was here before; none if there is none, or the program still has to give it.
type Again = Option<Mad>;

impl Manager {
    pub(super) fn receive(&mut self, now: Instant, at: IpAddr, from: IpAddr, mad: &[u8]) {
        if !self.devices.contains(&at) {
            self.counters.unknown += 1;
            return;
        }
        let (transaction, message) = match Message::parse(mad) {
            Ok(parsed) => parsed,
            Err(_) => {
                self.counters.malformed += 1;
                return;
            }
        };
        self.counters.received.count(&message);
        match message {
            Message::Req(req) => self.handle_req(now, at, from, transaction, &req, Unheard::Hold),
            Message::Mra(mra) => self.handle_mra(now, at, from, &mra),
            Message::Rej(rej) => self.handle_rej(now, at, from, &rej),
            Message::Rep(rep) => self.handle_rep(now, at, from, transaction, &rep),
            Message::Rtu(rtu) => self.handle_rtu(at, from, &rtu),
            Message::Dreq(dreq) => self.handle_dreq(now, at, from, transaction, &dreq),
            Message::Drep(drep) => self.handle_drep(now, at, from, &drep),
            Message::SidrReq(req) => self.handle_sidr_req(now, at, from, transaction, &req, Unheard::Hold),
            Message::SidrRep(rep) => self.handle_sidr_rep(at, from, &rep),
            // No path can be changed; without an answer the peer keeps the one that it has.
            Message::AlternatePath => {}
        }
    }

    /// The connection that a message names, if it is with this peer.
    fn named(&mut self, at: IpAddr, from: IpAddr, local_id: u32) -> Option<Endpoint> {
        let endpoint = self.by_local_id.get(&local_id).copied();
        let found = endpoint.filter(|e| self.connection(*e).is_some_and(|c| c.is_between(at, from)));
        if found.is_none() {
            self.counters.unknown += 1;
        }
        found
    }

    fn react(&mut self, endpoint: Endpoint, again: Again) {
        self.counters.duplicates += 1;
        if let Some(mad) = again
            && let Some(transmit) = self.connection(endpoint).map(|c| c.transmit(mad))
        {
            self.transmit(transmit);
        }
    }

    pub(super) fn handle_req(
        &mut self,
        now: Instant,
        at: IpAddr,
        from: IpAddr,
        transaction: u64,
        req: &Req,
        unheard: Unheard,
    ) {
        let refuse = |reason| {
            Message::Rej(Rej {
                local_id: 0,
                remote_id: req.local_id,
                about: About::Request,
                reason,
                info: [0; 72],
                info_len: 0,
                private_data: [0; 148],
            })
        };
        if req.local_id == 0 {
            self.counters.malformed += 1;
            return;
        }
        if let Some(&endpoint) = self.by_remote_id.get(&(Kind::Connection, from, req.local_id))
            && let Some(c) = self.connection(endpoint)
        {
            let the_same = c.transaction == transaction && c.remote_qpn == req.qpn && c.remote_psn == req.psn;
            if the_same && c.addresses.local_device == at {
                let again = match &c.phase {
                    Phase::RequestReceived(_) => Some(c.mra()),
                    Phase::ReplySent(retry) => Some(*retry.mad),
                    Phase::Answered(mad) => Some(**mad),
                    // It was connected, and is over (IBA 12.9.8.3.1).
                    Phase::Timewait => Some(c.rej(reason::STALE, &[])),
                    _ => None,
                };
                self.react(endpoint, again);
                return;
            }
            // The peer has forgotten what had this number.
            if !self.supersede(now, endpoint) {
                self.answer(at, from, transaction, &refuse(reason::STALE));
                return;
            }
        }
        // The peer's QP cannot be connected twice (IBA 12.9.8.3.1).
        if let Some(&endpoint) = self.by_remote_qpn.get(&(from, req.qpn))
            && !self.supersede(now, endpoint)
        {
            self.answer(at, from, transaction, &refuse(reason::STALE));
            return;
        }

        let Some(transport) = req.transport() else {
            return self.answer(at, from, transaction, &refuse(reason::INVALID_TRANSPORT));
        };
        if req.local_gid != Gid::from_ip(from) || req.remote_gid != Gid::from_ip(at) {
            return self.answer(at, from, transaction, &refuse(reason::INVALID_GID));
        }
        if !(1..=5).contains(&req.mtu) {
            return self.answer(at, from, transaction, &refuse(reason::INVALID_MTU));
        }
        let service = port_of(req.service_id).filter(|(space, _)| *space != PortSpace::Udp);
        let Some((space, port)) = service else {
            self.counters.unheard += 1;
            return self.answer(at, from, transaction, &refuse(reason::INVALID_SERVICE));
        };
        let Some(header) = IpHeader::parse(&padded(&req.private_data)) else {
            return self.answer(at, from, transaction, &refuse(reason::CONSUMER));
        };
        let Some(listener) = self.ports.listener(space, port, at, header.destination.to_canonical()) else {
            if unheard == Unheard::Hold && self.hold(now, at, from, transaction, Message::Req(req.clone())) {
                return;
            }
            self.counters.unheard += 1;
            return self.answer(at, from, transaction, &refuse(reason::INVALID_SERVICE));
        };

        let path = PathFacts {
            mtu: req.mtu,
            ack_timeout: req.ack_timeout,
            flow_label: req.flow_label,
            traffic_class: req.traffic_class,
            hop_limit: req.hop_limit,
            sl: req.sl,
        };
        let addresses = Addresses {
            local: SocketAddr::new(header.destination, port),
            peer: SocketAddr::new(header.source, header.port),
            local_device: at,
            peer_device: from,
        };
        let longest = time_of(RESPONSE_TIMEOUT);
        let pause = time_of(req.local_response_timeout).min(longest);
        let budget = (pause * (u64::from(req.max_retries) + 1))
            .clamp(500 * MS, longest * (u64::from(MAX_RETRIES) + 1));
        let connection = Connection {
            phase: Phase::RequestReceived(listener),
            addresses,
            path,
            transport,
            service_id: req.service_id,
            transaction,
            local_id: 0,
            remote_id: req.local_id,
            local_qpn: 0,
            remote_qpn: req.qpn,
            remote_psn: req.psn,
            pause,
            budget,
        };
        let parameters = Parameters {
            qpn: req.qpn,
            psn: req.psn,
            responder_resources: req.responder_resources,
            initiator_depth: req.initiator_depth,
            flow_control: req.flow_control,
            retry_count: req.retry_count,
            rnr_retry_count: req.rnr_retry_count,
            srq: req.srq,
            ece: req.ece,
            private_data: req.private_data[IpHeader::LEN..].to_vec(),
        };
        self.admit(
            listener,
            connection,
            EventKind::Request { listener, addresses, transport, parameters, path },
        );
    }

    /// Makes an endpoint of a request and tells the listener's owner. If too many wait already nothing is made and
    /// nothing said, as the kernel does: the peer repeats its request.
    fn admit(&mut self, listener: Endpoint, mut connection: Connection, event: EventKind) {
        let device = connection.addresses.peer_device;
        let of_device = self.waiting.get(&device).copied().unwrap_or(0);
        let Some(Entry { owner: Some(owner), state: State::Listening { backlog, waiting }, .. }) =
            self.entries.get(&listener)
        else {
            return;
        };
        let owner = *owner;
        if waiting >= backlog || of_device >= MAX_WAITING_OF_ONE || !self.has_room(owner) {
            self.counters.overflows += 1;
            return;
        }
        if let Some(Entry { state: State::Listening { waiting, .. }, .. }) = self.entries.get_mut(&listener) {
            *waiting += 1;
        }
        *self.waiting.entry(device).or_insert(0) += 1;
        let endpoint = self.new_endpoint(owner, State::Closed);
        if matches!(connection.phase, Phase::RequestReceived(_)) {
            connection.local_id = self.new_local_id(endpoint);
        }
        self.index(endpoint, &connection);
        if let Some(entry) = self.entries.get_mut(&endpoint) {
            entry.state = State::Speaking(Box::new(connection));
        }
        self.tell(endpoint, event);
    }

    /// The peer uses a number or a QP anew that was part of a connection. Whether the new one may go on: not if the old
    /// one was established, as then one of the two is a mistake, and both have to end (IBA 12.9.8.3.1).
    fn supersede(&mut self, now: Instant, endpoint: Endpoint) -> bool {
        self.counters.stale += 1;
        let Some(connection) = self.take(endpoint) else { return true };
        match connection.phase {
            Phase::Established { .. } => {
                self.release(now, endpoint, connection, RELEASE_BUDGET);
                return false;
            }
            // The peer has closed it, whatever got lost.
            Phase::ReleaseSent(_) => {
                self.tell_disconnected(endpoint, Vec::new());
                self.tell(endpoint, EventKind::TimewaitExit);
            }
            Phase::Timewait => self.tell(endpoint, EventKind::TimewaitExit),
            Phase::ReleaseReceived { .. } | Phase::Answered(_) => {}
            _ => {
                self.tell(endpoint, EventKind::Rejected { reason: reason::STALE, private_data: vec![0; 148] })
            }
        }
        self.close(endpoint);
        true
    }

    fn handle_mra(&mut self, now: Instant, at: IpAddr, from: IpAddr, mra: &Mra) {
        let Some(endpoint) = self.named(at, from, mra.remote_id) else { return };
        let Some(Entry { state: State::Speaking(connection), .. }) = self.entries.get_mut(&endpoint) else {
            return;
        };
        let (longest, budget) = (connection.pause, connection.budget);
        let retry = match (&mut connection.phase, mra.about) {
            (Phase::RequestSent(retry), About::Request) => retry,
            (Phase::ReplySent(retry), About::Reply) if mra.local_id == connection.remote_id => retry,
            _ => return,
        };
        let next = retry.postpone(now, time_of(mra.service_timeout), longest, budget);
        self.set_timer(endpoint, next);
    }

    fn handle_rej(&mut self, now: Instant, at: IpAddr, from: IpAddr, rej: &Rej) {
        // Who gives up before it knows our number says its own.
        let endpoint = if rej.reason == reason::TIMEOUT && rej.remote_id == 0 {
            let key = (Kind::Connection, from, rej.local_id);
            self.by_remote_id.get(&key).copied()
        } else {
            self.named(at, from, rej.remote_id)
        };
        let Some((endpoint, c)) = endpoint.and_then(|e| Some((e, self.connection(e)?))) else { return };
        let told = match c.phase {
            // The peer's number is not known, and it may have none.
            Phase::RequestSent(_) => true,
            Phase::RequestReceived(_)
            | Phase::ReplySent(_)
            | Phase::ReplyReceived
            | Phase::Established { .. }
            | Phase::ReleaseSent(_) => rej.local_id == c.remote_id && c.is_between(at, from),
            _ => false,
        };
        if !told {
            self.counters.unknown += 1;
            return;
        }
        let Some(connection) = self.take(endpoint) else { return };
        match connection.phase {
            Phase::Established { .. } | Phase::ReleaseSent(_) => {
                self.tell_disconnected(endpoint, trimmed(&rej.private_data));
                self.enter_timewait(now, endpoint, connection);
            }
            _ => {
                let (reason, private_data) = (rej.reason, rej.private_data.to_vec());
                self.tell(endpoint, EventKind::Rejected { reason, private_data });
                self.close(endpoint);
            }
        }
    }

    fn handle_rep(&mut self, now: Instant, at: IpAddr, from: IpAddr, transaction: u64, rep: &Rep) {
        let Some(endpoint) = self.named(at, from, rep.remote_id) else {
            // We have given up, or never asked: the peer need not wait.
            let rej = Rej {
                local_id: rep.remote_id,
                remote_id: rep.local_id,
                about: About::Reply,
                reason: reason::INVALID_COMMUNICATION,
                info: [0; 72],
                info_len: 0,
                private_data: [0; 148],
            };
            return self.answer(at, from, transaction, &Message::Rej(rej));
        };
        let Some(c) = self.connection(endpoint) else { return };
        if !matches!(c.phase, Phase::RequestSent(_)) {
            let again = match &c.phase {
                _ if c.remote_id != rep.local_id => None,
                Phase::ReplyReceived => Some(c.mra()),
                Phase::Established { active: true } => Some(c.rtu()),
                Phase::Answered(mad) => Some(**mad),
                _ => None,
            };
            return self.react(endpoint, again);
        }
        if c.transaction != transaction || rep.local_id == 0 {
            self.counters.malformed += 1;
            return;
        }
        let qpn = if c.transport == Transport::Xrc { rep.eecn } else { rep.qpn };
        let Some(mut connection) = self.take(endpoint) else { return };
        // The peer has just made its QP ready for this connection: any other that had it is over, and so is what had
        // the number.
        let old = self.by_remote_qpn.get(&(from, qpn)).copied();
        let other = self.by_remote_id.get(&(Kind::Connection, from, rep.local_id)).copied();
        for stale in [old, other].into_iter().flatten() {
            self.supersede(now, stale);
        }
        connection.remote_id = rep.local_id;
        connection.remote_qpn = qpn;
        connection.remote_psn = rep.psn;
        self.put(endpoint, connection, Phase::ReplyReceived, Instant::NEVER);
        let parameters = Parameters {
            qpn,
            psn: rep.psn,
            responder_resources: rep.responder_resources,
            initiator_depth: rep.initiator_depth,
            flow_control: rep.flow_control,
            retry_count: 0,
            rnr_retry_count: rep.rnr_retry_count,
            srq: rep.srq,
            ece: rep.ece,
            private_data: rep.private_data.to_vec(),
        };
        self.tell(endpoint, EventKind::Response { parameters });
    }

    fn handle_rtu(&mut self, at: IpAddr, from: IpAddr, rtu: &Rtu) {
        let Some(endpoint) = self.named(at, from, rtu.remote_id) else { return };
        let Some(c) = self.connection(endpoint).filter(|c| c.remote_id == rtu.local_id) else { return };
        match &c.phase {
            Phase::ReplySent(_) => {
                let Some(connection) = self.take(endpoint) else { return };
                self.put(endpoint, connection, Phase::Established { active: false }, Instant::NEVER);
                self.tell(endpoint, EventKind::Established { private_data: trimmed(&rtu.private_data) });
            }
            // Our program has refused meanwhile, and that was lost or is late.
            Phase::Answered(mad) => {
                let again = Some(**mad);
                self.react(endpoint, again);
            }
            _ => self.react(endpoint, None),
        }
    }

    fn handle_dreq(&mut self, now: Instant, at: IpAddr, from: IpAddr, transaction: u64, dreq: &Dreq) {
        let endpoint = self
            .named(at, from, dreq.remote_id)
            .filter(|e| self.connection(*e).is_some_and(|c| c.remote_id == dreq.local_id));
        let Some((endpoint, c)) = endpoint.and_then(|e| Some((e, self.connection(e)?))) else {
            // Whatever it was, it is over on this side: the peer need not wait.
            let drep = Drep { local_id: dreq.remote_id, remote_id: dreq.local_id, private_data: [0; 224] };
            return self.answer(at, from, transaction, &Message::Drep(drep));
        };
        if c.local_qpn != dreq.remote_qpn {
            self.counters.malformed += 1;
            return;
        }
        match c.phase {
            Phase::ReplySent(_) | Phase::ReplyReceived | Phase::Established { .. } => {
                let Some(connection) = self.take(endpoint) else { return };
                self.put(endpoint, connection, Phase::ReleaseReceived { transaction }, Instant::NEVER);
                self.tell_disconnected(endpoint, trimmed(&dreq.private_data));
            }
            // Both at once: each has its answer.
            Phase::ReleaseSent(_) => {
                let Some(connection) = self.take(endpoint) else { return };
                self.transmit(connection.transmit(connection.drep(transaction)));
                self.tell_disconnected(endpoint, trimmed(&dreq.private_data));
                self.enter_timewait(now, endpoint, connection);
            }
            Phase::Timewait => {
                let again = Some(c.drep(transaction));
                self.react(endpoint, again);
            }
            // The program has been told, and has to answer.
            _ => self.react(endpoint, None),
        }
    }

    fn handle_drep(&mut self, now: Instant, at: IpAddr, from: IpAddr, drep: &Drep) {
        let Some(endpoint) = self.named(at, from, drep.remote_id) else { return };
        let Some(c) = self.connection(endpoint).filter(|c| c.remote_id == drep.local_id) else { return };
        let was_told = match c.phase {
            Phase::ReleaseSent(_) => false,
            Phase::ReleaseReceived { .. } => true,
            _ => return self.react(endpoint, None),
        };
        let Some(connection) = self.take(endpoint) else { return };
        if !was_told {
            self.tell_disconnected(endpoint, trimmed(&drep.private_data));
        }
        self.enter_timewait(now, endpoint, connection);
    }

    pub(super) fn handle_sidr_req(
        &mut self,
        now: Instant,
        at: IpAddr,
        from: IpAddr,
        transaction: u64,
        req: &SidrReq,
        unheard: Unheard,
    ) {
        if let Some(&endpoint) = self.by_remote_id.get(&(Kind::Service, from, req.request_id))
            && let Some(c) = self.connection(endpoint)
            && c.transaction == transaction
            && c.addresses.local_device == at
        {
            let again = match &c.phase {
                Phase::Answered(mad) => Some(**mad),
                _ => None,
            };
            return self.react(endpoint, again);
        }
        let refusal = Message::SidrRep(SidrRep {
            request_id: req.request_id,
            status: status::UNSUPPORTED,
            ece: Ece::default(),
            qpn: 0,
            service_id: req.service_id,
            qkey: 0,
            private_data: [0; 136],
        });
        let header = IpHeader::parse(&padded(&req.private_data));
        let service = port_of(req.service_id).filter(|(space, _)| *space != PortSpace::Tcp);
        let found = service.zip(header).and_then(|((space, port), header)| {
            let listener = self.ports.listener(space, port, at, header.destination.to_canonical())?;
            Some((listener, port, header))
        });
        let Some((listener, port, header)) = found else {
            let known = service.zip(header).is_some();
            if unheard == Unheard::Hold
                && known
                && self.hold(now, at, from, transaction, Message::SidrReq(req.clone()))
            {
                return;
            }
            self.counters.unheard += 1;
            return self.answer(at, from, transaction, &refusal);
        };
        let addresses = Addresses {
            local: SocketAddr::new(header.destination, port),
            peer: SocketAddr::new(header.source, header.port),
            local_device: at,
            peer_device: from,
        };
        let connection = Connection {
            phase: Phase::ServiceRequestReceived(listener),
            addresses,
            path: DATAGRAM_PATH,
            transport: Transport::Rc,
            service_id: req.service_id,
            transaction,
            local_id: 0,
            remote_id: req.request_id,
            local_qpn: 0,
            remote_qpn: 0,
            remote_psn: 0,
            pause: 0,
            budget: 0,
        };
        let private_data = req.private_data[IpHeader::LEN..].to_vec();
        let path = DATAGRAM_PATH;
        self.admit(
            listener,
            connection,
            EventKind::ServiceRequest { listener, addresses, private_data, path },
        );
    }

    fn handle_sidr_rep(&mut self, at: IpAddr, from: IpAddr, rep: &SidrRep) {
        let Some(endpoint) = self.named(at, from, rep.request_id) else { return };
        let asked = self.connection(endpoint).is_some_and(|c| {
            matches!(c.phase, Phase::ServiceRequestSent(_)) && c.service_id == rep.service_id
        });
        if !asked {
            self.counters.unknown += 1;
            return;
        }
        self.take(endpoint);
        let (ece, private_data) = (rep.ece, rep.private_data.to_vec());
        let kind = match rep.status {
            status::SUCCESS => EventKind::ServiceResolved { qpn: rep.qpn, qkey: rep.qkey, ece, private_data },
            status => EventKind::Rejected { reason: status.into(), private_data },
        };
        self.tell(endpoint, kind);
        self.close(endpoint);
    }
}
