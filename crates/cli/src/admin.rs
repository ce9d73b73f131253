//! How a command asks a gate, a relay or a broker: the process that owns the store, by its admin address, or the part's own
//! router over a store that nobody else owns. Owns how long an answer is waited for, and which exit code a refusal has. Sends
//! nothing twice, and nothing that changes anything to a server that is not semel's.

use std::io;
use std::path::Path;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use http_body_util::BodyExt;
use semel_store::sqlite;
use serde_json::Value;
use tower::ServiceExt;

use crate::client::{Connection, Target};
use crate::exit::{Exit, Stop};

/// How long a connection may take.
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// How long a call may take. A sweep of a large store is the longest.
const PATIENCE: Duration = Duration::from_secs(120);
/// How often an owner that has just begun is looked at, and how long between the looks.
const LOOKS_MAX: u32 = 50;
const BETWEEN_LOOKS: Duration = Duration::from_millis(100);

/// What is asked.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Part {
    Gate,
    Relay,
    Broker,
}

impl Part {
    fn name(self) -> &'static str {
        match self {
            Part::Gate => "gate",
            Part::Relay => "relay",
            Part::Broker => "broker",
        }
    }

    /// The port of its admin address, where none is said.
    fn port(self) -> u16 {
        match self {
            Part::Gate => 7401,
            Part::Relay => 7421,
            Part::Broker => 7431,
        }
    }
}

/// Who owns a file. An owner that has just begun says where it is asked a moment after it has the file.
pub(crate) async fn owner_of(path: &Path) -> io::Result<sqlite::Owner> {
    for _ in 0..LOOKS_MAX {
        match sqlite::owner(path) {
            Ok(owner) if owner.admin.is_some() => return Ok(owner),
            Ok(_) | Err(_) => tokio::time::sleep(BETWEEN_LOOKS).await,
        }
    }
    sqlite::owner(path)
}

/// Somebody who can be asked.
#[derive(Clone)]
pub(crate) struct Caller {
    part: Part,
    to: To,
    headers: HeaderMap,
}

#[derive(Clone)]
enum To {
    /// The admin address of a process.
    Admin(Target),
    /// Where members of a mesh connect, who may stand before a proxy of their own.
    Members(Target),
    /// This process.
    Here(Router),
}

impl Caller {
    /// An admin address, with the token of a file.
    pub(crate) fn at(part: Part, url: &str, token_file: Option<&Path>) -> Result<Self, Stop> {
        let bad = |why: &str| Stop::new(Exit::Usage, format!("the admin address {url}: {why}"));
        let target = Target::parse(url).map_err(|why| bad(&why))?.or_port(part.port()).reachable();
        if target.path() != "/" {
            return Err(bad("say it without a path"));
        }
        Ok(Self { part, to: To::Admin(target), headers: bearer(token_file)? })
    }

    /// The process that owns a file.
    pub(crate) async fn owner(part: Part, path: &Path, token_file: Option<&Path>) -> Result<Self, Stop> {
        let owner = owner_of(path).await.unwrap_or_default();
        let Some(address) = owner.admin else {
            let who =
                owner.process.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"));
            let path = path.display();
            let what = format!(
                "{who} owns {path} and has not said where it can be asked; say --admin URL, or stop it"
            );
            return Err(Stop::new(Exit::Unreachable, what));
        };
        Self::at(part, &address, token_file)
    }

    /// A router in this process.
    pub(crate) fn here(part: Part, router: Router) -> Self {
        Self { part, to: To::Here(router), headers: HeaderMap::new() }
    }

    /// Where the members of a broker connect, with the token of one of them.
    pub(crate) fn member(url: &str, token_file: &Path) -> Result<Self, Stop> {
        let target = Target::parse(url).map_err(|why| Stop::new(Exit::Usage, format!("--url: {why}")))?;
        Ok(Self { part: Part::Broker, to: To::Members(target), headers: bearer(Some(token_file))? })
    }

    /// The same, in the name of somebody.
    pub(crate) fn by(mut self, actor: &str) -> Result<Self, Stop> {
        let name = HeaderValue::try_from(actor)
            .map_err(|_| Stop::new(Exit::Usage, "--by: a name has visible characters only"))?;
        self.headers.insert(semel_console::ACTOR, name);
        Ok(self)
    }

    /// Whether somebody listens there.
    pub(crate) async fn answers(&self) -> bool {
        match &self.to {
            To::Admin(target) | To::Members(target) => {
                Connection::open(target, Duration::from_secs(2)).await.is_ok()
            }
            To::Here(_) => true,
        }
    }

    /// Asks for something.
    pub(crate) async fn get(&self, path: &str) -> Result<Value, Stop> {
        self.call(Method::GET, path, None).await?.done()
    }

