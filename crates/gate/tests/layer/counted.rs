//! What is counted: every counter from the start, every request once, every failure of the store.

use std::collections::BTreeMap;
use std::sync::Mutex;

use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
    SharedString, Unit,
};
use semel_contract::profile::SweepWhen;
use semel_store::StoreError;

use super::world::*;

/// Everything that was counted, by name and labels.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<BTreeMap<String, f64>>>);

struct One(Seen, String);

impl One {
    fn change(&self, to: impl Fn(f64) -> f64) {
        let mut seen = self.0.0.lock().unwrap();
        let value = seen.entry(self.1.clone()).or_default();
        *value = to(*value);
    }
}

impl CounterFn for One {
    fn increment(&self, by: u64) {
        self.change(|value| value + by as f64);
    }
    fn absolute(&self, value: u64) {
        self.change(|_| value as f64);
    }
}

impl GaugeFn for One {
    fn increment(&self, by: f64) {
        self.change(|value| value + by);
    }
    fn decrement(&self, by: f64) {
        self.change(|value| value - by);
    }
    fn set(&self, to: f64) {
        self.change(|_| to);
    }
}

impl HistogramFn for One {
    fn record(&self, _: f64) {
        self.change(|value| value + 1.0);
    }
}

impl Seen {
    fn one(&self, key: &Key) -> Arc<One> {
        let labels: Vec<_> = key.labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
        Arc::new(One(self.clone(), format!("{} {}", key.name(), labels.join(" ")).trim().to_owned()))
    }

    fn get(&self, name: &str) -> Option<f64> {
        self.0.lock().unwrap().get(name).copied()
    }

    /// All answers that were counted.
    fn answers(&self) -> f64 {
        let seen = self.0.lock().unwrap();
        seen.iter().filter(|(name, _)| name.starts_with("semel_gate_answers_total")).map(|(_, n)| n).sum()
    }
}

impl Recorder for Seen {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.one(key))
    }
    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.one(key))
    }
    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(self.one(key))
    }
}

#[tokio::test]
async fn every_counter_is_there_from_the_start() {
    let seen = Seen::default();
    let _recording = metrics::set_default_local_recorder(&seen);
    let world = World::new();
    let named = |name: &str, pattern: &str| Route::new(name, pattern).unwrap();
    let gate = world.gate().route(named("a", "POST /a")).route(named("b", "POST /b"));
    let _gate = gate.build().unwrap();
    for route in ["a", "b"] {
        for name in [
            format!("semel_gate_answers_total route={route} answer=executed"),
            format!("semel_gate_answers_total route={route} answer=replayed"),
            format!("semel_gate_answers_total route={route} answer=refused"),
            format!("semel_gate_answers_total route={route} answer=passed"),
            format!("semel_gate_new_keys_total route={route}"),
            format!("semel_gate_waits_total route={route}"),
            format!("semel_gate_unknown_total route={route}"),
            format!("semel_gate_expired_access_total route={route}"),
            format!("semel_gate_problems_total route={route} problem=outcome-unknown"),
        ] {
            assert_eq!(seen.get(&name), Some(0.0), "{name}");
        }
    }
    for name in [
        "semel_gate_sweeps_total",
        "semel_gate_swept_total",
        "semel_gate_lapsed_total",
        "semel_gate_limiter_away_total",
        "semel_gate_store_errors_total call=look-up",
        "semel_gate_store_errors_total call=claim",
        "semel_gate_store_errors_total call=settle",
    ] {
        assert_eq!(seen.get(name), Some(0.0), "{name}");
    }
}

