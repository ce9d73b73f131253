//! Tests: every action of every part, done by its form as the console shows it, against the real part. What arrives is what
//! the part's OpenAPI describes, the part reads it, and what was done stands in its trail with who and why.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use http::Request;
use semel_console::part::{Answered, Part, Routed, SHEET, Sheet};
use semel_console::{ACTIONS, Access, Action, Console, Kind, Reason, Surface};
use semel_store::clock::SystemClock;
use serde_json::{Value, json};
use tower::ServiceExt;

use super::{broker, outbox, relay};

const REASON: &str = "the tests say so";
static GATE: Sheet = Sheet { name: "gate", ..SHEET };

/// A call as a part got it, and what it said.
#[derive(Clone, Debug)]
struct Call {
    method: String,
    path: String,
    query: String,
    body: Value,
    status: u16,
    said: Value,
}

/// A part that keeps what it is asked to change.
struct Kept {
    part: Routed,
    calls: Arc<Mutex<Vec<Call>>>,
}

impl Part for Kept {
    fn sheet(&self) -> &'static Sheet {
        self.part.sheet()
    }

    fn ask(&self, request: Request<Body>) -> Answered<'_> {
        Box::pin(async move {
            let (asked, body) = request.into_parts();
            let bytes = to_bytes(body, 1 << 20).await.unwrap();
            let (method, uri) = (asked.method.to_string(), asked.uri.clone());
            let answer = self.part.ask(Request::from_parts(asked, Body::from(bytes.clone()))).await;
            let (answered, text) = answer.into_parts();
            let text = to_bytes(text, 1 << 20).await.unwrap();
            if method != "GET" {
                self.calls.lock().unwrap().push(Call {
                    method,
                    path: uri.path().to_owned(),
                    query: uri.query().unwrap_or_default().to_owned(),
                    body: serde_json::from_slice(&bytes).unwrap_or_default(),
                    status: answered.status.as_u16(),
                    said: serde_json::from_slice(&text).unwrap_or_default(),
                });
            }
            http::Response::from_parts(answered, Body::from(text))
        })
    }
}

/// A part on its own, with its console.
struct World {
    api: Router,
    pages: Router,
    calls: Arc<Mutex<Vec<Call>>>,
    _folder: tempfile::TempDir,
}

impl World {
    fn of(sheet: &'static Sheet, api: Router, folder: tempfile::TempDir) -> Self {
        let calls = Arc::default();
        let part = Kept { part: Routed::new(sheet, api.clone()), calls: Arc::clone(&calls) };
        let access = Access::on("127.0.0.1:7401".parse().unwrap(), None, None).unwrap();
        let pages = Surface::new(access).part(part).router(Router::new());
        Self { api, pages, calls, _folder: folder }
    }

    async fn start(part: &str) -> Self {
        match part {
            "gate" => gate().await,
            "outbox" => of_outbox().await,
            "relay" => of_relay().await,
            "broker" => of_broker().await,
            other => panic!("who is {other}?"),
        }
    }
}

async fn ask(router: &Router, method: &str, path: &str, kind: &str, body: &str) -> (u16, Value, String) {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("host", "localhost")
        .header("accept", "text/html")
        .header("authorization", "Bearer token-of-alice")
        .header("content-type", kind)
        .header("content-length", body.len())
        .body(Body::from(body.to_owned()))
        .unwrap();
    let answer = router.clone().oneshot(request).await.unwrap();
    let status = answer.status().as_u16();
    let text = to_bytes(answer.into_body(), 1 << 20).await.unwrap();
    let text = String::from_utf8(text.to_vec()).unwrap();
    (status, serde_json::from_str(&text).unwrap_or_default(), text)
}

async fn put(router: &Router, method: &str, path: &str, body: &Value) {
    let (status, _, text) = ask(router, method, path, "application/json", &body.to_string()).await;
    assert!((200..300).contains(&status), "{method} {path}: {status} {text}");
}

