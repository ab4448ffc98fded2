//! The invariant CRC (IBA 7.8.1, annex A17.3.3): the CRC-32 of Ethernet over the packet from the IP header to the pad,
//! with ones in place of what changes on the way, preceded by 8 bytes of ones for the link header that RoCEv2 lacks.
//!
//! Two facts make it cheap here. The CRC is linear over GF(2): the fields of the IP and UDP headers that differ between
//! packets of one path (two lengths and the IPv4 identification) contribute by XOR, looked up in a table, to a constant
//! of the path. And it is invertible: a receiver that cannot see the identification divides the difference by the
//! power of x that stands for its distance from the end, and sees whether a 16-bit number comes out.
//!
//! Inside, a register is kept as the usual table-driven implementations do: reflected, bit 31 is the coefficient of x^0.

use super::ICRC_LEN;
use super::header::{Bth, Feth, Reth};
use super::opcode::Opcode;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

mod field;
use field::{INVERSE_POWERS, SLICES, V4_LENGTH_ID, V6_LENGTH, inverse_power, multiply};

const IPV4_LEN: usize = 20;
const IPV6_LEN: usize = 40;
const UDP_LEN: usize = 8;

/// The longest UDP payload that an IPv4 packet can carry.
const MAX_DATAGRAM: usize = u16::MAX as usize - IPV4_LEN - UDP_LEN;

/// From this length on the vectorised implementation is at least as fast as [`short`]: measured at 10 ns for either.
const LONG: usize = 48;

/// What never changes between the packets from one address and port to another: cheap to make, 8 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PathIcrc {
    /// The register after the IP and UDP headers, with lengths and identification 0.
    base: u32,
    v6: bool,
}

impl PathIcrc {
    /// Over IPv4.
    pub fn v4(src: Ipv4Addr, dst: Ipv4Addr, src_port: u16, dst_port: u16) -> Self {
        let mut header = [0xff; 8 + IPV4_LEN + UDP_LEN];
        // Version and header length; the type of service stays ones.
        header[8] = 0x45;
        // Total length and identification come in `start`; no fragment, and it must not become one.
        header[10..14].fill(0);
        header[14..16].copy_from_slice(&[0x40, 0]);
        // Time to live and checksum stay ones.
        header[17] = 17;
        header[20..24].copy_from_slice(&src.octets());
        header[24..28].copy_from_slice(&dst.octets());
        udp(&mut header[28..], src_port, dst_port);
        Self { base: short(!0, &header), v6: false }
    }

    /// Over IPv6.
    pub fn v6(src: Ipv6Addr, dst: Ipv6Addr, src_port: u16, dst_port: u16) -> Self {
        let mut header = [0xff; 8 + IPV6_LEN + UDP_LEN];
        // The version; traffic class and flow label stay ones, and so does the hop limit.
        header[8] = 0x6f;
        header[12..14].fill(0);
        header[14] = 17;
        header[16..32].copy_from_slice(&src.octets());
        header[32..48].copy_from_slice(&dst.octets());
        udp(&mut header[48..], src_port, dst_port);
        Self { base: short(!0, &header), v6: true }
    }

    /// Between two socket addresses; IPv4-mapped ones are IPv4 on the wire.
    pub fn new(src: SocketAddr, dst: SocketAddr) -> Self {
        match (src.ip().to_canonical(), dst.ip().to_canonical()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => Self::v4(from, to, src.port(), dst.port()),
            (from, to) => Self::v6(as_v6(from), as_v6(to), src.port(), dst.port()),
        }
    }

    /// Whether the path is IPv6, whose packets have no identification.
    pub const fn is_v6(&self) -> bool {
        self.v6
    }

