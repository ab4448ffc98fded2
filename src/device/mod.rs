//! The device: one address, its queue pairs and memory, and whoever makes them progress.
//!
//! | module | what it is |
//! |---|---|
//! | [`qp`] | a queue pair: both sides of the engine, their locks, and what runs them |
//! | [`attr`] | `modify` and `query` of a queue pair |
//! | [`receive`] | from datagrams to queue pairs |
//! | [`queued`] | the same where workers run tasks |
//! | [`multicast`] | which queue pairs are in which group |
//! | [`table`] | which queue pair a number is |
//! | [`timers`] | which queue pair is due when |
//! | [`impaired`] | a network that is bad on purpose |
//! | [`counters`] | what is counted |
//! | [`status`] | what a device tells of its queue pairs and threads |

pub mod attr;
pub mod counters;
mod gather;
mod hold;
mod impaired;
pub mod multicast;
pub mod qp;
pub(crate) mod queued;
pub(crate) mod receive;
pub mod status;
mod table;
mod timers;
mod transmit;

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use crossbeam_queue::ArrayQueue;
use parking_lot::{Mutex, RwLock};

use crate::config::{Config, Gso, Guard, OdpFault, Receive as ReceiveBy, Tasks};
use crate::cq::{Cq, CqNotify};
use crate::ids::{Gid, Lid, Mtu, Qpn};
use crate::io::{self, Link, SendOutcome, udp};
use crate::log::Throttle;
use crate::mem::odp::Advice;
use crate::mem::odp::queue::{Faults, Job};
use crate::mem::{self, AdviseError, PdId, Table};
use crate::qp::window::Window;
use crate::srq::{Srq, SrqAttr};
use crate::task::{Attention, FaultWorkers, Pool, Progress, pool};
use crate::time::Instant;
use crate::verbs::{AddressVector, AsyncEvent, limits};
use crate::wire::{Path, TxBatch};
use counters::Counters;
pub use qp::{CreateError, Placement, QpInit, QueuePair};
use receive::Receiver;
use table::QpTable;
use timers::Timers;

/// Hears the asynchronous events of the objects that were made with it.
pub trait EventSink: Send + Sync {
    /// Something happened.
    fn event(&self, event: AsyncEvent);
}

/// Why a device could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The socket.
    #[error(transparent)]
    Socket(#[from] udp::OpenError),
    /// The system has no random numbers, descriptors or threads left.
    #[error("{0}: {1}")]
    System(&'static str, std::io::Error),
    /// The interface carries less than the smallest path MTU.
    #[error("the interface of {0} has an MTU of {1}, but 256 bytes and headers need 348")]
    MtuTooSmall(IpAddr, u32),
}

/// Why an address vector leads nowhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AddressError {
    /// The port has one number.
    #[error("port {0}, but the device has only port 1")]
    Port(u8),
    /// Not an index of the GID table.
    #[error("GID index {0}, but the table has only index 0")]
    GidIndex(u8),
    /// The zero GID.
    #[error("the destination GID is zero")]
    ZeroGid,
    /// IPv4 and IPv6 do not talk to each other.
    #[error("{0} cannot be reached from {1}")]
    Family(IpAddr, IpAddr),
    /// LIDs need an IPv4 address of our own.
    #[error("LID {0} means no address here: the device has an IPv6 address and no table of LIDs names it")]
    Lid(Lid),
}

/// What the clock of a device is.
#[derive(Clone, Debug)]
pub enum Clock {
    /// The system's monotonic clock.
    System,
    /// One that a simulation moves.
    Manual(Arc<AtomicU64>),
}

impl Clock {
    /// Nanoseconds since an arbitrary start.
    pub fn now(&self) -> Instant {
        match self {
            Self::System => Instant(monotonic_ns()),
            Self::Manual(t) => Instant(t.load(Ordering::Relaxed)),
        }
    }
}

/// `CLOCK_MONOTONIC` in ns: through the vDSO, no system call.
#[allow(unsafe_code)]
fn monotonic_ns() -> u64 {
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `ts` is a valid place for the result.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut ts) };
    ts.tv_sec as u64 * 1_000_000_000 + ts.tv_nsec as u64
}

