//! The wire below the engine: one trait, [`Link`], and what implements it.
//!
//! | module | what it is |
//! |---|---|
//! | [`udp`] | UDP sockets with segmentation offload (GSO/GRO); with [`udp::Receive::Raw`] the IP headers of peers are seen |
//! | [`sim`] | an in-memory network with virtual time, for tests |
//! | [`impair`] | loss, duplication, reordering, corruption, delay and rate on top of any link |
//! | [`capture`] | a pcapng file of everything that passes any link |
//!
//! The engine above knows datagrams, never sockets: a link for shared memory fits the same trait.
//!
//! [`route`] answers which interface an address belongs to, [`wait`] blocks a thread until something arrives.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::wire::batch::{IpId, Piece, Run, TxBatch};

pub mod capture;
pub mod impair;
pub mod route;
mod rx;
pub mod sim;
mod split;
mod sys;
pub mod udp;
pub mod wait;

pub use rx::{Meta, Packets, Received, RxBatch};

/// The UDP port of RoCEv2 (IBA annex A17).
pub const ROCE_PORT: u16 = 4791;

/// The wire below the engine. All methods may be called from several threads.
pub trait Link: Send + Sync {
    /// The address that packets come from.
    fn local(&self) -> SocketAddr;

    /// Sends all runs of a batch in order and returns how far that went. Never blocks.
    fn send(&self, batch: &TxBatch) -> SendOutcome {
        self.send_runs(Runs::from(batch))
    }

    /// [`Link::send`] for runs that are not in a batch.
    fn send_runs(&self, runs: Runs<'_>) -> SendOutcome;

    /// Takes what has arrived, without blocking, and returns the number of datagrams now in `rx`, which is emptied first.
    ///
    /// Zero means that nothing is left. A link may return before all is taken, so a caller that wants to block
    /// afterwards calls again until it gets zero.
    fn recv(&self, rx: &mut RxBatch) -> io::Result<usize>;

    /// Descriptors that are readable when something has arrived; none for links without a kernel object. They may be
    /// others after a [`join`](Link::join).
    fn fds(&self) -> [Option<RawFd>; 2];

    /// From now on packets to this group are received too, from senders that may be on this host or beyond. A group is
    /// joined once at a time.
    fn join(&self, group: IpAddr) -> io::Result<()> {
        let _ = group;
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Packets to this group are not received any more.
    fn leave(&self, group: IpAddr) {
        let _ = group;
    }

    /// What a run to this destination may look like, and which IP identification its packets get.
    ///
    /// Not for every packet: an implementation may ask the kernel. Ask again when [`Counters::gso_fallbacks`] moves.
    fn limits(&self, destination: IpAddr) -> Limits;

    /// The MTU of the interface in IP bytes.
    fn mtu(&self) -> u32;

    /// What the link has counted.
    fn counters(&self) -> &Counters;

    /// From now on the traffic class and hop limit of received packets are asked for. Before, a link need not: it costs
    /// 0.1 us a datagram.
    fn show_headers(&self) -> io::Result<()> {
        Ok(())
    }

    /// Bytes of memory that the queue of received packets uses, and its limit, if the link knows.
    fn backlog(&self) -> Option<Backlog> {
        None
    }
}

/// Runs to send, with the pieces that they count in.
#[derive(Clone, Copy, Debug)]
pub struct Runs<'a> {
    /// What to send, in order.
    pub runs: &'a [Run],
    /// The memory of all runs.
    pub pieces: &'a [Piece],
}

impl<'a> Runs<'a> {
    /// The memory of a run.
    pub fn pieces(&self, run: &Run) -> &'a [Piece] {
        &self.pieces[run.pieces.clone()]
    }
    /// Packets of all runs.
    pub fn packets(&self) -> usize {
        self.runs.iter().map(|run| run.packets).sum()
    }
}

impl<'a> From<&'a TxBatch> for Runs<'a> {
    fn from(batch: &'a TxBatch) -> Self {
        Self { runs: batch.runs(), pieces: batch.all_pieces() }
    }
}

