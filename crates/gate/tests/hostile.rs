//! What no honest client sends. Bad input is refused with 4xx or taken as the bytes that it is; it never becomes a server
//! error, never a panic, and never a second run. On the store in memory and on the embedded one; no server is needed.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, post};
use futures_util::stream;
use http_body_util::BodyExt;
use proptest::collection::vec;
use proptest::prelude::{Just, ProptestConfig, Strategy, any as arbitrary, prop_oneof, proptest};
use proptest::sample::select;
use semel_contract::identity::Identity;
use semel_contract::key::Presence;
use semel_contract::key::{Format, Pattern, Source, Syntax};
use semel_contract::profile::{Profile, presets};
use semel_gate::testing::MemoryStore;
use semel_gate::{GateBuilder, GateLayer, Grant, Route};
use semel_store::ClaimStore;
use semel_store::clock::SystemClock;
use tower::ServiceExt;

const UUID: &str = "3f1f9c1e-6f0a-4c3b-9b0f-0a1b2c3d4e5f";
/// Far deeper than any JSON that is read, and deep enough to end a parser that recurses.
const NESTED: usize = 10_000;

/// A gate with a handler that counts its runs.
struct World {
    app: Router,
    runs: Arc<AtomicUsize>,
    /// Where the embedded store lives.
    _folder: Option<tempfile::TempDir>,
}

/// One store of each kind that needs no server.
fn stores() -> Vec<(Arc<dyn ClaimStore>, Option<tempfile::TempDir>)> {
    let mut stores: Vec<(Arc<dyn ClaimStore>, _)> = vec![(Arc::new(MemoryStore::new()), None)];
    stores.extend(embedded());
    stores
}

#[cfg(feature = "sqlite")]
fn embedded() -> Option<(Arc<dyn ClaimStore>, Option<tempfile::TempDir>)> {
    use semel_store::sqlite::SqliteStore;

    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(folder.path().join("hostile.db")).unwrap();
    Some((Arc::new(store), Some(folder)))
}

#[cfg(not(feature = "sqlite"))]
fn embedded() -> Option<(Arc<dyn ClaimStore>, Option<tempfile::TempDir>)> {
    None
}

/// Counts its runs under a grant, and says whose they were: two answers for one key are the same bytes.
async fn handle(State(runs): State<Arc<AtomicUsize>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    body.collect().await.expect("the gate has read the body already");
    match parts.extensions.get::<Grant>() {
        Some(grant) => {
            runs.fetch_add(1, Ordering::SeqCst);
            (StatusCode::CREATED, format!("{:?}", grant.id())).into_response()
        }
        None => StatusCode::NO_CONTENT.into_response(),
    }
}

impl World {
    fn new(
        (store, folder): (Arc<dyn ClaimStore>, Option<tempfile::TempDir>),
        routes: impl FnOnce(GateBuilder) -> GateBuilder,
    ) -> Self {
        let identity = "trusted:X-User".parse::<Identity>().unwrap();
        let gate = routes(GateLayer::builder(store).identity(identity)).build().unwrap();
        let runs = Arc::new(AtomicUsize::new(0));
        let mut handlers = Router::new().route("/orders", post(handle)).route("/any/{*rest}", post(handle));
        for (name, _) in presets::PRESETS {
            handlers = handlers.route(&format!("/{name}/{{*rest}}"), any(handle));
        }
        let app = handlers.with_state(Arc::clone(&runs)).layer(gate);
        Self { app, runs, _folder: folder }
    }

    /// Two routes of one profile, on every store.
    fn of(profile: &Profile) -> Vec<Self> {
        let route = |name, pattern| Route::new(name, pattern).unwrap().profile(profile.clone());
        let routes = |gate: GateBuilder| {
            gate.route(route("orders", "POST /orders")).route(route("any", "* /any/{rest*}"))
        };
        stores().into_iter().map(|store| World::new(store, routes)).collect()
    }

