//! `modify` and `query` of a queue pair.

use super::qp::QueuePair;
use super::{AddressError, Core};
use crate::mem::Access;
use crate::qp::recv::Acceptance;
use crate::qp::send::Connection;
use crate::qp::state::{self, TransitionError};
use crate::verbs::{AttrMask as M, QpAttr, QpState, QpType, limits};

/// Why a modification is refused. Nothing has changed then.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ModifyError {
    /// No such move, or not with these attributes.
    #[error(transparent)]
    Transition(#[from] TransitionError),
    /// The address.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// `cur_state` is not the state that the queue pair is in.
    #[error("the caller believes the queue pair to be in {believed:?}, but it is in {is:?}")]
    CurrentState {
        /// What the caller says.
        believed: QpState,
        /// What is.
        is: QpState,
    },
    /// A value is out of range.
    #[error("{what} is {have}, but at most {max} is possible")]
    Range {
        /// Which.
        what: &'static str,
        /// Given.
        have: u64,
        /// Allowed.
        max: u64,
    },
    /// An attribute that this device does not implement.
    #[error("{0:?} is not implemented")]
    Unsupported(M),
}

impl QueuePair {
    /// Changes attributes, and with [`M::STATE`] the state.
    pub fn modify(&self, attr: &QpAttr, mask: M) -> Result<(), ModifyError> {
        let qp = &self.qp;
        let is = qp.send.lock().state();
        if mask.has(M::CUR_STATE) && attr.cur_state != is {
            return Err(ModifyError::CurrentState { believed: attr.cur_state, is });
        }
        let to = if mask.has(M::STATE) { attr.state } else { is };
        let unsupported =
            M(mask.0 & (M::ALT_PATH.0 | M::PATH_MIG_STATE.0 | M::CAP.0 | M::RATE_LIMIT.0 | !M::ALL.0));
        if !unsupported.is_empty() {
            return Err(ModifyError::Unsupported(unsupported));
        }
        state::check_transition(qp.kind, is, to, mask)?;
        self.check_values(attr, mask)?;

        let mut new = *qp.attr.lock();
        merge(&mut new, attr, mask);
        new.state = to;
        let path = if mask.has(M::AV) { Some(self.core.resolve(&attr.av)?) } else { None };
        if matches!(to, QpState::Reset | QpState::Err) {
            // The peer waits for acknowledgements of what has completed here; afterwards it would get none.
            qp.run_replies(&self.core, self.core.clock.now(), None);
        }
        match (is, to) {
            (_, QpState::Reset) => {
                qp.enter(QpState::Reset, false);
                *qp.attr.lock() = QpAttr::default();
                return Ok(());
            }
            (_, QpState::Err) => {
                qp.enter(QpState::Err, false);
                if qp.has_srq && is != QpState::Err {
                    qp.tell_last_wqe();
                }
                return Ok(());
            }
            (QpState::Init, QpState::Rtr) => {
                let peer = path.as_ref().map_or(self.core.port.ip, |p| p.dst.ip());
                // A datagram is one packet of at most the port's MTU.
                let mtu = if qp.kind == QpType::Ud { self.core.port.mtu } else { new.path_mtu };
                qp.send.lock().connect(Connection {
                    path: path.clone(),
                    window: self.core.window(peer, new.dest_qpn.slot()),
                    dest_qpn: new.dest_qpn,
                    mtu,
                    qkey: new.qkey,
                    max_rd_atomic: 0,
                    timeout: 0,
                    retry_cnt: 0,
                    rnr_retry: 0,
                });
                let accept = Acceptance {
                    path,
                    dest_qpn: new.dest_qpn,
                    mtu,
                    qkey: new.qkey,
                    access: new.access,
                    max_dest_rd_atomic: new.max_dest_rd_atomic,
                    min_rnr_timer: new.min_rnr_timer,
                };
                qp.recv.lock().listen(accept, new.rq_psn);
            }
            (QpState::Rtr, QpState::Rts) => {
                let mut side = qp.send.lock();
                update_connection(&mut side, &new);
                side.start(new.sq_psn);
            }
            _ => {
                let mut send = qp.send.lock();
                update_connection(&mut send, &new);
                if let (Some(path), Some(conn)) = (&path, send.connection_mut()) {
                    conn.path = Some(path.clone());
                }
                let mut recv = qp.recv.lock();
                if let (Some(path), Some(accept)) = (path, recv.acceptance_mut()) {
                    accept.path = Some(path);
                }
            }
        }
        if let Some(accept) = qp.recv.lock().acceptance_mut() {
            accept.access = new.access;
            accept.qkey = new.qkey;
            accept.min_rnr_timer = new.min_rnr_timer;
            accept.max_dest_rd_atomic = new.max_dest_rd_atomic;
        }
        *qp.attr.lock() = new;
        if to != is {
            qp.enter(to, mask.has(M::EN_SQD_ASYNC_NOTIFY) && attr.en_sqd_async_notify);
        }
        // Leaving SQD, or entering it with nothing outstanding, has consequences at once.
        self.core.kick(qp);
        Ok(())
    }

