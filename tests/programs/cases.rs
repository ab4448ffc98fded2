//! The table of command lines, and what counts as success.

use std::fmt::Write as _;

use std::process::Command;

use crate::harness::{self, Background, PATIENCE, urxe};
use crate::{cm, impaired, mpi, paging};

/// Variables for the program.
pub(crate) type Env = Vec<(&'static str, &'static str)>;

/// The one that is a crate.
pub(crate) const SIDEWAY: &str = "sideway";

pub(crate) struct Case {
    /// The Debian package, or [`SIDEWAY`].
    pub(crate) package: &'static str,
    pub(crate) program: &'static str,
    pub(crate) arguments: String,
    pub(crate) env: Env,
    pub(crate) kind: Kind,
    pub(crate) check: Check,
}

pub(crate) enum Kind {
    Single,
    /// The same on both sides, with `-p PORT` and, for the client, the server's address at the end.
    Pair,
    /// What only the server and only the client is given; SERVER stands for the server's address, PORT for a free port
    /// (in the common arguments too).
    Sides(&'static str, String),
    /// The same, but on one device, for programs that find out the host's address for themselves; the server is started
    /// first and stopped by the test if it stays.
    OneHost {
        server: String,
        client: String,
        ready: Ready,
        stays: bool,
    },
}

/// How to know that a server can be reached.
#[derive(Clone, Copy)]
pub(crate) enum Ready {
    /// It listens at PORT.
    Tcp,
    /// The daemon says that somebody listens.
    RdmaCm,
}

pub(crate) enum Check {
    /// All these are in the output.
    Says(&'static [&'static str]),
    /// All these are in the output of the server, and all those in the client's.
    Sides(&'static [&'static str], &'static [&'static str]),
    /// This is there as often.
    Count(&'static str, usize),
    /// qperf: a line `name = figure unit` for each name.
    Values(&'static [&'static str]),
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
        if let Kind::Sides(server, client) = &self.kind {
            let _ = write!(line, " {server} / {client}");
        }
        if let Kind::OneHost { server, client, .. } = &self.kind {
            let _ = write!(line, " {server} / {client}");
        }
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    pub(crate) fn run(&self) -> Result<(), String> {
        let port = harness::free_port().to_string();
        let words = |text: &str| -> Vec<String> {
            text.split_whitespace()
                .map(|word| word.replace("PORT", &port).replace("SERVER", "{server}"))
                .collect()
        };
        let mut command = match &self.kind {
            Kind::OneHost { server, client, ready, stays } => {
                return self.run_on_one_host(server, client, *ready, *stays);
            }
            Kind::Single => urxe(["run"]),
            Kind::Pair | Kind::Sides(..) => urxe(["pair", "--timeout", &PATIENCE.as_secs().to_string()]),
        };
        if let Kind::Sides(server, client) = &self.kind {
            command.args(words(server).iter().map(|word| format!("--server-arg={word}")));
            command.args(words(client).iter().map(|word| format!("--client-arg={word}")));
        }
        command.arg("--");
        self.fill(&mut command, &port)?;
        if matches!(self.kind, Kind::Pair) {
            command.args(["-p", &port]);
        }
        // pair stops its sides itself; this only catches a pair that does not.
        let output = harness::run(&mut command, PATIENCE * 2)?;
        let text = output.text;
        if output.code != Some(0) {
            return Err(format!("{command:?}: exit code {:?}\n{text}", output.code));
        }
        self.check.check(&text).map_err(|why| format!("{command:?}: {why}\n{text}"))
    }

    fn run_on_one_host(&self, server: &str, client: &str, ready: Ready, stays: bool) -> Result<(), String> {
        let (fabric, port) = (cm::fabric(), harness::free_port());
        let command = |more: &str| -> Result<Command, String> {
            let mut command = urxe(["run", "--fabric", &fabric, "--", "stdbuf", "-oL"]);
            self.fill(&mut command, &port.to_string())?;
            let more = more.replace("PORT", &port.to_string()).replace("SERVER", "127.0.0.1");
            command.args(more.split_whitespace());
            Ok(command)
        };
        let mut background = Background::start(&mut command(server)?)?;
        match ready {
            Ready::Tcp => background.wait_until("listens at its port", || harness::listens(port))?,
            Ready::RdmaCm => background.wait_until("listens by rdma_cm", || cm::somebody_listens(&fabric))?,
        }
        let mut command = command(client)?;
        let output = harness::run(&mut command, PATIENCE)?;
        let server = if stays { background.stop() } else { background.finish()? };
        let lines = |side, text: &str| text.lines().map(|l| format!("{side}| {l}\n")).collect::<String>();
        let text = lines("server", &server.text) + &lines("client", &output.text);
        if output.code != Some(0) || !stays && server.code != Some(0) {
            return Err(format!("{command:?}: exit codes {:?} and {:?}\n{text}", output.code, server.code));
        }
        self.check.check(&text).map_err(|why| format!("{command:?}: {why}\n{text}"))
    }

    /// Adds the program with what both sides are given.
    pub(crate) fn fill<'a>(&self, command: &'a mut Command, port: &str) -> Result<&'a mut Command, String> {
        match self.package {
            SIDEWAY => command.arg(harness::sideway().join("bin").join(self.program)),
            _ => command.arg(self.program),
        };
        for word in self.arguments.split_whitespace() {
            match word {
                _ if mpi::PROGRAMS.contains(&word) => command.arg(mpi::compiled(word, self.package)?),
                _ => command.arg(word.replace("PORT", port)),
            };
        }
        Ok(command.envs(mpi::ENVIRONMENT.iter().copied()).envs(self.env.iter().copied()))
    }
}

