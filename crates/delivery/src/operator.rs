//! Who does something by hand, and why; and what a trail keeps of it.

use semel_contract::time::Timestamp;

use crate::Invalid;

/// The longest reason.
pub const REASON_BYTES_MAX: usize = 2000;

/// Somebody who does something by hand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operator {
    /// Who, as the door that let them in knows them.
    pub name: String,
    /// Why, in their words.
    pub reason: Option<String>,
}

impl Operator {
    /// Somebody, who may have said why.
    ///
    /// # Errors
    /// The reason is too long, or no database could keep it.
    pub fn new(name: &str, reason: Option<&str>) -> Result<Self, Invalid> {
        let reason = reason.map(str::trim).filter(|reason| !reason.is_empty());
        match reason {
            Some(reason) if reason.len() > REASON_BYTES_MAX => {
                Err(format!("reason: at most {REASON_BYTES_MAX} bytes").into())
            }
            Some(reason) if reason.contains('\0') => Err("reason: it contains a control character".into()),
            reason => Ok(Self { name: name.to_owned(), reason: reason.map(str::to_owned) }),
        }
    }
}

impl From<&str> for Operator {
    /// Somebody who gave no reason.
    fn from(name: &str) -> Self {
        Self { name: name.to_owned(), reason: None }
    }
}

/// Something that was done by hand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Audited {
    /// Its number; they only grow.
    pub number: i64,
    /// When.
    pub at: Timestamp,
    /// Who.
    pub actor: String,
    /// What was done, such as `abort`.
    pub action: String,
    /// What it was done to.
    pub subject: String,
    /// What came of it, in words.
    pub detail: String,
    /// Why, in the actor's words; empty where nobody said.
    pub reason: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_kept_as_it_was_said_within_its_bound() {
        let operator = Operator::new("alice", Some("  the server was restored  ")).unwrap();
        assert_eq!(operator.reason.as_deref(), Some("the server was restored"));
        assert_eq!(Operator::new("alice", Some("  ")).unwrap(), Operator::from("alice"));
        assert!(Operator::new("alice", Some(&"x".repeat(REASON_BYTES_MAX))).is_ok());
        assert!(Operator::new("alice", Some(&"x".repeat(REASON_BYTES_MAX + 1))).is_err());
        assert!(Operator::new("alice", Some("a\0b")).is_err(), "PostgreSQL keeps no such text");
    }
}