    /// Present attributes.
    pub fn query(&self) -> QpAttr {
        let send = self.qp.send.lock();
        let recv = self.qp.recv.lock();
        let mut attr = *self.qp.attr.lock();
        attr.state = send.state();
        attr.cur_state = attr.state;
        if !matches!(attr.state, QpState::Reset | QpState::Init) {
            attr.rq_psn = recv.rq_psn();
        }
        if matches!(attr.state, QpState::Rts | QpState::Sqd | QpState::Sqe) {
            attr.sq_psn = send.sq_psn();
        }
        attr
    }

    fn check_values(&self, attr: &QpAttr, mask: M) -> Result<(), ModifyError> {
        let port_mtu = self.core.port.mtu;
        let checks: [(M, &'static str, u64, u64); 10] = [
            (M::PKEY_INDEX, "pkey_index", attr.pkey_index.into(), 0),
            (M::PATH_MTU, "path_mtu", attr.path_mtu.bytes().into(), port_mtu.bytes().into()),
            (M::MAX_QP_RD_ATOMIC, "max_rd_atomic", attr.max_rd_atomic.into(), limits::MAX_RD_ATOMIC.into()),
            (
                M::MAX_DEST_RD_ATOMIC,
                "max_dest_rd_atomic",
                attr.max_dest_rd_atomic.into(),
                limits::MAX_RD_ATOMIC.into(),
            ),
            (M::TIMEOUT, "timeout", attr.timeout.into(), 31),
            (M::RETRY_CNT, "retry_cnt", attr.retry_cnt.into(), 7),
            (M::RNR_RETRY, "rnr_retry", attr.rnr_retry.into(), 7),
            (M::MIN_RNR_TIMER, "min_rnr_timer", attr.min_rnr_timer.into(), 31),
            (M::DEST_QPN, "dest_qp_num", attr.dest_qpn.0.into(), 0x00ff_ffff),
            (M::PORT, "port_num", attr.port.into(), 1),
        ];
        for (bit, what, have, max) in checks {
            if mask.has(bit) && have > max {
                return Err(ModifyError::Range { what, have, max });
            }
        }
        if mask.has(M::PORT) && attr.port != 1 {
            return Err(AddressError::Port(attr.port).into());
        }
        if mask.has(M::ACCESS_FLAGS) {
            let known = Access::LOCAL_WRITE
                .union(Access::REMOTE_WRITE)
                .union(Access::REMOTE_READ)
                .union(Access::REMOTE_ATOMIC)
                .union(Access::MW_BIND)
                .union(Access::ON_DEMAND)
                .union(Access::FLUSH_GLOBAL)
                .union(Access::FLUSH_PERSISTENT)
                .union(Access::OPTIONAL);
            if !known.contains(attr.access) {
                let (have, max) = (attr.access.0.into(), known.0.into());
                return Err(ModifyError::Range { what: "qp_access_flags", have, max });
            }
        }
        Ok(())
    }
}

fn update_connection(side: &mut crate::qp::send::SendSide, new: &QpAttr) {
    if let Some(conn) = side.connection_mut() {
        conn.qkey = new.qkey;
        conn.max_rd_atomic = new.max_rd_atomic;
        conn.timeout = new.timeout;
        conn.retry_cnt = new.retry_cnt;
        conn.rnr_retry = new.rnr_retry;
    }
}

fn merge(new: &mut QpAttr, attr: &QpAttr, mask: M) {
    let mut set = |bit: M, f: &mut dyn FnMut(&mut QpAttr)| {
        if mask.has(bit) {
            f(new);
        }
    };
    set(M::ACCESS_FLAGS, &mut |n| n.access = attr.access);
    set(M::PKEY_INDEX, &mut |n| n.pkey_index = attr.pkey_index);
    set(M::PORT, &mut |n| n.port = attr.port);
    set(M::QKEY, &mut |n| n.qkey = attr.qkey);
    set(M::AV, &mut |n| n.av = attr.av);
    set(M::PATH_MTU, &mut |n| n.path_mtu = attr.path_mtu);
    set(M::TIMEOUT, &mut |n| n.timeout = attr.timeout);
    set(M::RETRY_CNT, &mut |n| n.retry_cnt = attr.retry_cnt);
    set(M::RNR_RETRY, &mut |n| n.rnr_retry = attr.rnr_retry);
    set(M::RQ_PSN, &mut |n| n.rq_psn = attr.rq_psn);
    set(M::MAX_QP_RD_ATOMIC, &mut |n| n.max_rd_atomic = attr.max_rd_atomic);
    set(M::MIN_RNR_TIMER, &mut |n| n.min_rnr_timer = attr.min_rnr_timer);
    set(M::SQ_PSN, &mut |n| n.sq_psn = attr.sq_psn);
    set(M::MAX_DEST_RD_ATOMIC, &mut |n| n.max_dest_rd_atomic = attr.max_dest_rd_atomic);
    set(M::DEST_QPN, &mut |n| n.dest_qpn = attr.dest_qpn);
}

impl Core {
    pub(super) fn kick(&self, qp: &super::qp::Qp) {
        let mut notices = crate::qp::Notices::default();
        let mut side = qp.send.lock();
        qp.scheduler.sends_pending(self, qp, &mut side, self.clock.now(), &mut notices);
        qp.deliver_send(self, &mut side);
        drop(side);
        qp.tell(self, notices);
    }
}