async fn gate() -> World {
    use semel_contract::decide::Claim;
    use semel_contract::key::{Format, Key};
    use semel_contract::profile::presets;
    use semel_contract::record::Guarantee;
    use semel_contract::scope::Scope;
    use semel_store::memory::MemoryStore;
    use semel_store::{About, Answer, ClaimOutcome, ClaimRequest, ClaimStore, Id, Settlement};
    let store = Arc::new(MemoryStore::new());
    let answer = Answer { status: 201, headers: Vec::new().into(), body: "".into(), outcome_unknown: false };
    for (key, settlement) in [("k-1", Settlement::Unknown), ("k-2", Settlement::Settle(answer))] {
        let id = Id {
            scope: Scope::of(None, Some("alice"), Some("pay")),
            key: Key::parse(&Format::Printable255, key).unwrap(),
        };
        let about = About { endpoint: "pay".to_owned(), principal: "alice".to_owned(), ..About::default() };
        let request = ClaimRequest {
            id: id.clone(),
            how: Claim::New,
            replaces: None,
            nonce: 1,
            lease: Duration::from_secs(30),
            late: Duration::ZERO,
            guarantee: Guarantee::Fenced,
            fingerprint: None,
            payload_hash: None,
            rotation: None,
            about: about.into(),
            terms: None,
        };
        let ClaimOutcome::Won { fence, .. } = store.claim(request).await.unwrap() else {
            panic!("it is free")
        };
        store.settle(&id, fence, settlement, &presets::ietf().lifetime).await.unwrap();
    }
    let access = Access::on("127.0.0.1:7401".parse().unwrap(), None, None).unwrap();
    let (_, api) = Console::on(store, access).surface();
    World::of(&GATE, api, tempfile::tempdir().unwrap())
}

async fn of_outbox() -> World {
    use semel_delivery::credentials::Wallet;
    use semel_delivery::url::Target;
    use semel_delivery::{Enqueue, Outbox, Settings};
    let folder = tempfile::tempdir().unwrap();
    let upstream = Some(Target::absolute("http://127.0.0.1:9").unwrap());
    let settings = Settings { upstream, ..Settings::default() };
    let outbox = Outbox::open(folder.path().join("outbox.db"), settings).await.unwrap();
    let request = semel_delivery::Request::json("POST", "/orders", "{}");
    let message = Enqueue { client_message_id: Some("m-1".to_owned()), ..Enqueue::new(request) };
    outbox.enqueue(message).await.unwrap();
    outbox.inbox().receive("bob", "r-1", None, b"{}").await.unwrap();
    let wallet = Arc::new(Wallet::default());
    let api = crate::outbox::api::operating(crate::outbox::body::Api {
        outbox,
        wallet,
        mesh: None,
        receiving: None,
        bodies: Arc::new(semel_http::BodyRoom::new(semel_http::BodyBounds::default())),
    });
    World::of(&outbox::sheet::SHEET, api, folder)
}

