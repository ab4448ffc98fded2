//! What the studies of bad networks have in common: the jobs, under a setting for each network.

use super::{Choice, Pin, Plan, Scope, Shows};
use crate::driver::DeviceFacts;
use crate::record::Cell;
use crate::work::{Amount, Job, Measure, Operation};

/// Values of the parameter `test`.
pub(super) const PUT: &str = "write_bw";
pub(super) const LATENCY: &str = "send_lat";

/// Bytes of the messages whose latency is measured.
const SMALL: u64 = 8;
/// Bytes of the others.
const LARGE: u64 = 64 << 10;

/// A network.
pub(super) struct Impaired {
    /// Parameters of its cells.
    pub(super) at: Vec<(&'static str, String)>,
    /// Flags of the device that make it so; none for the network as it is.
    pub(super) flags: Vec<(&'static str, String)>,
}

/// The jobs on each network.
pub(super) fn plan(
    study: &str,
    scope: &Scope,
    device: &DeviceFacts,
    networks: impl Iterator<Item = Impaired>,
) -> Result<Plan, String> {
    if !device.is_urxe() {
        return Err(format!(
            "the study {study} needs a network that can be made bad, which urxe has and {} has not; leave out --device",
            device.name
        ));
    }
    scope.takes(study, &[Choice::Sizes])?;
    let mut plan = Plan::new(scope.repetitions(3, 10));
    let networks: Vec<_> = networks.collect();
    for (test, job, shows) in jobs(scope) {
        for pin in Scope::or(&scope.pin, &[Pin::apart()]) {
            for network in &networks {
                let setting = plan.on(&pin, network.flags.iter().cloned());
                let at =
                    [("test", test.to_owned()), ("bytes", job.bytes.to_string()), ("CPUs", pin.to_string())];
                plan.step(&[&at[..], &network.at].concat(), setting, job.clone(), shows);
            }
        }
    }
    Ok(plan)
}

fn jobs(scope: &Scope) -> Vec<(&'static str, Job, Shows)> {
    let amount = Amount::Milliseconds(scope.milliseconds(500, 5_000));
    let job = |operation, measure, bytes| Job { amount, ..Job::new(operation, measure, bytes) };
    let floods = scope.sizes(LARGE..=LARGE).into_iter().flat_map(|bytes| {
        [(PUT, Operation::Put), ("read_bw", Operation::Get)]
            .map(|(test, operation)| (test, job(operation, Measure::Flood, bytes), Shows::Bandwidth))
    });
    floods.chain([(LATENCY, job(Operation::Send, Measure::Latency, SMALL), Shows::Latency)]).collect()
}

/// Whether two cells are of the same job.
pub(super) fn same_job(a: &Cell, b: &Cell) -> bool {
    ["test", "bytes", "CPUs"].iter().all(|name| a.value(name) == b.value(name))
}

/// `write_bw of 65536 B`.
pub(super) fn job_name(cell: &Cell) -> String {
    let value = |name| cell.value(name).unwrap_or_default();
    format!("{} of {} B", value("test"), value("bytes"))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::{ALL, Study, find};
    use super::*;
    use crate::driver::Setting;
    use crate::record::{Better, Record};

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        scope: Scope,
    }

    fn study(name: &str) -> &'static Study {
        find(name).unwrap()
    }

    fn plan_of(name: &str, scope: &Scope) -> Plan {
        (study(name).plan)(scope, &DeviceFacts::sample("urxe 0.1.0")).unwrap()
    }

    fn flags(plan: &Plan) -> Vec<String> {
        let show = |setting: &Setting| {
            setting.flags.iter().map(|(flag, value)| format!("{flag}={value}")).collect::<Vec<_>>().join(" ")
        };
        plan.settings.iter().map(show).collect()
    }

    #[test]
    fn each_network_is_a_setting_and_sees_each_job() {
        let plan = plan_of("loss", &Scope::default());
        assert_eq!(flags(&plan), ["", "loss=0.01%", "loss=0.1%", "loss=1%", "loss=5%"]);
        assert_eq!(plan.steps.len(), 3 * 5);
        let plan = plan_of("link", &Scope::default());
        let rates = ["", "rate=1000MB/s", "rate=100MB/s", "rate=10MB/s"];
        let delays = ["delay=50us", "delay=200us", "delay=1000us", "delay=5000us"];
        assert_eq!(flags(&plan), [&rates[..], &delays].concat());
        let full = plan_of("link", &Line::parse_from(["", "--full"]).scope);
        assert_eq!(full.settings.len(), 5 * 4);
        assert!(flags(&full).contains(&"delay=200us rate=100MB/s".to_owned()));
        // The device takes them all.
        for setting in plan.settings.iter().chain(&full.settings) {
            let config = urxe::config::Config::resolve([], &setting.flags);
            assert!(config.is_ok(), "{config:?}");
        }
    }

