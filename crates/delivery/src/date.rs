//! Dates as HTTP writes them, and `Retry-After` in both of its forms. Never reads a clock.

use std::time::{Duration, UNIX_EPOCH};

use semel_contract::time::Timestamp;

/// Reads a date in any of the three forms that a receiver must know.
pub fn http_date(text: &str) -> Option<Timestamp> {
    let since = httpdate::parse_http_date(text.trim()).ok()?.duration_since(UNIX_EPOCH).ok()?;
    Some(Timestamp::from_millis(i64::try_from(since.as_millis()).ok()?))
}

/// How long a receiver asks to wait: seconds, or a date as seen from `now`.
pub fn retry_after(text: &str, now: Timestamp) -> Option<Duration> {
    let text = text.trim();
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Some(Duration::from_secs(text.parse().unwrap_or(u64::MAX)));
    }
    let wait = http_date(text)?.millis_since(now);
    Some(Duration::from_millis(u64::try_from(wait).unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_of_retry_after_are_read() {
        let now = Timestamp::parse("1994-11-06T08:49:00Z").unwrap();
        assert_eq!(retry_after("42", now), Some(Duration::from_secs(42)));
        assert_eq!(retry_after("Sun, 06 Nov 1994 08:49:37 GMT", now), Some(Duration::from_secs(37)));
        assert_eq!(retry_after("Sun, 06 Nov 1994 08:00:00 GMT", now), Some(Duration::ZERO));
        for old in ["Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994"] {
            assert_eq!(retry_after(old, now), Some(Duration::from_secs(37)), "{old:?}");
        }
        for bad in ["", "soon", "-1", "1.5", "Sun, 06 Nov 1994 08:49:37 CET", "Sun, 06 Nov 1994 8:49:37 GMT"]
        {
            assert_eq!(retry_after(bad, now), None, "{bad:?}");
        }
    }
}
