//! Protection domains and memory regions.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

use device::ids::LKey;
use device::mem::odp::Advice;
use device::mem::{Access, Change, PdId};

use super::convert::{INVALID, UNSUPPORTED, advise_error, register_error};
use super::device::{Shared, context};
use super::handle::{Object, Private};
use crate::abi::*;
use crate::boundary::{Errno, Outcome, errno, pointer, set_errno};
use crate::memory;

/// A protection domain as the device knows it; what is made in it holds it.
pub struct Domain {
    /// The device's number.
    pub id: PdId,
    /// Whose it is.
    pub shared: Arc<Shared>,
}

/// The library's part of a protection domain or a parent domain.
pub struct Pd {
    /// The domain itself; a parent domain shares the one of its protection domain.
    pub domain: Arc<Domain>,
    /// The thread domain of a parent domain.
    _thread: Option<Arc<()>>,
    is_parent: bool,
}

impl Private for Pd {
    type Abi = ibv_pd;
    type Exposed = ibv_pd;
    const MARK: u64 = u64::from_be_bytes(*b"urxe-pd.");
}

/// The library's part of a thread domain: nothing but its users.
pub struct Thread {
    users: Arc<()>,
}

impl Private for Thread {
    type Abi = ibv_td;
    type Exposed = ibv_td;
    const MARK: u64 = u64::from_be_bytes(*b"urxe-td.");
}

/// The library's part of a memory region.
pub struct Region {
    domain: parking_lot::Mutex<Arc<Domain>>,
    key: LKey,
}

impl Private for Region {
    type Abi = ibv_mr;
    type Exposed = ibv_mr;
    const MARK: u64 = u64::from_be_bytes(*b"urxe-mr.");
}

/// The protection domain of a pointer.
///
/// # Safety
/// As for [`Object::find`].
pub unsafe fn domain<'a>(pointer: *const ibv_pd) -> Outcome<&'a Object<Pd>> {
    // SAFETY: passed on.
    unsafe { Object::find(pointer) }
}

/// The context that an object's structure names.
pub fn context_of(pd: &Object<Pd>) -> *mut ibv_context {
    // SAFETY: the structure is alive with the object.
    unsafe { (*pd.abi()).context }
}

fn publish_pd(context: *mut ibv_context, pd: Pd) -> *mut ibv_pd {
    let handle = pd.domain.id.0;
    Object::publish(ibv_pd { context, handle }, pd)
}

/// ibv_alloc_pd(3)
///
/// # Safety
/// The pointer is what the program passed.
pub unsafe extern "C" fn ibv_alloc_pd(context_pointer: *mut ibv_context) -> *mut ibv_pd {
    pointer(|| {
        // SAFETY: find checks the context.
        let shared = unsafe { context(context_pointer)? }.private.shared.clone();
        let domain = Arc::new(Domain { id: shared.device.alloc_pd(), shared });
        Ok(publish_pd(context_pointer, Pd { domain, _thread: None, is_parent: false }))
    })
}

/// ibv_dealloc_pd(3): `EBUSY` while something is in it.
///
/// # Safety
/// The pointer is what the program passed.
pub unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    errno(|| {
        // SAFETY: find checks the pointer.
        let object = unsafe { domain(pd)? };
        let domain = &object.private.domain;
        if !object.private.is_parent
            && (Arc::strong_count(domain) > 1 || domain.shared.device.memory().is_pd_in_use(domain.id))
        {
            return Err(Errno(libc::EBUSY));
        }
        drop(object.retire());
        Ok(())
    })
}

/// ibv_alloc_td(3)
///
/// # Safety
/// The pointers are what the program passed.
pub unsafe extern "C" fn alloc_td(
    context_pointer: *mut ibv_context,
    init: *mut ibv_td_init_attr,
) -> *mut ibv_td {
    pointer(|| {
        // SAFETY: find checks the context, memory the attributes.
        unsafe {
            context(context_pointer)?;
            if memory::read(init)?.comp_mask != 0 {
                return Err(INVALID);
            }
        }
        Ok(Object::publish(ibv_td { context: context_pointer }, Thread { users: Arc::new(()) }))
    })
}

