//! What the daemon of a fabric and its clients say to each other, and the client's end of it.
//!
//! One Unix SEQPACKET socket for each client; a message is a packet, with descriptors beside it where it says so.
//! Requests are numbered and answered one by one; notices come in between.

pub mod client;
pub mod connection;
pub mod launch;
pub mod picture;
pub mod place;
pub mod protocol;

mod error;
mod sys;

pub use error::Error;
pub use sys::{Peer, peer};
