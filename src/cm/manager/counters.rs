//! What the connection manager counts.

use super::super::message::Message;

/// One for each message.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PerMessage([u64; 10]);

impl PerMessage {
    fn index(message: &Message) -> usize {
        match message {
            Message::Req(_) => 0,
            Message::Mra(_) => 1,
            Message::Rej(_) => 2,
            Message::Rep(_) => 3,
            Message::Rtu(_) => 4,
            Message::Dreq(_) => 5,
            Message::Drep(_) => 6,
            Message::SidrReq(_) => 7,
            Message::SidrRep(_) => 8,
            Message::AlternatePath => 9,
        }
    }
    pub(super) fn count(&mut self, message: &Message) {
        self.0[Self::index(message)] += 1;
    }
}

/// Since the manager was made. The groups are those of the kernel's /sys/class/infiniband_cm.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counters {
    /// Messages received.
    pub received: PerMessage,
    /// Messages sent.
    pub sent: u64,
    /// Of these, repeated after a time-out.
    pub retries: u64,
    /// Messages received that had been received before.
    pub duplicates: u64,
    /// Datagrams that are none of ours, or say what cannot be.
    pub malformed: u64,
    /// Messages for a communication that does not exist, or from the wrong peer.
    pub unknown: u64,
    /// Requests that nobody listens for.
    pub unheard: u64,
    /// Requests that were left unanswered because too many wait; the peer repeats them.
    pub overflows: u64,
    /// Old connections that ended because the peer's QP is used anew.
    pub stale: u64,
}

impl Counters {
    /// All, with their names.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
        let names = [
            "cm_rx_req",
            "cm_rx_mra",
            "cm_rx_rej",
            "cm_rx_rep",
            "cm_rx_rtu",
            "cm_rx_dreq",
            "cm_rx_drep",
            "cm_rx_sidr_req",
            "cm_rx_sidr_rep",
            "cm_rx_lap",
        ];
        let others = [
            ("cm_rx_duplicates", self.duplicates),
            ("cm_tx_msgs", self.sent),
            ("cm_tx_retries", self.retries),
            ("cm_malformed", self.malformed),
            ("cm_unknown", self.unknown),
            ("cm_unheard", self.unheard),
            ("cm_overflows", self.overflows),
            ("cm_stale", self.stale),
        ];
        names.into_iter().zip(self.received.0).chain(others)
    }
}
