//! Why a command ended without success, and the exit code of each reason. Prints nothing itself.

use std::fmt;

/// The reasons a command may end without success.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// The command line was wrong; the text says what is right.
    Usage(String),
    /// The work was done and something is not good; the text says what, and what to do.
    Failed(String),
    /// A signal asked us to stop. What was started has been stopped.
    Interrupted(i32),
}

impl Failure {
    /// 1 for a failure, 2 for wrong usage, 128 + N for signal N, as shells do.
    pub fn exit_code(&self) -> u8 {
        match self {
            Failure::Usage(_) => 2,
            Failure::Failed(_) => 1,
            Failure::Interrupted(signal) => 128 + u8::try_from(*signal).unwrap_or(0),
        }
    }
}

impl From<String> for Failure {
    fn from(text: String) -> Self {
        Failure::Failed(text)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Usage(text) | Failure::Failed(text) => out.write_str(text),
            Failure::Interrupted(signal) => write!(out, "ended by signal {signal}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_tell_the_reasons_apart() {
        assert_eq!(Failure::from("broken".to_owned()).exit_code(), 1);
        assert_eq!(Failure::Usage("flag".to_owned()).exit_code(), 2);
        assert_eq!(Failure::Interrupted(libc::SIGINT).exit_code(), 130);
        assert_eq!(Failure::Interrupted(libc::SIGTERM).exit_code(), 143);
    }
}
