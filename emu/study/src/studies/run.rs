//! Carries out a plan.

use super::{Plan, Step};
use crate::driver::Error;
use crate::record::{Ended, Record};
use crate::work::{Job, Outcome};

/// Where jobs run: pairs of workers, or what stands in for them in a test.
pub trait Bench {
    /// Runs a job under the setting of this number.
    fn run(&mut self, setting: usize, job: &Job) -> Result<Outcome, Error>;
}

/// Who is told how far it is.
pub trait Progressing {
    /// A step begins.
    fn begin(&self, step: &str);
    /// It is over.
    fn done(&self);
    /// A line for people.
    fn say(&self, line: &str);
}

impl Progressing for crate::output::Progress {
    fn begin(&self, step: &str) {
        self.begin(step);
    }
    fn done(&self) {
        self.done();
    }
    fn say(&self, line: &str) {
        self.say(line);
    }
}

/// Measures all steps, as often as the plan says, into the record, and notes how that ended. Every second repetition goes
/// through the steps backwards, so that what drifts with time weighs on all alike. What the device cannot do is left out, and
/// said once.
pub fn run(plan: &Plan, bench: &mut dyn Bench, record: &mut Record, progress: &dyn Progressing) {
    let mut left_out: Vec<usize> = Vec::new();
    for repetition in 0..plan.repetitions {
        let mut order: Vec<usize> = (0..plan.steps.len()).collect();
        if repetition % 2 == 1 {
            order.reverse();
        }
        for index in order {
            let step = &plan.steps[index];
            if left_out.contains(&index) {
                progress.done();
                continue;
            }
            progress.begin(&name(step));
            match bench.run(step.setting, &step.job) {
                Ok(outcome) => step.shows.add(record.cell(&step.at), &outcome),
                Err(Error::Refused(reason)) => {
                    progress.say(&format!("{} is left out: {reason}", name(step)));
                    left_out.push(index);
                }
                Err(Error::Interrupted) => {
                    record.ended = Ended::Interrupted;
                    return;
                }
                Err(Error::Failed(reason)) => {
                    record.ended = Ended::Failed(format!("{}: {reason}", name(step)));
                    return;
                }
            }
            progress.done();
        }
    }
    record.ended = Ended::Complete;
}

fn name(step: &Step) -> String {
    step.at.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
}
