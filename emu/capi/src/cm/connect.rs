//! Listening, connecting, accepting, rejecting and disconnecting.

use std::ffi::{c_int, c_void};

use device::cm::{Command, Ece, Parameters, Transport};

use super::channel::{self, Kind, complete, establish};
use super::daemon::{self, Failed};
use super::id::{Handle, Id, Phase, find};
use super::{qp, resolve};
use crate::abi::cm::*;
use crate::abi::*;
use crate::boundary::{Errno, Outcome, minus_one};
use crate::memory;
use crate::verbs::convert::INVALID;
use crate::verbs::handle::Object;

/// REJ: the program said no (IBA table 99).
const CONSUMER: u16 = 28;
/// REJ: the program said no to the peer's vendor options.
const VENDOR_OPTION: u16 = 35;
/// SIDR_REP: the program said no (IBA 12.11.2.2).
const SIDR_REJECT: u16 = 2;

/// rdma_listen(3)
///
/// # Safety
/// The pointer is what the program passed.
pub unsafe extern "C" fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int {
    minus_one(|| {
        // SAFETY: find checks the pointer.
        let object = unsafe { find(id)? };
        listen(object, u32::try_from(backlog).unwrap_or(0))?;
        Ok(0)
    })
}

fn listen(object: &Object<Handle>, backlog: u32) -> Outcome<()> {
    let id = &object.private.id;
    let _call = id.calls.lock();
    if id.expect(&[Phase::Idle, Phase::Bound])? == Phase::Idle {
        resolve::bind(object, std::net::SocketAddr::from((std::net::Ipv4Addr::UNSPECIFIED, 0)))?;
    }
    let endpoint = id.endpoint()?;
    {
        let mut state = id.state.lock();
        state.phase = Phase::Listening;
        if let Some(binding) = &mut state.binding {
            binding.backlog = Some(backlog);
        }
    }
    daemon::command(Command::Listen { endpoint, backlog }).inspect_err(|_| {
        let mut state = id.state.lock();
        state.phase = Phase::Bound;
        if let Some(binding) = &mut state.binding {
            binding.backlog = None;
        }
    })
}

/// What the program passes when it connects or accepts, all checked.
struct Wanted {
    private_data: Vec<u8>,
    responder_resources: Option<u8>,
    initiator_depth: Option<u8>,
    flow_control: bool,
    retry_count: u8,
    rnr_retry_count: u8,
    srq: bool,
    /// `None` if there is neither a queue pair nor parameters that name one.
    qpn: Option<u32>,
}

/// # Safety
/// The pointer is what the program passed.
unsafe fn wanted(object: &Object<Handle>, param: *const rdma_conn_param) -> Outcome<Wanted> {
    // SAFETY: the structure lives with the object; memory checks the program's pointers.
    unsafe {
        let pair = qp::facts((*object.abi()).qp)?;
        let mut private_data = object.private.id.state.lock().connect_data.clone();
        let mut out = Wanted {
            private_data: Vec::new(),
            responder_resources: None,
            initiator_depth: None,
            flow_control: false,
            retry_count: 7,
            rnr_retry_count: 7,
            srq: false,
            qpn: None,
        };
        if !param.is_null() {
            let param = memory::read(param)?;
            let length = usize::from(param.private_data_len);
            if !param.private_data.is_null() && length > 0 {
                let mut bytes = vec![0u8; length];
                memory::read_bytes(bytes.as_mut_ptr(), param.private_data.cast(), length)?;
                private_data.extend(bytes);
            }
            let depth = |value: u8, all: u8| match value {
                value if value == all => Ok(None),
                value if value > qp::MAX_DEPTH && object.private.id.space == RDMA_PS_TCP => Err(INVALID),
                value => Ok(Some(value.min(qp::MAX_DEPTH))),
            };
            out.responder_resources = depth(param.responder_resources, RDMA_MAX_RESP_RES)?;
            out.initiator_depth = depth(param.initiator_depth, RDMA_MAX_INIT_DEPTH)?;
            out.flow_control = param.flow_control != 0;
            out.retry_count = param.retry_count.min(7);
            out.rnr_retry_count = param.rnr_retry_count.min(7);
            out.srq = param.srq != 0;
            out.qpn = Some(param.qp_num & 0x00ff_ffff);
        }
        if let Some((number, srq)) = pair {
            out.qpn = Some(number);
            out.srq = srq;
        }
        out.private_data = private_data;
        Ok(out)
    }
}

