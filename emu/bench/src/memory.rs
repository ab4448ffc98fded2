//! What an idle queue pair costs.

use std::net::IpAddr;

use urxe::config::Config;
use urxe::device::{Device, QpInit, QueuePair};
use urxe::ids::{Gid, Mtu, Qpn};
use urxe::mem::Access;
use urxe::verbs::{AddressVector, AttrMask, QpAttr, QpCaps, QpState, QpType, RecvWr, Sge};

const QUEUE_PAIRS: usize = 1000;
const DEPTH: u32 = 128;

/// Bytes of resident memory for each of many connected RC queue pairs whose receive queue is full.
pub(crate) fn idle_queue_pair() -> Result<usize, String> {
    let device = Device::open(&Config::default()).map_err(|e| e.to_string())?;
    let pd = device.alloc_pd();
    let cq = device.create_cq(16, None);
    let mut all: Vec<QueuePair> = Vec::with_capacity(QUEUE_PAIRS);
    let before = resident()?;
    for _ in 0..QUEUE_PAIRS {
        let init = QpInit {
            kind: QpType::Rc,
            pd,
            send_cq: cq.clone(),
            recv_cq: cq.clone(),
            srq: None,
            caps: QpCaps {
                max_send_wr: DEPTH,
                max_recv_wr: DEPTH,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 64,
            },
            sig_all: false,
            events: None,
        };
        let qp = device.create_qp(init).map_err(|e| e.to_string())?;
        connect(&qp, device.port().ip, qp.number())?;
        for id in 0..u64::from(DEPTH) {
            qp.post_recv(&RecvWr { id, sges: &[Sge::default()] }).map_err(|e| e.to_string())?;
        }
        all.push(qp);
    }
    Ok(resident()?.saturating_sub(before) / QUEUE_PAIRS)
}

/// Connects a queue pair.
pub(crate) fn connect(qp: &QueuePair, ip: IpAddr, peer: Qpn) -> Result<(), String> {
    let av = AddressVector { dgid: Gid::from_ip(ip), is_global: true, port: 1, ..AddressVector::default() };
    let attr = QpAttr {
        port: 1,
        access: Access(15),
        path_mtu: Mtu::B4096,
        dest_qpn: peer,
        max_rd_atomic: 1,
        max_dest_rd_atomic: 1,
        min_rnr_timer: 12,
        timeout: 14,
        retry_cnt: 7,
        rnr_retry: 7,
        av,
        ..QpAttr::default()
    };
    use AttrMask as M;
    let steps: [(QpState, &[M]); 3] = [
        (QpState::Init, &[M::PKEY_INDEX, M::PORT, M::ACCESS_FLAGS]),
        (
            QpState::Rtr,
            &[M::AV, M::PATH_MTU, M::DEST_QPN, M::RQ_PSN, M::MAX_DEST_RD_ATOMIC, M::MIN_RNR_TIMER],
        ),
        (QpState::Rts, &[M::SQ_PSN, M::TIMEOUT, M::RETRY_CNT, M::RNR_RETRY, M::MAX_QP_RD_ATOMIC]),
    ];
    for (state, bits) in steps {
        let mask = bits.iter().fold(M::STATE, |m, b| m.with(*b));
        qp.modify(&QpAttr { state, ..attr }, mask).map_err(|e| e.to_string())?;
    }
    Ok(())
}

/// Resident memory of this process in bytes.
fn resident() -> Result<usize, String> {
    let text = std::fs::read_to_string("/proc/self/status").map_err(|e| e.to_string())?;
    let line = text.lines().find_map(|l| l.strip_prefix("VmRSS:")).ok_or("no VmRSS in /proc/self/status")?;
    let kib: usize = line.trim().trim_end_matches(" kB").parse().map_err(|_| "VmRSS is not a number")?;
    Ok(kib * 1024)
}

#[cfg(test)]
mod tests {
    #[test]
    fn an_idle_queue_pair_takes_less_than_32_kib() {
        let bytes = super::idle_queue_pair().unwrap();
        assert!((1000..32 * 1024).contains(&bytes), "{bytes} bytes");
    }
}
