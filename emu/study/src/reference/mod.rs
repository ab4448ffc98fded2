//! Published results, to compare with. README.md in this folder says where they come from.
//!
//! The files are part of the program, so reading them cannot fail; tests read all of them.

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::record::Better;
use crate::stats::MeanDeviation;

/// Where `tasks` comes from.
pub const TASKS_SOURCE: &str =
    "kernel rxe, client and server on one KVM host, median of 3 runs (linux-rdma, 2022-09)";
/// Where `wr-api` comes from.
pub const WR_API_SOURCE: &str = "GASNet ibv-conduit on ConnectX-5, 100 iterations";
/// Where `registration` comes from.
pub const REGISTRATION_SOURCE: &str =
    "Chapel over libfabric on a Cassini NIC: comm-ops microbenchmark, index-gather on 16 nodes";
/// Where `long-am` comes from.
pub const LONG_AM_SOURCE: &str = "MPICH ch4/ofi with active messages only, osu_bw on two nodes";
/// Where `inject` comes from.
pub const INJECT_SOURCE: &str =
    "libfabric rdm_one_sided on a Cray network, two nodes; fi_inject_write up to 64 B, fi_write above";

/// A published curve.
#[derive(Clone, PartialEq, Debug)]
pub struct Series {
    /// What tells it from the other curves of its publication.
    pub name: String,
    /// Unit of its values.
    pub unit: &'static str,
    /// Where it was measured.
    pub source: &'static str,
    /// Values of the parameter (as a record has them: `65536`), and what was measured there.
    pub points: Vec<(String, f64)>,
}

/// One run of perftest on the kernel's rxe. Times are in microseconds.
#[derive(Clone, PartialEq, Debug, Deserialize)]
pub struct Tasks {
    /// `tasklet` or `workqueue`.
    pub mode: String,
    /// `ib_send_bw` or `ib_send_lat`.
    pub test: String,
    /// Message size.
    pub bytes: u64,
    /// Messages, or round trips.
    pub iterations: u64,
    /// Bandwidth in MB/s, of `ib_send_bw`.
    #[serde(rename = "bw_average_MB_per_s")]
    pub bandwidth: Option<f64>,
    /// Millions of messages per second, of `ib_send_bw`.
    #[serde(rename = "msg_rate_Mpps")]
    pub rate: Option<f64>,
    /// `t_min`, of `ib_send_lat` as all that follow.
    #[serde(rename = "t_min_us")]
    pub min: Option<f64>,
    /// `t_max`.
    #[serde(rename = "t_max_us")]
    pub max: Option<f64>,
    /// `t_typical`.
    #[serde(rename = "t_typical_us")]
    pub typical: Option<f64>,
    /// `t_avg`.
    #[serde(rename = "t_avg_us")]
    pub average: Option<f64>,
    /// `t_stdev`.
    #[serde(rename = "t_stdev_us")]
    pub stddev: Option<f64>,
    /// 99 % are at most this.
    #[serde(rename = "p99_us")]
    pub p99: Option<f64>,
    /// 99.9 % are at most this.
    #[serde(rename = "p99_9_us")]
    pub p99_9: Option<f64>,
}

/// One metric before and after the work-request API.
#[derive(Clone, PartialEq, Debug, Deserialize)]
pub struct WrApi {
    /// What was measured: `put_8B_flood_bw`, `put_8B_o_i_us`, ...
    pub metric: String,
    better: Direction,
    before_mean: f64,
    before_stddev: f64,
    after_mean: f64,
    after_stddev: f64,
    /// The published absolute difference.
    pub abs_diff: f64,
    /// The published difference in units of sigma.
    pub sigma: f64,
}

#[derive(Clone, Copy, PartialEq, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Direction {
    Up,
    Down,
}

impl WrApi {
    /// With `ibv_post_send`.
    pub fn before(&self) -> MeanDeviation {
        MeanDeviation { mean: self.before_mean, stddev: self.before_stddev }
    }

