//! The sockets of an address, and who has which slot.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use urxe::config::{Config, Gso, Receive};
use urxe::io::udp::group::{Group, SLOTS};
use urxe::io::udp::{self, OpenError, UdpLink};
use urxe::io::{ROCE_PORT, route};
use urxe_control::protocol::Failure;

use crate::client::ClientId;

/// How long a slot is left alone between two processes: what was on the way to the first must not reach the second.
pub(crate) const QUARANTINE: Duration = Duration::from_secs(1);
/// How long the processes of a daemon that died have to come back for their slots.
pub(crate) const ORPHAN: Duration = Duration::from_secs(10);
/// The sizes of the socket buffers for management datagrams that suffice.
const BUFFER: usize = 4 << 20;

/// Who has a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Slot {
    /// Nobody, and it can be had.
    Free,
    /// A client.
    Leased(ClientId),
    /// Nobody, for a while.
    Drained { until: Instant },
    /// A client of the daemon before this one, which should come back for it.
    Orphan { until: Instant },
}

/// A device address.
pub(crate) struct Device {
    pub(crate) address: IpAddr,
    pub(crate) scope: u32,
    pub(crate) node: u32,
    pub(crate) rail: u32,
    /// It is from the fabric's block; else it was configured.
    pub(crate) own: bool,
    pub(crate) interface: String,
    group: Group,
    /// Tells the anchor from others.
    anchor: u64,
    /// Slot 0's.
    pub(crate) link: UdpLink,
    /// A duplicate of its socket.
    waitable: OwnedFd,
    /// From slot 1 on.
    slots: Vec<Slot>,
    pub(crate) multicast: BTreeMap<IpAddr, BTreeSet<ClientId>>,
    /// Since when nobody has a slot.
    pub(crate) idle_since: Option<Instant>,
    /// Of the MADs that leave.
    pub(crate) paths: HashMap<PathKey, std::sync::Arc<urxe::wire::Path>>,
    /// Of the next MAD that leaves.
    pub(crate) psn: u32,
}

/// What makes a path another one.
pub(crate) type PathKey = (IpAddr, u8, u32);

/// What a process gets.
pub(crate) struct Grant {
    pub(crate) slot: u8,
    pub(crate) socket: OwnedFd,
    pub(crate) anchor: OwnedFd,
}

/// Why a slot is not to be had.
pub(crate) enum Busy {
    /// One will be then, or else this is why not.
    Until(Instant, Failure),
    /// For ever, as far as this daemon can tell.
    Failed(Failure),
}

fn link_config(config: &Config, address: SocketAddr) -> udp::Config {
    udp::Config {
        addr: address,
        receive_buffer: config.rcvbuf.bytes().max(BUFFER),
        send_buffer: config.sndbuf.bytes().max(BUFFER),
        gso: config.gso != Gso::Off,
        gro: true,
        // A raw socket sees more, but management datagrams do not need it.
        receive: match config.receive {
            Receive::Udp | Receive::Raw => udp::Receive::Udp,
        },
    }
}

fn socket_address(address: IpAddr, scope: u32) -> SocketAddr {
    match address {
        IpAddr::V4(_) => SocketAddr::new(address, ROCE_PORT),
        IpAddr::V6(v6) => std::net::SocketAddrV6::new(v6, ROCE_PORT, 0, scope).into(),
    }
}

impl Device {
    /// Opens an address that nobody has.
    pub(crate) fn open(
        config: &Config,
        address: IpAddr,
        scope: u32,
        at: (u32, u32),
        own: bool,
    ) -> Result<Self, OpenError> {
        let config = link_config(config, socket_address(address, scope));
        Self::with_group(Group::open(&config)?, &config, at, own)
    }

    /// Takes an address over from a daemon that died.
    pub(crate) fn take_over(
        config: &Config,
        address: IpAddr,
        scope: u32,
        anchor: OwnedFd,
        at: (u32, u32),
        own: bool,
    ) -> Result<Self, OpenError> {
        let config = link_config(config, socket_address(address, scope));
        let mut device = Self::with_group(Group::take_over(anchor, &config)?, &config, at, own)?;
        let until = Instant::now() + ORPHAN;
        device.slots = vec![Slot::Orphan { until }; device.group.len().saturating_sub(1)];
        Ok(device)
    }

