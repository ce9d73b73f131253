//! Any text as a configuration: it is refused, or it means the same when a TOML library has written it anew.

use std::path::Path;

use semel_fuzz::{Target, Verdict};

use super::file::File;
use super::overrides::Applied;
use super::{Config, describe};

#[test]
fn fuzz_config() {
    Target::new("config")
        .words(&[
            "[gate]\n", "[defaults]\n", "[route.a]\n", "match = \"POST /a\"\n", "match = \"* /{path*}\"\n", "profile = \"ietf\"\n",
            "profile = \"stripe\"\n", "profile = \"walker\"\n", "key_format = \"uuid\"\n", "key_source = [\"header:X-Key\", \"json:/id\"]\n",
            "retry_window = \"1h\"\n", "record_lifetime = \"24h\"\n", "guarantee = \"atomic\"\n", "on_unknown = \"rerun\"\n", "identity = \"shared:x\"\n",
            "store = \"postgres://u:p@h/d\"\n", "store = \"sqlite:a.db\"\n", "listen = \"127.0.0.1:1\"\n", "upstream = \"http://a\"\n", "fingerprint = \"none\"\n",
            "mismatch = \"ignore\"\n", "[gate.limits]\n", "headers = 7\n", "keep = [\"5xx:release\"]\n", "= ", "\"", "\n", "[[", "{ ", " }", "1979-05-27", "0x1f", "true", "was = [\"b\"]\n",
            "request_limit = \"10/1s\"\n", "[outbox]\n", "[relay]\n", "drain = \"30s\"\n", "sweep = \"daily 03:00\"\n", "# c\n", "\\u00e9", "1e400", "inf",
        ])
        .seed(include_str!("../../../../packaging/semel.toml"))
        .seed(include_str!("../../../../examples/agents/semel.toml"))
        .seed(include_str!("../../../../examples/agents/atomic.toml"))
        .seed("[route.refunds]\nmatch = \"POST /refunds\"\nprofile = \"ietf\"\non_unknown = { probe = \"http://127.0.0.1:3000/refunds/{key}\" }\n")
        .run(judge);
}

fn meant(text: &str) -> Result<Result<String, String>, String> {
    let file: File = toml::from_str(text).map_err(|error| error.message().to_owned())?;
    Ok(Config::of(file, Some(Path::new("semel.toml")), Applied::default()).map(|config| {
        // What is shown to operators is made from it, and must not fail.
        let profiles =
            std::iter::once(&config.defaults).chain(config.routes.iter().map(|route| &route.profile));
        let shown: Vec<_> = profiles.map(|profile| (describe(profile), profile.unsafeties())).collect();
        format!("{config:?} {shown:?} {:?} {:?}", config.warnings(), config.obstacles())
    }))
}

fn judge(input: &[u8]) -> Verdict {
    let Ok(text) = std::str::from_utf8(input) else { return Ok("not text".into()) };
    let table = text.parse::<toml::Table>();
    let first = match (meant(text), &table) {
        (Err(why), _) => return Ok(format!("not a file: {}", kind(&why)).into()),
        (Ok(_), Err(error)) => return Err(format!("it is read, but is not TOML: {error}")),
        (Ok(first), Ok(_)) => first,
    };
    let table = table.unwrap_or_default();
    let written = toml::to_string(&table).map_err(|error| format!("it cannot be written: {error}"))?;
    let second = meant(&written).map_err(|why| format!("written as {written:?} it is refused: {why}"))?;
    if first != second {
        return Err(format!("{first:?}, but written as {written:?} it means {second:?}"));
    }
    if !table.contains_key("zz") && meant(&format!("zz = 1\n{written}")).is_ok() {
        return Err("a setting that does not exist is accepted".to_owned());
    }
    Ok(match first {
        Ok(_) => format!("{} settings", table.len().min(8)).into(),
        Err(why) => format!("refused: {}", kind(&why)).into(),
    })
}

/// What an error is about, without what it quotes.
fn kind(why: &str) -> &'static str {
    const KINDS: [&str; 16] = [
        "unknown field",
        "missing field",
        "duplicate key",
        "invalid type",
        "expected",
        "invalid",
        "unknown",
        "belong",
        "match",
        "identity",
        "route",
        "defaults",
        "gate",
        "key",
        "must",
        "needs",
    ];
    KINDS.into_iter().find(|kind| why.contains(kind)).unwrap_or("other")
}