/// The facts about the port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortInfo {
    /// The device's address.
    pub ip: IpAddr,
    /// GIDs by index.
    pub gids: Vec<Gid>,
    /// Its LID.
    pub lid: Lid,
    /// Largest path MTU.
    pub mtu: Mtu,
    /// The network interface below.
    pub interface: String,
}

/// A process's part of an address that several processes share: a slot of a [`udp::group::Group`].
#[derive(Debug)]
pub struct Lease {
    /// The top 8 bits of its QPNs.
    pub slot: u8,
    /// The member of the group.
    pub socket: OwnedFd,
    /// What keeps the group together: held as long as the device lives.
    pub anchor: OwnedFd,
}

/// The slot of a device that has its address for itself.
const ONLY_SLOT: u8 = 1;

/// A device: one address. Dropping it ends everything.
pub struct Device {
    core: Arc<Core>,
    progress: Progress,
}

/// Destination, traffic class, flow label and hop limit of a path.
type PathKey = (SocketAddr, u8, u32, u8);

/// What queue pairs, tasks and threads share.
pub(crate) struct Core {
    pub(crate) config: Config,
    pub(crate) link: Arc<dyn Link>,
    /// The same, if it keeps packets back.
    impaired: Option<Arc<impaired::BadLink>>,
    pub(crate) clock: Clock,
    pub(crate) mem: Table,
    pub(crate) port: PortInfo,
    pub(crate) qps: QpTable,
    pub(crate) groups: multicast::Groups,
    /// Who opened it. A child of fork has a copy, without its threads.
    process: u32,
    pub(crate) timers: Timers,
    pub(crate) counters: Counters,
    pub(crate) throttle: Throttle,
    pub(crate) receiver: Mutex<Receiver>,
    /// The threads that run tasks.
    pub(crate) pool: Pool,
    /// Programs that poll do not receive.
    pub(crate) thread_receives: bool,
    /// The program has made a completion queue on another vector than 0.
    vectors_used: AtomicBool,
    /// When each sender was last told to slow down.
    told: Mutex<HashMap<(SocketAddr, Qpn), Instant>>,
    pub(crate) attention: Attention,
    /// What waits for the program's next poll.
    gathering: gather::Gathering,
    /// Page faults that wait, and the threads that resolve them.
    pub(crate) faults: Faults,
    pub(crate) fault_workers: FaultWorkers,
    /// Held for reading by a thread that goes on after a page fault.
    pub(crate) page_work: RwLock<()>,
    /// Without threads: the device's owner calls [`Device::run`].
    manual: bool,
    pub(crate) stop: AtomicBool,
    /// Limit of the windows of peers, in bytes.
    window_max: u32,
    batches: ArrayQueue<Box<TxBatch>>,
    /// By peer and the process there: each has a receive queue of its own.
    windows: Mutex<HashMap<(IpAddr, u8), Weak<Window>>>,
    paths: Mutex<HashMap<PathKey, Weak<Path>>>,
    next_id: AtomicU32,
    guid: u64,
    /// Runs that the link could not segment, when paths were last looked at.
    fallbacks_seen: AtomicU64,
    /// The anchor of the group, if the address is shared.
    lease: Option<OwnedFd>,
    /// The kernel was told to merge no packets of several processes.
    unmerged: AtomicBool,
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Device").field("port", &self.core.port).finish_non_exhaustive()
    }
}

impl Device {
    /// Opens the device of a configuration: binds its socket and starts its receive thread.
    pub fn open(config: &Config) -> Result<Self, OpenError> {
        let socket = socket_config(config);
        let link = if config.addr.is_some() {
            udp::UdpLink::open(&socket)?
        } else {
            udp::UdpLink::open_first_free(&socket)?
        };
        let interface = link.interface().name.clone();
        let granted = link.receive_buffer();
        Self::on_link(config, Arc::new(link), interface, granted, Clock::System)
    }

    /// Opens a device on a slot of an address that other processes have devices on, too.
    pub fn open_member(config: &Config, lease: Lease) -> Result<Self, OpenError> {
        let Lease { slot, socket, anchor } = lease;
        let mut socket_config = socket_config(config);
        socket_config.gro &= udp::group::merges(&anchor).unwrap_or(true);
        let link = udp::UdpLink::from_member(socket, slot, &socket_config)?;
        let interface = link.interface().name.clone();
        let granted = link.receive_buffer();
        Self::build(config, Arc::new(link), interface, granted, Clock::System, Some((slot, anchor)))
    }

