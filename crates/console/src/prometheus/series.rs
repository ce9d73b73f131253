//! The values of series. Each is written without a lock, by many threads at once.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use metrics::HistogramFn;

/// The upper bounds of the buckets, in seconds: from half a millisecond to a minute.
const BOUNDS: [f64; 16] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];

/// What is counted under one set of labels.
#[derive(Clone, Debug)]
pub(super) enum Value {
    Counter(Arc<AtomicU64>),
    Gauge(Arc<AtomicU64>),
    Histogram(Arc<Buckets>),
}

impl Value {
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Value::Counter(_) => "counter",
            Value::Gauge(_) => "gauge",
            Value::Histogram(_) => "histogram",
        }
    }

    /// Writes the lines of this series. Writing to a text does not fail.
    pub(super) fn render(&self, text: &mut String, name: &str, labels: &str) {
        let braced = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
        match self {
            Value::Counter(count) => {
                let _ = writeln!(text, "{name}{braced} {}", count.load(Ordering::Relaxed));
            }
            Value::Gauge(bits) => {
                let _ = writeln!(text, "{name}{braced} {}", f64::from_bits(bits.load(Ordering::Relaxed)));
            }
            Value::Histogram(buckets) => buckets.render(text, name, labels, &braced),
        }
    }
}

/// A histogram with fixed bounds.
#[derive(Debug, Default)]
pub(super) struct Buckets {
    /// How many fell into each bucket and into none of the ones below; the last is beyond every bound.
    counts: [AtomicU64; BOUNDS.len() + 1],
    /// The sum, as the bits of a float.
    sum: AtomicU64,
}

impl HistogramFn for Buckets {
    fn record(&self, value: f64) {
        let at = BOUNDS.iter().position(|bound| value <= *bound).unwrap_or(BOUNDS.len());
        self.counts[at].fetch_add(1, Ordering::Relaxed);
        let add = |bits| Some((f64::from_bits(bits) + value).to_bits());
        let added = self.sum.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        debug_assert!(added.is_ok(), "the closure always gives a value");
    }
}

impl Buckets {
    fn render(&self, text: &mut String, name: &str, labels: &str, braced: &str) {
        let before = if labels.is_empty() { String::new() } else { format!("{labels},") };
        let mut total = 0;
        for (at, count) in self.counts.iter().enumerate() {
            total += count.load(Ordering::Relaxed);
            let bound = BOUNDS.get(at).map_or_else(|| "+Inf".to_owned(), f64::to_string);
            let _ = writeln!(text, "{name}_bucket{{{before}le=\"{bound}\"}} {total}");
        }
        let sum = f64::from_bits(self.sum.load(Ordering::Relaxed));
        let _ = writeln!(text, "{name}_sum{braced} {sum}\n{name}_count{braced} {total}");
    }
}
