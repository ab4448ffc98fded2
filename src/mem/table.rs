//! The memory regions of one device, and the keys that open them.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use super::keys::Scrambler;
use super::mapped::{self, Bad};
use super::odp::pages::PAGE_BITS;
use super::odp::stats::RegionStats;
use super::odp::{Advice, By, Demand, Root};
use super::slots::{self, Entry, Slots};
use super::{Access, Denial, Fault, HostAddr, Key, MemError, Memory, Miss, PdId, guard};
use crate::ids::{LKey, RKey};

/// Keys that no region gets: programs use them for "none".
const RESERVED: [u32; 2] = [0, u32::MAX];

/// Freed slots wait in a queue at least this long before one is used again, so that its keys repeat late.
const MIN_FREE: usize = 512;

/// The keys of a new region. They have the same value, as those of most adapters.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Registered {
    /// For scatter/gather elements.
    pub lkey: LKey,
    /// For peers. A region that allows no remote access has one too; it opens nothing.
    pub rkey: RKey,
}

/// Why memory was not registered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RegisterError {
    /// `EINVAL`: bits that mean nothing and are not optional.
    #[error("unknown access flags {0:#x}")]
    UnknownAccess(u32),
    /// `EINVAL`, IBA 10.6.3.2: who grants remote writes or atomics must grant local writes.
    #[error("access {0} needs LOCAL_WRITE as well")]
    NeedsLocalWrite(Access),
    /// `EOPNOTSUPP`: flags that this device does not offer.
    #[error("access {0} is not supported")]
    Unsupported(Access),
    /// `EINVAL`: there is nothing to register.
    #[error("the range is empty")]
    Empty,
    /// `EINVAL`: the range or its addresses for users end beyond 2^64.
    #[error("address {start:#x} + length {len:#x} exceeds 64 bits")]
    Overflow {
        /// Start of the range.
        start: u64,
        /// Its length.
        len: u64,
    },
    /// `EFAULT`.
    #[error("no memory is mapped at {0:#x}")]
    NotMapped(u64),
    /// `EFAULT`.
    #[error("the memory at {addr:#x} is not mapped {}", if *.write { "writable" } else { "readable" })]
    Protected {
        /// Start of the mapping that lacks the permission, or of the range in it.
        addr: u64,
        /// Whether it had to be writable.
        write: bool,
    },
    /// `ENOMEM`: the table is full.
    #[error("no free memory region")]
    TableFull,
    /// `EINVAL`: there is no region to change.
    #[error("lkey {0} names no memory region")]
    UnknownKey(LKey),
}

/// Why a region was not deregistered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DeregisterError {
    /// `EINVAL`.
    #[error("lkey {0} names no memory region")]
    UnknownKey(LKey),
}

/// Why advice is not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AdviseError {
    /// `ENOENT`.
    #[error("lkey {0} names no memory region that is paged on demand")]
    UnknownKey(LKey),
    /// `EPERM`: another protection domain's, or not to be written.
    #[error("lkey {0} is of another protection domain, or may not be written")]
    NotAllowed(LKey),
    /// `EFAULT`.
    #[error("address {addr:#x}, length {len:#x} is outside the region")]
    OutOfBounds {
        /// Start of the range asked for.
        addr: u64,
        /// Its length.
        len: u64,
    },
    /// `EFAULT`.
    #[error("the program has no such memory at {0:#x}")]
    NotMapped(u64),
}

/// What [`Table::reregister`] changes; what is `None` stays.
#[derive(Clone, Copy, Default, Debug)]
pub struct Change {
    /// `IBV_REREG_MR_CHANGE_PD`.
    pub pd: Option<PdId>,
    /// `IBV_REREG_MR_CHANGE_TRANSLATION`: host address, length, and the address that users name it by.
    pub range: Option<(u64, u64, u64)>,
    /// `IBV_REREG_MR_CHANGE_ACCESS`.
    pub access: Option<Access>,
}

/// A region as it stands in the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Region {
    /// Its key, as lkey and as rkey.
    pub key: u32,
    /// Its owner.
    pub pd: PdId,
    /// What it allows.
    pub access: Access,
    /// Where it is in this process.
    pub host: u64,
    /// Its length.
    pub len: u64,
    /// The address of its first byte for its users.
    pub iova: u64,
}

/// The memory regions of one device.
///
/// [`Memory::translate`] takes no lock and executes no atomic read-modify-write. Everything else takes a mutex.
pub struct Table {
    keys: Scrambler,
    slots: Slots,
    /// Of the standard library, whose state is all in itself: a child of fork may give it free although other threads
    /// were waiting for it.
    book: Mutex<Book>,
    demand: Demand,
}

