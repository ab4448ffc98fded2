//! Tables and CSV.

use urxe_study::compare::{contrast, contrast_table};
use urxe_study::output::table::{Layout, tables};
use urxe_study::output::terminal::{Colour, render};
use urxe_study::output::{Figure, number, to_csv};
use urxe_study::record::Better;
use urxe_study::stats::Verdict;

use crate::support::{cell, latency, metric, record, samples};

#[test]
fn numbers_have_the_digits_that_mean_something() {
    let four = [3012.25, 34.234, 0.0038541, 0.0, 123_456.7, 1e-12].map(number::number);
    assert_eq!(four, ["3012", "34.23", "0.003854", "0", "123457", "0.000000"]);
    assert_eq!(number::with_error(3012.25, Some(28.4)), "3012 ±28");
    assert_eq!(number::with_error(0.7412, Some(0.0123)), "0.741 ±0.012");
    assert_eq!(number::with_error(12.345, Some(0.000_1)), "12.35 ±0.00");
    assert_eq!(number::with_error(12.345, Some(0.0)), "12.35 ±0");
    assert_eq!(number::with_error(12.345, None), "12.35");
    assert_eq!(
        [1.0, 512.0, 1536.0, 65536.0, 4_194_304.0].map(number::binary),
        ["1", "512", "1536", "64 Ki", "4 Mi"]
    );
    assert_eq!([0.3 - 0.1, 1000.0, 2e-7, 3e9].map(number::short), ["0.2", "1000", "2e-7", "3e9"]);
}

#[test]
fn cells_with_other_metrics_have_a_table_of_their_own() {
    let (record, page) = samples::modes();
    let tables = tables(&record, Layout::Perftest, &page.figures);
    let text: Vec<String> = tables.iter().map(|table| render(table, Colour::Off)).collect();
    let lines = |index: usize| text[index].lines().collect::<Vec<_>>();
    assert_eq!(lines(0)[0], "test=send_bw, bytes=65536");
    assert_eq!(
        lines(0)[1].split_whitespace().collect::<Vec<_>>().join(" "),
        "tasks queue pairs BW peak[MB/sec] BW average[MB/sec] MsgRate[Mpps]"
    );
    assert_eq!(lines(0).len(), 2 + 6);
    assert_eq!(lines(1)[0], "test=send_lat, queue pairs=1, bytes=2");
    assert!(lines(1)[1].ends_with("t_stdev[usec]  99% percentile[usec]  99.9% percentile[usec]"));
    assert!(
        lines(1)[5].starts_with("Medians of the repetitions. Standard deviation between them: BW peak 0.")
    );
}

#[test]
fn a_table_has_medians_with_their_errors() {
    let record = record(vec![
        latency(&[("tasks", "inline"), ("bytes", "8")], &[4.1, 4.0, 4.3]),
        latency(&[("tasks", "auto"), ("bytes", "8")], &[12.0]),
        latency(&[("tasks", "workqueue"), ("bytes", "8")], &[]),
    ]);
    let [table] = tables(&record, Layout::Uncertain, &[]).try_into().unwrap();
    assert_eq!(
        render(&table, Colour::Off),
        "bytes=8\n\
         tasks      t_typical [us]\n\
         inline         4.10 ±0.20\n\
         auto                12.00\n\
         workqueue\n\
         ± covers the median with 95 %; of fewer than 6 repetitions it is their range.\n"
    );
}

#[test]
fn a_figure_as_a_table_has_a_column_for_each_curve() {
    let (record, page) = samples::sizes();
    let [table] = tables(&record, Layout::Figures, &page.figures).try_into().unwrap();
    let titles: Vec<_> = table.columns.iter().map(|column| &column.title[..]).collect();
    assert_eq!(
        titles,
        ["message size [bytes]", "pipeline", "read", "published: pipeline", "published: read"]
    );
    assert_eq!((table.rows.len(), &table.rows[0].cells[3][..]), (23, "0.04"));
    let missing = Figure::new("Faults", "bytes", "faults");
    assert_eq!(tables(&record, Layout::Figures, &[missing]), []);
}

#[test]
fn a_record_without_cells_has_no_tables() {
    for layout in [Layout::Uncertain, Layout::Perftest, Layout::Figures] {
        assert_eq!(tables(&record(vec![]), layout, &[]), []);
    }
}

#[test]
fn a_value_is_one_line_on_the_terminal() {
    let record = record(vec![latency(&[("p", "a\n\x1b[31mb")], &[1.0]), latency(&[("p", "c")], &[1.0])]);
    let [table] = tables(&record, Layout::Uncertain, &[]).try_into().unwrap();
    let text = render(&table, Colour::Off);
    assert!(text.contains("a  [31mb") && !text.contains('\x1b'), "{text:?}");
}

#[test]
fn csv_has_one_sample_a_line_and_quotes_what_needs_it() {
    let record = record(vec![
        latency(&[("tasks", "in,line"), ("bytes", "8")], &[4.5, 0.1]),
        cell(&[("tasks", "a \"b\""), ("bytes", "16")], vec![metric("rate", "Mops/s", Better::More, &[1e9])]),
    ]);
    assert_eq!(
        to_csv(&record),
        "tasks,bytes,metric,unit,repetition,value\n\
         \"in,line\",8,t_typical,us,1,4.5\n\
         \"in,line\",8,t_typical,us,2,0.1\n\
         \"a \"\"b\"\"\",16,rate,Mops/s,1,1000000000\n"
    );
}

#[test]
fn two_values_of_a_parameter_are_judged_at_two_sigma() {
    // Means 10 and 20, deviations 1 and 1: 10 / sqrt(2) = 7.0711. The other size overlaps: 0.5 / sqrt(2) = 0.3536.
    let record = record(vec![
        latency(&[("api", "old"), ("bytes", "8")], &[9.0, 10.0, 11.0]),
        latency(&[("api", "new"), ("bytes", "8")], &[19.0, 20.0, 21.0]),
        latency(&[("api", "new"), ("bytes", "16")], &[9.5, 10.5, 11.5]),
        latency(&[("api", "old"), ("bytes", "16")], &[9.0, 10.0, 11.0]),
        latency(&[("api", "old"), ("bytes", "32")], &[9.0, 10.0, 11.0]),
    ]);
    let contrasts = contrast(&record, "api", "old", "new", 2.0);
    let verdicts: Vec<_> = contrasts.iter().map(|contrast| contrast.verdict).collect();
    assert_eq!(verdicts, [Verdict::Worse, Verdict::NoDifferenceShown]);
    let table = contrast_table(&contrasts, "old", "new");
    assert_eq!(
        table.rows[0].cells,
        [
            "bytes=8 t_typical [us]",
            "10.00 ± 1.000 (10.0 %)",
            "20.00 ± 1.000 (5.0 %)",
            "10.00",
            "7.0711",
            "worse"
        ]
    );
    assert_eq!(table.rows[1].cells[4], "0.3536");
}
