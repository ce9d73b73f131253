//! `SEMEL_*` variables: each overrides one setting of the file. The table is all there is.

use std::collections::BTreeMap;

use super::file::{File, RequestLimit, Unknown};
use super::values::{Setting, Text};

/// The environment, as far as it concerns semel.
pub(crate) type Variables = BTreeMap<String, String>;

type Apply = fn(&mut File, &str) -> Result<(), String>;

fn set<T: Setting>(slot: &mut Option<Text<T>>, value: &str) -> Result<(), String> {
    *slot = Some(Text(T::read(value)?));
    Ok(())
}

/// Every variable and the setting it overrides.
const TABLE: [(&str, &str, Apply); 24] = [
    ("SEMEL_STORE", "store", |file, value| set(&mut file.store, value)),
    ("SEMEL_IDENTITY", "identity", |file, value| set(&mut file.identity, value)),
    ("SEMEL_GATE_LISTEN", "gate.listen", |file, value| set(&mut file.gate.listen, value)),
    ("SEMEL_GATE_ADMIN", "gate.admin", |file, value| set(&mut file.gate.admin, value)),
    ("SEMEL_GATE_UPSTREAM", "gate.upstream", |file, value| set(&mut file.gate.upstream, value)),
    ("SEMEL_GATE_MODE", "gate.mode", |file, value| {
        file.gate.mode = Some(Setting::read(value)?);
        Ok(())
    }),
    ("SEMEL_DEFAULTS_PROFILE", "defaults.profile", |file, value| set(&mut file.defaults.profile, value)),
    ("SEMEL_DEFAULTS_GUARANTEE", "defaults.guarantee", |file, value| {
        set(&mut file.defaults.guarantee, value)
    }),
    ("SEMEL_DEFAULTS_KEY", "defaults.key", |file, value| set(&mut file.defaults.key, value)),
    ("SEMEL_DEFAULTS_KEY_SYNTAX", "defaults.key_syntax", |file, value| {
        set(&mut file.defaults.key_syntax, value)
    }),
    ("SEMEL_DEFAULTS_KEY_FORMAT", "defaults.key_format", |file, value| {
        set(&mut file.defaults.key_format, value)
    }),
    ("SEMEL_DEFAULTS_IN_FLIGHT", "defaults.in_flight", |file, value| {
        set(&mut file.defaults.in_flight, value)
    }),
    ("SEMEL_DEFAULTS_ON_UNKNOWN", "defaults.on_unknown", |file, value| {
        file.defaults.on_unknown = Some(Unknown::Word(Text(Setting::read(value)?)));
        Ok(())
    }),
    ("SEMEL_DEFAULTS_ON_ERROR", "defaults.on_error", |file, value| set(&mut file.defaults.on_error, value)),
    ("SEMEL_DEFAULTS_ERRORS", "defaults.errors", |file, value| set(&mut file.defaults.errors, value)),
    ("SEMEL_DEFAULTS_RETRY_WINDOW", "defaults.retry_window", |file, value| {
        set(&mut file.defaults.retry_window, value)
    }),
    ("SEMEL_DEFAULTS_SKEW", "defaults.skew", |file, value| set(&mut file.defaults.skew, value)),
    ("SEMEL_DEFAULTS_MARGIN", "defaults.margin", |file, value| set(&mut file.defaults.margin, value)),
    ("SEMEL_DEFAULTS_RECORD_LIFETIME", "defaults.record_lifetime", |file, value| {
        set(&mut file.defaults.record_lifetime, value)
    }),
    ("SEMEL_DEFAULTS_MAX_AGE", "defaults.max_age", |file, value| set(&mut file.defaults.max_age, value)),
    ("SEMEL_DEFAULTS_REQUEST_LIMIT", "defaults.request_limit", |file, value| {
        file.defaults.request_limit = Some(RequestLimit::Rate(Text(Setting::read(value)?)));
        Ok(())
    }),
    ("SEMEL_DEFAULTS_ADMISSION_LIMIT", "defaults.admission_limit", |file, value| {
        set(&mut file.defaults.admission_limit, value)
    }),
    ("SEMEL_DEFAULTS_MAX_BODY", "defaults.max_body", |file, value| set(&mut file.defaults.max_body, value)),
    ("SEMEL_DEFAULTS_MAX_RESPONSE", "defaults.max_response", |file, value| {
        set(&mut file.defaults.max_response, value)
    }),
];

/// The variables and the settings they override, for `--help` and for warnings.
pub(crate) fn known_variables() -> impl Iterator<Item = (&'static str, &'static str)> {
    TABLE.iter().map(|(name, setting, _)| (*name, *setting))
}

/// Applies every variable that is set, and names those that took part.
pub(crate) fn apply(file: &mut File, variables: &Variables) -> Result<Vec<&'static str>, String> {
    let mut applied = Vec::new();
    for (name, setting, apply) in TABLE {
        if let Some(value) = variables.get(name) {
            apply(file, value).map_err(|error| format!("{name} (overrides {setting}): {error}"))?;
            applied.push(name);
        }
    }
    Ok(applied)
}
