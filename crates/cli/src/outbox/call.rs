//! How a command reaches the outbox: the daemon that owns the file, by the address in the file's lock; or the file itself.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::body::Body;
use axum::http::{Request, header};
use http_body_util::{BodyExt, Limited};
use semel_delivery::credentials::Wallet;
use semel_delivery::url::Target;
use semel_delivery::{Outbox, OutboxError, Settings};
use semel_http::{BodyBounds, BodyRoom};
use semel_store::sqlite::OpenError;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tower::ServiceExt as _;

use super::Which;
use super::api::router;
use super::body::Api;
use super::place::Place;
use crate::admin::owner_of;
use crate::client::Connection;
use crate::exit::{Exit, Stop};

/// The file that `sqlite:PATH` names.
pub(crate) fn store_path(store: &str) -> Result<PathBuf, String> {
    match store.strip_prefix("sqlite:") {
        Some(path) if !path.is_empty() => Ok(PathBuf::from(path)),
        _ => Err(format!(
            "bad store {store:?}: the outbox keeps its messages in a file of its own, sqlite:PATH"
        )),
    }
}

/// Largest answer that is read.
const ANSWER_BYTES_MAX: usize = 256 << 20;

/// What is asked.
pub(crate) struct Call {
    method: &'static str,
    path: String,
    body: Vec<u8>,
    prefer: Option<String>,
}

impl Call {
    pub(crate) fn get(path: String) -> Self {
        Self { method: "GET", path, body: Vec::new(), prefer: None }
    }

    pub(crate) fn post(path: String, body: &Value) -> Self {
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        Self { method: "POST", path, body, prefer: None }
    }

    pub(crate) fn text(path: String, body: String, prefer: Option<String>) -> Self {
        Self { method: "POST", path, body: body.into_bytes(), prefer }
    }

    fn request(self, host: &str, token: Option<&str>) -> Result<Request<Body>, Stop> {
        let mut request = Request::builder().method(self.method).uri(self.path).header(header::HOST, host);
        if !self.body.is_empty() {
            request = request
                .header(header::CONTENT_TYPE, "application/json")
                .header(header::CONTENT_LENGTH, self.body.len());
        }
        if self.method != "GET" {
            request = request.header(semel_console::ACTOR, crate::admin::user());
        }
        if let Some(prefer) = self.prefer {
            request = request.header("prefer", prefer);
        }
        if let Some(token) = token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        request.body(Body::from(self.body)).map_err(|error| Stop::new(Exit::Usage, error.to_string()))
    }
}

/// Who answers.
pub(crate) enum Caller {
    /// The daemon on a socket.
    Unix(PathBuf),
    /// The daemon on TCP.
    Tcp(String, Option<String>),
    /// Nobody: the file itself.
    File(Box<Api>),
}

impl Caller {
    /// Finds the daemon, or opens a file that is there: whoever only looks does not make one.
    pub(crate) async fn existing(which: &Which) -> Result<Self, Stop> {
        let path = path_of(which, &place_of(which)?)?;
        if !path.exists() {
            let what = format!("there is no outbox at sqlite:{}; say --store sqlite:PATH", path.display());
            return Err(Stop::new(Exit::Io, what));
        }
        Self::find(which, None).await
    }

    /// Finds the daemon, or opens the file, which is made where there is none.
    pub(crate) async fn find(which: &Which, upstream: Option<&str>) -> Result<Self, Stop> {
        let place = place_of(which)?;
        let path = path_of(which, &place)?;
        let wallet = Arc::new(Wallet::default());
        let upstream = upstream.map(Target::absolute).transpose();
        let settings = Settings {
            upstream: upstream.map_err(|error| Stop::new(Exit::Usage, format!("--upstream: {error}")))?,
            credentials: Arc::clone(&wallet) as _,
            ..Settings::default()
        };
        let mesh = place.mesh()?.map(Arc::new);
        let bodies = Arc::new(BodyRoom::new(BodyBounds::default()));
        match Outbox::open(&path, settings).await {
            Ok(outbox) => Ok(Caller::File(Box::new(Api { outbox, wallet, mesh, receiving: None, bodies }))),
            Err(OutboxError::Open(OpenError::Locked { lock_file, .. })) => {
                Self::daemon(&path, &lock_file, which).await
            }
            Err(error) => Err(Stop::new(Exit::Io, format!("{error} ({})", path.display()))),
        }
    }

