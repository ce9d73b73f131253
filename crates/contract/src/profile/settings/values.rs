//! The texts that stand in settings, each parsed once. Every type says what it expected.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::time::Duration;

use crate::BadSetting;
use crate::classify::Class;
use crate::identity::{Identity, IdentityError};
use crate::json::Pointer;
use crate::key::{Format, Source};
use crate::profile::{InFlight, Rate, Replay, SweepWhen};
use crate::route::{Pattern, PatternError};
use crate::schedule::Jitter;
use crate::time::parse_duration;
use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// A setting that is written as one text.
#[derive(Clone, Debug)]
pub struct Text<T>(pub T);

impl<'de, T: Setting> Deserialize<'de> for Text<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        T::read(&text).map(Text).map_err(serde::de::Error::custom)
    }
}

/// A setting that is written as one word, or as a table where the word is not enough.
#[derive(Clone, Debug)]
pub enum OneOf<W, T> {
    /// The word.
    Word(W),
    /// The table.
    Table(T),
}

impl<'de, W: Setting, T: Deserialize<'de>> Deserialize<'de> for OneOf<W, T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(WordOrTable(PhantomData))
    }
}

struct WordOrTable<W, T>(PhantomData<(W, T)>);

impl<'de, W: Setting, T: Deserialize<'de>> Visitor<'de> for WordOrTable<W, T> {
    type Value = OneOf<W, T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a word or a table")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Self::Value, E> {
        W::read(text).map(OneOf::Word).map_err(E::custom)
    }

    fn visit_map<A: MapAccess<'de>>(self, members: A) -> Result<Self::Value, A::Error> {
        T::deserialize(MapAccessDeserializer::new(members)).map(OneOf::Table)
    }
}

/// A route's pattern, `POST /orders/{id}`, or a path alone for the methods of its profile.
#[derive(Clone, Debug)]
pub struct Match(String);

impl Setting for Match {
    fn read(text: &str) -> Result<Self, String> {
        let text = Match(text.to_owned());
        text.pattern(&["POST"]).map(|_| text).map_err(|error| error.to_string())
    }
}

impl Match {
    /// The pattern, with these methods where it names none.
    pub fn pattern(&self, methods: &[impl AsRef<str>]) -> Result<Pattern, PatternError> {
        match self.0.starts_with('/') {
            true => {
                let methods: Vec<&str> = methods.iter().map(AsRef::as_ref).collect();
                format!("{} {}", methods.join("|"), self.0).parse()
            }
            false => self.0.parse(),
        }
    }
}

/// Something that a text in the settings can stand for.
pub trait Setting: Sized {
    /// Reads it, or says what was expected.
    fn read(text: &str) -> Result<Self, String>;
}

impl Setting for Duration {
    fn read(text: &str) -> Result<Self, String> {
        parse_duration(text).map_err(|error| error.to_string())
    }
}

impl Setting for Identity {
    fn read(text: &str) -> Result<Self, String> {
        text.parse().map_err(|error: IdentityError| error.to_string())
    }
}

impl Setting for Source {
    fn read(text: &str) -> Result<Self, String> {
        text.parse().map_err(|error: BadSetting| error.into())
    }
}

impl Setting for Format {
    fn read(text: &str) -> Result<Self, String> {
        text.parse().map_err(|error: BadSetting| error.into())
    }
}

impl Setting for Pointer {
    fn read(text: &str) -> Result<Self, String> {
        Pointer::parse(text).map_err(|error| error.to_string())
    }
}

impl Setting for SocketAddr {
    /// `127.0.0.1:7400`, `[::1]:7400`, or for this machine alone `localhost:7400`, `:7400` or `7400`.
    fn read(text: &str) -> Result<Self, String> {
        let port = text.strip_prefix("localhost:").or_else(|| text.strip_prefix(':')).unwrap_or(text);
        let here = port.parse().ok().map(|port: u16| SocketAddr::from(([127, 0, 0, 1], port)));
        here.or_else(|| text.parse().ok()).ok_or_else(|| {
            format!("bad address {text:?}: expected something like 127.0.0.1:7400, localhost:7400 or :7400")
        })
    }
}

