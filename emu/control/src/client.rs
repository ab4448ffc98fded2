//! A process's client of the daemon: calls from any thread, and one thread that hears the daemon.
//!
//! If the daemon dies, what the process has stays usable; the thread finds or starts another daemon and hands it what
//! it needs to go on (see [`Listener::lost`] and [`Listener::restored`]).

use std::collections::HashMap;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::event::EventfdFlags;
use urxe::cm;
use urxe::config::Config;
use urxe::io::route;

use crate::Error;
use crate::connection::{Connection, Descriptors, wait};
use crate::launch::{self, Launch};
use crate::protocol::{DeviceSpec, Notice, Numbered, ProcessReport, Reply, Request, ToClient};

/// How long a call waits for its answer.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// How long a call waits for a daemon to come back, while none is there.
const PATIENCE_WITHOUT_DAEMON: Duration = Duration::from_secs(2);
/// Longest pause between two attempts to find a daemon.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Hears what the daemon says unasked, on the client's own thread.
///
/// It should not block, and must not call the client: the answer could not be heard ([`Error::Reentrant`]).
pub trait Listener: Send + Sync {
    /// From the connection manager. What follows from a command may arrive before the command's call returns.
    fn event(&self, event: cm::Event);
    /// The daemon is gone, and with it every [`cm::Endpoint`]. Leases stay.
    fn lost(&self);
    /// A daemon is there again and knows the leases.
    fn restored(&self);
    /// What `urxe stat` shows of this process. The number goes into the report.
    fn report(&self, number: u32) -> ProcessReport;
}

/// A slot on a device.
#[derive(Debug)]
pub struct Lease {
    /// The device's address.
    pub address: IpAddr,
    /// Scope of a link-local address, else 0.
    pub scope: u32,
    /// The top 8 of 24 bits of the process's QPNs.
    pub slot: u8,
    /// The slot's UDP socket, bound to the address.
    pub socket: OwnedFd,
    /// Holds all sockets of the address; it must stay open as long as the socket is in use.
    pub anchor: OwnedFd,
}

