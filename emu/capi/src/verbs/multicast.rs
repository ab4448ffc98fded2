//! Multicast groups.

use std::ffi::c_int;

use device::config::LinkLayer;
use device::device::multicast::GroupError;
use device::ids::Gid;

use super::convert::INVALID;
use super::handle::Object;
use super::queue_pair::Pair;
use crate::abi::*;
use crate::boundary::{Errno, Outcome, errno};
use crate::memory;

/// The LIDs of groups (IBA 4.1.3). They mean something on InfiniBand alone.
const GROUP_LIDS: std::ops::RangeInclusive<u16> = 0xc000..=0xfffe;

/// ibv_attach_mcast(3)
///
/// # Safety
/// The pointers are what the program passed.
pub unsafe extern "C" fn ibv_attach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int {
    errno(|| {
        // SAFETY: passed on.
        let (pair, gid) = unsafe { arguments(qp, gid, lid)? };
        pair.qp.attach(gid).map_err(refused)
    })
}

/// ibv_detach_mcast(3)
///
/// # Safety
/// The pointers are what the program passed.
pub unsafe extern "C" fn ibv_detach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int {
    errno(|| {
        // SAFETY: passed on.
        let (pair, gid) = unsafe { arguments(qp, gid, lid)? };
        pair.qp.detach(gid).map_err(refused)
    })
}

/// # Safety
/// The program does not destroy the queue pair meanwhile.
unsafe fn arguments<'a>(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> Outcome<(&'a Pair, Gid)> {
    // SAFETY: find checks the queue pair, memory the other pointer; a GID is 16 bytes of any value.
    let (object, gid) = unsafe { (Object::<Pair>::find(qp)?, memory::read(gid.cast::<[u8; 16]>())?) };
    let pair = &object.private;
    if pair.link_layer() == LinkLayer::InfiniBand && !GROUP_LIDS.contains(&lid) {
        return Err(INVALID);
    }
    Ok((pair, Gid(gid)))
}

fn refused(error: GroupError) -> Errno {
    tracing::debug!("multicast group refused: {error}");
    Errno(match error {
        GroupError::NotDatagram(_)
        | GroupError::NotMulticast(_)
        | GroupError::Family(_)
        | GroupError::NotAttached(_) => libc::EINVAL,
        GroupError::TooManyGroups | GroupError::TooManyMembers => libc::ENOMEM,
        GroupError::System(_, error) => error.raw_os_error().unwrap_or(libc::EOPNOTSUPP),
    })
}
