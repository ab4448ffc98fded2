//! What is said when: each test is a conversation of host 1 with host 2, and what their programs learn of it.

use std::cell::Cell;
use std::rc::Rc;

use urxe::cm::message::{Message, reason};
use urxe::cm::{Command, Endpoint, EventKind, MAX_REQUEST_DATA, PortSpace, Refused, Transport};

use crate::harness::{Fate, MS, Net, PATH, PORT, SECOND, addresses, device, parameters};

/// A connection between hosts 0 and 1, with both its ends.
fn connected(net: &mut Net) -> (Endpoint, Endpoint) {
    let active = net.connect(0, 1, 1, 0x010042);
    let events = net.serve(MS);
    let passive = events
        .iter()
        .find_map(|(host, endpoint, kind)| {
            matches!((host, kind), (1, EventKind::Established { .. })).then_some(*endpoint)
        })
        .unwrap_or_else(|| panic!("{events:?}"));
    net.trace();
    (active, passive)
}

#[test]
fn a_connection_is_made_and_released() {
    let mut net = Net::new(2, 1);
    let listener = net.listen(1, 7, PortSpace::Tcp, PORT);
    let active = net.connect(0, 1, 1, 0x010042);
    net.pass(MS);
    let (host, passive, kind) = net.only();
    let EventKind::Request { listener: heard, addresses, transport, parameters: asked, path } = kind else {
        panic!("{kind:?}");
    };
    assert_eq!((host, heard, transport, path), (1, listener, Transport::Rc, PATH));
    assert_eq!((addresses.local_device, addresses.peer_device), (device(1), device(0)));
    assert_eq!((addresses.local.ip(), addresses.local.port()), (device(1), PORT));
    assert_eq!(addresses.peer.ip(), device(0));
    assert!((32768..=60999).contains(&addresses.peer.port()));
    let mut wanted = parameters(0x010042);
    wanted.private_data.resize(MAX_REQUEST_DATA, 0);
    assert_eq!(asked, wanted);

    net.run(1, 7, Command::Accept { endpoint: passive, parameters: parameters(0x020043) });
    net.pass(MS);
    let (host, endpoint, kind) = net.only();
    let EventKind::Response { parameters: answered } = kind else { panic!("{kind:?}") };
    assert_eq!((host, endpoint, answered.qpn, answered.psn), (0, active, 0x020043, 0x020043 ^ 0x5a5a5a));
    assert_eq!((answered.responder_resources, answered.initiator_depth, answered.rnr_retry_count), (4, 3, 6));
    assert_eq!((answered.private_data.len(), &answered.private_data[..4]), (196, &[1, 2, 3, 0][..]));

    net.run(0, 1, Command::Establish { endpoint: active });
    net.pass(MS);
    assert_eq!(net.only(), (1, passive, EventKind::Established { private_data: vec![] }));
    assert_eq!(net.trace(), ["1>2 REQ", "2>1 REP", "1>2 RTU"]);
    net.pass(100 * SECOND);
    assert_eq!(net.trace(), [""; 0], "nothing is left to say");

    net.run(0, 1, Command::Disconnect { endpoint: active });
    net.pass(MS);
    assert_eq!(net.only(), (1, passive, EventKind::Disconnected { private_data: vec![] }));
    net.run(1, 7, Command::Disconnect { endpoint: passive });
    net.pass(MS);
    assert_eq!(net.only(), (0, active, EventKind::Disconnected { private_data: vec![] }));
    assert_eq!(net.trace(), ["1>2 DREQ", "2>1 DREP"]);
    net.pass(SECOND);
    let mut over = net.take();
    over.sort_by_key(|(host, _, _)| *host);
    assert_eq!(over, [(0, active, EventKind::TimewaitExit), (1, passive, EventKind::TimewaitExit)]);
    for (host, owner, endpoint) in [(0, 1, active), (1, 7, passive)] {
        net.run(host, owner, Command::Destroy { endpoint });
        assert_eq!(net.command(host, owner, Command::Destroy { endpoint }), Err(Refused::NoEndpoint));
    }
    assert_eq!((net.hosts[0].endpoints(), net.hosts[1].endpoints()), (0, 1));
    assert_eq!((net.hosts[0].ports(), net.hosts[1].ports()), (0, 1));
}

