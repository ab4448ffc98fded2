//! Inline tasks or a work queue?

use super::{Choice, Pin, Plan, Scope, Shows, Study};
use crate::driver::DeviceFacts;
use crate::output::number::number;
use crate::output::report::Page;
use crate::output::table::Layout;
use crate::output::{Figure, Shape};
use crate::record::{Cell, Record};
use crate::reference::{self, Series};
use crate::stats::{Change, Verdict};
use crate::work::{Amount, Job, Measure, Operation};

pub(super) const STUDY: Study = Study {
    name: "tasks",
    question: "Inline tasks or a work queue: what does it do to bandwidth, latency and message rate?",
    plan,
    page,
};

const MODES: [&str; 3] = ["inline", "workqueue", "auto"];

/// How often noise alone may make a difference that is said to be one.
const LEVEL: f64 = 0.05;

/// Iterations of the published latency test.
const PUBLISHED: u64 = 100_000;

/// What is measured: a name, which of a job, of how many bytes, and what of it is shown.
const TESTS: [(&str, Measure, u64, Shows); 3] = [
    ("send_bw", Measure::Flood, 65_536, Shows::Bandwidth),
    ("send_lat", Measure::Latency, 2, Shows::Latency),
    ("send_rate", Measure::Flood, 8, Shows::Bandwidth),
];

fn plan(scope: &Scope, device: &DeviceFacts) -> Result<Plan, String> {
    scope.takes(STUDY.name, &[Choice::QueuePairs])?;
    let mut plan = Plan::new(scope.repetitions(5, 3));
    let queue_pairs = Scope::or(&scope.queue_pairs, if scope.full { &[1, 8, 64] } else { &[1, 8] });
    let pins = Scope::or(&scope.pin, &[Pin::usual(device)]);
    for &queue_pairs in &queue_pairs {
        // A ping-pong is one, however many queue pairs take turns in it.
        let tests = TESTS.iter().filter(|test| test.1 != Measure::Latency || queue_pairs == 1);
        for (test, pin) in tests.flat_map(|test| pins.iter().map(move |pin| (test, pin))) {
            for mode in modes(device) {
                add(&mut plan, scope, *test, queue_pairs, pin, mode);
            }
        }
    }
    Ok(plan)
}

fn add(
    plan: &mut Plan,
    scope: &Scope,
    (test, measure, bytes, shows): (&str, Measure, u64, Shows),
    queue_pairs: u32,
    pin: &Pin,
    mode: &str,
) {
    let time = Amount::Milliseconds(scope.milliseconds(400, 5_000));
    let published = scope.full && test != "send_rate";
    let amount = if published { Amount::Operations(PUBLISHED) } else { time };
    let setting = plan.on(pin, (mode != OWN).then_some(("tasks", mode)));
    let at = [
        ("test", test.to_owned()),
        ("bytes", bytes.to_string()),
        ("queue pairs", queue_pairs.to_string()),
        ("CPUs", pin.to_string()),
        ("tasks", mode.to_owned()),
    ];
    plan.step(&at, setting, Job { queue_pairs, amount, ..Job::new(Operation::Send, measure, bytes) }, shows);
}

/// Another device has its tasks where its driver has them.
const OWN: &str = "as the device has them";

fn modes(device: &DeviceFacts) -> &'static [&'static str] {
    if device.is_urxe() { &MODES } else { &[OWN] }
}

fn page(record: &Record) -> Page {
    let figure = |title: &str, test: &str, metric: &str| Figure {
        shape: Shape::Bars,
        only: vec![("test".to_owned(), test.to_owned())],
        references: published_bars(test),
        ..Figure::new(title, "tasks", metric)
    };
    let mut findings = findings(record);
    findings.push(published());
    Page {
        title: "Where tasks run".to_owned(),
        question: STUDY.question.to_owned(),
        findings,
        figures: vec![
            figure("SEND bandwidth, 64 KiB", "send_bw", "BW average"),
            figure("SEND latency, 2 B, half round trip", "send_lat", "t_typical"),
            figure("SEND message rate, 8 B", "send_rate", "MsgRate"),
        ],
        layout: Layout::Perftest,
        extra: Vec::new(),
    }
}

/// What decides a test.
fn deciding(test: &str) -> &'static str {
    match test {
        "send_lat" => "t_typical",
        "send_rate" => "MsgRate",
        _ => "BW average",
    }
}

/// A sentence for each test and number of queue pairs: the work queue beside inline tasks.
fn findings(record: &Record) -> Vec<String> {
    let with = |mode: &'static str| record.cells.iter().filter(move |c| c.value("tasks") == Some(mode));
    let same = |a: &Cell, b: &Cell| a.at.iter().zip(&b.at).all(|(a, b)| a == b || a.0 == "tasks");
    let pairs = with("inline").filter_map(|a| Some((a, with("workqueue").find(|b| same(a, b))?)));
    let pairs: Vec<_> = pairs.collect();
    // All together are wrong no more often than one alone would be.
    let level = LEVEL / pairs.len().max(1) as f64;
    pairs.iter().filter_map(|(inline, queued)| finding(inline, queued, level)).collect()
}

fn finding(inline: &Cell, queued: &Cell, level: f64) -> Option<String> {
    let metric = deciding(inline.value("test")?);
    let (a, b) = (inline.metric(metric)?, queued.metric(metric)?);
    let verdict = match Change::between(&a.samples, &b.samples)?.verdict(a.better, level) {
        Verdict::Better => "better than",
        Verdict::Worse => "worse than",
        Verdict::NoDifferenceShown => "not shown to differ from",
        Verdict::TooFewSamples => "not yet to be compared with",
    };
    let place = inline.at.iter().filter(|(name, _)| !["tasks", "bytes"].contains(&name.as_str()));
    let place: Vec<_> = place.map(|(name, value)| format!("{name} {value}")).collect();
    Some(format!(
        "{}: the work queue is {verdict} inline tasks ({metric}: {} against {} {}).",
        place.join(", "),
        number(b.median()?),
        number(a.median()?),
        a.unit
    ))
}

/// What was published of the kernel's device, at the modes that are nearest to its own.
fn published_bars(test: &str) -> Vec<Series> {
    let rows = reference::tasks();
    let rows = rows.iter().filter(|row| row.test == format!("ib_{test}"));
    let points = rows.filter_map(|row| {
        let mode = if row.mode == "tasklet" { "inline" } else { "workqueue" };
        Some((mode.to_owned(), row.bandwidth.or(row.typical)?))
    });
    let points: Vec<_> = points.collect();
    let unit = if test == "send_lat" { "us" } else { "MB/s" };
    let name = "tasklet and work queue of the kernel's rxe".to_owned();
    Some(Series { name, unit, source: reference::TASKS_SOURCE, points })
        .filter(|series| !series.points.is_empty())
        .into_iter()
        .collect()
}

/// The same in words.
fn published() -> String {
    let rows = reference::tasks();
    let said: Vec<_> = rows
        .iter()
        .filter_map(|row| {
            let what = match (row.bandwidth, row.typical) {
                (Some(bandwidth), _) => format!("{bandwidth} MB/s"),
                (_, typical) => format!("t_typical {} us", typical?),
            };
            Some(format!("{} with a {}: {what}", row.test, row.mode))
        })
        .collect();
    format!("Published of the kernel's rxe, both ends on one KVM host: {}.", said.join("; "))
}
