//! What the manager says is what the kernel says in the same place: its captured messages go in, and ours come out like
//! its own, but for the numbers that each side chooses for itself.

use std::net::IpAddr;

use urxe::cm::mad::Mad;
use urxe::cm::message::{IpHeader, Message, Rej, padded};
use urxe::cm::{
    Addresses, Answer, Command, Ece, Endpoint, EventKind, Manager, Owner, Parameters, PathFacts, PortSpace,
    Transport,
};
use urxe::time::Instant;

use crate::wire::captured;

const NOW: Instant = Instant(5_000_000_000);
const OWNER: Owner = Owner(3);

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// A manager in the place of one of the kernels of the captures.
fn manager(device: &str) -> Manager {
    let mut manager = Manager::new(17, 1024);
    manager.add_device(ip(device));
    manager
}

fn bind(manager: &mut Manager, space: PortSpace, device: &str, port: u16) -> Endpoint {
    let command = Command::Bind {
        space,
        address: (ip(device), port).into(),
        devices: vec![ip(device)],
        reuse: false,
        v6_only: false,
    };
    match manager.command(NOW, OWNER, command) {
        Ok(Answer::Bound { endpoint, .. }) => endpoint,
        other => panic!("{other:?}"),
    }
}

fn run(manager: &mut Manager, command: Command) {
    assert_eq!(manager.command(NOW, OWNER, command), Ok(Answer::Done));
}

/// The only datagram that there is to send.
fn sent(manager: &mut Manager) -> Mad {
    let transmit = manager.poll_transmit().unwrap();
    assert_eq!(manager.poll_transmit(), None);
    transmit.mad
}

fn told(manager: &mut Manager) -> (Endpoint, EventKind) {
    let (owner, event) = manager.poll_event().unwrap();
    assert_eq!((owner, manager.poll_event()), (OWNER, None));
    (event.endpoint, event.kind)
}

/// Compares but for the bytes in `own`, which each side chooses.
fn assert_alike(ours: &[u8], kernels: &[u8], own: &[std::ops::Range<usize>]) {
    let (mut a, mut b) = (ours.to_vec(), kernels.to_vec());
    for range in own {
        assert_ne!(ours[range.clone()], vec![0; range.len()], "something was chosen");
        a[range.clone()].fill(0);
        b[range.clone()].fill(0);
    }
    assert_eq!(a, b);
}

const TRANSACTION: std::ops::Range<usize> = 8..16;
const LOCAL_ID: std::ops::Range<usize> = 24..28;
const REMOTE_ID: std::ops::Range<usize> = 28..32;

fn patched(mad: &[u8], place: std::ops::Range<usize>, from: &[u8]) -> Vec<u8> {
    let mut mad = mad.to_vec();
    mad[place.clone()].copy_from_slice(&from[place]);
    mad
}

/// With the number of the other side in place of the one that the kernel had chosen.
fn to_us(mad: &[u8], ours: &[u8]) -> Vec<u8> {
    let mut mad = mad.to_vec();
    mad[REMOTE_ID].copy_from_slice(&ours[LOCAL_ID]);
    mad
}

#[test]
fn in_the_place_of_rpings_client() {
    let kernels = captured("cm_rping.pcap");
    let Message::Req(req) = Message::parse(&kernels[0]).unwrap().1 else { panic!() };
    let header = IpHeader::parse(&padded(&req.private_data)).unwrap();
    let mut manager = manager("10.77.0.2");
    let endpoint = bind(&mut manager, PortSpace::Tcp, "10.77.0.2", header.port);
    let connect = Command::Connect {
        endpoint,
        addresses: Addresses {
            local: (ip("10.77.0.2"), header.port).into(),
            peer: (ip("10.77.0.3"), 7174).into(),
            local_device: ip("10.77.0.2"),
            peer_device: ip("10.77.0.3"),
        },
        transport: Transport::Rc,
        parameters: Parameters {
            qpn: req.qpn,
            psn: req.psn,
            responder_resources: 1,
            initiator_depth: 1,
            flow_control: false,
            retry_count: 7,
            rnr_retry_count: 7,
            srq: false,
            ece: Ece::default(),
            private_data: vec![],
        },
        path: PathFacts {
            mtu: 3,
            ack_timeout: 17,
            flow_label: req.flow_label,
            traffic_class: 0,
            hop_limit: 64,
            sl: 0,
        },
    };
    run(&mut manager, connect);
    let ours = sent(&mut manager);
    let guid = 40..48;
    assert_alike(&ours, &kernels[0], &[TRANSACTION, LOCAL_ID, guid]);

    let rep = patched(&to_us(&kernels[1], &ours), TRANSACTION, &ours);
    manager.handle_mad(NOW, ip("10.77.0.2"), ip("10.77.0.3"), &rep);
    let (_, EventKind::Response { parameters }) = told(&mut manager) else { panic!() };
    assert_eq!((parameters.qpn, parameters.psn), (0x26, 0xb16467));
    run(&mut manager, Command::Establish { endpoint });
    assert_alike(&sent(&mut manager), &kernels[2], &[TRANSACTION, LOCAL_ID]);
    run(&mut manager, Command::Disconnect { endpoint });
    assert_alike(&sent(&mut manager), &kernels[3], &[TRANSACTION, LOCAL_ID]);
    manager.handle_mad(NOW, ip("10.77.0.2"), ip("10.77.0.3"), &to_us(&kernels[4], &ours));
    assert_eq!(told(&mut manager), (endpoint, EventKind::Disconnected { private_data: vec![] }));
}

