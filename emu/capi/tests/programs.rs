//! Programs from the system's packages start over the drop-in library.

mod support;

use std::process::Command;

/// Runs a program with a limit and returns its two outputs and exit code.
fn run(program: &str, arguments: &[&str]) -> Option<(String, Option<i32>)> {
    if !support::have_program(program) {
        eprintln!("skipped: {program} is not installed");
        return None;
    }
    let mut command = support::over_drop_in("timeout");
    command.arg("20").arg(program).args(arguments);
    let result = command.output().expect("timeout(1) is there");
    let text =
        format!("{}{}", String::from_utf8_lossy(&result.stdout), String::from_utf8_lossy(&result.stderr));
    for wrong in ["symbol lookup error", "undefined symbol", "version `", "cannot open shared object"] {
        assert!(!text.contains(wrong), "{program} {arguments:?}: {text}");
    }
    assert!(result.status.code().is_some(), "{program} {arguments:?} died: {}\n{text}", result.status);
    Some((text, result.status.code()))
}

#[test]
fn perftest_starts() {
    for program in ["ib_send_lat", "ib_send_bw", "ib_write_bw", "ib_read_lat", "ib_atomic_bw"] {
        // perftest exits with 1 after it printed its version.
        if let Some((text, _)) = run(program, &["--version"]) {
            assert!(text.contains("Version"), "{text}");
        }
        if let Some((text, _)) = run(program, &["--help"]) {
            assert!(text.contains("--gid-index"), "{text}");
        }
    }
}

#[test]
fn the_verbs_utilities_start() {
    for program in ["ibv_devices", "ibv_devinfo"] {
        run(program, &[]);
    }
    for program in
        ["ibv_rc_pingpong", "ibv_uc_pingpong", "ibv_ud_pingpong", "ibv_srq_pingpong", "ibv_xsrq_pingpong"]
    {
        if let Some((text, _)) = run(program, &["-h"]) {
            assert!(text.contains("Usage"), "{text}");
        }
    }
}

#[test]
fn ucx_loads_its_verbs_modules() {
    if let Some((text, code)) = run("ucx_info", &["-v"]) {
        assert_eq!(code, Some(0), "{text}");
    }
    if let Some((text, code)) = run("ucx_info", &["-d"]) {
        assert_eq!(code, Some(0), "{text}");
    }
}

#[test]
fn connection_manager_programs_start() {
    // Servers would wait for clients: an unknown option makes them say how they are used.
    for program in ["rping", "ucmatose", "udaddy", "mckey", "rdma_client", "rdma_server", "cmtime"] {
        if let Some((text, code)) = run(program, &["-?"]) {
            assert_ne!(code, Some(0), "{program}: {text}");
            assert!(text.to_lowercase().contains("usage") || text.contains("-s"), "{program}: {text}");
        }
    }
}

#[test]
fn sockets_over_rdma_say_that_they_are_not_supported() {
    if let Some((text, code)) = run("rstream", &["-s", "127.0.0.1"]) {
        assert_ne!(code, Some(0), "{text}");
        assert!(text.contains("not supported"), "{text}");
    }
}

/// `ldd -r` resolves every symbol, functions too.
#[test]
fn every_symbol_of_the_programs_is_found() {
    for program in ["ib_send_lat", "ibv_devinfo", "rping", "rstream", "ibv_rc_pingpong"] {
        if !support::have_program(program) || !support::have_program("ldd") {
            continue;
        }
        let folder = support::drop_in();
        let path = support::output(Command::new("sh").args(["-c", &format!("command -v {program}")]));
        let listing =
            support::output(Command::new("ldd").arg("-r").arg(path.trim()).env("LD_LIBRARY_PATH", &folder));
        assert!(!listing.contains("undefined symbol") && !listing.contains("not found"), "{listing}");
        assert!(listing.contains(folder.to_str().expect("UTF-8")), "{listing}");
    }
}