/// A URL as it is, or `http://` before a host and a port that stand alone.
pub fn with_scheme(text: &str) -> String {
    let port = text.strip_prefix(':').unwrap_or(text);
    if port.parse::<u16>().is_ok() {
        return format!("http://127.0.0.1:{port}");
    }
    let authority = text.split('/').next().unwrap_or_default();
    let has_port = authority.rsplit_once(':').is_some_and(|(host, port)| {
        !host.is_empty() && !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit())
    });
    match has_port && !text.contains("://") {
        true => format!("http://{text}"),
        false => text.to_owned(),
    }
}

/// An `http` or `https` URL.
#[derive(Clone, Debug)]
pub struct Url(pub String);

impl Setting for Url {
    fn read(text: &str) -> Result<Self, String> {
        let text = &*with_scheme(text);
        let rest = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
        match rest {
            Some(rest) if !rest.is_empty() && !text.contains(char::is_whitespace) => Ok(Url(text.to_owned())),
            _ => Err(format!("bad URL {text:?}: expected something like http://127.0.0.1:3000")),
        }
    }
}

impl Setting for SweepWhen {
    fn read(text: &str) -> Result<Self, String> {
        let bad = || format!("bad sweep {text:?}: expected \"every 1h\" or \"daily 03:00\" (UTC)");
        match text.split_once(' ') {
            Some(("every", period)) => {
                let period = parse_duration(period).map_err(|_| bad())?;
                if period < Duration::from_secs(1) { Err(bad()) } else { Ok(SweepWhen::Every(period)) }
            }
            Some(("daily", time)) => {
                let (hours, minutes) = time.split_once(':').ok_or_else(bad)?;
                let number = |text: &str, below: u64| {
                    text.parse::<u64>().ok().filter(|number| text.len() == 2 && *number < below)
                };
                let (hours, minutes) = number(hours, 24).zip(number(minutes, 60)).ok_or_else(bad)?;
                Ok(SweepWhen::DailyAt(Duration::from_secs(hours * 3600 + minutes * 60)))
            }
            Some(_) | None => Err(bad()),
        }
    }
}

impl Setting for InFlight {
    fn read(text: &str) -> Result<Self, String> {
        let bad = || {
            format!(
                "bad in_flight {text:?}: expected \"wait 25s\", \"reject\", \"reject 1s\" or \"accepted\""
            )
        };
        let (word, duration) = match text.split_once(' ') {
            Some((word, duration)) => (word, Some(parse_duration(duration).map_err(|_| bad())?)),
            None => (text, None),
        };
        match (word, duration) {
            ("wait", deadline) => {
                Ok(InFlight::Wait { deadline: deadline.unwrap_or(Duration::from_secs(25)) })
            }
            ("reject", after) => {
                Ok(InFlight::Reject { retry_after: after.unwrap_or(Duration::from_secs(1)) })
            }
            ("accepted", None) => Ok(InFlight::Accepted),
            _ => Err(bad()),
        }
    }
}

/// A status, or a range of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Statuses {
    /// The lowest.
    pub from: u16,
    /// The highest.
    pub to: u16,
}

impl Setting for Statuses {
    fn read(text: &str) -> Result<Self, String> {
        let bad =
            || format!("bad status {text:?}: expected one such as \"404\", or a range such as \"400-499\"");
        let number =
            |text: &str| text.parse().ok().filter(|status| (200..600).contains(status)).ok_or_else(bad);
        let (from, to) = text.split_once('-').unwrap_or((text, text));
        let (from, to) = (number(from)?, number(to)?);
        if from > to { Err(bad()) } else { Ok(Statuses { from, to }) }
    }
}