fn transport(id: &Id) -> Transport {
    match id.qp_type {
        IBV_QPT_UC => Transport::Uc,
        IBV_QPT_XRC_SEND | IBV_QPT_XRC_RECV => Transport::Xrc,
        _ => Transport::Rc,
    }
}

/// rdma_connect(3)
///
/// # Safety
/// The pointers are what the program passed.
pub unsafe extern "C" fn rdma_connect(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
    minus_one(|| {
        // SAFETY: find checks the identifier, wanted the other pointer.
        unsafe {
            let object = find(id)?;
            connect(object, wanted(object, param)?)?;
            complete(object)?;
        }
        Ok(0)
    })
}

fn connect(object: &Object<Handle>, wanted: Wanted) -> Outcome<()> {
    let id = &object.private.id;
    let _call = id.calls.lock();
    id.expect(&[Phase::RouteResolved])?;
    let qpn = match (id.is_datagram(), wanted.qpn) {
        (true, qpn) => qpn.unwrap_or(0),
        (false, qpn) => qpn.ok_or(INVALID)?,
    };
    let endpoint = id.endpoint()?;
    let command = {
        let mut state = id.state.lock();
        let (addresses, path) = (state.addresses.ok_or(INVALID)?, state.path.ok_or(INVALID)?);
        state.responder_resources = wanted.responder_resources.unwrap_or(qp::MAX_DEPTH);
        state.initiator_depth = wanted.initiator_depth.unwrap_or(qp::MAX_DEPTH);
        state.retry_count = wanted.retry_count;
        state.rnr_retry_count = wanted.rnr_retry_count;
        // What follows can be heard before the call returns.
        state.phase = Phase::Connecting;
        match id.is_datagram() {
            true => Command::Resolve { endpoint, addresses, private_data: wanted.private_data, path },
            false => Command::Connect {
                endpoint,
                addresses,
                transport: transport(id),
                parameters: Parameters {
                    qpn,
                    psn: state.psn,
                    responder_resources: state.responder_resources,
                    initiator_depth: state.initiator_depth,
                    flow_control: wanted.flow_control,
                    retry_count: wanted.retry_count,
                    rnr_retry_count: wanted.rnr_retry_count,
                    srq: wanted.srq,
                    ece: state.local_ece,
                    private_data: wanted.private_data,
                },
                path,
            },
        }
    };
    daemon::command(command).inspect_err(|_| {
        let mut state = id.state.lock();
        if state.phase == Phase::Connecting {
            state.phase = Phase::RouteResolved;
        }
    })?;
    id.state.lock().connect_data.clear();
    Ok(())
}

/// rdma_accept(3)
///
/// # Safety
/// The pointers are what the program passed.
pub unsafe extern "C" fn rdma_accept(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
    minus_one(|| {
        // SAFETY: find checks the identifier, wanted the other pointer.
        unsafe {
            let object = find(id)?;
            accept(object, wanted(object, param)?)?;
            if object.private.id.is_datagram() {
                // There is nothing more to come.
                if object.private.is_synchronous() {
                    channel::release_event(object);
                }
            } else {
                complete(object)?;
            }
        }
        Ok(0)
    })
}

