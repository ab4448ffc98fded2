//! Read or pipeline for long active messages?

use super::beside::{Crossover, Question, crossover, published, size, verdicts};
use super::scope::Choice;
use super::{Pin, Plan, Scope, Shows, Study};
use crate::driver::DeviceFacts;
use crate::output::number::number;
use crate::output::report::Page;
use crate::output::table::Layout;
use crate::output::{Figure, Mark};
use crate::record::Record;
use crate::reference;
use crate::work::{Amount, Job, Long, Measure, Operation};

pub(super) const STUDY: Study = Study {
    name: "long-am",
    question: "Long active messages: RDMA READ by the target, or a pipeline of bounce-buffered sends?",
    plan,
    page,
};

/// Bounce buffers as MPI libraries have them.
const CHUNK: u32 = 16 << 10;
const BUFFERS: u32 = 32;

fn plan(scope: &Scope, device: &DeviceFacts) -> Result<Plan, String> {
    scope.takes(STUDY.name, &[Choice::Sizes])?;
    let mut plan = Plan::new(scope.repetitions(9, 30));
    let setting = plan.pinned(scope, Pin::usual(device), &[])?;
    plan.said.push(("bounce buffers".to_owned(), format!("{BUFFERS} of {}", size(CHUNK.into()))));
    let amount = Amount::Milliseconds(scope.milliseconds(80, 1_000));
    let pipeline = Long::Pipeline { chunk: CHUNK, buffers: BUFFERS };
    for bytes in scope.sizes(1..=4 << 20) {
        for (protocol, how) in [("pipeline", pipeline), ("read", Long::Read)] {
            let at = [("protocol", protocol.to_owned()), ("bytes", bytes.to_string())];
            let job = Job { amount, ..Job::new(Operation::AmLong(how), Measure::Flood, bytes) };
            plan.step(&at, setting, job, Shows::PlainBandwidth);
        }
    }
    Ok(plan)
}

/// Read beside the pipeline.
const QUESTION: Question<'_> =
    Question { of: ("protocol", "pipeline", "read"), only: None, along: "bytes", metric: "bandwidth" };

fn page(record: &Record) -> Page {
    let all = QUESTION.ask(record);
    let points: Vec<_> = all.iter().map(|beside| (beside.at, beside.first, beside.second)).collect();
    let crossing = crossover(&points);
    let mut findings: Vec<_> = crossing.map(|crossing| said(crossing, &points)).into_iter().collect();
    if !all.is_empty() {
        findings.push(format!("READ is {}.", verdicts(&all, size)));
    }
    findings.extend(published_said());
    let marks = match crossing {
        Some(Crossover::From(at)) => {
            vec![Mark { at: at.to_string(), label: format!("READ ahead from {}", size(at)) }]
        }
        _ => Vec::new(),
    };
    Page {
        title: "Long active messages".to_owned(),
        question: STUDY.question.to_owned(),
        findings,
        figures: vec![Figure {
            x_label: "message size [bytes]".to_owned(),
            references: reference::long_am(),
            marks,
            ..Figure::new("Bandwidth by message size", "bytes", "bandwidth")
        }],
        layout: Layout::Figures,
        extra: Vec::new(),
    }
}

/// Where READ overtakes the pipeline, and what it brings at the largest size.
fn said(crossing: Crossover, points: &[(u64, f64, f64)]) -> String {
    let where_ = match crossing {
        Crossover::Everywhere => "READ is ahead of the pipeline at all sizes (medians)".to_owned(),
        Crossover::From(at) => format!("READ is ahead of the pipeline from {} on (medians)", size(at)),
        Crossover::NotAtTheEnd => "READ does not stay ahead of the pipeline (medians)".to_owned(),
    };
    let end = points.last().map(|(at, pipeline, read)| {
        format!("; at {} READ has {} MB/s, the pipeline {}", size(*at), number(*read), number(*pipeline))
    });
    format!("{where_}{}.", end.unwrap_or_default())
}

fn published_said() -> Option<String> {
    let series = reference::long_am();
    let points = published(series.first()?, series.get(1)?);
    Some(format!("Published of MPICH: {}", said(crossover(&points)?, &points)))
}