async fn of_relay() -> World {
    use semel_delivery::relay::debounce::{Debounce, Mode};
    use semel_delivery::relay::store::accept::{NewItem, Submission};
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("relay.keys");
    std::fs::write(&keys, format!("one {}=\n", "QUFB".repeat(10) + "QUE")).unwrap();
    std::fs::set_permissions(&keys, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let text = format!(
        "identity = \"trusted:X-User\"\n[relay]\nstore = \"sqlite:{}\"\nat_rest = {{ keys = \"{}\" }}\n\
         [relay.target.scores]\nurl = \"http://127.0.0.1:9/scores/{{lane}}\"\nbody = '{{{{\"score\":{{after}}}}}}'\n\
         tier = \"read-back\"\nlate_window = \"1s\"\nsync_deadline = \"20s\"\ntimeout = \"2s\"\nprofile = \"scores\"\n\
         read = {{ url = \"http://127.0.0.1:9/scores/{{lane}}\", value = \"/score\" }}\n",
        folder.path().join("relay.db").display(),
        keys.display()
    );
    let path = folder.path().join("semel.toml");
    std::fs::write(&path, text).unwrap();
    let flags = relay::config::Flags { config: Some(&path), ..relay::config::Flags::default() };
    let config = relay::config::Config::load(&flags).unwrap_or_else(|stop| panic!("{}", stop.message));
    let Ok(opened) = relay::open(&config, relay::Purpose::Serve).await else { panic!("the file opens") };
    opened.store.start().await.unwrap();
    let item = NewItem { group: String::new(), lane: "a".to_owned(), value: 5, label: None, session: None };
    let submission = Submission {
        target: "scores".to_owned(),
        principal: "alice".to_owned(),
        key: "k-1".to_owned(),
        fingerprint: "f".to_owned(),
        mode: Mode::Interactive,
        debounce: Debounce::default(),
        groups: false,
        items: vec![item],
        age: None,
    };
    opened.store.accept(&submission).await.unwrap();
    World::of(&relay::sheet::SHEET, relay::local_admin(&config, &opened.store), folder)
}

async fn of_broker() -> World {
    use semel_broker::{Broker, Identity, Parts, Settings, admin_router, database, listen_router};
    let db = Arc::new(database::memory(Arc::new(SystemClock)).unwrap());
    let broker = Broker::open(Parts::new(db), Settings::default()).await.unwrap();
    let (api, listen) = (admin_router(broker.clone()), listen_router(broker, Identity::Tokens, None));
    let token = semel_contract::hex::hex(&<sha2::Sha256 as sha2::Digest>::digest("token-of-alice"));
    let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    for (path, body) in [
        ("/v1/meshes/team", json!({})),
        ("/v1/meshes/team/members/alice", json!({"role": "owner", "token_sha256": [token]})),
        ("/v1/meshes/team/topics/news", json!({})),
        ("/v1/meshes/team/topics/news/subscriptions/alice", json!({})),
        (
            "/v1/meshes/team/webhooks/hook",
            json!({"url": "https://hooks.example/in", "topic": "news", "secrets": [secret]}),
        ),
    ] {
        put(&api, "PUT", path, &body).await;
    }
    let message = json!({"to": {"topic": "news"}, "body": 1, "client_message_id": "m-1"});
    put(&listen, "POST", "/v1/meshes/team/messages", &message).await;
    World::of(&broker::sheet::SHEET, api, tempfile::tempdir().unwrap())
}

/// What people would type.
fn typed(action: &Action, name: &str, kind: Kind) -> String {
    let value = match (action.part, name) {
        ("gate", "id") | ("relay", "id") => "1",
        ("outbox" | "broker", "id") => "m-1",
        ("gate", "as") => "applied",
        ("gate", "tenant") => "",
        (_, "sender") => "bob",
        (_, "client_message_id") => "r-1",
        (_, "lane") => "a",
        (_, "mesh") => "team",
        (_, "member") => "alice",
        (_, "topic") => "news",
        (_, "webhook") => "hook",
        (_, "target") => "scores",
        (_, "principal") => "alice",
        (_, "new_client_id") => "m-2",
        (_, "origin") => "http://127.0.0.1:9",
        (_, "backup_time") => "1970-01-01T00:00:01Z",
        (_, "keep" | "grace") => "60d",
        (_, "status") => "201",
        (_, "url") => "https://hooks.example/in",
        (_, "secrets") => "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        (_, "token_sha256") => "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        // A credential is given or taken back.
        (_, "take_back") => "",
        _ => match kind {
            Kind::Number => "1000",
            Kind::Flag => "true",
            Kind::Choice(choices) => choices[0].0,
            Kind::Pairs | Kind::Object => "X-Test: 1",
            Kind::Text | Kind::Lines | Kind::Secret | Kind::List | Kind::Base64 => "text",
        },
    };
    value.to_owned()
}

/// What stands in braces in a path.
fn named(path: &str) -> Vec<&str> {
    path.split('{').skip(1).filter_map(|rest| rest.split('}').next()).collect()
}

fn form(pairs: &BTreeMap<String, String>) -> String {
    let encoded = semel_delivery::url::encoded;
    let pairs: Vec<String> = pairs.iter().map(|(name, value)| format!("{name}={}", encoded(value))).collect();
    pairs.join("&")
}

/// Opens the action's form, fills all of it in and sends it; what the part was asked, and said.
async fn done_by_form(world: &World, action: &Action) -> Call {
    let of_path = named(action.path).into_iter().map(|name| (name, Kind::Text));
    let fields = action.fields.iter().map(|field| (field.name, field.kind));
    let mut pairs: BTreeMap<String, String> = of_path
        .chain(fields)
        .map(|(name, kind)| (name.to_owned(), typed(action, name, kind)))
        .filter(|(_, value)| !value.is_empty())
        .collect();
    let path = format!("/do/{}/{}", action.part, action.name);
    let (status, _, page) =
        ask(&world.pages, "GET", &format!("{path}?{}", form(&pairs)), "text/plain", "").await;
    assert_eq!(status, 200, "{path}: {page}");
    assert!(page.contains("name=\"reason\""), "{path} does not ask why: {page}");
    let number = page.split("name=\"number\" value=\"").nth(1).and_then(|rest| rest.split('"').next());
    pairs.insert("number".to_owned(), number.unwrap_or_else(|| panic!("{path}: {page}")).to_owned());
    pairs.insert("reason".to_owned(), REASON.to_owned());
    pairs.insert("confirmed".to_owned(), "yes".to_owned());
    world.calls.lock().unwrap().clear();
    let sent = form(&pairs);
    let (status, _, page) =
        ask(&world.pages, "POST", &path, "application/x-www-form-urlencoded", &sent).await;
    assert_eq!(status, 303, "{path}: {page}");
    let calls = world.calls.lock().unwrap();
    assert_eq!(calls.len(), 1, "{path}: {calls:?}");
    calls[0].clone()
}

fn document(part: &str) -> Value {
    let parsed = |text: &str| serde_json::from_str(text).unwrap();
    match part {
        "gate" => semel_console::document(),
        "outbox" => parsed(include_str!("../outbox/openapi.json")),
        "relay" => parsed(include_str!("relay/openapi.json")),
        "broker" => parsed(semel_broker::openapi()),
        other => panic!("who is {other}?"),
    }
}

/// A path without the names of its places, which a document may choose otherwise.
fn bare(path: &str) -> String {
    let segments = path.split('/').map(|segment| if segment.starts_with('{') { "{}" } else { segment });
    segments.collect::<Vec<_>>().join("/")
}

fn operation<'a>(document: &'a Value, action: &Action) -> &'a Value {
    let paths = document["paths"].as_object().unwrap();
    let found = paths.iter().find(|(path, _)| bare(path) == bare(action.path));
    let method = action.method.to_ascii_lowercase();
    found.map_or(&Value::Null, |(_, methods)| &methods[method])
}