impl Setting for Class {
    fn read(text: &str) -> Result<Self, String> {
        let bad = || {
            format!(
                "bad meaning {text:?}: expected success, retry, retry-after, auth, rebuild, \"drop REASON\", \"dead REASON\" or \
                 \"retry 3 then dead REASON\""
            )
        };
        let reason = |reason: &str| match reason.is_empty() || reason.contains(' ') {
            true => Err(bad()),
            false => Ok(Cow::Owned(reason.to_owned())),
        };
        match text.split_once(' ') {
            None => match text {
                "success" => Ok(Class::Success),
                "retry" => Ok(Class::Retry),
                "retry-after" => Ok(Class::RetryAfter),
                "auth" => Ok(Class::Auth),
                "rebuild" => Ok(Class::Rebuild),
                _ => Err(bad()),
            },
            Some(("drop", why)) => reason(why).map(Class::Drop),
            Some(("dead", why)) => reason(why).map(Class::Dead),
            Some(("retry", rest)) => {
                let (count, then) = rest.split_once(" then ").ok_or_else(bad)?;
                let count = count.parse().ok().filter(|count| *count > 0).ok_or_else(bad)?;
                Ok(Class::RetryAtMost(count, Box::new(Class::read(then)?)))
            }
            Some(_) => Err(bad()),
        }
    }
}

impl Setting for Jitter {
    fn read(text: &str) -> Result<Self, String> {
        let share =
            |text: &str| text.strip_suffix('%')?.parse().ok().filter(|share| (1..=100u8).contains(share));
        match text {
            "none" => Ok(Jitter::None),
            "full" => Ok(Jitter::Full),
            _ => share(text)
                .map(|share| Jitter::Ratio(f64::from(share) / 100.0))
                .ok_or_else(|| format!("bad jitter {text:?}: expected none, full or a share such as 25%")),
        }
    }
}

/// How long a record lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept(pub Duration);

impl Kept {
    /// A hundred years: longer than any key is remembered elsewhere.
    pub const FOREVER: Duration = Duration::from_secs(100 * 365 * 86_400);
}

impl Setting for Kept {
    fn read(text: &str) -> Result<Self, String> {
        if text == "forever" { Ok(Kept(Kept::FOREVER)) } else { Duration::read(text).map(Kept) }
    }
}

impl Setting for Replay {
    fn read(text: &str) -> Result<Self, String> {
        let bad = || format!("bad replay {text:?}: expected \"verbatim\" or \"duplicate 200\"");
        match text.split_once(' ') {
            None if text == "verbatim" => Ok(Replay::Verbatim),
            Some(("duplicate", status)) => {
                let status = status.parse().ok().filter(|status| (200..300).contains(status));
                status.map(|status| Replay::Duplicate { status }).ok_or_else(bad)
            }
            Some(_) | None => Err(bad()),
        }
    }
}

impl Setting for Rate {
    fn read(text: &str) -> Result<Self, String> {
        let bad = || format!("bad limit {text:?}: expected a count and a window such as \"1000/1h\"");
        let (count, window) = text.split_once('/').ok_or_else(bad)?;
        let count: u32 = count.parse().map_err(|_| bad())?;
        let window = parse_duration(window).map_err(|_| bad())?;
        if count == 0 || window.is_zero() { Err(bad()) } else { Ok(Rate { count, window }) }
    }
}

/// A number of bytes such as `1MiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    /// In the largest unit that leaves no rest, as it is read.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(1u64 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
        match units.iter().find(|(size, _)| self.0 > 0 && self.0.is_multiple_of(*size)) {
            Some((size, unit)) => write!(f, "{}{unit}", self.0 / size),
            None => write!(f, "{}B", self.0),
        }
    }
}

