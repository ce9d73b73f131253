//! Callers by verified tokens: finds the keys, in a file or behind a URL, and lets tokens be proven by them.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::header::{self, HeaderMap};
use semel_contract::identity::Caller;
use semel_contract::problem::{Kind, Problem};

use super::keys::{self, Key};
use super::remote::{FETCH_TIME_MAX, Remote};
use super::spec::{Place, Spec};
use super::token::{Rejected, Token};
use semel_http::Fetcher;

/// Verifies tokens.
#[derive(Debug)]
pub(crate) struct Verifier {
    spec: Spec,
    keys: Keys,
}

#[derive(Debug)]
enum Keys {
    Known(Vec<Key>),
    Remote(Arc<Remote>),
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
            Place::Url(url) => {
                let fetcher = Fetcher::of(url, spec.ca.clone(), FETCH_TIME_MAX)
                    .map_err(|why| format!("identity jwt: {why}"))?;
                let path = url.path_and_query().map_or_else(|| "/".to_owned(), ToString::to_string);
                Keys::Remote(Remote::new(fetcher, path))
            }
        };
        Ok(Self { spec, keys })
    }

    /// The caller whose token stands in `Authorization: Bearer`.
    pub(crate) async fn caller(&self, headers: &HeaderMap) -> Result<Caller, Problem> {
        let missing = |why: &str| Problem::new(Kind::IdentityMissing, why);
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
            Keys::Remote(remote) => match verify(&remote.keys().await.ok_or_else(unavailable)?) {
                // A key that is not known yet may have been added since.
                Err(Rejected::NoKey) => {
                    verify(&remote.newer().await.ok_or_else(unavailable)?).map_err(refused)
                }
                other => other.map_err(refused),
            },
        }
    }
}

fn unavailable() -> Problem {
    Problem::new(Kind::IdentityUnavailable, "the keys that tokens are verified with could not be fetched")
        .retry_after(Duration::from_secs(1))
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut lines = headers.get_all(header::AUTHORIZATION).iter();
    let (only, None) = (lines.next()?, lines.next()) else { return None };
    let (scheme, token) = only.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}