fn accept(object: &Object<Handle>, wanted: Wanted) -> Outcome<()> {
    let id = &object.private.id;
    let _call = id.calls.lock();
    id.expect(&[Phase::Requested])?;
    let qpn = wanted.qpn.ok_or(INVALID)?;
    if id.is_datagram() {
        let (endpoint, ece) = {
            let mut state = id.state.lock();
            state.phase = Phase::Connected;
            (state.endpoint.ok_or(INVALID)?, state.local_ece)
        };
        let private_data = wanted.private_data;
        let command = Command::AcceptService { endpoint, qpn, qkey: RDMA_UDP_QKEY, ece, private_data };
        return daemon::command(command).inspect_err(|_| id.state.lock().phase = Phase::Failed);
    }
    // What the peer asks for is the default, as far as the device can.
    let (responder_resources, initiator_depth) = {
        let state = id.state.lock();
        (
            wanted.responder_resources.unwrap_or(state.responder_resources).min(qp::MAX_DEPTH),
            wanted.initiator_depth.unwrap_or(state.initiator_depth).min(qp::MAX_DEPTH),
        )
    };
    // Ready before the peer hears of it: its first message can be here before the command's answer.
    qp::to_ready(object, Some(responder_resources), Some(initiator_depth))?;
    let command = {
        let mut state = id.state.lock();
        if state.phase != Phase::Requested {
            return Err(INVALID);
        }
        state.responder_resources = responder_resources;
        state.initiator_depth = initiator_depth;
        state.phase = Phase::Accepting;
        Command::Accept {
            endpoint: state.endpoint.ok_or(INVALID)?,
            parameters: Parameters {
                qpn,
                psn: state.psn,
                responder_resources,
                initiator_depth,
                flow_control: wanted.flow_control,
                retry_count: 0,
                rnr_retry_count: wanted.rnr_retry_count,
                srq: wanted.srq,
                ece: Ece { vendor_id: state.remote_ece.vendor_id, options: state.local_ece.options },
                private_data: wanted.private_data,
            },
        }
    };
    daemon::command(command).inspect_err(|_| {
        qp::to_error(object);
        let mut state = id.state.lock();
        if state.phase == Phase::Accepting {
            state.phase = Phase::Failed;
        }
    })
}

/// # Safety
/// The pointers are what the program passed.
unsafe fn reject(id: *mut rdma_cm_id, data: *const c_void, length: u8, reason: u16) -> Outcome<c_int> {
    // SAFETY: find checks the identifier, memory the other pointer.
    let (object, private_data) = unsafe {
        let object = find(id)?;
        let mut bytes = vec![0u8; if data.is_null() { 0 } else { length.into() }];
        if !bytes.is_empty() {
            memory::read_bytes(bytes.as_mut_ptr(), data.cast(), bytes.len())?;
        }
        (object, bytes)
    };
    let id = &object.private.id;
    let _call = id.calls.lock();
    id.expect(&[Phase::Requested, Phase::Responded, Phase::Failed])?;
    let endpoint = {
        let mut state = id.state.lock();
        state.phase = Phase::Failed;
        state.endpoint.ok_or(INVALID)?
    };
    let reason = if id.is_datagram() { SIDR_REJECT } else { reason };
    daemon::command(Command::Reject { endpoint, reason, private_data })?;
    Ok(0)
}

/// rdma_reject(3)
///
/// # Safety
/// The pointers are what the program passed.
pub unsafe extern "C" fn rdma_reject(id: *mut rdma_cm_id, data: *const c_void, length: u8) -> c_int {
    // SAFETY: passed on.
    minus_one(|| unsafe { reject(id, data, length, CONSUMER) })
}

/// `rdma_reject_ece` of rdma_cma.h: a refusal with the reason that the options do not suit. It carries none itself.
///
/// # Safety
/// The pointers are what the program passed.
pub unsafe extern "C" fn rdma_reject_ece(id: *mut rdma_cm_id, data: *const c_void, length: u8) -> c_int {
    // SAFETY: passed on.
    minus_one(|| unsafe { reject(id, data, length, VENDOR_OPTION) })
}

/// rdma_establish(3)
///
/// # Safety
/// The pointer is what the program passed.
pub unsafe extern "C" fn rdma_establish(id: *mut rdma_cm_id) -> c_int {
    minus_one(|| {
        // SAFETY: find checks the pointer.
        let object = unsafe { find(id)? };
        // SAFETY: the structure lives with the object.
        let qp = unsafe { (*object.abi()).qp };
        if !qp.is_null() {
            return Err(INVALID);
        }
        establish(object)?;
        Ok(0)
    })
}

/// rdma_notify(3): data arrived before the peer's confirmation.
///
/// # Safety
/// The pointer is what the program passed.
pub unsafe extern "C" fn rdma_notify(id: *mut rdma_cm_id, event: u32) -> c_int {
    minus_one(|| {
        // SAFETY: find checks the pointer.
        let id = &unsafe { find(id)? }.private.id;
        if event != IBV_EVENT_COMM_EST {
            return Err(INVALID);
        }
        let _call = id.calls.lock();
        let endpoint = {
            let state = id.state.lock();
            match state.phase {
                Phase::Accepting => state.endpoint.ok_or(INVALID)?,
                Phase::Connected => return Err(Errno(libc::EISCONN)),
                _ => return Err(INVALID),
            }
        };
        match daemon::ask(Command::Establish { endpoint }) {
            Ok(_) => Ok(0),
            // The confirmation came meanwhile.
            Err(Failed::Refused(_)) if id.state.lock().phase == Phase::Connected => Err(Errno(libc::EISCONN)),
            Err(failed) => Err(failed.errno()),
        }
    })
}