/// Why a command to the connection manager failed.
#[derive(Debug, thiserror::Error)]
pub enum CmError {
    /// The connection manager says no.
    #[error(transparent)]
    Refused(#[from] cm::Refused),
    /// The connection manager was not reached.
    #[error(transparent)]
    Daemon(#[from] Error),
}

impl DeviceSpec {
    /// The device of this process's machine with a number from 0, as the configuration has it.
    pub fn of(config: &Config, rail: u32) -> Result<Self, Error> {
        let (mut address, mut scope) = (config.addr, 0);
        if let Some(interface) = &config.netdev {
            let (found, its_scope) = interface_address(interface.as_str())?;
            address = Some(found);
            scope = its_scope;
        }
        Ok(Self { node: config.node_number(), rail, address, scope, lid: config.lid.map(|lid| lid.0) })
    }
}

/// The first IPv4 address of an interface, else its first IPv6 address, global ones first; and its scope.
fn interface_address(name: &str) -> Result<(IpAddr, u32), Error> {
    let device = |message| Error::Device { errno: libc::ENODEV, message };
    let all = route::addresses().map_err(|source| Error::Io { what: "list the interfaces", source })?;
    let rank = |ip: &IpAddr| match ip {
        IpAddr::V4(_) => 0,
        IpAddr::V6(ip) if !ip.is_unicast_link_local() => 1,
        IpAddr::V6(_) => 2,
    };
    let own = all.iter().filter(|a| a.interface == name);
    if let Some(found) = own.min_by_key(|a| rank(&a.ip)) {
        return Ok((found.ip, found.scope_id));
    }
    let mut names: Vec<_> = all.iter().map(|a| a.interface.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    Err(device(format!(
        "netdev {name}: no such interface, or it has no address; interfaces with one are {}",
        names.join(", ")
    )))
}

/// A process's client of the daemon of its fabric.
pub struct Client {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    /// The process that made it: a child of fork has a copy, but neither the thread nor the right to speak.
    process: u32,
    launch: Launch,
    listener: Arc<dyn Listener>,
    /// Wakes the thread to end.
    wake: OwnedFd,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    link: Link,
    /// Number of the next request; 0 is for those whose answer nobody waits for.
    next: u32,
    /// Requests that wait for their answer.
    waiting: HashMap<u32, Option<Answered>>,
    leases: Vec<Held>,
}

/// What came for a request.
type Answered = Result<(Reply, Descriptors), Error>;

#[derive(Clone)]
enum Link {
    Up(Arc<Connection>),
    /// And why.
    Down(String),
    Closed,
}

/// A lease that a new daemon has to know of.
#[derive(Clone)]
struct Held {
    spec: DeviceSpec,
    address: IpAddr,
    slot: u8,
    anchor: Arc<OwnedFd>,
}

impl Client {
    /// Connects to the daemon of the configured fabric, and starts it if it does not run.
    pub fn connect(config: &Config, listener: Arc<dyn Listener>) -> Result<Arc<Self>, Error> {
        let launch = Launch::new(config.fabric.as_str())?;
        let connection = launch.connect()?;
        let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(Error::io("make an eventfd"))?;
        let state = State {
            link: Link::Up(Arc::new(connection)),
            next: 1,
            waiting: HashMap::new(),
            leases: Vec::new(),
        };
        let shared = Arc::new(Shared {
            process: std::process::id(),
            launch,
            listener,
            wake,
            state: Mutex::new(state),
            changed: Condvar::new(),
        });
        let thread = {
            let shared = shared.clone();
            launch::with_signals_blocked(|| {
                let builder = std::thread::Builder::new().name("urxe-control".into()).stack_size(128 << 10);
                builder.spawn(move || Thread { shared: &shared, buffer: Vec::new() }.run())
            })
            .map_err(|source| Error::Io { what: "start a thread", source })?
        };
        Ok(Arc::new(Self { shared, thread: Some(thread) }))
    }

    /// Where a device is.
    pub fn device(&self, spec: &DeviceSpec) -> Result<(IpAddr, u32), Error> {
        match self.shared.call(&Request::Device(spec.clone()))? {
            (Reply::Device { address, scope }, _) => Ok((address, scope)),
            _ => Err(Error::Protocol("another answer than a device")),
        }
    }

    /// A slot on a device. It is given back by [`Client::release`], or when the process ends.
    pub fn lease(&self, spec: &DeviceSpec) -> Result<Lease, Error> {
        let (reply, beside) = self.shared.call(&Request::Lease(spec.clone()))?;
        let Reply::Lease { address, scope, slot } = reply else {
            return Err(Error::Protocol("another answer than a lease"));
        };
        let Ok([socket, anchor]) = <[OwnedFd; 2]>::try_from(beside) else {
            let _ = self.release(address, slot);
            return Err(Error::Protocol(
                "a lease without its sockets; perhaps this process has too many files open",
            ));
        };
        let twin = anchor.try_clone().map_err(|source| {
            let _ = self.release(address, slot);
            Error::Io { what: "keep the sockets of a device", source }
        })?;
        let held = Held { spec: spec.clone(), address, slot, anchor: Arc::new(twin) };
        self.shared.state.lock().leases.push(held);
        Ok(Lease { address, scope, slot, socket, anchor })
    }

    /// Gives a slot back. Its socket must not be used any more.
    pub fn release(&self, address: IpAddr, slot: u8) -> Result<(), Error> {
        self.shared.usable()?;
        self.shared.state.lock().leases.retain(|l| (l.address, l.slot) != (address, slot));
        self.done(&Request::Release { address, slot })
    }

    /// Tells or asks the connection manager.
    pub fn cm(&self, command: cm::Command) -> Result<cm::Answer, CmError> {
        match self.shared.call(&Request::Cm(command))? {
            (Reply::Cm(result), _) => Ok(result?),
            _ => Err(Error::Protocol("another answer than the connection manager's").into()),
        }
    }

    /// Tells the daemon that this process joins or leaves a multicast group on a device.
    pub fn multicast(&self, device: IpAddr, group: IpAddr, join: bool) -> Result<(), Error> {
        self.done(&Request::Multicast { device, group, join })
    }

    fn done(&self, request: &Request) -> Result<(), Error> {
        match self.shared.call(request)? {
            (Reply::Done, _) => Ok(()),
            _ => Err(Error::Protocol("another answer than that it is done")),
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if self.shared.process != std::process::id() {
            // The thread does not exist in this process.
            std::mem::forget(thread);
            return;
        }
        self.shared.state.lock().link = Link::Closed;
        self.shared.changed.notify_all();
        let _ = rustix::io::write(&self.shared.wake, &1u64.to_ne_bytes());
        if thread.thread().id() != std::thread::current().id() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn usable(&self) -> Result<(), Error> {
        if self.process != std::process::id() {
            return Err(Error::Forked);
        }
        if launch::is_control_thread() {
            return Err(Error::Reentrant);
        }
        Ok(())
    }

    fn call(&self, request: &Request) -> Result<(Reply, Descriptors), Error> {
        self.usable()?;
        let connected_by = Instant::now() + PATIENCE_WITHOUT_DAEMON;
        let mut state = self.state.lock();
        let connection = loop {
            match &state.link {
                Link::Up(connection) => break connection.clone(),
                Link::Closed => return Err(Error::Lost("it was closed".into())),
                Link::Down(why) if Instant::now() >= connected_by => return Err(Error::Lost(why.clone())),
                Link::Down(_) => {}
            }
            self.changed.wait_until(&mut state, connected_by);
        };
        let number = state.number();
        state.waiting.insert(number, None);
        drop(state);

        let sent = connection.send(number, request, &[]);
        let end = Instant::now() + PATIENCE;
        let mut state = self.state.lock();
        if let Err(e) = sent {
            state.waiting.remove(&number);
            return Err(e);
        }
        loop {
            match state.waiting.get_mut(&number) {
                None => return Err(Error::Lost("the answer was lost".into())),
                Some(None) if Instant::now() >= end => {
                    state.waiting.remove(&number);
                    return Err(Error::Timeout);
                }
                Some(None) => {}
                Some(answer) => {
                    let answer = answer.take();
                    state.waiting.remove(&number);
                    let (reply, beside) = answer.unwrap_or(Err(Error::Timeout))?;
                    return match reply {
                        Reply::Failed(failure) => Err(failure.into()),
                        reply => Ok((reply, beside)),
                    };
                }
            }
            self.changed.wait_until(&mut state, end);
        }
    }
}

impl State {
    fn number(&mut self) -> u32 {
        loop {
            let number = self.next;
            self.next = self.next.wrapping_add(1).max(1);
            if !self.waiting.contains_key(&number) {
                return number;
            }
        }
    }
}

/// The thread that hears the daemon.
struct Thread<'a> {
    shared: &'a Shared,
    buffer: Vec<u8>,
}

impl Thread<'_> {
    fn run(mut self) {
        launch::mark_control_thread();
        let mut pause = Duration::from_millis(10);
        loop {
            let link = self.shared.state.lock().link.clone();
            match link {
                Link::Closed => return,
                Link::Up(connection) => {
                    let why = self.hear(&connection);
                    if !self.go_down(&why) {
                        return;
                    }
                    pause = Duration::from_millis(10);
                }
                Link::Down(_) => match self.reconnect() {
                    Ok(()) => {}
                    Err(e) => {
                        tracing::warn!("no daemon for fabric {}: {e}", self.shared.launch.fabric());
                        if let link @ Link::Down(_) = &mut self.shared.state.lock().link {
                            *link = Link::Down(e.to_string());
                        }
                        // Jitter, so that the processes of a machine do not all try at once.
                        let part = u64::from(std::process::id().wrapping_mul(0x9e37_79b9) >> 22);
                        let end = Instant::now() + pause + pause.mul_f64(part as f64 / 1024.0);
                        let _ = wait(&[self.shared.wake.as_fd()], Some(end));
                        pause = (pause * 2).min(LONGEST_PAUSE);
                    }
                },
            }
        }
    }

    /// Hears the daemon until it is gone, and says why it is.
    fn hear(&mut self, connection: &Connection) -> String {
        loop {
            match connection.receive(&mut self.buffer) {
                Ok(Some((ToClient::Reply(reply), beside))) => self.reply(connection, reply, beside),
                Ok(Some((ToClient::Notice(notice), _))) => self.notice(connection, notice),
                Ok(None) => match wait(&[connection.as_fd(), self.shared.wake.as_fd()], None) {
                    Ok(ready) if ready.get(1) == Some(&true) => return "it was closed".into(),
                    Ok(_) => {}
                    Err(e) => return e.to_string(),
                },
                Err(e) => return e.to_string(),
            }
        }
    }

    fn reply(&self, connection: &Connection, reply: Numbered<Reply>, beside: Descriptors) {
        let mut state = self.shared.state.lock();
        if let Some(place @ None) = state.waiting.get_mut(&reply.number) {
            *place = Some(Ok((reply.body, beside)));
            self.shared.changed.notify_all();
            return;
        }
        drop(state);
        // The call has given up: what came for it is given back.
        let undo = match reply.body {
            Reply::Lease { address, slot, .. } => Request::Release { address, slot },
            Reply::Cm(Ok(cm::Answer::Bound { endpoint, .. })) => {
                Request::Cm(cm::Command::Destroy { endpoint })
            }
            _ => return,
        };
        let _ = connection.send(0, &undo, &[]);
    }

    fn notice(&self, connection: &Connection, notice: Notice) {
        match notice {
            Notice::Cm(event) => self.tell(|l| l.event(event)),
            Notice::Report(number) => {
                let report = catch_unwind(AssertUnwindSafe(|| self.shared.listener.report(number)));
                let report = report.unwrap_or(ProcessReport { number, devices: Vec::new() });
                let _ = connection.send_report(report);
            }
            // Nobody asks for the status here.
            Notice::Process(_) | Notice::End { .. } => {}
        }
    }

    /// Calls the listener. The thread outlives its panics: the process must not lose its way to the daemon.
    fn tell(&self, f: impl FnOnce(&dyn Listener)) {
        let _ = catch_unwind(AssertUnwindSafe(|| f(&*self.shared.listener)));
    }

    /// False: the client is closed.
    fn go_down(&self, why: &str) -> bool {
        let mut state = self.shared.state.lock();
        if matches!(state.link, Link::Closed) {
            return false;
        }
        state.link = Link::Down(why.to_owned());
        for answer in state.waiting.values_mut().filter(|a| a.is_none()) {
            *answer = Some(Err(Error::Lost(why.to_owned())));
        }
        self.shared.changed.notify_all();
        drop(state);
        tracing::warn!("{}", Error::Lost(why.to_owned()));
        self.tell(|l| l.lost());
        true
    }

    /// Finds or starts a daemon and hands it the leases.
    fn reconnect(&self) -> Result<(), Error> {
        let connection = self.shared.launch.connect()?;
        // A lease of before; nobody can have made another meanwhile.
        let leases = self.shared.state.lock().leases.clone();
        for Held { spec, address, slot, anchor } in leases {
            let request = Request::Resume { spec, address, slot };
            match connection.ask(&request, &[anchor.as_fd()], |notice| self.notice(&connection, notice)) {
                Ok((Reply::Done, _)) => {}
                Ok(_) => return Err(Error::Protocol("another answer than that it is done")),
                // It goes on without the daemon; other slots may still be known.
                Err(Error::Refused(why)) => {
                    tracing::warn!("the daemon does not take slot {slot} of {address} back: {why}");
                }
                Err(e) => return Err(e),
            }
        }
        let mut state = self.shared.state.lock();
        if !matches!(state.link, Link::Closed) {
            state.link = Link::Up(Arc::new(connection));
            self.shared.changed.notify_all();
            drop(state);
            self.tell(|l| l.restored());
        }
        Ok(())
    }
}
