//! Which part of a record a figure shows: from a [`Figure`] and a record to a [`Chart`], which has only what is drawn.

use thiserror::Error;

use super::table::groups;
use crate::record::{Cell, Metric, Record, distinct};
use crate::reference::Series;
use crate::stats::Summary;

/// A figure that can be drawn of any record with such parameters and metrics.
#[derive(Clone, PartialEq, Debug)]
pub struct Figure {
    /// Its title.
    pub title: String,
    /// The parameter along the x axis.
    pub x: String,
    /// The title of the x axis, with the unit.
    pub x_label: String,
    /// The metric along the y axis. Cells without it are left out.
    pub metric: String,
    /// How x is spaced.
    pub x_scale: Scale,
    /// How y is spaced.
    pub y_scale: Scale,
    /// Lines or bars.
    pub shape: Shape,
    /// The parameters whose values tell the curves apart; if there are none, all that differ within the figure.
    pub series: Vec<String>,
    /// Only cells with these values of these parameters.
    pub only: Vec<(String, String)>,
    /// Published curves to be drawn beside the measured ones.
    pub references: Vec<Series>,
    /// Places on the x axis that mean something, such as a crossover.
    pub marks: Vec<Mark>,
}

/// How an axis is spaced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scale {
    /// As the values ask for.
    Auto,
    /// Evenly.
    Linear,
    /// By powers of 2, with binary units.
    Log2,
    /// By powers of 10.
    Log10,
    /// One place for each value, whatever it is; for x only.
    Categories,
}

/// How values are drawn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shape {
    /// Points with lines between them.
    Lines,
    /// Bars in groups.
    Bars,
}

/// A place on the x axis.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mark {
    /// The value of the figure's x parameter.
    pub at: String,
    /// What is there.
    pub label: String,
}

/// What is drawn.
#[derive(Clone, PartialEq, Debug)]
pub struct Chart {
    /// The title.
    pub title: String,
    /// The x axis.
    pub x: Axis,
    /// The y axis.
    pub y: Axis,
    /// Lines or bars.
    pub shape: Shape,
    /// All values of x, in the order of the axis.
    pub places: Vec<String>,
    /// Measured curves, then published ones. None is empty.
    pub curves: Vec<Curve>,
    /// Marks, with their position on the axis.
    pub marks: Vec<(f64, String)>,
}

/// An axis.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Axis {
    /// Title with unit.
    pub label: String,
    /// Never `Auto`.
    pub scale: Scale,
}

/// A curve.
#[derive(Clone, PartialEq, Debug)]
pub struct Curve {
    /// What tells it from the others.
    pub name: String,
    /// Where it comes from.
    pub origin: Origin,
    /// In the order of the axis.
    pub points: Vec<Point>,
}

/// Where a curve comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// The record.
    Measured,
    /// A publication: where that was measured.
    Published(&'static str),
}

/// A point of a curve.
#[derive(Clone, PartialEq, Debug)]
pub struct Point {
    /// The value of the x parameter.
    pub place: String,
    /// Where that is on the axis: the number, or the place's index among the categories.
    pub at: f64,
    /// The median.
    pub value: f64,
    /// Ends of the median's interval.
    pub interval: Option<(f64, f64)>,
}

/// Why a figure cannot be drawn of a record.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum NoChart {
    /// Nothing was measured of it.
    #[error("nothing was measured for '{0}'")]
    NoData(String),
    /// A value is not on the scale.
    #[error("'{title}' cannot show {parameter}={value} on its scale")]
    OffScale {
        /// The figure's title.
        title: String,
        /// The parameter, or the metric.
        parameter: String,
        /// The value.
        value: String,
    },
    /// Units differ.
    #[error("'{title}' is in {unit}, but '{name}' in {other}")]
    Unit {
        /// The figure's title.
        title: String,
        /// Unit of the first curve.
        unit: String,
        /// The curve that has another one.
        name: String,
        /// Its unit.
        other: String,
    },
}

impl Figure {
    /// A figure of a metric over a parameter, with lines, and all else as the record asks for.
    pub fn new(title: impl Into<String>, x: impl Into<String>, metric: impl Into<String>) -> Self {
        let x = x.into();
        Self {
            title: title.into(),
            x_label: x.clone(),
            x,
            metric: metric.into(),
            x_scale: Scale::Auto,
            y_scale: Scale::Auto,
            shape: Shape::Lines,
            series: Vec::new(),
            only: Vec::new(),
            references: Vec::new(),
            marks: Vec::new(),
        }
    }

    /// Figures of a record of which nothing else is known: for each group of cells with the same metrics the first metric,
    /// over the parameter with most values, if one has more than one.
    pub fn defaults(record: &Record) -> Vec<Self> {
        groups(record).iter().filter_map(|cells| Self::of_group(cells)).collect()
    }