#[tokio::test]
async fn every_request_is_counted_once() {
    let seen = Seen::default();
    let _recording = metrics::set_default_local_recorder(&seen);
    let world = World::new();
    let app = world.app(world.gate().route(Route::any()));
    let mut sent = 0.0;
    for (path, key, status) in [
        ("/orders", "a", 201),
        ("/orders", "a", 201),
        ("/panic", "b", 502),
        ("/panic", "b", 409),
        ("/status/503", "c", 503),
        ("/status/500", "d", 500),
        ("/status/500", "d", 500),
    ] {
        assert_eq!(post_to(&app, path, key, "{}").await.status, status, "{path}");
        sent += 1.0;
        assert_eq!(seen.answers(), sent, "{path} {key}: {:?}", seen.0.lock().unwrap());
    }
    assert_eq!(seen.get("semel_gate_answers_total route=any answer=executed"), Some(4.0));
    assert_eq!(seen.get("semel_gate_answers_total route=any answer=replayed"), Some(2.0));
    assert_eq!(seen.get("semel_gate_unknown_total route=any"), Some(1.0));
    assert!(seen.get("semel_gate_store_seconds call=claim").unwrap() >= 4.0, "calls of the store are timed");
}

#[tokio::test]
async fn a_key_that_returns_after_its_record_has_expired_is_counted() {
    let seen = Seen::default();
    let _recording = metrics::set_default_local_recorder(&seen);
    let world = World::new();
    let app = world.app(world.gate().route(Route::any()));
    post_to(&app, "/orders", "k", "{}").await;
    assert_eq!(seen.get("semel_gate_expired_access_total route=any"), Some(0.0));
    world.clock.advance(Duration::from_secs(3 * 86_400));
    post_to(&app, "/orders", "k", "{}").await;
    assert_eq!((seen.get("semel_gate_expired_access_total route=any"), world.runs()), (Some(1.0), 2));
}

/// However many former forms there are, a new key costs one question before its claim and one after it.
#[tokio::test]
async fn former_forms_are_asked_about_all_at_once() {
    let world = World::new();
    let named = |name: &str| world.app(world.gate().route(Route::new(name, "POST /orders").unwrap()));
    for name in ["one", "two", "three", "four"] {
        assert_eq!(post_to(&named(name), "/orders", name, "{}").await.status, 201);
        world.clock.advance(Duration::from_secs(600));
    }
    let seen = Seen::default();
    let _recording = metrics::set_default_local_recorder(&seen);
    assert_eq!(post_to(&named("five"), "/orders", "k", "{}").await.status, 201);
    assert_eq!(seen.get("semel_gate_store_seconds call=look-up"), Some(2.0));
}

/// The loop itself, by its own schedule.
#[tokio::test(start_paused = true)]
async fn the_sweeper_runs_by_itself_and_counts_what_it_removes() {
    let seen = Seen::default();
    let _recording = metrics::set_default_local_recorder(&seen);
    let world = World::new();
    let app = world.app(world.gate().route(Route::any()));
    post_to(&app, "/orders", "k", "{}").await;
    world.clock.advance(Duration::from_secs(3 * 86_400));
    let mut sweep = presets::ietf().sweep;
    sweep.when = SweepWhen::Every(Duration::from_secs(3600));
    let store = Arc::clone(&world.store) as Arc<dyn ClaimStore>;
    let sweeper = semel_gate::sweep_for_ever(store, Arc::clone(&world.clock) as _, sweep, Duration::ZERO);
    tokio::time::sleep(Duration::from_secs(3500)).await;
    assert_eq!(world.entries().await.len(), 1, "not before its time");
    tokio::time::sleep(Duration::from_secs(200)).await;
    assert_eq!(world.entries().await.len(), 0);
    assert_eq!(seen.get("semel_gate_sweeps_total"), Some(1.0));
    assert_eq!(
        (seen.get("semel_gate_swept_total"), seen.get("semel_gate_swept_last")),
        (Some(1.0), Some(1.0))
    );
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(
        (seen.get("semel_gate_sweeps_total"), seen.get("semel_gate_swept_last")),
        (Some(2.0), Some(0.0))
    );
    sweeper.abort();
}

/// A store whose look-ups fail, and which has connections.
struct Away(Arc<MemoryStore>);

