//! On-demand paging: memory that is not there when the device looks for it.

#[allow(dead_code)]
#[path = "../sim/harness.rs"]
mod harness;
#[allow(dead_code)]
#[path = "../sim/traffic.rs"]
mod traffic;

mod faults;
mod huge_pages;
mod memory;
mod policies;
mod stress;