    /// A device on any link. With a [`Clock::Manual`] there is no receive thread: the caller calls
    /// [`Device::run`](Self::run).
    pub fn on_link(
        config: &Config,
        link: Arc<dyn Link>,
        interface: String,
        receive_buffer: usize,
        clock: Clock,
    ) -> Result<Self, OpenError> {
        Self::build(config, link, interface, receive_buffer, clock, None)
    }

    fn build(
        config: &Config,
        link: Arc<dyn Link>,
        interface: String,
        receive_buffer: usize,
        clock: Clock,
        lease: Option<(u8, OwnedFd)>,
    ) -> Result<Self, OpenError> {
        let (slot, lease) = lease.map_or((ONLY_SLOT, None), |(slot, anchor)| (slot, Some(anchor)));
        mem::guard::set_mode(match config.guard {
            Guard::Signal => mem::guard::GuardMode::Signal,
            Guard::Kernel => mem::guard::GuardMode::Kernel,
        });
        mem::guard::ensure();
        let ip = link.local().ip();
        let fits = Mtu::for_link(link.mtu()).ok_or(OpenError::MtuTooSmall(ip, link.mtu()))?;
        let mtu = config.mtu.map_or(fits, |m| m.min(fits));
        let gid = Gid::from_ip(ip);
        let lid = config.lid.unwrap_or_else(|| match ip {
            IpAddr::V4(v4) => Lid::from(v4),
            IpAddr::V6(v6) => Lid(u16::from_be_bytes([v6.octets()[14], v6.octets()[15]])),
        });
        // 0 would mean that the port has no LID; programs then skip it.
        let lid = if lid.0 == 0 { Lid(1) } else { lid };
        let window = config.window.map_or((receive_buffer / 2).min(1 << 20), |w| w.bytes());
        let manual = matches!(clock, Clock::Manual(_));
        let mem = if manual {
            Table::with_seed(u64::from(lid.0))
        } else {
            Table::new().map_err(|e| OpenError::System("no random numbers for keys", e))?
        };
        let impaired = impaired::impaired(config, &link, &clock);
        let link = impaired.clone().map_or(link, |link| link);
        let attention = Attention::new(!manual)
            .map_err(|e| OpenError::System("no descriptor to wake the receive thread", e))?;
        let core = Arc::new(Core {
            config: config.clone(),
            mem,
            port: PortInfo { ip, gids: vec![gid], lid, mtu, interface },
            qps: QpTable::new(slot, if manual { 7 } else { random_u32() }),
            groups: multicast::Groups::default(),
            process: std::process::id(),
            timers: Timers::new(),
            counters: Counters::default(),
            throttle: Throttle::default(),
            receiver: Mutex::new(Receiver::new()),
            window_max: window as u32,
            pool: Pool::new(config),
            thread_receives: config.tasks == Tasks::Workqueue && !manual,
            vectors_used: AtomicBool::new(false),
            told: Mutex::new(HashMap::new()),
            attention,
            gathering: gather::Gathering::default(),
            faults: Faults::new(
                config.odp_workers.value() as usize,
                config.odp_latency,
                if manual { u64::from(lid.0) } else { u64::from(random_u32()) },
            ),
            fault_workers: FaultWorkers::new(),
            page_work: RwLock::new(()),
            manual,
            stop: AtomicBool::new(false),
            batches: ArrayQueue::new(16),
            windows: Mutex::new(HashMap::new()),
            paths: Mutex::new(HashMap::new()),
            next_id: AtomicU32::new(1),
            guid: Gid::eui64_of(ip),
            fallbacks_seen: AtomicU64::new(link.counters().gso_fallbacks.value()),
            lease,
            unmerged: AtomicBool::new(config.receive == ReceiveBy::Raw),
            impaired,
            link,
            clock,
        });
        let progress = Progress::start(&core)
            .map_err(|e| OpenError::System("the receive thread could not be started", e))?;
        if !manual {
            core.fault_workers.enable(&core);
            core.pool.enable(&core);
        }
        Ok(Self { core, progress })
    }

