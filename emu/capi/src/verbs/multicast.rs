//! Multicast groups. Their LIDs, which a subnet manager would assign, mean nothing here.

use std::ffi::c_int;

use device::device::multicast::GroupError;
use device::ids::Gid;

use super::handle::Object;
use super::queue_pair::Pair;
use crate::abi::*;
use crate::boundary::{Errno, Outcome, errno};
use crate::memory;

/// ibv_attach_mcast(3)
///
/// # Safety
/// The pointers are what the program passed.
pub unsafe extern "C" fn ibv_attach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, _lid: u16) -> c_int {
    errno(|| {
        // SAFETY: passed on.
        let (pair, gid) = unsafe { arguments(qp, gid)? };
        pair.qp.attach(gid).map_err(refused)
    })
}

/// ibv_detach_mcast(3)
///
/// # Safety
/// The pointers are what the program passed.
pub unsafe extern "C" fn ibv_detach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, _lid: u16) -> c_int {
    errno(|| {
        // SAFETY: passed on.
        let (pair, gid) = unsafe { arguments(qp, gid)? };
        pair.qp.detach(gid).map_err(refused)
    })
}

/// # Safety
/// The program does not destroy the queue pair meanwhile.
unsafe fn arguments<'a>(qp: *mut ibv_qp, gid: *const ibv_gid) -> Outcome<(&'a Pair, Gid)> {
    // SAFETY: find checks the queue pair, memory the other pointer; a GID is 16 bytes of any value.
    let (object, gid) = unsafe { (Object::<Pair>::find(qp)?, memory::read(gid.cast::<[u8; 16]>())?) };
    let pair = &object.private;
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
