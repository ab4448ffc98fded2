//! The kernel's rdma_rxe in a VM, and a network namespace that leads to it (tests/lab).

use std::fs::File;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::{Result, is_root, root, succeeds};

/// A guest and a namespace of our own, so that a lab that somebody uses is left alone.
const GUEST: &str = "9";
const NAMESPACE: &str = "urxe-interop";
pub(crate) const HOST_ADDRESS: &str = "10.77.0.1";
pub(crate) const GUEST_ADDRESS: &str = "10.77.0.10";
/// Of the network: an RDMA MTU of 4096 fits.
const MTU: &str = "4200";

/// Why this machine cannot do it.
pub(crate) fn obstacle() -> Option<String> {
    if !is_root() {
        return Some("needs root: it makes a network namespace and a tap device".into());
    }
    if !succeeds("apt-get", &["--version"]) {
        return Some("needs a Debian host: the guest is made of Debian packages".into());
    }
    if !Path::new("/dev/net/tun").exists() {
        return Some("there is no /dev/net/tun for the guest's network".into());
    }
    let probe = format!("{NAMESPACE}-{}", std::process::id());
    if !succeeds("ip", &["netns", "add", &probe]) {
        return Some("this root may not make network namespaces".into());
    }
    succeeds("ip", &["netns", "del", &probe]);
    None
}

/// The VM and the namespace. However this process ends, they go: another process waits for the end of a pipe, and if no
/// word comes before it, for a start that may still be under way.
pub(crate) struct Lab {
    script: PathBuf,
    keeper: Child,
}

impl Lab {
    pub(crate) fn start() -> Result<Self> {
        let script = root().join("tests/lab/rxe-vm");
        let status =
            Self::command(&script, &["status"]).output().map_err(|e| format!("{}: {e}", script.display()))?;
        if String::from_utf8_lossy(&status.stdout).contains(&format!("guest {GUEST}: pid")) {
            return Err(format!(
                "guest {GUEST} already runs; `RXE_VM_NS={NAMESPACE} {} -g {GUEST} stop`",
                script.display()
            ));
        }
        checked(Self::command(&script, &["build"]))?;
        let keeper = Command::new("bash")
            .args(["-c", r#"read -r end || sleep 2; "$1" stop; ip netns del "$2""#, "keeper"])
            .arg(&script)
            .arg(NAMESPACE)
            .envs(settings())
            .stdin(Stdio::piped())
            .process_group(0)
            .spawn()
            .map_err(|e| format!("cannot run bash: {e}"))?;
        let lab = Self { script, keeper };
        checked(Self::command(&lab.script, &["start"]))?;
        Ok(lab)
    }

    fn command(script: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new(script);
        command.args(arguments).envs(settings()).stdin(Stdio::null());
        command
    }

    pub(crate) fn in_guest(&self, line: &str) -> Command {
        Self::command(&self.script, &["exec", line])
    }

    /// Puts a program of this host into the guest.
    pub(crate) fn install(&self, program: &Path, place: &str) -> Result {
        let file = File::open(program).map_err(|e| format!("{}: {e}", program.display()))?;
        let mut command = self.in_guest(&format!("cat >{place} && chmod +x {place}"));
        command.stdin(file);
        checked(command)
    }

    /// The content of a file in the guest.
    pub(crate) fn content(&self, place: &str) -> Result<Vec<u8>> {
        let output = self.in_guest(&format!("cat {place}")).output();
        let output = output.map_err(|e| format!("cannot read {place} in the guest: {e}"))?;
        if output.status.success() {
            return Ok(output.stdout);
        }
        Err(format!("{place} in the guest: {}", String::from_utf8_lossy(&output.stderr).trim()))
    }

    /// What the daemon in the namespace says, if there is one.
    pub(crate) fn status(&self, urxe: &Path) -> Option<String> {
        let mut command = Self::command(&self.script, &["ns"]);
        command.arg(urxe).args(["stat", "--json"]).env("URXE_CONFIG", "");
        let output = command.output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    }

    pub(crate) fn on_host(&self, urxe: &Path, env: &[(&str, &str)], line: &str) -> Command {
        let mut command = Self::command(&self.script, &["ns"]);
        command.arg(urxe).args(["run", "--with-parent", "--"]).args(line.split(' '));
        command.env("URXE_CONFIG", "").envs(env.iter().copied());
        command
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if let Some(mut pipe) = self.keeper.stdin.take() {
            let _ = pipe.write_all(b"end\n");
        }
        let _ = self.keeper.wait();
    }
}

fn settings() -> [(&'static str, &'static str); 3] {
    [("RXE_VM_GUEST", GUEST), ("RXE_VM_NS", NAMESPACE), ("RXE_VM_MTU", MTU)]
}

pub(crate) fn checked(mut command: Command) -> Result {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{command:?} failed ({status})")),
        Err(e) => Err(format!("cannot run {command:?}: {e}")),
    }
}
