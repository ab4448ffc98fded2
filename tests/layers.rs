//! Dependencies point one way, and the core does no I/O: what docs/architecture.md promises.

use std::fs;
use std::path::{Path, PathBuf};

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(sources(&path));
        } else if path.extension().is_some_and(|e| e == "rs") {
            files.push(path);
        }
    }
    files
}

/// Lines of a layer's code, without comments and unit tests, that contain one of `words`.
fn offenders(layer: &str, words: &[&str]) -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let place = root.join(layer);
    let files = if place.is_dir() { sources(&place) } else { vec![root.join(format!("{layer}.rs"))] };
    assert!(!files.is_empty());
    let mut found = Vec::new();
    for file in files {
        if file.file_stem().is_some_and(|s| s.to_string_lossy().ends_with("tests")) {
            continue;
        }
        let text = fs::read_to_string(&file).unwrap();
        let code = text.split("#[cfg(test)]").next().unwrap();
        for (i, line) in code.lines().enumerate() {
            let line = line.split("//").next().unwrap();
            if words.iter().any(|w| line.contains(w)) {
                found.push(format!("{}:{}: {}", file.display(), i + 1, line.trim()));
            }
        }
    }
    found
}

#[test]
fn the_core_knows_no_socket_thread_clock_file_or_random_number() {
    let words = [
        "UdpSocket",
        "TcpStream",
        "std::thread",
        "std::time",
        "Instant::now",
        "SystemTime",
        "std::fs",
        "std::io",
        "std::env",
        "libc::",
        "std::os",
        "rand::",
        "RandomState",
        "println!",
        "eprintln!",
    ];
    for layer in ["ids", "time", "verbs", "wire", "qp", "cq", "srq", "cm"] {
        assert_eq!(offenders(layer, &words), Vec::<String>::new(), "in {layer}");
    }
}

#[test]
fn dependencies_point_from_io_and_task_to_the_core() {
    let above: [(&str, &[&str]); 9] = [
        ("ids", &["crate::"]),
        ("time", &["crate::"]),
        (
            "wire",
            &[
                "crate::mem",
                "crate::qp",
                "crate::cq",
                "crate::device",
                "crate::io",
                "crate::task",
                "crate::verbs",
            ],
        ),
        ("mem", &["crate::qp", "crate::cq", "crate::device", "crate::io", "crate::task", "crate::wire"]),
        ("verbs", &["crate::qp", "crate::cq", "crate::device", "crate::io", "crate::task"]),
        ("cq", &["crate::qp", "crate::device", "crate::io", "crate::task"]),
        ("qp", &["crate::device", "crate::io", "crate::task", "crate::config"]),
        (
            "cm",
            &[
                "crate::mem",
                "crate::qp",
                "crate::cq",
                "crate::device",
                "crate::io",
                "crate::task",
                "crate::verbs",
            ],
        ),
        ("io", &["crate::qp", "crate::device", "crate::task", "crate::config"]),
    ];
    for (layer, words) in above {
        assert_eq!(offenders(layer, words), Vec::<String>::new(), "in {layer}");
    }
}
