//! Management datagrams (IBA 13.4): the 24 bytes that all have in common, and fields at fixed places behind them.

use std::fmt;

use crate::ids::Gid;

/// Bytes of every management datagram.
pub const MAD_LEN: usize = 256;
/// A management datagram.
pub type Mad = [u8; MAD_LEN];

/// Bytes of the common header.
const HEADER_LEN: usize = 24;
const BASE_VERSION: u8 = 1;
/// Communication management.
const CLASS: u8 = 7;
const CLASS_VERSION: u8 = 2;
/// `ComMgtSend`: the only method of the class but those that nobody uses.
const METHOD: u8 = 3;

/// Why bytes are no message of the connection manager.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Malformed {
    /// Not 256 bytes.
    #[error("{0} bytes are no management datagram")]
    Length(usize),
    /// Another base version, class, class version or method.
    #[error("not of communication management: {0:02x?}")]
    Class([u8; 4]),
    /// No message has this attribute.
    #[error("attribute {0:#06x} is no message")]
    Attribute(u16),
}

/// What the common header says beyond that it is one of communication management.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// The same in a request and in what answers it.
    pub transaction: u64,
    /// Which message.
    pub attribute: u16,
    /// Carries the options of enhanced connection establishment.
    pub modifier: u32,
}

impl Header {
    /// Reads it, and gives a view of the fields behind it.
    pub fn parse(bytes: &[u8]) -> Result<(Self, View<'_>), Malformed> {
        let mad: &Mad = bytes.try_into().map_err(|_| Malformed::Length(bytes.len()))?;
        let &[base, class, version, method, ..] = mad;
        if [base, class, version, method] != [BASE_VERSION, CLASS, CLASS_VERSION, METHOD] {
            return Err(Malformed::Class([base, class, version, method]));
        }
        let at = |n: usize| n.wrapping_sub(HEADER_LEN);
        let view = View(mad);
        let header =
            Self { transaction: view.u64(at(8)), attribute: view.u16(at(16)), modifier: view.u32(at(20)) };
        Ok((header, view))
    }

    /// Writes it into zeros, for the fields to follow.
    pub fn emit(&self) -> Emitter {
        let mut mad = [0; MAD_LEN];
        mad[..4].copy_from_slice(&[BASE_VERSION, CLASS, CLASS_VERSION, METHOD]);
        mad[8..16].copy_from_slice(&self.transaction.to_be_bytes());
        mad[16..18].copy_from_slice(&self.attribute.to_be_bytes());
        mad[20..24].copy_from_slice(&self.modifier.to_be_bytes());
        Emitter(mad)
    }
}

/// The fields of a datagram whose length is checked. Places count from the end of the common header, as in the tables
/// of IBA chapter 12; all are constants.
#[derive(Clone, Copy)]
pub struct View<'a>(&'a Mad);

impl fmt::Debug for View<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "View({:02x?})", &self.0[..])
    }
}

impl View<'_> {
    /// Bytes.
    pub fn bytes<const N: usize>(self, at: usize) -> [u8; N] {
        let at = at.wrapping_add(HEADER_LEN);
        let mut out = [0; N];
        out.copy_from_slice(&self.0[at..at + N]);
        out
    }
    /// One byte.
    pub fn u8(self, at: usize) -> u8 {
        u8::from_be_bytes(self.bytes(at))
    }
    /// Two bytes.
    pub fn u16(self, at: usize) -> u16 {
        u16::from_be_bytes(self.bytes(at))
    }
    /// Three bytes, as QPNs and PSNs have.
    pub fn u24(self, at: usize) -> u32 {
        let [a, b, c] = self.bytes(at);
        u32::from_be_bytes([0, a, b, c])
    }
    /// Four bytes.
    pub fn u32(self, at: usize) -> u32 {
        u32::from_be_bytes(self.bytes(at))
    }
    /// Eight bytes.
    pub fn u64(self, at: usize) -> u64 {
        u64::from_be_bytes(self.bytes(at))
    }
    /// A GID.
    pub fn gid(self, at: usize) -> Gid {
        Gid(self.bytes(at))
    }
}

/// A datagram that is being written. Places as in [`View`].
pub struct Emitter(Mad);

impl Emitter {
    /// Bytes.
    pub fn bytes(&mut self, at: usize, bytes: &[u8]) {
        let at = at + HEADER_LEN;
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }
    /// One byte.
    pub fn u8(&mut self, at: usize, value: u8) {
        self.bytes(at, &[value]);
    }
    /// Two bytes.
    pub fn u16(&mut self, at: usize, value: u16) {
        self.bytes(at, &value.to_be_bytes());
    }
    /// Three bytes: the low ones.
    pub fn u24(&mut self, at: usize, value: u32) {
        let [_, a, b, c] = value.to_be_bytes();
        self.bytes(at, &[a, b, c]);
    }
    /// Four bytes.
    pub fn u32(&mut self, at: usize, value: u32) {
        self.bytes(at, &value.to_be_bytes());
    }
    /// Eight bytes.
    pub fn u64(&mut self, at: usize, value: u64) {
        self.bytes(at, &value.to_be_bytes());
    }
    /// A GID.
    pub fn gid(&mut self, at: usize, gid: Gid) {
        self.bytes(at, &gid.0);
    }
    /// The datagram.
    pub fn finish(self) -> Mad {
        self.0
    }
}
