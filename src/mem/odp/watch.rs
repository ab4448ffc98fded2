//! Hears what the program does to its mappings: an MMU notifier in user space.
//!
//! A userfaultfd is registered for write protection, with nothing ever protected, so that it catches no fault. What it
//! delivers are the events: MADV_DONTNEED and hole punching by madvise (REMOVE), munmap and mapping over (UNMAP), mremap
//! (REMAP). The kernel delivers them synchronously: the program's call does not return before the event was
//! read. So the thread that reads them must get on whatever the program holds: it takes no lock, and allocates and frees
//! nothing, since the one who waits may be inside the allocator.
//!
//! With `UFFD_FEATURE_WP_ASYNC` (Linux 6.7) every kind of writable mapping can be watched, before that anonymous memory
//! and, with 5.19, shared memory. What cannot be watched, or where there is no userfaultfd at all, the guard of the copies
//! is what remains: nothing wrong is read or written then either, only faults are not counted again.
//!
//! A child does not inherit the registration, since `UFFD_FEATURE_EVENT_FORK` is not asked for. It would inherit the
//! descriptor, and with it keep the parent's registrations alive when the parent closes its own: so it is closed
//! there at once.

#![allow(unsafe_code)]

use std::io;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Once, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::pages::{PAGE_BITS, Root};
use crate::mem::mapped;

/// A region as the reading thread sees it. These are never freed, only used again: see [`Root`].
pub(super) struct Watched {
    /// First and last address; an entry with `last` 0 is free.
    first: AtomicU64,
    last: AtomicU64,
    root: AtomicU64,
    /// Events that made pages absent.
    pub(super) invalidations: AtomicU64,
    /// Pages that became absent by them.
    pub(super) pages: AtomicU64,
    in_use: AtomicBool,
    next: *const Watched,
}

// SAFETY: `next` is set before the entry is shared and never changes.
unsafe impl Sync for Watched {}
// SAFETY: as above.
unsafe impl Send for Watched {}

/// The list of all entries there ever were.
static LIST: AtomicPtr<Watched> = AtomicPtr::new(std::ptr::null_mut());

fn entries() -> impl Iterator<Item = &'static Watched> {
    let mut at: *const Watched = LIST.load(Ordering::Acquire);
    std::iter::from_fn(move || {
        // SAFETY: entries are leaked boxes.
        let entry: &'static Watched = unsafe { at.as_ref()? };
        at = entry.next;
        Some(entry)
    })
}

impl Watched {
    /// Enters a region.
    pub(super) fn enter(first: u64, last: u64, root: Root) -> &'static Self {
        let free = entries()
            .find(|e| e.in_use.compare_exchange(false, true, Ordering::AcqRel, Ordering::Relaxed).is_ok());
        let entry = match free {
            Some(entry) => {
                entry.invalidations.store(0, Ordering::Relaxed);
                entry.pages.store(0, Ordering::Relaxed);
                entry
            }
            None => Self::grow(),
        };
        entry.root.store(root.0, Ordering::Relaxed);
        entry.first.store(first, Ordering::Relaxed);
        entry.last.store(last, Ordering::Release);
        entry
    }

    fn grow() -> &'static Self {
        let new = Box::into_raw(Box::new(Self {
            first: AtomicU64::new(0),
            last: AtomicU64::new(0),
            root: AtomicU64::new(0),
            invalidations: AtomicU64::new(0),
            pages: AtomicU64::new(0),
            in_use: AtomicBool::new(true),
            next: std::ptr::null(),
        }));
        let mut head = LIST.load(Ordering::Acquire);
        loop {
            // SAFETY: nobody else has the entry yet, and it is never freed.
            unsafe { (*new).next = head };
            match LIST.compare_exchange(head, new, Ordering::AcqRel, Ordering::Acquire) {
                // SAFETY: as above.
                Ok(_) => return unsafe { &*new },
                Err(other) => head = other,
            }
        }
    }

    /// Takes the region out. A reader that has seen it may still clear bits of its tree.
    pub(super) fn leave(&self) {
        self.last.store(0, Ordering::Relaxed);
        self.root.store(0, Ordering::Relaxed);
        self.in_use.store(false, Ordering::Release);
    }
}

