//! perftest between two hosts, over each kind of address. The hosts are network namespaces, which need root and the `ip`
//! command; without them the tests say so and pass.

#[path = "../veth/mod.rs"]
mod veth;

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crate::harness::{self, Output, PATIENCE, urxe};
use veth::{A, A_LINK, A6, B, B_LINK, B6, joined, meet, skipped};

const PORT: u16 = 18_515;
/// A group of IPv6 as perftest wants it.
const GROUP: &str = "-M 255:14:0:0:0:0:0:0:0:0:0:0:0:0:0:9";

/// The tests: names, and what they do.
pub(crate) fn all() -> Vec<(String, impl FnOnce() -> Result<(), String> + Send + 'static)> {
    let mut tests = Vec::new();
    for (family, a, b) in [("ipv4", A, B), ("ipv6", A6, B6), ("link_local", A_LINK, B_LINK)] {
        let group = if family == "ipv4" { "-M 0:0:0:0:0:0:0:0:0:0:255:255:239:9:9:9" } else { GROUP };
        for line in [
            "ib_send_lat -n 200".to_owned(),
            "ib_write_bw -n 200".to_owned(),
            "ib_read_bw -n 200".to_owned(),
            "ib_atomic_lat -n 200".to_owned(),
            "ib_send_bw -c UC -n 200".to_owned(),
            "ib_send_bw -c UD -n 200".to_owned(),
            "ib_send_lat -c UD -g -n 200".to_owned(),
            format!("ib_send_bw -c UD -g {group} -n 200"),
        ] {
            let name = format!("hosts_{family}_{}", line.replace(' ', "_"));
            tests.push((name, move || between_hosts(a, b, &line)));
        }
    }
    tests
}

fn between_hosts(a: &str, b: &str, line: &str) -> Result<(), String> {
    if skipped() {
        return Ok(());
    }
    let (listens, listening) = mpsc::channel();
    let command = |address: &str| {
        let mut command = urxe(["run", "--daemon", "off", "--addr", address, "--"]);
        command.args(line.split(' ')).args(["-p", &PORT.to_string()]);
        command
    };
    let (server, client) = joined(
        move || {
            meet(true);
            // Sees the same network; ends by itself.
            let watch = thread::spawn(move || {
                let end = Instant::now() + PATIENCE;
                while !is_listening() && Instant::now() < end {
                    thread::sleep(Duration::from_millis(20));
                }
                let _ = listens.send(());
            });
            let output = harness::run(&mut command(a), PATIENCE);
            let _ = watch.join();
            output
        },
        move || {
            meet(false);
            let _ = listening.recv();
            harness::run(command(b).arg(A), PATIENCE)
        },
    );
    let text = format!("server: {}\nclient: {}", text(&server), text(&client));
    match (server, client) {
        (Ok(Output { code: Some(0), .. }), Ok(Output { code: Some(0), text: said }))
            if has_figures(&said) =>
        {
            Ok(())
        }
        _ => Err(format!("{line} from {b} to {a}\n{text}")),
    }
}

fn text(output: &Result<Output, String>) -> String {
    match output {
        Ok(output) => format!("exit code {:?}\n{}", output.code, output.text),
        Err(why) => why.clone(),
    }
}

/// A row of results: numbers alone, of which one at least is not 0.
fn has_figures(text: &str) -> bool {
    text.lines().any(|line| {
        let row: Result<Vec<f64>, _> = line.split_whitespace().map(str::parse).collect();
        row.is_ok_and(|row| row.len() >= 4 && row.iter().skip(2).any(|n| *n > 0.0))
    })
}

/// Whether somebody listens on the port, in the calling thread's network.
fn is_listening() -> bool {
    let wanted = format!(":{PORT:04X}");
    ["tcp", "tcp6"].iter().any(|table| {
        let table = std::fs::read_to_string(format!("/proc/thread-self/net/{table}")).unwrap_or_default();
        table.lines().any(|line| {
            let mut words = line.split_whitespace().skip(1);
            let local = words.next().unwrap_or_default();
            // The state LISTEN.
            local.ends_with(&wanted) && words.nth(1) == Some("0A")
        })
    })
}
