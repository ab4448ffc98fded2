//! What a worker is asked to do, and what it answers.

use serde::{Deserialize, Serialize};

use crate::stats::Latency;

/// One workload with its settings. [`Job::new`] has the usual ones.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Job {
    /// What is done again and again.
    pub operation: Operation,
    /// What is measured of it.
    pub measure: Measure,
    /// Bytes of each operation. [`Operation::FetchAdd`] takes 8 only.
    pub bytes: u64,
    /// Queue pairs of each thread; operations take turns.
    pub queue_pairs: u32,
    /// Threads of each end. Each has queue pairs, a completion queue and memory of its own.
    pub threads: u32,
    /// Operations under way on each queue pair. A latency has one at a time, whatever this says.
    pub depth: u32,
    /// How requests are posted.
    pub api: Api,
    /// Where the payload is when a request is posted.
    pub payload: Payload,
    /// How the memory of both ends is registered.
    pub memory: Memory,
    /// Memory of each thread, at each end, in bytes. Operations walk through it, [`Operation::Gather`] in random order.
    /// At least one operation's are taken.
    pub region: u64,
    /// Bytes from the memory of one operation to that of the next: a page, for each operation to meet another page.
    /// At least [`Job::bytes`] are taken, rounded up to 8.
    pub stride: u64,
    /// Share of the pages of on-demand memory, 0 to 1, that are used before the measured part. The others are given
    /// back to the system then, spread evenly, so that `1 - touched` of them fault. [`Pages::Cold`] only; it touches
    /// none by default.
    pub touched: f64,
    /// Who knows the key of the local buffer of an operation.
    pub registration: Registration,
    /// When the measured part ends.
    pub amount: Amount,
    /// Operations of each thread before the measured part.
    pub warm_up: u64,
}

/// What is done again and again. "Target" is the end that does not measure.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// RDMA WRITE.
    Put,
    /// RDMA READ.
    Get,
    /// SEND into a receive that the target keeps posted.
    Send,
    /// Fetching atomic ADD of 8 bytes.
    FetchAdd,
    /// Active message: a SEND that the target's handler answers by a SEND of as many bytes. As many requests as
    /// [`Job::depth`] wait for their answer.
    AmShort,
    /// Active message whose payload goes from a buffer of the caller to a buffer of the handler; it is over when the
    /// target has said so.
    AmLong(Long),
    /// RDMA READ of elements at random places of the target's memory into consecutive local ones.
    Gather,
}

/// How the payload of a long active message travels.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Long {
    /// The initiator announces the buffer by a SEND, and the target READs it.
    Read,
    /// The initiator copies into registered bounce buffers, which it SENDs; the target copies out of those into which
    /// it receives.
    Pipeline {
        /// Bytes of a bounce buffer.
        chunk: u32,
        /// Bounce buffers of each queue pair at each end.
        buffers: u32,
    },
}

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    /// Operations and bytes in a time, with [`Job::depth`] operations under way: bandwidth and message rate.
    Flood,
    /// Time of one operation at a time. See [`Job::latency_is`].
    Latency,
    /// o_i: time that the calls take which post [`Job::depth`] operations to queues that have room for them. The
    /// completions are not waited for in that time.
    Initiation,
}

/// What a time of [`Outcome::latency`] is the time of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LatencyIs {
    /// Half of a ping-pong, as ib_send_lat and ib_write_lat have it.
    HalfRoundTrip,
    /// From posting an operation to its answer or completion, as ib_read_lat and ib_atomic_lat have it.
    WholeOperation,
    /// Posting one operation.
    Posting,
}

/// How requests are posted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Api {
    /// `ibv_post_send`.
    #[default]
    PostSend,
    /// `ibv_wr_start`, `ibv_wr_*`, `ibv_wr_complete`.
    WorkRequest,
}

/// Where the payload is when a request is posted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Payload {
    /// In registered memory, from which the device takes it.
    #[default]
    Registered,
    /// In the request (`IBV_SEND_INLINE`). [`Operation::Put`], [`Operation::Send`] and [`Operation::AmShort`] only.
    Inline,
}

/// How memory is registered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Memory {
    /// Without on-demand paging.
    #[default]
    Pinned,
    /// With on-demand paging.
    OnDemand(Pages),
    /// One region with on-demand paging that is the whole address space.
    Implicit(Pages),
}

/// Pages of on-demand memory before the measured part.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pages {
    /// Not there, but for the share [`Job::touched`]. The measured part ends after one walk through the region at the
    /// latest.
    Cold,
    /// Used by the same operations once.
    Warm,
    /// Not there, then asked for by `ibv_advise_mr`; see [`Outcome::prefetch_ns`].
    Prefetched,
}

