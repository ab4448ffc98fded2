//! The queue pairs, completion queues and shared receive queues of identifiers, and the attributes that make a queue
//! pair ready for its connection.

use std::ffi::c_int;
use std::mem::offset_of;

use device::cm::{Addresses, PathFacts};
use device::ids::Gid;
use device::verbs::limits;

use super::daemon;
use super::id::{Handle, Id, find};
use crate::abi::cm::*;
use crate::abi::*;
use crate::boundary::{Errno, Outcome, last_errno, minus_one, nothing};
use crate::memory;
use crate::verbs::completion::{
    ibv_create_comp_channel, ibv_create_cq, ibv_destroy_comp_channel, ibv_destroy_cq,
};
use crate::verbs::convert::{INVALID, UNSUPPORTED};
use crate::verbs::handle::Object;
use crate::verbs::queue_pair::{Pair, create_qp_ex, ibv_create_qp, ibv_destroy_qp, ibv_modify_qp};
use crate::verbs::shared::{create_srq_ex, ibv_create_srq, ibv_destroy_srq};

/// READs and atomics that the device serves or asks for at once.
pub const MAX_DEPTH: u8 = limits::MAX_RD_ATOMIC;

/// The number of a queue pair, and whether it has a shared receive queue. `None` for null; a pointer to what is no
/// queue pair is `EINVAL`.
pub(super) fn facts(qp: *mut ibv_qp) -> Outcome<Option<(u32, bool)>> {
    if qp.is_null() {
        return Ok(None);
    }
    // SAFETY: find checks the pointer; the structure lives with the object.
    unsafe {
        let base = &raw const (*Object::<Pair>::find(qp)?.abi()).qp_base;
        Ok(Some(((*base).qp_num, !(*base).srq.is_null())))
    }
}

fn peer_address(addresses: &Addresses, path: &PathFacts, rail: usize) -> Outcome<ibv_ah_attr> {
    let rails = daemon::rails()?;
    let device = &rails.get(rail).ok_or(INVALID)?.device;
    let own = Gid::from_ip(addresses.local_device);
    let index = device.port().gids.iter().position(|gid| *gid == own).ok_or(INVALID)?;
    Ok(ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: Gid::from_ip(addresses.peer_device).0 },
            flow_label: path.flow_label,
            sgid_index: u8::try_from(index).map_err(|_| INVALID)?,
            hop_limit: path.hop_limit,
            traffic_class: path.traffic_class,
        },
        dlid: 0,
        sl: path.sl,
        src_path_bits: 0,
        static_rate: 0,
        is_global: 1,
        port_num: 1,
    })
}

/// Where the peer is.
pub fn address_of_peer(id: &Id) -> Outcome<ibv_ah_attr> {
    let state = id.state.lock();
    let (addresses, path) = (state.addresses.ok_or(INVALID)?, state.path.ok_or(INVALID)?);
    peer_address(&addresses, &path, state.rail.ok_or(INVALID)?)
}

