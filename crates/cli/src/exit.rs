//! What the program's exit codes mean. The one place: `semel --help` prints this table.

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Exit {
    /// It did what was asked.
    Success = 0,
    /// It looked and found something wrong: an unsafe setting, a clause that fails, an effect too many.
    Found = 1,
    /// The command line is wrong.
    Usage = 2,
    /// The configuration cannot be read, or says something that does not exist.
    Config = 3,
    /// A file or stream could not be read or written.
    Io = 4,
    /// What was asked is refused: there is no such record, it is not unknown, it is too early, or a token is missing.
    Refused = 5,
    /// The store or the admin address cannot be reached.
    Unreachable = 6,
    /// What was waited for has not happened yet, and still may.
    NotYet = 7,
    /// It was broken off by Ctrl-C: 128 and the signal's number, as shells expect it.
    Interrupted = 130,
}

impl Exit {
    /// The code's word, as `--json` shows it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Exit::Success => "success",
            Exit::Found => "found",
            Exit::Usage => "usage",
            Exit::Config => "config",
            Exit::Io => "io",
            Exit::Refused => "refused",
            Exit::Unreachable => "unreachable",
            Exit::NotYet => "not-yet",
            Exit::Interrupted => "interrupted",
        }
    }
}

/// The table as `--help` shows it.
pub(crate) const HELP: &str = "\
Exit codes:
  0  done
  1  something was found: an unsafe setting, a clause that fails, an effect too many
  2  the command line is wrong
  3  the configuration cannot be read or names something unknown
  4  a file or stream could not be read or written
  5  refused: there is no such record, it is not unknown, it is too early, or a token is missing
  6  the store or the admin address cannot be reached
  7  what was waited for has not happened yet, and still may: a message was not delivered in time
  130  broken off by Ctrl-C
Errors go to standard error; with --json as one object {\"error\", \"message\", \"exit\"}.";

/// Why a command stopped, and the code that says so.
#[derive(Debug)]
pub(crate) struct Stop {
    /// The code.
    pub(crate) exit: Exit,
    /// What happened and what to do.
    pub(crate) message: String,
}

impl Stop {
    pub(crate) fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self { exit, message: message.into() }
    }
}