    async fn daemon(path: &Path, lock_file: &Path, which: &Which) -> Result<Self, Stop> {
        let away = |why: String| Stop::new(Exit::Unreachable, why);
        let owner = owner_of(path)
            .await
            .map_err(|error| away(format!("failed to read {}: {error}", lock_file.display())))?;
        let address = owner.admin.unwrap_or_default();
        if let Some(path) = address.strip_prefix("unix:") {
            return Ok(Caller::Unix(PathBuf::from(path)));
        }
        let Some(host) = address.strip_prefix("http://") else {
            return Err(away(format!("{} is locked by a process that is no outbox", lock_file.display())));
        };
        let token = which.token_file.clone().or(owner.token_file).map(|path| {
            std::fs::read_to_string(&path).map(|text| text.trim().to_owned()).map_err(|error| {
                Stop::new(Exit::Refused, format!("the token in {}: {error}", path.display()))
            })
        });
        Ok(Caller::Tcp(host.to_owned(), token.transpose()?))
    }

    /// Whether a daemon answers, which sends what is queued.
    pub(crate) fn is_daemon(&self) -> bool {
        !matches!(self, Caller::File(_))
    }

    /// Asks; answers with what comes, as it comes.
    pub(crate) async fn open(&self, call: Call) -> Result<axum::http::Response<Body>, Stop> {
        match self {
            Caller::File(api) => {
                let request = call.request("outbox", None)?;
                router((**api).clone()).oneshot(request).await.map_err(|error| away(&error))
            }
            Caller::Unix(path) => {
                let stream = UnixStream::connect(path).await.map_err(|error| away(&error))?;
                exchange(stream, call.request("outbox", None)?).await
            }
            Caller::Tcp(host, token) => {
                let stream = TcpStream::connect(host).await.map_err(|error| away(&error))?;
                exchange(stream, call.request(host, token.as_deref())?).await
            }
        }
    }

    /// Asks; answers with the status and the JSON.
    pub(crate) async fn call(&self, call: Call) -> Result<(u16, Value), Stop> {
        let response = self.open(call).await?;
        let status = response.status().as_u16();
        let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
        let body = body.map_err(|error| away(&error))?.to_bytes();
        Ok((status, serde_json::from_slice(&body).unwrap_or(Value::Null)))
    }
}

fn away(error: &dyn std::fmt::Display) -> Stop {
    Stop::new(Exit::Unreachable, format!("the outbox does not answer: {error}"))
}

/// What the configuration says of the outbox. One that nobody named counts where it can be read.
fn place_of(which: &Which) -> Result<Place, Stop> {
    match (Place::read(which.config.as_deref()), &which.config, &which.store) {
        (Ok(place), _, _) => Ok(place),
        (Err(_), None, Some(_)) => Ok(Place::default()),
        (Err(stop), _, _) => Err(stop),
    }
}

fn path_of(which: &Which, place: &Place) -> Result<PathBuf, Stop> {
    let store = which.store.as_deref().or(place.store.as_deref()).unwrap_or("sqlite:outbox.db");
    store_path(store).map_err(|error| Stop::new(Exit::Usage, format!("--store: {error}")))
}

async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    request: Request<Body>,
) -> Result<axum::http::Response<Body>, Stop> {
    let connection = Connection::over(stream).await.map_err(|error| away(&error))?;
    connection.stream(request).await.map_err(|error| away(&error))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_daemon_that_has_just_begun_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("outbox.db");
        let owner = Outbox::open(&path, Settings::default()).await.unwrap();
        let lock = owner.lock_file().unwrap().to_path_buf();
        let store = Some(format!("sqlite:{}", path.display()));
        let which = Which { store, config: None, token_file: None, json: false };
        let asked = tokio::spawn(async move { Caller::existing(&which).await });
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert!(!asked.is_finished(), "it does not give up at once");
        let said = std::fs::read_to_string(&lock).unwrap();
        std::fs::write(&lock, format!("{}\nunix:/nowhere\n", said.lines().next().unwrap_or("1"))).unwrap();
        assert!(matches!(asked.await.unwrap(), Ok(Caller::Unix(path)) if path.ends_with("nowhere")));
    }
}
