//! A changed configuration: what was recorded before stays known, and is never told to come with a new key.

use semel_contract::decide::Claim;
use semel_contract::fingerprint::Input;
use semel_contract::json::Pointer;
use semel_contract::profile::Lifetime;
use semel_store::{ClaimOutcome, ClaimRequest, Settlement};

use super::world::*;

const UUID: &str = "8e03978e-40d5-43e8-bc93-6894a57f9324";

fn named(name: &str) -> Route {
    Route::new(name, "POST /orders").unwrap()
}

/// A request as a client sends it again and again: with a token, and with a user that a proxy has set.
fn again(key: &str, body: &str) -> Request<Body> {
    by(key, body, "Bearer a")
}

fn by(key: &str, body: &str, token: &str) -> Request<Body> {
    let mut request = request("/orders", Some(key), body);
    request.headers_mut().insert("authorization", token.parse().unwrap());
    request.headers_mut().insert("host", "shop.example".parse().unwrap());
    request
}

impl World {
    /// Copies the records alone, and nothing that is known of forms: so a store looks that the release before wrote.
    async fn copy_records_to(&self, other: &World) {
        for entry in self.entries().await {
            let record = &entry.record;
            let request = ClaimRequest {
                id: entry.id.clone(),
                how: Claim::New,
                replaces: None,
                nonce: record.fence.nonce,
                lease: Duration::from_secs(30),
                late: Duration::from_secs(60),
                guarantee: record.guarantee,
                fingerprint: record.fingerprint,
                payload_hash: record.payload_hash,
                rotation: None,
                about: Arc::clone(&entry.about),
                terms: None,
            };
            let ClaimOutcome::Won { fence, .. } = other.store.claim(request).await.unwrap() else {
                panic!("won")
            };
            let settlement = Settlement::Settle(entry.answer.clone().unwrap());
            other.store.settle(&entry.id, fence, settlement, &presets::ietf().lifetime).await.unwrap();
        }
    }

    /// A gate on the same store that identifies callers in another way.
    fn by(&self, identity: &str) -> GateBuilder {
        self.gate().identity(identity.parse::<Identity>().unwrap())
    }
}

