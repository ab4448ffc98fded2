//! Endpoints: identifiers with all that belongs to them, made and destroyed in one call.

use std::ffi::c_int;

use libc::sockaddr;

use super::address::read;
use super::channel::{self, complete, release_event, take};
use super::id::{self, find};
use super::{qp, resolve};
use crate::abi::cm::*;
use crate::abi::*;
use crate::boundary::{Errno, Outcome, minus_one, nothing};
use crate::memory;
use crate::verbs::convert::INVALID;
use crate::verbs::device::SendPointer;
use crate::verbs::handle::Object;

/// The most private data that `ai_connect` can put in front of the program's.
const MAX_CONNECT_DATA: usize = 255;

/// rdma_create_ep(3)
///
/// # Safety
/// The pointers are what the program passed.
pub unsafe extern "C" fn rdma_create_ep(
    id: *mut *mut rdma_cm_id,
    information: *mut rdma_addrinfo,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> c_int {
    minus_one(|| {
        // SAFETY: memory checks the pointers.
        unsafe {
            memory::write(id, std::ptr::null_mut())?;
            let information = memory::read(information)?;
            let space = information.ai_port_space.cast_unsigned();
            if ![RDMA_PS_TCP, RDMA_PS_UDP, RDMA_PS_IB, RDMA_PS_IPOIB].contains(&space) {
                return Err(INVALID);
            }
            // As the kernel has it: only the port space of InfiniBand leaves the service open.
            let qp_type = match space {
                RDMA_PS_UDP | RDMA_PS_IPOIB => IBV_QPT_UD,
                RDMA_PS_TCP => IBV_QPT_RC,
                _ => information.ai_qp_type.cast_unsigned(),
            };
            let made = id::create(std::ptr::null_mut(), std::ptr::null_mut(), space, qp_type)?;
            let filled = fill(made, &information, pd, attr).and_then(|()| memory::write(id, made));
            if let Err(error) = filled {
                destroy(made);
                return Err(error);
            }
        }
        Ok(0)
    })
}

/// # Safety
/// `pointer` is an identifier; the others are what the program passed.
unsafe fn fill(
    pointer: *mut rdma_cm_id,
    information: &rdma_addrinfo,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> Outcome<()> {
    let address = |from: *mut sockaddr| match from.is_null() {
        true => Ok(None),
        // SAFETY: memory checks the pointer.
        false => unsafe { read(from) }.map(Some),
    };
    // SAFETY: find checks the identifier, memory the program's pointers; the structure lives with the object.
    unsafe {
        let object = find(pointer)?;
        let source = address(information.ai_src_addr)?;
        let mut init = match attr.is_null() {
            true => None,
            false => Some(memory::read(attr)?),
        };
        if let Some(init) = &mut init {
            init.qp_type = information.ai_qp_type.cast_unsigned();
        }
        if information.ai_flags & RAI_PASSIVE != 0 {
            {
                let _call = object.private.id.calls.lock();
                resolve::bind(object, source.ok_or(INVALID)?)?;
            }
            if !pd.is_null() {
                (*object.abi()).pd = pd;
            }
            *object.private.qp_init.lock() = init.map(|init| SendPointer(Box::into_raw(Box::new(init))));
            return Ok(());
        }
        resolve::resolve_address(object, source, address(information.ai_dst_addr)?.ok_or(INVALID)?)?;
        complete(object)?;
        match information.ai_route_len {
            0 => resolve::resolve_route(object)?,
            length => resolve::set_path(object, information.ai_route, length)?,
        }
        complete(object)?;
        if let Some(init) = &mut init {
            qp::create_pair(object, pd, init)?;
            _ = memory::write(attr, *init);
        }
        if information.ai_connect_len > 0 {
            if information.ai_connect_len > MAX_CONNECT_DATA {
                return Err(INVALID);
            }
            let mut bytes = vec![0u8; information.ai_connect_len];
            memory::read_bytes(bytes.as_mut_ptr(), information.ai_connect.cast(), bytes.len())?;
            object.private.id.state.lock().connect_data = bytes;
        }
    }
    Ok(())
}

/// # Safety
/// The pointer is what the program passed.
unsafe fn destroy(pointer: *mut rdma_cm_id) {
    // SAFETY: find checks the pointer; the structure lives with the object.
    unsafe {
        if let Ok(object) = find(pointer) {
            if !(*object.abi()).qp.is_null() {
                qp::destroy_pair(object);
            }
            if !(*object.abi()).srq.is_null() {
                qp::destroy_shared(object);
            }
            _ = id::destroy(pointer);
        }
    }
}

/// rdma_destroy_ep(3)
///
/// # Safety
/// The pointer is what the program passed.
pub unsafe extern "C" fn rdma_destroy_ep(id: *mut rdma_cm_id) {
    nothing(|| {
        // SAFETY: passed on.
        unsafe { destroy(id) };
        Ok(())
    });
}

/// rdma_get_request(3)
///
/// # Safety
/// The pointers are what the program passed.
pub unsafe extern "C" fn rdma_get_request(listener: *mut rdma_cm_id, id: *mut *mut rdma_cm_id) -> c_int {
    minus_one(|| {
        // SAFETY: find checks the listener, memory the other pointer; events live until they are acknowledged.
        unsafe {
            let object = find(listener)?;
            memory::write(id, std::ptr::null_mut())?;
            let own = object.private.own_channel.load(std::sync::atomic::Ordering::Acquire);
            if own.is_null() {
                return Err(INVALID);
            }
            release_event(object);
            let event = take(own)?;
            let kind = (*event).event;
            let refused = match (kind, (*event).status) {
                (RDMA_CM_EVENT_REJECTED, _) => Some(Errno(libc::ECONNREFUSED)),
                (_, status) if status != 0 => Some(Errno(status.saturating_abs())),
                (RDMA_CM_EVENT_CONNECT_REQUEST, _) => None,
                _ => Some(INVALID),
            };
            if let Some(error) = refused {
                (*object.abi()).event = event;
                return Err(error);
            }
            let child: &Object<id::Handle> = find((*event).id)?;
            let init = object.private.qp_init.lock().as_ref().map(|init| *init.0);
            if let Some(mut init) = init
                && let Err(error) = qp::create_pair(child, (*object.abi()).pd, &mut init)
            {
                // The program never sees the identifier.
                _ = channel::acknowledge(event);
                _ = id::destroy(child.exposed());
                return Err(error);
            }
            (*child.abi()).event = event;
            memory::write(id, child.exposed())?;
        }
        Ok(0)
    })
}
