//! What does a registration cache cost with many threads?

use super::beside::{Beside, Question, published};
use super::scope::Choice;
use super::{Pin, Plan, Scope, Shows, Study};
use crate::driver::DeviceFacts;
use crate::output::number::number;
use crate::output::report::Page;
use crate::output::table::{Column, Layout, Row, Table};
use crate::output::{Figure, Scale};
use crate::record::Record;
use crate::reference;
use crate::work::{Amount, Job, Measure, Operation, Registration};

pub(super) const STUDY: Study = Study {
    name: "registration",
    question: "What does it cost to look every buffer up in a registration cache, as threads grow?",
    plan,
    page,
};

/// Names of operations: here, in the publication, and what it shows of them.
const OPERATIONS: [(Operation, &str, &str, &str); 3] = [
    (Operation::FetchAdd, "fetch_add", "fetching_amo", "rate"),
    (Operation::Get, "get", "get", "rate"),
    (Operation::Gather, "gather", "indexgather", "bandwidth"),
];

/// Elements are 8 B; each is in a page of its own, so that the cache has a region for each.
const BYTES: u64 = 8;
const PAGE: u64 = 4096;
/// Buffers of a thread.
const BUFFERS: u64 = 64;
/// Regions of a cache: as many as libfabric's has if nothing else is said, and more than all threads need.
const CAPACITY: u32 = 1024;
const LARGE: u32 = 1 << 15;

const CACHED: &str = "cached";
const CACHED_LARGE: &str = "cached, large";
const HYBRID: &str = "hybrid";

fn plan(scope: &Scope, device: &DeviceFacts) -> Result<Plan, String> {
    scope.takes(STUDY.name, &[Choice::Threads])?;
    let mut plan = Plan::new(scope.repetitions(7, 20));
    let setting = plan.pinned(scope, Pin::default(), &[])?;
    plan.said.push(("buffers of a thread".to_owned(), format!("{BUFFERS}, each a region of the cache")));
    plan.said.push(("regions of the cache".to_owned(), format!("{CAPACITY}, if large {LARGE}")));
    for (operation, name, ..) in OPERATIONS {
        if operation == Operation::FetchAdd && !device.atomics {
            continue;
        }
        for threads in Scope::or(&scope.threads, &[1, 4, 16, 64]) {
            for (registration, cache) in REGISTRATIONS {
                let at = [
                    ("operation", name.to_owned()),
                    ("registration", cache.to_owned()),
                    ("threads", threads.to_string()),
                ];
                plan.step(&at, setting, job(scope, operation, threads, registration), Shows::Rate);
            }
        }
    }
    Ok(plan)
}

/// The cache as it is; what of its cost is the look-up alone, as nothing is ever evicted; and hybrid use.
const REGISTRATIONS: [(Registration, &str); 3] = [
    (Registration::Cached { capacity: CAPACITY }, CACHED),
    (Registration::Cached { capacity: LARGE }, CACHED_LARGE),
    (Registration::Hybrid { capacity: CAPACITY, unregistered_percent: 0 }, HYBRID),
];

/// A flood of each thread, as deep as those of programs that wait now and then.
fn job(scope: &Scope, operation: Operation, threads: u32, registration: Registration) -> Job {
    Job {
        threads,
        registration,
        region: BUFFERS * PAGE,
        stride: PAGE,
        depth: 16,
        amount: Amount::Milliseconds(scope.milliseconds(150, 2_000)),
        warm_up: 2 * BUFFERS,
        ..Job::new(operation, Measure::Flood, BYTES)
    }
}

/// Hybrid beside one of the caches.
fn ask(record: &Record, operation: &str, cache: &str, metric: &str) -> Vec<Beside> {
    let of = ("registration", cache, HYBRID);
    Question { of, only: Some(("operation", operation)), along: "threads", metric }.ask(record)
}

fn page(record: &Record) -> Page {
    let findings = OPERATIONS.iter().flat_map(|(_, name, published, metric)| {
        let cached = ask(record, name, CACHED, metric);
        let large = ask(record, name, CACHED_LARGE, metric);
        [finding(name, CACHED, &cached, &ratios(published)), finding(name, CACHED_LARGE, &large, &[])]
    });
    let figures = OPERATIONS.iter().map(|(_, name, published, metric)| Figure {
        only: vec![("operation".to_owned(), (*name).to_owned())],
        series: vec!["registration".to_owned()],
        x_scale: Scale::Log2,
        y_scale: Scale::Log10,
        references: reference::registration(published),
        ..Figure::new(format!("{name}, 8 B"), "threads", *metric)
    });
    Page {
        title: "Registration caches and threads".to_owned(),
        question: STUDY.question.to_owned(),
        findings: findings.flatten().collect(),
        figures: figures.collect(),
        layout: Layout::Uncertain,
        extra: vec![table(record)],
    }
}

/// Published: by number of cores, how many times the cached rate the hybrid one is.
fn ratios(operation: &str) -> Vec<(u64, f64)> {
    let both = reference::registration(operation);
    let [cached, hybrid] = both.as_slice() else { return Vec::new() };
    published(cached, hybrid).into_iter().map(|(at, a, b)| (at, b / a)).collect()
}

/// How far hybrid use is ahead at both ends.
fn finding(name: &str, cache: &str, all: &[Beside], published: &[(u64, f64)]) -> Option<String> {
    let (first, last) = (all.first()?, all.last()?);
    let at = |beside: &Beside| {
        let threads = if beside.at == 1 { "thread" } else { "threads" };
        let (times, verdict) = (number(beside.ratio()), beside.verdict.text());
        format!("{times} with {} {threads} ({verdict})", beside.at)
    };
    let ends = if first.at == last.at { at(first) } else { format!("{}, {}", at(first), at(last)) };
    let published = match (published.first(), published.last()) {
        (Some(first), Some(last)) => {
            let times = [number(first.1), number(last.1)];
            format!(" Published: {} with {} core, {} with {}.", times[0], first.0, times[1], last.0)
        }
        _ => String::new(),
    };
    Some(format!("{name}, rate of hybrid use by that of {cache}: {ends}.{published}"))
}

fn table(record: &Record) -> Table {
    let mut rows = Vec::new();
    for (_, name, published, metric) in OPERATIONS {
        let published = ratios(published);
        let large = ask(record, name, CACHED_LARGE, metric);
        for cached in ask(record, name, CACHED, metric) {
            let times = |beside: Option<&Beside>| beside.map(|beside| number(beside.ratio()));
            let verdict = |beside: Option<&Beside>| beside.map(|beside| beside.verdict.text().to_owned());
            let large = large.iter().find(|beside| beside.at == cached.at);
            let there = published.iter().find(|(cores, _)| *cores == cached.at);
            let cells = [
                Some(name.to_owned()),
                Some(cached.at.to_string()),
                times(large),
                verdict(large),
                times(Some(&cached)),
                verdict(Some(&cached)),
                there.map(|(_, ratio)| number(*ratio)),
            ];
            rows.push(Row::plain(cells.map(Option::unwrap_or_default).into()));
        }
    }
    Table {
        caption: "How many times the rate of cached use hybrid use has".to_owned(),
        columns: vec![
            Column::left("operation"),
            Column::right("threads"),
            Column::right("by cached, large"),
            Column::left("verdict on hybrid"),
            Column::right("by cached"),
            Column::left("verdict on hybrid"),
            Column::right("published"),
        ],
        rows,
        notes: vec![format!("Published: {}.", reference::REGISTRATION_SOURCE)],
    }
}