/// What the connection asks of a queue pair for its way to a state (IBA 12.9.7 and 11.2.5.2).
fn attributes(id: &Id, target: u32) -> Outcome<(ibv_qp_attr, u32)> {
    let state = id.state.lock();
    let rail = state.rail.ok_or(INVALID)?;
    // SAFETY: plain numbers, for which zero is a value.
    let mut attr: ibv_qp_attr = unsafe { std::mem::zeroed() };
    attr.qp_state = target;
    attr.port_num = 1;
    let reliable = id.qp_type != IBV_QPT_UC;
    let mut mask = IBV_QP_STATE;
    match target {
        IBV_QPS_INIT => {
            mask |= IBV_QP_PKEY_INDEX | IBV_QP_PORT;
            if id.is_datagram() {
                mask |= IBV_QP_QKEY;
                attr.qkey = RDMA_UDP_QKEY;
            } else {
                mask |= IBV_QP_ACCESS_FLAGS;
                // Only once it is known what the peer may do.
                if state.remote.is_some() {
                    attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
                    if state.responder_resources > 0 {
                        attr.qp_access_flags |= IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
                    }
                }
            }
        }
        IBV_QPS_RTR => {
            let (addresses, path) = (state.addresses.ok_or(INVALID)?, state.path.ok_or(INVALID)?);
            let remote = state.remote.ok_or(INVALID)?;
            mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
            attr.ah_attr = peer_address(&addresses, &path, rail)?;
            attr.path_mtu = path.mtu.into();
            attr.dest_qp_num = remote.qpn;
            // Each end announces the PSN with which the other is to begin (IBA 12.7.31).
            attr.rq_psn = state.psn;
            if reliable {
                mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
                attr.max_dest_rd_atomic = state.responder_resources.min(MAX_DEPTH);
            }
        }
        IBV_QPS_RTS => {
            let path = state.path.ok_or(INVALID)?;
            let remote = state.remote.ok_or(INVALID)?;
            mask |= IBV_QP_SQ_PSN;
            attr.sq_psn = remote.psn;
            if reliable {
                mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
                attr.timeout = state.options.ack_timeout.unwrap_or(path.ack_timeout);
                attr.retry_cnt = state.retry_count;
                attr.rnr_retry = state.rnr_retry_count;
                attr.max_rd_atomic = state.initiator_depth.min(MAX_DEPTH);
            }
        }
        _ => return Err(INVALID),
    }
    Ok((attr, mask))
}

/// rdma_init_qp_attr(3)
///
/// # Safety
/// The pointers are what the program passed.
pub unsafe extern "C" fn rdma_init_qp_attr(
    id: *mut rdma_cm_id,
    attr: *mut ibv_qp_attr,
    mask: *mut c_int,
) -> c_int {
    minus_one(|| {
        // The structure grew at its end; what the connection asks for is in front of that.
        const SIZE: usize = offset_of!(ibv_qp_attr, rate_limit);
        // SAFETY: find checks the identifier, memory the other pointers.
        unsafe {
            let object = find(id)?;
            let wanted = memory::read_prefix(attr, size_of::<u32>())?.qp_state;
            let (known, known_mask) = attributes(&object.private.id, wanted)?;
            memory::write_sized(attr.cast(), known, SIZE)?;
            memory::write(mask, known_mask.cast_signed())?;
        }
        Ok(0)
    })
}

fn modify(qp: *mut ibv_qp, attr: &mut ibv_qp_attr, mask: u32) -> Outcome<()> {
    // SAFETY: the queue pair is checked there; the attributes are ours.
    match unsafe { ibv_modify_qp(qp, attr, mask.cast_signed()) } {
        0 => Ok(()),
        error => Err(Errno(error)),
    }
}

/// Takes the queue pair of an identifier, if it has one, to RTS. The depths are the program's, or else the peer's.
pub fn to_ready(
    object: &Object<Handle>,
    responder_resources: Option<u8>,
    initiator_depth: Option<u8>,
) -> Outcome<()> {
    // SAFETY: the structure lives with the object.
    let qp = unsafe { (*object.abi()).qp };
    if qp.is_null() {
        return Ok(());
    }
    let id = &object.private.id;
    let (mut attr, mask) = attributes(id, IBV_QPS_INIT)?;
    modify(qp, &mut attr, mask)?;
    let (mut attr, mask) = attributes(id, IBV_QPS_RTR)?;
    if let Some(resources) = responder_resources {
        attr.max_dest_rd_atomic = resources;
    }
    modify(qp, &mut attr, mask)?;
    let (mut attr, mask) = attributes(id, IBV_QPS_RTS)?;
    if let Some(depth) = initiator_depth {
        attr.max_rd_atomic = depth;
    }
    modify(qp, &mut attr, mask)
}

/// Takes the queue pair of an identifier, if it has one, to ERR.
pub fn to_error(object: &Object<Handle>) {
    // SAFETY: the structure lives with the object.
    let qp = unsafe { (*object.abi()).qp };
    if !qp.is_null() {
        // SAFETY: plain numbers, for which zero is a value.
        let mut attr: ibv_qp_attr = unsafe { std::mem::zeroed() };
        attr.qp_state = IBV_QPS_ERR;
        _ = modify(qp, &mut attr, IBV_QP_STATE);
    }
}

