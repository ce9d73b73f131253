//! The way to the admin API: to the process that owns the store, or to a console of our own over a store that nobody else
//! owns. Decides which; says what to do where there is none.

use std::path::Path;

use axum::Router;
use axum::body::Body;
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use semel_console::{Access, Console};
use semel_store::sqlite;
use serde_json::Value;
use tower::ServiceExt;

use super::At;
use super::remote::Remote;
use crate::config::{Config, Setting, Store, Variables};
use crate::exit::{Exit, Stop};
use crate::store::{self, Backend, OpenStop, Opened};

/// The way to the admin API.
pub(crate) struct Door {
    way: Way,
    actor: String,
}

enum Way {
    Remote(Remote),
    Local { router: Router, opened: Opened },
}

impl Door {
    /// Finds the way.
    pub(crate) async fn find(at: &At) -> Result<Self, Stop> {
        let actor = at.by.clone().unwrap_or_else(user);
        let config = settings(at);
        if let Some(url) = &at.admin {
            // A configuration is not needed here, and one that is broken does not matter.
            let set = config.ok().and_then(|config| config.gate.admin_token_file);
            let remote = Remote::to(url, at.token_file.as_deref().or(set.as_deref()))?;
            return Ok(Self { way: Way::Remote(remote), actor });
        }
        let config = config?;
        let token_file = at.token_file.as_deref().or(config.gate.admin_token_file.as_deref());
        if let Store::Sqlite(path) = &config.store
            && !Path::new(path).exists()
        {
            let what = format!(
                "there is no store at sqlite:{path}; say --store sqlite:PATH, or --admin URL of the process that owns it"
            );
            return Err(Stop::new(Exit::Io, what));
        }
        if let Store::Sqlite(path) = &config.store
            && let Some(stop) = store::of_somebody_else(Path::new(path))
        {
            // Its owner may be asked all the same.
            return match owner(Path::new(path), token_file) {
                Ok(remote) if remote.answers().await => Ok(Self { way: Way::Remote(remote), actor }),
                Ok(_) | Err(_) => Err(stop),
            };
        }
        let way = match store::open_to_look(&config).await {
            Ok(opened) => {
                let console = Console::on(opened.operated.clone(), Access::within_process());
                Way::Local { router: console.router(), opened }
            }
            Err(OpenStop::Owned(path)) => Way::Remote(owner(Path::new(&path), token_file)?),
            Err(OpenStop::Stop(stop)) => return Err(stop),
        };
        Ok(Self { way, actor })
    }

    /// Asks for something.
    pub(crate) async fn get(&self, path: &str) -> Result<Value, Stop> {
        self.call("GET", path, None).await?.done()
    }

    /// Has something done.
    pub(crate) async fn post(&self, path: &str, body: Value) -> Result<Value, Stop> {
        self.try_post(path, body).await?.done()
    }

    /// Has something done that may be refused.
    pub(crate) async fn try_post(&self, path: &str, body: Value) -> Result<Answered, Stop> {
        self.call("POST", path, Some(body)).await
    }

    async fn call(&self, method: &str, path: &str, body: Option<Value>) -> Result<Answered, Stop> {
        let mut request = Request::builder().method(method).uri(path).header("semel-actor", &self.actor);
        if body.is_some() {
            request = request.header("content-type", "application/json");
        }
        let body = body.map(|body| body.to_string()).unwrap_or_default();
        let failed = |why: String| Stop::new(Exit::Unreachable, why);
        let (status, bytes) = match &self.way {
            Way::Remote(remote) => remote.call(request, body).await?,
            Way::Local { router, .. } => {
                let request = request.header("host", "localhost").body(Body::from(body));
                let request = request.map_err(|error| failed(error.to_string()))?;
                let response = router.clone().oneshot(request).await;
                let (parts, body) = response.unwrap_or_else(|never| match never {}).into_parts();
                let bytes = body.collect().await.map_err(|error| failed(error.to_string()))?.to_bytes();
                (parts.status, bytes)
            }
        };
        let value = serde_json::from_slice(&bytes).map_err(|_| {
            failed(format!("the answer ({status}) is not that of an admin API; is this its address?"))
        })?;
        Ok(Answered { status, value })
    }

    /// Whether other processes may look at the same store at the same time.
    pub(crate) fn is_shared(&self) -> bool {
        match &self.way {
            Way::Local { opened, .. } => matches!(opened.backend, Backend::Postgres(_)),
            Way::Remote(_) => true,
        }
    }

    /// Gives the store back, where it is ours.
    pub(crate) fn close(self) {
        if let Way::Local { router, opened } = self.way {
            drop(router);
            drop(opened);
        }
    }
}

/// What the API said.
pub(crate) struct Answered {
    pub(crate) status: StatusCode,
    pub(crate) value: Value,
}

impl Answered {
    /// The stable word of a refusal.
    pub(crate) fn code(&self) -> &str {
        super::text(&self.value, "code")
    }

    /// What was asked for, or why not.
    pub(crate) fn done(self) -> Result<Value, Stop> {
        if self.status.is_success() {
            return Ok(self.value);
        }
        let detail = super::text(&self.value, "detail");
        let (exit, more) = match self.code() {
            "token-needed" => (Exit::Refused, "; name the token's file with --token-file"),
            "store-unavailable" | "store-full" | "commit-unknown" => (Exit::Unreachable, ""),
            "bad-request" => (Exit::Usage, ""),
            _ => (Exit::Refused, ""),
        };
        Err(Stop::new(exit, format!("{detail}{more}")))
    }
}

fn settings(at: &At) -> Result<Config, Stop> {
    let variables = Variables::read().map_err(|message| Stop::new(Exit::Config, message))?;
    let beside = Path::new("semel.toml");
    let named = at.config.as_deref().or_else(|| variables.config().map(Path::new));
    let path = named.or_else(|| beside.exists().then_some(beside));
    let mut config = Config::load(path, &variables)?;
    if let Some(store) = &at.store {
        let read = Store::read(store).map_err(|error| Stop::new(Exit::Usage, format!("--store: {error}")));
        config.store = read?;
    }
    Ok(config)
}

/// The way to the process that owns a file.
fn owner(path: &Path, token_file: Option<&Path>) -> Result<Remote, Stop> {
    let owner = sqlite::owner(path).unwrap_or_default();
    let who = owner.process.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"));
    match owner.admin {
        Some(address) => Remote::to(&format!("http://{address}"), token_file),
        None => Err(Stop::new(
            Exit::Unreachable,
            format!(
                "{who} owns {} and has not said where it can be asked; say --admin URL, or stop it",
                path.display()
            ),
        )),
    }
}

/// Who uses this shell.
fn user() -> String {
    let named = ["USER", "LOGNAME"].into_iter().find_map(|name| std::env::var(name).ok());
    let is_fit = |name: &String| !name.is_empty() && name.chars().all(|char| char.is_ascii_graphic());
    named.filter(is_fit).unwrap_or_else(|| {
        // SAFETY: it takes nothing and cannot fail.
        format!("uid {}", unsafe { libc::getuid() })
    })
}
