//! The states of a queue pair: which moves there are, and which attributes each needs and allows (IBA 10.3.1, 11.2.5.2).

use crate::verbs::{AttrMask, QpState, QpType};

/// Why a modification is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TransitionError {
    /// There is no such move.
    #[error("a {kind:?} queue pair cannot go from {from:?} to {to:?}")]
    NoSuchMove {
        /// Type.
        kind: QpType,
        /// Present state.
        from: QpState,
        /// Wanted state.
        to: QpState,
    },
    /// Attributes that the move needs were not given.
    #[error("going from {from:?} to {to:?} needs also {missing:?}")]
    Missing {
        /// Present state.
        from: QpState,
        /// Wanted state.
        to: QpState,
        /// What was not given.
        missing: AttrMask,
    },
    /// Attributes that the move does not allow were given.
    #[error("going from {from:?} to {to:?} does not allow {extra:?}")]
    NotAllowed {
        /// Present state.
        from: QpState,
        /// Wanted state.
        to: QpState,
        /// What must not be given.
        extra: AttrMask,
    },
}

/// What a move needs, and what it allows besides.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rule {
    /// Must be given.
    pub required: AttrMask,
    /// May be given.
    pub optional: AttrMask,
}

const fn mask(bits: &[AttrMask]) -> AttrMask {
    let mut m = AttrMask(0);
    let mut i = 0;
    while i < bits.len() {
        m = m.with(bits[i]);
        i += 1;
    }
    m
}

/// The rule of a move; `None` if there is no such move.
pub const fn rule(kind: QpType, from: QpState, to: QpState) -> Option<Rule> {
    use AttrMask as M;
    use QpState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};
    use QpType::{Rc, Uc, Ud};
    let (required, optional): (&[M], &[M]) = match (from, to) {
        // Nothing is there to fail before INIT (IBA figure 124 has no such arrow).
        (Reset, Err) => return None,
        (_, Reset | Err) => (&[], &[]),
        (Reset, Init) => match kind {
            Ud => (&[M::PKEY_INDEX, M::PORT, M::QKEY], &[]),
            Uc | Rc => (&[M::PKEY_INDEX, M::PORT, M::ACCESS_FLAGS], &[]),
        },
        (Init, Init) => match kind {
            Ud => (&[], &[M::PKEY_INDEX, M::PORT, M::QKEY]),
            Uc | Rc => (&[], &[M::PKEY_INDEX, M::PORT, M::ACCESS_FLAGS]),
        },
        (Init, Rtr) => match kind {
            Ud => (&[], &[M::PKEY_INDEX, M::QKEY]),
            Uc => (
                &[M::AV, M::PATH_MTU, M::DEST_QPN, M::RQ_PSN],
                &[M::ALT_PATH, M::ACCESS_FLAGS, M::PKEY_INDEX],
            ),
            Rc => (
                &[M::AV, M::PATH_MTU, M::DEST_QPN, M::RQ_PSN, M::MAX_DEST_RD_ATOMIC, M::MIN_RNR_TIMER],
                &[M::ALT_PATH, M::ACCESS_FLAGS, M::PKEY_INDEX],
            ),
        },
        (Rtr, Rts) => match kind {
            Ud => (&[M::SQ_PSN], &[M::CUR_STATE, M::QKEY]),
            Uc => (&[M::SQ_PSN], &[M::CUR_STATE, M::ALT_PATH, M::ACCESS_FLAGS, M::PATH_MIG_STATE]),
            Rc => (
                &[M::SQ_PSN, M::TIMEOUT, M::RETRY_CNT, M::RNR_RETRY, M::MAX_QP_RD_ATOMIC],
                &[M::CUR_STATE, M::ALT_PATH, M::ACCESS_FLAGS, M::PATH_MIG_STATE, M::MIN_RNR_TIMER],
            ),
        },
        (Rts, Rts) | (Sqd, Rts) => match kind {
            Ud => (&[], &[M::CUR_STATE, M::QKEY]),
            Uc => (&[], &[M::CUR_STATE, M::ALT_PATH, M::ACCESS_FLAGS, M::PATH_MIG_STATE]),
            Rc => (&[], &[M::CUR_STATE, M::ALT_PATH, M::ACCESS_FLAGS, M::PATH_MIG_STATE, M::MIN_RNR_TIMER]),
        },
        (Rts, Sqd) => (&[], &[M::EN_SQD_ASYNC_NOTIFY]),
        (Sqd, Sqd) => match kind {
            Ud => (&[], &[M::PKEY_INDEX, M::QKEY]),
            Uc => (&[], &[M::AV, M::ALT_PATH, M::ACCESS_FLAGS, M::PKEY_INDEX, M::PATH_MIG_STATE]),
            Rc => (
                &[],
                &[
                    M::PORT,
                    M::AV,
                    M::TIMEOUT,
                    M::RETRY_CNT,
                    M::RNR_RETRY,
                    M::MAX_QP_RD_ATOMIC,
                    M::MAX_DEST_RD_ATOMIC,
                    M::ALT_PATH,
                    M::ACCESS_FLAGS,
                    M::PKEY_INDEX,
                    M::MIN_RNR_TIMER,
                    M::PATH_MIG_STATE,
                ],
            ),
        },
        (Sqe, Rts) => match kind {
            Ud => (&[], &[M::CUR_STATE, M::QKEY]),
            Uc => (&[], &[M::CUR_STATE, M::ACCESS_FLAGS]),
            Rc => return None,
        },
        _ => return None,
    };
    Some(Rule { required: mask(required), optional: mask(optional) })
}

/// Checks a modification. Only a modification that names [`AttrMask::STATE`] moves; without it the state stays.
pub fn check_transition(
    kind: QpType,
    from: QpState,
    to: QpState,
    given: AttrMask,
) -> Result<(), TransitionError> {
    let rule = rule(kind, from, to).ok_or(TransitionError::NoSuchMove { kind, from, to })?;
    let missing = rule.required.without(given);
    if !missing.is_empty() {
        return Err(TransitionError::Missing { from, to, missing });
    }
    let always = AttrMask::STATE.with(AttrMask::CUR_STATE);
    let extra = given.without(rule.required).without(rule.optional).without(always);
    if !extra.is_empty() {
        return Err(TransitionError::NotAllowed { from, to, extra });
    }
    Ok(())
}
