//! What is counted. Never labelled by key or principal: labels are routes and kinds, of which there are few.

use std::future::Future;

use metrics::{counter, gauge, histogram};
use semel_contract::problem::Kind;
use semel_store::StoreError;
use tokio::time::Instant;

fn answered(route: &str, how: &'static str) {
    counter!("semel_gate_answers_total", "route" => route.to_owned(), "answer" => how).increment(1);
}

/// A request without a key passed.
pub(crate) fn passed(route: &str) {
    answered(route, "passed");
}

/// A handler was run.
pub(crate) fn executed(route: &str) {
    answered(route, "executed");
}

/// A record was answered again.
pub(crate) fn replayed(route: &str) {
    answered(route, "replayed");
}

/// What would have been done about a request, had the gate not only observed.
pub(crate) fn observed(route: &str, would: &'static str) {
    counter!("semel_gate_observed_total", "route" => route.to_owned(), "would" => would).increment(1);
}

/// A request was refused.
pub(crate) fn refused(route: &str, kind: Kind) {
    answered(route, "refused");
    counter!("semel_gate_problems_total", "route" => route.to_owned(), "problem" => kind.slug()).increment(1);
}

/// A request began to wait for another with its key.
pub(crate) fn waiting(route: &str) {
    counter!("semel_gate_waits_total", "route" => route.to_owned()).increment(1);
}

/// An outcome became unknown.
pub(crate) fn unknown(route: &str) {
    counter!("semel_gate_unknown_total", "route" => route.to_owned()).increment(1);
}

/// A key was used again after its record had expired, before it was swept.
pub(crate) fn expired_access(route: &str) {
    counter!("semel_gate_expired_access_total", "route" => route.to_owned()).increment(1);
}

/// How busy the store's connections are.
pub(crate) fn connections(store: &dyn semel_store::ClaimStore) {
    if let Some((in_use, at_most)) = store.connections() {
        gauge!("semel_gate_store_connections_in_use").set(in_use as f64);
        gauge!("semel_gate_store_connections_max").set(at_most as f64);
    }
}

/// Times a call of the store, and counts the calls that fail.
pub(crate) async fn store<T>(
    call: &'static str,
    reply: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    let started = Instant::now();
    let result = reply.await;
    histogram!("semel_gate_store_seconds", "call" => call).record(started.elapsed().as_secs_f64());
    if result.is_err() {
        counter!("semel_gate_store_errors_total", "call" => call).increment(1);
    }
    result
}

/// A limiter could not be asked.
pub(crate) fn limiter_away() {
    counter!("semel_gate_limiter_away_total").increment(1);
}

/// The sweeper ran.
pub(crate) fn swept(swept: &semel_store::Swept) {
    counter!("semel_gate_sweeps_total").increment(1);
    counter!("semel_gate_swept_total").increment(swept.removed);
    gauge!("semel_gate_swept_last").set(swept.removed as f64);
    counter!("semel_gate_lapsed_total").increment(swept.unknown);
}

/// A key was claimed for the first time.
pub(crate) fn new_key(route: &str) {
    counter!("semel_gate_new_keys_total", "route" => route.to_owned()).increment(1);
}
