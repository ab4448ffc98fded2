//! Writes reports of made-up data, to be looked at in a browser: `cargo run --example sample_report -- DIR`.

#[path = "../tests/support/mod.rs"]
mod support;

use std::path::Path;

use support::samples;
use urxe_study::output::{report, terminal};

fn main() {
    let folder = std::env::args().nth(1).expect("the folder to write to");
    for (record, page) in [samples::sizes(), samples::modes()] {
        terminal::print(&page.tables(&record));
        match report::report(&Path::new(&folder).join(&record.study), &record, &page) {
            Ok(index) => println!("\n{}\n", index.display()),
            Err(error) => println!("{error}"),
        }
    }
}
