//! The headers as plain values. Each has `parse` and `emit` over exactly its bytes; big-endian stays inside.
//!
//! Reserved bits are sent as zero and ignored on receipt (IBA 9.2), except where a value of a field is reserved: that
//! is kept, so that the engine can refuse it.

use super::opcode::{Extension, Opcode};
use super::packet::Malformed;
use crate::ids::{PKey, Psn, QKey, Qpn, RKey};

/// The longest BTH with its extension headers (an XRC atomic).
pub const MAX_HEADERS: usize = 44;

const QPN_MASK: u32 = 0x00ff_ffff;

/// Base transport header (IBA 9.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bth {
    /// What the packet is.
    pub opcode: Opcode,
    /// Solicited event: the receiver may ask to be notified of these only.
    pub solicited: bool,
    /// Migration state: adapters send 1 for "migrated", the kernel's rxe sends 0.
    pub mig_req: bool,
    /// Zero bytes between the payload and the ICRC, 0 to 3.
    pub pad: u8,
    /// Transport version; 0 is the only one.
    pub version: u8,
    /// The sender's partition.
    pub pkey: PKey,
    /// Forward congestion notification.
    pub fecn: bool,
    /// Backward congestion notification.
    pub becn: bool,
    /// The QP that the packet is for.
    pub dest_qpn: Qpn,
    /// The requester wants an acknowledgement.
    pub ack_request: bool,
    /// Sequence number.
    pub psn: Psn,
}

impl Bth {
    /// Bytes on the wire.
    pub const LEN: usize = 12;

    /// A BTH with all flags clear, as if migrated, in the default partition.
    pub const fn new(opcode: Opcode, dest_qpn: Qpn, psn: Psn) -> Self {
        Self {
            opcode,
            solicited: false,
            mig_req: true,
            pad: 0,
            version: 0,
            pkey: PKey::DEFAULT,
            fecn: false,
            becn: false,
            dest_qpn,
            ack_request: false,
            psn,
        }
    }

    /// Reads it; fails if the opcode is not a legal one.
    #[inline]
    pub fn parse(bytes: &[u8; Self::LEN]) -> Result<Self, Malformed> {
        let [code, flags, p0, p1, congestion, q0, q1, q2, ack, s0, s1, s2] = *bytes;
        let opcode = Opcode::from_u8(code).ok_or(Malformed::UnknownOpcode(code))?;
        Ok(Self {
            opcode,
            solicited: flags & 0x80 != 0,
            mig_req: flags & 0x40 != 0,
            pad: flags >> 4 & 3,
            version: flags & 0x0f,
            pkey: PKey(u16::from_be_bytes([p0, p1])),
            fecn: congestion & 0x80 != 0,
            becn: congestion & 0x40 != 0,
            dest_qpn: Qpn(u32::from_be_bytes([0, q0, q1, q2])),
            ack_request: ack & 0x80 != 0,
            psn: Psn::new(u32::from_be_bytes([0, s0, s1, s2])),
        })
    }

    /// Writes it.
    #[inline]
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        let flags = u8::from(self.solicited) << 7
            | u8::from(self.mig_req) << 6
            | (self.pad & 3) << 4
            | self.version & 0x0f;
        let congestion = u8::from(self.fecn) << 7 | u8::from(self.becn) << 6;
        let [p0, p1] = self.pkey.0.to_be_bytes();
        let [_, q0, q1, q2] = self.dest_qpn.0.to_be_bytes();
        let [_, s0, s1, s2] = self.psn.value().to_be_bytes();
        let ack = u8::from(self.ack_request) << 7;
        *out = [self.opcode as u8, flags, p0, p1, congestion, q0, q1, q2, ack, s0, s1, s2];
    }
}

/// Datagram extended transport header (IBA 9.3.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Deth {
    /// Authorises the sender.
    pub qkey: QKey,
    /// Where an answer goes.
    pub src_qpn: Qpn,
}

impl Deth {
    /// Bytes on the wire.
    pub const LEN: usize = 8;

    /// Reads it.
    #[inline]
    pub fn parse(bytes: &[u8; Self::LEN]) -> Self {
        let word = u64::from_be_bytes(*bytes);
        Self { qkey: QKey((word >> 32) as u32), src_qpn: Qpn(word as u32 & QPN_MASK) }
    }
    /// Writes it.
    #[inline]
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        *out = (u64::from(self.qkey.0) << 32 | u64::from(self.src_qpn.0 & QPN_MASK)).to_be_bytes();
    }
}

