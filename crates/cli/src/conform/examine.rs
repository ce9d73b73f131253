//! The examination: what is sent for each clause, in order. Judgements are made in `judge`.

use http::HeaderValue;

use super::clause::{Clause, Outcome};
use super::judge;
use super::subject::{Payload, Subject, Who};
use crate::client::{self, Answer, Failure};
use crate::exit::{Exit, Stop};

/// Requests at once, and how often that is tried.
const AT_ONCE: usize = 5;
const ROUNDS: usize = 3;

/// Says that an operation does not require a key, on an answer to a request without one.
const OPTIONAL: (&str, &str) = ("semel-guarantee", "none");

/// How closely keys are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rigour {
    Usual,
    /// What only a parser of structured fields finds is a failure too.
    Strict,
}

/// Examines a server by every clause that is not to be skipped.
pub(crate) async fn examine(
    subject: Subject,
    skip: &[Clause],
    rigour: Rigour,
) -> Result<Vec<(Clause, Outcome)>, Stop> {
    let mut examiner = Examiner {
        subject,
        rigour,
        first: None,
        answers_differ: false,
        retries_run: false,
        errors: Vec::new(),
    };
    let mut outcomes = Vec::new();
    for clause in Clause::ALL {
        let outcome = if clause != Clause::First && examiner.first.is_none() {
            Outcome::Skipped("the first request did not succeed".to_owned())
        } else if skip.contains(&clause) && clause != Clause::First {
            Outcome::Skipped("not asked for (--skip)".to_owned())
        } else {
            examiner.clause(clause).await?
        };
        outcomes.push((clause, outcome));
    }
    Ok(outcomes)
}

struct Examiner {
    subject: Subject,
    rigour: Rigour,
    /// The key and answer of the first request, once it has succeeded.
    first: Option<(HeaderValue, Answer)>,
    answers_differ: bool,
    retries_run: bool,
    /// Errors that the draft names.
    errors: Vec<Answer>,
}

impl Examiner {
    async fn clause(&mut self, clause: Clause) -> Result<Outcome, Stop> {
        match clause {
            Clause::First => self.first().await,
            Clause::Presence => self.presence().await,
            Clause::Syntax => self.syntax().await,
            Clause::Replay => self.replay().await,
            Clause::Mismatch => self.mismatch().await,
            Clause::Concurrency => self.concurrency().await,
            Clause::ErrorFormat => Ok(judge::error_format(&self.errors)),
            Clause::Scope => self.scope().await,
        }
    }

    async fn first(&mut self) -> Result<Outcome, Stop> {
        let before = self.effects().await?;
        let key = fresh_key()?;
        let reply = self.send(&key).await;
        if let Err(Failure::NotConnected(why)) = &reply {
            return Err(failed(format!("failed to reach {}: {why}", self.subject.target)));
        }
        let outcome = judge::first(&reply, self.evidence(before).await?.effects);
        let Ok(answer) = reply else { return Ok(outcome) };
        if answer.is_processed() {
            // A second request, under a key of its own, shows whether answers tell requests apart.
            let control = self.send(&fresh_key()?).await;
            self.answers_differ = control.is_ok_and(|control| control.body != answer.body);
            self.first = Some((key, answer));
        }
        Ok(outcome)
    }

    async fn presence(&mut self) -> Result<Outcome, Stop> {
        let before = self.effects().await?;
        let reply = self.subject.send(&[], Payload::Usual, Who::One).await;
        let evidence = self.evidence(before).await?;
        self.remember(&reply);
        let (name, value) = OPTIONAL;
        match &reply {
            Ok(answer) if answer.is_processed() && answer.header(name) == Some(value) => {
                let words = "keys are optional here: the answer says that it has no guarantee";
                Ok(Outcome::Skipped(words.to_owned()))
            }
            Ok(_) | Err(_) => Ok(judge::refusal(&reply, 400, evidence)),
        }
    }

    async fn syntax(&mut self) -> Result<Outcome, Stop> {
        let mut lax = Vec::new();
        for Malformed { what, keys, is_subtle } in malformed()? {
            let before = self.effects().await?;
            let reply = self.subject.send(&keys, Payload::Usual, Who::One).await;
            let evidence = self.evidence(before).await?;
            self.remember(&reply);
            match judge::refusal(&reply, 400, evidence) {
                Outcome::Fail(_) if is_subtle && self.rigour == Rigour::Usual => lax.push(what),
                Outcome::Fail(why) => return Ok(Outcome::Fail(format!("{what}: {why}"))),
                Outcome::Pass(_) | Outcome::Skipped(_) => {}
            }
        }
        Ok(Outcome::Pass(match lax.as_slice() {
            [] => "answered 400".to_owned(),
            lax => format!("answered 400, but not to {} (--strict fails this)", lax.join(", ")),
        }))
    }

