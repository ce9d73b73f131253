//! What an operator sees: an admin API over a store, health, and metrics. Needs a store and nothing else, so that a gate
//! inside another program can be looked into as well:
//!
//! ```
//! # use std::sync::Arc;
//! # use semel_store::{clock::SystemClock, memory::MemoryStore};
//! use semel_console::{Access, Console};
//!
//! let store = Arc::new(MemoryStore::new());
//! let access = Access::on("127.0.0.1:7401".parse().unwrap(), None, None).unwrap();
//! let admin: axum::Router = Console::on(store, access).router();
//! ```
//!
//! 1. `/` is the console: pages for people, complete without a script.
//! 2. `/healthz` and `/readyz` say whether the process lives and whether it can serve: also to a stranger, who is told no more.
//! 3. `/openapi.json`, which describes all of it, `/metrics` and every `GET` below `/v1` need a token, the full or the read-only one, unless none is set.
//! 4. Every `POST` below `/v1` needs the full token, unless none is set, and leaves a row in the audit trail that names
//!    who did it.
//!
//! An address that is not loopback is refused without a token. On loopback without a token, the `Host` must be loopback
//! too, and a foreign `Origin` is refused: a web page that an operator happens to open must not reach this. A request with a
//! forwarding header came from elsewhere, and needs a token also on loopback.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod access;
mod actions;
mod ask;
mod gate;
mod health;
mod history;
mod listing;
mod once;
mod openapi;
pub mod part;
mod prometheus;
mod records;
mod refusal;
mod resolve;
mod ring;
mod routes;
mod upkeep;
mod view;
mod web;

use std::sync::Arc;
use std::time::Duration;

use semel_contract::profile::presets;
use semel_store::AdminStore;

pub use access::{ACTOR, Access, AccessError, Caller, Right, Token};
pub use actions::{ACTIONS, Action, Field, Kind, Offered, Reason};
pub use openapi::document;
pub use prometheus::{Metrics, NAMES};
pub use web::{History, Surface};

/// How long a record that was resolved by hand is kept, unless the resolution says otherwise. Longer than any client
/// retries does no harm; shorter would let a late retry run again.
pub const RESOLVED_KEPT: Duration = Duration::from_secs(30 * 86_400);

/// Says why this process does not want to be sent requests, if it does not.
type Reluctance = dyn Fn() -> Option<String> + Send + Sync;

/// The admin API of one store.
#[derive(Clone)]
pub struct Console {
    store: Arc<dyn AdminStore>,
    access: Arc<Access>,
    metrics: Option<Metrics>,
    reluctance: Option<Arc<Reluctance>>,
    resolved_kept: Duration,
    records_kept: Duration,
    settings: Vec<part::Section>,
    history: History,
    warnings: Option<Arc<part::Warnings>>,
    leans: Option<Arc<part::Leans>>,
}

/// On every answer of an admin API, so that whoever asks knows whom it is talking to. A gateway never passes it on.
pub const MARK: &str = "semel-admin";

impl std::fmt::Debug for Console {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Console").field("access", &self.access).finish_non_exhaustive()
    }
}

impl Console {
    /// The admin API of this store, for those whom `access` lets in.
    pub fn on(store: Arc<dyn AdminStore>, access: Access) -> Self {
        let access = Arc::new(access);
        let lifetime = presets::ietf().lifetime;
        let records_kept = lifetime.record() + lifetime.skew;
        Self {
            store,
            access,
            metrics: None,
            reluctance: None,
            resolved_kept: RESOLVED_KEPT,
            records_kept,
            settings: Vec::new(),
            history: History::default(),
            warnings: None,
            leans: None,
        }
    }

    /// Also shows what this process counts, at `/metrics`.
    #[must_use]
    pub fn metrics(mut self, metrics: Metrics) -> Self {
        self.metrics = Some(metrics);
        self
    }

    /// Not ready while this says why, such as during a shutdown.
    #[must_use]
    pub fn unready_while(mut self, why: impl Fn() -> Option<String> + Send + Sync + 'static) -> Self {
        self.reluctance = Some(Arc::new(why));
        self
    }

    /// Keeps resolved records at least this long; never shorter than [`RESOLVED_KEPT`].
    #[must_use]
    pub fn resolved_kept(mut self, kept: Duration) -> Self {
        self.resolved_kept = kept.max(RESOLVED_KEPT);
        self
    }

    /// The longest time for which a record counts, with what clocks may differ: so long after a restore a key without a
    /// record may have had one.
    #[must_use]
    pub fn records_kept(mut self, kept: Duration) -> Self {
        self.records_kept = kept;
        self
    }

    /// Shows these settings as those in force.
    #[must_use]
    pub fn settings(mut self, settings: Vec<part::Section>) -> Self {
        self.settings = settings;
        self
    }

    /// Also says what a person should hear of, such as a disk that is nearly full.
    #[must_use]
    pub fn warned_by(mut self, warnings: impl Fn() -> Vec<String> + Send + Sync + 'static) -> Self {
        self.warnings = Some(Arc::new(warnings));
        self
    }

    /// Also shows what it leans on, and how that fares.
    #[must_use]
    pub fn leaning_on(mut self, leans: Arc<part::Leans>) -> Self {
        self.leans = Some(leans);
        self
    }

    /// Goes on with the charts that were drawn before the settings were read again.
    #[must_use]
    pub fn history(mut self, history: History) -> Self {
        self.history = history;
        self
    }

    /// The API and the console, behind their guard.
    pub fn router(self) -> axum::Router {
        let (surface, api) = self.surface();
        surface.router(api.fallback(routes::no_such_path))
    }

    /// The same for a process that shows other parts on the same address: the console with this part, and the API, which
    /// lets everybody in until [`Surface::router`] puts the guard before it.
    pub fn surface(self) -> (Surface, axum::Router) {
        let (settings, metrics, warnings, leans) =
            (self.settings.clone(), self.metrics.clone(), self.warnings.clone(), self.leans.clone());
        let surface =
            Surface::new((*self.access).clone()).history(self.history.clone()).index(openapi::index());
        let api = routes::router(self);
        let part = part::Routed::new(&gate::SHEET, api.clone()).settings(settings);
        let part = match metrics {
            Some(metrics) => part.numbers(move || metrics.render()),
            None => part,
        };
        let part = match warnings {
            Some(warnings) => part.warned_by(warnings),
            None => part,
        };
        let part = match leans {
            Some(leans) => part.leaning_on(leans),
            None => part,
        };
        (surface.part(part), api)
    }
}
