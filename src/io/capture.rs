//! A pcapng file of everything that passes a link.
//!
//! A socket does not show IP and UDP headers, so they are made up from what is known: Wireshark then decodes the
//! packets as RoCEv2. What is not known is 0: the UDP checksum over IPv4, and the identification of received IPv4
//! packets unless the link sees it.

use std::fmt;
use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;

use super::{Backlog, Counters, Limits, Link, Meta, Runs, RxBatch, SendOutcome, split};
use crate::wire::batch::IpId;

/// A link that writes down what it sends and receives.
pub struct Captured<L, W: Write> {
    inner: L,
    file: Mutex<File<W>>,
}

struct File<W> {
    out: W,
    error: Option<io::Error>,
    scratch: Vec<u8>,
}

/// The way of a packet, as pcapng's `epb_flags` has it.
#[derive(Clone, Copy)]
enum Way {
    In = 1,
    Out = 2,
}

/// Block types of pcapng and the link type whose packets begin with the IP header.
const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const PACKET: u32 = 6;
const LINKTYPE_RAW: u16 = 101;

impl<L: Link, W: Write + Send> Captured<L, W> {
    /// Wraps a link; `out` should be buffered.
    pub fn new(inner: L, out: W) -> io::Result<Self> {
        let mut file = File { out, error: None, scratch: Vec::with_capacity(8192) };
        file.block(SECTION, |body| {
            body.extend(0x1a2b_3c4d_u32.to_ne_bytes());
            body.extend(1u16.to_ne_bytes());
            body.extend(0u16.to_ne_bytes());
            // The section's length is not known in advance.
            body.extend(u64::MAX.to_ne_bytes());
        });
        file.block(INTERFACE, |body| {
            body.extend(LINKTYPE_RAW.to_ne_bytes());
            body.extend(0u16.to_ne_bytes());
            // No limit on the length of packets.
            body.extend(0u32.to_ne_bytes());
            // if_tsresol: 10^-9 s.
            option(body, 9, &[9]);
            option(body, 0, &[]);
        });
        match file.error.take() {
            Some(error) => Err(error),
            None => Ok(Self { inner, file: Mutex::new(file) }),
        }
    }

    /// The link below.
    pub fn inner(&self) -> &L {
        &self.inner
    }

    /// Writes out what is buffered; the first error if the file could not be written.
    pub fn flush(&self) -> io::Result<()> {
        let mut file = self.file.lock();
        match file.error.take() {
            Some(error) => Err(error),
            None => file.out.flush(),
        }
    }
}

impl<L, W: Write> Drop for Captured<L, W> {
    fn drop(&mut self) {
        let _ = self.file.get_mut().out.flush();
    }
}

impl<L: fmt::Debug, W: Write> fmt::Debug for Captured<L, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Captured").field("inner", &self.inner).finish_non_exhaustive()
    }
}

fn option(body: &mut Vec<u8>, code: u16, value: &[u8]) {
    body.extend(code.to_ne_bytes());
    body.extend((value.len() as u16).to_ne_bytes());
    body.extend(value);
    body.resize(body.len().next_multiple_of(4), 0);
}

impl<W: Write> File<W> {
    /// Writes one block. After an error nothing more is written.
    fn block(&mut self, kind: u32, fill: impl FnOnce(&mut Vec<u8>)) {
        if self.error.is_some() {
            return;
        }
        let block = &mut self.scratch;
        block.clear();
        block.extend(kind.to_ne_bytes());
        block.extend([0; 4]);
        fill(block);
        let len = (block.len() + 4) as u32;
        block[4..8].copy_from_slice(&len.to_ne_bytes());
        block.extend(len.to_ne_bytes());
        self.error = self.out.write_all(block).err();
    }

    fn packet(&mut self, time: Duration, way: Way, headers: &Headers, payload: &[u8]) {
        self.block(PACKET, |body| {
            let time = time.as_nanos() as u64;
            body.extend(0u32.to_ne_bytes());
            body.extend(((time >> 32) as u32).to_ne_bytes());
            body.extend((time as u32).to_ne_bytes());
            let lengths = body.len();
            body.extend([0; 8]);
            let start = body.len();
            headers.emit(payload, body);
            let len = ((body.len() - start) as u32).to_ne_bytes();
            body[lengths..lengths + 4].copy_from_slice(&len);
            body[lengths + 4..lengths + 8].copy_from_slice(&len);
            body.resize(body.len().next_multiple_of(4), 0);
            option(body, 2, &(way as u32).to_ne_bytes());
            option(body, 0, &[]);
        });
    }
}

/// What the IP and UDP headers are made from.
struct Headers {
    src: SocketAddr,
    dst: SocketAddr,
    traffic_class: u8,
    hop_limit: u8,
    flow_label: u32,
    ip_id: u16,
}

