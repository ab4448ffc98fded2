//! Measures the device and what it is compared with. `urxe-bench compare` runs perftest over urxe beside the raw socket and
//! prints their ratios. `urxe-bench raw` prints one JSON line for each measurement over plain UDP
//! sockets on loopback: a stream with segmentation offload, and a ping-pong where both sides spin. `urxe-bench steering`
//! compares processes that share an address with processes that have one each.
//!
//! Each side is a process of its own with one thread, pinned as perftest is: the first to CPU 0, its peer to CPU 1.

use std::io::{self, BufRead, BufReader};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use clap::{Parser, Subcommand};

mod compare;
mod memory;
mod paging;
mod socket;
mod steering;
mod study;
mod tasks;
use socket::Socket;

#[derive(Parser)]
#[command(version, about = "Measures what the device is compared with")]
struct Arguments {
    #[command(subcommand)]
    command: Bench,
}

#[derive(Subcommand)]
enum Bench {
    /// perftest over urxe beside plain UDP sockets, as a table of ratios
    Compare {
        /// Rounds; the median is printed
        #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
        rounds: u32,
        /// File between whose marks the table is put
        #[arg(long)]
        write: Option<std::path::PathBuf>,
    },
    /// Plain UDP sockets on loopback
    Raw {
        /// Runs of each measurement; the median is printed
        #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
        runs: u32,
        /// Milliseconds of each run
        #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u64).range(10..60_000))]
        milliseconds: u64,
        /// Streams to measure, as bytes of a packet and packets of a call
        #[arg(long, default_value = "4124x15,1052x60,40x64", value_delimiter = ',', value_parser = parse_stream)]
        streams: Vec<(usize, usize)>,
        /// Bytes of a ping
        #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..1400))]
        ping: u32,
    },
    /// Two processes on one address against two with an address each
    Steering {
        /// Rounds; the median is printed
        #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
        rounds: u32,
        /// Milliseconds of each measurement
        #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u64).range(10..60_000))]
        milliseconds: u64,
    },
    /// The other process of `steering`
    #[command(hide = true)]
    SteeringPeer {
        #[arg(long)]
        slot: Option<u8>,
    },
    /// On-demand paging beside pinned regions and beside what the system takes to populate pages, as a table of ratios
    Paging {
        /// Rounds; the median is printed
        #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
        rounds: u32,
    },
    /// Where tasks run: each mode with some queue pairs, as a table
    Tasks {
        /// Rounds; the median is printed
        #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
        rounds: u32,
        /// Milliseconds of each measurement
        #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u64).range(10..60_000))]
        milliseconds: u64,
        /// Numbers of queue pairs
        #[arg(long, default_value = "1,8,64", value_delimiter = ',')]
        queue_pairs: Vec<usize>,
    },
    /// What a study's own bookkeeping costs beside the operations that it measures, as a table
    Study {
        /// Rounds; the median is printed
        #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
        rounds: u32,
        /// Milliseconds of each measurement
        #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u64).range(10..60_000))]
        milliseconds: u64,
    },
    /// The other end of such a measurement
    #[command(hide = true)]
    TasksPeer { mode: String, role: tasks::Role, queue_pairs: usize },
    /// The receiving side of a stream
    #[command(hide = true)]
    Sink,
    /// The answering side of a ping-pong
    #[command(hide = true)]
    Echo,
}

fn parse_stream(text: &str) -> Result<(usize, usize), String> {
    let parse = |text: &str| text.parse::<usize>().ok().filter(|n| *n > 0);
    let pair = text.split_once('x').and_then(|(bytes, packets)| Some((parse(bytes)?, parse(packets)?)));
    pair.filter(|&(bytes, packets)| packets <= 64 && (2..=65_507).contains(&(bytes * packets))).ok_or_else(
        || "expected BYTESxPACKETS with at most 64 packets and 65507 bytes in all, as 4124x15".into(),
    )
}