/// RDMA extended transport header (IBA 9.3.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Reth {
    /// Where in the responder's address space.
    pub addr: u64,
    /// Authorises the access.
    pub rkey: RKey,
    /// Bytes of the whole message.
    pub len: u32,
}

impl Reth {
    /// Bytes on the wire.
    pub const LEN: usize = 16;

    /// Reads it.
    #[inline]
    pub fn parse(bytes: &[u8; Self::LEN]) -> Self {
        let word = u128::from_be_bytes(*bytes);
        Self { addr: (word >> 64) as u64, rkey: RKey((word >> 32) as u32), len: word as u32 }
    }
    /// Writes it.
    #[inline]
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        let word = u128::from(self.addr) << 64 | u128::from(self.rkey.0) << 32 | u128::from(self.len);
        *out = word.to_be_bytes();
    }
}

/// Atomic extended transport header (IBA 9.3.4).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AtomicEth {
    /// Address of the 64-bit word.
    pub addr: u64,
    /// Authorises the access.
    pub rkey: RKey,
    /// The value to swap in or to add.
    pub swap_add: u64,
    /// The value to compare with.
    pub compare: u64,
}

impl AtomicEth {
    /// Bytes on the wire.
    pub const LEN: usize = 28;

    /// Reads it.
    #[inline]
    pub fn parse(bytes: &[u8; Self::LEN]) -> Self {
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_be_bytes(word)
        };
        Self { addr: word(0), rkey: RKey((word(8) >> 32) as u32), swap_add: word(12), compare: word(20) }
    }
    /// Writes it.
    #[inline]
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        out[0..8].copy_from_slice(&self.addr.to_be_bytes());
        out[8..12].copy_from_slice(&self.rkey.0.to_be_bytes());
        out[12..20].copy_from_slice(&self.swap_add.to_be_bytes());
        out[20..28].copy_from_slice(&self.compare.to_be_bytes());
    }
}

/// The reason of a NAK (IBA 9.7.5.2.8).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NakCode {
    /// 0: packets are missing before this one.
    PsnSequence,
    /// 1: the request is malformed, not supported or not allowed on this QP.
    InvalidRequest,
    /// 2: the key, the range or the permission is wrong.
    RemoteAccess,
    /// 3: the responder could not complete it.
    RemoteOperational,
    /// 4: invalid reliable datagram request.
    InvalidRd,
    /// 5 to 31.
    Reserved(u8),
}

impl NakCode {
    /// From the low 5 bits of a syndrome.
    pub const fn from_bits(bits: u8) -> Self {
        match bits & 0x1f {
            0 => Self::PsnSequence,
            1 => Self::InvalidRequest,
            2 => Self::RemoteAccess,
            3 => Self::RemoteOperational,
            4 => Self::InvalidRd,
            other => Self::Reserved(other),
        }
    }
    /// The low 5 bits of a syndrome.
    pub const fn bits(self) -> u8 {
        match self {
            Self::PsnSequence => 0,
            Self::InvalidRequest => 1,
            Self::RemoteAccess => 2,
            Self::RemoteOperational => 3,
            Self::InvalidRd => 4,
            Self::Reserved(bits) => bits & 0x1f,
        }
    }
}

/// What an AETH says (IBA 9.7.5.2.1): bits 6 and 5 tell the kind, 4 to 0 the value; bit 7 is 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Syndrome {
    /// 00: acknowledged.
    Ack {
        /// Encoded receive credits; [`Syndrome::NO_CREDIT_LIMIT`] if the responder does not count.
        credits: u8,
    },
    /// 01: the receiver was not ready.
    Rnr {
        /// Encoded time to wait.
        timer: u8,
    },
    /// 11: refused.
    Nak(NakCode),
    /// 10, or bit 7 is set; the whole byte.
    Reserved(u8),
}

impl Syndrome {
    /// The credit code of a responder without end-to-end flow control.
    pub const NO_CREDIT_LIMIT: u8 = 31;
    /// The plain ACK that this device sends.
    pub const ACK: Self = Self::Ack { credits: Self::NO_CREDIT_LIMIT };

    /// From the byte on the wire.
    #[inline]
    pub const fn from_u8(byte: u8) -> Self {
        let value = byte & 0x1f;
        match byte >> 5 {
            0b000 => Self::Ack { credits: value },
            0b001 => Self::Rnr { timer: value },
            0b011 => Self::Nak(NakCode::from_bits(value)),
            _ => Self::Reserved(byte),
        }
    }
    /// The byte on the wire.
    #[inline]
    pub const fn to_u8(self) -> u8 {
        match self {
            Self::Ack { credits } => credits & 0x1f,
            Self::Rnr { timer } => 0x20 | timer & 0x1f,
            Self::Nak(code) => 0x60 | code.bits(),
            Self::Reserved(byte) => byte,
        }
    }
}

