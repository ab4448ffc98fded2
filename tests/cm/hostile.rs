//! Arbitrary commands, datagrams and times into a connection manager: what a fuzzer and a property test share.
//!
//! Whatever arrives, nothing panics, what is sent can be read, each datagram draws few, endpoints stay bounded, and when
//! all owners are gone nothing is left.

use std::net::{IpAddr, Ipv4Addr};

use urxe::cm::mad::MAD_LEN;
use urxe::cm::manager::Counters;
use urxe::cm::message::Message;
use urxe::cm::{
    Addresses, Answer, Command, Ece, Endpoint, EventKind, Manager, Owner, Parameters, PathFacts, PortSpace,
    Transmit, Transport,
};
use urxe::time::Instant;

#[path = "../script/mod.rs"]
mod script;
use script::Script;

impl Script<'_> {
    fn below(&mut self, n: usize) -> usize {
        usize::from(self.byte()) % n
    }
    fn word(&mut self) -> u32 {
        u32::from_le_bytes([self.byte(), self.byte(), self.byte(), self.byte()])
    }
    fn bytes(&mut self, most: usize) -> Vec<u8> {
        let len = self.below(most + 1);
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken.to_vec()
    }
    /// Mostly `sane`, so that scripts get somewhere.
    fn mostly<T>(&mut self, sane: T, wild: impl FnOnce(&mut Self) -> T) -> T {
        if self.below(16) == 0 { wild(self) } else { sane }
    }
    fn device(&mut self) -> IpAddr {
        let all = ["10.0.0.1", "10.0.0.2", "fd00::1", "127.0.0.1", "::ffff:10.0.0.1"];
        let sane = all[self.below(2)];
        self.mostly(sane, |s| all[s.below(all.len())]).parse().unwrap()
    }
    fn parameters(&mut self) -> Parameters {
        Parameters {
            qpn: self.mostly(u32::from(self.0.first().copied().unwrap_or(0) % 16), Self::word),
            psn: self.mostly(7, Self::word),
            responder_resources: self.byte(),
            initiator_depth: self.byte(),
            flow_control: self.byte() & 1 == 0,
            retry_count: self.mostly(7, Self::byte),
            rnr_retry_count: self.mostly(7, Self::byte),
            srq: self.byte() & 1 == 0,
            ece: Ece { vendor_id: self.mostly(0, Self::word), options: self.word() },
            private_data: self.mostly(vec![1], |s| s.bytes(255)),
        }
    }
    fn path(&mut self) -> PathFacts {
        PathFacts {
            mtu: self.mostly(3, Self::byte),
            ack_timeout: self.mostly(17, Self::byte),
            flow_label: self.mostly(0xfffff, Self::word),
            traffic_class: self.byte(),
            hop_limit: self.byte(),
            sl: self.mostly(15, Self::byte),
        }
    }
    fn addresses(&mut self, port: u16) -> Addresses {
        Addresses {
            local: (self.device(), port).into(),
            peer: (self.device(), self.port()).into(),
            local_device: self.device(),
            peer_device: self.device(),
        }
    }
    fn port(&mut self) -> u16 {
        self.mostly(5000, |s| [0, 1, 4999, 40000][s.below(4)])
    }
    fn space(&mut self) -> PortSpace {
        [PortSpace::Tcp, PortSpace::Udp, PortSpace::Ib][self.below(3)]
    }
}

const OWNERS: u64 = 3;
const MOST_OWNED: usize = 200;