impl Headers {
    fn emit(&self, payload: &[u8], out: &mut Vec<u8>) {
        let udp_len = (payload.len() + 8) as u16;
        let hop_limit = if self.hop_limit == 0 { 64 } else { self.hop_limit };
        let udp_checksum = match (self.src.ip(), self.dst.ip()) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let start = out.len();
                out.extend([0x45, self.traffic_class]);
                out.extend((udp_len + 20).to_be_bytes());
                out.extend(self.ip_id.to_be_bytes());
                // Don't fragment.
                out.extend([0x40, 0, hop_limit, 17, 0, 0]);
                out.extend(src.octets());
                out.extend(dst.octets());
                let checksum = internet_checksum(&[&out[start..]]);
                out[start + 10..start + 12].copy_from_slice(&checksum.to_be_bytes());
                0
            }
            (src, dst) => {
                let octets = |ip| match ip {
                    IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
                    IpAddr::V6(v6) => v6.octets(),
                };
                let (src, dst) = (octets(src), octets(dst));
                let first = 6 << 28 | u32::from(self.traffic_class) << 20 | self.flow_label & 0xf_ffff;
                out.extend(first.to_be_bytes());
                out.extend(udp_len.to_be_bytes());
                out.extend([17, hop_limit]);
                out.extend(src);
                out.extend(dst);
                let [l0, l1] = udp_len.to_be_bytes();
                let ports = [self.src.port().to_be_bytes(), self.dst.port().to_be_bytes()].concat();
                match internet_checksum(&[&src, &dst, &[0, 17, l0, l1], &ports, &[l0, l1], payload]) {
                    0 => 0xffff,
                    checksum => checksum,
                }
            }
        };
        out.extend(self.src.port().to_be_bytes());
        out.extend(self.dst.port().to_be_bytes());
        out.extend(udp_len.to_be_bytes());
        out.extend(udp_checksum.to_be_bytes());
        out.extend(payload);
    }
}

/// RFC 1071. All parts but the last have an even length.
fn internet_checksum(parts: &[&[u8]]) -> u16 {
    let words = parts.iter().flat_map(|part| part.chunks(2));
    let mut sum: u64 = words.map(|w| u64::from(w[0]) << 8 | u64::from(*w.get(1).unwrap_or(&0))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

fn wall_clock() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

impl<L: Link, W: Write + Send> Link for Captured<L, W> {
    fn local(&self) -> SocketAddr {
        self.inner.local()
    }

    fn send_runs(&self, runs: Runs<'_>) -> SendOutcome {
        // Held during the send: an answer cannot come before its request in the file.
        let mut file = self.file.lock();
        let time = wall_clock();
        let outcome = self.inner.send_runs(runs);
        let mut left = outcome.sent_packets;
        let mut place = (0, 0);
        split::copy_packets(runs, |index, packet| {
            if left == 0 {
                return false;
            }
            left -= 1;
            place = if place.0 == index { (index, place.1 + 1) } else { (index, 1) };
            let path = &runs.runs[index].path;
            let headers = Headers {
                src: self.inner.local(),
                dst: path.dst,
                traffic_class: path.traffic_class,
                hop_limit: path.hop_limit,
                flow_label: path.flow_label,
                ip_id: if path.ip_id() == IpId::Counting { place.1 as u16 - 1 } else { 0 },
            };
            // Memory that went away after the send has nothing to show.
            if let Ok(bytes) = packet {
                file.packet(time, Way::Out, &headers, bytes);
            }
            true
        });
        outcome
    }

    fn recv(&self, rx: &mut RxBatch) -> io::Result<usize> {
        let count = self.inner.recv(rx)?;
        if count > 0 {
            let time = wall_clock();
            let mut file = self.file.lock();
            for datagram in rx.iter() {
                let Meta { src, dst, traffic_class, hop_limit, ip_id, .. } = datagram.meta;
                let dst = SocketAddr::new(dst, self.inner.local().port());
                let ip_id = ip_id.unwrap_or(0);
                let headers = Headers { src, dst, traffic_class, hop_limit, flow_label: 0, ip_id };
                for packet in datagram.packets() {
                    file.packet(time, Way::In, &headers, packet);
                }
            }
        }
        Ok(count)
    }

    fn fds(&self) -> [Option<RawFd>; 2] {
        self.inner.fds()
    }
    fn join(&self, group: IpAddr) -> io::Result<()> {
        self.inner.join(group)
    }
    fn leave(&self, group: IpAddr) {
        self.inner.leave(group);
    }
    fn limits(&self, destination: IpAddr) -> Limits {
        self.inner.limits(destination)
    }
    fn mtu(&self) -> u32 {
        self.inner.mtu()
    }
    fn counters(&self) -> &Counters {
        self.inner.counters()
    }
    fn show_headers(&self) -> io::Result<()> {
        self.inner.show_headers()
    }
    fn backlog(&self) -> Option<Backlog> {
        self.inner.backlog()
    }
}
