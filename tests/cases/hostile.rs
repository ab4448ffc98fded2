//! Arbitrary packets, times and calls into both sides of a queue pair: what a fuzzer and a property test share.
//!
//! Whatever arrives, nothing panics, nothing is written outside of what is registered, a request completes at most once
//! and in its turn, and what is in flight never goes below nothing.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use urxe::cq::Cq;
use urxe::ids::{LKey, Mtu, Psn, QKey, Qpn, RKey};
use urxe::mem::{Access, HostAddr, PdId, Table, copy};
use urxe::qp::Notices;
use urxe::qp::recv::{Acceptance, RecvSide, Source};
use urxe::qp::send::{Connection, SendSide};
use urxe::qp::window::Window;
use urxe::time::Instant;
use urxe::verbs::{
    QpCaps, QpState, QpType, RecvWr, Remote, SendFlags, SendOp, SendWr, Sge, UdDest, WcOpcode, WcStatus,
};
use urxe::wire::{Headers, IpId, Opcode, Packet, Path, TxBatch};

#[path = "../script/mod.rs"]
mod script;
use script::Script;

impl Script<'_> {
    fn below(&mut self, n: u32) -> u32 {
        u32::from_le_bytes([self.byte(), self.byte(), self.byte(), 0]) % n
    }
    /// Often near `near`, else anything.
    fn psn(&mut self, near: Psn) -> Psn {
        match self.byte() {
            b @ 0..=239 => near.plus(u32::from(b % 24)).minus(8),
            _ => Psn::new(self.below(1 << 24)),
        }
    }
}

const REGION: usize = 16 << 10;
const GUARD: usize = 4096;
const PD: PdId = PdId(1);
const CAPS: QpCaps =
    QpCaps { max_send_wr: 16, max_recv_wr: 16, max_send_sge: 4, max_recv_sge: 4, max_inline_data: 64 };

struct Memory {
    memory: Box<[std::sync::atomic::AtomicU64]>,
    table: Table,
    key: u32,
}

impl Memory {
    fn new() -> Self {
        let memory: Box<[_]> = (0..(REGION + 2 * GUARD) / 8)
            .map(|_| std::sync::atomic::AtomicU64::new(0x5a5a_5a5a_5a5a_5a5a))
            .collect();
        let table = Table::with_seed(5);
        let start = memory.as_ptr() as u64 + GUARD as u64;
        let keys = table.register(PD, start, REGION as u64, start, Access(15)).expect("memory of ours");
        Self { memory, table, key: keys.lkey.0 }
    }
    fn start(&self) -> u64 {
        self.memory.as_ptr() as u64 + GUARD as u64
    }
    /// Mostly inside.
    fn address(&self, script: &mut Script<'_>) -> u64 {
        match script.byte() {
            0..=220 => self.start() + u64::from(script.below(REGION as u32)),
            221..=240 => self.start().wrapping_add(u64::from(script.below(1 << 16))).wrapping_sub(1 << 15),
            _ => u64::MAX - u64::from(script.below(64)),
        }
    }
    fn key(&self, script: &mut Script<'_>) -> u32 {
        if script.byte() < 240 { self.key } else { script.below(1 << 24) << 8 }
    }
    fn len(script: &mut Script<'_>) -> u32 {
        match script.byte() {
            0..=99 => script.below(64),
            100..=239 => script.below(2000),
            _ => u32::MAX - script.below(1 << 24),
        }
    }
    fn sges(&self, script: &mut Script<'_>) -> Vec<Sge> {
        (0..script.byte() % 5)
            .map(|_| Sge {
                addr: self.address(script),
                len: Self::len(script) % (1 << 12),
                lkey: LKey(self.key(script)),
            })
            .collect()
    }
    /// That nothing was written beside the region.
    fn check(&self) {
        let mut guards = vec![0; GUARD];
        for at in [self.memory.as_ptr() as u64, self.start() + REGION as u64] {
            copy::read(HostAddr(at), &mut guards).expect("memory of ours");
            assert!(guards.iter().all(|&b| b == 0x5a), "written outside of the region");
        }
    }
}

