//! The worker that measures.

use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Barrier, Mutex, PoisonError};
use std::time::Duration;

use super::link::{self, ToInitiator, ToTarget, VERSION};
use super::{Command, Options, Report, cpu_time, facts, pin, tell};
use crate::work::error::{Error, Result};
use crate::work::job::{Amount, CacheCounts, Job, Outcome};
use crate::work::lane::{Role, Stop};
use crate::work::meter::Tally;
use crate::work::station::{End, Station};
use crate::work::{initiate, outcome, pages};

/// How long a target may take to be reached, and to drop a job.
const PATIENCE: Duration = Duration::from_secs(5);
/// Operations of each thread whose data is checked.
const CHECKED: u64 = 256;

/// Runs jobs as they come.
pub(super) fn run(
    options: &Options,
    target: SocketAddr,
    token: &str,
    commands: &Receiver<Command>,
) -> Result<()> {
    let station = Station::open(options.device.as_deref(), options.gid_index, options.shares_cpus)?;
    let stop = Arc::new(Stop::default());
    let link = Link::connect(target, token, &stop)?;
    tell(&Report::Started(facts(&station)?))?;
    let initiator = Initiator { station, link, stop, cpus: options.cpus.clone(), commands };
    for command in commands {
        let Command::Run(job) = command else { continue };
        match initiator.run(&job) {
            Ok(outcome) => tell(&Report::Done(Box::new(outcome)))?,
            Err(error) if error.is_refusal() => tell(&Report::Refused(error.to_string()))?,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The connection with the target.
struct Link {
    sender: link::Sender,
    answers: Receiver<ToInitiator>,
    /// Why the target has failed.
    why: Arc<Mutex<Option<String>>>,
}

impl Link {
    /// Connects. From then on a target that fails or is gone stops the threads.
    fn connect(target: SocketAddr, token: &str, stop: &Arc<Stop>) -> Result<Self> {
        let cannot = |e| Error::Peer(format!("target at {target} cannot be reached: {e}"));
        let stream = TcpStream::connect_timeout(&target, PATIENCE).map_err(cannot)?;
        let (sender, receiver) = link::halves(stream).map_err(cannot)?;
        let (forward, answers) = mpsc::channel();
        let why = Arc::new(Mutex::new(None));
        listen(receiver, forward, why.clone(), stop.clone());
        let link = Self { sender, answers, why };
        let hello = ToTarget::Hello { version: VERSION.to_owned(), token: token.to_owned() };
        match link.ask(&hello)? {
            ToInitiator::Hello(_) => Ok(link),
            other => Err(unexpected(&other)),
        }
    }

    fn ask(&self, message: &ToTarget) -> Result<ToInitiator> {
        self.sender.send(message).map_err(|_| self.lost())?;
        match self.answers.recv().map_err(|_| self.lost())? {
            ToInitiator::Refused(why) => Err(Error::Refused(why)),
            other => Ok(other),
        }
    }

    fn ask_done(&self, message: &ToTarget) -> Result<()> {
        match self.ask(message)? {
            ToInitiator::Done => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Why there is no target any more.
    fn lost(&self) -> Error {
        let why = self.why.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Error::Peer(why.map_or("target is gone".to_owned(), |why| format!("target has failed: {why}")))
    }
}

/// Forwards the target's answers. When it fails or is gone, the threads stop, and there are no more answers.
fn listen(
    mut receiver: link::Receiver,
    forward: mpsc::Sender<ToInitiator>,
    why: Arc<Mutex<Option<String>>>,
    stop: Arc<Stop>,
) {
    std::thread::spawn(move || {
        while let Ok(Some(message)) = receiver.receive() {
            if let ToInitiator::Failed(reason) = message {
                *why.lock().unwrap_or_else(PoisonError::into_inner) = Some(reason);
                break;
            }
            if forward.send(message).is_err() {
                break;
            }
        }
        stop.lost();
    });
}

fn unexpected(message: &ToInitiator) -> Error {
    Error::Peer(format!("target has answered {message:?}"))
}

struct Initiator<'a> {
    station: Station,
    link: Link,
    stop: Arc<Stop>,
    cpus: Vec<usize>,
    commands: &'a Receiver<Command>,
}

impl Initiator<'_> {
    fn run(&self, job: &Job) -> Result<Outcome> {
        let end = self.station.prepare(job, Role::Initiator, &self.stop);
        match end.and_then(|mut end| self.measure(job, &mut end)) {
            Ok(outcome) => Ok(outcome),
            // Somebody else knows why.
            Err(Error::Stopped) => Err(self.link.lost()),
            Err(error) if error.is_refusal() => {
                self.link.ask(&ToTarget::Abandon)?;
                Err(error)
            }
            Err(error) => Err(error),
        }
    }

    /// All of a job, with both ends.
    fn measure(&self, job: &Job, end: &mut End) -> Result<Outcome> {
        self.meet(job, end)?;
        let warm_up = pages::warm_up(job, &end.layout);
        if warm_up > 0 {
            self.phase(end, Amount::Operations(warm_up), u64::MAX)?;
        }
        let prefetching = end.prepare_pages()?;
        self.link.ask_done(&ToTarget::PreparePages)?;
        self.pause()?;
        self.link.ask_done(&ToTarget::Measure)?;
        let (cpu, cache) = (cpu_time(), end.cache_counts());
        let tallies = self.phase(end, job.amount, pages::most(job, &end.layout))?;
        let cpu = cpu_time() - cpu;
        let cache = end.cache_counts().zip(cache).map(|(after, before)| difference(after, before));
        let target_cpu_ns = match self.link.ask(&ToTarget::Measured)? {
            ToInitiator::Cpu(time) => time,
            other => return Err(unexpected(&other)),
        };
        self.pause()?;
        self.check(end)?;
        Ok(Outcome {
            initiator_cpu_ns: cpu.as_nanos() as u64,
            target_cpu_ns,
            register_ns: end.registering.as_nanos() as u64,
            prefetch_ns: prefetching.map(|time| time.as_nanos() as u64),
            cache,
            ..outcome(job, &tallies)
        })
    }

    /// Lets the driver look at counters.
    fn pause(&self) -> Result<()> {
        tell(&Report::Paused)?;
        // The process ends when there are no more commands.
        self.commands.recv().map(|_| ()).map_err(|_| Error::Stopped)
    }

    /// Connects both ends.
    fn meet(&self, job: &Job, end: &mut End) -> Result<()> {
        let others = match self.link.ask(&ToTarget::Prepare(job.clone()))? {
            ToInitiator::Prepared(ends) => ends,
            other => return Err(unexpected(&other)),
        };
        self.station.connect(end, &others)?;
        self.link.ask_done(&ToTarget::Connect(end.ends.clone()))
    }

    /// Some more operations, whose data both ends look at.
    fn check(&self, end: &mut End) -> Result<()> {
        let mut operations = vec![0; end.lanes.len()];
        if end.is_checked() {
            self.link.ask_done(&ToTarget::Fill)?;
            end.fill();
            let count = CHECKED.min(end.layout.slots);
            let tallies = self.phase(end, Amount::Operations(count), u64::MAX)?;
            operations = tallies.iter().map(|tally| tally.operations).collect();
        }
        self.link.ask_done(&ToTarget::Finish(operations.clone()))?;
        end.check(&operations)
    }

    /// Runs operations in all threads, which begin together.
    fn phase(&self, end: &mut End, amount: Amount, most: u64) -> Result<Vec<Tally>> {
        let barrier = Barrier::new(end.lanes.len());
        let (barrier, stop, cpus) = (&barrier, &self.stop, &self.cpus);
        let results = std::thread::scope(|scope| {
            let threads: Vec<_> = end
                .lanes
                .iter_mut()
                .enumerate()
                .map(|(number, lane)| {
                    scope.spawn(move || {
                        let pinned = pin(cpus, number);
                        barrier.wait();
                        let result = pinned.and_then(|()| initiate::phase(lane, amount, most));
                        // The others need not go on. What is refused is refused to them, too.
                        if result.as_ref().is_err_and(|error| !error.is_refusal()) {
                            stop.lost();
                        }
                        result
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join()).collect::<Vec<_>>()
        });
        let mut tallies = Vec::new();
        let mut failure = None;
        for result in results {
            match result {
                Ok(Ok(tally)) => tallies.push(tally),
                // One that only stopped knows less than the one that has failed.
                Ok(Err(error)) => match failure {
                    None | Some(Error::Stopped) => failure = Some(error),
                    Some(_) => {}
                },
                Err(_) => failure = Some(Error::Peer("initiator's thread has panicked".to_owned())),
            }
        }
        failure.map_or(Ok(tallies), Err)
    }
}

fn difference(after: CacheCounts, before: CacheCounts) -> CacheCounts {
    CacheCounts {
        hits: after.hits - before.hits,
        misses: after.misses - before.misses,
        evictions: after.evictions - before.evictions,
        invalidations: after.invalidations - before.invalidations,
    }
}
