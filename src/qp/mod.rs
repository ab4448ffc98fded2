//! The protocol engine: what a queue pair does with work requests, packets and time.
//!
//! A queue pair has two sides, each with one owner and one lock: [`send::SendSide`] (requester and completer) and
//! [`recv::RecvSide`] (responder). They take `now`, packets and a [`Memory`](crate::mem::Memory), and return packets to
//! send and completions. There is no socket, thread, clock or random number in here, so that a test or a simulation
//! can run them at any speed, and a failure can be replayed.

pub(crate) mod gate;
mod pace;
pub mod recv;
pub mod send;
pub mod state;
pub mod window;

use crate::ids::Qpn;
use crate::mem::odp::By;
pub use crate::mem::odp::queue::Part;
use crate::mem::{self, MemError, Miss};
use crate::verbs::{AsyncEvent, Sge, WcStatus};

/// Scatter/gather elements of a work request. Two fit without an allocation.
#[derive(Clone, Debug)]
pub struct SgeList {
    len: u8,
    inline: [Sge; 2],
    more: Option<Box<[Sge]>>,
}

impl SgeList {
    /// Copies the elements. More than 255 are not possible; the device allows fewer.
    pub fn new(sges: &[Sge]) -> Self {
        let mut inline = [Sge::default(); 2];
        let more = if sges.len() <= 2 {
            inline[..sges.len()].copy_from_slice(sges);
            None
        } else {
            Some(sges.into())
        };
        Self { len: sges.len().min(255) as u8, inline, more }
    }

    /// The elements.
    pub fn as_slice(&self) -> &[Sge] {
        match &self.more {
            Some(more) => more,
            None => &self.inline[..usize::from(self.len.min(2))],
        }
    }

    /// Bytes of all of them.
    pub fn total(&self) -> u64 {
        self.as_slice().iter().map(|s| u64::from(s.len)).sum()
    }

    /// The parts of the elements that hold `len` bytes from `offset` of the message, in order.
    pub fn slices(&self, offset: u64, len: u64) -> impl Iterator<Item = Sge> + '_ {
        let (mut skip, mut left) = (offset, len);
        self.as_slice().iter().filter_map(move |s| {
            let have = u64::from(s.len);
            if skip >= have {
                skip -= have;
                return None;
            }
            let take = (have - skip).min(left);
            let part = Sge { addr: s.addr.wrapping_add(skip), len: take as u32, lkey: s.lkey };
            skip = 0;
            left -= take;
            (take > 0).then_some(part)
        })
    }
}

/// What a side has to tell its device, besides packets and completions.
#[derive(Debug, Default)]
pub struct Notices {
    /// Asynchronous events.
    pub events: Vec<AsyncEvent>,
    /// The queue pair has to go to the error state: both sides are to be flushed.
    pub fatal: bool,
    /// Why requests failed, for the log: one line each.
    pub failures: Vec<Failure>,
    /// Pages that are waited for: whoever makes them present tells the part by its `handle_page`.
    pub faults: Vec<PageFault>,
}

/// A page that is waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageFault {
    /// Who waits.
    pub part: Part,
    /// The operation.
    pub by: By,
    /// What is not present.
    pub miss: Miss,
}

impl Notices {
    /// Whether there is something to tell.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty() && !self.fatal && self.failures.is_empty() && self.faults.is_empty()
    }
}

/// Why a request failed.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Our queue pair.
    pub qpn: Qpn,
    /// The program's name for the request; none if a peer's request was refused.
    pub wr_id: Option<u64>,
    /// How it ended.
    pub status: WcStatus,
    /// The check that failed.
    pub cause: Cause,
}