/// A packet that parses, often one that makes sense.
fn packet(script: &mut Script<'_>, memory: &Memory, near: Psn) -> Option<(Headers, Vec<u8>)> {
    let opcode = Opcode::from_u8(match script.byte() {
        b @ 0..=199 => b % 0x18,
        b @ 200..=219 => 0x20 + b % 12,
        b @ 220..=229 => 0x64 + b % 2,
        _ => script.byte(),
    })?;
    let mut headers = Headers::new(urxe::wire::Bth::new(opcode, Qpn(1), script.psn(near)));
    let flags = script.byte();
    headers.bth.ack_request = flags & 1 != 0;
    headers.bth.solicited = flags & 2 != 0;
    // All extension headers; only those that the opcode lists are used.
    let (addr, rkey) = (memory.address(script), RKey(memory.key(script)));
    headers.reth = Some(urxe::wire::Reth { addr, rkey, len: Memory::len(script) });
    let word = u64::from(script.byte());
    headers.atomic = Some(urxe::wire::AtomicEth {
        addr: if flags & 4 != 0 { addr & !7 } else { addr },
        rkey,
        swap_add: word,
        compare: word,
    });
    let syndrome = urxe::wire::Syndrome::from_u8(script.byte());
    headers.aeth = Some(urxe::wire::Aeth { syndrome, msn: u32::from(flags) });
    headers.atomic_ack = Some(word);
    headers.immediate = Some([flags; 4]);
    headers.invalidate = Some(rkey);
    headers.xrc_srqn = Some(Qpn(1));
    headers.flush = Some(Default::default());
    headers.deth = Some(urxe::wire::Deth { qkey: QKey(if flags & 8 != 0 { 7 } else { 8 }), src_qpn: Qpn(9) });
    let len = match script.byte() {
        0..=99 if opcode.info().payload => 256,
        b if opcode.info().payload => usize::from(b) % 64 + usize::from(script.byte() % 2) * 1000,
        _ => 0,
    };
    headers.bth.pad = ((4 - len % 4) % 4) as u8;
    // Through the codec, so that what the sides see is what the parser lets through.
    let mut bytes = vec![0; urxe::wire::MAX_HEADERS];
    let n = {
        let mut out = [0; urxe::wire::MAX_HEADERS];
        let n = headers.emit(&mut out);
        bytes.copy_from_slice(&out);
        n
    };
    bytes.truncate(n);
    bytes.extend((0..len).map(|i| i as u8));
    bytes.resize(n + len.next_multiple_of(4) + 4, 0);
    let parsed = Packet::parse(&bytes).ok()?;
    Some((parsed.headers, parsed.payload.to_vec()))
}

fn path() -> Arc<Path> {
    let address = |last| SocketAddr::from(([10, 0, 0, last], 4791));
    Arc::new(Path::new(address(1), address(2), 0, 0, IpId::Zero))
}

