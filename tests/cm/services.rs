//! Services of datagrams: a port is resolved to a QP.

use std::cell::Cell;
use std::rc::Rc;

use urxe::cm::message::{Message, status};
use urxe::cm::{Command, Ece, Endpoint, EventKind, PortSpace, Refused};

use crate::harness::{Fate, MS, Net, PATH, PORT, SECOND, addresses, device};

fn resolve(net: &mut Net, owner: u64) -> Endpoint {
    let endpoint = net.bind(0, owner, PortSpace::Udp, 0);
    let command =
        Command::Resolve { endpoint, addresses: addresses(0, 1), private_data: vec![4, 5], path: PATH };
    net.run(0, owner, command);
    endpoint
}

fn accept(endpoint: Endpoint) -> Command {
    let ece = Ece { vendor_id: 0x15b3, options: 7 };
    Command::AcceptService { endpoint, qpn: 0x010099, qkey: 0x0123_4567, ece, private_data: vec![6] }
}

#[test]
fn a_service_is_resolved() {
    let mut net = Net::new(2, 1);
    let listener = net.listen(1, 7, PortSpace::Udp, PORT);
    let client = resolve(&mut net, 1);
    net.pass(MS);
    let (host, server, kind) = net.only();
    let EventKind::ServiceRequest { listener: heard, addresses, private_data, .. } = kind else {
        panic!("{kind:?}");
    };
    assert_eq!((host, heard, addresses.local.port(), addresses.peer.ip()), (1, listener, PORT, device(0)));
    assert_eq!((private_data.len(), &private_data[..3]), (180, &[4, 5, 0][..]));
    net.run(1, 7, accept(server));
    assert_eq!(net.command(1, 7, accept(server)), Err(Refused::State));
    net.pass(MS);
    let (host, endpoint, kind) = net.only();
    let EventKind::ServiceResolved { qpn, qkey, ece, private_data } = kind else { panic!("{kind:?}") };
    assert_eq!((host, endpoint, qpn, qkey), (0, client, 0x010099, 0x0123_4567));
    assert_eq!((ece, private_data.len(), private_data[0]), (Ece { vendor_id: 0x15b3, options: 7 }, 136, 6));
    net.pass(100 * SECOND);
    assert_eq!((net.trace(), net.take()), (vec!["1>2 SIDR_REQ".into(), "2>1 SIDR_REP".into()], vec![]));
    // The server keeps its endpoint until it destroys it.
    net.run(1, 7, Command::Destroy { endpoint: server });
    net.run(0, 1, Command::Destroy { endpoint: client });
    assert_eq!(net.endpoints(), 1);
}

#[test]
fn a_lost_answer_comes_again_and_the_program_is_asked_once() {
    let mut net = Net::new(2, 2);
    net.listen(1, 7, PortSpace::Udp, PORT);
    let lost = Rc::new(Cell::new(2));
    net.decide = Box::new(move |_, message| {
        if matches!(message, Message::SidrRep(_)) && lost.get() > 0 {
            lost.set(lost.get() - 1);
            return Fate::Lost;
        }
        Fate::Arrives
    });
    resolve(&mut net, 1);
    net.pass(150 * MS);
    let (_, server, _) = net.only();
    net.run(1, 7, accept(server));
    net.run(1, 7, Command::Destroy { endpoint: server });
    net.pass(SECOND);
    let (_, _, kind) = net.only();
    assert!(matches!(kind, EventKind::ServiceResolved { .. }), "{kind:?}");
    assert_eq!(
        net.trace(),
        [
            "1>2 SIDR_REQ",
            "1>2 SIDR_REQ",
            "2>1 SIDR_REP lost",
            "1>2 SIDR_REQ",
            "2>1 SIDR_REP lost",
            "1>2 SIDR_REQ",
            "2>1 SIDR_REP",
        ],
    );
}

#[test]
fn a_service_that_nobody_offers_or_that_is_refused_is_rejected() {
    let mut net = Net::new(2, 3);
    let client = resolve(&mut net, 1);
    net.pass(MS);
    let (_, endpoint, kind) = net.only();
    let EventKind::Rejected { reason, .. } = kind else { panic!("{kind:?}") };
    assert_eq!((endpoint, reason), (client, status::UNSUPPORTED.into()));

    net.listen(1, 7, PortSpace::Udp, PORT);
    for destroyed in [false, true] {
        resolve(&mut net, 1);
        net.pass(MS);
        let (_, server, _) = net.only();
        let reject = Command::Reject { endpoint: server, reason: 28, private_data: vec![0xab] };
        net.run(1, 7, if destroyed { Command::Destroy { endpoint: server } } else { reject });
        net.pass(MS);
        let (_, _, kind) = net.only();
        let EventKind::Rejected { reason, private_data, .. } = kind else { panic!("{kind:?}") };
        assert_eq!(reason, status::REJECT.into());
        assert_eq!(private_data[0], if destroyed { 0 } else { 0xab });
    }
}

#[test]
fn a_service_that_does_not_answer_is_unreachable() {
    let mut net = Net::new(2, 4);
    net.decide = Box::new(|_, _| Fate::Lost);
    let client = resolve(&mut net, 1);
    net.pass(70 * SECOND);
    assert_eq!(net.only(), (0, client, EventKind::Unreachable));
}

#[test]
fn a_connection_is_not_asked_of_a_service_nor_the_other_way_round() {
    let mut net = Net::new(2, 5);
    net.listen(1, 7, PortSpace::Udp, PORT);
    let tcp = net.bind(0, 1, PortSpace::Tcp, 0);
    let command =
        Command::Resolve { endpoint: tcp, addresses: addresses(0, 1), private_data: vec![], path: PATH };
    assert_eq!(net.command(0, 1, command), Err(Refused::Invalid));
    let udp = net.bind(0, 1, PortSpace::Udp, 0);
    let command = Command::Connect {
        endpoint: udp,
        addresses: addresses(0, 1),
        transport: urxe::cm::Transport::Rc,
        parameters: crate::harness::parameters(5),
        path: PATH,
    };
    assert_eq!(net.command(0, 1, command), Err(Refused::Invalid));
    assert_eq!(net.trace(), [""; 0]);
}
