//! What is counted. Never labelled by key or principal: labels are routes and kinds, of which there are few. Handles of what
//! every request counts are made once: asking the recorder by name takes longer than counting.

use std::fmt;
use std::future::Future;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};
use semel_contract::problem::{Kind, Problem};
use semel_store::StoreError;
use tokio::time::Instant;

/// What is counted on one route.
#[derive(Default)]
pub(crate) struct RouteMeters {
    passed: OnceLock<Counter>,
    executed: OnceLock<Counter>,
    replayed: OnceLock<Counter>,
    new_keys: OnceLock<Counter>,
}

impl fmt::Debug for RouteMeters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RouteMeters").finish_non_exhaustive()
    }
}

fn answers(route: &str, how: &'static str) -> Counter {
    counter!("semel_gate_answers_total", "route" => route.to_owned(), "answer" => how)
}

/// Makes every counter of these routes known at zero: what appears with its first count cannot be seen to rise.
pub(crate) fn register<'a>(routes: impl Iterator<Item = &'a str> + Clone) {
    for route in routes.clone() {
        for how in ["passed", "executed", "replayed", "refused"] {
            answers(route, how).increment(0);
        }
        for counter in [new_keys(route), waits(route), unknowns(route), expired_accesses(route)] {
            counter.increment(0);
        }
    }
    for call in [Call::LookUp, Call::Claim, Call::Settle, Call::Forms] {
        store_errors(call).increment(0);
    }
    for counter in [limiters_away(), sweeps(), counter!("semel_gate_swept_total")] {
        counter.increment(0);
    }
    for name in ["semel_gate_unprotected_total", "semel_gate_lapsed_total"] {
        counter!(name).increment(0);
    }
    // Last, since they are many: should there be no room for all, it is these that are made when they are needed.
    for route in routes {
        for kind in Kind::ALL {
            problems(route, *kind).increment(0);
        }
    }
}

fn new_keys(route: &str) -> Counter {
    counter!("semel_gate_new_keys_total", "route" => route.to_owned())
}

fn waits(route: &str) -> Counter {
    counter!("semel_gate_waits_total", "route" => route.to_owned())
}

fn unknowns(route: &str) -> Counter {
    counter!("semel_gate_unknown_total", "route" => route.to_owned())
}

fn expired_accesses(route: &str) -> Counter {
    counter!("semel_gate_expired_access_total", "route" => route.to_owned())
}

fn problems(route: &str, kind: Kind) -> Counter {
    counter!("semel_gate_problems_total", "route" => route.to_owned(), "problem" => kind.slug())
}

fn store_errors(call: Call) -> Counter {
    counter!("semel_gate_store_errors_total", "call" => call.name())
}

fn limiters_away() -> Counter {
    counter!("semel_gate_limiter_away_total")
}

fn sweeps() -> Counter {
    counter!("semel_gate_sweeps_total")
}

impl RouteMeters {
    /// A request without a key passed.
    pub(crate) fn passed(&self, route: &str) {
        self.passed.get_or_init(|| answers(route, "passed")).increment(1);
    }

    /// A handler was run.
    pub(crate) fn executed(&self, route: &str) {
        self.executed.get_or_init(|| answers(route, "executed")).increment(1);
    }

    /// A record was answered again.
    pub(crate) fn replayed(&self, route: &str) {
        self.replayed.get_or_init(|| answers(route, "replayed")).increment(1);
    }

    /// A key was claimed for the first time.
    pub(crate) fn new_key(&self, route: &str) {
        self.new_keys.get_or_init(|| new_keys(route)).increment(1);
    }
}

/// What would have been done about a request, had the gate not only observed.
pub(crate) fn observed(route: &str, would: &'static str) {
    counter!("semel_gate_observed_total", "route" => route.to_owned(), "would" => would).increment(1);
}

/// A request was refused: its handler was not run.
pub(crate) fn refused(route: &str, kind: Kind) {
    answers(route, "refused").increment(1);
    problem(route, kind);
}