/// Runs a script. What the manager sends is kept, and the script has it delivered, changed or not, when it likes. Gives what was counted.
pub(crate) fn run(script: &[u8]) -> Counters {
    let mut script = Script(script);
    let mut manager = Manager::new(u64::from(script.word()), 1024);
    for device in ["10.0.0.1", "10.0.0.2", "fd00::1"] {
        manager.add_device(device.parse().unwrap());
    }
    let mut now = Instant(1);
    let mut endpoints: Vec<(Owner, Endpoint)> = Vec::new();
    // Somebody listens, in most scripts.
    for space in [PortSpace::Tcp, PortSpace::Udp] {
        let devices = ["10.0.0.1", "10.0.0.2"].map(|d| d.parse().unwrap()).to_vec();
        let address = (Ipv4Addr::UNSPECIFIED, 5000).into();
        let command = Command::Bind { space, address, devices, reuse: true, v6_only: false };
        if script.below(4) > 0
            && let Ok(Answer::Bound { endpoint, .. }) = manager.command(now, Owner(0), command)
        {
            endpoints.push((Owner(0), endpoint));
            let listen = Command::Listen { endpoint, backlog: 1 };
            assert_eq!(manager.command(now, Owner(0), listen), Ok(Answer::Done));
        }
    }
    let mut sent: Vec<Transmit> = Vec::new();
    let mut pending: Vec<(Endpoint, EventKind)> = Vec::new();
    let mut datagrams = 0;
    while !script.is_empty() {
        let owner = Owner(script.below(OWNERS as usize) as u64);
        let pick = script.byte() as usize;
        let (mut of, endpoint) = match endpoints.len() {
            0 => (owner, Endpoint(pick as u64)),
            // The newest have most to do.
            n if pick.is_multiple_of(2) => endpoints[n - 1 - pick / 2 % n.min(4)],
            n => endpoints[pick % n],
        };
        let command = match script.below(32) {
            0 | 1 if endpoints.len() < MOST_OWNED => Some(Command::Bind {
                space: script.space(),
                address: match script.below(3) {
                    0 => (Ipv4Addr::UNSPECIFIED, script.port()).into(),
                    1 => (Ipv4Addr::UNSPECIFIED, 0).into(),
                    _ => (script.device(), script.port()).into(),
                },
                devices: match script.below(4) {
                    0 => (0..script.below(4)).map(|_| script.device()).collect(),
                    _ => ["10.0.0.1", "10.0.0.2"].map(|d| d.parse().unwrap()).to_vec(),
                },
                reuse: script.byte() & 1 == 0,
                v6_only: script.byte() & 1 == 0,
            }),
            2 => Some(Command::Listen { endpoint, backlog: script.word() >> script.below(32) }),
            3 => Some(Command::Connect {
                endpoint,
                addresses: script.addresses(pick as u16),
                transport: [Transport::Rc, Transport::Rc, Transport::Uc, Transport::Xrc][script.below(4)],
                parameters: script.parameters(),
                path: script.path(),
            }),
            4 => Some(Command::Resolve {
                endpoint,
                addresses: script.addresses(pick as u16),
                private_data: script.bytes(255),
                path: script.path(),
            }),
            5 => Some(Command::Accept { endpoint, parameters: script.parameters() }),
            6 => Some(Command::AcceptService {
                endpoint,
                qpn: script.word() >> 7,
                qkey: script.word(),
                ece: Ece::default(),
                private_data: script.bytes(255),
            }),
            7 => Some(Command::Reject {
                endpoint,
                reason: script.word() as u16,
                private_data: script.bytes(255),
            }),
            8 => Some(Command::Establish { endpoint }),
            9 => Some(Command::Disconnect { endpoint }),
            10 => Some(Command::Destroy { endpoint }),
            11 => {
                now = now.plus(1 << (script.byte() & 37));
                manager.handle_timeout(now);
                assert!(manager.deadline() > now);
                None
            }
            12 if script.byte() == 0 => {
                manager.owner_gone(now, owner);
                None
            }
            // Something new that looks like a message.
            13 => {
                let mut mad = [0; MAD_LEN];
                mad[..4].copy_from_slice(&[1, 7, 2, 3]);
                mad[17] = 0x10 + script.byte() % 12;
                let fields = script.bytes(200);
                mad[24..24 + fields.len()].copy_from_slice(&fields);
                manager.handle_mad(now, script.device(), script.device(), &mad);
                datagrams += 1;
                None
            }
            // What a program does when it hears of something.
            14..=18 if !pending.is_empty() => {
                let (endpoint, kind) = pending.remove(pick % pending.len());
                of = endpoints.iter().find(|(_, e)| *e == endpoint).map_or(of, |(o, _)| *o);
                match kind {
                    EventKind::Request { .. } if !pick.is_multiple_of(8) => {
                        Some(Command::Accept { endpoint, parameters: script.parameters() })
                    }
                    EventKind::Response { .. } => Some(Command::Establish { endpoint }),
                    EventKind::Established { .. } if !pick.is_multiple_of(4) => None,
                    EventKind::Established { .. } | EventKind::Disconnected { .. } => {
                        Some(Command::Disconnect { endpoint })
                    }
                    _ => Some(Command::Destroy { endpoint }),
                }
            }
            // A client, from the start.
            19 | 20 if endpoints.len() < MOST_OWNED => {
                let space = [PortSpace::Tcp, PortSpace::Udp][script.below(2)];
                let local = ["10.0.0.1", "10.0.0.2"][script.below(2)];
                let peer = ["10.0.0.1", "10.0.0.2"][script.below(2)];
                let (local, peer): (IpAddr, IpAddr) = (local.parse().unwrap(), peer.parse().unwrap());
                let bind = Command::Bind {
                    space,
                    address: (local, 0).into(),
                    devices: vec![local],
                    reuse: false,
                    v6_only: false,
                };
                let Ok(Answer::Bound { endpoint, port }) = manager.command(now, owner, bind) else {
                    panic!("there are more ports than endpoints");
                };
                endpoints.push((owner, endpoint));
                of = owner;
                let addresses = Addresses {
                    local: (local, port).into(),
                    peer: (peer, 5000).into(),
                    local_device: local,
                    peer_device: peer,
                };
                let (path, parameters, transport) = (script.path(), script.parameters(), Transport::Rc);
                Some(match space {
                    PortSpace::Udp => Command::Resolve { endpoint, addresses, private_data: vec![], path },
                    _ => Command::Connect { endpoint, addresses, transport, parameters, path },
                })
            }
            // What was sent, perhaps changed, to whom it was sent.
            _ if !sent.is_empty() => {
                let at = if pick.is_multiple_of(2) { sent.len() - 1 } else { pick % sent.len() };
                let (from, to, mut mad) = (sent[at].from, sent[at].to, sent[at].mad);
                if script.below(8) != 0 {
                    sent.swap_remove(at);
                }
                if script.below(16) == 0 {
                    let place = script.byte() as usize;
                    mad[place] ^= script.byte();
                    if script.byte() & 1 == 0 {
                        mad[17] = 0x10 + script.byte() % 12;
                    }
                }
                manager.handle_mad(now, to, from, &mad);
                datagrams += 1;
                None
            }
            _ => None,
        };
        let owner = if script.byte() == 1 { owner } else { of };
        if let Some(command) = command
            && let Ok(Answer::Bound { endpoint, port }) = manager.command(now, owner, command)
        {
            assert!(port >= 1024);
            endpoints.push((owner, endpoint));
        }
        let mut answers = 0;
        while let Some(transmit) = manager.poll_transmit() {
            assert!(Message::parse(&transmit.mad).is_ok(), "we send what can be read");
            assert!(manager.devices().any(|d| d == transmit.from), "and only from our devices");
            answers += 1;
            if sent.len() < 256 {
                sent.push(transmit);
            } else {
                sent[pick] = transmit;
            }
        }
        assert!(answers <= 2 * manager.endpoints() + 2);
        while let Some((owner, event)) = manager.poll_event() {
            if pending.len() < 64 {
                pending.push((event.endpoint, event.kind));
            }
            if endpoints.len() < 2 * MOST_OWNED && !endpoints.contains(&(owner, event.endpoint)) {
                endpoints.push((owner, event.endpoint));
            }
        }
        assert!(manager.endpoints() <= MOST_OWNED + 2 * datagrams + endpoints.len());
    }
    for owner in 0..OWNERS {
        manager.owner_gone(now, Owner(owner));
    }
    // Each phase without an owner ends by itself, in less than the longest that it takes to give up.
    for _ in 0..100_000 {
        if manager.deadline() == Instant::NEVER {
            break;
        }
        now = manager.deadline();
        manager.handle_timeout(now);
    }
    assert_eq!((manager.endpoints(), manager.ports(), manager.deadline()), (0, 0, Instant::NEVER));
    manager.counters()
}
