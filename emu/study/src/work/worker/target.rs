//! The worker that serves.

use std::hash::{BuildHasher, Hasher};
use std::net::{IpAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use super::link::{self, ToInitiator, ToTarget, VERSION};
use super::{Options, Report, cpu_time, facts, pin, tell};
use crate::work::error::{Error, Result};
use crate::work::job::Job;
use crate::work::lane::{Role, Stop};
use crate::work::serve;
use crate::work::station::{End, LaneEnd, Station};

/// Serves one initiator, until it is gone.
pub(super) fn run(options: &Options, address: IpAddr) -> Result<()> {
    let station = Station::open(options.device.as_deref(), options.gid_index, options.shares_cpus)?;
    let listener = TcpListener::bind((address, 0)).map_err(Error::system("cannot listen"))?;
    let port = listener.local_addr().map_err(Error::system("cannot listen"))?.port();
    let token = token();
    tell(&Report::Listening { port, token: token.clone() })?;
    let (sender, mut receiver) = accept(&listener, &token)?;
    drop(listener);
    let sender = Arc::new(sender);
    let link = Error::system("the connection with the initiator");
    sender.send(&ToInitiator::Hello(facts(&station)?)).map_err(link)?;
    let mut target = Target { station, sender, cpus: options.cpus.clone(), present: None };
    loop {
        let link = Error::system("the connection with the initiator");
        let Some(message) = receiver.receive().map_err(link)? else { return Ok(()) };
        let answer = target.handle(message).unwrap_or_else(|error| match error {
            error if error.is_refusal() => ToInitiator::Refused(error.to_string()),
            error => ToInitiator::Failed(error.to_string()),
        });
        target.sender.send(&answer).map_err(Error::system("the connection with the initiator"))?;
    }
}

/// Waits for the initiator that knows the token; others are turned away.
fn accept(listener: &TcpListener, token: &str) -> Result<(link::Sender, link::Receiver)> {
    loop {
        let (stream, _) = listener.accept().map_err(Error::system("cannot accept"))?;
        // Whoever is silent must not keep the initiator out.
        let Ok(()) = stream.set_read_timeout(Some(Duration::from_secs(5))) else { continue };
        let Ok(whole) = stream.try_clone() else { continue };
        let Ok((sender, mut receiver)) = link::halves(stream) else { continue };
        match receiver.receive() {
            Ok(Some(ToTarget::Hello { version, token: shown })) if shown == token => {
                whole.set_read_timeout(None).map_err(Error::system("cannot accept"))?;
                if version == VERSION {
                    return Ok((sender, receiver));
                }
                let why = format!("version is {VERSION}, the initiator's {version}");
                let _ = sender.send(&ToInitiator::Failed(why.clone()));
                return Err(Error::Refused(why));
            }
            _ => {}
        }
    }
}

/// What an initiator shows so that no other connection is taken for it.
fn token() -> String {
    let random = || std::collections::hash_map::RandomState::new().build_hasher().finish();
    format!("{:016x}{:016x}", random(), random())
}

struct Target {
    station: Station,
    sender: Arc<link::Sender>,
    cpus: Vec<usize>,
    present: Option<Present>,
}

/// The present job.
struct Present {
    job: Job,
    stop: Arc<Stop>,
    end: End,
    threads: Vec<JoinHandle<()>>,
    /// CPU time when the measured part began.
    cpu: Duration,
}

impl Target {
    fn handle(&mut self, message: ToTarget) -> Result<ToInitiator> {
        match message {
            ToTarget::Hello { .. } => {
                return Err(Error::Peer("initiator has introduced itself twice".to_owned()));
            }
            ToTarget::Prepare(job) => return self.prepare(job),
            ToTarget::Connect(ends) => self.connect(&ends)?,
            ToTarget::PreparePages => {
                self.present()?.end.prepare_pages()?;
            }
            ToTarget::Measure => self.present()?.cpu = cpu_time(),
            ToTarget::Measured => {
                let present = self.present()?;
                return Ok(ToInitiator::Cpu((cpu_time() - present.cpu).as_nanos() as u64));
            }
            ToTarget::Fill => self.present()?.end.fill(),
            ToTarget::Finish(operations) => {
                self.present()?.finish();
                self.present()?.end.check(&operations)?;
                self.present = None;
            }
            ToTarget::Abandon => {
                self.present = None;
                return Ok(ToInitiator::Abandoned);
            }
        }
        Ok(ToInitiator::Done)
    }

    fn present(&mut self) -> Result<&mut Present> {
        self.present
            .as_mut()
            .ok_or_else(|| Error::Peer("initiator speaks of a job that is not there".to_owned()))
    }

    fn prepare(&mut self, job: Job) -> Result<ToInitiator> {
        let stop = Arc::new(Stop::default());
        let end = self.station.prepare(&job, Role::Target, &stop)?;
        let ends = end.ends.clone();
        self.present = Some(Present { job, stop, end, threads: Vec::new(), cpu: Duration::ZERO });
        Ok(ToInitiator::Prepared(ends))
    }

    fn connect(&mut self, ends: &[LaneEnd]) -> Result<()> {
        let present = self
            .present
            .as_mut()
            .ok_or_else(|| Error::Peer("initiator speaks of a job that is not there".to_owned()))?;
        self.station.connect(&mut present.end, ends)?;
        if !serve::is_needed(&present.job) {
            return Ok(());
        }
        for (number, mut lane) in present.end.lanes.drain(..).enumerate() {
            let (cpus, sender) = (self.cpus.clone(), self.sender.clone());
            present.threads.push(std::thread::spawn(move || {
                if let Err(error) = pin(&cpus, number).and_then(|()| serve::serve(&mut lane)) {
                    // If the initiator is gone, the main thread knows.
                    let _ = sender.send(&ToInitiator::Failed(error.to_string()));
                }
            }));
        }
        Ok(())
    }
}

impl Present {
    /// Ends the threads.
    fn finish(&mut self) {
        self.stop.over();
        for thread in self.threads.drain(..) {
            // One that has panicked has said so.
            let _ = thread.join();
        }
    }
}

impl Drop for Present {
    fn drop(&mut self) {
        self.finish();
    }
}
