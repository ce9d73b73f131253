//! What the outbox counts, in Prometheus' text form. Lanes are counted by kind, the part of a lane's name before `:`, so
//! that a lane for each user does not become a series for each user; beside it stands what kind of action a message was.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};

use semel_contract::time::Timestamp;

use crate::message::{Row, Status};
use crate::store::{Depth, InboxDepth};

/// Pairs of a lane's kind and an action's that are told apart; the rest counts as `other`.
const KINDS_MAX: usize = 64;

/// Counters.
#[derive(Debug, Default)]
pub(crate) struct Meters {
    counted: Mutex<Counted>,
}

#[derive(Debug, Default)]
struct Counted {
    /// By the lane's kind and the operation.
    outcomes: BTreeMap<(String, String), BTreeMap<&'static str, u64>>,
    attempts: BTreeMap<&'static str, u64>,
}

/// The kind of a lane.
fn kind(lane: &str) -> &str {
    lane.split_once(':').map_or("default", |(kind, _)| kind)
}

impl Meters {
    /// This message ended so.
    pub(crate) fn outcome(&self, row: &Row, outcome: &'static str) {
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        let kinds = (kind(&row.lane).to_owned(), row.operation.clone().unwrap_or_default());
        let is_told_apart = counted.outcomes.contains_key(&kinds) || counted.outcomes.len() < KINDS_MAX;
        let kinds = if is_told_apart { kinds } else { ("other".to_owned(), "other".to_owned()) };
        *counted.outcomes.entry(kinds).or_default().entry(outcome).or_default() += 1;
    }

    /// An attempt ended so.
    pub(crate) fn attempt(&self, outcome: &'static str) {
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        *counted.attempts.entry(outcome).or_default() += 1;
    }

    pub(crate) fn text(&self, depth: &Depth, inbox: &InboxDepth, now: Timestamp, is_frozen: bool) -> String {
        let counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        let mut text = String::new();
        let mut line = |arguments: std::fmt::Arguments<'_>| {
            // Writing to a string does not fail.
            let _ = writeln!(text, "{arguments}");
        };
        line(format_args!(
            "# HELP semel_outbox_messages_total Messages by what became of them.\n# TYPE semel_outbox_messages_total counter"
        ));
        let plain = |label: &str| label.replace(['\\', '"', '\n'], "_");
        for ((kind, operation), outcomes) in &counted.outcomes {
            let (kind, operation) = (plain(kind), plain(operation));
            for (outcome, count) in outcomes {
                line(format_args!(
                    "semel_outbox_messages_total{{lane_kind=\"{kind}\",operation=\"{operation}\",outcome=\"{outcome}\"}} {count}"
                ));
            }
        }
        line(format_args!(
            "# HELP semel_outbox_attempts_total Attempts by how they ended.\n# TYPE semel_outbox_attempts_total counter"
        ));
        for (outcome, count) in &counted.attempts {
            line(format_args!("semel_outbox_attempts_total{{outcome=\"{outcome}\"}} {count}"));
        }
        line(format_args!("# HELP semel_outbox_depth Messages by status.\n# TYPE semel_outbox_depth gauge"));
        for status in Status::ALL {
            let count =
                depth.by_status.iter().find(|(known, _)| *known == status).map_or(0, |(_, count)| *count);
            line(format_args!("semel_outbox_depth{{status=\"{}\"}} {count}", status.name()));
        }
        let age = depth.oldest.map_or(0, |oldest| now.millis_since(oldest).max(0)) as f64 / 1000.0;
        line(format_args!(
            "# HELP semel_outbox_oldest_age_seconds Age of the oldest message that waits.\n# TYPE semel_outbox_oldest_age_seconds gauge"
        ));
        line(format_args!("semel_outbox_oldest_age_seconds {age}"));
        line(format_args!(
            "# HELP semel_outbox_held_principals Principals whose credential was refused.\n# TYPE semel_outbox_held_principals gauge"
        ));
        line(format_args!("semel_outbox_held_principals {}", depth.refused));
        line(format_args!(
            "# HELP semel_outbox_clock_frozen Whether the wall clock is ahead and not believed.\n# TYPE semel_outbox_clock_frozen gauge"
        ));
        line(format_args!("semel_outbox_clock_frozen {}", u8::from(is_frozen)));
        line(format_args!(
            "# HELP semel_inbox_waiting Received messages that nobody acknowledged.\n# TYPE semel_inbox_waiting gauge"
        ));
        line(format_args!("semel_inbox_waiting {}", inbox.waiting));
        let age = inbox.oldest.map_or(0, |oldest| now.millis_since(oldest).max(0)) as f64 / 1000.0;
        line(format_args!(
            "# HELP semel_inbox_oldest_age_seconds Age of the oldest received message that nobody acknowledged.\n# TYPE semel_inbox_oldest_age_seconds gauge"
        ));
        line(format_args!("semel_inbox_oldest_age_seconds {age}"));
        text
    }
}