fn resolved<'a>(document: &'a Value, schema: &'a Value) -> &'a Value {
    match schema["$ref"].as_str() {
        Some(path) => resolved(document, document.pointer(path.trim_start_matches('#')).unwrap()),
        None => schema,
    }
}

fn body_of<'a>(document: &'a Value, operation: &'a Value) -> &'a Value {
    resolved(document, &operation["requestBody"]["content"]["application/json"]["schema"])
}

/// Whether a value is of a type that a schema names.
fn is_of(document: &Value, schema: &Value, value: &Value) -> bool {
    let schema = resolved(document, schema);
    let any = ["oneOf", "anyOf"].iter().find_map(|name| schema[*name].as_array());
    if let Some(any) = any {
        return any.iter().any(|schema| is_of(document, schema, value));
    }
    if let Some(words) = schema["enum"].as_array() {
        return words.contains(value);
    }
    let kinds: Vec<&str> = match &schema["type"] {
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect(),
        kind => kind.as_str().into_iter().collect(),
    };
    kinds.iter().any(|kind| match *kind {
        "string" => value.is_string(),
        "integer" | "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "array" => {
            let items = &schema["items"];
            let rows = value.as_array();
            rows.is_some_and(|rows| items.is_null() || rows.iter().all(|row| is_of(document, items, row)))
        }
        "object" => value.is_object(),
        "null" => value.is_null(),
        _ => false,
    })
}

/// Actions that this world has no occasion for, and by what word the part says so.
const REFUSED: &[(&str, &str, &str)] = &[
    ("gate", "seal", "key-in-use"),
    ("gate", "confirm-clock", "clock-not-frozen"),
    ("outbox", "release", "not-held"),
    ("outbox", "confirm-clock", "clock-not-frozen"),
    ("relay", "resolve", "not-in-doubt"),
    ("relay", "confirm-clock", "clock-not-frozen"),
    ("broker", "confirm-clock", "clock_not_frozen"),
];

