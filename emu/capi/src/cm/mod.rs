//! librdmacm's names.
//!
//! The connection manager itself, with its state machines and MADs, is the daemon's; see `urxe::cm`. Here is what the
//! program sees of it: identifiers, event channels, and the resolution of addresses, which needs no messages.
//!
//! | module | what it is |
//! |---|---|
//! | [`id`] | identifiers, their options and their end |
//! | [`channel`] | event channels; what happened becomes what the program sees |
//! | [`address`] | socket addresses, and which device leads where |
//! | [`resolve`] | binding, and resolving addresses and routes |
//! | [`connect`] | listening, connecting, accepting, rejecting, disconnecting |
//! | [`qp`] | the queue pairs of identifiers |
//! | [`endpoint`] | `rdma_create_ep` and its kin |
//! | [`addrinfo`] | `rdma_getaddrinfo` and its kin |
//! | [`multicast`] | groups |
//! | [`registry`] | whose the daemon's endpoints are |
//! | [`daemon`] | devices, and asking the daemon |
//! | [`unsupported`] | the sockets, which are not there |
//!
//! Nothing here waits for the daemon while it holds what the thread needs that hears the daemon: an identifier's state
//! is only looked at between calls.

use std::sync::Arc;

use device::cm::{Command, Event, EventKind};

use self::channel::Kind;
use self::id::{Id, Phase, Remote};

pub mod address;
pub mod addrinfo;
pub mod channel;
pub mod connect;
pub mod daemon;
pub mod endpoint;
pub mod id;
pub mod multicast;
pub mod qp;
pub mod registry;
pub mod resolve;
pub mod unsupported;

/// An event of the connection manager. Called on the thread that hears the daemon, so it asks the daemon nothing.
pub fn dispatch(event: Event) {
    match event.kind {
        EventKind::Request { listener, addresses, transport: _, parameters, path } => {
            request(event.endpoint, listener, |child| {
                let mut state = child.state.lock();
                state.rail = rail(addresses.local_device);
                state.addresses = Some(addresses);
                state.path = Some(path);
                state.remote = Some(Remote { qpn: parameters.qpn, psn: parameters.psn });
                state.responder_resources = parameters.initiator_depth;
                state.initiator_depth = parameters.responder_resources;
                state.retry_count = parameters.retry_count;
                state.rnr_retry_count = parameters.rnr_retry_count;
                state.remote_ece = parameters.ece;
                Kind::Request { child: child.clone(), parameters }
            });
        }
        EventKind::ServiceRequest { listener, addresses, private_data, path } => {
            request(event.endpoint, listener, |child| {
                let mut state = child.state.lock();
                state.rail = rail(addresses.local_device);
                state.addresses = Some(addresses);
                state.path = Some(path);
                Kind::ServiceRequest { child: child.clone(), private_data }
            });
        }
        kind => {
            if let Some(id) = registry::find(event.endpoint)
                && let Some(kind) = advance(&id, kind)
            {
                // Destroyed meanwhile: nobody wants to know.
                _ = id.tell(kind);
            }
        }
    }
}

/// The device of an address. It is known: requests come for the devices that the listener named.
fn rail(device: std::net::IpAddr) -> Option<usize> {
    daemon::rails().ok()?.iter().position(|rail| rail.address() == device)
}

/// A request makes an identifier, which the program gets with the event.
fn request(
    endpoint: device::cm::Endpoint,
    listener: device::cm::Endpoint,
    fill: impl FnOnce(&Arc<Id>) -> Kind,
) {
    let Some(listener) = registry::find(listener) else {
        return refuse(endpoint);
    };
    let child = Id::new(listener.space, listener.qp_type, listener.queue());
    {
        let options = listener.state.lock().options;
        let mut state = child.state.lock();
        state.phase = Phase::Requested;
        state.options = options;
    }
    let kind = fill(&child);
    child.adopt(endpoint);
    if listener.tell(kind).is_err() {
        registry::remove(endpoint);
        refuse(endpoint);
    }
}

/// The listener is gone while the request was on its way.
fn refuse(endpoint: device::cm::Endpoint) {
    elsewhere(move || {
        _ = daemon::command(Command::Destroy { endpoint });
    });
}

