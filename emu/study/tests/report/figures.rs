//! What a figure selects, and how it is drawn.

use urxe_study::output::plot::svg;
use urxe_study::output::{Figure, Mark, NoChart, Origin, Scale, Shape};
use urxe_study::record::{Better, Record};
use urxe_study::reference::Series;

use crate::support::{cell, latency, metric, record, samples};

fn bandwidth(at: &[(&str, &str)], samples: &[f64]) -> urxe_study::record::Cell {
    cell(at, vec![metric("bandwidth", "MB/s", Better::More, samples)])
}

/// Two protocols at three sizes, and another test with another metric.
fn sizes() -> Record {
    record(vec![
        bandwidth(&[("test", "bw"), ("protocol", "read"), ("bytes", "4096")], &[400.0, 410.0, 420.0]),
        bandwidth(&[("test", "bw"), ("protocol", "read"), ("bytes", "8")], &[1.0, 1.1, 1.2]),
        bandwidth(&[("test", "bw"), ("protocol", "pipeline"), ("bytes", "8")], &[2.0, 2.1, 2.2]),
        bandwidth(&[("test", "bw"), ("protocol", "pipeline"), ("bytes", "64")], &[]),
        latency(&[("test", "lat"), ("protocol", "read"), ("bytes", "8")], &[3.0]),
    ])
}

fn published() -> Series {
    let points = vec![("8".into(), 0.5), ("65536".into(), 900.0)];
    Series { name: "read".into(), unit: "MB/s", source: "elsewhere", points }
}

#[test]
fn cells_with_the_metric_become_curves_in_the_order_of_the_axis() {
    let chart = Figure::new("Bandwidth", "bytes", "bandwidth").chart(&sizes()).unwrap();
    let curves: Vec<_> = chart
        .curves
        .iter()
        .map(|curve| {
            (&curve.name[..], curve.points.iter().map(|p| (p.at, p.value, p.interval)).collect::<Vec<_>>())
        })
        .collect();
    assert_eq!(
        curves,
        [
            ("read", vec![(8.0, 1.1, Some((1.0, 1.2))), (4096.0, 410.0, Some((400.0, 420.0)))]),
            ("pipeline", vec![(8.0, 2.1, Some((2.0, 2.2)))]),
        ]
    );
    assert_eq!((chart.x.scale, chart.y.scale), (Scale::Log2, Scale::Log10));
    assert_eq!(chart.y.label, "bandwidth [MB/s]");
}

#[test]
fn published_curves_and_marks_are_on_the_same_axis() {
    let figure = Figure {
        references: vec![published()],
        marks: vec![Mark { at: "64".into(), label: "here".into() }],
        ..Figure::new("Bandwidth", "bytes", "bandwidth")
    };
    let chart = figure.chart(&sizes()).unwrap();
    assert_eq!(chart.places, ["8", "4096", "65536"]);
    let last = chart.curves.last().unwrap();
    assert_eq!((last.origin, last.title()), (Origin::Published("elsewhere"), "published: read".into()));
    assert_eq!(chart.marks, [(64.0, "here".into())]);
}

#[test]
fn only_the_wanted_cells_are_shown() {
    let only = vec![("protocol".into(), "read".into())];
    let figure = Figure { only, ..Figure::new("Bandwidth", "bytes", "bandwidth") };
    let chart = figure.chart(&sizes()).unwrap();
    // Nothing differs but x, so the curve is named for what it shows.
    assert_eq!(chart.curves.iter().map(|curve| &curve.name[..]).collect::<Vec<_>>(), ["bandwidth"]);
}

#[test]
fn numbers_in_names_of_curves_say_what_they_count() {
    let cells = |tasks, pairs, x| latency(&[("tasks", tasks), ("queue pairs", pairs), ("bytes", x)], &[1.0]);
    let record = record(vec![cells("inline", "1", "8"), cells("auto", "8", "8"), cells("auto", "8", "16")]);
    let chart = Figure::new("Latency", "bytes", "t_typical").chart(&record).unwrap();
    let names: Vec<_> = chart.curves.iter().map(|curve| &curve.name[..]).collect();
    assert_eq!(names, ["inline, queue pairs=1", "auto, queue pairs=8"]);
}

