//! Asks before something is done that cannot be taken back.

use std::io::{IsTerminal, Write};

use crate::exit::{Exit, Stop};

/// Shows what will be done and has it confirmed: by `--yes`, or by a person at a terminal. Otherwise nothing is done.
pub(crate) fn confirm(preview: &str, is_confirmed: bool) -> Result<(), Stop> {
    if is_confirmed {
        return Ok(());
    }
    let refused = |why: &str| Stop::new(Exit::Refused, why.to_owned());
    // What cannot be shown cannot be confirmed either.
    let shown = std::io::stderr().write_all(preview.as_bytes());
    if shown.is_err() || !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
        return Err(refused("nothing was done; add --yes to do this"));
    }
    eprint!("Do this? [y/N] ");
    let mut answer = String::new();
    match std::io::stdin().read_line(&mut answer) {
        Ok(_) if matches!(answer.trim(), "y" | "Y" | "yes") => Ok(()),
        Ok(_) | Err(_) => Err(refused("nothing was done")),
    }
}

/// A count and its noun: `1 record`, `2 records`.
pub(crate) fn counted(count: u64, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}

#[cfg(test)]
mod tests {
    use super::counted;

    #[test]
    fn one_thing_is_not_several() {
        assert_eq!(
            (counted(1, "record"), counted(0, "record")),
            ("1 record".to_owned(), "0 records".to_owned())
        );
    }
}
