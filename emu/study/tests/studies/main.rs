//! The studies: what they plan, what their pages say of made-up outcomes, and small runs on urxe.

mod fake;
mod pages;
#[path = "../support/mod.rs"]
mod support;
