//! Binding, and resolving addresses and routes. All of it is known at once: the events wait before the calls return.

use std::ffi::{c_int, c_void};
use std::net::{IpAddr, SocketAddr};

use device::cm::{Addresses, PathFacts};
use device::ids::Gid;
use libc::sockaddr;

use super::address::{self, Local, ThisHost, read, same_family, socket_address, unspecified};
use super::channel::{Kind, complete};
use super::daemon;
use super::id::{Binding, Handle, Id, Phase, find};
use crate::abi::cm::*;
use crate::abi::*;
use crate::boundary::{Errno, Outcome, minus_one};
use crate::memory;
use crate::verbs::convert::INVALID;
use crate::verbs::handle::Object;

/// The P_Key of every device.
const PKEY: u16 = 0xffff;
/// What the kernel takes for a RoCE path's life time: 4.096 us * 2^16.
const LIFE_TIME: u8 = 16;
/// Routers that a packet may pass.
const HOP_LIMIT: u8 = 64;

/// Gives an identifier an address. The caller holds `calls`.
pub fn bind(object: &Object<Handle>, address: SocketAddr) -> Outcome<()> {
    let id = &object.private.id;
    id.expect(&[Phase::Idle])?;
    let all = daemon::addresses()?;
    let meant = address::local(&ThisHost, &all, address)?;
    let (rail, devices) = match meant {
        Local::Device(rail) => (Some(rail), vec![all[rail]]),
        // The device's interface may well be the loopback interface, so its addresses are as good as another's: programs
        // look for the device as soon as they have bound to it. (The kernel binds loopback addresses to no device.)
        Local::Alias => (Some(0), all),
        Local::Any => (None, all),
    };
    let mut binding = Binding { address, devices, backlog: None };
    let options = id.state.lock().options;
    let (endpoint, port) = daemon::bind(id.port_space(), &binding, options)?;
    binding.address.set_port(port);
    {
        let mut state = id.state.lock();
        state.phase = Phase::Bound;
        state.binding = Some(binding);
        state.rail = rail;
    }
    id.adopt(endpoint);
    show_address(object)
}

/// rdma_bind_addr(3)
///
/// # Safety
/// The pointers are what the program passed.
pub unsafe extern "C" fn rdma_bind_addr(id: *mut rdma_cm_id, address: *mut sockaddr) -> c_int {
    minus_one(|| {
        // SAFETY: find checks the identifier, read the address.
        let (object, address) = unsafe { (find(id)?, read(address)?) };
        let _call = object.private.id.calls.lock();
        bind(object, address)?;
        Ok(0)
    })
}

/// Finds the way to a destination and puts the event into the channel.
pub fn resolve_address(
    object: &Object<Handle>,
    source: Option<SocketAddr>,
    destination: SocketAddr,
) -> Outcome<()> {
    let id = &object.private.id;
    let _call = id.calls.lock();
    if id.expect(&[Phase::Idle, Phase::Bound])? == Phase::Idle {
        bind(object, source.unwrap_or_else(|| unspecified(destination)))?;
    }
    let (local, rail) = {
        let state = id.state.lock();
        (state.binding.as_ref().ok_or(INVALID)?.address, state.rail)
    };
    if !same_family(local, destination) {
        return Err(INVALID);
    }
    // SAFETY: the structure lives with the object.
    unsafe { (*object.abi()).route.addr.destination = socket_address(destination) };
    let all = daemon::addresses()?;
    let kind = match address::reach(&ThisHost, &all, Some(local.ip()), rail, destination) {
        Err(error) => {
            tracing::info!("no device leads to {destination}: errno {}", error.0);
            Kind::AddressError(-error.0)
        }
        Ok(way) => {
            let mut own = local;
            own.set_ip(way.local);
            if let (SocketAddr::V6(own), SocketAddr::V6(to)) = (&mut own, destination)
                && own.ip().is_unicast_link_local()
            {
                own.set_scope_id(to.scope_id());
            }
            let mut peer = destination;
            if peer.ip().is_unspecified() {
                // This very host; a request has to name it.
                peer.set_ip(way.peer_device);
            }
            let mut state = id.state.lock();
            state.phase = Phase::AddressResolved;
            state.rail = Some(way.rail);
            state.addresses = Some(Addresses {
                local: own,
                peer,
                local_device: all[way.rail],
                peer_device: way.peer_device,
            });
            Kind::AddressResolved
        }
    };
    _ = id.tell(kind);
    Ok(())
}

