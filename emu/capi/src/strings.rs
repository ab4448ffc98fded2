//! Names for numbers: the `*_str` functions, whose texts programs print and some compare.

use std::ffi::{CStr, c_char, c_int};

fn lookup(names: &[&'static CStr], index: i64) -> *const c_char {
    usize::try_from(index)
        .ok()
        .and_then(|index| names.get(index))
        .map_or(c"unknown".as_ptr(), |name| name.as_ptr())
}

const NODE_TYPES: &[&CStr] = &[
    c"InfiniBand channel adapter",
    c"InfiniBand switch",
    c"InfiniBand router",
    c"iWARP NIC",
    c"usNIC",
    c"usNIC UDP",
    c"unspecified",
];

const PORT_STATES: &[&CStr] =
    &[c"no state change (NOP)", c"down", c"init", c"armed", c"active", c"active defer"];

const EVENTS: &[&CStr] = &[
    c"CQ error",
    c"local work queue catastrophic error",
    c"invalid request local work queue error",
    c"local access violation work queue error",
    c"communication established",
    c"send queue drained",
    c"path migrated",
    c"path migration request error",
    c"local catastrophic error",
    c"port active",
    c"port error",
    c"LID change",
    c"P_Key change",
    c"SM change",
    c"SRQ catastrophic error",
    c"SRQ limit reached",
    c"last WQE reached",
    c"client reregistration",
    c"GID table change",
    c"WQ fatal",
    c"Device link speed change",
];

const STATUSES: &[&CStr] = &[
    c"success",
    c"local length error",
    c"local QP operation error",
    c"local EE context operation error",
    c"local protection error",
    c"Work Request Flushed Error",
    c"memory management operation error",
    c"bad response error",
    c"local access error",
    c"remote invalid request error",
    c"remote access error",
    c"remote operation error",
    c"transport retry counter exceeded",
    c"RNR retry counter exceeded",
    c"local RDD violation error",
    c"remote invalid RD request",
    c"aborted error",
    c"invalid EE context number",
    c"invalid EE context state",
    c"fatal error",
    c"response timeout error",
    c"general error",
    c"TM error",
    c"TM software rendezvous",
];

const OPCODES: &[&CStr] = &[
    c"rdma-write",
    c"rdma-write-with-imm",
    c"send",
    c"send-with-imm",
    c"rdma-read",
    c"atomic-cmp-and-swp",
    c"atomic-fetch-and-add",
    c"local-inv",
    c"bind-mw",
    c"send-with-inv",
    c"tso",
    c"driver1",
    c"unknown",
    c"unknown",
    c"flush",
    c"atomic-write",
];

const CM_EVENTS: &[&CStr] = &[
    c"RDMA_CM_EVENT_ADDR_RESOLVED",
    c"RDMA_CM_EVENT_ADDR_ERROR",
    c"RDMA_CM_EVENT_ROUTE_RESOLVED",
    c"RDMA_CM_EVENT_ROUTE_ERROR",
    c"RDMA_CM_EVENT_CONNECT_REQUEST",
    c"RDMA_CM_EVENT_CONNECT_RESPONSE",
    c"RDMA_CM_EVENT_CONNECT_ERROR",
    c"RDMA_CM_EVENT_UNREACHABLE",
    c"RDMA_CM_EVENT_REJECTED",
    c"RDMA_CM_EVENT_ESTABLISHED",
    c"RDMA_CM_EVENT_DISCONNECTED",
    c"RDMA_CM_EVENT_DEVICE_REMOVAL",
    c"RDMA_CM_EVENT_MULTICAST_JOIN",
    c"RDMA_CM_EVENT_MULTICAST_ERROR",
    c"RDMA_CM_EVENT_ADDR_CHANGE",
    c"RDMA_CM_EVENT_TIMEWAIT_EXIT",
    c"RDMA_CM_EVENT_ADDRINFO_RESOLVED",
    c"RDMA_CM_EVENT_ADDRINFO_ERROR",
];

/// ibv_node_type_str(3)
pub extern "C" fn ibv_node_type_str(node_type: c_int) -> *const c_char {
    lookup(NODE_TYPES, i64::from(node_type) - 1)
}

/// ibv_port_state_str(3)
pub extern "C" fn ibv_port_state_str(state: c_int) -> *const c_char {
    lookup(PORT_STATES, i64::from(state))
}

/// ibv_event_type_str(3)
pub extern "C" fn ibv_event_type_str(event: c_int) -> *const c_char {
    lookup(EVENTS, i64::from(event))
}

/// ibv_wc_status_str(3)
pub extern "C" fn ibv_wc_status_str(status: c_int) -> *const c_char {
    lookup(STATUSES, i64::from(status))
}

/// The name of a work request's opcode.
pub extern "C" fn ibv_wr_opcode_str(opcode: c_int) -> *const c_char {
    lookup(OPCODES, i64::from(opcode))
}

/// rdma_event_str(3)
pub extern "C" fn rdma_event_str(event: c_int) -> *const c_char {
    match lookup(CM_EVENTS, i64::from(event)) {
        name if name == c"unknown".as_ptr() => c"UNKNOWN EVENT".as_ptr(),
        name => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::*;

    fn text(name: *const c_char) -> &'static str {
        // SAFETY: the functions return static strings.
        unsafe { CStr::from_ptr(name) }.to_str().expect("ASCII")
    }

    #[test]
    fn the_last_name_of_each_table_is_the_last_value_of_the_enum() {
        assert_eq!(text(ibv_node_type_str(IBV_NODE_UNSPECIFIED)), "unspecified");
        assert_eq!(text(ibv_port_state_str(IBV_PORT_ACTIVE_DEFER as c_int)), "active defer");
        assert_eq!(
            text(ibv_event_type_str(IBV_EVENT_DEVICE_SPEED_CHANGE as c_int)),
            "Device link speed change"
        );
        assert_eq!(text(ibv_event_type_str(IBV_EVENT_SRQ_LIMIT_REACHED as c_int)), "SRQ limit reached");
        assert_eq!(text(ibv_wc_status_str(IBV_WC_TM_RNDV_INCOMPLETE as c_int)), "TM software rendezvous");
        assert_eq!(
            text(ibv_wc_status_str(IBV_WC_RETRY_EXC_ERR as c_int)),
            "transport retry counter exceeded"
        );
        assert_eq!(text(ibv_wr_opcode_str(IBV_WR_ATOMIC_WRITE as c_int)), "atomic-write");
        assert_eq!(text(rdma_event_str(17)), "RDMA_CM_EVENT_ADDRINFO_ERROR");
    }

    #[test]
    fn values_outside_an_enum_have_no_name() {
        for value in [-1, c_int::MIN, c_int::MAX, 1000] {
            assert_eq!(text(ibv_node_type_str(value)), "unknown");
            assert_eq!(text(ibv_port_state_str(value)), "unknown");
            assert_eq!(text(ibv_event_type_str(value)), "unknown");
            assert_eq!(text(ibv_wc_status_str(value)), "unknown");
            assert_eq!(text(ibv_wr_opcode_str(value)), "unknown");
            assert_eq!(text(rdma_event_str(value)), "UNKNOWN EVENT");
        }
        assert_eq!(text(ibv_node_type_str(0)), "unknown");
    }
}
