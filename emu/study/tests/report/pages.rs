//! The report page and the files beside it.

use std::fs;
use std::path::Path;

use urxe_study::output::report::{Page, check_writable, report, to_html};
use urxe_study::output::{ReportArgs, report_file};
use urxe_study::record::{Ended, Record};

use crate::support::{latency, record, samples};

#[test]
fn a_report_is_one_page_with_the_raw_data_beside_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("new/report");
    let (record, page) = samples::modes();
    let index = report(&path, &record, &page).unwrap();
    let mut names: Vec<_> =
        fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    assert_eq!(names, ["index.html", "results.csv", "results.json"]);
    assert_eq!(Record::load(&path.join("results.json")).unwrap(), record);

    let html = fs::read_to_string(index).unwrap();
    for part in [
        "<h1>Where tasks run</h1>",
        "Inline tasks or a work queue?",
        "<li>Inline is faster.</li>",
        "<td class=\"right\">3037.29</td>",
        "99.9% percentile[usec]",
        "urxe study made-up",
        "prefers-color-scheme",
        "load average",
        "noisiest cell",
    ] {
        assert!(html.contains(part), "{part} is missing");
    }
    assert_eq!(html.matches("<svg ").count(), 2);
    // It needs nothing from elsewhere: the only links are to the files beside it.
    let links: Vec<_> = html.split("href=\"").skip(1).map(|rest| rest.split('"').next().unwrap()).collect();
    assert_eq!(links, ["results.json", "results.csv"]);
    assert!(!html.contains("<script") && !html.contains("src=") && !html.contains("@import"));
}

#[test]
fn nothing_that_was_measured_becomes_markup() {
    let nasty = "<script>alert('&')</script>\"";
    let mut record =
        record(vec![latency(&[(nasty, nasty)], &[1.0, 2.0]), latency(&[(nasty, "other")], &[1.0, 2.0])]);
    record.cells.iter_mut().for_each(|cell| cell.metrics[0].name = nasty.into());
    record.command = vec!["urxe".into(), nasty.into()];
    record.device = nasty.into();
    record.settings = vec![(nasty.into(), nasty.into())];
    record.facts = vec![(nasty.into(), nasty.into())];
    record.ended = Ended::Failed(nasty.into());
    let page = Page {
        title: nasty.into(),
        question: nasty.into(),
        findings: vec![nasty.into()],
        ..Page::of(&record)
    };
    let html = to_html(&record, &page);
    assert_eq!(page.figures.len(), 1);
    assert!(html.contains("<svg "), "the figure is there");
    assert!(!html.contains("<script"));
    assert!(
        html.contains(r"urxe '&lt;script&gt;alert('\''&amp;'\'')&lt;/script&gt;&quot;'"),
        "quoted for a shell"
    );
}

#[test]
fn a_run_that_did_not_end_well_says_so() {
    let (mut record, mut page) = samples::sizes();
    record.ended = Ended::Interrupted;
    record.cells.clear();
    let html = to_html(&record, &page);
    assert!(html.contains("Interrupted: this is what was measured until then."));
    assert!(html.contains("No figure: nothing was measured for 'Bandwidth by message size'."));
    record.ended = Ended::Failed("the peer is gone".into());
    page.figures.clear();
    assert!(
        to_html(&record, &page)
            .contains("Ended early: the peer is gone. This is what was measured until then.")
    );
}

#[test]
fn a_folder_that_cannot_be_written_is_found_before_measuring() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    for path in [file.join("report"), "/proc/report".into()] {
        let message = check_writable(&path).unwrap_err().to_string();
        assert!(message.starts_with(&format!("cannot write a report to {}: ", path.display())), "{message}");
        assert_eq!(message.lines().count(), 1);
    }
    check_writable(&folder.path().join("a/b")).unwrap();
    assert_eq!(fs::read_dir(folder.path().join("a/b")).unwrap().count(), 0);
}

#[test]
fn a_file_of_results_becomes_a_report_by_one_call() {
    let folder = tempfile::tempdir().unwrap();
    let arguments =
        |results: &Path| ReportArgs { results: results.into(), report: folder.path().join("report") };
    let results = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/format-1.json"));
    let index = report_file(&arguments(results), Page::of).unwrap();
    assert!(fs::read_to_string(index).unwrap().contains("<h1>Study tasks</h1>"));
    let message = report_file(&arguments(Path::new("/nowhere")), Page::of).unwrap_err();
    assert!(message.starts_with("cannot read /nowhere: "), "{message}");
}
