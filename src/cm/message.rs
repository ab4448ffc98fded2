//! The messages (IBA 12.6 for connections, 12.11 for services of datagrams; annex A11 for IP addresses).
//!
//! Each is a plain value with `parse` and `emit` over the fields behind the common header. What is reserved is sent as
//! zero and ignored on receipt.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::mad::{Emitter, Header, Mad, Malformed, View};
use super::types::{Ece, Transport};
use crate::ids::Gid;

/// Why a request, a reply or a connection is refused (IBA 12.6.7.2).
pub mod reason {
    /// The sender has given up waiting.
    pub const TIMEOUT: u16 = 4;
    /// There is no such communication.
    pub const INVALID_COMMUNICATION: u16 = 6;
    /// Nobody listens.
    pub const INVALID_SERVICE: u16 = 8;
    /// RD, or what is not known.
    pub const INVALID_TRANSPORT: u16 = 9;
    /// The QP is connected already, as far as the sender knows.
    pub const STALE: u16 = 10;
    /// The GIDs are not those of the packet.
    pub const INVALID_GID: u16 = 12;
    /// Path MTU 0, 6 and up.
    pub const INVALID_MTU: u16 = 26;
    /// The program refuses.
    pub const CONSUMER: u16 = 28;
}

/// How the request for a service of datagrams ends (IBA 12.11.2.1).
pub mod status {
    /// QPN and Q_Key are valid.
    pub const SUCCESS: u8 = 0;
    /// Nobody listens.
    pub const UNSUPPORTED: u8 = 1;
    /// The program refuses.
    pub const REJECT: u8 = 2;
}

/// What a REJ or an MRA is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum About {
    /// A REQ.
    Request,
    /// A REP.
    Reply,
    /// Neither, or nothing in particular.
    Other,
}

impl About {
    fn parse(byte: u8) -> Self {
        match byte >> 6 {
            0 => Self::Request,
            1 => Self::Reply,
            _ => Self::Other,
        }
    }
    fn emit(self) -> u8 {
        match self {
            Self::Request => 0,
            Self::Reply => 1 << 6,
            Self::Other => 2 << 6,
        }
    }
}

/// IP addresses in front of the private data of a REQ or SIDR_REQ (annex A11.4).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IpHeader {
    /// Of the sender.
    pub port: u16,
    /// The sender.
    pub source: IpAddr,
    /// Whom it wants; of the same family.
    pub destination: IpAddr,
}

impl IpHeader {
    /// Bytes.
    pub const LEN: usize = 36;

    /// Reads it; `None` if the version is another or the family unknown.
    pub fn parse(bytes: &[u8; Self::LEN]) -> Option<Self> {
        let [version, family, p0, p1, rest @ ..] = bytes;
        if *version != 0 {
            return None;
        }
        let address = |at: usize| -> Option<IpAddr> {
            let sixteen: [u8; 16] = rest[at..at + 16].try_into().ok()?;
            match family >> 4 {
                4 => Some(Ipv4Addr::new(sixteen[12], sixteen[13], sixteen[14], sixteen[15]).into()),
                6 => Some(Ipv6Addr::from(sixteen).into()),
                _ => None,
            }
        };
        Some(Self { port: u16::from_be_bytes([*p0, *p1]), source: address(0)?, destination: address(16)? })
    }

    /// Writes it.
    pub fn emit(&self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        out[1] = if self.destination.is_ipv4() { 4 << 4 } else { 6 << 4 };
        out[2..4].copy_from_slice(&self.port.to_be_bytes());
        for (at, address) in [(4, self.source), (20, self.destination)] {
            match address {
                IpAddr::V4(v4) => out[at + 12..at + 16].copy_from_slice(&v4.octets()),
                IpAddr::V6(v6) => out[at..at + 16].copy_from_slice(&v6.octets()),
            }
        }
        out
    }
}

/// Private data of a fixed length: shorter data is followed by zeros, and what is too long is cut.
pub fn padded<const N: usize>(data: &[u8]) -> [u8; N] {
    let mut out = [0; N];
    let len = data.len().min(N);
    out[..len].copy_from_slice(&data[..len]);
    out
}

