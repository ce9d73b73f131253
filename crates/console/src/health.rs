//! Whether the process lives, whether it can serve, and what it counts. Ready speaks of serving: a store whose clock is
//! frozen still answers, expires nothing, and is ready; `/readyz` and `/metrics` tell.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{StatusCode, header};
use semel_contract::record;
use semel_contract::time::Timestamp;
use semel_store::{Filter, StoreError};
use serde_json::{Value, json};

use crate::Console;
use crate::listing::listed;
use crate::prometheus::gauge;

/// How long the store may take to say that it is ready.
const READY_WITHIN: Duration = Duration::from_secs(2);
/// Unknown outcomes that are counted; more are as alarming.
const UNKNOWN_MAX: u32 = 1000;

pub(crate) async fn healthz() -> Json<Value> {
    Json(json!({"status": "ok"}))
}

pub(crate) async fn readyz(State(console): State<Console>) -> Response {
    let why = match console.reluctance.as_ref().and_then(|reluctance| reluctance()) {
        Some(why) => Err(why),
        None => console.is_ready().await,
    };
    match why {
        Ok(clock_frozen) => {
            let until = console.restored_until().await.map(|until| until.to_string());
            Json(json!({"status": "ready", "clock_frozen": clock_frozen, "restored_until": until}))
                .into_response()
        }
        Err(why) => {
            let body = json!({"status": "not ready", "reason": why});
            (StatusCode::SERVICE_UNAVAILABLE, [(header::RETRY_AFTER, "1")], Json(body)).into_response()
        }
    }
}

pub(crate) async fn metrics(State(console): State<Console>) -> Response {
    let mut text = console.metrics.as_ref().map(crate::Metrics::render).unwrap_or_default();
    console.measure_store(&mut text).await;
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}

impl Console {
    /// Whether the store answers in time, and then whether its clock is frozen.
    async fn is_ready(&self) -> Result<bool, String> {
        let asked = async {
            self.store.ready().await?;
            self.store.clock().await
        };
        match tokio::time::timeout(READY_WITHIN, asked).await {
            Ok(Ok(clock)) => Ok(clock.jump_millis.is_some()),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err("the store does not answer in time".to_owned()),
        }
    }

    /// Until when keys without a record may be unknown because the store was restored from a backup; `None` where it was not,
    /// or what was lost would have expired by now.
    pub(crate) async fn restored_until(&self) -> Option<Timestamp> {
        let asked = async {
            let now = self.store.clock().await?.now;
            Ok::<_, StoreError>((self.store.restores().await?, now))
        };
        let (restores, now) = tokio::time::timeout(READY_WITHIN, asked).await.ok()?.ok()?;
        let until = restores.iter().map(|restore| restore.restored_at.plus(self.records_kept)).max()?;
        (now <= until).then_some(until)
    }

    /// What is read from the store when it is asked for.
    async fn measure_store(&self, text: &mut String) {
        let build = concat!("version=\"", env!("CARGO_PKG_VERSION"), "\"");
        gauge(text, "semel_build_info", "gauge", &[(build, 1.0)]);
        let frozen = self.is_ready().await;
        gauge(text, "semel_store_ready", "gauge", &[("", f64::from(u8::from(frozen.is_ok())))]);
        let Ok(frozen) = frozen else { return };
        gauge(text, "semel_store_clock_frozen", "gauge", &[("", f64::from(u8::from(frozen)))]);
        let restored = self.restored_until().await.is_some();
        gauge(text, "semel_store_restored", "gauge", &[("", f64::from(u8::from(restored)))]);
        let unknown = Filter { state: Some(record::State::Unknown), limit: UNKNOWN_MAX, ..Filter::default() };
        let listed = tokio::time::timeout(READY_WITHIN, async {
            let now = self.store.clock().await?.now;
            listed(&*self.store, &unknown, now).await.map(|found| (found, now))
        });
        if let Ok(Ok((found, now))) = listed.await {
            gauge(text, "semel_store_unknown_records", "gauge", &[("", found.entries.len() as f64)]);
            let oldest = found.entries.iter().map(|entry| now.millis_since(entry.record.created_at)).max();
            let seconds = oldest.unwrap_or(0) as f64 / 1000.0;
            gauge(text, "semel_store_unknown_oldest_seconds", "gauge", &[("", seconds)]);
        }
    }
}
