//! Takes a run apart into its packets.

use super::{Runs, sys};
use crate::wire::batch::{Piece, Run};

/// Walks over the pieces of a run, packet by packet.
pub(super) struct Split<'a> {
    pieces: &'a [Piece],
    /// Bytes of `pieces[0]` that are behind us.
    offset: usize,
    segment: usize,
    left: usize,
}

impl<'a> Split<'a> {
    pub(super) fn new(batch: Runs<'a>, run: &Run) -> Self {
        Self { pieces: batch.pieces(run), offset: 0, segment: run.segment.max(1), left: run.bytes }
    }

    /// Appends the pieces of the next packet to `out` and returns its length; `None` behind the last one.
    pub(super) fn next_packet(&mut self, out: &mut Vec<Piece>) -> Option<usize> {
        let len = self.left.min(self.segment);
        let mut missing = len;
        while missing > 0 {
            let piece = self.pieces.first()?;
            let take = missing.min(piece.len - self.offset);
            if take > 0 {
                out.push(Piece { addr: piece.addr + self.offset, len: take });
            }
            missing -= take;
            self.offset += take;
            if self.offset == piece.len {
                self.pieces = &self.pieces[1..];
                self.offset = 0;
            }
        }
        self.left -= len;
        (len > 0).then_some(len)
    }
}

/// Copies the packets of a batch one by one and hands each to `take` with the number of its run.
///
/// `take` returns false to stop. A packet whose memory is gone is handed over as an errno.
pub(super) fn copy_packets(batch: Runs<'_>, mut take: impl FnMut(usize, Result<&[u8], i32>) -> bool) {
    let mut pieces = Vec::new();
    let mut bytes = Vec::new();
    for (index, run) in batch.runs.iter().enumerate() {
        let mut split = Split::new(batch, run);
        while let Some(len) = split.next_packet(&mut pieces) {
            bytes.resize(len, 0);
            let copied = sys::copy_in(&pieces, &mut bytes);
            pieces.clear();
            if !take(index, copied.map(|()| &bytes[..])) {
                return;
            }
        }
    }
}

/// Copies a run.
pub(super) fn copy_run(batch: Runs<'_>, run: &Run) -> Result<Vec<u8>, i32> {
    let mut bytes = vec![0; run.bytes];
    sys::copy_in(batch.pieces(run), &mut bytes)?;
    Ok(bytes)
}
