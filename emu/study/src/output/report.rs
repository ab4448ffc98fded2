//! The report: one page that needs nothing else, with the raw data beside it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use maud::{DOCTYPE, Markup, PreEscaped, html};
use thiserror::Error;

use super::chart::{Chart, Figure, Origin};
use super::table::{self, Layout, Side, Table};
use super::{plot, save_csv};
use crate::record::{Ended, Record, SaveError, place, write_whole};
use crate::stats::noise;

/// What a study says about a record, beside the figures in it.
#[derive(Clone, PartialEq, Debug)]
pub struct Page {
    /// The title.
    pub title: String,
    /// The question that the study asks.
    pub question: String,
    /// The answers, a sentence or two each.
    pub findings: Vec<String>,
    /// The figures, in order.
    pub figures: Vec<Figure>,
    /// How the table is laid out.
    pub layout: Layout,
    /// Tables that the study makes itself, to be shown after those of the cells.
    pub extra: Vec<Table>,
}

/// Why there is no report.
#[derive(Debug, Error)]
pub enum ReportError {
    /// The folder cannot be made or written to.
    #[error("cannot write a report to {folder}: {error}")]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// The raw data cannot be written.
    #[error(transparent)]
    Data(#[from] SaveError),
}

impl Page {
    /// What can be said of a record of which nothing else is known.
    pub fn of(record: &Record) -> Self {
        Self {
            title: format!("Study {}", record.study),
            question: String::new(),
            findings: Vec::new(),
            figures: Figure::defaults(record),
            layout: Layout::Uncertain,
            extra: Vec::new(),
        }
    }

    /// The tables, for the terminal as well as for the page.
    pub fn tables(&self, record: &Record) -> Vec<Table> {
        let mut tables = table::tables(record, self.layout, &self.figures);
        tables.extend(self.extra.iter().cloned());
        tables
    }
}

/// Makes the folder of a report unless it is there, and finds out whether files can be written there; to be called before
/// hours of measuring.
pub fn check_writable(folder: &Path) -> Result<(), ReportError> {
    fs::create_dir_all(folder)
        .and_then(|()| probe(folder))
        .map_err(|error| ReportError::Folder { folder: folder.into(), error })
}

/// Finds out whether files can be written to a folder.
pub(crate) fn probe(folder: &Path) -> io::Result<()> {
    let probe = folder.join(format!(".writable.{}", std::process::id()));
    fs::write(&probe, "").and_then(|()| fs::remove_file(&probe))
}

/// Writes `index.html`, `results.json` and `results.csv` to a folder. Returns the path of the page.
pub fn report(folder: &Path, record: &Record, page: &Page) -> Result<PathBuf, ReportError> {
    check_writable(folder)?;
    let failed = |error| ReportError::Folder { folder: folder.into(), error };
    record.save(&folder.join("results.json"))?;
    save_csv(record, &folder.join("results.csv")).map_err(failed)?;
    let index = folder.join("index.html");
    write_whole(&index, &to_html(record, page)).map_err(failed)?;
    Ok(index)
}

/// The page's HTML.
pub fn to_html(record: &Record, page: &Page) -> String {
    let markup = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (page.title) }
                style { (PreEscaped(include_str!("report.css"))) }
            }
            body {
                h1 { (page.title) }
                p.question { (page.question) }
                (warning(record))
                (findings(page))
                (figures(record, page))
                h2 { "Results" }
                @for table in page.tables(record) { (html_table(&table)) }
                (noise_section(record))
                (repeat(record))
                h2 { "Configuration" }
                (pairs("device", &record.device, &record.settings))
                h2 { "Machine" }
                (pairs("measured", &when(record.started), &record.facts))
            }
        }
    };
    markup.into_string()
}

fn warning(record: &Record) -> Markup {
    match &record.ended {
        Ended::Complete => html! {},
        Ended::Interrupted => html! { p.warning { "Interrupted: this is what was measured until then." } },
        Ended::Failed(why) => {
            html! { p.warning { "Ended early: " (why) ". This is what was measured until then." } }
        }
    }
}