    fn of_group(cells: &[&Cell]) -> Option<Self> {
        let metric = cells[0].metrics.first()?;
        let count = |name: &str| distinct(cells.iter().filter_map(|cell| cell.value(name))).len();
        let numeric = |name: &str| cells.iter().all(|cell| cell.value(name).and_then(number_of).is_some());
        let names = cells[0].at.iter().map(|(name, _)| name.as_str()).filter(|name| count(name) > 1);
        let x = names.rev().max_by_key(|name| (numeric(name), count(name)))?;
        let shape = if numeric(x) { Shape::Lines } else { Shape::Bars };
        Some(Self { shape, ..Self::new(format!("{} by {x}", metric.name), x, &metric.name) })
    }

    /// Selects from a record what the figure shows.
    pub fn chart(&self, record: &Record) -> Result<Chart, NoChart> {
        let measured = self.measured(record);
        let unit = &measured.first().ok_or_else(|| NoChart::NoData(self.title.clone()))?.1.unit;
        self.check_units(&measured, unit)?;
        let names = self.series_names(&measured);
        let raw = self.raw_curves(&measured, &names);
        let places = self.places(&raw);
        let x_scale = self.x_scale.resolve_x(&places, self.shape);
        let places = in_order(places, x_scale);
        let curves = raw
            .into_iter()
            .map(|curve| self.place_curve(curve, &places, x_scale))
            .collect::<Result<Vec<Curve>, NoChart>>()?;
        let y_scale = self.y_scale.resolve_y(&curves);
        self.check_values(&curves, y_scale)?;
        let mark = |mark: &Mark| Ok((self.position(&mark.at, &places, x_scale)?, mark.label.clone()));
        Ok(Chart {
            title: self.title.clone(),
            x: Axis { label: self.x_label.clone(), scale: x_scale },
            y: Axis { label: format!("{} [{unit}]", self.metric), scale: y_scale },
            shape: self.shape,
            marks: self.marks.iter().map(mark).collect::<Result<_, NoChart>>()?,
            places,
            curves,
        })
    }

    /// Cells that belong to the figure, with its metric. Cells without samples are as good as not there.
    fn measured<'a>(&self, record: &'a Record) -> Vec<(&'a Cell, &'a Metric)> {
        let wanted = |cell: &Cell| self.only.iter().all(|(name, value)| cell.value(name) == Some(value));
        let cells = record.cells.iter().filter(|cell| wanted(cell) && cell.value(&self.x).is_some());
        let metric =
            |cell: &'a Cell| Some((cell, cell.metric(&self.metric).filter(|m| !m.samples.is_empty())?));
        cells.filter_map(metric).collect()
    }

    fn check_units(&self, measured: &[(&Cell, &Metric)], unit: &str) -> Result<(), NoChart> {
        let cells = measured.iter().map(|(cell, metric)| (cell.place(), metric.unit.as_str()));
        let published = self.references.iter().map(|series| (series.name.clone(), series.unit));
        match cells.chain(published).find(|(_, other)| *other != unit) {
            None => Ok(()),
            Some((name, other)) => {
                Err(NoChart::Unit { title: self.title.clone(), unit: unit.into(), name, other: other.into() })
            }
        }
    }

    /// The parameters that tell curves apart.
    fn series_names(&self, measured: &[(&Cell, &Metric)]) -> Vec<String> {
        if !self.series.is_empty() {
            return self.series.clone();
        }
        let Some((first, _)) = measured.first() else { return Vec::new() };
        let varies = |name: &str| measured.iter().any(|(cell, _)| cell.value(name) != first.value(name));
        first.at.iter().map(|(name, _)| name.clone()).filter(|name| *name != self.x && varies(name)).collect()
    }

    /// Curves whose points have no position yet.
    fn raw_curves(&self, measured: &[(&Cell, &Metric)], names: &[String]) -> Vec<Curve> {
        let mut curves: Vec<Curve> = Vec::new();
        for (cell, metric) in measured {
            let (Some(place), Some(summary)) = (cell.value(&self.x), Summary::of(&metric.samples)) else {
                continue;
            };
            let interval = summary.median_interval.map(|i| (i.low, i.high));
            let point = Point { place: place.into(), at: 0.0, value: summary.median, interval };
            let name = curve_name(cell, names, &self.metric);
            match curves.iter_mut().find(|curve| curve.name == name) {
                Some(curve) => curve.points.push(point),
                None => curves.push(Curve { name, origin: Origin::Measured, points: vec![point] }),
            }
        }
        curves.extend(self.references.iter().filter(|series| !series.points.is_empty()).map(published));
        curves
    }

    /// All values of x, in the order in which they appear.
    fn places(&self, curves: &[Curve]) -> Vec<String> {
        let all = curves.iter().flat_map(|curve| &curve.points).map(|point| point.place.as_str());
        distinct(all).into_iter().map(Into::into).collect()
    }

    fn place_curve(&self, mut curve: Curve, places: &[String], scale: Scale) -> Result<Curve, NoChart> {
        for point in &mut curve.points {
            point.at = self.position(&point.place, places, scale)?;
        }
        curve.points.sort_by(|a, b| a.at.total_cmp(&b.at));
        Ok(curve)
    }

    fn position(&self, place: &str, places: &[String], scale: Scale) -> Result<f64, NoChart> {
        let at = match scale {
            Scale::Categories => places.iter().position(|known| known == place).map(|index| index as f64),
            _ => number_of(place).filter(|at| scale.holds(*at)),
        };
        at.ok_or_else(|| self.off_scale(&self.x, place))
    }

    fn check_values(&self, curves: &[Curve], scale: Scale) -> Result<(), NoChart> {
        let mut values = curves.iter().flat_map(|curve| &curve.points).map(|point| point.value);
        match values.find(|value| !scale.holds(*value)) {
            Some(value) => Err(self.off_scale(&self.metric, &value.to_string())),
            None => Ok(()),
        }
    }

    fn off_scale(&self, parameter: &str, value: &str) -> NoChart {
        NoChart::OffScale { title: self.title.clone(), parameter: parameter.into(), value: value.into() }
    }
}

