//! Templates of addresses, header lines and bodies. Values are encoded for the place where they go, and one that could
//! begin a new line is refused. Pure.

use std::collections::BTreeMap;
use std::fmt;

use crate::url::encoded;

/// Where a template's text goes, and so how values are encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// An address: values are percent-encoded.
    Url,
    /// A header line: values stay as they are, without control characters.
    Header,
    /// A JSON body: numbers stay numbers, and text is escaped for use between quotes.
    Json,
    /// A form body: values are percent-encoded.
    Form,
}

/// A template, read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    place: Place,
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Name(String),
}

/// Why a template cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BadTemplate {
    /// A brace without its other.
    Unclosed,
    /// There is no such value.
    Unknown(String),
    /// There is no value under this name now.
    Missing(String),
    /// A carriage return, line feed or another control character where it could begin a new line.
    ControlCharacter(String),
    /// A segment of the path would be `.` or `..`, by which servers leave the folder.
    DotSegment,
}

impl fmt::Display for BadTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadTemplate::Unclosed => f.write_str("a brace is not closed; write {{ for one brace"),
            BadTemplate::Unknown(name) => {
                write!(f, "there is no value {{{name}}}; there are {}", NAMES.join(", "))
            }
            BadTemplate::Missing(name) => write!(f, "there is no value for {{{name}}}"),
            BadTemplate::ControlCharacter(name) => {
                write!(f, "the value of {{{name}}} contains a line end or another control character")
            }
            BadTemplate::DotSegment => f.write_str("a part of the address's path would be . or .."),
        }
    }
}

impl std::error::Error for BadTemplate {}

/// What templates may name.
pub const NAMES: &[&str] =
    &["lane", "group", "label", "principal", "delta", "before", "after", "value", "key", "marker", "version"];

/// What a template is filled with.
pub type Values = BTreeMap<&'static str, String>;

impl Template {
    /// Reads a template: `{name}` is a value, `{{` and `}}` are braces.
    pub fn parse(place: Place, text: &str) -> Result<Self, BadTemplate> {
        let mut parts = Vec::new();
        let mut plain = String::new();
        let mut chars = text.chars().peekable();
        while let Some(c) = chars.next() {
            match c {
                '{' if chars.peek() == Some(&'{') => plain.push(chars.next().unwrap_or('{')),
                '}' if chars.peek() == Some(&'}') => plain.push(chars.next().unwrap_or('}')),
                '{' => {
                    let mut name = String::new();
                    loop {
                        match chars.next() {
                            Some('}') => break,
                            Some(c) => name.push(c),
                            None => return Err(BadTemplate::Unclosed),
                        }
                    }
                    if !NAMES.contains(&name.as_str()) {
                        return Err(BadTemplate::Unknown(name));
                    }
                    if !plain.is_empty() {
                        parts.push(Part::Text(std::mem::take(&mut plain)));
                    }
                    parts.push(Part::Name(name));
                }
                '}' => return Err(BadTemplate::Unclosed),
                c if c.is_control() && matches!(place, Place::Url | Place::Header) => {
                    return Err(BadTemplate::ControlCharacter("the template itself".to_owned()));
                }
                c => plain.push(c),
            }
        }
        if !plain.is_empty() {
            parts.push(Part::Text(plain));
        }
        Ok(Self { place, parts })
    }

    /// Whether what it is filled with is JSON, or is of another kind.
    pub fn makes_json(&self, filled: &str) -> bool {
        self.place != Place::Json || serde_json::from_str::<serde::de::IgnoredAny>(filled).is_ok()
    }

    /// Whether it uses this value.
    pub fn uses(&self, name: &str) -> bool {
        self.parts.iter().any(|part| matches!(part, Part::Name(known) if known == name))
    }

