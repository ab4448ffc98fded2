//! What leaves in one go: packets laid out so that one `sendmsg` can carry up to 64 of them.
//!
//! Headers, pads, ICRCs and small payloads are written into the batch's own staging buffer; large payloads stay where
//! they are in the application's memory and are referenced by address (measured on loopback: 4.7 GB/s referenced
//! against 2.7 to 3.7 staged at 4 KiB; 7 against 15 million packets/s at 40 bytes).
//!
//! Consecutive packets to one [`Path`] with the same size form a [`Run`], which is what UDP segmentation offload
//! wants: equal sizes, only the last may be shorter. All of a run are for one process of the peer, by the top 8 bits of
//! the destination QPN: where nothing segments a run on the way, it reaches one socket as a whole.

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::icrc::{Icrc, PathIcrc};
use super::{Flow, Headers, MAX_HEADERS};

/// What the IP stack puts into the IPv4 identification, which the ICRC covers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IpId {
    /// Always 0: the packet stays on this host, where nothing segments it (or it is IPv6).
    Zero,
    /// 0, 1, 2, ... within a run: the kernel or the adapter segments what one `sendmsg` carried.
    Counting,
}

/// Where packets go, and what is constant on the way.
#[derive(Debug)]
pub struct Path {
    /// Our address.
    pub src: SocketAddr,
    /// The peer's address.
    pub dst: SocketAddr,
    /// IPv4 TOS or IPv6 traffic class.
    pub traffic_class: u8,
    /// IPv6 flow label.
    pub flow_label: u32,
    /// How many routers packets to a group may pass, and one more; 0 is the system's default. Not used for other
    /// destinations.
    pub hop_limit: u8,
    /// Whether the IP stack counts the identification: [`IpId::Counting`].
    counting: AtomicBool,
    /// What unreliable queue pairs have on the way.
    pub flow: Flow,
    icrc: PathIcrc,
}

impl Path {
    /// The path between two sockets.
    pub fn new(src: SocketAddr, dst: SocketAddr, traffic_class: u8, flow_label: u32, ip_id: IpId) -> Self {
        Self {
            src,
            dst,
            traffic_class,
            flow_label,
            hop_limit: 0,
            counting: AtomicBool::new(ip_id == IpId::Counting),
            flow: Flow::default(),
            icrc: PathIcrc::new(src, dst),
        }
    }

    /// What the IP stack does with the identification.
    pub fn ip_id(&self) -> IpId {
        if self.counting.load(Relaxed) { IpId::Counting } else { IpId::Zero }
    }

    /// The IP stack has changed its ways: it does not segment any more.
    pub fn set_ip_id(&self, ip_id: IpId) {
        self.counting.store(ip_id == IpId::Counting, Relaxed);
    }

    /// The same with a hop limit. The ICRC does not cover it.
    pub fn with_hop_limit(self, hop_limit: u8) -> Self {
        Self { hop_limit, ..self }
    }
}

/// A piece of memory that is sent from. Laid out as `struct iovec`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// First byte: in the batch's staging buffer or in the application's memory.
    pub addr: usize,
    /// Bytes.
    pub len: usize,
}

/// Packets that one `sendmsg` can carry.
#[derive(Debug)]
pub struct Run {
    /// Where to.
    pub path: Arc<Path>,
    /// Which pieces of the batch.
    pub pieces: Range<usize>,
    /// UDP payload of every packet but the last, in bytes. The last is not longer.
    pub segment: usize,
    /// How many packets.
    pub packets: usize,
    /// UDP payload bytes of all of them.
    pub bytes: usize,
}

/// Most packets of a run: the kernel's limit on UDP segments.
pub const MAX_RUN_PACKETS: usize = 64;
/// Most bytes of a run: an IP packet's 65,535 less IP and UDP headers.
pub const MAX_RUN_BYTES: usize = 65_535 - 60 - 8;
/// Most packets of a batch.
pub const MAX_PACKETS: usize = 64;
/// Most bytes of a batch, referenced ones included.
const MAX_BYTES: usize = MAX_PACKETS * (4096 + MAX_HEADERS + 8);
/// Bytes of a batch that can be staged, headers included.
const STAGING: usize = 64 * 1024 + MAX_PACKETS * (MAX_HEADERS + 8);
/// From this payload length on, a contiguous piece of application memory is referenced, not copied.
pub const REFERENCE_FROM: usize = 1024;

