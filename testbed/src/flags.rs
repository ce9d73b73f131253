//! The few words that every command line here shares. Refuses flags it was not told of.

use crate::failure::Failure;

/// What a command line without options asks for.
#[derive(Debug, PartialEq, Eq)]
pub enum Asked {
    Help,
    Run,
}

pub fn is_help(arg: &str) -> bool {
    matches!(arg, "--help" | "-h" | "help")
}

/// Reads the arguments of a command that takes none but `--help`.
pub fn only_help(args: &[String], usage: &str) -> Result<Asked, Failure> {
    match args {
        [] => Ok(Asked::Run),
        [first, ..] if is_help(first) => Ok(Asked::Help),
        [first, ..] => Err(unknown(first, usage)),
    }
}

/// The failure for a word that the command does not know.
pub fn unknown(arg: &str, usage: &str) -> Failure {
    Failure::Usage(format!("`{arg}` is not an option here\n\n{usage}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_is_recognised_and_anything_else_is_refused() {
        assert_eq!(only_help(&[], "usage"), Ok(Asked::Run));
        assert_eq!(only_help(&["--help".to_owned()], "usage"), Ok(Asked::Help));
        let failure = only_help(&["--fats".to_owned()], "usage text").unwrap_err();
        assert_eq!(failure.exit_code(), 2);
        assert!(failure.to_string().contains("--fats") && failure.to_string().contains("usage text"));
    }
}
