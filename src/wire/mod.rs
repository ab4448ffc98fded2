//! RoCEv2 on the wire: every transport header, the table of opcodes, the ICRC.
//!
//! ```text
//!   IP (20 or 40)   UDP to port 4791 (8)
//!  ┌──────────────┬─────┬──────────┬────────────────────────────┬──────────────┬─────┬──────────┐
//!  │ addresses,   │ UDP │ BTH (12) │ extension headers (0 … 32) │ payload      │ pad │ ICRC (4) │
//!  │ traffic class│     │ opcode   │ which ones, and in which   │ ≤ path MTU   │ 0…3 │          │
//!  │              │     │ QP, PSN  │ order, the opcode says     │              │     │          │
//!  └──────────────┴─────┴──────────┴────────────────────────────┴──────────────┴─────┴──────────┘
//!                       └───────────────── UDP payload: what Packet::parse sees ───────────────┘
//!  └─ ICRC covers it all, from the IP header to the pad, less what routers change ─────┘
//! ```
//!
//! Read [`opcode`] first: one constant table says for each opcode which headers follow the BTH, and everything else
//! (lengths, legality, parsing, emission) comes from it. [`header`] has a plain struct with `parse` and `emit` for each
//! header and [`Headers`] for all of one packet; [`Packet`] is the checked view of a datagram; [`icrc`] seals and
//! verifies it.
//!
//! What a packet *means*, such as whether this QP may receive it now, is not decided here but in the engine. A packet
//! that [`Packet::parse`] refuses cannot be attributed to a request and is counted and dropped.

pub mod batch;
mod flow;
pub mod header;
pub mod icrc;
pub mod opcode;
mod packet;

pub use batch::{IpId, Path, TxBatch};
pub use flow::Flow;
pub use header::{
    Aeth, AtomicEth, Bth, Deth, Feth, FlushSelectivity, Headers, MAX_HEADERS, NakCode, Reth, Syndrome,
};
pub use icrc::{Check, FlushIcrc, Icrc, PathIcrc};
pub use opcode::{Extension, Extra, Opcode, OpcodeInfo, Operation, Position, Service};
pub use packet::{Malformed, Packet};

/// The UDP destination port of RoCEv2 (IBA A17.3.1).
pub const UDP_PORT: u16 = 4791;

/// Bytes of the ICRC at the end of each packet.
pub const ICRC_LEN: usize = 4;
