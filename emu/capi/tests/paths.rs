//! The device's files as programs see them.

mod support;

use std::process::Command;

use support::Folder;

fn with_device(program: impl AsRef<std::ffi::OsStr>, folder: &Folder) -> Command {
    let mut command = support::over_drop_in(program);
    command
        .env("XDG_RUNTIME_DIR", &folder.0)
        .env("URXE_ADDR", "127.0.9.9")
        .env("URXE_DAEMON", "off")
        .current_dir(&folder.0);
    command
}

#[test]
fn every_path_function_of_libc_finds_the_device() {
    if !support::have_program("cc") {
        eprintln!("skipped: needs cc");
        return;
    }
    let folder = Folder::new("paths");
    // The second one calls the checked variants of libc's functions.
    for flags in [&["-O0"][..], &["-O2", "-D_FORTIFY_SOURCE=2", "-D_FILE_OFFSET_BITS=64"]] {
        support::output(&mut with_device(support::compile("paths", flags, &[]), &folder));
    }
    let left: Vec<_> = std::fs::read_dir(folder.0.join("urxe")).expect("the tree is there").collect();
    assert_eq!(left.len(), 1, "one tree for all processes: {left:?}");
}

#[test]
fn shell_and_python_find_the_device() {
    let folder = Folder::new("shell");
    let script = "test -c /dev/infiniband/uverbs0 && test -r /dev/infiniband/uverbs0 && \
        test -w /dev/infiniband/uverbs0 && test -d /sys/class/infiniband && cat /sys/class/infiniband/urxe0/node_type";
    let text = support::output(with_device("sh", &folder).args(["-c", script]));
    assert_eq!(text, "1: CA\n");
    let text = support::output(with_device("ls", &folder).args([
        "-lL",
        "/sys/class/infiniband/",
        "/dev/infiniband",
    ]));
    assert!(text.contains("urxe0") && text.contains("231, 192"), "{text}");
    if support::have_program("python3") {
        let script = "import os, glob\n\
            print(os.listdir('/sys/class/infiniband/urxe0/device/net'), os.path.realpath('/sys/class/infiniband/urxe0'))\n\
            print(open('/sys/class/infiniband/urxe0/ports/1/gids/0').read().strip(), os.path.exists('/dev/infiniband/uverbs0'))";
        let text = support::output(with_device("python3", &folder).args(["-c", script]));
        assert_eq!(
            text,
            "['lo'] /sys/devices/virtual/urxe/device0/infiniband/urxe0\n\
             0000:0000:0000:0000:0000:ffff:7f00:0909 True\n"
        );
    }
}

/// Many processes at once agree on one tree.
#[test]
fn processes_in_a_race_share_one_tree() {
    let folder = Folder::new("race");
    let children: Vec<_> = (0..8)
        .map(|_| {
            with_device("cat", &folder)
                .arg("/sys/class/infiniband/urxe0/ports/1/lid")
                .stdout(std::process::Stdio::piped())
                .spawn()
                .expect("cat starts")
        })
        .collect();
    for child in children {
        let result = child.wait_with_output().expect("it ends");
        assert_eq!(String::from_utf8_lossy(&result.stdout), "0x909\n");
    }
    assert_eq!(std::fs::read_dir(folder.0.join("urxe")).expect("the tree is there").count(), 1);
}

/// What stands in the way of the runtime folder is left alone; the tree is made elsewhere.
#[test]
fn an_unusable_runtime_folder_is_passed_over() {
    let folder = Folder::new("refused");
    std::fs::write(folder.0.join("urxe"), "in the way").expect("ours");
    let text = support::output(with_device("cat", &folder).arg("/sys/class/infiniband/urxe0/ports/1/lid"));
    assert_eq!(text, "0x909\n");
    assert_eq!(std::fs::read_to_string(folder.0.join("urxe")).expect("still there"), "in the way");
}
