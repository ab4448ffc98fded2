//! Is a range of this process mapped, and with the permission that a registration needs?
//!
//! Found out without touching a page and in time that depends on the number of mappings, not of pages: Linux 6.11
//! answers for one mapping at a time (`PROCMAP_QUERY`); before that the text of /proc/self/maps is read up to
//! the end of the range. Where there is no /proc, `msync(MS_ASYNC)`, which does nothing but walk the mappings,
//! still tells whether all is mapped; the permissions are then left to the guard of the copies.

#![allow(unsafe_code)]

use std::sync::atomic::{AtomicBool, Ordering};

use super::guard::kernel::page_size;

/// What is wrong with a range, and where.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Bad {
    Unmapped(u64),
    Protected(u64),
}

/// Checks `[start, start + len)`, which must not wrap. Everything must be readable, and writable if `write`.
pub(super) fn check(start: u64, len: u64, write: bool) -> Result<(), Bad> {
    let end = start + len;
    let Some(maps) = Maps::open() else { return walk(start, end) };
    if !QUERY_UNKNOWN.load(Ordering::Relaxed) {
        if let Some(answer) = maps.query(start, end, write) {
            return answer;
        }
        QUERY_UNKNOWN.store(true, Ordering::Relaxed);
    }
    maps.parse(start, end, write).unwrap_or_else(|| walk(start, end))
}

/// Shows the mappings that overlap `[start, end)` in ascending order, each whole. How many there are bounds the time.
pub(super) fn mappings(start: u64, end: u64, mut show: impl FnMut(u64, u64)) {
    let Some(maps) = Maps::open() else { return };
    let mut at = start;
    if !QUERY_UNKNOWN.load(Ordering::Relaxed) {
        while at < end {
            match maps.ask(at, COVERING_OR_NEXT) {
                Ok(mapping) if mapping.end > at => {
                    if mapping.start >= end {
                        return;
                    }
                    show(mapping.start, mapping.end);
                    at = mapping.end;
                }
                Err(libc::ENOENT) => return,
                Err(libc::EINTR) => {}
                _ => break,
            }
        }
    }
    if at < end {
        maps.lines(|mapping| {
            if mapping.end > at && mapping.start < end {
                show(mapping.start, mapping.end);
            }
            (mapping.end >= end).then_some(())
        });
    }
}

/// Set once the kernel has been found to be older than `PROCMAP_QUERY`.
static QUERY_UNKNOWN: AtomicBool = AtomicBool::new(false);

/// One mapping.
#[derive(Clone, Copy)]
struct Mapping {
    start: u64,
    end: u64,
    readable: bool,
    writable: bool,
}

/// Goes through mappings in ascending order, to find a hole or a mapping without permission.
struct Walk {
    at: u64,
    end: u64,
    write: bool,
}

impl Walk {
    /// `None`: go on.
    fn step(&mut self, mapping: Mapping) -> Option<Result<(), Bad>> {
        if mapping.end <= self.at {
            return None;
        }
        if mapping.start > self.at {
            return Some(Err(Bad::Unmapped(self.at)));
        }
        if !mapping.readable || (self.write && !mapping.writable) {
            return Some(Err(Bad::Protected(self.at)));
        }
        self.at = mapping.end;
        (self.at >= self.end).then_some(Ok(()))
    }
}

/// An open /proc/self/maps. Opened for each check: a descriptor that stays open would be the parent's map after `fork`, and one
/// more thing in a process that is not ours.
struct Maps(libc::c_int);

impl Drop for Maps {
    fn drop(&mut self) {
        // SAFETY: the descriptor is ours.
        unsafe { libc::close(self.0) };
    }
}

/// `struct procmap_query` of linux/fs.h.
#[repr(C)]
#[derive(Default)]
struct ProcmapQuery {
    size: u64,
    query_flags: u64,
    query_addr: u64,
    vma_start: u64,
    vma_end: u64,
    vma_flags: u64,
    vma_page_size: u64,
    vma_offset: u64,
    inode: u64,
    dev_major: u32,
    dev_minor: u32,
    vma_name_size: u32,
    build_id_size: u32,
    vma_name_addr: u64,
    build_id_addr: u64,
}

/// `_IOWR('f', 17, struct procmap_query)`.
const PROCMAP_QUERY: u64 = 3 << 30 | (size_of::<ProcmapQuery>() as u64) << 16 | (b'f' as u64) << 8 | 17;
/// `PROCMAP_QUERY_COVERING_OR_NEXT_VMA`.
const COVERING_OR_NEXT: u64 = 0x10;
const READABLE: u64 = 1;
const WRITABLE: u64 = 2;

impl Maps {
    fn open() -> Option<Self> {
        // SAFETY: a terminated string; the descriptor is owned by the result. The system call rather than the function:
        // in the drop-in library `open` is interposed.
        let fd = unsafe {
            libc::syscall(
                libc::SYS_openat,
                libc::AT_FDCWD,
                c"/proc/self/maps".as_ptr(),
                libc::O_RDONLY | libc::O_CLOEXEC,
                0,
            )
        };
        (fd >= 0).then_some(Self(fd as libc::c_int))
    }

