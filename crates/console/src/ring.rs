//! The last hour and the last day of a few numbers, in memory: a sample every ten seconds, and what thirty of them come to.
//! A restart begins anew; whoever wants more has Prometheus.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::part::{Chart, Draw, Line, Part};

/// The time between two samples.
pub(crate) const EVERY: Duration = Duration::from_secs(10);
/// Samples of an hour.
pub(crate) const HOUR_MAX: usize = 360;
/// Points of a day, five minutes each.
pub(crate) const DAY_MAX: usize = 288;
/// Samples of five minutes.
const IN_POINT: usize = 30;

/// The lines of all charts, in the order of their description.
#[derive(Debug, Default)]
pub(crate) struct Ring(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    last: Option<Vec<Option<Raw>>>,
    hour: VecDeque<Vec<f64>>,
    day: VecDeque<Vec<f64>>,
    taken: usize,
}

/// What a line has counted so far.
#[derive(Clone, Debug, Default, PartialEq)]
struct Raw {
    value: f64,
    /// Upper bounds and counts of a histogram.
    buckets: BTreeMap<u64, f64>,
}

impl Ring {
    fn locked(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a sample of what the parts have counted: one text for each, or none where a part could not tell.
    pub(crate) fn sample(&self, parts: &[Arc<dyn Part>], texts: &[Option<String>], seconds: f64) {
        let lines = || {
            parts.iter().zip(texts).flat_map(|(part, text)| {
                let lines = part.sheet().charts.iter().flat_map(|chart: &Chart| chart.lines);
                lines.map(move |line| (line, text))
            })
        };
        let mut kept = self.locked();
        let last = kept.last.take().unwrap_or_default();
        // What could not be read keeps its last count: a gap is no fall to nothing and no leap afterwards.
        let raws: Vec<Option<Raw>> = lines()
            .enumerate()
            .map(|(at, (line, text))| match text {
                Some(text) => Some(read(text, line)),
                None => last.get(at).cloned().flatten(),
            })
            .collect();
        if last.len() == raws.len() {
            let pairs = lines().zip(raws.iter().zip(&last));
            let point = pairs.map(|((line, _), pair)| match pair {
                (Some(now), Some(before)) => drawn(line, before, now, seconds),
                _ => 0.0,
            });
            let point: Vec<f64> = point.collect();
            kept.put(point);
        }
        kept.last = Some(raws);
    }

    /// The points of one line: of the last day, or of the last hour.
    pub(crate) fn points(&self, line: usize, of_day: bool) -> Vec<f64> {
        let kept = self.locked();
        let ring = if of_day { &kept.day } else { &kept.hour };
        ring.iter().filter_map(|point| point.get(line).copied()).collect()
    }
}

impl Kept {
    fn put(&mut self, point: Vec<f64>) {
        self.hour.push_back(point);
        if self.hour.len() > HOUR_MAX {
            self.hour.pop_front();
        }
        self.taken += 1;
        if self.taken.is_multiple_of(IN_POINT) {
            let last: Vec<&Vec<f64>> = self.hour.iter().rev().take(IN_POINT).collect();
            let width = last.first().map_or(0, |point| point.len());
            let mean = |at: usize| last.iter().map(|point| point[at]).sum::<f64>() / last.len() as f64;
            let point = (0..width).map(mean).collect();
            self.day.push_back(point);
            if self.day.len() > DAY_MAX {
                self.day.pop_front();
            }
        }
    }
}

/// Reads what a line counts out of metrics.
fn read(text: &str, line: &Line) -> Raw {
    let mut raw = Raw::default();
    let is_histogram = matches!(line.draw, Draw::Quantile(_));
    for row in text.lines().filter(|row| row.starts_with(line.metric)) {
        let Some((series, value)) = row.rsplit_once(' ') else { continue };
        let Ok(value) = value.parse::<f64>() else { continue };
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        if !labels.contains(line.labelled) {
            continue;
        }
        match name.strip_prefix(line.metric) {
            Some("") => raw.value += value,
            Some("_bucket") if is_histogram => {
                let bound = labels.split("le=\"").nth(1).and_then(|rest| rest.split('"').next());
                let bound = bound.and_then(|bound| bound.parse::<f64>().ok()).unwrap_or(f64::INFINITY);
                *raw.buckets.entry(bound.to_bits()).or_default() += value;
            }
            Some(_) | None => {}
        }
    }
    raw
}

/// The sum of a metric over all labels that contain this.
pub(crate) fn total(text: &str, metric: &'static str, labelled: &'static str) -> f64 {
    read(text, &Line { label: "", metric, labelled, draw: Draw::Value }).value
}

/// What is drawn between two samples.
fn drawn(line: &Line, before: &Raw, now: &Raw, seconds: f64) -> f64 {
    match line.draw {
        Draw::Rate => ((now.value - before.value) / seconds).max(0.0),
        Draw::Value => now.value,
        Draw::Quantile(share) => quantile(share, &before.buckets, &now.buckets) * 1000.0,
    }
}

/// The upper bound of the bucket that a share falls into; nothing where nothing was counted.
fn quantile(share: f64, before: &BTreeMap<u64, f64>, now: &BTreeMap<u64, f64>) -> f64 {
    let grown: Vec<(f64, f64)> = now
        .iter()
        .map(|(bits, count)| (f64::from_bits(*bits), count - before.get(bits).copied().unwrap_or(0.0)))
        .collect();
    let total = grown.last().map_or(0.0, |(_, count)| *count);
    if total <= 0.0 {
        return 0.0;
    }
    let finite = grown.iter().filter(|(bound, _)| bound.is_finite());
    let most = finite.clone().next_back().map_or(0.0, |(bound, _)| *bound);
    finite.clone().find(|(_, count)| *count >= share * total).map_or(most, |(bound, _)| *bound)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: Line = Line { label: "", metric: "orders_total", labelled: "how=\"new\"", draw: Draw::Rate };
    const P99: Line = Line { label: "", metric: "took_seconds", labelled: "", draw: Draw::Quantile(0.99) };

    #[test]
    fn rates_and_quantiles_are_of_what_came_between_two_samples() {
        let before = "orders_total{how=\"new\"} 10\norders_total{how=\"old\"} 70\norders_total_x 5\n\
                      took_seconds_bucket{le=\"0.1\"} 5\ntook_seconds_bucket{le=\"+Inf\"} 5\n";
        let now = "orders_total{how=\"new\"} 30\norders_total{how=\"old\"} 90\n\
                   took_seconds_bucket{le=\"0.1\"} 5\ntook_seconds_bucket{le=\"0.5\"} 25\ntook_seconds_bucket{le=\"+Inf\"} 25\n";
        assert_eq!(drawn(&RATE, &read(before, &RATE), &read(now, &RATE), 10.0), 2.0);
        assert_eq!(drawn(&P99, &read(before, &P99), &read(now, &P99), 10.0), 500.0);
        assert_eq!(drawn(&RATE, &read(now, &RATE), &read("", &RATE), 10.0), 0.0, "a counter that began anew");
    }

    #[tokio::test]
    async fn a_part_that_cannot_tell_for_a_moment_makes_no_spike() {
        static CHARTS: &[Chart] = &[Chart { title: "", unit: "", lines: &[RATE] }];
        static SHEET: crate::part::Sheet = crate::part::Sheet { charts: CHARTS, ..crate::part::SHEET };
        let part: Arc<dyn Part> = Arc::new(crate::part::Routed::new(&SHEET, axum::Router::new()));
        let (ring, parts) = (Ring::default(), [part]);
        let count = |count: u32| [Some(format!("orders_total{{how=\"new\"}} {count}\n"))];
        for texts in [[None], count(1000), count(1010), [None], count(1030)] {
            ring.sample(&parts, &texts, 10.0);
        }
        assert_eq!(ring.points(0, false), [0.0, 1.0, 0.0, 2.0]);
    }

    #[test]
    fn the_hour_is_bounded_and_the_day_is_its_mean() {
        let mut kept = Kept::default();
        for at in 0..(HOUR_MAX + IN_POINT) {
            kept.put(vec![at as f64]);
        }
        assert_eq!(kept.hour.len(), HOUR_MAX);
        assert_eq!((kept.day.len(), kept.day[0][0]), ((HOUR_MAX + IN_POINT) / IN_POINT, 14.5));
    }
}
