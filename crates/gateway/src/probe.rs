//! Asks a URL what became of a request whose outcome is unknown. The URL is a template of the route's; its answer is
//! mapped: a success means that it took effect, 404 or 410 that it did not, and anything else that it is still not known.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use http::{HeaderMap, StatusCode, Uri};
use semel_contract::outcome::Told;
use semel_gate::{Finding, Probe};
use semel_store::Entry;

use semel_http::headers::OUTCOME;
use semel_http::{Fetched, Fetcher, percent_encode};

use crate::GatewayError;

/// How long an answer may take.
const PROBE_TIME_MAX: Duration = Duration::from_secs(5);

/// The probes of all routes, by endpoint.
#[derive(Debug, Default)]
pub struct Probes(HashMap<String, One>);

#[derive(Debug)]
struct One {
    fetcher: Fetcher,
    template: Template,
}

impl Probes {
    /// Adds the probe of a route, whose pattern has these path parameters.
    ///
    /// # Errors
    /// The template is not a URL, or names something that is not there.
    pub fn add(&mut self, endpoint: &str, template: &str, params: &[&str]) -> Result<(), GatewayError> {
        let bad = |why: String| format!("bad probe {template:?}: {why}");
        let parts = Template::parse(template, params).map_err(bad)?;
        let url: Uri = parts.origin.parse().map_err(|_| bad("it is not a URL".to_owned()))?;
        let fetcher = Fetcher::of(&url, None, PROBE_TIME_MAX).map_err(|why| bad(why.into()))?;
        self.0.insert(endpoint.to_owned(), One { fetcher, template: parts });
        Ok(())
    }

    /// Whether a template is well-formed for a pattern with these parameters.
    ///
    /// # Errors
    /// It is not; says why.
    pub fn check(template: &str, params: &[&str]) -> Result<(), GatewayError> {
        Template::parse(template, params)
            .map(drop)
            .map_err(|why| format!("bad probe {template:?}: {why}").into())
    }

    async fn look(&self, entry: &Entry, params: &[(String, String)]) -> Finding {
        let Some(One { fetcher, template }) = self.0.get(&entry.about.endpoint) else {
            return Finding::Unknown;
        };
        let Some(path) = template.path(entry.id.key.as_str(), params) else { return Finding::Unknown };
        match fetcher.ask(&path, HeaderMap::new()).await {
            Ok(answer) => found(&answer),
            Err(why) => {
                tracing::warn!(%why, endpoint = entry.about.endpoint, "a probe got no answer");
                Finding::Unknown
            }
        }
    }
}

impl Probe for Probes {
    fn ask<'a>(&'a self, entry: &'a Entry) -> Pin<Box<dyn Future<Output = Finding> + Send + 'a>> {
        Box::pin(self.look(entry, &[]))
    }

    fn ask_at<'a>(
        &'a self,
        entry: &'a Entry,
        params: &'a [(String, String)],
    ) -> Pin<Box<dyn Future<Output = Finding> + Send + 'a>> {
        Box::pin(self.look(entry, params))
    }
}

/// What an answer says. What it shows is not the first request's answer, which stays unkept.
fn found(answer: &Fetched) -> Finding {
    let told = answer.headers.get(OUTCOME).and_then(|value| Told::parse(value.as_bytes()));
    match (told, answer.status) {
        (Some(Told::Applied), _) => Finding::Applied(None),
        (Some(Told::NotApplied), _) => Finding::NotApplied,
        (None, status) if status.is_success() => Finding::Applied(None),
        (None, StatusCode::NOT_FOUND | StatusCode::GONE) => Finding::NotApplied,
        (None, _) => Finding::Unknown,
    }
}

/// A URL with names in braces.
#[derive(Debug, PartialEq, Eq)]
struct Template {
    /// Scheme and authority.
    origin: String,
    /// The path and query, in pieces.
    pieces: Vec<Piece>,
}

#[derive(Debug, PartialEq, Eq)]
enum Piece {
    Text(String),
    Key,
    Param(String),
}

impl Template {
    fn parse(text: &str, params: &[&str]) -> Result<Self, String> {
        let (scheme, rest) = text.split_once("://").ok_or("it is not a URL")?;
        let (authority, mut path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        if authority.contains(['{', '}']) {
            return Err("names in braces belong into the path".to_owned());
        }
        let mut pieces = vec![Piece::Text(if path.is_empty() { "/".to_owned() } else { String::new() })];
        while let Some((before, after)) = path.split_once('{') {
            let (name, after) = after.split_once('}').ok_or("a brace is not closed")?;
            pieces.push(Piece::Text(before.to_owned()));
            pieces.push(match name {
                "key" => Piece::Key,
                name if params.contains(&name) => Piece::Param(name.to_owned()),
                name => {
                    let there = [&["key"][..], params].concat().join(", ");
                    return Err(format!("there is no {{{name}}}; there are: {there}"));
                }
            });
            path = after;
        }
        if path.contains('}') {
            return Err("a brace is not opened".to_owned());
        }
        pieces.push(Piece::Text(path.to_owned()));
        if !pieces.contains(&Piece::Key) {
            return Err("it does not contain {key}, by which one request is told from another".to_owned());
        }
        Ok(Self { origin: format!("{scheme}://{authority}"), pieces })
    }

    fn path(&self, key: &str, params: &[(String, String)]) -> Option<String> {
        let mut path = String::new();
        for piece in &self.pieces {
            match piece {
                Piece::Text(text) => path.push_str(text),
                Piece::Key => path.push_str(&percent_encode(key)),
                // As it was received: already encoded for a path.
                Piece::Param(name) => path.push_str(&params.iter().find(|(given, _)| given == name)?.1),
            }
        }
        Some(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_parameters_take_their_places() {
        let template = Template::parse("http://shop:1/orders/{id}/refunds?key={key}&x", &["id"]).unwrap();
        assert_eq!(template.origin, "http://shop:1");
        let params = [("id".to_owned(), "a%20b".to_owned())];
        assert_eq!(template.path("k/1 &2", &params).unwrap(), "/orders/a%20b/refunds?key=k%2F1%20%262&x");
        assert_eq!(template.path("k", &[]), None);
    }

    #[test]
    fn templates_that_cannot_be_filled_are_refused() {
        for bad in [
            "/x/{key}",
            "http://x/{key",
            "http://x/key}",
            "http://x/",
            "http://{key}/",
            "http://x/{key}/{id}",
        ] {
            assert!(Probes::check(bad, &[]).is_err(), "{bad}");
        }
    }
}
