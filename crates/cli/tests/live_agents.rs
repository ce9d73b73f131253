//! The Python services of `examples/agents` behind a real gateway: an unmodified one, on SQLite and on PostgreSQL
//! with two gateways, and one that settles in its own transaction and is killed at every step together with its gateway.
//! Agents, the middleware and fleets are tested in the example's own folder.
//! Needs the PostgreSQL and the Python of `cargo xtask test`.

mod agents;

use std::path::Path;
use std::time::{Duration, Instant};

use agents::{Database, Gateway, PATIENCE, Service, answer, example, home, uuid};
use serde_json::{Value, json};

/// The header line of an agent that the service itself has registered.
fn registered(service: &Service) -> String {
    let (_, _, body) = answer(&service.address, "POST", "/api/auth/agent", "", "{}").expect("an agent");
    format!("Authorization: Bearer {}\r\n", body["token"].as_str().expect("a token"))
}

/// A request of a caller with a credential.
fn call(address: &str, me: &str, method: &str, path: &str, key: &str, body: &Value) -> (u16, String, Value) {
    let headers = format!("{me}X-Idempotency-Key: {key}\r\n");
    answer(address, method, path, &headers, &body.to_string()).expect("the gateway answers")
}

fn effects(service: &Service) -> Value {
    answer(&service.address, "GET", "/api/effects", "", "").expect("the service answers").2["effects"].clone()
}

