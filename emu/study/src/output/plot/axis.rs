//! Positions, ticks and labels of an axis.

use std::ops::Range;

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};

use super::super::chart::{Chart, Scale};
use super::super::number::{binary, short};

/// An axis. Inside, positions are evenly spaced: logarithms have been taken.
#[derive(Clone)]
pub(super) struct Ruler {
    scale: Scale,
    /// Names of the places, if they are categories.
    places: Vec<String>,
    /// Position of the lower end.
    low: f64,
    /// Position of the upper end.
    high: f64,
}

impl Ranged for Ruler {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    /// What is beyond an end is drawn at the end.
    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let share = (position(self.scale, *value) - self.low) / (self.high - self.low);
        limit.0 + (share.clamp(0.0, 1.0) * f64::from(limit.1 - limit.0)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        if hint.weight().allow_light_points() { Vec::new() } else { self.ticks() }
    }

    fn range(&self) -> Range<f64> {
        self.value(self.low)..self.value(self.high)
    }
}

impl ValueFormatter<f64> for Ruler {
    fn format_ext(&self, value: &f64) -> String {
        match self.scale {
            Scale::Categories => self.places.get(*value as usize).cloned().unwrap_or_default(),
            Scale::Log2 => binary(*value),
            Scale::Log10 | Scale::Linear | Scale::Auto => short(*value),
        }
    }
}

/// Powers of 2 that fit beside each other on the x axis.
const MAX_BINARY_LABELS: f64 = 12.0;

impl Ruler {
    /// The x axis of a chart.
    pub(super) fn of_x(chart: &Chart) -> Self {
        let scale = chart.x.scale;
        let points = chart.curves.iter().flat_map(|curve| &curve.points);
        let (low, high) = ends(points.map(|point| position(scale, point.at)));
        let margin = match scale {
            Scale::Categories => 0.5,
            _ if low == high => 1.0,
            _ => (high - low) * 0.03,
        };
        Self { scale, places: chart.places.clone(), low: low - margin, high: high + margin }
    }

    /// The y axis of a chart. A linear one shows zero, so that heights can be compared.
    pub(super) fn of_y(chart: &Chart) -> Self {
        let scale = chart.y.scale;
        let holds = |value: &f64| scale == Scale::Linear || *value > 0.0;
        let values = chart.curves.iter().flat_map(|curve| &curve.points).flat_map(|point| {
            let (low, high) = point.interval.unwrap_or((point.value, point.value));
            [low, point.value, high]
        });
        let (mut low, mut high) = ends(values.filter(holds).map(|value| position(scale, value)));
        if scale == Scale::Linear {
            (low, high) = (low.min(0.0), high.max(0.0));
        }
        let margin = if low == high { 1.0 } else { (high - low) * 0.06 };
        let below = if scale == Scale::Linear && low == 0.0 { 0.0 } else { margin };
        Self { scale, places: Vec::new(), low: low - below, high: high + margin }
    }

    /// Values at the ends.
    pub(super) fn ends(&self) -> (f64, f64) {
        (self.value(self.low), self.value(self.high))
    }

    /// Whether a value is in the lower half.
    pub(super) fn is_low(&self, value: f64) -> bool {
        position(self.scale, value) < f64::midpoint(self.low, self.high)
    }

    /// Where bars stand.
    pub(super) fn base(&self) -> f64 {
        if self.scale == Scale::Linear { 0.0 } else { self.value(self.low) }
    }

    /// Values with labels.
    fn ticks(&self) -> Vec<f64> {
        let positions = match self.scale {
            Scale::Categories => (0..self.places.len()).map(|index| index as f64).collect(),
            Scale::Log2 => self.multiples(((self.high - self.low) / MAX_BINARY_LABELS).ceil()),
            Scale::Log10 => self.decades(),
            Scale::Linear | Scale::Auto => self.multiples(nice_step((self.high - self.low) / 6.0)),
        };
        positions.into_iter().map(|position| self.value(position)).collect()
    }

    fn value(&self, position: f64) -> f64 {
        match self.scale {
            Scale::Log2 => position.exp2(),
            Scale::Log10 => 10f64.powf(position),
            Scale::Linear | Scale::Categories | Scale::Auto => position,
        }
    }

    fn multiples(&self, step: f64) -> Vec<f64> {
        let first = (self.low / step).ceil() as i64;
        let last = (self.high / step).floor() as i64;
        (first..=last).map(|index| index as f64 * step).collect()
    }

    /// Powers of ten, and where there are few of them, 2 and 5 times those.
    fn decades(&self) -> Vec<f64> {
        let factors: &[f64] = if self.high - self.low < 2.5 { &[1.0, 2.0, 5.0] } else { &[1.0] };
        let exponents = self.low.floor() as i32..=self.high.ceil() as i32;
        exponents
            .flat_map(|exponent| factors.iter().map(move |factor| factor.log10() + f64::from(exponent)))
            .filter(|tick| (self.low..=self.high).contains(tick))
            .collect()
    }
}

fn position(scale: Scale, value: f64) -> f64 {
    match scale {
        Scale::Log2 => value.max(f64::MIN_POSITIVE).log2(),
        Scale::Log10 => value.max(f64::MIN_POSITIVE).log10(),
        Scale::Linear | Scale::Categories | Scale::Auto => value,
    }
}

fn ends(values: impl Iterator<Item = f64>) -> (f64, f64) {
    values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)))
}

/// The smallest of 1, 2, 5, 10, 20, ... that is at least `step`.
fn nice_step(step: f64) -> f64 {
    let magnitude = 10f64.powf(step.log10().floor());
    let factor = [1.0, 2.0, 5.0].into_iter().find(|factor| factor * magnitude >= step);
    factor.unwrap_or(10.0) * magnitude
}