/// Packets built by one side of a queue pair, in the order in which they leave.
pub struct TxBatch {
    staging: Box<[u8]>,
    used: usize,
    pieces: Vec<Piece>,
    runs: Vec<Run>,
    /// One word for each packet, for the side that built it: which packet it was.
    tags: Vec<u32>,
    bytes: usize,
    references: bool,
    open: Option<Open>,
    /// Top 8 bits of the destination QPN of the last run.
    slot: u8,
}

/// The packet that is being built.
struct Open {
    icrc: Icrc,
    /// State before the packet, for [`TxBatch::abandon`].
    used: usize,
    pieces: usize,
    last_piece_len: usize,
    new_run: bool,
    size: usize,
    /// Bytes of it so far.
    written: usize,
    tag: u32,
}

impl std::fmt::Debug for TxBatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TxBatch")
            .field("runs", &self.runs)
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

impl Default for TxBatch {
    fn default() -> Self {
        Self::new()
    }
}

impl TxBatch {
    /// An empty batch with its buffers.
    pub fn new() -> Self {
        Self {
            staging: vec![0; STAGING].into_boxed_slice(),
            used: 0,
            pieces: Vec::with_capacity(4 * MAX_PACKETS),
            runs: Vec::with_capacity(16),
            tags: Vec::with_capacity(MAX_PACKETS),
            bytes: 0,
            references: false,
            open: None,
            slot: 0,
        }
    }

    /// Forgets all packets.
    pub fn clear(&mut self) {
        self.used = 0;
        self.pieces.clear();
        self.runs.clear();
        self.tags.clear();
        self.bytes = 0;
        self.references = false;
        self.open = None;
    }