/// Request for communication (IBA 12.6.5). Of the alternate path there is nothing: RoCE has no path migration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Req {
    /// The sender's number for this communication.
    pub local_id: u32,
    /// Options.
    pub ece: Ece,
    /// What is wanted; see [`super::PortSpace::service_id`].
    pub service_id: u64,
    /// The sender's device.
    pub ca_guid: u64,
    /// 24 bits.
    pub qpn: u32,
    /// READs and atomics that the sender serves at once.
    pub responder_resources: u8,
    /// READs and atomics that it asks for at once.
    pub initiator_depth: u8,
    /// How long it waits for a REP: 4.096 us * 2^n, 5 bits.
    pub remote_response_timeout: u8,
    /// How long it takes for answers of its own, 5 bits.
    pub local_response_timeout: u8,
    /// Transport service type: 2 bits.
    pub service_type: u8,
    /// Extended transport type, if the service type is 3: 3 bits.
    pub extended_type: u8,
    /// End-to-end flow control.
    pub flow_control: bool,
    /// The PSN with which the other end is to begin: 24 bits.
    pub psn: u32,
    /// 3 bits.
    pub retry_count: u8,
    /// 3 bits.
    pub rnr_retry_count: u8,
    /// Partition.
    pub pkey: u16,
    /// 4 bits.
    pub mtu: u8,
    /// How often the sender repeats a message: 4 bits.
    pub max_retries: u8,
    /// The QP has a shared receive queue.
    pub srq: bool,
    /// The sender's LID; the permissive one on RoCE.
    pub local_lid: u16,
    /// The receiver's.
    pub remote_lid: u16,
    /// The sender.
    pub local_gid: Gid,
    /// The receiver.
    pub remote_gid: Gid,
    /// 20 bits.
    pub flow_label: u32,
    /// 6 bits.
    pub packet_rate: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Service level: 4 bits.
    pub sl: u8,
    /// The path leaves no subnet.
    pub subnet_local: bool,
    /// Local ACK timeout: 5 bits.
    pub ack_timeout: u8,
    /// With the IP addresses in front.
    pub private_data: [u8; 92],
}

impl Req {
    /// The transport, if it is one that we know.
    pub fn transport(&self) -> Option<Transport> {
        match (self.service_type, self.extended_type) {
            (0, _) => Some(Transport::Rc),
            (1, _) => Some(Transport::Uc),
            (3, 1) => Some(Transport::Xrc),
            _ => None,
        }
    }

    /// The fields that name a transport.
    pub fn service_type(transport: Transport) -> (u8, u8) {
        match transport {
            Transport::Rc => (0, 0),
            Transport::Uc => (1, 0),
            Transport::Xrc => (3, 1),
        }
    }

    fn parse(modifier: u32, v: View<'_>) -> Self {
        let (timeouts, retries, mtu, limits) = (v.u8(43), v.u8(47), v.u8(50), v.u8(51));
        Self {
            local_id: v.u32(0),
            ece: Ece { vendor_id: v.u24(5), options: modifier },
            service_id: v.u64(8),
            ca_guid: v.u64(16),
            qpn: v.u24(32),
            responder_resources: v.u8(35),
            initiator_depth: v.u8(39),
            remote_response_timeout: timeouts >> 3,
            local_response_timeout: retries >> 3,
            service_type: timeouts >> 1 & 3,
            extended_type: limits & 7,
            flow_control: timeouts & 1 != 0,
            psn: v.u24(44),
            retry_count: retries & 7,
            rnr_retry_count: mtu & 7,
            pkey: v.u16(48),
            mtu: mtu >> 4,
            max_retries: limits >> 4,
            srq: limits & 8 != 0,
            local_lid: v.u16(52),
            remote_lid: v.u16(54),
            local_gid: v.gid(56),
            remote_gid: v.gid(72),
            flow_label: v.u32(88) >> 12,
            packet_rate: v.u8(91) & 0x3f,
            traffic_class: v.u8(92),
            hop_limit: v.u8(93),
            sl: v.u8(94) >> 4,
            subnet_local: v.u8(94) & 8 != 0,
            ack_timeout: v.u8(95) >> 3,
            private_data: v.bytes(140),
        }
    }

