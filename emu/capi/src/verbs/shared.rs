//! Shared receive queues.

use std::ffi::c_int;
use std::sync::Arc;

use device::device::EventSink;
use device::srq::{Srq, SrqAttr};
use device::verbs::{AsyncEvent, limits};

use super::convert::{INVALID, UNSUPPORTED, post_error};
use super::device::{SendPointer, Shared, Sink, SinkObjects};
use super::events::Acknowledgements;
use super::handle::{Object, Private};
use super::post::{post_receives, refuse};
use super::region::{Domain, context_of, domain};
use crate::abi::*;
use crate::boundary::{Errno, Outcome, errno, pointer};
use crate::memory;

/// The library's part of a shared receive queue.
pub struct SharedQueue {
    /// The device's.
    pub srq: Arc<Srq>,
    /// Held by the queue pairs that take receives from it.
    pub users: Arc<()>,
    /// Its asynchronous events.
    pub events: Arc<Acknowledgements>,
    shared: Arc<Shared>,
    _domain: Arc<Domain>,
}

impl Private for SharedQueue {
    type Abi = ibv_srq;
    type Exposed = ibv_srq;
    const MARK: u64 = u64::from_be_bytes(*b"urxe-srq");
}

fn create(pd: *mut ibv_pd, init: &ibv_srq_init_attr) -> Outcome<(*mut ibv_srq, ibv_srq_attr)> {
    // SAFETY: find checks the pointer.
    let object = unsafe { domain(pd)? };
    let domain = object.private.domain.clone();
    let attr = SrqAttr { max_wr: init.attr.max_wr, max_sge: init.attr.max_sge.max(1), limit: 0 };
    if attr.max_wr == 0 || attr.max_wr > limits::MAX_SRQ_WR || attr.max_sge > limits::MAX_SGE {
        return Err(INVALID);
    }
    let shared = domain.shared.clone();
    let srq = shared.device.create_srq(domain.id, attr);
    // SAFETY: null pointers and numbers.
    let mut abi: ibv_srq = unsafe { std::mem::zeroed() };
    abi.context = context_of(object);
    abi.srq_context = init.srq_context;
    abi.pd = pd;
    abi.handle = srq.id;
    let granted = ibv_srq_attr { max_wr: attr.max_wr, max_sge: attr.max_sge, srq_limit: 0 };
    let private = SharedQueue { srq, users: Arc::new(()), events: Arc::default(), shared, _domain: domain };
    Ok((Object::publish(abi, private), granted))
}

/// ibv_create_srq(3)
///
/// # Safety
/// The pointers are what the program passed.
pub unsafe extern "C" fn ibv_create_srq(pd: *mut ibv_pd, attr: *mut ibv_srq_init_attr) -> *mut ibv_srq {
    pointer(|| {
        // SAFETY: memory checks the pointer.
        let mut init = unsafe { memory::read(attr)? };
        let (srq, granted) = create(pd, &init)?;
        init.attr = granted;
        // SAFETY: as above.
        _ = unsafe { memory::write(attr, init) };
        Ok(srq)
    })
}

/// `ibv_create_srq_ex` of verbs.h: the basic kind.
///
/// # Safety
/// The pointers are what the program passed.
pub unsafe extern "C" fn create_srq_ex(
    _context: *mut ibv_context,
    attr: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    pointer(|| {
        // SAFETY: memory checks the pointer. The fields that are not read belong to kinds that are not there.
        let init = unsafe { memory::read_prefix(attr, std::mem::offset_of!(ibv_srq_init_attr_ex, xrcd))? };
        if init.comp_mask & IBV_SRQ_INIT_ATTR_TYPE != 0 && init.srq_type != IBV_SRQT_BASIC {
            return Err(UNSUPPORTED);
        }
        if init.comp_mask & !(IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD) != 0 {
            return Err(UNSUPPORTED);
        }
        if init.comp_mask & IBV_SRQ_INIT_ATTR_PD == 0 {
            return Err(INVALID);
        }
        let plain = ibv_srq_init_attr { srq_context: init.srq_context, attr: init.attr };
        let (srq, granted) = create(init.pd, &plain)?;
        // SAFETY: memory checks the pointer; both structures begin alike.
        _ = unsafe { memory::write(attr.cast(), ibv_srq_init_attr { attr: granted, ..plain }) };
        Ok(srq)
    })
}

