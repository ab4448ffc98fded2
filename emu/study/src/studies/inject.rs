//! Up to which size does inline data pay?

use super::beside::{Beside, Question, places, size, verdicts};
use super::scope::Choice;
use super::{Pin, Plan, Scope, Shows, Study};
use crate::driver::DeviceFacts;
use crate::output::number::number;
use crate::output::report::Page;
use crate::output::table::{Column, Layout, Row, Table};
use crate::output::{Figure, Mark};
use crate::record::{Cell, Record};
use crate::reference::{self, Series};
use crate::stats::Verdict;
use crate::work::{Amount, Job, Measure, Operation, Payload};

pub(super) const STUDY: Study = Study {
    name: "inject",
    question: "Up to which size is it worth it to hand the data of an RDMA WRITE over inline?",
    plan,
    page,
};

/// The largest size that is usual, and that above which a quick run takes every fourth power of two only.
const LARGEST: u64 = 4 << 20;
const COARSE: u64 = 64 << 10;

/// What a cell has: both ways of a payload, one after the other, so that they meet the same machine.
const PAYLOADS: [(Payload, &str); 2] = [(Payload::Registered, "registered"), (Payload::Inline, "inline")];

/// The two that are shown, with a name each.
const METRICS: [(&str, &str); 2] = [("Bandwidth", "bandwidth"), ("Latency", "t_typical")];

fn plan(scope: &Scope, device: &DeviceFacts) -> Result<Plan, String> {
    scope.takes(STUDY.name, &[Choice::Sizes])?;
    let mut plan = Plan::new(scope.repetitions(7, 30));
    let setting = plan.pinned(scope, Pin::usual(device), &[])?;
    let limit = u64::from(device.max_inline);
    plan.said.push(("inline limit".to_owned(), format!("{limit} bytes")));
    let amount = Amount::Milliseconds(scope.milliseconds(80, 500));
    for bytes in sizes(scope, limit) {
        for (measure, shows) in [(Measure::Flood, Shows::PlainBandwidth), (Measure::Latency, Shows::Latency)]
        {
            for (payload, name) in PAYLOADS.into_iter().filter(|(p, _)| possible(*p, bytes, limit)) {
                let at = [("payload", name.to_owned()), ("bytes", bytes.to_string())];
                let job = Job { payload, amount, ..Job::new(Operation::Put, measure, bytes) };
                plan.step(&at, setting, job, shows);
            }
        }
    }
    Ok(plan)
}

fn possible(payload: Payload, bytes: u64, limit: u64) -> bool {
    payload == Payload::Registered || bytes <= limit
}

/// The usual ones, and those around the limit.
fn sizes(scope: &Scope, limit: u64) -> Vec<u64> {
    if scope.has_sizes() {
        return scope.sizes(1..=LARGEST);
    }
    let coarse = |bytes: &u64| *bytes > COARSE && (bytes.ilog2() - COARSE.ilog2()) % 2 == 1;
    let usual = scope.sizes(1..=LARGEST).into_iter().filter(|bytes| scope.full || !coarse(bytes));
    let around = [limit.saturating_sub(1), limit, limit + 1].into_iter().filter(|bytes| *bytes > 1);
    let mut all: Vec<u64> = usual.chain(around).collect();
    all.sort_unstable();
    all.dedup();
    all
}

fn page(record: &Record) -> Page {
    let figures = vec![
        figure(record, "Bandwidth of RDMA WRITE", "bandwidth", reference::inject_bandwidth()),
        figure(record, "Latency of RDMA WRITE, half round trip", "t_typical", reference::inject_latency()),
    ];
    let mut findings: Vec<_> =
        METRICS.into_iter().filter_map(|(name, metric)| finding(record, name, metric)).collect();
    findings.extend(pays(record));
    findings.push(published());
    Page {
        title: "Inline data".to_owned(),
        question: STUDY.question.to_owned(),
        findings,
        figures,
        layout: Layout::Figures,
        extra: vec![extremes(record)],
    }
}

fn figure(record: &Record, title: &str, metric: &str, references: Vec<Series>) -> Figure {
    let limit = inline_sizes(record).max();
    let mark = |limit: u64| Mark { at: limit.to_string(), label: format!("inline up to {}", size(limit)) };
    Figure {
        x_label: "message size [bytes]".to_owned(),
        references,
        marks: limit.map(mark).into_iter().collect(),
        ..Figure::new(title, "bytes", metric)
    }
}

