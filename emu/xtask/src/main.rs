//! Developer commands, on a machine that has only the Rust toolchain: `cargo xtask demo`, `test` and so on.

mod interop;
mod lab;
mod packages;
mod study;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

use packages::Package;

const USAGE: &str = "\
usage: cargo xtask COMMAND
  build                builds the release: target/release/{urxe,liburxe.so}
  demo                 builds, installs perftest if it is missing, runs ib_send_lat and ib_send_bw as a pair
  test [--write-docs]  installs what the tests need and runs all of them; --write-docs renews docs/programs.md
  bench [ARGUMENT...]  measures against the raw socket
  interop [FILTER]     runs perftest against the kernel's rdma_rxe in a VM (root, Debian); FILTER is a part of a
                       case's name
  interop study [NAME [ARGUMENT...]]
                       runs `urxe study NAME ARGUMENT...` in that VM on rdma_rxe; tasks and inject without a name. The
                       results are left in target/studies
";

/// What went wrong, in one line or with the output of the failed command above it.
type Result<T = ()> = std::result::Result<T, String>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match words.as_slice() {
        ["build"] => build(&["--release"]),
        ["demo"] => demo(),
        ["test"] => test(false),
        ["test", "--write-docs"] => test(true),
        ["bench", rest @ ..] => bench(rest),
        ["interop"] => interop("").map(|_| ()),
        ["interop", "study"] => kernel_studies(&["tasks", "inject"], &[]),
        ["interop", "study", name, arguments @ ..] => kernel_studies(&[name], arguments),
        ["interop", filter] => interop(filter).map(|_| ()),
        ["help" | "--help" | "-h"] => {
            print!("{USAGE}");
            Ok(())
        }
        [] => Err(format!("no command\n{USAGE}")),
        [other, ..] => Err(format!("'{other}' is not used like this\n{USAGE}")),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}

/// The repository.
fn root() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here)
}

/// The target directory; this program lies in one of its profiles' folders.
fn target() -> Result<PathBuf> {
    let exe = std::env::current_exe().map_err(|e| format!("cannot find myself: {e}"))?;
    exe.ancestors()
        .nth(2)
        .map(Path::to_owned)
        .ok_or_else(|| format!("{} is not in a target directory", exe.display()))
}

fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").is_ok_and(|m| m.uid() == 0)
}

/// Runs a command in the repository and shows what it says.
fn run(program: impl AsRef<OsStr>, arguments: &[&str]) -> Result {
    run_with(program, arguments, &[])
}

/// The same with variables added to the environment.
fn run_with(program: impl AsRef<OsStr>, arguments: &[&str], variables: &[(&str, &str)]) -> Result {
    let program = program.as_ref();
    let line = format!("{} {}", program.display(), arguments.join(" "));
    eprintln!("$ {line}");
    let mut command = Command::new(program);
    match command.args(arguments).envs(variables.iter().copied()).current_dir(root()).status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("`{line}` failed ({status})")),
        Err(e) => Err(format!("cannot run `{line}`: {e}")),
    }
}

fn cargo(arguments: &[&str]) -> Result {
    cargo_with(arguments, &[])
}

fn cargo_with(arguments: &[&str], variables: &[(&str, &str)]) -> Result {
    run_with(std::env::var_os("CARGO").unwrap_or("cargo".into()), arguments, variables)
}

/// Whether a command runs and succeeds; its output is not shown.
fn succeeds(program: &str, arguments: &[&str]) -> bool {
    Command::new(program).args(arguments).current_dir(root()).output().is_ok_and(|o| o.status.success())
}

fn build(profile: &[&str]) -> Result {
    cargo(&[&["build", "-p", "urxe-capi", "-p", "urxe-cli"], profile].concat())
}

fn demo() -> Result {
    packages::install(&[Package::Perftest])?;
    build(&["--release"])?;
    let urxe = target()?.join("release/urxe");
    run(&urxe, &["pair", "--", "ib_send_lat"])?;
    run(&urxe, &["pair", "--", "ib_send_bw"])
}

fn bench(arguments: &[&str]) -> Result {
    packages::install(&[Package::Perftest])?;
    build(&["--release"])?;
    let arguments =
        if arguments.is_empty() { &["compare", "--write", "docs/performance.md"] } else { arguments };
    cargo(&[&["run", "--release", "-p", "urxe-bench", "--"], arguments].concat())
}

fn interop(filter: &str) -> Result<interop::Outcome> {
    packages::install(&[Package::Perftest, Package::IbverbsUtils, Package::Iproute2])?;
    build(&[])?;
    interop::interop(&target()?.join("debug/urxe"), filter)
}

