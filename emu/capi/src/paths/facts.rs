//! What the tree says about a device.

use std::net::{IpAddr, Ipv4Addr};

use device::config::{Config, Daemon};
use device::io::route;
use urxe_control::launch::Launch;
use urxe_control::protocol::{DeviceSpec, Reply, Request};

/// The addresses of the process's devices, if there is a daemon that knows them. No thread and no lease is needed.
fn ask(config: &Config) -> Vec<IpAddr> {
    let answers = || {
        if config.daemon == Daemon::Off {
            return Ok(Vec::new());
        }
        let Some(daemon) = Launch::new(config.fabric.as_str())?.find()? else { return Ok(Vec::new()) };
        let mut addresses = Vec::new();
        for rail in 0..config.devices.value() {
            let request = Request::Device(DeviceSpec::of(config, rail)?);
            if let (Reply::Device { address, .. }, _) = daemon.ask(&request, &[], |_| {})? {
                addresses.push(address);
            }
        }
        Ok::<_, urxe_control::Error>(addresses)
    };
    // The first verbs call will say what is wrong.
    answers().unwrap_or_default()
}

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

    /// The facts while no device is open: a path may be looked at before the first verbs call, or by a program that makes
    /// none. Names and their number are as configured; addresses are known to the daemon, if one runs.
    pub fn before_open() -> Vec<Self> {
        let config = Config::load().unwrap_or_default();
        let known = if config.addr.is_none() { ask(&config) } else { Vec::new() };
        let connection_manager = config.daemon == Daemon::Auto;
        let facts = |rail| {
            let known = known.get(rail as usize).copied().or(config.addr);
            let address = match known {
                Some(IpAddr::V4(address)) => address,
                _ => Ipv4Addr::LOCALHOST,
            };
            let interface = known.and_then(|ip| route::interface(ip).ok().flatten());
            let interface = interface.map_or_else(|| "lo".to_owned(), |found| found.name);
            let facts = Self { connection_manager, ..Self::of(address, &interface) };
            facts.with_rail(rail, config.device_name(rail))
        };
        (0..config.devices.value()).map(facts).collect()
    }
}
