//! The texts that stand in the settings of programs: addresses, URLs, files. Those of profiles are the contract's.

use std::fmt;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

pub(crate) use semel_contract::profile::settings::values::{
    Bytes, Kept, OneOf, Setting, Text, Url, with_scheme,
};

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

/// The form of what is written on standard error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum LogFormat {
    /// For people.
    Text,
    /// One JSON object on each line.
    Json,
}

impl Setting for LogFormat {
    fn read(text: &str) -> Result<Self, String> {
        match text {
            "text" => Ok(LogFormat::Text),
            "json" => Ok(LogFormat::Json),
            _ => Err(format!("bad form of a log {text:?}: expected text or json")),
        }
    }
}

impl fmt::Display for LogFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LogFormat::Text => "text",
            LogFormat::Json => "json",
        })
    }
}

/// Where requests are written down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LogTo {
    Off,
    Stderr(OneIn),
    File(PathBuf, OneIn),
}

/// One in so many requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OneIn(pub(crate) NonZeroU32);

impl OneIn {
    pub(crate) const ALL: Self = Self(NonZeroU32::MIN);

    /// Takes `1/100` off the beginning of a text.
    fn split(text: &str) -> Result<(Self, &str), String> {
        let (first, rest) = text.split_once(' ').map_or((text, ""), |(first, rest)| (first, rest.trim()));
        let Some(number) = first.strip_prefix("1/") else { return Ok((Self::ALL, text)) };
        match number.parse() {
            Ok(number) => Ok((Self(number), rest)),
            Err(_) => Err(format!("bad share {first:?}: expected something like 1/100")),
        }
    }
}

impl fmt::Display for OneIn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::ALL => Ok(()),
            Self(number) => write!(f, "1/{number} "),
        }
    }
}

impl Setting for LogTo {
    fn read(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("bad access log \"\": expected stderr, off, 1/100 or the path of a file".to_owned());
        }
        match OneIn::split(text)? {
            (OneIn::ALL, "off") => Ok(LogTo::Off),
            (_, "off") => Err(format!("bad access log {text:?}: off is off")),
            (one_in, "" | "on" | "stderr") => Ok(LogTo::Stderr(one_in)),
            (one_in, path) => Ok(LogTo::File(PathBuf::from(path), one_in)),
        }
    }
}

impl fmt::Display for LogTo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LogTo::Off => f.write_str("off"),
            LogTo::Stderr(one_in) => write!(f, "{one_in}stderr"),
            LogTo::File(path, one_in) => write!(f, "{one_in}{}", path.display()),
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
}
