//! Two workers that are connected with each other.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use super::agent::Remote;
use super::fabric::{self, Fabric, Snapshot};
use super::interrupt::Told;
use super::process::{Event, Process, Side, flags, next};
use super::{DeviceFacts, Error, Interrupt, Options, Peer, Setting};
use crate::work::worker::{self, Command, Report, Role};
use crate::work::{Amount, Job, Outcome};

/// How long a worker may take to open its device.
const START: Duration = Duration::from_secs(20);

/// Two workers that are connected with each other. They end with this value, and so does the fabric that was made for
/// them.
#[derive(Debug)]
pub struct Pair {
    // In this order: the initiator ends first.
    initiator: Process,
    target: Target,
    fabric: Option<Fabric>,
    events: Receiver<Event>,
    device: DeviceFacts,
    patience: Duration,
    dead: Option<Error>,
    _told: Told,
}

/// The other worker.
#[derive(Debug)]
enum Target {
    Local(Process),
    Remote { _until_the_end: Remote },
}

impl Pair {
    /// Starts both workers and waits until they have opened their devices.
    pub fn start(setting: &Setting, options: &Options, interrupt: &Interrupt) -> Result<Self, Error> {
        if let (Some(device), Some((flag, _))) = (&options.device, setting.flags.first()) {
            return Err(Error::Refused(format!("{flag} is a setting of urxe; {device} does not have it")));
        }
        let (sender, events) = mpsc::channel();
        let told = interrupt.tell(sender.clone());
        let starting = Starting { options, setting, sender, events, told };
        match &options.peer {
            Peer::Local => starting.local(),
            Peer::Agent(host) => starting.remote(host),
        }
    }

    /// The device of the initiator.
    pub fn device(&self) -> &DeviceFacts {
        &self.device
    }

    /// Runs a job; returns when it is over. After any error but [`Error::Refused`] the pair is of no use.
    pub fn run(&mut self, job: &Job) -> Result<Outcome, Error> {
        if let Some(error) = &self.dead {
            return Err(error.clone());
        }
        let result = self.run_job(job);
        match &result {
            Err(Error::Refused(_)) | Ok(_) => {}
            Err(error) => {
                self.dead = Some(error.clone());
                self.initiator.stop();
            }
        }
        result
    }

    fn run_job(&mut self, job: &Job) -> Result<Outcome, Error> {
        let measured = match job.amount {
            Amount::Milliseconds(time) => Duration::from_millis(time),
            Amount::Operations(_) => Duration::ZERO,
        };
        let end = Instant::now() + self.patience + measured;
        self.tell(&Command::Run(job.clone()))?;
        let mut counters = Vec::new();
        loop {
            let report = wait(&self.events, end, &mut self.initiator, &mut self.target, Side::Initiator)?;
            match report {
                Some(Report::Paused) => {
                    counters.push(self.fabric.as_ref().map(Fabric::counters).unwrap_or_default());
                    self.tell(&Command::GoOn)?;
                }
                Some(Report::Done(outcome)) => return Ok(self.with_counters(*outcome, &counters)),
                Some(report) => return Err(unexpected(report, Side::Initiator)),
                None => {
                    let seconds = (self.patience + measured).as_secs();
                    return Err(Error::Failed(format!("the job was not over after {seconds} s")));
                }
            }
        }
    }

    fn tell(&mut self, command: &Command) -> Result<(), Error> {
        self.initiator.tell(command).map_err(|_| gone(&mut self.initiator))
    }

    /// `snapshots` are of the beginning and the end of the measured part.
    fn with_counters(&mut self, outcome: Outcome, snapshots: &[Snapshot]) -> Outcome {
        let [before, after] = snapshots else { return outcome };
        let target = self.target.local().map(|process| process.id());
        Outcome { counters: fabric::changes(before, after, self.initiator.id(), target), ..outcome }
    }
}

impl Target {
    fn local(&mut self) -> Option<&mut Process> {
        match self {
            Self::Local(process) => Some(process),
            Self::Remote { .. } => None,
        }
    }
}

/// A pair that is not yet one.
struct Starting<'a> {
    options: &'a Options,
    setting: &'a Setting,
    sender: mpsc::Sender<Event>,
    events: Receiver<Event>,
    told: Told,
}

