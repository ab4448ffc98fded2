//! Pairs of workers, here or on two machines.