#[test]
fn a_device_connects_to_itself() {
    let mut net = Net::new(1, 2);
    net.listen(0, 7, PortSpace::Tcp, PORT);
    let active = net.connect(0, 1, 0, 0x010042);
    let events = net.serve(MS);
    assert!(events.iter().any(|(_, _, kind)| matches!(kind, EventKind::Established { .. })), "{events:?}");
    net.run(0, 1, Command::Disconnect { endpoint: active });
    net.serve(2 * SECOND);
    assert_eq!(net.endpoints(), 1);
}

#[test]
fn nobody_listens() {
    let mut net = Net::new(2, 3);
    let active = net.connect(0, 1, 1, 5);
    net.pass(MS);
    let (host, endpoint, kind) = net.only();
    let EventKind::Rejected { reason, .. } = kind else { panic!("{kind:?}") };
    assert_eq!((host, endpoint, reason), (0, active, reason::INVALID_SERVICE));
    assert_eq!(net.trace(), ["1>2 REQ", "2>1 REJ"]);
}

#[test]
fn a_request_that_comes_before_the_server_listens_is_heard() {
    let mut net = Net::new(2, 3);
    net.hosts[1].set_patience(200 * MS);
    net.connect(0, 1, 1, 5);
    // Long enough for the client to repeat it.
    net.pass(150 * MS);
    assert_eq!(net.take(), []);
    let listener = net.listen(1, 7, PortSpace::Tcp, PORT);
    let (host, _, kind) = net.only();
    assert!(matches!(kind, EventKind::Request { listener: l, .. } if l == listener), "{kind:?}");
    assert_eq!((host, net.hosts[1].endpoints()), (1, 2));
    // It is not heard again when its time is up.
    net.pass(100 * MS);
    assert_eq!(net.take(), []);
}

#[test]
fn a_request_that_nobody_hears_in_time_is_refused_once() {
    let mut net = Net::new(2, 3);
    net.hosts[1].set_patience(200 * MS);
    net.listen(1, 7, PortSpace::Tcp, PORT + 1);
    let active = net.connect(0, 1, 1, 5);
    net.pass(199 * MS);
    assert_eq!(net.take(), []);
    net.listen(1, 7, PortSpace::Tcp, PORT + 2);
    net.pass(10 * MS);
    let (host, endpoint, kind) = net.only();
    let EventKind::Rejected { reason, .. } = kind else { panic!("{kind:?}") };
    assert_eq!((host, endpoint, reason), (0, active, reason::INVALID_SERVICE));
    assert_eq!(net.trace().iter().filter(|line| line.contains("REJ")).count(), 1);
}

#[test]
fn only_so_many_requests_wait() {
    let mut net = Net::new(2, 3);
    net.hosts[1].set_patience(200 * MS);
    for n in 0..300 {
        net.connect(0, 1, 1, 5 + n);
    }
    net.pass(10 * MS);
    assert_eq!(net.take().len(), 300 - 256);
    net.pass(SECOND);
    assert_eq!(net.take().len(), 256);
}

#[test]
fn a_program_rejects_and_the_lost_reject_comes_again() {
    let mut net = Net::new(2, 4);
    net.listen(1, 7, PortSpace::Tcp, PORT);
    let rejects = Rc::new(Cell::new(0));
    let seen = Rc::clone(&rejects);
    net.decide = Box::new(move |_, message| {
        if matches!(message, Message::Rej(_)) {
            seen.set(seen.get() + 1);
            if seen.get() == 1 {
                return Fate::Lost;
            }
        }
        Fate::Arrives
    });
    net.connect(0, 1, 1, 5);
    net.pass(MS);
    let (_, passive, _) = net.only();
    let private_data = vec![0xee; 148];
    let reject = Command::Reject { endpoint: passive, reason: 28, private_data: private_data.clone() };
    net.run(1, 7, reject.clone());
    assert_eq!(net.command(1, 7, reject), Err(Refused::State));
    net.run(1, 7, Command::Destroy { endpoint: passive });
    net.pass(SECOND);
    let (_, _, kind) = net.only();
    assert_eq!(kind, EventKind::Rejected { reason: 28, private_data });
    assert_eq!(net.trace(), ["1>2 REQ", "2>1 REJ lost", "1>2 REQ", "2>1 REJ"]);
    net.pass(3 * SECOND);
    assert_eq!(net.hosts[1].endpoints(), 1);
}

