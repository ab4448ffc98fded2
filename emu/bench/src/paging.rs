//! What on-demand paging costs: a page that is present beside a pinned one, a fault beside what the system itself takes to
//! populate a page, a prefetch beside plain populating. All in one thread, on memory of this process.

use std::hint::black_box;
use std::io;
use std::time::Instant;

use urxe::config::Config;
use urxe::device::Device;
use urxe::mem::odp::{Advice, By};
use urxe::mem::{Access, HostAddr, Key, MemError, Memory, PdId, Table, copy};

pub(crate) const PAGE: usize = 4096;
pub(crate) const PINNED: Access = Access(15);
pub(crate) const PAGED: Access = Access(15 | 64);
/// Pages of the regions whose accesses are timed.
const PAGES: usize = 1024;
const PREFETCH: usize = 1 << 30;

/// A private mapping.
pub(crate) struct Map(*mut libc::c_void, usize);

impl Map {
    #[allow(unsafe_code)]
    pub(crate) fn new(len: usize) -> io::Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping where the system likes. Without huge pages, which would populate many pages at once.
        unsafe {
            let at = libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
            if at == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            libc::madvise(at, len, libc::MADV_NOHUGEPAGE);
            Ok(Self(at, len))
        }
    }

    pub(crate) fn len(&self) -> u64 {
        self.1 as u64
    }

    pub(crate) fn addr(&self) -> u64 {
        self.0.addr() as u64
    }

    #[allow(unsafe_code)]
    fn advise(&self, at: usize, len: usize, advice: libc::c_int) -> io::Result<()> {
        // SAFETY: within the mapping, which nothing refers to.
        let done = unsafe { libc::madvise(self.0.wrapping_byte_add(at), len, advice) };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

impl Drop for Map {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        // SAFETY: ours.
        unsafe { libc::munmap(self.0, self.1) };
    }
}

fn other(error: impl std::fmt::Display) -> io::Error {
    io::Error::other(error.to_string())
}

