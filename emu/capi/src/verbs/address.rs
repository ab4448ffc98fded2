//! Address handles.

use std::ffi::c_int;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use device::ids::Gid;
use device::wire::Path;

use super::convert::{INVALID, address};
use super::device::context;
use super::handle::{Object, Private};
use super::region::{Domain, context_of, domain};
use crate::abi::*;
use crate::boundary::{Errno, Outcome, errno, minus_one, pointer};
use crate::memory;

/// The library's part of an address handle.
pub struct Address {
    /// Where it leads.
    pub path: Arc<Path>,
    _domain: Arc<Domain>,
}

impl Private for Address {
    type Abi = ibv_ah;
    type Exposed = ibv_ah;
    const MARK: u64 = u64::from_be_bytes(*b"urxe-ah.");
}

fn create(pd: *mut ibv_pd, attr: &ibv_ah_attr) -> Outcome<*mut ibv_ah> {
    // SAFETY: find checks the pointer.
    let object = unsafe { domain(pd)? };
    let domain = object.private.domain.clone();
    let path = domain.shared.device.resolve(&address(attr)).map_err(|error| {
        tracing::warn!("ibv_create_ah refused: {error}");
        INVALID
    })?;
    let abi = ibv_ah { context: context_of(object), pd, handle: 0 };
    Ok(Object::publish(abi, Address { path, _domain: domain }))
}

/// ibv_create_ah(3)
///
/// # Safety
/// The pointers are what the program passed.
pub unsafe extern "C" fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    // SAFETY: memory checks the pointer.
    pointer(|| create(pd, &unsafe { memory::read(attr)? }))
}

/// ibv_destroy_ah(3)
///
/// # Safety
/// The pointer is what the program passed.
pub unsafe extern "C" fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int {
    errno(|| {
        // SAFETY: find checks the pointer.
        drop(unsafe { Object::<Address>::find(ah)? }.retire());
        Ok(())
    })
}

/// Who sent a datagram, by the 40 bytes in front of it: an IPv6 header, or 20 unused bytes and an IPv4 header
/// (IBA annex A17.4.5.1).
enum Sender {
    V4 { from: Ipv4Addr, to: Ipv4Addr, ttl: u8, tos: u8 },
    V6 { from: Ipv6Addr, to: Ipv6Addr, hop_limit: u8, traffic_class: u8, flow_label: u32 },
}

fn sender(header: &[u8; 40]) -> Outcome<Sender> {
    let bytes = |at: usize| <[u8; 4]>::try_from(&header[at..at + 4]).unwrap_or_default();
    let long = |at: usize| <[u8; 16]>::try_from(&header[at..at + 16]).unwrap_or_default();
    let v4 = &header[20..];
    // The unused bytes are not always zero, so an IPv4 header is believed if its checksum is right.
    if v4[0] == 0x45 && (header[0] >> 4 != 6 || checksum(v4) == 0xffff) {
        let (from, to) = (Ipv4Addr::from(bytes(32)), Ipv4Addr::from(bytes(36)));
        return Ok(Sender::V4 { from, to, ttl: v4[8], tos: v4[1] });
    }
    if header[0] >> 4 != 6 {
        return Err(Errno(libc::EPROTONOSUPPORT));
    }
    let word = u32::from_be_bytes(bytes(0));
    Ok(Sender::V6 {
        from: Ipv6Addr::from(long(8)),
        to: Ipv6Addr::from(long(24)),
        hop_limit: header[7],
        traffic_class: (word >> 20) as u8,
        flow_label: word & 0x000f_ffff,
    })
}