    fn runs(&self) -> usize {
        self.runs.load(Ordering::SeqCst)
    }

    async fn send(&self, request: Request) -> (u16, String) {
        let response = self.app.clone().oneshot(request).await.unwrap();
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8_lossy(&body).into_owned())
    }

    /// Sends something that must be refused with this status, and must not run.
    async fn refuses(&self, what: &str, status: u16, request: Request) {
        let before = self.runs();
        let (answered, body) = self.send(request).await;
        assert_eq!((answered, self.runs()), (status, before), "{what}: {body}");
    }

    /// Sends something odd that is nobody's fault: it runs once, and its retry is answered from the record.
    async fn takes_once(&self, what: &str, request: impl Fn() -> Request) {
        let before = self.runs();
        let first = self.send(request()).await;
        assert_eq!((first.0, self.runs()), (201, before + 1), "{what}: {}", first.1);
        assert_eq!((self.send(request()).await, self.runs()), (first, before + 1), "{what}, sent again");
    }
}

/// A well-formed request, to be spoiled.
fn good(key: &str) -> Request {
    let request = Request::post("/orders").header("x-user", "alice").header("idempotency-key", key);
    request.header("content-type", "application/json").body(Body::from("{}")).unwrap()
}

fn without_header(mut request: Request, name: &'static str) -> Request {
    request.headers_mut().remove(name);
    request
}

fn with_header(mut request: Request, name: &'static str, value: &[u8]) -> Request {
    request.headers_mut().insert(name, HeaderValue::from_bytes(value).unwrap());
    request
}

fn with_body(mut request: Request, body: impl Into<Body>) -> Request {
    *request.body_mut() = body.into();
    request
}

fn at(mut request: Request, uri: &str) -> Request {
    *request.uri_mut() = Uri::try_from(uri).unwrap();
    request
}

#[tokio::test]
async fn a_body_that_is_too_large_or_breaks_off_is_refused() {
    let limit = usize::try_from(presets::ietf().stored.max_body_bytes).unwrap();
    for world in World::of(&presets::ietf()) {
        world.refuses("one byte too many", 413, with_body(good("large"), "x".repeat(limit + 1))).await;
        let without_end = stream::repeat_with(|| Ok::<_, std::io::Error>(Bytes::from_static(&[b'x'; 4096])));
        world
            .refuses("a body without end", 413, with_body(good("large"), Body::from_stream(without_end)))
            .await;
        let pieces = [Ok(Bytes::from_static(b"{\"a\"")), Err(std::io::Error::other("gone"))];
        let broken = Body::from_stream(stream::iter(pieces));
        world.refuses("a body that breaks off", 400, with_body(good("large"), broken)).await;
        world.takes_once("as large as may be", || with_body(good("large"), "x".repeat(limit))).await;
    }
}

#[tokio::test]
async fn bytes_that_are_no_text_are_refused_where_text_is_needed_and_taken_elsewhere() {
    let rubbish = [0xff, 0xfe, b'a', 0x80];
    for world in World::of(&presets::ietf()) {
        world.refuses("a principal", 401, with_header(good("k"), "x-user", &rubbish)).await;
        world.refuses("a key", 400, with_header(good("k"), "idempotency-key", &rubbish)).await;
        let quoted = [b"\"".as_slice(), &rubbish, b"\""].concat();
        world.refuses("a quoted key", 400, with_header(good("k"), "idempotency-key", &quoted)).await;
        for name in ["x-request-id", "content-type", "content-length", "accept", "cookie", "traceparent"] {
            world.takes_once(name, || with_header(good(&format!("in-{name}")), name, &rubbish)).await;
        }
        world.takes_once("a body", || with_body(good("body"), rubbish.to_vec())).await;
        let other = with_body(good("body"), [&rubbish[..], &[0]].concat());
        world.refuses("another body under that key", 422, other).await;
    }
}