fn or_errno<T>(made: *mut T) -> Outcome<*mut T> {
    if made.is_null() { Err(last_errno()) } else { Ok(made) }
}

/// Makes the completion queues that the program does not bring, each with a channel.
fn create_queues(object: &Object<Handle>, send: u32, receive: u32) -> Outcome<()> {
    let abi = object.abi();
    let size = |entries: u32| c_int::try_from(entries).map_err(|_| INVALID);
    // SAFETY: the structure lives with the object; what is made is checked.
    let made = (|| unsafe {
        if receive > 0 {
            (*abi).recv_cq_channel = or_errno(ibv_create_comp_channel((*abi).verbs))?;
            let channel = (*abi).recv_cq_channel;
            let context = object.exposed().cast();
            (*abi).recv_cq = or_errno(ibv_create_cq((*abi).verbs, size(receive)?, context, channel, 0))?;
        }
        if send > 0 {
            (*abi).send_cq_channel = or_errno(ibv_create_comp_channel((*abi).verbs))?;
            let channel = (*abi).send_cq_channel;
            let context = object.exposed().cast();
            (*abi).send_cq = or_errno(ibv_create_cq((*abi).verbs, size(send)?, context, channel, 0))?;
        }
        Ok(())
    })();
    if made.is_err() {
        destroy_queues(object);
    }
    made
}

/// Destroys the identifier's own completion queues and their channels.
fn destroy_queues(object: &Object<Handle>) {
    let abi = object.abi();
    // SAFETY: the structure lives with the object; what is in it is checked.
    unsafe {
        let queues = [(*abi).recv_cq, (*abi).send_cq];
        let channels = [(*abi).recv_cq_channel, (*abi).send_cq_channel];
        (*abi).recv_cq = std::ptr::null_mut();
        (*abi).send_cq = std::ptr::null_mut();
        (*abi).recv_cq_channel = std::ptr::null_mut();
        (*abi).send_cq_channel = std::ptr::null_mut();
        // Programs share one queue for both by copying the pointer.
        for (number, queue) in queues.into_iter().enumerate() {
            if !queue.is_null() && !queues[..number].contains(&queue) {
                ibv_destroy_cq(queue);
            }
        }
        for (number, channel) in channels.into_iter().enumerate() {
            if !channel.is_null() && !channels[..number].contains(&channel) {
                ibv_destroy_comp_channel(channel);
            }
        }
    }
}

/// Prepares the completion queues and the rest of what a new queue pair needs, makes it by `make`, and takes it to
/// INIT, or to RTS for datagrams.
fn create(
    object: &Object<Handle>,
    attr: &mut ibv_qp_init_attr,
    pd: *mut ibv_pd,
    make: impl FnOnce(&mut ibv_qp_init_attr, *mut ibv_pd) -> *mut ibv_qp,
) -> Outcome<()> {
    let abi = object.abi();
    // SAFETY: the structure lives with the object; pointers in it are checked where they are used.
    unsafe {
        if !(*abi).qp.is_null() || (*abi).verbs.is_null() {
            return Err(INVALID);
        }
        let pd = if pd.is_null() { (*abi).pd } else { pd };
        let domain = crate::verbs::region::domain(pd)?;
        if (*domain.abi()).context != (*abi).verbs {
            return Err(INVALID);
        }
        for (own, given) in [((*abi).recv_cq, attr.recv_cq), ((*abi).send_cq, attr.send_cq)] {
            if !own.is_null() && !given.is_null() && own != given {
                return Err(INVALID);
            }
        }
        let missing = |own: *mut ibv_cq, given: *mut ibv_cq, size: u32| match own.is_null() && given.is_null()
        {
            true => size,
            false => 0,
        };
        let send = missing((*abi).send_cq, attr.send_cq, attr.cap.max_send_wr);
        let receive = missing((*abi).recv_cq, attr.recv_cq, attr.cap.max_recv_wr);
        create_queues(object, send, receive)?;
        if attr.send_cq.is_null() {
            attr.send_cq = (*abi).send_cq;
        }
        if attr.recv_cq.is_null() {
            attr.recv_cq = (*abi).recv_cq;
        }
        if attr.srq.is_null() {
            attr.srq = (*abi).srq;
        }
        let made = or_errno(make(attr, pd)).and_then(|qp| {
            initialise(&object.private.id, qp).map(|()| qp).inspect_err(|_| _ = ibv_destroy_qp(qp))
        });
        match made {
            Ok(qp) => {
                (*abi).pd = pd;
                (*abi).qp = qp;
                Ok(())
            }
            Err(error) => {
                destroy_queues(object);
                Err(error)
            }
        }
    }
}

