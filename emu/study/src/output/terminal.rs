//! Tables on a terminal.

use std::io::{IsTerminal, Write};

use comfy_table::{CellAlignment, presets};

use super::table::{Column, Side, Table, Tone};

/// Whether to use colours.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Colour {
    /// Escape sequences around rows that are news.
    On,
    /// Text only.
    Off,
}

impl Colour {
    /// What standard output and the user (`NO_COLOR`) want.
    pub fn of_stdout() -> Self {
        let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        if std::io::stdout().is_terminal() && !refused { Self::On } else { Self::Off }
    }
}

/// A table as lines, each with a newline at its end.
pub fn render(table: &Table, colour: Colour) -> String {
    let mut drawn = comfy_table::Table::new();
    drawn.load_preset(presets::NOTHING).set_header(table.columns.iter().map(|column| &column.title));
    for (column, drawn) in table.columns.iter().zip(drawn.column_iter_mut()) {
        drawn.set_padding((0, 2)).set_cell_alignment(alignment(column));
    }
    drawn.add_rows(table.rows.iter().map(|row| row.cells.iter().map(|cell| one_line(cell))));
    let tones = std::iter::once(Tone::Plain).chain(table.rows.iter().map(|row| row.tone));
    let mut text = String::new();
    if !table.caption.is_empty() {
        text += &format!("{}\n", table.caption);
    }
    for (line, tone) in drawn.lines().zip(tones) {
        text += &painted(line.trim_end(), tone, colour);
    }
    for note in &table.notes {
        text += &format!("{note}\n");
    }
    text
}

/// Writes tables to standard output, with an empty line between them. A closed pipe is no error.
pub fn print(tables: &[Table]) {
    let colour = Colour::of_stdout();
    let text = tables.iter().map(|table| render(table, colour)).collect::<Vec<_>>().join("\n");
    let _ = std::io::stdout().write_all(text.as_bytes());
}

fn alignment(column: &Column) -> CellAlignment {
    match column.side {
        Side::Left => CellAlignment::Left,
        Side::Right => CellAlignment::Right,
    }
}

/// Rows are lines, and control characters are nobody's value.
fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

fn painted(line: &str, tone: Tone, colour: Colour) -> String {
    let code = match (colour, tone) {
        (Colour::Off, _) | (_, Tone::Plain) => return format!("{line}\n"),
        (Colour::On, Tone::Good) => "32",
        (Colour::On, Tone::Bad) => "31",
    };
    format!("\x1b[{code}m{line}\x1b[0m\n")
}
