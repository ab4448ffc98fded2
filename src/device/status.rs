//! What a device tells of its queue pairs, for people.

use std::net::IpAddr;
use std::time::Duration;

use super::Device;
use crate::ids::Qpn;
use crate::verbs::{QpState, QpType};

/// A queue pair, at a moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpStatus {
    /// Its number.
    pub number: Qpn,
    /// Its type.
    pub kind: QpType,
    /// Its state.
    pub state: QpState,
    /// Where it is connected to.
    pub peer: Option<(IpAddr, Qpn)>,
    /// Requests in the send queue.
    pub send_queue: usize,
    /// Receives in its own receive queue.
    pub receive_queue: usize,
}

impl Device {
    /// Its queue pairs in the order of their numbers, at most `limit`. One that is busy for long is left out.
    pub fn status(&self, limit: usize) -> Vec<QpStatus> {
        const PATIENCE: Duration = Duration::from_millis(5);
        let all = self.core.qps.first(limit).into_iter();
        let status = all.filter_map(|qp| {
            let (state, peer, send_queue) = {
                let side = qp.send.try_lock_for(PATIENCE)?;
                let connection = side.connection();
                let peer = connection.and_then(|c| c.path.as_ref().map(|path| (path.dst.ip(), c.dest_qpn)));
                (side.state(), peer, side.len())
            };
            let receive_queue = qp.recv.try_lock_for(PATIENCE)?.waiting();
            Some(QpStatus { number: qp.number, kind: qp.kind, state, peer, send_queue, receive_queue })
        });
        status.collect()
    }
}
