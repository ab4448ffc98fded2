//! Comparisons of two results.

use std::fs;
use std::path::PathBuf;

use urxe_study::compare::{self, Comparison, FailIf, NotComparable, compare, compare_files};
use urxe_study::output::terminal::{self, Colour};
use urxe_study::record::{Better, Cell, Ended, Record};
use urxe_study::stats::Verdict;

mod support;
use support::{Random, cell, latency, metric, record};

/// Two sizes, three repetitions each.
fn cells(first: [f64; 3], second: [f64; 3]) -> Vec<Cell> {
    vec![latency(&[("bytes", "8")], &first), latency(&[("bytes", "4096")], &second)]
}

fn verdicts(comparison: &Comparison) -> Vec<Verdict> {
    comparison.rows.iter().map(|row| row.verdict).collect()
}

fn condition(text: &str) -> FailIf {
    text.parse().unwrap()
}

#[test]
fn a_clear_change_has_a_verdict_and_noise_has_none() {
    let before = record(cells([4.0, 4.1, 4.2], [9.0, 9.5, 10.0]));
    let after = record(cells([5.0, 5.1, 5.2], [9.1, 9.6, 9.8]));
    let comparison = compare(&before, &after).unwrap();
    assert_eq!(verdicts(&comparison), [Verdict::Worse, Verdict::NoDifferenceShown]);
    assert_eq!(verdicts(&compare(&after, &before).unwrap())[0], Verdict::Better);
    let first = &comparison.rows[0];
    assert_eq!((first.before.median, first.after.median), (4.1, 5.1));
}

#[test]
fn a_record_does_not_differ_from_itself() {
    let same = record(cells([4.0, 4.1, 4.2], [9.0, 9.0, 9.0]));
    let comparison = compare(&same, &same).unwrap();
    assert_eq!(verdicts(&comparison), [Verdict::NoDifferenceShown; 2]);
    assert_eq!((comparison.missing, comparison.differing), (vec![], vec![]));
}

#[test]
fn two_repetitions_are_too_few() {
    let few = |value| record(vec![latency(&[("bytes", "8")], &[value, value + 0.01])]);
    assert_eq!(verdicts(&compare(&few(1.0), &few(9.0)).unwrap()), [Verdict::TooFewSamples]);
}

#[test]
fn results_of_other_questions_are_refused_with_what_differs() {
    let base = record(cells([1.0; 3], [2.0; 3]));
    let refused = |change: &dyn Fn(&mut Record)| {
        let mut other = base.clone();
        change(&mut other);
        compare(&base, &other).unwrap_err().to_string()
    };
    assert_eq!(
        refused(&|other| other.study = "inject".into()),
        "the first is of study 'made-up', the second of 'inject': only results of one study can be compared"
    );
    assert_eq!(
        refused(&|other| other
            .cells
            .iter_mut()
            .for_each(|cell| cell.at.push(("tasks".into(), "auto".into())))),
        "the first has the parameters (bytes), the second (bytes, tasks)"
    );
    assert_eq!(
        refused(&|other| drop(other.cells.pop())),
        "only the first has measured bytes=4096; run both with the same options"
    );
    assert_eq!(
        refused(&|other| other.cells.push(latency(&[("bytes", "16")], &[1.0; 3]))),
        "only the second has measured bytes=16; run both with the same options"
    );
    assert_eq!(
        refused(&|other| other.cells[1].metrics[0].unit = "ns".into()),
        "at bytes=4096 the first has t_typical in us, the second t_typical in ns"
    );
}

#[test]
fn an_interrupted_run_is_compared_as_far_as_it_came() {
    let complete = record(cells([1.0; 3], [2.0; 3]));
    let mut interrupted = complete.clone();
    interrupted.ended = Ended::Interrupted;
    interrupted.cells.pop();
    for (first, second) in [(&complete, &interrupted), (&interrupted, &complete)] {
        let comparison = compare(first, second).unwrap();
        assert_eq!((comparison.rows.len(), comparison.missing), (1, vec!["bytes=4096".to_string()]));
    }
    interrupted.cells[0].metrics[0].samples.clear();
    assert_eq!(compare(&complete, &interrupted), Err(NotComparable::Nothing));
}

#[test]
fn what_else_differs_is_listed() {
    let before = record(cells([1.0; 3], [2.0; 3]));
    let mut after = before.clone();
    after.device = "rxe0".into();
    after.facts = vec![("governor".into(), "powersave".into())];
    let found = compare(&before, &after).unwrap().differing;
    let lines: Vec<_> = found.iter().map(|d| [&d.name[..], &d.before, &d.after]).collect();
    assert_eq!(lines, [["device", "urxe 0.1.0", "rxe0"], ["CPUs", "0-1", ""], ["governor", "", "powersave"]]);
}

#[test]
fn the_condition_is_of_one_form() {
    assert_eq!(condition("worse:5%").to_string(), "worse:5%");
    assert_eq!(condition("worse:0.5%").to_string(), "worse:0.5%");
    for wrong in
        ["", "worse", "worse:5", "better:5%", "worse:-1%", "worse:%", "worse:nan%", "worse:inf%", "5%"]
    {
        let message = wrong.parse::<FailIf>().unwrap_err();
        assert_eq!(message, format!("'{wrong}' is no condition; it has the form worse:5%"));
    }
}

