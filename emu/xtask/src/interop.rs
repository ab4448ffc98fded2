//! Unmodified perftest and rdmacm-utils on urxe, in a network namespace, against the same programs on the kernel's
//! rdma_rxe, in a VM.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use crate::lab::{self, GUEST_ADDRESS, HOST_ADDRESS, Lab};
use crate::{Result, target};

/// For one case. The guest is emulated: 40 MB/s on an idle host, 5 on a busy one, and `-a` moves 84 MB.
const PATIENCE: Duration = Duration::from_secs(90);

pub(crate) enum Outcome {
    Passed,
    /// Not on this machine.
    Impossible(String),
}

/// Runs the cases whose name contains `filter`; fails if one fails.
pub(crate) fn interop(urxe: &Path, filter: &str) -> Result<Outcome> {
    if let Some(why) = lab::obstacle() {
        eprintln!("no kernel interop: {why}");
        return Ok(Outcome::Impossible(why));
    }
    let cases: Vec<Case> = cases().into_iter().filter(|c| c.name().contains(filter)).collect();
    if cases.is_empty() {
        return Err(format!("no case has '{filter}' in its name"));
    }
    let lab = Lab::start()?;
    let gid_index = gid_index(&lab, urxe)?;
    let mut table = String::new();
    let mut failed = 0;
    for (number, case) in cases.iter().enumerate() {
        let (mark, text) = match case.run(&lab, urxe, &gid_index, 20000 + number) {
            Ok(result) => ("ok", result),
            Err(why) => {
                failed += 1;
                ("FAILED", why)
            }
        };
        let line = format!("{mark:<7} {:<62} {}", case.name(), text.lines().next().unwrap_or_default());
        println!("{line}");
        for more in text.lines().skip(1) {
            println!("        | {more}");
        }
        table += &format!("{line}\n");
    }
    drop(lab);
    let file = target()?.join("interop.txt");
    fs::write(&file, table).map_err(|e| format!("cannot write {}: {e}", file.display()))?;
    println!("{} of {} cases passed; table in {}", cases.len() - failed, cases.len(), file.display());
    if failed == 0 { Ok(Outcome::Passed) } else { Err(format!("{failed} of {} cases failed", cases.len())) }
}

// ---- the cases -----------------------------------------------------------------------------------------------------

#[derive(Clone, Copy, PartialEq)]
enum Role {
    Server,
    Client,
}

