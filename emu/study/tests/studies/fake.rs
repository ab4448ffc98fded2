//! A bench whose outcomes follow from the job.

use std::cell::RefCell;

use clap::Parser;
use urxe_study::driver::{DeviceFacts, Error};
use urxe_study::record::Record;
use urxe_study::stats::Latency;
use urxe_study::studies::{self, Bench, Plan, Progressing, Scope};
use urxe_study::work::{
    CacheCounts, Counters, Job, Long, Measure, Memory, Operation, Outcome, Pages, Payload, Registration,
};

use crate::support::Random;

/// The device of the bench.
pub(crate) fn device() -> DeviceFacts {
    DeviceFacts { max_inline: 256, ..DeviceFacts::sample("urxe 0.1.0") }
}

/// The kernel's device, without on-demand paging.
pub(crate) fn other_device() -> DeviceFacts {
    DeviceFacts { on_demand: false, implicit: false, max_inline: 256, ..DeviceFacts::sample("rdma_rxe") }
}

/// The options of a command line.
pub(crate) fn scope(line: &str) -> Scope {
    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        scope: Scope,
    }
    Line::try_parse_from(std::iter::once("study").chain(line.split_whitespace())).unwrap().scope
}

/// The plan of a study, with 5 repetitions unless the line says otherwise.
pub(crate) fn plan(study: &str, line: &str, device: &DeviceFacts) -> Result<Plan, String> {
    let mut scope = scope(line);
    scope.repetitions.get_or_insert(5);
    (studies::find(study).unwrap().plan)(&scope, device)
}

/// What a job gives, or why it does not.
type Answer = dyn Fn(&Job) -> Result<Outcome, Error>;

/// Answers jobs, with 1 % of noise.
pub(crate) struct Fake {
    answer: Box<Answer>,
    random: Random,
    /// Jobs until the signal comes.
    pub(crate) patience: usize,
}

impl Fake {
    pub(crate) fn new(answer: impl Fn(&Job) -> Result<Outcome, Error> + 'static) -> Self {
        Self { answer: Box::new(answer), random: Random::new(5), patience: usize::MAX }
    }
}

impl Bench for Fake {
    fn run(&mut self, _setting: usize, job: &Job) -> Result<Outcome, Error> {
        self.patience = self.patience.checked_sub(1).ok_or(Error::Interrupted)?;
        let mut outcome = (self.answer)(job)?;
        let noise = 1.0 + 0.01 * self.random.normal();
        outcome.elapsed_ns = (outcome.elapsed_ns as f64 * noise) as u64;
        if let Some(latency) = &mut outcome.latency {
            (latency.typical, latency.average) = (latency.typical * noise, latency.average * noise);
        }
        Ok(outcome)
    }
}

/// Lines that were said, and steps that are over.
#[derive(Default)]
pub(crate) struct Listener {
    pub(crate) said: RefCell<Vec<String>>,
    pub(crate) done: RefCell<u64>,
}

impl Progressing for Listener {
    fn begin(&self, _step: &str) {}
    fn done(&self) {
        *self.done.borrow_mut() += 1;
    }
    fn say(&self, line: &str) {
        self.said.borrow_mut().push(line.into());
    }
}

/// Carries a plan out.
pub(crate) fn run(study: &str, plan: &Plan, bench: &mut Fake, listener: &Listener) -> Record {
    let mut record = Record::begin(study, vec!["urxe".into()], "urxe 0.1.0".into(), plan.said.clone());
    studies::run(plan, bench, &mut record, listener);
    record.check().unwrap();
    record
}

/// The outcome of a job each operation of which takes a time, in us.
pub(crate) fn taking(job: &Job, us: f64) -> Outcome {
    let operations = 1000;
    let latency = Latency {
        count: operations,
        min: us * 0.9,
        max: us * 30.0,
        typical: us,
        average: us * 1.1,
        deviation: us * 0.2,
        p99: us * 2.0,
        p999: us * 5.0,
    };
    let flood = job.measure == Measure::Flood;
    Outcome {
        operations,
        bytes: operations * job.bytes,
        elapsed_ns: (us * 1e3 * operations as f64) as u64,
        initiator_cpu_ns: 700_000,
        target_cpu_ns: 300_000,
        peak_per_second: flood.then_some(1.2e6 / us),
        latency: (!flood).then_some(latency),
        register_ns: 1000,
        prefetch_ns: prefetched(job).then_some(50_000),
        cache: (job.registration != Registration::None).then(CacheCounts::default),
        counters: Counters { initiator: vec![("sent_pkts".into(), 7)], target: faults(job, operations) },
    }
}

fn prefetched(job: &Job) -> bool {
    matches!(job.memory, Memory::OnDemand(Pages::Prefetched))
}

fn is_cold(job: &Job) -> bool {
    matches!(job.memory, Memory::OnDemand(Pages::Cold) | Memory::Implicit(Pages::Cold))
}

fn faults(job: &Job, operations: u64) -> Vec<(String, u64)> {
    let share = if is_cold(job) { 1.0 - job.touched } else { 0.0 };
    vec![("page_faults".into(), (share * operations as f64) as u64)]
}

/// A device of which all that the studies ask is known: inline data saves 40 % up to 64 B and costs 40 % above; READ costs
/// 3 us more than the pipeline at first and is 3 times as fast; a look-up costs 0.5 us more with each thread; a fault 50 us.
pub(crate) fn usual(job: &Job) -> Result<Outcome, Error> {
    let size = job.bytes as f64;
    let base = 2.0 + size / 4000.0;
    let us = match (job.operation, job.payload, job.registration) {
        (_, Payload::Inline, _) if job.bytes <= 64 => base * 0.6,
        (_, Payload::Inline, _) => base * 1.4,
        (Operation::AmLong(Long::Read), ..) => 5.0 + size / 3000.0,
        (Operation::AmLong(_), ..) => 2.0 + size / 1000.0,
        (_, _, Registration::Cached { .. }) => base + 0.5 * f64::from(job.threads),
        _ if is_cold(job) => base + 50.0 * (1.0 - job.touched),
        _ => base,
    };
    Ok(taking(job, us))
}
