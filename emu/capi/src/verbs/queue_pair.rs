//! Queue pairs: making, changing, asking about and destroying them.

use std::ffi::c_int;
use std::sync::Arc;

use device::device::attr::ModifyError;
use device::device::{CreateError, EventSink, QpInit, QueuePair};
use device::verbs::{AttrMask, QpType, limits};

use super::completion::Queue;
use super::convert::{INVALID, UNSUPPORTED, attributes, cap, caps, kind, qp_attr};
use super::device::{SendPointer, Sink, SinkObjects};
use super::events::Acknowledgements;
use super::handle::{Object, Private};
use super::region::{Domain, Pd, context_of, domain};
use super::shared::SharedQueue;
use super::wr::{self, Builder};
use crate::abi::*;
use crate::boundary::{Errno, Outcome, errno, pointer};
use crate::memory;

/// The library's part of a queue pair.
pub struct Pair {
    /// The device's. Dropping it destroys it there.
    pub qp: QueuePair,
    /// Its asynchronous events.
    pub events: Arc<Acknowledgements>,
    /// Requests that are being built with `ibv_wr_*`, if it was made for that.
    pub builder: Option<Builder>,
    sig_all: bool,
    sink: Arc<Sink>,
    // What it uses cannot be destroyed before it.
    _domain: Arc<Domain>,
    _send_cq: Arc<()>,
    _recv_cq: Arc<()>,
    _srq: Option<Arc<()>>,
}

impl Private for Pair {
    type Abi = ibv_qp_ex;
    type Exposed = ibv_qp;
    const MARK: u64 = u64::from_be_bytes(*b"urxe-qp.");
}

/// Makes a queue pair. `send_ops` are the operations of the extended interface, if it is asked for.
fn create(
    pd: *mut ibv_pd,
    init: &ibv_qp_init_attr,
    send_ops: Option<u64>,
    flags: u32,
) -> Outcome<(*mut ibv_qp, ibv_qp_cap)> {
    // SAFETY: find checks every pointer.
    let (pd_object, send_cq, recv_cq, srq) = unsafe {
        let pd: &Object<Pd> = domain(pd)?;
        let send_cq = Object::<Queue>::find(init.send_cq)?;
        let recv_cq = Object::<Queue>::find(init.recv_cq)?;
        let srq = match init.srq.is_null() {
            true => None,
            false => Some(Object::<SharedQueue>::find(init.srq)?),
        };
        (pd, send_cq, recv_cq, srq)
    };
    let domain = pd_object.private.domain.clone();
    let shared = domain.shared.clone();
    for device in [&send_cq.private.shared.device, &recv_cq.private.shared.device] {
        if !Arc::ptr_eq(device, &shared.device) {
            return Err(INVALID);
        }
    }
    let kind = kind(init.qp_type)?;
    let deaf_to_itself = match flags {
        0 => false,
        IBV_QP_CREATE_BLOCK_SELF_MCAST_LB if kind == QpType::Ud => true,
        _ => return Err(UNSUPPORTED),
    };
    if let Some(ops) = send_ops {
        wr::check_operations(ops, kind)?;
    }
    let mut sizes = caps(&init.cap);
    // Where a scatter/gather list fits, its bytes do, as rxe and adapters have it; programs count on it without asking.
    let list = sizes.max_send_sge.saturating_mul(size_of::<ibv_sge>() as u32);
    sizes.max_inline_data = sizes.max_inline_data.max(list.min(limits::MAX_INLINE));
    if srq.is_some() {
        // Receives come from the shared queue (ibv_create_qp(3)).
        (sizes.max_recv_wr, sizes.max_recv_sge) = (0, 0);
    }
    let sink = Arc::new(Sink { shared: shared.clone(), objects: Default::default() });
    let qp = shared
        .device
        .create_qp(QpInit {
            kind,
            pd: domain.id,
            send_cq: send_cq.private.cq.clone(),
            recv_cq: recv_cq.private.cq.clone(),
            srq: srq.map(|srq| srq.private.srq.clone()),
            caps: sizes,
            sig_all: init.sq_sig_all != 0,
            events: Some(sink.clone() as Arc<dyn EventSink>),
        })
        .map_err(create_error)?;
    qp.hear_itself(!deaf_to_itself);

    // SAFETY: null pointers and numbers.
    let mut abi: ibv_qp_ex = unsafe { std::mem::zeroed() };
    abi.qp_base.context = context_of(pd_object);
    abi.qp_base.qp_context = init.qp_context;
    abi.qp_base.pd = pd;
    abi.qp_base.send_cq = init.send_cq;
    abi.qp_base.recv_cq = init.recv_cq;
    abi.qp_base.srq = init.srq;
    abi.qp_base.handle = qp.number().0;
    abi.qp_base.qp_num = qp.number().0;
    abi.qp_base.state = IBV_QPS_RESET;
    abi.qp_base.qp_type = init.qp_type;
    if send_ops.is_some() {
        wr::functions(&mut abi);
    }
    let granted = cap(&qp.caps());
    let events = Arc::<Acknowledgements>::default();
    let published = Object::publish(
        abi,
        Pair {
            builder: send_ops.map(|_| Builder::new(qp.caps())),
            qp,
            events: events.clone(),
            sig_all: init.sq_sig_all != 0,
            sink: sink.clone(),
            _domain: domain,
            _send_cq: send_cq.private.users.clone(),
            _recv_cq: recv_cq.private.users.clone(),
            _srq: srq.map(|srq| srq.private.users.clone()),
        },
    );
    // Nothing can happen to it before this: it is in RESET.
    let queue = |cq: *mut ibv_cq, object: &Object<Queue>| {
        (object.private.cq.id, SendPointer(cq), object.private.async_events.clone())
    };
    *sink.objects.lock() = SinkObjects {
        qp: Some((SendPointer(published), events)),
        srq: srq.map(|srq| (SendPointer(init.srq), srq.private.events.clone())),
        cqs: vec![queue(init.send_cq, send_cq), queue(init.recv_cq, recv_cq)],
    };
    Ok((published, granted))
}

