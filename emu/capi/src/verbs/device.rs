//! The list of devices, contexts, and the tables of operations that the inline functions of verbs.h call.

use std::collections::BTreeSet;
use std::ffi::{c_char, c_int};
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use device::config::{Config, Daemon, LinkLayer, Source, Tasks};
use device::device::{Device, EventSink, Lease};
use device::verbs::AsyncEvent;
use parking_lot::Mutex;
use urxe_control::protocol::DeviceSpec;

use super::events::{Acknowledgements, EventQueue, descriptor_error};
use super::handle::{Object, Private};
use super::{completion, poll_ex, post, query, queue_pair, region, shared};
use crate::abi::*;
use crate::boundary::{Errno, Outcome, minus_one, nothing, pointer, value};
use crate::memory;
use crate::paths::facts::{Facts, GidFact};
use crate::paths::tree;
use crate::session::{self, PerProcess};

/// `struct ibv_device` and what vendor libraries read behind it: a pointer to their operations, which is null.
#[repr(C)]
struct DeviceObject {
    abi: ibv_device,
    behind: [u64; 32],
}

// libmlx5 and libefa read 48 bytes behind the device (`struct verbs_device`).
const _: () = assert!(size_of::<DeviceObject>() >= 712);

/// A device of this process.
pub struct Opened {
    /// The device.
    pub device: Arc<Device>,
    object: *mut DeviceObject,
}

// SAFETY: the pointer is handed to the program, and followed here only to read what never changes.
unsafe impl Sync for Opened {}
// SAFETY: as above.
unsafe impl Send for Opened {}

static DEVICES: PerProcess<Vec<Opened>> = PerProcess::new();

/// Lists that the program has not freed yet.
///
/// A mutex of the standard library: see [`crate::fork`].
static LISTS: std::sync::Mutex<BTreeSet<usize>> = std::sync::Mutex::new(BTreeSet::new());

fn lists() -> std::sync::MutexGuard<'static, BTreeSet<usize>> {
    LISTS.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Keeps lists from being made and freed until the result is dropped. `None` while one is.
pub fn quiesce_lists() -> Option<impl Sized + 'static> {
    crate::fork::try_hold(&LISTS)
}

/// The devices, if they are open.
pub fn current() -> Option<&'static [Opened]> {
    DEVICES.get().map(Vec::as_slice)
}

/// The devices, which are opened at the first look at them and then live as long as the process: their addresses must
/// not change between two lists.
pub fn devices() -> Outcome<&'static [Opened]> {
    DEVICES.get_or_make(open_all).map(Vec::as_slice)
}

fn open_all() -> Outcome<Vec<Opened>> {
    let config = session::config()?;
    crate::fork::prepare();
    let mut devices = Vec::new();
    for rail in 0..config.devices.value() {
        let device = match config.daemon {
            Daemon::Off => open_alone(config),
            Daemon::Auto => open_leased(config, rail),
        };
        match device {
            Ok(device) => devices.push(device),
            Err(error) => {
                devices.into_iter().for_each(give_back);
                return Err(error);
            }
        }
    }
    let facts: Vec<Facts> = devices.iter().zip(0..).map(|(device, rail)| facts(device, rail)).collect();
    tree::describe(&facts);
    static AT_EXIT: AtomicBool = AtomicBool::new(false);
    if !AT_EXIT.swap(true, Ordering::Relaxed) {
        // SAFETY: the function takes and returns nothing, and this library is not unloaded while its threads run.
        unsafe { libc::atexit(at_exit) };
    }
    let opened = devices.into_iter().zip(&facts).map(|(device, facts)| {
        let object = Box::into_raw(Box::new(DeviceObject { abi: describe(facts), behind: [0; 32] }));
        Opened { device: Arc::new(device), object }
    });
    Ok(opened.collect())
}

/// A device that has its address for itself.
fn open_alone(config: &Config) -> Outcome<Device> {
    let mut config = config.clone();
    config.addr = DeviceSpec::of(&config, 0).map_err(told)?.address;
    opened(Device::open(&config))
}