/// The ones' complement sum of a header: 0xffff if its checksum is right.
fn checksum(header: &[u8]) -> u16 {
    let mut sum: u32 =
        header.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// The address of who sent a datagram.
fn reply_to(
    context_pointer: *mut ibv_context,
    port: u8,
    wc: *const ibv_wc,
    grh: *const ibv_grh,
) -> Outcome<ibv_ah_attr> {
    // SAFETY: find checks the context, memory the other pointers; a GRH is 40 bytes of any value.
    let (context, wc) = unsafe { (context(context_pointer)?, memory::read(wc)?) };
    if port != 1 {
        return Err(INVALID);
    }
    // SAFETY: numbers.
    let mut attr: ibv_ah_attr = unsafe { std::mem::zeroed() };
    attr.dlid = wc.slid;
    attr.sl = wc.sl;
    attr.src_path_bits = wc.dlid_path_bits;
    attr.port_num = port;
    if wc.wc_flags & IBV_WC_GRH == 0 {
        return Ok(attr);
    }
    attr.is_global = 1;
    // SAFETY: as above.
    let header = unsafe { memory::read(grh.cast::<[u8; 40]>())? };
    let (from, to) = match sender(&header)? {
        Sender::V4 { from, to, ttl, tos } => {
            attr.grh.hop_limit = ttl;
            attr.grh.traffic_class = tos;
            if to.is_multicast() {
                return Err(INVALID);
            }
            (Gid::from_ip(from.into()), Gid::from_ip(to.into()))
        }
        Sender::V6 { from, to, hop_limit, traffic_class, flow_label } => {
            attr.grh.hop_limit = hop_limit;
            attr.grh.traffic_class = traffic_class;
            attr.grh.flow_label = flow_label;
            if to.is_multicast() {
                return Err(INVALID);
            }
            (Gid::from_ip(from.into()), Gid::from_ip(to.into()))
        }
    };
    // The reply leaves from the GID that the datagram came to.
    let gids = &context.private.shared.device.port().gids;
    let index = gids.iter().position(|gid| *gid == to).ok_or(INVALID)?;
    attr.grh.sgid_index = u8::try_from(index).map_err(|_| INVALID)?;
    attr.grh.dgid = ibv_gid { raw: from.0 };
    Ok(attr)
}

/// ibv_init_ah_from_wc(3)
///
/// # Safety
/// The pointers are what the program passed.
pub unsafe extern "C" fn ibv_init_ah_from_wc(
    context: *mut ibv_context,
    port: u8,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    attr: *mut ibv_ah_attr,
) -> c_int {
    minus_one(|| {
        // SAFETY: memory checks the pointer.
        unsafe { memory::write(attr, reply_to(context, port, wc, grh)?)? };
        Ok(0)
    })
}

/// ibv_create_ah_from_wc(3)
///
/// # Safety
/// The pointers are what the program passed.
pub unsafe extern "C" fn ibv_create_ah_from_wc(
    pd: *mut ibv_pd,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    port: u8,
) -> *mut ibv_ah {
    pointer(|| {
        // SAFETY: find checks the pointer.
        let context = context_of(unsafe { domain(pd)? });
        create(pd, &reply_to(context, port, wc, grh)?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv4_header_is_in_the_second_half() {
        let mut header = [0u8; 40];
        header[20..]
            .copy_from_slice(&[0x45, 0x60, 0, 60, 0, 0, 0x40, 0, 63, 17, 0, 0, 127, 0, 0, 1, 127, 0, 0, 2]);
        let Ok(Sender::V4 { from, to, ttl, tos }) = sender(&header) else { panic!("IPv4") };
        assert_eq!((from, to), (Ipv4Addr::new(127, 0, 0, 1), Ipv4Addr::new(127, 0, 0, 2)));
        assert_eq!((ttl, tos), (63, 0x60));
    }

    #[test]
    fn an_ipv6_header_fills_it() {
        let mut header = [0u8; 40];
        header[..8].copy_from_slice(&[0x61, 0x2a, 0xbc, 0xde, 0, 20, 17, 9]);
        header[23] = 1;
        // The destination looks like the start of an IPv4 header, but there is no checksum.
        header[20] = 0x45;
        header[39] = 2;
        let Ok(Sender::V6 { hop_limit, traffic_class, flow_label, .. }) = sender(&header) else {
            panic!("IPv6")
        };
        assert_eq!((hop_limit, traffic_class, flow_label), (9, 0x12, 0xabcde));
    }

    #[test]
    fn bytes_that_are_neither_are_refused() {
        assert!(sender(&[0; 40]).is_err());
        assert!(sender(&[0x10; 40]).is_err());
    }
}
