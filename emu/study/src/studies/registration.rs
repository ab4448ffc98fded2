//! What does a registration cache cost with many threads?

use super::beside::{Beside, Question};
use super::scope::Choice;
use super::{Plan, Scope, Shows, Study};
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
/// More than all threads have, so that nothing is evicted.
const CAPACITY: u32 = 1 << 15;

fn plan(scope: &Scope, device: &DeviceFacts) -> Result<Plan, String> {
    scope.takes(STUDY.name, &[Choice::Threads])?;
    let mut plan = Plan::new(scope.repetitions(5, 20));
    let setting = plan.pinned(scope, &[])?;
    plan.said.push(("buffers of a thread".to_owned(), format!("{BUFFERS}, each a region of the cache")));
    for (operation, name, ..) in OPERATIONS {
        if operation == Operation::FetchAdd && !device.atomics {
            continue;
        }
        for threads in Scope::or(&scope.threads, &[1, 4, 16, 64]) {
            for (registration, cache) in registrations() {
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

fn registrations() -> [(Registration, &'static str); 2] {
    let hybrid = Registration::Hybrid { capacity: CAPACITY, unregistered_percent: 0 };
    [(Registration::Cached { capacity: CAPACITY }, "cached"), (hybrid, "hybrid")]
}

/// As many operations in all, however many threads share them: the time tells what became of it.
fn job(scope: &Scope, operation: Operation, threads: u32, registration: Registration) -> Job {
    let all = if scope.full { 1 << 20 } else { 1 << 16 };
    Job {
        threads,
        registration,
        region: BUFFERS * PAGE,
        stride: PAGE,
        depth: 16,
        amount: Amount::Operations((all / u64::from(threads)).max(1)),
        warm_up: 2 * BUFFERS,
        ..Job::new(operation, Measure::Flood, BYTES)
    }
}

/// Hybrid beside cached.
fn ask(record: &Record, operation: &str, metric: &str) -> Vec<Beside> {
    let of = ("registration", "cached", "hybrid");
    Question { of, only: Some(("operation", operation)), along: "threads", metric }.ask(record)
}

fn page(record: &Record) -> Page {
    let findings = OPERATIONS.iter().filter_map(|(_, name, published, metric)| {
        finding(name, &ask(record, name, metric), &ratios(published))
    });
    let figures = OPERATIONS.iter().map(|(_, name, published, metric)| Figure {
        only: vec![("operation".to_owned(), (*name).to_owned())],
        x_scale: Scale::Log2,
        y_scale: Scale::Log10,
        references: reference::registration(published),
        ..Figure::new(format!("{name}, 8 B"), "threads", *metric)
    });
    Page {
        title: "Registration caches and threads".to_owned(),
        question: STUDY.question.to_owned(),
        findings: findings.collect(),
        figures: figures.collect(),
        layout: Layout::Uncertain,
        extra: vec![table(record)],
    }
}

/// Published: by number of cores, how many times the cached rate the hybrid one is.
fn ratios(operation: &str) -> Vec<(u64, f64)> {
    let both = reference::registration(operation);
    let [cached, hybrid] = both.as_slice() else { return Vec::new() };
    super::beside::published(cached, hybrid).into_iter().map(|(at, a, b)| (at, b / a)).collect()
}

/// Whether the cache falls behind as threads grow, and where it stands at the ends.
fn finding(name: &str, all: &[Beside], published: &[(u64, f64)]) -> Option<String> {
    let (first, last) = (all.first()?, all.last()?);
    let at = |beside: &Beside| {
        format!("{} times with {} ({})", number(beside.ratio()), threads(beside.at), beside.verdict.text())
    };
    let ends = if first.at == last.at { at(first) } else { format!("{}, {}", at(first), at(last)) };
    let published: Vec<_> =
        published.iter().map(|(cores, ratio)| format!("{} with {cores}", number(*ratio))).collect();
    Some(format!(
        "{name}: hybrid use has the rate of cached use {ends}. Published: {}.",
        published.join(", ")
    ))
}

fn threads(number: u64) -> String {
    if number == 1 { "1 thread".to_owned() } else { format!("{number} threads") }
}

fn table(record: &Record) -> Table {
    let mut rows = Vec::new();
    for (_, name, published, metric) in OPERATIONS {
        let published = ratios(published);
        for beside in ask(record, name, metric) {
            let there = published.iter().find(|(cores, _)| *cores == beside.at);
            rows.push(Row::plain(vec![
                name.to_owned(),
                beside.at.to_string(),
                number(beside.ratio()),
                beside.verdict.text().to_owned(),
                there.map(|(_, ratio)| number(*ratio)).unwrap_or_default(),
            ]));
        }
    }
    Table {
        caption: "How many times the rate of cached use hybrid use has".to_owned(),
        columns: vec![
            Column::left("operation"),
            Column::right("threads"),
            Column::right("times"),
            Column::left("verdict on hybrid"),
            Column::right("published"),
        ],
        rows,
        notes: vec![format!("Published: {}.", reference::REGISTRATION_SOURCE)],
    }
}