/// rdma_disconnect(3)
///
/// # Safety
/// The pointer is what the program passed.
pub unsafe extern "C" fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int {
    minus_one(|| {
        // SAFETY: find checks the pointer.
        let object = unsafe { find(id)? };
        disconnect(object)?;
        // A synchronous program that has seen the end already, or has nothing to see, would wait for ever.
        let comes = {
            let state = object.private.id.state.lock();
            matches!(state.phase, Phase::Disconnecting | Phase::Disconnected) && !state.end_reported
        };
        if comes {
            complete(object)?;
        }
        Ok(0)
    })
}

fn disconnect(object: &Object<Handle>) -> Outcome<()> {
    let id = &object.private.id;
    // SAFETY: the structure lives with the object.
    if unsafe { (*object.abi()).verbs }.is_null() {
        return Err(INVALID);
    }
    qp::to_error(object);
    let _call = id.calls.lock();
    let endpoint = {
        let mut state = id.state.lock();
        match state.phase {
            // There is no connection that could end.
            Phase::Connected if id.is_datagram() => return Ok(()),
            Phase::Connected | Phase::Accepting | Phase::Responded => state.phase = Phase::Disconnecting,
            // The peer asked first: it gets its answer.
            Phase::Disconnected => {}
            Phase::Connecting | Phase::Requested | Phase::Disconnecting | Phase::Failed => return Ok(()),
            _ => return Err(INVALID),
        }
        state.endpoint
    };
    let asked = match endpoint {
        None => Err(Failed::Daemon(Errno(libc::ECONNRESET))),
        Some(endpoint) => daemon::ask(Command::Disconnect { endpoint }),
    };
    if let Err(failed) = asked {
        tracing::debug!("disconnecting: {failed:?}");
        // Nobody is there who could tell of the end: the daemon that knew the connection is gone.
        let mut state = id.state.lock();
        if state.phase == Phase::Disconnecting {
            state.phase = Phase::Disconnected;
            drop(state);
            _ = id.tell(Kind::Disconnected);
            _ = id.tell(Kind::TimewaitExit);
        }
    }
    Ok(())
}

/// `rdma_set_local_ece` of rdma_cma.h: for queue pairs that the program makes by itself.
///
/// # Safety
/// The pointers are what the program passed.
pub unsafe extern "C" fn rdma_set_local_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    minus_one(|| {
        // SAFETY: find checks the identifier, memory the other pointer; the structure lives with the object.
        unsafe {
            let object = find(id)?;
            let ece = memory::read(ece)?;
            if !(*object.abi()).qp.is_null() || ece.vendor_id == 0 || ece.comp_mask != 0 {
                return Err(INVALID);
            }
            object.private.id.state.lock().local_ece = Ece { vendor_id: ece.vendor_id, options: ece.options };
        }
        Ok(0)
    })
}

/// `rdma_get_remote_ece` of rdma_cma.h
///
/// # Safety
/// The pointers are what the program passed.
pub unsafe extern "C" fn rdma_get_remote_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    minus_one(|| {
        // SAFETY: find checks the identifier, memory the other pointer; the structure lives with the object.
        unsafe {
            let object = find(id)?;
            if !(*object.abi()).qp.is_null() {
                return Err(INVALID);
            }
            let known = object.private.id.state.lock().remote_ece;
            memory::write(ece, ibv_ece { vendor_id: known.vendor_id, options: known.options, comp_mask: 0 })?;
        }
        Ok(0)
    })
}

/// `rdma_write_cm_event` of rdma_cma.h: the program's own event, in its turn among the others.
///
/// # Safety
/// The pointer is what the program passed.
pub unsafe extern "C" fn rdma_write_cm_event(
    id: *mut rdma_cm_id,
    event: u32,
    status: c_int,
    argument: u64,
) -> c_int {
    minus_one(|| {
        // SAFETY: find checks the pointer.
        let object = unsafe { find(id)? };
        if event != RDMA_CM_EVENT_USER {
            return Err(INVALID);
        }
        object.private.id.tell(Kind::User { status, argument }).map_err(|_| INVALID)?;
        Ok(0)
    })
}
