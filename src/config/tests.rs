use super::*;

fn resolve(env: &[(&str, &str)], flags: &[(&str, &str)]) -> Result<Config, Error> {
    let env = env.iter().map(|(k, v)| (k.into(), v.into()));
    let flags: Vec<_> = flags.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
    Config::resolve(env, &flags)
}

fn message(result: Result<Config, Error>) -> String {
    let text = result.map(|_| ()).expect_err("must be refused").to_string();
    assert_eq!(text.lines().count(), 1, "{text}");
    text
}

fn write_file(name: &str, text: &str) -> String {
    let path = std::env::temp_dir().join(format!("urxe-config-{}-{name}.toml", std::process::id()));
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().into()
}

#[test]
fn later_sources_win_and_are_remembered() {
    let path = write_file("order", "# c\nmtu = 512\ndevice = \"abc\"\nspin = 7\n");
    let c = resolve(
        &[("URXE_CONFIG", &path), ("URXE_MTU", "1024"), ("URXE_SPIN", "8us"), ("PATH", "/bin")],
        &[("spin", "9")],
    )
    .unwrap();
    assert_eq!((c.mtu, c.device.as_str()), (Some(Mtu::B1024), "abc"));
    assert_eq!(c.spin.duration().as_micros(), 9);
    let source = |key| c.source(key).unwrap().to_string();
    assert_eq!(source("device"), format!("{path}:3"));
    assert_eq!(source("mtu"), "environment URXE_MTU");
    assert_eq!(source("spin"), "flag --spin");
    assert_eq!(source("log"), "default");
    std::fs::remove_file(path).unwrap();
}

#[test]
fn a_file_is_optional_unless_it_is_named() {
    assert!(resolve(&[("HOME", "/nonexistent")], &[]).is_ok());
    assert!(resolve(&[("HOME", "/dev/null")], &[]).is_ok());
    assert!(resolve(&[("URXE_CONFIG", "")], &[]).is_ok());
    let e = message(resolve(&[("URXE_CONFIG", "/nonexistent/urxe.toml")], &[]));
    assert!(e.contains("/nonexistent/urxe.toml") && e.contains("No such file"), "{e}");
}

#[test]
fn the_file_takes_numbers_texts_lists_and_tables() {
    let mut c = Config::default();
    let text = "addr = '10.0.0.1'\nlid = 0x12\nrcvbuf = '1 MiB'\nsndbuf = 65_536\n[lids]\n7 = '10.0.0.3'\n0x8 = '::1'";
    c.apply_toml("f".as_ref(), text).unwrap();
    assert_eq!(c.addr, Some([10, 0, 0, 1].into()));
    assert_eq!(c.lid, Some(Lid(0x12)));
    assert_eq!((c.rcvbuf.bytes(), c.sndbuf.bytes()), (1 << 20, 65536));
    assert_eq!(c.lids.address(Lid(7)), Some([10, 0, 0, 3].into()));
    assert_eq!(c.lids.address(Lid(8)), Some("::1".parse().unwrap()));
    assert_eq!(c.lids.address(Lid(9)), None);
}

#[test]
fn an_error_names_the_place_the_value_and_what_is_accepted() {
    let e = message(resolve(&[("URXE_MTU", "9000\n")], &[]));
    assert_eq!(
        e,
        "environment URXE_MTU: bad value \"9000\\n\" for mtu; accepted: auto, 256, 512, 1024, 2048, 4096"
    );
    let e = message(resolve(&[], &[("tasks", "thread")]));
    assert_eq!(e, "flag --tasks: bad value \"thread\" for tasks; accepted: inline, workqueue, auto");
    let e = message(resolve(&[("URXE_MTUU", "1")], &[]));
    assert!(
        e.starts_with("environment URXE_MTUU: unknown key \"URXE_MTUU\"; the keys are fabric, nodes, node"),
        "{e}"
    );

    let e =
        |text: &str| message(Config::default().apply_toml("/x".as_ref(), text).map(|()| Config::default()));
    assert!(e("\nfoo = 1\n").starts_with("/x:2: unknown key \"foo\""));
    assert!(
        e("mtu = 1024\nlog = true").starts_with("/x:2: bad value \"true\" for log; accepted: off, error")
    );
    assert!(e("mtu = 256\n\nmtu 512").starts_with("/x:3: "));
    assert!(e("mtu = 256\nmtu = 512").starts_with("/x:2: duplicate key"));
}

