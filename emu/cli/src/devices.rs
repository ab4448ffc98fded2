//! `urxe devices`: what a program would find, and why it is so.

use std::fmt::Write;

use serde_json::{Map, Value, json};
use urxe::config::Config;

use crate::args::Flags;
use crate::{Failure, print};

pub(crate) fn devices(flags: &Flags, as_json: bool) -> Result<u8, Failure> {
    let config = Config::resolve(std::env::vars_os(), flags)?;
    print(&if as_json { json_text(&config) } else { table(&config) });
    Ok(0)
}

fn table(config: &Config) -> String {
    let rows: Vec<_> =
        config.entries().map(|(key, value, source)| (key.name, value, source.to_string())).collect();
    let width = rows.iter().map(|(_, value, _)| value.chars().count()).max().unwrap_or(0);
    let mut text = "configuration\n".to_owned();
    for (name, value, source) in rows {
        let _ = writeln!(text, "  {name:<12} {value:<width$}  {source}");
    }
    text
}

fn json_text(config: &Config) -> String {
    let entry = |(key, value, source): (&urxe::config::Key, String, &urxe::config::Source)| {
        (key.name.to_owned(), json!({ "value": value, "source": source.to_string() }))
    };
    let entries: Map<String, Value> = config.entries().map(entry).collect();
    format!("{:#}\n", json!({ "configuration": entries }))
}
