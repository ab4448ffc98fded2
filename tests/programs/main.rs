//! Unmodified programs on the device: a table of command lines, each a test, and docs/programs.md made of the results.
//!
//! The programs come from the distribution (`cargo xtask test` installs them); `urxe` and the drop-in library are
//! built here if they are stale.

mod cases;
mod cli;
mod cm;
mod harness;
mod impaired;
mod mpi;
mod networks;
mod paging;
mod pyverbs;
mod report;
mod toy;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Failed, Trial};

fn main() -> ExitCode {
    if let Some(code) = toy::main_if_asked() {
        return code;
    }
    let arguments = Arguments::from_args();
    if !arguments.list {
        harness::build();
    }
    let programs = cases::all().into_iter().map(|case| Trial::test(case.name(), move || run(&case)));
    let cli =
        cli::all().into_iter().map(|(name, test)| Trial::test(format!("cli::{name}"), move || Ok(test()?)));
    let pyverbs = pyverbs::runs().into_iter().map(|run| {
        Trial::test(run.name, move || {
            let result = run.judged();
            report::record(run.name, result.as_deref().unwrap_or("fails\n"))?;
            Ok(result.map(|_| ())?)
        })
    });
    let refused = Trial::test("mpi_ranks_without_the_device_do_not_talk", || Ok(mpi::without_device()?));
    let faults = Trial::test("ucx_with_paged_memory_meets_faults", || Ok(paging::ucx_meets_faults()?));
    let lossy = Trial::test("ibv_rc_pingpong_survives_loss", || Ok(impaired::pingpong_through_loss()?));
    let cm = cm::tests().into_iter().map(|(name, test)| Trial::test(name, move || Ok(test()?)));
    let hosts = networks::all().into_iter().map(|(name, test)| Trial::test(name, move || Ok(test()?)));
    libtest_mimic::run(
        &arguments,
        programs.chain(cli).chain(cm).chain(hosts).chain(pyverbs).chain([refused, faults, lossy]).collect(),
    )
    .exit_code()
}

fn run(case: &cases::Case) -> Result<(), Failed> {
    let result = case.run();
    report::record(&case.name(), if result.is_ok() { "passes" } else { "fails" })?;
    Ok(result?)
}
