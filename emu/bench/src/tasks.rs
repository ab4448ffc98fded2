//! What it costs and brings where tasks run: every mode, some numbers of queue pairs, latency, bandwidth, message rate
//! and page faults, all in one run.
//!
//! Each end is a process. Nothing is pinned: where threads run is part of what is measured.

use std::io::{self, BufRead, Write};
use std::net::IpAddr;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use urxe::config::{Config, Source};
use urxe::cq::Cq;
use urxe::device::{Device, QpInit, QueuePair};
use urxe::ids::{LKey, Qpn, RKey};
use urxe::verbs::{QpCaps, QpType, RecvWr, Remote, SendFlags, SendOp, SendWr, Sge, WcOpcode, WcStatus};

use crate::paging::{Map, PAGE, PAGED, PINNED};
use crate::{memory, socket};

const MODES: [&str; 3] = ["inline", "workqueue", "auto"];
const BYTES: u32 = 65_536;
/// Requests under way, of all queue pairs together but at least one each.
const DEPTH: usize = 64;

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    /// A ping-pong on each queue pair, all at once.
    Latency,
    Bandwidth,
    Rate,
    /// Writes to memory that is paged on demand, of which so many in a hundred are the first to a page.
    Faults(usize),
}

const ALL: [(What, &str); 6] = [
    (What::Latency, "2 B SEND, round trip (us)"),
    (What::Bandwidth, "64 KiB WRITE (MB/s)"),
    (What::Rate, "8 B WRITE (million/s)"),
    (What::Faults(0), "4 KiB WRITE, 0 % page faults (million/s)"),
    (What::Faults(1), "4 KiB WRITE, 1 % page faults (million/s)"),
    (What::Faults(100), "4 KiB WRITE, 100 % page faults (million/s)"),
];

impl What {
    /// As the other process is told.
    fn role(self) -> Role {
        match self {
            Self::Latency => Role::Echo,
            Self::Bandwidth | Self::Rate => Role::Pinned,
            Self::Faults(_) => Role::Paged,
        }
    }
}

/// What the other process does.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Role {
    /// Answers.
    Echo,
    /// Leaves everything to its device.
    Pinned,
    /// So too, and its memory is paged on demand.
    Paged,
}

impl Role {
    fn name(self) -> String {
        clap::ValueEnum::to_possible_value(&self).map_or_else(String::new, |v| v.get_name().to_owned())
    }
}

/// Pages of the target that are written to again and again; the ones behind them are for first writes.
const WARM: usize = 64;
/// Enough first writes for a measurement of a second.
const FRESH: usize = 1 << 18;

/// Which page of the target each write goes to.
struct Pages {
    percent: usize,
    writes: usize,
    fresh: usize,
}

impl Pages {
    fn next(&mut self) -> usize {
        self.writes += 1;
        if (self.writes * self.percent) % 100 < self.percent && self.fresh < FRESH {
            self.fresh += 1;
            return WARM + self.fresh - 1;
        }
        self.writes % WARM
    }
}

/// What a round has given.
#[derive(Clone, Copy)]
struct Sample {
    value: f64,
    /// Time of a message that 99 of 100 are below, in us.
    p99: f64,
    /// CPU time of both processes for a message, in us.
    cpu: f64,
}

pub(crate) fn tasks(rounds: u32, time: Duration, connections: &[usize]) -> io::Result<()> {
    println!("| measurement | queue pairs | mode | median | p99 of a message (us) | CPU of a message (us) |");
    println!("| --- | --- | --- | --- | --- | --- |");
    for (what, name) in ALL {
        for &count in connections {
            let mut samples: [Vec<Sample>; 3] = Default::default();
            for _ in 0..rounds {
                for (mode, samples) in MODES.iter().zip(&mut samples) {
                    samples.push(measure(mode, what, count, time)?);
                }
            }
            for (mode, samples) in MODES.iter().zip(&samples) {
                let median = |of: fn(&Sample) -> f64| {
                    let mut all: Vec<f64> = samples.iter().map(of).collect();
                    all.sort_by(f64::total_cmp);
                    all[all.len() / 2]
                };
                let (value, p99, cpu) = (median(|s| s.value), median(|s| s.p99), median(|s| s.cpu));
                println!("| {name} | {count} | {mode} | {value:.2} | {p99:.1} | {cpu:.2} |");
            }
        }
    }
    Ok(())
}

/// One end: its device and connected queue pairs.
struct End {
    device: Device,
    cq: Arc<Cq>,
    qps: Vec<QueuePair>,
    memory: Map,
    lkey: LKey,
    rkey: RKey,
}

