//! What owners ask for.

use std::net::{IpAddr, SocketAddr};

use super::super::mad::Mad;
use super::super::message::{IpHeader, Message, Rep, Req, SidrRep, SidrReq, padded, reason, status};
use super::super::ports::Binding;
use super::super::types::{
    Addresses, Answer, Command, Ece, Endpoint, EventKind, MAX_REJECT_DATA, MAX_REPLY_DATA, MAX_REQUEST_DATA,
    MAX_SERVICE_REPLY_DATA, MAX_SERVICE_REQUEST_DATA, Owner, Parameters, PathFacts, PortSpace, Refused,
    Transport,
};
use super::state::{
    ABANDONED_BUDGET, ANSWER_MEMORY, Connection, MAX_RETRIES, Phase, RELEASE_BUDGET, RESPONSE_TIMEOUT, Retry,
    State, time_of,
};
use super::{MAX_ABANDONED, Manager};
use crate::ids::Gid;
use crate::time::Instant;

/// Requests that may wait where the program does not say, or says 0; what the kernel allows at most.
const DEFAULT_BACKLOG: u32 = 1_024;
/// The smallest backlog. The kernel counts requests until the program has taken them from the event channel; here they
/// count until they are answered, and a program may well take some before it answers the first.
const LEAST_BACKLOG: u32 = 64;
/// How long acknowledgements of our devices may take, as rxe says: 0.13 s.
const TARGET_ACK_DELAY: u8 = 15;
/// Devices that an endpoint can be bound to.
const MAX_DEVICES: usize = 1_024;
/// RoCE has no LIDs: the permissive one, as the kernel sends it.
const NO_LID: u16 = 0xffff;
/// The default partition.
const PKEY: u16 = 0xffff;
const LIMIT_24: u32 = 1 << 24;

/// What is known of a conversation before anybody has answered.
struct Opening {
    addresses: Addresses,
    path: PathFacts,
    transport: Transport,
    service_id: u64,
    transaction: u64,
    local_id: u32,
    local_qpn: u32,
}

fn check(holds: bool) -> Result<(), Refused> {
    if holds { Ok(()) } else { Err(Refused::Invalid) }
}

fn check_parameters(p: &Parameters, longest: usize) -> Result<(), Refused> {
    check(p.qpn < LIMIT_24 && p.psn < LIMIT_24 && p.ece.vendor_id < LIMIT_24)?;
    check(p.retry_count < 8 && p.rnr_retry_count < 8)?;
    check(p.private_data.len() <= longest)
}

fn check_path(path: &PathFacts) -> Result<(), Refused> {
    check((1..=5).contains(&path.mtu) && path.ack_timeout < 32 && path.flow_label < 1 << 20 && path.sl < 16)
}

/// The IP addresses for the private data; both have to be of one family.
fn ip_header(addresses: &Addresses, port: u16) -> Result<IpHeader, Refused> {
    let (source, destination) = (addresses.local.ip().to_canonical(), addresses.peer.ip().to_canonical());
    check(source.is_ipv4() == destination.is_ipv4())?;
    check(addresses.local_device.is_ipv4() == addresses.peer_device.is_ipv4())?;
    check(addresses.peer.port() != 0 && !destination.is_unspecified())?;
    Ok(IpHeader { port, source, destination })
}

/// 36 bytes of IP addresses, then the program's.
fn request_data<const N: usize>(header: &IpHeader, data: &[u8]) -> [u8; N] {
    padded(&[&header.emit()[..], data].concat())
}