    fn with_group(
        mut group: Group,
        config: &udp::Config,
        at: (u32, u32),
        own: bool,
    ) -> Result<Self, OpenError> {
        let local = group.local();
        let failed = |what| move |source| OpenError::Io { addr: local, what, source };
        let link = UdpLink::from_member(group.socket(0).map_err(failed("use the first socket"))?, 0, config)?;
        let waitable = group.socket(0).map_err(failed("use the first socket"))?;
        let anchor = group.anchor().and_then(|a| inode(&a)).map_err(failed("examine the anchor"))?;
        let interface = route::interface(local.ip()).map_err(failed("find the interface"))?;
        let scope = match local {
            SocketAddr::V4(_) => 0,
            SocketAddr::V6(v6) => v6.scope_id(),
        };
        Ok(Self {
            address: local.ip(),
            scope,
            node: at.0,
            rail: at.1,
            own,
            interface: interface.map_or(String::new(), |i| i.name),
            group,
            anchor,
            link,
            waitable,
            slots: Vec::new(),
            multicast: BTreeMap::new(),
            idle_since: Some(Instant::now()),
            paths: HashMap::new(),
            psn: first_psn(),
        })
    }

    /// A duplicate of slot 0's socket, to wait on.
    pub(crate) fn first_socket(&self) -> io::Result<OwnedFd> {
        self.waitable.try_clone()
    }

    /// Leases a slot.
    pub(crate) fn lease(&mut self, client: ClientId, now: Instant) -> Result<Grant, Busy> {
        self.tick(now);
        let slot = match self.slots.iter().position(|s| *s == Slot::Free) {
            Some(index) => index as u8 + 1,
            None if self.slots.len() + 1 < SLOTS => self.slots.len() as u8 + 1,
            None => return Err(self.full()),
        };
        let failed = |e: io::Error| {
            let errno = e.raw_os_error().unwrap_or(libc::EIO);
            Busy::Failed(Failure {
                errno,
                message: format!("no socket for another process on device {}: {e}", self.address),
            })
        };
        let socket = self.group.socket(slot).map_err(failed)?;
        let anchor = self.group.anchor().map_err(failed)?;
        self.set(slot, Slot::Leased(client));
        Ok(Grant { slot, socket, anchor })
    }

    /// All slots have been used; the next that is free will be at some time, or not.
    fn full(&self) -> Busy {
        let soonest = self.slots.iter().filter_map(|s| match s {
            Slot::Drained { until } => Some(*until),
            _ => None,
        });
        let failure = Failure {
            errno: libc::ENOSPC,
            message: format!(
                "device {} is used by {} processes, and cannot be by more; end one, or use another node or device",
                self.address,
                SLOTS - 1
            ),
        };
        match soonest.min() {
            Some(until) => Busy::Until(until, failure),
            None => Busy::Failed(failure),
        }
    }

    /// Gives a slot back to the client that had it, after this daemon took the address over.
    pub(crate) fn resume(&mut self, client: ClientId, slot: u8, anchor: &OwnedFd) -> Result<(), Failure> {
        let refused = |errno, what| {
            Err(Failure { errno, message: format!("slot {slot} of device {} {what}", self.address) })
        };
        // The slot must be one of the sockets of this group, not of one that had the address before.
        if inode(anchor).ok() != Some(self.anchor) {
            return refused(libc::ESTALE, "is of a group of sockets that does not exist any more");
        }
        match slot.checked_sub(1).and_then(|i| self.slots.get(usize::from(i))) {
            Some(Slot::Leased(other)) if *other == client => return Ok(()),
            Some(Slot::Leased(_)) => return refused(libc::EBUSY, "has been given to another process"),
            Some(Slot::Free | Slot::Drained { .. } | Slot::Orphan { .. }) => {}
            None => return refused(libc::EINVAL, "does not exist"),
        }
        self.set(slot, Slot::Leased(client));
        Ok(())
    }