/// ibv_dealloc_td(3): `EBUSY` while a parent domain has it.
///
/// # Safety
/// The pointer is what the program passed.
pub unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    errno(|| {
        // SAFETY: find checks the pointer.
        let object = unsafe { Object::<Thread>::find(td)? };
        if Arc::strong_count(&object.private.users) > 1 {
            return Err(Errno(libc::EBUSY));
        }
        drop(object.retire());
        Ok(())
    })
}

/// ibv_alloc_parent_domain(3). The hints about threads are taken and have no effect; allocators would have
/// nothing to allocate, since the queues are not in the program's memory.
///
/// # Safety
/// The pointers are what the program passed.
pub unsafe extern "C" fn alloc_parent_domain(
    context_pointer: *mut ibv_context,
    init: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    pointer(|| {
        // SAFETY: find checks the handles, memory the attributes.
        unsafe {
            context(context_pointer)?;
            let init = memory::read(init)?;
            let known = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS
                | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT
                | IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC;
            if init.comp_mask & !known != 0 {
                return Err(INVALID);
            }
            let domain = domain(init.pd)?.private.domain.clone();
            let thread = match init.td.is_null() {
                true => None,
                false => Some(Object::<Thread>::find(init.td)?.private.users.clone()),
            };
            Ok(publish_pd(context_pointer, Pd { domain, _thread: thread, is_parent: true }))
        }
    })
}

fn register(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: u32,
) -> Outcome<*mut ibv_mr> {
    // SAFETY: find checks the pointer.
    let object = unsafe { domain(pd)? };
    let domain = object.private.domain.clone();
    let access = Access(access);
    let start = if access.contains(Access::ZERO_BASED) { 0 } else { iova };
    let registered = domain
        .shared
        .device
        .memory()
        .register(domain.id, addr.addr() as u64, length as u64, start, access)
        .map_err(register_error)?;
    let abi = ibv_mr {
        context: context_of(object),
        pd,
        addr,
        length,
        handle: registered.lkey.0 >> 8,
        lkey: registered.lkey.0,
        rkey: registered.rkey.0,
    };
    Ok(Object::publish(abi, Region { domain: parking_lot::Mutex::new(domain), key: registered.lkey }))
}

/// ibv_reg_mr(3)
pub extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    pointer(|| register(pd, addr, length, addr.addr() as u64, access.cast_unsigned()))
}

/// ibv_reg_mr_iova(3)
pub extern "C" fn ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    pointer(|| register(pd, addr, length, iova, access.cast_unsigned()))
}

/// ibv_reg_mr_iova2(3)
pub extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    pointer(|| register(pd, addr, length, iova, access))
}

/// ibv_reg_mr_ex(3): of memory, without DMA handles, dma-bufs and buffers of `ibv_alloc_buf`.
///
/// # Safety
/// The pointers are what the program passed.
pub unsafe extern "C" fn ibv_reg_mr_ex(pd: *mut ibv_pd, init: *mut ibv_mr_init_attr) -> *mut ibv_mr {
    pointer(|| {
        // SAFETY: memory checks the pointer.
        let init = unsafe { memory::read(init)? };
        let known = u64::from(IBV_REG_MR_MASK_IOVA | IBV_REG_MR_MASK_ADDR);
        if init.comp_mask & !known != 0 {
            return Err(UNSUPPORTED);
        }
        if init.comp_mask & u64::from(IBV_REG_MR_MASK_ADDR) == 0 {
            return Err(INVALID);
        }
        let iova = match init.comp_mask & u64::from(IBV_REG_MR_MASK_IOVA) {
            0 => init.addr.addr() as u64,
            _ => init.iova,
        };
        register(pd, init.addr, init.length, iova, init.access.cast_unsigned())
    })
}

