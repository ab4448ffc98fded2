//! The process's configuration, and its way to the daemon: made at the first need, and anew in a child of fork.

use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::Duration;

use device::cm::Event;
use device::config::{Config, Daemon};
use parking_lot::{Mutex, MutexGuard};
use urxe_control::client::{Client, Listener};
use urxe_control::protocol::{
    DeviceReport, MAX_REPORTED_QPS, MAX_REPORTED_REGIONS, ProcessReport, QpReport, RegionReport,
};

use crate::boundary::{Errno, Outcome, quiet_panics};
use crate::verbs::device::{Opened, current};
use crate::{cm, log};

/// Something that a process makes once and that a child of fork, which has a copy of it, must make again: threads,
/// leases and the right to speak are its parent's. What was made is never freed, as others may be looking at it.
pub struct PerProcess<T: 'static> {
    made: AtomicPtr<Made<T>>,
    making: Mutex<()>,
}

struct Made<T> {
    process: u32,
    value: T,
}

impl<T: Sync> Default for PerProcess<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Sync> PerProcess<T> {
    /// Nothing is made yet.
    pub const fn new() -> Self {
        Self { made: AtomicPtr::new(std::ptr::null_mut()), making: Mutex::new(()) }
    }

    /// What this process has made.
    pub fn get(&self) -> Option<&'static T> {
        // SAFETY: null, or leaked when it was stored.
        let made = unsafe { self.made.load(Ordering::Acquire).as_ref() }?;
        (made.process == std::process::id()).then_some(&made.value)
    }

    /// What this process has made, or else makes now.
    pub fn get_or_make(&self, make: impl FnOnce() -> Outcome<T>) -> Outcome<&'static T> {
        if let Some(value) = self.get() {
            return Ok(value);
        }
        let _one: Option<MutexGuard<'_, ()>> = self.lock();
        if let Some(value) = self.get() {
            return Ok(value);
        }
        let made = Box::into_raw(Box::new(Made { process: std::process::id(), value: make()? }));
        self.made.store(made, Ordering::Release);
        // SAFETY: just leaked.
        Ok(unsafe { &(*made).value })
    }

    /// In a child of fork the lock may be held by a thread that is not there; then it is done without.
    fn lock(&self) -> Option<MutexGuard<'_, ()>> {
        self.making.try_lock_for(Duration::from_secs(10))
    }
}

static CONFIG: PerProcess<Config> = PerProcess::new();
static CLIENT: PerProcess<Arc<Client>> = PerProcess::new();

/// The configuration.
pub fn config() -> Outcome<&'static Config> {
    CONFIG.get_or_make(|| {
        quiet_panics();
        let config = Config::load().map_err(|error| {
            log::install(&Config::default());
            report(&format!("configuration: {error}"));
            Errno(libc::EINVAL)
        })?;
        log::install(&config);
        Ok(config)
    })
}

/// A configuration that cannot be read also says nothing about where to log; standard error is the only place
/// left, and a program without its device will tell its user nothing better.
fn report(text: &str) {
    let line = format!("urxe: error: {text}\n");
    // SAFETY: the buffer is as long as said.
    unsafe { libc::write(2, line.as_ptr().cast(), line.len()) };
}

/// The process's client of the daemon, which is started if none runs. ENODEV if the configuration wants none.
pub fn client() -> Outcome<Arc<Client>> {
    let config = config()?;
    if config.daemon == Daemon::Off {
        return Err(Errno(libc::ENODEV));
    }
    let client = CLIENT.get_or_make(|| {
        Client::connect(config, Arc::new(Ears)).map_err(|error| {
            tracing::error!("{error}");
            Errno(error.errno())
        })
    })?;
    Ok(client.clone())
}

/// Hears the daemon, on the client's thread.
struct Ears;

impl Listener for Ears {
    fn event(&self, event: Event) {
        cm::dispatch(event);
    }
    fn lost(&self) {
        cm::lost();
    }
    fn restored(&self) {
        cm::restored();
    }
    fn report(&self, number: u32) -> ProcessReport {
        let devices = current().unwrap_or_default();
        ProcessReport { number, devices: devices.iter().map(describe).collect() }
    }
}

fn describe(opened: &Opened) -> DeviceReport {
    let device = &opened.device;
    let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let qps = device.status(MAX_REPORTED_QPS).into_iter().map(|qp| QpReport {
        qpn: qp.number.0,
        kind: format!("{:?}", qp.kind).to_ascii_uppercase(),
        state: format!("{:?}", qp.state).to_ascii_uppercase(),
        peer: qp.peer.map(|(ip, number)| (ip, number.0)),
        send_queue: count(qp.send_queue),
        receive_queue: count(qp.receive_queue),
    });
    let named = |counters: &mut dyn Iterator<Item = (&'static str, u64)>| -> Vec<_> {
        counters.map(|(name, value)| (name.to_owned(), value)).collect()
    };
    let regions = device.memory().demand_regions().into_iter().take(MAX_REPORTED_REGIONS);
    let regions =
        regions.map(|(lkey, stats)| RegionReport { lkey: lkey.0, counters: named(&mut stats.all()) });
    let config = device.config();
    let tasks = format!("tasks {:?}", config.tasks).to_lowercase();
    DeviceReport {
        name: config.device.to_string(),
        address: device.port().ip,
        counters: named(&mut device.counters().into_iter()),
        qps: qps.collect(),
        qp_count: count(device.queue_pairs()),
        threads: std::iter::once(tasks).chain(device.threads().iter().map(ToString::to_string)).collect(),
        regions: regions.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_made_once_and_a_failure_is_tried_again() {
        static ONE: PerProcess<u32> = PerProcess::new();
        assert_eq!(ONE.get(), None);
        assert_eq!(ONE.get_or_make(|| Err(Errno(libc::ENODEV))), Err(Errno(libc::ENODEV)));
        assert_eq!(ONE.get_or_make(|| Ok(1)), Ok(&1));
        assert_eq!(ONE.get_or_make(|| Ok(2)), Ok(&1));
        assert_eq!(ONE.get(), Some(&1));
    }

    #[test]
    fn a_child_of_fork_makes_its_own() {
        static ONE: PerProcess<u32> = PerProcess::new();
        assert_eq!(ONE.get_or_make(|| Ok(std::process::id())), Ok(&std::process::id()));
        // SAFETY: the child only looks at memory, allocates, and exits.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                let none = ONE.get().is_none();
                let own = ONE.get_or_make(|| Ok(std::process::id())) == Ok(&std::process::id());
                libc::_exit(if none && own { 0 } else { 1 });
            }
            let mut status = -1;
            assert_eq!(libc::waitpid(child, &mut status, 0), child);
            assert_eq!(status, 0);
        }
    }
}
