//! Hosts with a connection manager each, on a network that loses, repeats and delays, in virtual time.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use urxe::cm::message::Message;
use urxe::cm::{
    Addresses, Answer, Command, Ece, Endpoint, EventKind, Manager, Owner, Parameters, PathFacts, PortSpace,
    Refused, Transmit, Transport,
};
use urxe::time::Instant;

#[path = "../sim/harness.rs"]
#[allow(dead_code)]
mod sim;
pub(crate) use sim::{MS, Rng, SECOND, SEED_VARIABLE, US, seeds};

/// The port that servers listen on.
pub(crate) const PORT: u16 = 7174;

/// What happens to a datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fate {
    Arrives,
    Lost,
    Twice,
}

/// The device of host `n`.
pub(crate) fn device(n: usize) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, n as u8 + 1).into()
}

pub(crate) fn name(message: &Message) -> &'static str {
    match message {
        Message::Req(_) => "REQ",
        Message::Mra(_) => "MRA",
        Message::Rej(_) => "REJ",
        Message::Rep(_) => "REP",
        Message::Rtu(_) => "RTU",
        Message::Dreq(_) => "DREQ",
        Message::Drep(_) => "DREP",
        Message::SidrReq(_) => "SIDR_REQ",
        Message::SidrRep(_) => "SIDR_REP",
        Message::AlternatePath => "LAP",
    }
}

pub(crate) fn parameters(qpn: u32) -> Parameters {
    Parameters {
        qpn,
        psn: qpn ^ 0x5a5a5a,
        responder_resources: 4,
        initiator_depth: 3,
        flow_control: false,
        retry_count: 7,
        rnr_retry_count: 6,
        srq: false,
        ece: Ece::default(),
        private_data: vec![1, 2, 3],
    }
}

pub(crate) const PATH: PathFacts =
    PathFacts { mtu: 5, ack_timeout: 14, flow_label: 0x12345, traffic_class: 8, hop_limit: 64, sl: 0 };

type Decide = Box<dyn FnMut(&Transmit, &Message) -> Fate>;

pub(crate) struct Net {
    pub(crate) now: Instant,
    pub(crate) hosts: Vec<Manager>,
    pub(crate) decide: Decide,
    /// Delay of a datagram, at random between these.
    pub(crate) delay: (u64, u64),
    pub(crate) rng: Rng,
    /// Everything that was sent, as "1>2 REQ", with "lost" behind it if it was.
    pub(crate) trace: Vec<String>,
    /// Events that nobody has looked at yet.
    pub(crate) events: Vec<(usize, Owner, Endpoint, EventKind)>,
    flying: BTreeMap<(Instant, u64), Transmit>,
    sent: u64,
}

impl Net {
    /// `n` hosts with one device each.
    pub(crate) fn new(n: usize, seed: u64) -> Self {
        let hosts = (0..n)
            .map(|i| {
                let mut manager = Manager::new(seed.wrapping_add(i as u64), 1024);
                manager.add_device(device(i));
                manager
            })
            .collect();
        Self {
            now: Instant(SECOND),
            hosts,
            decide: Box::new(|_, _| Fate::Arrives),
            delay: (10 * US, 10 * US),
            rng: Rng(seed),
            trace: Vec::new(),
            events: Vec::new(),
            flying: BTreeMap::new(),
            sent: 0,
        }
    }

    /// Loses and repeats so many in a hundred, and lets datagrams overtake one another.
    pub(crate) fn disturb(&mut self, loss: u64, twice: u64) {
        let mut rng = Rng(self.rng.next());
        self.decide = Box::new(move |_, _| {
            if rng.percent(loss) {
                Fate::Lost
            } else if rng.percent(twice) {
                Fate::Twice
            } else {
                Fate::Arrives
            }
        });
        self.delay = (10 * US, 5 * MS);
    }

    pub(crate) fn command(&mut self, host: usize, owner: u64, command: Command) -> Result<Answer, Refused> {
        let answer = self.hosts[host].command(self.now, Owner(owner), command);
        self.collect();
        answer
    }

    /// A command that has to work.
    pub(crate) fn run(&mut self, host: usize, owner: u64, command: Command) {
        assert_eq!(self.command(host, owner, command), Ok(Answer::Done));
    }

