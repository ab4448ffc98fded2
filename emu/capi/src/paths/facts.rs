//! What the tree says about a device.

use std::net::{IpAddr, Ipv4Addr};

use device::config::{Config, Daemon};

/// One entry of the port's GID table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GidFact {
    /// Its bytes.
    pub gid: [u8; 16],
    /// As the kernel names it: `RoCE v2` or `IB/RoCE v1`.
    pub kind: &'static str,
    /// The network interface it belongs to.
    pub interface: String,
}

/// The device number of `rdma_cm`: major, minor.
pub const CM_NUMBER: (u32, u32) = (10, 58);

/// The device number of a device's `uverbs` node.
pub const fn verbs_number(rail: u32) -> (u32, u32) {
    (231, 192 + rail)
}

/// The description of a device that the tree's files are made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Which of the process's devices, from 0.
    pub rail: u32,
    /// `ibv_device.name`.
    pub device: String,
    /// `ibv_device.dev_name`.
    pub node: String,
    /// EUI-64 of the node.
    pub guid: u64,
    /// Version of the device.
    pub version: String,
    /// The port's LID.
    pub lid: u16,
    /// `Ethernet` or `InfiniBand`.
    pub link_layer: &'static str,
    /// As the kernel writes it: `100 Gb/sec (4X EDR)`.
    pub rate: String,
    /// The GID table, from index 0, without gaps.
    pub gids: Vec<GidFact>,
    /// The interface that carries the packets.
    pub interface: String,
    /// Whether a connection manager is there.
    pub connection_manager: bool,
}

impl Facts {
    /// The facts of a device on an IPv4 address, as it is configured by default.
    pub fn of(address: Ipv4Addr, interface: &str) -> Self {
        let octets = address.octets();
        let mut gid = [0; 16];
        gid[10..12].fill(0xff);
        gid[12..].copy_from_slice(&octets);
        Self {
            rail: 0,
            device: "urxe0".into(),
            node: "uverbs0".into(),
            guid: 0x0200_00ff_fe00_0000 | u64::from(u32::from(address) & 0x00ff_ffff),
            version: env!("CARGO_PKG_VERSION").into(),
            lid: u16::from_be_bytes([octets[2], octets[3]]).max(1),
            link_layer: "Ethernet",
            rate: "100 Gb/sec (4X EDR)".into(),
            gids: vec![GidFact { gid, kind: "RoCE v2", interface: interface.into() }],
            interface: interface.into(),
            connection_manager: false,
        }
    }

    /// This, as the device of that number.
    pub fn with_rail(self, rail: u32, device: String) -> Self {
        Self { rail, node: format!("uverbs{rail}"), device, ..self }
    }

    /// The facts while no device is open: a path may be looked at before the first verbs call. Names and their number are
    /// as configured; addresses are not known yet.
    pub fn before_open() -> Vec<Self> {
        let config = Config::load().unwrap_or_default();
        let address = match config.addr {
            Some(IpAddr::V4(address)) => address,
            _ => Ipv4Addr::LOCALHOST,
        };
        let connection_manager = config.daemon == Daemon::Auto;
        let facts = |rail| {
            let facts = Self { connection_manager, ..Self::of(address, "lo") };
            facts.with_rail(rail, config.device_name(rail))
        };
        (0..config.devices.value()).map(facts).collect()
    }
}
