//! Results in files.

use std::fs;
use std::path::{Path, PathBuf};

use urxe_study::record::{Better, Ended, Record, facts, facts_in};

mod support;
use support::{cell, latency, metric, record};

/// Written once by format 1 and never again: it has to stay readable.
const FORMAT_1: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/format-1.json");

fn pair(name: &str, value: &str) -> (String, String) {
    (name.into(), value.into())
}

/// The message with which a file of this content is refused.
fn refused(content: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("results.json");
    fs::write(&path, content).unwrap();
    Record::load(&path).unwrap_err().to_string().replace(&path.display().to_string(), "FILE")
}

fn format_1_with(from: &str, to: &str) -> String {
    let text = fs::read_to_string(FORMAT_1).unwrap();
    assert!(text.contains(from), "{from} is not in the file");
    text.replacen(from, to, 1)
}

#[test]
fn a_file_of_format_1_is_read() {
    let record = Record::load(Path::new(FORMAT_1)).unwrap();
    assert_eq!((record.format, record.study.as_str(), record.started), (1, "tasks", 1_796_057_345));
    assert_eq!(record.command, ["urxe", "study", "tasks", "--repetitions", "3"]);
    assert_eq!((record.device.as_str(), record.ended), ("urxe 0.1.0", Ended::Interrupted));
    // In the file's order, which is that of the table.
    assert_eq!(
        record.settings,
        [pair("repetitions", "3"), pair("depth", "128"), pair("api", "ibv_post_send")]
    );
    assert_eq!(record.facts[0], pair("urxe", "0.1.0"));
    let [bandwidth, latency] = record.cells.try_into().unwrap();
    assert_eq!(bandwidth.at, [pair("test", "send_bw"), pair("tasks", "inline"), pair("bytes", "65536")]);
    assert_eq!(bandwidth.metrics[0].name, "BW average");
    assert_eq!(bandwidth.metrics[0].unit, "MB/s");
    assert_eq!(bandwidth.metrics[0].better, Better::More);
    assert_eq!(bandwidth.metrics[0].samples, [3012.25, 2987.5, 3044.0]);
    assert_eq!(latency.metrics[0].better, Better::Less);
    assert_eq!(latency.metrics[0].samples, [4.25, 4.5]);
}

#[test]
fn what_is_saved_is_what_is_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("results.json");
    let mut saved = record(vec![latency(&[("zeta", "1"), ("alpha", "ä \"\n")], &[0.1, 1e-300, 1.0 / 3.0])]);
    saved.ended = Ended::Failed("the peer is gone".into());
    saved.save(&path).unwrap();
    assert_eq!(Record::load(&path).unwrap(), saved);
    // Nothing else is left in the folder.
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn a_record_grows_by_samples_of_repetitions_that_take_turns() {
    let mut record = Record::begin("made-up", vec!["urxe".into()], "urxe".into(), vec![]);
    assert_eq!(record.ended, Ended::Interrupted);
    for value in [1.0, 2.0] {
        for bytes in ["8", "16"] {
            record.cell(&[pair("bytes", bytes)]).add("rate", "Mops/s", Better::More, value);
        }
    }
    let expected = ["8", "16"]
        .map(|bytes| cell(&[("bytes", bytes)], vec![metric("rate", "Mops/s", Better::More, &[1.0, 2.0])]));
    assert_eq!(record.cells, expected);
    assert_eq!(record.check(), Ok(()));
}

#[test]
fn fields_that_are_not_known_are_ignored() {
    let text = format_1_with("\"study\":", "\"mood\": {\"of\": [\"the day\"]},\n  \"study\":");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("results.json");
    fs::write(&path, text).unwrap();
    assert_eq!(Record::load(&path).unwrap(), Record::load(Path::new(FORMAT_1)).unwrap());
}

#[test]
fn another_format_is_refused_with_both_versions() {
    for found in ["2", "0", "\"1\"", "1.5", "null"] {
        let text = format_1_with("\"format\": 1", &format!("\"format\": {found}"));
        assert_eq!(refused(&text), format!("FILE has results of format {found}; this urxe reads format 1"));
    }
}

