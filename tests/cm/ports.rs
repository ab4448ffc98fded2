//! Who gets which port, and who hears a request.

use std::net::{IpAddr, SocketAddr};

use urxe::cm::message::reason;
use urxe::cm::{
    Addresses, Answer, Command, Endpoint, EventKind, Manager, Owner, PortSpace, Refused, Transport,
};
use urxe::time::Instant;

use crate::harness::{PATH, parameters};

const NOW: Instant = Instant(1);

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// One daemon, four devices: two emulated machines of two rails each; IPv6 on a fifth.
struct Host(Manager);

const ONE: &[&str] = &["127.0.1.1", "127.0.1.2"];
const TWO: &[&str] = &["127.0.1.3", "127.0.1.4"];
const SIX: &[&str] = &["127.0.1.1", "fd00::1"];

impl Host {
    fn new(seed: u64) -> Self {
        let mut manager = Manager::new(seed, 1024);
        for device in ONE.iter().chain(TWO).chain(SIX) {
            manager.add_device(ip(device));
        }
        Self(manager)
    }

    fn bind_with(
        &mut self,
        address: &str,
        devices: &[&str],
        reuse: bool,
        v6_only: bool,
    ) -> Result<(Endpoint, u16), Refused> {
        let command = Command::Bind {
            space: PortSpace::Tcp,
            address: address.parse().unwrap(),
            devices: devices.iter().map(|d| ip(d)).collect(),
            reuse,
            v6_only,
        };
        match self.0.command(NOW, Owner(1), command)? {
            Answer::Bound { endpoint, port } => Ok((endpoint, port)),
            Answer::Done => panic!(),
        }
    }

    fn bind(&mut self, address: &str, devices: &[&str]) -> Result<(Endpoint, u16), Refused> {
        self.bind_with(address, devices, false, false)
    }

    fn listen(&mut self, endpoint: Endpoint) -> Result<Answer, Refused> {
        self.0.command(NOW, Owner(1), Command::Listen { endpoint, backlog: 0 })
    }

    /// Who hears a request that comes to `device` for `destination`.
    fn hears(&mut self, device: &str, destination: &str) -> Result<Endpoint, u16> {
        let from = if device.contains(':') { "fd00::1" } else { "127.0.1.4" };
        let source = if destination.starts_with('[') { "[fd00::1]:0" } else { "127.0.1.4:0" };
        let (endpoint, _) = self.bind(source, &[from]).unwrap();
        let connect = Command::Connect {
            endpoint,
            addresses: Addresses {
                local: source.parse().unwrap(),
                peer: destination.parse().unwrap(),
                local_device: ip(from),
                peer_device: ip(device),
            },
            transport: Transport::Rc,
            parameters: parameters(0),
            path: PATH,
        };
        assert_eq!(self.0.command(NOW, Owner(1), connect), Ok(Answer::Done));
        let mut heard = None;
        while let Some(transmit) = self.0.poll_transmit() {
            self.0.handle_mad(NOW, transmit.to, transmit.from, &transmit.mad);
        }
        while let Some((_, event)) = self.0.poll_event() {
            heard = Some(match event.kind {
                EventKind::Request { listener, addresses, .. } => {
                    assert_eq!(addresses.local, destination.parse::<SocketAddr>().unwrap());
                    Ok(listener)
                }
                EventKind::Rejected { reason, .. } => Err(reason),
                other => panic!("{other:?}"),
            });
        }
        heard.unwrap()
    }
}

const UNHEARD: Result<Endpoint, u16> = Err(reason::INVALID_SERVICE);