/// How the two sides find each other.
#[derive(Clone, Copy, PartialEq)]
enum Connect {
    /// By the program's own exchange over TCP.
    Tcp,
    /// By rdma_cm: what the server and the client are given before their addresses, and what both say in the end.
    Manager { server: &'static str, client: &'static str, said: &'static str },
}

struct Case {
    program: &'static str,
    arguments: String,
    connect: Connect,
    receive: &'static str,
    /// Of urxe.
    role: Role,
}

fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    let mut both = |program, arguments: String, receive| {
        for role in [Role::Server, Role::Client] {
            all.push(Case { program, arguments: arguments.clone(), connect: Connect::Tcp, receive, role });
        }
    };
    const RC: [(&str, &str); 8] = [
        ("ib_send_bw", "-s 65536 -n 100"),
        ("ib_send_lat", "-s 2 -n 200"),
        ("ib_write_bw", "-s 65536 -n 100"),
        ("ib_write_lat", "-s 2 -n 200"),
        ("ib_read_bw", "-s 65536 -n 100"),
        ("ib_read_lat", "-s 2 -n 200"),
        ("ib_atomic_bw", "-n 200"),
        ("ib_atomic_lat", "-n 200"),
    ];
    // Unreliable: perftest's server waits for ever for a message that was lost, and rxe knows no congestion
    // notification. So all packets of a case fit the tap's queue (1000), however slow the guest is. The rate that urxe
    // reports as the client says nothing: it is that of its own host, less 200 ms once for an echo that rxe never sends.
    const UC: [(&str, &str); 4] = [
        ("ib_send_bw", "-c UC -s 8192 -n 100 -t 8"),
        ("ib_send_lat", "-c UC -s 2 -n 200"),
        ("ib_write_bw", "-c UC -s 8192 -n 100 -t 8"),
        ("ib_write_lat", "-c UC -s 2 -n 200"),
    ];
    const UD: [(&str, &str); 2] =
        [("ib_send_bw", "-c UD -s 1024 -n 100 -t 8"), ("ib_send_lat", "-c UD -s 2 -n 200")];
    for mtu in [1024, 4096] {
        for (program, arguments) in RC.iter().chain(&UC).chain(&UD) {
            // ib_atomic_bw has no -m.
            let mtu = if *program == "ib_atomic_bw" { String::new() } else { format!("-m {mtu} ") };
            both(program, format!("{mtu}{arguments}"), "udp");
        }
    }
    for program in ["ib_send_bw", "ib_write_bw", "ib_read_bw"] {
        for mtu in [1024, 4096] {
            both(program, format!("-m {mtu} -a -n 5"), "udp");
        }
    }
    for (program, arguments) in RC.iter().chain(&UC[..1]).chain(&UD[..1]) {
        both(program, arguments.to_string(), "raw");
    }
    for receive in ["udp", "raw"] {
        both("ibv_rc_pingpong", "-n 200 -c".into(), receive);
    }
    for (program, arguments, server, client, said) in MANAGED {
        // perftest's client connects a second time before its server listens again. urxe lets such a request wait for a
        // listener, the kernel refuses it at once: against a slow guest as the server that is a matter of luck.
        let roles: &[Role] =
            if program.starts_with("ib_") { &[Role::Server] } else { &[Role::Server, Role::Client] };
        for &role in roles {
            let connect = Connect::Manager { server, client, said };
            all.push(Case { program, arguments: arguments.into(), connect, receive: "udp", role });
        }
    }
    all
}

/// Programs that connect by rdma_cm: program, arguments, the server's, the client's before the server's address, and
/// what the client says in the end.
const MANAGED: [(&str, &str, &str, &str, &str); 7] = [
    ("rping", "-C 10 -v -V", "-s -a ADDRESS", "-c -a", "ping data: rdma-ping-9: "),
    ("rping", "-C 10 -v -V -S 65000", "-s -a ADDRESS", "-c -a", "ping data: rdma-ping-9: "),
    ("ucmatose", "-c 10 -C 10 -S 4096", "", "-s", "data transfers complete"),
    ("udaddy", "-c 4 -C 10", "", "-s", "data transfers complete"),
    ("rdma_server", "", "", "-s", "end 0"),
    ("ib_send_bw", "-F -R -s 65536 -n 100", "", "", "65536"),
    ("ib_send_lat", "-F -R -c UD -s 2 -n 200", "", "", "2"),
];

impl Case {
    fn name(&self) -> String {
        let role = if self.role == Role::Server { "server" } else { "client" };
        format!("urxe {role} {} {} {}", self.receive, self.program, self.arguments)
    }

    fn run(&self, lab: &Lab, urxe: &Path, gid_index: &str, port: usize) -> Result<String> {
        if let Connect::Manager { server, client, said } = self.connect {
            return self.run_managed(lab, urxe, [server, client, said], port);
        }
        let perftest = self.program.starts_with("ib_");
        let line =
            format!("{} {}{} -p {port}", self.program, if perftest { "-F " } else { "" }, self.arguments);
        // perftest finds the GID of an IPv4 address by itself, but not on rxe's first index.
        let ours =
            if perftest { format!("{line} -d urxe0") } else { format!("{line} -d urxe0 -g {gid_index}") };
        let theirs = if perftest { format!("{line} -d rxe0 -x 1") } else { format!("{line} -d rxe0 -g 1") };

        let settings = [("URXE_ADDR", HOST_ADDRESS), ("URXE_RECEIVE", self.receive)];
        let host = |line: String| lab.on_host(urxe, &settings, &line);
        let guest = |line: String| lab.in_guest(&format!("timeout {} {line}", PATIENCE.as_secs()));
        let (mut server, mut client);
        if self.role == Role::Server {
            server = Program::start(host(ours))?;
            server.wait_for(|pid| listens(&format!("/proc/{pid}/net"), port))?;
            client = Program::start(guest(format!("{theirs} {HOST_ADDRESS}")))?;
        } else {
            server = Program::start(guest(theirs))?;
            let ready = format!("grep -Eq ':{port:04X} [0-9A-F]+:0000 0A' /proc/net/tcp /proc/net/tcp6");
            server.wait_for(|_| lab.in_guest(&ready).output().is_ok_and(|o| o.status.success()))?;
            client = Program::start(host(format!("{ours} {GUEST_ADDRESS}")))?;
        }
        let text = finish_both(&mut server, &mut client)?;
        figures(self.program, &text).ok_or_else(|| format!("no result\n{text}"))
    }