/// Who knows the key of the local buffer of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Registration {
    /// The caller, always: nothing is looked up.
    #[default]
    None,
    /// Nobody: each operation looks its buffer up in the cache of the process, which registers what it misses.
    Cached {
        /// Regions that the cache may hold.
        capacity: u32,
    },
    /// The caller, for memory that it has registered; the cache is for the rest.
    Hybrid {
        /// Regions that the cache may hold.
        capacity: u32,
        /// Operations of a hundred whose buffer the caller has not registered.
        unregistered_percent: u32,
    },
}

/// When the measured part ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Amount {
    /// After as many operations of each thread.
    Operations(u64),
    /// After a time.
    Milliseconds(u64),
}

impl Job {
    /// A job with one thread, one queue pair, 64 operations under way, pinned memory, 300 ms and a warm-up of 100
    /// operations.
    pub fn new(operation: Operation, measure: Measure, bytes: u64) -> Self {
        Self {
            operation,
            measure,
            bytes,
            queue_pairs: 1,
            threads: 1,
            depth: 64,
            api: Api::default(),
            payload: Payload::default(),
            memory: Memory::default(),
            region: bytes,
            stride: bytes,
            touched: 0.0,
            registration: Registration::default(),
            amount: Amount::Milliseconds(300),
            warm_up: 100,
        }
    }

    /// What a time of [`Outcome::latency`] is the time of.
    pub fn latency_is(&self) -> LatencyIs {
        match (self.measure, self.operation) {
            (Measure::Initiation, _) => LatencyIs::Posting,
            (_, Operation::Put | Operation::Send) => LatencyIs::HalfRoundTrip,
            _ => LatencyIs::WholeOperation,
        }
    }
}

/// What a job has given.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Outcome {
    /// Operations of all threads in the measured part.
    pub operations: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Length of the measured part in ns; for [`Measure::Initiation`] the time in which requests were posted, on
    /// average of the threads.
    pub elapsed_ns: u64,
    /// CPU time of the initiator's process in the measured part, in ns.
    pub initiator_cpu_ns: u64,
    /// The same of the target's.
    pub target_cpu_ns: u64,
    /// Most operations for each second that a window of [`crate::work::WINDOW`] has seen; [`Measure::Flood`] only.
    pub peak_per_second: Option<f64>,
    /// Times of operations (see [`Job::latency_is`]): [`Measure::Latency`], and [`Measure::Initiation`] (of bursts, divided by their length).
    pub latency: Option<Latency>,
    /// What registering the initiator's memory took, in ns, for all threads.
    pub register_ns: u64,
    /// What prefetching the initiator's memory took, in ns; [`Pages::Prefetched`] only.
    pub prefetch_ns: Option<u64>,
    /// What the registration cache has done, if there was one.
    pub cache: Option<CacheCounts>,
    /// Counters of the device that have changed in the measured part. Empty if the driver cannot read them: it can under
    /// urxe on this machine.
    pub counters: Counters,
}

/// Counters of the device at both ends: name, change.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Counters {
    /// Of the initiator's process.
    pub initiator: Vec<(String, u64)>,
    /// Of the target's process.
    pub target: Vec<(String, u64)>,
}

/// What a registration cache has done in the measured part.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct CacheCounts {
    /// Lookups that found a region.
    pub hits: u64,
    /// Lookups that registered one.
    pub misses: u64,
    /// Regions given up because the cache was full.
    pub evictions: u64,
    /// Regions given up because their memory was unmapped.
    pub invalidations: u64,
}

impl Outcome {
    /// Operations for each second.
    pub fn rate(&self) -> f64 {
        self.operations as f64 * 1e9 / self.elapsed_ns.max(1) as f64
    }

    /// Bytes for each second: divide by 10^6 for MB/s, by 2^20 for the MiB/s of perftest.
    pub fn bandwidth(&self) -> f64 {
        self.bytes as f64 * 1e9 / self.elapsed_ns.max(1) as f64
    }

    /// Bytes for each second in the best window.
    pub fn peak_bandwidth(&self) -> Option<f64> {
        let of_one = self.bytes as f64 / self.operations.max(1) as f64;
        self.peak_per_second.map(|rate| rate * of_one)
    }

    /// CPU time of both ends for an operation, in us.
    pub fn cpu_of_operation(&self) -> f64 {
        (self.initiator_cpu_ns + self.target_cpu_ns) as f64 / 1e3 / self.operations.max(1) as f64
    }

    /// A counter of both ends together; 0 if it has not changed.
    pub fn counter(&self, name: &str) -> u64 {
        let ends = self.counters.initiator.iter().chain(&self.counters.target);
        ends.filter(|(n, _)| n == name).map(|(_, change)| change).sum()
    }
}
