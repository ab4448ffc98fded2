//! Application memory: which of it a key opens ([`Table`]), and the only code that touches it ([`copy`]).
//!
//! Memory that is registered belongs to the program, which may write, unmap or truncate it at any moment. So nothing
//! here ever forms a reference to it: a key is translated to a [`HostAddr`], an opaque number, and the functions of
//! [`copy`] move bytes between it and buffers of our own under a guard that turns a page fault which the kernel
//! cannot resolve into a [`Fault`] ([`guard`]).
//!
//! Registering costs the same for a page and for a terabyte: nothing is pinned, touched or populated.

pub mod copy;
pub mod guard;
mod keys;
mod mapped;
pub mod odp;
mod slots;
mod table;

use std::fmt;
use std::ops::BitOr;

pub use copy::Fault;
pub use odp::Miss;
pub use table::{AdviseError, Change, DeregisterError, Quiesced, Region, RegisterError, Registered, Table};

use crate::ids::{LKey, RKey};

/// An address in this process that only [`copy`] may touch (or the kernel, as part of an iovec: it checks by itself).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostAddr(pub u64);

impl HostAddr {
    /// The address `bytes` further on. Wraps; a copy from or to a wrapped range faults.
    pub const fn plus(self, bytes: u64) -> Self {
        Self(self.0.wrapping_add(bytes))
    }
}

impl fmt::Debug for HostAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// A protection domain.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct PdId(pub u32);

impl fmt::Display for PdId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What a region allows, with the values of `enum ibv_access_flags`. Empty means local reads only.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Access(pub u32);

impl Access {
    /// Local reads, which every region allows.
    pub const LOCAL_READ: Self = Self(0);
    /// The device may write for its own process: receives, READ responses, results of atomics.
    pub const LOCAL_WRITE: Self = Self(1);
    /// Peers may write.
    pub const REMOTE_WRITE: Self = Self(1 << 1);
    /// Peers may read.
    pub const REMOTE_READ: Self = Self(1 << 2);
    /// Peers may execute atomics.
    pub const REMOTE_ATOMIC: Self = Self(1 << 3);
    /// Windows may be bound to the region.
    pub const MW_BIND: Self = Self(1 << 4);
    /// Addresses are offsets from the start of the region.
    pub const ZERO_BASED: Self = Self(1 << 5);
    /// Pages are looked up on use (ODP).
    pub const ON_DEMAND: Self = Self(1 << 6);
    /// The memory consists of huge pages; a hint.
    pub const HUGETLB: Self = Self(1 << 7);
    /// Peers may FLUSH to global visibility.
    pub const FLUSH_GLOBAL: Self = Self(1 << 8);
    /// Peers may FLUSH to persistence.
    pub const FLUSH_PERSISTENT: Self = Self(1 << 9);
    /// Writes need no order among themselves; a hint.
    pub const RELAXED_ORDERING: Self = Self(1 << 20);

    /// `IBV_ACCESS_OPTIONAL_RANGE`: bits that a device ignores when it does not know them.
    pub const OPTIONAL: Self = Self(0x3ff << 20);
    /// Every bit outside of [`Self::OPTIONAL`] that means something.
    pub const KNOWN: Self = Self(0x3ff);

