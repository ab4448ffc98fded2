//! What the engine does, one rule a test: given this state, this packet in, these packets out.
//!
//! Each rule is one that software or hardware for RDMA is known to have got wrong.

#[path = "../sim/harness.rs"]
#[allow(dead_code)]
mod harness;

#[allow(dead_code)]
mod bench;
mod devices;
mod fuzz;
mod hostile;
mod requester;
mod responder;
mod states;
mod threads;
mod wire;