#[test]
fn values_out_of_range_are_refused() {
    for (key, value) in [
        ("rcvbuf", "1"),
        ("rcvbuf", "2GiB"),
        ("rcvbuf", "99999999999999999999"),
        ("rcvbuf", "18446744073709551615GiB"),
        ("rcvbuf", "+65536"),
        ("rcvbuf", "KiB"),
        ("spin", "-1"),
        ("rx-cpu", "1024"),
        ("lid", "0"),
        ("lid", "0xc000"),
        ("lid", "0x+1"),
        ("addr", "0.0.0.0"),
        ("addr", "224.0.0.1"),
        ("addr", "localhost"),
        ("nodes", "0"),
        ("nodes", "65"),
        ("node", "-1"),
        ("devices", "5"),
        ("netdev", "a/b"),
        ("netdev", ".."),
        ("netdev", "a-name-of-16-byt"),
        ("fabric", "../x"),
        ("daemon", "on"),
        ("device", "a/b"),
        ("device", ""),
        ("device", "0x"),
        ("lids", "1=10.0.0.1,1=10.0.0.2"),
        ("lids", "1"),
        ("log-file", ""),
        ("gso", "AUTO"),
        ("odp-fault", "wait"),
        ("odp-latency", "-1"),
        ("odp-latency", "20us-10us"),
        ("odp-latency", "exp:"),
        ("odp-latency", "10000001"),
        ("odp-workers", "0"),
        ("odp-workers", "65"),
        ("loss", "1.01"),
        ("loss", "101%"),
        ("loss", "-1"),
        ("loss", "inf"),
        ("loss", "nan"),
        ("loss", "%"),
        ("loss", "1%%"),
        ("corrupt", "1,5"),
        ("delay", "2ms-1ms"),
        ("delay", "10001ms"),
        ("rate", "999"),
        ("rate", "0"),
        ("rate", "1001GB"),
        ("rate", "1.5GB"),
        ("rate", "1Gbit/h"),
        ("rate", "99999999999999Gbit"),
        ("rate-queue", "0"),
        ("impair", "none"),
        ("impair-seed", "4294967296"),
    ] {
        let e = message(resolve(&[], &[(key, value)]));
        assert!(e.contains("bad value"), "{key}={value}: {e}");
    }
}

#[test]
fn latencies_of_page_faults_have_three_forms() {
    let parse = |text| resolve(&[], &[("odp-latency", text)]).unwrap().odp_latency;
    assert_eq!(parse("none"), Latency::None);
    assert_eq!(parse("0"), Latency::None);
    assert_eq!(parse("50"), Latency::Fixed(50_000));
    assert_eq!(parse("10us-200us"), Latency::Uniform(10_000, 200_000));
    assert_eq!(parse("exp:50us"), Latency::Exponential(50_000));
}

#[test]
fn probabilities_and_rates_have_units() {
    let with = |key, text| resolve(&[], &[(key, text)]).unwrap();
    for (text, value) in
        [("0", 0.0), ("1%", 0.01), ("0.5 %", 0.005), ("0.01", 0.01), ("100%", 1.0), ("2e-3", 0.002)]
    {
        assert_eq!(with("loss", text).loss.value(), value, "{text}");
    }
    for (text, value) in
        [("1Gbit", 125_000_000), ("100MB/s", 100_000_000), ("8 kbit/s", 1000), ("12345", 12_345)]
    {
        assert_eq!(with("rate", text).rate.map(Rate::bytes_per_second), Some(value), "{text}");
    }
    assert_eq!(with("rate", "none").rate, None);
    assert_eq!(with("delay", "2ms").delay, Latency::Fixed(2_000_000));
    assert_eq!(with("delay", "500us-1ms").delay, Latency::Uniform(500_000, 1_000_000));
    let e = message(resolve(&[], &[("loss", "2")]));
    assert_eq!(
        e,
        "flag --loss: bad value \"2\" for loss; accepted: a probability from 0 to 1 such as 0.01 or 1%"
    );
}

