//! docs/programs.md: what ran, in which version, and how it ended. Without `WRITE_DOCS=1` it is target/programs.md.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::cases::{self, Case};
use crate::harness::{profile_folder, repository, sideway};

const PASSES: &str = "passes";
const FAILS: &str = "fails";
const HEAD: &str = "\
# Programs that run on urxe

Unmodified: from Debian's packages, and the examples of the crate sideway. Programs in pairs run as `urxe pair -- PROGRAM ARGUMENTS`, the others as
`urxe run -- PROGRAM ARGUMENTS`; a pair passes when both sides end with 0 and report results. This page is written by
`cargo xtask test --write-docs` (tests/programs).
";

/// Notes the result of a case and renews the page. Each case may be a process of its own.
pub(crate) fn record(case: &Case, passed: bool) -> Result<(), String> {
    let folder = folder();
    let failed = |e: std::io::Error| format!("cannot write {}: {e}", folder.display());
    fs::create_dir_all(&folder).map_err(failed)?;
    let lock = fs::File::create(folder.join(".lock")).map_err(failed)?;
    lock.lock().map_err(failed)?;
    fs::write(folder.join(case.name()), if passed { PASSES } else { FAILS }).map_err(failed)?;
    let page = match std::env::var("WRITE_DOCS").as_deref() {
        Ok("1") => repository().join("docs/programs.md"),
        _ => folder.with_extension("md"),
    };
    fs::write(page, text()).map_err(failed)
}

fn folder() -> PathBuf {
    profile_folder().with_file_name("programs")
}

fn text() -> String {
    let mut text = HEAD.to_owned();
    let cases = cases::all();
    for package in ["ibverbs-utils", "perftest", "ucx-utils", cases::SIDEWAY] {
        text += &format!("\n## {package} {}\n\n| command | result |\n| --- | --- |\n", version(package));
        for case in cases.iter().filter(|c| c.package == package) {
            let result = fs::read_to_string(folder().join(case.name())).unwrap_or("not run".into());
            text += &format!("| `{}` | {result} |\n", case.command());
        }
    }
    text
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
