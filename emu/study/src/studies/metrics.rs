//! From the outcome of a job to metrics, named as the tools of the field name them.

use crate::record::{Better, Cell};
use crate::work::Outcome;

/// Which metrics of an outcome a step shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shows {
    /// As ib_send_bw: `BW peak`, `BW average` in MB/s (10^6 bytes), `MsgRate` in Mpps.
    Bandwidth,
    /// As OSU's benchmarks: `bandwidth` in MB/s.
    PlainBandwidth,
    /// As ib_send_lat: `t_min` to `99.9 %` in us.
    Latency,
    /// Million operations for each second, and the time they took: `rate`, `time`.
    Rate,
    /// `o_i` in us: the time it takes to post one operation.
    Initiation,
    /// `t_min`, `t_typical`, `99 %`, `99.9 %`, `t_max` in us, and how many page faults an operation had: `faults`.
    PagedLatency,
    /// [`Self::PlainBandwidth`], and what a prefetch took, if there was one: `prefetch` in us.
    PagedBandwidth,
}

const MEGA: f64 = 1e6;

impl Shows {
    /// Adds a repetition's metrics to a cell, and what CPU time an operation took at both ends together.
    pub fn add(self, cell: &mut Cell, outcome: &Outcome) {
        match self {
            Self::Bandwidth => {
                if let Some(peak) = outcome.peak_bandwidth() {
                    cell.add("BW peak", "MB/s", Better::More, peak / MEGA);
                }
                cell.add("BW average", "MB/s", Better::More, outcome.bandwidth() / MEGA);
                cell.add("MsgRate", "Mpps", Better::More, outcome.rate() / MEGA);
                self.add_cpu(cell, outcome);
            }
            Self::PlainBandwidth => cell.add("bandwidth", "MB/s", Better::More, outcome.bandwidth() / MEGA),
            Self::Latency => {
                if let Some(latency) = &outcome.latency {
                    cell.add_latency(latency);
                }
                self.add_cpu(cell, outcome);
            }
            Self::Rate => {
                cell.add("rate", "Mops/s", Better::More, outcome.rate() / MEGA);
                cell.add("bandwidth", "GB/s", Better::More, outcome.bandwidth() / 1e9);
                cell.add("time", "s", Better::Less, outcome.elapsed_ns as f64 / 1e9);
            }
            Self::Initiation => {
                if let Some(latency) = &outcome.latency {
                    cell.add("o_i", "us", Better::Less, latency.average);
                }
            }
            Self::PagedLatency => {
                if let Some(latency) = &outcome.latency {
                    let shown = [
                        ("t_min", latency.min),
                        ("t_typical", latency.typical),
                        ("99 %", latency.p99),
                        ("99.9 %", latency.p999),
                        ("t_max", latency.max),
                    ];
                    shown.into_iter().for_each(|(name, time)| cell.add(name, "us", Better::Less, time));
                }
                add_faults(cell, outcome);
            }
            Self::PagedBandwidth => {
                Self::PlainBandwidth.add(cell, outcome);
                if let Some(time) = outcome.prefetch_ns {
                    cell.add("prefetch", "us", Better::Less, time as f64 / 1e3);
                }
            }
        }
    }

    fn add_cpu(self, cell: &mut Cell, outcome: &Outcome) {
        cell.add("CPU", "us", Better::Less, outcome.cpu_of_operation());
    }
}

/// Where the driver can read counters, something is always counted.
fn add_faults(cell: &mut Cell, outcome: &Outcome) {
    let counters = &outcome.counters;
    if !counters.initiator.is_empty() || !counters.target.is_empty() {
        let faults = outcome.counter("page_faults") as f64 / outcome.operations.max(1) as f64;
        cell.add("faults", "1/op", Better::Less, faults);
    }
}