#[test]
fn a_thread_that_receives_must_not_sleep_in_a_page_fault() {
    let e = message(resolve(&[("URXE_ODP_FAULT", "sleep")], &[]));
    assert!(e.contains("odp_fault") && e.contains("sleep") && e.contains("accepted are park and rnr"), "{e}");
    for tasks in ["workqueue", "auto"] {
        assert!(resolve(&[("URXE_ODP_FAULT", "sleep"), ("URXE_TASKS", tasks)], &[]).is_ok());
    }
}

#[test]
fn cpus_are_a_list_of_those_that_the_process_may_use() {
    let mut c = Config::default();
    for bad in ["", "0,", "2-1", "-1", "1024", "0 1", "a"] {
        let e = message(c.set("cpus", bad, Source::Default).map(|()| Config::default()));
        assert!(e.contains("bad value") && e.contains("for cpus; accepted: none, a list of CPU"), "{e}");
    }
    c.set("cpus", "6, 2-4,3", Source::Flag("cpus".into())).unwrap();
    assert_eq!(c.cpus.as_ref().unwrap().as_slice(), [2, 3, 4, 6]);
    assert_eq!(c.check_cpus(&[2, 3, 4, 5, 6]), Ok(()));
    let e = message(c.check_cpus(&[0, 1, 2, 4, 6]).map(|()| Config::default()));
    let accepted = "accepted: none, CPUs that this process may use: 0-2,4,6";
    assert_eq!(e, format!("flag --cpus: bad value \"2-4,6\" for cpus; {accepted}"));
    c.set("cpus", "none", Source::Default).unwrap();
    c.set("rx_cpu", "7", Source::Env("URXE_RX_CPU".into())).unwrap();
    let e = message(c.check_cpus(&[0]).map(|()| Config::default()));
    assert!(e.starts_with("environment URXE_RX_CPU: bad value \"7\" for rx_cpu"), "{e}");
    // The process itself.
    let e = message(resolve(&[], &[("rx_cpu", "1023")]));
    assert!(e.contains("CPUs that this process may use: 0"), "{e}");
}

#[test]
fn what_is_shown_parses_to_the_same() {
    let mut c = Config::default();
    for (key, text) in [
        ("addr", "10.0.0.1"),
        ("device", "rocep1s0"),
        ("mtu", "2048"),
        ("link_layer", "infiniband"),
        ("lid", "7"),
        ("lids", "7=10.0.0.3,8=::1"),
        ("receive", "raw"),
        ("gso", "off"),
        ("rcvbuf", "300000"),
        ("sndbuf", "3 MB"),
        ("window", "96KiB"),
        ("spin", "0"),
        ("rx_cpu", "3"),
        ("tasks", "auto"),
        ("workers", "3"),
        ("cpus", "5,0-2,1"),
        ("worker_spin", "7us"),
        ("guard", "kernel"),
        ("odp_fault", "rnr"),
        ("odp_latency", "10us-200us"),
        ("odp_workers", "7"),
        ("loss", "0.1%"),
        ("duplicate", "1e-5"),
        ("reorder", "1"),
        ("corrupt", ".25"),
        ("delay", "exp:1ms"),
        ("rate", "10Gbit/s"),
        ("rate_queue", "64KiB"),
        ("impair", "both"),
        ("impair_seed", "7"),
        ("log", "trace"),
        ("log_file", "/tmp/x"),
    ] {
        c.set(key, text, Source::Default).unwrap();
    }
    for config in [Config::default(), c] {
        let mut again = Config::default();
        for (key, value, _) in config.entries() {
            again.set(key.name, &value, Source::Default).unwrap();
        }
        assert_eq!(format!("{config:?}"), format!("{again:?}"));
    }
}

