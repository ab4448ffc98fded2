//! What a study wants to be measured.

use super::metrics::Shows;
use super::{Pin, Scope};
use crate::driver::Setting;
use crate::work::Job;

/// Settings of the device, and the steps of one repetition.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Each gets a pair of workers of its own, for the whole run.
    pub settings: Vec<Setting>,
    /// In the order in which they are measured. Steps that are compared with each other stand side by side.
    pub steps: Vec<Step>,
    /// How often all steps are measured.
    pub repetitions: u32,
    /// What is the same for all steps and worth to be said, in the order in which it is shown.
    pub said: Vec<(String, String)>,
}

/// One job under one setting.
#[derive(Clone, Debug)]
pub struct Step {
    /// Where its results belong: [`crate::record::Cell::at`]. Several steps may belong to one cell, with other metrics.
    pub at: Vec<(String, String)>,
    /// Which of [`Plan::settings`].
    pub setting: usize,
    /// The job.
    pub job: Job,
    /// Which metrics its outcome gives.
    pub shows: Shows,
}

impl Plan {
    /// A plan without steps.
    pub fn new(repetitions: u32) -> Self {
        Self { settings: Vec::new(), steps: Vec::new(), repetitions, said: Vec::new() }
    }

    /// The number of a setting, which is added unless it is there.
    fn setting(&mut self, setting: Setting) -> usize {
        self.settings.iter().position(|known| *known == setting).unwrap_or_else(|| {
            self.settings.push(setting);
            self.settings.len() - 1
        })
    }

    /// The setting with these flags of the device, on the CPUs that were asked for, else the usual ones; for studies that do
    /// not compare CPUs.
    pub fn pinned(&mut self, scope: &Scope, usual: Pin, flags: &[(&str, &str)]) -> Result<usize, String> {
        let pin = match scope.pin.as_slice() {
            [] => usual,
            [pin] => pin.clone(),
            _ => return Err("this study does not compare CPUs: give one --pin".to_owned()),
        };
        let said = ("CPUs".to_owned(), pin.to_string());
        if !self.said.contains(&said) {
            self.said.push(said);
        }
        Ok(self.on(&pin, flags.iter().copied()))
    }

    /// The setting with these CPUs and flags of the device.
    pub(super) fn on(
        &mut self,
        pin: &Pin,
        flags: impl IntoIterator<Item = (impl Into<String>, impl Into<String>)>,
    ) -> usize {
        self.setting(Setting {
            flags: flags.into_iter().map(|(flag, value)| (flag.into(), value.into())).collect(),
            initiator_cpus: pin.initiator.clone(),
            target_cpus: pin.target.clone(),
        })
    }

    /// Adds a step; `at` are parameters with their values.
    pub fn step(&mut self, at: &[(&str, String)], setting: usize, job: Job, shows: Shows) {
        let at = at.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        self.steps.push(Step { at, setting, job, shows });
    }
}
