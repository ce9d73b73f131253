//! Small charts, drawn here as SVG. Owns the geometry; the numbers come from the ring.

use std::fmt::Write;

use maud::{Markup, html};

use crate::part::Chart;
use crate::ring::{DAY_MAX, HOUR_MAX, Ring};

const WIDTH: f64 = 300.0;
const HEIGHT: f64 = 80.0;
/// Points of the ring that are drawn as one.
const IN_ONE: usize = 4;

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

/// The newest point stands at the right edge. Of a few neighbours the highest is drawn, and of a level stretch its ends: a page
/// of many charts stays small, and no peak is lost.
fn path(points: &[f64], most: f64, places: usize) -> String {
    let highest = |some: &[f64]| some.iter().copied().fold(0.0, f64::max);
    let drawn: Vec<f64> = points.rchunks(IN_ONE).map(highest).collect();
    let step = WIDTH / (places.div_ceil(IN_ONE).max(2) - 1) as f64;
    let height = |value: f64| if most > 0.0 { value / most } else { 0.0 };
    let place = |at: usize| {
        (WIDTH - step * at as f64, (HEIGHT - 2.0 - height(drawn[at]) * (HEIGHT - 6.0)).round() as i64)
    };
    let is_within = |at: usize| at > 0 && at + 1 < drawn.len();
    let mut path = String::new();
    for at in (0..drawn.len()).rev() {
        let (x, y) = place(at);
        let is_level = is_within(at) && place(at - 1).1 == y && place(at + 1).1 == y;
        if !is_level {
            let _ = write!(path, "{x:.0},{y} ");
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_a_full_ring_is_small_keeps_its_peaks_and_ends_at_the_right_edge() {
        let mut points: Vec<f64> = (0..HOUR_MAX).map(|at| (at * 7919 % 101) as f64).collect();
        points[100] = 200.0;
        let drawn = path(&points, 200.0, HOUR_MAX);
        assert!(drawn.len() < 800, "{} bytes", drawn.len());
        assert!(
            drawn.contains(",4 ")
                && drawn.trim_end().rsplit(' ').next().is_some_and(|end| end.starts_with("300,"))
        );
        let level = path(&vec![0.0; HOUR_MAX], 0.0, HOUR_MAX);
        assert_eq!(level.split_whitespace().count(), 2, "{level}");
    }
}
