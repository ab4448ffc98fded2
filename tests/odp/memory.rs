//! Mappings to play with.

#![allow(unsafe_code)]

use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) const PAGE: usize = 4096;
/// Of x86-64, and of others whose pages have 4 KiB.
pub(crate) const HUGE: usize = 2 << 20;

/// A mapping of our own.
pub(crate) struct Map {
    pub(crate) addr: u64,
    pub(crate) len: usize,
}

impl Map {
    fn try_new(len: usize, protection: libc::c_int, flags: libc::c_int, fd: libc::c_int) -> io::Result<Self> {
        let len = len.next_multiple_of(PAGE);
        // Far from where the system looks for room, so that no other thread's mapping ever falls into a hole of this.
        static NEXT: AtomicU64 = AtomicU64::new(0x2000_0000_0000);
        let place = NEXT.fetch_add((len.next_multiple_of(HUGE) + HUGE) as u64, Ordering::Relaxed);
        let flags = flags | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: a new mapping where there is none.
        let at = unsafe { libc::mmap(place as *mut libc::c_void, len, protection, flags, fd, 0) };
        if at == libc::MAP_FAILED {
            Err(io::Error::last_os_error())
        } else {
            Ok(Self { addr: at as u64, len })
        }
    }

    fn new(len: usize, protection: libc::c_int, flags: libc::c_int, fd: libc::c_int) -> Self {
        Self::try_new(len, protection, flags, fd).expect("memory can be mapped")
    }

    /// Zero pages, none of them present.
    pub(crate) fn anonymous(len: usize) -> Self {
        Self::new(len, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)
    }

    /// Of the huge pages that the system has set aside, if they are enough.
    pub(crate) fn of_huge_pages(len: usize) -> io::Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB;
        Self::try_new(len, libc::PROT_READ | libc::PROT_WRITE, flags, -1)
    }

    /// A file in memory: what is taken away from the address space is still in the file.
    pub(crate) fn shared(len: usize) -> Self {
        let fd = memfd(len);
        let map = Self::new(len, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, fd);
        // SAFETY: ours; the mapping stays.
        unsafe { libc::close(fd) };
        map
    }

    /// A private mapping of a file in memory, to be read only, with some content.
    pub(crate) fn read_only(content: &[u8]) -> Self {
        let fd = memfd(content.len());
        // SAFETY: the descriptor and the bytes are ours.
        let written = unsafe { libc::pwrite(fd, content.as_ptr().cast(), content.len(), 0) };
        assert_eq!(written, content.len() as isize);
        let map = Self::new(content.len(), libc::PROT_READ, libc::MAP_PRIVATE, fd);
        // SAFETY: ours; the mapping stays.
        unsafe { libc::close(fd) };
        map
    }

    fn check(&self, at: usize, len: usize) -> *mut libc::c_void {
        assert!(at + len <= self.len && at.is_multiple_of(PAGE));
        (self.addr + at as u64) as *mut libc::c_void
    }

    pub(crate) fn advise(&self, at: usize, len: usize, advice: libc::c_int) {
        let start = self.check(at, len);
        // SAFETY: within the mapping, which nothing refers to.
        let done = unsafe { libc::madvise(start, len, advice) };
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    }

    pub(crate) fn unmap(&self, at: usize, len: usize) {
        let start = self.check(at, len);
        // SAFETY: within the mapping, which nothing refers to.
        assert_eq!(unsafe { libc::munmap(start, len) }, 0);
    }

    /// New zero pages where there were others, or none.
    pub(crate) fn renew(&self, at: usize, len: usize) {
        let start = self.check(at, len);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        // SAFETY: within the mapping, which nothing refers to.
        let new = unsafe { libc::mmap(start, len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        assert_eq!(new, start);
    }

    /// Moves pages to elsewhere, and new ones to their place.
    pub(crate) fn move_away(&self, at: usize, len: usize) {
        let start = self.check(at, len);
        let spare = Self::anonymous(len);
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // SAFETY: within the mapping, and onto another one of ours.
        let moved = unsafe { libc::mremap(start, len, len, flags, spare.addr as *mut libc::c_void) };
        assert_eq!(moved as u64, spare.addr);
        self.renew(at, len);
    }

    pub(crate) fn protect(&self, at: usize, len: usize, protection: libc::c_int) {
        let start = self.check(at, len);
        // SAFETY: within the mapping, which nothing refers to.
        assert_eq!(unsafe { libc::mprotect(start, len, protection) }, 0);
    }

    /// How many bytes of it the system has put into huge pages of its own accord (AnonHugePages).
    pub(crate) fn in_huge_pages(&self) -> usize {
        let maps = std::fs::read_to_string("/proc/self/smaps").expect("there is /proc");
        let within = self.addr..self.addr + self.len as u64;
        let mut ours = false;
        let mut bytes = 0;
        for line in maps.lines() {
            let start = line.split_once('-').and_then(|(start, _)| u64::from_str_radix(start, 16).ok());
            ours = start.map_or(ours, |start| within.contains(&start));
            let size = line.strip_prefix("AnonHugePages:").filter(|_| ours);
            let size = size.and_then(|size| size.trim().strip_suffix(" kB")?.parse::<usize>().ok());
            bytes += size.unwrap_or(0) << 10;
        }
        bytes
    }

    /// How many pages are in memory.
    pub(crate) fn resident(&self) -> usize {
        let mut present = vec![0_u8; self.len / PAGE];
        // SAFETY: one byte a page.
        let done = unsafe { libc::mincore(self.addr as *mut libc::c_void, self.len, present.as_mut_ptr()) };
        assert_eq!(done, 0);
        present.iter().filter(|p| **p & 1 == 1).count()
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: ours. Parts that are unmapped already are no error.
        unsafe { libc::munmap(self.addr as *mut libc::c_void, self.len) };
    }
}

fn memfd(len: usize) -> libc::c_int {
    // SAFETY: a terminated string.
    let fd = unsafe { libc::memfd_create(c"odp".as_ptr(), libc::MFD_CLOEXEC) };
    assert!(fd >= 0);
    // SAFETY: ours.
    assert_eq!(unsafe { libc::ftruncate(fd, len as i64) }, 0);
    fd
}

/// Whether the system has userfaultfd for us: without it what the program takes away is not noticed at once.
pub(crate) fn has_events() -> bool {
    static HAS: OnceLock<bool> = OnceLock::new();
    *HAS.get_or_init(|| {
        // SAFETY: a system call without pointers; the descriptor is closed.
        unsafe {
            let fd = libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | 1);
            fd >= 0 && libc::close(fd as libc::c_int) == 0
        }
    })
}
