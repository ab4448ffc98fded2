//! `rdma_cm_id`: what the program holds, and what the library knows of it.
//!
//! The identifier itself is an [`Id`], which events and the registry hold too; the program's pointer leads to a
//! [`Handle`] with the C structure. The C structure is written only in calls of the program, as librdmacm does it:
//! `verbs` appears when the program takes the event that says so.

use std::ffi::{c_int, c_void};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use device::cm::{Addresses, Command, Ece, Endpoint, PathFacts, PortSpace};
use parking_lot::Mutex;

use super::channel::{self, Channel, Kind, Pending, Queue};
use super::multicast::Membership;
use super::{daemon, registry};
use crate::abi::cm::*;
use crate::abi::*;
use crate::boundary::{Errno, Outcome, minus_one};
use crate::memory;
use crate::verbs::convert::INVALID;
use crate::verbs::device::SendPointer;
use crate::verbs::events::Acknowledgements;
use crate::verbs::handle::{Object, Private};

/// How far an identifier is. What the kernel calls CONNECT is several here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// Made.
    Idle,
    /// Has an address and a port.
    Bound,
    /// Knows the device and the destination.
    AddressResolved,
    /// Knows the path.
    RouteResolved,
    /// Takes requests.
    Listening,
    /// Asked; nobody has answered yet.
    Connecting,
    /// Has an answer that the program has to confirm.
    Responded,
    /// Made by a request that the program has to answer.
    Requested,
    /// Said yes to a request; the peer has to confirm.
    Accepting,
    /// Connected; a datagram service is resolved or accepted.
    Connected,
    /// Asked the peer to disconnect.
    Disconnecting,
    /// Was connected.
    Disconnected,
    /// Refused, unreachable, or its request came to nothing.
    Failed,
    /// Destroyed.
    Closed,
}

/// The endpoint at the daemon, which a new daemon has to be told again.
#[derive(Clone, Debug)]
pub struct Binding {
    /// With the port.
    pub address: SocketAddr,
    /// The devices that it speaks for.
    pub devices: Vec<IpAddr>,
    /// The backlog, if it listens.
    pub backlog: Option<u32>,
}

/// The other end of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Remote {
    /// Its queue pair.
    pub qpn: u32,
    /// The PSN with which the other end is to begin.
    pub psn: u32,
}

/// What `rdma_set_option` sets.
#[derive(Clone, Copy, Default, Debug)]
pub struct Options {
    /// Traffic class of paths.
    pub tos: u8,
    /// Share the port.
    pub reuse: bool,
    /// `::` is not 0.0.0.0 too.
    pub v6_only: bool,
    /// Local ACK timeout of the queue pair.
    pub ack_timeout: Option<u8>,
}

/// What changes while an identifier lives.
pub struct State {
    /// How far it is.
    pub phase: Phase,
    /// At the daemon. `None` before it is bound and after the daemon died.
    pub endpoint: Option<Endpoint>,
    /// What the endpoint was made from.
    pub binding: Option<Binding>,
    /// The device, by its number in the process.
    pub rail: Option<usize>,
    /// Both ends, once they are resolved.
    pub addresses: Option<Addresses>,
    /// The path.
    pub path: Option<PathFacts>,
    /// The peer's queue pair.
    pub remote: Option<Remote>,
    /// The PSN with which the other end is to begin.
    pub psn: u32,
    /// READs and atomics that its queue pair serves at once.
    pub responder_resources: u8,
    /// READs and atomics that its queue pair asks for at once.
    pub initiator_depth: u8,
    /// Of its queue pair.
    pub retry_count: u8,
    /// Of its queue pair.
    pub rnr_retry_count: u8,
    /// What it offers.
    pub local_ece: Ece,
    /// What the peer offered.
    pub remote_ece: Ece,
    /// Options.
    pub options: Options,
    /// Making its queue pair ready failed: what the peer says to that is not told.
    pub connect_error: bool,
    /// The program has seen the end of the connection.
    pub end_reported: bool,
    /// Bytes in front of the program's private data (`ai_connect`).
    pub connect_data: Vec<u8>,
    /// Groups that it is a member of.
    pub memberships: Vec<Arc<Membership>>,
}

