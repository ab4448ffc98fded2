//! From plans by records to pages, with outcomes of which the answers are known.

use urxe_study::driver::{Error, Setting};
use urxe_study::output::report::{Page, to_html};
use urxe_study::record::{Ended, Record};
use urxe_study::studies::{self, page};
use urxe_study::work::{Api, Operation};

use crate::fake::{Fake, Listener, device, other_device, plan, run, taking, usual};

fn measured(study: &str) -> (Record, Page) {
    let plan = plan(study, "", &device()).unwrap();
    let record = run(study, &plan, &mut Fake::new(usual), &Listener::default());
    let page = page(&record);
    (record, page)
}

fn found(page: &Page, words: &str) -> String {
    let mut lines = page.findings.iter().filter(|line| line.contains(words));
    lines.next().unwrap_or_else(|| panic!("no {words:?} in {:#?}", page.findings)).clone()
}

#[test]
fn every_study_fills_its_cells_and_shows_them() {
    for study in studies::ALL {
        let plan = plan(study.name, "", &device()).unwrap();
        let listener = Listener::default();
        let record = run(study.name, &plan, &mut Fake::new(usual), &listener);
        let page = page(&record);
        assert_eq!(record.ended, Ended::Complete);
        assert_eq!(*listener.done.borrow(), plan.steps.len() as u64 * 5);
        assert!(!page.findings.is_empty() && !page.figures.is_empty(), "{}", study.name);
        for metric in record.cells.iter().flat_map(|cell| &cell.metrics) {
            assert_eq!(metric.samples.len(), 5, "{}: {}", study.name, metric.name);
        }
        for figure in &page.figures {
            let chart = figure.chart(&record).unwrap_or_else(|error| panic!("{}: {error}", study.name));
            assert!(!chart.curves.is_empty(), "{} has something to show", figure.title);
        }
        let html = to_html(&record, &page);
        assert_eq!(html.matches("<svg ").count(), page.figures.len(), "{}", study.name);
        assert!(!html.contains("No figure") && !html.contains("NaN"), "{}", study.name);
    }
}

#[test]
fn inline_data_pays_where_it_is_faster_and_nowhere_else() {
    let (record, page) = measured("inject");
    let sizes: Vec<_> = record.values("bytes");
    assert!(["255", "256", "257", "65536", "262144", "4194304"].iter().all(|size| sizes.contains(size)));
    assert!(!sizes.contains(&"131072"), "a quick run leaves some out");
    let inline = record.cells.iter().filter(|cell| cell.value("payload") == Some("inline"));
    assert!(inline.clone().all(|cell| cell.value("bytes").unwrap().parse::<u64>().unwrap() <= 256));
    assert_eq!(inline.count(), 10, "1 to 256, and 255");
    for metric in ["bandwidth", "t_typical"] {
        let line = found(&page, metric);
        assert!(line.contains("better at 1 B to 64 B; worse at 128 B to 256 B."), "{line}");
    }
    found(&page, "pays (better in one of them, worse in none) at 1 B to 64 B; it is possible up to 256 B.");
    assert_eq!(page.figures[0].marks[0].at, "256");
    assert_eq!(page.extra[0].rows.len(), 10);
    let cells = &page.extra[0].rows[0].cells;
    assert_eq!([&cells[0], &cells[1], &cells[4]], ["1", "1.80", "1.08"], "size, smallest times");
}

#[test]
fn a_device_where_inline_data_makes_no_difference_is_said_to_be_one() {
    let plan = plan("inject", "--sizes 8,64", &device()).unwrap();
    let record = run("inject", &plan, &mut Fake::new(|job| Ok(taking(job, 2.0))), &Listener::default());
    assert_eq!(record.cells.len(), 4);
    found(&page(&record), "not shown to pay at any size up to 64 B");
}

#[test]
fn long_messages_have_their_crossover_marked() {
    // 5 + b/3000 = 2 + b/1000 at 4500 B.
    let (record, page) = measured("long-am");
    assert_eq!(record.cells.len(), 46);
    let mark = &page.figures[0].marks[0];
    assert_eq!((mark.at.as_str(), mark.label.as_str()), ("8192", "READ ahead from 8 KiB"));
    found(&page, "READ is ahead of the pipeline from 8 KiB on");
    let line = found(&page, "READ is better");
    assert!(line.contains("better at 8 KiB to 4 MiB; worse at 1 B to 4 KiB"), "{line}");
    found(&page, "Published of MPICH: READ is ahead of the pipeline from 32 KiB on");
    assert_eq!(page.figures[0].references.len(), 2);
}

#[test]
fn the_two_interfaces_are_judged_in_sigma() {
    let (_, alike) = measured("wr-api");
    let verdicts = |page: &Page| -> Vec<String> {
        page.extra[0].rows.iter().map(|row| row.cells.last().unwrap().clone()).collect()
    };
    assert_eq!(verdicts(&alike), ["no difference shown"; 5]);
    assert_eq!(alike.extra[1].rows.len(), 5, "as many are published");
    found(&alike, "the largest of these five is 0.2545");

    let faster = |job: &urxe_study::work::Job| {
        let wins = job.api == Api::WorkRequest && job.operation == Operation::Put;
        Ok(taking(job, if wins { 1.0 } else { 2.0 }))
    };
    let plan = plan("wr-api", "--repetitions 20", &device()).unwrap();
    let record = run("wr-api", &plan, &mut Fake::new(faster), &Listener::default());
    let page = page(&record);
    let expected = ["better", "no difference shown", "better", "no difference shown", "no difference shown"];
    assert_eq!(verdicts(&page), expected);
    found(&page, "put_bw, BW average: ibv_wr_* is better");
}

