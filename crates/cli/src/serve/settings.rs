//! What is in force in a gate, in words: the same for the console and for `semel check`.

use semel_console::part::{Bound, Section};
use semel_contract::profile::Profile;

use super::announce;
use crate::config::{Config, describe, redacted, without_passwords};

/// What is in force in a gate, for its console: the same words and the same arithmetic.
pub(crate) fn sections(config: &Config) -> Vec<Section> {
    let shown = |rows: Vec<(String, String)>| -> Vec<(String, String)> {
        rows.into_iter().map(|(name, value)| (name, without_passwords(&value))).collect()
    };
    let mut rows = vec![
        (
            "configuration".to_owned(),
            config.path.as_ref().map_or_else(|| "none".to_owned(), |path| path.display().to_string()),
        ),
        ("store".to_owned(), config.store.to_string()),
        ("identity".to_owned(), redacted(&config.identity.to_string())),
    ];
    rows.extend(announce::protected(config, false).into_iter().map(|line| ("protects".to_owned(), line)));
    rows.extend(config.gate.describe().into_iter().map(|(name, value)| (name.to_owned(), value)));
    let upstream = config
        .gate
        .upstream
        .as_ref()
        .map_or_else(|| "none".to_owned(), |upstream| upstream.target.to_string());
    rows.push(("upstream".to_owned(), upstream));
    let bounds = config.warnings().into_iter().map(|warning| (Bound::Warns, warning)).collect();
    let mut sections = vec![Section { title: "Gate".to_owned(), rows: shown(rows), bounds }];
    for (name, profile) in profiles(config) {
        let mut rows: Vec<(String, String)> = Vec::new();
        if let Some(route) = config.routes.iter().find(|route| format!("route.{}", route.name) == name) {
            rows.push(("match".to_owned(), route.pattern.to_string()));
            rows.extend(route.probe.as_ref().map(|probe| ("probe".to_owned(), probe.clone())));
        }
        rows.extend(describe(profile).into_iter().map(|(name, value)| (name.to_owned(), value)));
        let bounds = profile.arithmetic().into_iter();
        let bounds = bounds
            .map(|bound| (if bound.holds { Bound::Holds } else { Bound::Unsafe }, bound.rule))
            .collect();
        sections.push(Section { title: name, rows: shown(rows), bounds });
    }
    sections
}

/// Each profile in force with its name in the file.
pub(crate) fn profiles(config: &Config) -> impl Iterator<Item = (String, &Profile)> {
    let routes = config.routes.iter().map(|route| (format!("route.{}", route.name), &route.profile));
    std::iter::once(("defaults".to_owned(), &config.defaults)).chain(routes)
}
