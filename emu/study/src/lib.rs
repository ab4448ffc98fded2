//! `urxe study`: the field's trade-off questions as commands.
//!
//! A study ([`studies`]) asks for jobs; a job is one workload with its settings ([`work`]). The [`driver`] keeps a pair of
//! worker processes for each setting of the device, which speak the public verbs ABI ([`verbs`]), and hands them jobs, so
//! that repetitions of different settings can take turns. What they measure is a [`record`], from which [`stats`] and
//! [`output`] make tables, comparisons and reports.

pub mod command;
pub mod compare;
pub mod driver;
pub mod output;
pub mod record;
pub mod reference;
pub mod stats;
pub mod studies;
pub mod verbs;
pub mod work;
