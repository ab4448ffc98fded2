//! Multicast groups by the C interface.

mod support;

#[test]
fn each_member_of_a_group_gets_a_copy_and_what_is_wrong_is_refused() {
    if !support::have_headers() {
        return;
    }
    let folder = support::Folder::new("multicast");
    let program = support::compile("multicast", &["-O1"], &["-libverbs"]);
    let mut command = support::over_drop_in("timeout");
    command.arg("60").arg(program).env("XDG_RUNTIME_DIR", &folder.0).env("URXE_LOG", "off");
    support::output(&mut command);
}
