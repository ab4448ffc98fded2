//! The suite of pyverbs, rdma-core's Python binding: all its tests pass but for the ones listed here.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::harness::{self, profile_folder, urxe};
use crate::{paging, report};

const SUITE: &str = "/usr/share/doc/rdma-core/tests";
/// The distribution's, for which the package has the binding, whatever PATH has before it.
const PYTHON: &str = "/usr/bin/python3";
const DRIVER: &str = include_str!("pyverbs.py");
const PATIENCE: Duration = Duration::from_secs(120);

/// What is not expected to pass, and why. A `*` at the end stands for any rest.
const EXPECTED: &[(&str, &[&str])] = &[
    ("needs huge pages, a GPU or CUDA", NEEDS_MACHINE),
    ("the GID table has no empty entry", &["test_device.DeviceTest.test_query_gid_ex_bad_flow"]),
    (
        "expects that RoCE refuses addresses without GRH; here LIDs work on every port",
        &["test_addr.AHTest.test_create_ah_roce"],
    ),
    (
        "no XRC",
        &[
            "test_atomic.AtomicTest.test_xrc_*",
            "test_cqex.CqExTestCase.test_xrc_traffic_cq_ex",
            "test_odp.OdpTestCase.test_odp_xrc_traffic",
            "test_qpex.QpExTestCase.test_qp_ex_xrc_*",
            "test_relaxed_ordering.RoTestCase.test_ro_xrc_traffic",
        ],
    ),
    ("no memory windows", &["test_mr.MWTest.*", "test_qpex.QpExTestCase.test_qp_ex_rc_bind_mw"]),
    ("no ATOMIC WRITE", &["test_qpex.QpExTestCase.test_qp_ex_rc_atomic_write"]),
    ("no device memory", &["test_device.DMTest.*", "test_device.SharedDMTest.*", "test_mr.DeviceMemory*"]),
    ("no import of contexts", &["test_shared_pd.SharedPDTestCase.test_imported_rc_ex_rdma_write"]),
    (
        "no raw packets, flow steering or RSS",
        &[
            "test_flow.FlowTest.*",
            "test_rss_traffic.RSSTrafficTest.test_rss_traffic",
            "test_qp.QPTest.test_create_raw_qp_no_attr",
            "test_qp.QPTest.test_create_raw_qp_with_attr",
            "test_qp.QPTest.test_create_raw_qp_ex_no_attr",
            "test_qp.QPTest.test_create_raw_qp_ex_with_attr",
            "test_qp.QPTest.test_query_raw_qp",
        ],
    ),
    ("no tag matching", &["test_tag_matching.TMTest.*"]),
];

/// These depend on the machine, so they may pass.
const NEEDS_MACHINE: &[&str] = &[
    "test_cuda_dmabuf.*",
    "test_mr.DmaBuf*",
    "test_odp.OdpTestCase.test_odp_rc_huge_*",
    "test_parent_domain.ParentDomainTrafficTest.test_huge_page_traffic",
];

fn matches(name: &str, patterns: &[&str]) -> bool {
    patterns.iter().any(|p| p.strip_suffix('*').map_or(name == *p, |start| name.starts_with(start)))
}

/// A run of the suite or of a part of it.
pub(crate) struct Run {
    /// Of the test.
    pub(crate) name: &'static str,
    /// Of the suite; none means all.
    modules: &'static [&'static str],
    pub(crate) env: Option<(&'static str, &'static str)>,
    /// Fewer tests than this do not pass by being skipped.
    at_least: usize,
}

/// The suite, and what it has of on-demand paging in each mode of tasks.
pub(crate) fn runs() -> Vec<Run> {
    let names = ["pyverbs_odp_inline", "pyverbs_odp_workqueue", "pyverbs_odp_auto"];
    let paging = names.into_iter().zip(paging::MODES).map(|(name, tasks)| Run {
        name,
        modules: &["tests.test_odp"],
        env: Some(tasks),
        at_least: 14,
    });
    let suite = Run { name: report::PYVERBS, modules: &[], env: None, at_least: 80 };
    [suite].into_iter().chain(paging).collect()
}

impl Run {
    /// What became of it: for docs/programs.md.
    pub(crate) fn judged(&self) -> Result<String, String> {
        let folder = Folder::new(self.name)?;
        let mut command = urxe(["run", "--log", "off", "--", PYTHON]);
        command.arg(folder.0.join("driver.py")).args(self.modules).envs(self.env);
        command.env("PYTHONPATH", folder.0.join("tests")).current_dir(&folder.0);
        let output = harness::run(&mut command, PATIENCE)?;
        let text = output.text;
        if output.code != Some(0) {
            return Err(format!("{command:?}: exit code {:?}\n{text}", output.code));
        }
        let results = text.lines().filter_map(|line| {
            let mut words = line.strip_prefix("RESULT\t")?.split('\t');
            Some((words.next()?, (words.next()?, words.next()?)))
        });
        judge(&results.collect(), self.at_least).map_err(|why| format!("{why}\n{text}"))
    }
}

fn judge(results: &BTreeMap<&str, (&str, &str)>, at_least: usize) -> Result<String, String> {
    let mut wrong = String::new();
    for (name, (end, why)) in results {
        let reason = EXPECTED.iter().find(|(_, patterns)| matches(name, patterns));
        let _ = match (reason, *end) {
            (None, "passed") => Ok(()),
            (None, end) => writeln!(wrong, "{name}: {end}: {why}"),
            (Some((reason, _)), "passed") if !matches(name, NEEDS_MACHINE) => {
                writeln!(wrong, "{name} passes: take it from the list of what does not ({reason})")
            }
            (Some(_), _) => Ok(()),
        };
    }
    let passed = results.values().filter(|(end, _)| *end == "passed").count();
    if passed < at_least {
        let _ = writeln!(wrong, "only {passed} tests have passed");
    }
    if !wrong.is_empty() {
        return Err(wrong);
    }
    let mut page =
        format!("| not expected to pass | tests |\n| --- | --- |\n| (all others: pass) | {passed} |\n");
    for (reason, patterns) in EXPECTED {
        // A test is counted where it is found first, as above.
        let count = results.keys().filter(|name| {
            let first = EXPECTED.iter().find(|(_, patterns)| matches(name, patterns));
            first.is_some_and(|(_, found)| found == patterns)
        });
        match count.count() {
            0 => {}
            count => drop(writeln!(page, "| {reason} | {count} |")),
        }
    }
    Ok(page)
}

/// A copy of the suite that can run, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Result<Self, String> {
        let folder = Self(profile_folder().with_file_name(format!("{name}-{}", std::process::id())));
        let tests = folder.0.join("tests");
        let failed = |path: &Path, e| format!("{}: {e}", path.display());
        fs::create_dir_all(&tests).map_err(|e| failed(&tests, e))?;
        fs::write(folder.0.join("driver.py"), DRIVER).map_err(|e| failed(&folder.0, e))?;
        let suite = Path::new(SUITE);
        for entry in fs::read_dir(suite).map_err(|e| failed(suite, e))?.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            // For hardware of one vendor; its helpers are imported by others.
            if !name.starts_with("test_mlx5") && !name.starts_with("test_efa") {
                fs::copy(entry.path(), tests.join(name)).map_err(|e| failed(&entry.path(), e))?;
            }
        }
        let unpack = format!("gunzip -f {}/*.gz", tests.display());
        let status = Command::new("sh").args(["-c", &unpack]).status();
        if status.is_ok_and(|s| s.success()) { Ok(folder) } else { Err(format!("`{unpack}` fails")) }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
