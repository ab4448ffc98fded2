//! `urxe study` on the kernel's rdma_rxe: both ends in the VM, on its one device. The guest's own libibverbs is used, so
//! nothing but the program `urxe` is put there.

use std::fs;
use std::path::Path;

use crate::lab::{self, Lab};
use crate::{Result, target};

const DEVICE: &str = "rxe0";
/// In the guest.
const PROGRAM: &str = "/tmp/urxe";
const RESULT: &str = "/tmp/result.json";

/// Runs each study with the same arguments of `urxe study`, and leaves the results in target/studies.
pub(crate) fn studies(urxe: &Path, names: &[&str], arguments: &[&str]) -> Result {
    if let Some(why) = lab::obstacle() {
        return Err(format!("no study on the kernel's device: {why}"));
    }
    let folder = target()?.join("studies");
    fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let lab = Lab::start()?;
    lab.install(urxe, PROGRAM)?;
    for name in names {
        let ended = run(&lab, name, arguments);
        // A study that does not reach its end leaves what it has measured.
        if let Ok(result) = lab.content(RESULT) {
            let file = folder.join(format!("{name}-{DEVICE}.json"));
            fs::write(&file, result).map_err(|e| format!("{}: {e}", file.display()))?;
            println!("{}", file.display());
        }
        ended?;
    }
    Ok(())
}

fn run(lab: &Lab, name: &str, arguments: &[&str]) -> Result {
    let words =
        ["study", name, "--device", DEVICE, "--json", RESULT].into_iter().chain(arguments.iter().copied());
    let line: Vec<String> = words.map(quoted).collect();
    let status = lab.in_guest(&format!("rm -f {RESULT}; {PROGRAM} {}", line.join(" "))).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{status} of `urxe {}` in the guest", line.join(" "))),
        Err(e) => Err(format!("cannot reach the guest: {e}")),
    }
}

/// A word for the guest's shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}
