//! Tables, plots and reports.

mod chart;
mod csv;
pub mod number;
mod progress;
pub mod table;
pub mod terminal;

pub use chart::{Axis, Chart, Curve, Figure, Mark, NoChart, Origin, Point, Scale, Shape};
pub use csv::{save_csv, to_csv};
pub use progress::Progress;
