//! Receiving for workers, and what a worker does in a task's turn.
//!
//! Who receives looks at no more of a packet than whose it is, and leaves it, in the buffer into which it was received,
//! to the worker of that side of the queue pair ([`Lane`](crate::task::Lane)). The worker verifies and executes it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Core;
use super::qp::Qp;
use super::receive::Receiver;
use crate::ids::Qpn;
use crate::io::{Meta, Received, RxBatch};
use crate::qp::{Notices, Progress};
use crate::task::Side;
use crate::task::lane::Run;
use crate::time::Instant;
use crate::wire::{Bth, Opcode, PathIcrc, TxBatch};

/// Buffers at most. One is 64 KiB of address space, and memory as far as datagrams reached.
const BUFFERS: usize = 1024;
/// How long receiving waits for workers, in ns, when all buffers are taken; then what comes is dropped.
const PATIENCE: u64 = 1_000_000;
/// Batches that a requester sends in one turn.
const BATCHES: usize = 4;

/// The ICRC's constant part for the sender last heard.
pub(super) type Cached = Option<(SocketAddr, SocketAddr, PathIcrc)>;

/// Receive buffers. One is free when no packet in it waits any more.
pub(super) struct Buffers {
    all: Vec<Arc<RxBatch>>,
    at: usize,
    full_since: Option<Instant>,
}

impl Buffers {
    pub(super) const fn new() -> Self {
        Self { all: Vec::new(), at: 0, full_since: None }
    }

    /// A free one: the last one if it is, for it is in the cache, else the one that has been in use for longest.
    fn free(&mut self) -> Option<usize> {
        let count = self.all.len();
        for i in 0..count {
            let index = (self.at + i) % count;
            if Arc::get_mut(&mut self.all[index]).is_some() {
                self.at = index;
                return Some(index);
            }
        }
        if count == BUFFERS {
            return None;
        }
        self.all.push(Arc::new(RxBatch::new(1)));
        self.at = count;
        Some(count)
    }
}

/// What a turn of a task has done.
pub(crate) struct Turn {
    /// Packets that waited for it.
    pub(crate) packets: usize,
    /// It has left work.
    pub(crate) more: bool,
    /// To be told when the turn is over.
    pub(crate) notices: Notices,
}

impl Core {
    /// Receives once where there are workers. Returns whether anything came.
    pub(super) fn receive_for_workers(&self, rx: &mut Receiver, now: Instant) -> bool {
        let Some(index) = rx.buffers.free() else {
            let since = *rx.buffers.full_since.get_or_insert(now);
            if now.since(since) > PATIENCE {
                let n = self.fill(&mut rx.batch);
                let dropped: usize = rx.batch.iter().map(|d| d.packets().len()).sum();
                self.counters.inbox_drops.add(dropped as u64);
                return n > 0;
            }
            std::thread::yield_now();
            return false;
        };
        rx.buffers.full_since = None;
        let Some(batch) = Arc::get_mut(&mut rx.buffers.all[index]) else { return false };
        if self.fill(batch) == 0 {
            rx.loaded = false;
            return false;
        }
        let batch = rx.buffers.all[index].clone();
        self.weigh(rx, &batch);
        self.sort(rx, &batch, now);
        self.company(rx, now);
        true
    }

    /// Leaves packets to workers, and works on the others.
    fn sort(&self, rx: &mut Receiver, batch: &Arc<RxBatch>, now: Instant) {
        let loaded = rx.loaded && rx.trial.for_workers(now, rx.last_bytes);
        for (index, datagram) in batch.iter().enumerate() {
            let segment = datagram.meta.segment.max(1);
            // What is from `own` to `at` is for this thread.
            let (mut own, mut at) = (0, 0);
            while let Some(rest) = datagram.bytes.get(at..)
                && !rest.is_empty()
            {
                let place = target(&datagram.meta, rest);
                let same = rest.chunks(segment).take_while(|p| target(&datagram.meta, p) == place);
                let end = at + same.map(<[u8]>::len).sum::<usize>();
                let qp = place.and_then(|(qpn, side)| Some((self.qps.find(qpn)?, side)));
                if let Some((qp, side)) = qp {
                    if qp.scheduler.leaves_packets(&qp, side, end - at, loaded) {
                        if own < at {
                            self.dispatch(rx, packets(datagram.meta, &datagram.bytes[own..at]), now);
                        }
                        own = end;
                        let congested = rx.congested && side == Side::Recv;
                        let run = Run { batch: batch.clone(), datagram: index, start: at, end, congested };
                        self.leave_packets(&qp, side, run, (end - at).div_ceil(segment));
                    } else {
                        self.counters.inline_runs.add(1);
                    }
                }
                at = end;
            }
            if own < at {
                self.dispatch(rx, packets(datagram.meta, &datagram.bytes[own..at]), now);
            }
        }
    }

