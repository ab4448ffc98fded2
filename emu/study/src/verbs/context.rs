//! An open device, its port and what it can do.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::mem::zeroed;
use std::net::Ipv6Addr;
use std::sync::Arc;

use urxe_abi::*;

use super::error::{Error, Result, check};
use super::library::{self, library};

/// An open device.
#[derive(Debug)]
pub struct Context {
    pub(super) raw: *mut ibv_context,
    name: String,
}

// SAFETY: verbs may be called by any thread, and the pointer is never changed.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// What a device can do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Requests in a queue.
    pub depth: u32,
    /// READs and atomics that a queue pair has under way, as requester and responder.
    pub reads: u8,
    /// Whether there are atomic operations.
    pub atomics: bool,
    /// `IBV_ODP_SUPPORT*`.
    pub on_demand: u64,
    /// `IBV_ODP_SUPPORT_*` of RC.
    pub on_demand_operations: u32,
    /// The vendor's number.
    pub vendor: u32,
}

/// A port that is up, and the address that is used there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Port {
    /// Its number, from 1.
    pub number: u8,
    /// `IBV_MTU_*`.
    pub mtu: u32,
    /// `IBV_LINK_LAYER_*`.
    pub link_layer: u8,
    /// The local identifier, which InfiniBand addresses by.
    pub lid: u16,
    /// Whether packets have a global route header.
    pub global: bool,
    /// The GID, and its place in the port's table.
    pub gid: [u8; 16],
    /// See `gid`.
    pub gid_index: u8,
}

/// The list of devices, freed at its end.
struct List {
    raw: *mut *mut ibv_device,
    count: usize,
}

impl List {
    fn new() -> Result<Self> {
        let mut count = 0;
        // SAFETY: the pointer is valid.
        let raw = unsafe { (library()?.ibv_get_device_list)(&mut count) };
        match raw.is_null() {
            false => Ok(Self { raw, count: usize::try_from(count).unwrap_or(0) }),
            true => match Error::last("ibv_get_device_list") {
                // A kernel without RDMA has no devices.
                error if error.errno() == Some(libc::ENOSYS) => Ok(Self { raw, count: 0 }),
                error => Err(error),
            },
        }
    }

    fn devices(&self) -> Result<Vec<(String, *mut ibv_device)>> {
        let library = library()?;
        let device = |index| {
            // SAFETY: the list has so many entries.
            let device = unsafe { *self.raw.add(index) };
            // SAFETY: the name of a device of the list is a text.
            let name = unsafe { CStr::from_ptr((library.ibv_get_device_name)(device)) };
            (name.to_string_lossy().into_owned(), device)
        };
        Ok((0..self.count).map(device).collect())
    }
}

impl Drop for List {
    fn drop(&mut self) {
        if let Ok(library) = library()
            && !self.raw.is_null()
        {
            // SAFETY: the list is not used any more; devices that are open stay.
            unsafe { (library.ibv_free_device_list)(self.raw) }
        }
    }
}

impl Context {
    /// Opens the device with this name, or the first one.
    pub fn open(wanted: Option<&str>) -> Result<Arc<Self>> {
        let list = List::new()?;
        let devices = list.devices()?;
        let found = devices.iter().find(|(name, _)| wanted.is_none_or(|wanted| wanted == name));
        let Some((name, device)) = found else {
            let there = devices.iter().map(|(name, _)| name.clone()).collect();
            return Err(Error::NoDevice { wanted: wanted.unwrap_or("at all").to_owned(), there });
        };
        // SAFETY: the list lives.
        let raw = unsafe { (library()?.ibv_open_device)(*device) };
        match raw.is_null() {
            true => Err(Error::last("ibv_open_device")),
            false => Ok(Arc::new(Self { raw, name: name.clone() })),
        }
    }

    /// The device's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What the device can do.
    pub fn limits(&self) -> Result<Limits> {
        // SAFETY: numbers and texts.
        let mut attributes: ibv_device_attr_ex = unsafe { zeroed() };
        // SAFETY: the context is open.
        match unsafe { library::query_device_ex(self.raw) } {
            Some(query) => {
                let size = size_of::<ibv_device_attr_ex>();
                // SAFETY: the structure is as large as that.
                let returned = unsafe { query(self.raw, std::ptr::null(), &mut attributes, size) };
                check("ibv_query_device_ex", returned)?;
            }
            None => {
                // SAFETY: the structure is valid.
                let returned = unsafe { (library()?.ibv_query_device)(self.raw, &mut attributes.orig_attr) };
                check("ibv_query_device", returned)?;
            }
        }
        let device = &attributes.orig_attr;
        let reads = device.max_qp_rd_atom.min(device.max_qp_init_rd_atom);
        Ok(Limits {
            depth: device.max_qp_wr.max(0) as u32,
            reads: reads.clamp(0, 16) as u8,
            atomics: device.atomic_cap != IBV_ATOMIC_NONE,
            on_demand: attributes.odp_caps.general_caps,
            on_demand_operations: attributes.odp_caps.per_transport_caps.rc_odp_caps,
            vendor: device.vendor_id,
        })
    }

