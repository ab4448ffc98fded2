//! The statistics against figures that were computed by hand.

use hdrhistogram::Histogram;
use urxe_study::record::Better;
use urxe_study::reference;
use urxe_study::stats::{Change, Interval, Latency, MeanDeviation, SigmaDifference, Summary, Verdict};

mod support;
use support::{latency, record};

/// Fails unless `found` is `expected` to the digits that a table has.
#[track_caller]
fn close(found: f64, expected: f64, tolerance: f64) {
    assert!((found - expected).abs() <= tolerance, "{found} is not {expected} ± {tolerance}");
}

#[track_caller]
fn close_interval(found: Option<Interval>, low: f64, high: f64, confidence: f64) {
    let found = found.expect("there are enough samples");
    close(found.low, low, 5e-4);
    close(found.high, high, 5e-4);
    close(found.confidence, confidence, 5e-5);
}

#[test]
fn a_summary_of_eight_samples_is_as_computed_by_hand() {
    // Sum 40, mean 5; squared distances 9 1 1 1 0 0 4 16, sum 32; 32 / 7 = 4.5714, its root 2.13809.
    // t(7 degrees of freedom, 97.5 %) = 2.36462; 2.36462 * 2.13809 / sqrt(8) = 1.78749.
    // Both ends are outside with probability 2 / 2^8 = 0.0078; the second ones with 2 * (1 + 8) / 2^8 = 0.0703, too much.
    let summary = Summary::of(&[9.0, 4.0, 5.0, 2.0, 4.0, 7.0, 4.0, 5.0]).unwrap();
    assert_eq!((summary.count, summary.min, summary.max), (8, 2.0, 9.0));
    assert_eq!((summary.mean, summary.median), (5.0, 4.5));
    close(summary.stddev.unwrap(), 2.13809, 5e-6);
    close(summary.percent_stddev().unwrap(), 42.7618, 5e-5);
    close_interval(summary.mean_interval, 5.0 - 1.78749, 5.0 + 1.78749, 0.95);
    close_interval(summary.median_interval, 2.0, 9.0, 0.9922);
    close(summary.median_error().unwrap(), 4.5, 0.0);
}

#[test]
fn the_median_of_ten_samples_is_between_the_second_and_the_ninth() {
    // Outside with probability 2 * (1 + 10) / 2^10 = 0.0215; the third and the eighth with 2 * (1 + 10 + 45) / 2^10 = 0.109.
    let samples: Vec<f64> = (1..=10).map(f64::from).collect();
    close_interval(Summary::of(&samples).unwrap().median_interval, 2.0, 9.0, 0.9785);
}

#[test]
fn three_samples_give_their_range_with_the_confidence_that_it_has() {
    // 1 - 2 / 2^3 = 0.75. Mean 2, standard deviation 1, t(2, 97.5 %) = 4.30265; / sqrt(3) = 2.48414.
    let summary = Summary::of(&[3.0, 1.0, 2.0]).unwrap();
    close_interval(summary.median_interval, 1.0, 3.0, 0.75);
    close_interval(summary.mean_interval, 2.0 - 2.48414, 2.0 + 2.48414, 0.95);
}

#[test]
fn one_sample_has_no_spread_and_none_has_no_summary() {
    let one = Summary::of(&[7.5]).unwrap();
    assert_eq!((one.mean, one.median), (7.5, 7.5));
    assert_eq!((one.stddev, one.mean_interval, one.median_interval), (None, None, None));
    assert_eq!(Summary::of(&[]), None);
}

#[test]
fn latencies_are_summed_up_as_perftest_does() {
    // 1 to 1000 ns once each: mean 500.5, population deviation sqrt((1000² - 1) / 12) = 288.675.
    let mut histogram = Histogram::<u64>::new(3).unwrap();
    (1..=1000).for_each(|ns| histogram.record(ns).unwrap());
    let latency = Latency::of(&histogram).unwrap();
    assert_eq!(latency.count, 1000);
    assert_eq!((latency.min, latency.max, latency.typical), (0.001, 1.0, 0.5));
    assert_eq!((latency.average, latency.p99, latency.p999), (0.5005, 0.99, 0.999));
    close(latency.deviation, 0.288675, 5e-7);
    assert_eq!(latency.values()[2], latency.typical);
    assert_eq!(Latency::of(&Histogram::<u64>::new(3).unwrap()), None);
}

