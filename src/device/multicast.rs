//! Which queue pairs are in which group.
//!
//! A group is an address of IP multicast. Datagrams to it are for the queue pair number 0xffffff, and each queue pair
//! that is attached gets a copy (IBA 10.5.2, A17).

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use parking_lot::RwLock;

use super::Core;
use super::qp::{Qp, QueuePair};
use super::receive::Valid;
use crate::ids::{Gid, Qpn};
use crate::qp::Notices;
use crate::time::Instant;
use crate::verbs::{QpType, limits};
use crate::wire::Service;

/// Why a queue pair cannot be attached to a group, or detached.
#[derive(Debug, thiserror::Error)]
pub enum GroupError {
    /// Only datagrams go to groups.
    #[error("a {0:?} queue pair cannot be in a group, only a Ud one can")]
    NotDatagram(QpType),
    /// Not a group's address.
    #[error("{0:?} is no multicast GID")]
    NotMulticast(Gid),
    /// IPv4 groups do not exist in IPv6.
    #[error("{0:?} is a group of IPv4, and the device has an IPv6 address")]
    Family(Gid),
    /// Too many groups.
    #[error("the device is in {} groups already", limits::MAX_GROUPS)]
    TooManyGroups,
    /// Too many members.
    #[error("the group has {} queue pairs already", limits::MAX_GROUP_QPS)]
    TooManyMembers,
    /// It is not in that group.
    #[error("the queue pair is not attached to {0:?}")]
    NotAttached(Gid),
    /// The system does not let us join.
    #[error("the group {0} cannot be joined: {1}")]
    System(IpAddr, io::Error),
}

/// The address of a group, as a device with the address `local` reaches it: the IPv4 address of an IPv4-mapped GID,
/// else the GID itself as an IPv6 address. `None` if it is no multicast GID, or one that the device cannot reach.
///
/// A device with an IPv4 address cannot send to an IPv6 group, but programs are used to make up an IPv6 GID for their
/// group, whatever the port's own GIDs are. It becomes an IPv4 group of 239.0.0.0/8, which is for private use (RFC
/// 2365), by a hash of the GID. For the same reason an IPv6 group of a scope that never leaves the host, as in perftest's
/// ff01::, means the group of the same name on the link.
pub fn group_of(gid: Gid, local: IpAddr) -> Option<IpAddr> {
    match (gid.to_ip(), local) {
        (IpAddr::V4(group), IpAddr::V4(_)) if group.is_multicast() => Some(group.into()),
        (IpAddr::V6(group), IpAddr::V6(_)) if group.is_multicast() => {
            let mut octets = group.octets();
            if octets[1] & 0xf <= 1 {
                octets[1] = octets[1] & 0xf0 | 2;
            }
            Some(IpAddr::from(octets))
        }
        (IpAddr::V6(group), IpAddr::V4(_)) if group.is_multicast() => {
            // FNV-1a, folded to 24 bits.
            let hash = |hash: u32, byte: &u8| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
            let hash = gid.0.iter().fold(0x811c_9dc5, hash);
            let [_, b, c, d] = (hash >> 24 ^ hash & 0x00ff_ffff).to_be_bytes();
            Some(Ipv4Addr::new(239, b, c, d).into())
        }
        _ => None,
    }
}

/// The groups of a device.
#[derive(Default)]
pub(crate) struct Groups {
    /// The members are a list of their own, so that they are served without this lock.
    members: RwLock<HashMap<IpAddr, Arc<[Arc<Qp>]>>>,
}

impl Groups {
    fn members(&self, group: IpAddr) -> Option<Arc<[Arc<Qp>]>> {
        self.members.read().get(&group).cloned()
    }

    pub(super) fn clear(&self) {
        self.members.write().clear();
    }
}

impl QueuePair {
    /// Attaches it to a group. Once more is no error and changes nothing.
    pub fn attach(&self, gid: Gid) -> Result<(), GroupError> {
        let group = self.group(gid)?;
        let mut groups = self.core.groups.members.write();
        let others = groups.get(&group).cloned();
        if let Some(others) = &others {
            if others.iter().any(|qp| Arc::ptr_eq(qp, &self.qp)) {
                return Ok(());
            }
            if others.len() >= limits::MAX_GROUP_QPS as usize {
                return Err(GroupError::TooManyMembers);
            }
        } else {
            if groups.len() >= limits::MAX_GROUPS as usize {
                return Err(GroupError::TooManyGroups);
            }
            self.core.link.join(group).map_err(|e| GroupError::System(group, e))?;
        }
        let others = others.iter().flat_map(|others| others.iter());
        let all = others.chain([&self.qp]).cloned().collect();
        groups.insert(group, all);
        drop(groups);
        self.core.attention.waits_for_more();
        Ok(())
    }

