//! The studies: what they plan, what their pages say of made-up outcomes, and small runs on urxe.

mod commands;
mod fake;
mod pages;
#[path = "../work/support.rs"]
#[allow(dead_code, reason = "shared with the tests of workloads")]
mod pairs;
#[path = "../driver/process.rs"]
#[allow(dead_code, reason = "shared with the tests of the driver")]
mod process;
#[path = "../support/mod.rs"]
mod support;