/// Where an identifier's events go.
struct Place {
    queue: Arc<Queue>,
    /// No more events: it is destroyed.
    closed: bool,
}

/// An identifier.
pub struct Id {
    process: u32,
    /// The program's pointer; null until the program has taken the request that made it.
    exposed: AtomicPtr<rdma_cm_id>,
    /// `enum rdma_port_space`.
    pub space: u32,
    /// `enum ibv_qp_type`.
    pub qp_type: u32,
    /// Held while the daemon is asked something in its name. Never taken by the thread that receives events.
    pub calls: Mutex<()>,
    /// Never held while the daemon is asked something.
    pub state: Mutex<State>,
    /// Events that the program has and has not acknowledged.
    pub events: Acknowledgements,
    place: Mutex<Place>,
}

impl Id {
    /// A new one, whose events go to this queue.
    pub fn new(space: u32, qp_type: u32, queue: Arc<Queue>) -> Arc<Self> {
        Arc::new(Self {
            process: std::process::id(),
            exposed: AtomicPtr::new(std::ptr::null_mut()),
            space,
            qp_type,
            calls: Mutex::new(()),
            state: Mutex::new(State {
                phase: Phase::Idle,
                endpoint: None,
                binding: None,
                rail: None,
                addresses: None,
                path: None,
                remote: None,
                psn: random_psn(),
                responder_resources: 0,
                initiator_depth: 0,
                retry_count: 7,
                rnr_retry_count: 7,
                local_ece: Ece::default(),
                remote_ece: Ece::default(),
                options: Options::default(),
                connect_error: false,
                end_reported: false,
                connect_data: Vec::new(),
                memberships: Vec::new(),
            }),
            events: Acknowledgements::default(),
            place: Mutex::new(Place { queue, closed: false }),
        })
    }

    /// The program's pointer.
    pub fn exposed(&self) -> *mut rdma_cm_id {
        self.exposed.load(Ordering::Acquire)
    }

    /// Whether it is for datagrams.
    pub fn is_datagram(&self) -> bool {
        self.qp_type == IBV_QPT_UD
    }

    /// The port space for the daemon. IP over InfiniBand's shares that of datagrams.
    pub fn port_space(&self) -> PortSpace {
        match self.space {
            RDMA_PS_TCP => PortSpace::Tcp,
            RDMA_PS_IB => PortSpace::Ib,
            _ => PortSpace::Udp,
        }
    }

    /// Where its events go.
    pub fn queue(&self) -> Arc<Queue> {
        self.place.lock().queue.clone()
    }

    /// Tells the program something, unless it has destroyed the identifier; then the event comes back.
    pub fn tell(self: &Arc<Self>, kind: Kind) -> Result<(), Kind> {
        self.tell_about(kind, None)
    }

    /// As [`Id::tell`], about a group.
    pub fn tell_about(self: &Arc<Self>, kind: Kind, membership: Option<Arc<Membership>>) -> Result<(), Kind> {
        let place = self.place.lock();
        if place.closed {
            return Err(kind);
        }
        place.queue.push(Pending { id: self.clone(), kind, membership });
        Ok(())
    }

    /// From now on there are no more events; those that wait come back.
    fn close(self: &Arc<Self>) -> Vec<Pending> {
        let mut place = self.place.lock();
        place.closed = true;
        place.queue.extract(|pending| Arc::ptr_eq(&pending.id, self))
    }

    /// The events of a group that wait are not told any more.
    pub fn forget_events(&self, membership: &Arc<Membership>) {
        let of_it = |pending: &Pending| {
            pending.membership.as_ref().is_some_and(|member| Arc::ptr_eq(member, membership))
        };
        self.place.lock().queue.remove(of_it);
    }

    /// Events go elsewhere from now on, those that wait too.
    pub fn move_to(self: &Arc<Self>, queue: Arc<Queue>) {
        let mut place = self.place.lock();
        for pending in place.queue.extract(|pending| Arc::ptr_eq(&pending.id, self)) {
            queue.push(pending);
        }
        place.queue = queue;
    }

