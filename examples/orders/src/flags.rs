//! The command line: two flags, read by hand. Refuses what it does not know.

use std::path::PathBuf;

pub(crate) const USAGE: &str = "\
Usage: semel-example-orders [--store STORE] [--listen ADDRESS]

  --store STORE     sqlite:FILE or postgres://USER@HOST/DATABASE; sqlite:orders.db without this
  --listen ADDRESS  where to listen; 127.0.0.1:3000 without this, and port 0 for any";

/// Where orders and records are kept, together.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Store {
    Sqlite(PathBuf),
    Postgres(String),
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Flags {
    pub(crate) store: Store,
    pub(crate) listen: String,
}

/// What the command line asks for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    Help,
    Run(Flags),
}

pub(crate) fn parse(mut args: impl Iterator<Item = String>) -> Result<Asked, String> {
    let store = Store::Sqlite(PathBuf::from("orders.db"));
    let mut flags = Flags { store, listen: "127.0.0.1:3000".to_owned() };
    while let Some(flag) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{flag} needs a value"));
        match flag.as_str() {
            "--help" | "-h" => return Ok(Asked::Help),
            "--store" => flags.store = store_of(&value()?)?,
            "--listen" => flags.listen = value()?,
            other => return Err(format!("{other} is not a flag of this program")),
        }
    }
    Ok(Asked::Run(flags))
}

fn store_of(text: &str) -> Result<Store, String> {
    match text.split_once(':') {
        Some(("sqlite", path)) if !path.is_empty() => Ok(Store::Sqlite(PathBuf::from(path))),
        Some(("postgres" | "postgresql", _)) => Ok(Store::Postgres(text.to_owned())),
        Some(_) | None => Err(format!("{text} is not a store; expected sqlite:FILE or postgres://…")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Asked, String> {
        parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn both_flags_are_read_and_neither_is_needed() {
        let run = |store, listen: &str| Ok(Asked::Run(Flags { store, listen: listen.to_owned() }));
        assert_eq!(parsed(""), run(Store::Sqlite("orders.db".into()), "127.0.0.1:3000"));
        assert_eq!(
            parsed("--listen [::1]:0 --store postgres://a@b/c"),
            run(Store::Postgres("postgres://a@b/c".to_owned()), "[::1]:0")
        );
        assert_eq!(parsed("--help"), Ok(Asked::Help));
    }

    #[test]
    fn a_wrong_line_is_told_what_is_wrong() {
        for (line, word) in
            [("--store", "needs a value"), ("--stor x", "--stor"), ("--store mysql:x", "mysql:x")]
        {
            let error = parsed(line).unwrap_err();
            assert!(error.contains(word), "{error}");
        }
    }
}
