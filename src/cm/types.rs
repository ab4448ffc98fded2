//! What a connection manager is told and what it tells.

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

/// Who owns an endpoint: a process of the host, as the daemon numbers them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Owner(pub u64);

/// One `rdma_cm_id` that is bound, listens or is connected. Never used twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Endpoint(pub u64);

/// `enum rdma_port_space`. Ports of different spaces have nothing to do with each other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum PortSpace {
    /// Connections over reliable QPs.
    Tcp = 0x0106,
    /// Datagrams: a service is resolved to a QPN and a Q_Key (SIDR).
    Udp = 0x0111,
    /// Any QP type over InfiniBand's own service identifiers.
    Ib = 0x013f,
}

impl PortSpace {
    /// The service identifier of a port (annex A11.6.2: prefix, protocol, port).
    pub fn service_id(self, port: u16) -> u64 {
        (self as u64) << 16 | u64::from(port)
    }
}

/// The transport of the QP of a connection, as the REQ has it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Transport {
    /// Reliable connected.
    Rc,
    /// Unreliable connected.
    Uc,
    /// Extended reliable connected.
    Xrc,
}

/// Enhanced connection establishment: options that only the vendors' libraries understand. All zero: none.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug, Serialize, Deserialize)]
pub struct Ece {
    /// Who defines the options.
    pub vendor_id: u32,
    /// The options.
    pub options: u32,
}

/// What a REQ or a REP says of the sender's QP.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Parameters {
    /// 24 bits.
    pub qpn: u32,
    /// The PSN with which the other end is to begin (IBA 12.7.31): 24 bits.
    pub psn: u32,
    /// READs and atomics that it serves at once.
    pub responder_resources: u8,
    /// READs and atomics that it asks for at once.
    pub initiator_depth: u8,
    /// End-to-end flow control.
    pub flow_control: bool,
    /// Transport retries: 3 bits. Only in a REQ.
    pub retry_count: u8,
    /// Receiver-not-ready retries: 3 bits, 7 is for ever.
    pub rnr_retry_count: u8,
    /// The QP has a shared receive queue.
    pub srq: bool,
    /// Options.
    pub ece: Ece,
    /// The program's bytes: at most 56 in a REQ, 196 in a REP.
    pub private_data: Vec<u8>,
}

/// The path of a connection, the same for both ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PathFacts {
    /// `enum ibv_mtu`: 1 (256 bytes) to 5 (4096).
    pub mtu: u8,
    /// Local ACK timeout exponent for the QP: 4.096 us * 2^n.
    pub ack_timeout: u8,
    /// 20 bits.
    pub flow_label: u32,
    /// With the ECN bits.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Service level: 4 bits.
    pub sl: u8,
}

/// The two ends of a connection, by the addresses that the programs use and by those of the devices.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Addresses {
    /// The own end, as the program has it.
    pub local: SocketAddr,
    /// The other end, as the program has it.
    pub peer: SocketAddr,
    /// The device of the own end.
    pub local_device: IpAddr,
    /// The device of the other end.
    pub peer_device: IpAddr,
}

/// What an owner asks for. Each is answered at once; what takes time ends in an [`Event`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are what their types say")]
pub enum Command {
    /// Makes an endpoint and reserves its port. Answered with [`Answer::Bound`].
    Bind {
        /// Of the port.
        space: PortSpace,
        /// Unspecified (0.0.0.0 or ::) means all of `devices`; port 0 means any free one.
        address: SocketAddr,
        /// The devices in whose name this endpoint speaks and hears: those that the process sees, or the one that the
        /// address means.
        devices: Vec<IpAddr>,
        /// RDMA_OPTION_ID_REUSEADDR: the port may be shared as long as at most one of the endpoints listens.
        reuse: bool,
        /// RDMA_OPTION_ID_AFONLY: `::` does not take the port of 0.0.0.0 too.
        v6_only: bool,
    },
    /// Takes requests from now on. `backlog` is how many may wait to be accepted or rejected: 0 is a default, and there
    /// is a least, as programs may take some before they answer the first. Whoever finds no room asks again later.
    Listen { endpoint: Endpoint, backlog: u32 },
    /// Sends a REQ. Ends in [`EventKind::Response`], `Rejected` or `Unreachable`.
    Connect {
        endpoint: Endpoint,
        addresses: Addresses,
        transport: Transport,
        parameters: Parameters,
        path: PathFacts,
    },
    /// Sends a SIDR_REQ. Ends in [`EventKind::ServiceResolved`], `Rejected` or `Unreachable`.
    Resolve { endpoint: Endpoint, addresses: Addresses, private_data: Vec<u8>, path: PathFacts },
    /// Answers [`EventKind::Request`] with a REP. Ends in `Established`, `Rejected`, `Unreachable` or `Disconnected`.
    Accept { endpoint: Endpoint, parameters: Parameters },
    /// Answers [`EventKind::ServiceRequest`] with a SIDR_REP.
    AcceptService { endpoint: Endpoint, qpn: u32, qkey: u32, ece: Ece, private_data: Vec<u8> },
    /// Answers a request with a REJ or with a SIDR_REP that refuses, or a response with a REJ. `reason` is for a REJ; a
    /// SIDR_REP has status 2. Neither carries options.
    Reject { endpoint: Endpoint, reason: u16, private_data: Vec<u8> },
    /// On the active side: sends the RTU that [`EventKind::Response`] waits for. On the passive side: data has arrived
    /// on the QP, which says the same as the RTU (IBA 12.9.6); ends in `Established`, unless the RTU came first.
    Establish { endpoint: Endpoint },
    /// Sends a DREQ, or the DREP if the peer has sent its DREQ. Ends in `Disconnected` (unless that was told before) and
    /// `TimewaitExit`. Where there is nothing to disconnect any more it does nothing.
    Disconnect { endpoint: Endpoint },
    /// Forgets the endpoint: what is connected is disconnected, what waits is rejected, and no event follows. Requests
    /// that came to a listener are endpoints of their own, and stay.
    Destroy { endpoint: Endpoint },
}

