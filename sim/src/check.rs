//! What is checked at the clients: every answer against the record, and every last word against the ledger.

use std::time::Duration;

use futures_util::FutureExt;
use semel_contract::problem::Kind;
use semel_contract::record::State;

use crate::book::{Acknowledged, Effect};
use crate::client::Intent;
use crate::coverage::Met;
use crate::life::Life;
use crate::log::SlotNumber;
use crate::planted::Bug;
use crate::routes::{Effects, Endpoint, RETRY_WINDOW};
use crate::seen::Seen;
use crate::shadow::{Epoch, millis};
use crate::world::{Invariant, World};

impl World {
    /// A client sees an answer.
    pub(crate) fn check_seen(&self, intent: &Intent, slot: SlotNumber, send: u64, since: u64, seen: &Seen) {
        if let Some(kind) = seen.problem() {
            self.count(Met::Problem, kind.slug());
            self.check_refusal(slot, send, since, kind);
            self.check_new_key(intent, slot, (send, since), kind);
            return match kind {
                // The guard's refusal is recorded and replayed like an answer.
                Kind::StaleAction if seen.is_replayed() => self.check_replay(slot, send, since, seen),
                Kind::StaleAction => self.check_durable(slot, send, seen),
                _ => {}
            };
        }
        let Some(effect) = seen.effect() else {
            if seen.status == 202 {
                return self.count(Met::Decision, "accepted");
            }
            // An atomic handler that could not commit says so in its own words.
            if seen.status >= 500 {
                return;
            }
            return self.fail(
                Invariant::I15,
                Some(slot),
                format!("an answer that nobody gave: {}", seen.summary()),
            );
        };
        if seen.who() != Some(self.slot_of(slot).who()) {
            self.fail(
                Invariant::I9,
                Some(slot),
                format!("an answer for {:?} is given to somebody else, or at another host", seen.who()),
            );
        }
        if effect != intent.name() {
            let why = format!("send {send} of {} is answered with {effect}", intent.name());
            return self.fail(Invariant::I3, Some(slot), why);
        }
        let is_reported = seen.status == 201 || seen.outcome() == Some(b"applied");
        if is_reported && self.ledger().times(effect) == 0 {
            return self.fail(
                Invariant::I5,
                Some(slot),
                format!("{effect} is reported, but is not in the ledger"),
            );
        }
        if seen.is_replayed() {
            self.count(Met::Decision, "replay");
            self.check_replay(slot, send, since, seen);
        } else if is_durable(self.slot_of(slot).endpoint, seen) {
            self.check_durable(slot, send, seen);
        }
    }

    /// What took effect under its key is never told to come with another: the same request would run again.
    fn check_new_key(&self, intent: &Intent, slot: SlotNumber, (send, since): (u64, u64), kind: Kind) {
        let is_once = self.slot_of(slot).endpoint.effects() == Effects::Once;
        let is_told = is_once && kind == Kind::FingerprintMismatch && slot == intent.slot;
        let effect = self.ledger().effect((slot, intent.generation)).cloned();
        let is_known = |effect: &Effect| {
            // Once its record has expired, the key may be used for something else.
            let is_on_record = self.now() < effect.at + millis(RETRY_WINDOW);
            effect.name == intent.name() && effect.at < since && is_on_record
        };
        if is_told && effect.as_ref().is_some_and(is_known) {
            let why =
                format!("send {send} of {}, which took effect, is told to take a new key", intent.name());
            self.fail(Invariant::I3, Some(slot), why);
        }
    }

    /// A send that was refused so was not executed.
    fn check_refusal(&self, slot: SlotNumber, send: u64, since: u64, kind: Kind) {
        let is_limit = matches!(kind, Kind::RequestLimited | Kind::AdmissionLimited);
        if is_limit && self.was_settled_at(slot, since) {
            self.fail(
                Invariant::I2,
                Some(slot),
                format!("send {send} of a settled key is refused by a limiter"),
            );
        }
        let executed = self.ledger().was_sent(send);
        let may_be_executed = matches!(
            kind,
            Kind::Superseded
                | Kind::SettlementPending
                | Kind::UpstreamReset
                | Kind::UpstreamTimeout
                | Kind::HandlerTimeout
                | Kind::NotSettled
        );
        if executed && !may_be_executed {
            let why = format!("send {send} was refused as {} though it was executed", kind.slug());
            self.fail(Invariant::I3, Some(slot), why);
        }
    }

    fn was_settled_at(&self, slot: SlotNumber, since: u64) -> bool {
        let (ids, now) = (self.slot_of(slot).ids, self.now());
        let shadow = self.shadow();
        let mut lasting = ids.iter().filter_map(|id| shadow.lasting(id, now));
        lasting.any(|epoch| epoch.state == State::Settled && epoch.at < since)
    }