impl Manager {
    pub(super) fn execute(
        &mut self,
        now: Instant,
        owner: Owner,
        command: Command,
    ) -> Result<Answer, Refused> {
        match command {
            Command::Bind { space, address, devices, reuse, v6_only } => {
                return self.bind(owner, space, address, devices, reuse, v6_only);
            }
            Command::Listen { endpoint, backlog } => {
                self.listen(self.owned(owner, endpoint)?, backlog)?;
                self.release_held(now);
            }
            Command::Connect { endpoint, addresses, transport, parameters, path } => {
                self.owned(owner, endpoint)?;
                self.connect(now, endpoint, addresses, transport, &parameters, path)?;
            }
            Command::Resolve { endpoint, addresses, private_data, path } => {
                self.owned(owner, endpoint)?;
                self.resolve(now, endpoint, addresses, &private_data, path)?;
            }
            Command::Accept { endpoint, parameters } => {
                self.accept(now, self.owned(owner, endpoint)?, &parameters)?;
            }
            Command::AcceptService { endpoint, qpn, qkey, ece, private_data } => {
                self.owned(owner, endpoint)?;
                check(qpn < LIMIT_24 && ece.vendor_id < LIMIT_24)?;
                check(private_data.len() <= MAX_SERVICE_REPLY_DATA)?;
                self.answer_service(now, endpoint, status::SUCCESS, qpn, qkey, ece, &private_data)?;
            }
            Command::Reject { endpoint, reason, private_data } => {
                self.owned(owner, endpoint)?;
                check(private_data.len() <= MAX_REJECT_DATA)?;
                self.reject(now, endpoint, reason, &private_data)?;
            }
            Command::Establish { endpoint } => self.establish(self.owned(owner, endpoint)?)?,
            Command::Disconnect { endpoint } => self.disconnect(now, self.owned(owner, endpoint)?)?,
            Command::Destroy { endpoint } => self.destroy(now, self.owned(owner, endpoint)?),
        }
        Ok(Answer::Done)
    }

    fn owned(&self, owner: Owner, endpoint: Endpoint) -> Result<Endpoint, Refused> {
        match self.entries.get(&endpoint) {
            Some(entry) if entry.owner == Some(owner) => Ok(endpoint),
            _ => Err(Refused::NoEndpoint),
        }
    }

    fn bind(
        &mut self,
        owner: Owner,
        space: PortSpace,
        address: SocketAddr,
        mut devices: Vec<IpAddr>,
        reuse: bool,
        v6_only: bool,
    ) -> Result<Answer, Refused> {
        if !self.has_room(owner) {
            return Err(Refused::Limit);
        }
        check(devices.len() <= MAX_DEVICES)?;
        if devices.is_empty() || !devices.iter().all(|d| self.devices.contains(d)) {
            return Err(Refused::NotLocal);
        }
        devices.sort();
        devices.dedup();
        if address.port() != 0 && address.port() < self.first_unprivileged {
            return Err(Refused::PortNotPermitted);
        }
        let binding =
            Binding { address: address.ip().to_canonical(), devices, reuse, v6_only, listening: false };
        let random = self.random();
        let endpoint = Endpoint(self.next_endpoint);
        let port = self.ports.claim(endpoint, space, address.port(), binding, random)?;
        let endpoint = self.new_endpoint(owner, State::Bound);
        if let Some(entry) = self.entries.get_mut(&endpoint) {
            entry.port = Some((space, port));
        }
        Ok(Answer::Bound { endpoint, port })
    }

    /// The port of an endpoint that has done nothing yet.
    fn bound(&self, endpoint: Endpoint) -> Result<(PortSpace, u16), Refused> {
        match self.entries.get(&endpoint) {
            Some(entry) if matches!(entry.state, State::Bound) => entry.port.ok_or(Refused::State),
            _ => Err(Refused::State),
        }
    }

    fn listen(&mut self, endpoint: Endpoint, backlog: u32) -> Result<(), Refused> {
        let (space, port) = self.bound(endpoint)?;
        self.ports.listen(endpoint, space, port)?;
        let backlog = match backlog {
            0 => DEFAULT_BACKLOG,
            some => some.clamp(LEAST_BACKLOG, DEFAULT_BACKLOG),
        };
        if let Some(entry) = self.entries.get_mut(&endpoint) {
            entry.state = State::Listening { backlog, waiting: 0 };
        }
        Ok(())
    }

    /// An endpoint may speak in the name of the devices that it is bound to.
    fn check_device(
        &self,
        endpoint: Endpoint,
        (space, port): (PortSpace, u16),
        device: IpAddr,
    ) -> Result<(), Refused> {
        match self.ports.binding(endpoint, space, port) {
            Some(binding) if binding.devices.contains(&device) && self.devices.contains(&device) => Ok(()),
            _ => Err(Refused::NotLocal),
        }
    }