    const NAMES: [(Self, &'static str); 11] = [
        (Self::LOCAL_WRITE, "LOCAL_WRITE"),
        (Self::REMOTE_WRITE, "REMOTE_WRITE"),
        (Self::REMOTE_READ, "REMOTE_READ"),
        (Self::REMOTE_ATOMIC, "REMOTE_ATOMIC"),
        (Self::MW_BIND, "MW_BIND"),
        (Self::ZERO_BASED, "ZERO_BASED"),
        (Self::ON_DEMAND, "ON_DEMAND"),
        (Self::HUGETLB, "HUGETLB"),
        (Self::FLUSH_GLOBAL, "FLUSH_GLOBAL"),
        (Self::FLUSH_PERSISTENT, "FLUSH_PERSISTENT"),
        (Self::RELAXED_ORDERING, "RELAXED_ORDERING"),
    ];

    /// Whether every bit of `other` is set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
    /// Whether any bit of `other` is set.
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
    /// The bits of both.
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
    /// Bits that a device must refuse because it does not know what they ask for.
    pub const fn unknown(self) -> Self {
        Self(self.0 & !(Self::KNOWN.0 | Self::OPTIONAL.0))
    }
    /// Whether the pages themselves must be writable. As the kernel has it: binding counts, since a window may
    /// grant writes.
    pub const fn writes(self) -> bool {
        self.intersects(Self(
            Self::LOCAL_WRITE.0 | Self::REMOTE_WRITE.0 | Self::REMOTE_ATOMIC.0 | Self::MW_BIND.0,
        ))
    }
}

impl BitOr for Access {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        self.union(other)
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 {
            return f.write_str("LOCAL_READ");
        }
        let mut rest = self.0;
        let mut first = true;
        for (bit, name) in Self::NAMES {
            if self.contains(bit) {
                if !first {
                    f.write_str("|")?;
                }
                f.write_str(name)?;
                first = false;
                rest &= !bit.0;
            }
        }
        if rest != 0 {
            if !first {
                f.write_str("|")?;
            }
            write!(f, "{rest:#x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The key that a range is addressed by.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Key {
    /// From a scatter/gather element of this process.
    Local(LKey),
    /// From a packet.
    Remote(RKey),
}

impl Key {
    const fn value(self) -> u32 {
        match self {
            Self::Local(key) => key.0,
            Self::Remote(key) => key.0,
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local(key) => write!(f, "lkey {key}"),
            Self::Remote(key) => write!(f, "rkey {key}"),
        }
    }
}

/// Why a range of memory cannot be used now.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MemError {
    /// The key does not allow it.
    #[error(transparent)]
    Denied(#[from] Denial),
    /// A page is not there yet: an outcome that the caller waits on, where [`MemError::Denied`] is final.
    #[error("{0}")]
    NotPresent(Miss),
}

/// Which check refused an access. `Display` is the sentence for the log: it names the rule and the values.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Denial {
    /// No region has this key (any more).
    #[error("{key} names no memory region")]
    UnknownKey {
        /// The key that was used.
        key: Key,
    },
    /// IBA 10.6.3.5: key and QP must belong to the same PD.
    #[error("{key} belongs to PD {has}, the QP to PD {wanted}")]
    WrongPd {
        /// The key that was used.
        key: Key,
        /// The PD of the region.
        has: PdId,
        /// The PD of the user.
        wanted: PdId,
    },
    /// The end of the range is beyond 2^64.
    #[error("{key}: address {addr:#x} + length {len:#x} exceeds 64 bits")]
    Overflow {
        /// The key that was used.
        key: Key,
        /// Start of the range asked for.
        addr: u64,
        /// Its length.
        len: u64,
    },
    /// The range is not inside the region.
    #[error("{key}: address {addr:#x}, length {len:#x} is outside the region {start:#x}, length {size:#x}")]
    OutOfBounds {
        /// The key that was used.
        key: Key,
        /// Start of the range asked for.
        addr: u64,
        /// Its length.
        len: u64,
        /// First address of the region.
        start: u64,
        /// Bytes of the region.
        size: u64,
    },
    /// The region was not registered for this.
    #[error("{key} allows {has}, the operation needs {need}")]
    NoPermission {
        /// The key that was used.
        key: Key,
        /// What the region allows.
        has: Access,
        /// What the operation needs.
        need: Access,
    },
}

/// What the protocol engine knows of memory.
pub trait Memory: Send + Sync {
    /// The host address of `[addr, addr + len)` in the region that `key` names, if `pd` owns the region, the range
    /// lies inside it and `need` is allowed.
    ///
    /// An empty range is checked like any other, and may lie at the very end. Where the spec wants no check at all
    /// (an SGE of length 0), the caller does not call.
    ///
    /// The answer says nothing about the pages: a copy may still fault. Only where pages are looked up on use
    /// ([`Access::ON_DEMAND`]) they are looked up here.
    fn translate(&self, pd: PdId, key: Key, addr: u64, len: u64, need: Access) -> Result<HostAddr, MemError>;

    /// The checks of [`translate`](Self::translate) without a look at pages.
    fn check(&self, pd: PdId, key: Key, addr: u64, len: u64, need: Access) -> Result<(), Denial>;

    /// An access to `[addr, addr + len)`, which was translated before, has faulted. If its pages are looked up on use,
    /// this is what to wait for; `None` if the memory has simply gone.
    fn missing(&self, fault: Fault, pd: PdId, key: Key, addr: u64, len: u64, need: Access) -> Option<Miss>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_bits_have_the_values_of_verbs_h_and_unknown_ones_are_found() {
        let all = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1 << 20];
        assert_eq!(Access::NAMES.map(|(bit, _)| bit.0), all);
        assert_eq!(Access(0x3ff | 0x3ff << 20).unknown(), Access(0));
        assert_eq!(Access(0xffff_ffff).unknown(), Access(0xc00f_fc00));
    }

    #[test]
    fn access_prints_its_bits() {
        assert_eq!(Access(0).to_string(), "LOCAL_READ");
        assert_eq!((Access::LOCAL_WRITE | Access::REMOTE_READ).to_string(), "LOCAL_WRITE|REMOTE_READ");
        assert_eq!(Access(1 | 1 << 25).to_string(), "LOCAL_WRITE|0x2000000");
    }

    #[test]
    fn denials_name_the_rule_and_the_values() {
        let key = Key::Remote(RKey(0x1234));
        let denial = Denial::OutOfBounds { key, addr: 0x1ff0, len: 0x20, start: 0x1000, size: 0x1000 };
        assert_eq!(
            denial.to_string(),
            "rkey 0x00001234: address 0x1ff0, length 0x20 is outside the region 0x1000, length 0x1000"
        );
        let denial = Denial::NoPermission { key, has: Access::LOCAL_WRITE, need: Access::REMOTE_WRITE };
        assert_eq!(
            denial.to_string(),
            "rkey 0x00001234 allows LOCAL_WRITE, the operation needs REMOTE_WRITE"
        );
    }
}
