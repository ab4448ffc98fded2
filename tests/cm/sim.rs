//! Many connections at once on a network that misbehaves, in virtual time. A failure prints its seed;
//! `URXE_SIM_SEED=<seed>` replays it.

use std::collections::BTreeMap;

use urxe::cm::message::{Message, reason};
use urxe::cm::{Command, Endpoint, EventKind, PortSpace};
use urxe::time::Instant;

use crate::harness::{Net, PORT, Rng, SECOND, SEED_VARIABLE, seeds};

/// Runs a test with each seed, and names the seed when it fails.
fn with_seeds(fixed: &[u64], test: impl Fn(u64)) {
    for seed in seeds(fixed) {
        let named = Named(seed);
        test(seed);
        std::mem::forget(named);
    }
}

struct Named(u64);

impl Drop for Named {
    fn drop(&mut self) {
        eprintln!("replay with {SEED_VARIABLE}={}", self.0);
    }
}

fn count(events: &[(usize, Endpoint, EventKind)], which: impl Fn(&EventKind) -> bool) -> usize {
    events.iter().filter(|(_, _, kind)| which(kind)).count()
}

#[test]
fn ten_thousand_connections_come_and_go_without_growth() {
    with_seeds(&[1], |seed| {
        let mut net = Net::new(2, seed);
        net.listen(1, 7, PortSpace::Tcp, PORT);
        net.disturb(5, 5);
        let mut most = 0;
        let mut rng = Rng(seed);
        for n in 0..10_000u32 {
            let active = net.connect(0, 1, 1, 0x1000 + n % 1000);
            let mut established = 0;
            while established == 0 {
                let events = net.serve(SECOND / 10);
                assert_eq!(
                    count(&events, |k| matches!(k, EventKind::Rejected { .. } | EventKind::Unreachable)),
                    0,
                    "{events:?}\n{:#?}",
                    net.trace
                );
                established = count(&events, |k| matches!(k, EventKind::Established { .. }));
            }
            net.run(0, 1, Command::Disconnect { endpoint: active });
            if rng.percent(50) {
                // In a hurry: it does not wait for the end.
                net.run(0, 1, Command::Destroy { endpoint: active });
            }
            net.serve(SECOND / 10);
            most = most.max(net.endpoints());
            net.trace.clear();
        }
        assert!(most < 100, "{most}");
        net.serve(20 * SECOND);
        assert_eq!(net.endpoints(), 1);
        assert_eq!((net.hosts[0].ports(), net.hosts[1].ports()), (0, 1));
        assert_eq!(net.hosts[0].deadline(), Instant::NEVER);
    });
}

#[test]
fn five_hundred_connect_at_once_and_all_succeed() {
    with_seeds(&[1, 2], |seed| {
        let mut net = Net::new(3, seed);
        net.listen(2, 7, PortSpace::Tcp, PORT);
        net.disturb(10, 5);
        for n in 0..500 {
            net.connect(n % 2, n as u64 / 100, 2, 0x1000 + n as u32);
        }
        let start = net.now;
        let mut established = 0;
        while established < 500 && net.now.since(start) < 30 * SECOND {
            let events = net.serve(SECOND / 10);
            established += count(&events, |k| matches!(k, EventKind::Established { .. }));
            assert_eq!(
                count(&events, |k| !matches!(
                    k,
                    EventKind::Established { .. } | EventKind::Request { .. } | EventKind::Response { .. }
                )),
                0
            );
        }
        assert_eq!(established, 500);
        assert!(net.now.since(start) < 10 * SECOND, "{:?}", net.now.since(start));
        for owner in 0..5 {
            net.kill(0, owner);
            net.kill(1, owner);
        }
        let mut disconnected = 0;
        for _ in 0..30 {
            disconnected += count(&net.serve(SECOND), |k| matches!(k, EventKind::Disconnected { .. }));
        }
        // A release without owner is repeated for five seconds: hardly any is lost for good.
        assert!(disconnected >= 498, "{disconnected}");
    });
}

