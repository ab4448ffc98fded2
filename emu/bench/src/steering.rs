//! Two processes on one address, whose packets the kernel steers by their QPN, against two processes with an address each.
//!
//! Both in turn, in one run: what counts is the ratio.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use urxe::config::Config;
use urxe::cq::Cq;
use urxe::device::{Device, Lease, QpInit, QueuePair};
use urxe::ids::{Gid, LKey, Mtu, Psn, Qpn, RKey};
use urxe::io::udp::group::Group;
use urxe::io::udp::{self, OpenError};
use urxe::mem::Access;
use urxe::verbs::*;

use crate::socket;

/// Bytes of a write of the stream.
const MESSAGE: usize = 64 << 10;
/// Writes that are under way.
const DEPTH: u64 = 128;
/// Who is not answered for so long gives up.
const PATIENCE: Duration = Duration::from_secs(10);

/// Prints one JSON line for each measurement: medians, and the median of the ratios of each round.
pub(crate) fn steering(rounds: u32, time: Duration) -> io::Result<()> {
    socket::pin(0);
    let mut own = Vec::new();
    let mut shared = Vec::new();
    for round in 0..rounds {
        // Whoever is first has no advantage of it.
        for is_shared in [round % 2 == 1, round % 2 == 0] {
            let measured = measure(is_shared, time)?;
            if is_shared { shared.push(measured) } else { own.push(measured) }
        }
    }
    let median = |mut values: Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    type Pick = fn(&Measured) -> f64;
    let picks: [(&str, &str, Pick); 2] = [
        ("steered_write_64KiB", "MB_per_s", |m| m.bytes_per_second / 1e6),
        ("steered_write_8B_ping_pong", "half_round_trip_us", |m| m.half_round_trip * 1e6),
    ];
    for (bench, unit, pick) in picks {
        let ratios = own.iter().zip(&shared).map(|(own, shared)| pick(shared) / pick(own)).collect();
        println!(
            r#"{{"bench":"{bench}","own_{unit}":{:.3},"shared_{unit}":{:.3},"ratio":{:.3}}}"#,
            median(own.iter().map(pick).collect()),
            median(shared.iter().map(pick).collect()),
            median(ratios)
        );
    }
    Ok(())
}

struct Measured {
    bytes_per_second: f64,
    half_round_trip: f64,
}

/// A device with a connected queue pair and memory.
struct Side {
    device: Device,
    cq: Arc<Cq>,
    qp: QueuePair,
    memory: Box<[AtomicU64]>,
    lkey: LKey,
    rkey: RKey,
}

impl Side {
    fn new(device: Device) -> io::Result<Self> {
        let pd = device.alloc_pd();
        let cq = device.create_cq(256, None);
        let caps =
            QpCaps { max_send_wr: 160, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 8 };
        let (send_cq, recv_cq) = (cq.clone(), cq.clone());
        let init =
            QpInit { kind: QpType::Rc, pd, send_cq, recv_cq, srq: None, caps, sig_all: true, events: None };
        let qp = device.create_qp(init).map_err(io::Error::other)?;
        let memory: Box<[AtomicU64]> = (0..MESSAGE / 8).map(|_| AtomicU64::new(0)).collect();
        let addr = memory.as_ptr() as u64;
        let keys = device
            .memory()
            .register(pd, addr, MESSAGE as u64, addr, Access(15))
            .map_err(|e| io::Error::other(format!("{e:?}")))?;
        Ok(Self { device, cq, qp, memory, lkey: keys.lkey, rkey: keys.rkey })
    }

    /// Number, key, memory and device, in words.
    fn describe(&self) -> String {
        let address = self.memory.as_ptr() as u64;
        format!("{} {} {address} {}\n", self.qp.number().0, self.rkey.0, self.device.port().ip)
    }

