//! The sockets over RDMA (`rsocket` and its kin), which are not there yet.

use std::sync::Once;

use crate::boundary::{Errno, set_errno};

/// Returns -1: `EOPNOTSUPP`.
pub extern "C" fn rsocket_refuse() -> isize {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        _ = std::panic::catch_unwind(|| {
            tracing::warn!("sockets over RDMA (rsocket and the other r* functions) are not supported yet");
        });
    });
    set_errno(Errno(libc::EOPNOTSUPP));
    -1
}
