//! The benchmark runs and prints what a reader of its lines expects.

use std::process::Command;

fn run(arguments: &[&str]) -> std::process::Output {
    bench("raw", arguments)
}
fn bench(name: &str, arguments: &[&str]) -> std::process::Output {
    Command::new(env!("CARGO_BIN_EXE_urxe-bench")).arg(name).args(arguments).output().unwrap()
}

#[test]
fn processes_that_share_an_address_are_measured_against_those_that_do_not() {
    let output = bench("steering", &["--rounds", "1", "--milliseconds", "50"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.lines().count(), 2, "{text}");
    for (line, name) in text.lines().zip(["steered_write_64KiB", "steered_write_8B_ping_pong"]) {
        assert!(line.starts_with(&format!(r#"{{"bench":"{name}","#)), "{line}");
        let ratio: f64 = line.rsplit(':').next().unwrap().trim_end_matches('}').parse().unwrap();
        assert!(ratio > 0.0 && ratio.is_finite(), "{line}");
    }
}

#[test]
fn each_measurement_is_one_json_line_with_a_positive_number() {
    let output = run(&["--runs", "1", "--milliseconds", "30", "--streams", "4124x15,40x1"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let heads = [
        r#"{"bench":"raw_stream","bytes":4124,"packets_per_call":15,"MB_per_s":"#,
        r#"{"bench":"raw_stream","bytes":40,"packets_per_call":1,"MB_per_s":"#,
        r#"{"bench":"raw_ping_pong","bytes":20,"half_round_trip_us":"#,
    ];
    assert_eq!(lines.len(), heads.len(), "{text}");
    for (line, head) in lines.iter().zip(heads) {
        let rest = line.strip_prefix(head).unwrap_or_else(|| panic!("{line}"));
        let number: f64 = rest.split([',', '}']).next().unwrap().parse().unwrap();
        assert!(number > 0.0 && number.is_finite() && line.ends_with('}'), "{line}");
    }
}

#[test]
fn a_stream_that_does_not_fit_a_call_is_refused() {
    for stream in ["4x99", "9000x64", "0x1", "40"] {
        let output = run(&["--streams", stream]);
        assert_eq!(output.status.code(), Some(2));
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(text.contains(stream) && text.contains("4124x15"), "{text}");
    }
}
