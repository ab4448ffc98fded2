//! All samples as CSV.

use std::io;
use std::path::Path;

use crate::record::{Record, write_whole};

/// The samples in the long form, one a line: the parameters, then `metric,unit,repetition,value`. Repetitions count from 1.
pub fn to_csv(record: &Record) -> String {
    let mut lines = csv::Writer::from_writer(Vec::new());
    let header = record.parameter_names().into_iter().chain(["metric", "unit", "repetition", "value"]);
    write(&mut lines, header.map(str::to_string));
    for cell in &record.cells {
        for metric in &cell.metrics {
            for (index, value) in metric.samples.iter().enumerate() {
                let parameters = cell.at.iter().map(|(_, value)| value.clone());
                let (repetition, value) = ((index + 1).to_string(), value.to_string());
                let sample = [metric.name.clone(), metric.unit.clone(), repetition, value];
                write(&mut lines, parameters.chain(sample));
            }
        }
    }
    let bytes = lines.into_inner().expect("memory takes all");
    String::from_utf8(bytes).expect("lines are made of text")
}

fn write(lines: &mut csv::Writer<Vec<u8>>, fields: impl Iterator<Item = String>) {
    lines.write_record(fields.collect::<Vec<_>>()).expect("all lines have as many fields");
}

/// Writes them to a file, which is either all there or not changed.
pub fn save_csv(record: &Record, path: &Path) -> io::Result<()> {
    write_whole(path, &to_csv(record))
}
