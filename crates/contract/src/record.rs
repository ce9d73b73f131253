//! What is known of a key: the facts that decisions read. The kept answer lives with the store, which carries these
//! facts beside it.

use std::fmt;
use std::str::FromStr;

use crate::fingerprint::Fingerprint;
use crate::time::Timestamp;

/// How strongly effect and record are tied together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guarantee {
    /// They commit in one transaction.
    Atomic,
    /// The claim commits first, under a lease with a fence.
    Fenced,
    /// There is no record.
    None,
}

impl Guarantee {
    /// The value of `Semel-Guarantee`.
    pub fn name(self) -> &'static str {
        match self {
            Guarantee::Atomic => "atomic",
            Guarantee::Fenced => "fenced",
            Guarantee::None => "none",
        }
    }
}

/// Proof of holding a claim: a store-wide number that only grows, and a random nonce of the attempt. Every write of a
/// holder presents both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence {
    /// Never reused, not even after release or sweep.
    pub number: u64,
    /// Tells apart two attempts even where a store was restored and its numbers ran again.
    pub nonce: u64,
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{:016x}", self.number, self.nonce)
    }
}

/// The text is not a fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAFence;

impl fmt::Display for NotAFence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("expected a fence such as 42-00c0ffee00c0ffee")
    }
}

impl std::error::Error for NotAFence {}

impl FromStr for Fence {
    type Err = NotAFence;

    fn from_str(text: &str) -> Result<Self, NotAFence> {
        let (number, nonce) = text.split_once('-').ok_or(NotAFence)?;
        let is_canonical = number.bytes().all(|b| b.is_ascii_digit()) && nonce.len() == 16;
        let (number, nonce) = (number.parse(), u64::from_str_radix(nonce, 16));
        match (number, nonce) {
            (Ok(number), Ok(nonce)) if is_canonical => {
                let fence = Fence { number, nonce };
                // One fence has one spelling, so that texts may be compared as well as values.
                if fence.to_string() == text { Ok(fence) } else { Err(NotAFence) }
            }
            _ => Err(NotAFence),
        }
    }
}

/// What was last written about a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Somebody may execute, nobody else.
    Claimed,
    /// The outcome is recorded and the answer kept.
    Settled,
    /// The outcome is recorded, the answer was not kept.
    Unkept,
    /// The attempt surely had no effect.
    Released,
    /// The attempt may or may not have had its effect.
    Unknown,
    /// The key was cancelled by its owner.
    Sealed,
}

impl State {
    /// Every state.
    pub const ALL: [State; 6] =
        [State::Claimed, State::Settled, State::Unkept, State::Released, State::Unknown, State::Sealed];

    /// The state's name.
    pub fn name(self) -> &'static str {
        match self {
            State::Claimed => "claimed",
            State::Settled => "settled",
            State::Unkept => "unkept",
            State::Released => "released",
            State::Unknown => "unknown",
            State::Sealed => "sealed",
        }
    }
}

/// The facts of one key.
#[derive(Clone, Debug)]
pub struct Record {
    /// What was last written.
    pub state: State,
    /// The level of the claim.
    pub guarantee: Guarantee,
    /// The fence of the last holder.
    pub fence: Fence,
    /// What the key was used for. A key that was sealed before it was seen has none.
    pub fingerprint: Option<Fingerprint>,
    /// The body's own hash, where the profile shows it on a mismatch.
    pub payload_hash: Option<[u8; 32]>,
    /// Until when the claim is exclusive without renewal.
    pub lease_until: Timestamp,
    /// When the key was first claimed.
    pub created_at: Timestamp,
    /// When the record stops counting. A claim and an unknown never expire.
    pub expires_at: Option<Timestamp>,
}