/// Runs a script.
pub(crate) fn run(script: &[u8]) {
    let script = &mut Script(script);
    let kind = [QpType::Rc, QpType::Rc, QpType::Uc, QpType::Ud][usize::from(script.byte() % 4)];
    let memory = Memory::new();
    let cq = Arc::new(Cq::new(1, 1 << 16, None));
    let recv_cq = Arc::new(Cq::new(2, 1 << 16, None));
    let window = Arc::new(Window::new(1 << 18));
    let start = Psn::new(0xff_fff0);
    let connected = (kind != QpType::Ud).then(path);
    let rd_atomic = script.byte() % 5;
    let sig_all = script.byte() % 2 == 0;

    let mut send = SendSide::new(kind, Qpn(1), PD, CAPS, sig_all, cq.clone());
    send.connect(Connection {
        path: connected.clone(),
        window: window.clone(),
        dest_qpn: Qpn(2),
        mtu: Mtu::B256,
        qkey: QKey(7),
        max_rd_atomic: rd_atomic,
        timeout: script.byte() % 32,
        retry_cnt: script.byte() % 8,
        rnr_retry: script.byte() % 8,
    });
    send.start(start);
    send.set_state(QpState::Rts, false);
    let mut recv = RecvSide::new(kind, Qpn(1), PD, CAPS, recv_cq.clone(), None);
    recv.set_state(QpState::Init);
    let accept = Acceptance {
        path: connected,
        dest_qpn: Qpn(2),
        mtu: Mtu::B256,
        qkey: QKey(7),
        access: Access(15),
        max_dest_rd_atomic: rd_atomic,
        min_rnr_timer: 1,
    };
    recv.listen(accept, start);
    recv.set_state(QpState::Rts);

    let mut now = Instant(1);
    let (mut sends, mut recvs) = (0u64, 0u64);
    let (mut next_send, mut next_recv) = (0u64, 0u64);
    let mut notices = Notices::default();
    let mut send_failed = false;
    let mut steps = 0;
    while !script.is_empty() && steps < 4096 {
        steps += 1;
        match script.byte() % 16 {
            0..=3 => {
                let near = recv.rq_psn();
                if let Some((headers, payload)) = packet(script, &memory, near) {
                    let source = Source {
                        src: SocketAddr::from(([10, 0, 0, 2], 4791)),
                        dst: IpAddr::from([10, 0, 0, 1]),
                        traffic_class: 0,
                        hop_limit: 64,
                        udp_len: payload.len() + 16,
                    };
                    if headers.bth.opcode.info().request {
                        recv.handle_request(now, &headers, &payload, &source, &memory.table, &mut notices);
                    } else {
                        send.handle_response(now, &headers, &payload, &memory.table, &mut notices);
                    }
                }
            }
            4..=6 => {
                // A response near what is outstanding.
                let near = send.sq_psn().minus(script.below(16));
                if let Some((headers, payload)) = packet(script, &memory, near)
                    && !headers.bth.opcode.info().request
                {
                    send.handle_response(now, &headers, &payload, &memory.table, &mut notices);
                }
            }
            7 | 8 => {
                let sges = memory.sges(script);
                let remote = Remote { addr: memory.address(script), rkey: RKey(memory.key) };
                let word = u64::from(script.byte());
                let op = match script.byte() % 7 {
                    0 => SendOp::Send,
                    1 => SendOp::SendImm([1, 2, 3, 4]),
                    2 => SendOp::Write(remote),
                    3 => SendOp::WriteImm(remote, [1, 2, 3, 4]),
                    4 => SendOp::Read(remote),
                    5 => SendOp::CompareSwap { remote, compare: word, swap: word },
                    _ => SendOp::FetchAdd { remote, add: word },
                };
                let flags = SendFlags(u32::from(script.byte() % 17));
                let ud = Some(UdDest { path: path(), qpn: Qpn(2), qkey: QKey(7) });
                if send.post(&SendWr { id: sends, op, flags, sges: &sges, ud }).is_ok() {
                    sends += 1;
                }
            }
            9 => {
                let sges = memory.sges(script);
                if recv.post(&RecvWr { id: recvs, sges: &sges }).is_ok() {
                    recvs += 1;
                }
            }
            10 | 11 => {
                let mut batch = TxBatch::new();
                send.poll_transmit(now, &memory.table, &mut batch, &mut notices);
                let left = batch.packets().min(usize::from(script.byte()));
                send.handle_sent(left, batch.tags(), &mut notices);
            }
            12 => {
                let mut batch = TxBatch::new();
                recv.poll_transmit(now, &memory.table, &mut batch, &mut notices);
                recv.handle_sent(batch.packets().min(usize::from(script.byte())));
            }
            13 => {
                now = now.plus(1 << (script.byte() % 34));
                if send.deadline() <= now {
                    send.handle_timeout(now, &mut notices);
                }
            }
            14 if script.byte() < 20 => {
                let to =
                    [QpState::Err, QpState::Sqd, QpState::Rts, QpState::Sqe][usize::from(script.byte() % 4)];
                let legal = send.state() != QpState::Err
                    && to != QpState::Sqe
                    && !(send.state() == QpState::Sqe && to == QpState::Sqd);
                if legal {
                    send.set_state(to, true);
                    recv.set_state(to);
                }
            }
            14 => send.handle_congestion(now),
            _ => {
                send.deliver();
                recv.deliver();
                cq.poll_with(usize::MAX, |wc| {
                    assert!(
                        wc.id >= next_send && wc.id < sends,
                        "send {} completes after {next_send}",
                        wc.id
                    );
                    next_send = wc.id + 1;
                    let ok = wc.status == WcStatus::Success;
                    assert!(!(ok && send_failed), "a success after a failure");
                    // UC and UD recover from SQE.
                    send_failed |= !ok && kind == QpType::Rc;
                });
                recv_cq.poll_with(usize::MAX, |wc| {
                    assert!(matches!(wc.opcode, WcOpcode::Recv | WcOpcode::RecvRdmaWithImm));
                    assert_eq!(wc.id, next_recv, "receives complete in order, and all do");
                    next_recv += 1;
                });
            }
        }
        if notices.fatal {
            notices = Notices::default();
            send.set_state(QpState::Err, false);
            recv.set_state(QpState::Err);
        }
        assert!(window.in_flight() >= 0, "less than nothing in flight");
    }
    send.set_state(QpState::Err, false);
    recv.set_state(QpState::Err);
    send.deliver();
    recv.deliver();
    assert_eq!(window.in_flight(), 0);
    assert!(send.is_empty());
    recv_cq.poll_with(usize::MAX, |wc| {
        assert_eq!(wc.id, next_recv);
        next_recv += 1;
    });
    assert_eq!(next_recv, recvs, "every receive completes");
    memory.check();
}
