//! Impairments as settings of a device: in virtual time, and on loopback sockets.

#[allow(dead_code)]
#[path = "../sim/harness.rs"]
mod harness;
#[allow(dead_code)]
#[path = "../sim/traffic.rs"]
mod traffic;

mod link;
mod simulated;
mod sockets;