    /// A phase in which a call makes sense, or `EINVAL`.
    pub fn expect(&self, phases: &[Phase]) -> Outcome<Phase> {
        let phase = self.state.lock().phase;
        if phases.contains(&phase) { Ok(phase) } else { Err(INVALID) }
    }

    /// Its endpoint; after the daemon died, a new one as long as it is not connected. The caller holds `calls`.
    pub fn endpoint(self: &Arc<Self>) -> Outcome<Endpoint> {
        let (binding, options) = {
            let state = self.state.lock();
            match (state.endpoint, state.phase) {
                (Some(endpoint), _) => return Ok(endpoint),
                (None, Phase::Bound | Phase::AddressResolved | Phase::RouteResolved | Phase::Listening) => {
                    (state.binding.clone().ok_or(INVALID)?, state.options)
                }
                (None, _) => return Err(INVALID),
            }
        };
        let (endpoint, _) = daemon::bind(self.port_space(), &binding, options)?;
        self.adopt(endpoint);
        if let Some(backlog) = binding.backlog {
            daemon::command(Command::Listen { endpoint, backlog })?;
        }
        Ok(endpoint)
    }

    /// It has an endpoint from now on.
    pub fn adopt(self: &Arc<Self>, endpoint: Endpoint) {
        registry::insert(endpoint, self.clone());
        self.state.lock().endpoint = Some(endpoint);
    }
}

/// 24 bits that a stranger cannot guess.
fn random_psn() -> u32 {
    let mut bytes = [0u8; 4];
    // SAFETY: a buffer of four bytes. Few bytes never block once the system is up; if there is no such call the PSN is
    // only less random.
    unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), libc::GRND_NONBLOCK) };
    u32::from_ne_bytes(bytes) & 0x00ff_ffff
}

/// The library's part of what the program's pointer leads to.
pub struct Handle {
    /// The identifier.
    pub id: Arc<Id>,
    /// The channel that it made for itself, as it was given none: calls wait for their event then.
    pub own_channel: AtomicPtr<rdma_event_channel>,
    /// Path records that the program may look at, the newest last.
    pub records: Mutex<Vec<Box<ibv_sa_path_rec>>>,
    /// For the queue pairs of requests (`rdma_create_ep`).
    pub qp_init: Mutex<Option<SendPointer<ibv_qp_init_attr>>>,
    /// What `rdma_resolve_addrinfo` is at.
    pub resolving: Mutex<super::addrinfo::Resolving>,
    destroying: AtomicBool,
}

impl Private for Handle {
    type Abi = rdma_cm_id;
    type Exposed = rdma_cm_id;
    const MARK: u64 = u64::from_be_bytes(*b"urxe-cid");
}

impl Handle {
    /// Whether calls wait for their event.
    pub fn is_synchronous(&self) -> bool {
        !self.own_channel.load(Ordering::Acquire).is_null()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if let Some(init) = self.qp_init.get_mut().take() {
            // SAFETY: it came from a box.
            drop(unsafe { Box::from_raw(init.0) });
        }
        self.resolving.get_mut().forget();
    }
}

/// The identifier of a pointer that may be anything. In a child of fork those of the parent are none.
///
/// # Safety
/// The program does not destroy it while this reference lives.
pub unsafe fn find<'a>(pointer: *const rdma_cm_id) -> Outcome<&'a Object<Handle>> {
    // SAFETY: passed on.
    let object = unsafe { Object::<Handle>::find(pointer)? };
    if object.private.id.process == std::process::id() { Ok(object) } else { Err(INVALID) }
}

/// Gives the program an identifier.
pub fn publish(
    id: Arc<Id>,
    channel: *mut rdma_event_channel,
    own: bool,
    context: *mut c_void,
) -> *mut rdma_cm_id {
    // SAFETY: null pointers and numbers.
    let mut abi: rdma_cm_id = unsafe { std::mem::zeroed() };
    abi.channel = channel;
    abi.context = context;
    abi.ps = id.space;
    abi.qp_type = id.qp_type;
    let handle = Handle {
        id: id.clone(),
        own_channel: AtomicPtr::new(if own { channel } else { std::ptr::null_mut() }),
        records: Mutex::default(),
        qp_init: Mutex::default(),
        resolving: Mutex::default(),
        destroying: AtomicBool::new(false),
    };
    let pointer = Object::publish(abi, handle);
    id.exposed.store(pointer, Ordering::Release);
    pointer
}