    /// Takes a slot back; false if it is not the client's.
    pub(crate) fn release(&mut self, client: ClientId, slot: u8, now: Instant) -> bool {
        let index = usize::from(slot).wrapping_sub(1);
        if self.slots.get(index) != Some(&Slot::Leased(client)) {
            return false;
        }
        self.drain(slot);
        self.set(slot, Slot::Drained { until: now + QUARANTINE });
        true
    }

    /// Takes back all that a client has.
    pub(crate) fn release_all(&mut self, client: ClientId, now: Instant) {
        for slot in self.slots_of(client) {
            self.release(client, slot, now);
        }
        self.multicast.retain(|_, members| {
            members.remove(&client);
            !members.is_empty()
        });
    }

    /// Ends waits that are over; returns when to come again.
    pub(crate) fn tick(&mut self, now: Instant) -> Option<Instant> {
        let mut next: Option<Instant> = None;
        for index in 0..self.slots.len() {
            match self.slots[index] {
                Slot::Drained { until } | Slot::Orphan { until } if until > now => {
                    next = Some(next.map_or(until, |n| n.min(until)));
                }
                Slot::Drained { .. } => {
                    // Again: what a child of the process sent itself meanwhile.
                    self.drain(index as u8 + 1);
                    self.slots[index] = Slot::Free;
                }
                Slot::Orphan { .. } => {
                    self.drain(index as u8 + 1);
                    let until = now + QUARANTINE;
                    self.slots[index] = Slot::Drained { until };
                    next = Some(next.map_or(until, |n| n.min(until)));
                }
                Slot::Free | Slot::Leased(_) => {}
            }
        }
        let idle = self.slots.iter().all(|s| *s == Slot::Free);
        self.idle_since = idle.then(|| self.idle_since.unwrap_or(now));
        next
    }

    fn drain(&self, slot: u8) {
        match self.group.drain(slot) {
            Ok(0) => {}
            Ok(n) => tracing::debug!("{n} datagrams for slot {slot} of {} came too late", self.address),
            Err(e) => tracing::warn!("slot {slot} of {} cannot be drained: {e}", self.address),
        }
    }

    fn set(&mut self, slot: u8, to: Slot) {
        self.idle_since = None;
        let count = usize::from(slot);
        if self.slots.len() < count {
            self.slots.resize(count, Slot::Free);
        }
        self.slots[count - 1] = to;
    }

    pub(crate) fn slots_of(&self, client: ClientId) -> Vec<u8> {
        let own = self.slots.iter().enumerate().filter(|(_, s)| **s == Slot::Leased(client));
        own.map(|(i, _)| i as u8 + 1).collect()
    }

    /// Slots in use, and those that wait.
    pub(crate) fn counts(&self) -> (u32, u32) {
        let count = |f: fn(&Slot) -> bool| self.slots.iter().filter(|s| f(s)).count() as u32;
        (
            count(|s| matches!(s, Slot::Leased(_))),
            count(|s| matches!(s, Slot::Drained { .. } | Slot::Orphan { .. })),
        )
    }
}

fn inode(socket: &OwnedFd) -> io::Result<u64> {
    Ok(rustix::fs::fstat(socket)?.st_ino)
}

/// Not guessable, so that nobody can pretend to continue an older conversation.
fn first_psn() -> u32 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    RandomState::new().build_hasher().finish() as u32 & 0x00ff_ffff
}

/// What a device's failure to open means to a client.
pub(crate) fn failure(error: &OpenError) -> Failure {
    let errno = match error {
        OpenError::AddressInUse { .. } | OpenError::NoFreeAddress { .. } => libc::EADDRINUSE,
        OpenError::NotLocal { .. } => libc::EADDRNOTAVAIL,
        OpenError::PermissionDenied { .. } => libc::EACCES,
        OpenError::NotTheGroup { .. } => libc::EINVAL,
        OpenError::Io { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
    };
    Failure { errno, message: error.to_string() }
}