/// A request was claimed and then not sent to its handler.
pub(crate) fn answered_unrun(route: &str) {
    answers(route, "refused").increment(1);
}

/// A request was answered with a problem, whether or not its handler was run.
pub(crate) fn problem(route: &str, kind: Kind) {
    problems(route, kind).increment(1);
}

/// A request began to wait for another with its key.
pub(crate) fn waiting(route: &str) {
    waits(route).increment(1);
}

/// An outcome became unknown.
pub(crate) fn unknown(route: &str) {
    unknowns(route).increment(1);
}

/// A key was used again after its record had expired, before it was swept.
pub(crate) fn expired_access(route: &str) {
    expired_accesses(route).increment(1);
}

/// What is asked of the store by every request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    LookUp,
    Claim,
    Settle,
    Forms,
}

impl Call {
    fn name(self) -> &'static str {
        match self {
            Call::LookUp => "look-up",
            Call::Claim => "claim",
            Call::Settle => "settle",
            Call::Forms => "forms",
        }
    }
}

/// What is counted of the calls of one gate's store.
#[derive(Default)]
pub(crate) struct StoreMeters {
    seconds: [OnceLock<Histogram>; 4],
    connections: OnceLock<(Gauge, Gauge)>,
}

impl StoreMeters {
    /// Times a call of the store, and counts the calls that fail.
    pub(crate) async fn time<T>(
        &self,
        call: Call,
        reply: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let started = Instant::now();
        let result = reply.await;
        let seconds = &self.seconds[call as usize];
        let seconds = seconds.get_or_init(|| histogram!("semel_gate_store_seconds", "call" => call.name()));
        seconds.record(started.elapsed().as_secs_f64());
        if result.is_err() {
            store_errors(call).increment(1);
        }
        result
    }

    /// How busy the store's connections are.
    pub(crate) fn connections(&self, store: &dyn semel_store::ClaimStore) {
        let Some((in_use, at_most)) = store.connections() else { return };
        let (now, max) = self.connections.get_or_init(|| {
            (gauge!("semel_gate_store_connections_in_use"), gauge!("semel_gate_store_connections_max"))
        });
        now.set(in_use as f64);
        max.set(at_most as f64);
    }
}

/// How often the log repeats a warning.
const WARNED_EVERY: Duration = Duration::from_secs(60);

/// Warns of the first thing of a kind, and then of one a minute.
#[derive(Default)]
struct Seldom(Mutex<Option<Instant>>);

impl Seldom {
    fn is_due(&self) -> bool {
        let mut warned = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = warned.is_none_or(|at| at.elapsed() >= WARNED_EVERY);
        if is_due {
            *warned = Some(Instant::now());
        }
        is_due
    }
}

/// What an operator should hear of, and not of every request.
#[derive(Default)]
pub(crate) struct Warnings {
    unprotected: Seldom,
    unidentified: Seldom,
}

impl Warnings {
    /// A request with a key was refused because it does not say who sends it.
    pub(crate) fn note_unidentified(&self, route: &str, problem: &Problem) {
        if problem.kind == Kind::IdentityMissing && self.unidentified.is_due() {
            tracing::warn!(
                route,
                why = problem.detail,
                "a request with a key was refused with 401; another identity is set by --identity, or `identity = …`"
            );
        }
    }

    /// A request with a key passed, since no route covers it.
    pub(crate) fn note_unprotected(&self, method: &str, path: &str) {
        counter!("semel_gate_unprotected_total").increment(1);
        if self.unprotected.is_due() {
            tracing::warn!(
                method,
                path,
                "a request with a key passed unprotected: no route covers it, so a retry of it runs again"
            );
        }
    }
}

/// A limiter could not be asked.
pub(crate) fn limiter_away() {
    limiters_away().increment(1);
}

/// The sweeper ran.
pub(crate) fn swept(swept: &semel_store::Swept) {
    sweeps().increment(1);
    counter!("semel_gate_swept_total").increment(swept.removed);
    gauge!("semel_gate_swept_last").set(swept.removed as f64);
    counter!("semel_gate_lapsed_total").increment(swept.unknown);
}