fn initialise(id: &Id, qp: *mut ibv_qp) -> Outcome<()> {
    let (mut attr, mask) = attributes(id, IBV_QPS_INIT)?;
    modify(qp, &mut attr, mask)?;
    if id.is_datagram() {
        attr.qp_state = IBV_QPS_RTR;
        modify(qp, &mut attr, IBV_QP_STATE)?;
        attr.qp_state = IBV_QPS_RTS;
        attr.sq_psn = 0;
        modify(qp, &mut attr, IBV_QP_STATE | IBV_QP_SQ_PSN)?;
    }
    Ok(())
}

/// Makes a queue pair with the library's own copy of the attributes, which is updated.
pub fn create_pair(object: &Object<Handle>, pd: *mut ibv_pd, attr: &mut ibv_qp_init_attr) -> Outcome<()> {
    // SAFETY: the domain and what is in the attributes is checked there.
    create(object, attr, pd, |attr, pd| unsafe { ibv_create_qp(pd, attr) })
}

/// rdma_create_qp(3)
///
/// # Safety
/// The pointers are what the program passed.
pub unsafe extern "C" fn rdma_create_qp(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> c_int {
    minus_one(|| {
        // SAFETY: find checks the identifier, memory the other pointer.
        unsafe {
            let object = find(id)?;
            let mut own = memory::read(attr)?;
            create_pair(object, pd, &mut own)?;
            _ = memory::write(attr, own);
        }
        Ok(0)
    })
}

/// `rdma_create_qp_ex` of rdma_cma.h
///
/// # Safety
/// The pointers are what the program passed.
pub unsafe extern "C" fn rdma_create_qp_ex(id: *mut rdma_cm_id, attr: *mut ibv_qp_init_attr_ex) -> c_int {
    minus_one(|| {
        // SAFETY: find checks the identifier, memory the other pointer. What the program's structure does not have is
        // not looked at: the mask says what it has.
        unsafe {
            let object = find(id)?;
            let mut own = memory::read_prefix(attr, offset_of!(ibv_qp_init_attr_ex, create_flags))?;
            if own.comp_mask & !IBV_QP_INIT_ATTR_PD != 0 {
                own = memory::read(attr)?;
            }
            let pd = match own.comp_mask & IBV_QP_INIT_ATTR_PD {
                0 => std::ptr::null_mut(),
                _ => own.pd,
            };
            // Both structures begin alike.
            let mut plain = memory::read((&raw const own).cast::<ibv_qp_init_attr>())?;
            create(object, &mut plain, pd, |plain, pd| {
                own.send_cq = plain.send_cq;
                own.recv_cq = plain.recv_cq;
                own.srq = plain.srq;
                own.pd = pd;
                own.comp_mask |= IBV_QP_INIT_ATTR_PD;
                let made = create_qp_ex((*object.abi()).verbs, &mut own);
                plain.cap = own.cap;
                made
            })?;
            _ = memory::write(attr.cast::<ibv_qp_init_attr>(), plain);
            _ = memory::write((&raw mut (*attr).comp_mask).cast(), own.comp_mask);
            _ = memory::write((&raw mut (*attr).pd).cast(), own.pd);
        }
        Ok(0)
    })
}

/// rdma_destroy_qp(3)
///
/// # Safety
/// The pointer is what the program passed.
pub unsafe extern "C" fn rdma_destroy_qp(id: *mut rdma_cm_id) {
    nothing(|| {
        // SAFETY: find checks the pointer.
        destroy_pair(unsafe { find(id)? });
        Ok(())
    });
}

/// Destroys the identifier's queue pair and what was made for it.
pub fn destroy_pair(object: &Object<Handle>) {
    // SAFETY: the structure lives with the object; the queue pair is checked.
    unsafe {
        let qp = std::mem::replace(&mut (*object.abi()).qp, std::ptr::null_mut());
        if !qp.is_null() {
            // A member of groups cannot be destroyed.
            let memberships = object.private.id.state.lock().memberships.clone();
            memberships.iter().for_each(|membership| membership.detach(qp));
            ibv_destroy_qp(qp);
        }
    }
    destroy_queues(object);
}

/// `rdma_create_srq_ex` of rdma_cma.h
///
/// # Safety
/// The pointers are what the program passed.
pub unsafe extern "C" fn rdma_create_srq_ex(id: *mut rdma_cm_id, attr: *mut ibv_srq_init_attr_ex) -> c_int {
    minus_one(|| {
        // SAFETY: find checks the identifier, memory the other pointer.
        unsafe {
            let object = find(id)?;
            let abi = object.abi();
            let mut own = memory::read_prefix(attr, offset_of!(ibv_srq_init_attr_ex, xrcd))?;
            if own.comp_mask & IBV_SRQ_INIT_ATTR_TYPE == 0 || (*abi).verbs.is_null() {
                return Err(INVALID);
            }
            if own.srq_type != IBV_SRQT_BASIC {
                return Err(UNSUPPORTED);
            }
            if own.comp_mask & IBV_SRQ_INIT_ATTR_PD == 0 || own.pd.is_null() {
                own.pd = (*abi).pd;
                own.comp_mask |= IBV_SRQ_INIT_ATTR_PD;
            }
            let srq = or_errno(create_srq_ex((*abi).verbs, &mut own))?;
            if (*abi).pd.is_null() {
                (*abi).pd = own.pd;
            }
            (*abi).srq = srq;
            _ = memory::write((&raw mut (*attr).attr).cast(), own.attr);
        }
        Ok(0)
    })
}

/// rdma_create_srq(3)
///
/// # Safety
/// The pointers are what the program passed.
pub unsafe extern "C" fn rdma_create_srq(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: *mut ibv_srq_init_attr,
) -> c_int {
    minus_one(|| {
        // SAFETY: find checks the identifier, memory the other pointer.
        unsafe {
            let object = find(id)?;
            let abi = object.abi();
            if object.private.id.qp_type == IBV_QPT_XRC_RECV {
                return Err(UNSUPPORTED);
            }
            let mut own = memory::read(attr)?;
            let pd = if pd.is_null() { (*abi).pd } else { pd };
            let srq = or_errno(ibv_create_srq(pd, &mut own))?;
            if (*abi).pd.is_null() {
                (*abi).pd = pd;
            }
            (*abi).srq = srq;
            _ = memory::write(attr, own);
        }
        Ok(0)
    })
}

/// rdma_destroy_srq(3)
///
/// # Safety
/// The pointer is what the program passed.
pub unsafe extern "C" fn rdma_destroy_srq(id: *mut rdma_cm_id) {
    nothing(|| {
        // SAFETY: find checks the pointer.
        destroy_shared(unsafe { find(id)? });
        Ok(())
    });
}

/// Destroys the identifier's shared receive queue.
pub fn destroy_shared(object: &Object<Handle>) {
    // SAFETY: the structure lives with the object; the queue is checked.
    unsafe {
        let srq = std::mem::replace(&mut (*object.abi()).srq, std::ptr::null_mut());
        if !srq.is_null() {
            ibv_destroy_srq(srq);
        }
    }
    destroy_queues(object);
}
