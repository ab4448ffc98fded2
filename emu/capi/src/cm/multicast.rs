//! Multicast groups: a group is an IP group, and its GID is that address (IPv4-mapped for IPv4), as RoCE v2 has it.

use std::ffi::{c_int, c_void};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use device::ids::Gid;
use libc::sockaddr;

use super::address::{read, same_family};
use super::channel::{Kind, complete};
use super::daemon;
use super::id::{Handle, Phase, find};
use crate::abi::cm::*;
use crate::abi::*;
use crate::boundary::{Errno, Outcome, minus_one};
use crate::memory;
use crate::verbs::convert::{INVALID, UNSUPPORTED};
use crate::verbs::device::SendPointer;
use crate::verbs::events::Acknowledgements;
use crate::verbs::handle::Object;
use crate::verbs::multicast::{ibv_attach_mcast, ibv_detach_mcast};

/// Routers that a packet to a group may pass.
const HOP_LIMIT: u8 = 1;

/// An identifier's membership of a group.
pub struct Membership {
    group: SocketAddr,
    send_only: bool,
    context: SendPointer<c_void>,
    /// Of the group, for datagrams to it.
    pub address: ibv_ah_attr,
    /// Events of the group that the program has.
    pub events: Acknowledgements,
    /// The queue pair that hears the group.
    attached: AtomicPtr<ibv_qp>,
    left: AtomicBool,
}

// SAFETY: the pointers are only handed on; what is behind them is checked.
unsafe impl Send for Membership {}
// SAFETY: as above.
unsafe impl Sync for Membership {}

impl Membership {
    /// The program's pointer for the group.
    pub fn context(&self) -> *const c_void {
        self.context.0
    }

    fn gid(&self) -> ibv_gid {
        self.address.grh.dgid
    }

    /// The identifier's queue pair, if it has one, hears the group from now on. Called when the program takes the
    /// event, as librdmacm does it.
    pub(super) fn attach(&self, qp: *mut ibv_qp) -> Outcome<()> {
        if qp.is_null() || self.send_only || self.left.load(Ordering::Acquire) {
            return Ok(());
        }
        let gid = self.gid();
        // SAFETY: the queue pair is checked there.
        match unsafe { ibv_attach_mcast(qp, &raw const gid, 0) } {
            0 => {
                self.attached.store(qp, Ordering::Release);
                Ok(())
            }
            error => Err(Errno(error)),
        }
    }

    /// The queue pair goes: it hears the group no more.
    pub(super) fn detach(&self, qp: *mut ibv_qp) {
        let attached = self.attached.swap(std::ptr::null_mut(), Ordering::AcqRel);
        // A queue pair that the program has exchanged meanwhile left the group with its end.
        if !attached.is_null() && attached == qp {
            let gid = self.gid();
            // SAFETY: the queue pair is checked there.
            _ = unsafe { ibv_detach_mcast(qp, &raw const gid, 0) };
        }
    }

    /// The end of the membership, of an identifier with this queue pair.
    pub(super) fn leave(&self, qp: *mut ibv_qp) {
        self.left.store(true, Ordering::Release);
        self.detach(qp);
    }
}

fn join(object: &Object<Handle>, group: SocketAddr, send_only: bool, context: *mut c_void) -> Outcome<()> {
    let id = &object.private.id;
    let _call = id.calls.lock();
    if !id.is_datagram() {
        return Err(INVALID);
    }
    id.expect(&[Phase::Bound, Phase::AddressResolved, Phase::RouteResolved, Phase::Connected])?;
    let (rail, local, traffic_class) = {
        let state = id.state.lock();
        let local = state.binding.as_ref().ok_or(INVALID)?.address;
        (state.rail.ok_or(Errno(libc::ENODEV))?, local, state.options.tos)
    };
    if !group.ip().is_multicast() || !same_family(group, local) {
        return Err(INVALID);
    }
    let rail = daemon::rails()?.get(rail).ok_or(INVALID)?;
    let own = Gid::from_ip(rail.address());
    let index = rail.device.port().gids.iter().position(|gid| *gid == own).ok_or(INVALID)?;
    let address = ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: Gid::from_ip(group.ip()).0 },
            flow_label: 0,
            sgid_index: u8::try_from(index).map_err(|_| INVALID)?,
            hop_limit: HOP_LIMIT,
            traffic_class,
        },
        dlid: 0,
        sl: 0,
        src_path_bits: 0,
        static_rate: 0,
        is_global: 1,
        port_num: 1,
    };
    let membership = Arc::new(Membership {
        group,
        send_only,
        context: SendPointer(context),
        address,
        events: Acknowledgements::default(),
        attached: AtomicPtr::new(std::ptr::null_mut()),
        left: AtomicBool::new(false),
    });
    id.state.lock().memberships.push(membership.clone());
    _ = id.tell_about(Kind::Joined, Some(membership));
    Ok(())
}

/// rdma_join_multicast(3)
///
/// # Safety
/// The pointers are what the program passed.
pub unsafe extern "C" fn rdma_join_multicast(
    id: *mut rdma_cm_id,
    address: *mut sockaddr,
    context: *mut c_void,
) -> c_int {
    minus_one(|| {
        // SAFETY: find checks the identifier, read the address.
        let (object, group) = unsafe { (find(id)?, read(address)?) };
        join(object, group, false, context)?;
        complete(object)?;
        Ok(0)
    })
}

/// rdma_join_multicast_ex(3)
///
/// # Safety
/// The pointers are what the program passed.
pub unsafe extern "C" fn rdma_join_multicast_ex(
    id: *mut rdma_cm_id,
    attr: *mut rdma_cm_join_mc_attr_ex,
    context: *mut c_void,
) -> c_int {
    minus_one(|| {
        // SAFETY: find checks the identifier, memory and read the other pointers.
        unsafe {
            let object = find(id)?;
            let attr = memory::read(attr)?;
            if attr.comp_mask >= RDMA_CM_JOIN_MC_ATTR_RESERVED {
                return Err(UNSUPPORTED);
            }
            let both = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
            if attr.comp_mask != both || attr.join_flags >= RDMA_MC_JOIN_FLAG_RESERVED {
                return Err(INVALID);
            }
            let send_only = attr.join_flags == RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER;
            join(object, read(attr.addr)?, send_only, context)?;
            complete(object)?;
        }
        Ok(0)
    })
}

/// rdma_leave_multicast(3)
///
/// # Safety
/// The pointers are what the program passed.
pub unsafe extern "C" fn rdma_leave_multicast(id: *mut rdma_cm_id, address: *mut sockaddr) -> c_int {
    minus_one(|| {
        // SAFETY: find checks the identifier, read the address.
        let (object, group) = unsafe { (find(id)?, read(address)?) };
        let id = &object.private.id;
        let membership = {
            let mut state = id.state.lock();
            let same = |ip: IpAddr| ip == group.ip();
            let position = state.memberships.iter().position(|member| same(member.group.ip()));
            position.map(|position| state.memberships.remove(position))
        };
        let membership = membership.ok_or(Errno(libc::EADDRNOTAVAIL))?;
        // SAFETY: the structure lives with the object.
        membership.leave(unsafe { (*object.abi()).qp });
        id.forget_events(&membership);
        membership.events.wait();
        Ok(0)
    })
}
