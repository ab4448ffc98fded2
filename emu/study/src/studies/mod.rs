//! The studies.