/// Makes `[start, end)` absent in all regions. Runs in the reading thread: no lock, no allocation.
fn invalidate(start: u64, end: u64) {
    let Some(end) = end.checked_sub(1) else { return };
    for entry in entries() {
        let last = entry.last.load(Ordering::Acquire);
        let first = entry.first.load(Ordering::Relaxed);
        if last == 0 || start > last || end < first {
            continue;
        }
        let root = Root(entry.root.load(Ordering::Relaxed));
        let base = first >> PAGE_BITS;
        let pages = root.clear((start.max(first) >> PAGE_BITS) - base, (end.min(last) >> PAGE_BITS) - base);
        if pages > 0 {
            entry.invalidations.fetch_add(1, Ordering::Relaxed);
            entry.pages.fetch_add(pages, Ordering::Relaxed);
        }
    }
}

/// How long events that have been read are waited for. The thread that has read them only needs a CPU, and a page that is
/// taken for absent costs a fault and no more.
const SETTLED: Duration = Duration::from_millis(20);

/// Mappings that are known to be registered: so many, the oldest are forgotten.
const COVERED: usize = 64;

/// The userfaultfd of the process, and the thread that reads it.
pub(super) struct Watch {
    shared: Arc<Shared>,
    stop: libc::c_int,
    thread: Option<JoinHandle<()>>,
    /// Whose child must not touch it.
    pid: libc::pid_t,
}

struct Shared {
    fd: libc::c_int,
    covered: [(AtomicU64, AtomicU64); COVERED],
    /// Counts the events after which a mapping may not be registered any more.
    unmaps: AtomicU64,
    /// Rounds of the reading thread that have begun or ended: odd while events may have been read whose pages are not yet
    /// absent.
    rounds: AtomicU64,
    /// The next entry of `covered` to be replaced.
    turn: Mutex<usize>,
}

/// The one of this process, while a device uses it.
static CURRENT: Mutex<Weak<Watch>> = Mutex::new(Weak::new());
/// Its descriptors, for the child of a fork.
static DESCRIPTORS: [AtomicI32; 2] = [const { AtomicI32::new(-1) }; 2];

extern "C" fn in_child() {
    for fd in &DESCRIPTORS {
        let fd = fd.swap(-1, Ordering::Relaxed);
        if fd >= 0 {
            // SAFETY: the child's duplicate of a descriptor of ours.
            unsafe { libc::close(fd) };
        }
    }
}

const UFFD_USER_MODE_ONLY: libc::c_int = 1;
const UFFD_API: u64 = 0xaa;
const EVENT_REMAP: u64 = 1 << 2;
const EVENT_REMOVE: u64 = 1 << 3;
const EVENT_UNMAP: u64 = 1 << 6;
const WP_HUGETLBFS_SHMEM: u64 = 1 << 12;
const WP_ASYNC: u64 = 1 << 15;
const MODE_WP: u64 = 1 << 1;

const MESSAGE_REMAP: u8 = 0x14;
const MESSAGE_REMOVE: u8 = 0x15;
const MESSAGE_UNMAP: u8 = 0x16;

/// `struct uffdio_api`.
#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

/// `struct uffdio_register`.
#[repr(C)]
struct Register {
    start: u64,
    len: u64,
    mode: u64,
    ioctls: u64,
}

/// `struct uffdio_range`.
#[repr(C)]
struct Range {
    start: u64,
    len: u64,
}

/// `struct uffd_msg`, with the arguments of the events that we ask for.
#[repr(C)]
#[derive(Clone, Copy)]
struct Message {
    event: u8,
    reserved: [u8; 7],
    arguments: [u64; 3],
}

const fn request(direction: u64, number: u64, size: usize) -> u64 {
    direction << 30 | (size as u64) << 16 | 0xaa << 8 | number
}
const UFFDIO_API: u64 = request(3, 0x3f, size_of::<Api>());
const UFFDIO_REGISTER: u64 = request(3, 0, size_of::<Register>());
const UFFDIO_UNREGISTER: u64 = request(2, 1, size_of::<Range>());

