use urxe_study::driver::Error;
use urxe_study::work::{
    Amount, Api, Job, LatencyIs, Long, Measure, Memory, Operation, Outcome, Pages, Payload, Registration,
    WINDOW,
};

use super::support::{job, pair, pair_with};

const PIPELINE: Operation = Operation::AmLong(Long::Pipeline { chunk: 4096, buffers: 8 });
const ALL: [Operation; 8] = [
    Operation::Put,
    Operation::Get,
    Operation::Send,
    Operation::FetchAdd,
    Operation::AmShort,
    Operation::AmLong(Long::Read),
    PIPELINE,
    Operation::Gather,
];

fn bytes(operation: Operation) -> &'static [u64] {
    match operation {
        Operation::FetchAdd => &[8],
        Operation::AmLong(_) => &[1, 5000, 100_000],
        _ => &[1, 8, 5000],
    }
}

/// What holds of every outcome.
fn check(job: &Job, outcome: &Outcome) {
    let least = match job.amount {
        Amount::Operations(of_each) => of_each,
        // How many a time is enough for is the machine's affair.
        Amount::Milliseconds(_) => 1,
    };
    assert!(outcome.operations >= least, "{job:?}: {outcome:?}");
    assert_eq!(outcome.bytes, outcome.operations * job.bytes);
    assert!(outcome.elapsed_ns > 0 && outcome.initiator_cpu_ns > 0, "{job:?}: {outcome:?}");
    assert_eq!(outcome.latency.is_some(), job.measure != Measure::Flood);
    if let Some(latency) = outcome.latency {
        let order = [0.0, latency.min, latency.typical, latency.p99, latency.p999, latency.max];
        assert!(order.is_sorted(), "{job:?}: {latency:?}");
        assert!(latency.min <= latency.average && latency.average <= latency.max);
    }
}

#[test]
fn every_operation_is_measured_in_every_way_and_brings_its_data() {
    let mut pair = pair();
    for operation in ALL {
        for measure in [Measure::Flood, Measure::Latency, Measure::Initiation] {
            for &bytes in bytes(operation) {
                let job = job(operation, measure, bytes);
                match pair.run(&job) {
                    Ok(outcome) => check(&job, &outcome),
                    Err(Error::Refused(why)) => {
                        let active = matches!(operation, Operation::AmShort | Operation::AmLong(_));
                        assert!(active && measure == Measure::Initiation, "{job:?}: {why}");
                    }
                    Err(error) => panic!("{job:?}: {error}"),
                }
            }
        }
    }
}

#[test]
fn queue_pairs_threads_and_both_interfaces_take_part() {
    let mut pair = pair();
    for operation in ALL {
        for measure in [Measure::Flood, Measure::Latency] {
            for (queue_pairs, threads, api) in
                [(4, 1, Api::PostSend), (1, 3, Api::WorkRequest), (2, 2, Api::WorkRequest)]
            {
                let job = Job { queue_pairs, threads, api, ..job(operation, measure, 8) };
                let outcome = pair.run(&job).unwrap_or_else(|error| panic!("{job:?}: {error}"));
                check(&job, &outcome);
                assert!(outcome.operations >= 500 * u64::from(threads));
            }
        }
    }
}

#[test]
fn the_shortest_queues_are_enough() {
    let mut pair = pair();
    for operation in ALL {
        for measure in [Measure::Flood, Measure::Latency] {
            for depth in [1, 2] {
                let job = Job { depth, queue_pairs: 2, ..job(operation, measure, 8) };
                check(&job, &pair.run(&job).unwrap_or_else(|error| panic!("{job:?}: {error}")));
            }
        }
    }
}

#[test]
fn a_time_ends_a_job_and_its_best_window_is_seen() {
    let mut pair = pair();
    for operation in ALL {
        let job = Job { amount: Amount::Milliseconds(60), ..job(operation, Measure::Flood, 8) };
        let outcome = pair.run(&job).unwrap_or_else(|error| panic!("{job:?}: {error}"));
        check(&job, &outcome);
        assert!(outcome.elapsed_ns >= 60_000_000);
        let peak = outcome.peak_per_second.expect("there are six windows");
        let in_window = peak * WINDOW.as_secs_f64();
        assert!(in_window <= outcome.operations as f64 + 0.5, "{in_window} of {}", outcome.operations);
    }
}

#[test]
fn inline_payload_is_taken_up_to_the_devices_limit() {
    let mut pair = pair();
    let most = u64::from(pair.device().max_inline);
    assert!(most >= 64);
    for api in [Api::PostSend, Api::WorkRequest] {
        for operation in [Operation::Put, Operation::Send, Operation::AmShort] {
            let job = Job { payload: Payload::Inline, api, ..job(operation, Measure::Flood, most) };
            check(&job, &pair.run(&job).unwrap());
        }
    }
    let too_long = Job { payload: Payload::Inline, ..job(Operation::Put, Measure::Flood, most + 1) };
    let Err(Error::Refused(why)) = pair.run(&too_long) else { panic!("more than the limit") };
    assert!(why.contains(&(most + 1).to_string()), "{why}");
    check(
        &job(Operation::Put, Measure::Flood, 8),
        &pair.run(&job(Operation::Put, Measure::Flood, 8)).unwrap(),
    );
}