/// `ibv_get_srq_num` of verbs.h.
///
/// # Safety
/// The pointers are what the program passed.
pub unsafe extern "C" fn get_srq_num(srq: *mut ibv_srq, number: *mut u32) -> c_int {
    errno(|| {
        // SAFETY: find checks the queue, memory the other pointer.
        unsafe { memory::write(number, Object::<SharedQueue>::find(srq)?.private.srq.id) }
    })
}

/// ibv_modify_srq(3). If one of two changes is refused, neither is made.
///
/// # Safety
/// The pointers are what the program passed.
pub unsafe extern "C" fn ibv_modify_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr, mask: c_int) -> c_int {
    errno(|| {
        // SAFETY: find checks the queue, memory the other pointer.
        let (object, attr) = unsafe { (Object::<SharedQueue>::find(srq)?, memory::read(attr)?) };
        let queue = &object.private;
        let mask = mask.cast_unsigned();
        if mask & !(IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT) != 0 {
            return Err(INVALID);
        }
        let before = queue.srq.attr();
        if mask & IBV_SRQ_MAX_WR != 0 {
            let possible = (1..=limits::MAX_SRQ_WR).contains(&attr.max_wr);
            if !possible || !queue.srq.resize(attr.max_wr) {
                return Err(INVALID);
            }
        }
        if mask & IBV_SRQ_LIMIT != 0 && !queue.srq.set_limit(attr.srq_limit) {
            queue.srq.resize(before.max_wr);
            return Err(INVALID);
        }
        if mask & IBV_SRQ_LIMIT != 0 && queue.srq.take_limit_event() {
            // It is below the limit already.
            let objects =
                SinkObjects { srq: Some((SendPointer(srq), queue.events.clone())), ..SinkObjects::default() };
            let sink = Sink { shared: queue.shared.clone(), objects: parking_lot::Mutex::new(objects) };
            sink.event(AsyncEvent::SrqLimitReached(queue.srq.id));
        }
        Ok(())
    })
}

/// ibv_query_srq(3)
///
/// # Safety
/// The pointers are what the program passed.
pub unsafe extern "C" fn ibv_query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    errno(|| {
        // SAFETY: find checks the queue, memory the other pointer.
        unsafe {
            let now = Object::<SharedQueue>::find(srq)?.private.srq.attr();
            memory::write(
                attr,
                ibv_srq_attr { max_wr: now.max_wr, max_sge: now.max_sge, srq_limit: now.limit },
            )
        }
    })
}

/// ibv_destroy_srq(3): `EBUSY` while a queue pair uses it.
///
/// # Safety
/// The pointer is what the program passed.
pub unsafe extern "C" fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int {
    errno(|| {
        // SAFETY: find checks the pointer.
        let object = unsafe { Object::<SharedQueue>::find(srq)? };
        if Arc::strong_count(&object.private.users) > 1 {
            return Err(Errno(libc::EBUSY));
        }
        object.private.shared.forget(&object.private.events);
        drop(object.retire());
        Ok(())
    })
}

/// `ibv_post_srq_recv` of verbs.h.
///
/// # Safety
/// `srq` is null or readable; `wr` is a list of valid requests, and `bad` valid.
pub unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    errno(|| {
        // SAFETY: by contract.
        unsafe {
            match Object::<SharedQueue>::recognise(srq) {
                Ok(object) => post_receives(wr, bad, |wr| object.private.srq.post(wr).map_err(post_error)),
                Err(error) => Err(refuse(bad, wr, error)),
            }
        }
    })
}
