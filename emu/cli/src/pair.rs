//! `urxe pair`: a program as server and as client. Each side is an `urxe run` in a process group of its own.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::IpAddr;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, WaitIdStatus, kill_process_group, waitid};
use urxe::config::{Config, Daemon, Source};
use urxe_control::connection::Connection;
use urxe_control::launch::Launch;
use urxe_control::picture::{dismiss, status};
use urxe_control::protocol::DaemonStatus;

use crate::args::{Flags, Pair};
use crate::{Failure, OWN_ERROR, complain, fabric, sockets};

/// How often the sides are looked at.
const TICK: Duration = Duration::from_millis(10);
/// How long a side may take to end after SIGTERM.
const PATIENCE: Duration = Duration::from_secs(2);
/// In an argument of the client: where the server's address goes.
const SERVER: &str = "{server}";
/// Exit code after the time-out, as of timeout(1).
const TIMED_OUT: u8 = 124;

pub(crate) fn pair(options: &Pair) -> Result<u8, Failure> {
    let (server_flags, client_flags) = side_flags(options)?;
    let config = Config::resolve(std::env::vars_os(), &server_flags)?;
    Config::resolve(std::env::vars_os(), &client_flags)?;

    let watch = Watch::new(options.timeout)?;
    let (alive, all_read) = mpsc::channel();
    let mut server = Side::start("server", &server_flags, options, &options.server_args, None, &alive)?;
    let mut manager = Manager::of(&config);
    let ready = match wait_for_listener(&mut server, &mut manager, options.wait, &watch) {
        Ready::Listening(found) => Ok(server_address(&found, &config)),
        Ready::Silent => {
            let seconds = options.wait.as_secs();
            complain(&format!(
                "the server does not listen, by TCP or rdma_cm, after {seconds} s; starting the client anyway"
            ));
            Ok(server_address(&sockets::Sockets::default(), &config))
        }
        Ready::Ended(code) => {
            complain("the server ended before it listened; no client was started");
            Err(if code == 0 { OWN_ERROR } else { code })
        }
        Ready::Interrupted(code) => Err(code),
    };
    let code = match ready {
        Err(code) => code,
        Ok(address) => {
            match Side::start("client", &client_flags, options, &options.client_args, Some(address), &alive) {
                Ok(mut client) => {
                    let code = wait_for_both(&mut server, &mut client, options.grace, &watch);
                    client.stop();
                    code
                }
                Err(failure) => {
                    server.stop();
                    return Err(failure);
                }
            }
        }
    };
    server.stop();
    if config.fabric.as_str() == own_fabric() {
        dismiss(config.fabric.as_str());
    }
    // Both are gone; what they wrote may still be on its way, unless somebody else holds the pipe.
    drop(alive);
    let _ = all_read.recv_timeout(PATIENCE);
    Ok(code)
}

/// The configuration of each side: two machines of a fabric, or two addresses that are given.
fn side_flags(options: &Pair) -> Result<(Flags, Flags), Failure> {
    let config = Config::resolve(std::env::vars_os(), &options.flags)?;
    let (mut server, mut client) = (options.flags.clone(), options.flags.clone());
    if config.daemon == Daemon::Auto && config.source("fabric") == Some(&Source::Default) {
        for side in [&mut server, &mut client] {
            set(side, "fabric", &own_fabric());
        }
    }
    let given = config.addr.map(|a| a.to_string()).or(config.netdev.as_ref().map(|n| n.as_str().to_owned()));
    match (&options.client_addr, given) {
        (Some(address), _) => {
            set(&mut client, "netdev", "none");
            set(&mut client, "addr", address);
        }
        (None, Some(_)) if config.addr.is_some_and(|a| a.is_loopback()) => set(&mut client, "addr", "auto"),
        (None, Some(given)) => {
            return Err(
                format!("both sides would have the address {given}; add --client-addr ADDRESS").into()
            );
        }
        (None, None) if config.daemon == Daemon::Auto => {
            let nodes = config.nodes.value().max(2);
            let node = config.node_number();
            for (side, node) in [(&mut server, node), (&mut client, (node + 1) % nodes)] {
                set(side, "nodes", &nodes.to_string());
                set(side, "node", &node.to_string());
            }
        }
        (None, None) => {}
    }
    Ok((server, client))
}

/// A pair is alone in its fabric, unless the user names one.
fn own_fabric() -> String {
    format!("pair-{}", std::process::id())
}

fn set(flags: &mut Flags, flag: &str, value: &str) {
    flags.retain(|(name, _)| name != flag);
    flags.push((flag.to_owned(), value.to_owned()));
}

