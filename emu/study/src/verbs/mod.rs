//! The verbs ABI, as far as workloads need it, in Rust: reliable queue pairs, memory regions, completion queues.
//!
//! The library is loaded when it is first used, so whoever only reads results needs none. What verbs.h has as inline
//! functions goes through the same tables here. Objects hold those that they are made from.

mod completion;
mod context;
mod error;
mod library;
mod memory;
mod post;
mod queue_pair;

pub use completion::{Completion, CompletionQueue, Kind};
pub use context::{Context, Limits, Port};
pub use error::{Error, Result};
pub use memory::{Access, Mapping, MemoryRegion, PageSize, Prefetch, ProtectionDomain};
pub use post::{Flags, Receive, Remote, Request, Verb};
pub use queue_pair::{Destination, QueuePair, Sizes};
