//! Devices on a simulated network: virtual time, one seed, no threads.
//!
//! Whoever holds a [`World`] decides when time passes. Nothing in it depends on anything but the seed and the calls, so
//! a failure is replayed by running it again with its seed; a test that fails prints the seed and the last packets.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use urxe::config::{Config, Source};
use urxe::cq::Cq;
use urxe::device::{Clock, Device, EventSink, QpInit, QueuePair};
use urxe::ids::{Gid, Mtu, Psn, QKey};
use urxe::io::impair::Impairments;
use urxe::io::sim::{SimLink, SimNet};
use urxe::mem::{Access, HostAddr, PdId, Registered, copy};
use urxe::srq::Srq;
use urxe::time::Instant;
use urxe::verbs::{
    AddressVector, AsyncEvent, AttrMask, QpAttr, QpCaps, QpState, QpType, RecvWr, SendFlags, SendOp, SendWr,
    Sge, Wc, WcOpcode,
};

pub(crate) const US: u64 = 1_000;
pub(crate) const MS: u64 = 1_000_000;
pub(crate) const SECOND: u64 = 1_000_000_000;

/// Names the seed to replay: `URXE_SIM_SEED=123 cargo test ...`.
pub(crate) const SEED_VARIABLE: &str = "URXE_SIM_SEED";

/// The seeds of a test: the one to replay, or `fixed` and one that nobody has tried before.
pub(crate) fn seeds(fixed: &[u64]) -> Vec<u64> {
    use std::hash::{BuildHasher, Hasher};
    if let Ok(text) = std::env::var(SEED_VARIABLE) {
        return vec![text.parse().unwrap_or_else(|_| panic!("{SEED_VARIABLE}={text:?} is not a number"))];
    }
    let fresh = std::collections::hash_map::RandomState::new().build_hasher().finish();
    fixed.iter().copied().chain([fresh]).collect()
}

/// The configuration with these settings.
pub(crate) fn config(settings: &[(&str, &str)]) -> Config {
    let mut config = Config::default();
    for (key, value) in settings {
        config.set(key, value, Source::Default).unwrap();
    }
    config
}

/// A device's counter.
pub(crate) fn counter(device: &Device, name: &str) -> u64 {
    device.counters().into_iter().find(|(n, _)| *n == name).unwrap().1
}

/// Random numbers from a seed (SplitMix64).
#[derive(Clone, Debug)]
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    /// A number below `n`, which is not 0.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
    /// True `n` times in a hundred.
    pub(crate) fn percent(&mut self, n: u64) -> bool {
        self.below(100) < n
    }
    pub(crate) fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut out = Vec::with_capacity(len + 8);
        while out.len() < len {
            out.extend_from_slice(&self.next().to_ne_bytes());
        }
        out.truncate(len);
        out
    }
}

/// Memory that the engine may change while we look: never borrowed, only copied.
pub(crate) struct Buf {
    addr: u64,
    len: usize,
    /// What frees it.
    _owner: Box<dyn std::any::Any + Send + Sync>,
}

impl Buf {
    pub(crate) fn new(len: usize) -> Self {
        let words: Box<[AtomicU64]> = (0..len.div_ceil(8)).map(|_| AtomicU64::new(0)).collect();
        Self { addr: words.as_ptr() as u64, len: words.len() * 8, _owner: Box::new(words) }
    }
    /// Memory that is somebody else's.
    #[allow(dead_code)]
    pub(crate) fn of(addr: u64, len: usize, owner: Box<dyn std::any::Any + Send + Sync>) -> Self {
        Self { addr, len, _owner: owner }
    }
    pub(crate) fn addr(&self) -> u64 {
        self.addr
    }
    pub(crate) fn len(&self) -> usize {
        self.len
    }
    pub(crate) fn read(&self, at: usize, len: usize) -> Vec<u8> {
        assert!(at + len <= self.len());
        let mut out = vec![0; len];
        copy::read(HostAddr(self.addr() + at as u64), &mut out).unwrap();
        out
    }
    pub(crate) fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.len());
        copy::write(HostAddr(self.addr() + at as u64), bytes).unwrap();
    }
    pub(crate) fn register(&self, device: &Device, pd: PdId, access: Access) -> Registered {
        device.memory().register(pd, self.addr(), self.len() as u64, self.addr(), access).unwrap()
    }
}

/// Everything a peer or we ourselves may do.
pub(crate) const ALL_ACCESS: Access = Access(15);

