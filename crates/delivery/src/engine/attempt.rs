//! One attempt: is it too old, with which credential, what came of it, what did the answer teach.

use std::sync::Arc;
use std::time::Duration;

use semel_contract::age::FIRST_SENT;
use semel_contract::planted::{self, Bug};
use semel_contract::profile::Profile;
use semel_contract::time::Timestamp;
use semel_http::MaySend;
use semel_store::clock::Ahead;

use crate::age::Local;
use crate::credentials::Credential;
use crate::envelope::{TX_HEADER, key_header};
use crate::judge::{self, Facts, To, Verdict};
use crate::message::{Answer, HeldFor, Request, Row};
use crate::outbox::{Inner, Outbox};
use crate::transport::{Outgoing, Sent};
use crate::url::Target;

/// What came of an attempt.
pub(super) struct Attempted {
    /// What is written.
    pub(super) verdict: Verdict,
    /// The origin and the credential that it refused, now or before.
    pub(super) refused: Option<(String, [u8; 32])>,
    /// Whether the refusal is news, and not only a message more that waits for another credential.
    pub(super) is_news: bool,
}

impl Attempted {
    fn plain(verdict: Verdict) -> Self {
        Self { verdict, refused: None, is_news: true }
    }
}

/// Makes one attempt, unless it would begin later than it may: a process that stood still for long may have lost its claim,
/// and the message with it to somebody who took it back.
pub(super) async fn attempt(
    outbox: &Outbox,
    row: &Row,
    request: Request,
    begin_until: Timestamp,
) -> Attempted {
    let inner = &outbox.inner;
    let profile = inner.settings.profile_of(&row.profile);
    let target = Target::resolve(&request.url, inner.settings.upstream.as_ref());
    let origin = target.as_ref().map(|target| target.origin.clone()).unwrap_or_default();
    if let Some(verdict) = too_old(inner, &facts(inner, row, &profile, &origin)) {
        return Attempted::plain(verdict);
    }
    let target = match target {
        Ok(target) => target,
        Err(error) => {
            let sent = Sent::NotSent(error.to_string());
            let verdict = judged(inner, row, &profile, &origin, &sent);
            return Attempted::plain(verdict);
        }
    };
    let credential = match inner.credential(&row.principal, &origin).await {
        Ok(credential) => credential.unwrap_or_default(),
        Err(why) => {
            let verdict = judge::without_credential(&facts(inner, row, &profile, &origin), &why);
            return Attempted { verdict, refused: Some((origin, [0; 32])), is_news: true };
        }
    };
    let is_late = || outbox.now() > begin_until;
    let digest = credential.digest();
    if inner.refusals.is_refused(&row.principal, &origin, &digest) {
        let verdict = judge::credential_refused(&facts(inner, row, &profile, &origin), &origin);
        // Said again: a release that runs now does not see this message, which is not held yet.
        return Attempted { verdict, refused: Some((origin, digest)), is_news: false };
    }
    let mut outgoing = outgoing(inner, row, &profile, target, request, credential.clone());
    if !planted::is(Bug::OutboxFirstByteUnasked) {
        // A connection that is kept may keep the question too, and must not keep the outbox and its file with it.
        let outbox = Arc::downgrade(inner);
        // Asked again before the first byte: connecting takes time.
        outgoing.may_send =
            MaySend::when(move || outbox.upgrade().is_some_and(|inner| inner.time.now() <= begin_until));
    }
    let sent = match is_late() {
        true => Sent::NotSent("its claim grew old".to_owned()),
        false => inner.settings.transport.send(outgoing).await,
    };
    if matches!(sent, Sent::NotSent(_)) && is_late() {
        let verdict = judge::too_late(&facts(inner, row, &profile, &origin));
        return Attempted::plain(verdict);
    }
    let sent = match sent {
        Sent::Answered(answer) => Sent::Answered(credential.redact(answer)),
        sent @ (Sent::NotSent(_) | Sent::Broken(_) | Sent::TimedOut(_)) => sent,
    };
    if let Sent::Answered(answer) = &sent {
        learn(outbox, &origin, answer).await;
    }
    let verdict = judged(inner, row, &profile, &origin, &sent);
    let is_refused = matches!(verdict.to, To::Held(HeldFor::Auth));
    if !is_refused && matches!(sent, Sent::Answered(_)) {
        inner.refusals.accept(&row.principal, &origin);
    }
    Attempted { verdict, refused: is_refused.then_some((origin, digest)), is_news: true }
}

