//! A program may fork while its other threads are inside this library.
//!
//! The child has one thread. A lock that another one held at that moment is never given free there, so before a fork the
//! locks of what a child may use are taken: the tables of memory regions, of objects and of device lists. They are mutexes
//! of the standard library: those of parking_lot keep who waits in a table of the whole process, which has locks as well.

use std::cell::RefCell;
use std::sync::{Mutex, MutexGuard, Once, TryLockError};
use std::time::{Duration, Instant};

use crate::boundary::nothing;
use crate::verbs::{device, handle};

/// A lock that is not free by then belongs to a thread that waits for the fork, or to this one: the fork then goes on
/// without it.
const PATIENCE: Duration = Duration::from_secs(1);

type Held = Vec<Box<dyn Anything>>;

/// Anything that can be dropped.
trait Anything {}
impl<T> Anything for T {}

thread_local! {
    /// What the calling thread holds across its fork.
    static HELD: RefCell<Held> = const { RefCell::new(Vec::new()) };
}

/// Prepares the process for forks. To be called when there are devices.
pub fn prepare() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the functions live as long as the library, and unwind nowhere.
        let result = unsafe { libc::pthread_atfork(Some(before), Some(after), Some(after)) };
        if result != 0 {
            tracing::warn!(errno = result, "a child of fork may find locks that nobody gives free");
        }
    });
}

extern "C" fn before() {
    nothing(|| {
        let end = Instant::now() + PATIENCE;
        let mut held: Held = Vec::new();
        // Nobody holds two of them at a time but us.
        for opened in device::current().unwrap_or_default() {
            held.extend(until(end, || opened.device.memory().quiesce()).map(boxed));
        }
        held.extend(until(end, handle::quiesce).map(boxed));
        held.extend(until(end, device::quiesce_lists).map(boxed));
        _ = HELD.try_with(|mine| *mine.borrow_mut() = held);
        Ok(())
    });
}

/// In the parent and in the child.
extern "C" fn after() {
    nothing(|| {
        let held = HELD.try_with(|mine| std::mem::take(&mut *mine.borrow_mut()));
        drop(held);
        Ok(())
    });
}

fn boxed<T: 'static>(held: T) -> Box<dyn Anything> {
    Box::new(held)
}

fn until<T>(end: Instant, mut take: impl FnMut() -> Option<T>) -> Option<T> {
    loop {
        let taken = take();
        if taken.is_some() || Instant::now() >= end {
            return taken;
        }
        std::thread::yield_now();
    }
}

/// A lock, if it is free.
pub fn try_hold<T>(mutex: &'static Mutex<T>) -> Option<MutexGuard<'static, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(error)) => Some(error.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}