impl Starting<'_> {
    fn local(self) -> Result<Pair, Error> {
        // An address of the user's choice is shared, by processes of one machine.
        let chosen = flags(self.options, self.setting, &[]);
        let alone =
            !chosen.iter().any(|(flag, _)| ["addr", "netdev", "daemon", "nodes", "node"].contains(&&**flag));
        let fabric = (self.options.device.is_none() && alone).then(|| Fabric::of(&chosen));
        let of_node = |node| fabric.as_ref().map_or(Vec::new(), |fabric| fabric.flags(node));
        let here = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let mut target = self.process(Side::Target, Role::Target(here), true, &of_node(0))?;
        let (port, token) = listening(&self.events, &mut target)?;
        let role = Role::Initiator { target: SocketAddr::new(here, port), token };
        let initiator = self.process(Side::Initiator, role, true, &of_node(1))?;
        self.finish(fabric, Target::Local(target), initiator)
    }

    fn remote(self, host: &str) -> Result<Pair, Error> {
        let remote = Remote::start(host, self.setting, self.sender.clone())?;
        let role = Role::Initiator { target: remote.target, token: remote.token.clone() };
        let initiator = self.process(Side::Initiator, role, remote.here, &[])?;
        self.finish(None, Target::Remote { _until_the_end: remote }, initiator)
    }

    /// `here`: whether the other end is on this machine.
    fn process(
        &self,
        side: Side,
        role: Role,
        here: bool,
        more: &[(String, String)],
    ) -> Result<Process, Error> {
        let cpus = match side {
            Side::Initiator => &self.setting.initiator_cpus,
            Side::Target => &self.setting.target_cpus,
        };
        let worker = worker::Options {
            device: self.options.device.clone(),
            gid_index: self.options.gid_index,
            cpus: cpus.clone(),
            shares_cpus: here && self.setting.shares_cpus(),
            role,
        };
        let flags = flags(self.options, self.setting, more);
        Process::start(side, &flags, self.options, &worker, self.sender.clone())
    }

    // Arguments are dropped from the last to the first: the fabric ends when both workers have.
    fn finish(
        self,
        fabric: Option<Fabric>,
        mut target: Target,
        mut initiator: Process,
    ) -> Result<Pair, Error> {
        let Self { options, events, told, .. } = self;
        let end = Instant::now() + START;
        let report = wait(&events, end, &mut initiator, &mut target, Side::Initiator)?;
        let mut device = match report {
            Some(Report::Started(device)) => device,
            Some(report) => return Err(unexpected(report, Side::Initiator)),
            None => return Err(slow(Side::Initiator)),
        };
        if options.device.is_none() {
            device.driver = format!("urxe {}", env!("CARGO_PKG_VERSION"));
        }
        let patience = options.patience;
        Ok(Pair { initiator, target, fabric, events, device, patience, dead: None, _told: told })
    }
}

/// Waits until a target listens.
pub(super) fn listening(events: &Receiver<Event>, target: &mut Process) -> Result<(u16, String), Error> {
    match next(events, Instant::now() + START) {
        Some(Event::Report(_, Report::Listening { port, token })) => Ok((port, token)),
        Some(Event::Report(side, report)) => Err(unexpected(report, side)),
        Some(Event::Ended(_)) => Err(gone(target)),
        Some(Event::Lost(why)) => Err(Error::Failed(why)),
        Some(Event::Interrupted) => Err(Error::Interrupted),
        None => Err(slow(Side::Target)),
    }
}

/// Waits until a worker reports something; `None` if it does not in time.
fn wait(
    events: &Receiver<Event>,
    end: Instant,
    initiator: &mut Process,
    target: &mut Target,
    from: Side,
) -> Result<Option<Report>, Error> {
    loop {
        match next(events, end) {
            None => return Ok(None),
            Some(Event::Interrupted) => return Err(Error::Interrupted),
            Some(Event::Report(side, report)) if side == from => return Ok(Some(report)),
            // The other one only reports its end.
            Some(Event::Report(side, report)) => return Err(unexpected(report, side)),
            Some(Event::Ended(Side::Initiator)) => return Err(gone(initiator)),
            Some(Event::Ended(Side::Target)) => {
                if let Some(process) = target.local() {
                    return Err(gone(process));
                }
            }
            Some(Event::Lost(why)) => return Err(Error::Failed(why)),
        }
    }
}

fn unexpected(report: Report, side: Side) -> Error {
    match report {
        Report::Refused(why) => Error::Refused(why),
        Report::Failed(why) => Error::Failed(why),
        other => Error::Failed(format!("the {} says {other:?}", side.name())),
    }
}

fn slow(side: Side) -> Error {
    Error::Failed(format!("the {} has not started within {} s", side.name(), START.as_secs()))
}

/// Why a worker is not there any more.
pub(super) fn gone(process: &mut Process) -> Error {
    Error::Failed(format!("the {} has ended: {}", process.side().name(), process.last_words()))
}
