//! The process's devices as the connection manager sees them, and the way to the daemon.

use std::collections::BTreeSet;
use std::ffi::c_int;
use std::net::IpAddr;
use std::sync::{Arc, Once, OnceLock};

use device::cm::{Answer, Command, Endpoint, Refused};
use device::config::Daemon;
use device::device::Device;
use parking_lot::Mutex;
use urxe_control::client::CmError;

use super::id::{Binding, Options};
use crate::abi::*;
use crate::boundary::{Errno, Outcome, nothing, pointer};
use crate::memory;
use crate::session::{self, PerProcess};
use crate::verbs::device::{
    SendPointer, context, ibv_free_device_list, ibv_get_device_list, ibv_open_device,
};
use crate::verbs::region::ibv_alloc_pd;

/// A device with the context and the protection domain that identifiers get.
pub struct Rail {
    /// The context.
    pub context: *mut ibv_context,
    /// The device.
    pub device: Arc<Device>,
    pd: OnceLock<SendPointer<ibv_pd>>,
}

// SAFETY: the pointer is only handed to the program.
unsafe impl Sync for Rail {}
// SAFETY: as above.
unsafe impl Send for Rail {}
// SAFETY: the pointer is only carried.
unsafe impl<T> Sync for SendPointer<T> {}

impl Rail {
    /// Its address.
    pub fn address(&self) -> IpAddr {
        self.device.port().ip
    }

    /// The protection domain of identifiers on it. It stays: it costs nothing, and programs keep it in their `id->pd`.
    pub fn pd(&self) -> Outcome<*mut ibv_pd> {
        if let Some(pd) = self.pd.get() {
            return Ok(pd.0);
        }
        // SAFETY: the context lives as long as the process.
        let made = unsafe { ibv_alloc_pd(self.context) };
        if made.is_null() {
            return Err(Errno(libc::ENOMEM));
        }
        Ok(self.pd.get_or_init(|| SendPointer(made)).0)
    }
}

static RAILS: PerProcess<Vec<Rail>> = PerProcess::new();

/// The devices of this process, each with a context that is opened at the first look.
pub fn rails() -> Outcome<&'static [Rail]> {
    let rails = RAILS.get_or_make(|| {
        let mut list = Vec::new();
        for context_pointer in open_all()? {
            // SAFETY: find checks the pointer, which was just opened.
            let device = unsafe { context(context_pointer)? }.private.shared.device.clone();
            list.push(Rail { context: context_pointer, device, pd: OnceLock::new() });
        }
        Ok(list)
    })?;
    Ok(rails)
}

fn open_all() -> Outcome<Vec<*mut ibv_context>> {
    let mut count: c_int = 0;
    // SAFETY: the list is ours until it is freed, and as long as it says.
    unsafe {
        let devices = ibv_get_device_list(&mut count);
        if devices.is_null() {
            return Err(crate::boundary::last_errno());
        }
        let contexts: Vec<_> =
            (0..count.max(0) as usize).map(|number| ibv_open_device(*devices.add(number))).collect();
        ibv_free_device_list(devices);
        if contexts.is_empty() || contexts.iter().any(|context| context.is_null()) {
            return Err(Errno(libc::ENODEV));
        }
        Ok(contexts)
    }
}

/// The addresses of the devices.
pub fn addresses() -> Outcome<Vec<IpAddr>> {
    Ok(rails()?.iter().map(Rail::address).collect())
}

/// There are devices and a daemon, or `errno` says why not.
pub fn ready() -> Outcome<()> {
    rails()?;
    if session::config()?.daemon == Daemon::Off {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            tracing::warn!(
                "the connection manager (rdma_*) is the daemon's, and the configuration says daemon = off"
            );
        });
        return Err(Errno(libc::ENODEV));
    }
    session::client().map(|_| ())
}

/// Asks the connection manager.
pub fn ask(command: Command) -> Result<Answer, Failed> {
    let client = session::client().map_err(Failed::Daemon)?;
    client.cm(command).map_err(|error| match error {
        CmError::Refused(refused) => Failed::Refused(refused),
        CmError::Daemon(error) => {
            tracing::warn!("connection management: {error}");
            Failed::Daemon(Errno(error.errno()))
        }
    })
}

/// Why the connection manager did not do it.
#[derive(Clone, Copy, Debug)]
pub enum Failed {
    /// It says no.
    Refused(Refused),
    /// It was not reached.
    Daemon(Errno),
}

impl Failed {
    /// As the kernel would say it.
    pub fn errno(self) -> Errno {
        Errno(match self {
            Self::Daemon(error) => return error,
            Self::Refused(Refused::AddressInUse) => libc::EADDRINUSE,
            Self::Refused(Refused::NoFreePort) => libc::EADDRNOTAVAIL,
            Self::Refused(Refused::PortNotPermitted) => libc::EACCES,
            Self::Refused(Refused::NotLocal) => libc::ENODEV,
            Self::Refused(Refused::Limit) => libc::ENOMEM,
            Self::Refused(Refused::NoEndpoint | Refused::State | Refused::Invalid) => libc::EINVAL,
        })
    }
}

/// Asks for what has no answer but that it is done.
pub fn command(command: Command) -> Outcome<()> {
    ask(command).map(|_| ()).map_err(|failed| {
        tracing::debug!("connection management: {failed:?}");
        failed.errno()
    })
}

/// Makes an endpoint; it listens if the binding says so.
pub fn bind(space: device::cm::PortSpace, binding: &Binding, options: Options) -> Outcome<(Endpoint, u16)> {
    let answer = ask(Command::Bind {
        space,
        address: binding.address,
        devices: binding.devices.clone(),
        reuse: options.reuse,
        v6_only: options.v6_only,
    });
    match answer.map_err(Failed::errno)? {
        Answer::Bound { endpoint, port } => Ok((endpoint, port)),
        Answer::Done => Err(Errno(libc::EPROTO)),
    }
}

/// Lists that the program has not freed yet.
static LISTS: Mutex<BTreeSet<usize>> = Mutex::new(BTreeSet::new());

/// rdma_get_devices(3)
///
/// # Safety
/// The pointer is what the program passed.
pub unsafe extern "C" fn rdma_get_devices(count: *mut c_int) -> *mut *mut ibv_context {
    pointer(|| {
        let tell = |number: usize| match count.is_null() {
            true => Ok(()),
            // SAFETY: memory checks the pointer.
            false => unsafe { memory::write(count, number as c_int) },
        };
        tell(0)?;
        let rails = rails()?;
        // SAFETY: room for all and the terminator; the list is the program's until it is freed.
        let list = unsafe { libc::calloc(rails.len() + 1, size_of::<*mut ibv_context>()) };
        let list = list.cast::<*mut ibv_context>();
        if list.is_null() {
            return Err(Errno(libc::ENOMEM));
        }
        for (number, rail) in rails.iter().enumerate() {
            // SAFETY: as above.
            unsafe { *list.add(number) = rail.context };
        }
        LISTS.lock().insert(list.addr());
        tell(rails.len())?;
        Ok(list)
    })
}

/// rdma_free_devices(3)
///
/// # Safety
/// The pointer is what the program passed.
pub unsafe extern "C" fn rdma_free_devices(list: *mut *mut ibv_context) {
    nothing(|| {
        if LISTS.lock().remove(&list.addr()) {
            // SAFETY: it came from calloc above and was not freed.
            unsafe { libc::free(list.cast()) };
        }
        Ok(())
    });
}
