//! Made-up records that look like those of studies, for pages to be looked at.
#![allow(dead_code, reason = "no user uses all of them")]

use urxe_study::output::report::Page;
use urxe_study::output::table::Layout;
use urxe_study::output::{Figure, Mark, Shape};
use urxe_study::record::{Better, Record};
use urxe_study::reference;

use super::{Random, cell, metric, record};

/// Five samples around a value, with noise of a share of it.
fn around(random: &mut Random, value: f64, noise: f64) -> Vec<f64> {
    (0..5).map(|_| value * (noise * random.normal()).exp()).collect()
}

/// Two protocols by size, as `long-am` has.
pub(crate) fn sizes() -> (Record, Page) {
    let mut random = Random::new(7);
    let mut cells = Vec::new();
    for protocol in ["pipeline", "read"] {
        for exponent in 0..=22 {
            let bytes = f64::from(1u32 << exponent);
            let (start, speed) = if protocol == "read" { (9.0, 3900.0) } else { (5.5, 1700.0) };
            let samples = around(&mut random, bytes / (start + bytes / speed), 0.03);
            let at = [("protocol", protocol), ("bytes", &bytes.to_string())];
            cells.push(cell(&at, vec![metric("bandwidth", "MB/s", Better::More, &samples)]));
        }
    }
    let mut record = record(cells);
    record.study = "long-am".into();
    record.command = ["urxe", "study", "long-am", "--sizes", "1:4 MiB"].map(Into::into).into();
    let figure = Figure {
        x_label: "message size [bytes]".into(),
        references: reference::long_am(),
        marks: vec![Mark { at: "8192".into(), label: "crossover at 8 KiB".into() }],
        ..Figure::new("Bandwidth by message size", "bytes", "bandwidth")
    };
    let page = Page {
        title: "Long active messages".into(),
        question: "Read or pipeline for long messages?".into(),
        findings: vec![
            "Pipelining is faster up to 4 KiB, RDMA READ from 8 KiB on.".into(),
            "At 1 MiB READ reaches 3.6 GB/s, pipelining 1.6 GB/s.".into(),
        ],
        figures: vec![figure],
        layout: Layout::Figures,
        extra: Vec::new(),
    };
    (record, page)
}

/// Modes with two tests, as `tasks` has.
pub(crate) fn modes() -> (Record, Page) {
    let mut random = Random::new(9);
    let mut cells = Vec::new();
    for (mode, factor) in [("inline", 1.0), ("workqueue", 0.7), ("auto", 0.95)] {
        for (pairs, gain) in [("1", 1.0), ("8", 1.4)] {
            let mut around = |value: f64, noise: f64| around(&mut random, value * factor * gain, noise);
            let at = [("test", "send_bw"), ("tasks", mode), ("queue pairs", pairs), ("bytes", "65536")];
            let bandwidth = vec![
                metric("BW peak", "MB/s", Better::More, &around(3300.0, 0.01)),
                metric("BW average", "MB/s", Better::More, &around(3010.0, 0.04)),
                metric("MsgRate", "Mpps", Better::More, &around(0.046, 0.04)),
            ];
            cells.push(cell(&at, bandwidth));
        }
        let mut around = |value: f64, noise: f64| around(&mut random, value / factor, noise);
        let at = [("test", "send_lat"), ("tasks", mode), ("queue pairs", "1"), ("bytes", "2")];
        let values = [3.1, 210.0, 4.0, 4.3, 1.1, 7.9, 19.0];
        let names = urxe_study::stats::Latency::NAMES;
        let latencies = names
            .iter()
            .zip(values)
            .map(|(name, value)| metric(name, "us", Better::Less, &around(value, 0.05)));
        cells.push(cell(&at, latencies.collect()));
    }
    let mut record = record(cells);
    record.study = "tasks".into();
    record.facts = urxe_study::record::facts();
    let figures = vec![
        Figure { shape: Shape::Bars, ..Figure::new("Send bandwidth, 64 KiB", "tasks", "BW average") },
        Figure { shape: Shape::Bars, ..Figure::new("Send latency, 2 B", "tasks", "t_typical") },
    ];
    let page = Page {
        title: "Where tasks run".into(),
        question: "Inline tasks or a work queue?".into(),
        findings: vec!["Inline is faster.".into()],
        figures,
        layout: Layout::Perftest,
        extra: Vec::new(),
    };
    (record, page)
}