    /// The text with these values.
    pub fn fill(&self, values: &Values) -> Result<String, BadTemplate> {
        let mut out = String::new();
        for part in &self.parts {
            match part {
                Part::Text(text) => out.push_str(text),
                Part::Name(name) => {
                    let value =
                        values.get(name.as_str()).ok_or_else(|| BadTemplate::Missing(name.clone()))?;
                    if value.contains(['\r', '\n', '\0'])
                        || self.place == Place::Header && value.chars().any(char::is_control)
                    {
                        return Err(BadTemplate::ControlCharacter(name.clone()));
                    }
                    match self.place {
                        Place::Url | Place::Form => out.push_str(&encoded(value)),
                        Place::Header => out.push_str(value),
                        Place::Json => out.push_str(&escaped(value)),
                    }
                }
            }
        }
        // Encoded dots would not help: they mean the same.
        let path = out.split(['?', '#']).next().unwrap_or_default();
        if self.place == Place::Url && path.split('/').any(|segment| matches!(segment, "." | "..")) {
            return Err(BadTemplate::DotSegment);
        }
        Ok(out)
    }
}

/// As between the quotes of a JSON string. A number is unchanged by it.
fn escaped(value: &str) -> String {
    let quoted = serde_json::Value::String(value.to_owned()).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(place: Place, text: &str, value: &str) -> Result<String, BadTemplate> {
        Template::parse(place, text)?
            .fill(&Values::from([("lane", value.to_owned()), ("after", "12".to_owned())]))
    }

    #[test]
    fn values_are_encoded_for_their_place() {
        let nasty = r#"a/b?c="d"&é"#;
        assert_eq!(
            filled(Place::Url, "https://x/{lane}/s", nasty).unwrap(),
            "https://x/a%2Fb%3Fc%3D%22d%22%26%C3%A9/s"
        );
        assert_eq!(
            filled(Place::Form, "l={lane}&v={after}", nasty).unwrap(),
            "l=a%2Fb%3Fc%3D%22d%22%26%C3%A9&v=12"
        );
        assert_eq!(filled(Place::Header, "<{lane}>", nasty).unwrap(), format!("<{nasty}>"));
        let body = filled(Place::Json, r#"{{"lane":"{lane}","value":{after}}}"#, nasty).unwrap();
        let read: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert_eq!((read["lane"].as_str(), read["value"].as_i64()), (Some(nasty), Some(12)));
    }

    #[test]
    fn line_ends_are_refused_everywhere() {
        for place in [Place::Url, Place::Header, Place::Json, Place::Form] {
            for bad in ["a\r", "a\nX: y", "a\0"] {
                let found = filled(place, "x{lane}", bad);
                assert_eq!(found, Err(BadTemplate::ControlCharacter("lane".into())), "{place:?} {bad:?}");
            }
        }
        assert!(filled(Place::Header, "{lane}", "a\u{7f}").is_err());
        assert!(Template::parse(Place::Header, "a\r\nb").is_err());
    }

    #[test]
    fn no_value_leaves_the_folder() {
        for bad in [".", ".."] {
            for text in ["https://x/{lane}", "https://x/{lane}/s", "https://x/{lane}?y=1"] {
                assert_eq!(filled(Place::Url, text, bad), Err(BadTemplate::DotSegment), "{text} {bad}");
            }
            assert!(filled(Place::Url, "https://x/a{lane}?l={lane}", bad).is_ok());
            assert!(filled(Place::Json, "{lane}", bad).is_ok());
        }
        assert_eq!(filled(Place::Url, "https://x/{lane}{lane}", "."), Err(BadTemplate::DotSegment));
        assert!(filled(Place::Url, "https://x/{lane}", "...").is_ok());
    }

    #[test]
    fn what_is_not_a_template_is_refused() {
        assert_eq!(filled(Place::Url, "{lane", ""), Err(BadTemplate::Unclosed));
        assert_eq!(filled(Place::Url, "lane}", ""), Err(BadTemplate::Unclosed));
        assert_eq!(filled(Place::Url, "{secret}", ""), Err(BadTemplate::Unknown("secret".into())));
        assert_eq!(filled(Place::Url, "{before}", ""), Err(BadTemplate::Missing("before".into())));
        assert_eq!(filled(Place::Json, "{{}}", "").unwrap(), "{}");
        assert!(Template::parse(Place::Url, "x{key}").unwrap().uses("key"));
    }
}