    /// Whether there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.tags.is_empty()
    }
    /// How many packets are in it.
    pub fn packets(&self) -> usize {
        self.tags.len()
    }
    /// The word given to [`TxBatch::begin`] for each packet.
    pub fn tags(&self) -> &[u32] {
        &self.tags
    }
    /// What to send, in order.
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }
    /// The memory of a run.
    pub fn pieces(&self, run: &Run) -> &[Piece] {
        &self.pieces[run.pieces.clone()]
    }
    /// The memory of all runs, which [`Run::pieces`] counts in.
    pub fn all_pieces(&self) -> &[Piece] {
        &self.pieces
    }
    /// Whether any of it is the application's memory, which may change or vanish later.
    pub fn references_memory(&self) -> bool {
        self.references
    }
    /// Whether a packet with this much payload fits.
    pub fn has_room(&self, payload_len: usize) -> bool {
        let size = payload_len + MAX_HEADERS + 8;
        self.tags.len() < MAX_PACKETS && self.bytes + size <= MAX_BYTES && self.used + size <= STAGING
    }

    /// Begins a packet: writes its headers. `payload_len` bytes must follow by [`stage`](Self::stage) or
    /// [`reference`](Self::reference), then [`finish`](Self::finish). The caller has asked [`has_room`](Self::has_room).
    pub fn begin(&mut self, path: &Arc<Path>, headers: &Headers, payload_len: usize, tag: u32) {
        debug_assert!(self.open.is_none() && self.has_room(payload_len));
        let start = self.used;
        let mut buf = [0; MAX_HEADERS];
        let header_len = headers.emit(&mut buf);
        let size = header_len + payload_len.next_multiple_of(4) + 4;
        let slot = headers.bth.dest_qpn.slot();

        let joins = self.runs.last().is_some_and(|run| {
            Arc::ptr_eq(&run.path, path)
                && slot == self.slot
                && size <= run.segment
                && run.bytes == run.packets * run.segment
                && run.packets < MAX_RUN_PACKETS
                && run.bytes + size <= MAX_RUN_BYTES
        });
        let (pieces, last_piece_len) = (self.pieces.len(), self.pieces.last().map_or(0, |p| p.len));
        if !joins {
            let pieces = self.pieces.len()..self.pieces.len();
            self.slot = slot;
            self.runs.push(Run { path: path.clone(), pieces, segment: size, packets: 0, bytes: 0 });
        }
        let index = self.runs.last().map_or(0, |run| run.packets);
        let ip_id = match path.ip_id() {
            IpId::Zero => 0,
            IpId::Counting => index as u16,
        };
        let mut icrc = path.icrc.start(size, ip_id);
        icrc.headers(&buf[..header_len]);
        self.staging[start..start + header_len].copy_from_slice(&buf[..header_len]);
        self.open =
            Some(Open { icrc, used: start, pieces, last_piece_len, new_run: !joins, size, written: 0, tag });
        self.append_staged(header_len);
    }

    /// Makes the next `len` staging bytes part of the run, as a longer last piece where they follow it.
    fn append_staged(&mut self, len: usize) {
        let addr = self.staging.as_ptr() as usize + self.used;
        self.used += len;
        if let Some(open) = &mut self.open {
            open.written += len;
        }
        let run = self.runs.last_mut().expect("a packet is open");
        match self.pieces.last_mut() {
            Some(last) if run.pieces.end > run.pieces.start && last.addr + last.len == addr => {
                last.len += len
            }
            _ => {
                self.pieces.push(Piece { addr, len });
                run.pieces.end += 1;
            }
        }
    }

    /// Adds `len` bytes of payload that `fill` writes into the staging buffer. On an error of `fill` the packet is abandoned.
    pub fn stage<E>(&mut self, len: usize, fill: impl FnOnce(&mut [u8]) -> Result<(), E>) -> Result<(), E> {
        let range = self.used..self.used + len;
        let filled = fill(&mut self.staging[range.clone()]);
        match filled {
            Ok(()) => {
                if let Some(open) = &mut self.open {
                    open.icrc.update(&self.staging[range]);
                }
                self.append_staged(len);
                Ok(())
            }
            Err(e) => {
                self.abandon();
                Err(e)
            }
        }
    }

    /// Adds `len` bytes of payload at `addr` in the application's memory, not copied. `checksum` runs over them.
    /// On its error the packet is abandoned.
    pub fn reference<E>(
        &mut self,
        addr: u64,
        len: usize,
        checksum: impl FnOnce(&mut Icrc) -> Result<(), E>,
    ) -> Result<(), E> {
        let result = match &mut self.open {
            Some(open) => checksum(&mut open.icrc),
            None => return Ok(()),
        };
        match result {
            Ok(()) => {
                if let Some(open) = &mut self.open {
                    open.written += len;
                }
                self.pieces.push(Piece { addr: addr as usize, len });
                self.references = true;
                if let Some(run) = self.runs.last_mut() {
                    run.pieces.end += 1;
                }
                Ok(())
            }
            Err(e) => {
                self.abandon();
                Err(e)
            }
        }
    }

    /// Ends the packet: pad and ICRC.
    pub fn finish(&mut self) {
        let Some(mut open) = self.open.take() else { return };
        let pad = open.size - 4 - open.written;
        debug_assert!(pad < 4, "payload given differs from payload announced");
        let at = self.used;
        self.staging[at..at + pad].fill(0);
        open.icrc.update(&self.staging[at..at + pad]);
        self.staging[at + pad..at + pad + 4].copy_from_slice(&open.icrc.finish());
        self.append_staged(pad + 4);
        let run = self.runs.last_mut().expect("a packet is open");
        run.packets += 1;
        run.bytes += open.size;
        self.bytes += open.size;
        self.tags.push(open.tag);
    }

    /// Drops the packet that is open.
    pub fn abandon(&mut self) {
        let Some(open) = self.open.take() else { return };
        self.used = open.used;
        self.pieces.truncate(open.pieces);
        if open.new_run {
            self.runs.pop();
        } else if let Some(run) = self.runs.last_mut() {
            run.pieces.end = open.pieces;
            if let Some(last) = self.pieces.last_mut() {
                last.len = open.last_piece_len;
            }
        }
    }
}