/// Where the client finds the server: where it listens by TCP, or else its device's address, which is one of its host.
/// The program may not have opened the device yet.
fn server_address(found: &sockets::Sockets, config: &Config) -> IpAddr {
    let listener = found.listener.filter(|a| !a.is_unspecified());
    let promised = || {
        let addresses = (config.daemon == Daemon::Auto).then(|| fabric::addresses(config))?.ok()?;
        addresses.first().copied()
    };
    let device = listener.or(found.device).or(config.addr).or_else(promised);
    device.unwrap_or(IpAddr::from([127, 0, 0, 1]))
}

enum Ready {
    Listening(sockets::Sockets),
    Silent,
    Ended(u8),
    Interrupted(u8),
}

/// The daemon of the server's fabric, which knows who listens by rdma_cm.
struct Manager {
    fabric: Option<String>,
    connection: Option<Connection>,
    asked: Instant,
}

impl Manager {
    /// Each question reaches all processes of the fabric, so they are few.
    const PAUSE: Duration = Duration::from_millis(50);

    fn of(config: &Config) -> Self {
        let fabric = (config.daemon == Daemon::Auto).then(|| config.fabric.as_str().to_owned());
        Self { fabric, connection: None, asked: Instant::now() }
    }

    /// Whether a process of this group listens. No answer is no.
    fn hears(&mut self, group: i32) -> bool {
        let Some(fabric) = self.fabric.as_deref().filter(|_| self.asked.elapsed() >= Self::PAUSE) else {
            return false;
        };
        self.asked = Instant::now();
        let fabric = fabric.to_owned();
        let daemon = self.status(&fabric);
        daemon.is_some_and(|d| d.listeners.iter().any(|pid| sockets::group_of(*pid) == Some(group)))
    }

    /// What the daemon says of itself, if there is one.
    fn status(&mut self, fabric: &str) -> Option<DaemonStatus> {
        if self.connection.is_none() {
            self.connection = Launch::new(fabric).and_then(|launch| launch.find()).unwrap_or_default();
        }
        let status = status(self.connection.as_ref()?).ok();
        if status.is_none() {
            self.connection = None;
        }
        status
    }
}

fn wait_for_listener(server: &mut Side, manager: &mut Manager, patience: Duration, watch: &Watch) -> Ready {
    let end = Instant::now() + patience;
    loop {
        if let Some(code) = watch.interrupted() {
            return Ready::Interrupted(code);
        }
        // Asked first: who listens by rdma_cm has a device, which must be found.
        let hears = manager.hears(server.group());
        let found = sockets::of_group(server.group());
        if found.listener.is_some() || hears {
            return Ready::Listening(found);
        }
        if let Some(code) = server.poll() {
            return Ready::Ended(code);
        }
        if Instant::now() >= end {
            return Ready::Silent;
        }
        thread::sleep(TICK);
    }
}

fn wait_for_both(server: &mut Side, client: &mut Side, grace: Duration, watch: &Watch) -> u8 {
    let mut first_end = None;
    loop {
        if let Some(code) = watch.interrupted() {
            return code;
        }
        match (server.poll(), client.poll()) {
            (Some(a), Some(b)) => return a.max(b),
            (None, None) => {}
            (ended, _) => {
                if first_end.get_or_insert_with(Instant::now).elapsed() >= grace {
                    let (left, gone) = if ended.is_none() { (server, client) } else { (client, server) };
                    let seconds = grace.as_secs();
                    complain(&format!(
                        "the {} still ran {seconds} s after the {} ended; stopped",
                        left.name, gone.name
                    ));
                    return left.stop().max(gone.stop());
                }
            }
        }
        thread::sleep(TICK);
    }
}

/// What ends a pair from outside: a signal, or the time.
struct Watch {
    signal: Arc<AtomicUsize>,
    end: Option<Instant>,
}

impl Watch {
    fn new(timeout: Option<Duration>) -> Result<Self, Failure> {
        use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
        let signal = Arc::new(AtomicUsize::new(0));
        for number in [SIGHUP, SIGINT, SIGTERM] {
            signal_hook::flag::register_usize(number, signal.clone(), number as usize)
                .map_err(|e| format!("cannot handle signals: {e}"))?;
        }
        Ok(Self { signal, end: timeout.map(|t| Instant::now() + t) })
    }

