//! Attributes of the device and its port.

use std::ffi::{CString, c_int, c_void};

use device::config::LinkLayer;
use device::device::Device;
use device::ids::PKey;
use device::mem::Table;
use device::verbs::limits;

use super::convert::INVALID;
use super::device::{context, copy_text};
use crate::abi::*;
use crate::boundary::{Errno, Outcome, errno, guarded, minus_one, set_errno};
use crate::memory;

/// 4 lanes.
const WIDTH_4X: u8 = 2;
/// 25 Gb/s a lane. A slow link would make UCX prefer TCP.
const SPEED_EDR: u8 = 32;
/// The link is up (`phys_state`).
const LINK_UP: u8 = 5;
/// The device's clock counts nanoseconds; verbs wants kHz.
const CLOCK_KHZ: u64 = 1_000_000;

fn device_attr(device: &Device) -> ibv_device_attr {
    let size = |value: u32| i32::try_from(value).unwrap_or(i32::MAX);
    // SAFETY: numbers.
    let mut attr: ibv_device_attr = unsafe { std::mem::zeroed() };
    copy_text(&mut attr.fw_ver, env!("CARGO_PKG_VERSION"));
    attr.node_guid = device.guid().to_be();
    attr.sys_image_guid = device.guid().to_be();
    attr.max_mr_size = u64::MAX;
    attr.page_size_cap = !0xfff;
    // No vendor: programs that look for one must not take this for theirs.
    attr.vendor_id = 0x00ff_ffff;
    attr.vendor_part_id = 0;
    attr.hw_ver = 0;
    attr.max_qp = size(limits::MAX_QP);
    attr.max_qp_wr = size(limits::MAX_QP_WR);
    attr.device_cap_flags = IBV_DEVICE_BAD_QKEY_CNTR
        | IBV_DEVICE_CURR_QP_STATE_MOD
        | IBV_DEVICE_SYS_IMAGE_GUID
        | IBV_DEVICE_RC_RNR_NAK_GEN
        | IBV_DEVICE_SRQ_RESIZE;
    attr.max_sge = size(limits::MAX_SGE);
    attr.max_sge_rd = size(limits::MAX_SGE);
    attr.max_cq = size(limits::MAX_CQ);
    attr.max_cqe = size(limits::MAX_CQE);
    attr.max_mr = i32::try_from(Table::MAX_REGIONS).unwrap_or(i32::MAX);
    attr.max_pd = 1 << 24;
    attr.max_qp_rd_atom = limits::MAX_RD_ATOMIC.into();
    attr.max_res_rd_atom = size(u32::from(limits::MAX_RD_ATOMIC).saturating_mul(limits::MAX_QP));
    attr.max_qp_init_rd_atom = limits::MAX_RD_ATOMIC.into();
    attr.atomic_cap = IBV_ATOMIC_GLOB;
    attr.max_mcast_grp = size(limits::MAX_GROUPS);
    attr.max_mcast_qp_attach = size(limits::MAX_GROUP_QPS);
    attr.max_total_mcast_qp_attach = size(limits::MAX_GROUPS * limits::MAX_GROUP_QPS);
    attr.max_ah = 1 << 24;
    attr.max_srq = size(limits::MAX_SRQ);
    attr.max_srq_wr = size(limits::MAX_SRQ_WR);
    attr.max_srq_sge = size(limits::MAX_SGE);
    attr.max_pkeys = 1;
    attr.local_ca_ack_delay = 15;
    attr.phys_port_cnt = 1;
    attr
}

fn port_attr(device: &Device) -> ibv_port_attr {
    let port = device.port();
    ibv_port_attr {
        state: IBV_PORT_ACTIVE,
        max_mtu: IBV_MTU_4096,
        active_mtu: port.mtu as u32,
        gid_tbl_len: port.gids.len() as c_int,
        port_cap_flags: IBV_PORT_CM_SUP,
        max_msg_sz: limits::MAX_MESSAGE as u32,
        bad_pkey_cntr: 0,
        qkey_viol_cntr: 0,
        pkey_tbl_len: 1,
        lid: port.lid.0,
        sm_lid: 0,
        lmc: 0,
        max_vl_num: 1,
        sm_sl: 0,
        subnet_timeout: 0,
        init_type_reply: 0,
        active_width: WIDTH_4X,
        active_speed: SPEED_EDR,
        phys_state: LINK_UP,
        link_layer: match device.config().link_layer {
            LinkLayer::Ethernet => IBV_LINK_LAYER_ETHERNET,
            LinkLayer::InfiniBand => IBV_LINK_LAYER_INFINIBAND,
        },
        flags: 0,
        port_cap_flags2: 0,
        active_speed_ex: SPEED_EDR.into(),
    }
}

fn check_port(port: u32) -> Outcome<()> {
    if port == 1 { Ok(()) } else { Err(INVALID) }
}