/// ibv_advise_mr(3): prefetch of regions that are paged on demand. Without IBV_ADVISE_MR_FLAG_FLUSH it goes on after the
/// call.
///
/// # Safety
/// The pointers are what the program passed.
pub unsafe extern "C" fn advise_mr(
    pd: *mut ibv_pd,
    advice: u32,
    flags: u32,
    list: *mut ibv_sge,
    count: u32,
) -> c_int {
    errno(|| {
        // SAFETY: find checks the pointer.
        let domain = &unsafe { domain(pd)? }.private.domain;
        let advice = match advice {
            IBV_ADVISE_MR_ADVICE_PREFETCH => Advice::Read,
            IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE => Advice::Write,
            IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT => Advice::Resident,
            _ => return Err(UNSUPPORTED),
        };
        if flags & !IBV_ADVISE_MR_FLAG_FLUSH != 0 || count == 0 {
            return Err(INVALID);
        }
        let wait = flags & IBV_ADVISE_MR_FLAG_FLUSH != 0;
        memory::readable(list, count as usize)?;
        for index in 0..count as usize {
            // SAFETY: memory checks the pointer.
            let sge = unsafe { memory::read(list.wrapping_add(index))? };
            let range = (sge.addr, u64::from(sge.length));
            domain
                .shared
                .device
                .advise(domain.id, LKey(sge.lkey), range, advice, wait)
                .map_err(advise_error)?;
        }
        Ok(())
    })
}

/// ibv_dereg_mr(3)
///
/// # Safety
/// The pointer is what the program passed.
pub unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    errno(|| {
        // SAFETY: find checks the pointer.
        let object = unsafe { Object::<Region>::find(mr)? };
        let region = object.retire().ok_or(INVALID)?;
        let domain = region.private.domain.lock().clone();
        domain.shared.device.deregister(region.private.key).map_err(|_| INVALID)
    })
}

/// ibv_rereg_mr(3): its errors are numbers of its own, with `errno` set as well.
///
/// # Safety
/// The pointers are what the program passed.
pub unsafe extern "C" fn ibv_rereg_mr(
    mr: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    let body = || {
        // SAFETY: find checks the handles.
        let object = unsafe { Object::<Region>::find(mr)? };
        let flags = flags.cast_unsigned();
        let (translation, change_pd, change_access) = (
            flags & IBV_REREG_MR_CHANGE_TRANSLATION != 0,
            flags & IBV_REREG_MR_CHANGE_PD != 0,
            flags & IBV_REREG_MR_CHANGE_ACCESS != 0,
        );
        if flags & !IBV_REREG_MR_FLAGS_SUPPORTED != 0
            || translation && (length == 0 || addr.is_null())
            || access != 0 && !change_access
        {
            return Err(INVALID);
        }
        let mut domain = object.private.domain.lock();
        let new_domain = match change_pd {
            // SAFETY: find checks the pointer.
            true => Some(unsafe { self::domain(pd)? }.private.domain.clone()),
            false => None,
        };
        if new_domain.as_ref().is_some_and(|new| !Arc::ptr_eq(&new.shared.device, &domain.shared.device)) {
            return Err(INVALID);
        }
        let change = Change {
            pd: new_domain.as_ref().map(|domain| domain.id),
            range: translation.then(|| (addr.addr() as u64, length as u64, addr.addr() as u64)),
            access: change_access.then_some(Access(access.cast_unsigned())),
        };
        domain.shared.device.memory().reregister(object.private.key, change).map_err(register_error)?;
        // SAFETY: the structure lives with the object.
        unsafe {
            let abi = object.abi();
            if change_pd {
                (*abi).pd = pd;
            }
            if translation {
                (*abi).addr = addr;
                (*abi).length = length;
            }
        }
        if let Some(new) = new_domain {
            *domain = new;
        }
        Ok(())
    };
    match crate::boundary::guarded(body) {
        Ok(()) => 0,
        Err(error) => {
            set_errno(error);
            // The region is as it was in every case.
            IBV_REREG_MR_ERR_INPUT
        }
    }
}
