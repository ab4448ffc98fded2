//! Event channels, and taking events from them.
//!
//! What happened waits in the channel as a [`Pending`]; it becomes a `rdma_cm_event` when the program takes it. Only
//! then the C structures change and the queue pair of an answered request is made ready, in the program's own thread,
//! as librdmacm does it.

use std::ffi::c_int;
use std::sync::Arc;

use device::cm::{
    Command, MAX_REJECT_DATA, MAX_REPLY_DATA, MAX_REQUEST_DATA, MAX_SERVICE_REPLY_DATA,
    MAX_SERVICE_REQUEST_DATA, Parameters,
};

use super::id::{self, Handle, Id, Phase};
use super::multicast::Membership;
use super::{daemon, qp, resolve};
use crate::abi::cm::*;
use crate::boundary::{Errno, Outcome, minus_one, nothing, pointer};
use crate::memory;
use crate::verbs::convert::INVALID;
use crate::verbs::events::{EventQueue, descriptor_error};
use crate::verbs::handle::{Object, Private};

/// Events that wait.
pub type Queue = EventQueue<Pending>;

/// The library's part of an event channel.
pub struct Channel {
    /// Its events. Identifiers hold it too.
    pub queue: Arc<Queue>,
}

impl Private for Channel {
    type Abi = rdma_event_channel;
    type Exposed = rdma_event_channel;
    const MARK: u64 = u64::from_be_bytes(*b"urxe-cmc");
}

/// Something that the program has not been told yet.
pub struct Pending {
    /// Of which identifier. For requests: the one that listens.
    pub id: Arc<Id>,
    /// What.
    pub kind: Kind,
    /// The group that it is about.
    pub membership: Option<Arc<Membership>>,
}

/// What happened.
pub enum Kind {
    /// The device is known.
    AddressResolved,
    /// There is no way to the destination: a negative errno.
    AddressError(c_int),
    /// The path is known.
    RouteResolved,
    /// A request for a connection.
    Request {
        /// The identifier that it makes.
        child: Arc<Id>,
        /// What the peer says.
        parameters: Parameters,
    },
    /// A request for a datagram service.
    ServiceRequest {
        /// The identifier that it makes.
        child: Arc<Id>,
        /// The peer's bytes.
        private_data: Vec<u8>,
    },
    /// The answer to a request.
    Response(Parameters),
    /// The passive side is connected.
    Established,
    /// The answer to a request for a datagram service.
    ServiceResolved {
        /// The service's queue pair.
        qpn: u32,
        /// And its Q_Key.
        qkey: u32,
        /// The peer's bytes.
        private_data: Vec<u8>,
    },
    /// The peer refused.
    Rejected {
        /// IBA table 99.
        reason: u16,
        /// The peer's bytes.
        private_data: Vec<u8>,
    },
    /// Nobody answered, as a negative errno, or the datagram service was refused, with the status of the reply.
    Unreachable {
        /// The errno or status.
        status: c_int,
        /// The peer's bytes.
        private_data: Vec<u8>,
    },
    /// The connection ended.
    Disconnected,
    /// The queue pair may be used again.
    TimewaitExit,
    /// A member of the group from now on.
    Joined,
    /// The program's own event.
    User {
        /// Its status.
        status: c_int,
        /// Its argument.
        argument: u64,
    },
    /// `rdma_resolve_addrinfo` has a result.
    AddressInformation,
}

impl Kind {
    /// The identifier that a request makes.
    pub fn child(&self) -> Option<&Arc<Id>> {
        match self {
            Self::Request { child, .. } | Self::ServiceRequest { child, .. } => Some(child),
            _ => None,
        }
    }
}

/// The library's part of an event that the program has.
pub struct Told {
    id: Arc<Id>,
    membership: Option<Arc<Membership>>,
    _private_data: Box<[u8]>,
}

impl Private for Told {
    type Abi = rdma_cm_event;
    type Exposed = rdma_cm_event;
    const MARK: u64 = u64::from_be_bytes(*b"urxe-cme");
}

/// Makes a channel.
pub fn create() -> Outcome<*mut rdma_event_channel> {
    let queue = Arc::new(Queue::new().map_err(descriptor_error)?);
    Ok(Object::publish(rdma_event_channel { fd: queue.descriptor() }, Channel { queue }))
}

/// Takes a channel back. Identifiers that still use it go on, but nobody hears of them.
///
/// # Safety
/// The pointer is what the program passed.
pub unsafe fn destroy(channel: *mut rdma_event_channel) -> Outcome<()> {
    // SAFETY: find checks the pointer.
    drop(unsafe { Object::<Channel>::find(channel)? }.retire());
    Ok(())
}

