use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use urxe_study::driver::{Error, Interrupt, Options, Pair, Setting};
use urxe_study::work::{Amount, Job, Measure, Operation};

use crate::process::{Program, eventually, gone, kill, on_fabric};
use crate::support::{job, options, urxe};

/// A job that lasts longer than any test.
pub(crate) fn endless(operation: Operation, measure: Measure) -> Job {
    Job { amount: Amount::Milliseconds(600_000), ..job(operation, measure, 8) }
}

/// Not a test: the driver that other tests send signals to.
#[test]
#[ignore = "is started by other tests"]
fn drives_until_it_is_interrupted() {
    let interrupt = Interrupt::new().unwrap();
    let mut pair = Pair::start(&Setting::default(), &options(), &interrupt).unwrap();
    pair.run(&job(Operation::Put, Measure::Flood, 8)).unwrap();
    println!("it runs");
    let result = pair.run(&endless(Operation::Send, Measure::Latency));
    println!("it ended: {result:?}, signal {:?}", interrupt.signal());
    assert!(pair.run(&job(Operation::Put, Measure::Flood, 8)).is_err(), "the pair is of no use any more");
    drop(pair);
    println!("it is over");
}

fn driver() -> Program {
    // Built before, since the driver has little time.
    urxe();
    let driver = Program::start(Command::new(std::env::current_exe().unwrap()).args([
        "--exact",
        "ends::drives_until_it_is_interrupted",
        "--ignored",
        "--nocapture",
    ]));
    driver.wait_for("it runs");
    driver
}

fn fabric(driver: &Program) -> String {
    format!("study-{}-", driver.pid())
}

#[test]
fn a_signal_stops_the_driver_and_nothing_is_left() {
    for (signal, number) in [(Signal::INT, 2), (Signal::TERM, 15)] {
        let mut driver = driver();
        let fabric = fabric(&driver);
        // The driver looks at counters now and then, with one more process.
        eventually("two workers and a daemon", || on_fabric(&fabric).len() == 3);
        kill(driver.pid(), signal);
        let line = driver.wait_for("it ended");
        assert!(line.contains("Interrupted") && line.contains(&format!("Some({number})")), "{line}");
        driver.wait_for("it is over");
        gone(&fabric);
        assert_eq!(driver.wait(), Some(0));
    }
}

#[test]
fn a_killed_driver_leaves_nothing() {
    let driver = driver();
    kill(driver.pid(), Signal::KILL);
    gone(&fabric(&driver));
}

#[test]
fn a_stopped_worker_does_not_keep_the_driver() {
    let mut driver = driver();
    let fabric = fabric(&driver);
    let workers = on_fabric(&fabric).into_iter().filter(|process| process.command.contains("study-worker"));
    workers.for_each(|worker| kill(worker.pid, Signal::STOP));
    kill(driver.pid(), Signal::INT);
    driver.wait_for("it is over");
    assert_eq!(driver.wait(), Some(0));
    gone(&fabric);
}

#[test]
fn the_death_of_a_worker_ends_the_job_and_is_told() {
    for (operation, measure) in [(Operation::Put, Measure::Flood), (Operation::Send, Measure::Latency)] {
        for end in ["target", "initiator"] {
            let name = format!("test-{}-{end}", std::process::id());
            let setting = Setting { flags: vec![("fabric".into(), name.clone())], ..Setting::default() };
            let mut pair = Pair::start(&setting, &options(), &Interrupt::default()).unwrap();
            let victim = format!("study-worker {end}");
            let killer = std::thread::spawn(move || {
                let worker =
                    || on_fabric(&name).into_iter().find(|process| process.command.contains(&victim));
                let worker = worker().expect("it runs").pid;
                kill(worker, Signal::KILL);
            });
            let start = Instant::now();
            let Err(Error::Failed(why)) = pair.run(&endless(operation, measure)) else {
                panic!("it is dead")
            };
            killer.join().unwrap();
            assert!(why.contains(end) && why.lines().count() == 1, "{why}");
            assert!(start.elapsed() < Duration::from_secs(15), "{:?}", start.elapsed());
        }
    }
}

#[test]
fn a_job_has_a_deadline() {
    let options = Options { patience: Duration::from_millis(500), ..options() };
    let mut pair = Pair::start(&Setting::default(), &options, &Interrupt::default()).unwrap();
    let job = Job { amount: Amount::Operations(u64::MAX), ..job(Operation::Get, Measure::Latency, 8) };
    let Err(Error::Failed(why)) = pair.run(&job) else { panic!("so many operations") };
    assert!(why.contains("not over after"), "{why}");
    assert_eq!(pair.run(&job).unwrap_err(), Error::Failed(why), "the pair is of no use any more");
}

#[test]
fn what_cannot_start_says_why_in_one_line() {
    let start =
        |setting: Setting, options: Options| match Pair::start(&setting, &options, &Interrupt::default()) {
            Ok(_) => panic!("{setting:?} {options:?} can start"),
            Err(error) => error.to_string(),
        };
    let flags = |flag: &str, value: &str| vec![(flag.to_owned(), value.to_owned())];
    let tasks = || Setting { flags: flags("tasks", "never"), ..Setting::default() };
    let cases = [
        // A machine without rdma-core has no such device either.
        (
            Setting::default(),
            Options { device: Some("nowhere0".into()), ..options() },
            "libibverbs.so.1|nowhere0",
        ),
        (tasks(), options(), "never|workqueue"),
        (tasks(), Options { device: Some("nowhere0".into()), ..options() }, "setting of urxe"),
        (Setting { initiator_cpus: vec![9999], ..Setting::default() }, options(), "CPU 9999"),
        (Setting { target_cpus: vec![1, 9999], ..Setting::default() }, options(), "CPU 9999"),
        (Setting::default(), Options { urxe: "/nowhere/urxe".into(), ..options() }, "cannot start"),
        (Setting::default(), Options { gid_index: Some(200), ..options() }, "GID 200"),
    ];
    for (setting, options, wanted) in cases {
        let why = start(setting, options);
        assert!(
            wanted.split('|').any(|wanted| why.contains(wanted)) && why.lines().count() == 1,
            "{wanted}: {why}"
        );
    }
    let own = format!("study-{}-", std::process::id());
    eventually("the end of all workers", || {
        on_fabric(&own).iter().all(|process| !process.command.contains("study-worker"))
    });
}