/// Makes an identifier; without a channel it makes one for itself.
pub fn create(
    channel_pointer: *mut rdma_event_channel,
    context: *mut c_void,
    space: u32,
    qp_type: u32,
) -> Outcome<*mut rdma_cm_id> {
    daemon::ready()?;
    let own = channel_pointer.is_null();
    let channel_pointer = if own { channel::create()? } else { channel_pointer };
    // SAFETY: find checks the pointer.
    let queue = unsafe { Object::<Channel>::find(channel_pointer)? }.private.queue.clone();
    Ok(publish(Id::new(space, qp_type, queue), channel_pointer, own, context))
}

/// rdma_create_id(3)
///
/// # Safety
/// The pointers are what the program passed.
pub unsafe extern "C" fn rdma_create_id(
    channel: *mut rdma_event_channel,
    id: *mut *mut rdma_cm_id,
    context: *mut c_void,
    space: c_int,
) -> c_int {
    minus_one(|| {
        let space = space.cast_unsigned();
        let qp_type = match space {
            RDMA_PS_UDP | RDMA_PS_IPOIB => IBV_QPT_UD,
            RDMA_PS_TCP | RDMA_PS_IB => IBV_QPT_RC,
            _ => return Err(INVALID),
        };
        // SAFETY: memory checks the pointer: before there is something to lose.
        unsafe { memory::write(id, std::ptr::null_mut())? };
        let made = create(channel, context, space, qp_type)?;
        // SAFETY: as above.
        unsafe { memory::write(id, made)? };
        Ok(0)
    })
}

/// Destroys an identifier: nothing of it remains at the daemon, requests that nobody took are refused, and the call
/// waits until the program is done with its events.
///
/// # Safety
/// The pointer is what the program passed.
pub unsafe fn destroy(pointer: *mut rdma_cm_id) -> Outcome<()> {
    // SAFETY: find checks the pointer.
    let object = unsafe { find(pointer)? };
    if object.private.destroying.swap(true, Ordering::AcqRel) {
        return Err(INVALID);
    }
    let id = object.private.id.clone();
    let (endpoint, memberships) = {
        let _call = id.calls.lock();
        let mut state = id.state.lock();
        state.phase = Phase::Closed;
        (state.endpoint.take(), std::mem::take(&mut state.memberships))
    };
    if let Some(endpoint) = endpoint {
        registry::remove(endpoint);
    }
    for pending in id.close() {
        if let Some(child) = pending.kind.child() {
            discard(child);
        }
    }
    if let Some(endpoint) = endpoint {
        // If the daemon is gone, so is the endpoint.
        _ = daemon::command(Command::Destroy { endpoint });
    }
    for membership in memberships {
        // SAFETY: the object lives, and with it the structure.
        membership.leave(unsafe { (*object.abi()).qp });
    }
    // SAFETY: as above; the event's pointer is checked.
    unsafe {
        let event = std::mem::replace(&mut (*object.abi()).event, std::ptr::null_mut());
        if !event.is_null() {
            _ = channel::acknowledge(event);
        }
    }
    id.events.wait();
    let own_channel = object.private.own_channel.swap(std::ptr::null_mut(), Ordering::AcqRel);
    drop(object.retire());
    if !own_channel.is_null() {
        // SAFETY: the channel is checked.
        _ = unsafe { channel::destroy(own_channel) };
    }
    Ok(())
}

/// Refuses a request that the program never took.
pub fn discard(child: &Arc<Id>) {
    let endpoint = {
        let mut state = child.state.lock();
        state.phase = Phase::Closed;
        state.endpoint.take()
    };
    if let Some(endpoint) = endpoint {
        registry::remove(endpoint);
        _ = daemon::command(Command::Destroy { endpoint });
    }
}

/// rdma_destroy_id(3)
///
/// # Safety
/// The pointer is what the program passed.
pub unsafe extern "C" fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: passed on.
    minus_one(|| unsafe { destroy(id).map(|()| 0) })
}