    /// Connects to who has described itself so, and returns its memory.
    fn connect(&self, peer: &str) -> io::Result<Remote> {
        let bad = || io::Error::other(format!("the other process says {peer:?}"));
        let words: Vec<&str> = peer.split_whitespace().collect();
        let [number, key, address, ip] = words[..] else { return Err(bad()) };
        let ip: IpAddr = ip.parse().map_err(|_| bad())?;
        let (number, key) = (number.parse().map_err(|_| bad())?, key.parse().map_err(|_| bad())?);
        let attr = QpAttr {
            port: 1,
            access: Access(15),
            path_mtu: Mtu::B4096,
            dest_qpn: Qpn(number),
            rq_psn: Psn::new(0),
            sq_psn: Psn::new(0),
            max_rd_atomic: 1,
            max_dest_rd_atomic: 1,
            min_rnr_timer: 12,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            av: AddressVector { dgid: Gid::from_ip(ip), is_global: true, port: 1, ..Default::default() },
            ..QpAttr::default()
        };
        use AttrMask as M;
        let steps = [
            (QpState::Init, &[M::STATE, M::PORT, M::PKEY_INDEX, M::ACCESS_FLAGS][..]),
            (
                QpState::Rtr,
                &[
                    M::STATE,
                    M::AV,
                    M::PATH_MTU,
                    M::DEST_QPN,
                    M::RQ_PSN,
                    M::MAX_DEST_RD_ATOMIC,
                    M::MIN_RNR_TIMER,
                ],
            ),
            (
                QpState::Rts,
                &[M::STATE, M::SQ_PSN, M::TIMEOUT, M::RETRY_CNT, M::RNR_RETRY, M::MAX_QP_RD_ATOMIC],
            ),
        ];
        for (state, mask) in steps {
            let mask = mask.iter().fold(AttrMask::default(), |all, &bit| all.with(bit));
            self.qp.modify(&QpAttr { state, ..attr }, mask).map_err(io::Error::other)?;
        }
        Ok(Remote { addr: address.parse().map_err(|_| bad())?, rkey: RKey(key) })
    }

    fn write(&self, to: Remote, len: usize) -> io::Result<()> {
        let sges = [Sge { addr: self.memory.as_ptr() as u64, len: len as u32, lkey: self.lkey }];
        let flags = if len <= 8 { SendFlags::INLINE } else { SendFlags::default() };
        let request = SendWr { id: 0, op: SendOp::Write(to), flags, sges: &sges, ud: None };
        self.qp.post_send([request]).map_err(|(_, e)| io::Error::other(e))
    }

    /// Completions that have come, as `ibv_poll_cq` looks for them.
    fn poll(&self) -> io::Result<u64> {
        let (mut good, mut bad) = (0, None);
        self.cq.poll_with(usize::MAX, |wc| match wc.status {
            WcStatus::Success => good += 1,
            _ => bad = Some(wc.status),
        });
        if good == 0 {
            self.device.poll();
        }
        bad.map_or(Ok(good), |status| Err(io::Error::other(format!("a write ended with {status:?}"))))
    }