fn open() -> io::Result<libc::c_int> {
    let mut last = io::Error::from_raw_os_error(libc::EINVAL);
    // The API can be chosen once for a descriptor, so each attempt has its own.
    for optional in [WP_ASYNC | WP_HUGETLBFS_SHMEM, WP_HUGETLBFS_SHMEM, 0] {
        // SAFETY: a system call without pointers.
        let fd = unsafe {
            libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | libc::O_NONBLOCK | UFFD_USER_MODE_ONLY)
        };
        let Ok(fd) = libc::c_int::try_from(fd) else { return Err(io::Error::last_os_error()) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        let features = EVENT_REMAP | EVENT_REMOVE | EVENT_UNMAP | optional;
        let mut api = Api { api: UFFD_API, features, ioctls: 0 };
        // SAFETY: the request's structure.
        if unsafe { libc::ioctl(fd, UFFDIO_API as _, &raw mut api) } == 0 {
            return Ok(fd);
        }
        last = io::Error::last_os_error();
        // SAFETY: ours.
        unsafe { libc::close(fd) };
    }
    Err(last)
}

impl Watch {
    /// The one of this process. The error says why there is none.
    pub(super) fn get() -> io::Result<Arc<Self>> {
        let mut current = CURRENT.lock();
        // SAFETY: no preconditions.
        let pid = unsafe { libc::getpid() };
        if let Some(watch) = current.upgrade().filter(|watch| watch.pid == pid) {
            return Ok(watch);
        }
        let fd = open()?;
        // SAFETY: no preconditions.
        let stop = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if stop < 0 {
            let error = io::Error::last_os_error();
            // SAFETY: ours.
            unsafe { libc::close(fd) };
            return Err(error);
        }
        static AT_FORK: Once = Once::new();
        // SAFETY: the handler only closes descriptors, which is allowed in a child.
        AT_FORK.call_once(|| unsafe {
            libc::pthread_atfork(None, None, Some(in_child));
        });
        DESCRIPTORS[0].store(fd, Ordering::Relaxed);
        DESCRIPTORS[1].store(stop, Ordering::Relaxed);
        let shared = Arc::new(Shared {
            fd,
            covered: [const { (AtomicU64::new(0), AtomicU64::new(0)) }; COVERED],
            unmaps: AtomicU64::new(0),
            rounds: AtomicU64::new(0),
            turn: Mutex::new(0),
        });
        let mut watch = Self { shared, stop, thread: None, pid };
        let shared = watch.shared.clone();
        let thread = crate::mem::guard::without_signals(|| {
            let builder = std::thread::Builder::new().name("urxe-watch".into()).stack_size(64 * 1024);
            builder.spawn(move || shared.read(stop))
        });
        watch.thread = Some(thread?);
        let watch = Arc::new(watch);
        *current = Arc::downgrade(&watch);
        Ok(watch)
    }

    /// Makes sure that what happens to the mappings of `[start, end)` is heard. What cannot be watched is left out.
    pub(super) fn cover(&self, start: u64, end: u64) {
        let shared = &*self.shared;
        if shared.is_covered(start, end) {
            return;
        }
        mapped::mappings(start, end, |from, to| {
            if shared.is_covered(from, to) {
                return;
            }
            let before = shared.unmaps.load(Ordering::Acquire);
            let mut register = Register { start: from, len: to - from, mode: MODE_WP, ioctls: 0 };
            // SAFETY: the request's structure. Nothing is protected, so no access of the program is affected. A
            // mapping that cannot be registered (or is, by the program itself) stays as it is.
            let done = unsafe { libc::ioctl(shared.fd, UFFDIO_REGISTER as _, &raw mut register) };
            if done == 0 {
                shared.remember(from, to, before);
            }
        });
    }

