//! How pairs end: gently, by a signal, by the death of a worker, or never having begun.

mod agent;
mod ends;
mod process;
#[path = "../work/support.rs"]
#[allow(dead_code, reason = "shared with the tests of workloads")]
mod support;
