//! Programs that connect by rdma_cm.

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::cases::{Case, Check, Env, Kind, RC, Ready};
use crate::harness::{self, Background, Output, PATIENCE, urxe};

fn sides(
    package: &'static str,
    program: &'static str,
    arguments: impl Into<String>,
    server: &'static str,
    client: &str,
    check: Check,
) -> Case {
    Case {
        package,
        program,
        arguments: arguments.into(),
        env: Env::new(),
        kind: Kind::Sides(server, client.into()),
        check,
    }
}

fn one_host(
    package: &'static str,
    program: &'static str,
    arguments: impl Into<String>,
    (server, client): (&str, &str),
    (ready, stays): (Ready, bool),
    check: Check,
) -> Case {
    let kind = Kind::OneHost { server: server.into(), client: client.into(), ready, stays };
    Case { package, program, arguments: arguments.into(), env: Env::new(), kind, check }
}

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = rdmacm_utils();
    cases.extend(perftest());
    cases.extend(libfabric());
    cases.extend(fio());
    cases.extend(ucx());
    cases
}

fn rdmacm_utils() -> Vec<Case> {
    let of = |program, arguments: &str, server, client: &str, check| {
        sides("rdmacm-utils", program, arguments, server, client, check)
    };
    let mut cases = Vec::new();
    for size in ["", "-S 23", "-S 4096", "-S 65000"] {
        let check = Check::Sides(&["server ping data: rdma-ping-9: "], &["ping data: rdma-ping-9: "]);
        cases.push(of("rping", &format!("-C 10 -v -V {size} -p PORT"), "-s", "-c -a SERVER", check));
    }
    let check = Check::Sides(&["server ping data: rdma-ping-99: "], &["ping data: rdma-ping-99: "]);
    cases.push(of("rping", "-C 100 -v -V -q -p PORT", "-s", "-c -a SERVER", check));
    const ENDS_WELL: Check = Check::Sides(
        &["data transfers complete", "return status 0"],
        &["data transfers complete", "return status 0"],
    );
    for arguments in ["", "-c 100 -C 10", "-C 100 -S 65536", "-C 1000 -m", "-P ib"] {
        cases.push(of("ucmatose", &format!("{arguments} -p PORT"), "", "-s SERVER", ENDS_WELL));
    }
    // The port is a constant of the program: these do not run at the same time as each other.
    for arguments in ["", "-c 100 -C 10", "-C 100 -S 1024"] {
        cases.push(of("udaddy", arguments, "", "-s SERVER", ENDS_WELL));
    }
    const STEPS: &[&str] =
        &["create id", "resolve addr", "resolve route", "create qp", "connect", "disconnect", "destroy"];
    cases.push(one_host(
        "rdmacm-utils",
        "cmtime",
        "-c 1000 -p PORT",
        ("", "-s SERVER"),
        (Ready::RdmaCm, true),
        Check::Sides(&[], STEPS),
    ));
    // The sides are programs of their own.
    for (server, client) in [
        ("rdma_server -p PORT", "rdma_client -p PORT -s SERVER"),
        ("rdma_xserver -c r -p PORT", "rdma_xclient -c r -p PORT -s SERVER"),
    ] {
        cases.push(of("env", "", server, client, Check::Sides(&[": end 0"], &[": end 0"])));
    }
    cases
}

/// Each of its programs, connected by rdma_cm (-R).
fn perftest() -> Vec<Case> {
    let mut cases = Vec::new();
    for (program, options) in [
        ("ib_send_bw", &["-n 200", "-a -n 10", "-e -n 200", "-q 4 -n 200", "-b -n 200", "-c UD -n 200"][..]),
        ("ib_send_lat", &["-n 500", "-e -n 500", "-c UD -n 500"]),
        ("ib_write_bw", &["-n 200", "-a -n 10", "-q 4 -n 200", "-b -n 200"]),
        ("ib_write_lat", &["-n 500"]),
        ("ib_read_bw", &["-n 200", "-a -n 10"]),
        ("ib_read_lat", &["-n 500"]),
        ("ib_atomic_bw", &["-n 200"]),
        ("ib_atomic_lat", &["-n 500"]),
    ] {
        for option in options {
            let rows = if option.starts_with("-a") { 23 } else { 1 };
            cases.push(Case {
                package: "perftest",
                program,
                arguments: format!("-R {option}"),
                env: Env::new(),
                kind: Kind::Pair,
                check: Check::Rows(rows),
            });
        }
    }
    cases
}