#[test]
fn a_ping_pong_counts_by_half_and_what_is_answered_as_a_whole() {
    assert_eq!(job(Operation::Send, Measure::Latency, 8).latency_is(), LatencyIs::HalfRoundTrip);
    assert_eq!(job(Operation::Put, Measure::Latency, 8).latency_is(), LatencyIs::HalfRoundTrip);
    assert_eq!(job(Operation::Get, Measure::Latency, 8).latency_is(), LatencyIs::WholeOperation);
    assert_eq!(job(Operation::AmShort, Measure::Latency, 8).latency_is(), LatencyIs::WholeOperation);
}

#[test]
fn cold_pages_fault_once_each_and_warm_ones_do_not() {
    const PAGES: u64 = 128;
    let mut pair = pair();
    let mut faults = |memory, touched| {
        let (region, stride) = (PAGES * 4096, 4096);
        let job = Job { memory, touched, region, stride, ..job(Operation::Put, Measure::Flood, 8) };
        let outcome = pair.run(&job).unwrap_or_else(|error| panic!("{job:?}: {error}"));
        (
            outcome.operations,
            outcome.counters.target.iter().find(|(n, _)| n == "page_faults").map_or(0, |c| c.1),
        )
    };
    for memory in [Memory::OnDemand, Memory::Implicit] {
        assert_eq!(faults(memory(Pages::Warm), 0.0).1, 0);
        assert_eq!(faults(memory(Pages::Prefetched), 0.0).1, 0);
        for (touched, wanted) in [(0.0, PAGES), (0.75, PAGES / 4)] {
            let (operations, cold) = faults(memory(Pages::Cold), touched);
            assert_eq!(operations, PAGES, "one walk through the region");
            assert!(cold >= wanted, "{cold} faults of {wanted} pages");
        }
    }
}

#[test]
fn prefetching_is_timed() {
    let mut pair = pair();
    let memory = Memory::OnDemand(Pages::Prefetched);
    let job = Job { memory, region: 64 * 4096, ..job(Operation::Get, Measure::Latency, 4096) };
    let outcome = pair.run(&job).unwrap();
    assert!(outcome.prefetch_ns.is_some_and(|time| time > 0));
    assert!(outcome.register_ns > 0);
}

#[test]
fn a_registration_cache_is_asked_by_every_operation_and_hybrid_use_by_the_rest() {
    let mut pair = pair();
    let region = 16 * 4096;
    for operation in [Operation::Put, Operation::Get, Operation::FetchAdd, Operation::Gather] {
        let mut counts = |registration| {
            let job = Job { registration, threads: 2, region, ..job(operation, Measure::Flood, 8) };
            pair.run(&job).unwrap_or_else(|error| panic!("{job:?}: {error}")).cache
        };
        assert_eq!(counts(Registration::None), None);
        let cached = counts(Registration::Cached { capacity: 64 }).unwrap();
        assert_eq!(cached.hits + cached.misses, 1000, "{cached:?}");
        let hybrid = counts(Registration::Hybrid { capacity: 64, unregistered_percent: 25 }).unwrap();
        assert_eq!(hybrid.hits + hybrid.misses, 250, "{hybrid:?}");
    }
    let registration = Registration::Cached { capacity: 2 };
    let job = Job { registration, region, stride: 4096, ..job(Operation::Get, Measure::Flood, 8) };
    let cache = pair.run(&job).unwrap().cache.unwrap();
    assert!(cache.evictions > 400 && cache.misses > 400, "16 pages do not fit in two places: {cache:?}");
}

#[test]
fn other_modes_of_tasks_give_the_same_data() {
    for tasks in ["workqueue", "auto"] {
        let mut pair = pair_with(&[("tasks", tasks)]);
        for operation in ALL {
            for measure in [Measure::Flood, Measure::Latency] {
                let job = job(operation, measure, 8);
                check(&job, &pair.run(&job).unwrap_or_else(|error| panic!("{tasks} {job:?}: {error}")));
            }
        }
    }
}

#[test]
fn an_impossible_job_is_refused_by_what_is_wrong_and_the_pair_goes_on() {
    let mut pair = pair();
    let put = || job(Operation::Put, Measure::Flood, 8);
    let cases = [
        (Job { bytes: 0, ..put() }, "bytes 0"),
        (Job { threads: 0, ..put() }, "threads 0"),
        (Job { depth: 100_000, ..put() }, "depth 100000"),
        (Job { touched: 2.0, ..put() }, "touched 2"),
        (job(Operation::FetchAdd, Measure::Flood, 4), "bytes 4"),
        (Job { payload: Payload::Inline, ..job(Operation::Get, Measure::Flood, 8) }, "inline"),
        (Job { amount: Amount::Operations(0), ..put() }, "operations 0"),
    ];
    for (job, wanted) in cases {
        let Err(Error::Refused(why)) = pair.run(&job) else { panic!("{job:?} is possible") };
        assert!(why.contains(wanted) && why.lines().count() == 1, "{why}");
    }
    check(&put(), &pair.run(&put()).unwrap());
}