/// Does one action and holds what came of it against the document and the trail.
async fn does(action: &'static Action) {
    let name = format!("{} {}", action.part, action.name);
    let world = World::start(action.part).await;
    let call = done_by_form(&world, action).await;
    let document = document(action.part);
    let operation = operation(&document, action);
    assert!(operation.is_object(), "{name}: {} {} is in no document", action.method, action.path);
    assert_eq!(call.method, action.method, "{name}");
    assert_eq!(call.path.split('/').count(), action.path.split('/').count(), "{name}: {}", call.path);
    match action.method {
        "DELETE" => assert!(call.query.starts_with("reason="), "{name}: {call:?}"),
        _ => {
            let schema = body_of(&document, operation);
            for (member, value) in call.body.as_object().unwrap() {
                let of = &schema["properties"][member];
                assert!(of.is_object(), "{name} sends {member}, which the document does not know");
                assert!(is_of(&document, of, value), "{name}: {member} is {value}, and not {of}");
            }
            for member in schema["required"].as_array().into_iter().flatten() {
                let is_sent = !call.body[member.as_str().unwrap()].is_null();
                assert!(is_sent, "{name} does not send {member}");
            }
            assert_eq!(call.body["reason"], REASON, "{name}");
        }
    }
    let word = REFUSED.iter().find(|(part, act, _)| (*part, *act) == (action.part, action.name));
    if let Some((.., word)) = word {
        let said = [&call.said["code"], &call.said["error"]];
        assert!(said.iter().any(|said| *said == word), "{name}: {} {}", call.status, call.said);
        return;
    }
    assert!((200..300).contains(&call.status), "{name}: {} {}", call.status, call.said);
    let trail = if action.part == "relay" { "/v1/relay/audit" } else { "/v1/audit" };
    let (_, trail, text) = ask(&world.api, "GET", trail, "text/plain", "").await;
    let rows = trail["audit"].as_array().or(trail["rows"].as_array()).unwrap();
    // Nothing was held at the relay: nothing came back, and there is nothing to tell.
    if action.part == "relay" && ["requeue", "release"].contains(&action.name) {
        return;
    }
    let row = rows.iter().find(|row| row["reason"].as_str().is_some_and(|reason| reason.contains(REASON)));
    let row = row.unwrap_or_else(|| panic!("{name} is in no trail: {text}"));
    assert!(row.to_string().contains("loopback"), "{name} does not say who: {row}");
}

