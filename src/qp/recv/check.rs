//! What a request packet must satisfy before it is executed, in the order of IBA 9.7.4 (figure "responder inbound
//! validation"). Pure functions.

use super::Message;
use crate::ids::Psn;
use crate::wire::{Operation, Position};

/// Where a packet stands in the sequence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Order {
    /// The next one.
    Expected,
    /// Up to half of the space behind: it was executed already.
    Duplicate,
    /// Ahead: something was lost.
    Gap,
}

/// IBA C9-66 and on: valid, duplicate or invalid PSN.
pub(super) fn check_psn(psn: Psn, expected: Psn) -> Order {
    match psn.since(expected) {
        0 => Order::Expected,
        d if d < 0 => Order::Duplicate,
        _ => Order::Gap,
    }
}

/// Whether the packet goes on with the message that is being received, or begins one if there is none (IBA C9-78).
pub(super) fn check_sequence(message: &Message, operation: Operation, position: Position) -> bool {
    match message {
        Message::Send { .. } => operation == Operation::Send && !position.is_start(),
        Message::Write { .. } => operation == Operation::RdmaWrite && !position.is_start(),
        Message::None | Message::Skip => position.is_start(),
    }
}

/// Whether the payload is as long as its position in the message demands (IBA C9-87): full packets but for the end.
pub(super) fn check_length(position: Position, len: usize, mtu: u32) -> bool {
    let mtu = mtu as usize;
    match position {
        Position::First | Position::Middle => len == mtu,
        Position::Last => len >= 1 && len <= mtu,
        Position::Only => len <= mtu,
    }
}