/// Ends a measurement: one byte, which no packet of a measurement has.
const END: &[u8] = &[0xff];

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Bench::Raw { runs, milliseconds, streams, ping } => {
            raw(runs, Duration::from_millis(milliseconds), &streams, ping as usize)
        }
        Bench::Compare { rounds, write } => compare::compare(rounds, write.as_deref()),
        Bench::Steering { rounds, milliseconds } => {
            steering::steering(rounds, Duration::from_millis(milliseconds))
        }
        Bench::SteeringPeer { slot } => steering::peer(slot),
        Bench::Paging { rounds } => paging::paging(rounds as usize),
        Bench::Tasks { rounds, milliseconds, queue_pairs } => {
            tasks::tasks(rounds, Duration::from_millis(milliseconds), &queue_pairs)
        }
        Bench::Study { rounds, milliseconds } => study::study(rounds, milliseconds),
        Bench::TasksPeer { mode, role, queue_pairs } => tasks::peer(&mode, role, queue_pairs),
        Bench::Sink => sink(),
        Bench::Echo => echo(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("urxe-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn raw(runs: u32, time: Duration, streams: &[(usize, usize)], ping: usize) -> io::Result<()> {
    socket::pin(0);
    for &(bytes, packets) in streams {
        let rate = median(runs, || stream(bytes, packets, time))?;
        println!(
            r#"{{"bench":"raw_stream","bytes":{bytes},"packets_per_call":{packets},"MB_per_s":{:.0},"Mpackets_per_s":{:.3}}}"#,
            rate / 1e6,
            rate / 1e6 / bytes as f64
        );
    }
    let half = median(runs, || ping_pong(ping, time))?;
    println!(r#"{{"bench":"raw_ping_pong","bytes":{ping},"half_round_trip_us":{:.3}}}"#, half * 1e6);
    Ok(())
}

fn median(runs: u32, mut measure: impl FnMut() -> io::Result<f64>) -> io::Result<f64> {
    let mut values = (0..runs).map(|_| measure()).collect::<io::Result<Vec<f64>>>()?;
    values.sort_by(f64::total_cmp);
    Ok(values[values.len() / 2])
}

/// The other process. It first prints its port.
struct Peer {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
    port: u16,
}

impl Peer {
    fn start(role: &str) -> io::Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg(role)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        let out = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
        let mut peer = Self { child, lines: BufReader::new(out), port: 0 };
        peer.port = peer.number()?;
        Ok(peer)
    }

    fn number<T: std::str::FromStr>(&mut self) -> io::Result<T> {
        let mut line = String::new();
        self.lines.read_line(&mut line)?;
        line.trim().parse().map_err(|_| io::Error::other("the other process ended early"))
    }

    /// Tells it that the measurement is over until it ends. Datagrams may be lost.
    fn end(&mut self, socket: &Socket) -> io::Result<()> {
        while self.child.try_wait()?.is_none() {
            let _ = socket.send(END, None);
            std::thread::sleep(Duration::from_micros(200));
        }
        Ok(())
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Bytes per second that arrive.
fn stream(bytes: usize, packets: usize, time: Duration) -> io::Result<f64> {
    let mut peer = Peer::start("sink")?;
    let mut socket = Socket::new()?;
    socket.set_peer(peer.port);
    let data = vec![0x55; bytes * packets];
    let segment = (packets > 1).then_some(bytes as u16);
    let start = Instant::now();
    while start.elapsed() < time {
        for _ in 0..8 {
            socket.send(&data, segment)?;
        }
    }
    peer.end(&socket)?;
    peer.number()
}

fn sink() -> io::Result<()> {
    socket::end_with_parent();
    socket::pin(1);
    let socket = Socket::new()?;
    println!("{}", socket.port()?);
    let mut buffer = vec![0; 65_536];
    let (mut bytes, mut first, mut last) = (0, None, Instant::now());
    loop {
        match socket.receive(&mut buffer)? {
            None => socket.wait()?,
            Some(1) => break,
            Some(len) => {
                last = Instant::now();
                // The clock starts with the first datagram, which therefore does not count.
                bytes += if first.is_some() { len } else { 0 };
                first.get_or_insert(last);
            }
        }
    }
    let time = first.map_or(Duration::ZERO, |first| last.saturating_duration_since(first));
    println!("{}", bytes as f64 / time.as_secs_f64());
    Ok(())
}

/// Seconds of half a round trip.
fn ping_pong(bytes: usize, time: Duration) -> io::Result<f64> {
    /// A lost packet would stop it for good.
    const PATIENCE: Duration = Duration::from_secs(2);
    let mut peer = Peer::start("echo")?;
    let mut socket = Socket::new()?;
    socket.set_peer(peer.port);
    let data = vec![0x55; bytes.max(2)];
    let mut buffer = vec![0; 65_536];
    let (start, mut trips) = (Instant::now(), 0u32);
    while start.elapsed() < time {
        for _ in 0..16 {
            socket.send(&data, None)?;
            let mut spins = 0u32;
            while socket.receive(&mut buffer)?.is_none() {
                std::hint::spin_loop();
                spins += 1;
                if spins.is_multiple_of(65_536) && start.elapsed() > time + PATIENCE {
                    return Err(io::ErrorKind::TimedOut.into());
                }
            }
            trips += 1;
        }
    }
    let half = start.elapsed().as_secs_f64() / f64::from(trips) / 2.0;
    peer.end(&socket)?;
    Ok(half)
}

fn echo() -> io::Result<()> {
    socket::end_with_parent();
    socket::pin(1);
    let mut socket = Socket::new()?;
    println!("{}", socket.port()?);
    let mut buffer = vec![0; 65_536];
    // The first one may take its time; then both spin.
    socket.wait()?;
    loop {
        match socket.receive(&mut buffer)? {
            None => std::hint::spin_loop(),
            Some(1) => return Ok(()),
            Some(len) => {
                socket.answer();
                socket.send(&buffer[..len], None)?;
            }
        }
    }
}
