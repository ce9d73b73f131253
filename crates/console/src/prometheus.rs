//! What this process counts, in the text form of Prometheus. A recorder for the `metrics` facade with fixed buckets and
//! a bound on the number of series: labels that grow without end must not eat the memory.

mod series;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use metrics::{
    Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SetRecorderError, SharedString, Unit,
};

use series::{Buckets, Value};

/// Series that are kept; later ones are counted as dropped.
const SERIES_MAX: usize = 10_000;
/// Counts the series that found no room.
const DROPPED: &str = "semel_metrics_dropped_total";

/// What the metrics of semel mean. Labels are routes and kinds, never keys or principals.
pub const NAMES: &[(&str, &str)] = &[
    ("semel_gate_answers_total", "Requests by route and answer: executed, replayed, refused, passed."),
    ("semel_gate_problems_total", "Refusals by route and problem."),
    ("semel_gate_observed_total", "What would have been done while only observing, by route and kind."),
    ("semel_gate_new_keys_total", "Keys that were claimed for the first time, by route."),
    ("semel_gate_waits_total", "Requests that began to wait for another with their key, by route."),
    ("semel_gate_unknown_total", "Outcomes that became unknown, by route."),
    ("semel_gate_expired_access_total", "Keys used again after their record had expired, by route."),
    ("semel_gate_store_seconds", "How long calls of the store took, by call."),
    ("semel_gate_store_errors_total", "Calls of the store that failed, by call."),
    ("semel_gate_store_connections_in_use", "Connections to the database that are in use."),
    ("semel_gate_store_connections_max", "Connections to the database that there may be."),
    (
        "semel_gate_unprotected_total",
        "Requests with a key that no route covers: they passed, and a retry of them runs again.",
    ),
    ("semel_gate_limiter_away_total", "Times that a limiter could not be asked."),
    ("semel_gate_sweeps_total", "Runs of the sweeper."),
    ("semel_gate_swept_total", "Expired records that were removed."),
    ("semel_gate_swept_last", "Records that the last run of the sweeper removed."),
    ("semel_gate_lapsed_total", "Claims whose lease ran out and that are now unknown."),
    ("semel_gateway_connections", "Connections of clients that are open."),
    ("semel_gateway_requests_total", "Requests that were answered, by status."),
    ("semel_gateway_request_seconds", "How long answers took."),
    ("semel_gateway_upstream_failures_total", "Requests that the service did not answer, by how."),
    ("semel_gateway_access_lines_dropped_total", "Lines of the access log that were dropped."),
    ("semel_gateway_spans_dropped_total", "Spans of traces that no collector took."),
    ("semel_build_info", "The release that runs, as a label."),
    ("semel_store_ready", "Whether the store answers."),
    (
        "semel_store_restored",
        "Whether keys without a record are unknown because the store was restored from a backup.",
    ),
    ("semel_store_clock_frozen", "Whether the store's clock jumped ahead and nobody has confirmed it."),
    ("semel_store_unknown_records", "Outcomes that are unknown now, up to 1000."),
    ("semel_store_unknown_oldest_seconds", "The age of the oldest unknown outcome."),
    (DROPPED, "Series that were not kept because there are too many."),
];

/// The metrics of this process. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Metrics(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    series: Mutex<BTreeMap<String, BTreeMap<String, Value>>>,
    described: Mutex<BTreeMap<String, String>>,
    dropped: AtomicU64,
}

impl Metrics {
    /// Makes this the recorder of the whole process.
    ///
    /// # Errors
    /// There is one already.
    pub fn install(&self) -> Result<(), SetRecorderError<Metrics>> {
        metrics::set_global_recorder(self.clone())
    }

    /// Everything that was counted, as text.
    pub fn render(&self) -> String {
        let mut text = String::new();
        let described = self.0.described.lock().expect("a list is only read and written");
        for (name, series) in &*self.0.series.lock().expect("a list is only read and written") {
            let Some(first) = series.values().next() else { continue };
            let known = NAMES.iter().find(|(known, _)| known == name).map(|(_, help)| *help);
            let help = described.get(name).map(String::as_str).or(known);
            header(&mut text, name, first.kind(), help);
            for (labels, value) in series {
                value.render(&mut text, name, labels);
            }
        }
        let dropped = self.0.dropped.load(Ordering::Relaxed);
        gauge(&mut text, DROPPED, "counter", &[("", dropped as f64)]);
        text
    }