/// ACK extended transport header (IBA 9.3.5).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Aeth {
    /// Acknowledged, not ready or refused.
    pub syndrome: Syndrome,
    /// Completed messages, 24 bits.
    pub msn: u32,
}

impl Aeth {
    /// Bytes on the wire.
    pub const LEN: usize = 4;

    /// Reads it.
    #[inline]
    pub const fn parse(bytes: &[u8; Self::LEN]) -> Self {
        let [syndrome, m0, m1, m2] = *bytes;
        Self { syndrome: Syndrome::from_u8(syndrome), msn: u32::from_be_bytes([0, m0, m1, m2]) }
    }
    /// Writes it.
    #[inline]
    pub const fn emit(&self, out: &mut [u8; Self::LEN]) {
        let [_, m0, m1, m2] = self.msn.to_be_bytes();
        *out = [self.syndrome.to_u8(), m0, m1, m2];
    }
}

/// How much a FLUSH flushes (IBA A19).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum FlushSelectivity {
    /// 0: the range that the RETH names.
    #[default]
    Range,
    /// 1: the whole memory region.
    Region,
    /// 2 and 3.
    Reserved(u8),
}

/// FLUSH extended transport header (IBA A19).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Feth {
    /// Placement types, a set of [`Feth::GLOBAL`] and [`Feth::PERSISTENT`], 4 bits.
    pub placement: u8,
    /// A range or the region.
    pub selectivity: FlushSelectivity,
}

impl Feth {
    /// Bytes on the wire.
    pub const LEN: usize = 4;
    /// Placement: visible to all.
    pub const GLOBAL: u8 = 1;
    /// Placement: safe from a loss of power.
    pub const PERSISTENT: u8 = 2;

    /// Reads it.
    #[inline]
    pub const fn parse(bytes: &[u8; Self::LEN]) -> Self {
        let low = bytes[3];
        let selectivity = match low >> 4 & 3 {
            0 => FlushSelectivity::Range,
            1 => FlushSelectivity::Region,
            other => FlushSelectivity::Reserved(other),
        };
        Self { placement: low & 0x0f, selectivity }
    }
    /// Writes it.
    #[inline]
    pub const fn emit(&self, out: &mut [u8; Self::LEN]) {
        let selectivity = match self.selectivity {
            FlushSelectivity::Range => 0,
            FlushSelectivity::Region => 1,
            FlushSelectivity::Reserved(bits) => bits & 3,
        };
        *out = [0, 0, 0, selectivity << 4 | self.placement & 0x0f];
    }
}

/// All headers of one packet. Which of the options are there, the opcode says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Headers {
    /// The base header.
    pub bth: Bth,
    /// Of RDMA requests, FLUSH and ATOMIC WRITE.
    pub reth: Option<Reth>,
    /// Of an atomic request.
    pub atomic: Option<AtomicEth>,
    /// Of a response.
    pub aeth: Option<Aeth>,
    /// The value before the atomic.
    pub atomic_ack: Option<u64>,
    /// Of a datagram.
    pub deth: Option<Deth>,
    /// Immediate data, in the order of the wire.
    pub immediate: Option<[u8; 4]>,
    /// The key that the receiver shall invalidate.
    pub invalidate: Option<RKey>,
    /// The target's SRQ number, of an XRC request.
    pub xrc_srqn: Option<Qpn>,
    /// Of a FLUSH.
    pub flush: Option<Feth>,
}

impl Headers {
    /// The base header alone; set the extension headers that its opcode wants.
    #[inline]
    pub const fn new(bth: Bth) -> Self {
        Self {
            bth,
            reth: None,
            atomic: None,
            aeth: None,
            atomic_ack: None,
            deth: None,
            immediate: None,
            invalidate: None,
            xrc_srqn: None,
            flush: None,
        }
    }

    /// Bytes that [`Headers::emit`] writes.
    #[inline]
    pub fn emitted_len(&self) -> usize {
        self.bth.opcode.info().header_len
    }

