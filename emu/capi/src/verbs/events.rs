//! Events that a program takes from a file descriptor, which it may also poll, put into an epoll set, or make
//! non-blocking.
//!
//! The descriptor is an eventfd that counts the events in the queue; reading it takes one, and blocks or fails
//! as the program has set it up.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use parking_lot::{Condvar, Mutex};

use crate::boundary::{Errno, Outcome, last_errno};

/// A queue of events with its descriptor.
pub struct EventQueue<T> {
    descriptor: OwnedFd,
    queue: Mutex<VecDeque<T>>,
    process: u32,
}

impl<T> EventQueue<T> {
    /// An empty queue.
    pub fn new() -> Outcome<Self> {
        // SAFETY: the descriptor is new and nobody else's.
        let descriptor = unsafe {
            let number = libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_SEMAPHORE);
            if number < 0 {
                return Err(last_errno());
            }
            OwnedFd::from_raw_fd(number)
        };
        Ok(Self { descriptor, queue: Mutex::new(VecDeque::new()), process: std::process::id() })
    }

    /// Whether it was made in this process. A child of fork has a copy of the queue, whose lock may be held by a thread
    /// that is not there, and shares the descriptor with its parent: it must leave both alone.
    pub fn is_ours(&self) -> bool {
        self.process == std::process::id()
    }

    /// The descriptor's number.
    pub fn descriptor(&self) -> RawFd {
        self.descriptor.as_raw_fd()
    }

    /// Adds an event.
    pub fn push(&self, event: T) {
        self.queue.lock().push_back(event);
        let one = 1u64.to_ne_bytes();
        // The counter cannot overflow: it would take 2^64 events in memory. If the program made the descriptor
        // something else, that is what it gets.
        // SAFETY: eight bytes, as an eventfd takes.
        unsafe { libc::write(self.descriptor(), one.as_ptr().cast(), one.len()) };
    }

    /// Takes the oldest event; waits for one unless the descriptor is non-blocking. `deliver` is called with
    /// the queue locked, so that [`EventQueue::remove`] sees the event either in the queue or delivered.
    pub fn next(&self, deliver: impl FnOnce(&T)) -> Outcome<T> {
        loop {
            let mut count = [0u8; 8];
            // SAFETY: a buffer of eight bytes.
            if unsafe { libc::read(self.descriptor(), count.as_mut_ptr().cast(), count.len()) } < 0 {
                return Err(last_errno());
            }
            let mut queue = self.queue.lock();
            if let Some(event) = queue.pop_front() {
                deliver(&event);
                return Ok(event);
            }
            // The event was removed between the read and the lock: wait for another.
        }
    }

    /// Removes the events that nobody must see any more.
    pub fn remove(&self, unwanted: impl Fn(&T) -> bool) {
        drop(self.extract(unwanted));
    }

    /// Takes out the events of one kind, oldest first.
    pub fn extract(&self, wanted: impl Fn(&T) -> bool) -> Vec<T> {
        if !self.is_ours() {
            return Vec::new();
        }
        let mut queue = self.queue.lock();
        let (taken, kept): (VecDeque<T>, VecDeque<T>) = queue.drain(..).partition(|event| wanted(event));
        *queue = kept;
        for _ in 0..taken.len() {
            let mut count = [0u8; 8];
            let vector = libc::iovec { iov_base: count.as_mut_ptr().cast(), iov_len: count.len() };
            // Not to block if another thread has read the count already: that one finds the queue shorter and
            // waits again.
            // SAFETY: one vector of eight bytes.
            unsafe { libc::preadv2(self.descriptor(), &vector, 1, -1, libc::RWF_NOWAIT) };
        }
        taken.into()
    }
}

/// Counts the events of an object that were delivered and acknowledged: destroying it waits until both are
/// equal (ibv_ack_cq_events(3), ibv_ack_async_event(3)).
#[derive(Default)]
pub struct Acknowledgements {
    counts: Mutex<(u64, u64)>,
    changed: Condvar,
}

impl Acknowledgements {
    /// An event was given to the program.
    pub fn deliver(&self) {
        self.counts.lock().0 += 1;
    }

    /// The program is done with `count` of them. More than there were is a mistake that must not hurt.
    pub fn acknowledge(&self, count: u32) {
        let mut counts = self.counts.lock();
        counts.1 = counts.1.saturating_add(count.into()).min(counts.0);
        self.changed.notify_all();
    }

    /// Waits until the program is done with all.
    pub fn wait(&self) {
        let mut counts = self.counts.lock();
        while counts.1 < counts.0 {
            self.changed.wait(&mut counts);
        }
    }
}

/// Makes an error of a queue that cannot be made tell its reason.
pub fn descriptor_error(error: Errno) -> Errno {
    tracing::error!("no file descriptor for events (errno {})", error.0);
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    fn readable(queue: &EventQueue<u32>) -> bool {
        let mut poll = libc::pollfd { fd: queue.descriptor(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry.
        unsafe { libc::poll(&mut poll, 1, 0) == 1 }
    }

    #[test]
    fn the_descriptor_is_readable_while_events_wait() {
        let queue = EventQueue::new().expect("a descriptor");
        assert!(!readable(&queue));
        queue.push(1);
        queue.push(2);
        assert!(readable(&queue));
        assert_eq!(queue.next(|_| {}), Ok(1));
        assert!(readable(&queue));
        assert_eq!(queue.next(|_| {}), Ok(2));
        assert!(!readable(&queue));
    }

    #[test]
    fn a_non_blocking_descriptor_fails_instead_of_waiting() {
        let queue = EventQueue::<u32>::new().expect("a descriptor");
        // SAFETY: plain flags.
        unsafe { libc::fcntl(queue.descriptor(), libc::F_SETFL, libc::O_NONBLOCK) };
        assert_eq!(queue.next(|_| {}), Err(Errno(libc::EAGAIN)));
    }

    #[test]
    fn removed_events_are_not_counted_either() {
        let queue = EventQueue::new().expect("a descriptor");
        for event in [1, 2, 1, 3] {
            queue.push(event);
        }
        queue.remove(|event| *event == 1);
        assert_eq!(queue.next(|_| {}), Ok(2));
        assert_eq!(queue.next(|_| {}), Ok(3));
        assert!(!readable(&queue));
    }

    #[test]
    fn a_blocked_reader_gets_the_event_of_another_thread() {
        let queue = EventQueue::new().expect("a descriptor");
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| queue.next(|_| {}));
            queue.push(5);
            assert_eq!(reader.join().expect("no panic"), Ok(5));
        });
    }

    #[test]
    fn waiting_ends_with_the_last_acknowledgement() {
        let counts = Acknowledgements::default();
        counts.acknowledge(3);
        counts.deliver();
        counts.deliver();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| counts.wait());
            counts.acknowledge(1);
            counts.acknowledge(1);
            waiter.join().expect("no panic");
        });
    }
}
