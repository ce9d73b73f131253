//! The command line: two flags. Refuses what it does not know.

use std::path::PathBuf;

use clap::Parser;

/// Where orders and records are kept, together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Store {
    Sqlite(PathBuf),
    Postgres(String),
}

/// An order service whose requests take effect once.
#[derive(Debug, PartialEq, Eq, Parser)]
#[command(name = "semel-example-orders")]
pub(crate) struct Flags {
    /// Where orders are kept: sqlite:FILE or postgres://USER@HOST/DATABASE.
    #[arg(long, value_name = "STORE", default_value = "sqlite:orders.db", value_parser = store_of)]
    pub(crate) store: Store,
    /// Where to listen; port 0 for any.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:3000")]
    pub(crate) listen: String,
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

    fn parsed(line: &str) -> Result<Flags, clap::Error> {
        Flags::try_parse_from(std::iter::once("orders").chain(line.split_whitespace()))
    }

    #[test]
    fn both_flags_are_read_and_neither_is_needed() {
        let run = |store, listen: &str| Some(Flags { store, listen: listen.to_owned() });
        assert_eq!(parsed("").ok(), run(Store::Sqlite("orders.db".into()), "127.0.0.1:3000"));
        assert_eq!(
            parsed("--listen [::1]:0 --store postgres://a@b/c").ok(),
            run(Store::Postgres("postgres://a@b/c".to_owned()), "[::1]:0")
        );
        assert_eq!(parsed("--help").unwrap_err().exit_code(), 0);
    }

    #[test]
    fn a_wrong_line_is_told_what_is_wrong() {
        for (line, word) in
            [("--store", "value is required"), ("--stor x", "--stor"), ("--store mysql:x", "mysql:x")]
        {
            let error = parsed(line).unwrap_err();
            assert!(error.exit_code() == 2 && error.to_string().contains(word), "{error}");
        }
    }
}