#[test]
fn a_peer_that_never_answers_is_unreachable_after_the_time_that_the_kernel_takes() {
    let mut net = Net::new(2, 5);
    net.decide = Box::new(|_, _| Fate::Lost);
    let active = net.connect(0, 1, 1, 5);
    net.pass(68 * SECOND);
    assert_eq!(net.take(), []);
    net.pass(2 * SECOND);
    assert_eq!(net.only(), (0, active, EventKind::Unreachable));
    let trace = net.trace();
    assert_eq!(trace.last().unwrap(), "1>2 REJ lost");
    assert!((16..25).contains(&trace.len()), "{trace:?}");
}

#[test]
fn a_program_that_takes_long_is_waited_for() {
    let mut net = Net::new(2, 6);
    net.listen(1, 7, PortSpace::Tcp, PORT);
    let active = net.connect(0, 1, 1, 5);
    net.pass(MS);
    let (_, passive, _) = net.only();
    net.pass(300 * SECOND);
    assert_eq!(net.take(), []);
    let trace = net.trace();
    assert_eq!(trace[..3], ["1>2 REQ", "1>2 REQ", "2>1 MRA"]);
    net.run(1, 7, Command::Accept { endpoint: passive, parameters: parameters(9) });
    net.pass(MS);
    // And so is the other side's.
    net.take();
    net.trace();
    net.pass(300 * SECOND);
    let trace = net.trace();
    assert_eq!(trace[..2], ["2>1 REP", "1>2 MRA"]);
    net.run(0, 1, Command::Establish { endpoint: active });
    net.pass(MS);
    assert_eq!(net.only(), (1, passive, EventKind::Established { private_data: vec![] }));
}

/// Each of the first eight datagrams is lost or not, in all ways: there is a connection in the end, both sides know it,
/// and it is released in the same way.
#[test]
fn every_pattern_of_losses_ends_in_a_connection_and_in_its_release() {
    for pattern in 0..1u32 << 8 {
        let mut net = Net::new(2, pattern.into());
        net.listen(1, 7, PortSpace::Tcp, PORT);
        let number = Rc::new(Cell::new(0));
        let counter = Rc::clone(&number);
        net.decide = Box::new(move |_, _| {
            let n = counter.replace(counter.get() + 1);
            if n < 8 && pattern >> n & 1 == 1 { Fate::Lost } else { Fate::Arrives }
        });
        let active = net.connect(0, 1, 1, 0x010042);
        let events = net.serve(60 * SECOND);
        let established =
            events.iter().filter(|(_, _, k)| matches!(k, EventKind::Established { .. })).count();
        let responses = events.iter().filter(|(_, _, k)| matches!(k, EventKind::Response { .. })).count();
        assert_eq!(
            (events.len(), responses, established),
            (3, 1, 1),
            "{pattern:b}: {events:?}\n{:#?}",
            net.trace
        );

        number.set(0);
        net.run(0, 1, Command::Disconnect { endpoint: active });
        let events = net.serve(60 * SECOND);
        let disconnected: Vec<usize> = events
            .iter()
            .filter(|(_, _, k)| matches!(k, EventKind::Disconnected { .. }))
            .map(|(host, _, _)| *host)
            .collect();
        let mut sorted = disconnected.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, [0, 1], "{pattern:b}: {events:?}\n{:#?}", net.trace);
        assert_eq!(net.endpoints(), 1, "{pattern:b}");
    }
}