    fn check_replay(&self, slot: SlotNumber, send: u64, since: u64, seen: &Seen) {
        if self.ledger().was_sent(send) {
            self.fail(
                Invariant::I2,
                Some(slot),
                format!("send {send} was executed and answered with a replay"),
            );
        }
        let ids = self.slot_of(slot).ids;
        let is_known = |epoch: &Epoch| epoch.answer.as_ref().is_some_and(|answer| seen.is(answer));
        let is_replay = ids.iter().any(|id| self.shadow().settled_since(id, since).iter().any(is_known));
        if !is_replay {
            self.fail(
                Invariant::I2,
                Some(slot),
                format!("send {send} is answered with a replay of nothing: {}", seen.summary()),
            );
        }
    }

    /// What a client sees is settled at that moment, and is acknowledged from then on.
    fn check_durable(&self, slot: SlotNumber, send: u64, seen: &Seen) {
        let (entries, _) = self.peek_slot(slot);
        for entry in &entries {
            match (entry.record.state, &entry.answer) {
                (State::Settled, Some(kept)) if seen.is(kept) => {
                    let until = self.now() + millis(RETRY_WINDOW);
                    return self.acknowledged().push(Acknowledged { slot, answer: kept.clone(), until });
                }
                (State::Unkept, Some(kept)) if kept.status == seen.status => return,
                _ => {}
            }
        }
        let states: Vec<_> = entries.iter().map(|entry| entry.record.state.name()).collect();
        let why = format!("send {send} sees {} while the record is {states:?}", seen.summary());
        self.fail(Invariant::I5, Some(slot), why);
    }

    /// A node dies, with everything it was doing.
    pub(crate) fn crash(&self, life: &Life) {
        if life.is_dead() {
            return;
        }
        self.note(None, format!("{} crashes", life.name));
        life.kill();
        self.shadow().node_died(&life.name);
        if self.plan.options.planted == Some(Bug::LostOnCrash) {
            self.lose_something();
        }
        self.check_acknowledged();
    }

    /// The planted mistake: a crash takes settled records with it.
    fn lose_something(&self) {
        if let Some(entry) = self.peek_all().first() {
            let lost = self
                .base
                .forget(entry.about.tenant.as_deref(), &entry.about.principal, "a crash")
                .now_or_never();
            self.note(None, format!("the crash loses records: {lost:?}"));
        }
    }

    /// After a crash, everything that was acknowledged is still there.
    pub(crate) fn check_acknowledged(&self) {
        let now = self.now();
        let acknowledged = self.acknowledged().clone();
        for told in acknowledged.iter().filter(|told| now < told.until) {
            let (entries, _) = self.peek_slot(told.slot);
            let is_there = entries.iter().any(|entry| {
                entry.record.state == State::Settled && entry.answer.as_ref() == Some(&told.answer)
            });
            if !is_there {
                return self.fail(
                    Invariant::I12,
                    Some(told.slot),
                    "what was acknowledged is gone after a crash",
                );
            }
        }
    }

    /// A client has its last word. An effect that was reported is in the ledger.
    pub(crate) fn check_last_word(&self, intent: &Intent, word: &str) {
        let times = self.ledger().times(&intent.name());
        let endpoint = self.slot_of(intent.slot).endpoint;
        match endpoint.effects() {
            Effects::Once | Effects::OnceByUpstream if times > 1 => {
                self.fail(
                    Invariant::I1,
                    Some(intent.slot),
                    format!("{} took effect {times} times", intent.name()),
                );
            }
            Effects::Once | Effects::OnceByUpstream | Effects::AtLeastOnce => {}
        }
        if word == "answer-not-kept" && times == 0 {
            let why = format!("{} is said to have taken effect, but did not", intent.name());
            self.fail(Invariant::I5, Some(intent.slot), why);
        }
    }

    /// After the faults and a sweep, nothing is in flight any more, and what is unknown is listed so.
    pub(crate) fn check_settled(&self) {
        self.store_sweep("the last sweep", 0, Duration::ZERO);
        for entry in self.peek_all() {
            match entry.record.state {
                State::Claimed => {
                    let why =
                        format!("fence {} is still claimed long after the faults", entry.record.fence.number);
                    return self.fail(Invariant::I15, self.number_of(&entry.id), why);
                }
                State::Unknown | State::Settled | State::Unkept | State::Released | State::Sealed => {}
            }
        }
    }
}

/// Whether an answer that was not replayed must be on record.
fn is_durable(endpoint: Endpoint, seen: &Seen) -> bool {
    match (seen.status, seen.outcome()) {
        (_, Some(b"not-applied")) => false,
        (_, Some(b"applied")) => true,
        (500.., Some(b"unknown")) => {
            !matches!(endpoint, Endpoint::Probe | Endpoint::Forward | Endpoint::Rerun)
        }
        (_, Some(_)) | (401 | 403 | 408 | 409 | 425 | 429 | 500.., None) => false,
        (_, None) => true,
    }
}
