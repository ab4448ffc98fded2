//! The table of a queue pair's moves, pinned.

use std::fmt::Write;

use urxe::device::attr::ModifyError;
use urxe::qp::state::{TransitionError, rule};
use urxe::verbs::{AttrMask, QpAttr, QpState, QpType};

use crate::harness::{End, EndInit, Wiring, World, masks, perfect, to_init, to_rtr, to_rts};

const STATES: [QpState; 7] =
    [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd, QpState::Sqe, QpState::Err];

/// Every move of every type with the attributes that it needs and allows, one a line.
fn table() -> String {
    let mut out = String::new();
    for kind in [QpType::Rc, QpType::Uc, QpType::Ud] {
        for from in STATES {
            for to in STATES {
                if let Some(rule) = rule(kind, from, to) {
                    let (required, optional) = (rule.required, rule.optional);
                    writeln!(out, "{kind:?} {from:?} -> {to:?}: needs {required:?}; allows {optional:?}")
                        .unwrap();
                }
            }
        }
    }
    out
}

#[test]
fn the_moves_are_those_of_the_committed_table() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cases/qp_states.txt");
    let now = table();
    if std::env::var_os("URXE_BLESS").is_some() {
        std::fs::write(path, &now).unwrap();
    }
    let then = std::fs::read_to_string(path).unwrap();
    assert!(now == then, "the table differs from {path}; URXE_BLESS=1 writes it. It is now:\n{now}");
}

#[test]
fn a_move_that_does_not_exist_or_lacks_or_has_too_many_attributes_changes_nothing() {
    let world = World::new(1, perfect(), 1);
    let wiring = Wiring::default();
    let a = End::new(&world.devices[0], EndInit::default());
    let modify = |state, mask: AttrMask| {
        let attr = QpAttr { state, port: 1, ..QpAttr::default() };
        a.qp.modify(&attr, mask.with(AttrMask::STATE))
    };
    let from_reset = [QpState::Rtr, QpState::Rts, QpState::Sqd, QpState::Sqe];
    for to in from_reset {
        let result = modify(to, AttrMask(0));
        assert!(
            matches!(result, Err(ModifyError::Transition(TransitionError::NoSuchMove { .. }))),
            "{to:?} {result:?}"
        );
    }
    let port = masks(&[AttrMask::PORT, AttrMask::PKEY_INDEX]);
    let missing = modify(QpState::Init, port);
    assert!(
        matches!(missing, Err(ModifyError::Transition(TransitionError::Missing { missing, .. }))
            if missing == AttrMask::ACCESS_FLAGS),
        "{missing:?}"
    );
    let extra = modify(QpState::Init, port.with(masks(&[AttrMask::ACCESS_FLAGS, AttrMask::QKEY])));
    assert!(
        matches!(extra, Err(ModifyError::Transition(TransitionError::NotAllowed { extra, .. }))
            if extra == AttrMask::QKEY),
        "{extra:?}"
    );
    assert_eq!(a.qp.state(), QpState::Reset);

    to_init(&a.qp, &wiring);
    to_rtr(&a.qp, (a.ip, &a.qp), &wiring);
    to_rts(&a.qp, &wiring);
    // Changing the depth of READs that the peer may have outstanding, while they may be outstanding: not allowed.
    let attr = QpAttr { state: QpState::Rts, max_dest_rd_atomic: 0, ..QpAttr::default() };
    let result = a.qp.modify(&attr, masks(&[AttrMask::STATE, AttrMask::MAX_DEST_RD_ATOMIC]));
    assert!(matches!(result, Err(ModifyError::Transition(TransitionError::NotAllowed { .. }))), "{result:?}");
    let result = a.qp.modify(&attr, AttrMask::MAX_DEST_RD_ATOMIC);
    assert!(matches!(result, Err(ModifyError::Transition(TransitionError::NotAllowed { .. }))), "{result:?}");
    assert_eq!(a.qp.query().max_dest_rd_atomic, wiring.max_rd_atomic);
    // The program is wrong about the present state.
    let attr = QpAttr { state: QpState::Rts, cur_state: QpState::Rtr, ..QpAttr::default() };
    let result = a.qp.modify(&attr, masks(&[AttrMask::STATE, AttrMask::CUR_STATE]));
    assert!(matches!(result, Err(ModifyError::CurrentState { .. })), "{result:?}");
}
