//! Pairs on devices of the built `urxe`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use urxe_study::driver::{Interrupt, Options, Pair, Setting};
use urxe_study::work::{Amount, Job, Measure, Operation};

/// The built `urxe`, of the profile that this test was built with. No test depends on it for cargo, so this builds it;
/// that is quick if nothing changed.
pub(crate) fn urxe() -> &'static Path {
    static URXE: OnceLock<PathBuf> = OnceLock::new();
    URXE.get_or_init(|| {
        let test = std::env::current_exe().expect("a test knows its path");
        let folder = test.ancestors().nth(2).expect("tests are built in <target>/<profile>/deps");
        let profile = match folder.file_name().and_then(|name| name.to_str()) {
            Some("debug") => "dev",
            Some(other) => other,
            None => panic!("{} is not a profile's folder", folder.display()),
        };
        // Without cargo around it the test takes what is there.
        if let Some(cargo) = std::env::var_os("CARGO") {
            let status = Command::new(cargo)
                // The whole workspace, as everybody does: another choice of packages would build much of it again.
                .args(["build", "--quiet", "--workspace", "--profile", profile])
                .arg("--target-dir")
                .arg(folder.parent().expect("the target folder"))
                .current_dir(env!("CARGO_MANIFEST_DIR"))
                .status();
            assert!(status.is_ok_and(|status| status.success()), "`cargo build --workspace` fails");
        }
        folder.join("urxe")
    })
}

pub(crate) fn options() -> Options {
    Options::local(urxe())
}

pub(crate) fn pair() -> Pair {
    pair_with(&[])
}

pub(crate) fn pair_with(flags: &[(&str, &str)]) -> Pair {
    let flags = flags.iter().map(|(flag, value)| ((*flag).to_owned(), (*value).to_owned())).collect();
    let setting = Setting { flags, ..Setting::default() };
    Pair::start(&setting, &options(), &Interrupt::default()).expect("a pair can be started")
}

/// A small job.
pub(crate) fn job(operation: Operation, measure: Measure, bytes: u64) -> Job {
    let amount = Amount::Operations(500);
    Job { amount, depth: 16, warm_up: 20, region: 4 * bytes, ..Job::new(operation, measure, bytes) }
}