#[test]
fn the_same_port_on_different_machines_is_two_ports() {
    let mut host = Host::new(1);
    let (one, _) = host.bind("0.0.0.0:5000", ONE).unwrap();
    assert_eq!(host.bind("0.0.0.0:5000", ONE), Err(Refused::AddressInUse));
    assert_eq!(host.bind("127.0.1.2:5000", &["127.0.1.2"]), Err(Refused::AddressInUse));
    let (two, _) = host.bind("0.0.0.0:5000", TWO).unwrap();
    host.listen(one).unwrap();
    host.listen(two).unwrap();
    assert_eq!(host.hears("127.0.1.2", "127.0.1.2:5000"), Ok(one));
    assert_eq!(host.hears("127.0.1.3", "127.0.1.3:5000"), Ok(two));
    assert_eq!(host.hears("127.0.1.3", "127.0.1.3:5001"), UNHEARD);
    // It is free again as soon as it is given back.
    host.0.command(NOW, Owner(1), Command::Destroy { endpoint: one }).unwrap();
    assert_eq!(host.hears("127.0.1.2", "127.0.1.2:5000"), UNHEARD);
    host.bind("127.0.1.2:5000", &["127.0.1.2"]).unwrap();
}

#[test]
fn different_addresses_of_a_machine_may_have_the_same_port() {
    let mut host = Host::new(2);
    let (first, _) = host.bind("127.0.1.1:5000", &["127.0.1.1"]).unwrap();
    let (second, _) = host.bind("127.0.1.2:5000", &["127.0.1.2"]).unwrap();
    assert_eq!(host.bind("0.0.0.0:5000", ONE), Err(Refused::AddressInUse));
    host.listen(first).unwrap();
    assert_eq!(host.hears("127.0.1.2", "127.0.1.2:5000"), UNHEARD, "bound, but does not listen");
    host.listen(second).unwrap();
    assert_eq!(host.hears("127.0.1.2", "127.0.1.2:5000"), Ok(second));
}

#[test]
fn an_address_that_is_no_device_hears_what_is_for_it_alone() {
    let mut host = Host::new(3);
    let (alias, _) = host.bind("127.0.0.1:5000", ONE).unwrap();
    host.listen(alias).unwrap();
    assert_eq!(host.hears("127.0.1.1", "127.0.0.1:5000"), Ok(alias));
    assert_eq!(host.hears("127.0.1.2", "127.0.0.1:5000"), Ok(alias));
    assert_eq!(host.hears("127.0.1.1", "127.0.1.1:5000"), UNHEARD);
    assert_eq!(host.hears("127.0.1.3", "127.0.0.1:5000"), UNHEARD, "another machine's device");
}

#[test]
fn all_addresses_of_ipv6_are_those_of_ipv4_too_unless_said_otherwise() {
    let mut host = Host::new(4);
    let (both, _) = host.bind("[::]:5000", SIX).unwrap();
    host.listen(both).unwrap();
    assert_eq!(host.bind("0.0.0.0:5000", SIX), Err(Refused::AddressInUse));
    assert_eq!(host.hears("127.0.1.1", "127.0.1.1:5000"), Ok(both));
    assert_eq!(host.hears("fd00::1", "[fd00::1]:5000"), Ok(both));

    let (six, _) = host.bind_with("[::]:5001", SIX, false, true).unwrap();
    host.listen(six).unwrap();
    assert_eq!(host.hears("127.0.1.1", "127.0.1.1:5001"), UNHEARD);
    let (four, _) = host.bind("0.0.0.0:5001", SIX).unwrap();
    host.listen(four).unwrap();
    assert_eq!(host.hears("127.0.1.1", "127.0.1.1:5001"), Ok(four));
    assert_eq!(host.hears("fd00::1", "[fd00::1]:5001"), Ok(six));
}

#[test]
fn a_shared_port_has_one_listener() {
    let mut host = Host::new(5);
    let (first, _) = host.bind_with("0.0.0.0:5000", ONE, true, false).unwrap();
    assert_eq!(host.bind("0.0.0.0:5000", ONE), Err(Refused::AddressInUse));
    let (second, _) = host.bind_with("0.0.0.0:5000", ONE, true, false).unwrap();
    host.listen(second).unwrap();
    assert_eq!(host.listen(first), Err(Refused::AddressInUse));
    assert_eq!(host.bind_with("0.0.0.0:5000", ONE, true, false), Err(Refused::AddressInUse));
    assert_eq!(host.hears("127.0.1.1", "127.0.1.1:5000"), Ok(second));
}