    fn leave_packets(&self, qp: &Qp, side: Side, run: Run, count: usize) {
        if qp.lane(side).push(run) {
            self.counters.queued_runs.add(1);
            self.pool.schedule(qp, side);
        } else {
            self.counters.inbox_drops.add(count as u64);
        }
    }

    /// The turn of requester and completer.
    pub(crate) fn turn_of_send_side(&self, qp: &Qp, runs: &mut Vec<Run>, outbox: &mut TxBatch) -> Turn {
        let lane = qp.lane(Side::Send);
        let mut notices = Notices::default();
        lane.due.store(false, Ordering::Relaxed);
        let more = lane.take(runs);
        // Who deregisters waits for what was translated before to be copied.
        let _copying = self.page_work.read_recursive();
        let now = self.clock.now();
        let mut packets = 0;
        let mut cached = None;
        let mut side = qp.send.lock();
        for run in runs.drain(..) {
            for (meta, bytes) in run.packets() {
                packets += 1;
                let Some(packet) = self.check(&mut cached, &Received { meta, bytes }) else { continue };
                self.handle_response(&mut side, &packet, now, &mut notices);
            }
        }
        // What a timer waits for may be among what is left.
        if !more && side.deadline() <= now {
            side.handle_timeout(now, &mut notices);
        }
        let progress = qp.run_send(self, &mut side, now, &mut notices, BATCHES, Some(outbox));
        qp.deliver_send(self, &mut side);
        self.counters.rcvd_pkts.add(packets as u64);
        Turn { packets, more: more || progress == Progress::More, notices }
    }

    /// The turn of the responder.
    pub(crate) fn turn_of_recv_side(&self, qp: &Qp, runs: &mut Vec<Run>, outbox: &mut TxBatch) -> Turn {
        let lane = qp.lane(Side::Recv);
        let mut notices = Notices::default();
        let due = lane.due.swap(false, Ordering::Acquire);
        let more = lane.take(runs);
        let _copying = self.page_work.read_recursive();
        let now = self.clock.now();
        let mut cached = None;
        if let Some(run) = runs.iter().find(|run| run.congested)
            && let Some((meta, bytes)) = run.packets().next()
            && let Some(packet) = self.check(&mut cached, &Received { meta, bytes })
        {
            self.notify_congestion(qp, &packet, now);
        }
        let mut packets = 0;
        let mut side = qp.recv.lock();
        for run in runs.drain(..) {
            for (meta, bytes) in run.packets() {
                packets += 1;
                let Some(packet) = self.check(&mut cached, &Received { meta, bytes }) else { continue };
                self.handle_request(&mut side, &packet, now, &mut notices);
            }
        }
        if due && side.has_parked() {
            side.resume(now, &self.mem, &mut notices);
        }
        // While more requests wait, plain acknowledgements wait for those of them.
        if side.has_replies() && (!more || side.is_urgent()) {
            qp.send_replies(self, &mut side, now, &mut notices, Some(outbox));
        }
        qp.deliver_recv(self, &mut side);
        qp.tend_parked(self, &mut side, now);
        self.counters.rcvd_pkts.add(packets as u64);
        Turn { packets, more, notices }
    }
}

fn packets(meta: Meta, bytes: &[u8]) -> impl Iterator<Item = (Meta, &[u8])> {
    bytes.chunks(meta.segment.max(1)).map(move |packet| (meta, packet))
}

/// The side of a queue pair that a packet is for, if it is one that a worker could work on. Nothing is verified yet: a
/// forged packet goes where a true one would, and is found out there.
fn target(meta: &Meta, packet: &[u8]) -> Option<(Qpn, Side)> {
    let Bth { opcode, dest_qpn: qpn, .. } = Bth::parse(packet.first_chunk()?).ok()?;
    if opcode == Opcode::Cnp || qpn == Qpn::MULTICAST || meta.dst.is_multicast() {
        return None;
    }
    Some((qpn, if opcode.info().request { Side::Recv } else { Side::Send }))
}