#[test]
fn data_that_arrives_says_what_the_rtu_would_have_said() {
    let mut net = Net::new(2, 7);
    net.listen(1, 7, PortSpace::Tcp, PORT);
    net.decide = Box::new(|_, m| if matches!(m, Message::Rtu(_)) { Fate::Lost } else { Fate::Arrives });
    let active = net.connect(0, 1, 1, 5);
    net.pass(MS);
    let (_, passive, _) = net.only();
    assert_eq!(net.command(1, 7, Command::Establish { endpoint: passive }), Err(Refused::State));
    net.run(1, 7, Command::Accept { endpoint: passive, parameters: parameters(9) });
    net.pass(MS);
    net.take();
    net.run(0, 1, Command::Establish { endpoint: active });
    net.pass(MS);
    assert_eq!(net.take(), []);
    net.run(1, 7, Command::Establish { endpoint: passive });
    net.run(1, 7, Command::Establish { endpoint: passive });
    assert_eq!(net.only(), (1, passive, EventKind::Established { private_data: vec![] }));
    net.trace();
    net.pass(10 * SECOND);
    assert_eq!(net.trace(), [""; 0], "the REP is no longer repeated");
}

#[test]
fn both_sides_disconnect_at_once() {
    let mut net = Net::new(2, 8);
    net.listen(1, 7, PortSpace::Tcp, PORT);
    let (active, passive) = connected(&mut net);
    net.run(0, 1, Command::Disconnect { endpoint: active });
    net.run(1, 7, Command::Disconnect { endpoint: passive });
    net.pass(MS);
    let mut events = net.take();
    events.sort_by_key(|(host, _, _)| *host);
    let gone = || EventKind::Disconnected { private_data: vec![] };
    assert_eq!(events, [(0, active, gone()), (1, passive, gone())]);
    net.pass(2 * SECOND);
    assert_eq!(net.take().len(), 2, "both leave the time-wait state");
    assert_eq!(net.trace(), ["1>2 DREQ", "2>1 DREQ", "2>1 DREP", "1>2 DREP"]);
    // Late calls have what they want.
    net.run(0, 1, Command::Disconnect { endpoint: active });
}

#[test]
fn a_release_that_nobody_answers_ends_all_the_same() {
    let mut net = Net::new(2, 9);
    net.listen(1, 7, PortSpace::Tcp, PORT);
    let (active, _) = connected(&mut net);
    net.decide = Box::new(|_, _| Fate::Lost);
    net.run(0, 1, Command::Disconnect { endpoint: active });
    net.pass(15 * SECOND);
    assert_eq!(net.take(), []);
    net.pass(5 * SECOND);
    assert_eq!(
        net.take(),
        [(0, active, EventKind::Disconnected { private_data: vec![] }), (0, active, EventKind::TimewaitExit),],
    );
}

#[test]
fn a_qp_that_is_connected_anew_ends_the_connection_that_it_had() {
    let mut net = Net::new(2, 10);
    net.listen(1, 7, PortSpace::Tcp, PORT);
    let (_, passive) = connected(&mut net);
    // Host 0 starts anew and knows nothing of the connection.
    let mut again = urxe::cm::Manager::new(4711, 1024);
    again.add_device(device(0));
    net.hosts[0] = again;
    net.connect(0, 1, 1, 0x010042);
    net.pass(MS);
    let events = net.take();
    let [(0, _, EventKind::Rejected { reason, .. }), (1, endpoint, EventKind::Disconnected { .. })] =
        &events[..]
    else {
        panic!("{events:?}");
    };
    assert_eq!((*reason, *endpoint), (reason::STALE, passive));
    assert_eq!(net.trace(), ["1>2 REQ", "2>1 DREQ", "2>1 REJ", "1>2 DREP"]);
    // The next attempt finds the way clear.
    net.connect(0, 1, 1, 0x010042);
    let events = net.serve(MS);
    assert!(events.iter().any(|(_, _, kind)| matches!(kind, EventKind::Established { .. })), "{events:?}");
}