#[test]
fn the_published_number_of_iterations_is_the_usual_one() {
    let plan = (studies::find("wr-api").unwrap().plan)(&Default::default(), &device()).unwrap();
    assert_eq!((plan.repetitions, plan.steps.len()), (100, 10));
}

#[test]
fn the_cache_falls_behind_as_threads_grow() {
    let (record, page) = measured("registration");
    assert_eq!(record.values("threads"), ["1", "4", "16", "64"]);
    // (2 + 0.5 n) / 2 for n threads.
    let line = found(&page, "get, rate of hybrid use by that of cached:");
    let times = |with: &str| -> f64 {
        let before = line.split(with).next().unwrap().trim();
        before.rsplit(' ').next().unwrap().parse().unwrap()
    };
    assert!((times(" with 1 thread") - 1.25).abs() < 0.05, "{line}");
    assert!((times(" with 64 threads") - 17.0).abs() < 0.5, "{line}");
    assert!(line.ends_with("Published: 1.029 with 1 core, 28.93 with 64."), "{line}");
    assert_eq!(page.extra[0].rows.len(), 12);
    assert!(page.figures.iter().all(|figure| figure.references.len() == 2));
}

#[test]
fn cold_pages_are_put_beside_pinned_ones_for_each_setting() {
    let (record, page) = measured("odp");
    assert_eq!(record.cells.len(), 7 * 8);
    assert_eq!(page.findings.len(), 8);
    let line = found(&page, "Fault policy sleep, tasks workqueue, fault latency 100us");
    assert!(line.contains("(1.000 faults each)"), "{line}");
    let half = record.cells.iter().find(|cell| cell.value("touched") == Some("0.5")).unwrap();
    assert_eq!(half.metric("faults").unwrap().samples, [0.5; 5]);
}

#[test]
fn what_a_device_cannot_do_is_left_out_and_said_once() {
    let atomics = |job: &urxe_study::work::Job| match job.operation {
        Operation::FetchAdd => Err(Error::Refused("no atomics here".into())),
        _ => usual(job),
    };
    let plan = plan("registration", "", &device()).unwrap();
    let listener = Listener::default();
    let record = run("registration", &plan, &mut Fake::new(atomics), &listener);
    assert_eq!(record.ended, Ended::Complete);
    assert_eq!(record.values("operation"), ["get", "gather"]);
    assert_eq!(listener.said.borrow().len(), 4 * 3, "threads by registrations, not repetitions");
    assert!(listener.said.borrow()[0].contains("no atomics here"));
    assert_eq!(*listener.done.borrow(), plan.steps.len() as u64 * 5, "the bar comes to its end");
    assert!(page(&record).findings.iter().all(|line| !line.contains("fetch_add")));
}

#[test]
fn an_interrupted_study_keeps_what_it_has_and_its_page_shows_that() {
    for study in studies::ALL {
        let plan = plan(study.name, "", &device()).unwrap();
        for patience in [0, 1, 3, plan.steps.len() + 2] {
            let mut bench = Fake::new(usual);
            bench.patience = patience;
            let record = run(study.name, &plan, &mut bench, &Listener::default());
            assert_eq!(record.ended, Ended::Interrupted);
            assert_eq!(record.cells.is_empty(), patience == 0);
            let html = to_html(&record, &page(&record));
            assert!(html.contains("Interrupted") && !html.contains("NaN"), "{} {patience}", study.name);
        }
    }
}

#[test]
fn other_devices_get_no_settings_of_urxe() {
    for study in studies::ALL {
        match plan(study.name, "", &other_device()) {
            Ok(plan) => assert_eq!(plan.settings, [Setting::default()], "{}", study.name),
            Err(why) => {
                assert!(["odp", "loss", "link"].contains(&study.name), "{}: {why}", study.name);
                assert!(why.contains("x0") && why.lines().count() == 1, "{why}");
            }
        }
    }
}

#[test]
fn choices_that_a_study_does_not_have_are_refused_by_name() {
    for (study, line, wanted) in [
        ("inject", "--threads 4", "does not take --threads; it takes --sizes"),
        ("long-am", "--queue-pairs 4", "does not take --queue-pairs"),
        ("wr-api", "--sizes 8", "does not take --sizes; it takes --repetitions"),
        ("registration", "--sizes 8", "does not take --sizes; it takes --threads"),
        ("odp", "--threads 2", "does not take --threads"),
        ("inject", "--pin 0/1,1/0", "one --pin"),
    ] {
        let why = plan(study, line, &device()).unwrap_err();
        assert!(why.contains(wanted) && why.lines().count() == 1, "{why}");
    }
}

#[test]
fn pinned_studies_say_so_and_pin_all_their_workers() {
    let plan = plan("odp", "--pin 0/1", &device()).unwrap();
    assert!(plan.settings.iter().all(|s| s.initiator_cpus == [0] && s.target_cpus == [1]));
    assert_eq!(plan.settings.len(), 8);
    assert_eq!(plan.said.iter().filter(|(name, value)| name == "CPUs" && value == "0/1").count(), 1);
}
