//! Receiving with IP headers, from a raw socket.
//!
//! The UDP socket stays bound, so that the kernel answers no packet with an ICMP error and other programs find the
//! port taken; it also sends. What the raw socket takes, a filter keeps out of the UDP socket.
//!
//! GRO does not reach a raw socket, but a peer on this host that sends with GSO does: its packets arrive in one
//! datagram whose segment size a raw socket cannot tell. Two filters keep the kinds apart. An eBPF filter asks for the
//! segment size itself; loading one needs CAP_BPF. Without that it is the length: what no single packet can have goes
//! to the UDP socket. Merged packets that are shorter than one full packet then reach the engine as one, whose ICRC is
//! wrong; its peer sends them again.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

use super::{Config, OpenError};
use crate::io::rx::{BUFFER, Meta, RxBatch};
use crate::io::{Counters, sys};

/// IP and UDP headers and the longest RoCE packet: BTH, the longest extension headers, 4096 bytes, ICRC.
const LONGEST_SINGLE: u32 = 60 + 8 + 12 + 64 + 4096 + 4;

#[derive(Debug)]
pub(super) struct RawSocket {
    socket: OwnedFd,
    local: SocketAddr,
    splits: bool,
}

impl RawSocket {
    pub(super) fn open(
        udp: &OwnedFd,
        local: SocketAddr,
        slot: Option<u8>,
        config: &Config,
        gro: bool,
    ) -> Result<Self, OpenError> {
        let failed = |what: &'static str| {
            move |source: io::Error| match source.raw_os_error() {
                Some(libc::EPERM | libc::EACCES) => {
                    OpenError::PermissionDenied { addr: local, what: "open a raw socket" }
                }
                _ => OpenError::Io { addr: local, what, source },
            }
        };
        let socket = sys::socket(libc::AF_INET, libc::SOCK_RAW, libc::IPPROTO_UDP)
            .map_err(failed("open a raw socket"))?;
        let port = u32::from(local.port());
        let (mine, theirs) = match sys::gso_filters(local.port(), slot) {
            Ok(filters) => (Filter::Extended(filters.0), Filter::Extended(filters.1)),
            Err(_) => (Filter::Classic(single_filter(port, slot)), Filter::Classic(merged_filter())),
        };
        // The filter comes first: nothing else may get into the queue.
        mine.attach(&socket).map_err(failed("attach a filter"))?;
        sys::bind(&socket, &SocketAddr::new(local.ip(), 0)).map_err(failed("bind a raw socket"))?;
        super::set_buffer(&socket, config.receive_buffer, libc::SO_RCVBUFFORCE, libc::SO_RCVBUF);
        theirs.attach(udp).map_err(failed("attach a filter"))?;
        Ok(Self { socket, local, splits: gro })
    }

    pub(super) fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// Whether merged packets arrive at the UDP socket.
    pub(super) fn splits(&self) -> bool {
        self.splits
    }

    pub(super) fn receive(&self, rx: &mut RxBatch, counters: &Counters) -> io::Result<()> {
        while !rx.is_full() {
            let (free, start) = rx.free();
            let len = match sys::receive(&self.socket, &mut free[..BUFFER]) {
                Ok(incoming) => incoming.len,
                Err(libc::EAGAIN) => break,
                Err(libc::EINTR) => continue,
                Err(errno) => return Err(io::Error::from_raw_os_error(errno)),
            };
            match parse(rx.peek(start, len.min(BUFFER)), self.local.port()) {
                Some((meta, header_len)) => {
                    counters.rx_datagrams.add(1);
                    counters.rx_bytes.add(meta.segment as u64);
                    rx.accept(meta, start + header_len, meta.segment);
                }
                None => counters.rx_malformed.add(1),
            }
        }
        Ok(())
    }
}

/// Reads the IPv4 and UDP headers; returns what they say and their length.
fn parse(packet: &[u8], port: u16) -> Option<(Meta, usize)> {
    let word = |at: usize| Some(u16::from_be_bytes([*packet.get(at)?, *packet.get(at + 1)?]));
    let address = |at: usize| {
        let bytes: [u8; 4] = packet.get(at..at + 4)?.try_into().ok()?;
        Some(IpAddr::from(bytes))
    };
    let first = *packet.first()?;
    let ip_len = usize::from(first & 0xf) * 4;
    // A raw socket gets reassembled datagrams, never fragments.
    if first >> 4 != 4 || ip_len < 20 || word(ip_len + 2)? != port {
        return None;
    }
    let payload = ip_len + 8;
    let udp_len = usize::from(word(ip_len + 4)?);
    let segment = udp_len.checked_sub(8)?;
    if payload + segment > packet.len() {
        return None;
    }
    let meta = Meta {
        src: SocketAddr::new(address(12)?, word(ip_len)?),
        dst: address(16)?,
        traffic_class: packet[1],
        hop_limit: packet[8],
        ip_id: Some(word(4)?),
        segment,
    };
    Some((meta, payload))
}