#[test]
fn a_qp_may_be_connected_anew_as_soon_as_it_is_released() {
    let mut net = Net::new(2, 11);
    net.listen(1, 7, PortSpace::Tcp, PORT);
    for _ in 0..3 {
        let (active, _) = connected(&mut net);
        net.run(0, 1, Command::Disconnect { endpoint: active });
        net.serve(MS);
        net.run(0, 1, Command::Destroy { endpoint: active });
    }
}

/// The owner of either end dies after each number of steps: the other end learns of it, and nothing is left.
#[test]
fn whoever_dies_at_whatever_moment_the_other_learns_of_it() {
    for victim in [0, 1] {
        for moment in 0..8 {
            let mut net = Net::new(2, 100 + moment);
            net.listen(1, 7, PortSpace::Tcp, PORT);
            let active = net.connect(0, 1, 1, 0x010042);
            // Until the moment, one event or datagram at a time.
            for _ in 0..moment {
                if net.events.is_empty() {
                    net.step(net.now.plus(MS));
                } else {
                    net.serve(0);
                }
            }
            net.serve(0);
            net.kill(victim, if victim == 0 { 1 } else { 7 });
            let events = net.serve(70 * SECOND);
            if victim == 1 {
                let told = events.iter().any(|(host, endpoint, kind)| {
                    *host == 0
                        && *endpoint == active
                        && matches!(kind, EventKind::Rejected { .. } | EventKind::Disconnected { .. })
                });
                assert!(told, "{moment}: {events:?}\n{:#?}", net.trace);
            }
            assert_eq!(net.endpoints(), 1 - victim, "{victim} {moment}: {events:?}\n{:#?}", net.trace);
        }
    }
}

#[test]
fn a_request_that_is_withdrawn_is_taken_back() {
    let mut net = Net::new(2, 12);
    net.listen(1, 7, PortSpace::Tcp, PORT);
    let active = net.connect(0, 1, 1, 5);
    net.pass(MS);
    let (_, passive, _) = net.only();
    net.run(0, 1, Command::Destroy { endpoint: active });
    net.pass(MS);
    let (host, endpoint, kind) = net.only();
    assert_eq!((host, endpoint), (1, passive));
    assert!(matches!(kind, EventKind::Rejected { reason: reason::TIMEOUT, .. }), "{kind:?}");
    let accept = Command::Accept { endpoint: passive, parameters: parameters(9) };
    assert_eq!(net.command(1, 7, accept), Err(Refused::State));

    // The same when the word is lost: then the REP draws it.
    net.connect(0, 1, 1, 5);
    net.pass(MS);
    let (_, passive, _) = net.only();
    net.decide = Box::new(|_, _| Fate::Lost);
    net.kill(0, 1);
    net.decide = Box::new(|_, _| Fate::Arrives);
    net.run(1, 7, Command::Accept { endpoint: passive, parameters: parameters(9) });
    net.pass(MS);
    let (_, endpoint, kind) = net.only();
    assert_eq!(endpoint, passive);
    assert!(matches!(kind, EventKind::Rejected { reason: reason::INVALID_COMMUNICATION, .. }), "{kind:?}");
}

#[test]
fn too_many_requests_wait_outside_and_come_in_later() {
    let mut net = Net::new(2, 13);
    let listener = net.bind(1, 7, PortSpace::Tcp, PORT);
    net.run(1, 7, Command::Listen { endpoint: listener, backlog: 1 });
    for n in 0..100 {
        net.connect(0, 1, 1, 0x1000 + n);
    }
    net.pass(MS);
    assert_eq!(net.events.len(), 64, "the least backlog");
    assert_eq!(net.hosts[1].counters().overflows, 36);
    let events = net.serve(SECOND);
    let established =
        events.iter().filter(|(_, _, kind)| matches!(kind, EventKind::Established { .. })).count();
    assert_eq!(established, 100);
}