    async fn replay(&mut self) -> Result<Outcome, Stop> {
        let (key, first) = self.first_request();
        let before = self.effects().await?;
        let reply = self.send(&key).await;
        let evidence = self.evidence(before).await?;
        let outcome = judge::replay(&first, &reply, evidence);
        self.retries_run = judge::was_run(&first, &reply, evidence);
        Ok(outcome)
    }

    async fn mismatch(&mut self) -> Result<Outcome, Stop> {
        // A key of its own: a server that cannot replay can still tell payloads apart.
        let key = fresh_key()?;
        if let Err(outcome) = self.prepare(&key).await {
            return Ok(outcome);
        }
        let before = self.effects().await?;
        let reply = self.subject.send(std::slice::from_ref(&key), Payload::Changed, Who::One).await;
        let evidence = self.evidence(before).await?;
        self.remember(&reply);
        Ok(judge::mismatch(&reply, evidence))
    }

    async fn concurrency(&mut self) -> Result<Outcome, Stop> {
        let mut last = Outcome::Skipped(String::new());
        for _ in 0..ROUNDS {
            let before = self.effects().await?;
            let replies = self.subject.send_at_once(&fresh_key()?, AT_ONCE).await;
            let evidence = self.evidence(before).await?;
            replies.iter().for_each(|reply| self.remember(reply));
            last = judge::concurrency(&replies, evidence);
            if !matches!(last, Outcome::Pass(_)) {
                return Ok(last);
            }
        }
        Ok(last)
    }

    async fn scope(&mut self) -> Result<Outcome, Stop> {
        let key = fresh_key()?;
        let first = match self.prepare(&key).await {
            Ok(first) => first,
            Err(outcome) => return Ok(outcome),
        };
        let before = self.effects().await?;
        let reply = self.subject.send(std::slice::from_ref(&key), Payload::Usual, Who::Other).await;
        let evidence = self.evidence(before).await?;
        Ok(judge::scope(&first, &reply, evidence))
    }

    /// Makes a first request under a key; a clause that builds on it cannot be told without.
    async fn prepare(&self, key: &HeaderValue) -> Result<Answer, Outcome> {
        match self.send(key).await {
            Ok(answer) if answer.is_processed() => Ok(answer),
            Ok(answer) => {
                Err(Outcome::Skipped(format!("the request before it was answered {}", answer.status)))
            }
            Err(failure) => Err(Outcome::Skipped(format!("the request before it: {failure}"))),
        }
    }

    async fn send(&self, key: &HeaderValue) -> Result<Answer, Failure> {
        self.subject.send(std::slice::from_ref(key), Payload::Usual, Who::One).await
    }

    fn first_request(&self) -> (HeaderValue, Answer) {
        self.first.clone().expect("clauses after the first are examined only when it succeeded")
    }

    fn remember(&mut self, reply: &Result<Answer, Failure>) {
        if let Ok(answer) = reply
            && matches!(answer.status, 400 | 409 | 422)
        {
            self.errors.push(answer.clone());
        }
    }

    async fn effects(&self) -> Result<Option<u64>, Stop> {
        self.subject.effects().await.map_err(failed)
    }

    async fn evidence(&self, before: Option<u64>) -> Result<judge::Evidence, Stop> {
        let effects = self.subject.effects_since(before).await.map_err(failed)?;
        let Self { answers_differ, retries_run, .. } = *self;
        Ok(judge::Evidence { effects, answers_differ, retries_run })
    }
}

fn failed(message: String) -> Stop {
    Stop::new(Exit::Io, message)
}

fn fresh_key() -> Result<HeaderValue, Stop> {
    HeaderValue::try_from(format!("\"{}\"", client::uuid()?)).map_err(|error| failed(error.to_string()))
}

/// A key that is not one RFC 8941 String.
struct Malformed {
    what: &'static str,
    keys: Vec<HeaderValue>,
    /// Only a parser of structured fields finds it; a look at the quotes does not.
    is_subtle: bool,
}

fn malformed() -> Result<Vec<Malformed>, Stop> {
    let value = |text: String| HeaderValue::try_from(text).map_err(|error| failed(error.to_string()));
    let uuid = client::uuid;
    let (one, other) = (uuid()?, uuid()?);
    let subtle = |what, keys| Malformed { what, keys, is_subtle: true };
    Ok(vec![
        Malformed {
            what: "a String that does not end",
            keys: vec![value(format!("\"{}", uuid()?))?],
            is_subtle: false,
        },
        subtle("a list of Strings", vec![value(format!("\"{one}\", \"{other}\""))?]),
        subtle("an escape that does not exist", vec![value(format!("\"{}\\n\"", uuid()?))?]),
        subtle("two header lines", vec![fresh_key()?, fresh_key()?]),
    ])
}