    /// Writes the headers that the opcode lists, in its order, and returns how many bytes they are. A listed header
    /// that is `None` is a mistake of the caller and goes out as zeros; one that is not listed is not sent.
    #[inline]
    pub fn emit(&self, out: &mut [u8; MAX_HEADERS]) -> usize {
        let info = self.bth.opcode.info();
        let mut rest: &mut [u8] = out;
        if let Some(bytes) = take_mut(&mut rest) {
            self.bth.emit(bytes);
        }
        for extension in info.extensions {
            // The table asserts at compile time that each list fits, so the space is always there.
            match extension {
                Extension::Xrceth => put(&mut rest, self.xrc_srqn, |srqn, out| {
                    *out = (srqn.0 & QPN_MASK).to_be_bytes();
                }),
                Extension::Deth => put(&mut rest, self.deth, |deth, out| deth.emit(out)),
                Extension::Feth => put(&mut rest, self.flush, |feth, out| feth.emit(out)),
                Extension::Reth => put(&mut rest, self.reth, |reth, out| reth.emit(out)),
                Extension::AtomicEth => put(&mut rest, self.atomic, |atomic, out| atomic.emit(out)),
                Extension::Aeth => put(&mut rest, self.aeth, |aeth, out| aeth.emit(out)),
                Extension::AtomicAckEth => {
                    put(&mut rest, self.atomic_ack, |value, out| *out = value.to_be_bytes());
                }
                Extension::Immediate => put(&mut rest, self.immediate, |bytes, out| *out = *bytes),
                Extension::Ieth => {
                    put(&mut rest, self.invalidate, |rkey, out| *out = rkey.0.to_be_bytes());
                }
                Extension::CnpReserved => put(&mut rest, Some([0; 16]), |zeros, out| *out = *zeros),
            }
        }
        info.header_len
    }

    /// Reads the headers that the opcode lists from the front of `bytes` and returns them with the rest.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), Malformed> {
        let too_short = |need| Malformed::TooShort { need, have: bytes.len() };
        let Some((bth, mut rest)) = bytes.split_first_chunk() else {
            return Err(too_short(Bth::LEN));
        };
        let mut headers = Self::new(Bth::parse(bth)?);
        let info = headers.bth.opcode.info();
        match headers.parse_extensions(info.extensions, &mut rest) {
            Some(()) => Ok((headers, rest)),
            None => Err(too_short(info.header_len)),
        }
    }

    #[inline]
    fn parse_extensions(&mut self, extensions: &[Extension], rest: &mut &[u8]) -> Option<()> {
        for extension in extensions {
            match extension {
                Extension::Xrceth => {
                    self.xrc_srqn = Some(Qpn(u32::from_be_bytes(*take(rest)?) & QPN_MASK));
                }
                Extension::Deth => self.deth = Some(Deth::parse(take(rest)?)),
                Extension::Feth => self.flush = Some(Feth::parse(take(rest)?)),
                Extension::Reth => self.reth = Some(Reth::parse(take(rest)?)),
                Extension::AtomicEth => self.atomic = Some(AtomicEth::parse(take(rest)?)),
                Extension::Aeth => self.aeth = Some(Aeth::parse(take(rest)?)),
                Extension::AtomicAckEth => self.atomic_ack = Some(u64::from_be_bytes(*take(rest)?)),
                Extension::Immediate => self.immediate = Some(*take(rest)?),
                Extension::Ieth => self.invalidate = Some(RKey(u32::from_be_bytes(*take(rest)?))),
                Extension::CnpReserved => {
                    take::<16>(rest)?;
                }
            }
        }
        Some(())
    }
}

/// Cuts `N` bytes off the front.
#[inline]
fn take<'a, const N: usize>(rest: &mut &'a [u8]) -> Option<&'a [u8; N]> {
    let (front, back) = rest.split_first_chunk()?;
    *rest = back;
    Some(front)
}

/// Cuts `N` bytes off the front, to write to.
#[inline]
fn take_mut<'a, const N: usize>(rest: &mut &'a mut [u8]) -> Option<&'a mut [u8; N]> {
    let (front, back) = std::mem::take(rest).split_first_chunk_mut()?;
    *rest = back;
    Some(front)
}

/// Emits one extension header, or zeros if the caller did not set it.
#[inline]
fn put<T, const N: usize>(rest: &mut &mut [u8], value: Option<T>, emit: impl FnOnce(&T, &mut [u8; N])) {
    debug_assert!(value.is_some(), "the opcode lists a header that is not set");
    if let Some(out) = take_mut(rest) {
        match value {
            Some(value) => emit(&value, out),
            None => *out = [0; N],
        }
    }
}

#[cfg(test)]
mod tests;
