//! `SEMEL_*` variables: each overrides one setting of the file's top, of `[gate]` or of `[defaults]`, and is written as it
//! would be there. The names follow from the settings': `SEMEL_STORE`, `SEMEL_GATE_LISTEN`, `SEMEL_DEFAULTS_RETRY_WINDOW`.

use std::collections::BTreeMap;

use super::file::File;

/// The environment, as far as it concerns semel.
#[derive(Debug, Default)]
pub(crate) struct Variables(BTreeMap<String, String>);

/// Variables of the program itself, which are no settings.
const OWN: [&str; 4] = ["SEMEL_CONFIG", "SEMEL_LOG", "SEMEL_MUTATE_CELL", "SEMEL_PLANTED"];
/// Settings of the relay, which reads them itself.
const OF_RELAY: [&str; 3] = ["SEMEL_RELAY_STORE", "SEMEL_RELAY_DEBOUNCE", "SEMEL_RELAY_REDIS"];
/// Variables of the tests.
const OF_TESTS: &str = "SEMEL_TEST_";

impl Variables {
    /// Reads the environment. A variable of ours that is not text is an error; others are nobody's business here.
    pub(crate) fn read() -> Result<Self, String> {
        let mut variables = BTreeMap::new();
        for (name, value) in std::env::vars_os() {
            let Some(name) = name.to_str().filter(|name| name.starts_with("SEMEL_")) else { continue };
            let value = value.into_string().map_err(|_| format!("the variable {name} is not UTF-8 text"))?;
            if !value.is_empty() {
                variables.insert(name.to_owned(), value);
            }
        }
        Ok(Self(variables))
    }

    /// The configuration that `SEMEL_CONFIG` names.
    pub(crate) fn config(&self) -> Option<&str> {
        self.0.get("SEMEL_CONFIG").map(String::as_str)
    }
}

/// What the variables did.
#[derive(Debug, Default)]
pub(crate) struct Applied {
    /// Those that override a setting.
    pub(crate) overriding: Vec<String>,
    /// Those that name no setting.
    pub(crate) unknown: Vec<String>,
}

/// Lays the variables over a file.
pub(crate) fn apply(mut file: File, variables: &Variables) -> Result<(File, Applied), String> {
    let mut applied = Applied::default();
    let settings =
        variables.0.iter().filter(|(name, _)| !OWN.contains(&name.as_str()) && !name.starts_with(OF_TESTS));
    for (name, value) in settings {
        if OF_RELAY.contains(&name.as_str()) {
            applied.overriding.push(name.clone());
            continue;
        }
        match one(name, value)? {
            Some(overlay) => {
                file = overlay.over(file);
                applied.overriding.push(name.clone());
            }
            None => applied.unknown.push(name.clone()),
        }
    }
    Ok((file, applied))
}

/// A file with the one setting that a variable stands for; `None` when there is no such setting.
fn one(name: &str, value: &str) -> Result<Option<File>, String> {
    let path = name["SEMEL_".len()..].to_ascii_lowercase();
    let section = ["gate", "defaults"].into_iter().find(|section| path.starts_with(&format!("{section}_")));
    let (header, field) = match section {
        Some(section) => (format!("[{section}]\n"), &path[section.len() + 1..]),
        None => (String::new(), path.as_str()),
    };
    if field.is_empty() || !field.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
        return Ok(None);
    }
    let read = |value: &str| toml::from_str::<File>(&format!("{header}{field} = {value}\n"));
    // Lists, tables and truth are written as in the file; everything else is a text, with or without its quotes, or else a number.
    let is_written_out = value.starts_with(['[', '{', '"']) || matches!(value, "true" | "false");
    let is_number = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
    let overlay = match is_written_out {
        true => read(value),
        false => read(&toml::Value::from(value).to_string())
            .or_else(|error| if is_number { read(value).map_err(|_| error) } else { Err(error) }),
    };
    match overlay {
        Ok(overlay) => Ok(Some(overlay)),
        Err(error) if error.message().contains("unknown field") => Ok(None),
        Err(error) => Err(format!("{name}: {}", error.message())),
    }
}