fn nested(open: &str, close: &str) -> String {
    format!("{}1{}", open.repeat(NESTED), close.repeat(NESTED))
}

#[tokio::test]
async fn json_that_is_too_deep_or_broken_is_taken_as_the_bytes_that_it_is() {
    let bodies = [
        nested("[", "]"),
        nested("{\"a\":", "}"),
        "[".repeat(NESTED),
        "{\"a\":1,\"a\":2}".to_owned(),
        "\"\\ud800\"".to_owned(),
        "1e999999".to_owned(),
        "9".repeat(NESTED),
        "\0".to_owned(),
        "\u{feff}{}".to_owned(),
    ];
    for world in World::of(&presets::ietf()) {
        for (n, body) in bodies.iter().enumerate() {
            let key = format!("json-{n}");
            world.takes_once(&key, || with_body(good(&key), body.clone())).await;
            let longer = with_body(good(&key), format!("{body} "));
            let (status, _) = world.send(longer).await;
            assert!([201, 422].contains(&status), "white space counts where bytes do: {status}");
            world.refuses(&key, 422, with_body(good(&key), "{\"another\":true}")).await;
        }
    }
}

#[tokio::test]
async fn json_that_cannot_be_read_is_refused_where_something_is_read_from_it() {
    let in_body: Source = "json:/id".parse().unwrap();
    let mut profile = Profile { name: "in-body".into(), ..presets::ietf() };
    profile.key.sources = vec![in_body];
    let keyless = || without_header(good("-"), "idempotency-key");
    for world in World::of(&profile) {
        for body in [nested("[", "]"), "{\"id\":\"a\",\"id\":\"b\"}".to_owned(), "{\"id\"".to_owned()] {
            world.refuses("unreadable", 400, with_body(keyless(), body)).await;
        }
        for id in ["\"\"", "\"a\\u0000b\"", "\"\\n\"", "\"\\u007f\"", "7", "null", "[]", "\"\\ud800\""] {
            world.refuses(id, 400, with_body(keyless(), format!("{{\"id\":{id}}}"))).await;
        }
        world.refuses("two keys", 400, with_body(good("-"), "{\"id\":\"a\"}")).await;
        world.takes_once("a good one", || with_body(keyless(), "{\"id\":\"a\"}")).await;
    }
    for world in World::of(&presets::walker()) {
        for body in [nested("[", "]"), nested("{\"clientGeneratedAt\":", "}"), String::new(), "[]".to_owned()]
        {
            world.refuses("no time in it", 400, with_body(good(UUID), body)).await;
        }
        for time in ["\"\\u0000\"", "\"99999-01-01T00:00:00Z\"", "1e400", "\"2025-02-30T00:00:00Z\"", "{}"] {
            let body = format!("{{\"clientGeneratedAt\":{time}}}");
            world.refuses(time, 400, with_body(good(UUID), body)).await;
        }
    }
}

fn many(request: Request, count: usize, line: impl Fn(usize) -> (HeaderName, HeaderValue)) -> Request {
    let (mut parts, body) = request.into_parts();
    for (name, value) in (0..count).map(line) {
        parts.headers.append(name, value);
    }
    Request::from_parts(parts, body)
}