    /// The first port that is up, and its GID: the given one, else the best one.
    pub fn port(&self, gid_index: Option<u32>) -> Result<Port> {
        let mut number = 1;
        let (number, attributes) = loop {
            match self.port_attributes(number) {
                Ok(attributes) if attributes.state == IBV_PORT_ACTIVE => break (number, attributes),
                Ok(_) => number += 1,
                Err(error) if number == 1 => return Err(error),
                Err(_) => {
                    return Err(Error::Unsupported(format!("no port of {} is active", self.name)));
                }
            }
        };
        let global = attributes.link_layer == IBV_LINK_LAYER_ETHERNET
            || attributes.flags & IBV_QPF_GRH_REQUIRED != 0
            || gid_index.is_some();
        let (gid_index, gid) = match global {
            true => self.gid(number, attributes.gid_tbl_len, gid_index)?,
            false => (0, [0; 16]),
        };
        Ok(Port {
            number,
            mtu: attributes.active_mtu,
            link_layer: attributes.link_layer,
            lid: attributes.lid,
            global,
            gid,
            gid_index,
        })
    }

    fn port_attributes(&self, number: u8) -> Result<ibv_port_attr> {
        // SAFETY: numbers.
        let mut attributes: ibv_port_attr = unsafe { zeroed() };
        // SAFETY: the context is open and the structure valid; older libraries fill its first members only.
        let returned = unsafe {
            match library::query_port(self.raw) {
                Some(query) => query(self.raw, number, &mut attributes, size_of::<ibv_port_attr>()),
                None => (library()?.ibv_query_port)(self.raw, number, &mut attributes),
            }
        };
        check("ibv_query_port", returned).map(|()| attributes)
    }

    fn gid(&self, port: u8, length: i32, wanted: Option<u32>) -> Result<(u8, [u8; 16])> {
        let indexes = wanted.map_or(0..u32::try_from(length).unwrap_or(0), |index| index..index + 1);
        let entries = indexes.filter_map(|index| Some((index, self.gid_entry(port, index)?)));
        let best = entries.min_by_key(|(index, (gid, kind))| (rank(gid, *kind), *index));
        best.and_then(|(index, (gid, _))| Some((u8::try_from(index).ok()?, gid))).ok_or_else(|| {
            let which = wanted.map_or("no GID".to_owned(), |index| format!("no GID {index}"));
            Error::Unsupported(format!("port {port} of {} has {which}", self.name))
        })
    }

    /// A GID and its type, if this place of the table is in use.
    fn gid_entry(&self, port: u8, index: u32) -> Option<([u8; 16], u32)> {
        // SAFETY: numbers.
        let mut entry: ibv_gid_entry = unsafe { zeroed() };
        let size = size_of::<ibv_gid_entry>();
        let query = library().ok()?._ibv_query_gid_ex;
        // SAFETY: the structure is as large as that.
        let returned = unsafe { query(self.raw, port.into(), index, &mut entry, 0, size) };
        // SAFETY: a GID is 16 bytes, however one looks at it.
        (returned == 0).then_some((unsafe { entry.gid.raw }, entry.gid_type))
    }
}

/// Which GID to take: RoCE v2 before others, an IPv4 address before an IPv6 one, and that before a link-local one.
fn rank(gid: &[u8; 16], kind: u32) -> u32 {
    let address = Ipv6Addr::from(*gid);
    let place = match () {
        () if address.is_unspecified() => 3,
        () if address.to_ipv4_mapped().is_some() => 0,
        () if address.is_unicast_link_local() => 2,
        () => 1,
    };
    u32::from(kind != IBV_GID_TYPE_ROCE_V2) * 4 + place
}

impl Drop for Context {
    fn drop(&mut self) {
        if let Ok(library) = library() {
            // SAFETY: all that was made from it holds it, and so is gone.
            unsafe { (library.ibv_close_device)(self.raw) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_gid_is_an_ipv4_address_of_roce_v2() {
        let gid = |text: &str| text.parse::<Ipv6Addr>().unwrap().octets();
        let order = [
            (gid("::ffff:10.0.0.1"), IBV_GID_TYPE_ROCE_V2),
            (gid("2001:db8::1"), IBV_GID_TYPE_ROCE_V2),
            (gid("fe80::1"), IBV_GID_TYPE_ROCE_V2),
            (gid("::ffff:10.0.0.1"), IBV_GID_TYPE_ROCE_V1),
            (gid("fe80::1"), IBV_GID_TYPE_ROCE_V1),
        ];
        let ranks: Vec<_> = order.iter().map(|(gid, kind)| rank(gid, *kind)).collect();
        assert!(ranks.is_sorted_by(|a, b| a < b), "{ranks:?}");
    }
}
