//! From datagrams to queue pairs.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Core;
use super::hold::Holding;
use super::qp::Qp;
use super::queued::{Buffers, Cached};
use parking_lot::MutexGuard;

use crate::ids::{PKey, Psn, Qpn};
use crate::io::{Meta, ROCE_PORT, Received, RxBatch};
use crate::mem;
use crate::qp::Notices;
use crate::qp::recv::{Echo, RecvSide, Source};
use crate::qp::send::SendSide;
use crate::task::trial::Trial;
use crate::time::Instant;
use crate::wire::{Bth, Check, Headers, Opcode, Packet, PathIcrc, icrc};

/// Datagrams taken at a time.
/// One: what a program polls for should not be more than it can repost receives for, and the rest waits in the socket.
const DATAGRAMS: usize = 1;

/// What receiving needs. Whoever holds its lock is the one that receives.
pub(crate) struct Receiver {
    pub(super) batch: RxBatch,
    /// Where there are workers, instead.
    pub(super) buffers: Buffers,
    /// The ICRC's constant part for the sender last heard.
    icrc: Cached,
    /// Queue pairs with an acknowledgement that waits for company.
    pub(super) lazy: Vec<Arc<Qp>>,
    /// Rounds that these have waited, and the bytes that came meanwhile.
    lazy_rounds: u32,
    lazy_bytes: usize,
    /// Not before this time is an empty socket asked again: a stream that is drained too eagerly comes in crumbs.
    quiet_until: Instant,
    /// Bytes and packets that the last round brought.
    pub(super) last_bytes: usize,
    last_packets: usize,
    /// Whether acknowledgements wait for the program's answer.
    pub(super) holding: Holding,
    /// When a polling program last received something.
    idle_since: Instant,
    /// Rounds until the socket's backlog is looked at.
    until_backlog: u32,
    /// The backlog is so long that senders should slow down.
    pub(super) congested: bool,
    /// There is a backlog although somebody receives, and the socket was not empty since.
    pub(super) loaded: bool,
    /// Whether workers help then.
    pub(super) trial: Trial,
}

/// A packet that passed the checks which need no queue pair.
pub(super) struct Valid<'a> {
    pub(super) headers: Headers,
    pub(super) payload: &'a [u8],
    pub(super) source: Source,
}

impl Receiver {
    pub(crate) fn new() -> Self {
        Self {
            batch: RxBatch::new(DATAGRAMS),
            buffers: Buffers::new(),
            icrc: None,
            lazy: Vec::new(),
            lazy_rounds: 0,
            lazy_bytes: 0,
            quiet_until: Instant::ZERO,
            last_bytes: 0,
            last_packets: 0,
            holding: Holding::default(),
            idle_since: Instant::ZERO,
            until_backlog: 0,
            congested: false,
            loaded: false,
            trial: Trial::new(),
        }
    }
}

impl Core {
    /// Receives once. Returns whether anything came.
    pub(crate) fn receive(&self, rx: &mut Receiver, now: Instant) -> bool {
        if !self.pool.workers().is_empty() {
            return self.receive_for_workers(rx, now);
        }
        if self.fill(&mut rx.batch) == 0 {
            return false;
        }
        let batch = std::mem::replace(&mut rx.batch, RxBatch::empty());
        self.weigh(rx, &batch);
        let packets = batch.iter().flat_map(|d| {
            let meta = d.meta;
            d.packets().map(move |bytes| (meta, bytes))
        });
        self.dispatch(rx, packets, now);
        rx.batch = batch;
        self.company(rx, now);
        true
    }

    /// Receives into buffers. Returns how many datagrams came.
    pub(super) fn fill(&self, batch: &mut RxBatch) -> usize {
        let count = self.link.recv(batch).unwrap_or_else(|e| {
            tracing::debug!(error = %e, "receiving failed");
            0
        });
        self.keep_awake();
        count
    }