impl Curve {
    /// Its name, and whether it is published.
    pub fn title(&self) -> String {
        match self.origin {
            Origin::Measured => self.name.clone(),
            Origin::Published(_) => format!("published: {}", self.name),
        }
    }
}

impl Point {
    /// The larger distance from the value to an end of its interval.
    pub fn error(&self) -> Option<f64> {
        self.interval.map(|(low, high)| (high - self.value).max(self.value - low))
    }
}

impl Scale {
    /// Logarithms have only what is above zero.
    fn holds(self, value: f64) -> bool {
        value.is_finite() && (value > 0.0 || !matches!(self, Self::Log2 | Self::Log10))
    }

    /// Numbers that span more than a factor of 8 are mostly powers of 2: sizes, threads, queue pairs.
    fn resolve_x(self, places: &[String], shape: Shape) -> Self {
        let numbers: Option<Vec<f64>> = places.iter().map(|place| number_of(place)).collect();
        match (self, numbers) {
            (Self::Auto, Some(numbers)) if shape == Shape::Lines => match ratio(numbers.iter().copied()) {
                Some(ratio) if ratio > 8.0 => Self::Log2,
                Some(_) => Self::Linear,
                None if numbers.len() > 3 => Self::Categories,
                None => Self::Linear,
            },
            (Self::Auto, _) => Self::Categories,
            (chosen, _) => chosen,
        }
    }

    fn resolve_y(self, curves: &[Curve]) -> Self {
        let values = curves.iter().flat_map(|curve| &curve.points).map(|point| point.value);
        match self {
            Self::Auto if ratio(values).is_some_and(|ratio| ratio > 50.0) => Self::Log10,
            Self::Auto | Self::Categories => Self::Linear,
            chosen => chosen,
        }
    }
}

/// Largest by smallest, if all are above zero.
fn ratio(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (low, high) =
        values.fold((f64::INFINITY, 0.0), |(low, high): (f64, f64), v| (low.min(v), high.max(v)));
    (low > 0.0 && high > 0.0).then(|| high / low)
}

fn in_order(mut places: Vec<String>, scale: Scale) -> Vec<String> {
    if scale != Scale::Categories {
        places.sort_by(|a, b| number_of(a).unwrap_or(0.0).total_cmp(&number_of(b).unwrap_or(0.0)));
    }
    places
}

fn published(series: &Series) -> Curve {
    let point = |(place, value): &(String, f64)| Point {
        place: place.clone(),
        at: 0.0,
        value: *value,
        interval: None,
    };
    Curve {
        name: series.name.clone(),
        origin: Origin::Published(series.source),
        points: series.points.iter().map(point).collect(),
    }
}

/// The values of the parameters; a number alone says nothing, so its name goes before: `inline, queue pairs=8`.
fn curve_name(cell: &Cell, names: &[String], metric: &str) -> String {
    let part = |name: &String| {
        let value = cell.value(name)?;
        Some(if number_of(value).is_some() { format!("{name}={value}") } else { value.to_string() })
    };
    let parts: Vec<String> = names.iter().filter_map(part).collect();
    if parts.is_empty() { metric.into() } else { parts.join(", ") }
}

fn number_of(value: &str) -> Option<f64> {
    value.parse().ok().filter(|number: &f64| number.is_finite())
}
