//! Memory that the device and the program share, and its registration.
#![allow(unsafe_code)]

use std::io;
use std::ops::Range;
use std::sync::Arc;

use urxe_abi::*;

use super::context::Context;
use super::error::{Error, Result, check};
use super::library::{self, library};

/// Pages of the system.
pub(crate) const PAGE: u64 = 4096;

/// Memory of its own pages, which the device writes whenever it likes. So there are no references to it: bytes are read
/// and written one way or the other as volatile ones.
#[derive(Debug)]
pub struct Mapping {
    start: *mut u8,
    length: usize,
}

// SAFETY: all access is volatile or by the device; nobody relies on what others leave alone.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

/// Which pages a mapping may have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PageSize {
    /// Whatever the system finds best.
    System,
    /// Small ones, so that each is given back alone.
    Small,
}

impl Mapping {
    /// Maps at least this many bytes of zeros.
    pub fn new(length: u64, pages: PageSize) -> io::Result<Self> {
        let length = usize::try_from(length.max(1).next_multiple_of(PAGE)).map_err(io::Error::other)?;
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at a place of the system's choice.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let mapping = Self { start: start.cast(), length };
        if pages == PageSize::Small {
            mapping.advise(0..mapping.len(), libc::MADV_NOHUGEPAGE)?;
        }
        Ok(mapping)
    }

    /// Where it is.
    pub fn address(&self) -> u64 {
        self.start as u64
    }

    /// Its length in bytes, a multiple of the page size.
    pub fn len(&self) -> u64 {
        self.length as u64
    }

    /// Never: there is at least one page.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Address of a part, which has to lie in the mapping.
    pub(crate) fn address_of(&self, offset: u64, length: u64) -> Option<u64> {
        let end = offset.checked_add(length)?;
        (end <= self.len()).then(|| self.address() + offset)
    }

    fn place(&self, offset: u64) -> *mut u8 {
        assert!(offset < self.len(), "offset {offset} of {}", self.len());
        // SAFETY: it lies in the mapping.
        unsafe { self.start.add(offset as usize) }
    }

    /// Reads a byte.
    pub fn read(&self, offset: u64) -> u8 {
        // SAFETY: it lies in the mapping.
        unsafe { self.place(offset).read_volatile() }
    }

    /// Writes a byte.
    pub fn write(&self, offset: u64, byte: u8) {
        // SAFETY: it lies in the mapping.
        unsafe { self.place(offset).write_volatile(byte) }
    }

    /// Copies bytes out. Whether they are all of one moment is the caller's business.
    pub fn copy_out(&self, offset: u64, to: &mut [u8]) {
        let from = self.part(offset, to.len());
        // SAFETY: both are as long as that, and apart.
        unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) }
    }

    /// Copies bytes in.
    pub fn copy_in(&self, offset: u64, from: &[u8]) {
        let to = self.part(offset, from.len());
        // SAFETY: both are as long as that, and apart.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) }
    }

    /// Copies bytes from one place to another, which may not overlap.
    pub fn copy_within(&self, from: u64, to: u64, length: u64) {
        assert!(from.abs_diff(to) >= length, "{from} and {to} overlap for {length} bytes");
        let (from, to) = (self.part(from, length as usize), self.part(to, length as usize));
        // SAFETY: both lie in the mapping and are apart.
        unsafe { std::ptr::copy_nonoverlapping(from, to, length as usize) }
    }

    fn part(&self, offset: u64, length: usize) -> *mut u8 {
        assert!(offset + length as u64 <= self.len(), "{length} bytes at {offset} of {}", self.len());
        self.start.wrapping_add(offset as usize)
    }

    /// Gives pages back to the system: they are zero at the next access.
    pub fn discard(&self, range: Range<u64>) -> io::Result<()> {
        self.advise(range, libc::MADV_DONTNEED)
    }

    fn advise(&self, range: Range<u64>, advice: i32) -> io::Result<()> {
        let length = (range.end - range.start) as usize;
        let start = self.part(range.start, length);
        // SAFETY: the pages are the mapping's, and nobody has a reference to them.
        match unsafe { libc::madvise(start.cast(), length, advice) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: it is the mapping's, and regions hold their mapping.
        unsafe { libc::munmap(self.start.cast(), self.length) };
    }
}

/// A protection domain.
#[derive(Debug)]
pub struct ProtectionDomain {
    pub(super) raw: *mut ibv_pd,
    pub(super) context: Arc<Context>,
}

// SAFETY: verbs may be called by any thread, and the pointer is never changed.
unsafe impl Send for ProtectionDomain {}
// SAFETY: as above.
unsafe impl Sync for ProtectionDomain {}

/// How a region is registered. All have local and remote rights to everything.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Without on-demand paging.
    Pinned,
    /// With it.
    OnDemand,
}

