//! What a step of [`semel_contract::transitions`] makes of everything that is kept of a key: the entry after a claim, a
//! settlement, a finding and a seal, and what stays of it once its principal is forgotten. Decides nothing by itself; never
//! touches a store.

use bytes::Bytes;
use semel_contract::decide::Standing;
use semel_contract::profile::Lifetime;
use semel_contract::record::{Fence, Guarantee, Record, State};
use semel_contract::time::Timestamp;
use semel_contract::transitions::{self, Claiming, Finding, Resolving};

use crate::admin::action;
use crate::claims::{About, Answer, ClaimRequest, Entry, Id, Resolution, Settlement};

impl ClaimRequest {
    /// What it comes to over what is known of its key.
    pub(crate) fn claiming(&self, known: Option<&Entry>, now: Timestamp) -> Claiming {
        let record = known.map(|entry| &entry.record);
        transitions::claim(record, self.how, self.replaces, self.nonce, now)
    }
}

impl Settlement {
    /// What is kept of its answer.
    pub(crate) fn into_kept(self) -> Option<Answer> {
        match self {
            Settlement::Settle(answer) => Some(answer),
            Settlement::Unkept(answer) => Some(Answer { body: Bytes::new(), ..answer }),
            Settlement::Release | Settlement::Unknown => None,
        }
    }
}

impl Resolution {
    fn finding(&self) -> Finding {
        match self {
            Resolution::Applied(_) => Finding::Applied,
            Resolution::NotApplied => Finding::NotApplied,
        }
    }

    /// What it is called on the trail.
    pub(crate) fn action(&self) -> &'static str {
        match self {
            Resolution::Applied(_) => action::RESOLVE_APPLIED,
            Resolution::NotApplied => action::RESOLVE_NOT_APPLIED,
        }
    }

    /// What is written where it is believed.
    pub(crate) fn into_settlement(self) -> Settlement {
        match self {
            Resolution::Applied(Some(answer)) => Settlement::Settle(answer),
            // It took effect, and nobody knows with which answer.
            Resolution::Applied(None) => Settlement::Unkept(Answer {
                status: 0,
                headers: [].into(),
                body: Bytes::new(),
                outcome_unknown: false,
            }),
            Resolution::NotApplied => Settlement::Release,
        }
    }
}

impl Entry {
    /// The entry of a claim that won.
    pub(crate) fn of_claim(request: &ClaimRequest, fence: Fence, now: Timestamp) -> Self {
        let lease_until = now.plus(request.lease);
        let record = Record {
            state: State::Claimed,
            guarantee: request.guarantee,
            fence,
            fingerprint: request.fingerprint,
            payload_hash: request.payload_hash,
            lease_until,
            created_at: now,
            expires_at: None,
        };
        Self {
            id: request.id.clone(),
            record,
            about: request.about.clone(),
            answer: None,
            settled_at: None,
            late_until: lease_until.plus(request.late),
        }
    }

    /// The entry of a key that is cancelled.
    pub(crate) fn of_seal(id: &Id, about: &About, fence: Fence, lifetime: &Lifetime, now: Timestamp) -> Self {
        let record = Record {
            state: State::Sealed,
            guarantee: Guarantee::None,
            fence,
            fingerprint: None,
            payload_hash: None,
            lease_until: now,
            created_at: now,
            expires_at: transitions::keep(State::Sealed, lifetime).map(|kept| now.plus(kept)),
        };
        let (settled_at, late_until) = (Some(now), now);
        Self { id: id.clone(), record, about: about.clone().into(), answer: None, settled_at, late_until }
    }

    /// Writes a settlement over a claim or an unknown outcome.
    pub(crate) fn settle(&mut self, settlement: Settlement, lifetime: &Lifetime, now: Timestamp) {
        let state = settlement.state();
        self.record.expires_at = transitions::expiry(&self.record, state, lifetime, now);
        self.record.state = state;
        self.settled_at = (state != State::Unknown).then_some(now);
        self.answer = settlement.into_kept();
    }

    /// Whether this settlement made it what it is.
    pub(crate) fn is_said_by(&self, settlement: &Settlement) -> bool {
        self.record.state == settlement.state() && self.answer == settlement.clone().into_kept()
    }

    /// What a person's or a probe's word on it comes to.
    pub(crate) fn resolving(&self, resolution: &Resolution, now: Timestamp) -> Resolving {
        let standing = Standing::of(Some(&self.record), now);
        let is_doubted = self.answer.as_ref().is_some_and(|answer| answer.outcome_unknown);
        transitions::resolve(standing, resolution.finding(), is_doubted, self.late_until, now)
    }

    /// Whether it is erased when this principal is forgotten. What is left of those who were forgotten is nobody's.
    pub(crate) fn is_forgotten_with(&self, tenant: Option<&str>, principal: &str) -> bool {
        !principal.is_empty()
            && self.about.principal == principal
            && self.about.tenant.as_deref() == tenant
            && transitions::is_finished(self.record.state)
    }

    /// What stays of it when its principal is forgotten: that its key was used, until nobody retries it any more. Nothing
    /// of the principal, the request or the answer. `None` where nothing has to stay.
    pub(crate) fn bare(&self, now: Timestamp) -> Option<Self> {
        let (state, answer) = match self.record.state {
            State::Settled | State::Unkept => {
                let known = self.answer.as_ref().map(|answer| (answer.status, answer.outcome_unknown));
                let (status, outcome_unknown) = known.unwrap_or_default();
                // A failure or a refusal without its status would read like an effect.
                let nothing = Answer {
                    status: if status >= 400 { status } else { 0 },
                    headers: [].into(),
                    body: Bytes::new(),
                    outcome_unknown: outcome_unknown || status >= 500,
                };
                (State::Unkept, Some(nothing))
            }
            State::Sealed => (State::Sealed, None),
            State::Released | State::Claimed | State::Unknown => return None,
        };
        if self.record.expires_at.is_none_or(|expires| expires <= now) {
            return None;
        }
        let record = Record { state, fingerprint: None, payload_hash: None, ..self.record.clone() };
        Some(Self { record, about: Default::default(), answer, ..self.clone() })
    }
}