#[tokio::test]
async fn headers_without_number_or_measure_are_refused_or_passed_over() {
    let named = |n: usize| (HeaderName::try_from(format!("x-{n}")).unwrap(), HeaderValue::from(n));
    let line = |name: &'static str, value: &'static str| {
        move |_| (HeaderName::from_static(name), HeaderValue::from_static(value))
    };
    for world in World::of(&presets::ietf()) {
        world.takes_once("5,000 headers", || many(good("many"), 5_000, named)).await;
        for key in ["k", "other"] {
            world.refuses("300 keys", 400, many(good("k"), 300, line("idempotency-key", key))).await;
        }
        world.refuses("two principals", 401, many(good("k"), 1, line("x-user", "bob"))).await;
        let huge = vec![b'x'; 1 << 20];
        world.refuses("a huge key", 400, with_header(good("k"), "idempotency-key", &huge)).await;
        world.refuses("a huge principal", 401, with_header(good("k"), "x-user", &huge)).await;
        for name in ["x-request-id", "content-type", "accept"] {
            world.takes_once(name, || with_header(good(&format!("huge-{name}")), name, &huge)).await;
        }
        for (n, types) in [["text/plain", "application/json"], ["application/json", "application/json"]]
            .into_iter()
            .enumerate()
        {
            let doubled = || many(good(&format!("types-{n}")), 1, line("content-type", types[0]));
            world
                .takes_once("two content types", || many(doubled(), 1, line("content-type", types[1])))
                .await;
        }
        for (n, length) in ["0", "5", "-1", "x", "99999999999999999999999", ""].into_iter().enumerate() {
            let key = format!("length-{n}");
            world.takes_once(length, || with_header(good(&key), "content-length", length.as_bytes())).await;
        }
    }
}

#[tokio::test]
async fn nothing_at_all_is_refused_step_by_step() {
    for world in World::of(&presets::ietf()) {
        let bare = || Request::post("/orders").body(Body::empty()).unwrap();
        world.refuses("no identity", 401, bare()).await;
        world.refuses("an empty identity", 401, with_header(bare(), "x-user", b"")).await;
        let alice = || with_header(bare(), "x-user", b"alice");
        world.refuses("no key", 400, alice()).await;
        for key in ["", " ", "\t", "\"\"", "\"", "\"\\", "\"a\";b=", "\"a\", \"b\""] {
            world.refuses(key, 400, with_header(alice(), "idempotency-key", key.as_bytes())).await;
        }
        world.takes_once("no body", || with_header(alice(), "idempotency-key", b"k")).await;
    }
}

/// Keys on both sides of each format's edge.
fn edges() -> Vec<(Format, Vec<String>, Vec<String>)> {
    let owned = |keys: &[&str]| keys.iter().map(|key| (*key).to_owned()).collect::<Vec<_>>();
    let upper = UUID.to_ascii_uppercase();
    let not_uuids =
        ["3f1f9c1e6f0a4c3b9b0f0a1b2c3d4e5f", &UUID[1..], &format!("{UUID}0"), &format!("{{{UUID}}}")]
            .map(str::to_owned)
            .to_vec();
    let not_v4 = [upper.clone(), UUID.replace("-4c", "-1c"), UUID.replace("-9b", "-7b")].to_vec();
    let letters = Format::Regex(Pattern::parse("[a-z]+|x").unwrap());
    vec![
        (Format::Uuid4Lower, owned(&[UUID]), [not_v4, not_uuids.clone()].concat()),
        (Format::Uuid, owned(&[UUID, &upper, &UUID.replace("-4c", "-1c")]), not_uuids),
        (
            Format::Token255,
            owned(&["a", "-", &"a".repeat(255)]),
            owned(&["a b", "a.b", "é", "\"a\"", &"a".repeat(256)]),
        ),
        (
            Format::Printable255,
            owned(&["~", "a b", &"a".repeat(255)]),
            owned(&["é", "a\tb", &"a".repeat(256)]),
        ),
        (
            Format::Any255,
            owned(&["é", "\u{10ffff}", &"𝄞".repeat(255), "\u{202e}a"]),
            owned(&["\u{80}", "a\u{9f}", "a\tb", &"é".repeat(256)]),
        ),
        (
            Format::Ulid,
            owned(&["01ARZ3NDEKTSV4RRFFQ69G5FAV", "7ZZZZZZZZZZZZZZZZZZZZZZZZZ"]),
            owned(&["81ARZ3NDEKTSV4RRFFQ69G5FAV", "01ARZ3NDEKTSV4RRFFQ69G5FA", "01ARZ3NDEKTSV4RRFFQ69G5FAU"]),
        ),
        (letters, owned(&["abc", &"a".repeat(255)]), owned(&["abc1", "A", &"a".repeat(256)])),
    ]
}

