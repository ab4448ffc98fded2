//! Connection management through the daemon: programs, two machines, datagrams on the wire.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Instant;

use urxe::cm::{
    Addresses, Answer, Command, Ece, Endpoint, Event, EventKind, Parameters, PathFacts, PortSpace, Transport,
};
use urxe_control::client::{Client, Lease};

use crate::support::{Fabric, Heard, PATIENCE, spec};

/// A program with a device.
struct Program {
    client: Arc<Client>,
    heard: Receiver<Heard>,
    lease: Lease,
}

impl Program {
    fn new(fabric: &Fabric, node: u32) -> Self {
        let (client, heard) = fabric.client();
        let lease = client.lease(&spec(node)).unwrap();
        Self { client, heard, lease }
    }

    fn address(&self) -> IpAddr {
        self.lease.address
    }

    fn cm(&self, command: Command) -> Answer {
        self.client.cm(command).unwrap()
    }

    fn bind(&self, port: u16) -> (Endpoint, u16) {
        let command = Command::Bind {
            space: PortSpace::Tcp,
            address: (self.address(), port).into(),
            devices: vec![self.address()],
            reuse: false,
            v6_only: false,
        };
        match self.cm(command) {
            Answer::Bound { endpoint, port } => (endpoint, port),
            other => panic!("{other:?}"),
        }
    }

    fn listen(&self) -> u16 {
        let (endpoint, port) = self.bind(0);
        self.cm(Command::Listen { endpoint, backlog: 1024 });
        port
    }

    fn connect(&self, peer: IpAddr, port: u16, qpn: u32) -> Endpoint {
        let (endpoint, own) = self.bind(0);
        let addresses = Addresses {
            local: (self.address(), own).into(),
            peer: (peer, port).into(),
            local_device: self.address(),
            peer_device: peer,
        };
        let path =
            PathFacts { mtu: 5, ack_timeout: 14, flow_label: 0, traffic_class: 0, hop_limit: 64, sl: 0 };
        let parameters = parameters(qpn);
        self.cm(Command::Connect { endpoint, addresses, transport: Transport::Rc, parameters, path });
        endpoint
    }

    fn event(&self) -> Event {
        match self.heard.recv_timeout(PATIENCE) {
            Ok(Heard::Event(event)) => event,
            other => panic!("no event but {other:?}"),
        }
    }
}

fn parameters(qpn: u32) -> Parameters {
    Parameters {
        qpn,
        psn: 7,
        responder_resources: 1,
        initiator_depth: 1,
        flow_control: true,
        retry_count: 7,
        rnr_retry_count: 7,
        srq: false,
        ece: Ece::default(),
        private_data: qpn.to_be_bytes().to_vec(),
    }
}

/// Plays the passive side: accepts all, and answers the end of a connection with its end. Ends with the client.
fn serve(program: &Program, connections: usize) {
    let mut qpns = HashMap::new();
    let mut left = connections;
    while left > 0 {
        let Event { endpoint, kind } = program.event();
        match kind {
            EventKind::Request { parameters: asked, .. } => {
                assert!(asked.private_data.starts_with(&asked.qpn.to_be_bytes()));
                qpns.insert(endpoint, asked.qpn);
                program.cm(Command::Accept { endpoint, parameters: parameters(asked.qpn + 0x1_0000) });
            }
            EventKind::Established { .. } => assert!(qpns.contains_key(&endpoint)),
            EventKind::Disconnected { .. } => {
                let _ = program.client.cm(Command::Disconnect { endpoint });
                program.cm(Command::Destroy { endpoint });
                left -= 1;
            }
            EventKind::TimewaitExit => {}
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn connections_are_made_and_ended_one_by_one() {
    const COUNT: u32 = 300;
    let fabric = Fabric::new();
    let (passive, active) = (Program::new(&fabric, 0), Program::new(&fabric, 1));
    let (peer, port) = (passive.address(), passive.listen());
    let start = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(move || serve(&passive, COUNT as usize));
        for number in 0..COUNT {
            let endpoint = active.connect(peer, port, 0x100 + number);
            let event = active.event();
            assert_eq!(event.endpoint, endpoint);
            let EventKind::Response { parameters } = event.kind else { panic!("{event:?}") };
            assert_eq!(parameters.qpn, 0x1_0100 + number);
            active.cm(Command::Establish { endpoint });
            active.cm(Command::Disconnect { endpoint });
            let event = active.event();
            assert!(matches!(event.kind, EventKind::Disconnected { .. }), "{event:?}");
            active.cm(Command::Destroy { endpoint });
        }
    });
    eprintln!("{:.0} connections/s one by one", f64::from(COUNT) / start.elapsed().as_secs_f64());
    let status = fabric.status().0;
    let counter = |name| status.counters.iter().find(|(n, _)| n == name).map_or(0, |(_, value)| *value);
    assert_eq!(counter("cm_rx_req"), u64::from(COUNT), "each once, on the wire");
    assert_eq!(counter("qp1_icrc_errors") + counter("qp1_tx_dropped") + counter("qp1_malformed"), 0);
}

#[test]
fn five_hundred_at_once_are_all_connected() {
    const COUNT: u32 = 500;
    let fabric = Fabric::new();
    let (passive, active) = (Program::new(&fabric, 0), Program::new(&fabric, 1));
    let (peer, port) = (passive.address(), passive.listen());
    let start = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(move || serve(&passive, COUNT as usize));
        let endpoints: Vec<_> = (0..COUNT).map(|number| active.connect(peer, port, 0x100 + number)).collect();
        let mut left = endpoints.len();
        while left > 0 {
            let Event { endpoint, kind } = active.event();
            match kind {
                EventKind::Response { .. } => {
                    active.cm(Command::Establish { endpoint });
                    active.cm(Command::Disconnect { endpoint });
                }
                EventKind::Disconnected { .. } => left -= 1,
                EventKind::TimewaitExit => {}
                other => panic!("{other:?}"),
            }
        }
    });
    eprintln!("{:.0} connections/s at once", f64::from(COUNT) / start.elapsed().as_secs_f64());
}

#[test]
fn a_killed_process_is_disconnected() {
    let fabric = Fabric::new();
    let (passive, active) = (Program::new(&fabric, 0), Program::new(&fabric, 1));
    let port = passive.listen();
    let endpoint = active.connect(passive.address(), port, 0x123);
    let request = passive.event();
    passive.cm(Command::Accept { endpoint: request.endpoint, parameters: parameters(0x456) });
    assert!(matches!(active.event().kind, EventKind::Response { .. }));
    active.cm(Command::Establish { endpoint });
    assert!(matches!(passive.event().kind, EventKind::Established { .. }));
    // Its connection to the daemon ends as if it had died.
    drop(active);
    let event = passive.event();
    assert!(matches!(event.kind, EventKind::Disconnected { .. }), "{event:?}");
    assert_eq!(event.endpoint, request.endpoint);
    // And with a listener that is gone, a request is refused.
    let late = Program::new(&fabric, 1);
    drop(passive);
    late.connect(spec_address(&fabric), port, 0x99);
    let event = late.event();
    assert!(matches!(event.kind, EventKind::Rejected { reason: 8, .. }), "{event:?}");
}

fn spec_address(fabric: &Fabric) -> IpAddr {
    fabric.client().0.device(&spec(0)).unwrap().0
}
