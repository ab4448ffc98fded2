//! Pairs of workers, here or on two machines.
//!
//! A [`Pair`] is two processes, each with the device open: the initiator, which measures, and the target. Both stay for
//! many jobs, so that jobs of pairs with different [`Setting`]s can take turns. `urxe study --server` ([`serve`]) starts
//! targets on another machine.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

mod agent;
mod fabric;
mod interrupt;
mod pair;
mod process;

pub use agent::{PORT, serve};
pub use interrupt::Interrupt;
pub use pair::Pair;

/// How the device of a pair is set up.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Setting {
    /// Flags of `urxe run` without dashes, with their values: `("tasks", "workqueue")`. Only urxe takes them.
    pub flags: Vec<(String, String)>,
    /// CPUs of the initiator, all if empty: the process is bound to them, with the device's threads, as by taskset(1).
    /// The threads that post and poll take one each, in turns.
    pub initiator_cpus: Vec<usize>,
    /// CPUs of the target.
    pub target_cpus: Vec<usize>,
}

impl Setting {
    /// Whether threads of both ends may meet on a CPU, if the ends are on one machine.
    fn shares_cpus(&self) -> bool {
        let (a, b) = (&self.initiator_cpus, &self.target_cpus);
        a.is_empty() || b.is_empty() || a.iter().any(|cpu| b.contains(cpu))
    }
}

/// What all pairs of a study have in common.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// The `urxe` command, which starts workers.
    pub urxe: PathBuf,
    /// Another verbs device than urxe, by its name.
    pub device: Option<String>,
    /// Place of the GID in the port's table; of the best one if not given.
    pub gid_index: Option<u32>,
    /// Flags of `urxe run` for all pairs, which a [`Setting`] may override.
    pub flags: Vec<(String, String)>,
    /// Where the target runs.
    pub peer: Peer,
    /// Time that a job may take beside its measured part.
    pub patience: Duration,
}

impl Options {
    /// On this machine, under urxe, with a minute of patience.
    pub fn local(urxe: impl Into<PathBuf>) -> Self {
        Self {
            urxe: urxe.into(),
            device: None,
            gid_index: None,
            flags: Vec::new(),
            peer: Peer::Local,
            patience: Duration::from_secs(60),
        }
    }
}

/// Where the target runs.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Peer {
    /// On this machine.
    #[default]
    Local,
    /// Where `urxe study --server` runs: `HOST` or `HOST:PORT`.
    Agent(String),
}

/// What a worker says of its device.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DeviceFacts {
    /// Its name.
    pub name: String,
    /// Its kernel driver, or `urxe` and its version.
    pub driver: String,
    /// `Ethernet` or `InfiniBand`.
    pub link_layer: String,
    /// Path MTU in bytes.
    pub mtu: u32,
    /// Most bytes of inline data of a queue pair.
    pub max_inline: u32,
    /// Most requests in a queue.
    pub max_depth: u32,
    /// Whether there are atomic operations.
    pub atomics: bool,
    /// Whether memory can be registered with on-demand paging.
    pub on_demand: bool,
    /// Whether the whole address space can.
    pub implicit: bool,
}

impl DeviceFacts {
    /// Whether it is urxe's.
    pub fn is_urxe(&self) -> bool {
        self.driver.starts_with("urxe")
    }

    /// A device `x0` that can do everything, for tests.
    #[doc(hidden)]
    pub fn sample(driver: &str) -> Self {
        Self {
            name: "x0".to_owned(),
            driver: driver.to_owned(),
            link_layer: "Ethernet".to_owned(),
            mtu: 4096,
            max_inline: 512,
            max_depth: 1024,
            atomics: true,
            on_demand: true,
            implicit: true,
        }
    }
}

/// Why a pair did not do what it was asked.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Error {
    /// A signal asked the driver to stop. The pair is of no use any more.
    #[error("interrupted")]
    Interrupted,
    /// The job is not possible, on this device or at all. The pair can do others.
    #[error("{0}")]
    Refused(String),
    /// The job or a worker failed. The pair is of no use any more.
    #[error("{0}")]
    Failed(String),
}
