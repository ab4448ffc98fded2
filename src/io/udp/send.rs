//! Sending: one call for a run, packet by packet where the kernel does not segment.

use std::net::SocketAddr;
use std::sync::OnceLock;

use super::UdpLink;
use crate::io::split::Split;
use crate::io::sys::{self, Control, Name, Outgoing};
use crate::io::{Runs, SendOutcome, Why};
use crate::wire::batch::{Path, Piece, Run};

/// Payload bytes of one call: the IP length field less the IP and UDP headers.
pub(super) const MAX_BYTES: usize = 65_507;
/// Pieces of one call (IOV_MAX).
pub(super) const MAX_PIECES: usize = 1024;

/// Packets that the kernel takes in one call: 128 or, on older ones, 64; 1 without UDP_SEGMENT.
pub(super) fn probe_segments() -> usize {
    static KNOWN: OnceLock<usize> = OnceLock::new();
    *KNOWN.get_or_init(|| {
        let probe = |packets: usize| {
            let socket = sys::socket(libc::AF_INET, libc::SOCK_DGRAM, libc::IPPROTO_UDP).ok()?;
            sys::bind(&socket, &SocketAddr::from(([127, 0, 0, 1], 0))).ok()?;
            let to = Name::new(&sys::local_addr(&socket).ok()?);
            let mut control = Control::new();
            control.push(sys::SOL_UDP, sys::UDP_SEGMENT, 1u16.to_ne_bytes());
            let bytes = [0u8; 128];
            let pieces = [Piece { addr: bytes.as_ptr() as usize, len: packets }];
            sys::send(&socket, &Outgoing { to: &to, control: &control, pieces: &pieces }).ok()
        };
        [128, 64].into_iter().find(|&packets| probe(packets).is_some()).unwrap_or(1)
    })
}

/// Where a run goes, in the kernel's form.
struct Envelope {
    to: Name,
    control: Control,
}

impl Envelope {
    fn new(path: &Path, segment: Option<usize>) -> Self {
        let mut control = Control::new();
        let v4 = path.dst.is_ipv4();
        if path.traffic_class != 0 {
            let value = i32::from(path.traffic_class).to_ne_bytes();
            let (level, kind) =
                if v4 { (libc::IPPROTO_IP, libc::IP_TOS) } else { (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) };
            control.push(level, kind, value);
        }
        if path.hop_limit != 0 && path.dst.ip().is_multicast() {
            let value = i32::from(path.hop_limit).to_ne_bytes();
            let (level, kind) =
                if v4 { (libc::IPPROTO_IP, libc::IP_TTL) } else { (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) };
            control.push(level, kind, value);
        }
        if let Some(segment) = segment {
            control.push(sys::SOL_UDP, sys::UDP_SEGMENT, (segment as u16).to_ne_bytes());
        }
        Self { to: Name::new(&path.dst), control }
    }
}

impl UdpLink {
    pub(super) fn send_batch(&self, batch: Runs<'_>) -> SendOutcome {
        let mut sent_packets = 0;
        let mut bytes = 0;
        let mut done_runs = 0;
        let mut why = Why::Done;
        let mut runs = batch.runs;
        while !runs.is_empty() {
            let whole = runs.iter().take(sys::MANY).take_while(|run| self.fits_one_call(run)).count();
            let result = if whole == 0 { Err(libc::EINVAL) } else { self.send_whole(batch, &runs[..whole]) };
            match result {
                Ok(count) => {
                    let (gone, rest) = runs.split_at(count);
                    for run in gone {
                        sent_packets += run.packets;
                        bytes += run.bytes;
                    }
                    done_runs += count;
                    runs = rest;
                }
                Err(errno) if is_full(errno) => {
                    why = Why::WouldBlock;
                    break;
                }
                // Of a run of many packets it is not known which one is at fault, or whether it is segmentation.
                Err(errno) if runs[0].packets > 1 && is_worth_splitting(errno) => {
                    let (packets, len, end) = self.send_split(batch, &runs[0], errno);
                    sent_packets += packets;
                    bytes += len;
                    if end != Why::Done {
                        why = end;
                        break;
                    }
                    done_runs += 1;
                    runs = &runs[1..];
                }
                Err(errno) => {
                    why = Why::Failed(errno);
                    break;
                }
            }
        }
        let counters = &self.counters;
        counters.tx_packets.add(sent_packets as u64);
        counters.tx_bytes.add(bytes as u64);
        counters.tx_runs.add(done_runs as u64);
        match why {
            Why::Done => {}
            Why::WouldBlock => counters.tx_blocked.add(1),
            Why::Failed(_) => counters.tx_failed.add(1),
        }
        SendOutcome { sent_packets, why }
    }

