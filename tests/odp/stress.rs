//! Threads that take memory away while devices with threads of their own read and write it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use urxe::config::Config;
use urxe::device::Device;
use urxe::mem::{Access, HostAddr, copy};
use urxe::verbs::{QpState, Remote, SendOp, WcStatus};

use crate::faults::{ODP, Paged};
use crate::harness::{End, EndInit, Rng, Wiring, config, connect, counter, wait};
use crate::memory::{Map, PAGE};

const PATIENCE: Duration = Duration::from_secs(20);
const PAGES: usize = 64;

/// Two devices whose tasks run so.
pub(crate) fn devices(tasks: &str) -> [Device; 2] {
    [0, 1].map(|_| Device::open(&config(&[("tasks", tasks), ("workers", "2")])).unwrap())
}

pub(crate) const MODES: [&str; 3] = ["inline", "workqueue", "auto"];

pub(crate) fn pair(a: &Device, b: &Device) -> (End, End) {
    let init = EndInit { bytes: PAGES * PAGE, ..EndInit::default() };
    let (a, b) = (End::new(a, init.clone()), End::new(b, init));
    // Nothing is lost for long here, and who waits for a time-out waits in vain.
    let wiring = Wiring { timeout: 18, ..Wiring::default() };
    connect(&a.qp, (b.ip, &b.qp), &wiring);
    connect(&b.qp, (a.ip, &a.qp), &wiring);
    (a, b)
}

/// Ends the threads that look at it, also when one of them panics.
struct Stop(Arc<AtomicBool>);

impl Drop for Stop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What a word of a page holds: which page it is, and how often it was filled. 0 is a new page.
fn stamp(page: usize, generation: u64) -> u64 {
    (page as u64 + 1) << 48 | generation
}

#[test]
fn what_is_read_is_never_older_than_the_page_and_never_of_another_page() {
    MODES.into_iter().for_each(read_while_pages_change);
}