#[test]
fn port_spaces_have_nothing_to_do_with_each_other() {
    let mut host = Host::new(6);
    for space in [PortSpace::Tcp, PortSpace::Udp, PortSpace::Ib] {
        let command = Command::Bind {
            space,
            address: "0.0.0.0:5000".parse().unwrap(),
            devices: vec![ip("127.0.1.1")],
            reuse: false,
            v6_only: false,
        };
        assert!(host.0.command(NOW, Owner(1), command.clone()).is_ok());
        assert_eq!(host.0.command(NOW, Owner(1), command), Err(Refused::AddressInUse));
    }
}

#[test]
fn ports_of_root_and_devices_of_others_are_refused() {
    let mut host = Host::new(7);
    assert_eq!(host.bind("0.0.0.0:1023", ONE), Err(Refused::PortNotPermitted));
    assert!(host.bind("0.0.0.0:1024", ONE).is_ok());
    assert_eq!(host.bind("0.0.0.0:1025", &[]), Err(Refused::NotLocal));
    assert_eq!(host.bind("10.0.0.1:1025", &["10.0.0.1"]), Err(Refused::NotLocal));
    let mut root = Manager::new(7, 0);
    root.add_device(ip("10.0.0.1"));
    let command = Command::Bind {
        space: PortSpace::Tcp,
        address: "0.0.0.0:1".parse().unwrap(),
        devices: vec![ip("10.0.0.1")],
        reuse: false,
        v6_only: false,
    };
    assert!(root.command(NOW, Owner(1), command).is_ok());
}

#[test]
fn free_ports_are_given_out_to_the_last_one_in_an_order_that_depends_on_the_seed() {
    let mut host = Host::new(8);
    let first: Vec<u16> = (0..8).map(|_| host.bind("0.0.0.0:0", ONE).unwrap().1).collect();
    let mut other = Host::new(9);
    let second: Vec<u16> = (0..8).map(|_| other.bind("0.0.0.0:0", ONE).unwrap().1).collect();
    assert_ne!(first, second);
    assert!(first.windows(2).any(|w| w[1] != w[0] + 1));

    let mut all: std::collections::BTreeSet<u16> = first.into_iter().collect();
    while let Ok((_, port)) = host.bind("0.0.0.0:0", ONE) {
        assert!((32768..=60999).contains(&port));
        assert!(all.insert(port), "{port} twice");
    }
    assert_eq!(all.len(), 60999 - 32768 + 1);
    assert_eq!(host.bind("0.0.0.0:0", ONE), Err(Refused::NoFreePort));
    assert!(host.bind("0.0.0.0:0", TWO).is_ok(), "another machine has its own");
}

#[test]
fn the_limits_of_an_owner_do_not_hit_others() {
    let mut host = Host::new(10);
    let mut bound = 0;
    let refusal = loop {
        let (reuse, port) = (true, 2000 + bound % 50_000);
        match host.bind_with(&format!("0.0.0.0:{port}"), ONE, reuse, false) {
            Ok(_) => bound += 1,
            Err(refusal) => break refusal,
        }
    };
    assert_eq!((refusal, bound), (Refused::Limit, urxe::cm::manager::MAX_OWNED));
    let command = Command::Bind {
        space: PortSpace::Tcp,
        address: "0.0.0.0:60000".parse().unwrap(),
        devices: vec![ip("127.0.1.3")],
        reuse: false,
        v6_only: false,
    };
    assert!(host.0.command(NOW, Owner(2), command).is_ok());
    host.0.owner_gone(NOW, Owner(1));
    assert_eq!((host.0.endpoints(), host.0.ports()), (1, 1));
}
