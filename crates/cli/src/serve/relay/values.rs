//! The texts that stand in `[relay]` and mean something there alone. Each says what it expected.

use semel_contract::profile::settings::values::Word;
use semel_contract::profile::{Profile, presets};
use semel_delivery::relay::template::{Place, Template};

use crate::config::Setting;

/// What a service offers to find out about a write that broke off. What else it takes stands beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tier {
    Key,
    Marker,
    CompareAndSet,
    ReadBack,
    Blind,
}

impl Word for Tier {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("key", Tier::Key),
        ("marker", Tier::Marker),
        ("compare-and-set", Tier::CompareAndSet),
        ("read-back", Tier::ReadBack),
        ("blind", Tier::Blind),
    ];
}

impl Tier {
    pub(super) fn name(self) -> &'static str {
        Self::WORDS.iter().find(|(_, tier)| *tier == self).map_or("", |(name, _)| *name)
    }
}

/// How values are encoded in a body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum BodyType {
    #[default]
    Json,
    Form,
}

impl Word for BodyType {
    const WORDS: &'static [(&'static str, Self)] = &[("json", BodyType::Json), ("form", BodyType::Form)];
}

/// A URL with places for values.
#[derive(Clone, Debug)]
pub(crate) struct UrlTemplate(pub(super) Template);

impl Setting for UrlTemplate {
    fn read(text: &str) -> Result<Self, String> {
        template(Place::Url, text).map(Self)
    }
}

/// The value of a header with places for values.
#[derive(Clone, Debug)]
pub(crate) struct HeaderTemplate(pub(super) Template);

impl Setting for HeaderTemplate {
    fn read(text: &str) -> Result<Self, String> {
        template(Place::Header, text).map(Self)
    }
}

pub(super) fn template(place: Place, text: &str) -> Result<Template, String> {
    Template::parse(place, text).map_err(|error| error.to_string())
}

/// A profile of those that are known without a file.
#[derive(Clone, Debug)]
pub(crate) struct Preset(pub(super) Profile);

impl Setting for Preset {
    fn read(text: &str) -> Result<Self, String> {
        presets::preset(text).map(Self).ok_or_else(|| {
            let known: Vec<&str> = presets::PRESETS.iter().map(|(name, _)| *name).collect();
            format!("there is no profile {text:?}: expected {}", known.join(", "))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_is_refused_with_what_is() {
        for (found, expected) in [
            (Tier::read("hopeful").map(drop), "expected key, marker, compare-and-set, read-back, blind"),
            (BodyType::read("xml").map(drop), "expected json, form"),
            (Preset::read("scoring").map(drop), "expected ietf, stripe"),
            (UrlTemplate::read("http://h/{who}").map(drop), "{who}"),
        ] {
            let why = found.unwrap_err();
            assert!(why.contains(expected), "{why}");
        }
        assert_eq!(Tier::read("read-back").map(Tier::name), Ok("read-back"));
    }
}