#[test]
fn a_flood_of_requests_of_one_peer_takes_bounded_memory() {
    let mut net = Net::new(2, 14);
    for port in 0..20 {
        net.listen(1, 7, PortSpace::Tcp, PORT + port);
    }
    let mad = {
        net.connect(0, 1, 1, 5);
        net.pass(MS);
        net.take();
        // As it was sent, from the manager that would send it again.
        let mut mad = None;
        net.hosts[0].handle_timeout(net.now.plus(SECOND));
        while let Some(transmit) = net.hosts[0].poll_transmit() {
            mad = Some(transmit.mad);
        }
        mad.unwrap()
    };
    let (transaction, message) = Message::parse(&mad).unwrap();
    let Message::Req(req) = message else { panic!() };
    for n in 1..50_000u32 {
        let mut req = req.clone();
        req.local_id = n;
        req.qpn = n + 100;
        req.service_id = PortSpace::Tcp.service_id(PORT + (n % 20) as u16);
        net.hosts[1].handle_mad(net.now, device(1), device(0), &Message::Req(req).emit(transaction));
        while net.hosts[1].poll_transmit().is_some() {}
        while net.hosts[1].poll_event().is_some() {}
    }
    assert_eq!(net.hosts[1].endpoints(), 20 + 1024);
    net.kill(1, 7);
    net.pass(10 * SECOND);
    assert_eq!(net.hosts[1].endpoints(), 0);
}

#[test]
fn commands_out_of_place_or_range_are_refused() {
    let mut net = Net::new(2, 15);
    let listener = net.listen(1, 7, PortSpace::Tcp, PORT);
    assert_eq!(net.command(1, 7, Command::Listen { endpoint: listener, backlog: 0 }), Err(Refused::State));
    assert_eq!(net.command(1, 8, Command::Destroy { endpoint: listener }), Err(Refused::NoEndpoint));
    assert_eq!(net.command(1, 7, Command::Disconnect { endpoint: listener }), Err(Refused::State));
    let endpoint = net.bind(0, 1, PortSpace::Tcp, 0);
    let good = (addresses(0, 1), parameters(5), PATH);
    let mut bad = Vec::new();
    for n in 0..11 {
        let (mut a, mut p, mut path) = good.clone();
        match n {
            0 => p.qpn = 1 << 24,
            1 => p.psn = 1 << 24,
            2 => p.retry_count = 8,
            3 => p.rnr_retry_count = 8,
            4 => p.private_data = vec![0; MAX_REQUEST_DATA + 1],
            5 => path.mtu = 6,
            6 => path.ack_timeout = 32,
            7 => path.flow_label = 1 << 20,
            8 => a.peer = "[fe80::1]:7".parse().unwrap(),
            9 => p.ece.vendor_id = 1 << 24,
            _ => path.sl = 16,
        }
        bad.push((a, p, path));
    }
    for (addresses, parameters, path) in bad {
        let command = Command::Connect { endpoint, addresses, transport: Transport::Rc, parameters, path };
        assert_eq!(net.command(0, 1, command.clone()), Err(Refused::Invalid), "{command:?}");
    }
    let (mut elsewhere, parameters, path) = good;
    elsewhere.local_device = device(1);
    let connect =
        Command::Connect { endpoint, addresses: elsewhere, transport: Transport::Rc, parameters, path };
    assert_eq!(net.command(0, 1, connect), Err(Refused::NotLocal));
    assert_eq!(net.trace(), [""; 0]);
}

#[test]
fn a_device_that_goes_takes_its_connections_along() {
    let mut net = Net::new(2, 16);
    net.listen(1, 7, PortSpace::Tcp, PORT);
    let (active, _) = connected(&mut net);
    let waiting = net.connect(0, 1, 1, 0x77);
    net.hosts[0].remove_device(device(0));
    net.collect();
    let events = net.take();
    assert_eq!(
        events[..2],
        [(0, active, EventKind::Disconnected { private_data: vec![] }), (0, waiting, EventKind::Unreachable),],
    );
    for endpoint in [active, waiting] {
        net.run(0, 1, Command::Destroy { endpoint });
    }
    assert_eq!(net.hosts[0].endpoints(), 0);
    assert_eq!(net.hosts[0].deadline(), urxe::time::Instant::NEVER);
}