/// Sends a request to one configuration and then to another: the second must know it, and run what is new.
async fn is_known_after(before: GateBuilder, after: GateBuilder, world: &World) {
    let (before, after) = (world.app(before), world.app(after));
    assert_eq!(send(&before, again("k", "{}")).await.status, 201);
    // Long enough for the former form to be nobody's any more.
    world.clock.advance(Duration::from_secs(600));
    let replay = send(&after, again("k", "{}")).await;
    assert!(replay.is_replay(), "{replay:?}");
    assert_eq!((replay.status, replay.body.as_str(), world.runs()), (201, "order 1: {}", 1));
    let altered = send(&after, again("k", r#"{"a":1}"#)).await;
    assert_eq!((altered.status, altered.problem().as_str()), (422, "fingerprint-mismatch"));
    assert_eq!(send(&after, again("new", "{}")).await.status, 201);
    assert!(send(&after, again("new", "{}")).await.is_replay());
    assert_eq!(world.runs(), 2);
}

#[tokio::test]
async fn the_first_configuration_knows_the_keys_from_before_it() {
    let world = World::new();
    let before = world.by("authorization").route(Route::any());
    let after = world.by("authorization").route(named("create"));
    is_known_after(before, after, &world).await;
}

#[tokio::test]
async fn a_route_beside_a_general_one_knows_the_keys_from_before_it() {
    let world = World::new();
    let before = world.gate().route(Route::any());
    world.clock.advance(Duration::from_secs(1));
    let after = world.gate().route(Route::any()).route(named("create"));
    let (app, clock) = (world.app(before), Arc::clone(&world.clock));
    assert_eq!(send(&app, again("k", "{}")).await.status, 201);
    clock.advance(Duration::from_secs(1));
    let app = world.app(after);
    assert!(send(&app, again("k", "{}")).await.is_replay());
    assert_eq!(world.runs(), 1);
}

#[tokio::test]
async fn another_name_knows_the_keys_of_the_one_before() {
    let world = World::new();
    is_known_after(world.gate().route(named("create")), world.gate().route(named("create-order")), &world)
        .await;
}

#[tokio::test]
async fn another_scope_knows_the_keys_of_the_one_before() {
    let world = World::new();
    let mut profile = presets::ietf();
    profile.scope.endpoint = false;
    let after = named("create").profile(profile);
    is_known_after(world.gate().route(named("create")), world.gate().route(after), &world).await;
}

#[tokio::test]
async fn hosts_that_count_from_now_on_know_the_keys_from_before() {
    let world = World::new();
    let before = world.gate().route(named("create"));
    let after = world.gate().scope_by_host().route(named("create"));
    is_known_after(before, after, &world).await;
}

#[tokio::test]
async fn another_identity_knows_the_keys_of_the_one_before() {
    let world = World::new();
    let before = world.by("authorization").route(named("create"));
    let after = world.by("trusted:X-User").route(named("create"));
    is_known_after(before, after, &world).await;
}

#[tokio::test]
async fn another_fingerprint_is_not_taken_for_another_request() {
    for change in [
        |profile: &mut Profile| {
            let recipe = profile.fingerprint.as_mut().unwrap();
            recipe.inputs.retain(|input| *input != Input::Query);
        },
        |profile: &mut Profile| {
            profile.fingerprint.as_mut().unwrap().exclude.push(Pointer::parse("/at").unwrap());
        },
    ] {
        let world = World::new();
        let mut profile = presets::ietf();
        change(&mut profile);
        let before = world.gate().route(named("create"));
        let after = world.gate().route(named("create").profile(profile));
        is_known_after(before, after, &world).await;
    }
}

/// Whoever could set the former identity's header would be believed; so somebody has to say that nobody can.
#[tokio::test]
async fn an_identity_that_must_be_vouched_for_is_not_read_unasked() {
    let world = World::new();
    let before = world.app(world.by("trusted:X-User").route(named("create")));
    assert_eq!(send(&before, again("k", "{}")).await.status, 201);
    let after = || world.by("authorization").route(named("create"));
    let refused = after().build().unwrap().prepare().await.unwrap_err().to_string();
    for word in ["trusted:X-User", "gate.was_identity", "gate.forget_former = true", "POST /orders"] {
        assert!(refused.contains(word), "{refused}");
    }
    let seen = send(&world.app(after()), again("k", "{}")).await;
    assert_eq!((seen.status, seen.header("x-should-retry"), world.runs()), (503, "true", 1));
    let vouched = after().was_identity("trusted:X-User".parse::<Identity>().unwrap());
    assert!(send(&world.app(vouched), again("k", "{}")).await.is_replay());
    let forgetful = world.app(after().forget_former());
    assert_eq!(send(&forgetful, again("k", "{}")).await.body, "order 2: {}", "it was said in so many words");
}

/// A token that is rotated while the endpoint is renamed is still a rotated token.
#[tokio::test]
async fn a_rename_does_not_hide_a_rotated_credential() {
    for after in ["create-order", "create"] {
        let world = World::new();
        let before = world.app(world.by("authorization").route(named("create")));
        assert_eq!(send(&before, by(UUID, "{}", "Bearer old")).await.status, 201);
        let after = world.app(world.by("authorization").route(named(after)));
        let seen = send(&after, by(UUID, "{}", "Bearer new")).await;
        assert_eq!((seen.status, seen.problem().as_str()), (409, "credential-changed"));
        assert_eq!(world.runs(), 1);
        assert!(send(&after, by(UUID, "{}", "Bearer old")).await.is_replay());
    }
}

/// Where the request no longer carries the former credential, its mark still tells.
#[tokio::test]
async fn a_key_whose_former_caller_cannot_be_told_is_known_by_its_mark() {
    let world = World::new();
    let before = world.app(world.by("authorization").route(named("create")));
    assert_eq!(send(&before, again(UUID, "{}")).await.status, 201);
    let after = world.app(world.by("trusted:X-User").route(named("create")));
    let mut bare = again(UUID, "{}");
    bare.headers_mut().remove("authorization");
    let seen = send(&after, bare).await;
    assert_eq!((seen.status, seen.problem().as_str(), world.runs()), (409, "credential-changed", 1));
}

/// After one retention nothing is left of a form, and nobody looks for it any more.
#[tokio::test]
async fn a_former_form_is_asked_for_one_retention() {
    let world = World::new();
    let before = world.app(world.gate().route(named("create")));
    assert_eq!(send(&before, again("k", "{}")).await.status, 201);
    let after = world.app(world.gate().route(named("create-order")));
    world.clock.advance(Duration::from_secs(23 * 3600));
    assert!(send(&after, again("k", "{}")).await.is_replay(), "within the retry window");
    world.clock.advance(Duration::from_secs(48 * 3600));
    assert_eq!(send(&after, again("k", "{}")).await.body, "order 2: {}");
    let known = world.store.register_forms("", &[]).await.unwrap().known;
    assert_eq!(known.len(), 1, "{known:?}");
}

/// The forms of a gate are written down before anything is claimed in them.
#[tokio::test]
async fn a_claim_finds_its_form_registered() {
    let world = World::new();
    let app = world.app(world.gate().name("shop").route(Route::new("r", "POST /slow").unwrap()));
    let running = tokio::spawn(async move { post_to(&app, "/slow", "k", "{}").await });
    while world.runs() == 0 {
        tokio::task::yield_now().await;
    }
    let known = world.store.register_forms("shop", &[]).await.unwrap().known;
    assert!(known.iter().any(|form| form.text.contains("POST /slow")), "{known:?}");
    world.go.add_permits(1);
    running.await.unwrap();
}

/// A store of the release before tells of no forms; its records are known all the same.
#[tokio::test]
async fn records_from_before_there_were_forms_are_known() {
    for before in ["create", "POST /orders"] {
        let old = World::new();
        // As that release made it: without a host.
        let route = if before == "create" { named("create") } else { Route::any() };
        assert_eq!(send(&old.app(old.by("authorization").route(route)), again("k", "{}")).await.status, 201);
        let world = World::new();
        old.copy_records_to(&world).await;
        let gate = world.by("authorization").name("shop").scope_by_host().route(named("create"));
        assert!(send(&world.app(gate), again("k", "{}")).await.is_replay(), "{before}");
        assert_eq!(world.runs(), 0);
        // A gate of another name that comes later claims where the others do.
        let other = world.by("authorization").name("other").scope_by_host().route(named("create"));
        assert!(send(&world.app(other), again("k", "{}")).await.is_replay(), "{before}");
    }
}

/// Gates before different services that share a store have keys of their own.
#[tokio::test]
async fn gates_of_other_names_have_other_forms() {
    let world = World::new();
    let one = world.app(world.gate().name("one").route(named("create")));
    let two = world.app(world.gate().name("two").route(named("book")));
    assert_eq!(send(&one, again("first", "{}")).await.status, 201);
    assert_eq!(send(&two, again("second", "{}")).await.status, 201);
    assert_eq!(send(&one, again("k", "{}")).await.status, 201);
    assert!(!send(&two, again("k", "{}")).await.is_replay());
    assert_eq!(world.runs(), 4);
}

#[tokio::test]
async fn one_hosts_answer_is_not_given_to_anothers_client() {
    let world = World::new();
    let app = world.app(world.gate().scope_by_host().route(Route::any()));
    let at = |host: &str| {
        let mut request = again("k", "{}");
        request.headers_mut().insert("host", host.parse().unwrap());
        request
    };
    assert_eq!(send(&app, at("a.example")).await.body, "order 1: {}");
    assert_eq!(send(&app, at("b.example")).await.body, "order 2: {}");
    for (host, run) in [("A.Example", 1), ("a.example:443", 1), ("b.example:80", 2), ("b.example", 2)] {
        let seen = send(&app, at(host)).await;
        assert_eq!((seen.is_replay(), seen.body), (true, format!("order {run}: {{}}")), "{host}");
    }
}

/// A seal says that nothing happened: in no form.
#[tokio::test]
async fn a_key_of_a_former_form_is_not_sealed() {
    let world = World::new();
    let before = world.app(world.gate().route(Route::any()));
    assert_eq!(send(&before, again("k", "{}")).await.status, 201);
    let after = world.app(world.gate().route(named("create")));
    let seal = |endpoint: &str| {
        let uri = format!("/.well-known/semel/keys/k/seal?endpoint={endpoint}");
        Request::post(uri).header("x-user", "alice").body(Body::empty()).unwrap()
    };
    let seen = send(&after, seal("POST%20/orders")).await;
    assert!(seen.body.contains(r#""sealed":false"#), "{seen:?}");
    assert_eq!(send(&after, seal("create")).await.status, 400, "the name alone does not tell");
}

/// Two replicas while the configuration is being changed: each looks for what the other claims.
#[tokio::test]
async fn two_configurations_at_once_run_a_key_once() {
    let world = World::new();
    let one = world.app(world.gate().route(named("create")));
    let two = world.app(world.gate().route(named("create-order")));
    assert_eq!(send(&one, again("a", "{}")).await.status, 201);
    assert_eq!(send(&two, again("b", "{}")).await.status, 201);
    // The one learns of the other within two minutes at the latest.
    world.clock.advance(Duration::from_secs(61));
    assert!(send(&one, again("b", "{}")).await.is_replay());
    assert!(send(&two, again("a", "{}")).await.is_replay());
    assert_eq!(world.runs(), 2);
}

/// Who identified callers before, and took so long about it that everybody else went on without this process.
#[derive(Clone)]
struct HeldUp(Arc<TestClock>);

impl semel_gate::Identify for HeldUp {
    fn identify<'a>(&'a self, _: &'a axum::http::request::Parts) -> semel_gate::Identified<'a> {
        self.0.advance(Duration::from_secs(310));
        let caller = Caller { tenant: None, principal: "alice".to_owned() };
        Box::pin(std::future::ready(Ok(semel_gate::Verified::new(caller))))
    }

    fn describe(&self) -> String {
        "trusted:X-User".to_owned()
    }
}

/// A process that stands still between its look at the forms and its claim does not know where others claim by then.
#[tokio::test]
async fn a_process_that_was_held_up_gives_its_claim_up() {
    let world = World::new();
    let before = world.app(world.by("trusted:X-User").route(named("create")));
    assert_eq!(send(&before, again("first", "{}")).await.status, 201);
    let held_up = world.by("authorization").was_identity(HeldUp(Arc::clone(&world.clock)));
    let app = world.app(held_up.route(named("create")));
    let seen = send(&app, again("k", "{}")).await;
    assert_eq!((seen.status, seen.header("x-should-retry"), world.runs()), (503, "true", 1), "{seen:?}");
    let free = world.entries().await.iter().all(|entry| entry.id.key.as_str() != "k");
    assert!(free, "nothing is left of it");
}

/// An unknown outcome does not expire, and is found however long ago its form was given up.
#[tokio::test]
async fn an_unknown_outcome_of_a_former_form_is_never_run_again() {
    let world = World::new();
    let route = |name: &str| Route::new(name, "POST /panic").unwrap();
    let before = world.app(world.gate().route(route("pay")));
    assert_eq!(post_to(&before, "/panic", "k", "{}").await.status, 502);
    let mut names = ["charge", "bill", "debit"].into_iter();
    for days in [1, 3, 30] {
        world.clock.advance(Duration::from_secs(days * 86_400));
        let after = world.app(world.gate().route(route(names.next().unwrap())));
        let seen = post_to(&after, "/panic", "k", "{}").await;
        assert_eq!((seen.status, seen.problem().as_str()), (409, "outcome-unknown"), "{days} days");
    }
    assert_eq!(world.runs(), 1);
}

/// After a change of identity a caller's own record is still its own.
#[tokio::test]
async fn a_caller_sees_its_own_key_after_a_change_of_identity() {
    let world = World::new();
    let before = world.app(world.by("authorization").route(named("create")));
    assert_eq!(send(&before, again("k", "{}")).await.status, 201);
    let after = world.app(world.by("trusted:X-User").route(named("create")));
    let ask = |token: &str| {
        Request::get("/.well-known/semel/keys/k?endpoint=create")
            .header("x-user", "alice")
            .header("authorization", token)
            .header("host", "shop.example")
            .body(Body::empty())
            .unwrap()
    };
    let own = send(&after, ask("Bearer a")).await;
    assert_eq!(own.status, 200, "{own:?}");
    assert!(own.body.contains(r#""state":"settled""#), "{own:?}");
    assert_eq!(send(&after, ask("Bearer b")).await.status, 404, "somebody else's");
}

/// The id and the record that a configuration would make of a request.
async fn entry_of(gate: impl FnOnce(&World) -> GateBuilder, request: Request<Body>) -> Entry {
    let elsewhere = World::new();
    let app = elsewhere.app(gate(&elsewhere));
    assert_eq!(send(&app, request).await.status, 201);
    elsewhere.entries().await.remove(0)
}

/// What a process leaves that claims in one form and ends before it has looked into the others.
async fn leave_claimed(world: &World, like: &Entry) {
    let request = ClaimRequest {
        id: like.id.clone(),
        how: Claim::New,
        replaces: None,
        nonce: 7,
        lease: Duration::from_secs(30),
        late: Duration::from_secs(60),
        guarantee: like.record.guarantee,
        fingerprint: like.record.fingerprint,
        payload_hash: None,
        rotation: None,
        about: Arc::clone(&like.about),
        terms: None,
    };
    assert!(matches!(world.store.claim(request).await, Ok(ClaimOutcome::Won { .. })));
}

/// Two records of one key: of two claims at most one was dispatched, and the one that came to its end is it.
#[tokio::test]
async fn of_two_records_the_one_that_came_to_its_end_tells() {
    for left in ["{}", r#"{"altered":1}"#] {
        let world = World::new();
        let before = world.app(world.gate().route(named("create")));
        assert_eq!(send(&before, again("k", "{}")).await.status, 201);
        let renamed = |world: &World| world.gate().route(named("create-order"));
        leave_claimed(&world, &entry_of(renamed, again("k", left)).await).await;
        world.clock.advance(Duration::from_secs(600));
        let seen = send(&world.app(renamed(&world)), again("k", "{}")).await;
        assert!(seen.is_replay(), "{left}: {seen:?}");
        assert_eq!((seen.body.as_str(), world.runs()), ("order 1: {}", 1));
    }
}

/// A seal that came after a claim in another form does not say that nothing happened.
#[tokio::test]
async fn a_seal_beside_an_effect_in_a_former_form_does_not_hide_it() {
    let world = World::new();
    let before = world.app(world.gate().route(named("create")));
    assert_eq!(send(&before, again("k", "{}")).await.status, 201);
    let renamed = |world: &World| world.gate().route(named("create-order"));
    let entry = entry_of(renamed, again("k", "{}")).await;
    world.store.seal(&entry.id, &entry.about, &presets::ietf().lifetime).await.unwrap();
    world.clock.advance(Duration::from_secs(600));
    let after = world.app(renamed(&world));
    let ask = Request::post("/.well-known/semel/keys/k/seal?endpoint=create-order").header("x-user", "alice");
    let seen = send(&after, ask.body(Body::empty()).unwrap()).await;
    assert!(seen.body.contains(r#""sealed":false"#), "{seen:?}");
    assert!(send(&after, again("k", "{}")).await.is_replay());
}

fn rerun(name: &str, has_endpoint: bool) -> Route {
    let mut profile = presets::ietf();
    profile.on_unknown = OnUnknown::Rerun;
    profile.scope.endpoint = has_endpoint;
    Route::new(name, "POST /panic").unwrap().profile(profile)
}

fn panicking(key: &str) -> Request<Body> {
    let mut request = request("/panic", Some(key), "{}");
    request.headers_mut().insert("authorization", "Bearer a".parse().unwrap());
    request
}

/// One request may have the same mark in several former forms: its own record is not another credential's.
#[tokio::test]
async fn a_key_is_not_taken_for_another_credentials_by_its_own_mark() {
    let world = World::new();
    for route in [rerun("pay", true), rerun("pay", false)] {
        let app = world.app(world.by("authorization").route(route));
        assert_eq!(send(&app, panicking("other")).await.status, 502);
        world.clock.advance(Duration::from_secs(600));
    }
    let before = world.app(world.by("authorization").route(rerun("pay", false)));
    assert_eq!(send(&before, panicking(UUID)).await.status, 502);
    let runs = world.runs();
    world.clock.advance(Duration::from_secs(600));
    let after = world.app(world.by("authorization").route(rerun("charge", false)));
    assert_eq!(send(&after, panicking(UUID)).await.status, 502);
    assert_eq!(world.runs(), runs + 1, "it runs again, as the route allows");
}

struct SaysNotApplied;

impl Probe for SaysNotApplied {
    fn ask<'a>(&'a self, _: &'a Entry) -> std::pin::Pin<Box<dyn Future<Output = Finding> + Send + 'a>> {
        Box::pin(std::future::ready(Finding::NotApplied))
    }
}

/// Two gates that learn at once that a former attempt came to nothing: one of them would run it under the former name, the
/// other under the present one, and neither would see the other.
#[tokio::test]
async fn what_became_free_in_a_former_form_begins_again_in_the_present_one() {
    let world = World::new();
    let gate = |name: &str| {
        let kept = Lifetime { released: Some(Duration::from_secs(86_400)), ..presets::ietf().lifetime };
        let profile = Profile { on_unknown: OnUnknown::Probe, lifetime: kept, ..presets::ietf() };
        let route =
            Route::new(name, "POST /panic").unwrap().profile(profile).deadline(Duration::from_secs(5));
        world.app(world.by("authorization").route(route).probe(SaysNotApplied))
    };
    assert_eq!(send(&gate("pay"), panicking("k")).await.status, 502);
    world.clock.advance(Duration::from_secs(600));
    let after = gate("charge");
    let freed = send(&after, panicking("k")).await;
    assert_eq!((freed.status, freed.problem().as_str(), world.runs()), (409, "in-flight", 1));
    assert_eq!(send(&after, panicking("k")).await.status, 502);
    assert_eq!(world.runs(), 2);
    let began: Vec<_> = world.entries().await.into_iter().map(|entry| entry.about.endpoint.clone()).collect();
    assert!(began.iter().any(|endpoint| endpoint == "charge"), "{began:?}");
}

/// Where a route allows an unknown request to run again, a second unknown outcome of it does not forbid that for ever.
#[tokio::test]
async fn two_unknown_outcomes_of_one_request_are_run_again_as_one() {
    let world = World::new();
    let before = world.app(world.by("authorization").route(rerun("pay", true)));
    assert_eq!(send(&before, panicking("k")).await.status, 502);
    let elsewhere = World::new();
    let renamed = elsewhere.app(elsewhere.by("authorization").route(rerun("charge", true)));
    assert_eq!(send(&renamed, panicking("k")).await.status, 502);
    leave_claimed(&world, &elsewhere.entries().await[0]).await;
    world.clock.advance(Duration::from_secs(600));
    let after = world.app(world.by("authorization").route(rerun("charge", true)));
    for runs in [2, 3] {
        assert_eq!(send(&after, panicking("k")).await.status, 502);
        assert_eq!(world.runs(), runs);
    }
}

/// A request whose fingerprint is keyed with a secret that is gone would be taken for another one: so the secret is asked for.
#[tokio::test]
async fn a_secret_that_may_still_be_needed_is_not_taken_out() {
    let world = World::new();
    let with = |secrets: &[&str]| {
        let secrets =
            secrets.iter().map(|secret| semel_contract::fingerprint::Secret::new(secret.as_bytes()));
        world.gate().route(named("create")).fingerprint_secrets(secrets)
    };
    assert_eq!(send(&world.app(with(&["one"])), again("k", "{}")).await.status, 201);
    for secrets in [&[][..], &["two"]] {
        let refused = with(secrets).build().unwrap().prepare().await.unwrap_err().to_string();
        for word in ["gate.fingerprint_keys", "gate.forget_former = true"] {
            assert!(refused.contains(word), "{refused}");
        }
        assert_eq!(send(&world.app(with(secrets)), again("k", "{}")).await.status, 503);
    }
    assert!(send(&world.app(with(&["two", "one"])), again("k", "{}")).await.is_replay());
    with(&["two"]).forget_former().build().unwrap().prepare().await.expect("it was said in so many words");
    // Nothing was keyed with it for one retention.
    world.clock.advance(Duration::from_secs(48 * 3600));
    with(&["two"]).build().unwrap().prepare().await.expect("it is not needed any more");
}