#[test]
fn what_is_no_results_file_is_refused_with_the_place() {
    for (text, reason) in [
        (String::new(), "EOF while parsing a value at line 1 column 0"),
        ("BW average".into(), "expected value at line 1 column 1"),
        ("{}".into(), "missing field `format` at line 1 column 2"),
        (format_1_with("\"device\"", "\"devise\""), "missing field `device`"),
        (format_1_with("3012.25", "NaN"), "expected value"),
        (format_1_with("3012.25", "null"), "invalid type: null, expected f64"),
        (format_1_with("3012.25", "1e999"), "number out of range"),
        (format_1_with("\"more\"", "\"most\""), "unknown variant `most`, expected `more` or `less`"),
        (format_1_with("\"depth\"", "\"repetitions\""), "'repetitions' is there twice"),
        (
            format_1_with("\"tasks\": \"inline\"", "\"task\": \"inline\""),
            "cell 2 has the parameters (test, tasks, bytes), the first cell has (test, task, bytes)",
        ),
    ] {
        let message = refused(&text);
        assert!(message.starts_with("FILE is no results file of urxe study: "), "{message}");
        assert!(message.contains(reason), "{message}");
        assert_eq!(message.lines().count(), 1);
    }
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let message = Record::load(Path::new("/nowhere/results.json")).unwrap_err().to_string();
    assert_eq!(message, "cannot read /nowhere/results.json: No such file or directory (os error 2)");
}

#[test]
fn what_cannot_be_read_again_is_not_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("results.json");
    let message = |cells| record(cells).save(&path).unwrap_err().to_string();
    assert_eq!(
        message(vec![latency(&[("bytes", "8")], &[1.0, f64::NAN])]),
        "these results cannot be kept: t_typical at bytes=8 has the sample NaN, which is no number to compute with"
    );
    let twice = latency(&[("bytes", "8")], &[1.0]);
    assert_eq!(
        message(vec![twice.clone(), twice]),
        "these results cannot be kept: there are two cells with bytes=8"
    );
    assert!(!path.exists());
}

#[test]
fn an_unwritable_file_is_named() {
    let message = record(vec![]).save(Path::new("/nowhere/results.json")).unwrap_err().to_string();
    assert_eq!(message, "cannot write /nowhere/results.json: No such file or directory (os error 2)");
}

#[test]
fn this_machine_has_facts() {
    let facts = facts();
    let value = |name: &str| facts.iter().find(|(fact, _)| fact == name).unwrap().1.clone();
    assert!(value("kernel").starts_with("Linux "), "{facts:?}");
    assert_ne!(value("allowed CPUs"), "unknown");
    assert!(value("memory").ends_with(" GiB"));
    assert_eq!(value("load average").split(' ').count(), 3);
}

#[test]
fn facts_come_from_their_files() {
    let folder = tempfile::tempdir().unwrap();
    let write = |path: &str, text: &str| {
        let path: PathBuf = folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    write("proc/cpuinfo", "processor\t: 0\nmodel name\t: A CPU: fast\nflags\t\t: fpu hypervisor sse\n");
    write("proc/self/status", "Name:\tx\nCpus_allowed_list:\t2,4-5\n");
    write("proc/meminfo", "MemTotal:       16252928 kB\n");
    write("proc/loadavg", "0.52 1.25 0.75 2/345 6789\n");
    write("proc/sys/kernel/ostype", "Linux\n");
    write("proc/sys/kernel/osrelease", "6.12.0\n");
    write("sys/devices/system/cpu/online", "0-7\n");
    write("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance\n");
    write("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
    write("sys/class/dmi/id/sys_vendor", "QEMU\n");
    write("sys/class/dmi/id/product_name", "Standard PC\n");
    let facts = facts_in(folder.path());
    let kernel = format!("Linux 6.12.0 ({})", std::env::consts::ARCH);
    let expected = [
        ("urxe", env!("CARGO_PKG_VERSION")),
        ("CPU", "A CPU: fast"),
        ("CPUs", "0-7"),
        ("allowed CPUs", "2,4-5"),
        ("governor", "performance"),
        ("hyper-threading", "unknown"),
        ("memory", "15.5 GiB"),
        ("transparent huge pages", "madvise"),
        ("kernel", &kernel),
        ("virtualisation", "QEMU Standard PC"),
        ("load average", "0.52 1.25 0.75"),
    ];
    assert_eq!(facts, expected.map(|(name, value)| pair(name, value)));
}

#[test]
fn what_cannot_be_read_is_unknown() {
    let facts = facts_in(Path::new("/nowhere"));
    assert!(facts.iter().all(|(name, value)| name == "urxe" || value == "unknown"), "{facts:?}");
}
