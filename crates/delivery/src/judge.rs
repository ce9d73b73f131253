//! What becomes of a message after an attempt, or instead of one. Pure: times, randomness and what is known arrive as
//! arguments.

use std::time::Duration;

use semel_contract::classify::{Class, code_of};
use semel_contract::json::{Document, Json, Pointer};
use semel_contract::planted::{self, Bug};
use semel_contract::problem::Kind;
use semel_contract::profile::{GiveUp, Profile};
use semel_contract::schedule::{Cause, GiveUpReason, Next, Progress as Scheduled};
use semel_contract::time::{Timestamp, millis_of};

use crate::age::{Age, Local, age};
use crate::date::retry_after;
use crate::limits::{ERROR_CHARS_MAX, RETENTION_MARGIN_PARTS};
use crate::message::{Answer, HeldFor, Progress, Row};
use crate::refusal::{self, Effects};
use crate::settings::HeadPolicy;
use crate::transport::Sent;

/// The reason by which profiles drop what the server found too old.
const STALE: &str = "stale-action";

/// What a message becomes.
#[derive(Clone, Debug, PartialEq)]
pub enum To {
    /// It was delivered; these ids were in the answer.
    Done(Vec<(String, String)>),
    /// It is tried again at this time.
    Retry(Timestamp),
    /// It waits for somebody.
    Held(HeldFor),
    /// It was given up and is kept for an operator.
    Dead,
    /// It was given up by the rules of its profile.
    Dropped,
    /// It was too old; what then, the profile says.
    Expired(GiveUp),
}

/// How an attempt ended, for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// `answered`, `not-sent`, `broken`, `timed-out`.
    pub outcome: &'static str,
    /// The answer's status.
    pub status: Option<u16>,
}

/// What is written.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// What the message becomes.
    pub to: To,
    /// When.
    pub at: Timestamp,
    /// How the attempt ended; `None`: there was none, and its number is given back.
    pub ended: Option<Ended>,
    /// What went wrong.
    pub error: Option<String>,
    /// Whether some attempt may have taken effect although nobody knows.
    pub ambiguous: bool,
    /// Whether the server showed that it knows keys again.
    pub deduplicated: bool,
    /// How far the schedule has come.
    pub progress: Progress,
    /// The answer, as it is kept.
    pub answer: Option<Answer>,
    /// What happens to the lane when this head is given up.
    pub head: HeadPolicy,
}

/// What is known when a message is judged.
#[derive(Clone, Debug)]
pub struct Facts<'a> {
    /// The message, its attempt counted.
    pub row: &'a Row,
    /// Its profile.
    pub profile: &'a Profile,
    /// What happens to the lane when it is given up.
    pub head: HeadPolicy,
    /// When it was accepted.
    pub enqueued: Local,
    /// Nothing tells how old it is, its server judges ages itself, and no attempt can have reached it before.
    pub is_for_server_to_judge: bool,
    /// Now.
    pub now: Local,
    /// How long its server knows a key again, as far as it said.
    pub retention: Option<Duration>,
    /// Whether the wall clock is ahead and nothing explains it. Then nothing is given up for its age.
    pub is_frozen: bool,
}

impl Facts<'_> {
    fn age(&self) -> Duration {
        match age(self.enqueued, self.now) {
            Age::Known(age) if !self.is_for_server_to_judge => age,
            // Let the server judge.
            Age::Known(_) | Age::Unknown => Duration::ZERO,
        }
    }

    /// The age at which this message is given up: the profile's, and less where the server forgets sooner.
    fn max_age(&self) -> Option<Duration> {
        let safe = |retention: Duration| retention - retention / RETENTION_MARGIN_PARTS;
        match (self.profile.schedule.max_age, self.retention) {
            (Some(own), Some(retention)) if self.profile.lifetime.covers(own, retention) => Some(own),
            (Some(own), Some(retention)) => Some(own.min(safe(retention))),
            (own, retention) => own.or(retention.map(safe)),
        }
    }

    /// The time in which its server may have come to know its key.
    fn since_first_attempt(&self) -> Duration {
        if self.row.reached_nobody() {
            return Duration::ZERO;
        }
        let first = self.row.first_attempt_at.unwrap_or(self.now.at);
        Duration::from_millis(u64::try_from(self.now.at.millis_since(first)).unwrap_or(0))
    }

    fn verdict(&self, to: To, error: Option<String>) -> Verdict {
        Verdict {
            to,
            at: self.now.at,
            ended: None,
            error: error.map(|error| error.chars().take(ERROR_CHARS_MAX).collect()),
            ambiguous: self.row.ambiguous,
            deduplicated: self.row.deduplicated,
            progress: self.row.progress.clone(),
            answer: None,
            head: self.head,
        }
    }
}

