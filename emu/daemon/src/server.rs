//! The daemon's tables, and what requests do to them.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use rustix::net::SocketFlags;
use rustix::process::Resource;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;
use tokio::task::{JoinHandle, LocalSet, spawn_local};
use urxe::cm;
use urxe::cm::manager::Manager;
use urxe::config::Config;
use urxe::io::udp::OpenError;
use urxe_control::connection::Descriptors;
use urxe_control::protocol::{DeviceSpec, Failure, MAX_MESSAGE, Notice, Reply, Request, ToClient};

use crate::addresses::{Block, Lids};
use crate::claim::Claim;
use crate::client::{self, ClientId, Handle};
use crate::device::{self, Busy, Device, Grant};
use crate::qp1::Wire;
use crate::status::Question;
use crate::{Error, LINGER, Options, ready, sys};

/// How long after its start a daemon takes an address that is in use for one of the daemon before it, whose clients are
/// about to hand it over.
const RECLAIM: Duration = Duration::from_secs(4);
/// How long a request waits for a slot or an address. Less than clients wait.
const PATIENCE: Duration = Duration::from_secs(3);
/// How often an address that is in use is tried again.
const RETRY: Duration = Duration::from_millis(100);
/// Multicast groups of a device.
const MAX_GROUPS: usize = 4096;

/// The daemon. There is one thread; the tables are borrowed for no longer than a step takes.
pub(crate) struct Daemon {
    config: Config,
    started: Instant,
    pub(crate) state: RefCell<State>,
    /// For messages of clients, as they are read.
    pub(crate) buffer: RefCell<Vec<u8>>,
    last_id: Cell<u64>,
    /// Clients that need the daemon, and when there last was one. Who only looks does not keep it.
    needed_by: Cell<usize>,
    last_needed: Cell<Instant>,
    /// When the connection manager's timer goes off.
    armed: Cell<urxe::time::Instant>,
    /// The timer must go off earlier.
    timer: Notify,
    /// The connection manager has more to say.
    more: Notify,
    /// A slot or a device is to be looked at again.
    drained: Notify,
    /// A device has come.
    devices_changed: Notify,
    /// A client needs the daemon no more.
    unneeded: Notify,
}

/// The tables.
pub(crate) struct State {
    claim: Claim,
    block: Option<Block>,
    lids: Lids,
    pub(crate) devices: BTreeMap<IpAddr, Device>,
    receivers: HashMap<IpAddr, JoinHandle<()>>,
    pub(crate) clients: BTreeMap<ClientId, Rc<Handle>>,
    pub(crate) manager: Manager,
    pub(crate) wire: Wire,
    pub(crate) questions: HashMap<u32, Question>,
    pub(crate) last_question: u32,
}

/// Runs until there is nothing left to do, or a signal comes.
pub(crate) async fn serve(
    config: Config,
    claim: Claim,
    listener: OwnedFd,
    options: Options,
) -> Result<(), Error> {
    let failed = |what| move |source| Error::Io { what, source };
    raise_limit();
    let mut hangup = signal(SignalKind::hangup()).map_err(failed("handle signals"))?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed("handle signals"))?;
    let mut terminate = signal(SignalKind::terminate()).map_err(failed("handle signals"))?;
    let listener = sys::watch(listener, Interest::READABLE).map_err(failed("listen"))?;
    let daemon = Rc::new(Daemon::new(config, claim));
    tracing::info!("fabric {}: process {}", daemon.fabric(), std::process::id());
    if options.detached {
        ready();
    }
    let local = LocalSet::new();
    local.spawn_local(daemon.clone().keep_time());
    local.spawn_local(daemon.clone().keep_talking());
    local.spawn_local(daemon.clone().keep_slots());
    let why = local
        .run_until(async {
            loop {
                let end = options.linger.and_then(|linger| daemon.end_of_need(linger));
                tokio::select! {
                    guard = listener.readable() => match guard {
                        Ok(mut guard) => match daemon.accept(&listener) {
                            Ok(()) => guard.clear_ready(),
                            Err(e) => {
                                tracing::error!("no more clients for now: {e}");
                                tokio::time::sleep(RETRY).await;
                            }
                        },
                        Err(e) => break format!("its socket fails: {e}"),
                    },
                    () = tokio::time::sleep_until(end.unwrap_or_else(Instant::now).into()), if end.is_some() => {
                        // Somebody may have come meanwhile.
                        let end = options.linger.and_then(|linger| daemon.end_of_need(linger));
                        if end.is_some_and(|end| end <= Instant::now()) {
                            break "nobody needs it".into();
                        }
                    }
                    () = daemon.unneeded.notified() => {}
                    _ = hangup.recv() => break "signal SIGHUP".into(),
                    _ = interrupt.recv() => break "signal SIGINT".into(),
                    _ = terminate.recv() => break "signal SIGTERM".into(),
                }
            }
        })
        .await;
    tracing::info!("fabric {}: the end: {why}", daemon.fabric());
    Ok(())
}