/// For a member of a group that nobody uses: nothing.
pub(super) const NOTHING: &[libc::sock_filter] = &[step(RETURN, 0, 0, 0)];

/// For a group of sockets, whose packets begin with the UDP payload: the one that the first byte of the QPN numbers
/// (byte 5 of the BTH), or the first one if there is no such socket or the packet is shorter than that: the kernel would
/// choose by a hash.
pub(super) fn steering(sockets: u32) -> [libc::sock_filter; 4] {
    [
        step(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, 0, 0, 5),
        step(libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K, 1, 0, sockets),
        step(libc::BPF_RET | libc::BPF_A, 0, 0, 0),
        step(RETURN, 0, 0, 0),
    ]
}

enum Filter {
    Classic(Vec<libc::sock_filter>),
    Extended(OwnedFd),
}

impl Filter {
    fn attach(&self, socket: &OwnedFd) -> io::Result<()> {
        match self {
            Self::Classic(program) => sys::attach_filter(socket, program),
            Self::Extended(program) => sys::attach_program(socket, program),
        }
    }
}

const fn step(code: u32, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt, jf, k }
}
const RETURN: u32 = libc::BPF_RET | libc::BPF_K;
const LOAD_LEN: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_LEN;
const IF_GREATER: u32 = libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K;
const IF_EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const ALL: u32 = u32::MAX;

/// For the raw socket, whose packets begin with the IP header: single packets to the port, and to the slot if there is
/// one. A raw socket sees the packets of all members of a group.
pub(super) fn single_filter(port: u32, slot: Option<u8>) -> Vec<libc::sock_filter> {
    let to_slot = |slot: u8| {
        // The UDP header, then the first byte of the QPN.
        [step(libc::BPF_LD | libc::BPF_B | libc::BPF_IND, 0, 0, 8 + 5), step(IF_EQUAL, 0, 1, u32::from(slot))]
    };
    let slot_steps: Vec<_> = slot.map(to_slot).into_iter().flatten().collect();
    let more = slot_steps.len() as u8;
    let mut program = vec![
        step(LOAD_LEN, 0, 0, 0),
        step(IF_GREATER, 4 + more, 0, LONGEST_SINGLE),
        // X = length of the IP header.
        step(libc::BPF_LDX | libc::BPF_B | libc::BPF_MSH, 0, 0, 0),
        step(libc::BPF_LD | libc::BPF_H | libc::BPF_IND, 0, 0, 2),
        step(IF_EQUAL, 0, 1 + more, port),
    ];
    program.extend(slot_steps);
    program.extend([step(RETURN, 0, 0, ALL), step(RETURN, 0, 0, 0)]);
    program
}

/// For the UDP socket, whose packets begin with the UDP header: what is too long for a single packet.
fn merged_filter() -> Vec<libc::sock_filter> {
    vec![
        step(LOAD_LEN, 0, 0, 0),
        step(IF_GREATER, 0, 1, LONGEST_SINGLE - 20),
        step(RETURN, 0, 0, ALL),
        step(RETURN, 0, 0, 0),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_or_foreign_header_is_refused() {
        let mut packet = vec![0x45, 2, 0, 44, 0x12, 0x34, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        packet.extend([0xc0, 1, 0x12, 0xb7, 0, 24, 0, 0]);
        packet.extend([7; 16]);
        let (meta, header_len) = parse(&packet, 4791).unwrap();
        assert_eq!((header_len, meta.segment, meta.ip_id), (28, 16, Some(0x1234)));
        assert_eq!((meta.src, meta.hop_limit), ("10.0.0.1:49153".parse().unwrap(), 64));
        assert_eq!((meta.dst, meta.traffic_class), ("10.0.0.2".parse().unwrap(), 2));
        assert_eq!(parse(&packet, 4792), None);
        for len in 0..packet.len() {
            assert_eq!(parse(&packet[..len], 4791), None, "{len} bytes");
        }
        for (at, value) in [(0, 0x44), (0, 0x65), (25, 7), (0, 0x4f)] {
            let mut bad = packet.clone();
            bad[at] = value;
            assert_eq!(parse(&bad, 4791), None, "byte {at} = {value:#x}");
        }
    }
}
