//! How a relay speaks of its lanes: a property of the profile, from one table. Senders that came before the relay know their
//! lanes by another name, in answers and in Redis.

use semel_contract::profile::Profile;
use semel_delivery::relay::store::look::{Item, ItemState, LaneView};
use serde_json::{Value, json};

/// Profiles whose lanes are called otherwise.
const OTHERWISE: &[(&str, Wording)] = &[("scores", Wording::Patrols)];

/// What lanes are called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wording {
    Lanes,
    Patrols,
}

impl Wording {
    /// How this profile speaks.
    pub(crate) fn of(profile: &Profile) -> Self {
        let found = OTHERWISE.iter().find(|(name, _)| *name == profile.name);
        found.map_or(Wording::Lanes, |(_, wording)| *wording)
    }

    /// The name of the list.
    pub(crate) fn list(self) -> &'static str {
        match self {
            Wording::Lanes => "lanes",
            Wording::Patrols => "patrols",
        }
    }

    /// A lane in the answer to a submission.
    pub(crate) fn submitted(self, item: &Item, state: ItemState) -> Value {
        match self {
            Wording::Lanes => json!({
                "lane": item.lane, "group": item.group, "label": item.label, "value": item.applied, "status": state.name()
            }),
            Wording::Patrols => {
                json!({"id": item.lane, "name": item.label, "score": item.applied, "status": state.name()})
            }
        }
    }

    /// The lanes as those who look at them know them, beside what every relay says. `None`: there is nothing else to say.
    pub(crate) fn looked_at(self, views: &[LaneView], writing: fn(&LaneView) -> Value) -> Option<Value> {
        let of_patrol = |view: &LaneView| {
            json!({
                "id": view.lane.name,
                "name": view.lane.label,
                "score": view.lane.applied,
                "pendingDelta": view.delta,
                "hasPending": view.pending > 0,
                "writing": writing(view),
            })
        };
        match self {
            Wording::Lanes => None,
            Wording::Patrols => Some(views.iter().map(of_patrol).collect()),
        }
    }

    /// The key in Redis of something about a lane.
    pub(crate) fn redis_key(self, target: &str, group: &str, lane: &str, what: &str) -> String {
        match self {
            Wording::Lanes => format!("semel:relay:{target}:{group}:{lane}:{what}"),
            Wording::Patrols => format!("patrol:{group}:{lane}:{what}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use semel_contract::profile::presets;

    use super::*;

    #[test]
    fn every_profile_that_speaks_otherwise_is_a_preset() {
        for (name, wording) in OTHERWISE {
            let preset = presets::preset(name).unwrap_or_else(|| panic!("there is no preset {name}"));
            assert_eq!(Wording::of(&preset), *wording);
        }
        assert_eq!(Wording::of(&presets::ietf()), Wording::Lanes);
    }
}
