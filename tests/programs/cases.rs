//! The table of command lines, and what counts as success.

use std::fmt::Write as _;

use crate::harness::{self, PATIENCE, urxe};

/// The one that is a crate.
pub(crate) const SIDEWAY: &str = "sideway";

pub(crate) struct Case {
    /// The Debian package, or [`SIDEWAY`].
    pub(crate) package: &'static str,
    pub(crate) program: &'static str,
    pub(crate) arguments: String,
    pub(crate) env: &'static [(&'static str, &'static str)],
    kind: Kind,
    check: Check,
}

#[derive(PartialEq)]
enum Kind {
    Single,
    Pair,
}

enum Check {
    /// All these are in the output.
    Says(&'static [&'static str]),
    /// perftest: the table has a row of positive figures for this many sizes.
    Rows(usize),
    /// ibv_*_pingpong: both sides report, and no page of a checked buffer was wrong.
    Pingpong,
    /// ucx_perftest: the final line has positive figures.
    UcxFinal,
}

impl Case {
    /// As a test name: without spaces.
    pub(crate) fn name(&self) -> String {
        let prefix = if self.package == SIDEWAY { "sideway_" } else { "" };
        format!("{prefix}{}", self.command().replace([' ', '/'], "_"))
    }

    /// As a person would type it, but for the port that the test adds.
    pub(crate) fn command(&self) -> String {
        let mut line: String = self.env.iter().map(|(name, value)| format!("{name}={value} ")).collect();
        let _ = write!(line, "{} {}", self.program, self.arguments);
        line.trim().into()
    }

    pub(crate) fn run(&self) -> Result<(), String> {
        let arguments = self.arguments.split_whitespace();
        let program = match self.package {
            SIDEWAY => harness::sideway().join("bin").join(self.program),
            _ => self.program.into(),
        };
        let mut command = match self.kind {
            Kind::Single => urxe(["run", "--"]),
            Kind::Pair => urxe(["pair", "--timeout", &PATIENCE.as_secs().to_string(), "--"]),
        };
        command.arg(program);
        command.args(arguments).envs(self.env.iter().copied());
        if self.kind == Kind::Pair {
            command.args(["-p", &harness::free_port().to_string()]);
        }
        // pair stops its sides itself; this only catches a pair that does not.
        let output = harness::run(&mut command, PATIENCE * 2)?;
        let text = output.text;
        if output.code != Some(0) {
            return Err(format!("{command:?}: exit code {:?}\n{text}", output.code));
        }
        self.check.check(&text).map_err(|why| format!("{command:?}: {why}\n{text}"))
    }
}

impl Check {
    fn check(&self, text: &str) -> Result<(), String> {
        match self {
            Self::Says(words) => match words.iter().find(|w| !text.contains(**w)) {
                Some(word) => Err(format!("no {word:?} in the output")),
                None => Ok(()),
            },
            Self::Rows(wanted) => {
                let rows =
                    of(text, "client").filter_map(numbers).filter(|row| row.len() >= 4).collect::<Vec<_>>();
                match rows.iter().find(|row| row.iter().take(2).any(|n| *n <= 0.0)) {
                    Some(row) => Err(format!("a row with nothing in it: {row:?}")),
                    None if rows.len() != *wanted => {
                        Err(format!("{} rows of results, not {wanted}", rows.len()))
                    }
                    None => Ok(()),
                }
            }
            Self::Pingpong => {
                for side in ["server", "client"] {
                    if !of(text, side).any(|l| l.contains("usec/iter") || l.contains("µs/iter")) {
                        return Err(format!("the {side} reports no time"));
                    }
                }
                if text.contains("invalid data") { Err("wrong data".into()) } else { Ok(()) }
            }
            Self::UcxFinal => {
                let line = of(text, "client").find_map(|l| l.trim().strip_prefix("Final:"));
                match line.and_then(numbers) {
                    Some(row) if row.len() >= 4 && row.iter().take(4).all(|n| *n > 0.0) => Ok(()),
                    _ => Err("no final line with figures".into()),
                }
            }
        }
    }
}

/// The lines of one side.
fn of<'a>(text: &'a str, side: &'a str) -> impl Iterator<Item = &'a str> {
    text.lines().filter_map(move |line| line.strip_prefix(side)?.strip_prefix("| "))
}

/// A line of nothing but numbers.
fn numbers(line: &str) -> Option<Vec<f64>> {
    let row: Result<Vec<f64>, _> = line.split_whitespace().map(str::parse).collect();
    row.ok().filter(|row| !row.is_empty())
}

