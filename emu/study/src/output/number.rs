//! Numbers for people.

/// Significant digits of a number of which nothing more is known.
const DIGITS: i32 = 4;
/// More decimals than this are shown of nothing.
const MAX_DECIMALS: i32 = 6;

/// Four significant digits: `3012`, `34.23`, `0.003854`.
pub fn number(value: f64) -> String {
    format!("{value:.*}", decimals(value, DIGITS))
}

/// A value and its error, to the digits that the error leaves: `3012 ±28`, `0.741 ±0.012`.
pub fn with_error(value: f64, error: Option<f64>) -> String {
    match error {
        None => number(value),
        Some(0.0) => format!("{} ±0", number(value)),
        Some(error) => {
            // An error that is tiny beside the value needs no more digits than four.
            let decimals = decimals(error, 2).min(decimals(value, DIGITS));
            format!("{value:.decimals$} ±{error:.decimals$}")
        }
    }
}

/// With a sign and one decimal: `+3.5 %`.
pub fn percent(value: f64) -> String {
    format!("{value:+.1} %")
}

/// A share of a whole with one decimal: `1.5 %`.
pub fn percent_of(part: f64, whole: f64) -> String {
    format!("{:.1} %", 100.0 * part / whole.abs())
}

/// Sizes that are a multiple of a binary unit in that unit: `512`, `64 Ki`, `4 Mi`.
pub fn binary(value: f64) -> String {
    for (unit, size) in [(" Gi", 30), (" Mi", 20), (" Ki", 10)] {
        let units = value / 2f64.powi(size);
        if units >= 1.0 && units.fract() == 0.0 {
            return format!("{units}{unit}");
        }
    }
    short(value)
}

/// As few digits as tell what it is: `0.5`, `1000`, `2e-7`.
pub fn short(value: f64) -> String {
    let rounded: f64 = format!("{value:.5e}").parse().unwrap_or(value);
    let magnitude = rounded.abs();
    if magnitude != 0.0 && !(1e-5..1e7).contains(&magnitude) {
        format!("{rounded:e}")
    } else {
        rounded.to_string()
    }
}

/// Decimals with which `value` has so many significant digits.
fn decimals(value: f64, digits: i32) -> usize {
    if value == 0.0 || !value.is_finite() {
        return 0;
    }
    let magnitude = value.abs().log10().floor() as i32;
    (digits - 1 - magnitude).clamp(0, MAX_DECIMALS) as usize
}
