//! Workloads, and the worker that runs them.