    fn emit(&self, e: &mut Emitter) {
        e.u32(0, self.local_id);
        e.u24(5, self.ece.vendor_id);
        e.u64(8, self.service_id);
        e.u64(16, self.ca_guid);
        e.u24(32, self.qpn);
        e.u8(35, self.responder_resources);
        e.u8(39, self.initiator_depth);
        e.u8(
            43,
            self.remote_response_timeout << 3 | (self.service_type & 3) << 1 | u8::from(self.flow_control),
        );
        e.u24(44, self.psn);
        e.u8(47, self.local_response_timeout << 3 | self.retry_count & 7);
        e.u16(48, self.pkey);
        e.u8(50, self.mtu << 4 | self.rnr_retry_count & 7);
        e.u8(51, self.max_retries << 4 | u8::from(self.srq) << 3 | self.extended_type & 7);
        e.u16(52, self.local_lid);
        e.u16(54, self.remote_lid);
        e.gid(56, self.local_gid);
        e.gid(72, self.remote_gid);
        e.u32(88, self.flow_label << 12 | u32::from(self.packet_rate & 0x3f));
        e.u8(92, self.traffic_class);
        e.u8(93, self.hop_limit);
        e.u8(94, self.sl << 4 | u8::from(self.subnet_local) << 3);
        e.u8(95, self.ack_timeout << 3);
        e.bytes(140, &self.private_data);
    }
}

/// Message receipt acknowledgement: the answer takes a while (IBA 12.6.6).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mra {
    /// The sender's number.
    pub local_id: u32,
    /// The receiver's.
    pub remote_id: u32,
    /// What was received.
    pub about: About,
    /// How long the answer may take: 4.096 us * 2^n, 5 bits.
    pub service_timeout: u8,
}

/// Reject (IBA 12.6.7).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rej {
    /// The sender's number; 0 if it has none.
    pub local_id: u32,
    /// The receiver's; 0 if the sender does not know it.
    pub remote_id: u32,
    /// What is rejected.
    pub about: About,
    /// See [`reason`].
    pub reason: u16,
    /// Additional information; for a time-out the sender's GUID.
    pub info: [u8; 72],
    /// How much of it counts: 7 bits.
    pub info_len: u8,
    /// The program's bytes.
    pub private_data: [u8; 148],
}

/// Reply to a request for communication (IBA 12.6.8).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rep {
    /// The sender's number.
    pub local_id: u32,
    /// The receiver's.
    pub remote_id: u32,
    /// Options.
    pub ece: Ece,
    /// 24 bits.
    pub qpn: u32,
    /// End-to-end context: 24 bits. XRC targets have their QPN here.
    pub eecn: u32,
    /// The PSN with which the other end is to begin: 24 bits.
    pub psn: u32,
    /// READs and atomics that the sender serves at once.
    pub responder_resources: u8,
    /// READs and atomics that it asks for at once.
    pub initiator_depth: u8,
    /// How long its acknowledgements may take: 4.096 us * 2^n, 5 bits.
    pub target_ack_delay: u8,
    /// Whether it takes the alternate path: 2 bits.
    pub failover: u8,
    /// End-to-end flow control.
    pub flow_control: bool,
    /// 3 bits.
    pub rnr_retry_count: u8,
    /// The QP has a shared receive queue.
    pub srq: bool,
    /// The sender's device.
    pub ca_guid: u64,
    /// The program's bytes.
    pub private_data: [u8; 196],
}

/// Ready to use (IBA 12.6.9).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rtu {
    /// The sender's number.
    pub local_id: u32,
    /// The receiver's.
    pub remote_id: u32,
    /// The program's bytes.
    pub private_data: [u8; 224],
}

/// Request for communication release (IBA 12.6.10).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Dreq {
    /// The sender's number.
    pub local_id: u32,
    /// The receiver's.
    pub remote_id: u32,
    /// The receiver's QP.
    pub remote_qpn: u32,
    /// The program's bytes.
    pub private_data: [u8; 220],
}

/// Reply to a request for communication release (IBA 12.6.11).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Drep {
    /// The sender's number.
    pub local_id: u32,
    /// The receiver's.
    pub remote_id: u32,
    /// The program's bytes.
    pub private_data: [u8; 224],
}