    /// Detaches it from a group.
    pub fn detach(&self, gid: Gid) -> Result<(), GroupError> {
        let group = self.group(gid)?;
        match self.core.leave(&self.qp, group) {
            true => Ok(()),
            false => Err(GroupError::NotAttached(gid)),
        }
    }

    /// Whether it is in a group.
    pub fn is_attached(&self) -> bool {
        self.core
            .groups
            .members
            .read()
            .values()
            .flat_map(|qps| qps.iter())
            .any(|qp| Arc::ptr_eq(qp, &self.qp))
    }

    /// Whether it gets what it sends to a group that it is in, as all other members do. It does, if nothing is said.
    pub fn hear_itself(&self, hears: bool) {
        self.qp.deaf_to_itself.store(!hears, std::sync::atomic::Ordering::Relaxed);
    }

    fn group(&self, gid: Gid) -> Result<IpAddr, GroupError> {
        if self.qp.kind != QpType::Ud {
            return Err(GroupError::NotDatagram(self.qp.kind));
        }
        group_of(gid, self.core.port.ip).ok_or_else(|| match gid.to_ip().is_multicast() {
            true => GroupError::Family(gid),
            false => GroupError::NotMulticast(gid),
        })
    }
}

impl Core {
    /// Takes a queue pair out of a group. False if it was not in it.
    fn leave(&self, qp: &Arc<Qp>, group: IpAddr) -> bool {
        let mut groups = self.groups.members.write();
        let Some(members) = groups.get(&group) else { return false };
        let rest: Arc<[_]> = members.iter().filter(|member| !Arc::ptr_eq(member, qp)).cloned().collect();
        if rest.len() == members.len() {
            return false;
        }
        if rest.is_empty() {
            groups.remove(&group);
            self.link.leave(group);
        } else {
            groups.insert(group, rest);
        }
        true
    }

    /// Takes a queue pair that is destroyed out of all groups.
    pub(super) fn leave_all(&self, qp: &Arc<Qp>) {
        if qp.kind != QpType::Ud {
            return;
        }
        let groups: Vec<IpAddr> = self.groups.members.read().keys().copied().collect();
        for group in groups {
            self.leave(qp, group);
        }
    }

    /// A packet that came to a group's address, or is for the queue pair number of groups. It has to be both (IBA
    /// 9.6.1.2): else a stranger could reach any queue pair through a group.
    pub(super) fn deliver_to_group(&self, packet: &Valid<'_>, now: Instant) {
        let bth = &packet.headers.bth;
        let info = bth.opcode.info();
        let is_multicast = bth.dest_qpn == Qpn::MULTICAST
            && packet.source.dst.is_multicast()
            && info.request
            && info.service == Service::Ud;
        let members = if is_multicast { self.groups.members(packet.source.dst) } else { None };
        let Some(members) = members else {
            self.counters.dropped_multicast.add(1);
            return;
        };
        self.counters.rcvd_pkts.add(1);
        let own = packet.source.src.ip() == self.port.ip;
        let sender = packet.headers.deth.filter(|_| own).map(|deth| deth.src_qpn);
        for qp in members.iter() {
            if sender == Some(qp.number) && qp.deaf_to_itself.load(std::sync::atomic::Ordering::Relaxed) {
                continue;
            }
            let mut side = qp.recv.lock();
            let mut notices = Notices::default();
            self.handle_request(&mut side, packet, now, &mut notices);
            qp.deliver_recv(self, &mut side);
            qp.tend_parked(self, &mut side, now);
            drop(side);
            qp.tell(self, notices);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_has_one_address_for_each_family() {
        let gid = |text: &str| Gid::from_ip(text.parse().unwrap());
        let (v4, v6) = (IpAddr::from([10, 0, 0, 1]), "fe80::1".parse().unwrap());
        assert_eq!(group_of(gid("239.1.2.3"), v4), Some(IpAddr::from([239, 1, 2, 3])));
        assert_eq!(group_of(gid("ff0e::7"), v6), Some("ff0e::7".parse().unwrap()));
        assert_eq!(group_of(gid("ff01::7"), v6), Some("ff02::7".parse().unwrap()));
        assert_eq!(group_of(gid("ff10::7"), v6), Some("ff12::7".parse().unwrap()));
        assert_eq!(group_of(gid("239.1.2.3"), v6), None);
        for unicast in ["10.0.0.2", "fe80::2", "::"] {
            assert_eq!(group_of(gid(unicast), v4), None);
            assert_eq!(group_of(gid(unicast), v6), None);
        }
        let mut made: Vec<IpAddr> = (0..100)
            .map(|i| {
                let mut gid = gid("ff01::2:c985:0:0:0:0");
                gid.0[15] = i;
                group_of(gid, v4).unwrap()
            })
            .collect();
        assert!(made.iter().all(|ip| matches!(ip, IpAddr::V4(v4) if v4.octets()[0] == 239)));
        made.sort();
        made.dedup();
        assert_eq!(made.len(), 100);
    }
}
