//! Management datagrams to and from the wire: QP1 of each device (IBA 13.5.1).

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use urxe::cm::manager::{Manager, Transmit};
use urxe::ids::{PKey, Psn, QKey, Qpn};
use urxe::io::{Link, Meta, ROCE_PORT, RxBatch};
use urxe::time::Instant;
use urxe::wire::icrc::{self, Check, PathIcrc};
use urxe::wire::{Bth, Deth, Headers, Opcode, Packet, Path, TxBatch};

use crate::device::{Device, PathKey};

/// The general services interface.
const QP1: Qpn = Qpn(1);
/// Its well-known key (IBA 3.5.3).
const QKEY: QKey = QKey(0x8001_0000);
/// Bytes of a management datagram.
const MAD: usize = 256;
/// Datagrams that leave before others are received: what is sent to ourselves needs room in our own queue.
const BURST: usize = 64;
/// Peers that are remembered.
const MAX_PATHS: usize = 4096;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {
        /// What happened to packets for the daemon. Each only rises.
        #[derive(Default, Debug)]
        pub(crate) struct Counters { $($(#[$doc])* $name: u64),+ }

        impl Counters {
            pub(crate) fn all(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((concat!("qp1_", stringify!($name)), self.$name)),+].into_iter()
            }
        }
    };
}

counters! {
    /// Management datagrams that came.
    rx_mads,
    /// That left.
    tx_mads,
    /// That the network did not take; they are repeated like those that are lost.
    tx_dropped,
    /// Packets for queue pairs that no process has.
    no_queue_pair,
    /// Packets that are no RoCEv2 packets.
    malformed,
    /// Damaged packets.
    icrc_errors,
    /// Packets for QP1 with another key or partition.
    violations,
    /// Packets for QP1 of another length or service.
    not_a_mad,
}

/// The buffers that all devices share.
pub(crate) struct Wire {
    rx: RxBatch,
    tx: TxBatch,
    pub(crate) counters: Counters,
    /// Datagrams that did not fit a batch.
    left: Option<Transmit>,
}

impl Wire {
    pub(crate) fn new() -> Self {
        Self { rx: RxBatch::new(4), tx: TxBatch::new(), counters: Counters::default(), left: None }
    }

    /// Takes what has arrived at a device; false if nothing had.
    pub(crate) fn receive(
        &mut self,
        device: &Device,
        manager: &mut Manager,
        now: Instant,
    ) -> std::io::Result<bool> {
        let count = device.link.recv(&mut self.rx)?;
        for datagram in self.rx.iter() {
            for bytes in datagram.packets() {
                if let Some(mad) = accept(&datagram.meta, device.address, bytes, &mut self.counters) {
                    self.counters.rx_mads += 1;
                    manager.handle_mad(now, device.address, datagram.meta.src.ip(), mad);
                }
            }
        }
        Ok(count > 0)
    }

    /// Sends what the connection manager has to say, up to a limit; true if there is more.
    pub(crate) fn transmit(
        &mut self,
        devices: &mut std::collections::BTreeMap<IpAddr, Device>,
        manager: &mut Manager,
    ) -> bool {
        let mut sent = 0;
        while sent < BURST {
            let Some(first) = self.left.take().or_else(|| manager.poll_transmit()) else { return false };
            let Some(device) = devices.get_mut(&first.from) else { continue };
            // Datagrams of one device in a row leave together.
            self.tx.clear();
            let mut next = Some(first);
            while let Some(transmit) = next {
                if transmit.from != device.address || !self.tx.has_room(MAD) || sent >= BURST {
                    self.left = Some(transmit);
                    break;
                }
                append(&mut self.tx, device, &transmit);
                sent += 1;
                next = manager.poll_transmit();
            }
            let all = self.tx.packets();
            let outcome = device.link.send(&self.tx);
            self.counters.tx_mads += outcome.sent_packets as u64;
            if outcome.sent_packets < all {
                self.counters.tx_dropped += (all - outcome.sent_packets) as u64;
                tracing::debug!(
                    "{}: {} datagrams did not leave: {:?}",
                    device.address,
                    all - outcome.sent_packets,
                    outcome.why
                );
            }
        }
        true
    }
}

/// The management datagram in a packet, if it is one for us.
fn accept<'a>(meta: &Meta, own: IpAddr, bytes: &'a [u8], counters: &mut Counters) -> Option<&'a [u8]> {
    let packet = match Packet::parse(bytes) {
        Ok(packet) => packet,
        Err(_) => {
            counters.malformed += 1;
            return None;
        }
    };
    let bth = &packet.headers.bth;
    if bth.dest_qpn != QP1 {
        // The steering brings what is for no slot here.
        counters.no_queue_pair += 1;
        return None;
    }
    let path = PathIcrc::new(meta.src, SocketAddr::new(own, ROCE_PORT));
    if icrc::verify(&path, meta.ip_id, bytes) == Check::Mismatch {
        counters.icrc_errors += 1;
        return None;
    }
    if bth.opcode != Opcode::UdSendOnly || packet.payload.len() != MAD {
        counters.not_a_mad += 1;
        return None;
    }
    let key = packet.headers.deth.map(|d| d.qkey);
    if !bth.pkey.matches(PKey::DEFAULT) || key != Some(QKEY) {
        counters.violations += 1;
        return None;
    }
    Some(packet.payload)
}