    /// Has something done.
    pub(crate) async fn post(&self, path: &str, body: Value) -> Result<Value, Stop> {
        self.call(Method::POST, path, Some(body)).await?.done()
    }

    /// Has something done that may be refused.
    pub(crate) async fn try_post(&self, path: &str, body: Value) -> Result<Answered, Stop> {
        self.call(Method::POST, path, Some(body)).await
    }

    /// Has something made, or made different.
    pub(crate) async fn put(&self, path: &str, body: Value) -> Result<Value, Stop> {
        self.call(Method::PUT, path, Some(body)).await?.done()
    }

    /// Has something removed.
    pub(crate) async fn delete(&self, path: &str) -> Result<Value, Stop> {
        self.call(Method::DELETE, path, None).await?.done()
    }

    async fn call(&self, method: Method, path: &str, body: Option<Value>) -> Result<Answered, Stop> {
        let mut headers = self.headers.clone();
        if body.is_some() {
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        let body = Bytes::from(body.map(|body| body.to_string()).unwrap_or_default());
        let (status, bytes) = match &self.to {
            To::Here(router) => self.ask_here(router.clone(), method, path, headers, body).await?,
            To::Admin(target) => {
                if method != Method::GET {
                    // Nothing is sent to somebody who may be something else altogether.
                    self.ask(target, &Method::GET, "/healthz", &self.headers, Bytes::new()).await?;
                }
                self.ask(target, &method, path, &headers, body).await?
            }
            To::Members(target) => self.ask(target, &method, path, &headers, body).await?,
        };
        // What has nothing to say says nothing.
        let value = match bytes.is_empty() && status.is_success() {
            true => Value::Null,
            false => serde_json::from_slice(&bytes).map_err(|_| {
                self.away(&format!("the answer ({status}) is not that of a {}", self.part.name()))
            })?,
        };
        Ok(Answered { part: self.part, status, value })
    }

    async fn ask_here(
        &self,
        router: Router,
        method: Method,
        path: &str,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<(StatusCode, Bytes), Stop> {
        let request = http::Request::builder().method(method).uri(path).body(Body::from(body));
        let mut request = request.map_err(|error| self.away(&error.to_string()))?;
        *request.headers_mut() = headers;
        request.headers_mut().insert(header::HOST, HeaderValue::from_static("localhost"));
        let response = router.oneshot(request).await.unwrap_or_else(|never| match never {});
        let (parts, body) = response.into_parts();
        let body = body.collect().await.map_err(|error| self.away(&error.to_string()))?;
        Ok((parts.status, body.to_bytes()))
    }

    async fn ask(
        &self,
        target: &Target,
        method: &Method,
        path: &str,
        headers: &HeaderMap,
        body: Bytes,
    ) -> Result<(StatusCode, Bytes), Stop> {
        let target = target.below(path).map_err(|why| Stop::new(Exit::Usage, why))?;
        let failed = |error: crate::client::Failure| self.away(&error.to_string());
        let mut connection = Connection::open(&target, CONNECT_MAX).await.map_err(failed)?;
        let answer = connection.send(&target, method, headers, body, PATIENCE).await.map_err(failed)?;
        if matches!(self.to, To::Admin(_)) && !answer.headers.contains_key(semel_console::MARK) {
            return Err(self.away("what answers there is not an admin address of semel"));
        }
        let status = StatusCode::from_u16(answer.status).map_err(|error| self.away(&error.to_string()))?;
        Ok((status, answer.body))
    }

    fn away(&self, why: &str) -> Stop {
        let part = self.part.name();
        let what = match &self.to {
            To::Admin(target) | To::Members(target) => {
                format!("failed to ask the {part} at {}: {why}", target.authority())
            }
            To::Here(_) => format!("failed to ask the {part}'s store: {why}"),
        };
        Stop::new(Exit::Unreachable, what)
    }
}

/// What was answered.
pub(crate) struct Answered {
    part: Part,
    pub(crate) status: StatusCode,
    pub(crate) value: Value,
}

impl Answered {
    /// The stable word of a refusal.
    pub(crate) fn code(&self) -> &str {
        self.value["code"].as_str().unwrap_or_default()
    }

    /// What was asked for, or why not.
    pub(crate) fn done(self) -> Result<Value, Stop> {
        if self.status.is_success() {
            return Ok(self.value);
        }
        let said =
            ["detail", "message", "reason", "error"].iter().find_map(|name| self.value[*name].as_str());
        let why =
            said.map_or_else(|| format!("the {} answered {}", self.part.name(), self.status), str::to_owned);
        let (exit, more) = match self.code() {
            "token-needed" => (Exit::Refused, "; name the token's file with --token-file"),
            "bad-request" => (Exit::Usage, ""),
            "store-full" | "commit-unknown" => (Exit::Unreachable, ""),
            _ if self.status == StatusCode::SERVICE_UNAVAILABLE => (Exit::Unreachable, ""),
            _ => (Exit::Refused, ""),
        };
        Err(Stop::new(exit, format!("{why}{more}")))
    }
}

/// Why something is done.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Why {
    /// Why; stands in the audit trail.
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
}

impl Why {
    /// A body that also says why.
    pub(crate) fn beside(&self, mut body: Value) -> Value {
        if let Some(reason) = &self.reason {
            body["reason"] = Value::from(reason.as_str());
        }
        body
    }

