//! Children of a program with threads.

mod support;

#[test]
fn a_child_that_is_forked_while_other_threads_register_can_register() {
    if !support::have_headers() {
        return;
    }
    let folder = support::Folder::new("fork");
    let program = support::compile("fork", &["-O1", "-pthread"], &["-libverbs"]);
    let mut command = support::over_drop_in("timeout");
    command.arg("100").arg(program).env("XDG_RUNTIME_DIR", &folder.0).env("URXE_LOG", "off");
    support::output(&mut command);
}
