//! Charts as SVG.

mod axis;
mod style;

use std::fmt::Display;

use plotters::coord::Shift;
use plotters::element::DashedPathElement;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::chart::{Chart, Curve, Origin, Point, Shape};
use axis::Ruler;
use style::{GRID, INK, colour, marker};

/// Width of a plot, in pixels.
const WIDTH: u32 = 900;
/// Height without the legend.
const HEIGHT: u32 = 420;
/// Height of a line of the legend.
const LEGEND_LINE: u32 = 22;
/// Where the plane and the legend begin.
const LEFT: u32 = 84;
/// Room on a line of the legend before the text of an entry.
const LEGEND_SAMPLE: i32 = 46;
/// Width of a character of the legend, about.
const CHARACTER: usize = 8;
/// Size of labels. The backend takes it for a height, of which the letters have four fifths.
const LABEL: u32 = 17;
/// Size of the axes' titles.
const TITLE: u32 = 18;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Plane<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<Ruler, Ruler>>;
type Drawn = Result<(), Box<dyn std::error::Error>>;

/// Draws a chart: an `svg` element, for a page or for a file.
pub fn svg(chart: &Chart) -> Result<String, String> {
    let legend = Legend::of(chart);
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, (WIDTH, HEIGHT + legend.height())).into_drawing_area();
        let failed = |error: &dyn Display| format!("'{}' cannot be drawn: {error}", chart.title);
        let (plot, below) = root.split_vertically(HEIGHT);
        draw_plane(chart, &plot).map_err(|error| failed(&error))?;
        if !legend.is_empty() {
            legend.draw(&below).map_err(|error| failed(&error))?;
        }
        root.present().map_err(|error| failed(&error))?;
    }
    Ok(style::with_variables(&text, &chart.title))
}

fn draw_plane(chart: &Chart, area: &Area<'_>) -> Drawn {
    let (x, y) = (Ruler::of_x(chart), Ruler::of_y(chart));
    let mut plane = ChartBuilder::on(area)
        .margin(8)
        .margin_right(24)
        .x_label_area_size(56)
        .y_label_area_size(LEFT - 8)
        .build_cartesian_2d(x.clone(), y.clone())?;
    plane
        .configure_mesh()
        .axis_style(INK)
        .bold_line_style(GRID)
        .light_line_style(TRANSPARENT)
        .label_style(text_style(LABEL))
        .axis_desc_style(text_style(TITLE))
        .x_desc(&chart.x.label)
        .y_desc(&chart.y.label)
        .draw()?;
    draw_marks(chart, &mut plane, &x, &y)?;
    let colours = colours(chart);
    for (index, curve) in chart.curves.iter().enumerate() {
        match chart.shape {
            Shape::Lines => draw_line(curve, colours[index], &mut plane)?,
            Shape::Bars => {
                let slot = Slot { index, count: chart.curves.len() };
                draw_bars(curve, slot, colours[index], &mut plane, y.base())?;
            }
        }
    }
    Ok(())
}

/// A published curve has the colour of the measured one of the same name.
fn colours(chart: &Chart) -> Vec<usize> {
    let names: Vec<&str> = chart.curves.iter().map(|curve| curve.name.as_str()).collect();
    let distinct = crate::record::distinct(names.iter().copied());
    names.iter().map(|name| distinct.iter().position(|known| known == name).unwrap_or_default()).collect()
}

fn text_style(size: u32) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&INK)
}

fn draw_line(curve: &Curve, number: usize, plane: &mut Plane<'_, '_>) -> Drawn {
    let colour = colour(number);
    let points: Vec<(f64, f64)> = curve.points.iter().map(|point| (point.at, point.value)).collect();
    match curve.origin {
        Origin::Measured => {
            plane.draw_series(LineSeries::new(points.iter().copied(), colour.stroke_width(2)))?;
            for point in &curve.points {
                draw_error(point, point.at, colour, plane)?;
            }
        }
        Origin::Published(_) => {
            plane.draw_series(DashedLineSeries::new(points.iter().copied(), 6, 4, colour.stroke_width(2)))?;
        }
    }
    let markers = points.into_iter().map(|at| EmptyElement::at(at) + Polygon::new(marker(number), colour));
    plane.draw_series(markers)?;
    Ok(())
}

/// A line from end to end of the interval, with a bar across each.
fn draw_error(point: &Point, at: f64, colour: RGBColor, plane: &mut Plane<'_, '_>) -> Drawn {
    if let Some((low, high)) = point.interval {
        let style = colour.stroke_width(1);
        plane.draw_series([PathElement::new([(at, low), (at, high)], style)])?;
        let across = |end| EmptyElement::at((at, end)) + PathElement::new([(-4, 0), (4, 0)], style);
        plane.draw_series([across(low), across(high)])?;
    }
    Ok(())
}