#[test]
fn names_zero_and_bars_make_categories_in_the_order_of_the_record() {
    let scale = |values: &[&str], shape| {
        let cells = values.iter().map(|value| latency(&[("x", value)], &[1.0])).collect();
        let chart =
            Figure { shape, ..Figure::new("Latency", "x", "t_typical") }.chart(&record(cells)).unwrap();
        (chart.x.scale, chart.places.join(" "))
    };
    assert_eq!(scale(&["inline", "auto"], Shape::Lines), (Scale::Categories, "inline auto".into()));
    assert_eq!(scale(&["0", "0.1", "1", "5"], Shape::Lines), (Scale::Categories, "0 0.1 1 5".into()));
    assert_eq!(scale(&["16", "1"], Shape::Bars), (Scale::Categories, "16 1".into()));
    assert_eq!(scale(&["16", "1"], Shape::Lines), (Scale::Log2, "1 16".into()));
    assert_eq!(scale(&["4", "1"], Shape::Lines), (Scale::Linear, "1 4".into()));
}

#[test]
fn what_cannot_be_drawn_says_why() {
    let record = sizes();
    let none = Figure::new("Faults", "bytes", "faults").chart(&record);
    assert_eq!(none, Err(NoChart::NoData("Faults".into())));
    let message = |figure: Figure| figure.chart(&record).unwrap_err().to_string();
    assert_eq!(
        message(Figure { x_scale: Scale::Log2, ..Figure::new("Rate", "protocol", "bandwidth") }),
        "'Rate' cannot show protocol=read on its scale"
    );
    let nanoseconds = Series { unit: "ns", ..published() };
    assert_eq!(
        message(Figure { references: vec![nanoseconds], ..Figure::new("Rate", "bytes", "bandwidth") }),
        "'Rate' is in MB/s, but 'read' in ns"
    );
    let zero = super::support::record(vec![latency(&[("bytes", "8")], &[0.0])]);
    let figure = Figure { y_scale: Scale::Log10, ..Figure::new("Latency", "bytes", "t_typical") };
    assert_eq!(
        figure.chart(&zero).unwrap_err().to_string(),
        "'Latency' cannot show t_typical=0 on its scale"
    );
}

#[test]
fn without_a_choice_each_kind_of_cell_has_a_figure_over_what_varies_most() {
    let (record, _) = samples::modes();
    let figures = Figure::defaults(&record);
    let found: Vec<_> = figures.iter().map(|f| (&f.title[..], &f.x[..], f.shape)).collect();
    assert_eq!(
        found,
        [("BW peak by queue pairs", "queue pairs", Shape::Lines), ("t_min by tasks", "tasks", Shape::Bars),]
    );
}

/// All text of an SVG.
fn texts(svg: &str) -> Vec<&str> {
    let inside = svg.split("<text ").skip(1).filter_map(|rest| rest.split_once('>'));
    inside.filter_map(|(_, rest)| rest.split_once("</text>")).map(|(text, _)| text.trim()).collect()
}

#[test]
fn a_plot_has_axes_with_units_ticks_and_a_legend() {
    let (record, page) = samples::sizes();
    let drawn = svg(&page.figures[0].chart(&record).unwrap()).unwrap();
    let texts = texts(&drawn);
    for text in [
        "message size [bytes]",
        "bandwidth [MB/s]",
        "1 Ki",
        "4 Mi",
        "0.1",
        "1000",
        "pipeline",
        "published: read",
        "crossover at 8 KiB",
    ] {
        assert!(texts.contains(&text), "{text} is not among {texts:?}");
    }
    // Only the colours of CSS variables, so that it is legible in light and dark.
    assert!(!drawn.contains("=\"#"), "a colour of its own");
    assert!(drawn.contains("var(--c0)") && drawn.contains("var(--c1)") && !drawn.contains("var(--c2)"));
}

#[test]
fn what_is_in_a_name_stays_text() {
    let nasty = "<b>&\"'";
    let record = record(vec![
        latency(&[("p", nasty), ("bytes", "1")], &[1.0, 2.0]),
        latency(&[("p", "b"), ("bytes", "1")], &[1.0, 2.0]),
    ]);
    let drawn = svg(&Figure::new(nasty, "bytes", "t_typical").chart(&record).unwrap()).unwrap();
    assert!(!drawn.contains("<b>"), "{drawn}");
    assert!(texts(&drawn).contains(&"&lt;b&gt;&amp;&quot;&apos;"), "{drawn}");
}

#[test]
fn one_point_zero_and_equal_values_are_drawn() {
    for values in [vec![5.0], vec![0.0], vec![7.0, 7.0, 7.0], vec![-3.0, 2.0]] {
        for shape in [Shape::Lines, Shape::Bars] {
            let record = record(vec![latency(&[("bytes", "8")], &values)]);
            let chart =
                Figure { shape, ..Figure::new("Latency", "bytes", "t_typical") }.chart(&record).unwrap();
            assert!(svg(&chart).unwrap().ends_with("</svg>\n"));
        }
    }
}
