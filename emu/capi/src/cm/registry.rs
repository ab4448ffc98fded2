//! Which identifier an endpoint of the daemon belongs to.
//!
//! A child of fork has its parent's memory, but neither its connection to the daemon nor a right to its endpoints, so
//! each process has a table of its own.

use std::collections::HashMap;
use std::sync::Arc;

use device::cm::Endpoint;
use parking_lot::Mutex;

use super::id::Id;
use crate::session::PerProcess;

type Endpoints = Mutex<HashMap<Endpoint, Arc<Id>>>;

static ENDPOINTS: PerProcess<Endpoints> = PerProcess::new();

fn endpoints<T>(look: impl FnOnce(&mut HashMap<Endpoint, Arc<Id>>) -> T) -> Option<T> {
    let endpoints = ENDPOINTS.get_or_make(|| Ok(Mutex::default())).ok()?;
    Some(look(&mut endpoints.lock()))
}

/// Events of the endpoint go to this identifier from now on.
pub fn insert(endpoint: Endpoint, id: Arc<Id>) {
    _ = endpoints(|all| all.insert(endpoint, id));
}

/// No more events of the endpoint.
pub fn remove(endpoint: Endpoint) {
    _ = endpoints(|all| all.remove(&endpoint));
}

/// Whose endpoint it is.
pub fn find(endpoint: Endpoint) -> Option<Arc<Id>> {
    endpoints(|all| all.get(&endpoint).cloned()).flatten()
}

/// All identifiers that have an endpoint, which they lose: the daemon is gone.
pub fn drain() -> Vec<Arc<Id>> {
    endpoints(std::mem::take).unwrap_or_default().into_values().collect()
}