    /// The address of what is removed, with the reason: a removal has no body.
    pub(crate) fn below(&self, path: &str) -> String {
        let reason = self.reason.as_deref().map(semel_delivery::url::encoded);
        reason.map_or_else(|| path.to_owned(), |reason| format!("{path}?reason={reason}"))
    }
}

/// Who uses this shell, for the audit trail.
pub(crate) fn user() -> String {
    let named = ["USER", "LOGNAME"].into_iter().find_map(|name| std::env::var(name).ok());
    let is_fit = |name: &String| !name.is_empty() && name.chars().all(|char| char.is_ascii_graphic());
    named.filter(is_fit).unwrap_or_else(|| {
        // SAFETY: it takes nothing and cannot fail.
        format!("uid {}", unsafe { libc::getuid() })
    })
}

/// The header that carries the token of a file.
fn bearer(token_file: Option<&Path>) -> Result<HeaderMap, Stop> {
    let mut headers = HeaderMap::new();
    let Some(path) = token_file else { return Ok(headers) };
    let failed = |why: String| Stop::new(Exit::Io, format!("the token file {}: {why}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| failed(error.to_string()))?;
    let mut value = HeaderValue::try_from(format!("Bearer {}", text.trim()))
        .map_err(|_| failed("it is not a token".to_owned()))?;
    value.set_sensitive(true);
    headers.insert(header::AUTHORIZATION, value);
    Ok(headers)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use semel_store::clock::SystemClock;

    use super::*;

    fn target(url: &str) -> Result<String, Stop> {
        match Caller::at(Part::Relay, url, None)?.to {
            To::Admin(target) => Ok(target.to_string()),
            To::Members(_) | To::Here(_) => unreachable!("an address was said"),
        }
    }

    #[test]
    fn an_admin_address_has_the_parts_own_port_and_no_path() {
        assert_eq!(target("http://ops.example").unwrap(), "http://ops.example:7421/");
        assert_eq!(target("127.0.0.1:9").unwrap(), "http://127.0.0.1:9/");
        assert_eq!(target("http://0.0.0.0:7401").unwrap(), "http://127.0.0.1:7401/");
        assert_eq!(target("http://[::]").unwrap(), "http://[::1]:7421/");
        for wrong in ["ftp://ops.example", "http://ops.example/admin", ""] {
            assert_eq!(target(wrong).unwrap_err().exit, Exit::Usage, "{wrong}");
        }
    }

    #[test]
    fn a_refusal_says_why_and_ends_the_command_alike_for_every_part() {
        for (code, status, exit) in [
            ("token-needed", 401, Exit::Refused),
            ("bad-request", 400, Exit::Usage),
            ("no-such-record", 404, Exit::Refused),
            ("store-unavailable", 503, Exit::Unreachable),
            ("store-full", 507, Exit::Unreachable),
        ] {
            let value = serde_json::json!({"code": code, "detail": "because"});
            let status = StatusCode::from_u16(status).unwrap();
            let stop = Answered { part: Part::Broker, status, value }.done().unwrap_err();
            assert_eq!(stop.exit, exit, "{code}");
            assert!(stop.message.contains("because"), "{}", stop.message);
        }
    }

    /// A process has its file a moment before it can say where it is asked.
    #[tokio::test(flavor = "multi_thread")]
    async fn an_owner_that_has_just_begun_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("relay.db");
        let file = semel_delivery::relay::store::sqlite::Sqlite::open(&path, Arc::new(SystemClock)).unwrap();
        let asked = tokio::spawn({
            let path = path.clone();
            async move {
                Caller::owner(Part::Relay, &path, None).await.map(|caller| !matches!(caller.to, To::Here(_)))
            }
        });
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert!(!asked.is_finished(), "it does not give up at once");
        file.publish_admin("127.0.0.1:7421").unwrap();
        assert!(matches!(asked.await.unwrap(), Ok(true)));
    }
}
