//! Simulations: whole devices in virtual time on a network that misbehaves from a seed.
//!
//! A failing test prints the seed; `URXE_SIM_SEED=<seed>` runs that one alone.

#[allow(dead_code)]
mod harness;
#[allow(dead_code)]
mod traffic;

mod endings;
mod faults;
mod multicast;
mod shared;
mod slow;
mod unreliable;