fn create_error(error: CreateError) -> Errno {
    tracing::debug!("queue pair refused: {error}");
    Errno(match error {
        CreateError::TooLarge { .. } | CreateError::NoWorker { .. } => libc::EINVAL,
        CreateError::TooMany => libc::ENOMEM,
    })
}

/// ibv_create_qp(3)
///
/// # Safety
/// The pointers are what the program passed.
pub unsafe extern "C" fn ibv_create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    pointer(|| {
        // SAFETY: memory checks the pointer.
        let mut init = unsafe { memory::read(attr)? };
        let (qp, granted) = create(pd, &init, None, 0)?;
        init.cap = granted;
        // SAFETY: as above. It was readable; if it is not writable the program has a queue pair all the same.
        _ = unsafe { memory::write(attr, init) };
        Ok(qp)
    })
}

/// `ibv_create_qp_ex` of verbs.h.
///
/// # Safety
/// The pointers are what the program passed.
pub unsafe extern "C" fn create_qp_ex(
    _context: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    pointer(|| {
        // SAFETY: memory checks the pointer. A program that does not ask for send operations may have a structure
        // that ends before them.
        let init = unsafe {
            let init = memory::read_prefix(attr, std::mem::offset_of!(ibv_qp_init_attr_ex, create_flags))?;
            match init.comp_mask & !IBV_QP_INIT_ATTR_PD {
                0 => init,
                _ => memory::read(attr)?,
            }
        };
        let supported = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
        if init.comp_mask & !supported != 0 {
            return Err(UNSUPPORTED);
        }
        if init.comp_mask & IBV_QP_INIT_ATTR_PD == 0 {
            return Err(INVALID);
        }
        let flags = if init.comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS == 0 { 0 } else { init.create_flags };
        let ops = (init.comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS != 0).then_some(init.send_ops_flags);
        let plain = ibv_qp_init_attr {
            qp_context: init.qp_context,
            send_cq: init.send_cq,
            recv_cq: init.recv_cq,
            srq: init.srq,
            cap: init.cap,
            qp_type: init.qp_type,
            sq_sig_all: init.sq_sig_all,
        };
        let (qp, granted) = create(init.pd, &plain, ops, flags)?;
        // SAFETY: memory checks the pointer.
        _ = unsafe { memory::write((&raw mut (*attr).cap).cast::<ibv_qp_cap>(), granted) };
        Ok(qp)
    })
}

/// ibv_qp_to_qp_ex(3): null for a queue pair that was not made for it.
///
/// # Safety
/// The pointer is what the program passed.
pub unsafe extern "C" fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    pointer(|| {
        // SAFETY: find checks the pointer.
        let object = unsafe { Object::<Pair>::find(qp)? };
        object.private.builder.as_ref().ok_or(INVALID)?;
        Ok(qp.cast())
    })
}