fn kernel_studies(names: &[&str], arguments: &[&str]) -> Result {
    packages::install(&[Package::Iproute2])?;
    cargo(&["build", "-p", "urxe-cli", "--release"])?;
    study::studies(&target()?.join("release/urxe"), names, arguments)
}

/// How a step of the test ended.
enum End {
    Passed,
    Skipped(String),
    Failed(String),
}

fn test(write_docs: bool) -> Result {
    let mut steps: Vec<(&str, End, u64)> = Vec::new();
    let mut step = |name, work: &dyn Fn() -> Result<End>| {
        eprintln!("\n=== {name}");
        let start = Instant::now();
        let end = work().unwrap_or_else(End::Failed);
        let passed = !matches!(end, End::Failed(_));
        steps.push((name, end, start.elapsed().as_secs()));
        passed
    };
    let done = |result: Result| result.map(|()| End::Passed);

    step("packages", &|| done(packages::install(packages::ALL)));
    step("sideway", &|| done(sideway()));
    step("format", &|| {
        component("fmt", "rustfmt")?;
        done(cargo(&["fmt", "--all", "--check"]))
    });
    step("clippy", &|| {
        component("clippy", "clippy")?;
        done(cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]))
    });
    // The programs' tests run what is built here.
    if step("build", &|| done(cargo(&["build", "--workspace"]))) {
        step("tests", &|| done(tests(write_docs)));
        step("orders of threads", &|| done(loom()));
        step("kernel interop", &|| {
            if !is_root() {
                return Ok(End::Skipped("needs root".into()));
            }
            Ok(match interop("")? {
                interop::Outcome::Passed => End::Passed,
                interop::Outcome::Impossible(why) => End::Skipped(why),
            })
        });
    }

    println!();
    let mut failed = 0;
    for (name, end, seconds) in &steps {
        let text = match end {
            End::Passed => "passed".into(),
            End::Skipped(why) => format!("skipped: {why}"),
            End::Failed(why) => {
                failed += 1;
                format!("FAILED: {why}")
            }
        };
        println!("{name:<16} {seconds:>4} s  {text}");
    }
    if failed == 0 { Ok(()) } else { Err(format!("{failed} of {} steps failed", steps.len())) }
}

/// The models of threads, in every order in which these can run. In a folder of its own: the flag changes all crates.
fn loom() -> Result {
    let folder = target()?.join("loom");
    let folder = folder.to_str().ok_or("the target directory's name is not UTF-8")?;
    let arguments =
        ["test", "--release", "-p", "urxe", "--lib", "--target-dir", folder, "task::state::models"];
    cargo_with(&arguments, &[("RUSTFLAGS", "--cfg loom")])
}

fn tests(write_docs: bool) -> Result {
    let nextest = succeeds("cargo", &["nextest", "--version"]);
    let runs: &[&[&str]] = match nextest {
        true => &[&["nextest", "run", "--workspace", "--no-fail-fast"], &["test", "--workspace", "--doc"]],
        false => &[&["test", "--workspace", "--no-fail-fast"]],
    };
    let mut result = Ok(());
    for arguments in runs {
        let one = cargo_with(arguments, &[("WRITE_DOCS", if write_docs { "1" } else { "" })]);
        result = result.and(one);
    }
    result
}

/// A Rust client of verbs, whose examples are among the tested programs. It opens the library with dlopen.
const SIDEWAY: &str = "0.4.3";

/// Builds sideway's examples as they are published, once: that takes minutes.
fn sideway() -> Result {
    let folder = target()?.join("sideway");
    if folder.join("bin/rc_pingpong").exists() {
        return Ok(());
    }
    packages::install(&[Package::Cmake, Package::Libclang])?;
    let (root, build) = (folder.display().to_string(), folder.join("build").display().to_string());
    let examples = ["--example", "rc_pingpong", "--example", "rc_pingpong_split", "--example", "ibv_devinfo"];
    let install =
        ["install", "sideway", "--version", SIDEWAY, "--debug", "--root", &root, "--target-dir", &build];
    cargo(&[&install[..], &examples[..]].concat())
}

/// A part of the toolchain that a minimal installation lacks.
fn component(subcommand: &str, name: &str) -> Result {
    if succeeds("cargo", &[subcommand, "--version"]) || succeeds("rustup", &["component", "add", name]) {
        return Ok(());
    }
    Err(format!("cargo {subcommand} is missing; `rustup component add {name}` installs it"))
}
