//! Colours and markers.
//!
//! Plots are drawn with colours that mean nothing, which are then replaced by CSS variables. So one plot is legible on a
//! light and on a dark page. Colours differ in brightness as well as in hue, and every curve has a marker of its own shape,
//! for those who do not see the hues.

use plotters::style::RGBColor;

/// Text and axes.
pub(super) const INK: RGBColor = RGBColor(1, 1, 1);
/// Lines behind the curves.
pub(super) const GRID: RGBColor = RGBColor(2, 2, 2);

/// Number of colours, and of shapes.
pub(super) const CURVES: usize = 6;

/// The colour of a curve.
pub(super) fn colour(curve: usize) -> RGBColor {
    RGBColor(3, 3, (curve % CURVES) as u8)
}

/// Values of the variables. A plot has its own, so that it can leave the page.
const VARIABLES: &str = "<style>\
svg.plot{--ink:#1f2328;--grid:#dfe3e8;\
--c0:#0a5fb4;--c1:#c2410c;--c2:#0f7b5f;--c3:#9b2f7f;--c4:#8a6a00;--c5:#4a5568}\
@media(prefers-color-scheme:dark){svg.plot{--ink:#e6e8eb;--grid:#3a414a;\
--c0:#62aef7;--c1:#ff8f57;--c2:#41cfa3;--c3:#ee92d3;--c4:#e6c04a;--c5:#b3bfcf}}\
</style>";

/// Replaces colours by variables, and lets the plot shrink with the page.
pub(super) fn with_variables(svg: &str, title: &str) -> String {
    let opening = format!("<svg class=\"plot\" role=\"img\" aria-label=\"{}\" ", escaped(title));
    let mut text = svg.replacen("<svg ", &opening, 1).replacen(">\n", &format!(">\n{VARIABLES}\n"), 1);
    let curves = (0..CURVES).map(|curve| (colour(curve), format!("var(--c{curve})")));
    for (colour, variable) in
        [(INK, "var(--ink)".into()), (GRID, "var(--grid)".into())].into_iter().chain(curves)
    {
        let RGBColor(red, green, blue) = colour;
        text = text.replace(&format!("\"#{red:02X}{green:02X}{blue:02X}\""), &format!("\"{variable}\""));
    }
    text
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;")
}

/// Corners of a curve's marker around its point, in pixels.
pub(super) fn marker(curve: usize) -> Vec<(i32, i32)> {
    match curve % CURVES {
        0 => vec![(-2, -4), (2, -4), (4, -2), (4, 2), (2, 4), (-2, 4), (-4, 2), (-4, -2)],
        1 => vec![(-4, -4), (4, -4), (4, 4), (-4, 4)],
        2 => vec![(0, -5), (5, 4), (-5, 4)],
        3 => vec![(0, -6), (6, 0), (0, 6), (-6, 0)],
        4 => vec![(-5, -4), (5, -4), (0, 5)],
        _ => vec![
            (-1, -5),
            (1, -5),
            (1, -1),
            (5, -1),
            (5, 1),
            (1, 1),
            (1, 5),
            (-1, 5),
            (-1, 1),
            (-5, 1),
            (-5, -1),
            (-1, -1),
        ],
    }
}
