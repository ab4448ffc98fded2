//! The devices of processes that share them, by a C program over the drop-in library and the daemon.

mod support;

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use support::Folder;

/// A command over the drop-in library, with a daemon of its own.
fn over(folder: &Folder, program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = support::over_drop_in("timeout");
    command.arg("60").arg(program).env("XDG_RUNTIME_DIR", &folder.0).env("URXE_LOG", "warn");
    command
}

fn program() -> Option<PathBuf> {
    // Once for the tests of a process, and not under the feet of another.
    static PROGRAM: OnceLock<Option<PathBuf>> = OnceLock::new();
    let name = format!("devices-program-{}", std::process::id());
    let compile = || support::compile_as("devices", &name, &["-O1"], &["-libverbs"]);
    PROGRAM.get_or_init(|| support::have_headers().then(compile)).clone()
}

#[test]
fn processes_and_their_children_share_devices_with_slots_of_their_own() {
    let Some(program) = program() else { return };
    let folder = Folder::new("devices");
    let lines = |command: &mut Command| -> Vec<Vec<String>> {
        let text = support::output(command);
        text.lines().map(|line| line.split(' ').map(str::to_owned).collect()).collect()
    };
    let [one, four, other] = [(1, 0), (4, 0), (4, 1)].map(|(devices, node)| {
        let mut command = over(&folder, &program);
        let command = command.arg(devices.to_string()).env("URXE_DEVICES", devices.to_string());
        lines(command.env("URXE_NODES", "2").env("URXE_NODE", node.to_string()))
    });
    let column = |lines: &[Vec<String>], i: usize| -> Vec<String> {
        lines.iter().map(|line| line[i].clone()).collect()
    };
    assert_eq!(column(&four, 0), ["urxe0", "urxe1", "urxe2", "urxe3"]);
    assert_eq!(column(&other, 0), column(&four, 0));
    assert!(column(&four, 1).iter().all(|address| address.starts_with("::ffff:127.0.")), "{four:?}");
    // The machine's first device is the same, however many there are; the other machine's are others.
    assert_eq!(one[0][1], four[0][1]);
    assert!(column(&other, 1).iter().all(|address| !column(&four, 1).contains(address)), "{other:?}");
}

#[test]
fn many_processes_at_once_get_slots_of_their_own() {
    let Some(program) = program() else { return };
    let folder = Folder::new("many");
    let children: Vec<_> = (0..20)
        .map(|_| {
            over(&folder, &program)
                .arg("1")
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .expect("it starts")
        })
        .collect();
    for child in children {
        let result = child.wait_with_output().expect("it ends");
        assert!(result.status.success(), "{result:?}");
    }
}

#[test]
fn too_few_descriptors_are_an_error_and_no_end() {
    let Some(program) = program() else { return };
    let folder = Folder::new("few");
    support::output(over(&folder, &program).args(["descriptors", "1"]).env("URXE_LOG", "off"));
}

#[test]
fn without_a_daemon_the_device_is_the_process_s_own() {
    let Some(program) = program() else { return };
    let folder = Folder::new("off");
    let mut alone = over(&folder, &program);
    let text = support::output(alone.arg("1").env("URXE_DAEMON", "off").env("URXE_DEVICE", "own7"));
    assert!(text.starts_with("own7 ::ffff:127."), "{text}");
    let script = "test -c /dev/infiniband/uverbs0 && ! test -e /dev/infiniband/rdma_cm";
    support::output(over(&folder, "sh").args(["-c", script]).env("URXE_DAEMON", "off"));
    let sockets = std::fs::read_dir(folder.0.join("urxe")).expect("the trees are there");
    let sockets = sockets.flatten().filter(|entry| entry.file_name().to_string_lossy().ends_with(".sock"));
    assert_eq!(sockets.count(), 0, "no daemon was started");
    // Two devices need one; the message names both keys.
    let mut two = over(&folder, &program);
    two.args(["refused", &libc::EINVAL.to_string()]).env("URXE_DAEMON", "off").env("URXE_DEVICES", "2");
    let result = two.output().expect("it runs");
    let text = String::from_utf8_lossy(&result.stderr).into_owned();
    assert!(result.status.success() && text.contains("daemon") && text.contains("devices"), "{result:?}");
}

#[test]
fn a_daemon_that_cannot_be_started_is_enodev_and_the_log_says_why() {
    let Some(program) = program() else { return };
    let folder = Folder::new("alone");
    let library = folder.0.join("libibverbs.so.1");
    std::fs::copy(support::library(), &library).expect("the folder is writable");
    let mut command = Command::new("timeout");
    command.arg("60").arg(&program).args(["refused", &libc::ENODEV.to_string()]);
    command
        .env("LD_LIBRARY_PATH", &folder.0)
        .env("XDG_RUNTIME_DIR", &folder.0)
        .env("URXE_LOG", "error")
        .env("URXE_FABRIC", "alone");
    let result = command.output().expect("it runs");
    let text = String::from_utf8_lossy(&result.stderr).into_owned();
    assert!(result.status.success(), "{result:?}");
    assert!(text.contains("no urxe command beside"), "{text}");
}

#[test]
fn an_address_that_is_not_local_is_an_error_that_names_it() {
    let Some(program) = program() else { return };
    let folder = Folder::new("foreign");
    // TEST-NET-2 (RFC 5737): nobody's address.
    let mut command = over(&folder, &program);
    command.args(["refused", &libc::EADDRNOTAVAIL.to_string()]).env("URXE_ADDR", "198.51.100.7");
    let result = command.output().expect("it runs");
    let text = String::from_utf8_lossy(&result.stderr).into_owned();
    assert!(text.contains("198.51.100.7"), "{text}");
    assert!(result.status.success(), "{result:?}");
}