#[test]
fn the_published_sigmas_follow_from_the_published_means_and_deviations() {
    let rows = reference::wr_api();
    assert_eq!(rows.len(), 5);
    for row in rows {
        let found = SigmaDifference::between(row.before(), row.after());
        // As many digits as are printed.
        close(found.difference.abs(), row.abs_diff, 5e-5 + 1e-9);
        close(found.sigma, row.sigma, 5e-5);
        assert_eq!(found.verdict(row.better(), 2.0), Verdict::NoDifferenceShown, "{}", row.metric);
    }
}

#[test]
fn a_difference_of_two_sigma_is_shown_at_two_sigma() {
    // sqrt(3² + 4²) = 5; 10 / 5 = 2.
    let before = MeanDeviation { mean: 100.0, stddev: 3.0 };
    let after = MeanDeviation { mean: 110.0, stddev: 4.0 };
    let found = SigmaDifference::between(before, after);
    assert_eq!((found.difference, found.sigma), (10.0, 2.0));
    assert_eq!(found.verdict(Better::More, 2.0), Verdict::Better);
    assert_eq!(found.verdict(Better::Less, 2.0), Verdict::Worse);
    assert_eq!(found.verdict(Better::Less, 2.01), Verdict::NoDifferenceShown);
}

#[test]
fn a_change_is_as_computed_by_hand() {
    // Means 2 and 5, variances 1 and 1; standard error sqrt(1/3 + 1/3) = 0.816497, t = 3 / 0.816497 = 3.67423.
    // Degrees of freedom (2/3)² / ((1/3)² / 2 + (1/3)² / 2) = 4. t(4, 97.5 %) = 2.77645; * 0.816497 = 2.26696.
    // With 4 degrees of freedom P(T < t) = 1/2 + 3/8 u (1 - u²/12), u = t / sqrt(1 + t²/4) = 1.75662: 0.989344.
    // So p = 2 * (1 - 0.989344) = 0.021312. Pooled deviation 1, correction 1 - 3 / (4 * 4 - 1) = 0.8, g = 3 * 0.8.
    let change = Change::between(&[1.0, 2.0, 3.0], &[4.0, 5.0, 6.0]).unwrap();
    assert_eq!((change.absolute, change.percent), (3.0, Some(150.0)));
    close_interval(change.interval, 3.0 - 2.26696, 3.0 + 2.26696, 0.95);
    close(change.p_value.unwrap(), 0.021312, 2e-6);
    close(change.sigma.unwrap(), 3.0 / 2f64.sqrt(), 1e-12);
    close(change.hedges_g.unwrap(), 2.4, 1e-12);
    assert_eq!(change.cliffs_delta, 1.0);
    assert_eq!(change.verdict(Better::More, 0.05), Verdict::Better);
    assert_eq!(change.verdict(Better::Less, 0.05), Verdict::Worse);
    assert_eq!(change.verdict(Better::Less, 0.02), Verdict::NoDifferenceShown);
}

#[test]
fn sets_that_overlap_have_cliffs_delta_of_their_pairs() {
    // Pairs (after, before): 2 > 1, 2 = 2, 2 < 4, 3 > 1, 3 > 2, 3 < 4: 3 above, 2 below, of 6.
    let change = Change::between(&[1.0, 2.0, 4.0], &[2.0, 3.0]).unwrap();
    close(change.cliffs_delta, 1.0 / 6.0, 1e-12);
}

#[test]
fn sets_of_different_spread_are_compared_by_welch() {
    // Variances 4 and 6, shares 4/3 and 6/4, standard error sqrt(17/6) = 1.683251.
    // Degrees of freedom (17/6)² / ((4/3)² / 2 + (3/2)² / 3) = 8.027778 / 1.638889 = 4.898305.
    // t(4.898305, 97.5 %) = 2.587; a table has 2.776 for 4 and 2.571 for 5.
    let change = Change::between(&[10.0, 12.0, 14.0], &[20.0, 23.0, 26.0, 23.0]).unwrap();
    let interval = change.interval.unwrap();
    let factor = (interval.high - interval.low) / 2.0 / 1.683251;
    assert!((2.571..2.62).contains(&factor), "{factor}");
}

