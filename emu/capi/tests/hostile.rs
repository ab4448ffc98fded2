//! Whatever a program passes, it gets an errno and lives.

mod support;

#[test]
fn wild_arguments_are_errors() {
    if !support::have_headers() {
        return;
    }
    let folder = support::Folder::new("hostile");
    let program = support::compile("hostile", &["-O0"], &["-libverbs", "-lrdmacm"]);
    let mut command = support::over_drop_in("timeout");
    command.arg("60").arg(program).env("XDG_RUNTIME_DIR", &folder.0).env("URXE_LOG", "off");
    support::output(&mut command);
}
