//! Packets in memory of our own, as runs that a link sends.

use std::sync::Arc;

use super::way::Packet;
use crate::io::Runs;
use crate::wire::batch::{MAX_RUN_BYTES, MAX_RUN_PACKETS, Path, Piece, Run};

/// Runs of packets. The packets have to outlive the sending.
pub(super) struct Bundle {
    runs: Vec<Run>,
    pieces: Vec<Piece>,
}

impl Bundle {
    /// Packets of equal length in a row become a run where `segments`, the packets of a run to a destination, allows it.
    pub(super) fn new<'a>(
        packets: impl Iterator<Item = &'a Packet<Arc<Path>>>,
        mut segments: impl FnMut(&Path) -> usize,
    ) -> Self {
        let mut bundle = Self { runs: Vec::new(), pieces: Vec::new() };
        let mut last = None;
        for packet in packets {
            let Packet { place: path, bytes } = packet;
            let joins = last.is_some_and(|last| slot(last) == slot(packet))
                && bundle.runs.last().is_some_and(|run| {
                    Arc::ptr_eq(&run.path, path)
                        && run.bytes == run.packets * run.segment
                        && bytes.len() <= run.segment
                        && run.bytes + bytes.len() <= MAX_RUN_BYTES
                        && run.packets < segments(path).min(MAX_RUN_PACKETS)
                });
            let at = bundle.pieces.len();
            if !joins {
                let segment = bytes.len();
                bundle.runs.push(Run { path: path.clone(), pieces: at..at, segment, packets: 0, bytes: 0 });
            }
            bundle.pieces.push(Piece { addr: bytes.as_ptr() as usize, len: bytes.len() });
            if let Some(run) = bundle.runs.last_mut() {
                run.pieces.end += 1;
                run.packets += 1;
                run.bytes += bytes.len();
            }
            last = Some(packet);
        }
        bundle
    }

    pub(super) fn runs(&self) -> Runs<'_> {
        Runs { runs: &self.runs, pieces: &self.pieces }
    }
}

/// The process of the peer that a packet is for: the top 8 bits of the BTH's destination QPN. A run is for one process.
fn slot(packet: &Packet<Arc<Path>>) -> Option<&u8> {
    packet.bytes.get(5)
}