impl ClaimStore for Away {
    fn claim(&self, request: semel_store::ClaimRequest) -> semel_store::Reply<'_, semel_store::ClaimOutcome> {
        self.0.claim(request)
    }
    fn look_up<'a>(
        &'a self,
        _: &'a semel_store::Id,
    ) -> semel_store::Reply<'a, (Option<Entry>, semel_contract::time::Timestamp)> {
        Box::pin(std::future::ready(Err(StoreError::Unavailable("on purpose".to_owned()))))
    }
    fn settle<'a>(
        &'a self,
        id: &'a semel_store::Id,
        fence: semel_contract::record::Fence,
        settlement: semel_store::Settlement,
        lifetime: &'a semel_contract::profile::Lifetime,
    ) -> semel_store::Reply<'a, semel_store::FencedWrite> {
        self.0.settle(id, fence, settlement, lifetime)
    }
    fn renew<'a>(
        &'a self,
        held: &'a [(semel_store::Id, semel_contract::record::Fence)],
        lease: Duration,
    ) -> semel_store::Reply<'a, Vec<semel_store::FencedWrite>> {
        self.0.renew(held, lease)
    }
    fn resolve<'a>(
        &'a self,
        id: &'a semel_store::Id,
        fence: semel_contract::record::Fence,
        resolution: semel_store::Resolution,
        lifetime: &'a semel_contract::profile::Lifetime,
        by: &'a str,
        reason: &'a str,
    ) -> semel_store::Reply<'a, semel_store::Resolved> {
        self.0.resolve(id, fence, resolution, lifetime, by, reason)
    }
    fn seal<'a>(
        &'a self,
        id: &'a semel_store::Id,
        about: &'a semel_store::About,
        lifetime: &'a semel_contract::profile::Lifetime,
    ) -> semel_store::Reply<'a, semel_store::Sealed> {
        self.0.seal(id, about, lifetime)
    }
    fn sweep(&self, batch: u32, grace: Duration) -> semel_store::Reply<'_, semel_store::Swept> {
        self.0.sweep(batch, grace)
    }
    fn forget<'a>(
        &'a self,
        tenant: Option<&'a str>,
        principal: &'a str,
        by: &'a str,
    ) -> semel_store::Reply<'a, u64> {
        self.0.forget(tenant, principal, by)
    }
    fn list<'a>(&'a self, filter: &'a Filter) -> semel_store::Reply<'a, Vec<Entry>> {
        self.0.list(filter)
    }
    fn ready(&self) -> semel_store::Reply<'_, ()> {
        self.0.ready()
    }
    fn connections(&self) -> Option<(usize, usize)> {
        Some((3, 8))
    }
    fn hints(&self) -> &semel_store::hints::Hints {
        self.0.hints()
    }
}

#[tokio::test]
async fn a_store_that_fails_is_counted_wherever_it_is_asked() {
    let seen = Seen::default();
    let _recording = metrics::set_default_local_recorder(&seen);
    let world = World::new();
    let away: Arc<dyn ClaimStore> = Arc::new(Away(Arc::clone(&world.store)));
    let gate = GateLayer::builder(away).identity("trusted:X-User".parse::<Identity>().unwrap());
    // A former name is looked up before anything else is asked.
    let renamed = Route::new("new", "POST /orders").unwrap().former_names(["old".to_owned()]);
    let app = world.app(gate.route(renamed).route(Route::any()));
    assert_eq!(post_to(&app, "/orders", "k", "{}").await.status, 503);
    assert_eq!(seen.get("semel_gate_store_errors_total call=look-up"), Some(1.0));
    assert_eq!(world.runs(), 0);
    // Elsewhere it is claimed at once.
    assert_eq!(post_to(&app, "/status/201", "k", "{}").await.status, 201);
    assert_eq!(seen.get("semel_gate_store_connections_in_use"), Some(3.0));
    assert_eq!(seen.get("semel_gate_store_connections_max"), Some(8.0));
}
