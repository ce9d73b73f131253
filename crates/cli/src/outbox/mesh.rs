//! The mesh in which an outbox publishes: where its broker is, and what a message for a topic or a member becomes.

use semel_delivery::url::{Target, encoded};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// A mesh at a broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mesh {
    /// Where the broker's members connect.
    pub(crate) broker: Target,
    /// Its name.
    pub(crate) name: String,
}

/// To whom something is published.
#[derive(Deserialize, Serialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub(super) enum To {
    Topic(String),
    Member(String),
}

/// What is published.
#[derive(Serialize)]
pub(super) struct Message<'a> {
    pub(super) to: &'a To,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) body: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) body_base64: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) content_type: Option<&'a str>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    pub(super) mentions: &'a [String],
}

impl Mesh {
    /// What the settings say of it.
    pub(crate) fn read(broker: Option<Target>, mesh: Option<&str>) -> Result<Option<Self>, String> {
        match (broker, mesh) {
            (None, None) => Ok(None),
            (Some(broker), Some(mesh)) => Self::of(broker, mesh).map(Some),
            (Some(_), None) => {
                Err("outbox.broker needs outbox.mesh: the mesh in which messages are published".to_owned())
            }
            (None, Some(_)) => Err("outbox.mesh needs outbox.broker: where the broker is".to_owned()),
        }
    }

    /// A mesh of this name at this address.
    pub(crate) fn of(broker: Target, name: &str) -> Result<Self, String> {
        match name.is_empty() {
            true => Err("outbox.mesh: a mesh has a name".to_owned()),
            false => Ok(Self { broker, name: name.to_owned() }),
        }
    }

    /// Where its messages are published.
    pub(super) fn url(&self) -> String {
        let base = self.broker.path.trim_end_matches('/');
        format!("{}{base}/v1/meshes/{}/messages", self.broker.origin, encoded(&self.name))
    }
}
