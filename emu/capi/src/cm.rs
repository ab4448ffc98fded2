//! librdmacm's names. The connection manager is not built yet: its functions fail as they do on a machine
//! without an RDMA device, and the log says why, once.

use std::ffi::c_void;
use std::sync::Once;

use crate::boundary::{Errno, set_errno};

// Programs probe for a connection manager and go on without: the errno tells them, so the message is no warning.
fn refuse() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        _ = std::panic::catch_unwind(|| {
            tracing::info!(
                "the connection manager (rdma_* and rsockets) is not available in this version; \
                 use the program's exchange over TCP, for perftest: without -R"
            );
        });
    });
    set_errno(Errno(libc::ENODEV));
}

/// Returns -1.
pub extern "C" fn cm_refuse() -> isize {
    refuse();
    -1
}

/// Returns null.
pub extern "C" fn cm_refuse_pointer() -> *mut c_void {
    refuse();
    std::ptr::null_mut()
}

/// What the daemon's connection manager tells: nothing asks it yet.
pub fn dispatch(event: device::cm::Event) {
    tracing::debug!("connection management: {event:?}");
}

/// The daemon is gone.
pub fn lost() {}

/// A daemon is there again.
pub fn restored() {}