impl Check {
    fn check(&self, text: &str) -> Result<(), String> {
        match self {
            Self::Says(words) => match words.iter().find(|w| !text.contains(**w)) {
                Some(word) => Err(format!("no {word:?} in the output")),
                None => Ok(()),
            },
            Self::Sides(server, client) => {
                let missing = |side, words: &[&'static str]| {
                    let has = |word: &str| of(text, side).any(|line| line.contains(word));
                    words
                        .iter()
                        .copied()
                        .find(|word| !has(word))
                        .map(|word| format!("no {word:?} from the {side}"))
                };
                missing("server", server).or_else(|| missing("client", client)).map_or(Ok(()), Err)
            }
            Self::Count(words, wanted) => match text.matches(words).count() {
                count if count == *wanted => Ok(()),
                count => Err(format!("{words:?} is there {count} times, not {wanted}")),
            },
            Self::Values(names) => {
                let value = |name: &str| {
                    let line = of(text, "client")
                        .find_map(|l| l.trim().strip_prefix(name)?.trim().strip_prefix('='));
                    line?.split_whitespace().next()?.parse::<f64>().ok()
                };
                match names.iter().find(|name| value(name).is_none_or(|v| v <= 0.0)) {
                    Some(name) => Err(format!("no figure for {name:?}")),
                    None => Ok(()),
                }
            }
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
    cases.extend(qperf());
    cases.extend(cm::cases());
    cases.extend(mpi::cases());
    cases.extend(impaired::cases());
    cases.extend(paging::cases());
    cases
}

fn ibverbs_utils() -> Vec<Case> {
    let single = |program, arguments: &str, words| Case {
        package: "ibverbs-utils",
        program,
        arguments: arguments.into(),
        env: Env::new(),
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
                env: Env::new(),
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
                env: Env::new(),
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

/// perftest in a group. All members of a fabric hear each other, and the tests run side by side: so the bandwidth test is
/// given a group for each, whose GID it wants to be of the same family as the port's. The latency test needs its own two
/// groups, so it is given a fabric.
fn multicast() -> Vec<Case> {
    let group = |last: u8| format!("-M 0:0:0:0:0:0:0:0:0:0:255:255:239:1:2:{last}");
    let case = |program, arguments: String, env: &[(&'static str, &'static str)], rows| Case {
        package: "perftest",
        program,
        arguments,
        env: env.to_vec(),
        kind: Kind::Pair,
        check: Check::Rows(rows),
    };
    vec![
        case("ib_send_lat", "-c UD -g -n 500".into(), &[], 1),
        case("ib_send_lat", "-c UD -g -a -n 10".into(), &[("URXE_FABRIC", "sizes")], ALL_UD_SIZES),
        case("ib_send_lat", "-c UD -g -e -n 500".into(), &[("URXE_FABRIC", "events")], 1),
        case("ib_send_bw", format!("-c UD -g {} -n 200", group(1)), &[], 1),
        case("ib_send_bw", format!("-c UD -g {} -a -n 10", group(2)), &[], ALL_UD_SIZES),
        case("ib_send_bw", format!("-c UD -g {} -D 2", group(3)), &[], 1),
    ]
}

/// rc_v is rc_verbs with ud_verbs to set up connections, without which UCX has no way to find the peer's queue pair.
pub(crate) const RC: &[(&str, &str)] = &[("UCX_TLS", "rc_v"), ("UCX_NET_DEVICES", "urxe0:1")];

fn ucx() -> Vec<Case> {
    let case = |program, arguments: &str, env: &[(&'static str, &'static str)], kind, check| Case {
        package: "ucx-utils",
        program,
        arguments: arguments.into(),
        env: env.to_vec(),
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
        env: Env::new(),
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

/// Each of its RDMA tests but those of XRC, connected by LIDs; and some connected by rdma_cm. The server stays until it is told to quit.
fn qperf() -> Vec<Case> {
    const BOTH: &[&str] = &["send_bw", "recv_bw"];
    let tests: [(&[&str], &[&str]); 4] = [
        (
            &[
                "rc_lat",
                "uc_lat",
                "ud_lat",
                "rc_rdma_read_lat",
                "rc_rdma_write_lat",
                "rc_rdma_write_poll_lat",
                "uc_rdma_write_lat",
                "uc_rdma_write_poll_lat",
            ],
            &["latency"],
        ),
        (&["rc_bw", "rc_bi_bw", "rc_rdma_read_bw", "rc_rdma_write_bw"], &["bw"]),
        (&["uc_bw", "uc_bi_bw", "ud_bw", "ud_bi_bw", "uc_rdma_write_bw"], BOTH),
        (
            &["rc_compare_swap_mr", "rc_fetch_add_mr", "ver_rc_compare_swap", "ver_rc_fetch_add"],
            &["msg_rate"],
        ),
    ];
    let case = |client: String, values| Case {
        package: "qperf",
        program: "qperf",
        arguments: "-lp PORT".into(),
        env: Env::new(),
        kind: Kind::Sides("", client),
        check: Check::Values(values),
    };
    let each = tests.into_iter().flat_map(|(names, values)| names.iter().map(move |name| (*name, values)));
    let by_lid =
        each.map(|(name, values)| case(format!("SERVER -li urxe0:1 -ri urxe0:1 -t 1 {name} quit"), values));
    let by_cm = [
        ("rc_bi_bw", &["bw"][..]),
        ("rc_bw", &["bw"]),
        ("rc_lat", &["latency"]),
        ("rc_rdma_read_bw", &["bw"]),
        ("rc_rdma_write_lat", &["latency"]),
        ("ud_lat", &["latency"]),
        ("ud_bw", BOTH),
    ];
    let by_cm = by_cm.map(|(name, values)| case(format!("SERVER -cm1 -t 1 {name} quit"), values));
    by_lid.chain(by_cm).collect()
}
