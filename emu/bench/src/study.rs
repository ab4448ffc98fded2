//! What the bookkeeping of a study costs: its loops on a transport that completes everything at once, beside the same
//! jobs on the device.

use std::io;

use urxe_study::driver::{Interrupt, Options, Pair, Setting};
use urxe_study::work::{Amount, Api, Job, Long, Measure, Operation, null};

use crate::compare::beside;

/// The share that is aimed at.
const AIM: f64 = 0.02;

/// Jobs, by what is measured: the shortest operations, of which the bookkeeping is the largest share.
fn jobs() -> Vec<(&'static str, Job)> {
    use Measure::{Flood, Initiation, Latency};
    let wr = |job| Job { api: Api::WorkRequest, ..job };
    vec![
        ("put, 8 B, flood", Job::new(Operation::Put, Flood, 8)),
        ("put by ibv_wr, 8 B, flood", wr(Job::new(Operation::Put, Flood, 8))),
        ("put on 8 queue pairs, 8 B, flood", Job { queue_pairs: 8, ..Job::new(Operation::Put, Flood, 8) }),
        ("get, 8 B, flood", Job::new(Operation::Get, Flood, 8)),
        ("send, 8 B, flood", Job::new(Operation::Send, Flood, 8)),
        ("fetch and add, flood", Job::new(Operation::FetchAdd, Flood, 8)),
        ("gather, 8 B, flood", Job { region: 1 << 20, ..Job::new(Operation::Gather, Flood, 8) }),
        ("short active message, 8 B, flood", Job::new(Operation::AmShort, Flood, 8)),
        ("long active message by READ, 64 KiB", Job::new(Operation::AmLong(Long::Read), Flood, 65_536)),
        ("put, 8 B, initiation", Job::new(Operation::Put, Initiation, 8)),
        ("get, 8 B, initiation", Job::new(Operation::Get, Initiation, 8)),
        ("put, 2 B, latency", Job::new(Operation::Put, Latency, 2)),
        ("send, 2 B, latency", Job::new(Operation::Send, Latency, 2)),
        ("get, 8 B, latency", Job::new(Operation::Get, Latency, 8)),
        ("short active message, 8 B, latency", Job::new(Operation::AmShort, Latency, 8)),
    ]
}

/// Runs everything `rounds` times in turn and prints a table of the shortest times: whatever else runs only adds to them.
pub(crate) fn study(rounds: u32, milliseconds: u64) -> io::Result<()> {
    let setting = Setting::default();
    let options = Options::local(beside("urxe")?);
    let mut pair = Pair::start(&setting, &options, &Interrupt::default()).map_err(io::Error::other)?;
    println!("| job | ns of an operation | bookkeeping alone | share | aim |");
    println!("| --- | --- | --- | --- | --- |");
    for (name, job) in jobs() {
        let job = Job { amount: Amount::Milliseconds(milliseconds), ..job };
        let (mut device, mut nothing) = (f64::INFINITY, f64::INFINITY);
        for _ in 0..rounds {
            device = device.min(1e9 / pair.run(&job).map_err(io::Error::other)?.rate());
            nothing = nothing.min(1e9 / null::run(&job).map_err(io::Error::other)?.rate());
        }
        let share = nothing / device;
        let verdict = if share < AIM { "" } else { " (missed)" };
        println!(
            "| {name} | {device:.0} | {nothing:.1} | {:.2} % | below {:.0} %{verdict} |",
            share * 100.0,
            AIM * 100.0
        );
    }
    Ok(())
}
