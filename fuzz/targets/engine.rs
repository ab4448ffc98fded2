//! Arbitrary packets, times and calls into both sides of a queue pair.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../tests/cases/hostile.rs"]
mod hostile;

fuzz_target!(|script: &[u8]| hostile::run(script));