/// Why a message expired here.
const OLDER: &str = "expired: older than max_age";

/// Whether a message is too old to be sent at all.
pub fn expired(facts: &Facts<'_>) -> Option<Verdict> {
    let max = facts.max_age()?;
    let too_old = match age(facts.enqueued, facts.now) {
        Age::Known(age) => age > max && !facts.is_for_server_to_judge,
        Age::Unknown => false,
    };
    // The server forgets a key some time after its first attempt: past that a retry would be a new request.
    let too_late = facts.since_first_attempt() > max;
    (too_old || too_late).then(|| facts.verdict(To::Expired(facts.profile.give_up), Some(OLDER.to_owned())))
}

/// How long a message waits that may be too old, by a clock that is not believed, until that is looked at again.
const CLOCK_WAIT: Duration = Duration::from_secs(30);

/// The message may be too old, and the clock that says so is not believed: nothing is sent.
pub fn waits_for_clock(facts: &Facts<'_>) -> Verdict {
    let why = "the wall clock is ahead and nothing explains it, and by it the message is too old: confirm the clock or \
               set it right (semel outbox clock)";
    facts.verdict(To::Retry(facts.now.at.plus(CLOCK_WAIT)), Some(why.to_owned()))
}

/// A credential cannot be had: nothing is sent, and the principal's lanes wait.
pub fn without_credential(facts: &Facts<'_>, why: &str) -> Verdict {
    facts.verdict(To::Held(HeldFor::Auth), Some(why.to_owned()))
}

/// This origin refused the principal's credential before, and it is still the same: nothing is sent. Messages to other
/// origins do not wait for it.
pub fn credential_refused(facts: &Facts<'_>, origin: &str) -> Verdict {
    let why = format!("{origin} refused the credential before");
    facts.verdict(To::Held(HeldFor::Auth), Some(why))
}

/// The claim is too old to be sent under: nothing is sent, and the message waits for another claim.
pub fn too_late(facts: &Facts<'_>) -> Verdict {
    facts.verdict(To::Retry(facts.now.at), facts.row.last_error.clone())
}

/// What becomes of a message after this attempt. `random` lies in [0, 1).
pub fn judge(facts: &Facts<'_>, sent: &Sent, ids: &[(String, Pointer)], random: f64) -> Verdict {
    match sent {
        Sent::Answered(answer) => answered(facts, answer, ids, random),
        Sent::NotSent(why) => unanswered(facts, "not-sent", why, facts.row.ambiguous, random),
        Sent::Broken(why) => unanswered(facts, "broken", why, true, random),
        Sent::TimedOut(why) => unanswered(facts, "timed-out", why, true, random),
    }
}

fn unanswered(facts: &Facts<'_>, outcome: &'static str, why: &str, ambiguous: bool, random: f64) -> Verdict {
    let mut verdict = retried(facts, Cause::Failed, None, why.to_owned(), random);
    verdict.ended = Some(Ended { outcome, status: None });
    verdict.ambiguous = ambiguous && !planted::is(Bug::OutboxAmbiguityForgotten);
    verdict
}