/// A device on an address that the daemon lets processes share.
fn open_leased(config: &Config, rail: u32) -> Outcome<Device> {
    let client = session::client()?;
    let spec = DeviceSpec::of(config, rail).map_err(told)?;
    let lease = client.lease(&spec).map_err(told)?;
    let mut config = config.clone();
    config.addr = Some(lease.address);
    let (name, source) = (config.device_name(rail), config.source("device").cloned());
    config.set("device", &name, source.unwrap_or(Source::Default)).map_err(|error| {
        tracing::error!("{error}");
        Errno(libc::EINVAL)
    })?;
    let (address, slot) = (lease.address, lease.slot);
    let lease = Lease { slot, socket: lease.socket, anchor: lease.anchor };
    opened(Device::open_member(&config, lease)).inspect_err(|_| release(address, slot))
}

/// The daemon takes a slot back in any case when the process ends.
fn release(address: IpAddr, slot: u8) {
    if let Ok(client) = session::client() {
        _ = client.release(address, slot);
    }
}

/// A process has all its devices or none.
fn give_back(device: Device) {
    let (address, slot, leased) = (device.port().ip, device.slot(), device.config().daemon == Daemon::Auto);
    drop(device);
    if leased {
        release(address, slot);
    }
}

fn told(error: urxe_control::Error) -> Errno {
    tracing::error!("no device: {error}");
    Errno(error.errno())
}

fn opened(result: Result<Device, device::device::OpenError>) -> Outcome<Device> {
    result.map_err(|error| {
        tracing::error!("the device cannot be opened: {error}");
        open_error(&error)
    })
}

/// A program may end without destroying its queue pairs. Its peer still waits for the acknowledgement of what the
/// program has taken. Not in a child of fork: [`current`] knows.
extern "C" fn at_exit() {
    nothing(|| {
        for opened in current().unwrap_or_default() {
            opened.device.flush(Duration::from_millis(20));
        }
        Ok(())
    });
}

fn open_error(error: &device::device::OpenError) -> Errno {
    use std::error::Error as _;
    let mut source = error.source();
    while let Some(inner) = source {
        if let Some(number) = inner.downcast_ref::<std::io::Error>().and_then(std::io::Error::raw_os_error) {
            return Errno(number);
        }
        source = inner.source();
    }
    Errno(libc::ENODEV)
}

fn facts(device: &Device, rail: u32) -> Facts {
    let port = device.port();
    let (link_layer, kind) = match device.config().link_layer {
        LinkLayer::Ethernet => ("Ethernet", "RoCE v2"),
        LinkLayer::InfiniBand => ("InfiniBand", "IB/RoCE v1"),
    };
    let gids = port.gids.iter().map(|gid| GidFact { gid: gid.0, kind, interface: port.interface.clone() });
    Facts {
        guid: device.guid(),
        lid: port.lid.0,
        connection_manager: device.config().daemon == Daemon::Auto,
        gids: gids.collect(),
        link_layer,
        interface: port.interface.clone(),
        ..Facts::of(
            match port.ip {
                IpAddr::V4(address) => address,
                IpAddr::V6(_) => std::net::Ipv4Addr::UNSPECIFIED,
            },
            &port.interface,
        )
    }
    .with_rail(rail, device.config().device.to_string())
}

fn describe(facts: &Facts) -> ibv_device {
    // SAFETY: numbers and null pointers.
    let mut abi: ibv_device = unsafe { std::mem::zeroed() };
    abi.node_type = IBV_NODE_CA;
    abi.transport_type = IBV_TRANSPORT_IB;
    copy_text(&mut abi.name, &facts.device);
    copy_text(&mut abi.dev_name, &facts.node);
    let sysfs = tree::sysfs().unwrap_or(c"/sys").to_string_lossy();
    // A path that does not fit is told as the system's, which the interposer answers too.
    let path = |rest: String, room: usize| match format!("{sysfs}{rest}") {
        long if long.len() >= room => format!("/sys{rest}"),
        fits => fits,
    };
    let (verbs, infiniband) = (
        path(format!("/class/infiniband_verbs/{}", facts.node), abi.dev_path.len()),
        path(format!("/class/infiniband/{}", facts.device), abi.ibdev_path.len()),
    );
    copy_text(&mut abi.dev_path, &verbs);
    copy_text(&mut abi.ibdev_path, &infiniband);
    abi
}

