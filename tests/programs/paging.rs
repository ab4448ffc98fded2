//! On-demand paging, wherever tasks run.

use crate::cases::{Case, Check, Env, Kind, RC};
use crate::harness::{self, Background, PATIENCE, urxe};
use crate::{cm, mpi};

/// The modes of tasks, as the environment has them.
pub(crate) const MODES: [(&str, &str); 3] =
    [("URXE_TASKS", "inline"), ("URXE_TASKS", "workqueue"), ("URXE_TASKS", "auto")];

/// Explicit (-o), implicit (-O) and prefetched (-P) regions.
const PINGPONG: [&str; 6] =
    ["-o", "-o -O", "-o -P", "-o -O -P", "-o -e -c -s 1000000 -n 50", "-o -O -P -c -s 1000000 -n 50"];

/// perftest itself has on-demand paging for no other connections, and not for atomics. This version does not prefetch.
const PERFTEST: [(&str, &str); 8] = [
    ("ib_send_bw", "--odp -n 200"),
    ("ib_send_bw", "-c UD --odp -n 200"),
    ("ib_send_lat", "--odp -n 500"),
    ("ib_send_lat", "-c UD --odp -n 500"),
    ("ib_write_bw", "--odp -n 200"),
    ("ib_write_lat", "--odp -n 500"),
    ("ib_read_bw", "--odp -n 200"),
    ("ib_read_lat", "--odp -n 500"),
];

/// Lets UCX register all memory as one implicit region.
pub(crate) const UCX_PAGED: (&str, &str) = ("UCX_IB_REG_METHODS", "odp,direct");

const UCX: [&str; 2] = ["-t tag_bw -n 100 -w 10 -s 1000000", "-t ucp_put_bw -n 500 -w 100 -s 4096"];

pub(crate) fn cases() -> Vec<Case> {
    MODES.into_iter().flat_map(in_mode).collect()
}

fn in_mode(tasks: (&'static str, &'static str)) -> Vec<Case> {
    let case = |package, program, arguments: &str, env: Env, check| Case {
        package,
        program,
        arguments: arguments.into(),
        env,
        kind: Kind::Pair,
        check,
    };
    let mut cases = Vec::new();
    for arguments in PINGPONG {
        cases.push(case("ibverbs-utils", "ibv_rc_pingpong", arguments, vec![tasks], Check::Pingpong));
    }
    for (program, arguments) in PERFTEST {
        cases.push(case("perftest", program, arguments, vec![tasks], Check::Rows(1)));
    }
    for arguments in UCX {
        let env = [&[tasks], RC, &[UCX_PAGED]].concat();
        cases.push(case("ucx-utils", "ucx_perftest", arguments, env, Check::UcxFinal));
    }
    cases.push(mpi::paged_long_messages(tasks));
    cases
}

/// That UCX takes the hint: the cases would pass with pinned memory too.
pub(crate) fn ucx_meets_faults() -> Result<(), String> {
    let (fabric, port) = (cm::fabric(), harness::free_port());
    let mut command =
        urxe(["pair", "--fabric", &fabric, "--", "ucx_perftest", "-t", "tag_bw", "-s", "1000000"]);
    command.args(["-n", "100000000", "-p", &port.to_string()]);
    command.envs(RC.iter().copied()).envs([UCX_PAGED]);
    let mut pair = Background::start(&mut command)?;
    let result = pair.wait_until("has met page faults", || {
        let stat = harness::run(&mut urxe(["stat", "--json", "--fabric", &fabric]), PATIENCE);
        let faults = |text: &str| {
            let mut counts = text.split("\"page_faults\":").skip(1);
            counts.any(|count| !count.starts_with('0'))
        };
        stat.is_ok_and(|output| faults(&output.text))
    });
    pair.stop();
    result
}
