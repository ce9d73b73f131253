//! The profiles that a file may name: the presets, and `[profile.NAME]` of the file itself. Owns what such a table begins with.

use std::collections::BTreeMap;

use semel_contract::profile::settings::Settings;
use semel_contract::profile::{Profile, presets};

/// The profile that everything begins with that names no other.
pub(crate) const USUAL: &str = "ietf";
/// Tables that may begin with one another in a row.
const DEPTH_MAX: usize = 8;

/// Profiles by name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Profiles(BTreeMap<String, Settings>);

impl Profiles {
    /// These tables beside the presets. Each must be one that can be used.
    pub(crate) fn of(tables: BTreeMap<String, Settings>) -> Result<Self, String> {
        let profiles = Self(tables);
        for (name, settings) in &profiles.0 {
            let of_profile = |error: String| format!("profile.{name}: {error}");
            if presets::preset(name).is_some() {
                return Err(of_profile("a preset has this name: choose another".to_owned()));
            }
            settings.refuse_in_profile().map_err(|error| of_profile(error.into()))?;
            profiles.get(name, |usual| usual).map_err(of_profile)?;
        }
        Ok(profiles)
    }

    /// The profile of this name. `adapt` changes the usual preset where what begins with it wants it otherwise.
    pub(crate) fn get(&self, name: &str, adapt: impl Fn(Profile) -> Profile) -> Result<Profile, String> {
        let mut tables = Vec::new();
        let mut below = name;
        while let Some(settings) = self.0.get(below) {
            if tables.len() == DEPTH_MAX {
                return Err(format!(
                    "the profile {name:?} begins with itself, or with more than {DEPTH_MAX} others"
                ));
            }
            tables.push(settings);
            below = settings.profile.as_deref().unwrap_or(USUAL);
        }
        let preset = presets::preset(below).ok_or_else(|| self.unknown(below))?;
        let mut profile = if below == USUAL { adapt(preset) } else { preset };
        for settings in tables.into_iter().rev() {
            settings.apply_to(&mut profile)?;
        }
        if self.0.contains_key(name) {
            profile.name = name.to_owned().into();
        }
        Ok(profile)
    }

    fn unknown(&self, name: &str) -> String {
        let known = presets::PRESETS.iter().map(|(name, _)| *name).chain(self.0.keys().map(String::as_str));
        format!("there is no profile {name:?}; there are {}", known.collect::<Vec<_>>().join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profiles(text: &str) -> Result<Profiles, String> {
        Profiles::of(toml::from_str(text).map_err(|error: toml::de::Error| error.to_string())?)
    }

    #[test]
    fn a_profile_begins_with_another_and_has_its_own_name() {
        let profiles = profiles(
            "[shop]\nerrors = 'text'\nretry_window = '2d'\n[shop-fast]\nprofile = 'shop'\nin_flight = 'reject 2s'\n",
        )
        .unwrap();
        let profile = profiles.get("shop-fast", |usual| usual).unwrap();
        assert_eq!((&*profile.name, profile.wire.form.name()), ("shop-fast", "text"));
        assert_eq!(profile.lifetime.retry_window.as_secs(), 2 * 86_400);
        assert!(matches!(profile.in_flight, semel_contract::profile::InFlight::Reject { .. }));
    }

    #[test]
    fn what_cannot_be_a_profile_is_refused_by_name() {
        for (text, complaint) in [
            ("[a]\nprofile = 'b'\n[b]\nprofile = 'a'\n", "begins with itself"),
            ("[a]\nprofile = 'none-such'\n", "there is no profile \"none-such\""),
            ("[stripe]\nerrors = 'text'\n", "a preset has this name"),
            ("[a]\nmatch = 'POST /x'\n", "belong to a route"),
            ("[a]\ncodes = { no-such-problem = 'X' }\n", "no-such-problem"),
            ("[a]\nschedule = { factor = 0.5 }\n", "bad factor"),
        ] {
            let error = profiles(text).unwrap_err();
            assert!(error.contains(complaint), "{text}: {error}");
        }
    }

    /// Whatever a preset says, a user can say: every preset's own file is a profile under another name.
    #[test]
    fn every_preset_can_be_written_by_a_user() {
        for (name, make) in presets::PRESETS {
            let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../contract/profiles/");
            let file = std::fs::read_to_string(format!("{folder}{name}.toml")).expect("the preset's file");
            let table: Settings = toml::from_str(&file).unwrap();
            let profiles = Profiles::of(BTreeMap::from([("mine".to_owned(), table)])).unwrap();
            let mut mine = profiles.get("mine", |usual| usual).unwrap();
            mine.name = name.into();
            let (mine, preset) = (super::super::describe(&mine), super::super::describe(&make()));
            assert_eq!(mine, preset, "{name}");
        }
    }
}