/// Copies a text and its terminator; what does not fit is cut off.
pub fn copy_text(to: &mut [c_char], text: &str) {
    let room = to.len() - 1;
    for (to, from) in to[..room].iter_mut().zip(text.bytes()) {
        *to = from as c_char;
    }
}

/// What everything that was made from one context shares.
pub struct Shared {
    /// The device.
    pub device: Arc<Device>,
    /// Its asynchronous events.
    pub events: EventQueue<AsyncEntry>,
}

/// An asynchronous event that waits for the program.
pub struct AsyncEntry {
    kind: u32,
    element: ibv_async_event_element,
    acknowledgements: Arc<Acknowledgements>,
}

// SAFETY: the pointers in it are only handed to the program.
unsafe impl Send for AsyncEntry {}

/// Turns the device's events of one object into C's.
pub struct Sink {
    /// Where they go.
    pub shared: Arc<Shared>,
    /// The pointers of the objects that an event can be about.
    pub objects: Mutex<SinkObjects>,
}

/// The objects that the events of a [`Sink`] can be about, with their counters.
#[derive(Default)]
pub struct SinkObjects {
    /// The queue pair.
    pub qp: Option<(SendPointer<ibv_qp>, Arc<Acknowledgements>)>,
    /// Its shared receive queue.
    pub srq: Option<(SendPointer<ibv_srq>, Arc<Acknowledgements>)>,
    /// Its completion queues, by the device's numbers.
    pub cqs: Vec<(u32, SendPointer<ibv_cq>, Arc<Acknowledgements>)>,
}

/// A pointer that is only carried.
pub struct SendPointer<T>(pub *mut T);
// SAFETY: it is not followed here.
unsafe impl<T> Send for SendPointer<T> {}

impl EventSink for Sink {
    fn event(&self, event: AsyncEvent) {
        let objects = self.objects.lock();
        let qp = |kind| {
            let (pointer, counts) = objects.qp.as_ref()?;
            Some((kind, ibv_async_event_element { qp: pointer.0 }, counts.clone()))
        };
        let entry = match event {
            AsyncEvent::CqError(id) => {
                objects.cqs.iter().find(|(cq, ..)| *cq == id).map(|(_, pointer, counts)| {
                    (IBV_EVENT_CQ_ERR, ibv_async_event_element { cq: pointer.0 }, counts.clone())
                })
            }
            AsyncEvent::SrqLimitReached(_) => objects.srq.as_ref().map(|(pointer, counts)| {
                (IBV_EVENT_SRQ_LIMIT_REACHED, ibv_async_event_element { srq: pointer.0 }, counts.clone())
            }),
            AsyncEvent::QpFatal(_) => qp(IBV_EVENT_QP_FATAL),
            AsyncEvent::QpRequestError(_) => qp(IBV_EVENT_QP_REQ_ERR),
            AsyncEvent::QpAccessError(_) => qp(IBV_EVENT_QP_ACCESS_ERR),
            AsyncEvent::CommEstablished(_) => qp(IBV_EVENT_COMM_EST),
            AsyncEvent::SqDrained(_) => qp(IBV_EVENT_SQ_DRAINED),
            AsyncEvent::LastWqeReached(_) => qp(IBV_EVENT_QP_LAST_WQE_REACHED),
        };
        // With the objects still locked, so that forget() sees the event in the queue or prevents it.
        if let Some((kind, element, acknowledgements)) = entry {
            self.shared.events.push(AsyncEntry { kind, element, acknowledgements });
        }
    }
}

impl Shared {
    /// Forgets an object that is destroyed: its events that wait are dropped, and those that the program has are
    /// waited for.
    pub fn forget(&self, counts: &Arc<Acknowledgements>) {
        // Those of a parent are not ours to wait for.
        if self.events.is_ours() {
            self.events.remove(|entry| Arc::ptr_eq(&entry.acknowledgements, counts));
            counts.wait();
        }
    }
}