pub(crate) fn all() -> Vec<Case> {
    let mut cases = ibverbs_utils();
    cases.extend(perftest());
    cases.extend(multicast());
    cases.extend(ucx());
    cases.extend(sideway());
    cases
}

fn ibverbs_utils() -> Vec<Case> {
    let single = |program, arguments: &str, words| Case {
        package: "ibverbs-utils",
        program,
        arguments: arguments.into(),
        env: &[],
        kind: Kind::Single,
        check: Check::Says(words),
    };
    let mut cases = vec![
        single("ibv_devices", "", &["urxe0"]),
        single("ibv_devinfo", "", &["urxe0", "PORT_ACTIVE", "Ethernet"]),
        single("ibv_devinfo", "-v", &["urxe0", "PORT_ACTIVE", "GID[", "RoCE v2", "::ffff:127.0."]),
        single("ibv_devinfo", "-l", &["urxe0"]),
    ];
    // Not -e with -t: ibv_rc_pingpong then takes an event for a completion that it has polled already as an error.
    let pingpongs: [(&str, &[&str]); 4] = [
        (
            "ibv_rc_pingpong",
            &[
                "",
                "-g 0",
                "-e",
                "-N",
                "-t",
                "-c",
                "-e -N -c -g 0",
                "-t -N -c -g 0",
                "-c -s 1000000 -n 50",
                "-m 4096 -r 16",
            ],
        ),
        ("ibv_uc_pingpong", &["", "-g 0", "-e", "-c", "-m 256"]),
        ("ibv_ud_pingpong", &["", "-g 0", "-e", "-c", "-s 1024"]),
        ("ibv_srq_pingpong", &["", "-g 0", "-e", "-c", "-q 4"]),
    ];
    for (program, variants) in pingpongs {
        for arguments in variants {
            cases.push(Case {
                package: "ibverbs-utils",
                program,
                arguments: (*arguments).into(),
                env: &[],
                kind: Kind::Pair,
                check: Check::Pingpong,
            });
        }
    }
    cases
}

/// What perftest's own help allows each of its programs.
struct Perftest {
    program: &'static str,
    connections: &'static [&'static str],
    /// For `-n`: few, since the tests are many.
    iterations: u32,
    /// -a: all sizes.
    sizes: bool,
    events: bool,
    inline: bool,
    srq: bool,
    /// -m: the atomic bandwidth test has none.
    mtu: bool,
}

impl Perftest {
    fn is_bandwidth(&self) -> bool {
        self.program.ends_with("_bw")
    }
}

const PERFTEST: [Perftest; 8] = {
    const SEND: Perftest = Perftest {
        program: "ib_send_bw",
        connections: &["RC", "UC", "UD"],
        iterations: 200,
        sizes: true,
        events: true,
        inline: true,
        srq: true,
        mtu: true,
    };
    const WRITE: Perftest =
        Perftest { program: "ib_write_bw", connections: &["RC", "UC"], events: false, srq: false, ..SEND };
    const READ: Perftest =
        Perftest { program: "ib_read_bw", connections: &["RC"], inline: false, srq: false, ..SEND };
    const ATOMIC: Perftest = Perftest { program: "ib_atomic_bw", sizes: false, mtu: false, ..READ };
    [
        SEND,
        Perftest { program: "ib_send_lat", iterations: 500, ..SEND },
        WRITE,
        Perftest { program: "ib_write_lat", iterations: 500, ..WRITE },
        READ,
        Perftest { program: "ib_read_lat", iterations: 500, ..READ },
        ATOMIC,
        Perftest { program: "ib_atomic_lat", iterations: 500, mtu: true, ..ATOMIC },
    ]
};

/// Sizes of `-a`: the powers of 2 from 2 to 8 MiB; over UD to the MTU.
const ALL_SIZES: usize = 23;
const ALL_UD_SIZES: usize = 12;

fn perftest() -> Vec<Case> {
    let mut cases = Vec::new();
    for p in &PERFTEST {
        let mut add = |arguments: String, rows| {
            cases.push(Case {
                package: "perftest",
                program: p.program,
                arguments,
                env: &[],
                kind: Kind::Pair,
                check: Check::Rows(rows),
            });
        };
        for connection in p.connections {
            let n = p.iterations;
            let c = match *connection {
                "RC" => String::new(),
                other => format!("-c {other} "),
            };
            add(format!("{c}-n {n}"), 1);
            if p.sizes {
                add(format!("{c}-a -n 10"), if *connection == "UD" { ALL_UD_SIZES } else { ALL_SIZES });
            }
            if p.events {
                add(format!("{c}-e -n {n}"), 1);
            }
            if p.inline {
                add(format!("{c}-I 64 -s 64 -n {n}"), 1);
            }
            if p.is_bandwidth() {
                add(format!("{c}-q 16 -n {n}"), 1);
                add(format!("{c}-l 16 -n 320"), 1);
                add(format!("{c}-b -n {n}"), 1);
            }
            if p.srq && *connection != "UC" {
                add(format!("{c}--use-srq -n {n}"), 1);
            }
            add(format!("{c}-D 2"), 1);
        }
        if p.mtu {
            for mtu in [256, 512, 1024, 2048, 4096] {
                add(format!("-m {mtu} -n {}", p.iterations), 1);
            }
        }
    }
    cases
}

