//! A server that keeps the Idempotency-Key draft, except for one fault. Deliberately not built with semel.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use rustls::pki_types::PrivateKeyDer;
use serde_json::json;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// Long enough that requests sent together overlap.
const WORK: Duration = Duration::from_millis(60);

/// The one thing that a server does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    NoneButWaits,
    OtherHeader,
    RefusesQuotes,
    NeedsNoKey,
    TakesAnyKey,
    LooksAtQuotes,
    RunsRetries,
    IgnoresPayloads,
    RunsTogether,
    PlainErrors,
    SharesKeys,
}

#[derive(Default)]
struct Known {
    payload: Bytes,
    in_flight: bool,
    answer: Option<u64>,
}

struct Server {
    fault: Option<Fault>,
    effects: Mutex<u64>,
    known: Mutex<HashMap<(String, String), Known>>,
}

enum Step {
    Run,
    Replay(u64),
    Wait,
    Conflict,
    Mismatch,
}

/// Serves on a free port, until the test ends.
pub(crate) async fn serve(fault: Option<Fault>) -> String {
    listen(router(fault)).await
}

fn router(fault: Option<Fault>) -> Router {
    let server = Arc::new(Server { fault, effects: Mutex::default(), known: Mutex::default() });
    let effects = |State(server): State<Arc<Server>>| async move {
        Json(json!({"effects": *server.effects.lock().unwrap()}))
    };
    Router::new().route("/orders", post(order)).route("/effects", get(effects)).with_state(server)
}

pub(crate) async fn listen(router: Router) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let origin = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await });
    origin
}

/// Serves by TLS, and writes down whom to believe.
pub(crate) async fn serve_tls(fault: Option<Fault>, authority: &Path) -> String {
    let certified = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    std::fs::write(authority, certified.cert.pem()).unwrap();
    let key = PrivateKeyDer::try_from(certified.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certified.cert.der().clone()], key)
        .unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let listener = Tls(listener, TlsAcceptor::from(Arc::new(config)));
    tokio::spawn(async move { axum::serve(listener, router(fault)).await });
    format!("https://localhost:{port}")
}

struct Tls(tokio::net::TcpListener, TlsAcceptor);

impl axum::serve::Listener for Tls {
    type Io = TlsStream<tokio::net::TcpStream>;
    type Addr = std::net::SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            let (stream, address) = self.0.accept().await.unwrap();
            // A client that does not believe us hangs up.
            if let Ok(stream) = self.1.accept(stream).await {
                return (stream, address);
            }
        }
    }

    fn local_addr(&self) -> std::io::Result<Self::Addr> {
        self.0.local_addr()
    }
}

async fn order(State(server): State<Arc<Server>>, headers: HeaderMap, body: Bytes) -> Response {
    let key = match server.key(&headers) {
        Ok(Some(key)) => key,
        Ok(None) if server.has(Fault::NeedsNoKey) => return answer(server.work().await),
        Ok(None) => return server.error(400, "a key is required"),
        Err(why) => return server.error(400, why),
    };
    let caller = if server.has(Fault::SharesKeys) { None } else { headers.get(header::AUTHORIZATION) };
    let id = (caller.map(|value| value.to_str().unwrap().to_owned()).unwrap_or_default(), key);
    loop {
        match server.decide(&id, &body) {
            Step::Run => break,
            Step::Replay(effect) => return answer(effect),
            Step::Wait => tokio::time::sleep(Duration::from_millis(5)).await,
            Step::Conflict => return server.error(409, "a request with this key is under way"),
            Step::Mismatch => return server.error(422, "the key was used for another payload"),
        }
    }
    let effect = server.work().await;
    let mut known = server.known.lock().unwrap();
    let known = known.entry(id).or_default();
    (known.in_flight, known.answer) = (false, Some(effect));
    answer(effect)
}

impl Server {
    fn has(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    fn key(&self, headers: &HeaderMap) -> Result<Option<String>, &'static str> {
        let name = if self.has(Fault::OtherHeader) { "x-request-key" } else { "idempotency-key" };
        let lines: Vec<_> = headers.get_all(name).iter().collect();
        let text = match lines.as_slice() {
            [] => return Ok(None),
            [line, ..] => line.to_str().map_err(|_| "the key is not ASCII")?,
        };
        if self.has(Fault::TakesAnyKey) {
            return Ok(Some(text.to_owned()));
        }
        if lines.len() > 1 && !self.has(Fault::LooksAtQuotes) {
            return Err("more than one key");
        }
        let inner = text.strip_prefix('"').and_then(|text| text.strip_suffix('"'));
        let is_plain = |text: &&str| !text.is_empty() && !text.contains(['"', '\\']);
        match inner.filter(|text| self.has(Fault::LooksAtQuotes) || is_plain(text)) {
            Some(_) if self.has(Fault::RefusesQuotes) => Err("no quotes, please"),
            Some(key) => Ok(Some(key.to_owned())),
            None => Err("the key is not a String"),
        }
    }

    fn decide(&self, id: &(String, String), payload: &Bytes) -> Step {
        let mut all = self.known.lock().unwrap();
        let Some(known) = all.get_mut(id) else {
            all.insert(id.clone(), Known { payload: payload.clone(), in_flight: true, answer: None });
            return Step::Run;
        };
        if known.payload != *payload && !self.has(Fault::IgnoresPayloads) {
            return Step::Mismatch;
        }
        if known.in_flight {
            return match self.fault {
                Some(Fault::RunsTogether) => Step::Run,
                Some(Fault::NoneButWaits) => Step::Wait,
                _ => Step::Conflict,
            };
        }
        match known.answer {
            Some(effect) if !self.has(Fault::RunsRetries) => Step::Replay(effect),
            _ => {
                known.in_flight = true;
                Step::Run
            }
        }
    }

    async fn work(&self) -> u64 {
        tokio::time::sleep(WORK).await;
        let mut effects = self.effects.lock().unwrap();
        *effects += 1;
        *effects
    }

    fn error(&self, status: u16, words: &'static str) -> Response {
        let status = StatusCode::from_u16(status).unwrap();
        if self.has(Fault::PlainErrors) {
            return (status, words).into_response();
        }
        let body = json!({"type": "https://example.com/idempotency", "title": words}).to_string();
        (status, [(header::CONTENT_TYPE, "application/problem+json")], body).into_response()
    }
}

fn answer(effect: u64) -> Response {
    (StatusCode::CREATED, Json(json!({"id": effect}))).into_response()
}
