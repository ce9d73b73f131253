//! The way to a relay's admin API: to the process that owns the store, or to the store itself where nobody owns it.

use std::path::Path;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use http_body_util::BodyExt;
use semel_delivery::http1::Http1;
use semel_delivery::transport::{MaySend, Outgoing, Sent, Transport};
use semel_delivery::url::Target;
use serde_json::Value;
use tower::ServiceExt;

use super::At;
use crate::config::Store;
use crate::exit::{Exit, Stop};
use crate::serve::relay::config::{Config, Flags};
use crate::serve::relay::{OpenStop, Purpose, local_admin, open};

/// The way to the admin API.
pub(crate) struct Way {
    to: To,
    actor: String,
}

enum To {
    Remote { url: String, token: Option<String> },
    Local(Router),
}

impl Way {
    /// Finds the way.
    pub(crate) async fn find(at: &At) -> Result<Self, Stop> {
        let actor =
            at.by.clone().or_else(|| std::env::var("USER").ok()).unwrap_or_else(|| "operator".to_owned());
        let token = at.token_file.as_deref().map(token).transpose()?;
        if let Some(url) = &at.admin {
            let url = if url.contains("://") { url.clone() } else { format!("http://{url}") };
            return Ok(Self { to: To::Remote { url, token }, actor });
        }
        let flags = Flags { config: at.config.as_deref(), store: at.store.as_deref(), ..Flags::default() };
        let config = Config::load(&flags)?;
        if let Store::Sqlite(path) = &config.store
            && !Path::new(path).exists()
        {
            let what = format!("there is no store at sqlite:{path}; say --store sqlite:PATH, or --admin URL");
            return Err(Stop::new(Exit::Io, what));
        }
        let to = match open(&config, Purpose::Look).await {
            Ok(opened) => To::Local(local_admin(&config, &opened.store)),
            Err(OpenStop::Stop(stop)) => return Err(stop),
            Err(OpenStop::Owned(path)) => {
                let owner = admin_of(&path).await;
                let address = owner.ok_or_else(|| {
                    let what = format!(
                        "another process owns {} and does not say where it can be asked",
                        path.display()
                    );
                    Stop::new(Exit::Unreachable, what)
                })?;
                let token = match (token, &config.admin_token_file) {
                    (None, Some(file)) => Some(self::token(file)?),
                    (token, _) => token,
                };
                To::Remote { url: format!("http://{address}"), token }
            }
        };
        Ok(Self { to, actor })
    }

    /// Asks for something.
    pub(crate) async fn get(&self, path: &str) -> Result<Value, Stop> {
        self.call("GET", path, String::new()).await
    }

    /// Has something done.
    pub(crate) async fn post(&self, path: &str, body: &Value) -> Result<Value, Stop> {
        self.call("POST", path, body.to_string()).await
    }

    async fn call(&self, method: &str, path: &str, body: String) -> Result<Value, Stop> {
        let away = |why: String| Stop::new(Exit::Unreachable, format!("failed to ask the relay: {why}"));
        let mut headers = vec![("semel-actor".to_owned(), self.actor.clone())];
        if !body.is_empty() {
            headers.push(("content-type".to_owned(), "application/json".to_owned()));
        }
        let (status, bytes) = match &self.to {
            To::Local(router) => {
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
            To::Remote { url, token } => {
                headers.extend(
                    token.iter().map(|token| ("authorization".to_owned(), format!("Bearer {token}"))),
                );
                let target = Target::absolute(&format!("{}{path}", url.trim_end_matches('/')))
                    .map_err(|error| Stop::new(Exit::Usage, format!("--admin: {error}")))?;
                let timeout = Duration::from_secs(30);
                let outgoing = Outgoing {
                    method: method.to_owned(),
                    target,
                    headers,
                    body: body.into_bytes(),
                    timeout,
                    may_send: MaySend::always(),
                };
                match Http1::new().send(outgoing).await {
                    Sent::Answered(answer) => (answer.status, answer.body),
                    Sent::NotSent(why) | Sent::Broken(why) | Sent::TimedOut(why) => return Err(away(why)),
                }
            }
        };
        let value: Value = serde_json::from_slice(&bytes).map_err(|_| {
            away(format!("the answer ({status}) is not that of a relay; is this its admin address?"))
        })?;
        match status {
            200..=299 => Ok(value),
            503 => Err(away(value["message"].as_str().unwrap_or("it is not ready").to_owned())),
            _ => {
                let why = value["message"].as_str().or(value["error"].as_str()).unwrap_or("it was refused");
                Err(Stop::new(Exit::Refused, why.to_owned()))
            }
        }
    }
}

fn token(path: &Path) -> Result<String, Stop> {
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

#[cfg(test)]
mod tests {
    use semel_store::sqlite::engine::FileLock;

    use super::*;

    /// It has the file a moment before it listens.
    #[tokio::test]
    async fn an_owner_that_has_just_begun_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("relay.db");
        let lock = FileLock::take(&path).unwrap();
        let asked = tokio::spawn(async move { admin_of(&path).await });
        tokio::time::sleep(Duration::from_millis(300)).await;
        lock.publish("127.0.0.1:7421").unwrap();
        assert_eq!(asked.await.unwrap().as_deref(), Some("127.0.0.1:7421"));
    }
}
