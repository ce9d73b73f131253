//! The way to a broker: to the admin address of the process that owns the store, to the file where no process owns it, or to where
//! members connect.

use std::path::Path;
use std::sync::Arc;

use semel_broker::{Broker, Parts, admin_router, database};
use semel_delivery::relay::store::sqlite::OpenError;
use semel_store::clock::SystemClock;

use super::At;
use crate::admin::{self, Caller, Part};
use crate::config::Store;
use crate::exit::{Exit, Stop};
use crate::serve::broker::Args as ServeArgs;
use crate::serve::broker::config::Config;

/// Finds the way to the admin API.
pub(super) async fn find(at: &At) -> Result<Caller, Stop> {
    reach(at).await?.by(&admin::user())
}

async fn reach(at: &At) -> Result<Caller, Stop> {
    let config = config(at);
    if let Some(url) = &at.admin {
        // A configuration is not needed here, and one that is broken does not matter.
        let set = config.ok().and_then(|config| config.admin_token_file);
        return Caller::at(Part::Broker, url, at.admin_token_file.as_deref().or(set.as_deref()));
    }
    let config = config?;
    let token_file = at.admin_token_file.as_deref().or(config.admin_token_file.as_deref());
    let Store::Sqlite(path) = &config.store else {
        return Caller::at(Part::Broker, &config.admin.to_string(), token_file);
    };
    let path = Path::new(path);
    if !path.exists() {
        let what =
            format!("there is no store at {}; start `semel serve broker`, or say --admin URL", config.store);
        return Err(Stop::new(Exit::Io, what));
    }
    match database::open_file(path, Arc::new(SystemClock)) {
        Ok(file) => {
            let opened = Broker::open(Parts::new(Arc::new(file)), config.settings.clone()).await;
            let broker = opened.map_err(|error| Stop::new(Exit::Io, error.to_string()))?;
            Ok(Caller::here(Part::Broker, admin_router(broker)))
        }
        Err(OpenError::Locked { .. }) => Caller::owner(Part::Broker, path, token_file).await,
        Err(error) => Err(Stop::new(Exit::Io, format!("failed to open {}: {error}", path.display()))),
    }
}

/// The way of a member.
pub(super) fn of_member(url: Option<&str>, token_file: &Path, at: &At) -> Result<Caller, Stop> {
    let url = match url {
        Some(url) => url.to_owned(),
        None => {
            let config = config(at)?;
            format!("{}://{}", if config.tls.is_some() { "https" } else { "http" }, config.listen)
        }
    };
    Caller::member(&url, token_file)
}

/// The settings of the broker.
fn config(at: &At) -> Result<Config, Stop> {
    let (store, config) = (at.store.clone(), at.config.clone());
    Config::load(&ServeArgs { store, config, ..ServeArgs::default() })
}