/// Each client is a descriptor, and so is each process's socket.
fn raise_limit() {
    let mut limit = rustix::process::getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(e) = rustix::process::setrlimit(Resource::Nofile, limit) {
        tracing::debug!("the limit of open files stays as it is: {e}");
    }
}

impl Daemon {
    fn new(config: Config, claim: Claim) -> Self {
        let state = State {
            claim,
            block: None,
            lids: Lids::default(),
            devices: BTreeMap::new(),
            receivers: HashMap::new(),
            clients: BTreeMap::new(),
            manager: manager(),
            wire: Wire::new(),
            questions: HashMap::new(),
            last_question: 0,
        };
        Self {
            config,
            started: Instant::now(),
            state: RefCell::new(state),
            buffer: RefCell::new(vec![0; MAX_MESSAGE]),
            last_id: Cell::new(0),
            needed_by: Cell::new(0),
            last_needed: Cell::new(Instant::now()),
            armed: Cell::new(urxe::time::Instant::NEVER),
            timer: Notify::new(),
            more: Notify::new(),
            drained: Notify::new(),
            devices_changed: Notify::new(),
            unneeded: Notify::new(),
        }
    }

    pub(crate) fn fabric(&self) -> &str {
        self.config.fabric.as_str()
    }

    pub(crate) fn uptime(&self) -> Duration {
        self.started.elapsed()
    }

    /// The time as the connection manager counts it.
    fn now(&self) -> urxe::time::Instant {
        urxe::time::Instant(self.started.elapsed().as_nanos() as u64)
    }

    pub(crate) fn next_id(&self) -> ClientId {
        self.last_id.set(self.last_id.get() + 1);
        ClientId(self.last_id.get())
    }