#[derive(Default)]
struct Book {
    /// Slots from here on have never been used.
    unused: u32,
    free: VecDeque<u32>,
    len: usize,
    by_pd: HashMap<PdId, usize>,
}

impl Book {
    fn leave(&mut self, pd: PdId) {
        if let Some(n) = self.by_pd.get_mut(&pd) {
            *n -= 1;
            if *n == 0 {
                self.by_pd.remove(&pd);
            }
        }
    }
}

impl Table {
    /// Regions that a table can hold.
    pub const MAX_REGIONS: usize = slots::MAX as usize;

    /// An empty table with a secret of its own. Fails if the system has no random numbers to give.
    pub fn new() -> io::Result<Self> {
        let mut secret = [0_u64; Scrambler::SECRET_WORDS];
        fill_random(&mut secret)?;
        Ok(Self::with_secret(secret))
    }

    /// An empty table whose keys follow from `seed`: for simulations that must repeat, not for keys that must not be
    /// guessed.
    pub fn with_seed(seed: u64) -> Self {
        let mut state = seed;
        Self::with_secret(std::array::from_fn(|_| {
            // splitmix64
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = state;
            z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ z >> 31
        }))
    }

    fn with_secret(secret: [u64; Scrambler::SECRET_WORDS]) -> Self {
        Self {
            keys: Scrambler::new(secret),
            slots: Slots::new(),
            book: Mutex::default(),
            demand: Demand::default(),
        }
    }