/// Request for the QP of a service of datagrams (IBA 12.11.1).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SidrReq {
    /// The sender's number.
    pub request_id: u32,
    /// Partition.
    pub pkey: u16,
    /// What is wanted.
    pub service_id: u64,
    /// With the IP addresses in front.
    pub private_data: [u8; 216],
}

/// The answer to it (IBA 12.11.2).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SidrRep {
    /// The number in the request.
    pub request_id: u32,
    /// See [`status`].
    pub status: u8,
    /// Options.
    pub ece: Ece,
    /// 24 bits.
    pub qpn: u32,
    /// As in the request.
    pub service_id: u64,
    /// The QP's.
    pub qkey: u32,
    /// The program's bytes.
    pub private_data: [u8; 136],
}

/// Any message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Message {
    /// Request for communication.
    Req(Req),
    /// It takes a while.
    Mra(Mra),
    /// Reject.
    Rej(Rej),
    /// Reply.
    Rep(Rep),
    /// Ready to use.
    Rtu(Rtu),
    /// Request for release.
    Dreq(Dreq),
    /// Reply to that.
    Drep(Drep),
    /// Request for a service of datagrams.
    SidrReq(SidrReq),
    /// Reply to that.
    SidrRep(SidrRep),
    /// Load alternate path, or the answer to it: there are no alternate paths here.
    AlternatePath,
}

impl Message {
    const REQ: u16 = 0x10;
    const MRA: u16 = 0x11;
    const REJ: u16 = 0x12;
    const REP: u16 = 0x13;
    const RTU: u16 = 0x14;
    const DREQ: u16 = 0x15;
    const DREP: u16 = 0x16;
    const SIDR_REQ: u16 = 0x17;
    const SIDR_REP: u16 = 0x18;
    const LAP: u16 = 0x19;
    const APR: u16 = 0x1a;

    /// Reads a management datagram: transaction and message.
    pub fn parse(bytes: &[u8]) -> Result<(u64, Self), Malformed> {
        let (header, v) = Header::parse(bytes)?;
        let message = match header.attribute {
            Self::REQ => Self::Req(Req::parse(header.modifier, v)),
            Self::MRA => Self::Mra(Mra {
                local_id: v.u32(0),
                remote_id: v.u32(4),
                about: About::parse(v.u8(8)),
                service_timeout: v.u8(9) >> 3,
            }),
            Self::REJ => Self::Rej(Rej {
                local_id: v.u32(0),
                remote_id: v.u32(4),
                about: About::parse(v.u8(8)),
                info_len: v.u8(9) >> 1,
                reason: v.u16(10),
                info: v.bytes(12),
                private_data: v.bytes(84),
            }),
            Self::REP => {
                let (acks, retries) = (v.u8(26), v.u8(27));
                let vendor_id = u32::from_be_bytes([0, v.u8(15), v.u8(19), v.u8(23)]);
                Self::Rep(Rep {
                    local_id: v.u32(0),
                    remote_id: v.u32(4),
                    ece: Ece { vendor_id, options: header.modifier },
                    qpn: v.u24(12),
                    eecn: v.u24(16),
                    psn: v.u24(20),
                    responder_resources: v.u8(24),
                    initiator_depth: v.u8(25),
                    target_ack_delay: acks >> 3,
                    failover: acks >> 1 & 3,
                    flow_control: acks & 1 != 0,
                    rnr_retry_count: retries >> 5,
                    srq: retries & 0x10 != 0,
                    ca_guid: v.u64(28),
                    private_data: v.bytes(36),
                })
            }
            Self::RTU => Self::Rtu(Rtu { local_id: v.u32(0), remote_id: v.u32(4), private_data: v.bytes(8) }),
            Self::DREQ => Self::Dreq(Dreq {
                local_id: v.u32(0),
                remote_id: v.u32(4),
                remote_qpn: v.u24(8),
                private_data: v.bytes(12),
            }),
            Self::DREP => {
                Self::Drep(Drep { local_id: v.u32(0), remote_id: v.u32(4), private_data: v.bytes(8) })
            }
            Self::SIDR_REQ => Self::SidrReq(SidrReq {
                request_id: v.u32(0),
                pkey: v.u16(4),
                service_id: v.u64(8),
                private_data: v.bytes(16),
            }),
            Self::SIDR_REP => {
                let vendor_id = u32::from(v.u16(6)) << 8 | u32::from(v.u8(11));
                Self::SidrRep(SidrRep {
                    request_id: v.u32(0),
                    status: v.u8(4),
                    ece: Ece { vendor_id, options: header.modifier },
                    qpn: v.u24(8),
                    service_id: v.u64(12),
                    qkey: v.u32(20),
                    private_data: v.bytes(96),
                })
            }
            Self::LAP | Self::APR => Self::AlternatePath,
            other => return Err(Malformed::Attribute(other)),
        };
        Ok((header.transaction, message))
    }

