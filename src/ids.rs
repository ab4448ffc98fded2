//! Newtypes for every number that travels on the wire or through the verbs interface.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A packet sequence number: 24 bits, compared serially (IBA 9.7.2: half of the space is ahead, half behind).
///
/// There is no `Ord`: which of two PSNs is older depends on where one stands.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Psn(u32);

impl Psn {
    /// Bits that a PSN has on the wire.
    pub const MASK: u32 = 0x00ff_ffff;

    /// Takes the low 24 bits.
    pub const fn new(value: u32) -> Self {
        Self(value & Self::MASK)
    }
    /// The 24-bit value.
    pub const fn value(self) -> u32 {
        self.0
    }
    /// The PSN `n` packets later.
    pub const fn plus(self, n: u32) -> Self {
        Self::new(self.0.wrapping_add(n))
    }
    /// The PSN `n` packets earlier.
    pub const fn minus(self, n: u32) -> Self {
        Self::new(self.0.wrapping_sub(n))
    }
    /// How many packets `self` is after `other`; negative if it is before. In `-2^23 ..= 2^23 - 1`.
    pub const fn since(self, other: Self) -> i32 {
        (self.0.wrapping_sub(other.0) << 8) as i32 >> 8
    }
    /// How many packets `self` is after an `other` that is known not to come later. In `0 .. 2^24`.
    pub const fn ahead_of(self, other: Self) -> u32 {
        self.0.wrapping_sub(other.0) & Self::MASK
    }
    /// Whether `self` comes before `other`.
    pub const fn is_before(self, other: Self) -> bool {
        self.since(other) < 0
    }
    /// Whether `self` comes after `other`.
    pub const fn is_after(self, other: Self) -> bool {
        self.since(other) > 0
    }
}

impl fmt::Debug for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty), $fmt:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub $inner);

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, $fmt, self.0)
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(self, f)
            }
        }
    };
}

number!(
    /// A queue pair number: 24 bits. 0 and 1 are the management QPs, [`Qpn::MULTICAST`] addresses a group.
    Qpn(u32), "{:#08x}"
);
number!(
    /// A local key, as in a scatter/gather element.
    LKey(u32), "{:#010x}"
);
number!(
    /// A remote key, as in a RETH.
    RKey(u32), "{:#010x}"
);
number!(
    /// The key of datagram QPs.
    QKey(u32), "{:#010x}"
);
number!(
    /// A partition key. The device has one partition, [`PKey::DEFAULT`].
    PKey(u16), "{:#06x}"
);
number!(
    /// A local identifier: the low 16 bits of the port's IPv4 address.
    Lid(u16), "{:#06x}"
);

impl Qpn {
    /// The top 8 bits: which of the processes on an address the queue pair is in.
    pub const fn slot(self) -> u8 {
        (self.0 >> 16) as u8
    }

    /// Destination of a multicast datagram.
    pub const MULTICAST: Self = Self(0x00ff_ffff);
}

impl PKey {
    /// The default partition, full member.
    pub const DEFAULT: Self = Self(0xffff);

    /// IBA 10.9.3: the partitions are equal and not both ends are limited members.
    pub const fn matches(self, other: Self) -> bool {
        self.0 & 0x7fff == other.0 & 0x7fff && (self.0 | other.0) & 0x8000 != 0
    }
}

/// A global identifier: 128 bits. On RoCEv2 it is an IPv6 address or an IPv4-mapped one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The GID of an IP address; IPv4 as `::ffff:a.b.c.d`.
    pub fn from_ip(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(v4) => Self(v4.to_ipv6_mapped().octets()),
            IpAddr::V6(v6) => Self(v6.octets()),
        }
    }
    /// The IP address that a packet for this GID goes to.
    pub fn to_ip(self) -> IpAddr {
        let v6 = Ipv6Addr::from(self.0);
        match v6.to_ipv4_mapped() {
            Some(v4) => IpAddr::V4(v4),
            None => IpAddr::V6(v6),
        }
    }
    /// The GUID of the device with this address: an EUI-64, locally administered, so that it collides with no adapter's.
    pub fn eui64_of(ip: IpAddr) -> u64 {
        let o = Self::from_ip(ip).0;
        u64::from_be_bytes([0x02, o[8] ^ o[0], o[9] ^ o[1], 0xff, 0xfe, o[13], o[14], o[15]])
            ^ u64::from(o[12]) << 40
    }
    /// Whether all bits are 0: an empty slot of the GID table.
    pub fn is_zero(self) -> bool {
        self.0 == [0; 16]
    }
    /// The link-local GID made of an EUI-64.
    pub fn link_local(eui64: u64) -> Self {
        let mut g = [0; 16];
        g[0] = 0xfe;
        g[1] = 0x80;
        g[8..].copy_from_slice(&eui64.to_be_bytes());
        Self(g)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Ipv6Addr::from(self.0))
    }
}

impl From<Ipv4Addr> for Lid {
    fn from(ip: Ipv4Addr) -> Self {
        let o = ip.octets();
        Self(u16::from_be_bytes([o[2], o[3]]))
    }
}

/// A path MTU: payload bytes of a full packet.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Mtu {
    /// 256 bytes.
    B256 = 1,
    /// 512 bytes.
    B512 = 2,
    /// 1024 bytes.
    B1024 = 3,
    /// 2048 bytes.
    B2048 = 4,
    /// 4096 bytes.
    B4096 = 5,
}

impl Mtu {
    /// All, smallest first.
    pub const ALL: [Self; 5] = [Self::B256, Self::B512, Self::B1024, Self::B2048, Self::B4096];

    /// Payload bytes of a full packet.
    pub const fn bytes(self) -> u32 {
        128 << self as u32
    }
    /// From the code that `enum ibv_mtu` uses: 1 to 5.
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::B256),
            2 => Some(Self::B512),
            3 => Some(Self::B1024),
            4 => Some(Self::B2048),
            5 => Some(Self::B4096),
            _ => None,
        }
    }
    /// The largest one whose packets fit a link MTU (IP bytes): headers take 20 or 40 (IP) + 8 (UDP) + up to 44 (IBA).
    pub fn for_link(link_mtu: u32) -> Option<Self> {
        Self::ALL.into_iter().rev().find(|m| m.bytes() + 40 + 8 + 44 <= link_mtu)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn psn_compares_serially_across_the_wrap() {
        let a = Psn::new(0xff_fffd);
        let b = a.plus(5);
        assert_eq!(b.value(), 2);
        assert_eq!(b.since(a), 5);
        assert_eq!(a.since(b), -5);
        assert!(a.is_before(b) && b.is_after(a) && !a.is_after(a));
        assert_eq!(b.minus(5), a);
        assert_eq!(Psn::new(0x80_0000).since(Psn::new(0)), -0x80_0000);
    }

    #[test]
    fn gid_maps_to_ip_and_back() {
        for ip in ["127.0.0.1", "fe80::1", "10.1.2.3"] {
            let ip: IpAddr = ip.parse().unwrap();
            assert_eq!(Gid::from_ip(ip).to_ip(), ip);
        }
    }

    #[test]
    fn link_mtu_1500_carries_1024() {
        assert_eq!(Mtu::for_link(1500), Some(Mtu::B1024));
        assert_eq!(Mtu::for_link(65536), Some(Mtu::B4096));
        assert_eq!(Mtu::for_link(4200), Some(Mtu::B4096));
        assert_eq!(Mtu::for_link(100), None);
    }
}