    /// The port.
    pub fn port(&self) -> &PortInfo {
        &self.core.port
    }
    /// The configuration it was opened with.
    pub fn config(&self) -> &Config {
        &self.core.config
    }
    /// Its globally unique identifier, an EUI-64 made of the address.
    pub fn guid(&self) -> u64 {
        self.core.guid
    }
    /// Registered memory.
    pub fn memory(&self) -> &Table {
        &self.core.mem
    }
    /// What it has counted, with rxe's names where rxe counts the same.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        let c = &self.core.counters;
        let demand = self.core.mem.demand_stats();
        c.all().chain(demand.all()).chain(self.core.link.counters().all()).collect()
    }
    /// The top 8 bits of its QPNs.
    pub fn slot(&self) -> u8 {
        self.core.qps.slot()
    }
    /// Bytes in flight to a peer, headers included; 0 if there is no queue pair that talks to it.
    pub fn in_flight(&self, peer: IpAddr) -> i64 {
        let windows = self.core.windows.lock();
        let those = windows.iter().filter(|((ip, _), _)| *ip == peer);
        those.filter_map(|(_, window)| window.upgrade()).map(|window| window.in_flight()).sum()
    }
    /// Queue pairs that exist.
    pub fn queue_pairs(&self) -> usize {
        self.core.qps.len()
    }
    /// The device's clock.
    pub fn now(&self) -> Instant {
        self.core.clock.now()
    }

    /// A new protection domain.
    pub fn alloc_pd(&self) -> PdId {
        PdId(self.core.next_id())
    }

    /// A new completion queue for `capacity` completions.
    pub fn create_cq(&self, capacity: u32, notify: Option<Arc<dyn CqNotify>>) -> Arc<Cq> {
        self.create_cq_on(0, capacity, notify)
    }

    /// The same on a completion vector, below [`Device::completion_vectors`].
    pub fn create_cq_on(&self, vector: u32, capacity: u32, notify: Option<Arc<dyn CqNotify>>) -> Arc<Cq> {
        if vector != 0 {
            self.core.vectors_used.store(true, Ordering::Relaxed);
        }
        let cq = Cq::new(self.core.next_id(), capacity.clamp(1, limits::MAX_CQE), notify);
        Arc::new(cq.with_vector(vector))
    }

    /// Completion vectors: one for each worker.
    pub fn completion_vectors(&self) -> u32 {
        self.core.pool.size() as u32
    }

    /// A new shared receive queue.
    pub fn create_srq(&self, pd: PdId, attr: SrqAttr) -> Arc<Srq> {
        Arc::new(Srq::new(self.core.next_id(), pd, attr))
    }

    /// A new queue pair, in RESET. It is destroyed when the handle is dropped.
    pub fn create_qp(&self, init: QpInit) -> Result<QueuePair, CreateError> {
        self.create_qp_on(init, Placement::default())
    }

    /// The same with a choice of where its tasks run.
    pub fn create_qp_on(&self, init: QpInit, placement: Placement) -> Result<QueuePair, CreateError> {
        qp::create(&self.core, init, placement)
    }

    /// The path of an address vector: what an address handle holds.
    pub fn resolve(&self, av: &AddressVector) -> Result<Arc<Path>, AddressError> {
        self.core.resolve(av)
    }

    /// Forgets a memory region. Afterwards no packet touches it any more.
    pub fn deregister(&self, lkey: crate::ids::LKey) -> Result<(), mem::DeregisterError> {
        self.core.mem.deregister(lkey)?;
        if self.core.process != std::process::id() {
            // In a child of fork nobody copies, and whoever held these locks is not there.
            return Ok(());
        }
        // Whoever translated the key before has finished its copy when the receiver is free, each worker has been between
        // two turns, and nobody is at work after a page fault.
        drop(self.core.receiver.lock());
        self.core.pool.wait_for_turns();
        drop(self.core.page_work.write());
        Ok(())
    }

    /// Advice about `[addr, addr + len)` of a region that is paged on demand. With `wait`, what can be made present is
    /// when this returns, and what cannot is an error.
    pub fn advise(
        &self,
        pd: PdId,
        lkey: crate::ids::LKey,
        (addr, len): (u64, u64),
        advice: Advice,
        wait: bool,
    ) -> Result<(), AdviseError> {
        let (start, end) = self.core.mem.advise(pd, lkey, addr, len, advice)?;
        let key = lkey.0;
        if !wait {
            self.core.submit(Job::Prefetch { key, start, end, advice });
            return Ok(());
        }
        mem::guard::ready_thread();
        let mut at = Some(start);
        while let Some(start) = at {
            at = self.core.mem.prefetch(key, start, end, advice)?;
        }
        Ok(())
    }

    /// To be called when a program looks for completions and finds none: receives what has arrived and runs what is due,
    /// unless another thread does.
    pub fn poll(&self) {
        self.core.poll();
    }

    /// To be called before a program sleeps until a completion: the receive thread takes over at once.
    pub fn attend(&self) {
        self.core.send_gathered(self.core.clock.now());
        self.core.attention.program_sleeps();
    }

    /// Sends the requests and acknowledgements that wait for company, and waits for what a slow link still keeps back. For
    /// a process that ends without destroying its queue pairs: it may be anywhere, even inside this device, so locks are
    /// not waited for beyond `patience`.
    pub fn flush(&self, patience: Duration) {
        let end = std::time::Instant::now() + patience;
        self.core.send_gathered_until(self.core.clock.now(), end);
        if let Some(mut rx) = self.core.receiver.try_lock_until(end) {
            self.core.flush_lazy_until(&mut rx, self.core.clock.now(), end);
        }
        self.core.see_off(impaired::LINGER, patience);
    }

    /// Runs everything that can run now. Returns whether anything was received. For devices without a thread.
    pub fn run(&self) -> bool {
        self.core.run_all(false) != receive::Ran::Nothing
    }

    /// When something is due even if nothing arrives.
    pub fn deadline(&self) -> Instant {
        self.core.timers.next().min(self.core.faults.deadline()).min(self.core.next_release())
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.core.stop.store(true, Ordering::Relaxed);
        self.progress.stop(&self.core);
        self.core.fault_workers.stop(&self.core);
        self.core.pool.stop();
        self.core.qps.clear();
        self.core.groups.clear();
        self.core.see_off(impaired::LINGER, impaired::PATIENCE);
    }
}

