//! What does on-demand paging cost?

use super::{Pin, Plan, Scope, Shows, Study};
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

/// What urxe does with a fault, and where tasks run then. Only workers can sleep, so parking is measured with both.
const POLICIES: [(&str, &str); 4] =
    [("park", "inline"), ("rnr", "inline"), ("park", "workqueue"), ("sleep", "workqueue")];

/// What is added to each fault.
const LATENCIES: [&str; 2] = ["none", "100us"];

/// Another device has its own policy.
const OWN: &str = "as the device has it";

/// What memory is like, and the share of its pages that was touched before.
const CASES: [(&str, Memory, f64); 7] = [
    ("pinned", Memory::Pinned, 1.0),
    ("warm", Memory::OnDemand(Pages::Warm), 1.0),
    ("prefetched", Memory::OnDemand(Pages::Prefetched), 0.0),
    ("cold but touched", Memory::OnDemand(Pages::Cold), 1.0),
    ("half cold", Memory::OnDemand(Pages::Cold), 0.5),
    ("cold", Memory::OnDemand(Pages::Cold), 0.0),
    ("implicit, cold", Memory::Implicit(Pages::Cold), 0.0),
];

/// Whole pages, so that each operation meets one: how fast they are written, and how long each takes to read.
const TESTS: [(Operation, Measure, Shows); 2] = [
    (Operation::Get, Measure::Latency, Shows::PagedLatency),
    (Operation::Put, Measure::Flood, Shows::PagedBandwidth),
];

fn plan(scope: &Scope, device: &DeviceFacts) -> Result<Plan, String> {
    scope.takes(STUDY.name, &[])?;
    if !device.on_demand {
        return Err(format!("{} has no on-demand paging, so there is nothing to study", device.name));
    }
    let mut plan = Plan::new(scope.repetitions(3, 20));
    let pages = if scope.full { 4096 } else { 512 };
    plan.said.push(("memory".to_owned(), format!("{pages} pages of {PAGE} bytes at each end")));
    let time = scope.milliseconds(60, 3_000);
    let settings = settings(&mut plan, scope, device)?;
    for (memory, how, touched) in CASES {
        if matches!(how, Memory::Implicit(_)) && !device.implicit {
            continue;
        }
        for setting in &settings {
            let at = [
                ("memory", memory.to_owned()),
                ("touched", touched.to_string()),
                ("fault policy", setting.policy.to_owned()),
                ("tasks", setting.tasks.to_owned()),
                ("fault latency", setting.latency.to_owned()),
            ];
            for (operation, measure, shows) in TESTS {
                let job = Job { memory: how, touched, ..job(operation, measure, pages, time) };
                plan.step(&at, setting.number, job, shows);
            }
        }
    }
    Ok(plan)
}

/// A setting of the device, by its number in the plan.
struct Faults {
    policy: &'static str,
    tasks: &'static str,
    latency: &'static str,
    number: usize,
}

/// Each policy with each latency.
fn settings(plan: &mut Plan, scope: &Scope, device: &DeviceFacts) -> Result<Vec<Faults>, String> {
    if !device.is_urxe() {
        let number = plan.pinned(scope, Pin::usual(device), &[])?;
        return Ok(vec![Faults { policy: OWN, tasks: OWN, latency: "none", number }]);
    }
    let mut all = Vec::new();
    for (policy, tasks) in POLICIES {
        for latency in LATENCIES {
            let flags = [("odp-fault", policy), ("tasks", tasks), ("odp-latency", latency)];
            all.push(Faults {
                policy,
                tasks,
                latency,
                number: plan.pinned(scope, Pin::usual(device), &flags)?,
            });
        }
    }
    Ok(all)
}

/// Through all pages, for a time. Cold ones are walked through once, if the time is enough for that.
fn job(operation: Operation, measure: Measure, pages: u64, time: u64) -> Job {
    let (region, stride, amount) = (pages * PAGE, PAGE, Amount::Milliseconds(time));
    Job { region, stride, amount, ..Job::new(operation, measure, PAGE) }
}

fn page(record: &Record) -> Page {
    let figure = |title: &str, metric: &str, latency: &str| Figure {
        shape: Shape::Bars,
        only: vec![("fault latency".to_owned(), latency.to_owned())],
        series: vec!["fault policy".to_owned(), "tasks".to_owned()],
        y_scale: Scale::Log10,
        ..Figure::new(title, "memory", metric)
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

/// A sentence for each setting of the device: what cold pages cost beside pinned ones, and what prefetching saves of it.
fn findings(record: &Record) -> Vec<String> {
    let pinned = record.cells.iter().filter(|cell| cell.value("memory") == Some("pinned"));
    pinned.filter_map(|pinned| Same { record, pinned }.finding()).collect()
}

/// The cells with the same setting of the device as the one of pinned memory.
struct Same<'a> {
    record: &'a Record,
    pinned: &'a Cell,
}

impl Same<'_> {
    fn finding(&self) -> Option<String> {
        let [policy, tasks, latency] = ["fault policy", "tasks", "fault latency"]
            .map(|name| self.pinned.value(name).unwrap_or_default());
        let time = |memory| self.median(memory, "t_typical").map(number);
        let faults = self.median("cold", "faults").map(|n| format!(" ({} faults each)", number(n)));
        let prefetched = time("prefetched").map(|time| format!(", prefetched {time}"));
        let bandwidth = |memory| self.median(memory, "bandwidth").map(number);
        Some(format!(
            "Fault policy {policy}, tasks {tasks}, fault latency {latency}: a READ of a page takes {} us pinned, warm {}{}, \
             cold {}{}; WRITE has {} MB/s pinned, cold {}.",
            time("pinned")?,
            time("warm")?,
            prefetched.unwrap_or_default(),
            time("cold")?,
            faults.unwrap_or_default(),
            bandwidth("pinned")?,
            bandwidth("cold")?,
        ))
    }

    fn median(&self, memory: &str, metric: &str) -> Option<f64> {
        let same = |cell: &Cell| {
            let others = cell.at.iter().zip(&self.pinned.at);
            let mut others = others.filter(|((name, _), _)| name != "memory" && name != "touched");
            others.all(|(a, b)| a == b)
        };
        let cells = self.record.cells.iter();
        cells.filter(|c| c.value("memory") == Some(memory)).find(|c| same(c))?.median(metric)
    }
}