impl Access {
    fn flags(self, atomics: bool) -> i32 {
        let atomic = if atomics { IBV_ACCESS_REMOTE_ATOMIC } else { 0 };
        let all = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | atomic;
        match self {
            Self::Pinned => all as i32,
            Self::OnDemand => (all | IBV_ACCESS_ON_DEMAND) as i32,
        }
    }
}

impl ProtectionDomain {
    /// A new one.
    pub fn new(context: &Arc<Context>) -> Result<Arc<Self>> {
        // SAFETY: the context is open.
        let raw = unsafe { (library()?.ibv_alloc_pd)(context.raw) };
        match raw.is_null() {
            true => Err(Error::last("ibv_alloc_pd")),
            false => Ok(Arc::new(Self { raw, context: context.clone() })),
        }
    }

    /// The device.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Registers a part of a mapping.
    pub fn register(
        self: &Arc<Self>,
        mapping: &Arc<Mapping>,
        range: Range<u64>,
        access: Access,
        atomics: bool,
    ) -> Result<MemoryRegion> {
        let length = range.end - range.start;
        let address = mapping.part(range.start, length as usize);
        self.register_raw(address, length as usize, access.flags(atomics), Some(mapping.clone()))
    }

    /// Registers the whole address space with on-demand paging. Whoever has the key reaches all memory of the process,
    /// so it is for peers that are trusted.
    pub fn register_all(self: &Arc<Self>, atomics: bool) -> Result<MemoryRegion> {
        self.register_raw(std::ptr::null_mut(), usize::MAX, Access::OnDemand.flags(atomics), None)
    }

    fn register_raw(
        self: &Arc<Self>,
        address: *mut u8,
        length: usize,
        flags: i32,
        mapping: Option<Arc<Mapping>>,
    ) -> Result<MemoryRegion> {
        // SAFETY: a device only reads and writes what is mapped, and mappings are held.
        let raw = unsafe { (library()?.ibv_reg_mr)(self.raw, address.cast(), length, flags) };
        if raw.is_null() {
            return Err(Error::last("ibv_reg_mr"));
        }
        // SAFETY: the region is new.
        let (local, remote) = unsafe { ((*raw).lkey, (*raw).rkey) };
        Ok(MemoryRegion { raw, local, remote, domain: self.clone(), _mapping: mapping })
    }
}

impl Drop for ProtectionDomain {
    fn drop(&mut self) {
        if let Ok(library) = library() {
            // SAFETY: all that was made from it holds it, and so is gone.
            unsafe { (library.ibv_dealloc_pd)(self.raw) };
        }
    }
}

/// Registered memory. It is kept mapped as long as it is registered.
#[derive(Debug)]
pub struct MemoryRegion {
    raw: *mut ibv_mr,
    local: u32,
    remote: u32,
    domain: Arc<ProtectionDomain>,
    _mapping: Option<Arc<Mapping>>,
}

// SAFETY: verbs may be called by any thread, and the pointer is never changed.
unsafe impl Send for MemoryRegion {}
// SAFETY: as above.
unsafe impl Sync for MemoryRegion {}

/// What the device does with prefetched pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Prefetch {
    /// It reads them.
    Read,
    /// It writes them, too.
    Write,
}

impl MemoryRegion {
    /// Key for requests of this end.
    pub fn local_key(&self) -> u32 {
        self.local
    }

    /// Key for requests of the other end.
    pub fn remote_key(&self) -> u32 {
        self.remote
    }

    /// Makes pages present now; returns when they are.
    pub fn prefetch(&self, address: u64, length: u64, how: Prefetch) -> Result<()> {
        const MOST: u64 = 1 << 30;
        // SAFETY: the region holds its context.
        let advise = unsafe { library::advise_mr(self.domain.context.raw) }
            .ok_or_else(|| Error::Unsupported("the device or library has no ibv_advise_mr".to_owned()))?;
        let advice = match how {
            Prefetch::Read => IBV_ADVISE_MR_ADVICE_PREFETCH,
            Prefetch::Write => IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE,
        };
        let mut done = 0;
        while done < length {
            let part = (length - done).min(MOST);
            let mut element = ibv_sge { addr: address + done, length: part as u32, lkey: self.local };
            // SAFETY: the element is valid; wrong addresses are an error.
            let returned =
                unsafe { advise(self.domain.raw, advice, IBV_ADVISE_MR_FLAG_FLUSH, &mut element, 1) };
            check("ibv_advise_mr", returned)?;
            done += part;
        }
        Ok(())
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        if let Ok(library) = library() {
            // SAFETY: the region is this one's.
            unsafe { (library.ibv_dereg_mr)(self.raw) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn discarded_pages_are_zero_and_others_stay() {
        let mapping = Mapping::new(3 * PAGE, PageSize::Small).unwrap();
        for page in 0..3 {
            mapping.write(page * PAGE, 7);
        }
        mapping.discard(PAGE..2 * PAGE).unwrap();
        assert_eq!([0, 1, 2].map(|page| mapping.read(page * PAGE)), [7, 0, 7]);
        assert_eq!(mapping.address_of(3 * PAGE - 1, 2), None);
    }
}