    /// Registers `[host, host + len)` for `pd`. Users address its first byte as `iova`; for `ibv_reg_mr` that is `host`
    /// (0 with [`Access::ZERO_BASED`], which is up to the caller), and the two need not share a page offset.
    ///
    /// The time depends on the number of mappings in the range, not on its size. The first call installs the
    /// [`guard`].
    pub fn register(
        &self,
        pd: PdId,
        host: u64,
        len: u64,
        iova: u64,
        access: Access,
    ) -> Result<Registered, RegisterError> {
        check_access(access)?;
        check_range(host, len, iova, access)?;
        guard::ensure();
        let mut book = self.book();
        let index = self.take_slot(&mut book).ok_or(RegisterError::TableFull)?;
        // UCX 1.13 takes its handle of an implicit region for the parameters of a function when it closes a device, and bit 0
        // of the key for the sign that there are any: then it crashes.
        let implicit = access.contains(Access::ON_DEMAND) && (host, len) == (0, u64::MAX);
        let key = loop {
            let key = self.keys.key(index, self.slots.next_use(index));
            let unlucky = implicit && key & 1 == 1;
            if !RESERVED.contains(&key) && !unlucky {
                break key;
            }
        };
        let Some(pages) = tree(host, len, access) else {
            book.free.push_back(index);
            return Err(RegisterError::TableFull);
        };
        if pages != Root::NONE {
            self.demand.enter(key, host, len, pages);
        }
        self.slots.write(index, &Entry { key, pd, access, start: iova, len, host, pages });
        book.len += 1;
        *book.by_pd.entry(pd).or_insert(0) += 1;
        Ok(Registered { lkey: LKey(key), rkey: RKey(key) })
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_slot(&self, book: &mut Book) -> Option<u32> {
        if book.free.len() < MIN_FREE && book.unused < slots::MAX && self.slots.grow_to(book.unused) {
            book.unused += 1;
            return Some(book.unused - 1);
        }
        book.free.pop_front()
    }

    /// Ends a region. A packet that has already been translated may still be copied; its fault, if the memory goes, is
    /// caught.
    pub fn deregister(&self, lkey: LKey) -> Result<(), DeregisterError> {
        let mut book = self.book();
        let (index, entry) = self.find(lkey).ok_or(DeregisterError::UnknownKey(lkey))?;
        self.slots.clear(index);
        self.demand.leave(entry.key);
        book.free.push_back(index);
        book.len -= 1;
        book.leave(entry.pd);
        Ok(())
    }

    /// Changes a region in place; its keys stay. On an error the region is as it was.
    pub fn reregister(&self, lkey: LKey, change: Change) -> Result<Registered, RegisterError> {
        let mut book = self.book();
        let (index, old) = self.find(lkey).ok_or(RegisterError::UnknownKey(lkey))?;
        let (host, len, start) = change.range.unwrap_or((old.host, old.len, old.start));
        let access = change.access.unwrap_or(old.access);
        let pd = change.pd.unwrap_or(old.pd);
        check_access(access)?;
        check_range(host, len, start, access)?;
        let same = (host, len) == (old.host, old.len)
            && access.contains(Access::ON_DEMAND) == old.access.contains(Access::ON_DEMAND);
        let pages = if same {
            old.pages
        } else {
            let pages = tree(host, len, access).ok_or(RegisterError::TableFull)?;
            self.demand.leave(old.key);
            if pages != Root::NONE {
                self.demand.enter(old.key, host, len, pages);
            }
            pages
        };
        self.slots.write(index, &Entry { key: old.key, pd, access, start, len, host, pages });
        book.leave(old.pd);
        *book.by_pd.entry(pd).or_insert(0) += 1;
        Ok(Registered { lkey, rkey: RKey(old.key) })
    }

    /// Only under the mutex: then no slot is being written.
    fn find(&self, lkey: LKey) -> Option<(u32, Entry)> {
        if RESERVED.contains(&lkey.0) {
            return None;
        }
        let index = self.keys.index(lkey.0);
        let entry = self.slots.read(index)?;
        (entry.key == lkey.0).then_some((index, entry))
    }

    /// How many regions there are.
    pub fn len(&self) -> usize {
        self.book().len
    }

    /// Whether there is no region.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether a region belongs to `pd`, so that it cannot be deallocated.
    pub fn is_pd_in_use(&self, pd: PdId) -> bool {
        self.book().by_pd.contains_key(&pd)
    }

    /// All regions, for statistics.
    pub fn regions(&self) -> Vec<Region> {
        let book = self.book();
        (0..book.unused)
            .filter_map(|index| self.slots.read(index))
            .filter(|entry| entry.key != 0)
            .map(|e| Region {
                key: e.key,
                pd: e.pd,
                access: e.access,
                host: e.host,
                len: e.len,
                iova: e.start,
            })
            .collect()
    }

    /// Resolves a miss, which takes as long as the system takes to find the pages. An error means that the program has
    /// no such memory, or not for this.
    pub fn resolve(&self, miss: &Miss, by: By) -> Result<(), Fault> {
        self.demand.resolve(miss, by)
    }

    /// Books how long a fault took, in ns.
    pub fn took(&self, key: u32, ns: u64) {
        self.demand.took(key, ns);
    }

    /// Checks advice about `[addr, addr + len)` of a region. What to prefetch is then `[start, end)` of this process, by
    /// [`prefetch`](Self::prefetch).
    pub fn advise(
        &self,
        pd: PdId,
        lkey: LKey,
        addr: u64,
        len: u64,
        advice: Advice,
    ) -> Result<(u64, u64), AdviseError> {
        let entry = {
            let _book = self.book();
            self.find(lkey).map(|(_, entry)| entry).filter(|e| e.pages != Root::NONE)
        };
        let entry = entry.ok_or(AdviseError::UnknownKey(lkey))?;
        if entry.pd != pd || advice == Advice::Write && !entry.access.writes() {
            return Err(AdviseError::NotAllowed(lkey));
        }
        self.check(pd, Key::Local(lkey), addr, len, Access::LOCAL_READ)
            .map_err(|_| AdviseError::OutOfBounds { addr, len })?;
        self.demand.advised(lkey.0);
        let start = entry.host + (addr - entry.start);
        Ok((start, start + len))
    }

    /// A step of a prefetch, and where to go on; `None` at the end. A region that is gone is at its end.
    pub fn prefetch(
        &self,
        key: u32,
        start: u64,
        end: u64,
        advice: Advice,
    ) -> Result<Option<u64>, AdviseError> {
        self.demand.prefetch(key, start, end, advice).map_err(|fault| AdviseError::NotMapped(fault.addr))
    }

    /// What on-demand paging has counted.
    pub fn demand_stats(&self) -> RegionStats {
        self.demand.totals()
    }

    /// The same for each region that is paged on demand.
    pub fn demand_regions(&self) -> Vec<(LKey, RegionStats)> {
        self.demand.each()
    }

    /// Keeps the table from being changed until the result is dropped: to be held across a `fork`, so that the child
    /// gets a table whose lock is free. `None` while it is being changed.
    pub fn quiesce(&self) -> Option<Quiesced<'_>> {
        match self.book.try_lock() {
            Ok(book) => Some(Quiesced { _book: book }),
            Err(TryLockError::Poisoned(error)) => Some(Quiesced { _book: error.into_inner() }),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

/// See [`Table::quiesce`].
pub struct Quiesced<'a> {
    _book: MutexGuard<'a, Book>,
}

impl Memory for Table {
    #[inline]
    fn translate(&self, pd: PdId, key: Key, addr: u64, len: u64, need: Access) -> Result<HostAddr, MemError> {
        let value = key.value();
        let entry = match self.slots.read(self.keys.index(value)) {
            // An empty slot has key 0, and 0 is no key.
            Some(entry) if entry.key == value && value != 0 => entry,
            _ => return Err(Denial::UnknownKey { key }.into()),
        };
        let offset = addr.wrapping_sub(entry.start);
        let fits = addr >= entry.start && offset <= entry.len && len <= entry.len - offset;
        if entry.pd == pd && entry.access.contains(need) && fits {
            if entry.pages != Root::NONE {
                return look_up(&entry, entry.host + offset, len, need);
            }
            return Ok(HostAddr(entry.host + offset));
        }
        Err(deny(&entry, pd, key, addr, len, need).into())
    }

    fn check(&self, pd: PdId, key: Key, addr: u64, len: u64, need: Access) -> Result<(), Denial> {
        match self.translate(pd, key, addr, len, need) {
            Err(MemError::Denied(denial)) => Err(denial),
            Ok(_) | Err(MemError::NotPresent(_)) => Ok(()),
        }
    }

    #[cold]
    fn missing(&self, fault: Fault, pd: PdId, key: Key, addr: u64, len: u64, need: Access) -> Option<Miss> {
        let entry = self.slots.read(self.keys.index(key.value())).filter(|e| e.key == key.value())?;
        if entry.pages == Root::NONE || len == 0 || self.check(pd, key, addr, len, need).is_err() {
            return None;
        }
        self.demand.forget(entry.key, fault.addr);
        let host = HostAddr(entry.host + (addr - entry.start));
        Some(Miss { key: entry.key, host, len, ahead: 0, write: need.writes() })
    }
}

/// The tree of a region, which has one if it is paged on demand. `None` if there is no memory for it.
fn tree(host: u64, len: u64, access: Access) -> Option<Root> {
    if access.contains(Access::ON_DEMAND) { Demand::tree(host, len) } else { Some(Root::NONE) }
}

/// The pages of a range of a region that is paged on demand.
#[inline(never)]
fn look_up(entry: &Entry, host: u64, len: u64, need: Access) -> Result<HostAddr, MemError> {
    let write = need.writes();
    if len != 0 {
        let page = |addr: u64| (addr >> PAGE_BITS) - (entry.host >> PAGE_BITS);
        if !entry.pages.has(page(host), page(host + (len - 1)), write) {
            let miss = Miss { key: entry.key, host: HostAddr(host), len, ahead: 0, write };
            return Err(MemError::NotPresent(miss));
        }
    }
    Ok(HostAddr(host))
}

/// Says what is wrong with an access that is known to be refused.
#[cold]
fn deny(entry: &Entry, pd: PdId, key: Key, addr: u64, len: u64, need: Access) -> Denial {
    if entry.pd != pd {
        Denial::WrongPd { key, has: entry.pd, wanted: pd }
    } else if !entry.access.contains(need) {
        Denial::NoPermission { key, has: entry.access, need }
    } else if addr.checked_add(len).is_none() {
        Denial::Overflow { key, addr, len }
    } else {
        Denial::OutOfBounds { key, addr, len, start: entry.start, size: entry.len }
    }
}

/// The rules for flags that need no look at the memory.
fn check_access(access: Access) -> Result<(), RegisterError> {
    let unknown = access.unknown();
    if unknown != Access(0) {
        return Err(RegisterError::UnknownAccess(unknown.0));
    }
    let remote = Access(access.0 & (Access::REMOTE_WRITE | Access::REMOTE_ATOMIC).0);
    if remote != Access(0) && !access.contains(Access::LOCAL_WRITE) {
        return Err(RegisterError::NeedsLocalWrite(remote));
    }
    let unsupported = Access(access.0 & Access::FLUSH_PERSISTENT.0);
    if unsupported != Access(0) {
        return Err(RegisterError::Unsupported(unsupported));
    }
    Ok(())
}

fn check_range(host: u64, len: u64, iova: u64, access: Access) -> Result<(), RegisterError> {
    if len == 0 {
        return Err(RegisterError::Empty);
    }
    for start in [host, iova] {
        if start.checked_add(len).is_none() {
            return Err(RegisterError::Overflow { start, len });
        }
    }
    // IBA has no word on it; the kernel lets such a region hold holes, and even nothing yet.
    if access.contains(Access::ON_DEMAND) {
        return Ok(());
    }
    let write = access.writes();
    mapped::check(host, len, write).map_err(|bad| match bad {
        Bad::Unmapped(addr) => RegisterError::NotMapped(addr),
        Bad::Protected(addr) => RegisterError::Protected { addr, write },
    })
}

#[allow(unsafe_code)]
fn fill_random(words: &mut [u64]) -> io::Result<()> {
    let bytes = size_of_val(words);
    loop {
        // SAFETY: writes at most as many bytes as the slice has.
        let n = unsafe { libc::getrandom(words.as_mut_ptr().cast(), bytes, 0) };
        if n == bytes as isize {
            return Ok(());
        }
        // Up to 256 bytes come at once, so anything else is an error.
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