/// The check that failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum Cause {
    #[error("local memory: {0}")]
    Local(MemError),
    #[error("local memory at {0:#x} is not mapped as it was when registered")]
    LocalFault(u64),
    #[error("the peer's request for remote memory: {0}")]
    Remote(MemError),
    #[error("the peer answered \"{0}\" at PSN {1:#08x}")]
    Nak(&'static str, u32),
    #[error("no acknowledgement from {peer} after {tries} tries of {timeout_us} us, oldest PSN {psn:#08x}")]
    Timeout { peer: String, tries: u32, timeout_us: u64, psn: u32 },
    #[error("the receiver had no receive request posted in {0} tries")]
    Rnr(u32),
    #[error("a message of {have} bytes does not fit the posted receive of {room} bytes")]
    RecvTooShort { have: u64, room: u64 },
    #[error("the response at PSN {psn:#08x} has {have} bytes where {want} were asked for")]
    BadResponse { psn: u32, have: usize, want: usize },
    #[error("the peer sent {0}")]
    BadRequest(&'static str),
    #[error("the address is not reachable")]
    NoPath,
}

impl Cause {
    /// A small number for `vendor_err` of a completion.
    pub fn code(&self) -> u32 {
        match self {
            Self::Local(_) => 1,
            Self::LocalFault(_) => 2,
            Self::Remote(_) => 3,
            Self::Nak(..) => 4,
            Self::Timeout { .. } => 5,
            Self::Rnr(_) => 6,
            Self::RecvTooShort { .. } => 7,
            Self::BadResponse { .. } => 8,
            Self::BadRequest(_) => 9,
            Self::NoPath => 10,
        }
    }
}

impl Cause {
    /// What to wait for, if this is no failure but a page that is not present.
    pub(crate) fn miss(&self) -> Option<Miss> {
        match self {
            Self::Local(MemError::NotPresent(miss)) => Some(*miss),
            _ => None,
        }
    }
}

impl From<mem::Fault> for Cause {
    fn from(f: mem::Fault) -> Self {
        Self::LocalFault(f.addr)
    }
}

impl From<MemError> for Cause {
    fn from(e: MemError) -> Self {
        Self::Local(e)
    }
}

/// What a side can do next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// The batch is full; there is more to send now.
    More,
    /// Nothing to send until something happens.
    Wait,
}

/// The wait that an RNR NAK's timer code asks for, in ns (IBA table 46). Code 0 is the longest.
pub const fn rnr_wait_ns(code: u8) -> u64 {
    const HUNDREDTHS_OF_MS: [u32; 32] = [
        65_536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048,
        3072, 4096, 6144, 8192, 12_288, 16_384, 24_576, 32_768, 49_152,
    ];
    HUNDREDTHS_OF_MS[(code & 31) as usize] as u64 * 10_000
}

/// The local ACK timeout of a code, in ns: 4.096 us * 2^code. 0 means that there is none (IBA 9.9.2.1.1).
pub const fn ack_timeout_ns(code: u8) -> Option<u64> {
    match code & 31 {
        0 => None,
        c => Some(4096 << c),
    }
}

/// Runs an ICRC over application memory.
fn checksum(at: mem::HostAddr, len: usize, icrc: &mut crate::wire::Icrc) -> Result<(), mem::Fault> {
    mem::copy::with_bytes(at, len as u64, |bytes| icrc.update(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::LKey;

    #[test]
    fn rnr_codes_are_those_of_the_table() {
        assert_eq!(rnr_wait_ns(0), 655_360_000);
        assert_eq!(rnr_wait_ns(1), 10_000);
        assert_eq!(rnr_wait_ns(20), 10_240_000);
        assert_eq!(rnr_wait_ns(31), 491_520_000);
    }

    #[test]
    fn slices_cut_a_message_out_of_its_elements() {
        let sge = |addr, len| Sge { addr, len, lkey: LKey(1) };
        let list = SgeList::new(&[sge(0, 10), sge(100, 0), sge(200, 5), sge(300, 20)]);
        assert_eq!(list.total(), 35);
        let cut: Vec<_> = list.slices(8, 10).map(|s| (s.addr, s.len)).collect();
        assert_eq!(cut, [(8, 2), (200, 5), (300, 3)]);
        assert_eq!(list.slices(35, 4).count(), 0);
    }
}
