//! The texts that stand in settings, each parsed once. Every type says what it expected.

use std::fmt;
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use semel_contract::identity::{Identity, IdentityError};
use semel_contract::json::Pointer;
use semel_contract::key::{Format, Source};
use semel_contract::profile::{InFlight, Rate, Replay, SweepWhen};
use semel_contract::route::{Pattern, PatternError};
use semel_contract::time::parse_duration;
use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// A setting that is written as one text.
#[derive(Clone, Debug)]
pub(crate) struct Text<T>(pub(crate) T);

impl<'de, T: Setting> Deserialize<'de> for Text<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        T::read(&text).map(Text).map_err(serde::de::Error::custom)
    }
}

/// A setting that is written as one word, or as a table where the word is not enough.
#[derive(Clone, Debug)]
pub(crate) enum OneOf<W, T> {
    Word(W),
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
pub(crate) struct Match(String);

impl Setting for Match {
    fn read(text: &str) -> Result<Self, String> {
        let text = Match(text.to_owned());
        text.pattern(&["POST"]).map(|_| text)
    }
}

impl Match {
    /// The pattern, with these methods where it names none.
    pub(crate) fn pattern(&self, methods: &[&str]) -> Result<Pattern, String> {
        let parsed = match self.0.starts_with('/') {
            true => format!("{} {}", methods.join("|"), self.0).parse(),
            false => self.0.parse(),
        };
        parsed.map_err(|error: PatternError| error.to_string())
    }
}

/// Something that a text in the settings can stand for.
pub(crate) trait Setting: Sized {
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
        text.parse()
    }
}

impl Setting for Format {
    fn read(text: &str) -> Result<Self, String> {
        text.parse()
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

/// An address on the command line.
pub(crate) fn address(text: &str) -> Result<SocketAddr, String> {
    SocketAddr::read(text)
}

/// A duration on the command line.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    Duration::read(text)
}

/// A number of bytes on the command line.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    Bytes::read(text).map(|size| size.0)
}

/// The same, of what is kept in memory.
pub(crate) fn size(text: &str) -> Result<usize, String> {
    bytes(text).and_then(|bytes| usize::try_from(bytes).map_err(|_| format!("{text:?} is too large")))
}

/// A URL as it is, or `http://` before a host and a port that stand alone.
pub(super) fn with_scheme(text: &str) -> String {
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
pub(crate) struct Url(pub(crate) String);

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

/// The URL of a Redis server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RedisUrl(pub(crate) String);

impl Setting for RedisUrl {
    fn read(text: &str) -> Result<Self, String> {
        match text.strip_prefix("redis://") {
            Some(rest) if !rest.is_empty() => Ok(RedisUrl(text.to_owned())),
            _ => Err(format!("bad URL {:?}: expected something like redis://127.0.0.1:6379", redacted(text))),
        }
    }
}

/// Where requests are written down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LogTo {
    Off,
    Stderr,
    File(PathBuf),
}

impl Setting for LogTo {
    fn read(text: &str) -> Result<Self, String> {
        match text {
            "" => Err("bad access log \"\": expected stderr, off or the path of a file".to_owned()),
            "off" => Ok(LogTo::Off),
            "stderr" => Ok(LogTo::Stderr),
            path => Ok(LogTo::File(PathBuf::from(path))),
        }
    }
}

impl fmt::Display for LogTo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LogTo::Off => f.write_str("off"),
            LogTo::Stderr => f.write_str("stderr"),
            LogTo::File(path) => path.display().fmt(f),
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

/// Where records are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Store {
    /// A file of this process.
    Sqlite(String),
    /// A server.
    Postgres(String),
}

impl Default for Store {
    fn default() -> Self {
        Store::Sqlite("semel.db".to_owned())
    }
}

impl Setting for Store {
    fn read(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            Some(("sqlite", path)) if !path.is_empty() => Ok(Store::Sqlite(path.to_owned())),
            Some(("postgres" | "postgresql", rest)) if rest.starts_with("//") => {
                Ok(Store::Postgres(text.to_owned()))
            }
            _ => Err(format!("bad store {text:?}: expected sqlite:PATH or postgres://USER@HOST/DATABASE")),
        }
    }
}

impl fmt::Display for Store {
    /// Passwords are left out.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Store::Sqlite(path) => write!(f, "sqlite:{path}"),
            Store::Postgres(url) => f.write_str(&redacted(url)),
        }
    }
}

