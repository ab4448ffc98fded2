//! A software RDMA device in user space.
//!
//! A packet's way through the folders: [`io`] receives a datagram, [`wire`] parses it, [`qp`] runs the protocol,
//! [`mem`] checks keys and copies, [`cq`] tells the program.

pub mod cm;
pub mod config;
pub mod cq;
pub mod device;
pub mod ids;
pub mod io;
mod log;
pub mod mem;
pub mod qp;
pub mod srq;
mod task;
pub mod time;
pub mod verbs;
pub mod wire;
