//! What the tree says about the device.

use std::net::Ipv4Addr;

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

/// The description of the device that the tree's files are made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
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

    /// The facts while no device is open: a path may be looked at before the first verbs call.
    pub fn before_open() -> Self {
        let address = std::env::var("URXE_ADDR")
            .ok()
            .and_then(|text| text.parse().ok())
            .unwrap_or(Ipv4Addr::new(127, 0, 0, 1));
        Self::of(address, "lo")
    }
}