/// ibv_query_device(3)
///
/// # Safety
/// The pointers are what the program passed.
pub unsafe extern "C" fn ibv_query_device(pointer: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int {
    errno(|| {
        // SAFETY: find checks the context, memory the other pointer.
        unsafe { memory::write(attr, device_attr(&context(pointer)?.private.shared.device)) }
    })
}

/// ibv_query_device_ex(3): as much of the structure as the caller knows.
///
/// # Safety
/// The pointers are what the program passed.
pub unsafe extern "C" fn query_device_ex(
    pointer: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
    size: usize,
) -> c_int {
    errno(|| {
        // SAFETY: find checks the context, memory the other pointers; the structure is numbers.
        unsafe {
            let context = context(pointer)?;
            if !input.is_null() && memory::read(input)?.comp_mask != 0 {
                return Err(INVALID);
            }
            if size < size_of::<ibv_device_attr>() || size > 1 << 16 {
                return Err(INVALID);
            }
            let mut known: ibv_device_attr_ex = std::mem::zeroed();
            known.orig_attr = device_attr(&context.private.shared.device);
            known.completion_timestamp_mask = u64::MAX;
            known.hca_core_clock = CLOCK_KHZ;
            known.device_cap_flags_ex = known.orig_attr.device_cap_flags.into();
            let messages = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_SRQ_RECV;
            known.odp_caps.general_caps = (IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT).into();
            known.odp_caps.per_transport_caps = ibv_odp_transport_caps {
                rc_odp_caps: messages | IBV_ODP_SUPPORT_WRITE | IBV_ODP_SUPPORT_READ | IBV_ODP_SUPPORT_ATOMIC,
                uc_odp_caps: messages | IBV_ODP_SUPPORT_WRITE,
                ud_odp_caps: messages,
            };
            // Atomics of the device are atomics of the processor, of eight bytes.
            known.pci_atomic_caps = ibv_pci_atomic_caps {
                fetch_add: IBV_PCI_8_BYTES,
                swap: IBV_PCI_8_BYTES,
                compare_swap: IBV_PCI_8_BYTES,
            };
            known.phys_port_cnt_ex = 1;
            memory::write_sized(attr.cast::<c_void>(), known, size)
        }
    })
}

/// `IBV_PCI_ATOMIC_OPERATION_8_BYTE_SIZE_SUP`
const IBV_PCI_8_BYTES: u16 = 1 << 1;

/// ibv_query_rt_values_ex(3): the device's clock.
///
/// # Safety
/// The pointers are what the program passed.
pub unsafe extern "C" fn query_rt_values(pointer: *mut ibv_context, values: *mut ibv_values_ex) -> c_int {
    errno(|| {
        // SAFETY: find checks the context, memory the other pointer.
        unsafe {
            let now = context(pointer)?.private.shared.device.now().0;
            let mut known = memory::read(values)?;
            if known.comp_mask & !IBV_VALUES_MASK_RAW_CLOCK != 0 {
                return Err(INVALID);
            }
            if known.comp_mask & IBV_VALUES_MASK_RAW_CLOCK != 0 {
                known.raw_clock.tv_sec = (now / 1_000_000_000) as libc::time_t;
                known.raw_clock.tv_nsec = (now % 1_000_000_000) as libc::c_long;
            }
            memory::write(values, known)
        }
    })
}

/// `ibv_query_port` of verbs.h: as much of the structure as the caller knows.
///
/// # Safety
/// The pointers are what the program passed.
pub unsafe extern "C" fn query_port_sized(
    pointer: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
    size: usize,
) -> c_int {
    errno(|| {
        // SAFETY: find checks the context, memory the other pointer.
        unsafe {
            let context = context(pointer)?;
            check_port(port.into())?;
            if size > 1 << 16 {
                return Err(INVALID);
            }
            memory::write_sized(attr.cast::<c_void>(), port_attr(&context.private.shared.device), size)
        }
    })
}

/// ibv_query_port(3) of programs that were built before the structure had its last fields.
///
/// # Safety
/// The pointers are what the program passed.
pub unsafe extern "C" fn ibv_query_port(
    pointer: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
) -> c_int {
    const OLD_SIZE: usize = std::mem::offset_of!(ibv_port_attr, port_cap_flags2);
    // SAFETY: passed on.
    unsafe { query_port_sized(pointer, port, attr, OLD_SIZE) }
}

/// ibv_query_port_speed(3), in units of 100 Mb/s.
///
/// # Safety
/// The pointers are what the program passed.
pub unsafe extern "C" fn ibv_query_port_speed(
    pointer: *mut ibv_context,
    port: u32,
    speed: *mut u64,
) -> c_int {
    errno(|| {
        // SAFETY: find checks the context, memory the other pointer.
        unsafe {
            context(pointer)?;
            check_port(port)?;
            memory::write(speed, 1000)
        }
    })
}

/// ibv_query_gid(3)
///
/// # Safety
/// The pointers are what the program passed.
pub unsafe extern "C" fn ibv_query_gid(
    pointer: *mut ibv_context,
    port: u8,
    index: c_int,
    gid: *mut ibv_gid,
) -> c_int {
    minus_one(|| {
        // SAFETY: find checks the context, memory the other pointer.
        unsafe {
            let context = context(pointer)?;
            check_port(port.into())?;
            let gids = &context.private.shared.device.port().gids;
            let known = usize::try_from(index).ok().and_then(|index| gids.get(index)).ok_or(INVALID)?;
            memory::write(gid, ibv_gid { raw: known.0 })?;
            Ok(0)
        }
    })
}

fn gid_type(device: &Device) -> u32 {
    match device.config().link_layer {
        LinkLayer::Ethernet => IBV_GID_TYPE_ROCE_V2,
        LinkLayer::InfiniBand => IBV_GID_TYPE_IB,
    }
}

fn gid_entry(device: &Device, index: u32) -> Outcome<ibv_gid_entry> {
    let port = device.port();
    let gid = port.gids.get(index as usize).ok_or(INVALID)?;
    let name = CString::new(port.interface.as_str()).map_err(|_| INVALID)?;
    Ok(ibv_gid_entry {
        gid: ibv_gid { raw: gid.0 },
        gid_index: index,
        port_num: 1,
        gid_type: gid_type(device),
        // SAFETY: a C string. 0 says that there is none.
        ndev_ifindex: unsafe { libc::if_nametoindex(name.as_ptr()) },
    })
}

/// Sizes of an entry that callers may have.
fn check_entry_size(size: usize) -> Outcome<()> {
    if (size_of::<ibv_gid_entry>()..=4096).contains(&size) { Ok(()) } else { Err(INVALID) }
}

/// ibv_query_gid_ex(3)
///
/// # Safety
/// The pointers are what the program passed.
pub unsafe extern "C" fn _ibv_query_gid_ex(
    pointer: *mut ibv_context,
    port: u32,
    index: u32,
    entry: *mut ibv_gid_entry,
    flags: u32,
    size: usize,
) -> c_int {
    errno(|| {
        // SAFETY: find checks the context, memory the other pointer.
        unsafe {
            let context = context(pointer)?;
            check_port(port)?;
            check_entry_size(size)?;
            if flags != 0 {
                return Err(Errno(libc::EOPNOTSUPP));
            }
            memory::write_sized(entry.cast(), gid_entry(&context.private.shared.device, index)?, size)
        }
    })
}

/// ibv_query_gid_table(3): the number of entries, or a negative errno.
///
/// # Safety
/// The pointers are what the program passed.
pub unsafe extern "C" fn _ibv_query_gid_table(
    pointer: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    room: usize,
    flags: u32,
    size: usize,
) -> isize {
    let result = guarded(|| {
        // SAFETY: find checks the context, memory the other pointer.
        unsafe {
            let context = context(pointer)?;
            check_entry_size(size)?;
            if flags != 0 {
                return Err(Errno(libc::EOPNOTSUPP));
            }
            let device = &context.private.shared.device;
            let count = device.port().gids.len();
            if count > room {
                return Err(INVALID);
            }
            for index in 0..count {
                let entry = gid_entry(device, index as u32)?;
                memory::write_sized(entries.wrapping_byte_add(index * size).cast(), entry, size)?;
            }
            Ok(count as isize)
        }
    });
    match result {
        Ok(count) => count,
        Err(error) => {
            set_errno(error);
            -(error.0 as isize)
        }
    }
}

/// What providers and `ibv_devinfo` ask a GID's type by: 0 is IB or RoCE v1, 1 is RoCE v2.
///
/// # Safety
/// The pointers are what the program passed.
pub unsafe extern "C" fn ibv_query_gid_type(
    pointer: *mut ibv_context,
    port: u8,
    index: u32,
    kind: *mut u32,
) -> c_int {
    minus_one(|| {
        // SAFETY: find checks the context, memory the other pointer.
        unsafe {
            let context = context(pointer)?;
            check_port(port.into())?;
            let device = &context.private.shared.device;
            if index as usize >= device.port().gids.len() {
                return Err(INVALID);
            }
            memory::write(kind, (gid_type(device) == IBV_GID_TYPE_ROCE_V2).into())?;
            Ok(0)
        }
    })
}

/// ibv_query_pkey(3)
///
/// # Safety
/// The pointers are what the program passed.
pub unsafe extern "C" fn ibv_query_pkey(
    pointer: *mut ibv_context,
    port: u8,
    index: c_int,
    pkey: *mut u16,
) -> c_int {
    minus_one(|| {
        // SAFETY: find checks the context, memory the other pointer.
        unsafe {
            context(pointer)?;
            check_port(port.into())?;
            if index != 0 {
                return Err(INVALID);
            }
            memory::write(pkey, PKey::DEFAULT.0.to_be())?;
            Ok(0)
        }
    })
}

/// ibv_get_pkey_index(3)
///
/// # Safety
/// The pointer is what the program passed.
pub unsafe extern "C" fn ibv_get_pkey_index(pointer: *mut ibv_context, port: u8, pkey: u16) -> c_int {
    minus_one(|| {
        // SAFETY: find checks the context.
        unsafe { context(pointer)? };
        check_port(port.into())?;
        if pkey == PKey::DEFAULT.0.to_be() { Ok(0) } else { Err(INVALID) }
    })
}
