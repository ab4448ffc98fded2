//! The messages.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use urxe::cm;

/// Raised with every change of the messages: both ends must be of one version.
pub const VERSION: u16 = 2;
/// The first bytes of every connection, before the version (two bytes, little endian) and a [`Hello`].
/// The daemon answers with a [`Welcome`] after the same bytes and its own version, so that each end can tell the other's.
pub const MAGIC: [u8; 4] = *b"urxe";
/// Longest message in bytes.
pub const MAX_MESSAGE: usize = 64 << 10;

/// Who connects. The daemon takes the process number from the socket.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Hello {
    /// The program's name, for people.
    pub program: String,
}

/// The answer to [`Hello`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Welcome {
    /// The client may go on.
    Ready {
        /// The process number of the daemon.
        daemon: u32,
    },
    /// It may not, and why.
    Refused(Failure),
}

/// From client to daemon: `number` comes back with the answer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Numbered<T> {
    /// Chosen by the client.
    pub number: u32,
    /// The message.
    pub body: T,
}

/// What a client asks.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Request {
    /// Where a device is; answered with [`Reply::Device`]. It says early what a lease would fail of.
    Device(DeviceSpec),
    /// A slot on a device; answered with [`Reply::Lease`]. It is given back when the connection ends.
    Lease(DeviceSpec),
    /// A slot that was leased from a daemon that is gone. The anchor of the group comes beside it.
    Resume {
        /// The device.
        spec: DeviceSpec,
        /// Its address.
        address: IpAddr,
        /// The slot.
        slot: u8,
    },
    /// Gives a slot back: the queue pairs are gone.
    Release {
        /// The device.
        address: IpAddr,
        /// The slot.
        slot: u8,
    },
    /// Connection management; answered with [`Reply::Cm`].
    Cm(cm::Command),
    /// A process joins or leaves a multicast group on a device. The sockets are its own; the daemon keeps the table.
    Multicast {
        /// The device.
        device: IpAddr,
        /// The group.
        group: IpAddr,
        /// Joins, or else leaves.
        join: bool,
    },
    /// The answer to [`Notice::Report`]; itself not answered.
    Report(ProcessReport),
    /// All that the daemon knows; answered with [`Reply::Status`], then by one [`Notice::Process`] for each process
    /// that answers in time, and by [`Notice::End`].
    Status,
}

/// Which device a process wants, and how.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DeviceSpec {
    /// The emulated machine, from 0.
    pub node: u32,
    /// Which device of that machine, from 0.
    pub rail: u32,
    /// A configured address; else the daemon chooses one for node and rail, always the same while it runs.
    pub address: Option<IpAddr>,
    /// Scope of a configured link-local address; 0 if only one interface can be meant.
    pub scope: u32,
    /// LID that is configured.
    pub lid: Option<u16>,
}

/// What the daemon answers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Reply {
    /// A device that can be leased.
    Device {
        /// Its address.
        address: IpAddr,
        /// Scope of a link-local address, else 0.
        scope: u32,
    },
    /// A slot. Beside it: the socket of the slot, then the anchor of the group.
    Lease {
        /// The device's address.
        address: IpAddr,
        /// Scope of a link-local address, else 0.
        scope: u32,
        /// The process's part of its QPNs: the top 8 of 24 bits.
        slot: u8,
    },
    /// It is done.
    Done,
    /// From the connection manager.
    Cm(Result<cm::Answer, cm::Refused>),
    /// The daemon itself.
    Status(DaemonStatus),
    /// It cannot be.
    Failed(Failure),
}

/// Why something cannot be, for people, and the errno for programs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// What `errno` should say.
    pub errno: i32,
    /// What is wrong, which value, what would be right.
    pub message: String,
}

/// From daemon to client, unasked.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Notice {
    /// From the connection manager.
    Cm(cm::Event),
    /// The daemon wants a [`Request::Report`] with this number.
    Report(u32),
    /// Part of the answer to [`Request::Status`].
    Process(ProcessStatus),
    /// The end of that answer; how many processes did not answer in time.
    End {
        /// Processes without an answer.
        silent: u32,
    },
}

/// All that the daemon sends after the [`Welcome`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ToClient {
    /// To a request.
    Reply(Numbered<Reply>),
    /// Unasked.
    Notice(Notice),
}

/// The daemon's own facts.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct DaemonStatus {
    /// Its process.
    pub pid: u32,
    /// The fabric.
    pub fabric: String,
    /// Milliseconds since it started.
    pub uptime_ms: u64,
    /// The devices.
    pub devices: Vec<DeviceStatus>,
    /// Endpoints of the connection manager.
    pub endpoints: u32,
    /// The processes that listen by it.
    pub listeners: Vec<u32>,
    /// What the connection manager counted: name and value.
    pub counters: Vec<(String, u64)>,
}

/// A device, as the daemon sees it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DeviceStatus {
    /// Its address.
    pub address: IpAddr,
    /// Emulated machine.
    pub node: u32,
    /// Device of that machine.
    pub rail: u32,
    /// Network interface.
    pub interface: String,
    /// Slots in use.
    pub slots: u32,
    /// Slots that are drained before they are used again.
    pub draining: u32,
    /// Multicast groups and how many processes are in each.
    pub groups: Vec<(IpAddr, u32)>,
}

/// A process with its report.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ProcessStatus {
    /// Its number.
    pub pid: u32,
    /// Its name.
    pub program: String,
    /// Devices and slots.
    pub leases: Vec<(IpAddr, u8)>,
    /// What it said of itself.
    pub report: ProcessReport,
}

/// What a process says of its devices.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ProcessReport {
    /// The number of [`Notice::Report`].
    pub number: u32,
    /// Its devices.
    pub devices: Vec<DeviceReport>,
}

/// A device in a process.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DeviceReport {
    /// Its name there.
    pub name: String,
    /// Its address.
    pub address: IpAddr,
    /// Counters by name, rxe's where rxe counts the same.
    pub counters: Vec<(String, u64)>,
    /// Queue pairs, at most [`MAX_REPORTED_QPS`].
    pub qps: Vec<QpReport>,
    /// How many there are.
    pub qp_count: u32,
    /// CPUs and threads: a line for people each.
    pub threads: Vec<String>,
    /// Memory that is paged on demand, at most [`MAX_REPORTED_REGIONS`] regions.
    pub regions: Vec<RegionReport>,
}

/// Regions that a report lists.
pub const MAX_REPORTED_REGIONS: usize = 32;

/// A region of memory that is paged on demand.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RegionReport {
    /// Its local key.
    pub lkey: u32,
    /// What it has counted: name and value.
    pub counters: Vec<(String, u64)>,
}

/// Queue pairs that a report lists.
pub const MAX_REPORTED_QPS: usize = 512;

/// A queue pair.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct QpReport {
    /// Its number.
    pub qpn: u32,
    /// RC, UC, UD.
    pub kind: String,
    /// RESET to ERR.
    pub state: String,
    /// Where it is connected to.
    pub peer: Option<(IpAddr, u32)>,
    /// Requests in the send queue.
    pub send_queue: u32,
    /// Requests in the receive queue.
    pub receive_queue: u32,
}