fn read_while_pages_change(tasks: &str) {
    let [near, far] = devices(tasks);
    let map = Map::anonymous(PAGES * PAGE);
    let floor: Vec<AtomicU64> = (0..PAGES).map(|_| AtomicU64::new(0)).collect();
    let stop = Arc::new(AtomicBool::new(false));
    let (reads, refused) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for seed in 0..2 {
            let (stop, near, far, map, floor, reads, refused) =
                (&stop, &near, &far, &map, &floor, &reads, &refused);
            scope.spawn(move || {
                let _stop = Stop(stop.clone());
                let mut rng = Rng(seed);
                let mut ends = pair(near, far);
                let register = |end: &End| {
                    let memory = far.memory();
                    memory.register(end.pd, map.addr, map.len as u64, map.addr, ODP).unwrap()
                };
                let mut keys = register(&ends.1);
                while !stop.load(Ordering::Relaxed) {
                    let page = rng.below(PAGES as u64) as usize;
                    let count = 1 + rng.below(4).min((PAGES - page - 1) as u64) as usize;
                    let oldest: Vec<_> =
                        (page..page + count).map(|p| floor[p].load(Ordering::SeqCst)).collect();
                    let remote = Remote { addr: map.addr + (page * PAGE) as u64, rkey: keys.rkey };
                    let (a, _) = &ends;
                    a.post(1, SendOp::Read(remote), &[a.sge(0, count * PAGE)]);
                    match wait(near, a).status {
                        WcStatus::Success => {
                            reads.fetch_add(1, Ordering::Relaxed);
                            let bytes = a.buf.read(0, count * PAGE);
                            for (i, word) in bytes.chunks_exact(8).enumerate() {
                                let word = u64::from_ne_bytes(word.try_into().unwrap());
                                let index = i / (PAGE / 8);
                                let generation = word & 0xffff_ffff_ffff;
                                let own = word == 0 || word == stamp(page + index, generation);
                                assert!(own, "page {} shows {word:#x}", page + index);
                                let fresh = word == 0 || generation >= oldest[index];
                                assert!(fresh, "page {}: {generation} < {}", page + index, oldest[index]);
                            }
                        }
                        // It was unmapped just then. A page that changed between its checksum and the system's copy of it is
                        // a response lost; if a refusal follows it, the READ is asked for again, in vain.
                        status
                            if status == WcStatus::RemAccessErr
                                || status == WcStatus::RetryExcErr && ends.1.qp.state() == QpState::Err =>
                        {
                            refused.fetch_add(1, Ordering::Relaxed);
                            far.deregister(keys.lkey).unwrap();
                            ends = pair(near, far);
                            keys = register(&ends.1);
                        }
                        status => panic!("{status:?}: {:?}; {:?}", near.counters(), far.counters()),
                    }
                }
            });
        }
        let _stop = Stop(stop.clone());
        let mut rng = Rng(99);
        // On a machine that is busy with other tests it takes longer until enough was read.
        let (soon, late) =
            (Instant::now() + Duration::from_secs(2), Instant::now() + Duration::from_secs(60));
        let unfinished = |reads: &AtomicU64| match Instant::now() {
            now if now < soon => true,
            now => now < late && reads.load(Ordering::Relaxed) <= 100,
        };
        let mut generation = 0;
        while unfinished(&reads) && !stop.load(Ordering::Relaxed) {
            generation += 1;
            let page = rng.below(PAGES as u64) as usize;
            match rng.below(10) {
                0 => {
                    map.unmap(page * PAGE, PAGE);
                    map.renew(page * PAGE, PAGE);
                }
                1 => map.renew(page * PAGE, PAGE),
                2 => map.move_away(page * PAGE, PAGE),
                _ => map.advise(page * PAGE, PAGE, libc::MADV_DONTNEED),
            }
            floor[page].store(generation, Ordering::SeqCst);
            let words = [stamp(page, generation); PAGE / 8].map(u64::to_ne_bytes).concat();
            copy::write(HostAddr(map.addr + (page * PAGE) as u64), &words).unwrap();
        }
    });
    let (reads, refused) = (reads.into_inner(), refused.into_inner());
    assert!(reads > 100, "{tasks}: {reads} reads, {refused} refused");
    assert!(counter(&far, "page_faults") > 10);
}

#[test]
fn after_deregistration_nothing_writes_where_the_region_was() {
    MODES.into_iter().for_each(deregister_while_peers_write);
}

fn deregister_while_peers_write(tasks: &str) {
    let [near, far] = devices(tasks);
    let end = Instant::now() + Duration::from_secs(1);
    let mut rounds = 0;
    while Instant::now() < end {
        let (a, b) = pair(&near, &far);
        let region = Paged::new(&far, b.pd, Map::anonymous(PAGES * PAGE), ODP);
        a.buf.write(0, &vec![0xee; PAGES * PAGE]);
        for i in 0..16 {
            a.post(i, SendOp::Write(region.remote(0)), &[a.sge(0, PAGES * PAGE)]);
        }
        // Somewhere in the middle.
        let pause = Instant::now() + Duration::from_micros(rounds % 700);
        while Instant::now() < pause {
            near.poll();
        }
        far.deregister(region.keys.lkey).unwrap();
        region.map.renew(0, PAGES * PAGE);
        for _ in 0..16 {
            let status = wait(&near, &a).status;
            assert!(matches!(status, WcStatus::Success | WcStatus::RemAccessErr | WcStatus::WrFlushErr));
            if status != WcStatus::Success {
                break;
            }
        }
        assert!(region.read(0, PAGES * PAGE).iter().all(|byte| *byte == 0), "{tasks}, round {rounds}");
        rounds += 1;
    }
    assert!(rounds > 5);
}

#[test]
fn sixty_four_queue_pairs_write_through_pages_that_are_taken_away_and_every_byte_is_right() {
    MODES.into_iter().for_each(|tasks| write_while_pages_are_taken_away(devices(tasks), tasks));
    // Who sleeps is a worker.
    let sleeping = config(&[
        ("tasks", "workqueue"),
        ("workers", "2"),
        ("odp_fault", "sleep"),
        ("odp_latency", "10us-100us"),
    ]);
    let sleeping = [0, 1].map(|_| Device::open(&sleeping).unwrap());
    write_while_pages_are_taken_away(sleeping, "sleep");
}