/// Nanoseconds of each run of `f`, the median.
fn median(rounds: usize, mut f: impl FnMut() -> io::Result<f64>) -> io::Result<f64> {
    let mut times = (0..rounds).map(|_| f()).collect::<io::Result<Vec<f64>>>()?;
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

/// Nanoseconds to translate and copy out a page of a region, as a packet does it.
fn access(table: &Table, key: Key, base: u64) -> io::Result<f64> {
    let mut buffer = [0; PAGE];
    let passes = 200;
    let start = Instant::now();
    for _ in 0..passes {
        for page in 0..PAGES {
            let addr = base + (page * PAGE) as u64;
            let at = table.translate(PdId(1), key, addr, PAGE as u64, Access::REMOTE_READ).map_err(other)?;
            copy::read(at, black_box(&mut buffer)).map_err(other)?;
        }
    }
    Ok(start.elapsed().as_nanos() as f64 / (passes * PAGES) as f64)
}

/// The same without the copy.
fn translate(table: &Table, key: Key, base: u64) -> io::Result<f64> {
    let passes = 2000;
    let start = Instant::now();
    for _ in 0..passes {
        for page in 0..PAGES {
            let addr = base + (page * PAGE) as u64;
            let at = table.translate(PdId(1), key, addr, PAGE as u64, Access::REMOTE_READ).map_err(other)?;
            black_box::<HostAddr>(at);
        }
    }
    Ok(start.elapsed().as_nanos() as f64 / (passes * PAGES) as f64)
}

fn row(what: &str, ours: f64, theirs: f64, unit: &str) {
    println!("| {what} | {ours:.2} {unit} | {theirs:.2} {unit} | {:.2} |", ours / theirs);
}

/// Prints the table.
pub(crate) fn paging(rounds: usize) -> io::Result<()> {
    let table = Table::new()?;
    let map = Map::new(PAGES * PAGE)?;
    let register = |access| {
        let keys = table.register(PdId(1), map.addr(), map.len(), map.addr(), access).map_err(other)?;
        io::Result::Ok(Key::Remote(keys.rkey))
    };
    let (pinned, paged) = (register(PINNED)?, register(PAGED)?);
    if let Err(MemError::NotPresent(miss)) =
        table.translate(PdId(1), paged, map.addr(), map.len(), Access::REMOTE_WRITE)
    {
        table.resolve(&miss, By::Responder).map_err(other)?;
    }
    println!("| | on demand | beside it | ratio |\n| --- | --- | --- | --- |");
    // In turn, so that both have the same neighbours.
    let mut times = [const { Vec::new() }; 4];
    for _ in 0..rounds {
        for (i, key) in [paged, pinned].into_iter().enumerate() {
            times[i].push(access(&table, key, map.addr())?);
            times[2 + i].push(translate(&table, key, map.addr())?);
        }
    }
    let [a, b, c, d] = times.map(|mut t| {
        t.sort_by(f64::total_cmp);
        t[t.len() / 2]
    });
    row("look up and copy 4 KiB that are present; a pinned region", a, b, "ns");
    row("look up alone; a pinned region", c, d, "ns");

    // Faults, each of a page that was never touched.
    let fresh = Map::new(2 * PAGES * PAGE)?;
    let keys = table.register(PdId(1), fresh.addr(), fresh.1 as u64, fresh.addr(), PAGED).map_err(other)?;
    let miss = |page: usize| {
        let addr = fresh.addr() + (page * PAGE) as u64;
        match table.translate(PdId(1), Key::Remote(keys.rkey), addr, PAGE as u64, Access::REMOTE_WRITE) {
            Err(MemError::NotPresent(miss)) => Ok(miss),
            other => Err(io::Error::other(format!("{other:?}"))),
        }
    };
    // The first one opens the userfaultfd.
    table.resolve(&miss(0)?, By::Responder).map_err(other)?;
    let mut page = 1;
    let resolve = median(PAGES - 1, || {
        let miss = miss(page)?;
        page += 1;
        let start = Instant::now();
        table.resolve(&miss, By::Responder).map_err(other)?;
        Ok(start.elapsed().as_nanos() as f64)
    })?;
    let mut page = PAGES;
    let populate = median(PAGES, || {
        let at = page * PAGE;
        page += 1;
        let start = Instant::now();
        fresh.advise(at, PAGE, libc::MADV_POPULATE_WRITE)?;
        Ok(start.elapsed().as_nanos() as f64)
    })?;
    row("resolve a fault of 4 KiB; MADV_POPULATE_WRITE of 4 KiB", resolve, populate, "ns");

    let device = Device::open(&Config::default()).map_err(other)?;
    let pd = device.alloc_pd();
    let rate = |time: Instant| PREFETCH as f64 / 1e9 / time.elapsed().as_secs_f64();
    let mut rates = [Vec::new(), Vec::new()];
    for _ in 0..rounds {
        let map = Map::new(PREFETCH)?;
        let keys = device.memory().register(pd, map.addr(), map.len(), map.addr(), PAGED).map_err(other)?;
        let start = Instant::now();
        let range = (map.addr(), map.len());
        device.advise(pd, keys.lkey, range, Advice::Write, true).map_err(other)?;
        rates[0].push(rate(start));
        device.deregister(keys.lkey).map_err(other)?;
        drop(map);
        let map = Map::new(PREFETCH)?;
        let start = Instant::now();
        map.advise(0, PREFETCH, libc::MADV_POPULATE_WRITE)?;
        rates[1].push(rate(start));
    }
    let [ours, theirs] = rates.map(|mut r| {
        r.sort_by(f64::total_cmp);
        r[r.len() / 2]
    });
    row("prefetch 1 GiB; MADV_POPULATE_WRITE of 1 GiB", ours, theirs, "GB/s");
    Ok(())
}
