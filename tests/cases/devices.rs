//! Rules that show between two devices.

use std::net::IpAddr;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use urxe::config::Config;
use urxe::device::attr::ModifyError;
use urxe::device::{Clock, Device};
use urxe::ids::{Gid, Mtu, QKey};
use urxe::io::impair::Impairments;
use urxe::io::sim::{Event, SimLink, SimNet};
use urxe::io::{Counters, Limits, Link, Runs, RxBatch, SendOutcome};
use urxe::time::Latency;
use urxe::verbs::{
    AsyncEvent, AttrMask, PostError, QpAttr, QpCaps, QpState, QpType, RecvWr, SendFlags, SendOp, SendWr, Sge,
    UdDest, WcOpcode, WcStatus,
};
use urxe::wire::Opcode;

use crate::harness::{
    CAPS, End, EndInit, MS, Rng, SECOND, US, Wiring, World, connect, counter, good, masks, pair, perfect,
    set_state, to_init, vector,
};

#[test]
fn a_thousand_messages_from_just_below_the_largest_psn_do_not_stall_at_the_wrap() {
    let mut world = World::new(1, perfect(), 2);
    let (a, b) = pair(&world, &EndInit::default(), &Wiring { psn: 0xff_fff0, ..Wiring::default() });
    let (mut got, mut done, mut posted) = (0, 0, 0);
    while got < 1000 || done < 1000 {
        while posted < 1000 && posted < done + 64 {
            b.recv(posted, &[b.sge(0, 16)]);
            a.post(posted, SendOp::Send, &[a.sge(0, 16)]);
            posted += 1;
        }
        got += b.poll().iter().inspect(|wc| assert_eq!(good(wc).2, 16)).count() as u64;
        done += a.poll().iter().inspect(|wc| _ = good(wc)).count() as u64;
        assert!(got + done == 2000 || world.step(0), "stalled at {done}");
    }
    assert_eq!(counter(&world.devices[0], "tx_packets"), 1000, "nothing had to be sent again");
}

#[test]
fn a_large_read_into_a_small_socket_buffer_does_not_collapse() {
    // 10 Gbit/s, 20 us each way, and the requester's socket holds 64 KiB.
    let slow = Impairments { delay: Latency::Fixed(20 * US), rate: Some(1_250_000_000), ..perfect() };
    let world = World::new(1, slow, 2);
    world.links[0].limit_queue(64 << 10);
    let size = 2 << 20;
    let init = EndInit { bytes: size, ..EndInit::default() };
    let (a, b) = pair(&world, &init, &Wiring { mtu: Mtu::B4096, ..Wiring::default() });
    let bytes = Rng(1).bytes(size);
    b.buf.write(0, &bytes);
    a.post(1, SendOp::Read(b.remote(0)), &[a.sge(0, size)]);
    let mut done = Vec::new();
    // A receiver that runs now and then only: what arrives meanwhile has to wait in the socket.
    while done.is_empty() {
        world.devices[1].run();
        world.net.advance_to(world.now().plus(30 * US));
        world.advance_to(world.now().plus(30 * US));
        world.devices[0].run();
        done.extend(a.poll());
        assert!(world.now().0 < 2 * SECOND, "{:?}", world.devices[0].counters());
    }
    assert_eq!(good(&done[0]), (1, WcOpcode::RdmaRead, size as u32));
    assert!(a.buf.read(0, size) == bytes);
    let sent = counter(&world.devices[1], "tx_bytes");
    assert!(sent < 3 * size as u64, "{sent} bytes were sent for {size}");
}