/// Keeps the events of the objects that were made with it.
#[derive(Default)]
pub(crate) struct Events(parking_lot::Mutex<Vec<AsyncEvent>>);

impl Events {
    pub(crate) fn take(&self) -> Vec<AsyncEvent> {
        std::mem::take(&mut *self.0.lock())
    }
}

impl EventSink for Events {
    fn event(&self, event: AsyncEvent) {
        self.0.lock().push(event);
    }
}

/// Devices on one network, 10.0.0.1 and up.
pub(crate) struct World {
    pub(crate) seed: u64,
    pub(crate) net: Arc<SimNet>,
    pub(crate) clock: Arc<AtomicU64>,
    pub(crate) links: Vec<Arc<SimLink>>,
    pub(crate) devices: Vec<Device>,
    pub(crate) steps: u64,
}

impl World {
    pub(crate) fn new(seed: u64, impairments: Impairments, devices: u8) -> Self {
        Self::with_config(seed, impairments, devices, &Config::default())
    }

    pub(crate) fn with_config(seed: u64, impairments: Impairments, devices: u8, config: &Config) -> Self {
        let net = SimNet::new(seed, impairments);
        net.keep_trace(4000);
        let clock = Arc::new(AtomicU64::new(0));
        let links: Vec<_> = (1..=devices).map(|i| net.link(Self::address(i))).collect();
        let devices = links
            .iter()
            .map(|link| {
                let clock = Clock::Manual(clock.clone());
                Device::on_link(config, link.clone(), "sim".into(), SimNet::QUEUE_BYTES, clock).unwrap()
            })
            .collect();
        Self { seed, net, clock, links, devices, steps: 0 }
    }

    fn address(i: u8) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, i], 4791))
    }

    pub(crate) fn ip(&self, device: usize) -> IpAddr {
        self.devices[device].port().ip
    }

    pub(crate) fn now(&self) -> Instant {
        Instant(self.clock.load(Ordering::Relaxed))
    }

    /// Runs all devices until none has anything to do at this moment.
    pub(crate) fn settle(&self) {
        let mut rounds = 0;
        while self.devices.iter().fold(false, |any, d| d.run() | any) {
            rounds += 1;
            assert!(rounds < 100_000, "the devices never become quiet");
        }
    }

    /// When something happens next by itself.
    pub(crate) fn next_event(&self) -> Option<Instant> {
        let timers = self.devices.iter().map(Device::deadline).min().filter(|&at| at != Instant::NEVER);
        self.net.next_event().into_iter().chain(timers).min()
    }

    /// Moves the time.
    pub(crate) fn advance_to(&self, at: Instant) {
        let at = at.max(self.now());
        self.clock.store(at.0, Ordering::Relaxed);
        self.net.advance_to(at);
    }

    /// Runs what is due now, then moves the time to the next event and up to `slack` ns beyond. False if nothing will
    /// ever happen again.
    pub(crate) fn step(&mut self, slack: u64) -> bool {
        self.settle();
        self.steps += 1;
        let Some(at) = self.next_event() else { return false };
        self.advance_to(at.plus(slack));
        self.settle();
        true
    }

    /// Lets time pass until `done`, at most `limit` ns of it.
    #[track_caller]
    pub(crate) fn run_until(&mut self, what: &str, limit: u64, mut done: impl FnMut(&Self) -> bool) {
        let end = self.now().plus(limit);
        self.settle();
        while !done(self) {
            assert!(self.now() <= end, "not in {} ms of virtual time: {what}", limit / MS);
            assert!(self.step(0), "nothing will ever happen again, and still missing: {what}");
        }
    }

    /// Lets `ns` pass.
    pub(crate) fn pass(&mut self, ns: u64) {
        let end = self.now().plus(ns);
        self.settle();
        while self.next_event().is_some_and(|at| at <= end) {
            self.step(0);
        }
        self.advance_to(end);
        self.settle();
    }

    /// Lets time pass until nothing is on its way and no timer runs.
    #[track_caller]
    pub(crate) fn quiesce(&mut self, limit: u64) {
        let end = self.now().plus(limit);
        self.settle();
        while self.step(0) {
            assert!(self.now() <= end, "not quiet in {} ms of virtual time", limit / MS);
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!(
                "virtual time {:.3} ms; the last packets:\n{}\nreplay with {SEED_VARIABLE}={}",
                self.now().0 as f64 / 1e6,
                self.net.tail(80),
                self.seed
            );
        }
    }
}