/// The library's part of a context.
pub struct Context {
    /// What its objects share.
    pub shared: Arc<Shared>,
    /// A descriptor for programs that look at `cmd_fd`; it leads nowhere.
    _command: OwnedFd,
}

impl Private for Context {
    type Abi = verbs_context;
    type Exposed = ibv_context;
    const OFFSET: usize = std::mem::offset_of!(verbs_context, context);
    const MARK: u64 = u64::from_be_bytes(*b"urxe-ctx");
}

/// The context of a pointer.
///
/// # Safety
/// As for [`Object::find`].
pub unsafe fn context<'a>(pointer: *const ibv_context) -> Outcome<&'a Object<Context>> {
    // SAFETY: passed on.
    unsafe { Object::find(pointer) }
}

/// ibv_get_device_list(3)
///
/// # Safety
/// The pointer is what the program passed.
pub unsafe extern "C" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    pointer(|| {
        if !count.is_null() {
            // SAFETY: memory checks the pointer.
            unsafe { memory::write(count, 0)? };
        }
        let devices = devices()?;
        // SAFETY: a pointer for each and the terminator; the list is the program's until it is freed.
        let list = unsafe { libc::calloc(devices.len() + 1, size_of::<*mut ibv_device>()) };
        let list = list.cast::<*mut ibv_device>();
        if list.is_null() {
            return Err(Errno(libc::ENOMEM));
        }
        // SAFETY: as above; memory checks the program's pointer.
        unsafe {
            for (place, opened) in devices.iter().enumerate() {
                *list.add(place) = opened.object.cast();
            }
            if !count.is_null() {
                memory::write(count, devices.len() as c_int)?;
            }
        }
        lists().insert(list.addr());
        Ok(list)
    })
}

/// ibv_free_device_list(3)
///
/// # Safety
/// The pointer is what the program passed.
pub unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    nothing(|| {
        if lists().remove(&list.addr()) {
            // SAFETY: it came from calloc above and was not freed.
            unsafe { libc::free(list.cast()) };
        }
        Ok(())
    });
}

/// The device of a pointer.
fn known(device: *const ibv_device) -> Outcome<&'static Opened> {
    let devices = current().ok_or(Errno(libc::ENODEV))?;
    devices.iter().find(|opened| std::ptr::addr_eq(device, opened.object)).ok_or(Errno(libc::EINVAL))
}

/// ibv_get_device_name(3)
pub extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    pointer(|| {
        let opened = known(device)?;
        // SAFETY: the device's own memory, never freed.
        Ok(unsafe { (&raw mut (*opened.object).abi.name).cast::<c_char>() })
    })
}

/// ibv_get_device_guid(3): in network byte order.
pub extern "C" fn ibv_get_device_guid(device: *mut ibv_device) -> u64 {
    value(0, || Ok(known(device)?.device.guid().to_be()))
}

/// ibv_get_device_index(3): -1 keeps programs from asking the kernel about the device.
pub extern "C" fn ibv_get_device_index(_device: *mut ibv_device) -> c_int {
    -1
}

/// ibv_open_device(3)
pub extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    pointer(|| {
        let opened = known(device)?;
        let events = EventQueue::new().map_err(descriptor_error)?;
        let command = OwnedFd::from(
            std::fs::File::open("/dev/null")
                .map_err(|error| Errno(error.raw_os_error().unwrap_or(libc::EMFILE)))?,
        );
        // SAFETY: null pointers and numbers.
        let mut abi: verbs_context = unsafe { std::mem::zeroed() };
        operations(&mut abi);
        abi.context.device = device;
        abi.context.cmd_fd = command.as_raw_fd();
        abi.context.async_fd = events.descriptor();
        abi.context.num_comp_vectors = vectors(&opened.device);
        let shared = Arc::new(Shared { device: opened.device.clone(), events });
        Ok(Object::publish(abi, Context { shared, _command: command }))
    })
}

