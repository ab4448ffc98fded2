//! `urxe stat`: the devices of a fabric, the processes on them, their queue pairs and counters.

use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _};

use serde_json::{Map, Value, json};
use urxe::config::Config;
use urxe_control::picture::Picture;
use urxe_control::protocol::{DeviceReport, DeviceStatus, ProcessStatus, QpReport, RegionReport};

use crate::Failure;
use crate::args::Stat;

pub(crate) fn stat(options: &Stat) -> Result<u8, Failure> {
    let config = Config::resolve(std::env::vars_os(), &options.flags)?;
    let fabric = config.fabric.as_str();
    loop {
        let picture = Picture::of(fabric).map_err(|e| e.to_string())?;
        let mut text = match &picture {
            picture if options.json => format!("{}\n", picture.as_ref().map_or(Value::Null, as_json)),
            Some(picture) => as_text(picture),
            None => format!("no daemon of fabric {fabric} runs: no program uses a device of it\n"),
        };
        let mut out = std::io::stdout();
        if options.watch.is_some() && !options.json && out.is_terminal() {
            text.insert_str(0, "\x1b[H\x1b[2J");
        }
        // Whoever reads may have enough.
        if out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_err() {
            return Ok(0);
        }
        match options.watch {
            Some(pause) => std::thread::sleep(pause),
            None => return Ok(0),
        }
    }
}

fn as_json(picture: &Picture) -> Value {
    let Picture { daemon, processes, silent } = picture;
    json!({
        "fabric": daemon.fabric,
        "daemon": {
            "pid": daemon.pid,
            "uptime_ms": daemon.uptime_ms,
            "endpoints": daemon.endpoints,
            "listeners": daemon.listeners,
            "counters": counters_json(&daemon.counters),
        },
        "devices": daemon.devices.iter().map(device_json).collect::<Vec<_>>(),
        "processes": processes.iter().map(process_json).collect::<Vec<_>>(),
        "silent": silent,
    })
}

fn counters_json(counters: &[(String, u64)]) -> Value {
    counters.iter().map(|(name, value)| (name.clone(), Value::from(*value))).collect::<Map<_, _>>().into()
}

fn device_json(device: &DeviceStatus) -> Value {
    let groups = device.groups.iter().map(|(group, members)| (group.to_string(), Value::from(*members)));
    json!({
        "address": device.address,
        "node": device.node,
        "rail": device.rail,
        "interface": device.interface,
        "slots": device.slots,
        "draining": device.draining,
        "groups": groups.collect::<Map<_, _>>(),
    })
}

fn process_json(process: &ProcessStatus) -> Value {
    let leases = process.leases.iter().map(|(address, slot)| json!({ "address": address, "slot": slot }));
    json!({
        "pid": process.pid,
        "program": process.program,
        "leases": leases.collect::<Vec<_>>(),
        "devices": process.report.devices.iter().map(report_json).collect::<Vec<_>>(),
    })
}

fn report_json(device: &DeviceReport) -> Value {
    json!({
        "name": device.name,
        "address": device.address,
        "counters": counters_json(&device.counters),
        "qp_count": device.qp_count,
        "qps": device.qps.iter().map(qp_json).collect::<Vec<_>>(),
        "threads": device.threads,
        "regions": device.regions.iter().map(region_json).collect::<Vec<_>>(),
    })
}

fn region_json(region: &RegionReport) -> Value {
    json!({ "lkey": region.lkey, "counters": counters_json(&region.counters) })
}

fn qp_json(qp: &QpReport) -> Value {
    json!({
        "qpn": qp.qpn,
        "type": qp.kind,
        "state": qp.state,
        "peer": qp.peer.map(|(address, qpn)| json!({ "address": address, "qpn": qpn })),
        "send_queue": qp.send_queue,
        "receive_queue": qp.receive_queue,
    })
}