    fn run_managed(&self, lab: &Lab, urxe: &Path, words: [&str; 3], port: usize) -> Result<String> {
        let [server, client, said] = words;
        // udaddy's port is a constant of the program.
        let port = if self.program == "udaddy" { String::new() } else { format!("-p {port}") };
        let other = self.program.replace("server", "client");
        let own = if self.role == Role::Server { HOST_ADDRESS } else { GUEST_ADDRESS };
        let words = [self.program, &self.arguments, &port, &server.replace("ADDRESS", own)].join(" ");
        let server_line = words.split_whitespace().collect::<Vec<_>>().join(" ");
        let words = [&other, &self.arguments, &port, client, own].join(" ");
        let client_line = words.split_whitespace().collect::<Vec<_>>().join(" ");
        let host = |line: &str| lab.on_host(urxe, &[("URXE_ADDR", HOST_ADDRESS)], line);
        let guest = |line: &str| lab.in_guest(&format!("timeout {} {line}", PATIENCE.as_secs()));
        let (mut server, mut client);
        if self.role == Role::Server {
            server = Program::start(host(&server_line))?;
            server.wait_for(|_| lab.status(urxe).is_some_and(|json| names_a_listener(&json)))?;
            client = Program::start(guest(&client_line))?;
        } else {
            server = Program::start(guest(&server_line))?;
            let ready = "rdma resource show cm_id | grep -q 'state LISTEN'";
            server.wait_for(|_| lab.in_guest(ready).output().is_ok_and(|o| o.status.success()))?;
            client = Program::start(host(&client_line))?;
        }
        let text = finish_both(&mut server, &mut client)?;
        let line = text.lines().rev().find(|line| line.contains(said));
        line.map(|line| line.trim().to_owned())
            .ok_or_else(|| format!("the client does not say {said:?}\n{text}"))
    }
}

/// Waits for both sides; what the client said.
fn finish_both(server: &mut Program, client: &mut Program) -> Result<String> {
    let end = Instant::now() + PATIENCE;
    let client_said = client.finish(end);
    // A server whose client has failed may wait for ever.
    let soon = Instant::now() + Duration::from_secs(if client_said.is_ok() { 10 } else { 1 });
    let server_said = server.finish(soon);
    match (client_said, server_said) {
        (Ok(text), Ok(_)) => Ok(text),
        (Ok(_), Err(why)) => Err(format!("server: {why}")),
        (Err(why), Ok(text)) => Err(format!("client: {why}\n(server)\n{text}")),
        (Err(why), Err(other)) => Err(format!("client: {why}\nserver: {other}")),
    }
}

/// Whether `urxe stat --json` names a process that listens by rdma_cm.
fn names_a_listener(json: &str) -> bool {
    let text: String = json.split_whitespace().collect();
    text.split_once("\"listeners\":[").is_some_and(|(_, rest)| rest.starts_with(|c: char| c.is_ascii_digit()))
}

