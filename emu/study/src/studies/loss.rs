//! What does loss cost?

use super::impaired::{self, Impaired};
use super::{Plan, Scope, Study};
use crate::driver::DeviceFacts;
use crate::output::number::number;
use crate::output::report::Page;
use crate::output::table::Layout;
use crate::output::{Figure, Scale};
use crate::record::{Cell, Record};

pub(super) const STUDY: Study = Study {
    name: "loss",
    question: "What does the loss of packets cost in goodput and in latency?",
    plan,
    page,
};

/// Packets of a hundred that each direction loses.
const QUICK: [&str; 5] = ["0", "0.01", "0.1", "1", "5"];
const FULL: [&str; 10] = ["0", "0.001", "0.01", "0.03", "0.1", "0.3", "1", "2", "5", "10"];

/// The parameter.
const LOSS: &str = "loss %";

fn plan(scope: &Scope, device: &DeviceFacts) -> Result<Plan, String> {
    let losses: &[&str] = if scope.full { &FULL } else { &QUICK };
    let networks = losses.iter().map(|loss| Impaired {
        at: vec![(LOSS, (*loss).to_owned())],
        flags: if *loss == "0" { Vec::new() } else { vec![("loss", format!("{loss}%"))] },
    });
    impaired::plan(STUDY.name, scope, device, networks)
}

fn page(record: &Record) -> Page {
    let figure = |title: &str, test: Option<&str>, metric: &str| Figure {
        x_label: "packets lost in each direction [%]".to_owned(),
        x_scale: Scale::Categories,
        only: test.map(|test| ("test".to_owned(), test.to_owned())).into_iter().collect(),
        ..Figure::new(title, LOSS, metric)
    };
    Page {
        title: "Loss".to_owned(),
        question: STUDY.question.to_owned(),
        findings: findings(record),
        figures: vec![
            figure("Goodput against loss", None, "BW average"),
            figure("SEND latency against loss: average", Some(impaired::LATENCY), "t_avg"),
            figure("SEND latency against loss: 99.9 %", Some(impaired::LATENCY), "99.9 %"),
        ],
        layout: Layout::Perftest,
        extra: Vec::new(),
    }
}

/// A sentence for each test: what is left of it at one percent of loss, or else the most that was measured.
fn findings(record: &Record) -> Vec<String> {
    let clean = record.cells.iter().filter(|cell| cell.value(LOSS) == Some("0"));
    clean.filter_map(|clean| finding(record, clean)).collect()
}

fn finding(record: &Record, clean: &Cell) -> Option<String> {
    let same = |cell: &&Cell| impaired::same_job(cell, clean) && cell.value(LOSS) != Some("0");
    let lossy = record.cells.iter().filter(same).collect::<Vec<_>>();
    let lossy = lossy.iter().find(|cell| cell.value(LOSS) == Some("1")).or(lossy.last())?;
    let loss = lossy.value(LOSS)?;
    let both = |metric| Some((clean.median(metric)?, lossy.median(metric)?));
    if let Some((before, after)) = both("BW average") {
        return Some(format!(
            "{} moves {} MB/s without loss and {} MB/s at {loss} %: {:.0} % of it.",
            impaired::job_name(clean),
            number(before),
            number(after),
            100.0 * after / before
        ));
    }
    let ((typical, typical_lossy), (tail, tail_lossy)) = (both("t_typical")?, both("99.9 %")?);
    Some(format!(
        "{}: at {loss} % of loss the typical latency goes from {} to {} us, the 99.9th percentile from {} to {} us.",
        impaired::job_name(clean),
        number(typical),
        number(typical_lossy),
        number(tail),
        number(tail_lossy)
    ))
}
