//! The `urxe` command itself: exit codes, one-line errors, and that nothing stays behind.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::harness::{self, Output, PATIENCE, urxe};

type Test = fn() -> Result<(), String>;

pub(crate) fn all() -> Vec<(&'static str, Test)> {
    vec![
        ("a_wrong_use_is_one_line_and_125", wrong_use),
        ("a_program_that_cannot_run_is_126_or_127", cannot_run),
        ("run_passes_flags_and_exit_code_on", run_passes_on),
        ("a_taken_address_is_refused", taken_address),
        ("pair_connects_labels_and_gives_the_worse_code", pair_works),
        ("pair_exit_codes_are_those_of_the_worse_side", pair_codes),
        ("two_pairs_run_at_once", two_pairs),
        ("a_bad_flag_is_the_programs_own_error", bad_flags),
        ("pair_does_not_start_a_client_without_server", pair_without_server),
        ("pair_ends_what_it_started", pair_ends_all),
        ("devices_shows_values_and_their_sources", devices),
        ("machines_and_rails_have_devices_of_their_own", machines),
        ("a_pair_is_two_machines_of_a_fabric", pair_machines),
        ("contradictions_end_before_the_program_starts", contradictions),
    ]
}

fn expect(what: bool, output: &Output, wanted: &str) -> Result<(), String> {
    if what {
        Ok(())
    } else {
        Err(format!("wanted {wanted}; exit code {:?}, output:\n{}", output.code, output.text))
    }
}

fn fails(arguments: &[&str], code: i32, words: &[&str]) -> Result<(), String> {
    let output = harness::run(&mut urxe(arguments), PATIENCE)?;
    let good = output.code == Some(code)
        && output.text.lines().count() == 1
        && output.text.starts_with("urxe: ")
        && words.iter().all(|w| output.text.contains(w));
    expect(good, &output, &format!("code {code} and one line with {words:?} from {arguments:?}"))
}

fn wrong_use() -> Result<(), String> {
    fails(&[], 125, &["run", "pair", "devices"])?;
    fails(&["run"], 125, &["COMMAND"])?;
    fails(&["run", "--bogus", "--", "true"], 125, &["--bogus"])?;
    fails(
        &["run", "--mtu", "1500", "--", "true"],
        125,
        &["--mtu", "\"1500\"", "256, 512, 1024, 2048, 4096"],
    )?;
    fails(&["run", "--addr", "192.0.2.1", "--", "true"], 125, &["192.0.2.1", "not an address of this host"])?;
    fails(&["pair", "--addr", "127.0.9.1", "--client-addr", "x", "--", "true"], 125, &["\"x\"", "addr"])
}

fn cannot_run() -> Result<(), String> {
    fails(&["run", "--", "no-such-program"], 127, &["no-such-program", "not found"])?;
    fails(&["run", "--", "/etc/passwd"], 126, &["/etc/passwd"])
}

fn run_passes_on() -> Result<(), String> {
    let script = r#"echo "$URXE_MTU $URXE_LOG $LD_PRELOAD $LD_LIBRARY_PATH"; exit 7"#;
    let mut command = urxe(["run", "--mtu", "512", "--", "sh", "-c", script]);
    let output = harness::run(command.env("LD_LIBRARY_PATH", "/before").env_remove("LD_PRELOAD"), PATIENCE)?;
    let words: Vec<&str> = output.text.split_whitespace().collect();
    let [mtu, log, preload, path] = words[..] else { return expect(false, &output, "four words") };
    let folder = Path::new(preload).parent().and_then(|f| f.to_str()).unwrap_or_default();
    let good = (output.code, mtu, log) == (Some(7), "512", "warn") && path == format!("{folder}:/before");
    expect(good, &output, "code 7, 512, warn and the drop-in folder")?;
    for name in ["libibverbs.so.1", "libibverbs.so", "librdmacm.so.1", "librdmacm.so"] {
        let link = Path::new(folder).join(name);
        let target = std::fs::canonicalize(&link).map_err(|e| format!("{}: {e}", link.display()))?;
        expect(target.ends_with("liburxe.so"), &output, "links to liburxe.so")?;
    }
    Ok(())
}

fn taken_address() -> Result<(), String> {
    let [.., high, low] = std::process::id().to_be_bytes();
    let address = format!("127.77.{high}.{low}");
    let taken = std::net::UdpSocket::bind((address.as_str(), 4791)).map_err(|e| format!("{address}: {e}"))?;
    fails(&["run", "--addr", &address, "--", "true"], 125, &[&address, "taken"])?;
    drop(taken);
    let output = harness::run(&mut urxe(["run", "--addr", &address, "--", "true"]), PATIENCE)?;
    expect(output.code == Some(0) && output.text.is_empty(), &output, "success in silence")
}