    /// Notes how much has come, and now and then how much waits.
    pub(super) fn weigh(&self, rx: &mut Receiver, batch: &RxBatch) {
        rx.last_bytes = batch.iter().map(|d| d.bytes.len()).sum();
        rx.last_packets = batch.iter().map(|d| d.packets().len()).sum();
        if rx.last_bytes >= STREAM || rx.until_backlog == 0 {
            rx.until_backlog = 16;
            let backlog = self.link.backlog();
            rx.congested = backlog.is_some_and(|b| b.used > b.limit / 4);
            rx.loaded |= backlog.is_some_and(|b| b.used > b.limit / LOADED);
        }
        rx.until_backlog -= 1;
    }

    /// Sends the acknowledgements that have waited for company for long enough.
    pub(super) fn company(&self, rx: &mut Receiver, now: Instant) {
        if rx.lazy.is_empty() {
            (rx.lazy_rounds, rx.lazy_bytes) = (0, 0);
            return;
        }
        // The peer's window must not run empty while a stream comes in.
        rx.lazy_rounds += 1;
        rx.lazy_bytes += rx.last_bytes;
        if rx.lazy_rounds >= LAZY_ROUNDS || rx.lazy_bytes >= LAZY_BYTES {
            self.flush_lazy(rx, now);
        }
    }

    /// Works on packets in the order of their arrival.
    pub(super) fn dispatch<'a>(
        &self,
        rx: &mut Receiver,
        mut packets: impl Iterator<Item = (Meta, &'a [u8])>,
        now: Instant,
    ) {
        let mut cached = rx.icrc.take();
        let mut next = move |icrc: &mut Cached| {
            loop {
                let (meta, bytes) = packets.next()?;
                if let Some(valid) = self.check(icrc, &Received { meta, bytes }) {
                    return Some(valid);
                }
            }
        };

        // A request that came with the acknowledgement of what it answers: the program expects to see the completion of
        // its own request first, as adapters acknowledge before the peer's program can answer.
        let mut held: Option<Arc<Qp>> = None;
        let mut pending = next(&mut cached);
        while let Some(first) = pending.take() {
            let qpn = first.headers.bth.dest_qpn;
            let request = first.headers.bth.opcode.info().request;
            if qpn == Qpn::MULTICAST || first.source.dst.is_multicast() {
                self.deliver_to_group(&first, now);
                pending = next(&mut cached);
                continue;
            }
            if first.headers.bth.opcode == Opcode::Cnp {
                if let Some(qp) = self.qps.find(qpn) {
                    self.counters.rcvd_cnp.add(1);
                    self.hear(&qp, &first.headers.bth, now);
                }
                pending = next(&mut cached);
                continue;
            }
            let Some(qp) = self.qps.find(qpn) else {
                if self.lease.is_some() && qpn.slot() != self.qps.slot() {
                    self.counters.other_process_pkts.add(1);
                    self.strayed();
                } else {
                    self.counters.unknown_qp.add(1);
                }
                pending = next(&mut cached);
                continue;
            };
            // One lock for all packets in a row that are for the same side of a queue pair.
            let mut packet = first;
            if request && rx.congested {
                self.notify_congestion(&qp, &packet, now);
            }
            let mut count = 0;
            let mut more = || {
                count += 1;
                let packet = next(&mut cached);
                let same = packet.as_ref().is_some_and(|p| same_side(p, qpn, request));
                (packet, same)
            };
            if request {
                let mut side = qp.recv.lock();
                let mut notices = Notices::default();
                pending = loop {
                    self.handle_request(&mut side, &packet, now, &mut notices);
                    match more() {
                        (Some(p), true) => packet = p,
                        (other, _) => break other,
                    }
                };
                qp.scheduler.replies_pending(self, &qp, &mut side, now, &mut notices);
                if side.has_replies() && side.will_notify() {
                    // The program sleeps, so its answer is far away; and its peer should hear first that the request has
                    // arrived, and then the answer, as from an adapter.
                    qp.send_replies(self, &mut side, now, &mut notices, None);
                }
                let lazy = side.has_replies() && !side.is_urgent();
                rx.holding.written = side.just_written();
                if pending.as_ref().is_some_and(|p| is_response_to(p, qpn)) {
                    held = Some(qp.clone());
                } else {
                    qp.deliver_recv(self, &mut side);
                }
                qp.tend_parked(self, &mut side, now);
                drop(side);
                qp.tell(self, notices);
                if lazy && !qp.lazy.swap(true, Ordering::Relaxed) {
                    rx.lazy.push(qp);
                }
            } else {
                let mut side = qp.send.lock();
                let mut notices = Notices::default();
                pending = loop {
                    self.handle_response(&mut side, &packet, now, &mut notices);
                    match more() {
                        (Some(p), true) => packet = p,
                        (other, _) => break other,
                    }
                };
                qp.scheduler.sends_pending(self, &qp, &mut side, now, &mut notices);
                qp.deliver_send(self, &mut side);
                drop(side);
                qp.tell(self, notices);
                if let Some(qp) = held.take() {
                    qp.deliver_recv(self, &mut qp.recv.lock());
                    qp.tell(self, Notices::default());
                }
            }
            self.counters.rcvd_pkts.add(count);
        }
        if let Some(qp) = held {
            qp.deliver_recv(self, &mut qp.recv.lock());
            qp.tell(self, Notices::default());
        }
        rx.icrc = cached;
    }

