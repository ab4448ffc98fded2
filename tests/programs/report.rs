//! docs/programs.md: what ran, in which version, and how it ended. Without `WRITE_DOCS=1` it is target/programs.md.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::harness::{profile_folder, repository, sideway};
use crate::{cases, pyverbs};

/// The name under which the suite of pyverbs is noted.
pub(crate) const PYVERBS: &str = "pyverbs_suite";
/// In the order of the page.
const PACKAGES: [&str; 11] = [
    "ibverbs-utils",
    "perftest",
    "ucx-utils",
    cases::SIDEWAY,
    "qperf",
    "rdmacm-utils",
    "libfabric-bin",
    "fio",
    "openmpi-bin",
    "mpich",
    "netpipe-openmpi",
];
const HEAD: &str = "\
# Programs that run on urxe

Unmodified: from Debian's packages, and the examples of the crate sideway. Programs in pairs run as `urxe pair -- PROGRAM ARGUMENTS`, the others as
`urxe run -- PROGRAM ARGUMENTS`; a pair passes when both sides end with 0 and report results. What only the server or only
the client of a pair is given stands around a `/`. `every_byte` and `long_messages` are tests/mpi/*.c, which look at every
byte that they move. This page is written by `cargo xtask test --write-docs` (tests/programs).
";

/// Notes the result of a test and renews the page. Each test may be a process of its own.
pub(crate) fn record(name: &str, result: &str) -> Result<(), String> {
    let folder = folder();
    let failed = |e: std::io::Error| format!("cannot write {}: {e}", folder.display());
    fs::create_dir_all(&folder).map_err(failed)?;
    let lock = fs::File::create(folder.join(".lock")).map_err(failed)?;
    lock.lock().map_err(failed)?;
    fs::write(folder.join(name), result).map_err(failed)?;
    let page = match std::env::var("WRITE_DOCS").as_deref() {
        Ok("1") => repository().join("docs/programs.md"),
        _ => folder.with_extension("md"),
    };
    fs::write(page, text()).map_err(failed)
}

pub(crate) fn folder() -> PathBuf {
    profile_folder().with_file_name("programs")
}

fn text() -> String {
    let mut text = HEAD.to_owned();
    let cases = cases::all();
    for package in PACKAGES {
        text += &format!("\n## {package} {}\n\n| command | result |\n| --- | --- |\n", version(package));
        for case in cases.iter().filter(|c| c.package == package) {
            text += &format!("| `{}` | {} |\n", case.command(), noted(&case.name()));
        }
    }
    let _ = write!(text, "\n## python3-pyverbs {}\n", version("python3-pyverbs"));
    for run in pyverbs::runs() {
        let what = match run.env {
            None => "The suite of its package, but for one vendor's hardware:".to_owned(),
            Some((name, value)) => format!("Of that `test_odp`, with `{name}={value}`:"),
        };
        let _ = write!(text, "\n{what}\n\n{}", noted(run.name));
    }
    text
}

fn noted(name: &str) -> String {
    fs::read_to_string(folder().join(name)).unwrap_or("not run".into())
}

fn version(package: &str) -> String {
    if package == cases::SIDEWAY {
        let list = fs::read_to_string(sideway().join(".crates.toml")).unwrap_or_default();
        let version = list.lines().find_map(|l| l.strip_prefix("\"sideway ")?.split(' ').next());
        return version.unwrap_or("(not installed)").into();
    }
    let output = Command::new("dpkg-query").args(["-W", "-f", "${Version}", package]).output();
    match output {
        Ok(o) if o.status.success() => String::from_utf8_lossy(&o.stdout).into_owned(),
        _ => "(version unknown)".into(),
    }
}
