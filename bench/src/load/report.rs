//! What a run measured, and its one line of JSON.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::json;

use super::histogram::Histogram;

/// The counts of one thread, or of all.
#[derive(Debug, Default)]
pub(super) struct Report {
    /// Answers with 2xx within the time that is measured.
    pub(super) latencies: Histogram,
    /// All answers of the run by status, also before and after that time.
    pub(super) statuses: BTreeMap<u16, u64>,
    /// Requests sent, and those of them whose key was not sent before.
    pub(super) sent: u64,
    pub(super) fresh: u64,
    /// Requests without an answer: the connection broke, or it did not come in time.
    pub(super) lost: u64,
    /// Of how many answers it was found out whether they are replays, and how many are.
    pub(super) looked_at: u64,
    pub(super) replays: u64,
    /// The longest time without any answer, in nanoseconds.
    pub(super) stall: u64,
    /// When the last answer came.
    pub(super) last_answer: u64,
}

impl Report {
    pub(super) fn add(&mut self, other: &Report) {
        self.latencies.merge(&other.latencies);
        for (status, count) in &other.statuses {
            *self.statuses.entry(*status).or_default() += count;
        }
        self.sent += other.sent;
        self.fresh += other.fresh;
        self.lost += other.lost;
        self.looked_at += other.looked_at;
        self.replays += other.replays;
        self.stall = self.stall.max(other.stall);
        self.last_answer = self.last_answer.max(other.last_answer);
    }

    pub(super) fn json(&self, measured: Duration) -> serde_json::Value {
        let milliseconds = |nanoseconds: u64| nanoseconds as f64 / 1e6;
        let good: u64 =
            self.statuses.iter().filter(|(status, _)| (200..300).contains(*status)).map(|(_, n)| n).sum();
        let all: u64 = self.statuses.values().sum();
        json!({
            "rate": self.latencies.count() as f64 / measured.as_secs_f64().max(1e-9),
            "seconds": measured.as_secs_f64(),
            "requests": self.latencies.count(),
            "p50_ms": milliseconds(self.latencies.quantile(0.5)),
            "p99_ms": milliseconds(self.latencies.quantile(0.99)),
            "p999_ms": milliseconds(self.latencies.quantile(0.999)),
            "max_ms": milliseconds(self.latencies.max()),
            "stall_ms": milliseconds(self.stall),
            "sent": self.sent,
            "fresh": self.fresh,
            "failed": all - good + self.lost,
            "statuses": self.statuses.iter().map(|(status, n)| (status.to_string(), *n)).collect::<BTreeMap<_, _>>(),
            "replayed": if self.looked_at == 0 { 0.0 } else { self.replays as f64 / self.looked_at as f64 },
        })
    }
}
