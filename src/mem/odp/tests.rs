#![allow(unsafe_code)]

use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use super::*;
use crate::ids::LKey;
use crate::mem::{Access, Change, Key, MemError, Memory, PdId, RegisterError, Table};

const LEN: usize = 64 * PAGE as usize;
const PD: PdId = PdId(1);
const RW: Access = Access(1 | 2 | 4 | 8 | 64);

/// A mapping of so many bytes; `fd` -1 is anonymous memory.
fn map(protection: libc::c_int, flags: libc::c_int, fd: libc::c_int) -> u64 {
    let anonymous = if fd < 0 { libc::MAP_ANONYMOUS } else { 0 };
    // Far from where the system looks for room, so that no other test's mapping ever falls into a hole of this.
    static NEXT: AtomicU64 = AtomicU64::new(0x2000_0000_0000);
    let place = NEXT.fetch_add(1 << 21, Ordering::Relaxed) as *mut libc::c_void;
    let flags = flags | anonymous | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: a new mapping where there is none.
    let at = unsafe { libc::mmap(place, LEN, protection, flags, fd, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    at as u64
}

fn private() -> u64 {
    map(libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE, -1)
}

fn unmap(at: u64, len: usize) {
    // SAFETY: mapped by this test, and nothing refers to it.
    assert_eq!(unsafe { libc::munmap(at as *mut libc::c_void, len) }, 0);
}

fn advise(at: u64, len: u64, advice: libc::c_int) {
    // SAFETY: mapped by this test, and nothing refers to it.
    assert_eq!(unsafe { libc::madvise(at as *mut libc::c_void, len as usize, advice) }, 0);
}

struct Fixture {
    table: Table,
    lkey: LKey,
    at: u64,
}

impl Fixture {
    fn new(at: u64) -> Self {
        let table = Table::new().unwrap();
        let lkey = table.register(PD, at, LEN as u64, at, RW).unwrap().lkey;
        Self { table, lkey, at }
    }

    fn miss(&self, page: u64, pages: u64, need: Access) -> Option<Miss> {
        let (addr, len) = (self.at + page * PAGE, pages * PAGE);
        match self.table.translate(PD, Key::Local(self.lkey), addr, len, need) {
            Ok(host) => {
                assert_eq!(host.0, addr);
                None
            }
            Err(MemError::NotPresent(miss)) => Some(miss),
            Err(e) => panic!("{e}"),
        }
    }

    fn fetch(&self, page: u64, pages: u64) {
        let miss = self.miss(page, pages, Access::LOCAL_WRITE).expect("absent");
        self.table.resolve(&miss, By::Requester).unwrap();
        assert_eq!(self.miss(page, pages, Access::LOCAL_WRITE), None);
    }

    /// The event has been read when the program's call returns; what follows from it is there a moment later.
    #[track_caller]
    fn becomes_absent(&self, page: u64, pages: u64) {
        let end = Instant::now() + Duration::from_secs(5);
        for page in page..page + pages {
            while self.miss(page, 1, Access::LOCAL_READ).is_none() {
                assert!(Instant::now() < end, "page {page} stays present");
                std::thread::yield_now();
            }
        }
    }
}

/// Whether the system lets us have events at all.
fn has_events() -> bool {
    Watch::get().is_ok()
}

#[test]
fn a_fault_makes_its_pages_present_and_what_is_ahead_with_them() {
    let f = Fixture::new(private());
    assert_eq!(f.miss(0, 0, Access::LOCAL_READ), None, "nothing is always present");
    let miss = Miss { ahead: 5 * PAGE, ..f.miss(2, 1, Access::LOCAL_READ).unwrap() };
    assert!(!miss.write);
    f.table.resolve(&miss, By::Requester).unwrap();
    assert_eq!(f.miss(2, 6, Access::LOCAL_READ), None);
    assert!(f.miss(8, 1, Access::LOCAL_READ).is_some());
    let miss = f.miss(2, 6, Access::REMOTE_WRITE).expect("only present for reading");
    f.table.resolve(&Miss { ahead: u64::MAX, ..miss }, By::Responder).unwrap();
    assert_eq!(f.miss(2, 62, Access::REMOTE_ATOMIC), None, "up to the end of the region");
    let stats = f.table.demand_stats();
    assert_eq!((stats.faults, stats.read_faults, stats.write_faults), (2, 1, 1));
    assert_eq!((stats.requester_faults, stats.responder_faults, stats.faulted_pages), (1, 1, 6 + 62));
    // Whoever comes second finds it done.
    f.table.resolve(&miss, By::Receive).unwrap();
    assert_eq!(f.table.demand_stats().faulted_pages, 68);
    assert_eq!(f.table.demand_regions()[0].0, f.lkey);
    unmap(f.at, LEN);
}

#[test]
fn memory_that_is_not_there_is_an_error_that_names_the_page() {
    let f = Fixture::new(private());
    unmap(f.at + 5 * PAGE, PAGE as usize);
    let miss = f.miss(4, 3, Access::LOCAL_READ).unwrap();
    assert_eq!(f.table.resolve(&miss, By::Requester), Err(Fault { addr: f.at + 5 * PAGE }));
    assert_eq!(f.table.demand_stats().failed_faults, 1);
    // A hole ahead is nobody's fault.
    let miss = Miss { ahead: 20 * PAGE, ..f.miss(4, 1, Access::LOCAL_READ).unwrap() };
    assert_eq!(f.table.resolve(&miss, By::Requester), Ok(()));
    assert_eq!(f.miss(4, 1, Access::LOCAL_READ), None);
    let gone = Miss { key: f.lkey.0 ^ 0x100, ..miss };
    assert_eq!(f.table.resolve(&gone, By::Requester), Ok(()), "who asks again hears it");
    for outside in [Miss { len: 100 * PAGE, ..miss }, Miss { host: HostAddr(8), ..miss }] {
        assert_eq!(f.table.resolve(&outside, By::Requester), Ok(()));
    }
    unmap(f.at, LEN);
}

#[test]
fn what_the_program_takes_away_becomes_absent() {
    if !has_events() {
        return;
    }
    let f = Fixture::new(private());
    f.fetch(0, 64);
    advise(f.at, 2 * PAGE, libc::MADV_DONTNEED);
    f.becomes_absent(0, 2);
    unmap(f.at + 2 * PAGE, PAGE as usize);
    f.becomes_absent(2, 1);
    // SAFETY: over pages of this test.
    let new = unsafe {
        libc::mmap(
            (f.at + 3 * PAGE) as *mut libc::c_void,
            PAGE as usize,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
            -1,
            0,
        )
    };
    assert_ne!(new, libc::MAP_FAILED);
    f.becomes_absent(3, 1);
    f.fetch(3, 1);
    advise(f.at + 3 * PAGE, PAGE, libc::MADV_DONTNEED);
    f.becomes_absent(3, 1); // the new mapping is watched as well
    // SAFETY: pages of this test, moved where the system likes.
    let moved = unsafe {
        let from = (f.at + 10 * PAGE) as *mut libc::c_void;
        libc::mremap(from, PAGE as usize, 3 * PAGE as usize, libc::MREMAP_MAYMOVE)
    };
    assert_ne!(moved, libc::MAP_FAILED);
    f.becomes_absent(10, 1);
    assert_eq!(f.miss(11, 53, Access::LOCAL_WRITE), None, "the others are as they were");
    let stats = f.table.demand_stats();
    assert!(stats.invalidations >= 5 && stats.invalidated_pages >= 6, "{stats:?}");
    unmap(moved as u64, 3 * PAGE as usize);
    unmap(f.at, LEN);
}

#[test]
fn what_is_prefetched_after_it_was_given_up_stays_present() {
    if !has_events() {
        return;
    }
    let f = Fixture::new(private());
    f.fetch(0, 64);
    for round in 1..=3000 {
        advise(f.at, LEN as u64, libc::MADV_DONTNEED);
        let rest = f.table.prefetch(f.lkey.0, f.at, f.at + LEN as u64, Advice::Write);
        assert_eq!(rest, Ok(None));
        let end = Instant::now() + Duration::from_secs(5);
        while f.table.demand_stats().invalidations < round {
            assert!(Instant::now() < end, "the event is lost");
            std::thread::yield_now();
        }
        assert_eq!(f.miss(0, 64, Access::LOCAL_WRITE), None, "round {round}");
    }
    unmap(f.at, LEN);
}

#[test]
fn files_in_memory_and_on_disk_are_watched_where_the_system_can() {
    if !has_events() {
        return;
    }
    // SAFETY: a terminated string; the descriptor is ours.
    let fd = unsafe { libc::memfd_create(c"odp".as_ptr(), libc::MFD_CLOEXEC) };
    // SAFETY: ours.
    assert_eq!(unsafe { libc::ftruncate(fd, LEN as i64) }, 0);
    let read_write = libc::PROT_READ | libc::PROT_WRITE;
    let f = Fixture::new(map(read_write, libc::MAP_SHARED, fd));
    f.fetch(0, 64);
    advise(f.at + PAGE, PAGE, libc::MADV_REMOVE);
    f.becomes_absent(1, 1);
    advise(f.at + 2 * PAGE, PAGE, libc::MADV_DONTNEED);
    f.becomes_absent(2, 1);
    // Beyond the end of the file there is no memory.
    // SAFETY: ours.
    assert_eq!(unsafe { libc::ftruncate(fd, LEN as i64 / 2) }, 0);
    let at = f.at + LEN as u64 - PAGE;
    let fault = Fault { addr: at };
    let miss = f.table.missing(fault, PD, Key::Local(f.lkey), at, 8, Access::LOCAL_READ).unwrap();
    assert_eq!(f.table.resolve(&miss, By::Requester), Err(Fault { addr: at }));
    // SAFETY: ours.
    unsafe { libc::close(fd) };
    unmap(f.at, LEN);
}

#[test]
fn a_guarded_access_that_fails_makes_its_page_absent() {
    let f = Fixture::new(private());
    f.fetch(0, 8);
    let (addr, fault) = (f.at + 2 * PAGE + 7, Fault { addr: f.at + 3 * PAGE });
    let missing = |key, need| f.table.missing(fault, PD, key, addr, 2 * PAGE, need);
    let miss = missing(Key::Local(f.lkey), Access::LOCAL_WRITE).unwrap();
    assert_eq!((miss.host.0, miss.len, miss.write), (addr, 2 * PAGE, true));
    assert!(f.miss(3, 1, Access::LOCAL_READ).is_some());
    assert_eq!(f.miss(2, 1, Access::LOCAL_READ), None, "only that one");
    assert_eq!(missing(Key::Local(LKey(f.lkey.0 ^ 0x100)), Access::LOCAL_WRITE), None);
    let pinned = f.table.register(PD, f.at, LEN as u64, f.at, Access(1)).unwrap();
    assert_eq!(missing(Key::Local(pinned.lkey), Access::LOCAL_WRITE), None, "simply gone");
    unmap(f.at, LEN);
}

#[test]
fn a_region_that_is_changed_forgets_its_pages_if_they_are_others() {
    let f = Fixture::new(private());
    f.fetch(0, 64);
    let change = Change { pd: Some(PdId(2)), access: Some(RW | Access::MW_BIND), range: None };
    f.table.reregister(f.lkey, change).unwrap();
    f.table.reregister(f.lkey, Change { pd: Some(PD), ..Change::default() }).unwrap();
    assert_eq!(f.miss(0, 64, Access::LOCAL_WRITE), None);
    let range = Some((f.at + PAGE, LEN as u64 - PAGE, f.at + PAGE));
    f.table.reregister(f.lkey, Change { range, ..Change::default() }).unwrap();
    assert!(f.miss(1, 1, Access::LOCAL_READ).is_some());
    f.fetch(1, 63);
    f.table.reregister(f.lkey, Change { access: Some(Access(1)), ..Change::default() }).unwrap();
    assert_eq!(f.miss(1, 1, Access::LOCAL_WRITE), None, "not paged on demand any more");
    assert!(f.table.demand_regions().is_empty());
    f.table.reregister(f.lkey, Change { access: Some(RW), ..Change::default() }).unwrap();
    assert!(f.miss(1, 1, Access::LOCAL_READ).is_some());
    f.table.deregister(f.lkey).unwrap();
    assert!(f.table.demand_regions().is_empty());
    unmap(f.at, LEN);
}

#[test]
fn regions_need_no_memory_behind_them_but_addresses_that_exist() {
    let table = Table::new().unwrap();
    for _ in 0..100 {
        let all = table.register(PD, 0, u64::MAX, 0, RW).expect("all memory");
        assert_eq!(all.lkey.0 % 2, 0, "UCX 1.13 crashes with others");
    }
    assert!(table.register(PD, 8, 100, 8, RW).is_ok());
    assert!(table.register(PD, 1 << 62, 1 << 62, 0, RW).is_ok());
    let overflow = table.register(PD, u64::MAX, 2, 0, RW);
    assert!(matches!(overflow, Err(RegisterError::Overflow { .. })));
    assert_eq!(table.register(PD, 8, 0, 8, RW), Err(RegisterError::Empty));
    assert!(matches!(table.register(PD, 0, 1, 0, Access(2 | 64)), Err(RegisterError::NeedsLocalWrite(_))));
}

#[test]
fn thousands_of_regions_cost_no_more_memory_when_they_come_and_go() {
    let at = private();
    let table = Table::new().unwrap();
    let cycle = || {
        for _ in 0..2000 {
            let lkey = table.register(PD, at, LEN as u64, at, RW).unwrap().lkey;
            let miss = Miss { key: lkey.0, host: HostAddr(at), len: 1, ahead: 0, write: true };
            table.resolve(&miss, By::Requester).unwrap();
            table.deregister(lkey).unwrap();
        }
    };
    let resident = || {
        let text = std::fs::read_to_string("/proc/self/statm").unwrap();
        text.split(' ').nth(1).unwrap().parse::<usize>().unwrap()
    };
    cycle();
    let before = resident();
    cycle();
    // Other tests of this process run beside.
    assert!(resident() < before + 4096, "{} pages more", resident() - before);
    unmap(at, LEN);
}

#[test]
fn a_child_gets_on_without_the_parents_events() {
    let f = Fixture::new(private());
    f.fetch(0, 64);
    // SAFETY: the child only makes system calls on memory of its own, and ends.
    unsafe {
        let child = libc::fork();
        assert!(child >= 0);
        if child == 0 {
            // Nobody reads events here: with a registration these would wait forever.
            libc::alarm(10);
            libc::madvise(f.at as *mut libc::c_void, PAGE as usize, libc::MADV_DONTNEED);
            libc::munmap(f.at as *mut libc::c_void, LEN);
            libc::_exit(0);
        }
        // The parent's events go on meanwhile.
        advise(f.at, PAGE, libc::MADV_DONTNEED);
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &mut status, 0), child);
        assert_eq!(status, 0, "the child hung, or crashed");
    }
    if has_events() {
        f.becomes_absent(0, 1);
        assert_eq!(f.miss(1, 63, Access::LOCAL_WRITE), None, "the child's munmap is the child's");
    }
    unmap(f.at, LEN);
}
