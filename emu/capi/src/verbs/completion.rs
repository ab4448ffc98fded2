//! Completion queues and channels.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Arc, OnceLock};

use device::cq::{Cq, CqNotify};
use device::verbs::limits;

use super::convert::{INVALID, completion, datagram_sl};
use super::device::{Shared, context};
use super::events::{Acknowledgements, EventQueue, descriptor_error};
use super::handle::{Object, Private};
use super::poll_ex::Extended;
use crate::abi::*;
use crate::boundary::{Errno, Outcome, errno, guarded, minus_one, nothing, pointer};
use crate::memory;

/// A completion event that waits for the program.
struct Completed {
    cq: *mut ibv_cq,
    acknowledgements: Arc<Acknowledgements>,
}

// SAFETY: the pointer is only handed to the program.
unsafe impl Send for Completed {}

/// The library's part of a completion channel.
pub struct Channel {
    events: Arc<EventQueue<Completed>>,
    /// Held by the queues that notify it, until the program destroys them. What else holds `events` may let go of it
    /// a little later: the receive thread finishes what it does.
    users: Arc<()>,
}

impl Private for Channel {
    type Abi = ibv_comp_channel;
    type Exposed = ibv_comp_channel;
    const MARK: u64 = u64::from_be_bytes(*b"urxe-chn");
}

/// Puts an event into the channel when an armed queue has something.
struct Notifier {
    events: Arc<EventQueue<Completed>>,
    /// Null before the queue is published and after it is destroyed.
    cq: AtomicPtr<ibv_cq>,
    acknowledgements: Arc<Acknowledgements>,
}

impl CqNotify for Notifier {
    fn completed(&self) {
        let cq = self.cq.load(Ordering::Acquire);
        if !cq.is_null() {
            self.events.push(Completed { cq, acknowledgements: self.acknowledgements.clone() });
        }
    }
}

/// The library's part of a completion queue.
pub struct Queue {
    /// The device's.
    pub cq: Arc<Cq>,
    /// Whose it is.
    pub shared: Arc<Shared>,
    /// Held by the queue pairs that complete to it.
    pub users: Arc<()>,
    /// See [`datagram_sl`].
    pub datagram_sl: u8,
    /// Asynchronous events about it.
    pub async_events: Arc<Acknowledgements>,
    /// For the extended interface, of queues that were made with it.
    pub extended: Option<Extended>,
    notifier: Option<Arc<Notifier>>,
    /// It was armed and not polled since: the program may look once more and then sleep.
    armed: AtomicBool,
    /// The channel, whose count of queues this one is in.
    channel: *mut ibv_comp_channel,
    /// Keeps the channel from being destroyed.
    _channel_user: Option<Arc<()>>,
}

impl Private for Queue {
    type Abi = ibv_cq_ex;
    type Exposed = ibv_cq;
    const MARK: u64 = u64::from_be_bytes(*b"urxe-cq.");
}

impl Queue {
    /// Makes the device look for what has arrived, as the queue is empty.
    pub fn look(&self) {
        self.shared.device.poll();
        // Whoever arms a queue has to look at it once more before he sleeps; that must not make the receive
        // thread believe that he goes on looking.
        if self.armed.load(Ordering::Relaxed)
            && self.armed.swap(false, Ordering::Relaxed)
            && self.cq.is_empty()
        {
            self.shared.device.attend();
        }
    }
}

/// ibv_create_comp_channel(3)
///
/// # Safety
/// The pointer is what the program passed.
pub unsafe extern "C" fn ibv_create_comp_channel(context_pointer: *mut ibv_context) -> *mut ibv_comp_channel {
    pointer(|| {
        // SAFETY: find checks the context.
        unsafe { context(context_pointer)? };
        let events = Arc::new(EventQueue::new().map_err(descriptor_error)?);
        let abi = ibv_comp_channel { context: context_pointer, fd: events.descriptor(), refcnt: 0 };
        Ok(Object::publish(abi, Channel { events, users: Arc::new(()) }))
    })
}