    /// The mapping at an address; the error is the system's number.
    fn ask(&self, at: u64, flags: u64) -> Result<Mapping, libc::c_int> {
        let mut query = ProcmapQuery {
            size: size_of::<ProcmapQuery>() as u64,
            query_flags: flags,
            query_addr: at,
            ..ProcmapQuery::default()
        };
        // SAFETY: the request's structure, with no pointers in it.
        if unsafe { libc::ioctl(self.0, PROCMAP_QUERY as _, &raw mut query) } != 0 {
            return Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL));
        }
        Ok(Mapping {
            start: query.vma_start,
            end: query.vma_end,
            readable: query.vma_flags & READABLE != 0,
            writable: query.vma_flags & WRITABLE != 0,
        })
    }

    /// Mapping by mapping. `None` if the kernel does not know the request.
    fn query(&self, start: u64, end: u64, write: bool) -> Option<Result<(), Bad>> {
        let mut walk = Walk { at: start, end, write };
        loop {
            let mapping = match self.ask(walk.at, 0) {
                Ok(mapping) => mapping,
                Err(libc::ENOENT) => return Some(Err(Bad::Unmapped(walk.at))),
                Err(libc::EINTR) => continue,
                Err(_) => return None,
            };
            let before = walk.at;
            match walk.step(mapping) {
                Some(answer) => return Some(answer),
                None if walk.at > before => {}
                None => return None,
            }
        }
    }

    /// By the text. `None` if it cannot be read.
    fn parse(&self, start: u64, end: u64, write: bool) -> Option<Result<(), Bad>> {
        let mut walk = Walk { at: start, end, write };
        match self.lines(|mapping| walk.step(mapping))? {
            Some(answer) => Some(answer),
            None => Some(Err(Bad::Unmapped(walk.at))),
        }
    }

    /// Shows the mappings of the text until there is an answer. `None` if the text cannot be read, `Some(None)` at
    /// its end.
    fn lines<T>(&self, mut show: impl FnMut(Mapping) -> Option<T>) -> Option<Option<T>> {
        let mut buffer = [0_u8; 8192];
        let mut filled = 0;
        loop {
            // SAFETY: reads into the unused part of the buffer.
            let n =
                unsafe { libc::read(self.0, buffer[filled..].as_mut_ptr().cast(), buffer.len() - filled) };
            match n {
                0 => return Some(None),
                n if n < 0 => {
                    if std::io::Error::last_os_error().raw_os_error() == Some(libc::EINTR) {
                        continue;
                    }
                    return None;
                }
                n => filled += n as usize,
            }
            let mut line_start = 0;
            while let Some(length) = buffer[line_start..filled].iter().position(|&b| b == b'\n') {
                let mapping = parse_line(&buffer[line_start..line_start + length])?;
                if let Some(answer) = show(mapping) {
                    return Some(Some(answer));
                }
                line_start += length + 1;
            }
            if line_start == 0 && filled == buffer.len() {
                return None; // a line longer than any path can make it
            }
            buffer.copy_within(line_start..filled, 0);
            filled -= line_start;
        }
    }
}

/// `5590e2a00000-5590e2a21000 rw-p 00000000 00:00 0   [heap]`
fn parse_line(line: &[u8]) -> Option<Mapping> {
    let mut fields = line.split(|&b| b == b' ');
    let (range, permissions) = (fields.next()?, fields.next()?);
    let dash = range.iter().position(|&b| b == b'-')?;
    Some(Mapping {
        start: hex(&range[..dash])?,
        end: hex(&range[dash + 1..])?,
        readable: permissions.first() == Some(&b'r'),
        writable: permissions.get(1) == Some(&b'w'),
    })
}

