//! `urxe study NAME` as people run it, each study as small as it can be.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use rustix::process::Signal;
use tempfile::TempDir;
use urxe_study::record::{Better, Ended, Record};
use urxe_study::studies;

use crate::pairs::urxe;
use crate::process::{Program, eventually, gone, kill, on_fabric};

/// Options with which each study takes a second or two.
const SMALL: &[(&str, &str)] = &[
    ("tasks", "--milliseconds 3 --queue-pairs 1 --repetitions 1"),
    ("wr-api", "--milliseconds 3 --repetitions 2"),
    ("registration", "--milliseconds 3 --threads 1,3 --repetitions 1"),
    ("long-am", "--milliseconds 3 --sizes 1,64K --repetitions 2"),
    ("inject", "--milliseconds 3 --sizes 8,64K --repetitions 2"),
    ("odp", "--milliseconds 3 --repetitions 1"),
    ("loss", "--milliseconds 3 --repetitions 1"),
    ("link", "--milliseconds 3 --repetitions 1"),
];

fn study(arguments: &str) -> Command {
    let mut command = Command::new(urxe());
    command.arg("study").args(arguments.split_whitespace());
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs a command to its end; what it has written to `results` in its folder is there for the test.
fn run(arguments: &str, results: &Path) -> Output {
    study(arguments).arg("--json").arg(results).output().expect("urxe can be started")
}

#[test]
fn every_study_measures_all_its_cells_on_urxe() {
    let folder = TempDir::new().unwrap();
    for study in studies::ALL {
        let small = SMALL.iter().find(|(name, _)| *name == study.name);
        let (_, small) = small.unwrap_or_else(|| panic!("{} has no small size here", study.name));
        let (file, report) = (folder.path().join(study.name), folder.path().join("report"));
        let output = run(&format!("{} {small} --report {}", study.name, report.display()), &file);
        let (said, complaints) = (text(&output.stdout), text(&output.stderr));
        assert_eq!(output.status.code(), Some(0), "{}: {complaints}", study.name);
        assert_eq!(complaints, "", "{}: nothing is left out", study.name);

        let record = Record::load(&file).unwrap();
        assert_eq!((&record.ended, record.study.as_str()), (&Ended::Complete, study.name));
        assert!(record.device.starts_with("urxe "), "{}", record.device);
        assert!(record.cells.len() >= 3 && record.check().is_ok());
        for cell in &record.cells {
            assert!(!cell.metrics.is_empty(), "{}: {}", study.name, cell.place());
        }
        for finding in studies::page(&record).findings {
            assert!(said.contains(&finding), "{}: the terminal has {finding:?}", study.name);
        }
        let html = fs::read_to_string(report.join("index.html")).unwrap();
        assert!(html.contains("<svg ") && !html.contains("No figure"), "{}", study.name);
    }
}

#[test]
fn cold_pages_fault_at_both_ends_and_prefetched_ones_at_none() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("odp.json");
    assert!(run("odp --milliseconds 20 --repetitions 1", &file).status.success());
    let record = Record::load(&file).unwrap();
    let faults = |memory: &str| -> Vec<f64> {
        let cells = record.cells.iter().filter(|cell| cell.value("memory") == Some(memory));
        cells.map(|cell| cell.metric("faults").expect("urxe counts them").samples[0]).collect()
    };
    for memory in ["pinned", "warm", "cold but touched"] {
        assert!(faults(memory).iter().all(|faults| *faults == 0.0), "{memory}: {:?}", faults(memory));
    }
    for memory in ["cold", "implicit, cold"] {
        assert!(faults(memory).iter().all(|faults| *faults >= 1.5), "{memory}: {:?}", faults(memory));
    }
}

#[test]
fn what_is_wrong_is_said_in_one_line_before_anything_is_measured() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("none.json");
    for (arguments, wanted) in [
        ("inject --device no-such-device", "no-such-device"),
        ("inject --client 127.0.0.1:1", "127.0.0.1:1"),
        ("inject --threads 4", "--threads"),
        ("tasks --sizes 8", "--sizes"),
        ("inject --pin 0/1,1/0", "--pin"),
        ("odp --report /proc/no-such-folder", "/proc/no-such-folder"),
        ("odp --csv /proc/self/results.csv", "/proc/self/results.csv"),
    ] {
        let output = run(arguments, &file);
        let complaint = text(&output.stderr);
        assert_ne!(output.status.code(), Some(0), "{arguments}");
        assert!(complaint.contains(wanted) && complaint.lines().count() == 1, "{arguments}: {complaint}");
        assert!(output.stdout.is_empty() && !file.exists(), "{arguments}");
    }
    // Those are clap's, with its usage.
    for (arguments, wanted) in [("no-such-study", "no-such-study"), ("inject --sizes 3G", "1:4M")] {
        let complaint = text(&run(arguments, &file).stderr);
        assert!(complaint.contains(wanted), "{arguments}: {complaint}");
    }
}

