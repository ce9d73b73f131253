//! What was asked of a store and what it acknowledged, and whether what is found later agrees with that.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use semel_contract::decide::Claim;
use semel_contract::key::{Format, Key};
use semel_contract::profile::{Lifetime, presets};
use semel_contract::record::{Fence, Guarantee, State};
use semel_contract::scope::Scope;
use semel_store::{Answer, ClaimRequest, Entry, Id};

/// How a request is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Left,
    Settled,
    Unkept,
    Released,
    Unknown,
    Transacted,
}

impl End {
    pub(crate) const ALL: [End; 6] =
        [End::Left, End::Settled, End::Unkept, End::Released, End::Unknown, End::Transacted];
}

#[derive(Clone, Debug)]
struct Told {
    end: End,
    body_bytes: usize,
    fence: Option<Fence>,
    is_ended: bool,
}

/// Everything that was asked and acknowledged.
#[derive(Debug, Default)]
pub(crate) struct Book {
    requests: BTreeMap<u64, Told>,
    highest: u64,
    acknowledged: u64,
}

impl Book {
    pub(crate) fn asked(&mut self, number: u64, end: End, body_bytes: usize) {
        self.requests.insert(number, Told { end, body_bytes, fence: None, is_ended: false });
    }

    pub(crate) fn won(&mut self, number: u64, fence: Fence) {
        self.acknowledged += 1;
        self.highest = self.highest.max(fence.number);
        self.told(number).fence = Some(fence);
    }

    pub(crate) fn ended(&mut self, number: u64) {
        self.acknowledged += 1;
        self.told(number).is_ended = true;
    }

    fn told(&mut self, number: u64) -> &mut Told {
        self.requests.get_mut(&number).expect("it was asked for")
    }

    pub(crate) fn numbers(&self) -> Vec<u64> {
        self.requests.keys().copied().collect()
    }

    pub(crate) fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    pub(crate) fn highest(&self) -> u64 {
        self.highest
    }

    /// A fence that is given must be above all that were given before.
    pub(crate) fn gives(&mut self, fence: Fence) -> Result<(), String> {
        if fence.number <= self.highest {
            return Err(format!(
                "the fence {} is given again, {} was given before",
                fence.number, self.highest
            ));
        }
        self.highest = fence.number;
        Ok(())
    }

    /// Whether what a restart found agrees. What it found is from now on as good as acknowledged.
    pub(crate) fn compare(
        &mut self,
        number: u64,
        entry: Option<&Entry>,
        has_order: bool,
    ) -> Result<(), String> {
        let told = self.requests.get(&number).expect("it was asked for").clone();
        let state = entry.map(|entry| entry.record.state);
        let wrong = |why: &str| {
            Err(format!("request {number} ({told:?}): {why}; found {state:?}, order: {has_order}"))
        };
        if has_order != (told.end == End::Transacted && state == Some(State::Settled)) {
            return wrong("the handler's write and the record are not there together");
        }
        if let (Some(entry), Some(fence)) = (entry, told.fence)
            && entry.record.fence != fence
        {
            return wrong("another fence holds the record");
        }
        if entry.is_some_and(|entry| entry.record.fence.nonce != number) {
            return wrong("the record is of another wish");
        }
        let ended = match told.end {
            End::Left | End::Unknown => Some(State::Unknown),
            End::Settled | End::Transacted => Some(State::Settled),
            End::Unkept => Some(State::Unkept),
            End::Released => None,
        };
        // A claim of an atomic route is a reservation in memory: without its settlement there is nothing.
        let unended = if told.end == End::Transacted { None } else { Some(State::Unknown) };
        let is_allowed = match (told.fence.is_some(), told.is_ended) {
            (_, true) => state == ended,
            (true, false) => state == ended || state == unended,
            (false, false) => state.is_none() || state == unended,
        };
        if !is_allowed {
            return wrong("this is not what was acknowledged");
        }
        let kept = entry.and_then(|entry| entry.answer.clone());
        let expected = match state {
            Some(State::Settled) => Some(answer(number, told.body_bytes)),
            Some(State::Unkept) => Some(Answer { body: Bytes::new(), ..answer(number, told.body_bytes) }),
            _ => None,
        };
        if kept != expected {
            return wrong("the answer is not whole");
        }
        match state {
            None => drop(self.requests.remove(&number)),
            Some(state) => {
                let told = self.told(number);
                (told.is_ended, told.fence) = (true, entry.map(|entry| entry.record.fence));
                told.end = if state == State::Unknown { End::Unknown } else { told.end };
            }
        }
        self.highest = self.highest.max(entry.map_or(0, |entry| entry.record.fence.number));
        Ok(())
    }
}

pub(crate) fn id(number: u64) -> Id {
    let scope = Scope::of(None, Some("alice"), Some("create-order"));
    Id { scope, key: Key::parse(&Format::Printable255, &format!("key-{number}")).expect("a printable key") }
}

pub(crate) fn claim_request(id: &Id, nonce: u64, guarantee: Guarantee) -> ClaimRequest {
    ClaimRequest {
        id: id.clone(),
        how: Claim::New,
        replaces: None,
        nonce,
        lease: Duration::from_secs(300),
        late: Duration::from_secs(300),
        guarantee,
        fingerprint: None,
        payload_hash: None,
        rotation: None,
        terms: None,
        about: std::sync::Arc::default(),
    }
}

pub(crate) fn lifetime() -> Lifetime {
    Lifetime { released: None, ..presets::ietf().lifetime }
}

/// The answer of a request: long enough to span pages, and its own.
pub(crate) fn answer(number: u64, body_bytes: usize) -> Answer {
    let body: Vec<u8> = number.to_be_bytes().iter().copied().cycle().take(body_bytes).collect();
    Answer {
        status: 201,
        headers: vec![("x".to_owned(), b"y".to_vec())].into(),
        body: Bytes::from(body),
        outcome_unknown: false,
    }
}