fn hex(digits: &[u8]) -> Option<u64> {
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

/// Only whether all is mapped.
fn walk(start: u64, end: u64) -> Result<(), Bad> {
    let page = page_size();
    let first = start & !(page - 1);
    let last = end.checked_next_multiple_of(page).unwrap_or(!(page - 1));
    // SAFETY: MS_ASYNC has no effect on the memory or its file.
    let result = unsafe { libc::msync(first as *mut libc::c_void, (last - first) as usize, libc::MS_ASYNC) };
    if result == 0 { Ok(()) } else { Err(Bad::Unmapped(start)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 4096;

    /// Pages of each protection, side by side, then a hole, then one more page.
    struct Patchwork(u64);

    impl Patchwork {
        const PROTECTIONS: [libc::c_int; 5] = [
            libc::PROT_READ | libc::PROT_WRITE,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::PROT_READ,
            libc::PROT_NONE,
            libc::PROT_READ | libc::PROT_WRITE,
        ];
        fn new() -> Self {
            // SAFETY: a new anonymous mapping, changed and cut where nothing else is.
            unsafe {
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
                let base = libc::mmap(std::ptr::null_mut(), 7 * PAGE as usize, libc::PROT_NONE, flags, -1, 0);
                assert_ne!(base, libc::MAP_FAILED);
                for (i, protection) in Self::PROTECTIONS.into_iter().enumerate() {
                    assert_eq!(libc::mprotect(base.add(i * PAGE as usize), PAGE as usize, protection), 0);
                }
                let last = base.add(6 * PAGE as usize);
                assert_eq!(libc::mprotect(last, PAGE as usize, libc::PROT_READ | libc::PROT_WRITE), 0);
                assert_eq!(libc::munmap(base.add(5 * PAGE as usize), PAGE as usize), 0);
                Self(base as u64)
            }
        }
    }

    impl Drop for Patchwork {
        fn drop(&mut self) {
            // SAFETY: only what `new` mapped and still owns.
            unsafe {
                libc::munmap(self.0 as *mut libc::c_void, 5 * PAGE as usize);
                libc::munmap((self.0 + 6 * PAGE) as *mut libc::c_void, PAGE as usize);
            }
        }
    }

    #[test]
    fn every_method_finds_the_hole_and_the_protections() {
        let patchwork = Patchwork::new();
        let at = |page: u64| patchwork.0 + page * PAGE;
        let maps = || Maps::open().expect("/proc is mounted");
        type Method<'a> = &'a dyn Fn(u64, u64, bool) -> Option<Result<(), Bad>>;
        let query: Method<'_> = &|s, e, w| maps().query(s, e, w);
        let parse: Method<'_> = &|s, e, w| maps().parse(s, e, w);
        let both: Method<'_> = &|s, e, w| Some(check(s, e - s, w));
        let mut methods = vec![parse, both];
        if query(at(0), at(1), false).is_some() {
            methods.push(query);
        }
        for check in methods {
            let check = |s, e, w| check(s, e, w).expect("an answer");
            assert_eq!(check(at(0), at(2), true), Ok(()));
            assert_eq!(check(at(0) + 5, at(0) + 6, true), Ok(()));
            assert_eq!(check(at(0), at(3), false), Ok(()), "readable");
            assert_eq!(check(at(0), at(3), true), Err(Bad::Protected(at(2))), "not writable");
            assert_eq!(check(at(1), at(2) + 1, true), Err(Bad::Protected(at(2))), "one byte too many");
            assert_eq!(check(at(0), at(4), false), Err(Bad::Protected(at(3))), "PROT_NONE");
            assert_eq!(check(at(4), at(5), true), Ok(()));
            assert_eq!(check(at(4), at(5) + 1, true), Err(Bad::Unmapped(at(5))));
            assert_eq!(check(at(5) + 9, at(5) + 10, false), Err(Bad::Unmapped(at(5) + 9)));
            assert_eq!(check(at(4), at(7), false), Err(Bad::Unmapped(at(5))), "a hole between");
            assert_eq!(check(8, 16, false), Err(Bad::Unmapped(8)));
            assert!(check(1 << 63, (1 << 63) + 1, false).is_err(), "the kernel's half");
        }
        assert_eq!(walk(at(0), at(5)), Ok(()), "mapped, whatever the permissions");
        assert_eq!(walk(at(4) + 1, at(6) + 1), Err(Bad::Unmapped(at(4) + 1)));
    }

    #[test]
    fn mappings_are_shown_whole_and_holes_are_left_out() {
        let patchwork = Patchwork::new();
        let at = |page: u64| patchwork.0 + page * PAGE;
        for unknown in [false, true] {
            let before = QUERY_UNKNOWN.swap(unknown, Ordering::Relaxed);
            let mut seen = Vec::new();
            mappings(at(2) + 1, at(6) + 1, |start, end| seen.push((start, end)));
            QUERY_UNKNOWN.store(before, Ordering::Relaxed);
            assert_eq!(seen[..2], [(at(2), at(3)), (at(3), at(4))]);
            let holes = seen.iter().any(|&(start, end)| start < at(6) && end > at(5));
            assert!(!holes && seen.last().is_some_and(|&(start, _)| start == at(6)), "{seen:x?}");
        }
    }

    #[test]
    fn a_check_populates_nothing() {
        let len = 1_u64 << 36;
        // SAFETY: a reservation of address space that is only looked at.
        unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            let base = libc::mmap(
                std::ptr::null_mut(),
                len as usize,
                libc::PROT_READ | libc::PROT_WRITE,
                flags,
                -1,
                0,
            );
            assert_ne!(base, libc::MAP_FAILED);
            for _ in 0..100 {
                assert_eq!(check(base as u64, len, true), Ok(()));
            }
            for place in [0, len / 2, len - (1 << 20)] {
                let mut resident = [0_u8; 256];
                assert_eq!(libc::mincore(base.add(place as usize), 1 << 20, resident.as_mut_ptr()), 0);
                assert_eq!(resident, [0; 256]);
            }
            libc::munmap(base, len as usize);
        }
    }
}