    /// The value of a series, made by `new` where there is none; `None` where there is no room for it.
    fn value(&self, key: &Key, new: impl FnOnce() -> Value) -> Option<Value> {
        let labels = labels(key);
        let mut series = self.0.series.lock().expect("a list is only read and written");
        if let Some(value) = series.get(key.name()).and_then(|of_name| of_name.get(&labels)) {
            return Some(value.clone());
        }
        if series.values().map(BTreeMap::len).sum::<usize>() >= SERIES_MAX {
            self.0.dropped.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        let value = new();
        series.entry(key.name().to_owned()).or_default().insert(labels, value.clone());
        Some(value)
    }

    fn describe(&self, name: &KeyName, description: &SharedString) {
        let mut described = self.0.described.lock().expect("a list is only read and written");
        described.insert(name.as_str().to_owned(), description.to_string());
    }
}

/// Writes values that are read when they are asked for, with what they mean.
pub(crate) fn gauge(text: &mut String, name: &str, kind: &str, values: &[(&str, f64)]) {
    let help = NAMES.iter().find(|(known, _)| *known == name).map(|(_, help)| *help);
    header(text, name, kind, help);
    for (labels, value) in values {
        let labels = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
        let _ = writeln!(text, "{name}{labels} {value}");
    }
}

fn header(text: &mut String, name: &str, kind: &str, help: Option<&str>) {
    if let Some(help) = help {
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        let _ = writeln!(text, "# HELP {name} {help}");
    }
    let _ = writeln!(text, "# TYPE {name} {kind}");
}

/// The labels as they stand in the text, in the order of their names.
fn labels(key: &Key) -> String {
    let mut labels: Vec<(&str, String)> = key
        .labels()
        .map(|label| {
            let value = label.value().replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            (label.key(), value)
        })
        .collect();
    labels.sort_unstable();
    labels.iter().map(|(name, value)| format!("{name}=\"{value}\"")).collect::<Vec<_>>().join(",")
}

impl Recorder for Metrics {
    fn describe_counter(&self, key: KeyName, _: Option<Unit>, description: SharedString) {
        self.describe(&key, &description);
    }

    fn describe_gauge(&self, key: KeyName, _: Option<Unit>, description: SharedString) {
        self.describe(&key, &description);
    }

    fn describe_histogram(&self, key: KeyName, _: Option<Unit>, description: SharedString) {
        self.describe(&key, &description);
    }

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        match self.value(key, || Value::Counter(Arc::default())) {
            Some(Value::Counter(cell)) => Counter::from_arc(cell),
            Some(Value::Gauge(_) | Value::Histogram(_)) | None => Counter::noop(),
        }
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        match self.value(key, || Value::Gauge(Arc::default())) {
            Some(Value::Gauge(cell)) => Gauge::from_arc(cell),
            Some(Value::Counter(_) | Value::Histogram(_)) | None => Gauge::noop(),
        }
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        match self.value(key, || Value::Histogram(Arc::new(Buckets::default()))) {
            Some(Value::Histogram(buckets)) => Histogram::from_arc(buckets),
            Some(Value::Counter(_) | Value::Gauge(_)) | None => Histogram::noop(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_that_is_counted_is_rendered() {
        let recorder = Metrics::default();
        metrics::with_local_recorder(&recorder, || {
            metrics::counter!("semel_gate_waits_total", "route" => "a \"quoted\"\nname").increment(2);
            metrics::gauge!("semel_gate_swept_last").set(7.0);
            let seconds = metrics::histogram!("semel_gate_store_seconds", "call" => "claim");
            [0.0001, 0.003, 99.0].into_iter().for_each(|value| seconds.record(value));
        });
        let text = recorder.render();
        for line in [
            "# TYPE semel_gate_waits_total counter",
            r#"semel_gate_waits_total{route="a \"quoted\"\nname"} 2"#,
            "semel_gate_swept_last 7",
            "# TYPE semel_gate_store_seconds histogram",
            r#"semel_gate_store_seconds_bucket{call="claim",le="0.0005"} 1"#,
            r#"semel_gate_store_seconds_bucket{call="claim",le="0.005"} 2"#,
            r#"semel_gate_store_seconds_bucket{call="claim",le="+Inf"} 3"#,
            r#"semel_gate_store_seconds_count{call="claim"} 3"#,
            r#"semel_gate_store_seconds_sum{call="claim"} 99.0031"#,
            "semel_metrics_dropped_total 0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is missing from\n{text}");
        }
    }

    #[test]
    fn labels_without_end_do_not_eat_the_memory() {
        let recorder = Metrics::default();
        metrics::with_local_recorder(&recorder, || {
            for n in 0..SERIES_MAX + 5 {
                metrics::counter!("semel_gate_waits_total", "route" => n.to_string()).increment(1);
            }
        });
        let text = recorder.render();
        assert_eq!(
            text.lines().filter(|line| line.starts_with("semel_gate_waits_total{")).count(),
            SERIES_MAX
        );
        assert!(text.contains("semel_metrics_dropped_total 5"));
    }
}