/// Completion vectors: programs spread their queues over them. If workers run the tasks, each worker has one.
fn vectors(device: &Device) -> c_int {
    if device.config().tasks != Tasks::Inline {
        return device.completion_vectors() as c_int;
    }
    std::thread::available_parallelism().map_or(1, |count| count.get().min(64) as c_int)
}

/// ibv_close_device(3)
///
/// # Safety
/// The pointer is what the program passed.
pub unsafe extern "C" fn ibv_close_device(pointer: *mut ibv_context) -> c_int {
    minus_one(|| {
        // SAFETY: find checks the pointer.
        let object = unsafe { context(pointer)? };
        drop(object.retire());
        Ok(0)
    })
}

/// The tables of operations. What is missing stays null: then verbs.h answers `EOPNOTSUPP` itself.
fn operations(abi: &mut verbs_context) {
    abi.sz = size_of::<verbs_context>();
    abi.context.abi_compat = std::ptr::without_provenance_mut(usize::MAX);
    abi.query_port = Some(query::query_port_sized);
    abi.query_device_ex = Some(query::query_device_ex);
    abi.query_rt_values = Some(query::query_rt_values);
    abi.reg_mr_ex = Some(region::ibv_reg_mr_ex);
    abi.advise_mr = Some(region::advise_mr);
    abi.alloc_td = Some(region::alloc_td);
    abi.dealloc_td = Some(region::dealloc_td);
    abi.alloc_parent_domain = Some(region::alloc_parent_domain);
    abi.create_cq_ex = Some(poll_ex::create_cq_ex);
    abi.create_qp_ex = Some(queue_pair::create_qp_ex);
    abi.create_srq_ex = Some(shared::create_srq_ex);
    abi.get_srq_num = Some(shared::get_srq_num);

    let ops = &mut abi.context.ops;
    ops._compat_query_device = Some(query::ibv_query_device);
    ops._compat_query_port = Some(query::ibv_query_port);
    ops.poll_cq = Some(completion::poll_cq);
    ops.req_notify_cq = Some(completion::req_notify_cq);
    ops.post_srq_recv = Some(shared::post_srq_recv);
    ops.post_send = Some(post::post_send);
    ops.post_recv = Some(post::post_recv);
}

/// ibv_get_async_event(3)
///
/// # Safety
/// The pointers are what the program passed.
pub unsafe extern "C" fn ibv_get_async_event(
    pointer: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    minus_one(|| {
        // SAFETY: find checks the context.
        let shared = unsafe { context(pointer)? }.private.shared.clone();
        // Before it waits: a bad pointer must not cost an event.
        // SAFETY: memory checks the pointer.
        unsafe { memory::read(event)? };
        let entry = shared.events.next(|entry| entry.acknowledgements.deliver())?;
        // SAFETY: as above.
        unsafe { memory::write(event, ibv_async_event { element: entry.element, event_type: entry.kind })? };
        Ok(0)
    })
}

/// ibv_ack_async_event(3)
///
/// # Safety
/// The pointer is what the program passed.
pub unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    nothing(|| {
        // SAFETY: memory checks the pointer, find what is in the event.
        unsafe {
            let event = memory::read(event)?;
            match event.event_type {
                IBV_EVENT_CQ_ERR => {
                    let cq = Object::<completion::Queue>::find(event.element.cq)?;
                    cq.private.async_events.acknowledge(1);
                }
                IBV_EVENT_SRQ_ERR | IBV_EVENT_SRQ_LIMIT_REACHED => {
                    let srq = Object::<shared::SharedQueue>::find(event.element.srq)?;
                    srq.private.events.acknowledge(1);
                }
                IBV_EVENT_QP_FATAL..=IBV_EVENT_PATH_MIG_ERR | IBV_EVENT_QP_LAST_WQE_REACHED => {
                    let qp = Object::<queue_pair::Pair>::find(event.element.qp)?;
                    qp.private.events.acknowledge(1);
                }
                // Events of the port and the device belong to no object.
                _ => {}
            }
        }
        Ok(())
    });
}

// The range of queue pair events in ibv_ack_async_event.
const _: () = assert!(IBV_EVENT_QP_FATAL == 1 && IBV_EVENT_PATH_MIG_ERR == 7);
