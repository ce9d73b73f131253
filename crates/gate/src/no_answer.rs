//! Why a service that forwards requests has no answer, as it tells the gate.

/// How a service that forwards requests says that it has no answer: put into the extensions of the response that stands
/// in for one. Only what surely was not sent frees the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoAnswer {
    /// Not a byte of the request was sent.
    NotSent(String),
    /// It broke off after something was sent.
    Reset(String),
    /// No answer came in time.
    TimedOut(String),
    /// Another attempt holds the key by now, and this one was rolled back.
    Superseded,
    /// The database did not take the answer's record, and the transaction was rolled back.
    NotSettled(String),
}