    fn accept(self: &Rc<Self>, listener: &AsyncFd<OwnedFd>) -> rustix::io::Result<()> {
        loop {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            match rustix::net::accept_with(listener.get_ref(), flags) {
                Ok(socket) => {
                    spawn_local(client::serve(self.clone(), socket));
                }
                Err(rustix::io::Errno::AGAIN) => return Ok(()),
                Err(rustix::io::Errno::CONNABORTED | rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// A client has said who it is.
    pub(crate) fn enter(&self, handle: &Rc<Handle>) {
        self.state.borrow_mut().clients.insert(handle.id, handle.clone());
        self.need(handle, true);
    }

    /// Whether a client needs the daemon, from now on.
    fn need(&self, handle: &Handle, needs: bool) {
        match (handle.needs.replace(needs), needs) {
            (false, true) => self.needed_by.set(self.needed_by.get() + 1),
            (true, false) => {
                self.needed_by.set(self.needed_by.get() - 1);
                self.unneeded.notify_one();
            }
            _ => {}
        }
    }

    /// When nobody has needed the daemon for so long; `None` while somebody does.
    fn end_of_need(&self, linger: Duration) -> Option<Instant> {
        (self.needed_by.get() == 0).then(|| self.last_needed.get() + linger)
    }

    /// A client is gone, and all that it had comes back.
    pub(crate) fn leave(self: &Rc<Self>, handle: &Handle) {
        if handle.needs.get() {
            self.last_needed.set(Instant::now());
            self.need(handle, false);
        }
        let mut state = self.state.borrow_mut();
        state.clients.remove(&handle.id);
        for device in state.devices.values_mut() {
            device.release_all(handle.id, Instant::now());
        }
        state.manager.owner_gone(self.now(), owner(handle.id));
        drop(state);
        self.drained.notify_one();
        self.will_not_answer(handle.id);
        self.after_requests();
    }

    /// Does what a client asks for.
    pub(crate) fn handle(
        self: &Rc<Self>,
        handle: &Rc<Handle>,
        number: u32,
        request: Request,
        beside: Descriptors,
    ) {
        match request {
            // Until it asks for more it only looks.
            Request::Status => self.need(handle, handle.asked.get()),
            Request::Report(_) => {}
            _ => {
                handle.asked.set(true);
                self.need(handle, true);
            }
        }
        match request {
            Request::Device(spec) => self.device(handle, number, spec, false),
            Request::Lease(spec) => self.device(handle, number, spec, true),
            Request::Resume { spec, address, slot } => {
                match self.resume(handle, &spec, address, slot, beside) {
                    Ok(()) => handle.reply(number, Reply::Done),
                    Err(failure) => handle.refuse(number, failure),
                }
            }
            Request::Release { address, slot } => {
                let mut state = self.state.borrow_mut();
                let device = state.devices.get_mut(&address);
                if device.is_some_and(|d| d.release(handle.id, slot, Instant::now())) {
                    self.drained.notify_one();
                    handle.reply(number, Reply::Done);
                } else {
                    let message = format!("slot {slot} of device {address} is not this process's");
                    handle.refuse(number, Failure { errno: libc::EINVAL, message });
                }
            }
            Request::Cm(command) => {
                let result = self.state.borrow_mut().manager.command(self.now(), owner(handle.id), command);
                handle.reply(number, Reply::Cm(result));
            }
            Request::Multicast { device, group, join } => match self.multicast(handle, device, group, join) {
                Ok(()) => handle.reply(number, Reply::Done),
                Err(failure) => handle.refuse(number, failure),
            },
            Request::Report(report) => self.answered(handle, report),
            Request::Status => self.ask_all(handle, number),
        }
    }

    /// Answers with a device, or with a slot on it.
    fn device(self: &Rc<Self>, handle: &Rc<Handle>, number: u32, spec: DeviceSpec, lease: bool) {
        let end = Instant::now() + PATIENCE;
        let Some(until) = self.try_device(handle, number, &spec, lease, end) else { return };
        let (daemon, handle) = (self.clone(), handle.clone());
        spawn_local(async move {
            let mut until = until;
            loop {
                tokio::select! {
                    () = tokio::time::sleep_until(until.into()) => {}
                    () = daemon.devices_changed.notified() => {}
                }
                if !daemon.state.borrow().clients.contains_key(&handle.id) {
                    return;
                }
                match daemon.try_device(&handle, number, &spec, lease, end) {
                    Some(next) => until = next,
                    None => return,
                }
            }
        });
    }

    /// Answers, or says when to try again.
    fn try_device(
        self: &Rc<Self>,
        handle: &Rc<Handle>,
        number: u32,
        spec: &DeviceSpec,
        lease: bool,
        end: Instant,
    ) -> Option<Instant> {
        let now = Instant::now();
        let mut state = self.state.borrow_mut();
        let found = self.find_or_open(&mut state, spec, now);
        let result = found.and_then(|address| match state.devices.get_mut(&address) {
            Some(device) if lease => {
                device.lease(handle.id, now).map(|grant| (address, device.scope, Some(grant)))
            }
            Some(device) => Ok((address, device.scope, None)),
            None => {
                Err(Busy::Failed(Failure { errno: libc::ENODEV, message: format!("no device {address}") }))
            }
        });
        drop(state);
        match result {
            Ok((address, scope, None)) => handle.reply(number, Reply::Device { address, scope }),
            Ok((address, scope, Some(Grant { slot, socket, anchor }))) => {
                tracing::debug!("{} ({}) has slot {slot} of {address}", handle.program, handle.pid);
                let body = Reply::Lease { address, scope, slot };
                let reply = ToClient::Reply(urxe_control::protocol::Numbered { number, body });
                handle.send(&reply, vec![socket, anchor]);
            }
            Err(Busy::Until(until, _)) if now < end => return Some(until.min(end)),
            Err(Busy::Until(_, failure) | Busy::Failed(failure)) => handle.refuse(number, failure),
        }
        None
    }

    /// The address of a device, which is opened if it is not open.
    fn find_or_open(
        self: &Rc<Self>,
        state: &mut State,
        spec: &DeviceSpec,
        now: Instant,
    ) -> Result<IpAddr, Busy> {
        let mut tried = Vec::new();
        loop {
            let address = match spec.address {
                Some(address) => address.to_canonical(),
                None => state.own_address(self.fabric(), spec, &tried).map_err(Busy::Failed)?,
            };
            if address.is_unspecified() || address.is_multicast() {
                let message = format!("{address} cannot be the address of a device");
                return Err(Busy::Failed(Failure { errno: libc::EINVAL, message }));
            }
            let open = state.devices.contains_key(&address);
            state.lids.enter(spec, address).map_err(Busy::Failed)?;
            if open {
                return Ok(address);
            }
            let at = (spec.node, spec.rail);
            let own = spec.address.is_none();
            match Device::open(&self.config, address, spec.scope, at, own) {
                Ok(device) => {
                    self.add(state, device);
                    return Ok(address);
                }
                Err(error) => {
                    state.lids.remove(address);
                    match error {
                        OpenError::AddressInUse { .. }
                            if state.claim.inherited() && now.duration_since(self.started) < RECLAIM =>
                        {
                            return Err(Busy::Until(now + RETRY, device::failure(&error)));
                        }
                        // Somebody without a daemon has one of the addresses; the block can still be changed.
                        OpenError::AddressInUse { .. } if own && !state.devices.values().any(|d| d.own) => {
                            tried.extend(state.block.take().map(|b| b.number()));
                        }
                        error => return Err(Busy::Failed(device::failure(&error))),
                    }
                }
            }
        }
    }

    fn add(self: &Rc<Self>, state: &mut State, device: Device) {
        let address = device.address;
        tracing::info!("device {address} on {}", device.interface);
        match device.first_socket().and_then(|socket| sys::watch(socket, Interest::READABLE)) {
            Ok(socket) => {
                let task = spawn_local(self.clone().keep_receiving(address, socket));
                state.receivers.insert(address, task);
            }
            Err(e) => tracing::error!("device {address} cannot connect by rdma_cm: {e}"),
        }
        state.manager.add_device(address);
        state.devices.insert(address, device);
        self.drained.notify_one();
    }

    /// A client of the daemon before this one goes on with its slot.
    fn resume(
        self: &Rc<Self>,
        handle: &Handle,
        spec: &DeviceSpec,
        address: IpAddr,
        slot: u8,
        beside: Descriptors,
    ) -> Result<(), Failure> {
        let Ok([anchor]) = <[OwnedFd; 1]>::try_from(beside) else {
            let message = "a slot is resumed with one descriptor beside the message".into();
            return Err(Failure { errno: libc::EINVAL, message });
        };
        let mut state = self.state.borrow_mut();
        if !state.devices.contains_key(&address) {
            let twin = anchor.try_clone().map_err(|e| Failure {
                errno: e.raw_os_error().unwrap_or(libc::EIO),
                message: format!("device {address} cannot be taken over: {e}"),
            })?;
            let own = spec.address.is_none();
            let at = (spec.node, spec.rail);
            let device = Device::take_over(&self.config, address, spec.scope, twin, at, own)
                .map_err(|e| device::failure(&e))?;
            if own
                && state.block.is_none()
                && let Some(number) = Block::number_of(address)
            {
                match Block::claim_one(number) {
                    Ok(block) => state.set_block(block),
                    Err(e) => tracing::warn!("the addresses beside {address} are another daemon's: {e}"),
                }
            }
            if let Err(failure) = state.lids.enter(spec, address) {
                tracing::warn!("{failure}");
            }
            tracing::info!("device {address} is taken over from the daemon before");
            self.add(&mut state, device);
        }
        let device = state.devices.get_mut(&address);
        let result = device.map_or(Ok(()), |device| device.resume(handle.id, slot, &anchor));
        drop(state);
        self.drained.notify_one();
        self.devices_changed.notify_waiters();
        result
    }

    fn multicast(&self, handle: &Handle, device: IpAddr, group: IpAddr, join: bool) -> Result<(), Failure> {
        let invalid = |message| Err(Failure { errno: libc::EINVAL, message });
        let mut state = self.state.borrow_mut();
        let found = state.devices.get_mut(&device).filter(|d| !d.slots_of(handle.id).is_empty());
        let Some(found) = found else {
            return invalid(format!("device {device} is not one of this process's"));
        };
        if !group.is_multicast() {
            return invalid(format!("{group} is no multicast address"));
        }
        if join {
            if !found.multicast.contains_key(&group) && found.multicast.len() >= MAX_GROUPS {
                let message =
                    format!("device {device} has {MAX_GROUPS} multicast groups, which is the limit");
                return Err(Failure { errno: libc::ENOSPC, message });
            }
            found.multicast.entry(group).or_default().insert(handle.id);
        } else if let Some(members) = found.multicast.get_mut(&group) {
            members.remove(&handle.id);
            if members.is_empty() {
                found.multicast.remove(&group);
            }
        }
        Ok(())
    }

    /// Passes on what the connection manager has to say after requests, datagrams or time.
    pub(crate) fn after_requests(&self) {
        let mut state = self.state.borrow_mut();
        let State { manager, wire, devices, clients, .. } = &mut *state;
        let more = wire.transmit(devices, manager);
        while let Some((owner, event)) = manager.poll_event() {
            if let Some(client) = clients.get(&ClientId(owner.0)) {
                client.notice(Notice::Cm(event));
            }
        }
        let deadline = manager.deadline();
        drop(state);
        if more {
            self.more.notify_one();
        }
        if deadline < self.armed.get() {
            self.armed.set(deadline);
            self.timer.notify_one();
        }
    }

    /// Runs the connection manager's timers.
    async fn keep_time(self: Rc<Self>) {
        loop {
            let deadline = self.state.borrow().manager.deadline();
            self.armed.set(deadline);
            let left = Duration::from_nanos(deadline.since(self.now()));
            tokio::select! {
                () = tokio::time::sleep(left), if deadline != urxe::time::Instant::NEVER => {
                    self.state.borrow_mut().manager.handle_timeout(self.now());
                    self.after_requests();
                }
                () = self.timer.notified() => {}
            }
        }
    }

    /// Sends what did not fit one turn; others have theirs in between.
    async fn keep_talking(self: Rc<Self>) {
        loop {
            self.more.notified().await;
            tokio::task::yield_now().await;
            self.after_requests();
        }
    }

    /// Receives the management datagrams of a device.
    async fn keep_receiving(self: Rc<Self>, address: IpAddr, socket: AsyncFd<OwnedFd>) {
        while let Ok(mut guard) = socket.readable().await {
            match self.receive(address) {
                Some(true) => {}
                Some(false) => guard.clear_ready(),
                None => return,
            }
            self.after_requests();
            tokio::task::yield_now().await;
        }
    }

    /// Takes what has arrived at a device; false if nothing had, `None` if there is no such device.
    fn receive(&self, address: IpAddr) -> Option<bool> {
        let mut state = self.state.borrow_mut();
        let State { manager, wire, devices, .. } = &mut *state;
        let device = devices.get(&address)?;
        let more = wire.receive(device, manager, self.now());
        Some(more.unwrap_or_else(|e| {
            tracing::warn!("device {address} cannot receive: {e}");
            false
        }))
    }

    /// Ends the quarantine of slots, and gives up addresses that nobody has used for a while.
    async fn keep_slots(self: Rc<Self>) {
        loop {
            let now = Instant::now();
            let next = self.state.borrow_mut().tick(now);
            let wait = next.map(|n| n.saturating_duration_since(now));
            tokio::select! {
                () = tokio::time::sleep(wait.unwrap_or(LINGER)), if wait.is_some() => {}
                () = self.drained.notified() => {}
            }
        }
    }
}

impl State {
    /// The address that the fabric has for a device.
    fn own_address(&mut self, fabric: &str, spec: &DeviceSpec, not: &[u8]) -> Result<IpAddr, Failure> {
        if self.block.is_none() {
            let block = Block::claim(fabric, self.claim.block(), not)?;
            self.set_block(block);
        }
        match &self.block {
            Some(block) => block.address(spec.node, spec.rail),
            None => Err(Failure { errno: libc::EADDRINUSE, message: "no device address is free".into() }),
        }
    }

    fn set_block(&mut self, block: Block) {
        self.claim.set_block(block.number());
        self.block = Some(block);
    }

    /// Ends what is over; returns when to come again.
    fn tick(&mut self, now: Instant) -> Option<Instant> {
        let mut next: Option<Instant> = None;
        let mut idle = Vec::new();
        for device in self.devices.values_mut() {
            let mut wanted = device.tick(now);
            // The fabric's own addresses stay; others may be wanted by another fabric or program.
            if !device.own
                && let Some(since) = device.idle_since
            {
                match since + LINGER {
                    end if end <= now => idle.push(device.address),
                    end => wanted = Some(wanted.map_or(end, |w| w.min(end))),
                }
            }
            next = next.into_iter().chain(wanted).min();
        }
        for address in idle {
            self.remove(address);
        }
        next
    }

    fn remove(&mut self, address: IpAddr) {
        tracing::info!("device {address} is not used any more");
        if let Some(task) = self.receivers.remove(&address) {
            task.abort();
        }
        self.manager.remove_device(address);
        self.lids.remove(address);
        self.devices.remove(&address);
    }
}

/// How long a connection request waits for a program to listen, in nanoseconds.
const PATIENCE_OF_REQUESTS: u64 = 200_000_000;

fn manager() -> Manager {
    let mut manager = Manager::new(seed(), first_unprivileged_port());
    manager.set_patience(PATIENCE_OF_REQUESTS);
    manager
}

fn owner(client: ClientId) -> cm::Owner {
    cm::Owner(client.0)
}

/// Not guessable.
fn seed() -> u64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    RandomState::new().build_hasher().finish()
}

/// The first port that any user may have.
fn first_unprivileged_port() -> u16 {
    if rustix::process::geteuid().is_root() {
        return 0;
    }
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start").unwrap_or_default();
    text.trim().parse().unwrap_or(1024)
}
