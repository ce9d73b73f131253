//! Callers by asking: an authorisation service sees the request's credentials and names the principal, or refuses.

use std::time::Duration;

use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;
use http::{StatusCode, Uri};
use semel_contract::identity::Caller;
use semel_contract::problem::{Kind, Problem};

use semel_http::headers::{Origin, REQUEST_ID};
use semel_http::{Fetched, Fetcher};

/// How long the service may take.
const CHECK_TIME_MAX: Duration = Duration::from_secs(5);
/// How it names the principal and its tenant.
const PRINCIPAL: &str = "semel-principal";
const TENANT: &str = "semel-tenant";

/// Asks a service about callers.
#[derive(Debug)]
pub(crate) struct Checker {
    fetcher: Fetcher,
    path: String,
}

impl Checker {
    pub(crate) fn new(url: &str) -> Result<Self, String> {
        let uri: Uri = url.parse().map_err(|_| format!("identity check: {url:?} is not a URL"))?;
        let fetcher =
            Fetcher::of(&uri, None, CHECK_TIME_MAX).map_err(|why| format!("identity check: {why}"))?;
        let path = uri.path_and_query().map_or_else(|| "/".to_owned(), ToString::to_string);
        Ok(Self { fetcher, path })
    }

    /// The caller that the service names for this request.
    pub(crate) async fn caller(&self, parts: &Parts) -> Result<Caller, Problem> {
        match self.fetcher.ask(&self.path, question(parts)).await {
            Ok(answer) => judge(&answer),
            Err(why) => {
                tracing::warn!(%why, "the service that verifies callers did not answer");
                Err(unavailable("the service that verifies callers did not answer"))
            }
        }
    }
}

/// What the service gets to see: the credentials, the method and the path, never the body.
fn question(parts: &Parts) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for name in [header::AUTHORIZATION, header::COOKIE, REQUEST_ID] {
        for value in parts.headers.get_all(&name) {
            headers.append(name.clone(), value.clone());
        }
    }
    let mut set = |name: &'static str, text: &str| {
        if let Ok(value) = HeaderValue::from_str(text) {
            headers.insert(HeaderName::from_static(name), value);
        }
    };
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    for (of_method, of_path) in
        [("x-original-method", "x-original-uri"), ("x-forwarded-method", "x-forwarded-uri")]
    {
        set(of_method, parts.method.as_str());
        set(of_path, path);
    }
    if let Some(host) = parts.headers.get(header::HOST).and_then(|host| host.to_str().ok()) {
        set("x-forwarded-host", host);
    }
    if let Some(origin) = parts.extensions.get::<Origin>() {
        set("x-forwarded-for", &origin.peer.to_string());
        set("x-forwarded-proto", origin.scheme);
    }
    headers
}

fn judge(answer: &Fetched) -> Result<Caller, Problem> {
    match answer.status {
        status if status.is_success() => named(&answer.headers),
        StatusCode::UNAUTHORIZED => Err(Problem::new(
            Kind::IdentityMissing,
            "the service that verifies callers does not know this one",
        )),
        StatusCode::FORBIDDEN => {
            Err(Problem::new(Kind::IdentityRefused, "the service that verifies callers refused it"))
        }
        status => {
            tracing::warn!(%status, "the service that verifies callers said neither yes nor no");
            Err(unavailable("the service that verifies callers said neither yes nor no"))
        }
    }
}

fn named(headers: &HeaderMap) -> Result<Caller, Problem> {
    let only = |name: &str| {
        let mut lines = headers.get_all(name).iter();
        let (only, second) = (lines.next(), lines.next());
        only.filter(|_| second.is_none())
            .and_then(|value| value.to_str().ok())
            .filter(|text| !text.is_empty())
    };
    let Some(principal) = only(PRINCIPAL) else {
        tracing::warn!("the service that verifies callers agreed without a Semel-Principal header");
        return Err(unavailable("the service that verifies callers named nobody"));
    };
    Caller::verified(only(TENANT).map(str::to_owned), principal.to_owned())
}

fn unavailable(why: &str) -> Problem {
    Problem::new(Kind::IdentityUnavailable, why).retry_after(Duration::from_secs(1))
}
