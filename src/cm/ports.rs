//! Who has which port, and who hears a request for it.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::types::{Endpoint, PortSpace, Refused};

/// Ports that are given to who asks for any.
const DYNAMIC: std::ops::RangeInclusive<u16> = 32768..=60999;

/// An address with a port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Binding {
    /// Unspecified, of a device, or another address of the host that stands for `devices`.
    pub(super) address: IpAddr,
    /// In whose name.
    pub(super) devices: Vec<IpAddr>,
    /// The port may be shared with others that say the same, as long as one listens.
    pub(super) reuse: bool,
    /// `::` does not mean IPv4 too.
    pub(super) v6_only: bool,
    /// It hears requests.
    pub(super) listening: bool,
}

impl Binding {
    /// Whether an unspecified address stands for `other`; the more it does so by chance, the lower the number.
    fn stands_for(&self, other: IpAddr) -> Option<u8> {
        match (self.address, other) {
            (mine, other) if mine == other => Some(2),
            (mine, _) if !mine.is_unspecified() => None,
            (IpAddr::V4(_), IpAddr::V4(_)) | (IpAddr::V6(_), IpAddr::V6(_)) => Some(1),
            (IpAddr::V6(_), IpAddr::V4(_)) if !self.v6_only => Some(0),
            _ => None,
        }
    }

    /// Whether a request could be for both.
    fn overlaps(&self, other: &Self) -> bool {
        self.devices.iter().any(|d| other.devices.contains(d))
            && (self.stands_for(other.address).is_some() || other.stands_for(self.address).is_some())
    }
}

/// The ports of all endpoints. Emulated machines are told apart by their devices: the same port on disjoint sets of
/// devices is two ports.
#[derive(Default, Debug)]
pub(super) struct Ports {
    bound: BTreeMap<(PortSpace, u16), Vec<(Endpoint, Binding)>>,
}

impl Ports {
    fn is_free(&self, space: PortSpace, port: u16, binding: &Binding) -> bool {
        let Some(others) = self.bound.get(&(space, port)) else { return true };
        others
            .iter()
            .all(|(_, other)| !other.overlaps(binding) || binding.reuse && other.reuse && !other.listening)
    }

    /// Reserves a port. Port 0 is any free one; the search starts at `random`, so that the next one is not known to
    /// others.
    pub(super) fn claim(
        &mut self,
        endpoint: Endpoint,
        space: PortSpace,
        port: u16,
        binding: Binding,
        random: u64,
    ) -> Result<u16, Refused> {
        let port = if port == 0 {
            let (first, count) = (u64::from(*DYNAMIC.start()), DYNAMIC.len() as u64);
            // An odd step that has no factor in common with the count visits every port once.
            let step = [7919, 10_007, 20_011, 28_229][(random >> 62) as usize];
            let alone = Binding { reuse: false, ..binding.clone() };
            (0..count)
                .map(|n| (first + (random % count + n * step) % count) as u16)
                .find(|&port| self.is_free(space, port, &alone))
                .ok_or(Refused::NoFreePort)?
        } else if self.is_free(space, port, &binding) {
            port
        } else {
            return Err(Refused::AddressInUse);
        };
        self.bound.entry((space, port)).or_default().push((endpoint, binding));
        Ok(port)
    }

    /// Gives a port back.
    pub(super) fn release(&mut self, endpoint: Endpoint, space: PortSpace, port: u16) {
        if let Some(all) = self.bound.get_mut(&(space, port)) {
            all.retain(|(e, _)| *e != endpoint);
            if all.is_empty() {
                self.bound.remove(&(space, port));
            }
        }
    }

    /// What an endpoint has reserved.
    pub(super) fn binding(&self, endpoint: Endpoint, space: PortSpace, port: u16) -> Option<&Binding> {
        self.bound.get(&(space, port))?.iter().find(|(e, _)| *e == endpoint).map(|(_, b)| b)
    }

    /// Makes an endpoint hear requests.
    pub(super) fn listen(&mut self, endpoint: Endpoint, space: PortSpace, port: u16) -> Result<(), Refused> {
        let all = self.bound.get_mut(&(space, port)).ok_or(Refused::State)?;
        let at = all.iter().position(|(e, _)| *e == endpoint).ok_or(Refused::State)?;
        if all.iter().any(|(e, other)| *e != endpoint && other.listening && other.overlaps(&all[at].1)) {
            return Err(Refused::AddressInUse);
        }
        all[at].1.listening = true;
        Ok(())
    }

    /// Who hears a request that came to `device` and is for `destination`: the one that names the address, or else one
    /// that takes all.
    pub(super) fn listener(
        &self,
        space: PortSpace,
        port: u16,
        device: IpAddr,
        destination: IpAddr,
    ) -> Option<Endpoint> {
        self.bound
            .get(&(space, port))?
            .iter()
            .filter(|(_, b)| b.listening && b.devices.contains(&device))
            .filter_map(|(e, b)| Some((b.stands_for(destination)?, *e)))
            .max_by_key(|(how_well, _)| *how_well)
            .map(|(_, e)| e)
    }

    /// A device is gone.
    pub(super) fn remove_device(&mut self, device: IpAddr) {
        for (_, binding) in self.bound.values_mut().flatten() {
            binding.devices.retain(|d| *d != device);
        }
    }

    /// Ports in use.
    pub(super) fn len(&self) -> usize {
        self.bound.len()
    }
}
