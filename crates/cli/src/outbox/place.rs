//! What commands read of `[outbox]`: where its file is, and in which mesh it publishes. The daemon's own reading is stricter.

use std::path::{Path, PathBuf};

use semel_delivery::url::Target;
use serde::Deserialize;

use super::mesh::Mesh;
use crate::exit::{Exit, Stop};

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Whole {
    outbox: Place,
}

/// Where an outbox is, and where it publishes.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Place {
    pub(super) store: Option<String>,
    broker: Option<String>,
    mesh: Option<String>,
}

impl Place {
    /// What the file says that is named, or that is beside.
    pub(super) fn read(path: Option<&Path>) -> Result<Self, Stop> {
        let beside = Path::new("semel.toml");
        let variable = std::env::var_os("SEMEL_CONFIG").map(PathBuf::from);
        let named = path.or(variable.as_deref());
        let Some(path) = named.or_else(|| beside.exists().then_some(beside)) else {
            return Ok(Self::default());
        };
        let bad =
            |error: String| Stop::new(Exit::Config, format!("{}: {}", path.display(), error.trim_end()));
        let text = std::fs::read_to_string(path).map_err(|error| bad(error.to_string()))?;
        let whole: Whole = toml::from_str(&text).map_err(|error| bad(error.to_string()))?;
        Ok(whole.outbox)
    }

    /// Where messages for topics and members go.
    pub(super) fn mesh(&self) -> Result<Option<Mesh>, Stop> {
        let bad = |error: String| Stop::new(Exit::Config, error);
        let broker = self.broker.as_deref().map(Target::absolute).transpose();
        let broker = broker.map_err(|error| bad(format!("outbox.broker: {error}")))?;
        Mesh::read(broker, self.mesh.as_deref()).map_err(bad)
    }
}