#[test]
fn two_samples_show_nothing() {
    let change = Change::between(&[1.0, 1.001], &[9.0, 9.001, 9.002]).unwrap();
    assert_eq!(change.p_value, None);
    assert_eq!(change.verdict(Better::More, 0.05), Verdict::TooFewSamples);
    assert_eq!(Change::between(&[1.0], &[2.0]).unwrap().verdict(Better::More, 0.05), Verdict::TooFewSamples);
    assert_eq!(Change::between(&[], &[1.0]), None);
}

#[test]
fn samples_that_do_not_vary_are_exact() {
    let same = Change::between(&[0.1; 3], &[0.1; 5]).unwrap();
    assert_eq!((same.absolute, same.p_value), (0.0, Some(1.0)));
    assert_eq!(same.verdict(Better::Less, 0.05), Verdict::NoDifferenceShown);
    let more = Change::between(&[64.0; 3], &[128.0; 3]).unwrap();
    assert_eq!((more.percent, more.sigma, more.hedges_g), (Some(100.0), None, None));
    assert_eq!(more.verdict(Better::Less, 0.05), Verdict::Worse);
}

#[test]
fn noise_is_that_of_the_median_cell_and_of_the_noisiest() {
    // Percent deviations: of 99 100 101: 1; of 95 100 105: 5; of 98 100 102: 2. Median 2.
    let record = record(vec![
        latency(&[("bytes", "1")], &[99.0, 100.0, 101.0]),
        latency(&[("bytes", "2")], &[95.0, 100.0, 105.0]),
        latency(&[("bytes", "4")], &[98.0, 100.0, 102.0]),
    ]);
    let [noise] = urxe_study::stats::noise(&record).try_into().unwrap();
    assert_eq!((noise.metric.as_str(), noise.cells), ("t_typical", 3));
    close(noise.median_percent, 2.0, 1e-9);
    close(noise.max_percent, 5.0, 1e-9);
    assert_eq!(noise.noisiest, [("bytes".to_string(), "2".to_string())]);
}

#[test]
fn every_published_file_is_read_whole() {
    let tasks = reference::tasks();
    assert_eq!(tasks.len(), 4);
    let typical = |mode: &str| tasks.iter().find_map(|row| row.typical.filter(|_| row.mode == mode));
    assert_eq!((typical("tasklet"), typical("workqueue")), (Some(34.23), Some(47.8)));
    assert_eq!((tasks[1].bandwidth, tasks[1].rate), (Some(240.88), Some(0.003854)));

    for (operation, unit, hybrid) in
        [("fetching_amo", "Mops/s", 19.98), ("get", "Mops/s", 20.54), ("indexgather", "GB/s", 0.236)]
    {
        let [cached, last] = reference::registration(operation).try_into().unwrap();
        assert_eq!((cached.name.as_str(), last.name.as_str()), ("cached", "hybrid"));
        assert_eq!((cached.points.len(), last.unit), (4, unit));
        assert_eq!(last.points[3], ("64".into(), hybrid));
    }
    assert_eq!(reference::registration("put"), []);

    let [pipeline, read] = reference::long_am().try_into().unwrap();
    assert_eq!((pipeline.name.as_str(), pipeline.points.len()), ("pipeline", 23));
    assert_eq!(read.points[20], ("1048576".into(), 3015.07));

    let [bandwidth_a, bandwidth_b] = reference::inject_bandwidth().try_into().unwrap();
    let [latency_a, latency_b] = reference::inject_latency().try_into().unwrap();
    let columns = [&bandwidth_a, &bandwidth_b, &latency_a, &latency_b];
    assert!(columns.iter().all(|series| series.points.len() == 23));
    assert_eq!(columns.map(|series| series.points[6].1), [15.49, 80.39, 3.94, 0.76]);
    assert_eq!(columns.map(|series| series.unit), ["MB/s", "MB/s", "us", "us"]);
}
