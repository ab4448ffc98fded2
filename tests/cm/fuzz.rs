//! The hostile script with random bytes.

use proptest::prelude::*;

use crate::harness::Rng;
use crate::hostile;

/// A few thousand, or as many as `PROPTEST_CASES` says.
fn cases() -> ProptestConfig {
    let default = ProptestConfig::default();
    ProptestConfig { cases: default.cases.max(3000), max_shrink_iters: 20_000, ..default }
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn nothing_that_arrives_makes_a_manager_panic_or_grow(
        script in proptest::collection::vec(any::<u8>(), 0..4000),
    ) {
        hostile::run(&script);
    }
}

/// Random scripts get everywhere: each message is received, and each odd thing happens.
#[test]
fn scripts_get_everywhere() {
    let mut rng = Rng(1);
    let mut sums = std::collections::BTreeMap::new();
    for _ in 0..2000 {
        for (name, n) in hostile::run(&rng.bytes(4000)).named() {
            *sums.entry(name).or_insert(0) += n;
        }
    }
    for (name, n) in &sums {
        // A backlog is longer than a script.
        assert!(*n > 0 || *name == "cm_overflows", "{name}: {sums:?}");
    }
    // Of the messages that scripts make up, hardly any fits: the rest are those of real conversations.
    assert!(sums["cm_rx_rtu"] > 2000 && sums["cm_rx_drep"] > 2000, "{sums:?}");
}
