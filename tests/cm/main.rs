//! The connection manager: its messages against the kernel's, and its behaviour as traces and simulations.

mod harness;
mod traces;
mod wire;
