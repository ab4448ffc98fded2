//! perftest over urxe beside the raw socket, in one run: what counts is the ratio, since machines differ and drift.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::{memory, ping_pong, socket, stream};

/// A number of one kind; higher is better for rates, lower for times.
#[derive(Clone, Copy)]
enum Kind {
    MegabytesPerSecond,
    MillionsPerSecond,
    Microseconds,
}

/// What perftest is run for.
struct Case {
    name: &'static str,
    program: &'static str,
    args: &'static str,
    kind: Kind,
    /// Index of the raw measurement that it is compared with.
    raw: usize,
    /// The ratio that is aimed at.
    aim: f64,
}

/// Payload that a packet of 4124 or 40 bytes carries, as a share: perftest counts payload only.
const RAW: [(&str, Kind); 3] = [
    ("raw stream, 4124-byte packets", Kind::MegabytesPerSecond),
    ("raw stream, 40-byte packets", Kind::MillionsPerSecond),
    ("raw ping-pong, 20 bytes, half round trip", Kind::Microseconds),
];

const CASES: [Case; 8] = [
    Case {
        name: "ib_write_bw 64 KiB",
        program: "ib_write_bw",
        args: "-s 65536 -n 20000",
        kind: Kind::MegabytesPerSecond,
        raw: 0,
        aim: 0.8,
    },
    Case {
        name: "ib_send_bw 64 KiB",
        program: "ib_send_bw",
        args: "-s 65536 -n 20000",
        kind: Kind::MegabytesPerSecond,
        raw: 0,
        aim: 0.8,
    },
    Case {
        name: "ib_read_bw 64 KiB",
        program: "ib_read_bw",
        args: "-s 65536 -n 20000",
        kind: Kind::MegabytesPerSecond,
        raw: 0,
        aim: 0.8,
    },
    Case {
        name: "ib_write_bw 8 B, lists of 64",
        program: "ib_write_bw",
        args: "-s 8 -l 64 -n 1000000",
        kind: Kind::MillionsPerSecond,
        raw: 1,
        aim: 0.0,
    },
    Case {
        name: "ib_send_lat 2 B",
        program: "ib_send_lat",
        args: "-s 2 -n 50000",
        kind: Kind::Microseconds,
        raw: 2,
        aim: 1.25,
    },
    Case {
        name: "ib_write_lat 2 B",
        program: "ib_write_lat",
        args: "-s 2 -n 50000",
        kind: Kind::Microseconds,
        raw: 2,
        aim: 1.25,
    },
    Case {
        name: "ib_read_lat 2 B (a round trip)",
        program: "ib_read_lat",
        args: "-s 2 -n 20000",
        kind: Kind::Microseconds,
        raw: 2,
        aim: 0.0,
    },
    Case {
        name: "ib_atomic_lat (a round trip)",
        program: "ib_atomic_lat",
        args: "-n 20000",
        kind: Kind::Microseconds,
        raw: 2,
        aim: 0.0,
    },
];

/// Runs everything `rounds` times in turn and prints the table. With `write`, puts it into that file too.
pub(crate) fn compare(rounds: u32, write: Option<&Path>) -> io::Result<()> {
    let urxe = beside("urxe")?;
    socket::pin(0);
    let mut raw: [Vec<f64>; 3] = Default::default();
    let mut over: [Vec<f64>; CASES.len()] = Default::default();
    for round in 0..rounds {
        eprintln!("round {} of {rounds}", round + 1);
        let time = Duration::from_millis(300);
        raw[0].push(stream(4124, 15, time)? / 1e6);
        raw[1].push(stream(40, 64, time)? / 40e6);
        raw[2].push(ping_pong(20, time)? * 1e6);
        for (case, values) in CASES.iter().zip(&mut over) {
            values.push(perftest(&urxe, case)?);
        }
    }
    let table = table(&raw, &over)?;
    println!("{table}");
    if let Some(path) = write {
        let text = std::fs::read_to_string(path)?;
        std::fs::write(path, replace(&text, &table)?)?;
    }
    Ok(())
}

