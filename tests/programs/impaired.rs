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

const PINGPONGS: [&str; 2] = ["-c", "-c -e -s 100000 -n 50"];

fn case(
    package: &'static str,
    program: &'static str,
    arguments: &str,
    env: &[(&'static str, &'static str)],
) -> Case {
    let check = if package == "perftest" { Check::Rows(1) } else { Check::Pingpong };
    Case { package, program, arguments: arguments.into(), env: env.to_vec(), kind: Kind::Pair, check }
}

fn pingpong(arguments: &str, env: &[(&'static str, &'static str)]) -> Case {
    case("ibverbs-utils", "ibv_rc_pingpong", arguments, env)
}

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = PINGPONGS.map(|arguments| pingpong(arguments, SLOW)).into_iter().collect::<Vec<_>>();
    for env in [LOSS, SLOW, ALL] {
        for program in ["ib_write_bw", "ib_send_bw", "ib_read_bw", "ib_atomic_bw", "ib_send_lat"] {
            cases.push(case("perftest", program, "-c RC -n 500", env));
        }
    }
    cases
}

/// Each side of ibv_rc_pingpong ends when it has seen all, and does not ask whether the other has. If the last
/// acknowledgement is lost, nobody is there any more to repeat it, and the other side fails: then it is tried again.
pub(crate) fn pingpong_through_loss() -> Result<(), String> {
    const TRIES: usize = 5;
    for env in [LOSS, ALL] {
        for arguments in PINGPONGS {
            let case = pingpong(arguments, env);
            let mut results = (0..TRIES).map(|_| case.run());
            let result = results.find(|result| !result.as_ref().is_err_and(|why| lost_the_end(why)));
            result.unwrap_or(Err(format!("{} lost its end {TRIES} times in a row", case.command())))?;
        }
    }
    Ok(())
}

fn lost_the_end(output: &str) -> bool {
    output.matches("usec/iter").count() == 1 && output.contains("transport retry counter exceeded")
}
