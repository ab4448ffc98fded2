//! Every workload, small, on two devices of urxe.

mod operations;
mod support;