/// The answer to a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are what their types say")]
pub enum Answer {
    /// It is done or under way.
    Done,
    /// The endpoint of [`Command::Bind`] and its port.
    Bound { endpoint: Endpoint, port: u16 },
}

/// Why a command cannot be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error, Serialize, Deserialize)]
pub enum Refused {
    /// Another endpoint has the port.
    #[error("the port is in use")]
    AddressInUse,
    /// All ports of the dynamic range are taken.
    #[error("no port is free")]
    NoFreePort,
    /// Ports below 1024 are for root, where the system has it so.
    #[error("no permission for the port")]
    PortNotPermitted,
    /// A device that is not of this daemon.
    #[error("the address is of no device")]
    NotLocal,
    /// The endpoint does not exist or belongs to another process.
    #[error("no such endpoint")]
    NoEndpoint,
    /// The endpoint is in a state in which this cannot be done.
    #[error("not in this state")]
    State,
    /// Private data that is too long, a QPN over 24 bits, or the like.
    #[error("a value is out of its range")]
    Invalid,
    /// The daemon's limit of endpoints is reached.
    #[error("too many endpoints")]
    Limit,
}

/// Something happened at an endpoint.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Event {
    /// Where. For requests this is the new endpoint, which belongs to the listener's owner.
    pub endpoint: Endpoint,
    /// What.
    pub kind: EventKind,
}

/// What happened.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are what their types say")]
pub enum EventKind {
    /// A REQ.
    Request {
        listener: Endpoint,
        addresses: Addresses,
        transport: Transport,
        parameters: Parameters,
        path: PathFacts,
    },
    /// A SIDR_REQ.
    ServiceRequest { listener: Endpoint, addresses: Addresses, private_data: Vec<u8>, path: PathFacts },
    /// A REP: the program's QP can be made ready; then [`Command::Establish`].
    Response { parameters: Parameters },
    /// The passive side got the RTU, or was told that data arrived.
    Established { private_data: Vec<u8> },
    /// A SIDR_REP that says yes.
    ServiceResolved { qpn: u32, qkey: u32, ece: Ece, private_data: Vec<u8> },
    /// A REJ, or a SIDR_REP that says no. `reason` as in IBA table 99; for SIDR the status of the reply.
    Rejected { reason: u16, private_data: Vec<u8> },
    /// Nobody answered.
    Unreachable,
    /// A DREQ, or the DREP to ours, or nobody answered ours; or a REJ when it was established. Without `Established`
    /// before it if the RTU was lost.
    Disconnected { private_data: Vec<u8> },
    /// The QP may be used again: packets of the connection are gone (IBA 12.9.8.4).
    TimewaitExit,
}

/// Private data that fits a REQ beside the IP addresses.
pub const MAX_REQUEST_DATA: usize = 56;
/// Private data that fits a REP.
pub const MAX_REPLY_DATA: usize = 196;
/// Private data that fits a REJ.
pub const MAX_REJECT_DATA: usize = 148;
/// Private data that fits a SIDR_REQ beside the IP addresses.
pub const MAX_SERVICE_REQUEST_DATA: usize = 180;
/// Private data that fits a SIDR_REP.
pub const MAX_SERVICE_REPLY_DATA: usize = 136;