/// ibv_modify_qp(3)
///
/// # Safety
/// The pointers are what the program passed.
pub unsafe extern "C" fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    errno(|| {
        // SAFETY: find checks the queue pair, memory the other pointer.
        let (object, attr) = unsafe { (Object::<Pair>::find(qp)?, read_attributes(attr, mask)?) };
        let mask = AttrMask(mask.cast_unsigned());
        object.private.qp.modify(&attributes(&attr, mask)?, mask).map_err(|error| modify_error(qp, error))?;
        if mask.has(AttrMask::STATE) {
            // SAFETY: the structure lives with the object.
            unsafe { (*object.abi()).qp_base.state = attr.qp_state };
        }
        Ok(())
    })
}

/// The structure grew at its end: `rate_limit` is read only if the mask says that it is there.
unsafe fn read_attributes(attr: *const ibv_qp_attr, mask: c_int) -> Outcome<ibv_qp_attr> {
    let size = match mask.cast_unsigned() & IBV_QP_RATE_LIMIT {
        0 => std::mem::offset_of!(ibv_qp_attr, rate_limit),
        _ => size_of::<ibv_qp_attr>(),
    };
    // SAFETY: memory checks the pointer.
    unsafe { memory::read_prefix(attr, size) }
}

fn modify_error(qp: *mut ibv_qp, error: ModifyError) -> Errno {
    // What a program prints is "failed to modify QP to RTR"; this says why.
    tracing::warn!(qp = ?qp, "ibv_modify_qp refused: {error}");
    Errno(match error {
        ModifyError::Unsupported(_) => libc::EOPNOTSUPP,
        ModifyError::Transition(_)
        | ModifyError::Address(_)
        | ModifyError::CurrentState { .. }
        | ModifyError::Range { .. } => libc::EINVAL,
    })
}

/// ibv_query_qp(3)
///
/// # Safety
/// The pointers are what the program passed.
pub unsafe extern "C" fn ibv_query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    errno(|| {
        // SAFETY: find checks the queue pair.
        let object = unsafe { Object::<Pair>::find(qp)? };
        let pair = &object.private;
        let (present, sizes) = (pair.qp.query(), pair.qp.caps());
        let out = qp_attr(&present, &sizes);
        // SAFETY: memory checks the pointers; the structure lives with the object.
        unsafe {
            let base = &raw mut (*object.abi()).qp_base;
            (*base).state = out.qp_state;
            let room = match mask.cast_unsigned() & IBV_QP_RATE_LIMIT {
                0 => std::mem::offset_of!(ibv_qp_attr, rate_limit),
                _ => size_of::<ibv_qp_attr>(),
            };
            memory::write_sized(attr.cast(), out, room)?;
            memory::write(
                init,
                ibv_qp_init_attr {
                    qp_context: (*base).qp_context,
                    send_cq: (*base).send_cq,
                    recv_cq: (*base).recv_cq,
                    srq: (*base).srq,
                    cap: cap(&sizes),
                    qp_type: (*base).qp_type,
                    sq_sig_all: pair.sig_all.into(),
                },
            )
        }
    })
}

/// ibv_destroy_qp(3): waits until its events are acknowledged.
///
/// # Safety
/// The pointer is what the program passed.
pub unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    errno(|| {
        // SAFETY: find checks the pointer.
        let object = unsafe { Object::<Pair>::find(qp)? };
        let pair = &object.private;
        // As the kernel has it: a program detaches what it attached.
        if pair.qp.is_attached() {
            return Err(Errno(libc::EBUSY));
        }
        // First no more events, then those that are there.
        *pair.sink.objects.lock() = SinkObjects::default();
        pair.sink.shared.forget(&pair.events);
        drop(object.retire());
        Ok(())
    })
}

/// ibv_query_qp_data_in_order(3): the last byte of a write is stored last, but nothing is promised about the order of the rest.
///
/// # Safety
/// The pointer is what the program passed.
pub unsafe extern "C" fn ibv_query_qp_data_in_order(_qp: *mut ibv_qp, _operation: u32, _flags: u32) -> c_int {
    0
}

/// Whether a queue pair sends datagrams.
pub fn is_datagram(pair: &Pair) -> bool {
    pair.qp.kind() == QpType::Ud
}