fn answered(facts: &Facts<'_>, answer: &Answer, ids: &[(String, Pointer)], random: f64) -> Verdict {
    let kind = refusal::kind_of(answer);
    let code = shown_code(answer, kind);
    let own = future_first_sent(code.as_deref());
    let class = own.as_ref().unwrap_or_else(|| class_of(facts.profile, answer, kind));
    let same_answer = format!("{} {}", answer.status, code.as_deref().unwrap_or_default());
    let mut progress = facts.row.progress.clone();
    if progress.same_answer.as_deref() != Some(&same_answer) {
        progress.same_answer = Some(same_answer.clone());
        progress.same_answer_count = 0;
    }
    progress.same_answer_count += 1;
    let class = match class {
        Class::RetryAtMost(most, then) if progress.same_answer_count > *most => then,
        class => class,
    };
    let said = format!("HTTP {}", same_answer.trim_end());
    let told = wait_asked_for(answer, facts.now);
    let facts = &Facts { row: &Row { progress, ..facts.row.clone() }, ..facts.clone() };
    let mut verdict = match class {
        Class::Success => facts.verdict(To::Done(read_ids(&answer.body, ids)), None),
        Class::Retry | Class::RetryAtMost(..) => retried(facts, cause(code.as_deref()), told, said, random),
        Class::RetryAfter => match told {
            Some(wait) => retried(facts, Cause::Told(wait), None, said, random),
            // It is being worked on: that is no failure, and it will not take long.
            None if answer.status == 409 || refusal::is_pending(answer) => {
                retried(facts, Cause::Told(facts.profile.schedule.base), None, said, random)
            }
            None => retried(facts, cause(code.as_deref()), None, said, random),
        },
        Class::Auth => facts.verdict(To::Held(HeldFor::Auth), Some(said)),
        Class::Rebuild => facts.verdict(To::Held(HeldFor::Rebuild), Some(said)),
        // The server found it too old: that ends like an age that was found here.
        Class::Drop(reason) if reason == STALE => {
            facts.verdict(To::Expired(GiveUp::Drop), Some(format!("{reason}: {said}")))
        }
        Class::Drop(reason) => facts.verdict(To::Dropped, Some(format!("{reason}: {said}"))),
        Class::Dead(reason) => facts.verdict(To::Dead, Some(format!("{reason}: {said}"))),
    };
    verdict.ended = Some(Ended { outcome: "answered", status: Some(answer.status) });
    verdict.deduplicated |= refusal::knows_keys_again(answer);
    let effects = refusal::effects(answer, kind, &facts.row.client_message_id);
    verdict.ambiguous = match (effects, &verdict.to) {
        (Effects::Taken | Effects::Possible, _) => true,
        (Effects::All, To::Done(_) | To::Dead | To::Dropped) => false,
        // One that was refused as stale: the server's word counts as for every refusal.
        (Effects::All, To::Expired(_)) if matches!(class, Class::Drop(_)) => false,
        (Effects::All, To::Retry(_) | To::Held(_) | To::Expired(_)) | (Effects::Unsaid, _) => {
            verdict.ambiguous
        }
    };
    if effects == Effects::Taken {
        verdict.error =
            verdict.error.map(|said| format!("it took effect, and its answer was not kept: {said}"));
    }
    verdict.answer = Some(without_session(answer));
    verdict
}

/// What the profile makes of an answer, by the code in its body and by the refusal that it is.
fn class_of<'a>(profile: &'a Profile, answer: &Answer, kind: Option<Kind>) -> &'a Class {
    let code = code_of(&answer.body);
    let codes = [code.as_deref(), kind.map(Kind::slug)];
    let codes: Vec<&str> = codes.into_iter().flatten().collect();
    if refusal::is_pending(answer) {
        return &Class::RetryAfter;
    }
    if !refusal::is_likely_from_service(answer, kind) {
        return &Class::Retry;
    }
    match profile.classify.classify_by(Some(answer.status), &codes) {
        // Some 409 says "later" and some says "never"; where no code tells them apart, the server's word does.
        Class::RetryAfter if answer.status == 409 && kind.is_none() && refusal::forbids_retry(answer) => {
            &profile.classify.otherwise
        }
        class => class,
    }
}

/// The code that is shown: the body's own, unless that is a sentence.
fn shown_code(answer: &Answer, kind: Option<Kind>) -> Option<String> {
    let code = code_of(&answer.body).filter(|code| !code.contains(' '));
    code.or_else(|| kind.map(|kind| kind.slug().to_owned()))
}

/// Header lines that belong to the connection or to somebody's session, and are not kept.
const NOT_KEPT: [&str; 9] = [
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "set-cookie",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "www-authenticate",
    "authorization",
];

fn without_session(answer: &Answer) -> Answer {
    let is_kept = |line: &&(String, String)| !NOT_KEPT.iter().any(|name| line.0.eq_ignore_ascii_case(name));
    Answer { headers: answer.headers.iter().filter(is_kept).cloned().collect(), ..answer.clone() }
}

/// Our clock ran ahead when the first attempt was stamped; the answer's date has put that right by now.
fn future_first_sent(code: Option<&str>) -> Option<Class> {
    (code == Some("first-sent-in-future"))
        .then(|| Class::RetryAtMost(2, Box::new(Class::Dead("first-sent-in-future".into()))))
}

