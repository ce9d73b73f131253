//! What is checked: every first byte against the disk, and every receipt against the server's ledger.

use std::collections::BTreeMap;

use semel_delivery::store::{Find, OutboxStore};
use semel_delivery::transport::Outgoing;
use semel_delivery::{Row, Status};

use crate::coverage::Met;
use crate::outbox::plan::Knows;
use crate::outbox::server::header;
use crate::outbox::world::{OutboxWorld, at_once};
use crate::stage::{Invariant, lock};

impl OutboxWorld {
    /// A request is about to be sent: it is claimed, and nobody went on without it.
    pub(super) fn first_byte(&self, request: &Outgoing) {
        let key = header(request, "idempotency-key").to_owned();
        if key.is_empty() {
            return;
        }
        let slot = Some(self.slot(&key));
        let Some(row) = self.row(&key) else {
            return self.fail(Invariant::I5, slot, format!("{key} is sent and is not on disk"));
        };
        self.note(slot, format!("{key} goes out, attempt {}", row.attempts));
        if row.client_message_id != key {
            let why = format!("{key} goes out for the message {}", row.client_message_id);
            self.fail(Invariant::I1, slot, why);
        }
        let is_begun = row.attempts > 0 && row.first_attempt_at.is_some();
        // A process that stood still for longer than its lease has given the row back: then it sends nothing.
        let is_claimed = is_begun && row.status == Status::Inflight;
        if !is_claimed {
            self.fail(
                Invariant::I5,
                slot,
                format!("{key} is sent though it is {} on disk", row.status.name()),
            );
        }
        let begun = row.first_attempt_at;
        let mut sent = lock(&self.sent);
        let (body, first) = sent.entry(key.clone()).or_insert_with(|| (request.body.clone(), begun));
        let (is_same_body, is_same_time) = (*body == request.body, *first == begun);
        drop(sent);
        if !is_same_body {
            self.fail(Invariant::I3, slot, format!("{key} is sent with another body than before"));
        }
        if !is_same_time {
            self.fail(Invariant::I13, slot, format!("{key} was first sent before, and says {begun:?}"));
        }
        self.check_turn(&row);
    }

    /// Nothing before it in its lane may still be sent.
    fn check_turn(&self, row: &Row) {
        for status in [Status::Pending, Status::Inflight, Status::Held] {
            if let Some(earlier) = self.first(status, &row.lane).filter(|other| other.id < row.id) {
                let why = format!(
                    "{} is sent before {}, which is {}",
                    row.client_message_id,
                    earlier.client_message_id,
                    status.name()
                );
                return self.fail(Invariant::I4, Some(self.slot(&row.client_message_id)), why);
            }
        }
    }

    /// Everything has come to rest: what every receipt says is what the ledger says.
    pub(super) fn check_everything(&self) {
        self.check_told();
        let rows = self.rows(None);
        for row in &rows {
            self.check_receipt(row);
        }
        self.check_order(&rows);
        self.check_chains(&rows);
    }

    fn check_told(&self) {
        for (id, told) in self.told().clone() {
            let slot = Some(self.slot(&id));
            match at_once(self.base().find(Find::Id(id.clone()))) {
                Ok(Some(row)) if row.id == told.row => {}
                Ok(Some(row)) => {
                    let why = format!("{id} was row {} and is row {} now", told.row, row.id);
                    self.fail(Invariant::I1, slot, why);
                }
                Ok(None) | Err(_) => {
                    self.fail(Invariant::I12, slot, format!("{id} was acknowledged and is gone"));
                }
            }
            if told.is_alias && !self.server().effects(&id).is_empty() {
                self.fail(Invariant::I1, slot, format!("{id} is another name, and took effect itself"));
            }
        }
    }

    fn check_receipt(&self, row: &Row) {
        let id = &row.client_message_id;
        let slot = Some(self.slot(id));
        let effects = self.server().effects(id).len();
        self.count(Met::Word, row.status.name());
        let is_said = row.is_possibly_delivered() || row.is_possibly_repeated();
        if is_said {
            self.count(Met::Word, "possibly-delivered");
        }
        if effects > 1 && (self.plan.knows == Knows::Keys || !row.ambiguous) {
            let why = format!("{id} took effect {effects} times, and its receipt says {}", row.status.name());
            self.fail(Invariant::I1, slot, why);
        }
        match row.status {
            Status::Done if effects == 0 => {
                self.fail(
                    Invariant::I6,
                    slot,
                    format!("{id} was said to be delivered and never took effect"),
                );
            }
            Status::Dead | Status::Aborted if effects > 0 && !is_said => {
                let why = format!("{id} took effect, and its receipt says {}", row.status.name());
                self.fail(Invariant::I15, slot, why);
            }
            Status::Done | Status::Dead | Status::Aborted => {}
            Status::Pending | Status::Inflight | Status::Held => {
                self.fail(Invariant::I15, slot, format!("{id} is still {}", row.status.name()));
            }
        }
    }

    /// What was delivered in a lane took effect in the order of its lane.
    fn check_order(&self, rows: &[Row]) {
        let mut last: BTreeMap<&str, (u64, &str)> = BTreeMap::new();
        for row in rows.iter().filter(|row| row.status == Status::Done) {
            let Some(first) = self.server().effects(&row.client_message_id).first().copied() else {
                continue;
            };
            let before = last.insert(&row.lane, (first, &row.client_message_id));
            if let Some((_, earlier)) = before.filter(|(before, _)| *before > first) {
                let why = format!("{} took effect before {earlier} of its lane", row.client_message_id);
                self.fail(Invariant::I4, Some(self.slot(&row.client_message_id)), why);
            }
        }
    }

    /// A message and those that took its place have one effect in all, or say that they may have more.
    fn check_chains(&self, rows: &[Row]) {
        let by_id: BTreeMap<i64, &Row> = rows.iter().map(|row| (row.id, row)).collect();
        for last in rows.iter().filter(|row| row.superseded_by.is_none() && row.supersedes.is_some()) {
            let (mut effects, mut is_said, mut at) = (0, false, Some(last));
            while let Some(row) = at {
                effects += self.server().effects(&row.client_message_id).len();
                is_said |= row.ambiguous;
                at = row.supersedes.and_then(|id| by_id.get(&id)).copied();
            }
            if effects > 1 && !is_said {
                let why =
                    format!("{} and what it replaced took effect {effects} times", last.client_message_id);
                self.fail(Invariant::I1, Some(self.slot(&last.client_message_id)), why);
            }
        }
    }
}
