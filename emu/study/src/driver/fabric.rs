//! The fabric of a pair under urxe, and what its daemon knows.

use std::sync::atomic::{AtomicU32, Ordering};

use urxe_control::picture::{Picture, dismiss};
use urxe_control::protocol::ProcessStatus;

use crate::work::Counters;

/// A fabric that only one pair uses.
#[derive(Debug)]
pub(super) struct Fabric {
    name: String,
    /// Whether it ends with the pair.
    own: bool,
}

/// Counters of processes: number of the process, names and values.
pub(super) type Snapshot = Vec<(u32, Vec<(String, u64)>)>;

impl Fabric {
    /// The fabric that the flags name, or else one of the pair's own.
    pub(super) fn of(flags: &[(String, String)]) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let given = flags.iter().find(|(flag, _)| flag == "fabric").map(|(_, name)| name.clone());
        let own = given.is_none();
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = given.unwrap_or_else(|| format!("study-{}-{count}", std::process::id()));
        Self { name, own }
    }

    /// The flags of a worker on one of the fabric's two machines.
    pub(super) fn flags(&self, node: u32) -> Vec<(String, String)> {
        [("fabric", self.name.clone()), ("nodes", "2".to_owned()), ("node", node.to_string())]
            .map(|(flag, value)| (flag.to_owned(), value))
            .to_vec()
    }

    /// Counters of all processes now; nothing if nobody can tell.
    pub(super) fn counters(&self) -> Snapshot {
        let picture = Picture::of(&self.name).ok().flatten();
        let processes = picture.into_iter().flat_map(|picture| picture.processes);
        let counters = |process: ProcessStatus| process.report.devices.into_iter().flat_map(|d| d.counters);
        processes.map(|process| (process.pid, counters(process).collect())).collect()
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        if self.own {
            dismiss(&self.name);
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
