//! A worker: the process at one end of a pair.
//!
//! The target listens for the initiator on a TCP port, which it tells the driver on its standard output; the initiator
//! connects, takes jobs on its standard input, a JSON value a line, and writes what they have given to its standard
//! output. The first line of standard input says what a worker is: command lines can be read by everybody. Jobs reach the target through the initiator, as do the addresses of queue pairs. A worker ends when its
//! standard input does.

use std::io::{self, BufRead, Write};
use std::net::{IpAddr, SocketAddr};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use rustix::thread::CpuSet;
use serde::{Deserialize, Serialize};

mod initiator;
mod link;
mod target;

use super::error::{Error, Result};
use super::job::{Job, Outcome};
use super::station::Station;
use crate::driver::DeviceFacts;

/// How a worker is started.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Options {
    /// The device's name; the first one if not given.
    pub device: Option<String>,
    /// See [`crate::driver::Options::gid_index`].
    pub gid_index: Option<u32>,
    /// CPUs of its threads; all if empty. Those that work take one each, in turns.
    pub cpus: Vec<usize>,
    /// Whether the other end's threads may be on them, too.
    pub shares_cpus: bool,
    /// Which end it is.
    pub role: Role,
}

/// Which end a worker is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Listens at this address.
    Target(IpAddr),
    /// Connects to a target, and shows that it is the one that is expected.
    Initiator {
        /// Where the target listens.
        target: SocketAddr,
        /// What the target has told.
        token: String,
    },
}

/// What the driver asks of an initiator.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Command {
    /// Run a job.
    Run(Job),
    /// Go on, after a [`Report::Paused`].
    GoOn,
}

/// What a worker tells the driver.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Report {
    /// A target listens.
    Listening {
        /// TCP port.
        port: u16,
        /// What the initiator has to show.
        token: String,
    },
    /// An initiator has its device and its target.
    Started(DeviceFacts),
    /// The measured part of a job is about to begin, or has just ended: the time to look at counters.
    Paused,
    /// A job is over.
    Done(Box<Outcome>),
    /// A job is not possible; others may be.
    Refused(String),
    /// A job has failed, or the worker has: it ends.
    Failed(String),
}

/// Runs the worker that the first line of standard input describes, until that ends.
pub fn run() -> std::result::Result<(), String> {
    tie_to_parent();
    let options = &read_options().map_err(|e| format!("a worker is started by `urxe study`: {e}"))?;
    // Before there are other threads, so that those of the device are bound as well.
    let bound = check_cpus(&options.cpus).and_then(|()| bind(&options.cpus));
    let commands = read_commands();
    let result = bound.and_then(|()| match &options.role {
        Role::Target(address) => target::run(options, *address),
        Role::Initiator { target, token } => initiator::run(options, *target, token, &commands),
    });
    if let Err(error) = &result {
        let report = match error {
            error if error.is_refusal() => Report::Refused(error.to_string()),
            error => Report::Failed(error.to_string()),
        };
        // The driver hears it there; if it is gone, nobody wants to know.
        let _ = tell(&report);
    }
    result.map_err(|error| error.to_string())
}

/// The parent may die without closing what it holds: then the system ends this process.
fn tie_to_parent() {
    let signal = rustix::process::Signal::TERM;
    // Where that is not possible, standard input still ends.
    let _ = rustix::process::set_parent_process_death_signal(Some(signal));
}

fn read_options() -> io::Result<Options> {
    let mut line = String::new();
    io::stdin().read_line(&mut line)?;
    Ok(serde_json::from_str(&line)?)
}

/// Reads standard input. At its end the process ends, whatever it is doing.
fn read_commands() -> Receiver<Command> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        for line in io::stdin().lock().lines() {
            let command = line.ok().and_then(|line| serde_json::from_str(&line).ok());
            if command.and_then(|command| sender.send(command).ok()).is_none() {
                break;
            }
        }
        std::process::exit(0);
    });
    receiver
}

fn tell(report: &Report) -> Result<()> {
    let mut line = serde_json::to_vec(report).map_err(|e| Error::system("standard output")(e.into()))?;
    line.push(b'\n');
    let mut out = io::stdout().lock();
    out.write_all(&line).and_then(|()| out.flush()).map_err(Error::system("standard output"))
}

fn facts(station: &Station) -> Result<DeviceFacts> {
    let (limits, port) = (&station.limits, &station.port);
    let can = |what: u32| limits.on_demand & u64::from(what) != 0;
    Ok(DeviceFacts {
        name: station.context.name().to_owned(),
        driver: driver_of(station.context.name(), limits.vendor),
        link_layer: match port.link_layer {
            urxe_abi::IBV_LINK_LAYER_INFINIBAND => "InfiniBand",
            _ => "Ethernet",
        }
        .to_owned(),
        mtu: 128 << port.mtu.min(6),
        max_inline: station.max_inline()?,
        max_depth: limits.depth,
        atomics: limits.atomics,
        on_demand: can(urxe_abi::IBV_ODP_SUPPORT),
        implicit: can(urxe_abi::IBV_ODP_SUPPORT_IMPLICIT),
    })
}

/// The kernel driver of a device. rxe has no hardware whose driver sysfs could tell.
fn driver_of(device: &str, vendor: u32) -> String {
    const RXE: u32 = 0xff_ffff;
    let link = std::fs::read_link(format!("/sys/class/infiniband/{device}/device/driver"));
    match link.ok().as_deref().and_then(std::path::Path::file_name) {
        Some(name) => name.to_string_lossy().into_owned(),
        None if vendor == RXE => "rdma_rxe".to_owned(),
        None => format!("vendor {vendor:#x}"),
    }
}

/// Refuses CPUs that this process may not use.
fn check_cpus(cpus: &[usize]) -> Result<()> {
    let possible = rustix::thread::sched_getaffinity(None).map_err(|e| system("sched_getaffinity", e))?;
    let may_use = |cpu: &usize| *cpu < CpuSet::MAX_CPU && possible.is_set(*cpu);
    match cpus.iter().find(|cpu| !may_use(cpu)) {
        None => Ok(()),
        Some(cpu) => {
            let possible: Vec<_> = (0..CpuSet::MAX_CPU).filter(may_use).map(|cpu| cpu.to_string()).collect();
            Err(Error::Refused(format!("CPU {cpu}: the process may use {}", possible.join(", "))))
        }
    }
}

/// Pins the calling thread, the one with this number, to one of the CPUs.
fn pin(cpus: &[usize], thread: usize) -> Result<()> {
    let own = cpus.get(thread % cpus.len().max(1));
    bind(own.map(std::slice::from_ref).unwrap_or_default())
}

/// Binds the calling thread, and those that it will start, to CPUs, as taskset(1) does; to none in particular if there
/// are none.
fn bind(cpus: &[usize]) -> Result<()> {
    if cpus.is_empty() {
        return Ok(());
    }
    let mut set = CpuSet::new();
    cpus.iter().for_each(|cpu| set.set(*cpu));
    rustix::thread::sched_setaffinity(None, &set).map_err(|e| system("sched_setaffinity", e))
}

fn system(what: &'static str, error: rustix::io::Errno) -> Error {
    Error::system(what)(error.into())
}

/// CPU time of this process so far.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.try_into().unwrap_or(0), time.tv_nsec.try_into().unwrap_or(0))
}