    /// The state after the IP and UDP headers of a packet whose UDP payload, ICRC included, has this length. `ip_id` does
    /// not matter on IPv6.
    #[inline]
    pub fn start(&self, udp_payload_len: usize, ip_id: u16) -> Icrc {
        let udp_len = (udp_payload_len as u16).wrapping_add(UDP_LEN as u16);
        let [high, low] = udp_len.to_be_bytes();
        let udp_part = SLICES[3][usize::from(high)] ^ SLICES[2][usize::from(low)];
        let ip_part = if self.v6 {
            // The payload of the IPv6 packet is the UDP packet: the same length again.
            V6_LENGTH[0][usize::from(high)] ^ V6_LENGTH[1][usize::from(low)]
        } else {
            let [l0, l1] = udp_len.wrapping_add(IPV4_LEN as u16).to_be_bytes();
            let [i0, i1] = ip_id.to_be_bytes();
            V4_LENGTH_ID[0][usize::from(l0)]
                ^ V4_LENGTH_ID[1][usize::from(l1)]
                ^ V4_LENGTH_ID[2][usize::from(i0)]
                ^ V4_LENGTH_ID[3][usize::from(i1)]
        };
        Icrc { state: self.base ^ udp_part ^ ip_part }
    }

    /// Writes the ICRC of a packet into its last 4 bytes; all before them is there already. Does nothing to a slice too
    /// short to be a packet.
    pub fn seal(&self, ip_id: u16, flush: FlushIcrc, datagram: &mut [u8]) {
        let len = datagram.len();
        let Some((covered, end)) = datagram.split_last_chunk_mut::<ICRC_LEN>() else { return };
        let mut icrc = self.start(len, ip_id);
        icrc.headers(covered);
        if flush == FlushIcrc::Rxe && covered.first() == Some(&(Opcode::RcFlush as u8)) {
            icrc.update(covered);
        }
        *end = icrc.finish();
    }
}

fn as_v6(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

/// The UDP header with length 0; the checksum stays ones.
fn udp(header: &mut [u8], src_port: u16, dst_port: u16) {
    header[0..2].copy_from_slice(&src_port.to_be_bytes());
    header[2..4].copy_from_slice(&dst_port.to_be_bytes());
    header[4..6].fill(0);
}

/// An ICRC being computed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Icrc {
    state: u32,
}

impl Icrc {
    /// Goes on from a state that [`Icrc::state`] gave.
    pub const fn from_state(state: u32) -> Self {
        Self { state }
    }
    /// The register, to go on from later.
    pub const fn state(self) -> u32 {
        self.state
    }

    /// The transport headers, from the BTH on; more may follow in the same slice. Byte 4 of the BTH (FECN, BECN and
    /// reserved bits) counts as ones.
    #[inline]
    pub fn headers(&mut self, bytes: &[u8]) {
        match bytes.split_first_chunk::<8>() {
            Some((bth, rest)) => {
                let mut bth = *bth;
                bth[4] = 0xff;
                self.state = eight(self.state, bth);
                self.update(rest);
            }
            None => {
                let mut masked = [0xff; 8];
                for (i, (to, from)) in masked.iter_mut().zip(bytes).enumerate() {
                    *to = if i == 4 { 0xff } else { *from };
                }
                self.state = short(self.state, &masked[..bytes.len()]);
            }
        }
    }

    /// More of the packet: payload and pad.
    #[inline]
    pub fn update(&mut self, bytes: &[u8]) {
        self.state = if bytes.len() < LONG {
            short(self.state, bytes)
        } else {
            let mut hasher = crc32fast::Hasher::new_with_initial(!self.state);
            hasher.update(bytes);
            !hasher.finalize()
        };
    }

    /// The ICRC in the order of the wire.
    #[inline]
    pub const fn finish(self) -> [u8; ICRC_LEN] {
        (!self.state).to_le_bytes()
    }
}

/// How the ICRC of a FLUSH request is computed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum FlushIcrc {
    /// As of any other packet.
    #[default]
    Standard,
    /// As the kernel's rxe does (seen on Linux 7.3): over the transport headers a second time, unmasked. An rxe peer
    /// drops a FLUSH without this.
    Rxe,
}

/// What [`verify`] found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Check {
    /// Correct.
    Match,
    /// Correct if the IPv4 identification, which was not known, is this one.
    SolvedId(u16),
    /// Damaged, or not from where it claims to be.
    Mismatch,
}