/// What becomes of a message that is too old. While the wall clock is not believed it waits: it is neither given up by a
/// time that may be wrong, nor sent when its server may have forgotten its key.
fn too_old(inner: &Inner, facts: &Facts<'_>) -> Option<Verdict> {
    let by_the_wall = || {
        let plain = |at| Local { at, ahead: None };
        // A clock that a server has shown to be wrong says nothing against what reached no server yet.
        let enqueued = match facts.row.reached_nobody() {
            true => facts.enqueued,
            false => plain(facts.enqueued.at),
        };
        judge::expired(&Facts { enqueued, now: plain(inner.time.wall()), ..facts.clone() })
    };
    let expired = judge::expired(facts);
    match inner.time.ahead() {
        Ahead::No => expired,
        // The ticking clock goes on, and tells how old a message is.
        Ahead::Contradicted => expired.map(|_| judge::waits_for_clock(facts)),
        // It does not tell how old what was accepted before this run is.
        Ahead::Unexplained if facts.row.epoch == inner.time.epoch() => {
            expired.map(|_| judge::waits_for_clock(facts))
        }
        Ahead::Unexplained => expired.or_else(by_the_wall).map(|_| judge::waits_for_clock(facts)),
    }
}

/// What becomes of a message that is held, if it is too old by now.
pub(super) fn expired(outbox: &Outbox, row: &Row) -> Option<Verdict> {
    let inner = &outbox.inner;
    let profile = inner.settings.profile_of(&row.profile);
    let target = Target::resolve(&row.url, inner.settings.upstream.as_ref());
    let origin = target.map(|target| target.origin).unwrap_or_default();
    judge::expired(&facts(inner, row, &profile, &origin))
}

fn judged(inner: &Inner, row: &Row, profile: &Profile, origin: &str, sent: &Sent) -> Verdict {
    let random = inner.settings.entropy.unit();
    judge::judge(&facts(inner, row, profile, origin), sent, &inner.settings.ids, random)
}

fn facts<'a>(inner: &Inner, row: &'a Row, profile: &'a Profile, origin: &str) -> Facts<'a> {
    let retentions = inner.retentions.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let retention = retentions.get(origin).copied().map(Duration::from_secs);
    Facts {
        row,
        profile,
        head: inner.settings.head,
        enqueued: inner.time.local(row.enqueued_at, row.epoch),
        is_for_server_to_judge: profile.guard.is_some()
            && row.reached_nobody()
            && inner.time.is_untold(row.epoch),
        now: inner.time.local(inner.time.now(), inner.time.epoch()),
        // An operator who takes the risk is not overruled.
        retention: retention.filter(|_| !inner.settings.unsafe_max_age),
        is_frozen: inner.time.jump().is_some(),
    }
}

/// When the first attempt began, as far as known by the servers' clocks.
fn first_sent(inner: &Inner, row: &Row) -> Timestamp {
    // That time may be wrong as well, and no server has seen the message: now is no lie, and the answer tells the rest.
    if row.reached_nobody() && inner.time.jump().is_some() {
        return inner.time.wall();
    }
    let first = row.first_attempt_at.unwrap_or_else(|| inner.time.now());
    inner.time.local(first, inner.time.epoch()).corrected()
}

fn outgoing(
    inner: &Inner,
    row: &Row,
    profile: &Profile,
    target: Target,
    request: Request,
    credential: Credential,
) -> Outgoing {
    let first = first_sent(inner, row);
    let mut headers = request.headers;
    let key = match planted::is(Bug::OutboxKeyChanges) && row.attempts > 1 {
        true => row.client_tx_id.clone(),
        false => row.client_message_id.clone(),
    };
    headers.push((key_header(profile).to_owned(), key));
    headers.push((TX_HEADER.to_owned(), row.client_tx_id.clone()));
    headers.push((FIRST_SENT.to_owned(), first.to_string()));
    if let Some(first) = &row.first_id {
        headers.push(("Semel-Supersedes".to_owned(), first.clone()));
    }
    headers.extend(credential.headers);
    Outgoing {
        method: request.method,
        target,
        headers,
        body: request.body,
        timeout: inner.settings.attempt_timeout,
        may_send: MaySend::always(),
    }
}

/// Keeps what an answer teaches about the server's clock and its retention.
async fn learn(outbox: &Outbox, origin: &str, answer: &Answer) {
    let inner = &outbox.inner;
    let now = outbox.now();
    let ahead = judge::clock_ahead(answer, now).and_then(|ahead| inner.time.learn(ahead));
    let announced = judge::announced_retention(answer).filter(|seconds| {
        let mut known = inner.retentions.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        known.insert(origin.to_owned(), *seconds) != Some(*seconds)
    });
    if ahead.is_none() && announced.is_none() {
        return;
    }
    let retention = announced.map(|seconds| (origin.to_owned(), seconds));
    if let Err(error) = inner.store.learn(inner.time.epoch(), ahead, retention, now).await {
        tracing::warn!(%error, "failed to keep what a server announced");
    }
    let unsafe_age = announced
        .and_then(|seconds| inner.settings.check_against(origin, Duration::from_secs(seconds)).err());
    if let Some(why) = unsafe_age {
        tracing::warn!("{why}; messages to it are given up sooner");
        // The event is for those who watch; the shorter age is in force either way.
        let _ = inner.store.note("retention", why.into(), now).await;
    }
}
