//! Reads what a sender asks for. Refuses everything that could not be written later; nothing is stored here.

use semel_contract::hex::hex;
use semel_contract::json::Document;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::reduce::VALUE_MAX;
use super::store::accept::NewItem;
use crate::Invalid;
use crate::limits::{NAME_CHARS_MAX, shorten};

/// The items of a body `{"items":[{"lane","value","label"?,"group"?,"session"?}…]}`.
///
/// # Errors
/// Says what is wrong, for the sender.
pub fn items(body: &[u8], most: usize) -> Result<Vec<NewItem>, Invalid> {
    // Our own reader refuses repeated names, which two readers could understand differently.
    Document::parse(body).map_err(|_| "the body must be JSON without repeated names".to_owned())?;
    let body: Value = serde_json::from_slice(body).map_err(|_| "the body must be JSON".to_owned())?;
    let Some(items) = body.get("items").and_then(Value::as_array) else {
        return Err("the body must be an object with a list `items`".into());
    };
    if items.is_empty() {
        return Err("`items` is empty".into());
    }
    if items.len() > most {
        return Err(format!("`items` has {} entries, at most {most} are taken", items.len()).into());
    }
    let read = |(at, item)| one(item).map_err(|why| format!("items[{at}]: {why}").into());
    items.iter().enumerate().map(read).collect()
}

/// What an item may say.
const FIELDS: [&str; 5] = ["lane", "value", "label", "group", "session"];

fn one(item: &Value) -> Result<NewItem, String> {
    // A misspelt `group` would put the change into another lane without a word.
    if let Some(unknown) =
        item.as_object().into_iter().flatten().find(|(name, _)| !FIELDS.contains(&name.as_str()))
    {
        return Err(format!(
            "there is no field {:?}: expected {}",
            shorten(unknown.0, 40),
            FIELDS.join(", ")
        ));
    }
    let lane = match item.get("lane") {
        Some(Value::Number(number)) if number.is_u64() => number.to_string(),
        Some(Value::String(_)) => name(item, "lane")?.unwrap_or_default(),
        Some(_) | None => return Err("`lane` must be text".to_owned()),
    };
    if lane.is_empty() {
        return Err("`lane` is empty".to_owned());
    }
    let value = match item.get("value") {
        Some(Value::Number(number)) => number.as_i64(),
        Some(_) | None => return Err("`value` must be a number".to_owned()),
    };
    let value = value
        .filter(|value| (-VALUE_MAX..=VALUE_MAX).contains(value))
        .ok_or_else(|| format!("`value` must be a whole number from -{VALUE_MAX} to {VALUE_MAX}"))?;
    Ok(NewItem {
        lane,
        group: name(item, "group")?.unwrap_or_default(),
        label: name(item, "label")?,
        session: name(item, "session")?,
        value,
    })
}

fn name(item: &Value, field: &str) -> Result<Option<String>, String> {
    match item.get(field) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Number(number)) if number.is_u64() => Ok(Some(number.to_string())),
        Some(Value::String(text)) if text.chars().count() > NAME_CHARS_MAX => {
            Err(format!("`{field}` is longer than {NAME_CHARS_MAX} characters"))
        }
        Some(Value::String(text)) if text.chars().any(char::is_control) => {
            Err(format!("`{field}` contains control characters"))
        }
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(_) => Err(format!("`{field}` must be text")),
    }
}

/// Tells two requests under one key apart: by target and items, in order.
pub fn fingerprint(target: &str, items: &[NewItem]) -> String {
    let mut hash = Sha256::new();
    let mut part = |text: &str| {
        hash.update((text.len() as u64).to_be_bytes());
        hash.update(text);
    };
    part(target);
    for item in items {
        part(&item.lane);
        part(&item.group);
        part(&item.value.to_string());
    }
    hex(&hash.finalize())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_not_be_written_is_refused() {
        let bad = [
            "",
            "[]",
            "{}",
            r#"{"items":{}}"#,
            r#"{"items":[]}"#,
            r#"{"items":[1]}"#,
            r#"{"items":[{"value":1}]}"#,
            r#"{"items":[{"lane":"","value":1}]}"#,
            r#"{"items":[{"lane":"a"}]}"#,
            r#"{"items":[{"lane":"a","value":"1"}]}"#,
            r#"{"items":[{"lane":"a","value":1.5}]}"#,
            r#"{"items":[{"lane":"a","value":9007199254740992}]}"#,
            r#"{"items":[{"lane":"a","value":1e400}]}"#,
            r#"{"items":[{"lane":"a","value":99999999999999999999}]}"#,
            r#"{"items":[{"lane":"a","value":1,"gruop":"g"}]}"#,
            r#"{"items":[{"lane":"a\r\nb","value":1}]}"#,
            r#"{"items":[{"lane":"a","value":1,"value":2}]}"#,
            r#"{"items":[{"lane":"a","value":1},{"lane":"a","value":1},{"lane":"a","value":1}]}"#,
        ];
        for body in bad {
            assert!(items(body.as_bytes(), 2).is_err(), "{body}");
        }
    }

    #[test]
    fn items_are_read() {
        let body = r#"{"items":[{"lane":7,"value":-3,"label":"Eagles","group":"g","session":"s"},{"lane":"b","value":0}]}"#;
        let read = items(body.as_bytes(), 2).unwrap();
        assert_eq!(
            (read[0].lane.as_str(), read[0].value, read[0].label.as_deref()),
            ("7", -3, Some("Eagles"))
        );
        assert_eq!((read[1].group.as_str(), read[1].session.as_deref()), ("", None));
        assert_ne!(fingerprint("t", &read), fingerprint("u", &read));
        assert_ne!(fingerprint("t", &read), fingerprint("t", &read[..1]));
        let relabelled: Vec<NewItem> =
            read.iter().map(|item| NewItem { label: None, ..item.clone() }).collect();
        assert_eq!(
            fingerprint("t", &read),
            fingerprint("t", &relabelled),
            "a label is no part of what is asked"
        );
    }
}