/// rdma_migrate_id(3): events that wait move too.
///
/// # Safety
/// The pointers are what the program passed.
pub unsafe extern "C" fn rdma_migrate_id(id: *mut rdma_cm_id, to: *mut rdma_event_channel) -> c_int {
    minus_one(|| {
        // SAFETY: find checks the pointer.
        let object = unsafe { find(id)? };
        let handle = &object.private;
        if handle.is_synchronous() && to.is_null() {
            return Err(INVALID);
        }
        let own = to.is_null();
        let target = if own { channel::create()? } else { to };
        // SAFETY: find checks the pointer.
        let queue = unsafe { Object::<Channel>::find(target)? }.private.queue.clone();
        handle.id.move_to(queue);
        let before =
            handle.own_channel.swap(if own { target } else { std::ptr::null_mut() }, Ordering::AcqRel);
        // SAFETY: the structure lives with the object; the event's and the channel's pointers are checked.
        unsafe {
            (*object.abi()).channel = target;
            if !before.is_null() {
                let event = std::mem::replace(&mut (*object.abi()).event, std::ptr::null_mut());
                if !event.is_null() {
                    _ = channel::acknowledge(event);
                }
                _ = channel::destroy(before);
            }
        }
        handle.id.events.wait();
        Ok(0)
    })
}

/// A number of the program.
///
/// # Safety
/// The pointer is what the program passed.
unsafe fn option<T: Copy>(value: *const c_void, length: usize) -> Outcome<T> {
    if length != size_of::<T>() {
        return Err(INVALID);
    }
    // SAFETY: memory checks the pointer; `T` is a number.
    unsafe { memory::read(value.cast()) }
}

/// rdma_set_option(3)
///
/// # Safety
/// The pointers are what the program passed.
pub unsafe extern "C" fn rdma_set_option(
    id: *mut rdma_cm_id,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: usize,
) -> c_int {
    minus_one(|| {
        // SAFETY: find checks the pointer, memory the other one.
        unsafe {
            let object = find(id)?;
            let id = &object.private.id;
            match (level, name) {
                (RDMA_OPTION_ID, RDMA_OPTION_ID_TOS) => {
                    let tos = option::<u8>(value, length)?;
                    id.state.lock().options.tos = tos;
                }
                (RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR) => {
                    let reuse = option::<c_int>(value, length)? != 0;
                    id.expect(&[Phase::Idle])?;
                    id.state.lock().options.reuse = reuse;
                }
                (RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY) => {
                    let v6_only = option::<c_int>(value, length)? != 0;
                    id.expect(&[Phase::Idle])?;
                    id.state.lock().options.v6_only = v6_only;
                }
                (RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT) => {
                    let timeout = option::<u8>(value, length)?;
                    if id.is_datagram() || timeout > 31 {
                        return Err(INVALID);
                    }
                    id.state.lock().options.ack_timeout = Some(timeout);
                }
                (RDMA_OPTION_IB, RDMA_OPTION_IB_PATH) => super::resolve::set_path(object, value, length)?,
                _ => return Err(Errno(libc::ENOSYS)),
            }
        }
        Ok(0)
    })
}

fn port(address: &rdma_socket_address) -> u16 {
    // SAFETY: every bit pattern is a socket address; the family says which.
    unsafe {
        match i32::from(address.any.sa_family) {
            libc::AF_INET => address.ipv4.sin_port,
            libc::AF_INET6 => address.ipv6.sin6_port,
            _ => 0,
        }
    }
}

/// rdma_get_src_port(3): in network byte order.
///
/// # Safety
/// The pointer is what the program passed.
pub unsafe extern "C" fn rdma_get_src_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: find checks the pointer.
    crate::boundary::value(0, || Ok(port(unsafe { &(*find(id)?.abi()).route.addr.source })))
}

/// rdma_get_dst_port(3): in network byte order.
///
/// # Safety
/// The pointer is what the program passed.
pub unsafe extern "C" fn rdma_get_dst_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: find checks the pointer.
    crate::boundary::value(0, || Ok(port(unsafe { &(*find(id)?.abi()).route.addr.destination })))
}
