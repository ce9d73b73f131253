//! A request as bytes, formatted once; what changes from one to the next is written over in place.

use super::keys::KEY_BYTES;

pub(super) const KEY: &str = "{key}";
const LANE: &str = "{lane}";
/// A lane is written with so many digits.
const LANE_DIGITS: usize = 7;
/// The bytes of a body that is not given.
const BODY_BYTES: usize = 200;

/// A formatted request with its places for key and lane.
#[derive(Debug, Clone)]
pub(super) struct Template {
    pub(super) bytes: Vec<u8>,
    keys: Vec<usize>,
    lanes: Vec<usize>,
}

impl Template {
    pub(super) fn new(path: &str, headers: &[String], body: Option<&str>) -> Result<Template, String> {
        let body = body.map_or_else(ordinary_body, str::to_owned);
        let length = body.len() + body.matches(KEY).count() * KEY_BYTES
            - body.matches(KEY).count() * KEY.len()
            + body.matches(LANE).count() * LANE_DIGITS
            - body.matches(LANE).count() * LANE.len();
        let mut text = format!("POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n");
        for header in headers {
            if !header.contains(": ") || header.contains(['\r', '\n']) {
                return Err(format!("`{header}` is not a header: NAME: VALUE"));
            }
            text.push_str(header);
            text.push_str("\r\n");
        }
        text.push_str(&format!("content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"));
        Ok(filled(&text))
    }

    /// Writes a key into every place for one.
    pub(super) fn set_key(&self, request: &mut [u8], key: &[u8; KEY_BYTES]) {
        for place in &self.keys {
            request[*place..place + KEY_BYTES].copy_from_slice(key);
        }
    }

    /// Writes a lane into every place for one.
    pub(super) fn set_lane(&self, request: &mut [u8], lane: u64) {
        for place in &self.lanes {
            let mut rest = lane;
            for digit in request[*place..place + LANE_DIGITS].iter_mut().rev() {
                *digit = b'0' + (rest % 10) as u8;
                rest /= 10;
            }
        }
    }

    pub(super) fn has_key(&self) -> bool {
        !self.keys.is_empty()
    }
}

fn filled(text: &str) -> Template {
    let mut template = Template { bytes: Vec::new(), keys: Vec::new(), lanes: Vec::new() };
    let mut rest = text;
    while let Some(brace) = rest.find('{') {
        let (before, from) = rest.split_at(brace);
        template.bytes.extend_from_slice(before.as_bytes());
        let place = template.bytes.len();
        rest = if let Some(after) = from.strip_prefix(KEY) {
            template.keys.push(place);
            template.bytes.resize(place + KEY_BYTES, b'0');
            after
        } else if let Some(after) = from.strip_prefix(LANE) {
            template.lanes.push(place);
            template.bytes.resize(place + LANE_DIGITS, b'0');
            after
        } else {
            template.bytes.push(b'{');
            &from[1..]
        };
    }
    template.bytes.extend_from_slice(rest.as_bytes());
    template
}

pub(super) fn ordinary_body() -> String {
    let start =
        r#"{"customer":4711,"currency":"EUR","amount":1999,"lines":[{"article":"tea","count":2}],"note":""#;
    format!("{start}{}\"}}", "n".repeat(BODY_BYTES - start.len() - 2))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body_of(template: &Template) -> (usize, String) {
        let text = String::from_utf8(template.bytes.clone()).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let length = head.split("content-length: ").nth(1).unwrap().trim().parse().unwrap();
        (length, body.to_owned())
    }

    #[test]
    fn a_body_has_the_length_that_its_head_says() {
        let (length, body) = body_of(&Template::new("/", &[], None).unwrap());
        assert_eq!((length, body.len()), (BODY_BYTES, BODY_BYTES));
        serde_json::from_str::<serde_json::Value>(&body).unwrap();
        let own = r#"{"id":"{key}","lane":"{lane}","again":"{key}"}"#;
        let (length, body) = body_of(&Template::new("/", &[], Some(own)).unwrap());
        assert_eq!(length, body.len());
    }

    #[test]
    fn keys_and_lanes_are_written_in_place() {
        let headers = ["idempotency-key: {key}".to_owned()];
        let template = Template::new("/l/{lane}", &headers, Some("{key}")).unwrap();
        let mut request = template.bytes.clone();
        template.set_key(&mut request, &[b'k'; KEY_BYTES]);
        template.set_lane(&mut request, 42);
        let text = String::from_utf8(request).unwrap();
        assert_eq!(text.matches(&"k".repeat(KEY_BYTES)).count(), 2, "{text}");
        assert!(text.starts_with("POST /l/0000042 HTTP/1.1\r\n"), "{text}");
        assert!(template.has_key() && !Template::new("/", &[], None).unwrap().has_key());
    }

    #[test]
    fn what_is_no_header_is_refused() {
        assert!(Template::new("/", &["nothing".to_owned()], None).is_err());
    }
}