/// A pair of toys that end as said.
fn toys(server: &str, client: &str) -> Result<Output, String> {
    let toy = std::env::current_exe().map_err(|e| e.to_string())?;
    let mut command = urxe(["pair", "--server-arg", server, "--client-arg", client]);
    command.arg("--").arg(toy).args(["toy", &harness::free_port().to_string()]);
    harness::run(&mut command, PATIENCE)
}

fn pair_works() -> Result<(), String> {
    let output = toys("0", "3")?;
    let has = |line| output.text.lines().any(|l| l == line);
    // It listens at all addresses, of which the client is given the one of the server's device.
    let hello = output.text.lines().any(|l| l.starts_with("client| hello from 127.0."));
    let good = hello && has("server| served") && has("server| no end of line");
    expect(good && output.code == Some(3), &output, "both outputs with labels, and code 3")
}

fn pair_codes() -> Result<(), String> {
    for (server, client, code) in
        [("0", "0", 0), ("4", "0", 4), ("5", "6", 6), ("6", "5", 6), ("9!", "0", 137), ("1", "15!", 143)]
    {
        let output = toys(server, client)?;
        let wanted = format!("code {code} from a server that ends with {server} and a client with {client}");
        expect(output.code == Some(code), &output, &wanted)?;
    }
    Ok(())
}

/// Two pairs find four addresses.
fn two_pairs() -> Result<(), String> {
    let pairs = [0, 1].map(|_| {
        std::thread::spawn(|| {
            let port = harness::free_port().to_string();
            let line = ["pair", "--", "ib_write_lat", "-n", "2000", "-p", &port];
            let output = harness::run(&mut urxe(line), PATIENCE)?;
            expect(
                output.code == Some(0) && output.text.contains("t_typical"),
                &output,
                "a table of latencies",
            )
        })
    });
    pairs.into_iter().try_for_each(|pair| pair.join().map_err(|_| "a thread panicked")?)
}

/// A program's own errors stay its own: its words, its code, and no client that waits for a server.
fn bad_flags() -> Result<(), String> {
    for (line, code, words) in [
        (&["ib_send_lat", "--no-such-flag"][..], 1, "no-such-flag"),
        (&["ib_send_bw", "-c", "XX"], 1, "Invalid Connection type"),
        (&["ib_write_bw", "-c", "UD"], 1, "only possible in SEND"),
        (&["ib_send_bw", "-d", "mlx5_0"], 1, "mlx5_0"),
        (&["ibv_rc_pingpong", "-z"], 1, "invalid option"),
        (&["ibv_rc_pingpong", "-d", "mlx5_0"], 1, "mlx5_0 not found"),
    ] {
        for mode in ["run", "pair"] {
            let output = harness::run(urxe([mode, "--"]).args(line), PATIENCE)?;
            let good = output.code == Some(code) && output.text.contains(words);
            expect(good, &output, &format!("code {code} and {words:?} from {mode} {line:?}"))?;
        }
    }
    Ok(())
}

fn pair_without_server() -> Result<(), String> {
    for (program, code) in [("true", 125), ("false", 1)] {
        let output = harness::run(&mut urxe(["pair", "--", program]), PATIENCE)?;
        expect(
            output.code == Some(code) && output.text.contains("before it listened"),
            &output,
            "no client",
        )?;
    }
    let output = harness::run(&mut urxe(["pair", "--", "no-such-program"]), PATIENCE)?;
    expect(output.code == Some(127) && output.text.contains("server| urxe: cannot run"), &output, "127")
}

/// However pair ends, its sides and their children end too.
fn pair_ends_all() -> Result<(), String> {
    // A duration that nobody else sleeps, to find the processes by.
    let seconds = format!("{}.5", 1_000_000 + std::process::id());
    let script = format!("sleep {seconds} & sleep {seconds}");
    let output = harness::run(&mut urxe(["pair", "--timeout", "1", "--", "sh", "-c", &script]), PATIENCE)?;
    expect(output.code == Some(124), &output, "124 after the time-out")?;
    wait_until_gone(&seconds)?;

    let script = format!("exec sleep {seconds}");
    let output = harness::run(&mut urxe(["pair", "--", "sh", "-c", &script]), Duration::from_millis(500))?;
    expect(output.code.is_none(), &output, "killed by this test")?;
    wait_until_gone(&seconds)
}