    fn connect(
        &mut self,
        now: Instant,
        endpoint: Endpoint,
        addresses: Addresses,
        transport: Transport,
        parameters: &Parameters,
        path: PathFacts,
    ) -> Result<(), Refused> {
        let (space, port) = self.bound(endpoint)?;
        check(space != PortSpace::Udp)?;
        check_parameters(parameters, MAX_REQUEST_DATA)?;
        check_path(&path)?;
        self.check_device(endpoint, (space, port), addresses.local_device)?;
        let header = ip_header(&addresses, port)?;

        let service_id = space.service_id(addresses.peer.port());
        let local_id = self.new_local_id(endpoint);
        let transaction = self.random();
        let (service_type, extended_type) = Req::service_type(transport);
        let mad = Message::Req(Req {
            local_id,
            ece: parameters.ece,
            service_id,
            ca_guid: Gid::eui64_of(addresses.local_device),
            qpn: parameters.qpn,
            responder_resources: parameters.responder_resources,
            initiator_depth: parameters.initiator_depth,
            remote_response_timeout: RESPONSE_TIMEOUT,
            local_response_timeout: RESPONSE_TIMEOUT,
            service_type,
            extended_type,
            flow_control: parameters.flow_control,
            psn: parameters.psn,
            retry_count: parameters.retry_count,
            rnr_retry_count: parameters.rnr_retry_count,
            pkey: PKEY,
            mtu: path.mtu,
            max_retries: MAX_RETRIES,
            srq: parameters.srq,
            local_lid: NO_LID,
            remote_lid: NO_LID,
            local_gid: Gid::from_ip(addresses.local_device),
            remote_gid: Gid::from_ip(addresses.peer_device),
            flow_label: path.flow_label,
            packet_rate: 0,
            traffic_class: path.traffic_class,
            hop_limit: path.hop_limit,
            sl: path.sl,
            // As the kernel has it: whatever could cross a router.
            subnet_local: path.hop_limit <= 1,
            ack_timeout: path.ack_timeout,
            private_data: request_data(&header, &parameters.private_data),
        })
        .emit(transaction);

        let opening = Opening {
            addresses,
            path,
            transport,
            service_id,
            transaction,
            local_id,
            local_qpn: parameters.qpn,
        };
        self.open(now, endpoint, opening, mad, Phase::RequestSent);
        Ok(())
    }

    fn resolve(
        &mut self,
        now: Instant,
        endpoint: Endpoint,
        addresses: Addresses,
        private_data: &[u8],
        path: PathFacts,
    ) -> Result<(), Refused> {
        let (space, port) = self.bound(endpoint)?;
        check(space != PortSpace::Tcp)?;
        check(private_data.len() <= MAX_SERVICE_REQUEST_DATA)?;
        check_path(&path)?;
        self.check_device(endpoint, (space, port), addresses.local_device)?;
        let header = ip_header(&addresses, port)?;

        let service_id = space.service_id(addresses.peer.port());
        let local_id = self.new_local_id(endpoint);
        let transaction = self.random();
        let mad = Message::SidrReq(SidrReq {
            request_id: local_id,
            pkey: PKEY,
            service_id,
            private_data: request_data(&header, private_data),
        })
        .emit(transaction);
        // The service is resolved for whatever QP the program has; nothing on the wire asks for a transport.
        let opening = Opening {
            addresses,
            path,
            transport: Transport::Rc,
            service_id,
            transaction,
            local_id,
            local_qpn: 0,
        };
        self.open(now, endpoint, opening, mad, Phase::ServiceRequestSent);
        Ok(())
    }