fn other(error: impl ToString) -> io::Error {
    io::Error::other(error.to_string())
}

impl End {
    fn new(mode: &str, count: usize, role: Role) -> io::Result<Self> {
        let mut config = Config::default();
        config.set("tasks", mode, Source::Default).map_err(other)?;
        let device = Device::open(&config).map_err(other)?;
        let pd = device.alloc_pd();
        let cq = device.create_cq((count * 2 * DEPTH) as u32, None);
        let caps = QpCaps {
            max_send_wr: DEPTH as u32,
            max_recv_wr: 4,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 64,
        };
        let qps = (0..count).map(|_| {
            device.create_qp(QpInit {
                kind: QpType::Rc,
                pd,
                send_cq: cq.clone(),
                recv_cq: cq.clone(),
                srq: None,
                caps,
                sig_all: true,
                events: None,
            })
        });
        let qps = qps.collect::<Result<Vec<_>, _>>().map_err(other)?;
        let (len, access) = match role {
            Role::Paged => ((WARM + FRESH) * PAGE, PAGED),
            _ => (BYTES as usize, PINNED),
        };
        let memory = Map::new(len)?;
        let (addr, len) = (memory.addr(), memory.len());
        let keys = device.memory().register(pd, addr, len, addr, access).map_err(other)?;
        Ok(Self { device, cq, qps, memory, lkey: keys.lkey, rkey: keys.rkey })
    }

    fn addr(&self) -> u64 {
        self.memory.addr()
    }

    /// What the peer has to know, on one line.
    fn describe(&self) -> String {
        let qpns: Vec<_> = self.qps.iter().map(|qp| qp.number().0.to_string()).collect();
        format!("{} {} {} {}", self.device.port().ip, self.addr(), self.rkey.0, qpns.join(" "))
    }

    /// Connects to what a peer has said, and returns its memory.
    fn connect(&self, line: &str) -> io::Result<Remote> {
        let bad = || other("the other process ended early");
        let mut words = line.split_whitespace();
        let ip: IpAddr = words.next().and_then(|w| w.parse().ok()).ok_or_else(bad)?;
        let mut number = || words.next().and_then(|w| w.parse::<u64>().ok()).ok_or_else(bad);
        let (addr, rkey) = (number()?, number()?);
        for qp in &self.qps {
            memory::connect(qp, ip, Qpn(number()? as u32)).map_err(other)?;
            self.receive(qp)?;
        }
        Ok(Remote { addr, rkey: RKey(rkey as u32) })
    }

    /// Posts a receive. The two bytes of a ping may overwrite anything.
    fn receive(&self, qp: &QueuePair) -> io::Result<()> {
        let sges = [Sge { addr: self.addr(), len: 2, lkey: self.lkey }];
        qp.post_recv(&RecvWr { id: 0, sges: &sges }).map_err(other)
    }

    fn post(&self, index: usize, op: SendOp, len: u32) -> io::Result<()> {
        let sges = [Sge { addr: self.addr(), len, lkey: self.lkey }];
        let inline = if len <= 64 { SendFlags::INLINE } else { SendFlags::default() };
        let wr = SendWr { id: index as u64, op, flags: inline, sges: &sges, ud: None };
        self.qps[index].post_send([wr]).map_err(|(_, error)| other(error))
    }

    /// Lets the pages that are written to again and again be present at the target.
    fn warm(&self, remote: Remote) -> io::Result<()> {
        for page in 0..WARM {
            let remote = Remote { addr: remote.addr + (page * PAGE) as u64, ..remote };
            self.post(0, SendOp::Write(remote), 8)?;
            let mut done = 0;
            while done == 0 {
                self.device.poll();
                self.cq.poll_with(1, |_| done += 1);
            }
        }
        Ok(())
    }

    fn index(&self, qpn: Qpn) -> usize {
        self.qps.iter().position(|qp| qp.number() == qpn).unwrap_or(0)
    }
}

/// The other process.
struct Peer {
    child: Child,
    input: ChildStdin,
    lines: io::Lines<io::BufReader<std::process::ChildStdout>>,
}

impl Peer {
    fn start(mode: &str, what: What, count: usize) -> io::Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["tasks-peer", mode, &what.role().name(), &count.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let (input, output) = input.zip(output).ok_or(io::ErrorKind::BrokenPipe)?;
        Ok(Self { child, input, lines: io::BufReader::new(output).lines() })
    }