fn as_text(picture: &Picture) -> String {
    let Picture { daemon, processes, silent } = picture;
    let mut text = format!(
        "fabric {}   daemon {}, up {} s, {} rdma_cm endpoints\n",
        daemon.fabric,
        daemon.pid,
        daemon.uptime_ms / 1000,
        daemon.endpoints
    );
    counters_text(&mut text, &daemon.counters);
    if !daemon.devices.is_empty() {
        let mut rows =
            vec![row(["DEVICE", "NODE", "RAIL", "INTERFACE", "PROCESSES", "DRAINING", "MULTICAST"])];
        for d in &daemon.devices {
            let groups: Vec<_> = d.groups.iter().map(|(group, n)| format!("{group} ({n})")).collect();
            rows.push(vec![
                d.address.to_string(),
                d.node.to_string(),
                d.rail.to_string(),
                d.interface.clone(),
                d.slots.to_string(),
                d.draining.to_string(),
                groups.join(" "),
            ]);
        }
        text.push('\n');
        columns(&mut text, &rows);
    }
    for process in processes {
        let _ = writeln!(text, "\nprocess {} {}", process.pid, process.program);
        for device in &process.report.devices {
            let slot = process.leases.iter().find(|(address, _)| *address == device.address);
            let slot = slot.map_or(String::new(), |(_, slot)| format!(", slot {slot}"));
            let _ = writeln!(
                text,
                "  {} {}{slot}, {} queue pairs; {}",
                device.name,
                device.address,
                device.qp_count,
                device.threads.join("; ")
            );
            counters_text(&mut text, &device.counters);
            for region in &device.regions {
                let _ = writeln!(text, "  region with lkey {:#x}, paged on demand", region.lkey);
                counters_text(&mut text, &region.counters);
            }
            if device.qps.is_empty() {
                continue;
            }
            let mut rows = vec![row(["  QPN", "TYPE", "STATE", "PEER", "SEND", "RECEIVE"])];
            for qp in &device.qps {
                let peer = qp.peer.map_or("-".into(), |(ip, qpn)| format!("{ip} {qpn:#08x}"));
                rows.push(vec![
                    format!("  {:#08x}", qp.qpn),
                    qp.kind.clone(),
                    qp.state.clone(),
                    peer,
                    qp.send_queue.to_string(),
                    qp.receive_queue.to_string(),
                ]);
            }
            columns(&mut text, &rows);
            let more = (device.qp_count as usize).saturating_sub(device.qps.len());
            if more > 0 {
                let _ = writeln!(text, "  and {more} more");
            }
        }
    }
    if *silent > 0 {
        let _ = writeln!(text, "\n{silent} processes did not answer");
    }
    text
}

/// Those that are not 0.
fn counters_text(text: &mut String, counters: &[(String, u64)]) {
    let raised: Vec<_> =
        counters.iter().filter(|(_, n)| *n > 0).map(|(name, n)| format!("{name}={n}")).collect();
    for line in raised.chunks(5) {
        let _ = writeln!(text, "    {}", line.join(" "));
    }
}

fn row<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(str::to_owned).into()
}

fn columns(text: &mut String, rows: &[Vec<String>]) {
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |i: usize| rows.iter().filter_map(|r| r.get(i)).map(|c| c.chars().count()).max();
    let widths: Vec<_> = (0..count).map(|i| width(i).unwrap_or(0)).collect();
    for row in rows {
        let cells: Vec<_> = row.iter().zip(&widths).map(|(cell, w)| format!("{cell:<w$}")).collect();
        let _ = writeln!(text, "{}", cells.join("  ").trim_end());
    }
}

#[cfg(test)]
mod tests {
    use urxe_control::protocol::DaemonStatus;

    use super::*;

    fn picture() -> Picture {
        let address = "127.0.1.1".parse().unwrap();
        let qp = QpReport {
            qpn: 0x01_0011,
            kind: "RC".into(),
            state: "RTS".into(),
            peer: Some(("127.0.1.2".parse().unwrap(), 0x02_0011)),
            send_queue: 3,
            receive_queue: 0,
        };
        let report = DeviceReport {
            name: "urxe0".into(),
            address,
            counters: vec![("sent_pkts".into(), 7), ("rcvd_rnr_err".into(), 0)],
            qps: vec![qp],
            qp_count: 600,
            threads: vec!["receive thread on CPU 1".into()],
            regions: vec![RegionReport { lkey: 0xabc, counters: vec![("page_faults".into(), 9)] }],
        };
        let process = ProcessStatus {
            pid: 77,
            program: "ib_send_bw".into(),
            leases: vec![(address, 1)],
            report: urxe_control::protocol::ProcessReport { number: 1, devices: vec![report] },
        };
        let device = DeviceStatus {
            address,
            node: 0,
            rail: 0,
            interface: "lo".into(),
            slots: 1,
            draining: 0,
            groups: vec![("239.1.2.3".parse().unwrap(), 2)],
        };
        let daemon = DaemonStatus { pid: 5, fabric: "f".into(), devices: vec![device], ..Default::default() };
        Picture { daemon, processes: vec![process], silent: 1 }
    }

    #[test]
    fn the_text_shows_peers_and_counters_that_moved() {
        let text = as_text(&picture());
        for wanted in [
            "127.0.1.2 0x020011",
            "RTS",
            "sent_pkts=7",
            "and 599 more",
            "1 processes did not answer",
            "239.1.2.3 (2)",
            "slot 1",
            "region with lkey 0xabc",
            "page_faults=9",
        ] {
            assert!(text.contains(wanted), "{wanted} is not in\n{text}");
        }
        assert!(!text.contains("rcvd_rnr_err"), "{text}");
    }

    #[test]
    fn json_has_all_of_it() {
        let json = as_json(&picture());
        assert_eq!(json["processes"][0]["devices"][0]["qps"][0]["peer"]["qpn"], 0x02_0011);
        assert_eq!(json["processes"][0]["devices"][0]["counters"]["rcvd_rnr_err"], 0);
        assert_eq!(json["processes"][0]["devices"][0]["regions"][0]["counters"]["page_faults"], 9);
        assert_eq!(json["devices"][0]["groups"]["239.1.2.3"], 2);
        assert_eq!(json["daemon"]["pid"], 5);
    }
}