fn findings(page: &Page) -> Markup {
    html! {
        @if !page.findings.is_empty() {
            ul.findings { @for finding in &page.findings { li { (finding) } } }
        }
    }
}

fn figures(record: &Record, page: &Page) -> Markup {
    html! {
        @if !page.figures.is_empty() { h2 { "Figures" } }
        @for figure in &page.figures {
            h3 { (figure.title) }
            @match figure.chart(record).map_err(|e| e.to_string()).and_then(|chart| Ok((plot::svg(&chart)?, chart))) {
                Ok((svg, chart)) => {
                    (drawn(&svg, &chart))
                    @if page.layout != Layout::Figures { (as_numbers(&chart)) }
                },
                Err(why) => p.note { "No figure: " (why) "." },
            }
        }
    }
}

fn drawn(svg: &str, chart: &Chart) -> Markup {
    let published = chart.curves.iter().filter_map(|curve| match curve.origin {
        Origin::Measured => None,
        Origin::Published(source) => Some(source),
    });
    let sources = crate::record::distinct(published);
    html! {
        figure {
            (PreEscaped(svg))
            @if !sources.is_empty() { figcaption { "Published: " (sources.join("; ")) "." } }
        }
    }
}

fn as_numbers(chart: &Chart) -> Markup {
    html! { details { summary { "As numbers" } (html_table(&table::of_chart(chart))) } }
}

fn html_table(table: &Table) -> Markup {
    let class = |index: usize| (table.columns[index].side == Side::Right).then_some("right");
    html! {
        div.wide {
            table {
                @if !table.caption.is_empty() { caption { (table.caption) } }
                thead { tr { @for (i, column) in table.columns.iter().enumerate() { th class=[class(i)] { (column.title) } } } }
                tbody {
                    @for row in &table.rows {
                        tr { @for (i, cell) in row.cells.iter().enumerate() { td class=[class(i)] { (cell) } } }
                    }
                }
            }
        }
        @for note in &table.notes { p.note { (note) } }
    }
}

fn noise_section(record: &Record) -> Markup {
    let all = noise(record);
    html! {
        h2 { "Noise" }
        @if all.is_empty() {
            p { "Nothing was measured more than once, so nothing is known of the noise." }
        } @else {
            p { "Standard deviation between repetitions, in percent of the mean." }
            div.wide {
                table {
                    thead { tr {
                        th { "metric" } th.right { "cells" } th.right { "median cell" } th.right { "noisiest cell" } th { "which" }
                    } }
                    tbody {
                        @for noise in &all {
                            tr {
                                td { (noise.metric) }
                                td.right { (noise.cells) }
                                td.right { (format!("{:.1} %", noise.median_percent)) }
                                td.right { (format!("{:.1} %", noise.max_percent)) }
                                td { (place(&noise.noisiest)) }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn repeat(record: &Record) -> Markup {
    html! {
        h2 { "Repeat it" }
        pre { (command_line(&record.command)) "\n" "urxe study compare results.json NEW.json" }
        p.note {
            "All samples are in " a href="results.json" { "results.json" } " and " a href="results.csv" { "results.csv" } "."
        }
    }
}

fn pairs(first: &str, value: &str, pairs: &[(String, String)]) -> Markup {
    html! {
        table.facts {
            tbody {
                tr { th { (first) } td { (value) } }
                @for (name, value) in pairs { tr { th { (name) } td { (value) } } }
            }
        }
    }
}

/// Arguments as a shell takes them.
fn command_line(command: &[String]) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=+./:,@%".contains(c);
    let quoted = |word: &String| match !word.is_empty() && word.chars().all(plain) {
        true => word.clone(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    };
    command.iter().map(quoted).collect::<Vec<_>>().join(" ")
}

/// A time of the clock as `2026-11-30 18:15:45 UTC`.
fn when(seconds: u64) -> String {
    match UNIX_EPOCH.checked_add(Duration::from_secs(seconds)) {
        Some(time) if seconds < YEAR_9999 => {
            humantime::format_rfc3339_seconds(time).to_string().replace('T', " ").replace('Z', " UTC")
        }
        _ => "unknown".into(),
    }
}

/// Later times have no form that others read.
const YEAR_9999: u64 = 253_370_764_800;
