//! The configuration: one typed [`Config`], and for each value where it came from.
//!
//! Sources in rising order: defaults, a TOML file (`$URXE_CONFIG`, else `~/.config/urxe.toml` if it exists), the
//! environment (`URXE_MTU=1024`), flags (`urxe run --mtu 1024`, which reach the program as environment).
//! An unknown key or a bad value is an [`Error`]: one line that names it and what would be accepted.
//!
//! [`KEYS`] is the one table of keys; parsing, `--help`, `docs/configuration.md` and `urxe devices` are made from it.

mod file;
mod value;

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;

use crate::ids::{Lid, Mtu};
use crate::time::Latency;
pub use value::{
    Bytes, Cpu, CpuList, Daemon, Gso, Guard, Impair, Interface, LidTable, LinkLayer, LogLevel, Micros, Name,
    Number, OdpFault, Probability, Rate, Receive, Tasks,
};
use value::{GIB, KIB, Value};

/// Prefix of the environment variables that are configuration.
const ENV_PREFIX: &str = "URXE_";
/// Names the configuration file. Empty: no file is read.
pub const ENV_FILE: &str = "URXE_CONFIG";

/// Where launchers of parallel programs write the number of a process.
const RANKS: [&str; 4] = ["OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"];

/// One key of the configuration.
#[derive(Debug)]
pub struct Key {
    /// As in the TOML file: `link_layer`.
    pub name: &'static str,
    /// What it does; more than one line.
    pub doc: &'static str,
    /// The accepted values, in words.
    pub accepted: fn() -> String,
    set: fn(&mut Config, &str) -> bool,
    show: fn(&Config) -> String,
}

impl Key {
    /// Its environment variable: `URXE_LINK_LAYER`.
    pub fn env(&self) -> String {
        format!("{ENV_PREFIX}{}", self.name.to_ascii_uppercase())
    }
    /// Its flag, without the dashes: `link-layer`.
    pub fn flag(&self) -> String {
        self.name.replace('_', "-")
    }
    /// The default value.
    pub fn default(&self) -> String {
        (self.show)(&Config::default())
    }
}