/// Programs that come and go as they like, reject, give up and die, on a bad network with three hosts. Each connection
/// that is established on both sides is so with the same QPNs, each endpoint gets its events in an order that makes
/// sense, and in the end nothing is left.
#[test]
fn whatever_programs_and_network_do_events_make_sense_and_nothing_is_left() {
    with_seeds(&[1, 2, 3, 4, 5], |seed| {
        let mut net = Net::new(3, seed);
        net.disturb(15, 10);
        let mut rng = Rng(seed ^ 0xabcdef);
        // What each endpoint has heard so far.
        let mut heard: BTreeMap<(usize, Endpoint), Vec<EventKind>> = BTreeMap::new();
        let mut alive: Vec<(usize, u64, Endpoint)> = Vec::new();
        for host in 0..3 {
            net.listen(host, 100, PortSpace::Tcp, PORT);
        }
        for round in 0..3000u32 {
            match rng.below(10) {
                0..=3 => {
                    let (from, to) = (rng.below(3) as usize, rng.below(3) as usize);
                    let owner = rng.below(4);
                    let endpoint = net.connect(from, owner, to, 0x1000 + round);
                    alive.push((from, owner, endpoint));
                }
                4..=6 if !alive.is_empty() => {
                    let at = rng.below(alive.len() as u64) as usize;
                    let (host, owner, endpoint) = alive[at];
                    let command = if rng.percent(70) {
                        Command::Disconnect { endpoint }
                    } else {
                        alive.swap_remove(at);
                        Command::Destroy { endpoint }
                    };
                    let _ = net.command(host, owner, command);
                }
                7 if rng.percent(10) => {
                    let (host, owner) = (rng.below(3) as usize, rng.below(4));
                    net.kill(host, owner);
                    alive.retain(|(h, o, _)| (*h, *o) != (host, owner));
                }
                _ => {}
            }
            net.step(Instant::NEVER);
            let events = std::mem::take(&mut net.events);
            for (host, owner, endpoint, kind) in events {
                let so_far = heard.entry((host, endpoint)).or_default();
                check_order(so_far, &kind);
                so_far.push(kind.clone());
                let command = match &kind {
                    EventKind::Request { parameters, .. } => {
                        alive.push((host, owner.0, endpoint));
                        if rng.percent(80) {
                            let parameters = crate::harness::parameters(parameters.qpn + 0x100000);
                            Command::Accept { endpoint, parameters }
                        } else {
                            let reason = reason::CONSUMER;
                            Command::Reject { endpoint, reason, private_data: Vec::new() }
                        }
                    }
                    EventKind::Response { .. } => Command::Establish { endpoint },
                    EventKind::Disconnected { .. } if rng.percent(90) => Command::Disconnect { endpoint },
                    _ => continue,
                };
                let _ = net.command(host, owner.0, command);
            }
            net.trace.clear();
        }
        for (host, owner, endpoint) in alive {
            let _ = net.command(host, owner, Command::Destroy { endpoint });
        }
        // What is still requested is accepted and released; then all go.
        net.serve(100 * SECOND);
        for host in 0..3 {
            for owner in (0..4).chain([100]) {
                net.kill(host, owner);
            }
        }
        net.serve(100 * SECOND);
        assert_eq!(net.endpoints(), 0);
        for host in &net.hosts {
            assert_eq!((host.ports(), host.deadline()), (0, Instant::NEVER));
        }
    });
}

fn check_order(so_far: &[EventKind], next: &EventKind) {
    let had = |which: fn(&EventKind) -> bool| so_far.iter().any(which);
    let closed = had(|k| matches!(k, EventKind::Rejected { .. } | EventKind::Unreachable));
    let disconnected = had(|k| matches!(k, EventKind::Disconnected { .. }));
    let makes_sense = match next {
        EventKind::Request { .. } => so_far.is_empty(),
        EventKind::Response { .. } => so_far.is_empty(),
        EventKind::Established { .. } => matches!(so_far, [EventKind::Request { .. }]),
        EventKind::Rejected { .. } | EventKind::Unreachable => {
            !closed && !disconnected && !had(|k| matches!(k, EventKind::Established { .. }))
        }
        EventKind::Disconnected { .. } => !closed && !disconnected && !so_far.is_empty(),
        EventKind::TimewaitExit => disconnected,
        EventKind::ServiceRequest { .. } | EventKind::ServiceResolved { .. } => false,
    };
    assert!(makes_sense, "{next:?} after {so_far:?}");
}

/// The same seed gives the same conversation, to the byte.
#[test]
fn a_run_is_a_function_of_its_seed() {
    let run = |seed| {
        let mut net = Net::new(2, seed);
        net.listen(1, 7, PortSpace::Tcp, PORT);
        net.disturb(30, 10);
        for n in 0..20 {
            net.connect(0, 1, 1, n + 2);
        }
        let events = net.serve(5 * SECOND);
        (net.trace(), events)
    };
    assert_eq!(run(7), run(7));
    assert_ne!(run(7).0, run(8).0);
}

/// A peer of which nothing comes but what was said long ago, again.
#[test]
fn everything_that_was_ever_said_may_be_said_again_later() {
    let mut net = Net::new(2, 3);
    net.listen(1, 7, PortSpace::Tcp, PORT);
    let said = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
    let record = std::rc::Rc::clone(&said);
    net.decide = Box::new(move |transmit, message| {
        record.borrow_mut().push((transmit.clone(), message.clone()));
        crate::harness::Fate::Arrives
    });
    let active = net.connect(0, 1, 1, 0x55);
    net.serve(SECOND / 10);
    net.run(0, 1, Command::Disconnect { endpoint: active });
    net.serve(10 * SECOND);
    net.decide = Box::new(|_, _| crate::harness::Fate::Arrives);
    let said = said.borrow().clone();
    for (transmit, message) in said.iter().filter(|(_, m)| !matches!(m, Message::Req(_))) {
        let host = usize::from(transmit.to == crate::harness::device(1));
        net.hosts[host].handle_mad(net.now, transmit.to, transmit.from, &transmit.mad);
        net.collect();
        let events = net.serve(SECOND);
        assert_eq!(events, [], "{message:?}");
    }
    // A REQ is the exception: when all memory of it is gone it is like new, until its sender disowns the REP.
    let (transmit, _) = said.iter().find(|(_, m)| matches!(m, Message::Req(_))).unwrap();
    net.hosts[1].handle_mad(net.now, transmit.to, transmit.from, &transmit.mad);
    net.collect();
    let events = net.serve(SECOND);
    assert!(
        matches!(&events[..], [(1, a, EventKind::Request { .. }), (1, b, EventKind::Rejected { .. })] if a == b),
        "{events:?}"
    );
    assert_eq!(net.endpoints(), 1);
}