/// Everything that an unmodified service must see, whichever gateway a request comes through.
fn covers_the_whole_api(service: &Service, gateways: &[&Gateway]) {
    let through = |turn: usize| gateways[turn % gateways.len()].address.as_str();
    let me = registered(service);
    let routes = [
        ("POST", "/api/dwellers/7/act", "act"),
        ("POST", "/api/dwellers/7/heartbeat", "heartbeat"),
        ("POST", "/api/stories", "story"),
        ("POST", "/api/proposals", "proposal"),
        ("POST", "/api/review/story/3/feedback", "feedback"),
        ("PUT", "/api/anything/else", "other"),
    ];
    for (method, path, name) in routes {
        let before = effects(service)[name].as_u64().unwrap_or(0);
        let (key, body) = (uuid(), json!({"text": name}));
        let first = call(through(0), &me, method, path, &key, &body);
        let second = call(through(1), &me, method, path, &key, &body);
        assert_eq!((first.0, second.0, &first.2), (201, 201, &second.2), "{path}");
        assert!(second.1.contains("idempotency-replayed: true"), "{}", second.1);
        let other = call(through(0), &me, method, path, &key, &json!({"text": "another"}));
        assert_eq!(other.0, 422, "{path}: another body under the same key");
        assert_eq!(effects(service)[name], before + 1, "{path}");
        // Without a key nothing is checked.
        for _ in 0..2 {
            assert_eq!(answer(through(0), method, path, &me, "{}").expect("an answer").0, 201);
        }
        assert_eq!(effects(service)[name], before + 3, "{path} without a key");
    }
    // A GET with a key passes untouched, and a keyed request of nobody is refused.
    assert_eq!(call(through(0), &me, "GET", "/api/effects", &uuid(), &json!({})).0, 200);
    let nobody = format!("X-Idempotency-Key: {}\r\n", uuid());
    assert_eq!(answer(through(0), "POST", "/api/stories", &nobody, "{}").expect("an answer").0, 401);

    // Registration: nobody has a credential yet, and a retry gets the same agent.
    let register = |turn: usize, key: &str| {
        let headers = format!("X-Idempotency-Key: {key}\r\n");
        answer(through(turn), "POST", "/api/auth/agent", &headers, r#"{"name":"ada"}"#).expect("an answer")
    };
    let (key, agents) = (uuid(), effects(service)["agent"].as_u64().expect("a count"));
    let (first, second) = (register(0, &key), register(1, &key));
    assert_eq!((first.0, &first.2["token"]), (201, &second.2["token"]));
    assert_eq!((effects(service)["agent"].as_u64(), register(0, "guessable").0), (Some(agents + 1), 400));
}

/// While the first attempt runs a retry is told so; afterwards it gets the answer.
fn tells_who_comes_too_early(service: &Service, gateways: &[&Gateway]) {
    let (key, first, me) = (uuid(), gateways[0].address.clone(), registered(service));
    let headers = format!("{me}X-Idempotency-Key: {key}\r\nX-Work-Seconds: 3\r\n");
    let claimed = gateways[0].claimed();
    let slow = {
        let headers = headers.clone();
        std::thread::spawn(move || answer(&first, "POST", "/api/stories", &headers, "{}").expect("an answer"))
    };
    let until = Instant::now() + PATIENCE;
    while gateways[0].claimed() == claimed {
        assert!(Instant::now() < until, "the first attempt does not begin");
        std::thread::sleep(Duration::from_millis(20));
    }
    let last = &gateways[gateways.len() - 1].address;
    let early = answer(last, "POST", "/api/stories", &headers, "{}").expect("an answer");
    assert_eq!((early.0, early.2), (409, Value::String("Request is being processed".to_owned())));
    assert!(early.1.contains("retry-after: 1"), "{}", early.1);
    let slow = slow.join().expect("no panic");
    let late = answer(last, "POST", "/api/stories", &headers, "{}").expect("an answer");
    assert_eq!((slow.0, slow.2), (201, late.2));
}

/// The world, whose secret is in this folder.
fn world(home: &Path) -> Service {
    let secret = home.join("world.secret").display().to_string();
    Service::start("world:app", &[("WORLD_SECRET".to_owned(), secret)])
}

#[test]
fn an_unmodified_service_behind_one_gateway_on_a_file() {
    let home = home();
    let service = world(home.path());
    let store = format!("sqlite:{}", home.path().join("semel.db").display());
    let gateway = Gateway::start(home.path(), &example("semel.toml"), &store, &service.address);
    covers_the_whole_api(&service, &[&gateway]);
    tells_who_comes_too_early(&service, &[&gateway]);
}

#[test]
fn an_unmodified_service_behind_two_gateways_on_postgresql() {
    let (database, home) = (Database::create("world"), home());
    let service = world(home.path());
    let start = || Gateway::start(home.path(), &example("semel.toml"), &database.url, &service.address);
    let (one, two) = (start(), start());
    covers_the_whole_api(&service, &[&one, &two]);
    tells_who_comes_too_early(&service, &[&one, &two]);
}

/// Where the service kills itself, and whether the order stands by then.
const STEPS: [&str; 4] =
    ["before the transaction", "after the effect", "after the settlement", "after the commit"];

#[test]
fn a_service_that_settles_is_killed_at_every_step_together_with_its_gateway() {
    let (database, home) = (Database::create("orders"), home());
    // As the example's page says it.
    let page = include_str!("../../../examples/agents/README.md");
    let table = page.split("CREATE TABLE").nth(1).and_then(|rest| rest.split('\'').next()).expect("a table");
    database.run(&format!("CREATE TABLE{table}"));
    let environment = |dies_at: &str| {
        [("DATABASE".to_owned(), database.url.clone()), ("DIES_AT".to_owned(), dies_at.to_owned())]
    };
    let order = |address: &str, key: &str, step: &str| {
        let headers = format!("Authorization: Bearer me\r\nIdempotency-Key: {key}\r\n");
        answer(address, "POST", "/orders", &headers, &json!({"item": step}).to_string())
    };
    for (place, step) in STEPS.into_iter().enumerate() {
        let key = uuid();
        let mut service = Service::start("orders:app", &environment(step));
        let mut gateway =
            Gateway::start(home.path(), &example("atomic.toml"), &database.url, &service.address);
        let lost = {
            let (address, key) = (gateway.address.clone(), key.clone());
            std::thread::spawn(move || order(&address, &key, step))
        };
        service.wait_for_death();
        gateway.kill();
        let lost = lost.join().expect("no panic");
        let orders = || database.number(&format!("SELECT count(*) FROM orders WHERE item = '{step}'"));
        let settled =
            database.number(&format!("SELECT count(*) FROM semel.record WHERE state = 2 AND key = '{key}'"));
        assert_eq!(orders(), settled, "{step}: effect and record together, or neither; heard {lost:?}");
        assert_eq!(settled, u32::from(place == 3), "{step}");

        let port = service.port();
        let service = Service::start_at("orders:app", &environment(""), port);
        let gateway = Gateway::start(home.path(), &example("atomic.toml"), &database.url, &service.address);
        let (status, head, body) = order(&gateway.address, &key, step).expect("the gateway answers");
        assert_eq!((status, &body["item"]), (201, &json!(step)), "{head} {body}");
        let (again, _, same) = order(&gateway.address, &key, step).expect("the gateway answers");
        assert_eq!((again, same, orders()), (201, body, 1), "{step}");
    }
    assert_eq!(
        database.number("SELECT count(*) FROM semel.record WHERE state <> 2"),
        0,
        "nothing is unknown"
    );
}