/// The program of that name in the folder of this one.
pub(crate) fn beside(name: &str) -> io::Result<PathBuf> {
    let path = std::env::current_exe()?.with_file_name(name);
    if path.exists() { Ok(path) } else { Err(io::Error::other(format!("{} is not built", path.display()))) }
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// One run of perftest: the server on CPU 1, the client on CPU 0.
fn perftest(urxe: &Path, case: &Case) -> io::Result<f64> {
    let port = free_port()?;
    let command = |cpu: &str| {
        let mut c = Command::new("taskset");
        c.args(["-c", cpu]).arg(urxe).args([
            "run",
            "--",
            case.program,
            "-F",
            "-p",
            &port.to_string(),
            "-m",
            "4096",
        ]);
        c.args(case.args.split(' ')).stdin(Stdio::null()).stderr(Stdio::null());
        c
    };
    let server = Killed(command("1").stdout(Stdio::null()).spawn()?);
    let start = Instant::now();
    while !listens(port)? {
        if start.elapsed() > Duration::from_secs(10) {
            return Err(io::Error::other(format!("{} does not listen", case.program)));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let client = command("0").arg("127.0.0.1").stdout(Stdio::piped()).spawn()?.wait_with_output()?;
    drop(server);
    let text = String::from_utf8_lossy(&client.stdout);
    let failed = || io::Error::other(format!("{} {} printed no result:\n{text}", case.program, case.args));
    let size = if case.program.contains("atomic") { "8" } else { case.args.split(' ').nth(1).unwrap_or("") };
    let row = text
        .lines()
        .rev()
        .map(|l| l.split_whitespace().collect::<Vec<_>>())
        .find(|f| f.first() == Some(&size));
    let row = row.ok_or_else(failed)?;
    let column = match case.kind {
        // Columns: bytes, iterations, peak and average in MiB/s, Mpps.
        Kind::MegabytesPerSecond => 3,
        Kind::MillionsPerSecond => 4,
        // Columns: bytes, iterations, min, max, typical.
        Kind::Microseconds => 4,
    };
    let value: f64 = row.get(column).and_then(|v| v.parse().ok()).ok_or_else(failed)?;
    Ok(if matches!(case.kind, Kind::MegabytesPerSecond) { value * 1.048_576 } else { value })
}

fn free_port() -> io::Result<u16> {
    Ok(std::net::TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

/// Whether a TCP socket listens on the port. Connecting would use up the server's only accept.
fn listens(port: u16) -> io::Result<bool> {
    let want = format!(":{port:04X}");
    for file in ["/proc/net/tcp", "/proc/net/tcp6"] {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        let found = text.lines().any(|l| {
            let mut f = l.split_whitespace().skip(1);
            f.next().is_some_and(|local| local.ends_with(&want)) && f.nth(1) == Some("0A")
        });
        if found {
            return Ok(true);
        }
    }
    Ok(false)
}

fn median(values: &[f64]) -> f64 {
    let mut v = values.to_vec();
    v.sort_by(f64::total_cmp);
    v[v.len() / 2]
}

fn shown(kind: Kind, values: &[f64]) -> String {
    let (unit, digits) = match kind {
        Kind::MegabytesPerSecond => ("MB/s", 0),
        Kind::MillionsPerSecond => ("M/s", 2),
        Kind::Microseconds => ("µs", 2),
    };
    let lowest = values.iter().copied().fold(f64::INFINITY, f64::min);
    let highest = values.iter().copied().fold(0.0, f64::max);
    format!("{:.digits$} {unit} | {lowest:.digits$} to {highest:.digits$}", median(values))
}

fn table(raw: &[Vec<f64>; 3], over: &[Vec<f64>; CASES.len()]) -> io::Result<String> {
    use std::fmt::Write as _;
    let mut t = String::new();
    let mut line = |text: String| {
        let _ = writeln!(t, "{text}");
    };
    line(facts());
    line(String::new());
    line("| measurement | median | range | ratio to raw | aim |".into());
    line("| --- | --- | --- | --- | --- |".into());
    for ((name, kind), values) in RAW.iter().zip(raw) {
        line(format!("| {name} | {} | 1 | |", shown(*kind, values)));
    }
    for (case, values) in CASES.iter().zip(over) {
        let ratios: Vec<f64> = values.iter().zip(&raw[case.raw]).map(|(v, r)| v / r).collect();
        let aim = match case.kind {
            _ if case.aim == 0.0 => String::new(),
            Kind::Microseconds => format!("at most {}", case.aim),
            _ => format!("at least {}", case.aim),
        };
        line(format!("| {} | {} | {:.2} | {aim} |", case.name, shown(case.kind, values), median(&ratios)));
    }
    let bytes = memory::idle_queue_pair().map_err(io::Error::other)?;
    line(format!(
        "| memory of an idle connected RC queue pair, depth 128 | {bytes} bytes | | | below 32768 |"
    ));
    Ok(t)
}

/// The machine's facts, on one line.
fn facts() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpu = read("/proc/cpuinfo");
    let model =
        cpu.lines().find_map(|l| l.strip_prefix("model name")).unwrap_or("").trim_matches([' ', '\t', ':']);
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let kernel = read("/proc/sys/kernel/osrelease");
    let load = read("/proc/loadavg");
    let load = load.split(' ').next().unwrap_or("");
    let total = cpu.lines().filter(|l| l.starts_with("processor")).count().max(cpus);
    format!(
        "{model}, {total} CPUs, Linux {}, load average {load} at the end; server on CPU 1, client on CPU 0, the raw \
         socket likewise; perftest's average bandwidth and typical latency.",
        kernel.trim()
    )
}

const BEGIN: &str = "<!-- table: begin -->";
const END: &str = "<!-- table: end -->";

fn replace(text: &str, table: &str) -> io::Result<String> {
    let parts = text.split_once(BEGIN).and_then(|(head, rest)| Some((head, rest.split_once(END)?.1)));
    let (head, tail) = parts.ok_or_else(|| io::Error::other(format!("no {BEGIN} and {END} in the file")))?;
    Ok(format!("{head}{BEGIN}\n{table}{END}{tail}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_replaces_the_one_between_the_marks() {
        let text = format!("a\n{BEGIN}\nold\n{END}\nb\n");
        assert_eq!(replace(&text, "new\n").unwrap(), format!("a\n{BEGIN}\nnew\n{END}\nb\n"));
        assert!(replace("nothing", "new").is_err());
    }
}