    /// The exit code, if it is time to end.
    fn interrupted(&self) -> Option<u8> {
        match self.signal.load(Ordering::Relaxed) {
            0 if self.end.is_some_and(|end| Instant::now() >= end) => {
                complain("time-out; both sides are stopped");
                Some(TIMED_OUT)
            }
            0 => None,
            number => Some(128 + number as u8),
        }
    }
}

/// One of the two.
struct Side {
    name: &'static str,
    child: Child,
    /// Its process group, until it is stopped.
    running: Option<Pid>,
    /// Its exit code, once it has ended.
    code: Option<u8>,
}

impl Side {
    fn start(
        name: &'static str,
        flags: &Flags,
        options: &Pair,
        more: &[OsString],
        address: Option<IpAddr>,
        alive: &mpsc::Sender<()>,
    ) -> Result<Self, Failure> {
        let cannot = |e| format!("cannot start the {name}: {e}");
        let mut command = Command::new(std::env::current_exe().map_err(cannot)?);
        command.args(["run", "--with-parent"]);
        command.args(flags.iter().map(|(flag, value)| format!("--{flag}={value}")));
        command.arg("--");
        let mut placed = address.is_none();
        for argument in options.command.iter().chain(more) {
            match address.and_then(|a| place(argument, a)) {
                Some(argument) => {
                    placed = true;
                    command.arg(argument);
                }
                None => {
                    command.arg(argument);
                }
            }
        }
        if !placed {
            command.args(address.map(|a| a.to_string()));
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let mut child = command.spawn().map_err(cannot)?;
        if let Some(pipe) = child.stdout.take() {
            label(name, pipe, std::io::stdout(), alive.clone());
        }
        if let Some(pipe) = child.stderr.take() {
            label(name, pipe, std::io::stderr(), alive.clone());
        }
        let running = Pid::from_raw(child.id() as i32);
        Ok(Self { name, child, running, code: None })
    }

    fn group(&self) -> i32 {
        self.child.id() as i32
    }

    /// The exit code, if it has ended. It is not waited for: as long as it is there to be waited for, its group's number
    /// is nobody else's.
    fn poll(&mut self) -> Option<u8> {
        self.look(WaitIdOptions::NOHANG)
    }

    fn look(&mut self, how: WaitIdOptions) -> Option<u8> {
        if let Some(leader) = self.running
            && self.code.is_none()
        {
            let flags = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | how;
            self.code = match waitid(WaitId::Pid(leader), flags) {
                Ok(status) => status.map(exit_code),
                Err(_) => Some(OWN_ERROR),
            };
        }
        self.code
    }

    /// Ends it with all that it started, unless that is done.
    fn stop(&mut self) -> u8 {
        let end = Instant::now() + PATIENCE;
        if let Some(group) = self.running {
            // It may have ended by itself, here and below.
            let _ = kill_process_group(group, Signal::TERM);
            while (self.poll().is_none() || sockets::has_followers(self.group())) && Instant::now() < end {
                thread::sleep(TICK);
            }
            let _ = kill_process_group(group, Signal::KILL);
            self.look(WaitIdOptions::empty());
            let _ = self.child.wait();
            self.running = None;
        }
        self.code.unwrap_or(OWN_ERROR)
    }
}

/// The argument with the server's address where it says `{server}`, if it does.
fn place(argument: &OsString, server: IpAddr) -> Option<String> {
    let text = argument.to_str()?;
    text.contains(SERVER).then(|| text.replace(SERVER, &server.to_string()))
}

impl Drop for Side {
    fn drop(&mut self) {
        self.stop();
    }
}

/// As a shell has it: 128 and the number of the signal that ended it.
fn exit_code(status: WaitIdStatus) -> u8 {
    let signal = || Some(128 + status.terminating_signal()?);
    status.exit_status().or_else(signal).map_or(OWN_ERROR, |code| code as u8)
}

/// Copies lines with the side's name before each.
fn label(
    name: &'static str,
    from: impl Read + Send + 'static,
    mut to: impl Write + Send + 'static,
    alive: mpsc::Sender<()>,
) {
    thread::spawn(move || {
        let _alive = alive;
        let mut from = BufReader::new(from);
        let mut line = Vec::new();
        loop {
            line.clear();
            // Reading goes on when nobody reads us, so that the program is not stopped by a full pipe.
            match from.read_until(b'\n', &mut line) {
                Ok(1..) => {
                    let text = line.strip_suffix(b"\n").unwrap_or(&line);
                    let _ = to.write_all(&[name.as_bytes(), b"| ", text, b"\n"].concat());
                }
                _ => return,
            }
        }
    });
}
