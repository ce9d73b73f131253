//! What a part leans on, for the first page of the console: its store, others that share it, Redis, the services that it
//! calls. Whether they can be reached is found out by connecting, and believed for a while: a page that is kept up to date
//! asks nobody every time.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use semel_console::part::{Fares, Leans, Pillar};
use tokio::net::TcpStream;
use tokio::sync::Mutex;

use crate::config::{Store, redacted};

/// How long a connection may take.
const WITHIN: Duration = Duration::from_secs(1);
/// How long what was found is believed.
const FRESH: Duration = Duration::from_secs(10);

/// How something is asked.
type Asks = Arc<dyn Fn() -> Pin<Box<dyn Future<Output = Fares> + Send>> + Send + Sync>;

/// What was found, and when.
type Known = (Instant, Vec<Pillar>);

/// What a part leans on.
#[derive(Clone, Default)]
pub(crate) struct Leaning {
    asked: Vec<(&'static str, String, Asks)>,
}

impl Leaning {
    /// A part on this store, whose readiness is the part's own.
    pub(crate) fn on(store: &Store) -> Self {
        let mut leaning = Self::default();
        leaning.with("store", store.to_string(), || async { Fares::AsThePart });
        if let Store::Sqlite(_) = store {
            leaning.with("replicas", "none: this process alone has the file".to_owned(), || async {
                Fares::AsThePart
            });
        }
        leaning
    }

    /// Also on something that is asked like this.
    pub(crate) fn with<F>(
        &mut self,
        what: &'static str,
        name: String,
        ask: impl Fn() -> F + Send + Sync + 'static,
    ) where
        F: Future<Output = Fares> + Send + 'static,
    {
        self.asked.push((what, name, Arc::new(move || Box::pin(ask()))));
    }

    /// Also on those who share its database: how many connections there are, and from where.
    pub(crate) fn replicas<F>(&mut self, ask: impl Fn() -> F + Send + Sync + 'static)
    where
        F: Future<Output = Result<(i64, i64), String>> + Send + 'static,
    {
        self.with("replicas", "connections to the database".to_owned(), move || {
            let asked = ask();
            async move {
                match asked.await {
                    Ok((all, addresses)) => Fares::Well(format!("{all} from {addresses} addresses")),
                    Err(why) => Fares::Ill(why),
                }
            }
        });
    }

    /// Also on whatever listens at this URL.
    pub(crate) fn reaches(&mut self, what: &'static str, url: &str) {
        let place = place_of(url);
        self.with(what, redacted(url), move || {
            let place = place.clone();
            async move {
                let Some(place) = place else { return Fares::Ill("its address cannot be read".to_owned()) };
                match tokio::time::timeout(WITHIN, TcpStream::connect(place)).await {
                    Ok(Ok(_)) => Fares::Well("can be reached".to_owned()),
                    Ok(Err(error)) => Fares::Ill(error.to_string()),
                    Err(_) => Fares::Ill("does not take a connection in time".to_owned()),
                }
            }
        });
    }

    /// As the console asks for it.
    pub(crate) fn shown(self) -> Arc<Leans> {
        let known: Arc<Mutex<Option<Known>>> = Arc::default();
        Arc::new(move || {
            let (known, asked) = (Arc::clone(&known), self.asked.clone());
            Box::pin(async move {
                // Others wait for the first, and are told what it has found.
                let mut known = known.lock().await;
                if let Some((_, found)) = known.as_ref().filter(|(at, _)| at.elapsed() < FRESH) {
                    return found.clone();
                }
                let pillar = |(what, name, ask): &(&'static str, String, Asks)| {
                    let (what, name, fares) = ((*what).to_owned(), name.clone(), ask());
                    async move { Pillar { what, name, fares: fares.await } }
                };
                let found = join_all(asked.iter().map(pillar)).await;
                *known = Some((Instant::now(), found.clone()));
                found
            })
        })
    }
}

/// Where a URL leads to.
fn place_of(url: &str) -> Option<(String, u16)> {
    let (scheme, rest) = url.split_once("://")?;
    let authority = rest.split(['/', '?']).next()?;
    let host = authority.rsplit('@').next()?;
    let usual = match scheme {
        "redis" | "rediss" => 6379,
        "https" => 443,
        _ => 80,
    };
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) if !port.contains(']') => (name, port.parse().ok()?),
        _ => (host, usual),
    };
    Some((name.trim_start_matches('[').trim_end_matches(']').to_owned(), port))
        .filter(|(name, _)| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_says_where_it_leads() {
        for (url, host, port) in [
            ("redis://cache", "cache", 6379),
            ("redis://user:secret@cache:7000/1", "cache", 7000),
            ("http://127.0.0.1:3000/api?x=1", "127.0.0.1", 3000),
            ("https://api.example/v1", "api.example", 443),
            ("http://[::1]:9", "::1", 9),
            ("http://[::1]/x", "::1", 80),
        ] {
            assert_eq!(place_of(url), Some((host.to_owned(), port)), "{url}");
        }
        assert_eq!(place_of("nothing"), None);
    }

    #[tokio::test]
    async fn what_cannot_be_reached_is_told_and_what_was_found_is_believed_for_a_while() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (there, gone) =
            (listener.local_addr().unwrap(), std::net::TcpListener::bind("127.0.0.1:0").unwrap());
        let nobody = gone.local_addr().unwrap();
        drop(gone);
        let mut leaning = Leaning::on(&Store::Sqlite("semel.db".to_owned()));
        leaning.reaches("service", &format!("http://{there}"));
        leaning.reaches("Redis", &format!("redis://who:secret@{nobody}"));
        let shown = leaning.shown();
        let found = shown().await;
        let of = |what: &str| found.iter().find(|pillar| pillar.what == what).unwrap();
        assert_eq!(of("store").fares, Fares::AsThePart);
        assert_eq!(of("service").fares, Fares::Well("can be reached".to_owned()));
        assert!(matches!(of("Redis").fares, Fares::Ill(_)), "{found:?}");
        assert!(!of("Redis").name.contains("secret"), "{}", of("Redis").name);
        drop(listener);
        assert_eq!(shown().await, found, "nobody was asked again");
    }
}
