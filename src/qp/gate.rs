//! What keeps a part of a queue pair waiting for a page, and lets it through when the page has come.

use super::Cause;
use crate::ids::Psn;
use crate::mem::{Access, Fault, HostAddr, Key, MemError, Memory, Miss, PdId};

/// Guarded accesses to one place that fail although the page was just made present: then the memory is not what the
/// system says (a protection key of the program's thread, or a program that changes it all the time).
const MOST_TRIES: usize = 16;

#[derive(Debug, Default)]
enum State {
    #[default]
    Open,
    Waiting(Miss),
    /// The program has no such memory.
    Failed(Miss, Fault),
}

/// See the module. What was made present for a packet is used for it whatever has become of the page since: the copies
/// are guarded, and so a program that takes pages away all the time cannot keep a packet waiting forever.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    state: State,
    /// The packet that `granted` and a failure are for.
    psn: Psn,
    granted: Vec<Miss>,
}

fn covers(whole: &Miss, part: &Miss) -> bool {
    let offset = part.host.0.wrapping_sub(whole.host.0);
    whole.key == part.key
        && offset <= whole.len
        && part.len <= whole.len - offset
        && (whole.write || !part.write)
}

impl Gate {
    /// Whether a page is waited for.
    pub(crate) fn is_waiting(&self) -> bool {
        matches!(self.state, State::Waiting(_))
    }

    /// [`Memory::translate`] for a packet, with what was made present for it.
    pub(crate) fn translate(
        &self,
        mem: &dyn Memory,
        psn: Psn,
        (pd, key, addr, len, need): (PdId, Key, u64, u64, Access),
    ) -> Result<HostAddr, Cause> {
        match mem.translate(pd, key, addr, len, need) {
            Ok(at) => Ok(at),
            Err(MemError::NotPresent(miss)) => self.judge(psn, miss),
            Err(e) => Err(Cause::Local(e)),
        }
    }

    #[cold]
    fn judge(&self, psn: Psn, miss: Miss) -> Result<HostAddr, Cause> {
        if psn == self.psn {
            if self.granted.iter().any(|granted| covers(granted, &miss)) {
                return Ok(miss.host);
            }
            if let State::Failed(failed, fault) = &self.state
                && covers(failed, &miss)
            {
                return Err(Cause::from(*fault));
            }
        }
        Err(Cause::Local(MemError::NotPresent(miss)))
    }

    /// What a fault of a guarded access means: something to wait for, or the end.
    #[cold]
    pub(crate) fn fault(
        &self,
        mem: &dyn Memory,
        psn: Psn,
        fault: Fault,
        (pd, key, addr, len, need): (PdId, Key, u64, u64, Access),
    ) -> Cause {
        let Some(miss) = mem.missing(fault, pd, key, addr, len, need) else { return Cause::from(fault) };
        let failed = psn == self.psn && matches!(&self.state, State::Failed(m, _) if covers(m, &miss));
        let tries = self.granted.iter().filter(|granted| psn == self.psn && covers(granted, &miss)).count();
        if failed || tries >= MOST_TRIES {
            return Cause::from(fault);
        }
        Cause::Local(MemError::NotPresent(miss))
    }

    /// The packet waits for a page from now on.
    pub(crate) fn wait(&mut self, psn: Psn, miss: Miss) {
        if psn != self.psn {
            self.granted.clear();
            self.psn = psn;
        }
        self.state = State::Waiting(miss);
    }

    /// The wait is over. Returns whether it was for this.
    pub(crate) fn resolved(&mut self, miss: &Miss, outcome: Result<(), Fault>) -> bool {
        match self.state {
            State::Waiting(waits) if waits == *miss => {}
            _ => return false,
        }
        match outcome {
            Ok(()) => {
                self.granted.push(*miss);
                self.state = State::Open;
            }
            Err(fault) => self.state = State::Failed(*miss, fault),
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::LKey;
    use crate::mem::{Denial, Table};

    fn memory() -> (Table, (PdId, Key, u64, u64, Access)) {
        let (table, pd) = (Table::with_seed(1), PdId(1));
        let page = Box::leak(vec![0_u8; 3 * 4096].into_boxed_slice()).as_ptr() as u64;
        let access = Access::LOCAL_WRITE | Access::ON_DEMAND;
        let keys = table.register(pd, page, 8192, page, access).unwrap();
        (table, (pd, Key::Local(keys.lkey), page, 4096, Access::LOCAL_WRITE))
    }

    fn miss_of(result: Result<HostAddr, Cause>) -> Miss {
        result.unwrap_err().miss().expect("something to wait for")
    }

    #[test]
    fn what_was_made_present_serves_its_packet_even_if_it_was_taken_away_again() {
        let (table, at) = memory();
        let (mut gate, psn) = (Gate::default(), Psn::new(7));
        let miss = miss_of(gate.translate(&table, psn, at));
        gate.wait(psn, miss);
        assert!(gate.is_waiting());
        assert!(!gate.resolved(&Miss { len: 1, ..miss }, Ok(())), "another wait's");
        assert!(gate.resolved(&miss, Ok(())) && !gate.is_waiting());
        // It was never made present, as if it had been invalidated at once.
        assert_eq!(gate.translate(&table, psn, at), Ok(miss.host));
        assert_eq!(miss_of(gate.translate(&table, Psn::new(8), at)), miss, "another packet faults again");
    }

    #[test]
    fn memory_that_cannot_be_made_present_fails_its_packet() {
        let (table, at) = memory();
        let (mut gate, psn) = (Gate::default(), Psn::new(7));
        let miss = miss_of(gate.translate(&table, psn, at));
        gate.wait(psn, miss);
        assert!(gate.resolved(&miss, Err(Fault { addr: 5 })));
        assert_eq!(gate.translate(&table, psn, at), Err(Cause::LocalFault(5)));
    }

    #[test]
    fn an_access_that_faults_again_and_again_is_given_up() {
        let (table, at) = memory();
        let (mut gate, psn) = (Gate::default(), Psn::new(7));
        let fault = Fault { addr: at.2 };
        for _ in 0..MOST_TRIES {
            let miss = gate.fault(&table, psn, fault, at).miss().expect("one more try");
            gate.wait(psn, miss);
            assert!(gate.resolved(&miss, Ok(())));
        }
        assert_eq!(gate.fault(&table, psn, fault, at), Cause::LocalFault(at.2));
        let unknown = (at.0, Key::Local(LKey(77)), at.2, at.3, at.4);
        assert_eq!(gate.fault(&table, psn, fault, unknown), Cause::LocalFault(at.2), "no such region");
        assert!(matches!(
            gate.translate(&table, psn, unknown),
            Err(Cause::Local(MemError::Denied(Denial::UnknownKey { .. })))
        ));
    }
}
