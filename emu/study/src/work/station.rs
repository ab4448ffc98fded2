//! One end of a job on a device: all its threads' queue pairs and memory.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::data;
use super::endpoint::DeviceEndpoint;
use super::error::{Error, Result};
use super::job::{CacheCounts, Job, Memory, Operation, Payload};
use super::lane::{Lane, Patience, RemoteMemory, Role, Stop};
use super::layout::Layout;
use super::pages;
use super::registration::{self, Keys, RegionCache};
use crate::verbs::{
    Access, CompletionQueue, Context, Destination, Limits, Mapping, MemoryRegion, PageSize, Port,
    ProtectionDomain, QueuePair, Sizes,
};

/// An open device, ready for jobs.
#[derive(Debug)]
pub(super) struct Station {
    pub(super) context: Arc<Context>,
    pub(super) domain: Arc<ProtectionDomain>,
    pub(super) port: Port,
    pub(super) limits: Limits,
    shares_cpus: bool,
}

/// What one thread of the other end has to know.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct LaneEnd {
    /// Its queue pairs.
    destinations: Vec<Destination>,
    /// Its memory.
    address: u64,
    key: u32,
}

/// One end of a job.
#[derive(Debug)]
pub(super) struct End {
    role: Role,
    job: Job,
    pub(super) layout: Layout,
    pub(super) lanes: Vec<Lane<DeviceEndpoint>>,
    /// For the other end.
    pub(super) ends: Vec<LaneEnd>,
    memories: Vec<Arc<Mapping>>,
    regions: Vec<Arc<MemoryRegion>>,
    cache: Option<Arc<RegionCache>>,
    /// What registering took.
    pub(super) registering: Duration,
}

impl Station {
    /// Opens a device.
    pub(super) fn open(device: Option<&str>, gid_index: Option<u32>, shares_cpus: bool) -> Result<Self> {
        let context = Context::open(device)?;
        let port = context.port(gid_index)?;
        let limits = context.limits()?;
        let domain = ProtectionDomain::new(&context)?;
        Ok(Self { context, domain, port, limits, shares_cpus })
    }