    /// A request for this side, if it listens to whom it comes from.
    pub(super) fn handle_request(
        &self,
        side: &mut RecvSide,
        packet: &Valid<'_>,
        now: Instant,
        notices: &mut Notices,
    ) {
        if side.listens_to(packet.source.src.ip()) {
            side.handle_request(now, &packet.headers, packet.payload, &packet.source, &self.mem, notices);
        } else {
            self.counters.wrong_peer.add(1);
        }
    }

    /// A response for this side, if it listens to whom it comes from.
    pub(super) fn handle_response(
        &self,
        side: &mut SendSide,
        packet: &Valid<'_>,
        now: Instant,
        notices: &mut Notices,
    ) {
        if side.listens_to(packet.source.src.ip()) {
            side.handle_response(now, &packet.headers, packet.payload, &self.mem, notices);
        } else {
            self.counters.wrong_peer.add(1);
        }
    }

    /// A packet for another process was merged with ours. Each is a loss for its peer: if it is no rare thing, packets
    /// one by one are faster.
    #[cold]
    fn strayed(&self) {
        /// From so many on they may be more than an accident, and if one of so many received ones is one, they are.
        const SOME: u64 = 64;
        let (strays, received) = (self.counters.other_process_pkts.value(), self.counters.rcvd_pkts.value());
        let Some(anchor) = &self.lease else { return };
        if strays < SOME || received > strays * SOME || self.unmerged.swap(true, Ordering::Relaxed) {
            return;
        }
        match crate::io::udp::group::stop_merging(anchor) {
            Ok(()) => tracing::info!(
                "the network merges packets for several processes of {}: receiving them one by one from now on",
                self.port.ip
            ),
            Err(error) => tracing::warn!(%error, "the merging of received packets cannot be ended"),
        }
    }

    /// Tells the sender of a packet that the queue grows (IBA A17.9.3), at most once in a while.
    pub(super) fn notify_congestion(&self, qp: &Qp, packet: &Valid<'_>, now: Instant) {
        const EVERY: u64 = 100_000;
        let sender = match packet.headers.deth {
            Some(deth) => deth.src_qpn,
            None => match qp.recv.lock().acceptance() {
                Some(accept) => accept.dest_qpn,
                None => return,
            },
        };
        let key = (packet.source.src, sender);
        {
            let mut told = self.told.lock();
            if told.get(&key).is_some_and(|&at| now.since(at) < EVERY) {
                return;
            }
            if told.len() >= 1024 {
                told.clear();
            }
            told.insert(key, now);
        }
        self.send_cnp(
            packet.source.src.ip(),
            Bth { becn: true, ..Bth::new(Opcode::Cnp, sender, Psn::new(0)) },
        );
    }

    /// Tells a sender that its marked packet was taken.
    pub(super) fn send_echo(&self, echo: Echo) {
        self.send_cnp(echo.to, Bth { fecn: true, ..Bth::new(Opcode::Cnp, echo.qpn, echo.psn) });
    }

    fn send_cnp(&self, to: IpAddr, bth: Bth) {
        let path = self.path(SocketAddr::new(to, ROCE_PORT), 0, 0);
        let mut batch = self.take_batch();
        batch.begin(&path, &Headers::new(bth), 0, 0);
        batch.finish();
        let outcome = self.send(&batch);
        self.counters.sent_cnp.add(outcome.sent_packets as u64);
        self.give_batch(batch);
    }