    fn line(&mut self) -> io::Result<String> {
        self.lines.next().ok_or_else(|| other("the other process ended early"))?
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn measure(mode: &str, what: What, count: usize, time: Duration) -> io::Result<Sample> {
    let mut peer = Peer::start(mode, what, count)?;
    let end = End::new(mode, count, Role::Pinned)?;
    let remote = end.connect(&peer.line()?)?;
    writeln!(peer.input, "{}", end.describe())?;
    peer.line()?;

    let (len, op) = match what {
        What::Latency => (2, SendOp::Send),
        What::Bandwidth => (BYTES, SendOp::Write(remote)),
        What::Rate => (8, SendOp::Write(remote)),
        What::Faults(_) => (PAGE as u32, SendOp::Write(remote)),
    };
    let mut pages = match what {
        What::Faults(percent) => Some(Pages { percent, writes: 0, fresh: 0 }),
        _ => None,
    };
    let mut post = |index| {
        let op = pages.as_mut().map_or(op, |pages| {
            SendOp::Write(Remote { addr: remote.addr + (pages.next() * PAGE) as u64, ..remote })
        });
        end.post(index, op, len)
    };
    if what.role() == Role::Paged {
        end.warm(remote)?;
    }
    // A request is over with its completion, or, in a ping-pong, with the answer.
    let over = if what == What::Latency { WcOpcode::Recv } else { WcOpcode::RdmaWrite };
    let depth = if what == What::Latency { 1 } else { (DEPTH / count).max(1) };
    let mut posted: Vec<std::collections::VecDeque<Instant>> = vec![Default::default(); count];
    let mut times: Vec<u32> = Vec::new();
    let (start, cpu) = (Instant::now(), socket::cpu_time());
    for (index, posted) in posted.iter_mut().enumerate() {
        for _ in 0..depth {
            posted.push_back(Instant::now());
            post(index)?;
        }
    }
    let mut open = count * depth;
    let mut done = Vec::new();
    while open > 0 {
        end.cq.poll_with(64, |wc| done.push(wc));
        if done.is_empty() {
            end.device.poll();
            if start.elapsed() > time + Duration::from_secs(20) {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
        let more = start.elapsed() < time;
        for wc in done.drain(..) {
            if wc.status != WcStatus::Success {
                return Err(other(format!("{wc:?}")));
            }
            if wc.opcode != over {
                continue;
            }
            let index = end.index(wc.qpn);
            let now = Instant::now();
            let since = posted[index].pop_front().unwrap_or(now);
            times.push((now - since).as_nanos().min(u32::MAX.into()) as u32);
            if what == What::Latency {
                end.receive(&end.qps[index])?;
            }
            if more {
                posted[index].push_back(now);
                post(index)?;
            } else {
                open -= 1;
            }
        }
    }
    let (spent, cpu) = (start.elapsed(), socket::cpu_time() - cpu);
    writeln!(peer.input)?;
    let of_peer: u64 = peer.line()?.trim().parse().map_err(other)?;
    times.sort_unstable();
    let messages = times.len() as f64;
    let at = |share: f64| f64::from(times[((messages * share) as usize).min(times.len() - 1)]) / 1e3;
    let seconds = spent.as_secs_f64();
    Ok(Sample {
        value: match what {
            What::Latency => at(0.5),
            What::Bandwidth => messages * f64::from(BYTES) / seconds / 1e6,
            What::Rate | What::Faults(_) => messages / seconds / 1e6,
        },
        p99: at(0.99),
        cpu: (cpu.as_nanos() as u64 + of_peer) as f64 / messages / 1e3,
    })
}

/// The other process: answers what comes, or leaves everything to its device.
pub(crate) fn peer(mode: &str, role: Role, count: usize) -> io::Result<()> {
    socket::end_with_parent();
    let end = End::new(mode, count, role)?;
    println!("{}", end.describe());
    let mut line = String::new();
    io::stdin().read_line(&mut line)?;
    end.connect(&line)?;
    println!("ready");
    let cpu = socket::cpu_time();
    let over = std::thread::spawn(|| io::stdin().read_line(&mut String::new()).map(|_| ()));
    while role == Role::Echo && !over.is_finished() {
        let mut done = Vec::new();
        end.cq.poll_with(64, |wc| done.push(wc));
        if done.is_empty() {
            end.device.poll();
        }
        for wc in done.into_iter().filter(|wc| wc.opcode == WcOpcode::Recv && wc.status == WcStatus::Success)
        {
            let index = end.index(wc.qpn);
            end.receive(&end.qps[index])?;
            end.post(index, SendOp::Send, 2)?;
        }
    }
    over.join().map_err(|_| other("reading failed"))??;
    println!("{}", (socket::cpu_time() - cpu).as_nanos());
    Ok(())
}
