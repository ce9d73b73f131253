//! The way to a gate's admin API: to the process that owns the store, or to a console of our own over a store that nobody else
//! owns. Decides which; says what to do where there is none.

use std::ops::Deref;
use std::path::Path;

use semel_console::{Access, Console};

use super::At;
use crate::admin::{self, Caller, Part};
use crate::config::{Config, Setting, Store, Variables};
use crate::exit::{Exit, Stop};
use crate::store::{self, Backend, OpenStop, Opened};

/// The way to the admin API.
pub(crate) struct Way {
    caller: Caller,
    /// The store, where it is ours.
    opened: Option<Opened>,
}

impl Deref for Way {
    type Target = Caller;

    fn deref(&self) -> &Caller {
        &self.caller
    }
}

impl Way {
    /// Finds the way.
    pub(crate) async fn find(at: &At) -> Result<Self, Stop> {
        let actor = at.by.clone().unwrap_or_else(admin::user);
        let (caller, opened) = reach(at).await?;
        Ok(Self { caller: caller.by(&actor)?, opened })
    }

    /// Whether other processes may look at the same store at the same time.
    pub(crate) fn is_shared(&self) -> bool {
        match &self.opened {
            Some(opened) => matches!(opened.backend, Backend::Postgres(_)),
            None => true,
        }
    }
}

async fn reach(at: &At) -> Result<(Caller, Option<Opened>), Stop> {
    let config = settings(at);
    if let Some(url) = &at.admin {
        // A configuration is not needed here, and one that is broken does not matter.
        let set = config.ok().and_then(|config| config.gate.admin_token_file);
        return Ok((Caller::at(Part::Gate, url, at.token_file.as_deref().or(set.as_deref()))?, None));
    }
    let config = config?;
    let token_file = at.token_file.as_deref().or(config.gate.admin_token_file.as_deref());
    if let Store::Sqlite(path) = &config.store
        && !Path::new(path).exists()
    {
        let what = format!(
            "there is no store at sqlite:{path}; say --store sqlite:PATH, or --admin URL of the process that owns it"
        );
        return Err(Stop::new(Exit::Io, what));
    }
    if let Store::Sqlite(path) = &config.store
        && let Some(stop) = store::of_somebody_else(Path::new(path))
    {
        // Its owner may be asked all the same.
        return match Caller::owner(Part::Gate, Path::new(path), token_file).await {
            Ok(owner) if owner.answers().await => Ok((owner, None)),
            Ok(_) | Err(_) => Err(stop),
        };
    }
    match store::open_to_look(&config).await {
        Ok(opened) => {
            let console = Console::on(opened.operated.clone(), Access::within_process());
            Ok((Caller::here(Part::Gate, console.router()), Some(opened)))
        }
        Err(OpenStop::Owned(path)) => {
            Ok((Caller::owner(Part::Gate, Path::new(&path), token_file).await?, None))
        }
        Err(OpenStop::Stop(stop)) => Err(stop),
    }
}

fn settings(at: &At) -> Result<Config, Stop> {
    let variables = Variables::read().map_err(|message| Stop::new(Exit::Config, message))?;
    let beside = Path::new("semel.toml");
    let named = at.config.as_deref().or_else(|| variables.config().map(Path::new));
    let path = named.or_else(|| beside.exists().then_some(beside));
    let mut config = Config::load(path, &variables)?;
    if let Some(store) = &at.store {
        let read = Store::read(store).map_err(|error| Stop::new(Exit::Usage, format!("--store: {error}")));
        config.store = read?;
    }
    Ok(config)
}
