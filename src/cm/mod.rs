//! The connection manager: what `rdma_connect` and its kin say on the wire (IBA chapter 12, and annex A11 for the IP
//! addresses in the private data).
//!
//! | module | what it is |
//! |---|---|
//! | [`manager`] | all endpoints of a host |
//! | `ports` | who has which port |
//! | [`mad`], [`message`] | what is on the wire |
//! | [`types`] | commands, events and the parameters that they carry; also what travels between daemon and library |
//!
//! Sans-IO, as the queue pairs are: MADs and the time go in, MADs and events come out.

pub mod mad;
pub mod manager;
pub mod message;
mod ports;
pub mod types;

pub use manager::{Manager, Transmit};
pub use types::*;