/// Seconds of processor time that a process has used, in hundredths; 0 when it is gone.
fn used(pid: i32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // Behind the name, which is in parentheses: user and system time are the 12th and 13th.
    let rest = stat.rsplit(") ").next().unwrap_or_default();
    rest.split(' ').skip(11).take(2).filter_map(|number| number.parse::<u64>().ok()).sum()
}

#[test]
fn a_signal_ends_a_study_which_keeps_what_it_has_and_leaves_nothing_behind() {
    urxe();
    for (signal, number) in [(Signal::INT, 2), (Signal::TERM, 15)] {
        let folder = TempDir::new().unwrap();
        let (file, report) = (folder.path().join("kept.json"), folder.path().join("report"));
        let mut command = study("wr-api --milliseconds 2 --repetitions 10000");
        let mut driver = Program::start(command.arg("--json").arg(&file).arg("--report").arg(&report));
        let fabric = format!("study-{}-", driver.pid());
        // Starting takes a worker a few hundredths; the rest are jobs of two milliseconds.
        eventually("some jobs", || on_fabric(&fabric).iter().any(|worker| used(worker.pid) >= 60));
        kill(driver.pid(), signal);
        driver.wait_for("interrupted; what was measured is kept");
        assert_eq!(driver.wait(), Some(128 + number));
        gone(&fabric);

        let record = Record::load(&file).unwrap();
        assert_eq!(record.ended, Ended::Interrupted);
        assert!(!record.cells.is_empty());
        let html = fs::read_to_string(report.join("index.html")).unwrap();
        assert!(html.contains("Interrupted: this is what was measured until then."));
    }
}

#[test]
fn a_signal_while_workers_start_is_no_error_of_the_study() {
    urxe();
    let mut driver = Program::start(&mut study("loss --full"));
    let fabric = format!("study-{}-", driver.pid());
    eventually("the first worker", || !on_fabric(&fabric).is_empty());
    kill(driver.pid(), Signal::INT);
    driver.wait_for("interrupted");
    assert_eq!(driver.wait(), Some(128 + 2));
    gone(&fabric);
}

#[test]
fn the_environment_decides_as_flags_do_and_is_recorded() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("loopback.json");
    let mut command = study("inject --milliseconds 3 --sizes 8 --repetitions 1");
    let output = command.env("URXE_ADDR", "127.0.0.1").arg("--json").arg(&file).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let settings = Record::load(&file).unwrap().settings;
    assert!(settings.contains(&("--addr".to_owned(), "127.0.0.1".to_owned())), "{settings:?}");
}

#[test]
fn results_are_written_though_nobody_reads_the_table() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("kept.json");
    let mut command = study("inject --milliseconds 3 --sizes 8 --repetitions 1");
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let status = command.arg("--json").arg(&file).stdout(writer).status().unwrap();
    assert_eq!(status.code(), Some(0));
    assert_eq!(Record::load(&file).unwrap().ended, Ended::Complete);
}

#[test]
fn a_comparison_that_fails_names_what_is_worse() {
    let folder = TempDir::new().unwrap();
    let files = [("a.json", 1.0), ("b.json", 2.0)].map(|(name, time)| {
        let mut record = Record::begin("made-up", Vec::new(), "urxe".into(), Vec::new());
        let at = [("bytes".to_owned(), "8".to_owned())];
        for sample in [0.0, 0.01, 0.02] {
            record.cell(&at).add("t_typical", "us", Better::Less, time + sample);
        }
        record.ended = Ended::Complete;
        let file = folder.path().join(name);
        record.save(&file).unwrap();
        file
    });
    let output = study("compare --fail-if worse:5%").args(&files).output().unwrap();
    let complaint = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(complaint.contains("t_typical") && complaint.contains("is worse by 99.0 %"), "{complaint}");
}
