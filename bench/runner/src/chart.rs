//! A bar chart as SVG, drawn by hand: one bar for each contestant, with the spread of its runs.

use super::result::{Outcome, Row};
use super::table::thousands;

const WIDTH: f64 = 860.0;
const LABELS: f64 = 300.0;
const NUMBERS: f64 = 90.0;
const ROW: f64 = 26.0;
const TOP: f64 = 40.0;

/// The chart of a bench.
pub(crate) fn svg(title: &str, outcome: &Outcome) -> String {
    let height = TOP + ROW * outcome.rows.len() as f64 + 10.0;
    let highest = outcome.rows.iter().flat_map(|row| row.samples.iter().map(|s| s.rate)).fold(1.0, f64::max);
    let mut parts = vec![
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH:.0} {height:.0}\" font-family=\"sans-serif\" font-size=\"13\">"
        ),
        format!("<rect width=\"{WIDTH:.0}\" height=\"{height:.0}\" fill=\"#ffffff\"/>"),
        format!("<text x=\"10\" y=\"22\" font-size=\"15\" fill=\"#222222\">{}</text>", escaped(title)),
    ];
    for (place, row) in outcome.rows.iter().enumerate() {
        parts.push(bar(row, TOP + ROW * place as f64, highest));
    }
    parts.push("</svg>\n".to_owned());
    parts.join("\n")
}

fn bar(row: &Row, top: f64, highest: f64) -> String {
    let scale = (WIDTH - LABELS - NUMBERS) / highest;
    let rates = || row.samples.iter().map(|sample| sample.rate * scale);
    let (low, high) = (rates().fold(f64::INFINITY, f64::min).min(WIDTH), rates().fold(0.0, f64::max));
    let length = row.rate() * scale;
    let colour = if row.durability.contains("synced") { "#2f6f8f" } else { "#b8c4cc" };
    let (text, line) = (top + 16.0, top + 11.0);
    format!(
        "<text x=\"{:.0}\" y=\"{text:.0}\" text-anchor=\"end\" fill=\"#222222\">{}</text>\
         <rect x=\"{LABELS:.0}\" y=\"{:.0}\" width=\"{length:.1}\" height=\"18\" fill=\"{colour}\"/>\
         <line x1=\"{:.1}\" y1=\"{line:.0}\" x2=\"{:.1}\" y2=\"{line:.0}\" stroke=\"#222222\" stroke-width=\"1.5\"/>\
         <text x=\"{:.1}\" y=\"{text:.0}\" fill=\"#222222\">{}</text>",
        LABELS - 8.0,
        escaped(&row.name),
        top + 2.0,
        LABELS + low,
        LABELS + high,
        LABELS + high.max(length) + 6.0,
        thousands(row.rate()),
    )
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::super::result::Sample;
    use super::*;

    #[test]
    fn every_contestant_has_a_bar_within_the_picture() {
        let sample = |rate: f64| Sample { rate, ..Sample::default() };
        let row = |name: &str, rate: f64| Row {
            name: name.to_owned(),
            durability: String::new(),
            samples: vec![sample(rate), sample(rate / 2.0)],
        };
        let outcome = Outcome { rows: vec![row("a < b", 50_000.0), row("c", 1.0)], ..Outcome::default() };
        let svg = svg("title", &outcome);
        assert!(svg.contains("a &lt; b") && svg.matches("<rect").count() == 3 && svg.ends_with("</svg>\n"));
        let widths =
            svg.split("width=\"").skip(1).filter_map(|part| part.split('"').next()?.parse::<f64>().ok());
        assert!(widths.into_iter().all(|width| width <= WIDTH));
    }
}
