//! Callers by verified tokens: finds the keys, in a file or behind a URL, and lets tokens be proven by them.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::header::{self, HeaderMap};
use semel_contract::identity::Caller;
use semel_contract::problem::{Kind, Problem};
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::keys::{self, Key};
use super::spec::{Place, Spec};
use super::token::{Rejected, Token};
use crate::upstream::Fetcher;

/// How long fetching keys may take.
const FETCH_TIME_MAX: Duration = Duration::from_secs(5);
/// After how long keys are fetched again.
const FRESH_FOR: Duration = Duration::from_secs(600);
/// How often keys are fetched at most, whatever tokens say.
const FETCH_PAUSE: Duration = Duration::from_secs(10);

/// Verifies tokens.
#[derive(Debug)]
pub(crate) struct Verifier {
    spec: Spec,
    keys: Keys,
}

#[derive(Debug)]
enum Keys {
    Known(Vec<Key>),
    Remote { fetcher: Fetcher, path: String, seen: Mutex<Seen> },
}

/// The keys that were fetched last.
#[derive(Debug, Default)]
struct Seen {
    keys: Option<Arc<Vec<Key>>>,
    fetched: Option<Instant>,
    tried: Option<Instant>,
}

impl Verifier {
    /// Reads the keys of a file; those behind a URL are fetched with the first token.
    pub(crate) fn new(spec: Spec) -> Result<Self, String> {
        let keys = match &spec.keys {
            Place::File(path) => {
                let failed = |why: String| {
                    format!("identity jwt: failed to read the keys of {}: {why}", path.display())
                };
                let content = std::fs::read(path).map_err(|error| failed(error.to_string()))?;
                Keys::Known(keys::of_file(&content).map_err(failed)?)
            }
            Place::Url(url) => Keys::Remote {
                fetcher: Fetcher::of(url, spec.ca.clone(), FETCH_TIME_MAX)
                    .map_err(|why| format!("identity jwt: {why}"))?,
                path: url.path_and_query().map_or_else(|| "/".to_owned(), ToString::to_string),
                seen: Mutex::default(),
            },
        };
        Ok(Self { spec, keys })
    }

    /// The caller whose token stands in `Authorization: Bearer`.
    pub(crate) async fn caller(&self, headers: &HeaderMap) -> Result<Caller, Problem> {
        let missing = |why: &str| {
            let detail =
                format!("{why}; the identity is jwt, and another one is set by --identity or `identity = …`");
            Problem::new(Kind::IdentityMissing, detail)
        };
        let text =
            bearer(headers).ok_or_else(|| missing("a single Authorization: Bearer TOKEN is required"))?;
        let refused = |rejected: Rejected| match rejected {
            Rejected::NoKey => missing("no key verifies the token"),
            Rejected::Bad(why) => missing(why),
        };
        let token = Token::parse(text).map_err(refused)?;
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let verify = |keys: &[Key]| token.verify(keys, &self.spec, now);
        match &self.keys {
            Keys::Known(keys) => verify(keys).map_err(refused),
            Keys::Remote { .. } => match verify(&self.fetched(Wanted::Fresh).await?) {
                // A key that is not known yet may have been added since.
                Err(Rejected::NoKey) => verify(&self.fetched(Wanted::New).await?).map_err(refused),
                other => other.map_err(refused),
            },
        }
    }

    /// The keys behind a URL, fetched again where they are old or another one is wanted, but never often.
    async fn fetched(&self, wanted: Wanted) -> Result<Arc<Vec<Key>>, Problem> {
        let Keys::Remote { fetcher, path, seen } = &self.keys else { return Ok(Arc::default()) };
        let mut seen = seen.lock().await;
        let within = |since: Option<Instant>, time| since.is_some_and(|since| since.elapsed() < time);
        let is_fresh = within(seen.fetched, FRESH_FOR) && wanted == Wanted::Fresh;
        if !is_fresh && !within(seen.tried, FETCH_PAUSE) {
            seen.tried = Some(Instant::now());
            match fetch(fetcher, path).await {
                Ok(keys) => {
                    seen.keys = Some(Arc::new(keys));
                    seen.fetched = Some(Instant::now());
                }
                Err(why) => tracing::warn!(why, "failed to fetch the keys of tokens"),
            }
        }
        let unavailable = || {
            Problem::new(
                Kind::IdentityUnavailable,
                "the keys that tokens are verified with could not be fetched",
            )
            .retry_after(Duration::from_secs(1))
        };
        seen.keys.clone().ok_or_else(unavailable)
    }
}

/// Which keys are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    /// Those that are known, unless they are old.
    Fresh,
    /// One that is not among them.
    New,
}

async fn fetch(fetcher: &Fetcher, path: &str) -> Result<Vec<Key>, String> {
    let answer = fetcher.ask(path, HeaderMap::new()).await?;
    if !answer.status.is_success() {
        return Err(format!("the answer was {}", answer.status));
    }
    keys::of_set(&answer.body)
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut lines = headers.get_all(header::AUTHORIZATION).iter();
    let (only, None) = (lines.next()?, lines.next()) else { return None };
    let (scheme, token) = only.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}