    fn fits_one_call(&self, run: &Run) -> bool {
        let segments = if run.packets > 1 { self.segments_to(run.path.dst.ip()) } else { 1 };
        run.packets <= segments && run.bytes <= MAX_BYTES && run.pieces.len() <= MAX_PIECES
    }

    /// Sends runs, each by one message, and returns how many left; an error if the first did not.
    fn send_whole(&self, batch: Runs<'_>, runs: &[Run]) -> Result<usize, i32> {
        let envelope = |run: &Run| Envelope::new(&run.path, (run.packets > 1).then_some(run.segment));
        if let [run] = runs {
            let Envelope { to, control } = envelope(run);
            let message = Outgoing { to: &to, control: &control, pieces: batch.pieces(run) };
            return self.retried(|| sys::send(&self.socket, &message).map(|_| 1));
        }
        let mut envelopes = [const { None }; sys::MANY];
        for (slot, run) in envelopes.iter_mut().zip(runs) {
            *slot = Some(envelope(run));
        }
        self.retried(|| {
            let messages = envelopes
                .iter()
                .flatten()
                .zip(runs)
                .map(|(Envelope { to, control }, run)| Outgoing { to, control, pieces: batch.pieces(run) });
            sys::send_many(&self.socket, messages)
        })
    }

    /// Sends a run packet by packet, after it failed as a whole. Returns the packets and bytes that left and why it ended.
    fn send_split(&self, batch: Runs<'_>, run: &Run, failed: i32) -> (usize, usize, Why) {
        let Envelope { to, control } = Envelope::new(&run.path, None);
        let mut split = Split::new(batch, run);
        let (mut packets, mut bytes) = (0, 0);
        let mut pieces = Vec::with_capacity(4 * sys::MANY);
        let mut ends = [(0, 0); sys::MANY];
        loop {
            let mut count = 0;
            while count < ends.len()
                && let Some(len) = split.next_packet(&mut pieces)
            {
                ends[count] = (pieces.len(), len);
                count += 1;
            }
            let mut gone = 0;
            while gone < count {
                let mut start = if gone == 0 { 0 } else { ends[gone - 1].0 };
                let result = self.retried(|| {
                    let messages = ends[gone..count].iter().map(|&(end, _)| {
                        let pieces = &pieces[std::mem::replace(&mut start, end)..end];
                        Outgoing { to: &to, control: &control, pieces }
                    });
                    sys::send_many(&self.socket, messages)
                });
                match result {
                    Ok(sent) => {
                        bytes += ends[gone..gone + sent].iter().map(|&(_, len)| len).sum::<usize>();
                        packets += sent;
                        gone += sent;
                    }
                    Err(errno) if is_full(errno) => return (packets, bytes, Why::WouldBlock),
                    Err(errno) => return (packets, bytes, Why::Failed(errno)),
                }
            }
            if count < ends.len() {
                break;
            }
            pieces.clear();
        }
        // Memory that was gone for a moment says nothing of the network.
        if failed == libc::EFAULT {
            return (packets, bytes, Why::Done);
        }
        // The packets were all right one by one, so it is segmentation that does not work here.
        if run.packets <= self.max_segments && run.bytes <= MAX_BYTES && run.pieces.len() <= MAX_PIECES {
            self.stop_segmenting(run.path.dst.ip());
        }
        // Last: who sees it move asks for the limits, which are new by now.
        self.counters.gso_fallbacks.add(1);
        (packets, bytes, Why::Done)
    }

    /// Calls again after a signal, and once after an error that belongs to an earlier packet (ICMP).
    fn retried(&self, mut call: impl FnMut() -> Result<usize, i32>) -> Result<usize, i32> {
        let mut again = true;
        loop {
            #[cfg(test)]
            let fault = self.faults.lock().pop_front().flatten();
            #[cfg(not(test))]
            let fault = None;
            match fault.map_or_else(&mut call, Err) {
                Err(libc::EINTR) => {}
                Err(libc::ECONNREFUSED | libc::EHOSTUNREACH | libc::ENETUNREACH | libc::EPROTO) if again => {
                    again = false
                }
                result => return result,
            }
        }
    }
}

fn is_full(errno: i32) -> bool {
    matches!(errno, libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM)
}

fn is_worth_splitting(errno: i32) -> bool {
    matches!(errno, libc::EINVAL | libc::EIO | libc::EMSGSIZE | libc::EOPNOTSUPP | libc::EFAULT)
}
