//! Summaries of samples, and comparisons of them.