/// rdma_create_event_channel(3)
pub extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    pointer(|| {
        daemon::ready()?;
        create()
    })
}

/// rdma_destroy_event_channel(3)
///
/// # Safety
/// The pointer is what the program passed.
pub unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    // SAFETY: passed on.
    nothing(|| unsafe { destroy(channel) });
}

/// rdma_get_cm_event(3)
///
/// # Safety
/// The pointers are what the program passed.
pub unsafe extern "C" fn rdma_get_cm_event(
    channel: *mut rdma_event_channel,
    event: *mut *mut rdma_cm_event,
) -> c_int {
    minus_one(|| {
        // Before it waits: a bad pointer must not cost an event.
        // SAFETY: memory checks the pointer.
        unsafe { memory::write(event, std::ptr::null_mut())? };
        let next = take(channel)?;
        // SAFETY: as above.
        unsafe { memory::write(event, next)? };
        Ok(0)
    })
}

/// Waits for the next event and makes it what the program sees.
pub(super) fn take(channel: *mut rdma_event_channel) -> Outcome<*mut rdma_cm_event> {
    // SAFETY: find checks the pointer.
    let queue = unsafe { Object::<Channel>::find(channel)? }.private.queue.clone();
    loop {
        let pending = queue.next(|pending| {
            pending.id.events.deliver();
            if let Some(membership) = &pending.membership {
                membership.events.deliver();
            }
        })?;
        let (id, membership) = (pending.id.clone(), pending.membership.clone());
        match tell(channel, pending) {
            Some(event) => return Ok(event),
            // Nothing that the program would want to know.
            None => done(&id, membership.as_deref()),
        }
    }
}

fn done(id: &Id, membership: Option<&Membership>) {
    if let Some(membership) = membership {
        membership.events.acknowledge(1);
    }
    id.events.acknowledge(1);
}

/// The program is done with an event.
///
/// # Safety
/// The pointer is what the program passed.
pub unsafe fn acknowledge(event: *mut rdma_cm_event) -> Outcome<()> {
    // SAFETY: find checks the pointer.
    let object = unsafe { Object::<Told>::find(event)? };
    let told = object.retire().ok_or(INVALID)?;
    done(&told.private.id, told.private.membership.as_deref());
    Ok(())
}

/// rdma_ack_cm_event(3)
///
/// # Safety
/// The pointer is what the program passed.
pub unsafe extern "C" fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    // SAFETY: passed on.
    minus_one(|| unsafe { acknowledge(event).map(|()| 0) })
}

/// An event as it is put together.
struct Draft {
    abi: rdma_cm_event,
    private_data: Box<[u8]>,
}

impl Draft {
    fn new(pointer: *mut rdma_cm_id, kind: u32, status: c_int) -> Self {
        // SAFETY: null pointers and numbers.
        let mut abi: rdma_cm_event = unsafe { std::mem::zeroed() };
        abi.id = pointer;
        abi.event = kind;
        abi.status = status;
        Self { abi, private_data: Box::default() }
    }

    /// Private data has no length on the wire: the program sees all of the field, with zeroes at its end.
    fn private_data(&mut self, bytes: &[u8], field: usize) -> (*const std::ffi::c_void, u8) {
        // Programs look at a few bytes more than there are.
        let mut all = vec![0u8; 256];
        let length = bytes.len().max(field).min(usize::from(u8::MAX));
        let there = bytes.len().min(length);
        all[..there].copy_from_slice(&bytes[..there]);
        self.private_data = all.into();
        (self.private_data.as_ptr().cast(), length as u8)
    }

    fn connection(&mut self, parameters: &Parameters, field: usize) {
        let (private_data, private_data_len) = self.private_data(&parameters.private_data, field);
        self.abi.param.conn = rdma_conn_param {
            private_data,
            private_data_len,
            // What this side shall serve is what the other asks for, and the other way round.
            responder_resources: parameters.initiator_depth,
            initiator_depth: parameters.responder_resources,
            flow_control: parameters.flow_control.into(),
            retry_count: parameters.retry_count,
            rnr_retry_count: parameters.rnr_retry_count,
            srq: parameters.srq.into(),
            qp_num: parameters.qpn,
        };
    }