#[tokio::test]
async fn every_action_of_every_part_is_read_by_the_part_and_stands_in_its_trail() {
    let mut wrong = Vec::new();
    for action in ACTIONS {
        // Each by itself, so that all that is wrong is told.
        if tokio::spawn(does(action)).await.is_err() {
            wrong.push(format!("{} {}", action.part, action.name));
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}

/// What a part takes that no form asks for, since the form does what it would say.
const UNASKED: &[(&str, &str, &str)] = &[
    ("gate", "resolve", "body_base64"),
    ("outbox", "requeue", "auto"),
    ("broker", "put-member", "add_token_sha256"),
];

fn agrees(action: &Action) {
    let name = format!("{} {}", action.part, action.name);
    let document = document(action.part);
    let operation = operation(&document, action);
    let parameters = operation["parameters"].as_array().into_iter().flatten();
    let is_reason = |parameter: &Value| parameter["name"] == "reason" && parameter["in"] == "query";
    if action.method == "DELETE" {
        assert!(parameters.clone().any(is_reason), "{name} has no place for a reason");
        assert!(action.fields.iter().all(|field| action.path.contains(field.name)), "{name}");
        return;
    }
    let schema = body_of(&document, operation);
    let known = schema["properties"].as_object().unwrap_or_else(|| panic!("{name} has no body"));
    let in_body = |field: &&semel_console::Field| !named(action.path).contains(&field.name);
    let of_form = action.fields.iter().filter(in_body).map(|field| field.name.split('.').next().unwrap());
    let mut asked: Vec<&str> = of_form.chain(["reason"]).collect();
    let unasked = UNASKED.iter().filter(|(part, act, _)| (*part, *act) == (action.part, action.name));
    asked.extend(unasked.map(|(.., member)| *member));
    asked.extend(action.dry_run.then_some("dry_run"));
    asked.sort_unstable();
    let mut known: Vec<&str> = known.keys().map(String::as_str).collect();
    known.sort_unstable();
    assert_eq!(asked, known, "{name}");
    let needs = |member: &str| {
        let mut required = schema["required"].as_array().into_iter().flatten();
        required.any(|known| known == member)
    };
    assert_eq!(needs("reason"), action.reason == Reason::Needed, "{name}");
    for field in action.fields.iter().filter(in_body).filter(|field| !field.name.contains('.')) {
        // A list is sent where it is empty, too.
        let is_sent = field.is_needed || field.kind == Kind::List;
        assert!(is_sent || !needs(field.name), "{name} needs {}", field.name);
    }
}

#[test]
fn forms_ask_for_what_the_documents_describe_and_for_nothing_else() {
    let is_wrong = |action: &&Action| std::panic::catch_unwind(|| agrees(action)).is_err();
    let wrong: Vec<String> =
        ACTIONS.iter().filter(is_wrong).map(|action| format!("{} {}", action.part, action.name)).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
}

/// A proxy of one's own is believed by every part: it says who asks, who is no operator changes nothing, and whom it does not
/// name is nobody.
#[tokio::test]
async fn every_part_believes_a_proxy_of_ones_own() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("semel.toml");
    let proxy =
        "admin_trusted = \"X-User\"\nadmin_operators = [\"alice\"]\nadmin_hosts = [\"ops.example\"]\n";
    let parts = ["gate", "outbox", "relay", "broker"].map(|part| format!("[{part}]\n{proxy}")).concat();
    std::fs::write(&path, parts).unwrap();
    let (at, config) = ("127.0.0.1:7401".parse().unwrap(), Some(path.clone()));
    let loaded = |part: &str| -> Result<Access, crate::exit::Stop> {
        match part {
            "gate" => {
                let config = crate::config::Config::load(Some(&path), &crate::config::Variables::default())?;
                super::admin::access(&config, at)
            }
            "outbox" => {
                let args = outbox::Args { config: config.clone(), ..outbox::Args::default() };
                outbox::access(&outbox::config::Config::load(&args)?, at)
            }
            "relay" => {
                let flags = relay::config::Flags { config: Some(&path), ..relay::config::Flags::default() };
                relay::access(&relay::config::Config::load(&flags)?, at)
            }
            "broker" => {
                let args = broker::Args { config: config.clone(), ..broker::Args::default() };
                broker::access(&broker::config::Config::load(&args)?, at)
            }
            other => panic!("who is {other}?"),
        }
    };
    for part in ["gate", "outbox", "relay", "broker"] {
        let access = loaded(part).unwrap_or_else(|stop| panic!("{part}: {}", stop.message));
        let echo = axum::routing::post(|headers: http::HeaderMap| async move {
            headers.get("semel-actor").map(|name| name.to_str().unwrap_or("?").to_owned()).unwrap_or_default()
        });
        let router = Surface::new(access).router(Router::new().route("/v1/act", echo));
        let ask = async |user: Option<&str>, host: &str| {
            let mut request = Request::post("/v1/act").header("host", host);
            if let Some(user) = user {
                request = request.header("x-user", user);
            }
            let answer = router.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
            let status = answer.status().as_u16();
            (
                status,
                String::from_utf8(to_bytes(answer.into_body(), 1 << 20).await.unwrap().to_vec()).unwrap(),
            )
        };
        assert_eq!(ask(Some("alice"), "ops.example").await, (200, "alice (proxy)".to_owned()), "{part}");
        assert_eq!(ask(Some("bob"), "ops.example").await.0, 403, "{part}: who is no operator only looks");
        assert_eq!(ask(None, "ops.example").await.0, 401, "{part}: whom the proxy does not name is nobody");
        assert_eq!(ask(Some("alice"), "evil.example").await.0, 421, "{part}");
    }
}

#[tokio::test]
async fn lanes_of_an_outbox_are_paged_by_name() {
    let world = of_outbox().await;
    for lane in ["b", "c", "d", "e"] {
        put(&world.api, "POST", &format!("/v1/lanes/{lane}/pause"), &json!({})).await;
    }
    let (mut found, mut after) = (Vec::new(), String::new());
    loop {
        let (_, page, _) =
            ask(&world.api, "GET", &format!("/v1/lanes?limit=2{after}"), "text/plain", "").await;
        let lanes = page["lanes"].as_array().unwrap();
        assert!(lanes.len() <= 2, "{page}");
        found.extend(lanes.iter().map(|lane| lane["lane"].as_str().unwrap().to_owned()));
        let Some(next) = page["next_after"].as_str() else { break };
        after = format!("&after={}", semel_delivery::url::encoded(next));
    }
    let (_, whole, _) = ask(&world.api, "GET", "/v1/lanes", "text/plain", "").await;
    let all: Vec<&str> =
        whole["lanes"].as_array().unwrap().iter().map(|lane| lane["lane"].as_str().unwrap()).collect();
    assert_eq!((found, all.len()), (all.iter().map(|lane| (*lane).to_owned()).collect(), 5));
}
