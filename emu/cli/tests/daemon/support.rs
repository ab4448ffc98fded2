//! Fabrics of a test's own, and clients that note what they hear.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use urxe::cm;
use urxe::config::Config;
use urxe::io::udp::{self, UdpLink};
use urxe::io::{Link, RxBatch};
use urxe_control::client::{Client, Lease, Listener};
use urxe_control::launch::Launch;
use urxe_control::place::Place;
use urxe_control::protocol::{
    DaemonStatus, DeviceReport, DeviceSpec, Notice, ProcessReport, ProcessStatus, QpReport, Reply, Request,
    ToClient,
};

/// For what takes milliseconds unless the machine is very busy.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// The command that is tested.
pub(crate) const URXE: &str = env!("CARGO_BIN_EXE_urxe");

/// A fabric that nobody else uses. Its daemon ends with it.
pub(crate) struct Fabric {
    pub(crate) config: Config,
    pub(crate) place: Place,
}

impl Fabric {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("test-{}-{count}", std::process::id());
        let config = Config::resolve([], &[("fabric".into(), name.clone())]).unwrap();
        Self { config, place: Place::of(&name).unwrap() }
    }

    pub(crate) fn name(&self) -> &str {
        self.config.fabric.as_str()
    }

    pub(crate) fn client(&self) -> (Arc<Client>, Receiver<Heard>) {
        let (ears, heard) = channel();
        (Client::connect(&self.config, Arc::new(Ears(ears))).unwrap(), heard)
    }

    /// The daemon's process, as its lock says.
    pub(crate) fn daemon(&self) -> Option<u32> {
        std::fs::read_to_string(&self.place.lock).ok()?.split_whitespace().next()?.parse().ok()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = self.daemon().and_then(|pid| Pid::from_raw(pid as i32)).expect("a daemon runs");
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Looks at the daemon, if there is one, as `urxe stat --watch` does again and again.
    pub(crate) fn looked_at(&self) {
        if let Ok(Some(connection)) = Launch::new(self.name()).unwrap().find() {
            let _ = connection.ask(&Request::Status, &[], |_| ());
        }
    }

    /// What `urxe stat` gets.
    pub(crate) fn status(&self) -> (DaemonStatus, Vec<ProcessStatus>, u32) {
        let connection = Launch::new(self.name()).unwrap().find().unwrap().expect("a daemon runs");
        let (Reply::Status(status), _) = connection.ask(&Request::Status, &[], |_| ()).unwrap() else {
            panic!("no status");
        };
        let mut processes = Vec::new();
        loop {
            match connection.next(Instant::now() + PATIENCE).unwrap().0 {
                ToClient::Notice(Notice::Process(process)) => processes.push(process),
                ToClient::Notice(Notice::End { silent }) => return (status, processes, silent),
                other => panic!("{other:?}"),
            }
        }
    }

    pub(crate) fn urxe(&self, command: &str, arguments: &[&str]) -> Command {
        let mut urxe = Command::new(URXE);
        urxe.arg(command).args(["--fabric", self.name()]).args(arguments).env("URXE_CONFIG", "");
        urxe
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        if let Some(pid) = self.daemon().and_then(|pid| Pid::from_raw(pid as i32)) {
            let _ = rustix::process::kill_process(pid, Signal::TERM);
        }
    }
}

/// Waits until something is so.
pub(crate) fn eventually(what: &str, mut is: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is() {
        assert!(Instant::now() < end, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// What a client heard.
#[derive(Debug)]
pub(crate) enum Heard {
    Event(cm::Event),
    Lost,
    Restored,
}

struct Ears(Sender<Heard>);

impl Listener for Ears {
    fn event(&self, event: cm::Event) {
        let _ = self.0.send(Heard::Event(event));
    }
    fn lost(&self) {
        let _ = self.0.send(Heard::Lost);
    }
    fn restored(&self) {
        let _ = self.0.send(Heard::Restored);
    }
    fn report(&self, number: u32) -> ProcessReport {
        ProcessReport { number, devices: vec![report()] }
    }
}

/// More than fits a message.
fn report() -> DeviceReport {
    let qp = QpReport {
        qpn: 0x01_0011,
        kind: "RC".into(),
        state: "x".repeat(200),
        peer: None,
        send_queue: 0,
        receive_queue: 0,
    };
    DeviceReport {
        name: "urxe0".into(),
        address: "127.0.0.1".parse().unwrap(),
        counters: vec![("sent_pkts".into(), 7)],
        qps: vec![qp; 512],
        qp_count: 512,
        threads: Vec::new(),
        regions: Vec::new(),
    }
}

pub(crate) fn spec(node: u32) -> DeviceSpec {
    DeviceSpec { node, rail: 0, address: None, scope: 0, lid: None }
}

/// A process's end of a slot.
pub(crate) struct Member {
    pub(crate) address: IpAddr,
    pub(crate) slot: u8,
    link: UdpLink,
    _anchor: OwnedFd,
}

impl Member {
    pub(crate) fn new(lease: Lease) -> Self {
        let config = udp::Config::new(lease.address);
        let link = UdpLink::from_member(lease.socket, lease.slot, &config).unwrap();
        Self { address: lease.address, slot: lease.slot, link, _anchor: lease.anchor }
    }

    /// Sends the slot a packet and waits for it; nobody else may get it.
    pub(crate) fn check(&self, others: &[&Member]) {
        let sender = UdpSocket::bind((IpAddr::from([127, 0, 0, 1]), 0)).unwrap();
        let mut packet = [0u8; 44];
        packet[5] = self.slot;
        packet[12..20].copy_from_slice(&std::process::id().to_be_bytes().repeat(2));
        sender.send_to(&packet, SocketAddr::new(self.address, 4791)).unwrap();
        let mut rx = RxBatch::new(4);
        eventually("a packet for the slot", || self.link.recv(&mut rx).unwrap() > 0);
        assert_eq!(rx.iter().next().unwrap().bytes, packet);
        for other in others {
            assert_eq!(
                other.link.recv(&mut rx).unwrap(),
                0,
                "slot {} got a packet of {}",
                other.slot,
                self.slot
            );
        }
    }
}

/// The next that is not an event.
pub(crate) fn hear(heard: &Receiver<Heard>) -> Heard {
    heard.recv_timeout(PATIENCE).expect("the client hears something")
}