/// Checks the ICRC of a received UDP payload. `path` goes from the sender to us.
///
/// With the identification known it must be right. Without, 0 is tried first (which is what sockets that forbid
/// fragmentation send), then solved for; so one error in 65536 goes unnoticed, and the caller counts these apart. There
/// is no use for a guess such as the peer's last identification: solving costs no more than trying it would.
///
/// A FLUSH may have either of the two ICRCs that [`FlushIcrc`] tells apart.
#[inline]
pub fn verify(path: &PathIcrc, ip_id: Option<u16>, datagram: &[u8]) -> Check {
    let Some((covered, received)) = datagram.split_last_chunk::<ICRC_LEN>() else {
        return Check::Mismatch;
    };
    if covered.len() < Bth::LEN || datagram.len() > MAX_DATAGRAM {
        return Check::Mismatch;
    }
    let received = !u32::from_le_bytes(*received);
    let mut icrc = path.start(datagram.len(), ip_id.unwrap_or(0));
    icrc.headers(covered);
    let solvable = ip_id.is_none() && !path.v6;
    let judge = |state: u32, covered_len: usize| match state ^ received {
        0 => Check::Match,
        difference if solvable => solve(difference, covered_len).map_or(Check::Mismatch, Check::SolvedId),
        _ => Check::Mismatch,
    };
    let check = judge(icrc.state, covered.len());
    const FLUSH_LEN: usize = Bth::LEN + Feth::LEN + Reth::LEN;
    if check == Check::Match || covered[0] != Opcode::RcFlush as u8 || covered.len() != FLUSH_LEN {
        return check;
    }
    icrc.update(covered);
    match judge(icrc.state, covered.len() + FLUSH_LEN) {
        Check::Mismatch => check,
        // If both rules can be solved for, one of them by accident, it does not matter which: the packet is good.
        other => other,
    }
}

/// The identification that would explain the difference between a CRC computed with identification 0 and the one
/// received, of a packet with `covered_len` bytes from the BTH on.
fn solve(difference: u32, covered_len: usize) -> Option<u16> {
    // Behind the identification come 14 bytes of the IP header and the UDP header. Its own two bytes stand in the
    // register multiplied by x^16, and each byte after them multiplies by x^8.
    let bytes = 2 + 14 + UDP_LEN + covered_len;
    let inverse = match INVERSE_POWERS.get(covered_len / 4) {
        Some(&power) if covered_len.is_multiple_of(4) => power,
        _ => inverse_power(bytes),
    };
    let register = multiply(difference, inverse);
    u16::try_from(register).ok().map(u16::swap_bytes)
}

#[inline]
fn word(state: u32, bytes: [u8; 4]) -> u32 {
    let w = (state ^ u32::from_le_bytes(bytes)).to_le_bytes();
    SLICES[3][usize::from(w[0])]
        ^ SLICES[2][usize::from(w[1])]
        ^ SLICES[1][usize::from(w[2])]
        ^ SLICES[0][usize::from(w[3])]
}

#[inline]
fn eight(state: u32, bytes: [u8; 8]) -> u32 {
    let w = (u64::from(state) ^ u64::from_le_bytes(bytes)).to_le_bytes();
    let mut out = 0;
    for (i, &byte) in w.iter().enumerate() {
        out ^= SLICES[7 - i][usize::from(byte)];
    }
    out
}

#[inline]
fn sixteen(state: u32, bytes: [u8; 16]) -> u32 {
    let w = (u128::from(state) ^ u128::from_le_bytes(bytes)).to_le_bytes();
    let mut out = 0;
    for (i, &byte) in w.iter().enumerate() {
        out ^= SLICES[15 - i][usize::from(byte)];
    }
    out
}

/// Table-driven, 16 bytes at a time.
#[inline]
fn short(mut state: u32, bytes: &[u8]) -> u32 {
    let (blocks, rest) = bytes.as_chunks::<16>();
    for block in blocks {
        state = sixteen(state, *block);
    }
    let (words, rest) = rest.as_chunks::<4>();
    for bytes in words {
        state = word(state, *bytes);
    }
    for &byte in rest {
        state = state >> 8 ^ SLICES[0][usize::from(state as u8 ^ byte)];
    }
    state
}

#[cfg(test)]
mod tests;