/// How an event changes an identifier, and what the program is told.
fn advance(id: &Arc<Id>, kind: EventKind) -> Option<Kind> {
    let mut state = id.state.lock();
    match (state.phase, kind) {
        (Phase::Requested, _) => {
            // As the kernel has it: the program learns of it when it accepts.
            state.phase = Phase::Failed;
            None
        }
        (Phase::Connecting, EventKind::Response { parameters }) => {
            state.phase = Phase::Responded;
            state.remote = Some(Remote { qpn: parameters.qpn, psn: parameters.psn });
            state.responder_resources = parameters.initiator_depth;
            state.initiator_depth = parameters.responder_resources;
            state.rnr_retry_count = parameters.rnr_retry_count;
            state.remote_ece = parameters.ece;
            Some(Kind::Response(parameters))
        }
        (Phase::Accepting, EventKind::Established { .. }) => {
            state.phase = Phase::Connected;
            Some(Kind::Established)
        }
        (Phase::Connecting, EventKind::ServiceResolved { qpn, qkey, ece, private_data }) => {
            state.phase = Phase::Connected;
            state.remote_ece = ece;
            Some(Kind::ServiceResolved { qpn, qkey, private_data })
        }
        (
            Phase::Connecting | Phase::Responded | Phase::Accepting,
            EventKind::Rejected { reason, private_data },
        ) => {
            state.phase = Phase::Failed;
            Some(match id.is_datagram() {
                true => Kind::Unreachable { status: reason.into(), private_data },
                false => Kind::Rejected { reason, private_data },
            })
        }
        // The queue pair was ready before the peer changed its mind.
        (Phase::Connected, EventKind::Rejected { reason, private_data }) => {
            state.phase = Phase::Disconnected;
            Some(Kind::Rejected { reason, private_data })
        }
        (Phase::Connecting | Phase::Responded | Phase::Accepting, EventKind::Unreachable) => {
            state.phase = Phase::Failed;
            Some(Kind::Unreachable { status: -libc::ETIMEDOUT, private_data: Vec::new() })
        }
        (
            Phase::Responded | Phase::Accepting | Phase::Connected | Phase::Disconnecting,
            EventKind::Disconnected { .. },
        ) => {
            state.phase = Phase::Disconnected;
            Some(Kind::Disconnected)
        }
        (Phase::Disconnected | Phase::Failed, EventKind::TimewaitExit) => Some(Kind::TimewaitExit),
        (phase, kind) => {
            tracing::debug!("an identifier that is {phase:?} ignores {kind:?}");
            None
        }
    }
}

/// The daemon is gone, and with it all endpoints. What is connected stays connected; who waits for an answer waits in
/// vain.
pub fn lost() {
    for id in registry::drain() {
        let told = {
            let mut state = id.state.lock();
            state.endpoint = None;
            match state.phase {
                Phase::Connecting | Phase::Responded | Phase::Accepting => {
                    state.phase = Phase::Failed;
                    Some(Kind::Unreachable { status: -libc::ETIMEDOUT, private_data: Vec::new() })
                }
                Phase::Disconnecting => {
                    state.phase = Phase::Disconnected;
                    Some(Kind::Disconnected)
                }
                Phase::Requested => {
                    state.phase = Phase::Failed;
                    None
                }
                Phase::Bound | Phase::AddressResolved | Phase::RouteResolved | Phase::Listening => {
                    STRANDED.lock().push(Arc::downgrade(&id));
                    None
                }
                _ => None,
            }
        };
        if let Some(kind) = told {
            _ = id.tell(kind);
        }
    }
}

/// Identifiers that had a port when the daemon died.
static STRANDED: parking_lot::Mutex<Vec<std::sync::Weak<Id>>> = parking_lot::Mutex::new(Vec::new());

/// A daemon is there again: ports are taken again, and who listened listens.
pub fn restored() {
    let stranded = std::mem::take(&mut *STRANDED.lock());
    if stranded.is_empty() {
        return;
    }
    elsewhere(move || {
        for id in stranded.iter().filter_map(std::sync::Weak::upgrade) {
            let _call = id.calls.lock();
            if id.state.lock().phase == Phase::Closed {
                continue;
            }
            if let Err(error) = id.endpoint() {
                let binding = id.state.lock().binding.clone();
                let address = binding.map(|binding| binding.address);
                tracing::error!("{address:?} cannot be bound at the new daemon: errno {}", error.0);
            }
        }
    });
}

/// Does what the thread that hears the daemon must not do, because it asks the daemon.
fn elsewhere(work: impl FnOnce() + Send + 'static) {
    // SAFETY: plain signal sets. The program's signals are not for this thread.
    let before = unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        for fault in [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL] {
            libc::sigdelset(&mut all, fault);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        before
    };
    let builder = std::thread::Builder::new().name("urxe-cm".into()).stack_size(128 << 10);
    let spawned = builder.spawn(|| {
        crate::boundary::nothing(|| {
            work();
            Ok(())
        })
    });
    // SAFETY: as above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut()) };
    if let Err(error) = spawned {
        tracing::error!("no thread to tidy up after the connection manager: {error}");
    }
}
