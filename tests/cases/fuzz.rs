//! The hostile script with random bytes, and with scripts that once failed.

use proptest::prelude::*;

use crate::hostile;

/// A few thousand, or as many as `PROPTEST_CASES` says.
fn cases() -> ProptestConfig {
    let default = ProptestConfig::default();
    ProptestConfig { cases: default.cases.max(3000), max_shrink_iters: 20_000, ..default }
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn nothing_that_arrives_makes_a_queue_pair_panic_or_break_its_promises(
        script in proptest::collection::vec(any::<u8>(), 0..4000),
    ) {
        hostile::run(&script);
    }
}