/// ibv_destroy_comp_channel(3): `EBUSY` while a queue uses it.
///
/// # Safety
/// The pointer is what the program passed.
pub unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    errno(|| {
        // SAFETY: find checks the pointer.
        let object = unsafe { Object::<Channel>::find(channel)? };
        if Arc::strong_count(&object.private.users) > 1 {
            return Err(Errno(libc::EBUSY));
        }
        drop(object.retire());
        Ok(())
    })
}

/// What a completion queue is made of.
pub struct Init {
    /// Entries at least.
    pub entries: i64,
    /// The program's pointer.
    pub cq_context: *mut c_void,
    /// Where events go.
    pub channel: *mut ibv_comp_channel,
    /// The completion vector.
    pub vector: i64,
    /// The structure with the extended interface's functions, if it has them.
    pub extended: Option<Extended>,
}

/// Makes a completion queue whose structure is `abi`, which has the extended interface's part filled in.
pub(super) fn create(
    context_pointer: *mut ibv_context,
    mut abi: ibv_cq_ex,
    init: Init,
) -> Outcome<*mut ibv_cq> {
    // SAFETY: find checks the context, whose structure lives with it.
    let (shared, vectors) = unsafe {
        let context = context(context_pointer)?;
        (context.private.shared.clone(), (*context.abi()).context.num_comp_vectors)
    };
    let entries = u32::try_from(init.entries).ok().filter(|count| (1..=limits::MAX_CQE).contains(count));
    let entries = entries.ok_or(INVALID)?;
    if !(0..i64::from(vectors)).contains(&init.vector) {
        return Err(INVALID);
    }
    let mut channel_user = None;
    let notifier = match init.channel.is_null() {
        true => None,
        false => {
            // SAFETY: find checks the pointer.
            let channel = unsafe { Object::<Channel>::find(init.channel)? };
            channel_user = Some(channel.private.users.clone());
            Some(Arc::new(Notifier {
                events: channel.private.events.clone(),
                cq: AtomicPtr::new(std::ptr::null_mut()),
                acknowledgements: Arc::default(),
            }))
        }
    };
    let notify = notifier.clone().map(|notifier| notifier as Arc<dyn CqNotify>);
    let cq = shared.device.create_cq_on(init.vector as u32, entries, notify);
    abi.context = context_pointer;
    abi.channel = init.channel;
    abi.cq_context = init.cq_context;
    abi.handle = cq.id;
    abi.cqe = entries as c_int;
    let queue = Queue {
        cq,
        datagram_sl: datagram_sl(&shared.device),
        shared,
        users: Arc::new(()),
        async_events: Arc::default(),
        extended: init.extended,
        notifier: notifier.clone(),
        armed: AtomicBool::new(false),
        channel: init.channel,
        _channel_user: channel_user,
    };
    let published = Object::publish(abi, queue);
    if let Some(notifier) = notifier {
        notifier.cq.store(published, Ordering::Release);
        count_user(init.channel, 1);
    }
    Ok(published)
}

/// Keeps the count that programs can see in the channel.
fn count_user(channel: *mut ibv_comp_channel, change: c_int) {
    static ORDER: OnceLock<parking_lot::Mutex<()>> = OnceLock::new();
    let _order = ORDER.get_or_init(Default::default).lock();
    // SAFETY: find checks that it lives.
    if let Ok(channel) = unsafe { Object::<Channel>::find(channel) } {
        // SAFETY: the structure lives with the object.
        unsafe { (*channel.abi()).refcnt += change };
    }
}

/// ibv_create_cq(3)
pub extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    entries: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    vector: c_int,
) -> *mut ibv_cq {
    pointer(|| {
        // SAFETY: null pointers and numbers. The functions of the extended interface are not for this queue.
        let abi = unsafe { std::mem::zeroed() };
        let init =
            Init { entries: entries.into(), cq_context, channel, vector: vector.into(), extended: None };
        create(context, abi, init)
    })
}

/// ibv_resize_cq(3)
///
/// # Safety
/// The pointer is what the program passed.
pub unsafe extern "C" fn ibv_resize_cq(cq: *mut ibv_cq, entries: c_int) -> c_int {
    errno(|| {
        // SAFETY: find checks the pointer.
        let object = unsafe { Object::<Queue>::find(cq)? };
        let wanted = u32::try_from(entries).ok().filter(|count| (1..=limits::MAX_CQE).contains(count));
        if !object.private.cq.resize(wanted.ok_or(INVALID)?) {
            return Err(INVALID);
        }
        // SAFETY: the structure lives with the object.
        unsafe { (*object.abi()).cqe = entries };
        Ok(())
    })
}

