//! The connection manager: its messages against the kernel's, and its behaviour as traces and simulations.

mod fuzz;
mod harness;
mod hostile;
mod kernel;
mod ports;
mod services;
mod sim;
mod traces;
mod wire;
