//! What does on-demand paging cost?

use super::beside::median;
use super::scope::Choice;
use super::{Plan, Scope, Shows, Study};
use crate::driver::DeviceFacts;
use crate::output::number::number;
use crate::output::report::Page;
use crate::output::table::Layout;
use crate::output::{Figure, Scale, Shape};
use crate::record::{Cell, Record};
use crate::work::{Amount, Job, Measure, Memory, Operation, Pages};

pub(super) const STUDY: Study = Study {
    name: "odp",
    question: "What does on-demand paging cost, and what becomes of it with prefetching and with other fault policies?",
    plan,
    page,
};

const PAGE: u64 = 4096;

/// What urxe does with a fault, and which flags that takes. Sleeping is for workers.
const POLICIES: [(&str, &[(&str, &str)]); 3] = [
    ("park", &[("odp-fault", "park")]),
    ("rnr", &[("odp-fault", "rnr")]),
    ("sleep", &[("odp-fault", "sleep"), ("tasks", "workqueue")]),
];

/// What is added to each fault.
const LATENCIES: [&str; 2] = ["none", "100us"];

/// Another device has its own policy.
const OWN: &str = "as the device has it";

/// What memory is like, and the share of its pages that was touched before.
const CASES: [(&str, Memory, f64); 7] = [
    ("pinned", Memory::Pinned, 1.0),
    ("warm", Memory::OnDemand(Pages::Warm), 1.0),
    ("prefetched", Memory::OnDemand(Pages::Prefetched), 0.0),
    ("cold", Memory::OnDemand(Pages::Cold), 1.0),
    ("cold", Memory::OnDemand(Pages::Cold), 0.5),
    ("cold", Memory::OnDemand(Pages::Cold), 0.0),
    ("implicit, cold", Memory::Implicit(Pages::Cold), 0.0),
];

/// Whole pages, so that each operation meets one: how fast they are written, and how long each takes to read.
const TESTS: [(Operation, Measure, Shows); 2] = [
    (Operation::Get, Measure::Latency, Shows::PagedLatency),
    (Operation::Put, Measure::Flood, Shows::PagedBandwidth),
];

fn plan(scope: &Scope, device: &DeviceFacts) -> Result<Plan, String> {
    scope.takes(STUDY.name, &[] as &[Choice])?;
    if !device.on_demand {
        return Err(format!("{} has no on-demand paging, so there is nothing to study", device.name));
    }
    let mut plan = Plan::new(scope.repetitions(5, 20));
    let pages = if scope.full { 4096 } else { 512 };
    plan.said.push(("memory".to_owned(), format!("{pages} pages of {PAGE} bytes at each end")));
    let settings = settings(&mut plan, scope, device)?;
    for (memory, how, touched) in CASES {
        if matches!(how, Memory::Implicit(_)) && !device.implicit {
            continue;
        }
        for (policy, latency, setting) in &settings {
            let at = [
                ("memory", memory.to_owned()),
                ("touched", touched.to_string()),
                ("fault policy", policy.clone()),
                ("fault latency", latency.clone()),
            ];
            for (operation, measure, shows) in TESTS {
                plan.step(&at, *setting, job(operation, measure, how, touched, pages), shows);
            }
        }
    }
    Ok(plan)
}

/// Each policy with each latency: their names, and the number of the setting.
fn settings(
    plan: &mut Plan,
    scope: &Scope,
    device: &DeviceFacts,
) -> Result<Vec<(String, String, usize)>, String> {
    if !device.driver.starts_with("urxe") {
        return Ok(vec![(OWN.to_owned(), "none".to_owned(), plan.pinned(scope, &[])?)]);
    }
    let mut all = Vec::new();
    for (policy, flags) in POLICIES {
        for latency in LATENCIES {
            let flags = [flags, &[("odp-latency", latency)]].concat();
            all.push((policy.to_owned(), latency.to_owned(), plan.pinned(scope, &flags)?));
        }
    }
    Ok(all)
}

/// One walk through all pages; pages are cold only once.
fn job(operation: Operation, measure: Measure, memory: Memory, touched: f64, pages: u64) -> Job {
    Job {
        memory,
        touched,
        region: pages * PAGE,
        stride: PAGE,
        amount: Amount::Operations(pages),
        ..Job::new(operation, measure, PAGE)
    }
}

fn page(record: &Record) -> Page {
    let figure = |title: &str, metric: &str, latency: &str| Figure {
        shape: Shape::Bars,
        only: vec![("fault latency".to_owned(), latency.to_owned())],
        series: vec!["memory".to_owned(), "touched".to_owned()],
        y_scale: Scale::Log10,
        ..Figure::new(title, "fault policy", metric)
    };
    let mut figures = Vec::new();
    for latency in record.values("fault latency") {
        let with = if latency == "none" { String::new() } else { format!(", {latency} added to each fault") };
        figures.extend([
            figure(&format!("RDMA READ of a page{with}"), "t_typical", latency),
            figure(&format!("RDMA READ of a page, 99 %{with}"), "99 %", latency),
            figure(&format!("RDMA WRITE of pages{with}"), "bandwidth", latency),
        ]);
    }
    Page {
        title: "On-demand paging".to_owned(),
        question: STUDY.question.to_owned(),
        findings: findings(record),
        figures,
        layout: Layout::Uncertain,
        extra: Vec::new(),
    }
}

/// For each policy and latency a sentence: what cold pages cost beside pinned ones, and what of it prefetching saves.
fn findings(record: &Record) -> Vec<String> {
    let mut all = Vec::new();
    for policy in record.values("fault policy") {
        for latency in record.values("fault latency") {
            let cell = |memory: &str, touched: &str| {
                let wanted = [
                    ("memory", memory),
                    ("touched", touched),
                    ("fault policy", policy),
                    ("fault latency", latency),
                ];
                record.cells.iter().find(|c| wanted.iter().all(|(name, value)| c.value(name) == Some(value)))
            };
            all.extend(finding(policy, latency, &cell));
        }
    }
    all
}

fn finding<'a>(policy: &str, latency: &str, cell: &dyn Fn(&str, &str) -> Option<&'a Cell>) -> Option<String> {
    let value = |memory: &str, touched: &str, metric: &str| median(cell(memory, touched)?.metric(metric)?);
    let time = |memory: &str, touched: &str| value(memory, touched, "t_typical").map(number);
    let faults = value("cold", "0", "faults").map(|faults| format!(", {} faults each", number(faults)));
    let prefetched = time("prefetched", "0").map(|time| format!(", prefetched {time}"));
    let bandwidth = |memory: &str, touched: &str| value(memory, touched, "bandwidth").map(number);
    Some(format!(
        "Fault policy {policy}, fault latency {latency}: a READ of a page takes {} us pinned, {} warm{}, {} cold{}; WRITE \
         has {} MB/s pinned, {} cold.",
        time("pinned", "1")?,
        time("warm", "1")?,
        prefetched.unwrap_or_default(),
        time("cold", "0")?,
        faults.unwrap_or_default(),
        bandwidth("pinned", "1")?,
        bandwidth("cold", "0")?,
    ))
}
