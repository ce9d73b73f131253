//! When a request was first sent. A request whose first attempt lies too far back is never run again; one whose first
//! attempt lies in the future is not believed.

use crate::key::Key;
use crate::problem::{Kind, Problem};
use crate::profile::{FirstSent, Profile};
use crate::request::{Headers, trimmed};
use crate::time::{Timestamp, millis_of};

/// The header by which a client says when it made its first attempt.
pub const FIRST_SENT: &str = "Idempotency-First-Sent";

impl FirstSent {
    /// Reads the time of the first attempt: the header's, else that of a version 7 UUID where the policy says so.
    pub fn read<H: Headers + ?Sized>(&self, headers: &H, key: &Key) -> Result<Option<Timestamp>, Problem> {
        let invalid = |why: &str| Problem::new(Kind::TimestampInvalid, format!("{FIRST_SENT} {why}"));
        let mut lines = headers.values(FIRST_SENT);
        match (lines.next(), lines.next()) {
            (Some(_), Some(_)) => Err(invalid("is given twice")),
            (Some(line), None) => {
                let text = std::str::from_utf8(trimmed(line)).map_err(|_| invalid("is not text"))?;
                Timestamp::parse(text).map(Some).map_err(|error| invalid(&format!("is malformed: {error}")))
            }
            (None, _) if self.from_uuid7 => Ok(uuid7_time(key)),
            (None, _) => Ok(None),
        }
    }
}

/// Refuses a first attempt that lies in the future by more than the clocks may differ.
pub fn refuse_future(
    profile: &Profile,
    first_sent: Option<Timestamp>,
    now: Timestamp,
) -> Result<(), Problem> {
    match first_sent {
        Some(sent) if sent.millis_since(now) > millis_of(profile.lifetime.skew) => {
            let problem =
                Problem::new(Kind::FirstSentInFuture, "the first attempt is said to lie in the future");
            Err(problem.with("firstSent", sent.to_string()).with("serverNow", now.to_string()))
        }
        Some(_) | None => Ok(()),
    }
}

/// The time in a version 7 UUID.
fn uuid7_time(key: &Key) -> Option<Timestamp> {
    let text = key.as_str();
    let is_version_7 = text.len() == 36 && text.is_ascii() && text.as_bytes()[14] == b'7';
    let digits: String = text.chars().filter(|c| *c != '-').take(12).collect();
    i64::from_str_radix(&digits, 16).ok().filter(|_| is_version_7).map(Timestamp::from_millis)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Format;
    use crate::profile::presets;
    use std::time::Duration;

    fn key(text: &str) -> Key {
        Key::parse(&Format::Printable255, text).unwrap()
    }

    #[test]
    fn the_time_in_a_version_7_uuid_is_read() {
        let time = uuid7_time(&key("017f22e2-79b0-7cc3-98c4-dc0c0c07398f")).unwrap();
        assert_eq!(time.to_string(), "2022-02-22T19:22:22Z");
        for other in
            ["3f1f9c1e-6f0a-4c3b-9b0f-0a1b2c3d4e5f", "order-1", "zzzzzzzz-zzzz-7zzz-zzzz-zzzzzzzzzzzz"]
        {
            assert_eq!(uuid7_time(&key(other)), None, "{other}");
        }
    }

    #[test]
    fn the_header_comes_before_the_uuid() {
        let policy = FirstSent { from_uuid7: true };
        let uuid = key("017f22e2-79b0-7cc3-98c4-dc0c0c07398f");
        let read =
            |lines: &[(&str, &str)]| policy.read(lines, &uuid).map(|time| time.map(|time| time.to_string()));
        assert_eq!(read(&[]).unwrap().unwrap(), "2022-02-22T19:22:22Z");
        assert_eq!(
            read(&[("idempotency-first-sent", " 2026-01-01T00:00:00+01:00 ")]).unwrap().unwrap(),
            "2025-12-31T23:00:00Z"
        );
        for bad in [vec![(FIRST_SENT, "soon")], vec![(FIRST_SENT, "2026-01-01T00:00:00Z"); 2]] {
            assert_eq!(read(&bad).unwrap_err().kind, Kind::TimestampInvalid);
        }
        assert_eq!(FirstSent { from_uuid7: false }.read::<[(&str, &str)]>(&[], &uuid).unwrap(), None);
    }

    #[test]
    fn a_first_attempt_in_the_future_is_refused_beyond_the_skew() {
        let (profile, now) = (presets::ietf(), Timestamp::from_millis(1_800_000_000_000));
        let skew = profile.lifetime.skew;
        assert!(refuse_future(&profile, Some(now.plus(skew)), now).is_ok());
        let late = now.plus(skew + Duration::from_millis(1));
        assert_eq!(refuse_future(&profile, Some(late), now).unwrap_err().kind, Kind::FirstSentInFuture);
        assert!(refuse_future(&profile, None, now).is_ok());
    }
}
