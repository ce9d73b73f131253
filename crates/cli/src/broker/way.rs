//! The way to a broker: to the admin address of the process that owns the store, to the file where no process owns it, or to where
//! members connect.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use http_body_util::BodyExt;
use semel_broker::{Broker, Parts, admin_router, database};
use semel_delivery::http1::Http1;
use semel_delivery::relay::store::sqlite::OpenError;
use semel_delivery::transport::{MaySend, Outgoing, Sent, Transport};
use semel_delivery::url::Target;
use semel_store::clock::SystemClock;
use serde_json::{Value, json};
use tower::ServiceExt;

use super::At;
use crate::config::Store;
use crate::exit::{Exit, Stop};
use crate::serve::broker::Args as ServeArgs;
use crate::serve::broker::config::Config;

/// How long an answer is waited for.
const PATIENCE: Duration = Duration::from_secs(30);

/// The way to a broker.
pub(super) enum Way {
    Remote { url: String, token: Option<String> },
    Local(Router),
}

impl Way {
    /// The way to the admin API.
    pub(super) async fn find(at: &At) -> Result<Self, Stop> {
        let token = at.admin_token_file.as_deref().map(read_token).transpose()?;
        if let Some(url) = &at.admin {
            return Ok(Way::Remote { url: with_scheme(url), token });
        }
        let config = config(at)?;
        let token = match (token, &config.admin_token_file) {
            (None, Some(file)) => Some(read_token(file)?),
            (token, _) => token,
        };
        let Store::Sqlite(path) = &config.store else {
            return Ok(Way::Remote { url: format!("http://{}", config.admin), token });
        };
        let path = Path::new(path);
        if !path.exists() {
            let what = format!(
                "there is no store at {}; start `semel serve broker`, or say --admin URL",
                config.store
            );
            return Err(Stop::new(Exit::Io, what));
        }
        match database::open_file(path, Arc::new(SystemClock)) {
            Ok(file) => {
                let opened = Broker::open(Parts::new(Arc::new(file)), config.settings.clone()).await;
                let broker = opened.map_err(|error| Stop::new(Exit::Io, error.to_string()))?;
                Ok(Way::Local(admin_router(broker)))
            }
            Err(OpenError::Locked { .. }) => {
                let url = admin_of(path).await.ok_or_else(|| {
                    let what = format!(
                        "another process owns {} and does not say where it can be asked",
                        path.display()
                    );
                    Stop::new(Exit::Unreachable, what)
                })?;
                Ok(Way::Remote { url: with_scheme(&url), token })
            }
            Err(error) => Err(Stop::new(Exit::Io, format!("failed to open {}: {error}", path.display()))),
        }
    }

    /// The way of a member.
    pub(super) fn of_member(url: Option<&str>, token_file: &Path, at: &At) -> Result<Self, Stop> {
        let url = match url {
            Some(url) => with_scheme(url),
            None => {
                let config = config(at)?;
                format!("{}://{}", if config.tls.is_some() { "https" } else { "http" }, config.listen)
            }
        };
        Ok(Way::Remote { url, token: Some(read_token(token_file)?) })
    }

    pub(super) async fn get(&self, path: &str) -> Result<Value, Stop> {
        self.call("GET", path, None).await
    }

    pub(super) async fn put(&self, path: &str, body: &Value) -> Result<Value, Stop> {
        self.call("PUT", path, Some(body)).await
    }

    pub(super) async fn post(&self, path: &str) -> Result<Value, Stop> {
        self.call("POST", path, Some(&json!({}))).await
    }

    pub(super) async fn post_body(&self, path: &str, body: &Value) -> Result<Value, Stop> {
        self.call("POST", path, Some(body)).await
    }

    pub(super) async fn delete(&self, path: &str) -> Result<Value, Stop> {
        self.call("DELETE", path, None).await
    }

    async fn call(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value, Stop> {
        let away = |why: String| Stop::new(Exit::Unreachable, format!("failed to ask the broker: {why}"));
        let mut headers: Vec<(String, String)> = Vec::new();
        if body.is_some() {
            headers.push(("content-type".to_owned(), "application/json".to_owned()));
        }
        let body = body.map(ToString::to_string).unwrap_or_default();
        let (status, bytes) = match self {
            Way::Local(router) => {
                let mut request =
                    http::Request::builder().method(method).uri(path).header("host", "localhost");
                for (name, value) in &headers {
                    request = request.header(name, value);
                }
                let request = request.body(Body::from(body)).map_err(|error| away(error.to_string()))?;
                let response = router.clone().oneshot(request).await.unwrap_or_else(|never| match never {});
                let status = response.status().as_u16();
                let bytes = response.into_body().collect().await.map_err(|error| away(error.to_string()))?;
                (status, bytes.to_bytes().to_vec())
            }
            Way::Remote { url, token } => {
                headers.extend(
                    token.iter().map(|token| ("authorization".to_owned(), format!("Bearer {token}"))),
                );
                let target = Target::absolute(&format!("{}{path}", url.trim_end_matches('/')))
                    .map_err(|error| Stop::new(Exit::Usage, format!("{url}: {error}")))?;
                let outgoing = Outgoing {
                    method: method.to_owned(),
                    target,
                    headers,
                    body: body.into_bytes(),
                    timeout: PATIENCE,
                    may_send: MaySend::always(),
                };
                match Http1::new().send(outgoing).await {
                    Sent::Answered(answer) => (answer.status, answer.body),
                    Sent::NotSent(why) | Sent::Broken(why) | Sent::TimedOut(why) => return Err(away(why)),
                }
            }
        };
        read_answer(status, &bytes)
    }
}

fn read_answer(status: u16, bytes: &[u8]) -> Result<Value, Stop> {
    let value: Value =
        if bytes.is_empty() { Value::Null } else { serde_json::from_slice(bytes).unwrap_or_default() };
    let why = || {
        let text = ["reason", "message", "detail", "error"].iter().find_map(|name| value[*name].as_str());
        text.map_or_else(|| format!("it answered {status}"), str::to_owned)
    };
    match status {
        200..=299 => Ok(value),
        503 => Err(Stop::new(Exit::Unreachable, format!("the broker is not ready: {}", why()))),
        _ => Err(Stop::new(Exit::Refused, why())),
    }
}

/// The settings of the broker.
fn config(at: &At) -> Result<Config, Stop> {
    let (store, config) = (at.store.clone(), at.config.clone());
    Config::load(&ServeArgs { store, config, ..ServeArgs::default() })
}

fn with_scheme(url: &str) -> String {
    if url.contains("://") { url.to_owned() } else { format!("http://{url}") }
}

fn read_token(path: &Path) -> Result<String, Stop> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| Stop::new(Exit::Io, format!("the token file {}: {error}", path.display())))?;
    Ok(text.trim().to_owned())
}

/// Where the owner of a file can be asked. A process that has just begun says so a moment after it has the file.
async fn admin_of(path: &Path) -> Option<String> {
    for _ in 0..50 {
        if let Some(admin) = semel_store::sqlite::owner(path).ok().and_then(|owner| owner.admin) {
            return Some(admin);
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    None
}