/// How two queue pairs are connected.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wiring {
    pub(crate) mtu: Mtu,
    pub(crate) psn: u32,
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) min_rnr_timer: u8,
    pub(crate) max_rd_atomic: u8,
    pub(crate) access: Access,
    pub(crate) qkey: u32,
}

impl Default for Wiring {
    fn default() -> Self {
        Self {
            mtu: Mtu::B1024,
            psn: 0xff_fff0,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: 1,
            max_rd_atomic: 16,
            access: ALL_ACCESS,
            qkey: 0x1111,
        }
    }
}

pub(crate) fn masks(bits: &[AttrMask]) -> AttrMask {
    bits.iter().fold(AttrMask(0), |all, &bit| all.with(bit))
}

pub(crate) fn to_init(qp: &QueuePair, wiring: &Wiring) {
    use AttrMask as M;
    let attr = QpAttr {
        state: QpState::Init,
        port: 1,
        access: wiring.access,
        qkey: QKey(wiring.qkey),
        ..QpAttr::default()
    };
    let own = if qp.kind() == QpType::Ud { M::QKEY } else { M::ACCESS_FLAGS };
    qp.modify(&attr, masks(&[M::STATE, M::PORT, M::PKEY_INDEX, own])).unwrap();
}

pub(crate) fn to_rtr(qp: &QueuePair, peer: (IpAddr, &QueuePair), wiring: &Wiring) {
    use AttrMask as M;
    let attr = QpAttr {
        state: QpState::Rtr,
        path_mtu: wiring.mtu,
        dest_qpn: peer.1.number(),
        rq_psn: Psn::new(wiring.psn),
        max_dest_rd_atomic: wiring.max_rd_atomic,
        min_rnr_timer: wiring.min_rnr_timer,
        av: vector(peer.0),
        ..QpAttr::default()
    };
    let connected = [M::AV, M::PATH_MTU, M::DEST_QPN, M::RQ_PSN];
    let mask = match qp.kind() {
        QpType::Ud => M::STATE,
        QpType::Uc => masks(&connected).with(M::STATE),
        QpType::Rc => masks(&connected).with(masks(&[M::STATE, M::MAX_DEST_RD_ATOMIC, M::MIN_RNR_TIMER])),
    };
    qp.modify(&attr, mask).unwrap();
}

pub(crate) fn to_rts(qp: &QueuePair, wiring: &Wiring) {
    use AttrMask as M;
    let attr = QpAttr {
        state: QpState::Rts,
        sq_psn: Psn::new(wiring.psn),
        timeout: wiring.timeout,
        retry_cnt: wiring.retry_cnt,
        rnr_retry: wiring.rnr_retry,
        max_rd_atomic: wiring.max_rd_atomic,
        ..QpAttr::default()
    };
    let mask = match qp.kind() {
        QpType::Rc => {
            masks(&[M::STATE, M::SQ_PSN, M::TIMEOUT, M::RETRY_CNT, M::RNR_RETRY, M::MAX_QP_RD_ATOMIC])
        }
        QpType::Uc | QpType::Ud => masks(&[M::STATE, M::SQ_PSN]),
    };
    qp.modify(&attr, mask).unwrap();
}

/// Takes a queue pair from RESET to RTS.
pub(crate) fn connect(qp: &QueuePair, peer: (IpAddr, &QueuePair), wiring: &Wiring) {
    to_init(qp, wiring);
    to_rtr(qp, peer, wiring);
    to_rts(qp, wiring);
}

pub(crate) fn vector(ip: IpAddr) -> AddressVector {
    AddressVector { dgid: Gid::from_ip(ip), is_global: true, port: 1, ..AddressVector::default() }
}

pub(crate) fn set_state(qp: &QueuePair, state: QpState) {
    qp.modify(&QpAttr { state, ..QpAttr::default() }, AttrMask::STATE).unwrap();
}

/// A queue pair with a completion queue and registered memory of its own.
pub(crate) struct End {
    pub(crate) pd: PdId,
    pub(crate) cq: Arc<Cq>,
    pub(crate) qp: QueuePair,
    pub(crate) buf: Buf,
    pub(crate) keys: Registered,
    pub(crate) events: Arc<Events>,
    pub(crate) ip: IpAddr,
}