    /// A congestion notification packet: a complaint, an echo, or both.
    fn hear(&self, qp: &Qp, bth: &Bth, now: Instant) {
        let mut side = qp.send.lock();
        if !bth.fecn || bth.becn {
            side.handle_congestion(now);
        }
        if bth.fecn {
            side.handle_echo(now, bth.psn);
            let mut notices = Notices::default();
            qp.scheduler.sends_pending(self, qp, &mut side, now, &mut notices);
            qp.deliver_send(self, &mut side);
            drop(side);
            qp.tell(self, notices);
        }
    }

    /// What can be checked without a queue pair: ICRC, form, partition.
    pub(super) fn check<'a>(&self, cached: &mut Cached, datagram: &Received<'a>) -> Option<Valid<'a>> {
        let meta = &datagram.meta;
        // The ICRC's pseudo header has the ports of the packet, whatever the peer's source port is.
        let dst = SocketAddr::new(meta.dst, self.link.local().port());
        let path = match cached {
            Some((s, d, path)) if *s == meta.src && *d == dst => *path,
            _ => {
                let path = PathIcrc::new(meta.src, dst);
                *cached = Some((meta.src, dst, path));
                path
            }
        };
        match icrc::verify(&path, meta.ip_id, datagram.bytes) {
            Check::Match => {}
            Check::SolvedId(_) => self.counters.icrc_solved_id.add(1),
            Check::Mismatch => {
                self.counters.icrc_errors.add(1);
                return None;
            }
        }
        let packet = match Packet::parse(datagram.bytes) {
            Ok(packet) => packet,
            Err(e) => {
                self.counters.malformed_pkts.add(1);
                tracing::trace!(from = %meta.src, error = %e, "malformed packet");
                return None;
            }
        };
        if !packet.headers.bth.pkey.matches(PKey::DEFAULT) {
            self.counters.pkey_violations.add(1);
            return None;
        }
        let source = Source {
            src: meta.src,
            dst: meta.dst,
            traffic_class: meta.traffic_class,
            hop_limit: meta.hop_limit,
            udp_len: datagram.bytes.len(),
        };
        Some(Valid { headers: packet.headers, payload: packet.payload, source })
    }

    /// Sends the acknowledgements that waited for company.
    pub(crate) fn flush_lazy(&self, rx: &mut Receiver, now: Instant) {
        rx.lazy_rounds = 0;
        rx.lazy_bytes = 0;
        if rx.lazy.is_empty() {
            return;
        }
        let mut outbox = self.take_batch();
        let mut lazy = std::mem::take(&mut rx.lazy);
        for qp in lazy.drain(..) {
            qp.lazy.store(false, Ordering::Relaxed);
            qp.run_replies(self, now, Some(&mut outbox));
        }
        rx.lazy = lazy;
        self.flush(&mut outbox);
        self.give_batch(outbox);
    }

    /// The same at the end of a process. Whoever holds a queue pair may never let go of it.
    pub(super) fn flush_lazy_until(&self, rx: &mut Receiver, now: Instant, end: std::time::Instant) {
        for qp in rx.lazy.drain(..) {
            qp.lazy.store(false, Ordering::Relaxed);
            if let Some(mut side) = qp.recv.try_lock_until(end) {
                // What this has to tell comes too late for the program.
                qp.send_replies(self, &mut side, now, &mut Notices::default(), None);
            }
        }
    }

    /// One round for a program that polls: receives, or, if nothing came, runs what is due and sends what waited for company.
    pub(crate) fn poll(&self) {
        if self.thread_receives {
            // What the program waits for is made by threads that may need its CPU.
            std::thread::yield_now();
            return;
        }
        mem::guard::ready_thread();
        let now = self.clock.now();
        self.attention.program_polls(now);
        self.release(now);
        let Some(mut rx) = self.receiver.try_lock() else { return };
        if now < rx.quiet_until {
            return;
        }
        if self.receive(&mut rx, now) {
            rx.idle_since = now;
            self.run_timers(now, TIMER_GRACE);
            return;
        }
        self.run_timers(now, 0);
        if !rx.lazy.is_empty() {
            self.flush_lazy(&mut rx, now);
        } else if rx.last_bytes >= STREAM {
            rx.quiet_until = now.plus(STREAM_PAUSE);
        }
        let idle = now.since(rx.idle_since);
        drop(rx);
        if idle > POLITE {
            std::thread::yield_now();
        }
    }

    /// What can run now, for the receive thread. With `hold` it takes its time where others do better
    /// for it: acknowledgements are kept for a moment ([`Core::hold`]), and so is the socket of a stream left alone.
    pub(crate) fn run_all(&self, hold: bool) -> Ran {
        let mut any = self.run_faults();
        self.send_gathered(self.clock.now());
        let mut rx = self.receiver.lock();
        for _ in 0..ROUNDS {
            let now = self.clock.now();
            self.release(now);
            if hold && now < rx.quiet_until {
                return Ran::Something;
            }
            if !self.receive(&mut rx, now) {
                self.run_timers(now, 0);
                if rx.last_bytes >= STREAM {
                    rx.quiet_until = now.plus(STREAM_PAUSE);
                    rx.last_bytes = 0;
                }
                break;
            }
            any = true;
            self.run_timers(now, TIMER_GRACE);
        }
        let packets = rx.last_packets;
        let held = hold && !rx.lazy.is_empty() && rx.holding.is_due(packets);
        if !held {
            let now = self.clock.now();
            self.flush_lazy(&mut rx, now);
        }
        // Others may wait for the lock while a stream comes in.
        MutexGuard::unlock_fair(rx);
        match (held, any) {
            (true, _) => Ran::Held,
            (false, true) => Ran::Something,
            (false, false) => Ran::Nothing,
        }
    }

    /// Of a device without threads: resolves the page faults whose time has come. Returns whether there were any.
    fn run_faults(&self) -> bool {
        let mut any = false;
        while self.manual
            && let Some(job) = self.faults.due(self.clock.now())
        {
            any = true;
            if let Some(rest) = crate::task::faults::work(self, job) {
                self.submit(rest);
            }
        }
        any
    }

    /// Runs the queue pairs whose time came at least `grace` ns ago. While packets come in there is grace: after a
    /// pause of this thread the answer that a timer waits for is likely among them.
    fn run_timers(&self, now: Instant, grace: u64) {
        let until = Instant(now.0.saturating_sub(grace));
        if self.timers.next() > until {
            return;
        }
        while let Some((at, qpn)) = self.timers.take_due(until) {
            if let Some(qp) = self.qps.find(qpn) {
                self.counters.timer_runs.add(1);
                qp.run_timer(self, at, now);
            }
        }
    }
}