/// rdma_resolve_addr(3)
///
/// # Safety
/// The pointers are what the program passed.
pub unsafe extern "C" fn rdma_resolve_addr(
    id: *mut rdma_cm_id,
    source: *mut sockaddr,
    destination: *mut sockaddr,
    _timeout_ms: c_int,
) -> c_int {
    minus_one(|| {
        // SAFETY: find checks the identifier, read the addresses.
        let (object, source, destination) = unsafe {
            let source = if source.is_null() { None } else { Some(read(source)?) };
            (find(id)?, source, read(destination)?)
        };
        resolve_address(object, source, destination)?;
        complete(object)?;
        Ok(0)
    })
}

/// As the kernel chooses it, so that connections between the same ends take different paths.
fn flow_label(addresses: &Addresses) -> u32 {
    if let SocketAddr::V6(own) = addresses.local
        && own.flowinfo() & 0x000f_ffff != 0
    {
        return own.flowinfo() & 0x000f_ffff;
    }
    (u32::from(addresses.local.port()) * 31 + u32::from(addresses.peer.port())) & 0x000f_ffff
}

/// The path of an identifier whose address is resolved.
fn path(id: &Id) -> Outcome<PathFacts> {
    let state = id.state.lock();
    let addresses = state.addresses.ok_or(INVALID)?;
    let rail = daemon::rails()?.get(state.rail.ok_or(INVALID)?).ok_or(INVALID)?;
    Ok(PathFacts {
        mtu: rail.device.port().mtu as u8,
        ack_timeout: state.options.ack_timeout.unwrap_or(LIFE_TIME + 1),
        flow_label: flow_label(&addresses),
        traffic_class: state.options.tos,
        hop_limit: HOP_LIMIT,
        sl: 0,
    })
}

/// rdma_resolve_route(3)
///
/// # Safety
/// The pointer is what the program passed.
pub unsafe extern "C" fn rdma_resolve_route(id: *mut rdma_cm_id, _timeout_ms: c_int) -> c_int {
    minus_one(|| {
        // SAFETY: find checks the pointer.
        let object = unsafe { find(id)? };
        resolve_route(object)?;
        complete(object)?;
        Ok(0)
    })
}

/// Finds the path and puts the event into the channel.
pub fn resolve_route(object: &Object<Handle>) -> Outcome<()> {
    let id = &object.private.id;
    let _call = id.calls.lock();
    id.expect(&[Phase::AddressResolved])?;
    take_path(id, path(id)?);
    Ok(())
}

fn take_path(id: &std::sync::Arc<Id>, path: PathFacts) {
    {
        let mut state = id.state.lock();
        state.path = Some(path);
        state.phase = Phase::RouteResolved;
    }
    _ = id.tell(Kind::RouteResolved);
}

/// `struct ibv_path_data` of sa.h: flags, and the path record as it is on the wire.
const PATH_DATA: usize = 72;

