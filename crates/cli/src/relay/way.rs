//! The way to a relay's admin API: to the process that owns the store, or to the store itself where nobody owns it.

use std::path::Path;

use super::At;
use crate::admin::{self, Caller, Part};
use crate::config::Store;
use crate::exit::{Exit, Stop};
use crate::serve::relay::config::{Config, Flags};
use crate::serve::relay::{OpenStop, Purpose, local_admin, open};

/// Finds the way to the admin API.
pub(super) async fn find(at: &At) -> Result<Caller, Stop> {
    let actor = at.by.clone().unwrap_or_else(admin::user);
    reach(at).await?.by(&actor)
}

async fn reach(at: &At) -> Result<Caller, Stop> {
    let flags = Flags { config: at.config.as_deref(), store: at.store.as_deref(), ..Flags::default() };
    let config = Config::load(&flags);
    if let Some(url) = &at.admin {
        // A configuration is not needed here, and one that is broken does not matter.
        let set = config.ok().and_then(|config| config.admin_token_file);
        return Caller::at(Part::Relay, url, at.token_file.as_deref().or(set.as_deref()));
    }
    let config = config?;
    if let Store::Sqlite(path) = &config.store
        && !Path::new(path).exists()
    {
        let what = format!("there is no store at sqlite:{path}; say --store sqlite:PATH, or --admin URL");
        return Err(Stop::new(Exit::Io, what));
    }
    match open(&config, Purpose::Look).await {
        Ok(opened) => Ok(Caller::here(Part::Relay, local_admin(&config, &opened.store))),
        Err(OpenStop::Stop(stop)) => Err(stop),
        Err(OpenStop::Owned(path)) => {
            let token_file = at.token_file.as_deref().or(config.admin_token_file.as_deref());
            Caller::owner(Part::Relay, &path, token_file).await
        }
    }
}
