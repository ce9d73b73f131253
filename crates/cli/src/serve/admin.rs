//! What operators see on the admin address. The one place where its router is made.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use semel_console::{Access, AccessError, Console, History, Metrics, Surface, Token};
use semel_store::StoreError;

use super::leans::Leaning;
use crate::config::Config;
use crate::exit::{Exit, Stop};
use crate::store::{Backend, Opened};

/// What the admin router is made of.
#[derive(Clone)]
pub(crate) struct Admin {
    /// The store.
    pub(crate) store: Opened,
    /// Set when the gateway takes no more requests.
    pub(crate) is_stopping: Arc<AtomicBool>,
    /// What this process counts.
    pub(crate) metrics: Metrics,
    /// Who is let in.
    pub(crate) access: Access,
    /// What the charts show.
    pub(crate) history: History,
}

/// Starts to count. A process that counts already, for somebody else, goes on to do so.
pub(crate) fn count() -> Metrics {
    let metrics = Metrics::default();
    if metrics.install().is_err() {
        tracing::warn!("something else counts in this process; /metrics shows the store only");
    }
    metrics
}

/// Whom an admin address lets in, by the files of its tokens. The rule of every part: an address that others reach needs one.
pub(crate) fn access_by(
    part: &str,
    address: SocketAddr,
    token_file: Option<&Path>,
    read_token_file: Option<&Path>,
) -> Result<Access, Stop> {
    let token = |path: Option<&Path>| path.map(Token::from_file).transpose();
    let of_files = || -> Result<Access, AccessError> {
        Access::on(address, token(token_file)?, token(read_token_file)?)
    };
    of_files().map_err(|error| {
        let what_to_do =
            format!("{part}.admin_token_file or --admin-token-file names the file of the full token");
        Stop::new(Exit::Config, format!("{error}; {what_to_do}"))
    })
}

/// Whom the admin address of a gate lets in.
pub(crate) fn access(config: &Config, address: SocketAddr) -> Result<Access, Stop> {
    let gate = &config.gate;
    let access =
        access_by("gate", address, gate.admin_token_file.as_deref(), gate.admin_read_token_file.as_deref())?;
    let proxy = Proxy {
        trusted: gate.admin_trusted.clone(),
        operators: gate.admin_operators.clone(),
        hosts: gate.admin_hosts.clone(),
    };
    proxy.believed("gate", access)
}

/// What the settings of a part say of a proxy of one's own before its admin address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Proxy {
    trusted: Option<String>,
    operators: Vec<String>,
    hosts: Vec<String>,
}

impl Proxy {
    /// From the settings `admin_trusted`, `admin_operators` and `admin_hosts`.
    pub(crate) fn of(
        trusted: Option<String>,
        operators: Option<Vec<String>>,
        hosts: Option<Vec<String>>,
    ) -> Self {
        Self { trusted, operators: operators.unwrap_or_default(), hosts: hosts.unwrap_or_default() }
    }

    /// The door of an admin address that believes it.
    pub(crate) fn believed(&self, part: &str, access: Access) -> Result<Access, Stop> {
        let access = access.called(self.hosts.clone());
        match &self.trusted {
            Some(header) => access
                .trusting(header, self.operators.clone())
                .map_err(|error| Stop::new(Exit::Config, format!("{part}.admin_trusted: {error}"))),
            None => Ok(access),
        }
    }
}

/// So long after a restore a key without a record may have had one on some route.
pub(crate) fn longest_recalled(config: &Config) -> Duration {
    let profiles = config.routes.iter().map(|route| &route.profile).chain([&config.defaults]);
    profiles.map(|profile| profile.lifetime.record() + profile.lifetime.skew).max().unwrap_or_default()
}

/// Says at the start that a restore is in force: new keys may be answered `outcome-unknown`.
pub(crate) async fn warn_of_restores(config: &Config, store: &Opened) {
    let asked =
        async { Ok::<_, StoreError>((store.operated.clock().await?.now, store.operated.restores().await?)) };
    let Ok((now, restores)) = asked.await else { return };
    let latest = restores.iter().max_by_key(|restore| restore.restored_at);
    let until = latest.map(|restore| (restore, restore.restored_at.plus(longest_recalled(config))));
    if let Some((restore, until)) = until.filter(|(_, until)| now <= *until) {
        tracing::warn!(
            backup_time = %restore.backup_at,
            %until,
            "the store was restored from a backup: keys without a record are unknown, unless their client says that it \
             first sent them after the restore; see `semel gate restores`"
        );
    }
}

/// What a gate leans on.
fn leaning(admin: &Admin, config: &Config) -> Leaning {
    let mut leaning = Leaning::on(&config.store);
    if let Backend::Postgres(store) = &admin.store.backend {
        let store = Arc::clone(store);
        leaning.replicas(move || {
            let store = Arc::clone(&store);
            async move { store.sessions().await.map_err(|error| error.to_string()) }
        });
    }
    if let Some(url) = &config.gate.redis {
        leaning.reaches("Redis", url);
    }
    if let Some(upstream) = &config.gate.upstream {
        leaning.reaches("service", &upstream.target.to_string());
    }
    leaning
}

/// The router of the admin address.
pub(crate) fn admin_router(admin: &Admin, config: &Config) -> Router {
    let (surface, api) = surface(admin, config);
    surface.router(api)
}

/// The console of the gate, to which other parts may be added, and the gate's API.
pub(crate) fn surface(admin: &Admin, config: &Config) -> (Surface, Router) {
    let is_stopping = Arc::clone(&admin.is_stopping);
    let lifetimes = config.routes.iter().map(|route| &route.profile).chain([&config.defaults]);
    let longest = lifetimes.map(|profile| profile.lifetime.record()).max().unwrap_or_default();
    Console::on(Arc::clone(&admin.store.operated), admin.access.clone())
        .metrics(admin.metrics.clone())
        .unready_while(move || is_stopping.load(Ordering::Relaxed).then(|| "shutting down".to_owned()))
        .resolved_kept(longest)
        .records_kept(longest_recalled(config))
        .settings(super::settings::sections(config))
        .history(admin.history.clone())
        .leaning_on(leaning(admin, config).shown())
        .warned_by({
            let store = config.store.clone();
            move || super::disk::warnings(&store)
        })
        .surface()
}
