//! The fabric of a pair under urxe, and what its daemon knows.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::work::Counters;

/// A fabric that only one pair uses.
#[derive(Debug)]
pub(super) struct Fabric {
    urxe: PathBuf,
    name: String,
    /// Whether it ends with the pair.
    own: bool,
}

/// Counters of processes: number of the process, names and values.
pub(super) type Snapshot = Vec<(u32, Vec<(String, u64)>)>;

impl Fabric {
    /// The fabric that the flags name, or else one of the pair's own.
    pub(super) fn of(urxe: &Path, flags: &[(String, String)]) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let given = flags.iter().find(|(flag, _)| flag == "fabric").map(|(_, name)| name.clone());
        let own = given.is_none();
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = given.unwrap_or_else(|| format!("study-{}-{count}", std::process::id()));
        Self { urxe: urxe.to_owned(), name, own }
    }

    /// The flags of a worker on one of the fabric's two machines.
    pub(super) fn flags(&self, node: u32) -> Vec<(String, String)> {
        [("fabric", self.name.clone()), ("nodes", "2".to_owned()), ("node", node.to_string())]
            .map(|(flag, value)| (flag.to_owned(), value))
            .to_vec()
    }

    /// Counters of all processes now; nothing if nobody can tell.
    pub(super) fn counters(&self) -> Snapshot {
        let Some(picture) = self.look() else { return Snapshot::new() };
        let processes = picture["processes"].as_array().into_iter().flatten();
        let of = |process: &Value| {
            let devices = process["devices"].as_array().into_iter().flatten();
            let counters = devices.flat_map(|device| device["counters"].as_object().into_iter().flatten());
            let numbers = counters.filter_map(|(name, value)| Some((name.clone(), value.as_u64()?)));
            Some((u32::try_from(process["pid"].as_u64()?).ok()?, numbers.collect()))
        };
        processes.filter_map(of).collect()
    }

    fn look(&self) -> Option<Value> {
        let output = Command::new(&self.urxe)
            .args(["stat", "--json", "--fabric", &self.name])
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .output()
            .ok()?;
        serde_json::from_slice(&output.stdout).ok()
    }
}

impl Drop for Fabric {
    /// Ends the daemon, which nobody needs any more, so that its addresses are free at once.
    fn drop(&mut self) {
        if !self.own {
            return;
        }
        let daemon = self.look().and_then(|picture| picture["daemon"]["pid"].as_i64());
        if let Some(pid) = daemon.and_then(|pid| Pid::from_raw(pid.try_into().ok()?)) {
            // It may have left by itself.
            let _ = kill_process(pid, Signal::TERM);
        }
    }
}

/// What has changed between two looks.
pub(super) fn changes(before: &Snapshot, after: &Snapshot, initiator: u32, target: Option<u32>) -> Counters {
    let of = |pid: u32| {
        let find = |snapshot: &Snapshot| {
            snapshot.iter().find(|(process, _)| *process == pid).map(|(_, counters)| counters.clone())
        };
        let before = find(before).unwrap_or_default();
        let earlier = |name: &str| before.iter().find(|(n, _)| n == name).map_or(0, |(_, value)| *value);
        let after = find(after).unwrap_or_default().into_iter();
        let changed = after.map(|(name, value)| {
            let change = value.saturating_sub(earlier(&name));
            (name, change)
        });
        changed.filter(|(_, change)| *change > 0).collect()
    };
    Counters { initiator: of(initiator), target: target.map(of).unwrap_or_default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_has_changed_counts_for_each_side() {
        let counters = |a, b| vec![("sent".to_owned(), a), ("faults".to_owned(), b)];
        let before = vec![(1, counters(5, 1)), (2, counters(7, 0))];
        let after = vec![(2, counters(7, 3)), (1, counters(9, 1)), (3, counters(100, 100))];
        let changes = changes(&before, &after, 1, Some(2));
        assert_eq!(changes.initiator, [("sent".to_owned(), 4)]);
        assert_eq!(changes.target, [("faults".to_owned(), 3)]);
    }
}
