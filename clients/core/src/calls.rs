//! What may be asked of an outbox, as data: an owner carries it out, whether its own application asks or another process.

use std::time::Duration;

use semel_contract::key::Key;
use semel_delivery::store::{Filter, Find, StoreError};
use semel_delivery::{Outbox, OutboxError, Requeue, Row};
use serde::{Deserialize, Serialize};

use crate::errors::CoreError;
use crate::types::{Accepted, Event, LaneState, Message, Receipt, Status};

/// How often a call is repeated of which nobody knows whether it was done.
const REPEATS_MAX: u32 = 5;
/// The longest wait of one call.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// Messages and events of one list.
const LIST_MAX: u32 = 1000;

/// Which message is meant.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Name {
    pub(crate) id: String,
    /// The principal and the kind of action, where ids are somebody's for one kind.
    pub(crate) scope: Option<(String, String)>,
}

impl Name {
    fn find(&self) -> Find {
        match &self.scope {
            None => Find::Id(self.id.clone()),
            Some((principal, operation)) => Find::Scoped {
                id: self.id.clone(),
                principal: principal.clone(),
                operation: operation.clone(),
            },
        }
    }
}

/// What is asked.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Call {
    Send(Message),
    Get(Name),
    List { status: Option<Status>, lane: Option<String>, after: i64, limit: u32 },
    Wait { name: Name, at_most_millis: u64 },
    Events { after: i64, limit: u32, wait_millis: u64 },
    Lanes,
    Retry(Name),
    Abort { name: Name, why: String },
    Requeue { name: Name, new_id: String, force: bool },
    Pause(String),
    Resume(String),
    SignIn(String),
    SignOut(String),
    Kick,
    ConfirmClock(String),
}

impl Call {
    /// Whether it waits for something to happen and changes nothing.
    pub(crate) fn only_waits(&self) -> bool {
        match self {
            Call::Wait { .. } | Call::Events { .. } => true,
            Call::Send(_)
            | Call::Get(_)
            | Call::List { .. }
            | Call::Lanes
            | Call::Retry(_)
            | Call::Abort { .. }
            | Call::Requeue { .. }
            | Call::Pause(_)
            | Call::Resume(_)
            | Call::SignIn(_)
            | Call::SignOut(_)
            | Call::Kick
            | Call::ConfirmClock(_) => false,
        }
    }
}

/// What is answered.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Answer {
    Accepted(Box<Accepted>),
    Receipt(Option<Box<Receipt>>),
    Receipts(Vec<Receipt>),
    Events(Vec<Event>),
    Lanes(Vec<LaneState>),
    Done,
}

/// Carries out a call.
pub(crate) async fn carry_out(outbox: &Outbox, call: Call) -> Result<Answer, CoreError> {
    match call {
        Call::Send(message) => send(outbox, message).await,
        Call::Get(name) => Ok(Answer::Receipt(match outbox.found(name.find()).await? {
            Some(row) => Some(Box::new(shown(outbox, row).await?)),
            None => None,
        })),
        Call::List { status, lane, after, limit } => list(outbox, status, lane, after, limit).await,
        Call::Wait { name, at_most_millis } => {
            let row = known(outbox, &name).await?;
            let at_most = Duration::from_millis(at_most_millis).min(WAIT_MAX);
            let row = outbox.wait(row.id, at_most).await?.unwrap_or(row);
            Ok(Answer::Receipt(Some(Box::new(shown(outbox, row).await?))))
        }
        Call::Events { after, limit, wait_millis } => events(outbox, after, limit, wait_millis).await,
        Call::Lanes => Ok(Answer::Lanes(outbox.lanes().await?.into_iter().map(lane_shown).collect())),
        Call::Retry(name) => {
            let row = known(outbox, &name).await?;
            outbox.retry(row.id).await?;
            Ok(Answer::Done)
        }
        Call::Abort { name, why } => {
            let row = known(outbox, &name).await?;
            outbox.abort(row.id, &why).await?;
            Ok(Answer::Done)
        }
        Call::Requeue { name, new_id, force } => {
            let row = known(outbox, &name).await?;
            let how = Requeue { new_client_id: Some(new_id), force, ..Requeue::default() };
            let requeued = outbox.requeue(&row, how).await?;
            Ok(Answer::Receipt(Some(Box::new(shown(outbox, requeued.new).await?))))
        }
        Call::Pause(lane) => Ok(outbox.pause(&lane).await.map(|()| Answer::Done)?),
        Call::Resume(lane) => Ok(outbox.resume(&lane).await.map(|()| Answer::Done)?),
        Call::SignIn(principal) => Ok(outbox.refreshed(&principal).await.map(|()| Answer::Done)?),
        Call::SignOut(principal) => Ok(outbox.sign_out(&principal).await.map(|()| Answer::Done)?),
        Call::Kick => kick(outbox).await,
        Call::ConfirmClock(reason) => Ok(outbox.confirm_clock(&reason).await.map(|()| Answer::Done)?),
    }
}

