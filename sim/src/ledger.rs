//! Checks what reaches the upstream and what takes effect there, where it happens, against the book.

use semel_contract::record::Fence;

use crate::book::{Effect, Use};
use crate::log::SlotNumber;
use crate::routes::Effects;
use crate::world::{Invariant, World};

impl World {
    /// A request reached the upstream. Checks that it was allowed to.
    pub(crate) fn dispatched(&self, slot: SlotNumber, fence: Fence, send: u64) {
        let now = self.now();
        self.note(Some(slot), format!("dispatched under fence {} for send {send}", fence.number));
        if self.ledger().sent.insert(send, fence.number).is_some() {
            self.fail(Invariant::I4, Some(slot), format!("send {send} was dispatched twice"));
        }
        let claim = self.shadow().claims.get(&fence.number).cloned();
        let Some(claim) = claim else {
            return self.fail(
                Invariant::I4,
                Some(slot),
                format!("dispatched under fence {}, which nobody won", fence.number),
            );
        };
        if let Some(first) = claim.dispatched_at {
            let why = format!("fence {} was dispatched twice, first at {first} ms", fence.number);
            self.fail(Invariant::I4, Some(slot), why);
        }
        // By the millisecond: what is sure of a lease ends within one.
        if now > claim.dispatch_by() {
            let why = format!(
                "fence {} was dispatched {} ms after its first lease",
                fence.number,
                now - claim.dispatch_by()
            );
            self.fail(Invariant::I4, Some(slot), why);
        }
        // Under whichever name: two configurations of the gate may call one key differently.
        let ids = self.slot_of(slot).ids;
        let mut shadow = self.shadow();
        let overlaps = shadow.claims.iter().find(|(number, other)| {
            **number != fence.number && ids.contains(&other.id) && other.is_running && now < other.lease_until
        });
        let overlaps = overlaps.map(|(number, _)| *number);
        if let Some(claim) = shadow.claims.get_mut(&fence.number) {
            claim.dispatched_at = Some(now);
            claim.is_running = true;
        }
        drop(shadow);
        if let Some(other) = overlaps {
            let why =
                format!("fence {} was dispatched while fence {other} still holds the key", fence.number);
            self.fail(Invariant::I4, Some(slot), why);
        }
    }

    /// An attempt no longer runs.
    pub(crate) fn attempt_ended(&self, fence: Fence) {
        if let Some(claim) = self.shadow().claims.get_mut(&fence.number) {
            claim.is_running = false;
        }
    }

    /// A request takes effect. Where the upstream knows keys, a second one of the same key does not.
    pub(crate) fn take_effect(&self, used: Use, name: &str, fence: Fence) {
        let (slot, generation) = used;
        let effects = self.slot_of(slot).endpoint.effects();
        let at = self.now();
        let mut ledger = self.ledger();
        let is_known = ledger.effect(used).is_some() || ledger.times(name) > 0;
        if effects == Effects::OnceByUpstream && is_known {
            return;
        }
        let under_key = ledger.effects.entry(used).or_default();
        under_key.push(Effect { name: name.to_owned(), fence: fence.number, at });
        let under_key = under_key.len();
        let named = ledger.by_name.entry(name.to_owned()).or_default();
        *named += 1;
        let (named, sealed) = (*named, ledger.sealed.contains(&used));
        drop(ledger);
        self.note(Some(slot), format!("EFFECT {name} of fence {} (use {generation})", fence.number));
        match effects {
            Effects::Once | Effects::OnceByUpstream => {
                if under_key > 1 || named > 1 {
                    self.fail(
                        Invariant::I1,
                        Some(slot),
                        format!("{name} makes {under_key} effects under one key, {named} of its own"),
                    );
                }
                if sealed && effects == Effects::Once {
                    self.fail(Invariant::I8, Some(slot), format!("{name} took effect under a sealed key"));
                }
            }
            Effects::AtLeastOnce => {}
        }
    }

    /// A key was cancelled: nothing had taken effect under it, and nothing will.
    pub(crate) fn was_sealed(&self, used: Use) {
        let (slot, _) = used;
        let mut ledger = self.ledger();
        ledger.sealed.insert(used);
        let effect = ledger.effect(used).map(|effect| effect.name.clone());
        drop(ledger);
        let once = self.slot_of(slot).endpoint.effects() == Effects::Once;
        if let Some(name) = effect.filter(|_| once) {
            self.fail(
                Invariant::I8,
                Some(slot),
                format!("the key of {name} was sealed though it had taken effect"),
            );
        }
    }
}
