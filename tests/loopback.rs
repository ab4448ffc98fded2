//! Two devices on loopback sockets, in one process.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use urxe::config::Config;
use urxe::device::{Clock, Device, QpInit, QueuePair};
use urxe::ids::{Gid, Mtu, Psn, QKey, RKey};
use urxe::io::{impair::Impairments, sim::SimNet};
use urxe::mem::{Access, PdId};
use urxe::verbs::*;

struct End {
    device: Device,
    pd: PdId,
    cq: std::sync::Arc<urxe::cq::Cq>,
    qp: QueuePair,
    buf: Vec<u8>,
    lkey: urxe::ids::LKey,
    rkey: RKey,
}

fn end(size: usize) -> End {
    end_of(Device::open(&Config::default()).unwrap(), size)
}

fn end_of(device: Device, size: usize) -> End {
    let pd = device.alloc_pd();
    let cq = device.create_cq(1024, None);
    let qp = device
        .create_qp(QpInit {
            kind: QpType::Rc,
            pd,
            send_cq: cq.clone(),
            recv_cq: cq.clone(),
            srq: None,
            caps: QpCaps {
                max_send_wr: 128,
                max_recv_wr: 128,
                max_send_sge: 4,
                max_recv_sge: 4,
                max_inline_data: 64,
            },
            sig_all: true,
            events: None,
        })
        .unwrap();
    let buf = vec![0u8; size];
    let access = Access(15);
    let addr = buf.as_ptr() as u64;
    let keys = device.memory().register(pd, addr, size as u64, addr, access).unwrap();
    End { device, pd, cq, qp, buf, lkey: keys.lkey, rkey: keys.rkey }
}

fn connect(a: &End, b: &End) {
    let attr = QpAttr { state: QpState::Init, port: 1, access: Access(15), ..QpAttr::default() };
    a.qp.modify(
        &attr,
        AttrMask::STATE.with(AttrMask::PORT).with(AttrMask::PKEY_INDEX).with(AttrMask::ACCESS_FLAGS),
    )
    .unwrap();
    let attr = QpAttr {
        state: QpState::Rtr,
        path_mtu: Mtu::B4096,
        dest_qpn: b.qp.number(),
        rq_psn: Psn::new(0xff_fff0),
        max_dest_rd_atomic: 16,
        min_rnr_timer: 12,
        av: AddressVector {
            dgid: Gid::from_ip(b.device.port().ip),
            is_global: true,
            port: 1,
            ..AddressVector::default()
        },
        ..QpAttr::default()
    };
    a.qp.modify(&attr, AttrMask(0x1 | 1 << 7 | 1 << 8 | 1 << 20 | 1 << 12 | 1 << 17 | 1 << 15)).unwrap();
    let attr = QpAttr {
        state: QpState::Rts,
        sq_psn: Psn::new(0xff_fff0),
        timeout: 14,
        retry_cnt: 7,
        rnr_retry: 7,
        max_rd_atomic: 16,
        ..QpAttr::default()
    };
    a.qp.modify(&attr, AttrMask(0x1 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 16 | 1 << 13)).unwrap();
}

fn wait(e: &End, n: usize) -> Vec<Wc> {
    let mut out = Vec::new();
    let end = Instant::now() + Duration::from_secs(5);
    while out.len() < n {
        let mut wcs = [Wc::new(0, WcOpcode::Send, urxe::ids::Qpn(0), 0); 16];
        let k = e.cq.poll(&mut wcs);
        out.extend_from_slice(&wcs[..k]);
        if k == 0 {
            e.device.poll();
        }
        assert!(Instant::now() < end, "no completion: {out:?} {:?}", e.device.counters());
    }
    out
}

#[test]
fn a_send_a_write_a_read_and_an_atomic_arrive() {
    let mut a = end(1 << 20);
    let b = end(1 << 20);
    connect(&a, &b);
    connect(&b, &a);
    for (i, x) in a.buf.iter_mut().enumerate() {
        *x = (i * 7) as u8;
    }
    let (abuf, bbuf) = (a.buf.as_ptr() as u64, b.buf.as_ptr() as u64);
    let sge = |e: &End, at: u64, len: u32| [Sge { addr: at, len, lkey: e.lkey }];
    let post = |e: &End, op, sges: &[Sge]| {
        e.qp.post_send([SendWr { id: 1, op, flags: SendFlags::default(), sges, ud: None }]).unwrap();
    };
    b.qp.post_recv(&RecvWr { id: 9, sges: &sge(&b, bbuf, 100_000) }).unwrap();
    post(&a, SendOp::Send, &sge(&a, abuf, 100_000));
    let wc = wait(&b, 1)[0];
    assert_eq!((wc.id, wc.status, wc.byte_len), (9, WcStatus::Success, 100_000));
    assert_eq!(wait(&a, 1)[0].status, WcStatus::Success);
    assert_eq!(a.buf[..100_000], b.buf[..100_000]);

    let remote = Remote { addr: bbuf + 500_000, rkey: b.rkey };
    post(&a, SendOp::Write(remote), &sge(&a, abuf, 300_001));
    assert_eq!(wait(&a, 1)[0].status, WcStatus::Success);
    assert_eq!(a.buf[..300_001], b.buf[500_000..800_001]);

    post(&a, SendOp::Read(Remote { addr: bbuf + 500_000, rkey: b.rkey }), &sge(&a, abuf + 500_000, 300_001));
    assert_eq!(wait(&a, 1)[0].status, WcStatus::Success);
    assert_eq!(a.buf[500_000..800_001], b.buf[500_000..800_001]);

    let remote = Remote { addr: bbuf, rkey: b.rkey };
    let before = u64::from_ne_bytes(b.buf[..8].try_into().unwrap());
    post(&a, SendOp::FetchAdd { remote, add: 5 }, &sge(&a, abuf + 900_000, 8));
    assert_eq!(wait(&a, 1)[0].status, WcStatus::Success);
    assert_eq!(u64::from_ne_bytes(a.buf[900_000..900_008].try_into().unwrap()), before);
    assert_eq!(u64::from_ne_bytes(b.buf[..8].try_into().unwrap()), before.wrapping_add(5));
    let _ = (a.pd, QKey(0));
}