/// What a round of the receive thread did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ran {
    /// Nothing has come.
    Nothing,
    /// Something has come, and there may be more.
    Something,
    /// Acknowledgements wait for company.
    Held,
}

/// See [`Core::run_timers`], in ns.
const TIMER_GRACE: u64 = 10_000_000;

/// Acknowledgements wait for company at most so many rounds and bytes.
const LAZY_ROUNDS: u32 = 4;
const LAZY_BYTES: usize = 128 * 1024;
/// A program that has polled for so long in vain, in ns, lets others have the CPU: what it waits for may be among them.
/// Alone on its CPU it loses nothing.
const POLITE: u64 = 20_000;
/// Rounds after which the receive thread looks whether the program polls again.
const ROUNDS: usize = 64;
/// A round with so many bytes is part of a stream.
const STREAM: usize = 16 * 1024;
/// A backlog of this part of the receive buffer means that receiving does not keep up.
const LOADED: usize = 16;
/// How long the socket is then left alone when it is empty, in ns.
const STREAM_PAUSE: u64 = 10_000;

fn is_response_to(p: &Valid<'_>, qpn: Qpn) -> bool {
    let opcode = p.headers.bth.opcode;
    p.headers.bth.dest_qpn == qpn
        && !p.source.dst.is_multicast()
        && !opcode.info().request
        && opcode != Opcode::Cnp
}

fn same_side(p: &Valid<'_>, qpn: Qpn, request: bool) -> bool {
    p.headers.bth.dest_qpn == qpn
        && !p.source.dst.is_multicast()
        && p.headers.bth.opcode.info().request == request
}
