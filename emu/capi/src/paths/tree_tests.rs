use std::net::Ipv4Addr;

use super::*;

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("urxe-tree-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).expect("the temporary folder is writable");
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        _ = fs::remove_dir_all(&self.0);
    }
}

fn facts(last: u8) -> [Facts; 1] {
    [Facts::of(Ipv4Addr::new(127, 0, 3, last), "lo")]
}

#[test]
fn the_files_say_what_the_facts_say() {
    let folder = Folder::new("files");
    let tree = make_in(&folder.0, &facts(7)).expect("writable");
    let read = |path: &str| fs::read_to_string(tree.join(path)).expect("the file is there");
    assert_eq!(
        read("sys/class/infiniband/urxe0/ports/1/gids/0"),
        "0000:0000:0000:0000:0000:ffff:7f00:0307\n"
    );
    assert_eq!(read("sys/class/infiniband/urxe0/ports/1/gid_attrs/types/0"), "RoCE v2\n");
    assert_eq!(read("sys/class/infiniband/urxe0/ports/1/gid_attrs/ndevs/0"), "lo\n");
    assert_eq!(read("sys/class/infiniband/urxe0/ports/1/lid"), "0x307\n");
    assert_eq!(read("sys/class/infiniband/urxe0/node_guid"), "0200:00ff:fe00:0307\n");
    assert_eq!(read("sys/class/infiniband/urxe0/device/numa_node"), "-1\n");
    assert_eq!(read("sys/class/infiniband_verbs/uverbs0/ibdev"), "urxe0\n");
    assert_eq!(read("sys/class/infiniband_verbs/uverbs0/device/infiniband/urxe0/fw_ver").trim(), "0.1.0");
    assert!(tree.join("sys/class/infiniband/urxe0/device/net/lo").is_dir());
    assert!(!tree.join("sys/class/misc/rdma_cm").exists(), "no connection manager yet");
    let bus = tree.join("sys/class/infiniband/urxe0/../..").canonicalize().expect("exists");
    assert_eq!(bus, tree.canonicalize().expect("exists").join("sys/devices/virtual/urxe/device0"));
}

#[test]
fn each_device_has_its_own_files() {
    let folder = Folder::new("rails");
    let cm = |facts: Facts| Facts { connection_manager: true, ..facts };
    let [first] = facts(7).map(cm);
    let [second] = facts(8).map(|facts| cm(facts.with_rail(1, "urxe1".into())));
    let tree = make_in(&folder.0, &[first, second]).expect("writable");
    let read = |path: &str| fs::read_to_string(tree.join(path)).expect("the file is there");
    for (rail, last) in [(0, 7), (1, 8)] {
        let class = format!("sys/class/infiniband/urxe{rail}");
        assert_eq!(read(&format!("{class}/ports/1/lid")), format!("{:#x}\n", 0x300 + last));
        assert_eq!(read(&format!("sys/class/infiniband_verbs/uverbs{rail}/ibdev")), format!("urxe{rail}\n"));
        assert_eq!(
            read(&format!("sys/class/infiniband_verbs/uverbs{rail}/dev")),
            format!("231:{}\n", 192 + rail)
        );
        // CASES 29: how the rdma_cm tests find the network interface.
        assert!(tree.join(format!("{class}/device/net/lo")).is_dir());
        let bus = tree.join(format!("{class}/../..")).canonicalize().expect("exists");
        assert!(bus.ends_with(format!("device{rail}")), "{bus:?}");
    }
    assert_eq!(read("sys/class/misc/rdma_cm/dev"), "10:58\n");
    let nodes = fs::read_dir(tree.join("dev/infiniband")).expect("readable").count();
    assert_eq!(nodes, 3);
}

#[test]
fn the_same_facts_give_the_same_tree_and_others_another() {
    let folder = Folder::new("same");
    let first = make_in(&folder.0, &facts(1)).expect("writable");
    assert_eq!(make_in(&folder.0, &facts(1)).expect("writable"), first);
    assert_ne!(make_in(&folder.0, &facts(2)).expect("writable"), first);
    assert_eq!(fs::read_dir(&folder.0).expect("readable").count(), 2);
}

#[test]
fn makers_in_a_race_agree_and_leave_nothing_behind() {
    let folder = Folder::new("race");
    let trees: Vec<PathBuf> = std::thread::scope(|scope| {
        let makers: Vec<_> = (0..16)
            .map(|index| {
                scope.spawn({
                    let folder = &folder;
                    move || make_in(&folder.0, &facts(index % 2))
                })
            })
            .collect();
        makers.into_iter().map(|maker| maker.join().expect("no panic").expect("writable")).collect()
    });
    for pair in trees.chunks(2) {
        assert_eq!(pair, &trees[..2]);
    }
    assert_eq!(fs::read_dir(&folder.0).expect("readable").count(), 2);
}

#[test]
fn old_trees_go_and_their_number_is_bounded() {
    let folder = Folder::new("prune");
    let old = folder.0.join("tree-old");
    let abandoned = folder.0.join("new-1-0");
    let foreign = folder.0.join("socket");
    for path in [&old, &abandoned, &foreign] {
        fs::create_dir(path).expect("writable");
        let path = CString::new(path.as_os_str().as_bytes()).expect("no NUL");
        let past = libc::timespec { tv_sec: 1_000_000, tv_nsec: 0 };
        // SAFETY: good pointers.
        unsafe { libc::utimensat(libc::AT_FDCWD, path.as_ptr(), [past, past].as_ptr(), 0) };
    }
    for index in 0..LIMIT + 10 {
        fs::create_dir(folder.0.join(format!("tree-{index}"))).expect("writable");
    }
    let kept = make_in(&folder.0, &facts(1)).expect("writable");
    assert!(kept.is_dir() && foreign.is_dir());
    assert!(!old.exists() && !abandoned.exists());
    let count = fs::read_dir(&folder.0).expect("readable").count();
    assert_eq!(count, LIMIT + 1, "the limit, and what is not a tree");
}
