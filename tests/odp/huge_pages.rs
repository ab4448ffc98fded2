//! Huge pages, of which parts are taken away while they are registered, in each mode of tasks.

use urxe::device::Device;
use urxe::verbs::{SendOp, WcStatus};

use crate::faults::{ODP, Paged};
use crate::harness::{End, Rng, wait};
use crate::memory::{HUGE, Map, PAGE};
use crate::stress::{MODES, devices, pair};

/// Of each mapping.
const LEN: usize = 4 * HUGE;

/// A part of a mapping: its place and length.
type Part = (usize, usize);

/// How a program takes a part away and puts zeros in its place, in words.
type Way = (&'static str, fn(&Map, Part));

const WAYS: [Way; 4] = [
    ("given up", |map, (at, len)| map.advise(at, len, libc::MADV_DONTNEED)),
    ("mapped over", |map, (at, len)| map.renew(at, len)),
    ("unmapped and mapped again", |map, (at, len)| {
        map.unmap(at, len);
        map.renew(at, len);
    }),
    ("moved away", |map, (at, len)| map.move_away(at, len)),
];

/// A connection to memory of huge pages.
struct Link {
    near: Device,
    far: Device,
    ends: (End, End),
    /// What is sent, and where it is read back to.
    local: Paged,
    target: Paged,
    rng: Rng,
}

impl Link {
    fn new(tasks: &str, target: Map) -> Self {
        let [near, far] = devices(tasks);
        let ends = pair(&near, &far);
        let local = Paged::new(&near, ends.0.pd, Map::anonymous(LEN), ODP);
        let target = Paged::new(&far, ends.1.pd, target, ODP);
        Self { near, far, ends, local, target, rng: Rng(LEN as u64) }
    }

    /// Reaches for a part of the target by RDMA.
    fn reach(&self, op: SendOp, (at, len): Part) -> WcStatus {
        self.ends.0.post(1, op, &[self.local.sge(at, len)]);
        wait(&self.near, &self.ends.0).status
    }

    fn write(&self, part: Part) -> WcStatus {
        self.reach(SendOp::Write(self.target.remote(part.0)), part)
    }

    fn read(&self, part: Part) -> WcStatus {
        self.reach(SendOp::Read(self.target.remote(part.0)), part)
    }

    /// New data in all of the target; it is returned.
    fn fill(&mut self) -> Vec<u8> {
        let data = self.rng.bytes(LEN);
        self.local.write(0, &data);
        assert_eq!(self.write((0, LEN)), WcStatus::Success);
        assert!(self.target.read(0, LEN) == data, "the program sees other bytes than were written");
        data
    }

    /// What is in the target, by RDMA.
    fn fetch(&self) -> Vec<u8> {
        self.local.map.renew(0, LEN);
        assert_eq!(self.read((0, LEN)), WcStatus::Success);
        self.local.read(0, LEN)
    }

    /// After an error: the same memory with new queue pairs and keys.
    fn again(self) -> Self {
        let Self { near, far, local, target, rng, .. } = self;
        let ends = pair(&near, &far);
        let local = Paged::new(&near, ends.0.pd, local.map, ODP);
        let target = Paged::new(&far, ends.1.pd, target.map, ODP);
        Self { near, far, ends, local, target, rng }
    }

    /// A part that is gone is an error, and what is beside it is not.
    fn leave_a_hole(mut self, (at, len): Part) {
        let data = self.fill();
        self.target.map.unmap(at, len);
        for beside in [(0, at), (at + len, LEN - at - len)] {
            assert_eq!(self.write(beside), WcStatus::Success);
        }
        assert_eq!(self.write((at, PAGE)), WcStatus::RemAccessErr);
        self = self.again();
        assert_eq!(self.read((at + len - PAGE, 2 * PAGE)), WcStatus::RemAccessErr);
        self.ends.1.events.take();
        assert!(self.target.read(0, at) == data[..at]);
        assert!(self.target.read(at + len, LEN - at - len) == data[at + len..]);
    }
}

/// Takes each part away in each way: zeros are there then, and nothing else has changed. Each way begins with a mapping of
/// huge pages, as what comes into the place of a part need not be one.
fn take_away(tasks: &str, mapping: impl Fn() -> Map, parts: &[Part]) {
    for (way, take) in WAYS {
        let mut link = Link::new(tasks, mapping());
        for &(at, len) in parts {
            let mut data = link.fill();
            take(&link.target.map, (at, len));
            data[at..at + len].fill(0);
            assert!(link.fetch() == data, "{tasks}: {len} bytes at {at} {way}");
        }
    }
}

/// A mapping that the system is asked to make of huge pages.
fn transparent() -> Map {
    let map = Map::anonymous(LEN);
    map.advise(0, LEN, libc::MADV_HUGEPAGE);
    map
}

/// Whether the system does what it is asked for.
fn has_transparent() -> bool {
    let probe = transparent();
    probe.advise(0, LEN, libc::MADV_POPULATE_WRITE);
    probe.in_huge_pages() > 0
}

#[test]
fn transparent_huge_pages_are_right_to_the_byte_while_parts_of_them_come_and_go() {
    if !has_transparent() {
        eprintln!("skipped: the system makes no huge pages (/sys/kernel/mm/transparent_hugepage/enabled)");
        return;
    }
    // Within a huge page, across the border of two, and a whole one.
    let parts = [(HUGE + 5 * PAGE, 3 * PAGE), (2 * HUGE - PAGE, 2 * PAGE), (3 * HUGE, HUGE)];
    for tasks in MODES {
        take_away(tasks, transparent, &parts);
        let mut link = Link::new(tasks, transparent());
        link.fill();
        assert!(link.target.map.in_huge_pages() > 0, "{tasks}: the device's faults make small pages");
        link.leave_a_hole(parts[0]);
    }
}

#[test]
fn a_part_of_a_huge_page_that_may_only_be_read_is_read_and_never_written() {
    for tasks in MODES {
        let mut link = Link::new(tasks, transparent());
        let data = link.fill();
        let part @ (at, len) = (HUGE + 7 * PAGE, 2 * PAGE);
        link.target.map.protect(at, len, libc::PROT_READ);
        assert!(link.fetch() == data, "{tasks}");
        assert_eq!(link.write(part), WcStatus::RemAccessErr, "{tasks}");
        assert!(link.target.read(0, LEN) == data, "{tasks}");
    }
}

#[test]
fn reserved_huge_pages_are_right_to_the_byte_while_some_of_them_come_and_go() {
    if let Err(error) = Map::of_huge_pages(LEN) {
        eprintln!("skipped: no huge pages are reserved (/proc/sys/vm/nr_hugepages): {error}");
        return;
    }
    let mapping = || Map::of_huge_pages(LEN).expect("they are given back");
    for tasks in MODES {
        // Such a page is taken away as a whole.
        take_away(tasks, mapping, &[(2 * HUGE, 2 * HUGE), (HUGE, HUGE)]);
        Link::new(tasks, mapping()).leave_a_hole((HUGE, HUGE));
    }
}