    /// With `ibv_wr_*`.
    pub fn after(&self) -> MeanDeviation {
        MeanDeviation { mean: self.after_mean, stddev: self.after_stddev }
    }

    /// Which values are better.
    pub fn better(&self) -> Better {
        match self.better {
            Direction::Up => Better::More,
            Direction::Down => Better::Less,
        }
    }
}

/// Tasklets and work queues in the kernel's rxe.
pub fn tasks() -> Vec<Tasks> {
    rows(include_str!("tasks.csv"))
}

/// Work requests before and after the work-request API.
pub fn wr_api() -> Vec<WrApi> {
    rows(include_str!("wr-api.csv"))
}

/// `cached` and `hybrid` of an operation (`fetching_amo`, `get` or `indexgather`) by number of cores; empty for another one.
pub fn registration(operation: &str) -> Vec<Series> {
    #[derive(Deserialize)]
    struct Row {
        operation: String,
        unit: String,
        cores: String,
        cached: f64,
        hybrid: f64,
    }
    let mut rows: Vec<Row> = rows(include_str!("registration.csv"));
    rows.retain(|row| row.operation == operation);
    let Some(first) = rows.first() else { return Vec::new() };
    let unit = if first.unit == "Mops/s" { "Mops/s" } else { "GB/s" };
    let points = |value: fn(&Row) -> f64| rows.iter().map(|row| (row.cores.clone(), value(row))).collect();
    [("cached", points(|row| row.cached)), ("hybrid", points(|row| row.hybrid))]
        .map(|(name, points)| Series { name: name.into(), unit, source: REGISTRATION_SOURCE, points })
        .into()
}

/// `pipeline` and `read` by message size, in MB/s.
pub fn long_am() -> Vec<Series> {
    let columns = columns(include_str!("long-am.csv"), LONG_AM_SOURCE);
    named(columns, &[("pipeline_MB_per_s", "pipeline", "MB/s"), ("rdma_read_MB_per_s", "read", "MB/s")])
}

/// Bandwidth in MB/s by message size, of `revision a` and `revision b`.
pub fn inject_bandwidth() -> Vec<Series> {
    inject([("provider_a_MB_per_s", "revision a", "MB/s"), ("provider_b_MB_per_s", "revision b", "MB/s")])
}

/// Latency in microseconds by message size, of `revision a` and `revision b`.
pub fn inject_latency() -> Vec<Series> {
    inject([("provider_a_latency_us", "revision a", "us"), ("provider_b_latency_us", "revision b", "us")])
}

fn inject(names: [(&str, &str, &'static str); 2]) -> Vec<Series> {
    named(columns(include_str!("inject.csv"), INJECT_SOURCE), &names)
}

fn rows<Row: DeserializeOwned>(text: &str) -> Vec<Row> {
    csv::Reader::from_reader(text.as_bytes())
        .deserialize()
        .map(|row| row.expect("the files of this folder are well-formed"))
        .collect()
}

/// All columns but the first as curves over the first.
fn columns(text: &str, source: &'static str) -> Vec<Series> {
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    let header = reader.headers().expect("the files of this folder have headers").clone();
    let series = |name: &str| Series { name: name.into(), unit: "", source, points: Vec::new() };
    let mut all: Vec<Series> = header.iter().skip(1).map(series).collect();
    for row in reader.deserialize::<(String, Vec<f64>)>() {
        let (x, values) = row.expect("the files of this folder are well-formed");
        all.iter_mut().zip(values).for_each(|(series, y)| series.points.push((x.clone(), y)));
    }
    all
}

/// The columns of the given names, under other names and with their units.
fn named(columns: Vec<Series>, names: &[(&str, &str, &'static str)]) -> Vec<Series> {
    let found = |column: Series| {
        let (_, name, unit) = names.iter().find(|(header, ..)| *header == column.name)?;
        Some(Series { name: (*name).into(), unit, ..column })
    };
    columns.into_iter().filter_map(found).collect()
}