    /// Writes a management datagram. An [`Message::AlternatePath`] is a LAP with nothing in it: we send none.
    pub fn emit(&self, transaction: u64) -> Mad {
        let (attribute, modifier) = match self {
            Self::Req(m) => (Self::REQ, m.ece.options),
            Self::Mra(_) => (Self::MRA, 0),
            Self::Rej(_) => (Self::REJ, 0),
            Self::Rep(m) => (Self::REP, m.ece.options),
            Self::Rtu(_) => (Self::RTU, 0),
            Self::Dreq(_) => (Self::DREQ, 0),
            Self::Drep(_) => (Self::DREP, 0),
            Self::SidrReq(_) => (Self::SIDR_REQ, 0),
            Self::SidrRep(m) => (Self::SIDR_REP, m.ece.options),
            Self::AlternatePath => (Self::LAP, 0),
        };
        let mut e = Header { transaction, attribute, modifier }.emit();
        match self {
            Self::Req(m) => m.emit(&mut e),
            Self::Mra(m) => {
                e.u32(0, m.local_id);
                e.u32(4, m.remote_id);
                e.u8(8, m.about.emit());
                e.u8(9, m.service_timeout << 3);
            }
            Self::Rej(m) => {
                e.u32(0, m.local_id);
                e.u32(4, m.remote_id);
                e.u8(8, m.about.emit());
                e.u8(9, m.info_len << 1);
                e.u16(10, m.reason);
                e.bytes(12, &m.info);
                e.bytes(84, &m.private_data);
            }
            Self::Rep(m) => {
                let [_, high, middle, low] = m.ece.vendor_id.to_be_bytes();
                e.u32(0, m.local_id);
                e.u32(4, m.remote_id);
                e.u24(12, m.qpn);
                e.u8(15, high);
                e.u24(16, m.eecn);
                e.u8(19, middle);
                e.u24(20, m.psn);
                e.u8(23, low);
                e.u8(24, m.responder_resources);
                e.u8(25, m.initiator_depth);
                e.u8(26, m.target_ack_delay << 3 | (m.failover & 3) << 1 | u8::from(m.flow_control));
                e.u8(27, m.rnr_retry_count << 5 | u8::from(m.srq) << 4);
                e.u64(28, m.ca_guid);
                e.bytes(36, &m.private_data);
            }
            Self::Rtu(Rtu { local_id, remote_id, private_data })
            | Self::Drep(Drep { local_id, remote_id, private_data }) => {
                e.u32(0, *local_id);
                e.u32(4, *remote_id);
                e.bytes(8, private_data);
            }
            Self::Dreq(m) => {
                e.u32(0, m.local_id);
                e.u32(4, m.remote_id);
                e.u24(8, m.remote_qpn);
                e.bytes(12, &m.private_data);
            }
            Self::SidrReq(m) => {
                e.u32(0, m.request_id);
                e.u16(4, m.pkey);
                e.u64(8, m.service_id);
                e.bytes(16, &m.private_data);
            }
            Self::SidrRep(m) => {
                let [_, high, middle, low] = m.ece.vendor_id.to_be_bytes();
                e.u32(0, m.request_id);
                e.u8(4, m.status);
                e.bytes(6, &[high, middle]);
                e.u24(8, m.qpn);
                e.u8(11, low);
                e.u64(12, m.service_id);
                e.u32(20, m.qkey);
                e.bytes(96, &m.private_data);
            }
            Self::AlternatePath => {}
        }
        e.finish()
    }
}