    pub(crate) fn bind(&mut self, host: usize, owner: u64, space: PortSpace, port: u16) -> Endpoint {
        let command = Command::Bind {
            space,
            address: SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port),
            devices: vec![device(host)],
            reuse: false,
            v6_only: false,
        };
        match self.command(host, owner, command) {
            Ok(Answer::Bound { endpoint, .. }) => endpoint,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn listen(&mut self, host: usize, owner: u64, space: PortSpace, port: u16) -> Endpoint {
        let endpoint = self.bind(host, owner, space, port);
        self.run(host, owner, Command::Listen { endpoint, backlog: 0 });
        endpoint
    }

    pub(crate) fn connect(&mut self, from: usize, owner: u64, to: usize, qpn: u32) -> Endpoint {
        let endpoint = self.bind(from, owner, PortSpace::Tcp, 0);
        let connect = Command::Connect {
            endpoint,
            addresses: addresses(from, to),
            transport: Transport::Rc,
            parameters: parameters(qpn),
            path: PATH,
        };
        self.run(from, owner, connect);
        endpoint
    }

    pub(crate) fn kill(&mut self, host: usize, owner: u64) {
        self.hosts[host].owner_gone(self.now, Owner(owner));
        self.collect();
    }

    /// Takes what the managers want to send and to tell.
    pub(crate) fn collect(&mut self) {
        for (host, manager) in self.hosts.iter_mut().enumerate() {
            while let Some(transmit) = manager.poll_transmit() {
                let (_, message) = Message::parse(&transmit.mad).expect("we send what can be read");
                let fate = (self.decide)(&transmit, &message);
                let last = |ip: IpAddr| ip.to_string().rsplit(['.', ':']).next().unwrap().to_owned();
                let lost = if fate == Fate::Lost { " lost" } else { "" };
                self.trace.push(format!(
                    "{}>{} {}{lost}",
                    last(transmit.from),
                    last(transmit.to),
                    name(&message)
                ));
                let copies = match fate {
                    Fate::Arrives => 1,
                    Fate::Lost => 0,
                    Fate::Twice => 2,
                };
                for _ in 0..copies {
                    let (least, most) = self.delay;
                    let at = self.now.plus(least + self.rng.below(most - least + 1));
                    self.sent += 1;
                    self.flying.insert((at, self.sent), transmit.clone());
                }
            }
            while let Some((owner, event)) = manager.poll_event() {
                self.events.push((host, owner, event.endpoint, event.kind));
            }
        }
    }

    /// When the next thing happens.
    fn next(&self) -> Instant {
        let flying = self.flying.keys().next().map_or(Instant::NEVER, |(at, _)| *at);
        self.hosts.iter().map(Manager::deadline).min().unwrap_or(Instant::NEVER).min(flying)
    }

    /// Lets one thing happen, if it happens until `end`.
    pub(crate) fn step(&mut self, end: Instant) -> bool {
        let next = self.next();
        if next > end || next == Instant::NEVER {
            return false;
        }
        self.now = self.now.max(next);
        if let Some((&(at, number), _)) = self.flying.iter().next()
            && at <= self.now
        {
            let transmit = self.flying.remove(&(at, number)).unwrap();
            for host in &mut self.hosts {
                if host.devices().any(|d| d == transmit.to) {
                    host.handle_mad(self.now, transmit.to, transmit.from, &transmit.mad);
                }
            }
        } else {
            for host in &mut self.hosts {
                if host.deadline() <= self.now {
                    host.handle_timeout(self.now);
                }
            }
        }
        self.collect();
        true
    }

    /// Time passes; nobody looks at the events.
    pub(crate) fn pass(&mut self, time: u64) {
        let end = self.now.plus(time);
        while self.step(end) {}
        self.now = self.now.max(end);
    }

    /// The events so far, without their owners.
    pub(crate) fn take(&mut self) -> Vec<(usize, Endpoint, EventKind)> {
        self.events.drain(..).map(|(host, _, endpoint, kind)| (host, endpoint, kind)).collect()
    }

    /// The only event so far.
    pub(crate) fn only(&mut self) -> (usize, Endpoint, EventKind) {
        let mut events = self.take();
        assert_eq!(events.len(), 1, "{events:?}\n{:#?}", self.trace);
        events.remove(0)
    }

    pub(crate) fn trace(&mut self) -> Vec<String> {
        std::mem::take(&mut self.trace)
    }

    /// Time passes, and programs do what is expected of them: servers accept, clients establish, everybody
    /// disconnects who is told of it, and destroys what is over. Gives the events.
    pub(crate) fn serve(&mut self, time: u64) -> Vec<(usize, Endpoint, EventKind)> {
        let end = self.now.plus(time);
        let mut seen = Vec::new();
        loop {
            while let Some((host, owner, endpoint, kind)) = self.events.pop() {
                let command = match &kind {
                    EventKind::Request { parameters, .. } => {
                        Command::Accept { endpoint, parameters: self::parameters(parameters.qpn + 1) }
                    }
                    EventKind::ServiceRequest { .. } => Command::AcceptService {
                        endpoint,
                        qpn: 77,
                        qkey: 88,
                        ece: Ece::default(),
                        private_data: vec![9],
                    },
                    EventKind::Response { .. } => Command::Establish { endpoint },
                    EventKind::Disconnected { .. } => Command::Disconnect { endpoint },
                    EventKind::TimewaitExit
                    | EventKind::Rejected { .. }
                    | EventKind::Unreachable
                    | EventKind::ServiceResolved { .. } => Command::Destroy { endpoint },
                    EventKind::Established { .. } => {
                        seen.push((host, endpoint, kind));
                        continue;
                    }
                };
                // It may have changed since the event was made, for example by a disconnect.
                let _ = self.command(host, owner.0, command);
                seen.push((host, endpoint, kind));
            }
            if !self.step(end) {
                self.now = self.now.max(end);
                return seen;
            }
        }
    }

    pub(crate) fn endpoints(&self) -> usize {
        self.hosts.iter().map(Manager::endpoints).sum()
    }
}

pub(crate) fn addresses(from: usize, to: usize) -> Addresses {
    Addresses {
        local: SocketAddr::new(device(from), 0),
        peer: SocketAddr::new(device(to), PORT),
        local_device: device(from),
        peer_device: device(to),
    }
}