impl Core {
    pub(crate) fn next_id(&self) -> u32 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Whether peers are told when they meet an absent page.
    pub(super) fn refuses_faults(&self) -> bool {
        self.config.odp_fault == OdpFault::Rnr
    }

    /// Takes a job for the threads that resolve page faults.
    pub(crate) fn submit(&self, job: Job) {
        if self.manual {
            self.faults.schedule(self.clock.now(), job);
        } else if self.config.odp_fault == OdpFault::Sleep
            && matches!(job, Job::Fault { .. })
            && pool::is_worker()
        {
            self.faults.delay(&job);
            crate::task::faults::here(self, job);
        } else if self.fault_workers.ensure() {
            self.faults.push(job);
        } else {
            // No thread can be had, or the device ends.
            crate::task::faults::here(self, job);
        }
    }

    /// Sends a batch. If the system stopped to segment, paths are told.
    pub(crate) fn send(&self, batch: &TxBatch) -> SendOutcome {
        let outcome = self.link.send(batch);
        self.keep_awake();
        let fallbacks = self.link.counters().gso_fallbacks.value();
        if fallbacks != self.fallbacks_seen.load(Ordering::Relaxed) {
            self.fallbacks_seen.store(fallbacks, Ordering::Relaxed);
            self.renew_paths();
        }
        outcome
    }

    /// The IP identification is 0 where nothing segments, and the ICRC covers it.
    fn renew_paths(&self) {
        for path in self.paths.lock().values().filter_map(Weak::upgrade) {
            path.set_ip_id(self.link.limits(path.dst.ip()).ip_id);
        }
    }

    pub(crate) fn take_batch(&self) -> Box<TxBatch> {
        let mut batch = self.batches.pop().unwrap_or_default();
        batch.clear();
        batch
    }

