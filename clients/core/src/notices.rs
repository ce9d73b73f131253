//! What a person is told, from what became of messages. Pure.

use std::collections::BTreeMap;

use semel_delivery::Row;

use crate::types::{Notice, NoticeKind, Receipt, Severity};

/// One notice for each principal, whether the outbox or the server found the messages too old.
pub(crate) fn expired(rows: &[Row]) -> Vec<Notice> {
    let mut of_principals: BTreeMap<&str, Vec<Receipt>> = BTreeMap::new();
    for row in rows {
        of_principals.entry(&row.principal).or_default().push(Receipt::of(row.clone(), None));
    }
    let notice = |(principal, receipts): (&str, Vec<Receipt>)| Notice {
        kind: NoticeKind::Expired,
        severity: Severity::Info,
        text: match receipts.len() {
            1 => "An action waited too long and has expired.".to_owned(),
            many => format!("{many} actions waited too long and have expired."),
        },
        principal: principal.to_owned(),
        receipts,
    };
    of_principals.into_iter().map(notice).collect()
}

/// The reasons by which profiles drop messages, and what each is to a person.
const REASONS: [(&str, NoticeKind, Severity, &str); 4] = [
    (
        "idempotency-conflict",
        NoticeKind::Conflict,
        Severity::Error,
        "An action's key was used for another action.",
    ),
    ("bad-request", NoticeKind::BadRequest, Severity::Error, "The server did not understand an action."),
    (
        "prereq-slipped",
        NoticeKind::NoLongerValid,
        Severity::Info,
        "An action is no longer valid: what it needs is gone.",
    ),
    (
        "points-changed",
        NoticeKind::NoLongerValid,
        Severity::Info,
        "An action is no longer valid: the points have changed.",
    ),
];

/// A message was dropped for this reason: the profile's word, a colon, and what the server said.
pub(crate) fn dropped(row: &Row, reason: &str) -> Notice {
    let word = reason.split(':').next().unwrap_or_default();
    let known = REASONS.iter().find(|(known, ..)| *known == word);
    let (kind, severity, text) = known.map_or(
        (NoticeKind::Dropped, Severity::Warning, "An action was refused."),
        |(_, kind, severity, text)| (*kind, *severity, *text),
    );
    Notice {
        kind,
        severity,
        text: text.to_owned(),
        principal: row.principal.clone(),
        receipts: vec![Receipt::of(row.clone(), None)],
    }
}

/// A lane was rebuilt because of this message.
pub(crate) fn rebuilt(row: &Row) -> Notice {
    Notice {
        kind: NoticeKind::Rebuilt,
        severity: Severity::Info,
        text: "Some actions did not fit any more and were taken back.".to_owned(),
        principal: row.principal.clone(),
        receipts: vec![Receipt::of(row.clone(), None)],
    }
}

/// A principal's credential was refused.
pub(crate) fn sign_in(principal: &str) -> Notice {
    Notice {
        kind: NoticeKind::SignIn,
        severity: Severity::Info,
        text: format!("{principal} has to sign in again; what waits is kept."),
        principal: principal.to_owned(),
        receipts: Vec::new(),
    }
}