    /// Most bytes of inline data that a queue pair can have.
    pub(super) fn max_inline(&self) -> Result<u32> {
        let completions = CompletionQueue::new(&self.context, 16)?;
        let works = |inline| {
            let sizes = Sizes { send: 1, receive: 1, inline };
            QueuePair::new(&self.domain, &completions, sizes, super::Api::PostSend, false).is_ok()
        };
        // The limit lies in low..high.
        let (mut low, mut high) = (0, 1 << 14);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if works(middle) { low = middle } else { high = middle }
        }
        Ok(low)
    }

    /// Refuses what this device cannot do.
    fn check(&self, job: &Job) -> Result<()> {
        let name = self.context.name();
        let refuse = |why: String| Err(Error::Refused(why));
        if job.operation == Operation::FetchAdd && !self.limits.atomics {
            return refuse(format!("{name} has no atomic operations"));
        }
        if job.depth > self.limits.depth {
            return refuse(format!("depth {}: queues of {name} have up to {}", job.depth, self.limits.depth));
        }
        let odp = u64::from(urxe_abi::IBV_ODP_SUPPORT);
        let implicit = u64::from(urxe_abi::IBV_ODP_SUPPORT_IMPLICIT);
        match job.memory {
            Memory::OnDemand(_) if self.limits.on_demand & odp == 0 => {
                refuse(format!("{name} has no on-demand paging"))
            }
            Memory::Implicit(_) if self.limits.on_demand & implicit == 0 => {
                refuse(format!("{name} cannot register the whole address space"))
            }
            _ => Ok(()),
        }
    }

    /// Makes one end of a job. Its queue pairs are not connected yet.
    pub(super) fn prepare(&self, job: &Job, role: Role, stop: &Arc<Stop>) -> Result<End> {
        super::check_job(job)?;
        self.check(job)?;
        let layout = Layout::of(job, self.limits.depth);
        let mut end = End {
            role,
            job: job.clone(),
            layout,
            lanes: Vec::new(),
            ends: Vec::new(),
            memories: Vec::new(),
            regions: Vec::new(),
            cache: registration::cache(job.registration).filter(|_| role == Role::Initiator),
            registering: Duration::ZERO,
        };
        for _ in 0..job.threads {
            self.add_lane(&mut end, stop)?;
        }
        Ok(end)
    }

    fn add_lane(&self, end: &mut End, stop: &Arc<Stop>) -> Result<()> {
        let (job, layout) = (&end.job, end.layout);
        let pages = if job.memory == Memory::Pinned { PageSize::System } else { PageSize::Small };
        let memory = Arc::new(Mapping::new(layout.length, pages).map_err(Error::system("mmap"))?);
        data::prepare(&memory, &layout, job, end.role);
        let start = Instant::now();
        let region = match end.regions.first().filter(|_| matches!(job.memory, Memory::Implicit(_))) {
            Some(everything) => everything.clone(),
            None => Arc::new(self.register(job, &memory)?),
        };
        end.registering += start.elapsed();
        let endpoint = self.endpoint(job, &layout, memory.clone())?;
        let psn = random_psn();
        let destination = |queue: &QueuePair| queue.destination(&self.port, psn, self.limits.reads);
        end.ends.push(LaneEnd {
            destinations: endpoint.queues.iter().map(destination).collect(),
            address: memory.address(),
            key: region.remote_key(),
        });
        let key = region.local_key();
        let keys = match (&end.cache, registration::percent(job.registration)) {
            (Some(cache), Some(percent)) => {
                let (domain, memory) = (self.domain.clone(), memory.clone());
                Keys::looked_up(key, cache.clone(), domain, memory, percent, job.queue_pairs)
            }
            _ => Keys::given(key),
        };
        let ends = if self.shares_cpus { 2 } else { 1 };
        let patience = Patience::new(stop.clone(), ends * job.threads);
        end.lanes.push(Lane::new(endpoint, end.role, job, layout, key, keys, patience));
        end.memories.push(memory);
        end.regions.push(region);
        Ok(())
    }

    fn register(&self, job: &Job, memory: &Arc<Mapping>) -> Result<MemoryRegion> {
        let (all, atomics) = (0..memory.len(), self.limits.atomics);
        Ok(match job.memory {
            Memory::Pinned => self.domain.register(memory, all, Access::Pinned, atomics)?,
            Memory::OnDemand(_) => self.domain.register(memory, all, Access::OnDemand, atomics)?,
            Memory::Implicit(_) => self.domain.register_all(atomics)?,
        })
    }

    fn endpoint(&self, job: &Job, layout: &Layout, memory: Arc<Mapping>) -> Result<DeviceEndpoint> {
        let inline = if job.payload == Payload::Inline { job.bytes as u32 } else { 0 };
        let sizes = Sizes { send: layout.sends, receive: layout.receives.max(1), inline };
        let room = (sizes.send + sizes.receive) * job.queue_pairs;
        let completions = CompletionQueue::new(&self.context, room)?;
        let queue = |_| QueuePair::new(&self.domain, &completions, sizes, job.api, self.limits.atomics);
        let queues = (0..job.queue_pairs).map(queue).collect::<crate::verbs::Result<Vec<_>>>();
        let queues = queues.map_err(|error| match error.errno() {
            Some(libc::EINVAL) if inline > 0 => {
                Error::Refused(format!("{} takes no {inline} bytes of inline data", self.context.name()))
            }
            _ => error.into(),
        })?;
        Ok(DeviceEndpoint { queues, completions, memory })
    }

    /// Connects an end with the other one, and posts its receives.
    pub(super) fn connect(&self, end: &mut End, others: &[LaneEnd]) -> Result<()> {
        if others.len() != end.lanes.len() {
            return Err(Error::Peer(format!(
                "other end has {} threads, not {}",
                others.len(),
                end.lanes.len()
            )));
        }
        for ((lane, own), other) in end.lanes.iter_mut().zip(&end.ends).zip(others) {
            let pairs = own.destinations.iter().zip(&other.destinations);
            for (queue, (own, other)) in lane.endpoint.queues.iter().zip(pairs) {
                queue.connect(&self.port, own, other)?;
            }
            lane.remote = RemoteMemory { address: other.address, key: other.key };
            lane.post_receives()?;
        }
        Ok(())
    }
}

impl End {
    /// Whether the memory is small enough to be checked.
    pub(super) fn is_checked(&self) -> bool {
        data::is_checked(&self.layout)
    }

    /// Fills the memory of all threads, for a check to come.
    pub(super) fn fill(&self) {
        for memory in &self.memories {
            data::prepare(memory, &self.layout, &self.job, self.role);
        }
    }

    /// Checks what has arrived since; `operations` of each thread.
    pub(super) fn check(&self, operations: &[u64]) -> Result<()> {
        let mut threads = self.memories.iter().zip(operations);
        threads
            .try_for_each(|(memory, count)| data::check(memory, &self.layout, &self.job, self.role, *count))
    }

    /// Makes pages what the job says; returns how long prefetching took.
    pub(super) fn prepare_pages(&self) -> Result<Option<Duration>> {
        let mut took = None;
        for (memory, region) in self.memories.iter().zip(&self.regions) {
            if let Some(time) = pages::prepare(memory, region, &self.layout, &self.job, self.role)? {
                *took.get_or_insert(Duration::ZERO) += time;
            }
        }
        Ok(took)
    }

    /// What the registration cache has done so far.
    pub(super) fn cache_counts(&self) -> Option<CacheCounts> {
        self.cache.as_ref().map(|cache| cache.counts())
    }
}

/// A PSN that an earlier connection between the same queue pairs is unlikely to have had.
fn random_psn() -> u32 {
    use std::hash::{BuildHasher, Hasher};
    let hasher = std::collections::hash_map::RandomState::new().build_hasher();
    (hasher.finish() & 0xff_ffff) as u32
}