/// What an [`End`] is made of.
#[derive(Clone)]
pub(crate) struct EndInit {
    pub(crate) kind: QpType,
    pub(crate) bytes: usize,
    pub(crate) caps: QpCaps,
    pub(crate) cqe: u32,
    pub(crate) sig_all: bool,
    pub(crate) srq: Option<(PdId, Arc<Srq>)>,
}

pub(crate) const CAPS: QpCaps =
    QpCaps { max_send_wr: 256, max_recv_wr: 256, max_send_sge: 32, max_recv_sge: 32, max_inline_data: 512 };

impl Default for EndInit {
    fn default() -> Self {
        Self { kind: QpType::Rc, bytes: 1 << 16, caps: CAPS, cqe: 4096, sig_all: true, srq: None }
    }
}

impl End {
    pub(crate) fn new(device: &Device, init: EndInit) -> Self {
        let (pd, srq) = match init.srq {
            Some((pd, srq)) => (pd, Some(srq)),
            None => (device.alloc_pd(), None),
        };
        let cq = device.create_cq(init.cqe, None);
        let events = Arc::new(Events::default());
        let qp = device
            .create_qp(QpInit {
                kind: init.kind,
                pd,
                send_cq: cq.clone(),
                recv_cq: cq.clone(),
                srq,
                caps: init.caps,
                sig_all: init.sig_all,
                events: Some(events.clone()),
            })
            .unwrap();
        let buf = Buf::new(init.bytes);
        let keys = buf.register(device, pd, ALL_ACCESS);
        Self { pd, cq, qp, buf, keys, events, ip: device.port().ip }
    }

    pub(crate) fn sge(&self, at: usize, len: usize) -> Sge {
        assert!(at + len <= self.buf.len());
        Sge { addr: self.buf.addr() + at as u64, len: len as u32, lkey: self.keys.lkey }
    }
    pub(crate) fn remote(&self, at: usize) -> urxe::verbs::Remote {
        urxe::verbs::Remote { addr: self.buf.addr() + at as u64, rkey: self.keys.rkey }
    }
    #[track_caller]
    pub(crate) fn post(&self, id: u64, op: SendOp, sges: &[Sge]) {
        self.post_with(id, op, SendFlags::default(), sges);
    }
    #[track_caller]
    pub(crate) fn post_with(&self, id: u64, op: SendOp, flags: SendFlags, sges: &[Sge]) {
        self.qp.post_send([SendWr { id, op, flags, sges, ud: None }]).unwrap();
    }
    #[track_caller]
    pub(crate) fn recv(&self, id: u64, sges: &[Sge]) {
        self.qp.post_recv(&RecvWr { id, sges }).unwrap();
    }
    /// All completions that wait.
    pub(crate) fn poll(&self) -> Vec<Wc> {
        poll(&self.cq)
    }
}

pub(crate) fn poll(cq: &Cq) -> Vec<Wc> {
    let mut out = Vec::new();
    cq.poll_with(usize::MAX, |wc| out.push(wc));
    out
}

/// Two connected ends, on devices 0 and 1.
pub(crate) fn pair(world: &World, init: &EndInit, wiring: &Wiring) -> (End, End) {
    let a = End::new(&world.devices[0], init.clone());
    let b = End::new(&world.devices[1], init.clone());
    connect(&a.qp, (b.ip, &b.qp), wiring);
    connect(&b.qp, (a.ip, &a.qp), wiring);
    (a, b)
}

/// Nothing on the way goes wrong.
pub(crate) fn perfect() -> Impairments {
    Impairments::default()
}

/// A completion as `(id, kind, bytes)`, if it is a success.
#[track_caller]
pub(crate) fn good(wc: &Wc) -> (u64, WcOpcode, u32) {
    assert_eq!(wc.status, urxe::verbs::WcStatus::Success, "{wc:?}");
    (wc.id, wc.opcode, wc.byte_len)
}

/// A completion of `end`, whose device with sockets is polled for it.
#[allow(dead_code)]
#[track_caller]
pub(crate) fn wait(device: &Device, end: &End) -> Wc {
    let limit = std::time::Instant::now() + std::time::Duration::from_secs(60);
    loop {
        let mut first = None;
        end.cq.poll_with(1, |wc| first = Some(wc));
        if let Some(wc) = first {
            return wc;
        }
        device.poll();
        assert!(
            std::time::Instant::now() < limit,
            "no completion: {:?} {:?}",
            device.counters(),
            device.threads()
        );
    }
}