fn libfabric() -> Vec<Case> {
    let info = |env: &[(&'static str, &'static str)], arguments: &str, check| Case {
        package: "libfabric-bin",
        program: "fi_info",
        arguments: arguments.into(),
        env: env.to_vec(),
        kind: Kind::Single,
        check,
    };
    let mut cases = vec![
        info(
            &[],
            "-p verbs",
            Check::Says(&["provider: verbs", "domain: urxe0", "FI_EP_MSG", "verbs;ofi_rxm"]),
        ),
        // What may be injected is what may be inline: by messages as much as libfabric is told, here its default; by
        // datagrams the device's limit; by ofi_rxm as much as messages, less its header.
        info(
            &[],
            "-p verbs -v",
            Check::Says(&["inject_size: 256\n", "inject_size: 1024\n", "inject_size: 192\n"]),
        ),
        // More than the device's limit: by messages and by datagrams as much as it allows.
        info(&[MUCH_INLINE], "-p verbs -v", Check::Count("inject_size: 1024\n", 2)),
        info(&[MUCH_INLINE], "-p verbs;ofi_rxm -v", Check::Count("inject_size: 960\n", 3)),
    ];
    let pingpong = |env: &[(&'static str, &'static str)], arguments: String, sizes: &'static [&str]| {
        let sides = ("-B PORT", "-P PORT SERVER");
        let check = Check::Sides(sizes, sizes);
        let env = env.to_vec();
        // The server tells the client an address of its host, which need not be a device's.
        let case = one_host("libfabric-bin", "fi_pingpong", arguments, sides, (Ready::Tcp, false), check);
        Case { env, ..case }
    };
    for (provider, kind) in PROVIDERS {
        for (options, sizes) in [
            ("-I 10 -S all -c", &["64 ", "1k ", "4k ", "64k ", "1m ", "2m "][..]),
            ("-I 1000 -S 64", &["64 "]),
        ] {
            cases.push(pingpong(&[], format!("-p {provider} -e {kind} {options}"), sizes));
        }
    }
    // fi_pingpong injects what is less than the limit.
    for (env, limits) in [(&[][..], [256, 192]), (&[MUCH_INLINE], [1024, 960])] {
        for ((provider, kind), limit) in PROVIDERS.into_iter().zip(limits) {
            for size in limit - 1..=limit + 1 {
                let arguments = format!("-p {provider} -e {kind} -I 200 -c -S {size}");
                cases.push(pingpong(env, arguments, &[" =200 "]));
            }
        }
    }
    cases
}

/// With the kind of endpoint that each has.
const PROVIDERS: [(&str, &str); 2] = [("verbs", "msg"), ("verbs;ofi_rxm", "rdm")];
/// More inline data than the device allows.
const MUCH_INLINE: (&str, &str) = ("FI_VERBS_INLINE_SIZE", "4096");

/// The writing side is fio's client. It compares nothing by RDMA; what is sent is looked at by who receives. fio allows
/// no RNR retries and so wants as many receives as there are sends.
fn fio() -> Vec<Case> {
    let both = "--name=job --ioengine=rdma --port=PORT --bs=64k";
    let mut cases = Vec::new();
    for (more, server, client, check) in [
        ("--size=64m --iodepth=16", "", "--verb=write", Check::Sides(&["err= 0"], &["err= 0", "io=64.0MiB"])),
        (
            "--size=64m --iodepth=16 --thread",
            "",
            "--verb=read",
            Check::Sides(&["err= 0"], &["err= 0", "io=64.0MiB"]),
        ),
        (
            "--size=4m --thread --verify=crc32c --verify_fatal=1 --verify_state_save=0",
            "--iodepth=64",
            "--verb=send --iodepth=4 --do_verify=0",
            Check::Sides(&["err= 0", "total=64,0"], &["err= 0", "total=0,64"]),
        ),
        (
            "--size=4m --verify=pattern --verify_pattern=0x5a6b7c8d --verify_fatal=1 --verify_state_save=0",
            "--iodepth=64",
            "--verb=send --iodepth=4 --do_verify=0",
            Check::Sides(&["err= 0", "total=64,0"], &["err= 0", "total=0,64"]),
        ),
    ] {
        let sides = (&*format!("--rw=read {server}"), &*format!("--hostname=SERVER --rw=write {client}"));
        cases.push(one_host("fio", "fio", format!("{both} {more}"), sides, (Ready::RdmaCm, false), check));
    }
    cases
}

