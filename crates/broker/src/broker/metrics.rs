//! What is counted, as Prometheus reads it.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use semel_delivery::relay::store::sql::StoreError;

use super::Broker;
use crate::meters::{OUTCOMES, PHASES};

fn family(text: &mut String, name: &str, kind: &str, help: &str, samples: &[(String, f64)]) {
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    for (labels, value) in samples {
        let _ = writeln!(text, "{name}{labels} {value}");
    }
}

impl Broker {
    /// What is counted, as Prometheus reads it.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn metrics(&self) -> Result<String, StoreError> {
        let meters = &self.0.meters;
        let (pending, oldest) = self.0.store.waiting().await?;
        let (now, ahead) = self.0.store.clock().await?;
        let mut text = String::new();
        let mut publishes = Vec::new();
        for (at, (_, phase)) in PHASES.iter().enumerate() {
            for (outcome, name) in OUTCOMES.iter().enumerate() {
                let count = meters.publishes[at][outcome].load(Relaxed);
                publishes.push((format!("{{phase=\"{phase}\",outcome=\"{name}\"}}"), count as f64));
            }
        }
        let one = |value: f64| vec![(String::new(), value)];
        let count = |counter: &AtomicU64| one(counter.load(Relaxed) as f64);
        let help = "Publishes, by the phase that decided them and what was told.";
        family(&mut text, "semel_broker_publishes_total", "counter", help, &publishes);
        let help = "Messages that paid their unit of the budget and were refused in the transaction.";
        let name = "cm_broker_rate_limit_consumed_then_b2_rejected_total";
        family(&mut text, name, "counter", help, &count(&meters.charged_then_refused));
        let help = "Deliveries to webhooks that wait.";
        family(&mut text, "semel_broker_delivery_pending", "gauge", help, &one(pending as f64));
        let age = oldest.map_or(0.0, |oldest| (now - oldest).max(0) as f64 / 1000.0);
        let help = "Age of the oldest delivery that waits.";
        family(&mut text, "semel_broker_delivery_oldest_seconds", "gauge", help, &one(age));
        let lag = self.0.hub.push_lag.millis() as f64 / 1000.0;
        let help = "Seconds between the last commit that was pushed in the last minute and its push.";
        family(&mut text, "semel_broker_push_lag", "gauge", help, &one(lag));
        let help = "Rows without those that belong to them, at the last check.";
        family(&mut text, "semel_broker_orphans", "gauge", help, &count(&meters.orphans));
        let help = "Whether the clock is ahead and not believed, so that nothing expires.";
        let frozen = f64::from(u8::from(ahead != 0));
        family(&mut text, "semel_broker_clock_frozen", "gauge", help, &one(frozen));
        let streams = self.0.hub.streams.load(Relaxed) as f64;
        family(&mut text, "semel_broker_streams", "gauge", "Streams that are open.", &one(streams));
        let fallbacks = self.0.fallback.as_ref().map_or(0, |limiter| limiter.fallbacks());
        let help = "Answers of the limiter's stand-in, since what counts for all brokers did not answer.";
        family(&mut text, "semel_broker_limiter_fallbacks_total", "counter", help, &one(fallbacks as f64));
        let counters = [
            ("semel_broker_swept_total", "Ids that were swept.", &meters.swept),
            (
                "semel_broker_swept_unacknowledged_total",
                "Subscribers who had not acknowledged what was swept.",
                &meters.swept_unacknowledged,
            ),
            ("semel_broker_deliveries_total", "Deliveries to webhooks that succeeded.", &meters.delivered),
            (
                "semel_broker_delivery_failures_total",
                "Attempts to deliver that failed.",
                &meters.attempts_failed,
            ),
            ("semel_broker_delivery_dead_total", "Deliveries that were given up.", &meters.dead),
        ];
        for (name, help, counter) in counters {
            family(&mut text, name, "counter", help, &count(counter));
        }
        Ok(text)
    }
}