fn write_while_pages_are_taken_away([near, far]: [Device; 2], tasks: &str) {
    let pairs: Vec<_> = (0..64).map(|_| pair(&near, &far)).collect();
    let regions: Vec<_> = pairs
        .iter()
        .map(|(_, b)| Paged::new(&far, b.pd, Map::shared(8 * PAGE), ODP | Access::REMOTE_READ))
        .collect();
    let stop = Arc::new(AtomicBool::new(false));
    std::thread::scope(|scope| {
        let taker = scope.spawn({
            let (stop, regions) = (&stop, &regions);
            move || {
                let mut rng = Rng(5);
                while !stop.load(Ordering::Relaxed) {
                    let region = &regions[rng.below(64) as usize];
                    // What is taken from the address space is still in the file.
                    region.map.advise(rng.below(8) as usize * PAGE, PAGE, libc::MADV_DONTNEED);
                }
            }
        });
        let _stop = Stop(stop.clone());
        let mut rng = Rng(6);
        for round in 0..3 {
            let data: Vec<_> = pairs.iter().map(|_| rng.bytes(8 * PAGE)).collect();
            for (((a, b), region), data) in pairs.iter().zip(&regions).zip(&data) {
                a.buf.write(0, data);
                b.recv(round, &[region.sge(4 * PAGE, 2 * PAGE)]);
                a.post(1, SendOp::Write(region.remote(0)), &[a.sge(0, 4 * PAGE)]);
                a.post(2, SendOp::Send, &[a.sge(4 * PAGE, 2 * PAGE)]);
                a.post(3, SendOp::Write(region.remote(6 * PAGE)), &[a.sge(6 * PAGE, 2 * PAGE)]);
                a.post(4, SendOp::Read(region.remote(0)), &[a.sge(8 * PAGE, 8 * PAGE)]);
            }
            for (i, (a, b)) in pairs.iter().enumerate() {
                for _ in 0..4 {
                    assert_eq!(wait(&near, a).status, WcStatus::Success);
                }
                assert_eq!(wait(&far, b).status, WcStatus::Success);
                assert!(regions[i].read(0, 8 * PAGE) == data[i], "{tasks}, round {round}, queue pair {i}");
                assert!(a.buf.read(8 * PAGE, 8 * PAGE) == data[i], "{tasks}, round {round}, queue pair {i}");
            }
        }
        stop.store(true, Ordering::Relaxed);
        taker.join().unwrap();
    });
    assert_eq!(counter(&far, "odp_waits"), counter(&far, "odp_waits_ended"));
}

#[test]
fn queue_pairs_come_and_go_under_faults_and_nothing_is_left() {
    MODES.into_iter().for_each(destroy_while_pages_are_fetched);
}

fn destroy_while_pages_are_fetched(tasks: &str) {
    let [near, far] = devices(tasks);
    let keeper = Paged::new(&far, far.alloc_pd(), Map::anonymous(PAGE), ODP);
    let mut rng = Rng(3);
    let end = Instant::now() + Duration::from_secs(1);
    let mut rounds = 0;
    while Instant::now() < end {
        let (a, b) = pair(&near, &far);
        let region = Paged::new(&far, b.pd, Map::anonymous(PAGES * PAGE), ODP);
        let source = Paged::new(&near, a.pd, Map::anonymous(PAGES * PAGE), ODP);
        a.post(1, SendOp::Write(region.remote(0)), &[source.sge(0, PAGES * PAGE)]);
        let pause = Instant::now() + Duration::from_micros(rng.below(300));
        while Instant::now() < pause {
            near.poll();
        }
        drop((a.qp, b.qp));
        near.deregister(source.keys.lkey).unwrap();
        far.deregister(region.keys.lkey).unwrap();
        rounds += 1;
    }
    assert!(rounds > 5);
    // Of those that waited for a page, every one has been answered, or soon is.
    let waits = |device: &Device| counter(device, "odp_waits") - counter(device, "odp_waits_ended");
    let limit = Instant::now() + PATIENCE;
    while waits(&near) + waits(&far) > 0 {
        assert!(Instant::now() < limit);
        std::thread::yield_now();
    }
    far.deregister(keeper.keys.lkey).unwrap();
    assert!(far.memory().demand_regions().is_empty() && near.memory().demand_regions().is_empty());
    assert_eq!(far.queue_pairs() + near.queue_pairs(), 0);
}

