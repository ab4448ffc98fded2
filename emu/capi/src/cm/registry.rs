//! Which identifier an endpoint of the daemon belongs to.
//!
//! A child of fork has its parent's memory, but neither its connection to the daemon nor a right to its endpoints, so
//! each process has a table of its own.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

use device::cm::Endpoint;
use parking_lot::Mutex;

use super::id::Id;

struct Registry {
    process: u32,
    endpoints: Mutex<HashMap<Endpoint, Arc<Id>>>,
}

static REGISTRY: AtomicPtr<Registry> = AtomicPtr::new(std::ptr::null_mut());

fn registry() -> &'static Registry {
    let process = std::process::id();
    loop {
        let current = REGISTRY.load(Ordering::Acquire);
        // SAFETY: null, or leaked when it was stored.
        if let Some(registry) = unsafe { current.as_ref() }
            && registry.process == process
        {
            return registry;
        }
        let new = Box::into_raw(Box::new(Registry { process, endpoints: Mutex::default() }));
        if REGISTRY.compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire).is_err() {
            // SAFETY: nobody else has seen it.
            drop(unsafe { Box::from_raw(new) });
        }
    }
}

/// Events of the endpoint go to this identifier from now on.
pub fn insert(endpoint: Endpoint, id: Arc<Id>) {
    registry().endpoints.lock().insert(endpoint, id);
}

/// No more events of the endpoint.
pub fn remove(endpoint: Endpoint) {
    registry().endpoints.lock().remove(&endpoint);
}

/// Whose endpoint it is.
pub fn find(endpoint: Endpoint) -> Option<Arc<Id>> {
    registry().endpoints.lock().get(&endpoint).cloned()
}

/// All identifiers that have an endpoint, which they lose: the daemon is gone.
pub fn drain() -> Vec<Arc<Id>> {
    std::mem::take(&mut *registry().endpoints.lock()).into_values().collect()
}
