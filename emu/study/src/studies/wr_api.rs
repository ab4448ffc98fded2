//! Is the work-request API faster?

use super::{Pin, Plan, Scope, Shows, Study};
use crate::compare::{Contrast, contrast, contrast_table};
use crate::driver::DeviceFacts;
use crate::output::number::number;
use crate::output::report::Page;
use crate::output::table::{Layout, Table};
use crate::output::{Figure, Shape};
use crate::record::{Metric, Record};
use crate::reference::{self, WrApi};
use crate::stats::{SigmaDifference, Verdict};
use crate::work::{Amount, Api, Job, Measure, Operation};

pub(super) const STUDY: Study = Study {
    name: "wr-api",
    question: "Is the work-request API (ibv_wr_*) faster than ibv_post_send?",
    plan,
    page,
};

const POST_SEND: &str = "ibv_post_send";
const WORK_REQUEST: &str = "ibv_wr_*";
const APIS: [(Api, &str); 2] = [(Api::PostSend, POST_SEND), (Api::WorkRequest, WORK_REQUEST)];

/// From so many sigma on a difference counts, as in the publication.
const THRESHOLD: f64 = 2.0;
/// Iterations of the publication.
const PUBLISHED: u32 = 100;
const BYTES: u64 = 8;

/// What is measured: a name, which of a job, what of it is shown, and which of that decides.
const TESTS: [(&str, Operation, Measure, Shows, &str); 5] = [
    ("put_bw", Operation::Put, Measure::Flood, Shows::Bandwidth, "BW average"),
    ("get_bw", Operation::Get, Measure::Flood, Shows::Bandwidth, "BW average"),
    ("put_o_i", Operation::Put, Measure::Initiation, Shows::Initiation, "o_i"),
    ("get_o_i", Operation::Get, Measure::Initiation, Shows::Initiation, "o_i"),
    ("am_short_reqrep", Operation::AmShort, Measure::Latency, Shows::Latency, "t_avg"),
];

fn plan(scope: &Scope, device: &DeviceFacts) -> Result<Plan, String> {
    scope.takes(STUDY.name, &[])?;
    let mut plan = Plan::new(scope.repetitions(PUBLISHED, PUBLISHED));
    let setting = plan.pinned(scope, Pin::usual(device), &[])?;
    let amount = Amount::Milliseconds(scope.milliseconds(40, 1_000));
    for (test, operation, measure, shows, _) in TESTS {
        for (api, name) in APIS {
            let at = [("test", test.to_owned()), ("bytes", BYTES.to_string()), ("API", name.to_owned())];
            plan.step(&at, setting, Job { api, amount, ..Job::new(operation, measure, BYTES) }, shows);
        }
    }
    Ok(plan)
}

fn page(record: &Record) -> Page {
    let contrasts = deciding(contrast(record, "API", POST_SEND, WORK_REQUEST, THRESHOLD));
    let published: Vec<_> = reference::wr_api().iter().map(published).collect();
    let mut findings: Vec<_> = contrasts.iter().map(finding).collect();
    if let Some(largest) = largest_sigma(&published) {
        findings.push(format!(
            "Published of GASNet: no difference reaches {THRESHOLD} sigma, the largest of these five is {}.",
            number(largest)
        ));
    }
    let figure = |title: &str, metric: &str| Figure {
        shape: Shape::Bars,
        series: vec!["API".to_owned()],
        ..Figure::new(title, "test", metric)
    };
    Page {
        title: "The work-request API".to_owned(),
        question: STUDY.question.to_owned(),
        findings,
        figures: vec![
            figure("Flood bandwidth, 8 B", "BW average"),
            figure("Overhead of initiation, 8 B", "o_i"),
            figure("Short active message, request and reply, 8 B", "t_avg"),
        ],
        layout: Layout::Perftest,
        extra: vec![
            named(
                contrast_table(&contrasts, POST_SEND, WORK_REQUEST),
                "The two beside each other, as the publication has it",
            ),
            named(contrast_table(&published, "before", "after"), reference::WR_API_SOURCE),
        ],
    }
}

/// The metrics that decide each test.
fn deciding(contrasts: Vec<Contrast>) -> Vec<Contrast> {
    let decides = |contrast: &Contrast| {
        let test = contrast.at.iter().find(|(name, _)| name == "test").map(|(_, value)| value.as_str());
        TESTS.iter().any(|(name, .., metric)| Some(*name) == test && contrast.metric.name == *metric)
    };
    contrasts.into_iter().filter(decides).collect()
}

fn finding(contrast: &Contrast) -> String {
    let test = contrast.at.first().map(|(_, value)| value.as_str()).unwrap_or_default();
    let verdict = match contrast.verdict {
        Verdict::NoDifferenceShown => format!("no difference of {THRESHOLD} sigma is shown"),
        other => format!("{WORK_REQUEST} is {}", other.text()),
    };
    let metric = &contrast.metric;
    format!(
        "{test}, {}: {verdict} ({} against {} {}, {:.2} sigma).",
        metric.name,
        number(contrast.second.mean),
        number(contrast.first.mean),
        metric.unit,
        contrast.difference.sigma
    )
}

fn largest_sigma(contrasts: &[Contrast]) -> Option<f64> {
    contrasts.iter().map(|contrast| contrast.difference.sigma).reduce(f64::max)
}

/// A published row in the same form.
fn published(row: &WrApi) -> Contrast {
    let difference = SigmaDifference::between(row.before(), row.after());
    let unit = if row.metric.ends_with("_us") { "us" } else { "MB/s" };
    let name = row.metric.trim_end_matches("_us").to_owned();
    Contrast {
        at: Vec::new(),
        metric: Metric { name, unit: unit.to_owned(), better: row.better(), samples: Vec::new() },
        first: row.before(),
        second: row.after(),
        difference,
        verdict: difference.verdict(row.better(), THRESHOLD),
    }
}

fn named(table: Table, caption: &str) -> Table {
    Table { caption: caption.to_owned(), ..table }
}
