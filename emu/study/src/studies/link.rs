//! What do the length and the rate of the link do?

use super::impaired::{self, Impaired};
use super::{Plan, Scope, Study};
use crate::driver::DeviceFacts;
use crate::output::number::number;
use crate::output::report::Page;
use crate::output::table::Layout;
use crate::output::{Figure, Scale};
use crate::record::{Cell, Record};

pub(super) const STUDY: Study = Study {
    name: "link",
    question: "What do the delay and the rate of the link do to goodput and latency?",
    plan,
    page,
};

/// Microseconds each way.
const DELAYS: [&str; 5] = ["0", "50", "200", "1000", "5000"];
/// 10^6 bytes per second each way.
const RATES: [&str; 4] = [UNLIMITED, "1000", "100", "10"];
const UNLIMITED: &str = "unlimited";

/// The parameters.
const DELAY: &str = "delay us";
const RATE: &str = "rate MB/s";

fn plan(scope: &Scope, device: &DeviceFacts) -> Result<Plan, String> {
    let all = DELAYS.iter().flat_map(|delay| RATES.map(|rate| (*delay, rate)));
    // Without --full one of the two at a time.
    let networks = all.filter(|(delay, rate)| scope.full || *delay == "0" || *rate == UNLIMITED);
    let networks = networks.map(|(delay, rate)| {
        let mut flags = Vec::new();
        if delay != "0" {
            flags.push(("delay", format!("{delay}us")));
        }
        if rate != UNLIMITED {
            flags.push(("rate", format!("{rate}MB/s")));
        }
        Impaired { at: vec![(DELAY, delay.to_owned()), (RATE, rate.to_owned())], flags }
    });
    impaired::plan(STUDY.name, scope, device, networks)
}

fn page(record: &Record) -> Page {
    let figure = |title: &str, (x, x_label): (&str, &str), metric: &str, only: &[(&str, &str)]| Figure {
        x_label: x_label.to_owned(),
        x_scale: Scale::Categories,
        only: only.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
        ..Figure::new(title, x, metric)
    };
    let by_delay = (DELAY, "delay of each direction [us]");
    let by_rate = (RATE, "rate of each direction [MB/s]");
    let latency = ("test", impaired::LATENCY);
    let mut figures = vec![
        figure("Goodput against delay", by_delay, "BW average", &[(RATE, UNLIMITED)]),
        figure("SEND latency against delay", by_delay, "t_typical", &[(RATE, UNLIMITED), latency]),
        figure("Goodput against rate", by_rate, "BW average", &[(DELAY, "0")]),
        figure("SEND latency against rate", by_rate, "t_typical", &[(DELAY, "0"), latency]),
    ];
    if record.cells.iter().any(|cell| !is_unlimited(cell) && !is_short(cell)) {
        let put = [("test", impaired::PUT)];
        figures.push(figure("WRITE goodput against rate and delay", by_rate, "BW average", &put));
    }
    Page {
        title: "The link".to_owned(),
        question: STUDY.question.to_owned(),
        findings: findings(record),
        figures,
        layout: Layout::Perftest,
        extra: Vec::new(),
    }
}

fn is_unlimited(cell: &Cell) -> bool {
    cell.value(RATE) == Some(UNLIMITED)
}

fn is_short(cell: &Cell) -> bool {
    cell.value(DELAY) == Some("0")
}

/// A sentence for each job on the longest link, then on the narrowest.
fn findings(record: &Record) -> Vec<String> {
    let long = last_of_each_job(record, |cell| is_unlimited(cell) && !is_short(cell));
    let narrow = last_of_each_job(record, |cell| !is_unlimited(cell) && is_short(cell));
    long.into_iter().filter_map(of_delay).chain(narrow.into_iter().filter_map(of_rate)).collect()
}

/// Of the cells that are `wanted`, the last one of each job.
fn last_of_each_job(record: &Record, wanted: impl Fn(&&Cell) -> bool) -> Vec<&Cell> {
    let mut last: Vec<&Cell> = Vec::new();
    for cell in record.cells.iter().filter(wanted) {
        last.retain(|before| !impaired::same_job(before, cell));
        last.push(cell);
    }
    last
}

fn of_delay(cell: &Cell) -> Option<String> {
    let (name, delay) = (impaired::job_name(cell), cell.value(DELAY)?.parse::<f64>().ok()?);
    if let Some(goodput) = cell.median("BW average") {
        // MB/s times us are bytes.
        let flying = goodput * 2.0 * delay / 1024.0;
        let goodput = number(goodput);
        return Some(format!(
            "Over {delay} us each way {name} moves {goodput} MB/s: {} KiB in each round trip.",
            number(flying)
        ));
    }
    let typical = cell.median("t_typical")?;
    Some(format!(
        "Over {delay} us each way {name} takes {} us, {} more.",
        number(typical),
        number(typical - delay)
    ))
}

fn of_rate(cell: &Cell) -> Option<String> {
    let rate = cell.value(RATE)?.parse::<f64>().ok()?;
    let goodput = cell.median("BW average")?;
    let (name, part) = (impaired::job_name(cell), 100.0 * goodput / rate);
    Some(format!("Of {rate} MB/s {name} uses {part:.0} % for payload."))
}