/// Without a thread that would send it a little later.
#[test]
fn flush_sends_the_acknowledgement_that_waits_for_company() {
    let net = SimNet::new(1, Impairments::default());
    let clock = Arc::new(AtomicU64::new(1_000_000));
    let sim = |address: &str| {
        let link = Arc::new(net.link(address.parse().unwrap()));
        let clock = Clock::Manual(clock.clone());
        end_of(Device::on_link(&Config::default(), link, "sim".into(), 1 << 20, clock).unwrap(), 4096)
    };
    let (a, b) = (sim("10.0.0.1:4791"), sim("10.0.0.2:4791"));
    connect(&a, &b);
    connect(&b, &a);
    let sge = |e: &End| [Sge { addr: e.buf.as_ptr() as u64, len: 64, lkey: e.lkey }];
    b.qp.post_recv(&RecvWr { id: 9, sges: &sge(&b) }).unwrap();
    a.qp.post_send([SendWr {
        id: 1,
        op: SendOp::Send,
        flags: SendFlags::default(),
        sges: &sge(&a),
        ud: None,
    }])
    .unwrap();
    let arrive = || {
        while let Some(at) = net.next_event() {
            net.advance_to(at);
        }
    };
    arrive();
    b.device.poll();
    arrive();
    a.device.poll();
    assert_eq!((b.cq.len(), a.cq.len()), (1, 0), "b has it, and its acknowledgement waits");
    b.device.flush(Duration::from_secs(1));
    arrive();
    a.device.poll();
    assert_eq!(a.cq.len(), 1);
}

#[test]
fn requests_that_are_posted_together_are_taken_or_refused_together() {
    let (a, b) = (end(4096), end(4096));
    connect(&a, &b);
    let wr = |id, sges| SendWr { id, op: SendOp::Send, flags: SendFlags::default(), sges, ud: None };
    let five = [Sge { addr: a.buf.as_ptr() as u64, len: 1, lkey: a.lkey }; 5];
    let list = [wr(1, &five[..1]), wr(2, &five), wr(3, &five[..1])];
    let refused = PostError::TooManySges { have: 5, max: 4 };
    assert_eq!(a.qp.post_send_all(list.iter().cloned()), Err((1, refused)));
    let list: Vec<_> = (0..129).map(|id| wr(id, &five[..1])).collect();
    assert_eq!(a.qp.post_send_all(list.iter().cloned()), Err((128, PostError::Full(128))));
    a.qp.post_send_all(list[..128].iter().cloned()).unwrap();
    assert_eq!(a.qp.post_send_all(list[..1].iter().cloned()), Err((0, PostError::Full(128))));
}

fn write_one(a: &End, b: &End, at: u64) {
    let sges = [Sge { addr: a.buf.as_ptr() as u64, len: 8, lkey: a.lkey }];
    let op = SendOp::Write(Remote { addr: b.buf.as_ptr() as u64 + at, rkey: b.rkey });
    a.qp.post_send([SendWr { id: at, op, flags: SendFlags::default(), sges: &sges, ud: None }]).unwrap();
}

/// An end whose acknowledgements take a millisecond, so that what is sent to it is under way for that long.
fn distant_end(size: usize) -> End {
    let mut config = Config::default();
    config.set("delay", "1ms", urxe::config::Source::Default).unwrap();
    end_of(Device::open(&config).unwrap(), size)
}

#[test]
fn small_requests_of_a_stream_leave_together_and_in_order() {
    const COUNT: u64 = 1000;
    let (a, b) = (end(64), distant_end(64));
    connect(&a, &b);
    connect(&b, &a);
    let (mut posted, mut done) = (0, 0);
    while done < COUNT {
        if posted - done <= 32 {
            a.device.poll();
            let full = (done + 64).min(COUNT);
            (posted..full).for_each(|i| write_one(&a, &b, i % 8 * 8));
            posted = full;
        }
        for wc in wait(&a, 1) {
            assert_eq!((wc.status, wc.id), (WcStatus::Success, done % 8 * 8));
            done += 1;
        }
    }
    let counters = a.device.counters();
    let count = |name| counters.iter().find(|(n, _)| *n == name).map_or(0, |(_, value)| *value);
    assert!(count("tx_packets") >= COUNT);
    // How many depends on who gets the CPU when; if none waited, none would.
    assert!(count("tx_runs") + COUNT / 20 < COUNT, "some share a system call: {counters:?}");
}

#[test]
fn what_waits_for_the_next_poll_leaves_without_one_too() {
    let (mut a, b) = (end(64), distant_end(512));
    connect(&a, &b);
    connect(&b, &a);
    a.buf.fill(7);
    a.device.poll();
    for i in 0..64 {
        write_one(&a, &b, i * 8);
    }
    let last = std::hint::black_box(b.buf.as_ptr()) as u64 + 63 * 8;
    let end = Instant::now() + Duration::from_secs(5);
    let mut found = [0; 8];
    while found != [7; 8] {
        urxe::mem::copy::read(urxe::mem::HostAddr(last), &mut found).unwrap();
        assert!(Instant::now() < end, "{:?}", a.device.counters());
    }
}
