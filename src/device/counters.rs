//! What a device counts. The names are those of rxe's `hw_counters` where it counts the same.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number that only rises.
#[derive(Default, Debug)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }
    /// The present value.
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident),* $(,)?) => {
        /// What a device counts.
        #[derive(Default, Debug)]
        pub struct Counters { $($(#[doc = $doc])+ pub $name: Counter),* }

        impl Counters {
            /// All counters with their names.
            pub fn all(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name.value())),*].into_iter()
            }
        }
    };
}

counters! {
    /// Packets sent.
    sent_pkts,
    /// Packets received that belong to a queue pair.
    rcvd_pkts,
    /// Packets that are no RoCEv2 packets.
    malformed_pkts,
    /// Packets whose ICRC is wrong.
    icrc_errors,
    /// Packets whose ICRC is right for an IPv4 identification other than 0, which was solved for.
    icrc_solved_id,
    /// Packets for a queue pair that does not exist.
    unknown_qp,
    /// Packets for another process on the same address, which the system had merged with ours.
    other_process_pkts,
    /// Packets of another partition.
    pkey_violations,
    /// Datagrams with a wrong Q_Key.
    qkey_violations,
    /// Packets that came from another address than the connected peer's.
    wrong_peer,
    /// Packets that a queue pair dropped: no receive, too long, not possible in its state.
    dropped_pkts,
    /// Packets to a group that has no queue pair here, or to a group's address that are no multicast.
    dropped_multicast,
    /// Congestion notification packets sent, because the socket's queue grew.
    sent_cnp,
    /// Congestion notification packets received.
    rcvd_cnp,
    /// Times that a queue pair's timer ran out.
    timer_runs,
    /// Packets that the system could not take at once and that were sent again later.
    send_blocked,
    /// Packets that the system refused to send.
    send_errors,
    /// Work requests that ended in error, flushes not counted.
    failed_requests,
    /// Runs of packets that were worked on by whoever received them, although there are workers.
    inline_runs,
    /// Runs of packets that were left to workers.
    queued_runs,
    /// Packets that were dropped because too many waited for a worker.
    inbox_drops,
    /// Times that a queue pair began to wait for a page.
    odp_waits,
    /// Times that such a wait has ended: the difference waits now.
    odp_waits_ended,
}
