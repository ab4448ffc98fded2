//! Buffers for received datagrams.

use std::net::{IpAddr, SocketAddr};

/// Bytes of one buffer: no UDP datagram is longer.
pub(super) const BUFFER: usize = 65_536;

/// Reusable buffers that [`Link::recv`](super::Link::recv) fills.
///
/// Memory is touched only as far as datagrams reach, so an idle one costs address space alone.
pub struct RxBatch {
    memory: Box<[u8]>,
    slots: Box<[Slot]>,
    filled: usize,
    /// Buffers in use: `filled` and those that were skipped.
    used: usize,
}

#[derive(Clone, Copy)]
struct Slot {
    meta: Meta,
    start: usize,
    len: usize,
}

/// What is known of a datagram besides its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Meta {
    /// Who sent it.
    pub src: SocketAddr,
    /// The address it was sent to.
    pub dst: IpAddr,
    /// The IP traffic class (TOS), 0 where the link does not ask for it.
    pub traffic_class: u8,
    /// The hop limit (TTL) on arrival, 0 where the link does not ask for it.
    pub hop_limit: u8,
    /// The IPv4 identification; only links that see IP headers know it.
    pub ip_id: Option<u16>,
    /// Payload bytes of each packet but the last, which may be shorter.
    pub segment: usize,
}

/// One received datagram: one packet, or several of equal length that the kernel kept together.
#[derive(Clone, Copy, Debug)]
pub struct Received<'a> {
    /// Where it came from and how.
    pub meta: Meta,
    /// The UDP payloads, one behind the other.
    pub bytes: &'a [u8],
}

impl<'a> Received<'a> {
    /// The UDP payload of each packet.
    pub fn packets(&self) -> Packets<'a> {
        self.bytes.chunks(self.meta.segment.max(1))
    }
}

/// Iterates over UDP payloads of one packet each.
pub type Packets<'a> = std::slice::Chunks<'a, u8>;

impl RxBatch {
    /// Buffers for up to `datagrams` at a time. 8 is a good number.
    pub fn new(datagrams: usize) -> Self {
        let datagrams = datagrams.clamp(1, 64);
        let nowhere = SocketAddr::new(IpAddr::from([0u8; 4]), 0);
        let meta =
            Meta { src: nowhere, dst: nowhere.ip(), traffic_class: 0, hop_limit: 0, ip_id: None, segment: 1 };
        Self {
            memory: vec![0; datagrams * BUFFER].into_boxed_slice(),
            slots: vec![Slot { meta, start: 0, len: 0 }; datagrams].into_boxed_slice(),
            filled: 0,
            used: 0,
        }
    }

    /// One without buffers, to stand in for another.
    pub(crate) fn empty() -> Self {
        Self { memory: Box::default(), slots: Box::default(), filled: 0, used: 0 }
    }

    /// Datagrams it has room for.
    pub fn capacity(&self) -> usize {
        self.slots.len()
    }
    /// Datagrams in it.
    pub fn len(&self) -> usize {
        self.filled
    }
    /// Whether nothing is in it.
    pub fn is_empty(&self) -> bool {
        self.filled == 0
    }
    /// Whether no buffer is free.
    pub fn is_full(&self) -> bool {
        self.used == self.slots.len()
    }
    /// Forgets the datagrams.
    pub fn clear(&mut self) {
        self.filled = 0;
        self.used = 0;
    }
    /// The datagrams, in the order of their arrival.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Received<'_>> {
        self.slots[..self.filled]
            .iter()
            .map(|s| Received { meta: s.meta, bytes: &self.memory[s.start..s.start + s.len] })
    }

    /// Copies a datagram in. False if no buffer is free or it is too long for one.
    pub fn push(&mut self, meta: Meta, bytes: &[u8]) -> bool {
        if self.is_full() || bytes.len() > BUFFER {
            return false;
        }
        let start = self.used * BUFFER;
        self.memory[start..start + bytes.len()].copy_from_slice(bytes);
        self.accept(meta, start, bytes.len());
        true
    }

    /// The free buffers, each of [`BUFFER`] bytes, and the offset of the first.
    pub(super) fn free(&mut self) -> (&mut [u8], usize) {
        let start = self.used * BUFFER;
        (&mut self.memory[start..], start)
    }

    /// Takes a datagram that was written to `start..start + len`, within the free buffers.
    ///
    /// Datagrams may be skipped, but not taken in another order than that of their buffers.
    pub(super) fn accept(&mut self, meta: Meta, start: usize, len: usize) {
        debug_assert!(start >= self.used * BUFFER && start + len <= self.memory.len());
        self.slots[self.filled] = Slot { meta, start, len };
        self.filled += 1;
        self.used = start / BUFFER + 1;
    }

    /// The bytes at an offset, for links that parse headers in place.
    pub(super) fn peek(&self, start: usize, len: usize) -> &[u8] {
        &self.memory[start..start + len]
    }
}

impl std::fmt::Debug for RxBatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RxBatch").field("capacity", &self.capacity()).field("filled", &self.filled).finish()
    }
}