    pub(crate) fn give_batch(&self, batch: Box<TxBatch>) {
        // If the pool is full the batch is freed.
        let _ = self.batches.push(batch);
    }

    /// The window of a peer's process.
    pub(crate) fn window(&self, peer: IpAddr, slot: u8) -> Arc<Window> {
        let mut windows = self.windows.lock();
        if let Some(w) = windows.get(&(peer, slot)).and_then(Weak::upgrade) {
            return w;
        }
        windows.retain(|_, w| w.strong_count() > 0);
        let window = Arc::new(Window::new(self.window_max));
        windows.insert((peer, slot), Arc::downgrade(&window));
        window
    }

    pub(crate) fn resolve(&self, av: &AddressVector) -> Result<Arc<Path>, AddressError> {
        let src = self.link.local();
        if av.port != 1 {
            return Err(AddressError::Port(av.port));
        }
        let ip = if av.is_global {
            if usize::from(av.sgid_index) >= self.port.gids.len() {
                return Err(AddressError::GidIndex(av.sgid_index));
            }
            if av.dgid.is_zero() {
                return Err(AddressError::ZeroGid);
            }
            multicast::group_of(av.dgid, src.ip()).unwrap_or_else(|| av.dgid.to_ip())
        } else {
            self.ip_of_lid(av.dlid).ok_or(AddressError::Lid(av.dlid))?
        };
        if ip.is_ipv4() != src.is_ipv4() {
            return Err(AddressError::Family(ip, src.ip()));
        }
        let mut dst = SocketAddr::new(ip, io::ROCE_PORT);
        if let (SocketAddr::V6(dst), SocketAddr::V6(src)) = (&mut dst, src)
            && dst.ip().is_unicast_link_local()
        {
            dst.set_scope_id(src.scope_id());
        }
        // A router would not pass on what has no hop left, but members on the link want it all the same.
        let hop_limit = if ip.is_multicast() { av.hop_limit.max(1) } else { 0 };
        Ok(self.path_with_hops(dst, av.traffic_class, av.flow_label, hop_limit))
    }

    fn ip_of_lid(&self, lid: Lid) -> Option<IpAddr> {
        if let Some(ip) = self.config.lids.address(lid) {
            return Some(ip);
        }
        if lid == self.port.lid {
            return Some(self.port.ip);
        }
        match self.port.ip {
            IpAddr::V4(own) => {
                let [a, b, ..] = own.octets();
                let [c, d] = lid.0.to_be_bytes();
                Some(IpAddr::from([a, b, c, d]))
            }
            IpAddr::V6(_) => None,
        }
    }

    /// Paths are shared, so that packets of several queue pairs to one peer can leave together.
    pub(super) fn path(&self, dst: SocketAddr, traffic_class: u8, flow_label: u32) -> Arc<Path> {
        self.path_with_hops(dst, traffic_class, flow_label, 0)
    }

    fn path_with_hops(
        &self,
        dst: SocketAddr,
        traffic_class: u8,
        flow_label: u32,
        hop_limit: u8,
    ) -> Arc<Path> {
        let key = (dst, traffic_class, flow_label, hop_limit);
        let mut paths = self.paths.lock();
        if let Some(p) = paths.get(&key).and_then(Weak::upgrade) {
            return p;
        }
        paths.retain(|_, p| p.strong_count() > 0);
        let ip_id = self.link.limits(dst.ip()).ip_id;
        let path = Path::new(self.link.local(), dst, traffic_class, flow_label, ip_id);
        let path = Arc::new(path.with_hop_limit(hop_limit));
        paths.insert(key, Arc::downgrade(&path));
        path
    }
}

/// What the configuration says of the socket.
fn socket_config(config: &Config) -> udp::Config {
    udp::Config {
        receive_buffer: config.rcvbuf.bytes(),
        send_buffer: config.sndbuf.bytes(),
        gso: config.gso != Gso::Off,
        gro: config.gso != Gso::Off,
        receive: match config.receive {
            ReceiveBy::Udp => udp::Receive::Udp,
            ReceiveBy::Raw => udp::Receive::Raw,
        },
        ..udp::Config::new(config.addr.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST)))
    }
}

fn random_u32() -> u32 {
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new().build_hasher().finish() as u32
}