/// RDMA_OPTION_IB_PATH: the program's own path. What it says of the addresses is not looked at: those are resolved.
pub fn set_path(object: &Object<Handle>, value: *const c_void, length: usize) -> Outcome<()> {
    if length == 0 || !length.is_multiple_of(PATH_DATA) {
        return Err(INVALID);
    }
    let id = &object.private.id;
    let _call = id.calls.lock();
    id.expect(&[Phase::AddressResolved])?;
    let mut bytes = [0u8; PATH_DATA];
    // SAFETY: the buffer is ours; memory checks the program's pointer.
    unsafe { memory::read_bytes(bytes.as_mut_ptr(), value.cast(), PATH_DATA)? };
    let record = &bytes[8..];
    let known = path(id)?;
    let flow_and_hops = u32::from_be_bytes([record[44], record[45], record[46], record[47]]);
    let mtu = record[54] & 0x3f;
    let life_time = record[56] & 0x3f;
    take_path(
        id,
        PathFacts {
            mtu: if (1..=known.mtu).contains(&mtu) { mtu } else { known.mtu },
            ack_timeout: if life_time == 0 { known.ack_timeout } else { (life_time + 1).min(31) },
            flow_label: (flow_and_hops >> 8) & 0x000f_ffff,
            hop_limit: flow_and_hops as u8,
            traffic_class: record[48],
            sl: record[53] & 0xf,
        },
    );
    Ok(())
}

fn gid(ip: IpAddr) -> ibv_gid {
    ibv_gid { raw: Gid::from_ip(ip).0 }
}

/// Writes what is known of the addresses and the device to where the program looks.
pub fn show_address(object: &Object<Handle>) -> Outcome<()> {
    let (local, addresses, rail) = {
        let state = object.private.id.state.lock();
        (state.binding.as_ref().map(|binding| binding.address), state.addresses, state.rail)
    };
    let abi = object.abi();
    // SAFETY: the structure lives with the object.
    unsafe {
        let addr = &raw mut (*abi).route.addr;
        if let Some(local) = addresses.map(|addresses| addresses.local).or(local) {
            (*addr).source = socket_address(local);
        }
        if let Some(addresses) = addresses {
            (*addr).destination = socket_address(addresses.peer);
            (*addr).ibaddr.dgid = gid(addresses.peer_device);
        }
        if let Some(rail) = rail {
            let rail = daemon::rails()?.get(rail).ok_or(Errno(libc::ENODEV))?;
            (*addr).ibaddr.sgid = gid(rail.address());
            (*addr).ibaddr.pkey = PKEY.to_be();
            (*abi).port_num = 1;
            if (*abi).verbs.is_null() {
                (*abi).verbs = rail.context;
            }
            if (*abi).pd.is_null() {
                (*abi).pd = rail.pd()?;
            }
        }
    }
    Ok(())
}

/// Writes the path to where the program looks.
pub fn show_route(object: &Object<Handle>) -> Outcome<()> {
    let (path, addresses) = {
        let state = object.private.id.state.lock();
        (state.path.ok_or(INVALID)?, state.addresses.ok_or(INVALID)?)
    };
    const EXACTLY: u8 = 2;
    let mut record = Box::new(ibv_sa_path_rec {
        dgid: gid(addresses.peer_device),
        sgid: gid(addresses.local_device),
        dlid: 0,
        slid: 0,
        raw_traffic: 0,
        flow_label: path.flow_label.to_be(),
        hop_limit: path.hop_limit,
        traffic_class: path.traffic_class,
        reversible: 1,
        numb_path: 1,
        pkey: PKEY.to_be(),
        sl: path.sl,
        mtu_selector: EXACTLY,
        mtu: path.mtu,
        rate_selector: EXACTLY,
        rate: IBV_RATE_100_GBPS as u8,
        packet_life_time_selector: EXACTLY,
        packet_life_time: path.ack_timeout.saturating_sub(1),
        preference: 0,
    });
    let pointer: *mut ibv_sa_path_rec = &mut *record;
    // The program may still look at an older one.
    object.private.records.lock().push(record);
    // SAFETY: the structure lives with the object.
    unsafe {
        (*object.abi()).route.path_rec = pointer;
        (*object.abi()).route.num_paths = 1;
    }
    Ok(())
}