    /// Waits until what the program has done before is known, so that what is made present now is not taken for what
    /// was given up then. In vain, and not for long, in a child, where nobody reads.
    pub(super) fn settle(&self) {
        let round = self.shared.rounds.load(Ordering::SeqCst);
        // Only for the present one: a program that never stops would be waited for forever.
        if round % 2 == 1 {
            let end = Instant::now() + SETTLED;
            while self.shared.rounds.load(Ordering::Acquire) == round && Instant::now() < end {
                std::thread::yield_now();
            }
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // SAFETY: no preconditions.
        if unsafe { libc::getpid() } != self.pid {
            // A child: the descriptors are closed, and the thread is not there.
            std::mem::forget(self.thread.take());
            return;
        }
        // A child that was made by other means than fork may hold a duplicate of the descriptor, and with it the
        // registrations: the program would wait forever for somebody to read its events. So they end first, while the
        // thread still reads.
        mapped::mappings(0, 1 << 57, |start, end| {
            let mut range = Range { start, len: end - start };
            // SAFETY: the request's structure. Mappings that are not registered are not affected.
            unsafe { libc::ioctl(self.shared.fd, UFFDIO_UNREGISTER as _, &raw mut range) };
        });
        let one = 1_u64;
        // SAFETY: eight bytes of ours.
        unsafe { libc::write(self.stop, (&raw const one).cast(), 8) };
        if let Some(thread) = self.thread.take() {
            // It ends by itself; that it panicked would change nothing.
            let _ = thread.join();
        }
        for (slot, fd) in DESCRIPTORS.iter().zip([self.shared.fd, self.stop]) {
            // Another one may have been opened meanwhile.
            let _ = slot.compare_exchange(fd, -1, Ordering::Relaxed, Ordering::Relaxed);
            // SAFETY: ours.
            unsafe { libc::close(fd) };
        }
    }
}

impl Shared {
    fn is_covered(&self, start: u64, end: u64) -> bool {
        self.covered.iter().any(|(from, to)| {
            let until = to.load(Ordering::Acquire);
            until >= end && from.load(Ordering::Relaxed) <= start
        })
    }

    fn remember(&self, start: u64, end: u64, unmaps: u64) {
        let mut turn = self.turn.lock();
        let (from, to) = &self.covered[*turn];
        *turn = (*turn + 1) % COVERED;
        to.store(0, Ordering::Release);
        from.store(start, Ordering::Release);
        to.store(end, Ordering::SeqCst);
        // An event between the registration and now: the reading thread may not have seen this entry.
        if self.unmaps.load(Ordering::SeqCst) != unmaps {
            to.store(0, Ordering::Release);
        }
    }

    fn forget(&self, start: u64, end: u64) {
        self.unmaps.fetch_add(1, Ordering::SeqCst);
        for (from, to) in &self.covered {
            if to.load(Ordering::SeqCst) > start && from.load(Ordering::Relaxed) < end {
                to.store(0, Ordering::Release);
            }
        }
    }

    /// The reading thread.
    fn read(&self, stop: libc::c_int) {
        let mut messages = [Message { event: 0, reserved: [0; 7], arguments: [0; 3] }; 16];
        loop {
            let mut fds = [self.fd, stop].map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
            // SAFETY: an array of two.
            if unsafe { libc::poll(fds.as_mut_ptr(), 2, -1) } < 0 {
                continue;
            }
            // Before the program's call returns, which is when its event is read.
            self.rounds.fetch_add(1, Ordering::SeqCst);
            // SAFETY: reads at most as many bytes as the array has; every pattern of bytes is a valid message.
            let n = unsafe { libc::read(self.fd, messages.as_mut_ptr().cast(), size_of_val(&messages)) };
            let count = usize::try_from(n).unwrap_or(0) / size_of::<Message>();
            for message in &messages[..count] {
                let [a, b, c] = message.arguments;
                match message.event {
                    MESSAGE_REMOVE => invalidate(a, b),
                    MESSAGE_UNMAP => {
                        self.forget(a, b);
                        invalidate(a, b);
                    }
                    MESSAGE_REMAP => {
                        for start in [a, b] {
                            self.forget(start, start.saturating_add(c));
                            invalidate(start, start.saturating_add(c));
                        }
                    }
                    _ => {}
                }
            }
            self.rounds.fetch_add(1, Ordering::Release);
            if count == 0 && fds[1].revents != 0 {
                return;
            }
        }
    }
}