    /// Sends the first message of a conversation, and again until it is answered.
    fn open(
        &mut self,
        now: Instant,
        endpoint: Endpoint,
        opening: Opening,
        mad: Mad,
        sent: impl FnOnce(Retry) -> Phase,
    ) {
        let Opening { addresses, path, transport, service_id, transaction, local_id, local_qpn } = opening;
        let pause = time_of(RESPONSE_TIMEOUT);
        let budget = pause * (u64::from(MAX_RETRIES) + 1);
        let (retry, first) = Retry::new(now, mad, budget);
        let connection = Box::new(Connection {
            phase: Phase::ReplyReceived,
            addresses,
            path,
            transport,
            service_id,
            transaction,
            local_id,
            remote_id: 0,
            local_qpn,
            remote_qpn: 0,
            remote_psn: 0,
            pause,
            budget,
        });
        self.transmit(connection.transmit(mad));
        self.put(endpoint, connection, sent(retry), first);
    }

    fn accept(&mut self, now: Instant, endpoint: Endpoint, parameters: &Parameters) -> Result<(), Refused> {
        check_parameters(parameters, MAX_REPLY_DATA)?;
        let waits = self.connection(endpoint).is_some_and(|c| matches!(c.phase, Phase::RequestReceived(_)));
        let mut connection = if waits { self.take(endpoint) } else { None }.ok_or(Refused::State)?;
        connection.local_qpn = parameters.qpn;
        // The QP of an XRC target has another place, and no send side to speak of.
        let target = connection.transport == Transport::Xrc;
        let mad = Message::Rep(Rep {
            local_id: connection.local_id,
            remote_id: connection.remote_id,
            ece: parameters.ece,
            qpn: if target { 0 } else { parameters.qpn },
            eecn: if target { parameters.qpn } else { 0 },
            psn: parameters.psn,
            responder_resources: parameters.responder_resources,
            initiator_depth: if target { 0 } else { parameters.initiator_depth },
            target_ack_delay: TARGET_ACK_DELAY,
            failover: 0,
            flow_control: !target && parameters.flow_control,
            rnr_retry_count: parameters.rnr_retry_count,
            srq: target || parameters.srq,
            ca_guid: Gid::eui64_of(connection.addresses.local_device),
            private_data: padded(&parameters.private_data),
        })
        .emit(connection.transaction);
        self.transmit(connection.transmit(mad));
        let (retry, first) = Retry::new(now, mad, connection.budget);
        self.put(endpoint, connection, Phase::ReplySent(retry), first);
        Ok(())
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of one message")]
    fn answer_service(
        &mut self,
        now: Instant,
        endpoint: Endpoint,
        status: u8,
        qpn: u32,
        qkey: u32,
        ece: Ece,
        private_data: &[u8],
    ) -> Result<(), Refused> {
        let waits =
            self.connection(endpoint).is_some_and(|c| matches!(c.phase, Phase::ServiceRequestReceived(_)));
        let connection = if waits { self.take(endpoint) } else { None }.ok_or(Refused::State)?;
        let mad = Message::SidrRep(SidrRep {
            request_id: connection.remote_id,
            status,
            ece,
            qpn,
            service_id: connection.service_id,
            qkey,
            private_data: padded(private_data),
        })
        .emit(connection.transaction);
        self.transmit(connection.transmit(mad));
        self.put(endpoint, connection, Phase::Answered(Box::new(mad)), now.plus(ANSWER_MEMORY));
        Ok(())
    }

    fn reject(
        &mut self,
        now: Instant,
        endpoint: Endpoint,
        reason: u16,
        private_data: &[u8],
    ) -> Result<(), Refused> {
        match self.connection(endpoint).map(|c| &c.phase) {
            Some(Phase::RequestReceived(_) | Phase::ReplyReceived) => {
                self.refuse(now, endpoint, reason, private_data);
                Ok(())
            }
            Some(Phase::ServiceRequestReceived(_)) => {
                check(private_data.len() <= MAX_SERVICE_REPLY_DATA)?;
                self.answer_service(now, endpoint, status::REJECT, 0, 0, Ece::default(), private_data)
            }
            _ => Err(Refused::State),
        }
    }

    /// Sends a REJ, and keeps it for a while.
    fn refuse(&mut self, now: Instant, endpoint: Endpoint, reason: u16, private_data: &[u8]) {
        let Some(connection) = self.take(endpoint) else { return };
        let mad = connection.rej(reason, private_data);
        self.transmit(connection.transmit(mad));
        self.put(endpoint, connection, Phase::Answered(Box::new(mad)), now.plus(ANSWER_MEMORY));
    }

    fn establish(&mut self, endpoint: Endpoint) -> Result<(), Refused> {
        match self.connection(endpoint).map(|c| &c.phase) {
            Some(Phase::ReplyReceived) => {
                let Some(connection) = self.take(endpoint) else { return Err(Refused::State) };
                self.transmit(connection.transmit(connection.rtu()));
                self.put(endpoint, connection, Phase::Established { active: true }, Instant::NEVER);
                Ok(())
            }
            Some(Phase::ReplySent(_)) => {
                let Some(connection) = self.take(endpoint) else { return Err(Refused::State) };
                self.put(endpoint, connection, Phase::Established { active: false }, Instant::NEVER);
                self.tell(endpoint, EventKind::Established { private_data: Vec::new() });
                Ok(())
            }
            Some(Phase::Established { .. }) => Ok(()),
            _ => Err(Refused::State),
        }
    }

    fn disconnect(&mut self, now: Instant, endpoint: Endpoint) -> Result<(), Refused> {
        match self.connection(endpoint).map(|c| &c.phase) {
            Some(Phase::Established { .. } | Phase::ReplySent(_)) => {
                if let Some(connection) = self.take(endpoint) {
                    self.release(now, endpoint, connection, RELEASE_BUDGET);
                }
                Ok(())
            }
            Some(&Phase::ReleaseReceived { transaction }) => {
                if let Some(connection) = self.take(endpoint) {
                    self.transmit(connection.transmit(connection.drep(transaction)));
                    self.enter_timewait(now, endpoint, connection);
                }
                Ok(())
            }
            // Whoever comes late has what it wants.
            Some(Phase::ReleaseSent(_) | Phase::Timewait) => Ok(()),
            Some(_) => Err(Refused::State),
            None => match self.entries.get(&endpoint).map(|e| &e.state) {
                Some(State::Closed) => Ok(()),
                _ => Err(Refused::State),
            },
        }
    }

    /// The owner is done with it. What the peer has to know is still said, by an endpoint without an owner.
    pub(super) fn destroy(&mut self, now: Instant, endpoint: Endpoint) {
        let Some(entry) = self.entries.get_mut(&endpoint) else { return };
        if let Some((space, port)) = entry.port.take() {
            self.ports.release(endpoint, space, port);
        }
        if let Some(owner) = entry.owner.take() {
            self.owned.remove(&(owner, endpoint));
            self.abandoned += 1;
        }
        match self.connection(endpoint).map(|c| &c.phase) {
            Some(Phase::RequestSent(_)) => {
                if let Some(connection) = self.take(endpoint) {
                    self.transmit(connection.transmit(connection.rej(reason::TIMEOUT, &[])));
                }
                self.close(endpoint);
            }
            Some(Phase::RequestReceived(_) | Phase::ReplyReceived | Phase::ReplySent(_)) => {
                self.refuse(now, endpoint, reason::CONSUMER, &[]);
            }
            Some(Phase::Established { .. }) => {
                if let Some(connection) = self.take(endpoint) {
                    self.release(now, endpoint, connection, ABANDONED_BUDGET);
                }
            }
            Some(Phase::ReleaseReceived { .. }) => {
                // It is in that state, so this is a DREP.
                let _ = self.disconnect(now, endpoint);
            }
            Some(Phase::ServiceRequestReceived(_)) => {
                let _ = self.answer_service(now, endpoint, status::REJECT, 0, 0, Ece::default(), &[]);
            }
            Some(Phase::ReleaseSent(_) | Phase::Timewait | Phase::Answered(_)) => {}
            Some(Phase::ServiceRequestSent(_)) | None => {
                self.take(endpoint);
                self.close(endpoint);
            }
        }
        if self.abandoned > MAX_ABANDONED {
            // It has said once what it had to say.
            self.take(endpoint);
            self.close(endpoint);
        }
    }
}