#[test]
fn send_calls_that_are_refused_in_the_middle_of_messages_lose_nothing() {
    let mut world = World::new(1, perfect(), 2);
    let init = EndInit { bytes: 1 << 14, ..EndInit::default() };
    let ends: Vec<(End, End)> = (0..64).map(|_| pair(&world, &init, &Wiring::default())).collect();
    let mut rng = Rng(7);
    for (i, (a, b)) in ends.iter().enumerate() {
        a.buf.write(0, &rng.bytes(1 << 14));
        b.recv(i as u64, &[b.sge(0, 100), b.sge(200, 9000)]);
    }
    let mut rooms = Rng(3);
    world.links[0].set_send_room(Some(0));
    for (i, (a, _)) in ends.iter().enumerate() {
        a.post(i as u64, SendOp::Send, &[a.sge(3, 1), a.sge(1000, 4096), a.sge(9000, 7)]);
    }
    let (mut sent, mut got) = (0, 0);
    while sent < 64 || got < 64 {
        world.links[0].set_send_room(Some(rooms.below(9) as usize));
        assert!(world.step(0));
        for (a, b) in &ends {
            sent += a.poll().iter().inspect(|wc| _ = good(wc)).count();
            got += b.poll().iter().inspect(|wc| assert_eq!(good(wc).2, 4104)).count();
        }
        assert!(world.now().0 < SECOND);
    }
    assert!(counter(&world.devices[0], "tx_blocked") > 0);
    for (a, b) in &ends {
        let want = [a.buf.read(3, 1), a.buf.read(1000, 4096), a.buf.read(9000, 7)].concat();
        assert!([b.buf.read(0, 100), b.buf.read(200, 4004)].concat() == want);
    }
}

#[test]
fn receives_are_flushed_in_order_when_the_queue_pair_fails_and_later_sends_too() {
    let world = World::new(1, perfect(), 2);
    let (a, _b) = pair(&world, &EndInit::default(), &Wiring::default());
    for i in 0..16 {
        a.recv(i, &[a.sge(0, 8)]);
    }
    set_state(&a.qp, QpState::Err);
    let flushed = a.poll();
    assert_eq!(flushed.iter().map(|wc| wc.id).collect::<Vec<_>>(), (0..16).collect::<Vec<_>>());
    assert!(flushed.iter().all(|wc| wc.status == WcStatus::WrFlushErr && wc.qpn == a.qp.number()));
    a.post(100, SendOp::Send, &[]);
    a.recv(101, &[]);
    let flushed: Vec<_> = a.poll().iter().map(|wc| (wc.id, wc.status)).collect();
    assert_eq!(flushed, [(100, WcStatus::WrFlushErr), (101, WcStatus::WrFlushErr)]);
}

