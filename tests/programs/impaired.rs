//! Programs on a network that is bad on purpose, at both ends.

use crate::cases::{Case, Check, Kind};

const LOSS: &[(&str, &str)] = &[("URXE_LOSS", "1%")];
const SLOW: &[(&str, &str)] = &[("URXE_DELAY", "200us"), ("URXE_RATE", "100MB/s")];
const ALL: &[(&str, &str)] = &[
    ("URXE_LOSS", "1%"),
    ("URXE_DUPLICATE", "1%"),
    ("URXE_REORDER", "1%"),
    ("URXE_CORRUPT", "1%"),
    ("URXE_DELAY", "20us-100us"),
    ("URXE_IMPAIR", "both"),
];

pub(crate) fn cases() -> Vec<Case> {
    let case = |package, program, arguments: &str, env: &[_], check| Case {
        package,
        program,
        arguments: arguments.into(),
        env: env.to_vec(),
        kind: Kind::Pair,
        check,
    };
    let mut cases = Vec::new();
    for env in [LOSS, SLOW, ALL] {
        for arguments in ["-c", "-c -e -s 100000 -n 50"] {
            cases.push(case("ibverbs-utils", "ibv_rc_pingpong", arguments, env, Check::Pingpong));
        }
        for program in ["ib_write_bw", "ib_send_bw", "ib_read_bw", "ib_atomic_bw", "ib_send_lat"] {
            cases.push(case("perftest", program, "-c RC -n 500", env, Check::Rows(1)));
        }
    }
    cases
}