fn cause(code: Option<&str>) -> Cause {
    if code == Some("blocked") { Cause::Blocked } else { Cause::Failed }
}

/// How long the receiver asks to wait: `Retry-After` in seconds or as a date, else `retry_after` in the body, in
/// milliseconds.
fn wait_asked_for(answer: &Answer, now: Local) -> Option<Duration> {
    let server_now =
        answer.header("date").and_then(crate::date::http_date).unwrap_or_else(|| now.corrected());
    if let Some(wait) = answer.header("retry-after").and_then(|text| retry_after(text, server_now)) {
        return Some(wait);
    }
    let document = Document::parse(&answer.body).ok()?;
    match document.root.get(&Pointer::parse("/retry_after").ok()?) {
        Some(Json::Number(millis)) => {
            let millis: f64 = millis.to_string().parse().ok()?;
            Some(Duration::from_millis(millis.max(0.0) as u64))
        }
        Some(Json::Null | Json::Bool(_) | Json::Text(_) | Json::Array(_) | Json::Object(_)) | None => None,
    }
}

fn retried(
    facts: &Facts<'_>,
    cause: Cause,
    at_least: Option<Duration>,
    mut error: String,
    random: f64,
) -> Verdict {
    let mut progress = facts.row.progress.clone();
    if cause == Cause::Failed {
        progress.failures += 1;
        progress.burst_failures += 1;
    }
    let now = facts.now.at;
    let burst_started = Timestamp::from_millis(*progress.burst_started_at.get_or_insert(now.millis()));
    let scheduled = Scheduled {
        attempts: progress.failures,
        attempts_in_burst: progress.burst_failures,
        burst_elapsed: Duration::from_millis(u64::try_from(now.millis_since(burst_started)).unwrap_or(0)),
        age: facts.age().max(facts.since_first_attempt()),
    };
    let mut schedule = facts.profile.schedule.clone();
    schedule.max_age = facts.max_age().filter(|_| !facts.is_frozen);
    let to = match schedule.next(&scheduled, cause, random) {
        Next::After(wait) => To::Retry(now.plus(wait.max(at_least.unwrap_or_default()))),
        Next::NextPeriod(wait) => {
            progress.burst_failures = 0;
            progress.burst_started_at = None;
            To::Retry(now.plus(wait.max(at_least.unwrap_or_default())))
        }
        Next::GiveUp(GiveUpReason::Age) => {
            // The reason's first word is the same wherever an age ends a message.
            error = format!("{OLDER}, after {error}");
            To::Expired(facts.profile.give_up)
        }
        Next::GiveUp(GiveUpReason::Attempts) => match facts.profile.give_up {
            GiveUp::Drop => To::Dropped,
            GiveUp::Dead => To::Dead,
        },
    };
    let mut verdict = facts.verdict(to, Some(error));
    verdict.progress = progress;
    verdict
}

/// Ids as JSON, so that a number stays one.
fn read_ids(body: &[u8], ids: &[(String, Pointer)]) -> Vec<(String, String)> {
    let Ok(document) = Document::parse(body) else { return Vec::new() };
    let read = |(name, pointer): &(String, Pointer)| match document.root.get(pointer)? {
        Json::Text(text) => Some((name.clone(), serde_json::Value::from(text.as_ref()).to_string())),
        Json::Number(number) => Some((name.clone(), number.to_string())),
        Json::Null | Json::Bool(_) | Json::Array(_) | Json::Object(_) => None,
    };
    ids.iter().filter_map(read).collect()
}

/// How far a server's clock is ahead, as an answer shows it: its date has whole seconds, so half of one is likeliest.
pub fn clock_ahead(answer: &Answer, now: Timestamp) -> Option<i64> {
    let date = crate::date::http_date(answer.header("date")?)?;
    let ahead = date.plus(Duration::from_millis(500)).millis_since(now);
    // Below the resolution of a date and a network there is nothing to correct.
    Some(if ahead.abs() < millis_of(Duration::from_secs(2)) { 0 } else { ahead })
}

/// The retention that an answer announces.
pub fn announced_retention(answer: &Answer) -> Option<u64> {
    answer.header("semel-retention")?.trim().parse().ok().filter(|seconds| *seconds > 0)
}