/// UCX's own program for sockaddr connections, which are rdma_cm's when RDMA transports are chosen. ucx_perftest of this
/// version has no such mode.
fn ucx() -> Vec<Case> {
    let sizes = "-q -d 64:300000 -i 2000 -w 16";
    ["-o read,write", "-o read,write -A"]
        .into_iter()
        .map(|options| Case {
            env: [RC, &[("UCX_SOCKADDR_TLS_PRIORITY", "rdmacm")]].concat(),
            ..one_host(
                "ucx-utils",
                "io_demo",
                format!("{sizes} {options} -p PORT"),
                ("", "SERVER"),
                (Ready::RdmaCm, true),
                Check::Sides(&[], &["Client exit with status 'OK'"]),
            )
        })
        .collect()
}

type Test = fn() -> Result<(), String>;

/// What is not one command line.
pub(crate) fn tests() -> Vec<(&'static str, Test)> {
    vec![
        ("two_runs_reach_each_other_by_the_hosts_address", two_runs),
        ("two_runs_reach_each_other_by_ipv6", two_runs_ipv6),
        ("mckey_members_get_what_the_sender_sends", mckey),
        ("a_killed_program_is_disconnected_and_leaves_nothing", killed_and_disconnected),
        ("the_peer_of_a_killed_program_exceeds_its_retries", killed_and_missed),
    ]
}

/// A fabric of the test's own.
pub(crate) fn fabric() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Whether a process of the fabric listens by rdma_cm.
pub(crate) fn somebody_listens(fabric: &str) -> bool {
    let output = harness::run(&mut urxe(["stat", "--json", "--fabric", fabric]), PATIENCE);
    output.is_ok_and(|o| o.text.contains("\"listeners\":[") && !o.text.contains("\"listeners\":[]"))
}

/// `urxe run` in this fabric. What the program writes comes in lines, as it would on a terminal.
fn run_in(fabric: &str, flags: &[&str], line: &str) -> Command {
    let mut command = urxe(["run", "--fabric", fabric]);
    command.args(flags).args(["--", "stdbuf", "-oL"]).args(line.split_whitespace());
    command
}

/// The one ends well and says all this.
fn ends_well(command: &Command, output: &Output, words: &[&str]) -> Result<(), String> {
    let missing = words.iter().find(|word| !output.text.contains(**word));
    match missing {
        None if output.code == Some(0) => Ok(()),
        _ => Err(format!("{command:?}: exit code {:?}, missing: {missing:?}\n{}", output.code, output.text)),
    }
}

/// As on one machine with an adapter: the client names an address of the host, whichever.
fn two_runs() -> Result<(), String> {
    for address in ["127.0.0.1", "localhost"] {
        let (fabric, port) = (fabric(), harness::free_port());
        let mut server = Background::start(&mut run_in(&fabric, &[], &format!("ib_write_bw -p {port}")))?;
        server.wait_for("Waiting for client")?;
        let mut client = run_in(&fabric, &[], &format!("ib_write_bw -p {port} -n 500 {address}"));
        let output = harness::run(&mut client, PATIENCE)?;
        ends_well(&client, &output, &["65536      500"])?;
        let output = server.finish()?;
        ends_well(&client, &output, &["65536"])?;

        let mut server =
            Background::start(&mut run_in(&fabric, &[], &format!("rping -s -d -v -C 20 -p {port}")))?;
        server.wait_for("rdma_listen")?;
        let mut client = run_in(&fabric, &[], &format!("rping -c -a {address} -v -V -C 20 -p {port}"));
        let output = harness::run(&mut client, PATIENCE)?;
        ends_well(&client, &output, &["ping data: rdma-ping-19: "])?;
        ends_well(&client, &server.finish()?, &["server ping data: rdma-ping-19: "])?;
    }
    Ok(())
}

