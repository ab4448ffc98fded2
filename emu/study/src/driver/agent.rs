//! Targets on another machine: `urxe study --server` starts them for whoever asks, one for each connection.
//!
//! There is no authentication, as with perftest: whoever reaches the port may start workers there, which run jobs and
//! nothing else. So a client chooses settings of what is measured, but nothing that names files, addresses or fabrics.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::interrupt::Told;
use super::pair::{gone, listening};
use super::process::{Event, Process, Side, flags};
use super::{Error, Interrupt, Options, Setting};
use crate::work::worker::{self, Role};

/// The port of `urxe study --server`, if no other is given.
pub const PORT: u16 = 18_591;
/// How long an agent may take to be reached, and to start a target.
const PATIENCE: Duration = Duration::from_secs(30);
/// The flags of `urxe run` that a client may choose: those by which the settings of studies differ.
const CHOICES: [&str; 6] = ["tasks", "odp-fault", "odp-latency", "loss", "delay", "rate"];
/// Most clients at a time.
const MOST: usize = 32;
/// How long no connection is taken after one that could not be.
const PAUSE: Duration = Duration::from_millis(100);
/// Longest message in bytes.
const LONGEST: u64 = 64 << 10;

/// What a driver asks of an agent.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Wanted {
    version: String,
    setting: Setting,
}

/// What an agent says.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Says {
    Listening { port: u16, token: String },
    Refused(String),
    Failed(String),
}

/// A target on another machine; it ends with this value.
#[derive(Debug)]
pub(super) struct Remote {
    /// Where it listens.
    pub(super) target: SocketAddr,
    /// What it wants to see.
    pub(super) token: String,
    /// Whether that is this machine.
    pub(super) here: bool,
    stream: TcpStream,
}

impl Remote {
    /// Asks an agent for a target. If that is gone later, `events` hear it.
    pub(super) fn start(host: &str, setting: &Setting, events: Sender<Event>) -> Result<Self, Error> {
        let stream = connect(host)?;
        let failed = |e: io::Error| Error::Failed(format!("the server {host}: {e}"));
        stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
        let wanted = Wanted { version: worker_version(), setting: setting.clone() };
        send(&stream, &wanted).map_err(failed)?;
        let mut reader = BufReader::new(stream.try_clone().map_err(failed)?);
        let (port, token) = match receive(&mut reader).map_err(failed)? {
            Some(Says::Listening { port, token }) => (port, token),
            Some(Says::Refused(why)) => return Err(Error::Refused(why)),
            Some(Says::Failed(why)) => return Err(Error::Failed(format!("the server {host}: {why}"))),
            None => return Err(Error::Failed(format!("the server {host} has closed the connection"))),
        };
        stream.set_read_timeout(None).map_err(failed)?;
        let mut target = stream.peer_addr().map_err(failed)?;
        target.set_port(port);
        let host = host.to_owned();
        std::thread::spawn(move || {
            let why = match receive(&mut reader) {
                Ok(Some(Says::Failed(why))) => format!("the server {host}: {why}"),
                _ => format!("the server {host} is gone"),
            };
            // Nobody may wait any more.
            let _ = events.send(Event::Lost(why));
        });
        let here = is_here(&stream);
        Ok(Self { target, token, here, stream })
    }
}

impl Drop for Remote {
    /// The agent ends the target when the connection does.
    fn drop(&mut self) {
        // It may be gone.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

/// Whether both ends of a connection are on this machine.
fn is_here(stream: &TcpStream) -> bool {
    let ends = stream.local_addr().ok().zip(stream.peer_addr().ok());
    ends.is_some_and(|(local, peer)| local.ip() == peer.ip())
}

fn worker_version() -> String {
    env!("CARGO_PKG_VERSION").to_owned()
}

/// Connects to `HOST` or `HOST:PORT`.
fn connect(host: &str) -> Result<TcpStream, Error> {
    let cannot = |why: String| {
        Error::Failed(format!("no server at {host}: {why}; `urxe study --server` has to run there"))
    };
    let with_port = host.parse::<SocketAddr>().map(|address| vec![address]);
    let without_port = || host.parse::<IpAddr>().map(|ip| vec![SocketAddr::new(ip, PORT)]);
    let addresses = match with_port.or_else(|_| without_port()) {
        Ok(addresses) => addresses,
        Err(_) => {
            let resolved =
                if host.contains(':') { host.to_socket_addrs() } else { (host, PORT).to_socket_addrs() };
            resolved.map_err(|e| cannot(e.to_string()))?.collect()
        }
    };
    let mut last = "the name has no address".to_owned();
    for address in addresses {
        match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(stream) => return Ok(stream),
            Err(e) => last = e.to_string(),
        }
    }
    Err(cannot(last))
}

fn send<T: Serialize>(mut stream: &TcpStream, message: &T) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    stream.write_all(&line)
}

fn receive<T: serde::de::DeserializeOwned>(reader: &mut impl BufRead) -> io::Result<Option<T>> {
    let mut line = String::new();
    match reader.take(LONGEST).read_line(&mut line)? {
        0 => Ok(None),
        _ => Ok(Some(serde_json::from_str(&line)?)),
    }
}

