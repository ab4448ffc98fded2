//! Tables, plots and reports.