fn two_runs_ipv6() -> Result<(), String> {
    let (fabric, port, flags) = (fabric(), harness::free_port(), ["--addr", "::1"]);
    let mut server =
        Background::start(&mut run_in(&fabric, &flags, &format!("rping -s -d -v -C 20 -a ::0 -p {port}")))?;
    server.wait_for("rdma_listen")?;
    let mut client = run_in(&fabric, &flags, &format!("rping -c -a ::1 -v -V -C 20 -p {port}"));
    let output = harness::run(&mut client, PATIENCE)?;
    ends_well(&client, &output, &["ping data: rdma-ping-19: "])?;
    ends_well(&client, &server.finish()?, &["server ping data: rdma-ping-19: "])
}

/// Waits until nothing of a fabric is left: the daemon goes when its last client has gone.
fn nothing_is_left(fabric: &str) -> Result<(), String> {
    let end = Instant::now() + PATIENCE;
    loop {
        let output = harness::run(&mut urxe(["stat", "--fabric", fabric]), PATIENCE)?;
        if output.text.contains("no daemon of fabric") {
            return Ok(());
        }
        if Instant::now() >= end {
            return Err(format!("the fabric is still there:\n{}", output.text));
        }
        thread::sleep(Duration::from_millis(100));
    }
}

/// The daemon speaks for who cannot any more: the peer hears at once that its connection is gone.
fn killed_and_disconnected() -> Result<(), String> {
    let (fabric, port) = (fabric(), harness::free_port());
    let mut server = run_in(&fabric, &[], &format!("rping -s -d -v -p {port}"));
    let mut background = Background::start(&mut server)?;
    background.wait_for("rdma_listen")?;
    let mut client = run_in(&fabric, &[], &format!("rping -c -a 127.0.0.1 -v -p {port}"));
    let mut client = Background::start(&mut client)?;
    client.wait_for("ping data: rdma-ping-9: ")?;
    client.stop();
    ends_well(&server, &background.finish()?, &["DISCONNECT EVENT"])?;
    nothing_is_left(&fabric)
}

/// Without rdma_cm nobody says anything: the peer finds out by its retries.
fn killed_and_missed() -> Result<(), String> {
    let (fabric, port) = (fabric(), harness::free_port());
    let mut server = Background::start(&mut run_in(&fabric, &[], &format!("ib_write_bw -D 60 -p {port}")))?;
    server.wait_for("Waiting for client")?;
    let mut client =
        Background::start(&mut run_in(&fabric, &[], &format!("ib_write_bw -D 60 -p {port} 127.0.0.1")))?;
    client.wait_for("#bytes")?;
    server.stop();
    let output = client.finish()?;
    // Of the program, and of the line that explains it.
    for words in ["status 12", "no acknowledgement from"] {
        if !output.text.contains(words) || output.code == Some(0) {
            return Err(format!("exit code {:?}, wanted {words:?}\n{}", output.code, output.text));
        }
    }
    nothing_is_left(&fabric)
}

/// Three members on two machines; one of them sends nothing but hears what a fourth does. Also without loopback.
fn mckey() -> Result<(), String> {
    for loopback in ["", "-l"] {
        let fabric = fabric();
        let line = format!("mckey -m 239.77.1.2 -C 25 -S 512 {loopback}");
        let mut members = Vec::new();
        for node in ["0", "1", "1"] {
            let mut member =
                Background::start(&mut run_in(&fabric, &["--nodes", "2", "--node", node], &line))?;
            member.wait_for("receiving data transfers")?;
            members.push(member);
        }
        let mut sender = run_in(&fabric, &["--nodes", "2", "--node", "0"], &format!("{line} -s"));
        let output = harness::run(&mut sender, PATIENCE)?;
        ends_well(
            &sender,
            &output,
            &["initiating data transfers", "data transfers complete", "return status 0"],
        )?;
        for member in members {
            ends_well(&sender, &member.finish()?, &["data transfers complete", "return status 0"])?;
        }
    }
    Ok(())
}
