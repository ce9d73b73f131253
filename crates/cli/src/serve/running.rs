//! A gate that runs, and everything about it that is swapped together when its settings are read again.

use std::net::SocketAddr;
use std::sync::{Arc, PoisonError, RwLock};

use axum::Router;
use axum::extract::Request;
use axum::response::Response;
use semel_contract::profile::Sweep;
use semel_gateway::Gateway;
use semel_store::clock::SystemClock;
use tokio::task::JoinHandle;
use tower::Service;

use super::admin::{self, Admin, admin_router};
use super::args::Args;
use super::plan;
use crate::config::Config;
use crate::exit::{Exit, Stop};
use crate::store::Opened;

/// A gate that runs.
pub(crate) struct Running {
    pub(crate) args: Args,
    /// The settings in force.
    pub(crate) config: Config,
    pub(crate) store: Opened,
    pub(crate) gateway: Gateway,
    pub(crate) admin: Admin,
    /// Where operators reach it.
    pub(crate) reached_at: SocketAddr,
    pub(crate) operators: Swappable,
    pub(crate) sweeper: Sweepers,
}

impl Running {
    /// Reads everything anew and puts it in force at once, or changes nothing.
    pub(crate) async fn reload(&mut self) -> Result<(), Stop> {
        let bad = |message: String| Stop::new(Exit::Config, message);
        let next = self.args.settings()?;
        if let Some(name) = fixed(&self.config, &next) {
            return Err(bad(format!("{name} cannot change while the gate runs: start it anew")));
        }
        let access = admin::access(&next, self.reached_at)?;
        let plan = plan::plan(&next, self.args.require_key, &self.store)?;
        plan.gate.prepare().await.map_err(|error| bad(error.to_string()))?;
        self.gateway.swap(plan).map_err(|error| bad(error.into()))?;
        // Nothing below can fail.
        self.admin.access = access.with_sessions_of(&self.admin.access);
        self.operators.swap(admin_router(&self.admin, &next));
        std::mem::replace(&mut self.sweeper, sweeper(&next, &self.store)).abort();
        let known = self.config.warnings();
        for warning in next.warnings().iter().filter(|warning| !known.contains(warning)) {
            tracing::warn!("{warning}");
        }
        self.config = next;
        Ok(())
    }
}

/// A setting that differs and cannot change while the gate runs.
fn fixed(before: &Config, next: &Config) -> Option<&'static str> {
    let (one, two) = (&before.gate, &next.gate);
    let settings = [
        ("store", before.store != next.store),
        ("gate.listen", one.listen != two.listen),
        ("gate.admin", one.admin != two.admin),
        ("gate.cores", one.cores != two.cores),
        ("gate.log_format", one.log_format != two.log_format),
        ("gate.at_rest", one.at_rest != two.at_rest),
        ("gate.postgres", one.postgres != two.postgres),
        ("gate.limits.connections", one.limits.connections_max != two.limits.connections_max),
    ];
    settings.iter().find(|(_, has_changed)| *has_changed).map(|(name, _)| *name)
}

/// Says so, where the service behind the gateway cannot be reached now. It may come later: nothing depends on it.
pub(crate) fn warn_of_dead_upstream(gateway: &Gateway) {
    let gateway = gateway.clone();
    tokio::spawn(async move {
        if let Err(why) = gateway.reach_upstream().await {
            tracing::warn!("{why}; until that changes, requests are answered with 502");
        }
    });
}

/// Removes what has expired, at every time that a route's settings name.
pub(crate) fn sweeper(config: &Config, store: &Opened) -> Sweepers {
    // Each run serves all routes: none of their records goes before its grace.
    let profiles = std::iter::once(&config.defaults).chain(config.routes.iter().map(|route| &route.profile));
    let grace = profiles.map(|profile| profile.lifetime.sweep_grace).max().unwrap_or_default();
    let start =
        |sweep| semel_gate::sweep_for_ever(Arc::clone(&store.records), Arc::new(SystemClock), sweep, grace);
    Sweepers(sweeps(config).into_iter().map(start).collect())
}

/// When expired records are removed: as `[gate]` says, else as each route does.
fn sweeps(config: &Config) -> Vec<Sweep> {
    if let Some(when) = config.gate.sweep {
        return vec![Sweep { when, ..config.defaults.sweep }];
    }
    let mut sweeps: Vec<Sweep> = config.routes.iter().map(|route| route.profile.sweep).collect();
    if sweeps.is_empty() {
        sweeps.push(config.defaults.sweep);
    }
    let mut distinct: Vec<Sweep> = Vec::new();
    for sweep in sweeps {
        match distinct.iter_mut().find(|known| known.when == sweep.when) {
            Some(known) => {
                known.log |= sweep.log;
                known.batch = known.batch.max(sweep.batch);
            }
            None => distinct.push(sweep),
        }
    }
    distinct
}

/// What removes expired records, until it is told to stop.
pub(crate) struct Sweepers(Vec<JoinHandle<()>>);

impl Sweepers {
    pub(crate) fn abort(&self) {
        self.0.iter().for_each(JoinHandle::abort);
    }
}

/// A router in whose place another can be put while it serves.
#[derive(Clone)]
pub(crate) struct Swappable(Arc<RwLock<Router>>);

impl Swappable {
    pub(crate) fn new(router: Router) -> Self {
        Self(Arc::new(RwLock::new(router)))
    }

    /// Serves every request by the router that is in place when it comes.
    pub(crate) fn router(&self) -> Router {
        let current = Arc::clone(&self.0);
        Router::new().fallback(move |request: Request| answer(Arc::clone(&current), request))
    }

    pub(crate) fn swap(&self, router: Router) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = router;
    }
}

async fn answer(current: Arc<RwLock<Router>>, request: Request) -> Response {
    let mut router = current.read().unwrap_or_else(PoisonError::into_inner).clone();
    match router.call(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use semel_contract::profile::SweepWhen;

    use super::*;

    #[test]
    fn records_are_swept_whenever_a_routes_settings_say() {
        let config = |text: &str| Config::of_text(text).unwrap();
        let routes = "[route.a]\nmatch = 'POST /a'\nprofile = 'walker'\n[route.b]\nmatch = 'POST /b'\nprofile = 'feed'\n\
                      [route.c]\nmatch = 'POST /c'\nsweep = 'every 6h'\n";
        let found = sweeps(&config(routes));
        let hours = |hours: u64| Duration::from_secs(hours * 3600);
        let times: Vec<_> = found.iter().map(|sweep| sweep.when).collect();
        assert_eq!(times, [SweepWhen::DailyAt(hours(3)), SweepWhen::Every(hours(6))]);
        assert!(found[1].log, "one of the two that sweep together wants it written down");
        assert_eq!(sweeps(&config("")).len(), 1);
        let gate = sweeps(&config(&format!("[gate]\nsweep = 'every 2h'\n{routes}")));
        assert!(gate.len() == 1 && gate[0].when == SweepWhen::Every(hours(2)));
    }

    #[test]
    fn answers_are_compressed_where_a_profile_says_so() {
        let compressed =
            |text: &str| Config::of_text(text).unwrap().gate.at_rest.is_some_and(|at_rest| at_rest.compress);
        assert!(compressed("[route.a]\nmatch = 'POST /a'\nprofile = 'feed'\n"));
        assert!(compressed("[profile.mine]\ncompress = true\n[defaults]\nprofile = 'mine'\n"));
        assert!(!compressed("[route.a]\nmatch = 'POST /a'\n"));
        assert!(!compressed("[route.a]\nmatch = 'POST /a'\nprofile = 'feed'\nguarantee = 'atomic'\n"));
    }
}