fn append(batch: &mut TxBatch, device: &mut Device, transmit: &Transmit) {
    let path = path(&device.link, &mut device.paths, (transmit.to, transmit.traffic_class, 0));
    let bth = Bth::new(Opcode::UdSendOnly, QP1, Psn::new(device.psn));
    device.psn = (device.psn + 1) & 0x00ff_ffff;
    let mut headers = Headers::new(bth);
    headers.deth = Some(Deth { qkey: QKEY, src_qpn: QP1 });
    batch.begin(&path, &headers, MAD, 0);
    let copied: Result<(), std::convert::Infallible> = batch.stage(MAD, |out| {
        out.copy_from_slice(&transmit.mad);
        Ok(())
    });
    if copied.is_ok() {
        batch.finish();
    }
}

fn path(link: &impl Link, paths: &mut HashMap<PathKey, Arc<Path>>, key: PathKey) -> Arc<Path> {
    if let Some(path) = paths.get(&key) {
        return path.clone();
    }
    if paths.len() >= MAX_PATHS {
        paths.clear();
    }
    let (to, traffic_class, flow_label) = key;
    let local = link.local();
    let mut peer = SocketAddr::new(to, ROCE_PORT);
    // A link-local peer is on the device's own interface.
    if let (SocketAddr::V6(peer), SocketAddr::V6(local)) = (&mut peer, local)
        && peer.ip().is_unicast_link_local()
    {
        peer.set_scope_id(local.scope_id());
    }
    let path = Arc::new(Path::new(local, peer, traffic_class, flow_label, link.limits(to).ip_id));
    paths.insert(key, path.clone());
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A packet for us with the given changes.
    fn packet(change: impl FnOnce(&mut Headers), length: usize) -> Vec<u8> {
        let [from, to]: [SocketAddr; 2] =
            ["127.0.9.1:4791".parse().unwrap(), "127.0.9.2:4791".parse().unwrap()];
        let mut headers = Headers::new(Bth::new(Opcode::UdSendOnly, QP1, Psn::new(7)));
        headers.deth = Some(Deth { qkey: QKEY, src_qpn: QP1 });
        change(&mut headers);
        let mut out = [0; urxe::wire::MAX_HEADERS];
        let header = headers.emit(&mut out);
        let mut bytes = out[..header].to_vec();
        bytes.resize(header + length, 0x5a);
        bytes.extend([0; 4]);
        PathIcrc::new(from, to).seal(0, icrc::FlushIcrc::Standard, &mut bytes);
        bytes
    }

    fn taken(bytes: &[u8]) -> (bool, String) {
        let meta = Meta {
            src: "127.0.9.1:4791".parse().unwrap(),
            dst: "127.0.9.2".parse().unwrap(),
            traffic_class: 0,
            hop_limit: 0,
            ip_id: None,
            segment: bytes.len(),
        };
        let mut counters = Counters::default();
        let taken = accept(&meta, meta.dst, bytes, &mut counters).is_some();
        let raised = counters.all().find(|(_, n)| *n > 0).map_or("", |(name, _)| name);
        (taken, raised.to_owned())
    }

    #[test]
    fn only_intact_datagrams_for_qp1_reach_the_connection_manager() {
        assert_eq!(taken(&packet(|_| {}, MAD)), (true, String::new()));
        let refused = |why: &str| (false, format!("qp1_{why}"));
        assert_eq!(taken(&packet(|h| h.bth.dest_qpn = Qpn(0x00_0102), MAD)), refused("no_queue_pair"));
        assert_eq!(taken(&packet(|h| h.bth.dest_qpn = Qpn(0), MAD)), refused("no_queue_pair"));
        assert_eq!(taken(&packet(|_| {}, MAD - 4)), refused("not_a_mad"));
        assert_eq!(taken(&packet(|h| h.bth.opcode = Opcode::UcSendOnly, MAD)), refused("not_a_mad"));
        let key = |h: &mut Headers| h.deth = Some(Deth { qkey: QKey(1), src_qpn: QP1 });
        assert_eq!(taken(&packet(key, MAD)), refused("violations"));
        assert_eq!(taken(&packet(|h| h.bth.pkey = PKey(0x8001), MAD)), refused("violations"));
        assert_eq!(taken(&packet(|h| h.bth.version = 3, MAD)), refused("malformed"));
        assert_eq!(taken(b"x"), refused("malformed"));
        let mut damaged = packet(|_| {}, MAD);
        damaged[100] ^= 0x10;
        damaged[180] ^= 0x01;
        assert_eq!(taken(&damaged), refused("icrc_errors"));
    }
}
