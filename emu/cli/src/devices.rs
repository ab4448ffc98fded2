//! `urxe devices`: the devices that a program would find, and why they are so.

use std::fmt::Write;

use serde_json::{Map, Value, json};
use urxe::config::{Config, Daemon};
use urxe::device::{self, Device};
use urxe::verbs::limits;
use urxe_control::launch::Launch;
use urxe_control::protocol::{DeviceSpec, Reply, Request};

use crate::args::Flags;
use crate::{Failure, print};

pub(crate) fn devices(flags: &Flags, as_json: bool) -> Result<u8, Failure> {
    let config = Config::resolve(std::env::vars_os(), flags)?;
    // The configuration is shown even if no device can be had with it: it says why.
    let devices = open(&config);
    let facts = devices.as_deref().unwrap_or_default();
    print(&if as_json { json_text(&config, facts) } else { table(&config, facts) });
    match devices {
        Ok(_) => Ok(0),
        Err(error) => Err(format!("no device: {error}").into()),
    }
}

/// The facts of each device of the configured machine.
fn open(config: &Config) -> Result<Vec<Facts>, String> {
    let text = |e: &dyn std::fmt::Display| e.to_string();
    if config.daemon == Daemon::Off {
        let device = Device::open(config).map_err(|e| text(&e))?;
        return Ok(vec![facts(&device, config.device_name(0))]);
    }
    let connection = Launch::new(config.fabric.as_str()).and_then(|l| l.connect()).map_err(|e| text(&e))?;
    (0..config.devices.value())
        .map(|rail| {
            let spec = DeviceSpec::of(config, rail).map_err(|e| text(&e))?;
            let answer = connection.ask(&Request::Lease(spec), &[], |_| ()).map_err(|e| text(&e))?;
            let (Reply::Lease { slot, .. }, beside) = answer else {
                return Err("the daemon sent another answer than a lease".into());
            };
            let Ok([socket, anchor]) = <[_; 2]>::try_from(beside) else {
                return Err("the daemon sent a lease without its sockets".into());
            };
            let lease = device::Lease { slot, socket, anchor };
            let device = Device::open_member(config, lease).map_err(|e| text(&e))?;
            Ok(facts(&device, config.device_name(rail)))
        })
        .collect()
}

/// Names and values.
type Facts = Vec<(String, String)>;

/// Names and values, in the words of ibv_devinfo.
fn facts(device: &Device, name: String) -> Facts {
    let port = device.port();
    let config = device.config();
    let [a, b, c, d, e, f, g, h] = device.guid().to_be_bytes();
    let mut facts = vec![
        ("hca_id".to_owned(), name),
        ("node_guid".to_owned(), format!("{a:02x}{b:02x}:{c:02x}{d:02x}:{e:02x}{f:02x}:{g:02x}{h:02x}")),
        ("address".to_owned(), port.ip.to_string()),
        ("interface".to_owned(), port.interface.clone()),
        ("link_layer".to_owned(), format!("{:?}", config.link_layer)),
        ("active_mtu".to_owned(), port.mtu.bytes().to_string()),
        ("port_lid".to_owned(), port.lid.to_string()),
    ];
    let gids = port.gids.iter().enumerate();
    facts.extend(gids.map(|(index, gid)| (format!("GID[{index}]"), format!("{gid:?}, RoCE v2"))));
    let limits: [(&str, u64); 10] = [
        ("max_msg_sz", limits::MAX_MESSAGE),
        ("max_qp", limits::MAX_QP.into()),
        ("max_qp_wr", limits::MAX_QP_WR.into()),
        ("max_sge", limits::MAX_SGE.into()),
        ("max_inline", limits::MAX_INLINE.into()),
        ("max_rd_atomic", limits::MAX_RD_ATOMIC.into()),
        ("max_cq", limits::MAX_CQ.into()),
        ("max_cqe", limits::MAX_CQE.into()),
        ("max_srq", limits::MAX_SRQ.into()),
        ("max_srq_wr", limits::MAX_SRQ_WR.into()),
    ];
    facts.extend(limits.map(|(name, value)| (name.to_owned(), value.to_string())));
    facts
}

fn table(config: &Config, devices: &[Facts]) -> String {
    let mut text = String::new();
    for facts in devices {
        text += "device\n";
        for (name, value) in facts {
            let _ = writeln!(text, "  {name:<14} {value}");
        }
    }
    let rows: Vec<_> =
        config.entries().map(|(key, value, source)| (key.name, value, source.to_string())).collect();
    let width = rows.iter().map(|(_, value, _)| value.chars().count()).max().unwrap_or(0);
    text += "configuration\n";
    for (name, value, source) in rows {
        let _ = writeln!(text, "  {name:<14} {value:<width$}  {source}");
    }
    text
}

fn json_text(config: &Config, devices: &[Facts]) -> String {
    let device = |facts: &Facts| {
        facts.iter().map(|(name, value)| (name.clone(), Value::from(value.clone()))).collect::<Map<_, _>>()
    };
    let devices: Vec<_> = devices.iter().map(device).collect();
    let entry = |(key, value, source): (&urxe::config::Key, String, &urxe::config::Source)| {
        (key.name.to_owned(), json!({ "value": value, "source": source.to_string() }))
    };
    let entries: Map<String, Value> = config.entries().map(entry).collect();
    format!("{:#}\n", json!({ "devices": devices, "configuration": entries }))
}