/// Accepts a message. Where nobody knows whether it was written, the same id tells.
async fn send(outbox: &Outbox, message: Message) -> Result<Answer, CoreError> {
    let asked = message.id.clone();
    let mut repeats = 0;
    let accepted = loop {
        match outbox.enqueue(message.clone().enqueue()).await {
            Err(OutboxError::Store(StoreError::Unknown(_))) if repeats < REPEATS_MAX => {
                repeats += 1;
                tokio::time::sleep(Duration::from_millis(50 << repeats)).await;
            }
            accepted => break accepted?,
        }
    };
    let receipt = shown(outbox, accepted.receipt).await?;
    Ok(Answer::Accepted(Box::new(Accepted {
        alias_of: asked.filter(|id| *id != receipt.id).map(|_| receipt.id.clone()),
        was_known: accepted.is_same_action
            || accepted.acceptance != semel_delivery::accept::Acceptance::Insert,
        receipt,
    })))
}

async fn list(
    outbox: &Outbox,
    status: Option<Status>,
    lane: Option<String>,
    after: i64,
    limit: u32,
) -> Result<Answer, CoreError> {
    let all = semel_delivery::Status::ALL;
    let status = status.and_then(|status| all.into_iter().find(|known| Status::from(*known) == status));
    let rows =
        outbox.list(Filter { status, lane, after, limit: limit.min(LIST_MAX), ..Filter::default() }).await?;
    let waits = outbox.waits_for(&rows).await?;
    Ok(Answer::Receipts(rows.into_iter().zip(waits).map(|(row, waits)| Receipt::of(row, waits)).collect()))
}

async fn events(outbox: &Outbox, after: i64, limit: u32, wait_millis: u64) -> Result<Answer, CoreError> {
    let mut watch = outbox.watch();
    let until = tokio::time::Instant::now() + Duration::from_millis(wait_millis).min(WAIT_MAX);
    let mut after = after;
    loop {
        let (events, _) = outbox.events(after, limit.clamp(1, LIST_MAX)).await?;
        let last = events.last().map(|event| event.number);
        let shown: Vec<Event> = events.into_iter().filter_map(Event::shown).collect();
        // Where none of them is shown, those behind them may be.
        after = last.unwrap_or(after);
        let is_over = !shown.is_empty()
            || last.is_none()
                && !matches!(
                    tokio::time::timeout_at(until, watch.wait_for(|new| *new > after)).await,
                    Ok(Ok(_))
                );
        if is_over {
            return Ok(Answer::Events(shown));
        }
    }
}

fn lane_shown(lane: semel_delivery::store::LaneState) -> LaneState {
    let is_blocked = lane.blocked_by.is_some();
    LaneState { lane: lane.lane, is_paused: lane.is_paused, is_blocked, depth: lane.depth }
}

/// The network may be back, or somebody signed in: what no server has seen is tried at once, and credentials are asked for again.
async fn kick(outbox: &Outbox) -> Result<Answer, CoreError> {
    let mut principals: Vec<String> = outbox.holds().into_iter().map(|(principal, _)| principal).collect();
    principals.dedup();
    // Who has signed out is waited for, whatever the network does.
    for principal in principals {
        outbox.try_again(&principal).await?;
    }
    for lane in outbox.lanes().await? {
        let Some(head) = lane.head else { continue };
        let Some(row) = outbox.found(Find::Row(head)).await? else { continue };
        let last = outbox.attempts(row.id).await?.pop();
        let is_unsent = last.is_some_and(|attempt| attempt.outcome.as_deref() == Some("not-sent"));
        if row.status == semel_delivery::Status::Pending && is_unsent {
            // One that is being sent by now needs no hurry.
            let _ = outbox.retry(row.id).await;
        }
    }
    Ok(Answer::Done)
}

async fn known(outbox: &Outbox, name: &Name) -> Result<Row, CoreError> {
    let found = outbox.found(name.find()).await?;
    found.ok_or_else(|| CoreError::NotFound { reason: format!("there is no message {:?}", name.id) })
}

async fn shown(outbox: &Outbox, row: Row) -> Result<Receipt, CoreError> {
    let waits = outbox.waits_for(std::slice::from_ref(&row)).await?.pop().flatten();
    Ok(Receipt::of(row, waits))
}

/// A fresh key of the profile, for a message whose sender chose none: it is chosen before the message is handed to another
/// process, so that handing it over again is the same message.
pub(crate) fn mint(profile: &semel_contract::profile::Profile, random: u128, now: i64) -> String {
    let key: Key = profile.generator.mint(random, semel_contract::time::Timestamp::from_millis(now));
    key.as_str().to_owned()
}