/// perftest in a group. Both groups of the latency test are its own; the bandwidth test wants its group's GID to be of
/// the same family as the port's.
fn multicast() -> Vec<Case> {
    const GROUP: &str = "-M 0:0:0:0:0:0:0:0:0:0:255:255:239:1:2:3";
    let case = |program, arguments: String, rows| Case {
        package: "perftest",
        program,
        arguments,
        env: &[],
        kind: Kind::Pair,
        check: Check::Rows(rows),
    };
    vec![
        case("ib_send_lat", "-c UD -g -n 500".into(), 1),
        case("ib_send_lat", "-c UD -g -a -n 10".into(), ALL_UD_SIZES),
        case("ib_send_lat", "-c UD -g -e -n 500".into(), 1),
        case("ib_send_bw", format!("-c UD -g {GROUP} -n 200"), 1),
        case("ib_send_bw", format!("-c UD -g {GROUP} -a -n 10"), ALL_UD_SIZES),
        case("ib_send_bw", format!("-c UD -g {GROUP} -D 2"), 1),
    ]
}

fn ucx() -> Vec<Case> {
    let case = |program, arguments: &str, env, kind, check| Case {
        package: "ucx-utils",
        program,
        arguments: arguments.into(),
        env,
        kind,
        check,
    };
    let mut cases = vec![case(
        "ucx_info",
        "-d",
        &[],
        Kind::Single,
        Check::Says(&["Transport: rc_verbs", "Transport: ud_verbs", "Device: urxe0:1"]),
    )];
    // rc_v is rc_verbs with ud_verbs to set up connections, without which UCX has no way to find the peer's queue pair.
    const RC: &[(&str, &str)] = &[("UCX_TLS", "rc_v"), ("UCX_NET_DEVICES", "urxe0:1")];
    const UD: &[(&str, &str)] = &[("UCX_TLS", "ud_verbs"), ("UCX_NET_DEVICES", "urxe0:1")];
    for env in [RC, UD] {
        for arguments in [
            "-t tag_lat -n 1000 -w 100",
            "-t tag_lat -n 200 -w 10 -s 100000",
            "-t tag_bw -n 1000 -w 100 -s 4096",
            "-t tag_bw -n 100 -w 10 -s 1000000",
            "-t ucp_put_bw -n 500 -w 100 -s 4096",
            "-t ucp_get -n 200 -w 10 -s 4096",
            "-t ucp_am_lat -n 1000 -w 100",
            "-t ucp_fadd -n 200 -w 10 -s 8",
            "-t stream_bw -n 500 -w 100 -s 4096",
            "-t tag_lat -n 500 -w 50 -E sleep",
        ] {
            cases.push(case("ucx_perftest", arguments, env, Kind::Pair, Check::UcxFinal));
        }
    }
    // UCX offers no RDMA over UD, and atomics over verbs only where they are atomic for the adapter alone (ATOMIC_HCA).
    for (transport, tests) in [
        ("rc_verbs", &["am_lat", "am_bw", "put_lat", "put_bw", "get -D zcopy -s 4096"][..]),
        ("ud_verbs", &["am_lat", "am_bw"][..]),
    ] {
        for test in tests {
            let arguments = format!("-x {transport} -d urxe0:1 -t {test} -n 1000 -w 100");
            cases.push(case("ucx_perftest", &arguments, &[], Kind::Pair, Check::UcxFinal));
        }
    }
    cases
}

/// Examples of the crate of this name, as `cargo xtask test` installs them.
fn sideway() -> Vec<Case> {
    let case = |program, arguments: &str, kind, check| Case {
        package: SIDEWAY,
        program,
        arguments: arguments.into(),
        env: &[],
        kind,
        check,
    };
    let mut cases = vec![case("ibv_devinfo", "", Kind::Single, Check::Says(&["urxe0"]))];
    for arguments in ["", "-t", "-s 100000 -n 100 -m 4096"] {
        cases.push(case("rc_pingpong", arguments, Kind::Pair, Check::Pingpong));
    }
    cases.push(case("rc_pingpong_split", "", Kind::Pair, Check::Pingpong));
    cases
}
