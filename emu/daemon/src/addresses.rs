//! Which address a device has.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};

use urxe::io::ROCE_PORT;
use urxe_control::protocol::{DeviceSpec, Failure};

/// Machines of a block.
const NODES: u32 = 64;
/// The highest block. LIDs are the low 16 bits of an address, and those from 0xc000 on are not unicast (IBA 4.1.1).
const LAST: u8 = 190;

/// 127.0.B.0/24: the addresses of a fabric whose devices have no configured ones.
#[derive(Debug)]
pub(crate) struct Block {
    number: u8,
    /// Holds the block: no other daemon can bind it.
    _claim: UdpSocket,
}

impl Block {
    /// Claims a block: the first that is free, from the one on that the fabric would like.
    pub(crate) fn claim(fabric: &str, previous: Option<u8>, not: &[u8]) -> Result<Self, Failure> {
        let first = previous.filter(|b| (1..=LAST).contains(b)).unwrap_or_else(|| favourite(fabric));
        let all = (first..=LAST).chain(1..first);
        let mut why = None;
        for number in all.filter(|number| !not.contains(number)) {
            match Self::claim_one(number) {
                Ok(block) => return Ok(block),
                Err(e) => why = Some(e),
            }
        }
        let why = why.map_or(String::new(), |e| format!(": {e}"));
        Err(Failure {
            errno: libc::EADDRINUSE,
            message: format!(
                "no device address is free: UDP port {ROCE_PORT} is taken on all of 127.0.1.0 to 127.0.{LAST}.0{why} (a \
                 socket on 0.0.0.0, such as the kernel's rdma_rxe has, takes them all)"
            ),
        })
    }

    /// Claims one.
    pub(crate) fn claim_one(number: u8) -> io::Result<Self> {
        // Without SO_REUSEADDR, so at most one has it.
        Ok(Self { number, _claim: UdpSocket::bind((Ipv4Addr::new(127, 0, number, 0), ROCE_PORT))? })
    }

    pub(crate) fn number(&self) -> u8 {
        self.number
    }

    /// The address of a device.
    pub(crate) fn address(&self, node: u32, rail: u32) -> Result<IpAddr, Failure> {
        let invalid = |message| Failure { errno: libc::EINVAL, message };
        if node >= NODES || rail > 3 {
            return Err(invalid(format!(
                "there is no device {rail} of node {node}: 64 nodes have 4 devices at most"
            )));
        }
        let last = u8::try_from(1 + node + NODES * rail).map_err(|_| {
            invalid("node 63 has at most 3 devices: 127.0.x.0/24 has no more addresses".into())
        })?;
        Ok(Ipv4Addr::new(127, 0, self.number, last).into())
    }

    /// The block of an address, if it could be one.
    pub(crate) fn number_of(address: IpAddr) -> Option<u8> {
        match address {
            IpAddr::V4(v4) => match v4.octets() {
                [127, 0, number @ 1..=LAST, last] if last > 0 => Some(number),
                _ => None,
            },
            IpAddr::V6(_) => None,
        }
    }
}

/// The same for every daemon of a user's fabric, so that addresses rarely change.
fn favourite(fabric: &str) -> u8 {
    if fabric == "default" {
        return 1;
    }
    let mut hash = DefaultHasher::new();
    (rustix::process::geteuid().as_raw(), fabric).hash(&mut hash);
    1 + (hash.finish() % u64::from(LAST)) as u8
}

/// The LIDs of the devices: no two have the same.
#[derive(Default, Debug)]
pub(crate) struct Lids {
    by_lid: HashMap<u16, IpAddr>,
}

impl Lids {
    /// The LID of a device that is asked for: the configured one, else the low 16 bits of its IPv4 address. An IPv6
    /// device without a configured one has one that its process makes up.
    fn wanted(spec: &DeviceSpec, address: IpAddr) -> Option<u16> {
        spec.lid.or(match address {
            IpAddr::V4(v4) => Some(v4.to_bits() as u16),
            IpAddr::V6(_) => None,
        })
    }

    /// Enters a device. It may be there already, with the same LID.
    pub(crate) fn enter(&mut self, spec: &DeviceSpec, address: IpAddr) -> Result<(), Failure> {
        let Some(lid) = Self::wanted(spec, address) else { return Ok(()) };
        let invalid = |message| Err(Failure { errno: libc::EINVAL, message });
        match self.by_lid.get(&lid) {
            Some(other) if *other == address => return Ok(()),
            Some(other) => {
                return invalid(format!(
                    "LID {lid:#06x} would belong to two devices, {other} and {address}; set lid to another one"
                ));
            }
            None => {}
        }
        if let Some((has, _)) = self.by_lid.iter().find(|(_, a)| **a == address) {
            return invalid(format!(
                "device {address} would have two LIDs, {has:#06x} and {lid:#06x}; all processes need the same lid"
            ));
        }
        self.by_lid.insert(lid, address);
        Ok(())
    }

    /// Forgets a device.
    pub(crate) fn remove(&mut self, address: IpAddr) {
        self.by_lid.retain(|_, a| *a != address);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(lid: Option<u16>) -> DeviceSpec {
        DeviceSpec { node: 0, rail: 0, address: None, scope: 0, lid }
    }

    #[test]
    fn two_devices_with_one_lid_are_both_named() {
        let mut lids = Lids::default();
        let [a, b]: [IpAddr; 2] = ["127.0.3.1".parse().unwrap(), "10.7.3.1".parse().unwrap()];
        lids.enter(&spec(None), a).unwrap();
        lids.enter(&spec(None), a).unwrap();
        let message = lids.enter(&spec(None), b).unwrap_err().message;
        assert!(["0x0301", "127.0.3.1", "10.7.3.1"].iter().all(|w| message.contains(w)), "{message}");
        lids.enter(&spec(Some(9)), b).unwrap();
        let message = lids.enter(&spec(Some(8)), b).unwrap_err().message;
        assert!(["0x0009", "0x0008", "10.7.3.1"].iter().all(|w| message.contains(w)), "{message}");
        lids.remove(a);
        lids.remove(b);
        lids.enter(&spec(None), b).unwrap();
    }

    #[test]
    fn each_device_of_a_block_has_an_address_with_a_unicast_lid() {
        let block = Block { number: LAST, _claim: UdpSocket::bind("127.0.0.1:0").unwrap() };
        let mut seen = std::collections::HashSet::new();
        for (node, rail) in (0..64).flat_map(|n| (0..4).map(move |r| (n, r))).filter(|d| *d != (63, 3)) {
            let address = block.address(node, rail).unwrap();
            assert!(seen.insert(address), "{address} twice");
            assert_eq!(Block::number_of(address), Some(LAST));
            assert!(Lids::wanted(&spec(None), address).unwrap() < 0xc000);
        }
        assert_eq!(block.address(2, 0).unwrap().to_string(), "127.0.190.3");
        for (node, rail) in [(63, 3), (64, 0), (0, 4), (u32::MAX, u32::MAX)] {
            assert_eq!(block.address(node, rail).unwrap_err().errno, libc::EINVAL);
        }
    }
}