macro_rules! keys {
    ($( $(#[doc = $doc:literal])+ $name:ident: $type:ty = $default:expr; )+) => {
        /// The resolved configuration of a device.
        #[derive(Clone, Debug)]
        pub struct Config {
            $( $(#[doc = $doc])+ pub $name: $type, )+
            sources: Vec<Source>,
            /// What the launcher of a parallel program says of this process.
            rank: Option<u32>,
        }

        impl Default for Config {
            fn default() -> Self {
                Self { $( $name: const { $default }, )+ sources: vec![Source::Default; KEYS.len()], rank: None }
            }
        }

        /// All keys, in the order in which people should read about them.
        pub static KEYS: &[Key] = &[ $( Key {
            name: stringify!($name),
            doc: concat!($($doc, "\n"),+),
            accepted: <$type as Value>::accepted,
            set: |config, text| <$type as Value>::parse(text).map(|v| config.$name = v).is_some(),
            show: |config| config.$name.show(),
        }, )+ ];
    };
}

keys! {
    /// Programs of one user and one fabric share a network of devices; another fabric is another network.
    fabric: Name = Name::new_const("default");
    /// Emulated machines of the fabric. Each has devices of its own.
    nodes: Number<1, 64> = Number::new_const(1);
    /// The machine on which the program runs. `auto` is the rank that a launcher gives (OMPI_COMM_WORLD_RANK, PMIX_RANK,
    /// PMI_RANK or SLURM_PROCID) modulo `nodes`, and 0 without a launcher.
    node: Option<Number<0, 63>> = None;
    /// Devices of each machine.
    devices: Number<1, 4> = Number::new_const(1);
    /// Address of the device. `auto` takes one of 127.0.0.0/16 that is the same for all processes of the machine (see
    /// `node`). An address that is not loopback opens the device to that network.
    addr: Option<IpAddr> = None;
    /// Network interface whose address the device takes: the first IPv4 address, else the first IPv6 address.
    netdev: Option<Interface> = None;
    /// Whether a daemon owns the address, so that many processes can share a device and connect by rdma_cm. `off` makes
    /// the process its only owner; there is no rdma_cm then.
    daemon: Daemon = Daemon::Auto;
    /// Name of the device, as programs list it. More devices are counted up from it.
    device: Name = Name::new_const("urxe0");
    /// Largest path MTU of the port. `auto` is the largest one that fits the interface of the address.
    mtu: Option<Mtu> = None;
    /// Link layer that the port reports. Some programs (Open MPI's openib) want `infiniband`.
    link_layer: LinkLayer = LinkLayer::Ethernet;
    /// LID of the port. `auto` is the low 16 bits of its IPv4 address.
    lid: Option<Lid> = None;
    /// Addresses of LIDs that are not the low 16 bits of an address in the device's own network.
    lids: LidTable = LidTable::new();
    /// Where protocol tasks run: `inline` runs them in the thread that posts, polls or receives (lowest latency),
    /// `workqueue` in workers (nobody who posts or polls waits for the protocol, and several CPUs share the work), `auto`
    /// inline, and in workers while receiving does not keep up.
    tasks: Tasks = Tasks::Inline;
    /// Workers for tasks, and so the completion vectors of the device: vector k is served by worker k. If a program puts
    /// all its completion queues on vector 0, its queue pairs take turns. `auto` is the number of CPUs that the process may
    /// use, but at most 4.
    workers: Option<Number<1, 64>> = None;
    /// CPUs to which workers are pinned: worker k to the k-th of the list, which begins again at its end. `none` leaves
    /// them to the system.
    cpus: Option<CpuList> = None;
    /// How long a worker looks for more work before it sleeps.
    worker_spin: Micros<1_000_000> = Micros::new_const(0);
    /// How packets are received. `raw` (needs CAP_NET_RAW) sees the IP header, so the ICRC is checked as it is; `udp`
    /// needs no privilege and solves for the one field it cannot see.
    receive: Receive = Receive::Udp;
    /// Segmentation offload for sending and receiving; `auto` stops using it where the kernel refuses it.
    gso: Gso = Gso::Auto;
    /// Receive buffer of the socket; the kernel may grant less (net.core.rmem_max).
    rcvbuf: Bytes<{ 4 * KIB }, GIB> = Bytes::new_const(4 << 20);
    /// Send buffer of the socket; the kernel may grant less (net.core.wmem_max).
    sndbuf: Bytes<{ 4 * KIB }, GIB> = Bytes::new_const(4 << 20);
    /// Most bytes in flight to one peer. `auto` follows the peer's receive buffer and the losses.
    window: Option<Bytes<{ 4 * KIB }, GIB>> = None;
    /// How long the receive thread looks for more work before it sleeps.
    spin: Micros<1_000_000> = Micros::new_const(20);
    /// CPU to which the receive thread is pinned.
    rx_cpu: Option<Cpu> = None;
    /// What keeps a wild pointer from killing the program: `signal` handles SIGSEGV and SIGBUS during copies,
    /// `kernel` lets the kernel copy (slower, no signal handler).
    guard: Guard = Guard::Signal;
    /// What waits when a page of a region that is paged on demand is not present: `park` lets the queue pair wait while
    /// others go on, `rnr` lets the responder refuse the request (RNR NAK) so that the peer tries again, as adapters do,
    /// `sleep` lets the worker wait, which needs tasks that run in workers.
    odp_fault: OdpFault = OdpFault::Park;
    /// Time that is added to each page fault, as if a slow device or disk had to be asked.
    odp_latency: Latency = Latency::None;
    /// Threads that resolve page faults. Each has one fault at a time.
    odp_workers: Number<1, 64> = Number::new_const(2);
    /// Packets that are lost, as if the network were bad. This and the next five keys impair what a process's device
    /// sends (or else what `impair` says); the connection management of the daemon (rdma_cm) is spared. Set at one end,
    /// they impair one direction, at both ends, as by `urxe pair`, both: acknowledgements are packets too. Counted as
    /// `impaired_lost`.
    loss: Probability = Probability::NEVER;
    /// Packets that arrive twice (`impaired_duplicated`).
    duplicate: Probability = Probability::NEVER;
    /// Packets that let 1 to 8 later ones overtake them, or come half a millisecond late (`impaired_reordered`).
    reorder: Probability = Probability::NEVER;
    /// Packets in which one bit is wrong (`impaired_corrupted`). The receiver's ICRC finds it (`icrc_errors`).
    corrupt: Probability = Probability::NEVER;
    /// Time that packets are on the way, beside what they need anyway (`impaired_delayed`). They do not overtake each
    /// other. They are released by a timer of the system, a few tens of microseconds late.
    delay: Latency = Latency::None;
    /// Rate of the link, IP and UDP headers included. What exceeds it waits (`impaired_delayed`). Each process has the
    /// rate for itself.
    rate: Option<Rate> = None;
    /// Most bytes that wait for the rate; more are dropped (`impaired_overflowed`), as by the buffer of a switch. `auto`
    /// is what 10 ms of the rate carry, but at least 256KiB.
    rate_queue: Option<Bytes<{ 4 * KIB }, GIB>> = None;
    /// Which packets are impaired: those that are sent, those that are received (for a peer that is no urxe), or both.
    impair: Impair = Impair::Send;
    /// Where chance begins: the same seed and the same packets have the same fates. The number of the machine (`node`)
    /// is added to it.
    impair_seed: Number<0, { u32::MAX }> = Number::new_const(1);
    /// Least severe messages that are written. `urxe run` makes it `warn` unless it is set.
    log: LogLevel = LogLevel::Off;
    /// File to which messages are appended; `none` is standard error.
    log_file: Option<PathBuf> = None;
}

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Nobody set it.
    Default,
    /// The configuration file.
    File {
        /// Its path.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
    },
    /// The environment variable of this name.
    Env(String),
    /// The command line flag of this name, without the dashes.
    Flag(String),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => write!(f, "default"),
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Env(name) => write!(f, "environment {name}"),
            Self::Flag(name) => write!(f, "flag --{name}"),
        }
    }
}

/// Why a configuration cannot be used. The message is one line.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// There is no such key.
    #[error("{from}: unknown key {key:?}; the keys are {}", key_names())]
    UnknownKey {
        /// Where it was written.
        from: Source,
        /// As written.
        key: String,
    },
    /// The key does not take this value.
    #[error("{from}: bad value {value:?} for {key}; accepted: {accepted}")]
    BadValue {
        /// Where it was written.
        from: Source,
        /// Its key.
        key: &'static str,
        /// As written.
        value: String,
        /// What would be right.
        accepted: String,
    },
    /// The file cannot be read.
    #[error("configuration file {path:?}: {why}")]
    File {
        /// Its path.
        path: PathBuf,
        /// The system's reason.
        why: String,
    },
    /// Two keys have values that exclude each other.
    #[error("{} = {} ({}) and {} = {} ({}): {why}", .first.0, .first.1, .first.2, .second.0, .second.1, .second.2)]
    Contradiction {
        /// Key, value, where it was written.
        first: Box<(&'static str, String, Source)>,
        /// The same of the other.
        second: Box<(&'static str, String, Source)>,
        /// What would be right.
        why: &'static str,
    },
    /// The file is not TOML.
    #[error("{}:{line}: {what}", path.display())]
    Syntax {
        /// Its path.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong, on one line.
        what: String,
    },
}

/// The last section of docs/configuration.md.
const IMPAIRMENTS: &str = "
# A bad network on purpose

    urxe pair --loss 1% -- ib_write_bw                     # both directions lose packets
    urxe pair --delay 500us --rate 1Gbit -- ib_send_lat    # 1 ms more for a round trip, at most 1 Gbit/s each way
    urxe run --corrupt 0.1% --impair both -- ib_send_bw PEER    # the peer need not be urxe

Any run can have any of `loss`, `duplicate`, `reorder`, `corrupt`, `delay` and `rate`. A packet meets them in this order: \
it may be lost, get a wrong bit, be doubled, let others overtake it; then it waits for the rate, and then for its delay. \
What waits is a copy: memory may change after a request has completed, as it may while a packet is on a real wire. The \
sender notices what a sender notices: longer round trips, and losses.

Each process has an impaired network of its own; processes on one device do not share the rate. A process that ends waits \
until what it has sent has left, at most two seconds. `urxe stat` counts what was impaired, `urxe devices` shows the \
settings. Programs that leave without asking whether their peer has seen the last acknowledgement (ibv_rc_pingpong) let \
it fail now and then under loss, as they do on a real network.
";

fn key_names() -> String {
    KEYS.iter().map(|k| k.name).collect::<Vec<_>>().join(", ")
}

impl Config {
    /// The configuration of this process: defaults, file, environment.
    pub fn load() -> Result<Self, Error> {
        Self::resolve(std::env::vars_os(), &[])
    }

    /// From an environment and flags; a flag is a key's [`Key::flag`] and its value.
    pub fn resolve(
        env: impl IntoIterator<Item = (OsString, OsString)>,
        flags: &[(String, String)],
    ) -> Result<Self, Error> {
        let mut ours = Vec::new();
        let (mut named, mut config_home, mut home) = (None, None, None);
        let mut ranks = [None; RANKS.len()];
        for (name, value) in env {
            match name.to_str() {
                Some(ENV_FILE) => named = Some(value),
                Some("XDG_CONFIG_HOME") => config_home = Some(value),
                Some("HOME") => home = Some(value),
                Some(name) if let Some(i) = RANKS.iter().position(|r| *r == name) => {
                    ranks[i] = value.to_str().and_then(|v| v.parse().ok());
                }
                _ if name.as_encoded_bytes().starts_with(ENV_PREFIX.as_bytes()) => ours.push((name, value)),
                _ => {}
            }
        }
        ours.sort(); // so that the same environment always gives the same error

        let mut config = Self { rank: ranks.into_iter().flatten().next(), ..Self::default() };
        let given = |v: &OsString| !v.is_empty();
        if let Some(path) = &named {
            if given(path) {
                config.apply_file(path.into(), true)?;
            }
        } else if let Some(path) = config_home.filter(given).map(|d| PathBuf::from(d).join("urxe.toml")) {
            config.apply_file(path, false)?;
        } else if let Some(path) = home.filter(given).map(|d| PathBuf::from(d).join(".config/urxe.toml")) {
            config.apply_file(path, false)?;
        }
        for (name, value) in ours {
            config.apply_env(&name, &value)?;
        }
        for (flag, value) in flags {
            config.set(&flag.replace('-', "_"), value, Source::Flag(flag.clone()))?;
        }
        config.check()?;
        Ok(config)
    }

    /// Refuses values that are right one by one but not together.
    fn check(&self) -> Result<(), Error> {
        let contradictions = [
            (
                self.node.is_some_and(|n| n.value() >= self.nodes.value()),
                "node",
                "nodes",
                "nodes are counted from 0",
            ),
            (self.addr.is_some() && self.netdev.is_some(), "addr", "netdev", "give one of them"),
            (self.addr.is_some() && self.nodes.value() > 1, "addr", "nodes", "one address is one machine"),
            (self.addr.is_some() && self.devices.value() > 1, "addr", "devices", "one address is one device"),
            (
                self.netdev.is_some() && self.nodes.value() > 1,
                "netdev",
                "nodes",
                "one interface is one machine",
            ),
            (
                self.netdev.is_some() && self.devices.value() > 1,
                "netdev",
                "devices",
                "one interface is one device",
            ),
            (
                self.lid.is_some() && self.devices.value() > 1,
                "lid",
                "devices",
                "each device needs a LID of its own",
            ),
            (
                self.daemon == Daemon::Off && self.devices.value() > 1,
                "daemon",
                "devices",
                "without a daemon there is one device",
            ),
            (
                self.odp_fault == OdpFault::Sleep && self.tasks == Tasks::Inline,
                "odp_fault",
                "tasks",
                "who sleeps must be a worker: accepted are park and rnr",
            ),
        ];
        let fact = |name| {
            let found = self.entries().find(|(key, ..)| key.name == name);
            found.map(|(key, value, source)| (key.name, value, source.clone()))
        };
        for (wrong, first, second, why) in contradictions {
            if wrong && let (Some(first), Some(second)) = (fact(first), fact(second)) {
                return Err(Error::Contradiction { first: Box::new(first), second: Box::new(second), why });
            }
        }
        self.check_cpus(&crate::task::affinity::allowed())
    }

    /// Refuses CPUs on which the process may not run.
    fn check_cpus(&self, allowed: &[usize]) -> Result<(), Error> {
        let cpus = self.cpus.as_ref().map(CpuList::as_slice).unwrap_or_default();
        let rx_cpu = self.rx_cpu.iter().map(|cpu| ("rx_cpu", cpu.0));
        let wrong = cpus.iter().map(|&cpu| ("cpus", cpu)).chain(rx_cpu);
        // What the system does not tell cannot be checked.
        let Some((name, _)) =
            wrong.into_iter().find(|(_, cpu)| !allowed.is_empty() && !allowed.contains(cpu))
        else {
            return Ok(());
        };
        let found = self.entries().find(|(key, ..)| key.name == name);
        found.map_or(Ok(()), |(key, value, source)| {
            let accepted =
                format!("none, CPUs that this process may use: {}", crate::task::affinity::show(allowed));
            Err(Error::BadValue { from: source.clone(), key: key.name, value, accepted })
        })
    }

    /// The emulated machine on which this process runs, from 0.
    pub fn node_number(&self) -> u32 {
        self.node.map_or(self.rank.unwrap_or(0) % self.nodes.value(), Number::value)
    }

    /// The name of a device of the machine, from 0: the number at the end of [`Config::device`] is counted up.
    pub fn device_name(&self, rail: u32) -> String {
        const LONGEST: usize = 63;
        let name = self.device.as_str();
        if rail == 0 {
            return name.into();
        }
        let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
        let digits = &name[stem.len()..];
        // Of a number that is too long only the last digits are counted.
        let (fixed, counted) = digits.split_at(digits.len().saturating_sub(9));
        let number = counted.parse().unwrap_or(0) + rail;
        let number = format!("{number:0width$}", width = counted.len());
        let mut front = format!("{stem}{fixed}");
        front.truncate(LONGEST - number.len());
        front + &number
    }

    /// Sets one value.
    pub fn set(&mut self, key: &str, value: &str, from: Source) -> Result<(), Error> {
        let Some((i, k)) = KEYS.iter().enumerate().find(|(_, k)| k.name == key) else {
            return Err(Error::UnknownKey { from, key: key.into() });
        };
        if !(k.set)(self, value) {
            return Err(Error::BadValue { from, key: k.name, value: value.into(), accepted: (k.accepted)() });
        }
        if let Some(source) = self.sources.get_mut(i) {
            *source = from;
        }
        Ok(())
    }

    /// Every key with its value and where that came from.
    pub fn entries(&self) -> impl Iterator<Item = (&'static Key, String, &Source)> {
        KEYS.iter().zip(&self.sources).map(|(k, source)| (k, (k.show)(self), source))
    }

    /// Where the value of a key came from; `None` if there is no such key.
    pub fn source(&self, key: &str) -> Option<&Source> {
        KEYS.iter().zip(&self.sources).find(|(k, _)| k.name == key).map(|(_, source)| source)
    }

    fn apply_env(&mut self, name: &OsStr, value: &OsStr) -> Result<(), Error> {
        // A name or value that is not UTF-8 is wrong in any case: its lossy form makes a readable error.
        let (name, value) = (name.to_string_lossy(), value.to_string_lossy());
        let from = Source::Env(name.as_ref().into());
        match KEYS.iter().find(|k| k.env() == name) {
            Some(k) => self.set(k.name, &value, from),
            None => Err(Error::UnknownKey { from, key: name.into() }),
        }
    }

    /// The text of docs/configuration.md.
    pub fn reference() -> String {
        let mut text = String::from(
            "# Configuration\n\n\
             Sources, in rising order: the default, a TOML file (`$URXE_CONFIG`, else `$XDG_CONFIG_HOME/urxe.toml` or \
             `~/.config/urxe.toml` if it exists; an empty `URXE_CONFIG` means no file), the environment, flags of \
             `urxe run` and `urxe pair`. `urxe devices` shows each value and where it came from. An unknown key or a \
             bad value is an error that names it.\n\n\
             Sizes take a unit: `64KiB`, `4MiB`, `1GiB`, `4MB`, or plain bytes. This file is made from the table of \
             keys in src/config.\n",
        );
        for k in KEYS {
            text += &format!(
                "\n## {}\n\n{}\n\nAccepted: {}. Default: `{}`. Environment `{}`, flag `--{}`.\n",
                k.name,
                doc_text(k),
                (k.accepted)(),
                k.default(),
                k.env(),
                k.flag()
            );
        }
        text + IMPAIRMENTS
    }
}

/// A key's documentation as one paragraph.
pub fn doc_text(key: &Key) -> String {
    key.doc.lines().map(str::trim).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests;
