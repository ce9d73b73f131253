//! What operators see on the admin address. The one place where its router is made.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use semel_console::{Access, AccessError, Console, Metrics, Token};

use crate::config::Config;
use crate::exit::{Exit, Stop};
use crate::store::Opened;

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
}

/// Starts to count. A process that counts already, for somebody else, goes on to do so.
pub(crate) fn count() -> Metrics {
    let metrics = Metrics::default();
    if metrics.install().is_err() {
        tracing::warn!("something else counts in this process; /metrics shows the store only");
    }
    metrics
}

/// Whom the admin address lets in. An address that others reach needs a token.
pub(crate) fn access(config: &Config, address: SocketAddr) -> Result<Access, Stop> {
    let token = |path: Option<&Path>| path.map(Token::from_file).transpose();
    let of_files = || -> Result<Access, AccessError> {
        let full = token(config.gate.admin_token_file.as_deref())?;
        let read = token(config.gate.admin_read_token_file.as_deref())?;
        Access::on(address, full, read)
    };
    of_files().map_err(|error| {
        let what_to_do = "gate.admin_token_file or --admin-token-file names the file of the full token";
        Stop::new(Exit::Config, format!("{error}; {what_to_do}"))
    })
}

/// The router of the admin address.
pub(crate) fn admin_router(admin: &Admin, config: &Config) -> Router {
    let is_stopping = Arc::clone(&admin.is_stopping);
    let lifetimes = config.routes.iter().map(|route| &route.profile).chain([&config.defaults]);
    let longest = lifetimes.map(|profile| profile.lifetime.record()).max().unwrap_or_default();
    Console::on(Arc::clone(&admin.store.operated), admin.access.clone())
        .metrics(admin.metrics.clone())
        .unready_while(move || is_stopping.load(Ordering::Relaxed).then(|| "shutting down".to_owned()))
        .resolved_kept(longest)
        .router()
}