#[test]
fn a_bad_request_in_a_list_is_named_and_the_ones_before_it_run() {
    let mut world = World::new(1, perfect(), 2);
    let (a, b) = pair(&world, &EndInit::default(), &Wiring::default());
    b.recv(1, &[b.sge(0, 8)]);
    let wr = |id, flags| SendWr { id, op: SendOp::Send, flags, sges: &[], ud: None };
    let list = [wr(1, SendFlags::default()), wr(2, SendFlags(1 << 12)), wr(3, SendFlags::default())];
    let (index, error) = a.qp.post_send(list).unwrap_err();
    assert_eq!(index, 1);
    assert!(matches!(error, PostError::Unsupported(..)), "{error:?}");
    world.quiesce(SECOND);
    assert_eq!(a.poll().iter().map(|wc| good(wc).0).collect::<Vec<_>>(), [1]);

    // The queue is full: ENOMEM for the one that does not fit.
    let init = EndInit { caps: QpCaps { max_send_wr: 4, ..CAPS }, ..EndInit::default() };
    let (a, b) = pair(&world, &init, &Wiring::default());
    for i in 0..4 {
        b.recv(i, &[]);
    }
    let list = (0..5).map(|i| wr(i, SendFlags::default()));
    assert_eq!(a.qp.post_send(list), Err((4, PostError::Full(4))));
    world.quiesce(SECOND);
    assert_eq!(a.poll().iter().map(|wc| good(wc).0).collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert_eq!(b.poll().len(), 4);
}

#[test]
fn a_write_out_of_bounds_ends_in_an_access_error_and_an_event_without_waiting() {
    let mut world = World::new(1, perfect(), 2);
    let (a, b) = pair(&world, &EndInit::default(), &Wiring::default());
    let end = b.remote(b.buf.len() - 8);
    a.post(1, SendOp::Write(end), &[a.sge(0, 9)]);
    a.post(2, SendOp::Send, &[]);
    world.run_until("an error", MS, |_| !a.cq.is_empty());
    let done: Vec<_> = a.poll().iter().map(|wc| (wc.id, wc.status)).collect();
    assert_eq!(done, [(1, WcStatus::RemAccessErr), (2, WcStatus::WrFlushErr)]);
    assert_eq!(b.events.take(), [AsyncEvent::QpAccessError(b.qp.number())]);
    assert_eq!((a.qp.state(), b.qp.state()), (QpState::Err, QpState::Err));
    assert_eq!(b.buf.read(b.buf.len() - 8, 8), [0; 8]);
}

#[test]
fn no_queue_depth_up_to_128_makes_a_perfect_network_retry() {
    for depth in [1, 2, 3, 5, 8, 16, 31, 64, 127, 128] {
        let mut world = World::new(depth, perfect(), 2);
        // Failing at the first time-out.
        let wiring = Wiring { retry_cnt: 0, rnr_retry: 0, mtu: Mtu::B1024, ..Wiring::default() };
        let (a, b) = pair(&world, &EndInit::default(), &wiring);
        let (messages, len) = (600, 3000);
        let (mut posted, mut done, mut received) = (0, 0, 0);
        for i in 0..depth {
            b.recv(i, &[b.sge(0, len)]);
        }
        while done < messages || received < messages {
            while posted < messages && posted < done.min(received) + depth {
                a.post(posted, SendOp::Send, &[a.sge(0, len)]);
                posted += 1;
            }
            assert!(done + received == 2 * messages || world.step(0));
            done += a.poll().iter().inspect(|wc| _ = good(wc)).count() as u64;
            for wc in b.poll() {
                good(&wc);
                received += 1;
                b.recv(received, &[b.sge(0, len)]);
            }
        }
        let data = world
            .net
            .trace()
            .iter()
            .filter(|t| t.bth[0] <= Opcode::RcSendOnly as u8 && matches!(t.event, Event::Sent(_)))
            .count();
        let expected = (messages * 3) as usize;
        assert!(data <= expected, "depth {depth}: {data} packets for {expected}");
    }
}

#[test]
fn an_atomic_whose_acknowledgements_get_lost_is_executed_once_and_completes() {
    let mut world = World::new(1, perfect(), 2);
    let (a, b) = pair(&world, &EndInit::default(), &Wiring::default());
    b.buf.write(0, &40u64.to_ne_bytes());
    let (from, to) = (world.ip(1), world.ip(0));
    world.net.impair(from, to, Impairments { loss: 1.0, ..perfect() });
    a.post(1, SendOp::FetchAdd { remote: b.remote(0), add: 2 }, &[a.sge(0, 8)]);
    world.pass(30 * MS);
    assert!(a.cq.is_empty());
    world.net.impair(from, to, perfect());
    world.run_until("the atomic", SECOND, |_| !a.cq.is_empty());
    assert_eq!(good(&a.poll()[0]), (1, WcOpcode::FetchAdd, 8));
    assert_eq!(a.buf.read(0, 8), 40u64.to_ne_bytes());
    assert_eq!(b.buf.read(0, 8), 42u64.to_ne_bytes());
}

#[test]
fn a_receive_may_be_posted_from_init_on_and_not_in_reset() {
    let world = World::new(1, perfect(), 1);
    let a = End::new(&world.devices[0], EndInit::default());
    let wr = RecvWr { id: 1, sges: &[] };
    assert_eq!(a.qp.post_recv(&wr), Err(PostError::State(QpState::Reset)));
    to_init(&a.qp, &Wiring::default());
    assert_eq!(a.qp.post_recv(&wr), Ok(()));
    let send = SendWr { id: 1, op: SendOp::Send, flags: SendFlags::default(), sges: &[], ud: None };
    assert_eq!(a.qp.post_send([send]), Err((0, PostError::State(QpState::Init))));
}

#[test]
fn three_elements_of_odd_sizes_carry_the_right_bytes() {
    let mut world = World::new(1, perfect(), 2);
    let (a, b) = pair(&world, &EndInit::default(), &Wiring { mtu: Mtu::B256, ..Wiring::default() });
    a.buf.write(0, &Rng(5).bytes(10_000));
    b.recv(1, &[b.sge(0, 4104)]);
    a.post(1, SendOp::Send, &[a.sge(9, 1), a.sge(101, 4096), a.sge(5001, 7)]);
    world.run_until("the message", SECOND, |_| !b.cq.is_empty());
    assert_eq!(good(&b.poll()[0]), (1, WcOpcode::Recv, 4104));
    let want = [a.buf.read(9, 1), a.buf.read(101, 4096), a.buf.read(5001, 7)].concat();
    assert!(b.buf.read(0, 4104) == want);
}

#[test]
fn a_datagram_that_does_not_fit_is_dropped_and_the_queue_pair_goes_on() {
    let mut world = World::new(1, perfect(), 2);
    let init = EndInit { kind: QpType::Ud, ..EndInit::default() };
    let (a, b) = pair(&world, &init, &Wiring::default());
    let path = world.devices[0].resolve(&vector(b.ip)).unwrap();
    let send = |id, len| {
        let ud = Some(UdDest { path: path.clone(), qpn: b.qp.number(), qkey: QKey(0x1111) });
        let sges = [a.sge(0, len)];
        let wr = SendWr { id, op: SendOp::Send, flags: SendFlags::default(), sges: &sges, ud };
        a.qp.post_send([wr]).unwrap();
    };
    b.recv(1, &[b.sge(0, 140)]);
    send(1, 101);
    send(2, 100);
    send(3, 100);
    world.quiesce(SECOND);
    assert_eq!(a.poll().len(), 3);
    assert_eq!(good(&b.poll()[0]), (1, WcOpcode::Recv, 140));
    assert_eq!(b.qp.state(), QpState::Rts);
    b.recv(2, &[b.sge(0, 140)]);
    send(4, 100);
    world.quiesce(SECOND);
    assert_eq!(good(&b.poll()[0]).0, 2);
}

#[test]
fn every_gid_of_the_port_works_and_one_is_an_ipv4_mapped_one() {
    let mut world = World::new(1, perfect(), 2);
    let gids = world.devices[1].port().gids.clone();
    let mapped = Gid::from_ip(world.ip(1));
    assert!(gids.contains(&mapped) && mapped.0[10..12] == [0xff, 0xff]);
    for (index, gid) in gids.into_iter().enumerate() {
        assert!(!gid.is_zero());
        let (a, b) = (
            End::new(&world.devices[0], EndInit::default()),
            End::new(&world.devices[1], EndInit::default()),
        );
        connect(&a.qp, (gid.to_ip(), &b.qp), &Wiring::default());
        connect(&b.qp, (a.ip, &a.qp), &Wiring::default());
        b.recv(1, &[]);
        a.post(1, SendOp::Send, &[]);
        world.run_until(&format!("the message to GID {index}"), SECOND, |_| !a.cq.is_empty());
        good(&a.poll()[0]);
    }
    // An index beyond the table is refused.
    let av = urxe::verbs::AddressVector { sgid_index: 200, ..vector(world.ip(1)) };
    assert!(world.devices[0].resolve(&av).is_err());
}

/// A link whose interface carries 1500 bytes.
struct Ethernet(Arc<SimLink>);

impl Link for Ethernet {
    fn local(&self) -> std::net::SocketAddr {
        self.0.local()
    }
    fn send_runs(&self, runs: Runs<'_>) -> SendOutcome {
        self.0.send_runs(runs)
    }
    fn recv(&self, rx: &mut RxBatch) -> std::io::Result<usize> {
        self.0.recv(rx)
    }
    fn fds(&self) -> [Option<RawFd>; 2] {
        self.0.fds()
    }
    fn limits(&self, destination: IpAddr) -> Limits {
        self.0.limits(destination)
    }
    fn mtu(&self) -> u32 {
        1500
    }
    fn counters(&self) -> &Counters {
        self.0.counters()
    }
}

#[test]
fn the_path_mtu_is_what_was_negotiated_and_never_more_than_the_link_carries() {
    let net = SimNet::new(1, perfect());
    let clock = Arc::new(AtomicU64::new(0));
    let links: Vec<_> =
        (1..=2u8).map(|i| net.link(std::net::SocketAddr::from(([10, 0, 0, i], 4791)))).collect();
    let devices = links
        .iter()
        .map(|link| {
            let link = Arc::new(Ethernet(link.clone()));
            Device::on_link(&Config::default(), link, "sim".into(), 1 << 20, Clock::Manual(clock.clone()))
                .unwrap()
        })
        .collect();
    let mut world = World { seed: 1, net, clock, links, devices, steps: 0 };
    assert_eq!(world.devices[0].port().mtu, Mtu::B1024);
    for (mtu, biggest) in [(Mtu::B256, 256), (Mtu::B512, 512), (Mtu::B1024, 1024)] {
        world.net.keep_trace(0);
        world.net.keep_trace(100);
        let before = world.net.trace().len();
        let (a, b) = pair(&world, &EndInit::default(), &Wiring { mtu, ..Wiring::default() });
        b.recv(1, &[b.sge(0, 3000)]);
        a.post(1, SendOp::Send, &[a.sge(0, 3000)]);
        world.run_until("the message", SECOND, |_| !a.cq.is_empty());
        good(&a.poll()[0]);
        let longest = world.net.trace()[before.min(world.net.trace().len())..]
            .iter()
            .map(|t| t.len)
            .max()
            .unwrap_or_default();
        assert_eq!(longest, biggest + 12 + 4);
    }
    let a = End::new(&world.devices[0], EndInit::default());
    to_init(&a.qp, &Wiring::default());
    use AttrMask as M;
    let attr = QpAttr { state: QpState::Rtr, path_mtu: Mtu::B4096, av: vector(a.ip), ..QpAttr::default() };
    let mask = masks(&[
        M::STATE,
        M::AV,
        M::PATH_MTU,
        M::DEST_QPN,
        M::RQ_PSN,
        M::MAX_DEST_RD_ATOMIC,
        M::MIN_RNR_TIMER,
    ]);
    let result = a.qp.modify(&attr, mask);
    assert!(matches!(result, Err(ModifyError::Range { what: "path_mtu", .. })), "{result:?}");
    assert_eq!(a.qp.state(), QpState::Init);
}

#[test]
fn a_solicited_message_notifies_who_waits_for_solicited_ones_only() {
    #[derive(Default)]
    struct Count(AtomicU64);
    impl urxe::cq::CqNotify for Count {
        fn completed(&self) {
            self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
    }
    let mut world = World::new(1, perfect(), 2);
    let count = Arc::new(Count::default());
    let a = End::new(&world.devices[0], EndInit::default());
    let b = {
        let mut end = End::new(&world.devices[1], EndInit::default());
        end.cq = world.devices[1].create_cq(64, Some(count.clone()));
        end.qp = world.devices[1]
            .create_qp(urxe::device::QpInit {
                kind: QpType::Rc,
                pd: end.pd,
                send_cq: end.cq.clone(),
                recv_cq: end.cq.clone(),
                srq: None,
                caps: CAPS,
                sig_all: true,
                events: None,
            })
            .unwrap();
        end
    };
    connect(&a.qp, (b.ip, &b.qp), &Wiring::default());
    connect(&b.qp, (a.ip, &a.qp), &Wiring::default());
    let seen = || count.0.load(std::sync::atomic::Ordering::Relaxed);
    for i in 0..3 {
        b.recv(i, &[b.sge(0, 8)]);
    }
    b.cq.arm(true);
    a.post(1, SendOp::Send, &[]);
    world.quiesce(SECOND);
    assert_eq!(seen(), 0);
    a.post_with(2, SendOp::Send, SendFlags::SOLICITED, &[]);
    a.post_with(3, SendOp::Send, SendFlags::SOLICITED, &[]);
    world.quiesce(SECOND);
    assert_eq!(seen(), 1, "armed once, notified once");
}

#[test]
fn the_first_message_of_a_peer_that_is_ready_sooner_is_received_and_told() {
    // IBA 10.3.1: in RTR packets are received and answered; the program hears that the connection is established.
    let mut world = World::new(1, perfect(), 2);
    let a = End::new(&world.devices[0], EndInit::default());
    let b = End::new(&world.devices[1], EndInit::default());
    let wiring = Wiring::default();
    connect(&a.qp, (b.ip, &b.qp), &wiring);
    to_init(&b.qp, &wiring);
    b.recv(1, &[b.sge(0, 8)]);
    b.recv(2, &[b.sge(0, 8)]);
    crate::harness::to_rtr(&b.qp, (a.ip, &a.qp), &wiring);
    a.post(1, SendOp::Send, &[a.sge(0, 8)]);
    a.post(2, SendOp::Send, &[a.sge(0, 8)]);
    world.run_until("the messages", SECOND, |_| a.cq.len() == 2);
    assert_eq!(b.poll().len(), 2);
    assert_eq!(b.events.take(), [AsyncEvent::CommEstablished(b.qp.number())], "once");
    crate::harness::to_rts(&b.qp, &wiring);
    assert_eq!(b.qp.state(), QpState::Rts);
}

#[test]
fn a_device_talks_to_itself_and_a_queue_pair_to_itself() {
    let mut world = World::new(1, Impairments { loss: 0.05, ..perfect() }, 1);
    let a = End::new(&world.devices[0], EndInit::default());
    let b = End::new(&world.devices[0], EndInit::default());
    let own = End::new(&world.devices[0], EndInit::default());
    connect(&a.qp, (b.ip, &b.qp), &Wiring::default());
    connect(&b.qp, (a.ip, &a.qp), &Wiring::default());
    connect(&own.qp, (own.ip, &own.qp), &Wiring::default());
    let bytes = Rng(1).bytes(20_000);
    for (from, to) in [(&a, &b), (&b, &a), (&own, &own)] {
        from.buf.write(0, &bytes);
        to.recv(1, &[to.sge(30_000, 20_000)]);
        from.post(2, SendOp::Send, &[from.sge(0, 20_000)]);
        from.post(3, SendOp::Read(to.remote(30_000)), &[from.sge(0, 20_000)]);
        let mut done = Vec::new();
        world.run_until("all", 10 * SECOND, |_| {
            done.extend(from.poll());
            done.extend(to.poll());
            done.len() == 3
        });
        done.iter().for_each(|wc| _ = good(wc));
        assert!(to.buf.read(30_000, 20_000) == bytes && from.buf.read(0, 20_000) == bytes);
    }
}

#[test]
fn a_message_of_two_gigabytes_is_possible_and_a_longer_one_is_not() {
    // 32 elements of the same 64 MiB: the most that a message can be, without the memory for it.
    const PART: usize = 64 << 20;
    let mut world = World::new(1, perfect(), 2);
    world.net.keep_trace(50);
    let init = EndInit { bytes: PART, ..EndInit::default() };
    let wiring = Wiring { mtu: Mtu::B4096, ..Wiring::default() };
    let (a, b) = pair(&world, &init, &wiring);
    let bytes = Rng(9).bytes(PART);
    a.buf.write(0, &bytes);
    let (from, to) = (vec![a.sge(0, PART); 32], vec![b.sge(0, PART); 32]);
    b.recv(1, &to);
    a.post(2, SendOp::Send, &from);
    world.run_until("the message", 600 * SECOND, |_| !a.cq.is_empty() && !b.cq.is_empty());
    good(&a.poll()[0]);
    assert_eq!(good(&b.poll()[0]), (1, WcOpcode::Recv, 1 << 31));
    assert!(b.buf.read(0, PART) == bytes);

    let mut longer = vec![a.sge(0, PART); 31];
    longer.push(Sge { len: PART as u32 + 1, ..a.sge(0, PART) });
    let wr = SendWr { id: 3, op: SendOp::Send, flags: SendFlags::default(), sges: &longer, ud: None };
    let error = a.qp.post_send([wr]).unwrap_err();
    assert_eq!(error, (0, PostError::TooLong { have: (1 << 31) + 1, max: 1 << 31 }));
}
