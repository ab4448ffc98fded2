//! Where tasks run is chosen by the configuration, by completion vectors and for each queue pair.

use std::time::{Duration, Instant};

use urxe::config::Tasks;
use urxe::device::{CreateError, Device, Placement, QpInit};
use urxe::verbs::{QpType, SendOp, WcStatus};

use crate::harness::{CAPS, End, EndInit, config, connect, counter, wait};
use crate::{join, pair};

/// The same queue pair's description again, placed.
fn place(device: &Device, end: &mut End, placement: Placement) {
    let init = QpInit {
        kind: QpType::Rc,
        pd: end.pd,
        send_cq: end.cq.clone(),
        recv_cq: end.cq.clone(),
        srq: None,
        caps: CAPS,
        sig_all: true,
        events: None,
    };
    end.qp = device.create_qp_on(init, placement).unwrap();
}

fn turns(device: &Device) -> Vec<u64> {
    let workers = device.threads().into_iter().filter_map(|thread| thread.worker);
    workers.map(|worker| worker.batches.iter().sum()).collect()
}

#[test]
fn a_queue_pair_runs_in_the_worker_that_was_chosen_for_it() {
    let devices = [0, 1].map(|_| Device::open(&config(&[("workers", "3")])).unwrap());
    let [near, far] = &devices;
    let (mut a, b) = (End::new(near, EndInit::default()), End::new(far, EndInit::default()));
    assert_eq!(turns(near), [0; 0], "nobody has wanted a worker");
    place(near, &mut a, Placement { tasks: Some(Tasks::Workqueue), worker: Some(2) });
    join(&a, &b, 7);
    for id in 0..100 {
        a.post(id, SendOp::Write(b.remote(0)), &[a.sge(0, 5000)]);
        let wc = wait(near, &a);
        assert_eq!((wc.id, wc.status), (id, WcStatus::Success));
    }
    let turns = turns(near);
    assert!(turns[..2] == [0, 0] && turns[2] >= 100, "{turns:?}");
    assert_eq!(counter(far, "queued_runs"), 0);

    let init = |cq: &End| QpInit {
        kind: QpType::Rc,
        pd: cq.pd,
        send_cq: cq.cq.clone(),
        recv_cq: cq.cq.clone(),
        srq: None,
        caps: CAPS,
        sig_all: true,
        events: None,
    };
    let placement = Placement { tasks: None, worker: Some(3) };
    let refused = near.create_qp_on(init(&a), placement).unwrap_err();
    assert_eq!(refused, CreateError::NoWorker { have: 3, workers: 3 });
}

#[test]
fn a_completion_vector_is_served_by_its_worker() {
    let devices = [0, 1].map(|_| Device::open(&config(&[("tasks", "workqueue"), ("workers", "2")])).unwrap());
    let [near, far] = &devices;
    assert_eq!(near.completion_vectors(), 2);
    let (mut a, b) = (End::new(near, EndInit::default()), End::new(far, EndInit::default()));
    a.cq = near.create_cq_on(1, 64, None);
    place(near, &mut a, Placement::default());
    join(&a, &b, 7);
    for id in 0..50 {
        a.post(id, SendOp::Read(b.remote(0)), &[a.sge(0, 5000)]);
        assert_eq!(wait(near, &a).status, WcStatus::Success);
    }
    let turns = turns(near);
    assert!(turns[0] == 0 && turns[1] >= 50, "{turns:?}");
}

#[test]
fn a_busy_worker_finds_more_than_one_packet_at_a_time() {
    let devices = [0, 1].map(|_| Device::open(&config(&[("tasks", "workqueue"), ("workers", "1")])).unwrap());
    let [near, far] = &devices;
    let init = EndInit { bytes: 1 << 20, ..EndInit::default() };
    let (a, b) = pair(near, far, &init);
    for id in 0..64 {
        a.post(id, SendOp::Write(b.remote(0)), &[a.sge(0, 1 << 20)]);
    }
    for id in 0..64 {
        let wc = wait(near, &a);
        assert_eq!((wc.id, wc.status), (id, WcStatus::Success));
    }
    let batches = far.threads().into_iter().find_map(|t| t.worker).unwrap().batches;
    assert!(batches[4..].iter().sum::<u64>() > 0, "{batches:?}");
    let line = far.threads().last().unwrap().to_string();
    assert!(line.starts_with("urxe-task0") && line.contains("0 tasks queued, turns by packets"), "{line}");
}

#[test]
fn a_message_over_the_retry_timer_arrives_in_every_mode() {
    for mode in crate::MODES {
        let near = Device::open(&config(&[("tasks", mode)])).unwrap();
        let far = Device::open(&config(&[("tasks", mode)])).unwrap();
        let (a, b) = (End::new(&near, EndInit::default()), End::new(&far, EndInit::default()));
        // The far end is not ready yet, so what is sent first is lost, or is answered by a wait for a receive.
        let wiring = crate::harness::Wiring { timeout: 16, ..Default::default() };
        connect(&a.qp, (b.ip, &b.qp), &wiring);
        a.post(1, SendOp::Send, &[a.sge(0, 10_000)]);
        let start = Instant::now();
        while counter(&near, "timer_runs") == 0 {
            near.poll();
            assert!(start.elapsed() < Duration::from_secs(20), "{mode}: no timer");
        }
        connect(&b.qp, (a.ip, &a.qp), &wiring);
        b.recv(2, &[b.sge(0, 10_000)]);
        assert_eq!(wait(&near, &a).status, WcStatus::Success, "{mode}");
        assert_eq!(wait(&far, &b).id, 2, "{mode}");
    }
}