#[tokio::test]
async fn keys_at_the_edge_of_every_format_are_taken_or_refused() {
    for (format, taken, refused) in edges() {
        let mut profile = presets::ietf();
        profile.key.format = format.clone();
        profile.key.syntax = Syntax::Bare;
        for world in World::of(&profile) {
            let keyed = |key: &str| with_header(good("-"), "idempotency-key", key.as_bytes());
            for key in &taken {
                world.takes_once(&format!("{format} {key}"), || keyed(key)).await;
            }
            for key in &refused {
                world.refuses(&format!("{format} {key}"), 400, keyed(key)).await;
            }
        }
    }
}

#[tokio::test]
async fn odd_paths_never_reach_a_protected_handler_by_another_name() {
    let odd = ["//orders", "/orders/", "/orders//", "/./orders", "/../orders", "/orders/..", "/%6frders"];
    let odder = ["/orders%00", "/orders%2f", "/Orders", "/orders;a=1", "/", "/%", "/%zz", "/orders%c0%af"];
    for world in World::of(&presets::ietf()) {
        for path in odd.iter().chain(&odder) {
            world.refuses(path, 404, at(good("k"), path)).await;
        }
        let long = format!("/any/{}", "a/".repeat(30_000));
        for (n, path) in
            ["/any//", "/any/..", "/any/%00", "/any/%2e%2e/%ff", "/any/a?b#c", &long].iter().enumerate()
        {
            let key = format!("path-{n}");
            world.takes_once(path, || at(good(&key), path)).await;
            world.refuses("another path under that key", 422, at(good(&key), "/any/other")).await;
        }
        let query = format!("/orders?{}", "&=%00%&".repeat(5_000));
        world.takes_once("an odd query", || at(good("query"), &query)).await;
    }
}

#[tokio::test]
async fn odd_methods_never_reach_a_protected_handler() {
    for world in World::of(&presets::ietf()) {
        for method in ["post", "Post", "BREW", "PUT", "GET", "TRACE", "CONNECT", "!#$%&'*+-.^_`|~0"] {
            for path in ["/orders", "/any/x"] {
                let mut request = at(good(&format!("{method}{path}")), path);
                *request.method_mut() = Method::from_bytes(method.as_bytes()).unwrap();
                world.refuses(method, 405, request).await;
            }
        }
    }
}

/// Requests as bytes on a socket, and the statuses that may answer them; 0 is a connection closed without an answer. On
/// those that may go unanswered the client hangs up when it has said all.
fn on_the_wire() -> Vec<(String, &'static [u16])> {
    let head = "host: a\r\nconnection: close\r\nx-user: alice\r\nidempotency-key: k\r\n";
    let request = |line: &str, more: &str| format!("{line}\r\n{head}{more}\r\n");
    let post = |more: &str| request("POST /orders HTTP/1.1", more);
    vec![
        (post("content-length: 10\r\n") + "abc", &[0, 400]),
        (post("content-length: x\r\n"), &[400]),
        (post("content-length: -1\r\n"), &[400]),
        (post("content-length: 1\r\ncontent-length: 2\r\n") + "ab", &[400]),
        (post("transfer-encoding: chunked\r\n") + "zz\r\n", &[0, 400]),
        (post("transfer-encoding: chunked\r\n") + "ffffffffffffffffff\r\n", &[0, 400]),
        (post("x-a: a\0b\r\n"), &[400]),
        (post("idempotency-key: k\r\n"), &[400]),
        (post(&format!("x-a: {}\r\n", "a".repeat(1 << 20))), &[0, 431]),
        (post(&(0..5_000).map(|n| format!("x-{n}: {n}\r\n")).collect::<String>()), &[0, 431]),
        (request("POST /orders\0 HTTP/1.1", ""), &[400]),
        (request("POST //orders HTTP/1.1", ""), &[404]),
        (request(&format!("POST /{} HTTP/1.1", "a".repeat(1 << 17)), ""), &[0, 414, 431]),
        (request("POST /orders HTTP/9.9", ""), &[0, 400]),
        (request("post /orders HTTP/1.1", ""), &[405]),
        (request("BREW /orders HTTP/1.1", ""), &[405]),
        (request("POST * HTTP/1.1", ""), &[400, 404]),
        ("\0\0\0\0\r\n\r\n".to_owned(), &[0, 400]),
        ("\r\n\r\n".to_owned(), &[0, 400]),
    ]
}