/// Starts targets for whoever asks, [`MOST`] at a time, at the first address that is possible, until a signal comes.
/// `listens` is told the address. What all targets have in common is in `options`: the device, and flags of `urxe run`
/// such as the address.
pub fn serve(
    addresses: &[SocketAddr],
    options: &Options,
    interrupt: &Interrupt,
    listens: impl FnOnce(SocketAddr),
) -> Result<(), Error> {
    let failed = |e: io::Error| Error::Failed(format!("cannot listen: {e}"));
    let listener = TcpListener::bind(addresses).map_err(failed)?;
    listens(listener.local_addr().map_err(failed)?);
    let (sender, events) = mpsc::channel();
    let _told = interrupt.tell(sender);
    let (options, interrupt) = (options.clone(), interrupt.clone());
    std::thread::spawn(move || {
        let served = Arc::new(());
        for stream in listener.incoming() {
            let Ok(stream) = stream else {
                // There are no descriptors or no memory; a client that goes gives back what it has.
                std::thread::sleep(PAUSE);
                continue;
            };
            if Arc::strong_count(&served) > MOST {
                // If it does not hear it, it hears that the connection is closed.
                let _ = send(&stream, &Says::Failed(format!("it has {MOST} clients already")));
                continue;
            }
            let (options, interrupt, served) = (options.clone(), interrupt.clone(), served.clone());
            std::thread::spawn(move || {
                serve_one(&stream, &options, &interrupt);
                drop(served);
            });
        }
    });
    // Workers end with this process, whose end of their standard input is closed then.
    match events.recv() {
        Ok(Event::Interrupted) => Err(Error::Interrupted),
        _ => Ok(()),
    }
}

/// Starts a target, and ends it with the connection.
fn serve_one(stream: &TcpStream, options: &Options, interrupt: &Interrupt) {
    let Ok(copy) = stream.try_clone() else { return };
    let Ok(()) = stream.set_read_timeout(Some(PATIENCE)) else { return };
    let mut reader = BufReader::new(copy);
    let wanted = match receive::<Wanted>(&mut reader) {
        Ok(Some(wanted)) => wanted,
        // It is nobody who knows what to ask.
        _ => return,
    };
    let Ok(()) = stream.set_read_timeout(None) else { return };
    let why = match start(&wanted, stream, options, interrupt) {
        Ok(Started { mut target, connection, ended, _told }) => {
            // The driver says nothing more: this reads until it is gone.
            std::thread::spawn(move || {
                let _ = io::copy(&mut reader, &mut io::sink());
                let _ = connection.send(Event::Lost("the driver is gone".to_owned()));
            });
            match ended.recv() {
                Ok(Event::Ended(_)) => Some(gone(&mut target)),
                Ok(Event::Report(_, crate::work::worker::Report::Failed(why))) => Some(Error::Failed(why)),
                _ => None,
            }
        }
        Err(error) => Some(error),
    };
    let says = match why {
        Some(Error::Refused(why)) => Says::Refused(why),
        Some(error) => Says::Failed(error.to_string()),
        None => return,
    };
    // If it is gone, it need not know.
    let _ = send(stream, &says);
}

/// A target that listens.
struct Started {
    target: Process,
    /// To say that the driver is gone.
    connection: Sender<Event>,
    ended: mpsc::Receiver<Event>,
    _told: Told,
}

fn start(
    wanted: &Wanted,
    stream: &TcpStream,
    options: &Options,
    interrupt: &Interrupt,
) -> Result<Started, Error> {
    if wanted.version != worker_version() {
        let (here, there) = (worker_version(), &wanted.version);
        return Err(Error::Refused(format!("the server is version {here}, the client {there}")));
    }
    check_choices(&wanted.setting)?;
    let (sender, events) = mpsc::channel();
    let _told = interrupt.tell(sender.clone());
    let address = stream.local_addr().map_err(|e| Error::Failed(e.to_string()))?.ip();
    let worker = worker::Options {
        device: options.device.clone(),
        gid_index: options.gid_index,
        cpus: wanted.setting.target_cpus.clone(),
        shares_cpus: is_here(stream) && wanted.setting.shares_cpus(),
        role: Role::Target(address),
    };
    let flags = flags(options, &wanted.setting, &[]);
    let mut target = Process::start(Side::Target, &flags, options, &worker, sender.clone())?;
    let (port, token) = listening(&events, &mut target)?;
    send(stream, &Says::Listening { port, token }).map_err(|e| Error::Failed(e.to_string()))?;
    Ok(Started { target, connection: sender, ended: events, _told })
}

fn check_choices(setting: &Setting) -> Result<(), Error> {
    match setting.flags.iter().find(|(flag, _)| !CHOICES.contains(&flag.as_str())) {
        None => Ok(()),
        Some((flag, _)) => Err(Error::Refused(format!(
            "the server lets no client choose --{flag}, only --{}",
            CHOICES.join(", --")
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::super::DeviceFacts;
    use super::*;
    use crate::studies::{self, Scope};

    #[test]
    fn a_client_may_choose_all_that_studies_do_and_nothing_that_names_a_file() {
        let device = DeviceFacts::sample("urxe");
        let mut scope = Scope::default();
        scope.full = true;
        for study in studies::ALL {
            for setting in (study.plan)(&scope, &device).unwrap().settings {
                assert_eq!(check_choices(&setting), Ok(()), "{}", study.name);
            }
        }
        for flag in ["log-file", "fabric", "addr", "tasks=inline --log-file", ""] {
            let setting = Setting { flags: vec![(flag.into(), "x".into())], ..Setting::default() };
            assert!(check_choices(&setting).is_err(), "{flag}");
        }
    }

    #[test]
    fn a_message_without_an_end_is_not_read_to_its_end() {
        let mut endless = BufReader::new(io::repeat(b'x'));
        assert!(receive::<Wanted>(&mut endless).is_err());
    }
}
