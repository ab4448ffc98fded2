//! What the memory of a thread holds, so that it can be seen whether operations do what they should.

use super::error::{Error, Result};
use super::job::{Job, Measure, Operation};
use super::lane::Role;
use super::layout::Layout;
use crate::verbs::Mapping;

/// Areas larger than this are not checked.
const MOST: u64 = 64 << 20;

/// The byte at a place of an operation's memory; never 0.
fn byte(at: u64) -> u8 {
    (at % 251) as u8 + 1
}

/// Fills the areas of an end, so that afterwards it shows what operations have brought: what is sent has a pattern, where
/// it goes are zeros.
pub(super) fn prepare(memory: &Mapping, layout: &Layout, job: &Job, role: Role) {
    let (own, inbox) = match (job.operation, role) {
        (Operation::Get | Operation::Gather, Role::Initiator) => (false, false),
        (Operation::Get | Operation::Gather, Role::Target) => (false, true),
        (Operation::FetchAdd, _) => (false, false),
        _ => (true, false),
    };
    fill(memory, layout, 0, own);
    fill(memory, layout, layout.inbox, inbox);
}

/// Whether [`check`] looks at the data.
pub(super) fn is_checked(layout: &Layout) -> bool {
    layout.slots * layout.stride <= MOST
}

/// Checks what operations have brought since [`prepare`]; `operations` is their number.
pub(super) fn check(memory: &Mapping, layout: &Layout, job: &Job, role: Role, operations: u64) -> Result<()> {
    if !is_checked(layout) || operations == 0 {
        return Ok(());
    }
    let ping_pong = job.measure == Measure::Latency && job.operation == Operation::Put;
    let marked = if ping_pong { Marked::LastByte } else { Marked::Nothing };
    match (job.operation, role) {
        (Operation::FetchAdd, Role::Target) => {
            let sum =
                (0..layout.slots).map(|slot| word(memory, layout.inbox + slot * layout.stride)).sum::<u64>();
            match sum == operations {
                true => Ok(()),
                false => Err(Error::Data(format!("{operations} additions of 1 gave {sum}"))),
            }
        }
        (Operation::FetchAdd, Role::Initiator) | (Operation::Get | Operation::Gather, Role::Target) => Ok(()),
        (Operation::Get | Operation::Gather, Role::Initiator) => check_area(memory, layout, 0, marked),
        (Operation::AmLong(_), Role::Initiator) => Ok(()),
        (Operation::Put | Operation::Send, Role::Initiator) if job.measure != Measure::Latency => Ok(()),
        _ => check_area(memory, layout, layout.inbox, marked),
    }
}

fn word(memory: &Mapping, offset: u64) -> u64 {
    let mut bytes = [0; 8];
    memory.copy_out(offset, &mut bytes);
    u64::from_ne_bytes(bytes)
}

/// Fills the slots of an area with the pattern, or with zeros.
fn fill(memory: &Mapping, layout: &Layout, area: u64, pattern: bool) {
    let slot: Vec<u8> = (0..layout.bytes.into()).map(|at| if pattern { byte(at) } else { 0 }).collect();
    for index in 0..layout.slots {
        memory.copy_in(area + index * layout.stride, &slot);
    }
}

/// What of a slot is not the pattern.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Marked {
    Nothing,
    LastByte,
}

/// Each slot is as before, or as it was sent; one at least is as it was sent.
fn check_area(memory: &Mapping, layout: &Layout, area: u64, marked: Marked) -> Result<()> {
    let mut slot = vec![0; layout.bytes as usize];
    let wanted = layout.bytes as usize - usize::from(marked == Marked::LastByte);
    let mut brought = 0;
    for index in 0..layout.slots {
        memory.copy_out(area + index * layout.stride, &mut slot);
        if slot.iter().all(|byte| *byte == 0) {
            continue;
        }
        brought += 1;
        if let Some(at) = (0..wanted).find(|at| slot[*at] != byte(*at as u64)) {
            let (found, right) = (slot[at], byte(at as u64));
            return Err(Error::Data(format!("byte {at} of slot {index} is {found}, not {right}")));
        }
    }
    match brought {
        0 => Err(Error::Data("nothing has arrived".to_owned())),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::PageSize;

    fn put(bytes: u64) -> (Job, Layout, Mapping) {
        let mut job = Job::new(Operation::Put, Measure::Flood, bytes);
        job.region = 4 * bytes;
        let layout = Layout::of(&job, 1024);
        let memory = Mapping::new(layout.length, PageSize::System).unwrap();
        prepare(&memory, &layout, &job, Role::Target);
        (job, layout, memory)
    }

    #[test]
    fn what_arrives_is_told_from_what_does_not() {
        let (job, layout, memory) = put(5000);
        let verdict = || check(&memory, &layout, &job, Role::Target, 1).map_err(|e| e.to_string());
        assert_eq!(verdict(), Err("wrong data: nothing has arrived".to_owned()));
        memory.copy_within(layout.stride, layout.inbox + 2 * layout.stride, 5000);
        verdict().unwrap();
        memory.write(layout.inbox + 2 * layout.stride + 4999, 0);
        assert_eq!(verdict(), Err("wrong data: byte 4999 of slot 2 is 0, not 231".to_owned()));
    }

    #[test]
    fn additions_are_counted() {
        let job = Job::new(Operation::FetchAdd, Measure::Flood, 8);
        let layout = Layout::of(&job, 1024);
        let memory = Mapping::new(layout.length, PageSize::System).unwrap();
        prepare(&memory, &layout, &job, Role::Target);
        memory.copy_in(layout.inbox, &7u64.to_ne_bytes());
        check(&memory, &layout, &job, Role::Target, 7).unwrap();
        assert!(check(&memory, &layout, &job, Role::Target, 8).is_err());
    }
}