/// A URL without what must not be shown: the password before the host, and every parameter whose name speaks of one.
/// Told by the last `@`, so that a password with a slash in it does not show either.
pub(crate) fn redacted(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let (user, rest) = match rest.rsplit_once('@') {
        Some((user, rest)) => (format!("{}@", user.split_once(':').map_or(user, |(name, _)| name)), rest),
        None => (String::new(), rest),
    };
    let (path, query) = rest.split_once('?').map_or((rest, None), |(path, query)| (path, Some(query)));
    let shown = |parameter: &str| {
        let name = parameter.split_once('=').map_or(parameter, |(name, _)| name);
        // A name that is percent-encoded could be anything.
        if name.to_ascii_lowercase().contains("pass") || name.contains('%') {
            format!("{name}=…")
        } else {
            parameter.to_owned()
        }
    };
    let query = query.map(|query| format!("?{}", query.split('&').map(shown).collect::<Vec<_>>().join("&")));
    format!("{scheme}://{user}{path}{}", query.unwrap_or_default())
}

/// A message without the passwords of the URLs in it. What stands before the last `@` of a word with `://` is taken for a
/// name and a password.
pub(crate) fn without_passwords(message: &str) -> String {
    let mut shown = String::with_capacity(message.len());
    let mut rest = message;
    while let Some(at) = rest.find("://") {
        let (before, url) = rest.split_at(at + 3);
        let end = url.find(|c: char| c.is_whitespace() || "\"'`<>,;".contains(c)).unwrap_or(url.len());
        let (url, after) = url.split_at(end);
        shown.push_str(before);
        shown.push_str(redacted(&format!("x://{url}")).trim_start_matches("x://"));
        rest = after;
    }
    shown.push_str(rest);
    shown
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

/// How long a record lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kept(pub(crate) Duration);

impl Kept {
    /// A hundred years: longer than any key is remembered elsewhere.
    pub(crate) const FOREVER: Duration = Duration::from_secs(100 * 365 * 86_400);
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
pub(crate) struct Bytes(pub(crate) u64);

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
pub(crate) trait Word: Sized + Copy + 'static {
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
    fn passwords_are_never_shown() {
        for (url, shown) in [
            ("postgres://u:secret@db/shop", "postgres://u@db/shop"),
            ("postgres://u@db:5432/shop?password=secret&a=1", "postgres://u@db:5432/shop?password=…&a=1"),
            ("postgres://u@db/shop?pass%77ord=secret", "postgres://u@db/shop?pass%77ord=…"),
            ("postgresql://db/shop", "postgresql://db/shop"),
            ("postgres://u:se/c?r@et@db/shop", "postgres://u@db/shop"),
        ] {
            assert_eq!(Store::read(url).unwrap().to_string(), shown);
            assert_eq!(redacted(url), shown);
        }
    }

    #[test]
    fn addresses_and_urls_have_short_forms() {
        for (text, meant) in [
            ("7500", "127.0.0.1:7500"),
            (":7500", "127.0.0.1:7500"),
            ("localhost:7500", "127.0.0.1:7500"),
            ("0.0.0.0:7500", "0.0.0.0:7500"),
            ("[::1]:7500", "[::1]:7500"),
        ] {
            assert_eq!(address(text).unwrap().to_string(), meant);
        }
        for bad in ["", "here", "127.0.0.1", "localhost", "example.com:80", "99999", ":"] {
            assert!(address(bad).unwrap_err().contains("127.0.0.1:7400"), "{bad}");
        }
        for (text, meant) in [
            ("127.0.0.1:3000", "http://127.0.0.1:3000"),
            ("localhost:3000/api", "http://localhost:3000/api"),
            (":3000", "http://127.0.0.1:3000"),
            ("3000", "http://127.0.0.1:3000"),
            ("https://shop", "https://shop"),
        ] {
            assert_eq!(Url::read(text).unwrap().0, meant);
        }
        assert!(Url::read("ftp://x").is_err() && Url::read("shop").is_err() && Url::read("http://").is_err());
        assert_eq!((bytes("1MiB"), Bytes(1 << 20).to_string()), (Ok(1 << 20), "1MiB".to_owned()));
        assert_eq!(Bytes(1000).to_string(), "1000B");
    }

    #[test]
    fn messages_lose_the_passwords_of_their_urls_and_nothing_else() {
        assert_eq!(
            without_passwords(
                "bad URL \"http://u:secret@db:99999/\": expected http://127.0.0.1:3000, or a@b"
            ),
            "bad URL \"http://u@db:99999/\": expected http://127.0.0.1:3000, or a@b"
        );
        assert_eq!(
            without_passwords("2 | store = 'mysql://u:s@db'\n  | ^^^"),
            "2 | store = 'mysql://u@db'\n  | ^^^"
        );
        assert_eq!(without_passwords("no URL: here"), "no URL: here");
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