/// ibv_destroy_cq(3): `EBUSY` while a queue pair uses it; waits until its events are acknowledged.
///
/// # Safety
/// The pointer is what the program passed.
pub unsafe extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    errno(|| {
        // SAFETY: find checks the pointer.
        let object = unsafe { Object::<Queue>::find(cq)? };
        let queue = &object.private;
        if Arc::strong_count(&queue.users) > 1 {
            return Err(Errno(libc::EBUSY));
        }
        if let Some(notifier) = queue.notifier.as_ref().filter(|notifier| notifier.events.is_ours()) {
            notifier.cq.store(std::ptr::null_mut(), Ordering::Release);
            let counts = &notifier.acknowledgements;
            notifier.events.remove(|event| Arc::ptr_eq(&event.acknowledgements, counts));
            counts.wait();
        }
        queue.shared.forget(&queue.async_events);
        let channel = queue.channel;
        drop(object.retire());
        if !channel.is_null() {
            count_user(channel, -1);
        }
        Ok(())
    })
}

/// ibv_get_cq_event(3)
///
/// # Safety
/// The pointers are what the program passed.
pub unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    minus_one(|| {
        // SAFETY: find checks the channel, memory the other pointers: before it waits, so that no event is lost.
        let events = unsafe {
            memory::read(cq)?;
            memory::read(cq_context)?;
            Object::<Channel>::find(channel)?.private.events.clone()
        };
        let event = events.next(|event| event.acknowledgements.deliver())?;
        // SAFETY: as above. The queue is not destroyed before the event is acknowledged.
        unsafe {
            memory::write(cq, event.cq)?;
            memory::write(cq_context, (*event.cq).cq_context)?;
        }
        Ok(0)
    })
}

/// ibv_ack_cq_events(3)
///
/// # Safety
/// The pointer is what the program passed.
pub unsafe extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, count: c_uint) {
    nothing(|| {
        // SAFETY: find checks the pointer.
        let object = unsafe { Object::<Queue>::find(cq)? };
        if let Some(notifier) = &object.private.notifier {
            notifier.acknowledgements.acknowledge(count);
        }
        // SAFETY: the structure lives with the object.
        unsafe {
            let abi = object.abi();
            (*abi).comp_events_completed = (*abi).comp_events_completed.wrapping_add(count);
        }
        Ok(())
    });
}

/// `ibv_poll_cq` of verbs.h.
///
/// # Safety
/// `cq` is null or readable, and `out` valid for `count` completions.
pub unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, count: c_int, out: *mut ibv_wc) -> c_int {
    let polled = guarded(|| {
        // SAFETY: by contract.
        let object = unsafe { Object::<Queue>::recognise(cq)? };
        let room = usize::try_from(count).map_err(|_| INVALID)?;
        if room == 0 {
            return Ok(0);
        }
        if out.is_null() {
            return Err(INVALID);
        }
        let queue = &object.private;
        let mut taken = 0;
        let mut written = Ok(());
        let mut take = || {
            queue.cq.poll_with(room, |wc| {
                let place = out.wrapping_add(taken);
                written = written.and(memory::write_guarded(place, &completion(&wc, queue.datagram_sl)));
                taken += 1;
            })
        };
        if take() == 0 {
            queue.look();
            take();
        }
        written?;
        Ok(taken as c_int)
    });
    // ibv_poll_cq(3): a negative value is an error.
    polled.unwrap_or(-1)
}

/// `ibv_req_notify_cq` of verbs.h.
///
/// # Safety
/// `cq` is null or readable.
pub unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    errno(|| {
        // SAFETY: by contract.
        let object = unsafe { Object::<Queue>::recognise(cq)? };
        let queue = &object.private;
        queue.cq.arm(solicited_only != 0);
        // The program is going to sleep: someone else has to receive.
        queue.armed.store(true, Ordering::Relaxed);
        queue.shared.device.attend();
        Ok(())
    })
}