/// Sends bytes and reads the status of what comes back; 0 is nothing.
fn status_of(address: std::net::SocketAddr, bytes: &[u8], hangs_up: bool) -> u16 {
    use std::io::{Read, Write};

    let mut socket = std::net::TcpStream::connect(address).expect("it listens");
    socket.set_read_timeout(Some(std::time::Duration::from_secs(10))).expect("a timeout");
    // A server that has heard enough may close before all is said.
    let _ = socket.write_all(bytes);
    if hangs_up {
        let _ = socket.shutdown(std::net::Shutdown::Write);
    }
    let mut answer = Vec::new();
    let _ = socket.read_to_end(&mut answer);
    let answer = String::from_utf8_lossy(&answer);
    answer.split(' ').nth(1).map_or(0, |status| status.parse().expect("a status"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_are_broken_on_the_wire_run_nothing() {
    for world in World::of(&presets::ietf()) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tokio::spawn(axum::serve(listener, world.app.clone()).into_future());
        let ask = |bytes: String, hangs_up| {
            tokio::task::spawn_blocking(move || status_of(address, bytes.as_bytes(), hangs_up))
        };
        for (bytes, allowed) in on_the_wire() {
            let shown: String = bytes.chars().take(120).collect();
            let status = ask(bytes, allowed.contains(&0)).await.unwrap();
            assert!(allowed.contains(&status), "{status}, not one of {allowed:?}: {shown:?}");
            assert_eq!(world.runs(), 0, "{shown:?}");
        }
        let good = "POST /orders HTTP/1.1\r\nhost: a\r\nconnection: close\r\nx-user: alice\r\nidempotency-key: k\r\n\r\n";
        let status = ask(good.to_owned(), false).await.unwrap();
        assert_eq!((status, world.runs()), (201, 1), "it still serves");
        server.abort();
    }
}

/// A request of the property, as it is thrown at the gate.
#[derive(Clone, Debug)]
struct Thrown {
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Vec<u8>,
}

impl Thrown {
    fn request(&self) -> Request {
        let mut request = Request::new(Body::from(self.body.clone()));
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = self.uri.clone();
        *request.headers_mut() = self.headers.clone();
        request
    }
}

fn header_line() -> impl Strategy<Value = (HeaderName, HeaderValue)> {
    let known = [
        "idempotency-key",
        "x-idempotency-key",
        "x-client-tx-id",
        "x-user",
        "x-request-id",
        "content-type",
        "content-length",
        "semel-outcome",
        "connection",
        "authorization",
    ];
    let name = prop_oneof![3 => select(known.map(str::to_owned).to_vec()), 1 => "[a-z0-9-]{1,12}"];
    let value = prop_oneof![
        vec(arbitrary::<u8>(), 0..64),
        select(vec!["k", "\"k\"", "k2", UUID, "application/json", "text/plain", "alice", ""])
            .prop_map(|text| text.as_bytes().to_vec()),
    ];
    (name, value).prop_filter_map("a header of HTTP", |(name, value)| {
        Some((HeaderName::try_from(name).ok()?, HeaderValue::from_bytes(&value).ok()?))
    })
}

fn thrown() -> impl Strategy<Value = Thrown> {
    let method = prop_oneof![
        4 => Just(Method::POST),
        1 => "[!-~]{1,8}".prop_filter_map("a method", |text| Method::from_bytes(text.as_bytes()).ok()),
    ];
    let presets = select(presets::PRESETS.map(|(name, _)| name).to_vec());
    let uri = (presets, "[ -~]{0,16}")
        .prop_filter_map("a path", |(preset, rest)| Uri::try_from(format!("/{preset}/{rest}")).ok());
    let now = semel_store::clock::Clock::read(&SystemClock).wall.to_string();
    let body = prop_oneof![
        vec(arbitrary::<u8>(), 0..256),
        select(vec![
            String::new(),
            "{}".to_owned(),
            format!("{{\"client_message_id\":\"k\",\"clientGeneratedAt\":\"{now}\"}}"),
            "[".repeat(300),
        ])
        .prop_map(String::into_bytes),
    ];
    // Most know a caller and have a key, so that they come as far as the handler.
    let usual = (arbitrary::<bool>(), select(vec!["k", "\"k\"", "k2", UUID]));
    (method, uri, vec(header_line(), 0..6), usual, body).prop_map(|(method, uri, lines, usual, body)| {
        let mut headers = HeaderMap::new();
        if let (true, key) = usual {
            for (name, value) in [("x-user", "alice"), ("idempotency-key", key), ("x-idempotency-key", key)] {
                headers.insert(name, HeaderValue::from_static(value));
            }
            headers.insert("x-client-tx-id", HeaderValue::from_static("t"));
        }
        for (name, value) in lines {
            headers.append(name, value);
        }
        Thrown { method, uri, headers, body }
    })
}

/// Throws each twice, and sees that what is accepted ran once for each key.
async fn throw(world: &World, thrown: &[Thrown]) {
    let mut accepted = BTreeSet::new();
    for thrown in thrown {
        let first = world.send(thrown.request()).await;
        let second = world.send(thrown.request()).await;
        for (status, body) in [&first, &second] {
            assert!(*status < 500, "{status} {body}: {thrown:?}");
            if (200..300).contains(status) && !body.is_empty() {
                accepted.insert(body.clone());
            }
        }
        if first.0 == 201 {
            assert_eq!(first.1, second.1, "the retry is answered from the record: {thrown:?}");
        }
    }
    assert_eq!(world.runs(), accepted.len(), "one run for each accepted key: {accepted:?}");
}

/// A route of every preset, all behind one handler.
fn presets_on(store: (Arc<dyn ClaimStore>, Option<tempfile::TempDir>)) -> World {
    World::new(store, |gate| {
        presets::PRESETS.iter().fold(gate, |gate, (name, make)| {
            let mut profile = make();
            // A minted key makes every send a request of its own, which is not what is looked at here.
            if profile.key.presence == Presence::Mint {
                profile.key.presence = Presence::Required;
            }
            gate.route(Route::new(name, &format!("* /{name}/{{rest*}}")).unwrap().profile(profile))
        })
    })
}

fn throw_on(store: (Arc<dyn ClaimStore>, Option<tempfile::TempDir>), all: &[Thrown]) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { throw(&presets_on(store), all).await });
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) })]

    #[test]
    fn whatever_is_thrown_at_the_gate_in_memory_is_answered_and_runs_once_for_each_key(
        all in vec(thrown(), 1..12)
    ) {
        throw_on(stores().remove(0), &all);
    }
}

proptest! {
    // Each of these waits for the disk.
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(32) })]

    #[test]
    fn whatever_is_thrown_at_the_gate_on_disk_is_answered_and_runs_once_for_each_key(
        all in vec(thrown(), 1..12)
    ) {
        for store in stores().into_iter().skip(1) {
            throw_on(store, &all);
        }
    }
}
