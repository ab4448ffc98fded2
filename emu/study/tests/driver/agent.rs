use std::net::TcpListener;
use std::process::Command;

use rustix::process::Signal;
use urxe_study::driver::{Error, Interrupt, Options, Pair, Peer, Setting};
use urxe_study::work::{Measure, Operation};

use crate::ends::endless;
use crate::process::{Program, eventually, kill, on_fabric};
use crate::support::{job, options, urxe};

/// `urxe study --server` on one machine of a fabric, and options for a driver on the other.
fn server(name: &str) -> (Program, Options, String) {
    let fabric = format!("test-{}-{name}", std::process::id());
    let flags = |node: &str| {
        [("fabric", fabric.as_str()), ("nodes", "2"), ("node", node)]
            .map(|(flag, value)| (flag.to_owned(), value.to_owned()))
    };
    let mut command = Command::new(urxe());
    command
        .args(["study", "--server=127.0.0.1:0"])
        .args(flags("0").map(|(flag, value)| format!("--{flag}={value}")));
    let server = Program::start(&mut command);
    let line = server.wait_for("waits for studies at");
    let port = line.rsplit(':').next().expect("a port");
    let peer = Peer::Agent(format!("127.0.0.1:{port}"));
    (server, Options { peer, flags: flags("1").to_vec(), ..options() }, fabric)
}

fn start(options: &Options) -> Result<Pair, Error> {
    Pair::start(&Setting::default(), options, &Interrupt::default())
}

fn targets(fabric: &str) -> usize {
    on_fabric(fabric).iter().filter(|process| process.command.contains("study-worker target")).count()
}

#[test]
fn a_server_starts_targets_and_ends_them_with_their_clients() {
    let (mut server, options, fabric) = server("works");
    let (mut one, mut other) = (start(&options).unwrap(), start(&options).unwrap());
    for pair in [&mut one, &mut other] {
        for (operation, measure) in [(Operation::Put, Measure::Flood), (Operation::Send, Measure::Latency)] {
            let outcome = pair.run(&job(operation, measure, 8)).unwrap();
            assert_eq!(outcome.operations, 500);
        }
    }
    assert_eq!(targets(&fabric), 2);
    drop(one);
    eventually("the end of one target", || targets(&fabric) == 1);
    other.run(&job(Operation::Get, Measure::Flood, 8)).unwrap();
    drop(other);
    eventually("the end of the other", || targets(&fabric) == 0);
    kill(server.pid(), Signal::TERM);
    assert_eq!(server.wait(), Some(128 + 15));
}

#[test]
fn a_server_that_goes_takes_its_targets_along_and_the_client_says_so() {
    for signal in [Signal::TERM, Signal::KILL] {
        let (server, options, fabric) = server(&format!("goes{}", signal.as_raw()));
        let mut pair = start(&options).unwrap();
        let job =
            std::thread::spawn(move || pair.run(&endless(Operation::Send, Measure::Flood)).unwrap_err());
        kill(server.pid(), signal);
        let why = job.join().unwrap().to_string();
        assert!(why.contains("gone") && why.lines().count() == 1, "{why}");
        eventually("the end of the target", || targets(&fabric) == 0);
    }
}

#[test]
fn a_peer_that_is_not_there_is_named() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for host in [free.to_string(), "no-such-host.invalid".to_owned()] {
        let Err(error) = start(&Options { peer: Peer::Agent(host.clone()), ..options() }) else {
            panic!("{host}")
        };
        let why = error.to_string();
        assert!(
            why.contains(&host) && why.contains("urxe study --server") && why.lines().count() == 1,
            "{why}"
        );
    }
}

#[test]
fn what_a_server_cannot_start_is_told_to_its_client() {
    let (_server, options, _) = server("refuses");
    for (setting, wanted) in [
        (Setting { target_cpus: vec![9999], ..Setting::default() }, "CPU 9999"),
        (Setting { flags: vec![("tasks".into(), "never".into())], ..Setting::default() }, "never"),
        (
            Setting { flags: vec![("log-file".into(), "/nowhere/log".into())], ..Setting::default() },
            "--log-file",
        ),
    ] {
        let Err(error) = Pair::start(&setting, &options, &Interrupt::default()) else {
            panic!("{setting:?}")
        };
        let why = error.to_string();
        assert!(why.contains(wanted) && why.lines().count() == 1, "{why}");
    }
    // It has not taken harm.
    start(&options).unwrap().run(&job(Operation::Put, Measure::Flood, 8)).unwrap();
}