#[test]
fn only_what_is_shown_to_be_worse_by_more_fails() {
    let before = record(cells([4.0, 4.1, 4.2], [9.0, 9.5, 10.0]));
    // 4.1 to 5.1 is 24.4 %; the other is 10 % worse within its noise.
    let after = record(cells([5.0, 5.1, 5.2], [8.0, 10.35, 13.0]));
    let comparison = compare(&before, &after).unwrap();
    assert_eq!(condition("worse:5%").failing(&comparison).len(), 1);
    assert_eq!(condition("worse:24.3%").failing(&comparison).len(), 1);
    assert_eq!(condition("worse:24.5%").failing(&comparison).len(), 0);
    let better = compare(&after, &before).unwrap();
    assert_eq!(condition("worse:0%").failing(&better).len(), 0);
}

#[test]
fn what_was_zero_and_is_worse_fails_whatever_the_share() {
    let faults = |value| record(vec![cell(&[], vec![metric("faults", "1", Better::Less, &[value; 3])])]);
    let comparison = compare(&faults(0.0), &faults(7.0)).unwrap();
    assert_eq!(comparison.rows[0].change.percent, None);
    assert_eq!(condition("worse:1000%").failing(&comparison).len(), 1);
}

/// Thirty metrics, five repetitions, of a skewed distribution as latencies have.
fn random_record(random: &mut Random, factor: f64) -> Record {
    let mut samples = || (0..5).map(|_| factor * 10.0 * (0.02 * random.normal()).exp()).collect::<Vec<_>>();
    record((0..30).map(|index| latency(&[("bytes", &index.to_string())], &samples())).collect())
}

#[test]
fn runs_of_the_same_seldom_seem_to_differ() {
    let mut random = Random::new(1);
    let alarms = (0..400)
        .filter(|_| {
            let (before, after) = (random_record(&mut random, 1.0), random_record(&mut random, 1.0));
            let comparison = compare(&before, &after).unwrap();
            verdicts(&comparison).iter().any(|verdict| *verdict != Verdict::NoDifferenceShown)
        })
        .count();
    // 5 % are expected, 20 of 400, with a standard deviation of 4.4.
    assert!((1..=33).contains(&alarms), "{alarms} of 400 comparisons");
}

#[test]
fn a_loss_of_a_tenth_is_shown_in_every_metric() {
    let mut random = Random::new(2);
    let (before, after) = (random_record(&mut random, 1.0), random_record(&mut random, 1.1));
    let comparison = compare(&before, &after).unwrap();
    assert_eq!(verdicts(&comparison), [Verdict::Worse; 30]);
}

#[test]
fn the_table_has_both_figures_the_change_and_the_verdict() {
    let before = record(cells([4.0, 4.1, 4.2], [9.0, 9.5, 10.0]));
    let after = record(cells([5.0, 5.1, 5.2], [9.1, 9.6, 9.8]));
    let table = compare(&before, &after).unwrap().table();
    let text = terminal::render(&table, Colour::Off);
    let line = |start: &str| text.lines().find(|line| line.trim_start().starts_with(start)).unwrap();
    let words: Vec<&str> = line("8 ").split("  ").map(str::trim).filter(|word| !word.is_empty()).collect();
    assert_eq!(
        words,
        [
            "8",
            "t_typical [us]",
            "4.10 ±0.10",
            "5.10 ±0.10",
            "+24.4 %",
            "+18.9 % to +29.9 %",
            "7.07",
            "+1.00",
            "worse"
        ]
    );
    assert_eq!(line("Of 2 metrics"), "Of 2 metrics: 1 worse, 1 no difference shown.");
    assert!(!text.contains('\x1b'));
    let coloured = terminal::render(&table, Colour::On);
    assert!(coloured.lines().any(|line| line.starts_with("\x1b[31m8 ") && line.ends_with("worse\x1b[0m")));
}

#[test]
fn files_are_compared_by_one_call() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    record(cells([4.0, 4.1, 4.2], [9.0, 9.5, 10.0])).save(&path("a.json")).unwrap();
    record(cells([5.0, 5.1, 5.2], [9.1, 9.6, 9.8])).save(&path("b.json")).unwrap();
    let args = |before: PathBuf, after, json| {
        compare_files(&compare::Args { before, after, fail_if: Some(condition("worse:5%")), json })
    };
    let outcome = args(path("a.json"), path("b.json"), true).unwrap();
    assert_eq!(outcome.failing, ["t_typical at bytes=8 is worse by 24.4 %"]);
    let json: serde_json::Value = serde_json::from_str(&outcome.text).unwrap();
    assert_eq!(json["rows"][0]["at"]["bytes"], "8");
    assert_eq!(json["rows"][0]["verdict"], "worse");
    assert_eq!(args(path("b.json"), path("a.json"), false).unwrap().failing, Vec::<String>::new());

    fs::write(path("c.json"), "{}").unwrap();
    let message = args(path("a.json"), path("c.json"), false).unwrap_err();
    assert!(message.contains("c.json is no results file of urxe study: missing field `format`"), "{message}");
}