    fn only_data(&mut self, bytes: &[u8], field: usize) {
        let (private_data, length) = self.private_data(bytes, field);
        // SAFETY: null pointers and numbers.
        let mut conn: rdma_conn_param = unsafe { std::mem::zeroed() };
        conn.private_data = private_data;
        conn.private_data_len = length;
        self.abi.param.conn = conn;
    }

    fn datagram(&mut self, bytes: &[u8], field: usize) -> &mut rdma_ud_param {
        let (private_data, length) = self.private_data(bytes, field);
        // SAFETY: null pointers and numbers.
        let mut ud: rdma_ud_param = unsafe { std::mem::zeroed() };
        ud.private_data = private_data;
        ud.private_data_len = length;
        self.abi.param.ud = ud;
        // SAFETY: just written.
        unsafe { &mut self.abi.param.ud }
    }
}

/// Makes an event of what happened; `None` if the program shall not see it.
fn tell(channel: *mut rdma_event_channel, pending: Pending) -> Option<*mut rdma_cm_event> {
    let Pending { id, kind, membership } = pending;
    // The event is counted, so the identifier is not destroyed before it is acknowledged.
    // SAFETY: find checks the pointer.
    let object = unsafe { Object::<Handle>::find(id.exposed()) }.ok()?;
    let draft = |kind, status| Draft::new(object.exposed(), kind, status);
    let draft = match kind {
        Kind::AddressResolved => match resolve::show_address(object) {
            Ok(()) => draft(RDMA_CM_EVENT_ADDR_RESOLVED, 0),
            Err(error) => draft(RDMA_CM_EVENT_ADDR_ERROR, -error.0),
        },
        Kind::AddressError(status) => draft(RDMA_CM_EVENT_ADDR_ERROR, status),
        Kind::RouteResolved => match resolve::show_route(object) {
            Ok(()) => draft(RDMA_CM_EVENT_ROUTE_RESOLVED, 0),
            Err(error) => draft(RDMA_CM_EVENT_ROUTE_ERROR, -error.0),
        },
        Kind::Request { child, parameters } => {
            let mut draft = request(channel, object, child)?;
            draft.connection(&parameters, MAX_REQUEST_DATA);
            draft
        }
        Kind::ServiceRequest { child, private_data } => {
            let mut draft = request(channel, object, child)?;
            draft.datagram(&private_data, MAX_SERVICE_REQUEST_DATA);
            draft
        }
        Kind::Response(parameters) => {
            let mut draft = response(object);
            draft.connection(&parameters, MAX_REPLY_DATA);
            draft
        }
        Kind::Established => draft(RDMA_CM_EVENT_ESTABLISHED, 0),
        Kind::ServiceResolved { qpn, qkey, private_data } => {
            let mut draft = draft(RDMA_CM_EVENT_ESTABLISHED, 0);
            let ud = draft.datagram(&private_data, MAX_SERVICE_REPLY_DATA);
            ud.ah_attr = qp::address_of_peer(&id).ok()?;
            ud.qp_num = qpn;
            ud.qkey = qkey;
            draft
        }
        Kind::Rejected { reason, private_data } => {
            if id.state.lock().connect_error {
                return None;
            }
            qp::to_error(object);
            let mut draft = draft(RDMA_CM_EVENT_REJECTED, reason.into());
            draft.only_data(&private_data, MAX_REJECT_DATA);
            draft
        }
        Kind::Unreachable { status, private_data } => {
            let mut draft = draft(RDMA_CM_EVENT_UNREACHABLE, status);
            if id.is_datagram() {
                draft.datagram(&private_data, 0);
            }
            draft
        }
        Kind::Disconnected => {
            let mut state = id.state.lock();
            state.end_reported = true;
            if state.connect_error {
                return None;
            }
            draft(RDMA_CM_EVENT_DISCONNECTED, 0)
        }
        Kind::TimewaitExit => draft(RDMA_CM_EVENT_TIMEWAIT_EXIT, 0),
        Kind::Joined => {
            let membership = membership.as_ref()?;
            // SAFETY: the structure lives with the object.
            let joined = membership.attach(unsafe { (*object.abi()).qp });
            let mut draft = match joined {
                Ok(()) => draft(RDMA_CM_EVENT_MULTICAST_JOIN, 0),
                Err(error) => draft(RDMA_CM_EVENT_MULTICAST_ERROR, -error.0),
            };
            let ud = draft.datagram(&[], 0);
            ud.private_data = membership.context();
            ud.ah_attr = membership.address;
            ud.qp_num = 0x00ff_ffff;
            ud.qkey = RDMA_UDP_QKEY;
            draft
        }
        Kind::User { status, argument } => {
            let mut draft = draft(RDMA_CM_EVENT_USER, status);
            draft.abi.param.arg = argument;
            draft
        }
        Kind::AddressInformation => draft(RDMA_CM_EVENT_ADDRINFO_RESOLVED, 0),
    };
    Some(Object::publish(draft.abi, Told { id, membership, _private_data: draft.private_data }))
}