    fn stream(&self, to: Remote, time: Duration) -> io::Result<f64> {
        let (mut under_way, mut done) = (0, 0u64);
        let start = Instant::now();
        let mut last = start;
        while start.elapsed() < time || under_way > 0 {
            while under_way < DEPTH && start.elapsed() < time {
                self.write(to, MESSAGE)?;
                under_way += 1;
            }
            let come = self.poll()?;
            (under_way, done) = (under_way - come, done + come);
            if come > 0 {
                last = Instant::now();
            } else if last.elapsed() > PATIENCE {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
        Ok((done * MESSAGE as u64) as f64 / last.duration_since(start).as_secs_f64())
    }

    /// Each writes a number into the other's last word, whoever begins.
    fn ping_pong(&self, to: Remote, begins: bool, mut more: impl FnMut(u64) -> bool) -> io::Result<u64> {
        /// What ends it.
        const END: u64 = u64::MAX;
        let here = &self.memory[MESSAGE / 8 - 1];
        let to = Remote { addr: to.addr + MESSAGE as u64 - 8, ..to };
        let (mut trips, mut under_way) = (0, 0);
        loop {
            let end = !more(trips);
            if begins {
                self.memory[0].store(if end { END } else { trips + 1 }, Ordering::Relaxed);
                self.write(to, 8)?;
                under_way += 1;
                if end {
                    break;
                }
            }
            let mut since = None;
            loop {
                let value = here.load(Ordering::Acquire);
                if value == trips + 1 {
                    break;
                }
                if value == END {
                    return Ok(trips);
                }
                under_way -= self.poll()?;
                let since = *since.get_or_insert_with(Instant::now);
                if since.elapsed() > PATIENCE {
                    return Err(io::ErrorKind::TimedOut.into());
                }
            }
            trips += 1;
            if !begins {
                self.memory[0].store(trips, Ordering::Relaxed);
                self.write(to, 8)?;
                under_way += 1;
            }
        }
        while under_way > 0 {
            under_way -= self.poll()?;
        }
        Ok(trips)
    }
}

/// Ends with the measurement.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn measure(shared: bool, time: Duration) -> io::Result<Measured> {
    let (ours, theirs) = UnixStream::pair()?;
    ours.set_read_timeout(Some(PATIENCE + time))?;
    let mut group = if shared { Some(open_group()?) } else { None };
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("steering-peer").stdin(OwnedFd::from(theirs));
    if let Some(group) = &mut group {
        command.arg("--slot").arg("2").stdout(group.socket(2)?);
    }
    let mut child = Running(command.spawn()?);
    drop(command);
    let device = match &mut group {
        Some(group) => {
            let lease = Lease { slot: 1, socket: group.socket(1)?, anchor: group.anchor()? };
            Device::open_member(&Config::default(), lease)
        }
        None => Device::open(&Config::default()),
    };
    let side = Side::new(device.map_err(io::Error::other)?)?;
    let mut stream = BufReader::new(ours);
    let mut line = String::new();
    let mut exchange = |text: &str| -> io::Result<String> {
        stream.get_mut().write_all(text.as_bytes())?;
        line.clear();
        stream.read_line(&mut line)?;
        Ok(line.clone())
    };
    let to = side.connect(&exchange(&side.describe())?)?;
    exchange("connected\n")?;
    let bytes_per_second = side.stream(to, time)?;
    exchange("ping\n")?;
    let start = Instant::now();
    // A look at the clock for each trip would be a part of it.
    let mut enough = false;
    let trips = side.ping_pong(to, true, |trips| {
        enough = enough || trips % 64 == 0 && start.elapsed() >= time;
        !enough
    })?;
    let half_round_trip = start.elapsed().as_secs_f64() / trips as f64 / 2.0;
    exchange("end\n")?;
    child.0.wait()?;
    Ok(Measured { bytes_per_second, half_round_trip })
}

/// The other process: its way to the first is its standard input, its socket, if it has a slot, its standard output.
pub(crate) fn peer(slot: Option<u8>) -> io::Result<()> {
    socket::end_with_parent();
    socket::pin(1);
    let device = match slot {
        Some(slot) => {
            let socket = io::stdout().as_fd().try_clone_to_owned()?;
            // The first process holds the anchor for both.
            let anchor = socket.try_clone()?;
            Device::open_member(&Config::default(), Lease { slot, socket, anchor })
        }
        None => Device::open(&Config::default()),
    };
    let side = Side::new(device.map_err(io::Error::other)?)?;
    let mut stream = BufReader::new(UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?));
    let mut line = || -> io::Result<(String, UnixStream)> {
        let mut line = String::new();
        if stream.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok((line, stream.get_ref().try_clone()?))
    };
    let (described, mut out) = line()?;
    out.write_all(side.describe().as_bytes())?;
    let to = side.connect(&described)?;
    line()?;
    out.write_all(b"connected\n")?;
    // While the stream comes in, this thread sleeps, as a server's that is only written to.
    line()?;
    side.memory[MESSAGE / 8 - 1].store(0, Ordering::Release);
    out.write_all(b"ping\n")?;
    side.ping_pong(to, false, |_| true)?;
    line()?;
    out.write_all(b"end\n")?;
    Ok(())
}

/// A group on a loopback address that is free.
fn open_group() -> io::Result<Group> {
    let mut last = None;
    for low in 1..=250 {
        let ip = Ipv4Addr::new(127, 1, 77, low);
        match Group::open(&udp::Config { ..udp::Config::new(ip.into()) }) {
            Err(e @ OpenError::AddressInUse { .. }) => last = Some(e),
            other => return other.map_err(io::Error::other),
        }
    }
    Err(io::Error::other(last.map_or_else(String::new, |e| e.to_string())))
}
