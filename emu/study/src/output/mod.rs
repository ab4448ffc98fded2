//! Tables, plots and reports.

mod chart;
mod command;
mod csv;
pub mod number;
pub mod plot;
mod progress;
pub mod report;
pub mod table;
pub mod terminal;

pub use chart::{Axis, Chart, Curve, Figure, Mark, NoChart, Origin, Point, Scale, Shape};
pub use command::{ReportArgs, report_file};
pub use csv::{save_csv, to_csv};
pub use progress::Progress;
