//! Small charts, drawn here as SVG. Owns the geometry; the numbers come from the ring.

use std::fmt::Write;

use maud::{Markup, html};

use crate::part::Chart;
use crate::ring::{DAY_MAX, HOUR_MAX, Ring};

const WIDTH: f64 = 300.0;
const HEIGHT: f64 = 80.0;

/// A chart whose first line is the ring's `first`.
pub(super) fn draw(chart: &Chart, ring: &Ring, first: usize, of_day: bool) -> Markup {
    let lines: Vec<Vec<f64>> = (0..chart.lines.len()).map(|at| ring.points(first + at, of_day)).collect();
    let most = lines.iter().flatten().copied().fold(0.0, f64::max);
    let places = if of_day { DAY_MAX } else { HOUR_MAX };
    let now = |points: &Vec<f64>| points.last().copied().unwrap_or(0.0);
    let words: Vec<String> = chart
        .lines
        .iter()
        .zip(&lines)
        .map(|(line, points)| format!("{} {}", line.label, short(now(points))))
        .collect();
    html! {
        figure class="card" {
            figcaption { (chart.title) ", " (chart.unit) }
            svg viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } preserveAspectRatio="none" role="img"
                aria-label={ (chart.title) ", " (chart.unit) ": now " (words.join(", ")) "; at most " (short(most)) } {
                line class="grid" x1="0" y1=(HEIGHT - 1.0) x2=(WIDTH) y2=(HEIGHT - 1.0) {}
                @for (at, points) in lines.iter().enumerate() {
                    @if points.len() > 1 { polyline class={ "l" (at) } points=(path(points, most, places)) {} }
                }
            }
            ul class="key" {
                @for (at, word) in words.iter().enumerate() { li { span class={ "l" (at) } aria-hidden="true" { "● " } (word) } }
                li class="soft" { "most " (short(most)) }
            }
        }
    }
}

/// The newest point stands at the right edge.
fn path(points: &[f64], most: f64, places: usize) -> String {
    let mut path = String::new();
    let step = WIDTH / (places.max(2) - 1) as f64;
    let start = WIDTH - step * (points.len() - 1) as f64;
    for (at, value) in points.iter().enumerate() {
        let height = if most > 0.0 { value / most } else { 0.0 };
        let _ =
            write!(path, "{:.1},{:.1} ", start + step * at as f64, HEIGHT - 2.0 - height * (HEIGHT - 6.0));
    }
    path
}

fn short(value: f64) -> String {
    match value {
        0.0 => "0".to_owned(),
        value if value < 10.0 => format!("{value:.2}"),
        value => format!("{value:.0}"),
    }
}
