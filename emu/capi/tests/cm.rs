//! librdmacm's functions, by a C program with both ends in one process and by programs in two, over the daemon.

mod support;

use std::process::Command;

/// A command over the drop-in library, in a fabric of its own, whose daemon is found beside the library.
fn in_fabric(name: &str, folder: &support::Folder, program: impl AsRef<std::ffi::OsStr>) -> Command {
    support::command_line();
    let mut command = support::over_drop_in("timeout");
    command
        .arg("60")
        .arg(program)
        .env("XDG_RUNTIME_DIR", &folder.0)
        .env("URXE_FABRIC", format!("cm-{name}-{}", std::process::id()))
        .env("URXE_LOG", "warn");
    command
}

fn scenario(name: &str) {
    if !support::have_headers() {
        return;
    }
    let folder = support::Folder::new(&format!("cm-{name}"));
    let program =
        support::compile_as("cm", &format!("cm-{name}"), &["-O1", "-pthread"], &["-libverbs", "-lrdmacm"]);
    support::output(in_fabric(name, &folder, program).arg(name));
}

#[test]
fn two_ends_connect_talk_and_disconnect_from_either_side() {
    scenario("connect_and_talk");
}

#[test]
fn ten_thousand_connections_leave_no_descriptor_and_no_memory() {
    scenario("many");
}

#[test]
fn a_request_is_rejected_by_the_program_by_nobody_and_by_a_listener_that_leaves() {
    scenario("rejecting");
}

#[test]
fn a_program_may_bring_its_own_queue_pairs_and_options_of_its_vendor() {
    scenario("own_queue_pairs");
}

#[test]
fn datagram_services_are_resolved_and_refused() {
    scenario("datagrams");
}

#[test]
fn synchronous_endpoints_connect_and_are_refused() {
    scenario("synchronous");
}

#[test]
fn addresses_ports_and_options_are_checked_as_by_the_kernel() {
    scenario("binding");
}

#[test]
fn an_identifier_moves_with_its_events() {
    scenario("moving");
}

#[test]
fn groups_are_joined_heard_and_left() {
    scenario("groups");
}

#[test]
fn connections_outlive_the_daemon_and_listeners_come_back_with_the_next() {
    scenario("daemon_dies");
}

#[test]
fn wild_pointers_wrong_orders_and_children_are_errors() {
    scenario("hostile");
}

#[test]
fn without_a_daemon_there_is_no_connection_manager() {
    if !support::have_program("rping") {
        eprintln!("skipped: rping is not installed");
        return;
    }
    let folder = support::Folder::new("cm-off");
    let result = in_fabric("off", &folder, "rping")
        .args(["-s", "-C1"])
        .env("URXE_DAEMON", "off")
        .output()
        .expect("timeout(1) is there");
    let text = String::from_utf8_lossy(&result.stderr);
    assert!(!result.status.success() && result.status.code().is_some_and(|code| code != 124), "{text}");
    assert!(text.contains("daemon = off"), "the log says why: {text}");
}