/// The place of a bar in its group.
#[derive(Clone, Copy)]
struct Slot {
    index: usize,
    count: usize,
}

impl Slot {
    /// Left and right end, around the middle of the group.
    fn around(self, middle: f64) -> (f64, f64) {
        let width = 0.8 / self.count as f64;
        let left = middle - 0.4 + width * self.index as f64;
        (left + 0.04 * width, left + 0.96 * width)
    }
}

fn draw_bars(curve: &Curve, slot: Slot, number: usize, plane: &mut Plane<'_, '_>, base: f64) -> Drawn {
    let colour = colour(number);
    for point in &curve.points {
        let (left, right) = slot.around(point.at);
        let corners = [(left, base), (right, point.value)];
        plane.draw_series([
            Rectangle::new(corners, filling(curve, number)),
            Rectangle::new(corners, colour.stroke_width(1)),
        ])?;
        draw_error(point, f64::midpoint(left, right), INK, plane)?;
    }
    Ok(())
}

/// Pale enough that errors are seen on bars.
fn filling(curve: &Curve, number: usize) -> ShapeStyle {
    let opacity = if curve.origin == Origin::Measured { 0.65 } else { 0.2 };
    colour(number).mix(opacity).filled()
}

fn draw_marks(chart: &Chart, plane: &mut Plane<'_, '_>, x: &Ruler, y: &Ruler) -> Drawn {
    let (bottom, top) = y.ends();
    for (at, label) in &chart.marks {
        let line = [(*at, bottom), (*at, top)];
        plane.draw_series(DashedLineSeries::new(line, 2, 3, INK.stroke_width(1)))?;
        // To the side where there is room.
        let (side, shift) = if x.is_low(*at) { (HPos::Left, 6) } else { (HPos::Right, -6) };
        let style = text_style(LABEL).pos(Pos::new(side, VPos::Top));
        let text = EmptyElement::at((*at, top)) + Text::new(label.clone(), (shift, 4), style);
        plane.draw_series(std::iter::once(text))?;
    }
    Ok(())
}

/// The names of the curves, below the plot.
struct Legend<'a> {
    chart: &'a Chart,
    /// Entries beside each other.
    columns: usize,
}

impl<'a> Legend<'a> {
    fn of(chart: &'a Chart) -> Self {
        let longest = chart.curves.iter().map(|curve| curve.title().chars().count()).max().unwrap_or(0);
        let width = LEGEND_SAMPLE as usize + 16 + longest * CHARACTER;
        let fitting = ((WIDTH - LEFT) as usize / width).clamp(1, 4);
        // As many on each line.
        let lines = chart.curves.len().div_ceil(fitting).max(1);
        Self { chart, columns: chart.curves.len().div_ceil(lines).max(1) }
    }

    /// A single curve needs no name beside the title.
    fn is_empty(&self) -> bool {
        self.chart.curves.len() == 1
    }

    fn height(&self) -> u32 {
        if self.is_empty() {
            return 0;
        }
        self.chart.curves.len().div_ceil(self.columns) as u32 * LEGEND_LINE + 8
    }

    fn draw(&self, area: &Area<'_>) -> Drawn {
        let column = (WIDTH - LEFT) as i32 / self.columns as i32;
        let colours = colours(self.chart);
        for (index, curve) in self.chart.curves.iter().enumerate() {
            let at = (
                LEFT as i32 + (index % self.columns) as i32 * column,
                (index / self.columns) as i32 * LEGEND_LINE as i32 + LEGEND_LINE as i32 / 2,
            );
            self.draw_sample(curve, colours[index], at, area)?;
            let style = text_style(LABEL).pos(Pos::new(HPos::Left, VPos::Center));
            area.draw(&Text::new(curve.title(), (at.0 + LEGEND_SAMPLE, at.1), style))?;
        }
        Ok(())
    }

    fn draw_sample(&self, curve: &Curve, number: usize, at: (i32, i32), area: &Area<'_>) -> Drawn {
        let colour = colour(number);
        let end = (at.0 + LEGEND_SAMPLE - 10, at.1);
        let published = curve.origin != Origin::Measured;
        if self.chart.shape == Shape::Bars {
            let corners = [(at.0 + 16, at.1 - 6), (end.0, at.1 + 6)];
            area.draw(&Rectangle::new(corners, filling(curve, number)))?;
            area.draw(&Rectangle::new(corners, colour.stroke_width(1)))?;
            return Ok(());
        }
        if published {
            area.draw(&DashedPathElement::new([at, end], 6, 4, colour.stroke_width(2)))?;
        } else {
            area.draw(&PathElement::new([at, end], colour.stroke_width(2)))?;
        }
        let middle = (i32::midpoint(at.0, end.0), at.1);
        area.draw(&(EmptyElement::at(middle) + Polygon::new(marker(number), colour)))?;
        Ok(())
    }
}
