//! Texts of others as they are shown: as text, whatever is in them. What cannot be seen, or turns the line around, is
//! written out.

use maud::{Markup, html};

/// Characters of one text that are shown; the page of the thing itself has more.
const SHOWN_CHARS_MAX: usize = 300;

/// Whether a character is written out instead of shown.
fn is_hidden(char: char) -> bool {
    char.is_control()
        || matches!(char,
            '\u{00ad}' | '\u{034f}' | '\u{061c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180e}'
            | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202f}' | '\u{2060}'..='\u{206f}' | '\u{3164}'
            | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}')
}

/// A text, with what is hidden in it written out.
pub(crate) fn visible(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '\n' => shown.push('⏎'),
            char if is_hidden(char) => shown.extend(char.escape_unicode()),
            char => shown.push(char),
        }
    }
    shown
}

/// A text of others in a page: kept apart from what stands around it, and cut where it is very long.
pub(crate) fn of_others(text: &str) -> Markup {
    let cut: String = text.chars().take(SHOWN_CHARS_MAX).collect();
    let is_cut = cut.len() < text.len();
    html! { bdi { (visible(&cut)) @if is_cut { "…" } } }
}

/// A text in full, line by line.
pub(crate) fn in_full(text: &str) -> Markup {
    let lines: Vec<String> = text.lines().map(visible).collect();
    html! { pre tabindex="0" { (lines.join("\n")) } }
}

/// A part of a URL.
pub(crate) fn encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'~' => encoded.push(char::from(byte)),
            // A segment of dots alone would be taken for a folder.
            b'.' if text.bytes().any(|byte| byte != b'.') => encoded.push('.'),
            byte => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

/// Reads `a=b&c=d` of a query or a form.
pub(crate) fn pairs(text: &str) -> Vec<(String, String)> {
    text.split('&')
        .filter_map(|pair| pair.split_once('='))
        .map(|(name, value)| (decoded(name), decoded(value)))
        .collect()
}

/// Undoes the encoding of a form.
fn decoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let hex = |at: usize| bytes.get(at).and_then(|byte| char::from(*byte).to_digit(16));
        match (bytes[at], hex(at + 1), hex(at + 2)) {
            (b'+', _, _) => decoded.push(b' '),
            (b'%', Some(high), Some(low)) => {
                decoded.push((high * 16 + low) as u8);
                at += 2;
            }
            (byte, _, _) => decoded.push(byte),
        }
        at += 1;
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_hidden_is_written_out() {
        assert_eq!(visible("a\u{202e}b\0c\u{200b}d"), "a\\u{202e}b\\u{0}c\\u{200b}d");
        assert_eq!(of_others("<b>&\"").into_string(), "<bdi>&lt;b&gt;&amp;&quot;</bdi>");
        assert_eq!(visible("grüße, 茶"), "grüße, 茶");
    }

    #[test]
    fn what_is_encoded_is_decoded_again() {
        for text in ["a b&c=ü/%+", "..", "<script>", "\u{202e}"] {
            assert_eq!(pairs(&format!("x={}", encoded(text))), [("x".to_owned(), text.to_owned())]);
        }
        assert_eq!(
            pairs("a=1+2&b=%zz&c"),
            [("a".to_owned(), "1 2".to_owned()), ("b".to_owned(), "%zz".to_owned())]
        );
        assert_eq!(encoded(".."), "%2E%2E");
    }
}
