//! Signals that ask the driver to stop.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::Error;
use super::process::Event;

/// SIGINT, SIGTERM and SIGHUP. The first one stops what runs; the second one ends the driver at once.
#[derive(Clone, Debug, Default)]
pub struct Interrupt {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    signal: Arc<AtomicUsize>,
    waiting: Mutex<BTreeMap<u64, Sender<Event>>>,
    /// The number of the next one who waits.
    next: AtomicU64,
}

/// Somebody is told of signals as long as this is there.
#[derive(Debug)]
pub(super) struct Told {
    shared: Arc<Shared>,
    number: u64,
}

impl Drop for Told {
    fn drop(&mut self) {
        self.shared.waiting().remove(&self.number);
    }
}

impl Interrupt {
    /// Handles the signals from now on. `Interrupt::default()` handles none.
    pub fn new() -> Result<Self, Error> {
        let interrupt = Self::default();
        interrupt.handle().map_err(|e| Error::Failed(format!("cannot handle signals: {e}")))?;
        Ok(interrupt)
    }

    fn handle(&self) -> io::Result<()> {
        let again = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let (reader, writer) = io::pipe()?;
        for number in [SIGINT, SIGTERM, SIGHUP] {
            // In this order: the first signal only arms what the second one meets.
            signal_hook::flag::register_conditional_shutdown(number, 128 + number, again.clone())?;
            signal_hook::flag::register(number, again.clone())?;
            signal_hook::flag::register_usize(number, self.shared.signal.clone(), number as usize)?;
            signal_hook::low_level::pipe::register(number, writer.try_clone()?)?;
        }
        let shared = self.shared.clone();
        std::thread::spawn(move || shared.wait(reader));
        Ok(())
    }

    /// The signal that has come, if one has.
    pub fn signal(&self) -> Option<i32> {
        match self.shared.signal.load(Ordering::Relaxed) {
            0 => None,
            number => Some(number as i32),
        }
    }

    /// Tells `waiting` when a signal comes, or at once if it has.
    #[must_use]
    pub(super) fn tell(&self, waiting: Sender<Event>) -> Told {
        let mut all = self.shared.waiting();
        if self.signal().is_some() {
            // Who does not wait any more need not know.
            let _ = waiting.send(Event::Interrupted);
        }
        let number = self.shared.next.fetch_add(1, Ordering::Relaxed);
        all.insert(number, waiting);
        Told { shared: self.shared.clone(), number }
    }
}

impl Shared {
    fn wait(&self, mut signals: io::PipeReader) {
        let mut byte = [0];
        while io::Read::read_exact(&mut signals, &mut byte).is_ok() {
            for waiting in self.waiting().values() {
                // As above.
                let _ = waiting.send(Event::Interrupted);
            }
        }
    }

    fn waiting(&self) -> MutexGuard<'_, BTreeMap<u64, Sender<Event>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