    #[test]
    fn other_devices_have_no_bad_networks() {
        for name in ["loss", "link"] {
            let refused =
                (study(name).plan)(&Scope::default(), &DeviceFacts::sample("rdma_rxe")).unwrap_err();
            assert!(
                refused.contains(name) && refused.contains("x0") && refused.contains("--device"),
                "{refused}"
            );
        }
        assert!(ALL.iter().any(|study| study.name == "link"));
    }

    /// A record of a study with one sample in each cell.
    fn record(name: &str, value: impl Fn(&str, &str) -> Option<f64>) -> Record {
        let mut record = Record::begin(name, Vec::new(), "urxe".into(), Vec::new());
        for step in plan_of(name, &Scope::default()).steps {
            let (test, last) = (&step.at[0].1, &step.at[3..]);
            let last = last.iter().map(|(_, value)| value.as_str()).collect::<Vec<_>>().join(" ");
            if let Some(value) = value(test, &last) {
                let (metric, unit, better) = match test.as_str() {
                    LATENCY => ("t_typical", "us", Better::Less),
                    _ => ("BW average", "MB/s", Better::More),
                };
                record.cell(&step.at).add(metric, unit, better, value);
                if test == LATENCY {
                    record.cell(&step.at).add("99.9 %", "us", better, 10.0 * value);
                }
            }
        }
        record
    }

    #[test]
    fn loss_is_judged_at_one_percent_or_else_at_the_most_that_was_measured() {
        let findings = |record: &Record| (study("loss").page)(record).findings;
        let all = record("loss", |test, loss| match (test, loss) {
            (PUT, "0") => Some(2000.0),
            (PUT, "1") => Some(500.0),
            (PUT, _) => Some(1000.0),
            (LATENCY, "1") => Some(8.0),
            (LATENCY, _) => Some(4.0),
            _ => None,
        });
        assert_eq!(
            findings(&all),
            [
                "write_bw of 65536 B moves 2000 MB/s without loss and 500.0 MB/s at 1 %: 25 % of it.",
                "send_lat of 8 B: at 1 % of loss the typical latency goes from 4.000 to 8.000 us, the 99.9th \
                 percentile from 40.00 to 80.00 us."
            ]
        );
        let interrupted = record("loss", |test, loss| match (test, loss) {
            (PUT, "0") => Some(2000.0),
            (PUT, "0.01") => Some(1500.0),
            _ => None,
        });
        assert_eq!(
            findings(&interrupted),
            ["write_bw of 65536 B moves 2000 MB/s without loss and 1500 MB/s at 0.01 %: 75 % of it."]
        );
        assert_eq!(findings(&record("loss", |_, _| None)), [""; 0]);
    }

    #[test]
    fn a_link_is_judged_where_it_is_longest_and_where_it_is_narrowest() {
        let all = record("link", |test, link| match (test, link) {
            (PUT, "5000 unlimited") => Some(102.4),
            (PUT, "0 10") => Some(9.0),
            (LATENCY, "5000 unlimited") => Some(5020.0),
            _ => Some(1.0),
        });
        let findings = (study("link").page)(&all).findings;
        for wanted in [
            "Over 5000 us each way write_bw of 65536 B moves 102.4 MB/s: 1000 KiB in each round trip.",
            "Over 5000 us each way send_lat of 8 B takes 5020 us, 20.00 more.",
            "Of 10 MB/s write_bw of 65536 B uses 90 % for payload.",
        ] {
            assert!(findings.iter().any(|finding| finding == wanted), "{wanted}: {findings:#?}");
        }
    }

    #[test]
    fn all_figures_can_be_drawn() {
        for name in ["loss", "link"] {
            let record = record(name, |_, _| Some(7.0));
            for figure in (study(name).page)(&record).figures {
                // Of latencies this record has two metrics.
                if ["BW average", "t_typical", "99.9 %"].contains(&figure.metric.as_str()) {
                    figure.chart(&record).unwrap();
                }
            }
        }
    }
}