impl Setting for Bytes {
    fn read(text: &str) -> Result<Self, String> {
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let unit = match text[digits..].trim_start() {
            "" | "B" => Some(1u64),
            "KiB" => Some(1 << 10),
            "MiB" => Some(1 << 20),
            "GiB" => Some(1 << 30),
            _ => None,
        };
        let size = text[..digits]
            .parse()
            .ok()
            .zip(unit)
            .and_then(|(count, unit): (u64, u64)| count.checked_mul(unit));
        size.map(Bytes)
            .ok_or_else(|| format!("bad size {text:?}: expected something like \"1MiB\" (B, KiB, MiB, GiB)"))
    }
}

/// One of a few words. The table names them all, so that errors can too.
pub trait Word: Sized + Copy + 'static {
    /// Every word there is.
    const WORDS: &'static [(&'static str, Self)];
}

impl<T: Word> Setting for T {
    fn read(text: &str) -> Result<Self, String> {
        let found = T::WORDS.iter().find(|(word, _)| *word == text).map(|(_, value)| *value);
        found.ok_or_else(|| {
            let words: Vec<&str> = T::WORDS.iter().map(|(word, _)| *word).collect();
            format!("unknown value {text:?}: expected {}", words.join(", "))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meanings_are_words_with_their_reasons() {
        let dead = Class::Dead("gone".into());
        assert_eq!(Class::read("retry-after"), Ok(Class::RetryAfter));
        assert_eq!(Class::read("dead gone"), Ok(dead.clone()));
        assert_eq!(Class::read("retry 3 then dead gone"), Ok(Class::RetryAtMost(3, Box::new(dead))));
        for bad in
            ["", "dead", "dead ", "drop a b", "retry 0 then success", "retry 3", "retry x then auth", "sleep"]
        {
            assert!(Class::read(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn statuses_are_one_or_a_range_and_jitter_is_a_share() {
        assert_eq!(Statuses::read("404"), Ok(Statuses { from: 404, to: 404 }));
        assert_eq!(Statuses::read("400-499"), Ok(Statuses { from: 400, to: 499 }));
        assert!(["", "99", "600", "499-400", "4xx"].iter().all(|bad| Statuses::read(bad).is_err()));
        assert_eq!(Jitter::read("25%"), Ok(Jitter::Ratio(0.25)));
        assert!(["", "25", "0%", "101%", "some"].iter().all(|bad| Jitter::read(bad).is_err()));
    }

    #[test]
    fn sizes_and_rates_have_units() {
        assert_eq!(Bytes::read("1MiB").unwrap().0, 1 << 20);
        assert_eq!(Bytes::read("512").unwrap().0, 512);
        assert!(
            Bytes::read("1MB").is_err()
                && Bytes::read("MiB").is_err()
                && Bytes::read("99999999999GiB").is_err()
        );
        assert_eq!(Rate::read("1000/1h").unwrap().count, 1000);
        assert!(Rate::read("0/1h").is_err() && Rate::read("5").is_err() && Rate::read("5/0s").is_err());
    }

    #[test]
    fn sweeps_are_periods_or_times_of_day() {
        assert_eq!(SweepWhen::read("every 10m").unwrap(), SweepWhen::Every(Duration::from_secs(600)));
        assert_eq!(SweepWhen::read("daily 03:30").unwrap(), SweepWhen::DailyAt(Duration::from_secs(12_600)));
        for bad in ["10m", "every", "every 0s", "daily 3:30", "daily 24:00", "daily 03:60", "daily noon"] {
            assert!(SweepWhen::read(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn in_flight_reads_its_three_forms() {
        assert_eq!(InFlight::read("wait 5s").unwrap(), InFlight::Wait { deadline: Duration::from_secs(5) });
        assert!(matches!(InFlight::read("reject").unwrap(), InFlight::Reject { .. }));
        assert_eq!(InFlight::read("accepted").unwrap(), InFlight::Accepted);
        assert!(InFlight::read("accepted 5s").is_err() && InFlight::read("sleep 5s").is_err());
    }
}