fn inline_sizes(record: &Record) -> impl Iterator<Item = u64> {
    let inline = record.cells.iter().filter(|cell| cell.value("payload") == Some("inline"));
    inline.filter_map(|cell| cell.value("bytes")?.parse().ok())
}

/// Inline beside registered.
fn ask(record: &Record, metric: &str) -> Vec<Beside> {
    Question { of: ("payload", "registered", "inline"), only: None, along: "bytes", metric }.ask(record)
}

fn finding(record: &Record, name: &str, metric: &str) -> Option<String> {
    let all = ask(record, metric);
    let first = all.first()?;
    Some(format!(
        "{name} ({metric}): inline data is {}. At {} it is {} times that of registered memory.",
        verdicts(&all, size),
        size(first.at),
        number(first.ratio())
    ))
}

/// Where it pays: somewhere better, and worse in nothing.
fn pays(record: &Record) -> Option<String> {
    let [bandwidth, latency] = METRICS.map(|(_, metric)| ask(record, metric));
    if bandwidth.iter().chain(&latency).any(|beside| beside.verdict == Verdict::TooFewSamples) {
        return None;
    }
    let both = bandwidth.iter().filter_map(|b| Some((b, latency.iter().find(|l| l.at == b.at)?)));
    let overall = |(b, l): (&Beside, &Beside)| {
        let verdicts = [b.verdict, l.verdict];
        let verdict = match () {
            () if verdicts.contains(&Verdict::Worse) => Verdict::Worse,
            () if verdicts.contains(&Verdict::Better) => Verdict::Better,
            () => Verdict::NoDifferenceShown,
        };
        Beside { verdict, ..b.clone() }
    };
    let all: Vec<_> = both.map(overall).collect();
    let limit = all.last()?.at;
    Some(match places(&all, Verdict::Better, size) {
        Some(places) => format!(
            "Inline data pays (better in one of them, worse in none) at {places}; it is possible up to {}.",
            size(limit)
        ),
        None => format!("Inline data is not shown to pay at any size up to {}.", size(limit)),
    })
}

fn published() -> String {
    let typical = |series: &Series, bytes: &str| {
        series.points.iter().find(|(place, _)| place == bytes).map_or(f64::NAN, |(_, value)| *value)
    };
    let all: Vec<_> = reference::inject_latency()
        .iter()
        .map(|s| {
            let (inline, plain) = (typical(s, "64"), typical(s, "128"));
            format!("on {} {inline} us inline at 64 B, {plain} us without at 128 B", s.name)
        })
        .collect();
    format!("Published of libfabric's inject path, which ends at 64 B: {}.", all.join("; "))
}

/// Smallest and largest latencies of both, at the sizes where both are possible.
fn extremes(record: &Record) -> Table {
    const COLUMNS: [&str; 3] = ["t_min", "t_typical", "t_max"];
    let find = |payload: &str, bytes: u64| {
        let wanted = |cell: &&Cell| {
            cell.value("payload") == Some(payload) && cell.value("bytes") == Some(bytes.to_string().as_str())
        };
        record.cells.iter().find(wanted)
    };
    let text = |cell: Option<&Cell>, name: &str| {
        let median = cell.and_then(|cell| cell.median(name));
        median.map(|median| format!("{median:.2}")).unwrap_or_default()
    };
    let mut columns = vec![Column::right("message size [bytes]")];
    for (_, payload) in PAYLOADS {
        columns.extend(COLUMNS.map(|name| Column::right(format!("{payload} {name}"))));
    }
    let row = |bytes: u64| {
        let cells = PAYLOADS.iter().flat_map(|(_, payload)| {
            let cell = find(payload, bytes);
            COLUMNS.map(|name| text(cell, name))
        });
        Row::plain(std::iter::once(bytes.to_string()).chain(cells).collect())
    };
    Table {
        caption: "Latency, half round trip [us]; medians of the repetitions".to_owned(),
        columns,
        rows: inline_sizes(record).map(row).collect(),
        notes: Vec::new(),
    }
}