#[test]
fn a_worker_that_sleeps_keeps_the_queue_pairs_of_its_worker_waiting() {
    for policy in ["sleep", "park"] {
        let config = config(&[
            ("tasks", "workqueue"),
            ("workers", "1"),
            ("odp_fault", policy),
            ("odp_latency", "300000us"),
        ]);
        let [near, far] = [0, 1].map(|_| Device::open(&config).unwrap());
        let ((a, b), (c, d)) = (pair(&near, &far), pair(&near, &far));
        let absent = Paged::new(&far, b.pd, Map::anonymous(PAGE), ODP);
        a.post(1, SendOp::Write(absent.remote(0)), &[a.sge(0, 64)]);
        let limit = Instant::now() + PATIENCE;
        while counter(&far, "odp_waits") == 0 {
            near.poll();
            assert!(Instant::now() < limit);
        }
        let met = Instant::now();
        c.post(2, SendOp::Write(d.remote(0)), &[c.sge(0, 64)]);
        assert_eq!(wait(&near, &c).status, WcStatus::Success);
        let slept = counter(&far, "odp_waits_ended") == 1;
        // Parked, the other one is done long before, unless this machine stood still.
        assert!(slept == (policy == "sleep") || met.elapsed() > Duration::from_millis(250), "{policy}");
        assert_eq!(wait(&near, &a).status, WcStatus::Success);
    }
}

/// What a process has of threads and open files.
fn belongings() -> (usize, usize) {
    let count = |folder| std::fs::read_dir(folder).unwrap().count();
    (count("/proc/self/task"), count("/proc/self/fd"))
}

#[test]
#[ignore = "counts the threads of its process: run by the test below in a process of its own"]
fn alone_devices_leave_no_thread_and_no_file() {
    // What the test itself, the guard and the allocator need.
    drop(Device::open(&Config::default()).unwrap());
    let before = belongings();
    let map = Map::anonymous(PAGES * PAGE);
    for _ in 0..10 {
        let [near, far] = [0, 1].map(|_| Device::open(&Config::default()).unwrap());
        let (a, b) = pair(&near, &far);
        let keys = far.memory().register(b.pd, map.addr, map.len as u64, map.addr, ODP).unwrap();
        a.post(1, SendOp::Write(Remote { addr: map.addr, rkey: keys.rkey }), &[a.sge(0, PAGES * PAGE)]);
        assert_eq!(wait(&near, &a).status, WcStatus::Success);
        assert!(counter(&far, "page_faults") > 0);
        drop((a, b, near, far));
        assert_eq!(belongings(), before);
        // Nobody reads events any more: with a registration left this would wait forever.
        map.renew(0, PAGES * PAGE);
    }
}

#[test]
fn devices_leave_no_thread_no_file_and_no_registration() {
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "stress::alone_devices_leave_no_thread_and_no_file"])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let pid = child.id() as libc::pid_t;
    let (done, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || done.send(child.wait_with_output()));
    let Ok(output) = ended.recv_timeout(Duration::from_secs(60)) else {
        // SAFETY: the child was not waited for, so the number is still its.
        #[allow(unsafe_code)]
        unsafe {
            libc::kill(pid, libc::SIGKILL)
        };
        panic!("it hangs");
    };
    let output = output.unwrap();
    let (status, output) = (output.status, String::from_utf8_lossy(&output.stdout).into_owned());
    assert!(status.success() && output.contains("1 passed"), "{output}");
}