/// How much of a batch left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub struct SendOutcome {
    /// Packets that left, counted from the first of the batch.
    pub sent_packets: usize,
    /// Why it ended there.
    pub why: Why,
}

/// Why a send ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Why {
    /// The whole batch left.
    Done,
    /// The link takes no more now. The packet with index `sent_packets` is the first that did not leave.
    WouldBlock,
    /// The packet with index `sent_packets` was refused with this errno; later ones were not tried. `EFAULT` means
    /// that its memory is not mapped, `EMSGSIZE` that it is longer than the interface's MTU.
    Failed(i32),
}

/// What a run may look like.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Packets of a run; 1 where runs are not segmented by the link.
    pub packets: usize,
    /// Bytes of a run.
    pub bytes: usize,
    /// Pieces of memory of a run.
    pub pieces: usize,
    /// The IP identification of the packets of a run.
    pub ip_id: IpId,
}

/// The receive queue's use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Backlog {
    /// Bytes in use, in the kernel's accounting: several times the payload for small packets.
    pub used: usize,
    /// From here on packets are dropped.
    pub limit: usize,
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// What a link counts. Each only rises.
        #[derive(Default, Debug)]
        pub struct Counters { $($(#[$doc])* pub $name: Counter),* }

        impl Counters {
            /// All counters with their names.
            pub fn all(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name.value())),*].into_iter()
            }
        }
    };
}

counters! {
    /// Packets sent.
    tx_packets,
    /// UDP payload bytes sent.
    tx_bytes,
    /// Runs sent, each by one call.
    tx_runs,
    /// Times the socket was full.
    tx_blocked,
    /// Packets that the kernel refused for good.
    tx_failed,
    /// Runs that the kernel would not segment; they were sent packet by packet.
    gso_fallbacks,
    /// Datagrams received, each of one or more packets.
    rx_datagrams,
    /// UDP payload bytes received.
    rx_bytes,
    /// Datagrams dropped because they did not fit a buffer.
    rx_truncated,
    /// Packets dropped by the kernel because the receive queue was full.
    rx_overflow,
    /// Raw mode: frames that are not a UDP packet for this device, or merged ones that cannot be split.
    rx_malformed,
    /// Packets that an [impairment](impair) lost, here and below.
    impaired_lost,
    /// Packets that it sent twice.
    impaired_duplicated,
    /// Packets that it let others overtake.
    impaired_reordered,
    /// Packets in which it made a bit wrong.
    impaired_corrupted,
    /// Packets that had to wait for its rate or delay.
    impaired_delayed,
    /// Packets that it dropped because too many waited.
    impaired_overflowed,
}

/// A counter that several threads may raise.
#[derive(Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`.
    pub fn add(&self, n: u64) {
        if n != 0 {
            self.0.fetch_add(n, Relaxed);
        }
    }
    /// The value now.
    pub fn value(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

impl std::fmt::Debug for Counter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.value().fmt(f)
    }
}

/// A link behind a pointer is a link, so that wrappers stack.
impl<T: Link + ?Sized> Link for std::sync::Arc<T> {
    fn local(&self) -> SocketAddr {
        (**self).local()
    }
    fn send_runs(&self, runs: Runs<'_>) -> SendOutcome {
        (**self).send_runs(runs)
    }
    fn recv(&self, rx: &mut RxBatch) -> io::Result<usize> {
        (**self).recv(rx)
    }
    fn fds(&self) -> [Option<RawFd>; 2] {
        (**self).fds()
    }
    fn join(&self, group: IpAddr) -> io::Result<()> {
        (**self).join(group)
    }
    fn leave(&self, group: IpAddr) {
        (**self).leave(group);
    }
    fn limits(&self, destination: IpAddr) -> Limits {
        (**self).limits(destination)
    }
    fn mtu(&self) -> u32 {
        (**self).mtu()
    }
    fn counters(&self) -> &Counters {
        (**self).counters()
    }
    fn show_headers(&self) -> io::Result<()> {
        (**self).show_headers()
    }
    fn backlog(&self) -> Option<Backlog> {
        (**self).backlog()
    }
}