/// The last row of perftest's table, or ibv_rc_pingpong's last line.
fn figures(program: &str, output: &str) -> Option<String> {
    if !program.starts_with("ib_") {
        return Some(output.lines().rev().find(|l| l.contains("usec/iter"))?.trim().into());
    }
    let numbers = |line: &str| {
        line.split_whitespace().map(str::parse::<f64>).collect::<std::result::Result<Vec<_>, _>>()
    };
    let row = output.lines().rev().filter_map(|line| numbers(line).ok()).find(|row| row.len() >= 4)?;
    let size = row.first()?;
    Some(match program.ends_with("_bw") {
        true => format!("{size} B: {} MiB/s", row.get(3)?),
        // size, iterations, minimum, maximum, typical, ...
        false => format!("{size} B: {} us typical", row.get(4)?),
    })
}

/// Whether a TCP socket listens, according to a /proc/*/net.
fn listens(net: &str, port: usize) -> bool {
    let local = format!(":{port:04X}");
    ["tcp", "tcp6"].iter().filter_map(|file| fs::read_to_string(format!("{net}/{file}")).ok()).any(|table| {
        table.lines().any(|line| {
            let mut fields = line.split_whitespace().skip(1);
            fields.next().is_some_and(|a| a.ends_with(&local)) && fields.nth(1) == Some("0A")
        })
    })
}

/// The index of the GID of the IPv4 address, as ibv_devinfo prints it.
fn gid_index(lab: &Lab, urxe: &Path) -> Result<String> {
    let mut devinfo = Program::start(lab.on_host(urxe, &[("URXE_ADDR", HOST_ADDRESS)], "ibv_devinfo -v"))?;
    let text = devinfo.finish(Instant::now() + PATIENCE)?;
    let line = text.lines().find(|l| l.contains("GID[") && l.contains(&format!("::ffff:{HOST_ADDRESS}")));
    let index =
        line.and_then(|l| l.split_once("GID[")?.1.split_once(']')).map(|(index, _)| index.trim().to_owned());
    index.ok_or_else(|| format!("ibv_devinfo shows no GID for {HOST_ADDRESS}:\n{text}"))
}

/// A program that runs; it is killed when this is dropped.
struct Program {
    child: Child,
    output: Option<thread::JoinHandle<String>>,
}

impl Program {
    fn start(mut command: Command) -> Result<Self> {
        let (mut reader, writer) = std::io::pipe().map_err(|e| format!("no pipe: {e}"))?;
        let again = writer.try_clone().map_err(|e| format!("no pipe: {e}"))?;
        let child = command
            .stdout(writer)
            .stderr(again)
            .spawn()
            .map_err(|e| format!("cannot run {command:?}: {e}"))?;
        let output = thread::spawn(move || {
            let mut bytes = Vec::new();
            let _ = reader.read_to_end(&mut bytes);
            String::from_utf8_lossy(&bytes).into_owned()
        });
        Ok(Self { child, output: Some(output) })
    }

    /// Waits until the server listens.
    fn wait_for(&mut self, ready: impl Fn(u32) -> bool) -> Result {
        let end = Instant::now() + Duration::from_secs(20);
        loop {
            if ready(self.child.id()) {
                return Ok(());
            }
            if matches!(self.child.try_wait(), Ok(Some(_))) {
                return Err(format!(
                    "server: ended before it listened: {}",
                    self.finish(end).unwrap_or_else(|e| e)
                ));
            }
            if Instant::now() >= end {
                return Err(format!("server: does not listen: {}", self.finish(end).unwrap_or_else(|e| e)));
            }
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits for the end; all that it said, as an error if it failed.
    fn finish(&mut self, end: Instant) -> Result<String> {
        let status = loop {
            match self.child.try_wait() {
                Ok(Some(status)) => break Ok(status),
                Ok(None) if Instant::now() >= end => break Err("time-out".to_owned()),
                Ok(None) => thread::sleep(Duration::from_millis(20)),
                Err(e) => break Err(e.to_string()),
            }
        };
        let _ = self.child.kill();
        let _ = self.child.wait();
        let text = self.output.take().and_then(|t| t.join().ok()).unwrap_or_default();
        match status {
            Ok(status) if status.success() => Ok(text),
            Ok(status) => Err(format!("{status}\n{text}")),
            Err(why) => Err(format!("{why}\n{text}")),
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