#[test]
fn in_the_place_of_rpings_server() {
    let kernels = captured("cm_rping.pcap");
    let mut manager = manager("10.77.0.3");
    let listener = bind(&mut manager, PortSpace::Tcp, "10.77.0.3", 7174);
    run(&mut manager, Command::Listen { endpoint: listener, backlog: 0 });
    manager.handle_mad(NOW, ip("10.77.0.3"), ip("10.77.0.2"), &kernels[0]);
    let (endpoint, EventKind::Request { parameters, addresses, .. }) = told(&mut manager) else { panic!() };
    assert_eq!(addresses.peer, (ip("10.77.0.2"), 0xafa3).into());
    // rping answers with what it was offered.
    let answer = Parameters { qpn: 0x26, psn: 0xb16467, private_data: vec![], ..parameters };
    run(&mut manager, Command::Accept { endpoint, parameters: answer });
    let ours = sent(&mut manager);
    let guid = 52..60;
    assert_alike(&ours, &kernels[1], &[LOCAL_ID, guid]);
    manager.handle_mad(NOW, ip("10.77.0.3"), ip("10.77.0.2"), &to_us(&kernels[2], &ours));
    assert_eq!(told(&mut manager), (endpoint, EventKind::Established { private_data: vec![] }));
    manager.handle_mad(NOW, ip("10.77.0.3"), ip("10.77.0.2"), &to_us(&kernels[3], &ours));
    assert_eq!(told(&mut manager), (endpoint, EventKind::Disconnected { private_data: vec![] }));
    run(&mut manager, Command::Disconnect { endpoint });
    assert_alike(&sent(&mut manager), &kernels[4], &[LOCAL_ID]);
}

#[test]
fn in_the_place_of_a_host_where_nobody_listens() {
    let kernels = captured("cm_reject.pcap");
    let mut manager = manager("10.77.0.3");
    manager.handle_mad(NOW, ip("10.77.0.3"), ip("10.77.0.2"), &kernels[0]);
    assert_eq!(sent(&mut manager)[..], kernels[1][..]);
}

#[test]
fn in_the_place_of_udaddys_client_and_server() {
    let kernels = captured("cm_udaddy.pcap");
    let mut client = manager("10.77.0.2");
    let endpoint = bind(&mut client, PortSpace::Udp, "10.77.0.2", 0xcd17);
    let resolve = Command::Resolve {
        endpoint,
        addresses: Addresses {
            local: (ip("10.77.0.2"), 0xcd17).into(),
            peer: (ip("10.77.0.3"), 7174).into(),
            local_device: ip("10.77.0.2"),
            peer_device: ip("10.77.0.3"),
        },
        private_data: vec![],
        path: crate::harness::PATH,
    };
    run(&mut client, resolve);
    let ours = sent(&mut client);
    assert_alike(&ours, &kernels[0], &[TRANSACTION, LOCAL_ID]);
    let mut rep = patched(&kernels[1], TRANSACTION, &ours);
    rep[LOCAL_ID].copy_from_slice(&ours[LOCAL_ID]);
    client.handle_mad(NOW, ip("10.77.0.2"), ip("10.77.0.3"), &rep);
    let (_, EventKind::ServiceResolved { qpn, qkey, .. }) = told(&mut client) else { panic!() };
    assert_eq!((qpn, qkey), (0x27, 0x0123_4567));

    let mut server = manager("10.77.0.3");
    let listener = bind(&mut server, PortSpace::Udp, "10.77.0.3", 7174);
    run(&mut server, Command::Listen { endpoint: listener, backlog: 0 });
    server.handle_mad(NOW, ip("10.77.0.3"), ip("10.77.0.2"), &kernels[0]);
    let (endpoint, EventKind::ServiceRequest { addresses, .. }) = told(&mut server) else { panic!() };
    assert_eq!(addresses.peer, (ip("10.77.0.2"), 0xcd17).into());
    let accept = Command::AcceptService {
        endpoint,
        qpn: 0x27,
        qkey: 0x0123_4567,
        ece: Ece::default(),
        private_data: vec![],
    };
    run(&mut server, accept);
    assert_eq!(sent(&mut server)[..], kernels[1][..]);
}

/// The kernel's program has gone away after its REQ: the REJ has the number of the sender, who does not know ours.
#[test]
fn a_kernel_that_gives_up_is_understood_by_its_own_number() {
    let kernels = captured("cm_rping.pcap");
    let Message::Req(req) = Message::parse(&kernels[0]).unwrap().1 else { panic!() };
    let mut manager = manager("10.77.0.3");
    let listener = bind(&mut manager, PortSpace::Tcp, "10.77.0.3", 7174);
    run(&mut manager, Command::Listen { endpoint: listener, backlog: 0 });
    manager.handle_mad(NOW, ip("10.77.0.3"), ip("10.77.0.2"), &kernels[0]);
    let (endpoint, _) = told(&mut manager);
    let rej = Message::Rej(Rej {
        local_id: req.local_id,
        remote_id: 0,
        about: urxe::cm::message::About::Other,
        reason: urxe::cm::message::reason::TIMEOUT,
        info: padded(&req.ca_guid.to_be_bytes()),
        info_len: 8,
        private_data: [0; 148],
    });
    // Nobody else can take it back.
    manager.handle_mad(NOW, ip("10.77.0.3"), ip("10.77.0.9"), &rej.emit(1));
    assert_eq!(manager.poll_event(), None);
    manager.handle_mad(NOW, ip("10.77.0.3"), ip("10.77.0.2"), &rej.emit(1));
    let (ended, kind) = told(&mut manager);
    assert_eq!(ended, endpoint);
    assert!(matches!(kind, EventKind::Rejected { .. }), "{kind:?}");
}