#[test]
fn the_environment_need_not_be_text() {
    use std::os::unix::ffi::OsStringExt;
    let bad = OsString::from_vec(b"\xff\xfe".to_vec());
    assert!(message(Config::resolve([("URXE_LOG".into(), bad.clone())], &[])).contains("bad value"));
    let mut name = OsString::from("URXE_");
    name.push(&bad);
    assert!(message(Config::resolve([(name, "1".into())], &[])).contains("unknown key"));
    assert!(Config::resolve([(bad.clone(), bad)], &[]).is_ok());
}

#[test]
fn a_launchers_rank_says_which_machine_it_is() {
    let node = |env: &[(&str, &str)]| resolve(env, &[("nodes", "4")]).unwrap().node_number();
    assert_eq!(node(&[]), 0);
    assert_eq!(node(&[("OMPI_COMM_WORLD_RANK", "6")]), 2);
    assert_eq!(node(&[("SLURM_PROCID", "3"), ("PMI_RANK", "1")]), 1);
    assert_eq!(node(&[("PMIX_RANK", "x"), ("PMI_RANK", "3")]), 3);
    assert_eq!(node(&[("PMI_RANK", "3"), ("URXE_NODE", "2")]), 2);
    assert_eq!(resolve(&[("PMI_RANK", "3")], &[]).unwrap().node_number(), 0);
}

#[test]
fn values_that_exclude_each_other_are_named_both() {
    for (first, second) in [
        (("node", "2"), ("nodes", "2")),
        (("addr", "127.0.9.1"), ("netdev", "lo")),
        (("addr", "127.0.9.1"), ("nodes", "2")),
        (("addr", "127.0.9.1"), ("devices", "2")),
        (("netdev", "lo"), ("nodes", "2")),
        (("netdev", "lo"), ("devices", "2")),
        (("lid", "7"), ("devices", "2")),
        (("daemon", "off"), ("devices", "2")),
    ] {
        let text = message(resolve(&[], &[first, second]));
        for (key, value) in [first, second] {
            let value = if key == "lid" { "0x0007" } else { value };
            assert!(text.contains(&format!("{key} = {value} (flag --{key})")), "{text}");
        }
    }
    assert!(message(resolve(&[("URXE_NODE", "1")], &[])).contains("nodes = 1 (default)"));
}

#[test]
fn devices_of_a_machine_are_counted_up() {
    let names = |device: &str| {
        let config = resolve(&[], &[("devices", "3"), ("device", device)]).unwrap();
        (0..3).map(|rail| config.device_name(rail)).collect::<Vec<_>>()
    };
    assert_eq!(names("urxe0"), ["urxe0", "urxe1", "urxe2"]);
    assert_eq!(names("mlx5_9"), ["mlx5_9", "mlx5_10", "mlx5_11"]);
    assert_eq!(names("ib"), ["ib", "ib1", "ib2"]);
    assert_eq!(names("r007"), ["r007", "r008", "r009"]);
    let long = format!("a{}", "9".repeat(62));
    assert!(names(&long).iter().all(|name| name.len() <= 63 && name.starts_with('a')));
}

#[test]
fn the_reference_in_docs_is_this_table() {
    let root = env!("CARGO_MANIFEST_DIR");
    let docs = std::fs::read_to_string(format!("{root}/docs/configuration.md")).unwrap_or_default();
    if docs != Config::reference() {
        let fresh = format!("{root}/target/configuration.md");
        std::fs::write(&fresh, Config::reference()).unwrap();
        panic!("docs/configuration.md is stale; the right text is in {fresh}");
    }
}