fn wait_until_gone(argument: &str) -> Result<(), String> {
    let end = Instant::now() + Duration::from_secs(5);
    let left = || {
        let entries = std::fs::read_dir("/proc").ok()?;
        let lines = entries.flatten().filter_map(|e| std::fs::read_to_string(e.path().join("cmdline")).ok());
        lines.into_iter().find(|line| line.starts_with("sleep") && line.contains(argument))
    };
    while let Some(line) = left() {
        if Instant::now() >= end {
            return Err(format!("still runs: {}", line.replace('\0', " ")));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

fn devices() -> Result<(), String> {
    let output = harness::run(urxe(["devices", "--mtu", "512"]).env("URXE_SPIN", "9us"), PATIENCE)?;
    let row = |words| row_of(&output, words);
    let good = row(["mtu", "512", "flag --mtu"])
        && row(["spin", "9us", "environment URXE_SPIN"])
        && row(["device", "urxe0", "default"])
        && output.text.contains("GID[0]")
        && output.text.contains("::ffff:127.0.");
    expect(good && output.code == Some(0), &output, "values with sources")?;
    let output = harness::run(&mut urxe(["devices", "--json"]), PATIENCE)?;
    expect(output.code == Some(0) && output.text.contains("\"mtu\""), &output, "JSON")?;
    let output = harness::run(&mut urxe(["devices", "--addr", "192.0.2.1"]), PATIENCE)?;
    let good = row_of(&output, ["addr", "192.0.2.1", "flag --addr"])
        && output.text.contains("urxe: no device: 192.0.2.1");
    expect(good && output.code == Some(125), &output, "the configuration and why there is no device")
}

/// A fabric of this test.
fn fabric(name: &str) -> String {
    format!("cli-{name}-{}", std::process::id())
}

fn machines() -> Result<(), String> {
    let fabric = fabric("machines");
    let addresses = |node: &str| -> Result<Vec<String>, String> {
        let line = ["devices", "--fabric", &fabric, "--nodes", "3", "--node", node, "--devices", "2"];
        let output = harness::run(&mut urxe(line), PATIENCE)?;
        let address = |l: &str| l.trim().strip_prefix("address ").map(|a| a.trim().to_owned());
        let found: Vec<_> = output.text.lines().filter_map(address).collect();
        let named = ["urxe0", "urxe1"].iter().all(|n| output.text.contains(&format!("hca_id         {n}")));
        expect(found.len() == 2 && named, &output, "two devices with names")?;
        Ok(found)
    };
    let mut all = [addresses("0")?, addresses("1")?, addresses("2")?].concat();
    if all[..2] != addresses("0")? {
        return Err(format!("node 0 has other addresses now than {:?}", &all[..2]));
    }
    all.sort();
    all.dedup();
    if all.len() != 6 {
        return Err(format!("six devices have the addresses {all:?}"));
    }
    // A launcher's rank says the same as --node.
    let line = ["devices", "--fabric", &fabric, "--nodes", "3", "--json"];
    let output = harness::run(urxe(line).env("PMIX_RANK", "5"), PATIENCE)?;
    let third = addresses("2")?.swap_remove(0);
    expect(output.text.contains(&format!("\"{third}\"")), &output, &format!("rank 5 of 3 nodes at {third}"))
}

/// Each side learns from its environment which machine it is.
fn pair_machines() -> Result<(), String> {
    let script = r#"echo "$URXE_FABRIC $URXE_NODES $URXE_NODE"; exec "$@""#;
    let toy = std::env::current_exe().map_err(|e| e.to_string())?;
    let mut command =
        urxe(["pair", "--server-arg", "0", "--client-arg", "0", "--", "sh", "-c", script, "sh"]);
    command.arg(toy).args(["toy", &harness::free_port().to_string()]);
    let output = harness::run(&mut command, PATIENCE)?;
    let words = |side: &str| {
        let line =
            output.text.lines().find(|l| l.starts_with(side) && l.contains("pair-")).unwrap_or_default();
        line.split_whitespace().skip(1).map(str::to_owned).collect::<Vec<_>>()
    };
    let (server, client) = (words("server|"), words("client|"));
    let good =
        server.len() == 3 && server[..2] == client[..2] && server[1..] == ["2", "0"] && client[2] == "1";
    expect(good && output.code == Some(0), &output, "one fabric, two nodes")
}

fn contradictions() -> Result<(), String> {
    fails(&["run", "--nodes", "2", "--node", "2", "--", "true"], 125, &["node = 2", "nodes = 2"])?;
    fails(
        &["run", "--addr", "127.0.9.1", "--nodes", "2", "--", "true"],
        125,
        &["addr = 127.0.9.1", "nodes = 2"],
    )?;
    fails(&["run", "--netdev", "none0", "--", "true"], 125, &["netdev none0", "lo"])?;
    fails(&["pair", "--netdev", "lo", "--", "true"], 125, &["lo", "--client-addr"])?;
    fails(&["run", "--daemon", "off", "--devices", "2", "--", "true"], 125, &["daemon = off", "devices = 2"])
}

fn row_of(output: &Output, words: [&str; 3]) -> bool {
    output.text.lines().any(|l| l.split_whitespace().collect::<Vec<_>>().join(" ") == words.join(" "))
}