/// Gives the program the identifier of a request. What belongs to a synchronous listener has a channel of its own.
fn request(channel: *mut rdma_event_channel, listener: &Object<Handle>, child: Arc<Id>) -> Option<Draft> {
    let made = (|| {
        // SAFETY: the structure lives with the object.
        let context = unsafe { (*listener.abi()).context };
        let own = listener.private.is_synchronous();
        let place = if own { create()? } else { channel };
        let pointer = id::publish(child.clone(), place, own, context);
        // SAFETY: just published; find checks the channel.
        unsafe {
            let object = id::find(pointer)?;
            if own {
                child.move_to(Object::<Channel>::find(place)?.private.queue.clone());
            }
            resolve::show_address(object)?;
            resolve::show_route(object)?;
        }
        Ok::<_, Errno>(pointer)
    })();
    match made {
        Ok(pointer) => {
            let mut draft = Draft::new(pointer, RDMA_CM_EVENT_CONNECT_REQUEST, 0);
            draft.abi.listen_id = listener.exposed();
            Some(draft)
        }
        Err(error) => {
            tracing::error!("a connection request is refused: errno {}", error.0);
            match child.exposed() {
                exposed if exposed.is_null() => id::discard(&child),
                // SAFETY: published above; the program has not seen it.
                exposed => _ = unsafe { id::destroy(exposed) },
            }
            None
        }
    }
}

/// The peer has accepted: if the identifier has a queue pair, it becomes ready and the connection is established.
fn response(object: &Object<Handle>) -> Draft {
    let id = &object.private.id;
    // SAFETY: the structure lives with the object.
    if unsafe { (*object.abi()).qp }.is_null() {
        return Draft::new(object.exposed(), RDMA_CM_EVENT_CONNECT_RESPONSE, 0);
    }
    match establish(object) {
        Ok(()) => Draft::new(object.exposed(), RDMA_CM_EVENT_ESTABLISHED, 0),
        Err(error) => {
            id.state.lock().connect_error = true;
            Draft::new(object.exposed(), RDMA_CM_EVENT_CONNECT_ERROR, -error.0)
        }
    }
}

/// Makes the queue pair ready, if there is one, and confirms the connection.
pub fn establish(object: &Object<Handle>) -> Outcome<()> {
    let id = &object.private.id;
    let ready = qp::to_ready(object, None, None).and_then(|()| {
        let _call = id.calls.lock();
        let endpoint = {
            let mut state = id.state.lock();
            if state.phase != Phase::Responded {
                return Err(INVALID);
            }
            // What the peer does next can be heard before the call returns.
            state.phase = Phase::Connected;
            state.endpoint.ok_or(INVALID)?
        };
        daemon::command(Command::Establish { endpoint }).inspect_err(|_| {
            let mut state = id.state.lock();
            if state.phase == Phase::Connected {
                state.phase = Phase::Failed;
            }
        })
    });
    if ready.is_err() {
        qp::to_error(object);
    }
    ready.map(|_| ())
}

/// The end of a call on an identifier: one that has its own channel waits for the event and keeps it in `event`.
pub fn complete(object: &Object<Handle>) -> Outcome<()> {
    let own = object.private.own_channel.load(std::sync::atomic::Ordering::Acquire);
    if own.is_null() {
        return Ok(());
    }
    release_event(object);
    let event = take(own)?;
    // SAFETY: the structure lives with the object, the event until it is acknowledged.
    let (kind, status) = unsafe {
        (*object.abi()).event = event;
        ((*event).event, (*event).status)
    };
    match (kind, status) {
        (_, 0) => Ok(()),
        (RDMA_CM_EVENT_REJECTED, _) => Err(Errno(libc::ECONNREFUSED)),
        (_, status) => Err(Errno(status.saturating_abs())),
    }
}

/// Acknowledges the event that a synchronous identifier keeps.
pub fn release_event(object: &Object<Handle>) {
    // SAFETY: the structure lives with the object; the event is checked.
    unsafe {
        let event = std::mem::replace(&mut (*object.abi()).event, std::ptr::null_mut());
        if !event.is_null() {
            _ = acknowledge(event);
        }
    }
}
