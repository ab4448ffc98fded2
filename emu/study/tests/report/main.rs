//! Tables, figures and pages.

#[path = "../support/mod.rs"]
mod support;

mod figures;
mod pages;
mod tables;
