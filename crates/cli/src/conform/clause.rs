//! What the draft asks of a server, clause by clause, and how a clause can end. Only data.

/// The text that the sections belong to.
pub(crate) const DRAFT: &str = "draft-ietf-httpapi-idempotency-key-header-07";

/// One thing that a server is expected to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clause {
    First,
    Presence,
    Syntax,
    Replay,
    Mismatch,
    Concurrency,
    ErrorFormat,
    Scope,
}

impl Clause {
    /// In the order in which they are examined.
    pub(crate) const ALL: [Clause; 8] = [
        Clause::First,
        Clause::Presence,
        Clause::Syntax,
        Clause::Replay,
        Clause::Mismatch,
        Clause::Concurrency,
        Clause::ErrorFormat,
        Clause::Scope,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Clause::First => "first",
            Clause::Presence => "presence",
            Clause::Syntax => "syntax",
            Clause::Replay => "replay",
            Clause::Mismatch => "mismatch",
            Clause::Concurrency => "concurrency",
            Clause::ErrorFormat => "error-format",
            Clause::Scope => "scope",
        }
    }

    /// The draft's section.
    pub(crate) fn section(self) -> &'static str {
        match self {
            Clause::Syntax => "2.1",
            Clause::First | Clause::Replay | Clause::Concurrency => "2.6",
            Clause::Presence | Clause::Mismatch | Clause::ErrorFormat => "2.7",
            Clause::Scope => "5",
        }
    }

    /// How strongly the draft says it; best practices that it recommends are a SHOULD.
    pub(crate) fn level(self) -> &'static str {
        match self {
            Clause::Syntax => "MUST",
            Clause::First
            | Clause::Presence
            | Clause::Replay
            | Clause::Mismatch
            | Clause::Concurrency
            | Clause::ErrorFormat
            | Clause::Scope => "SHOULD",
        }
    }

    pub(crate) fn words(self) -> &'static str {
        match self {
            Clause::First => "a first request, its key a quoted String, is processed normally",
            Clause::Presence => "a request without the required key is answered 400",
            Clause::Syntax => "a key that is not one String is answered 400",
            Clause::Replay => "a retry gets the first answer and has no effect",
            Clause::Mismatch => "a used key with another payload is answered 422",
            Clause::Concurrency => "requests at once have one effect; the others get 409 or the same answer",
            Clause::ErrorFormat => "errors link to documentation: problem+json with a type, or a Link header",
            Clause::Scope => "another credential does not get the first one's answer",
        }
    }
}

impl std::str::FromStr for Clause {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let names = || Clause::ALL.map(Clause::name).join(", ");
        Clause::ALL
            .into_iter()
            .find(|clause| clause.name() == text)
            .ok_or_else(|| format!("there is no clause {text:?}; there are {}", names()))
    }
}

/// How a clause ended, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Pass(String),
    Fail(String),
    /// It could not be told, or was not asked for.
    Skipped(String),
}

impl Outcome {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Outcome::Pass(_) => "pass",
            Outcome::Fail(_) => "fail",
            Outcome::Skipped(_) => "skipped",
        }
    }

    pub(crate) fn why(&self) -> &str {
        match self {
            Outcome::Pass(why) | Outcome::Fail(why) | Outcome::Skipped(why) => why,
        }
    }
}
