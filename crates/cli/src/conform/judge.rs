//! Judges answers by the draft. Pure: sends nothing. What cannot be told from outside is skipped, never passed.

use serde_json::Value;

use super::clause::Outcome;
use crate::client::{Answer, Failure};

/// What can be known about effects from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Evidence {
    /// Effects that were counted between before and after, where they can be counted.
    pub(crate) effects: Option<i64>,
    /// Whether two different requests get different answers.
    pub(crate) answers_differ: bool,
    /// Whether retries are known to be processed, one after another.
    pub(crate) retries_run: bool,
}

type Reply = Result<Answer, Failure>;

/// An error that the draft names must have this status, and nothing may have happened.
pub(crate) fn refusal(reply: &Reply, status: u16, evidence: Evidence) -> Outcome {
    let answer = match reply {
        Ok(answer) => answer,
        Err(failure) => return Outcome::Fail(failure.to_string()),
    };
    if answer.status != status {
        return Outcome::Fail(format!("answered {}{}", answer.status, words_of(answer)));
    }
    match evidence.effects {
        Some(0) | None => Outcome::Pass(format!("answered {status}")),
        Some(effects) => Outcome::Fail(format!("answered {status}, yet it had {effects} effects")),
    }
}

/// The first request must succeed, with one effect.
pub(crate) fn first(reply: &Reply, effects: Option<i64>) -> Outcome {
    match reply {
        Err(failure) => Outcome::Fail(failure.to_string()),
        Ok(answer) if !answer.is_processed() => {
            let hint = match answer.status {
                401 | 403 => "; give a credential by --header",
                404 | 405 => "; give the path by --path",
                400 | 415 | 422 => "; give a body that it takes by --body",
                _ => "",
            };
            Outcome::Fail(format!("answered {}{}{hint}", answer.status, words_of(answer)))
        }
        Ok(answer) => match effects {
            None => Outcome::Pass(format!("answered {}", answer.status)),
            Some(1) => Outcome::Pass(format!("answered {}, one effect", answer.status)),
            Some(count) => Outcome::Fail(format!("answered {}, with {count} effects", answer.status)),
        },
    }
}

/// A retry must get what the first one got.
pub(crate) fn replay(first: &Answer, again: &Reply, evidence: Evidence) -> Outcome {
    let again = match again {
        Ok(answer) => answer,
        Err(failure) => return Outcome::Fail(failure.to_string()),
    };
    if let Some(difference) = difference(first, again) {
        return Outcome::Fail(difference);
    }
    match evidence.effects {
        Some(0) => Outcome::Pass("the same answer, no effect".to_owned()),
        Some(count) => Outcome::Fail(format!("the same answer, yet {count} more effects")),
        None if evidence.answers_differ || again.is_replay() => Outcome::Pass("the same answer".to_owned()),
        None => cannot_tell(),
    }
}

/// Whether a retry was processed rather than answered.
pub(crate) fn was_run(first: &Answer, again: &Reply, evidence: Evidence) -> bool {
    let Ok(again) = again else { return false };
    let is_another = evidence.effects.map_or(first.body != again.body, |effects| effects > 0);
    again.is_processed() && is_another
}

/// A used key with another payload must be refused. Where no key is ever known as used, that is told by another clause.
pub(crate) fn mismatch(reply: &Reply, evidence: Evidence) -> Outcome {
    match (refusal(reply, 422, evidence), reply) {
        (Outcome::Fail(_), Ok(answer)) if evidence.retries_run && answer.is_processed() => {
            Outcome::Skipped("retries are processed, whatever their payload: see replay".to_owned())
        }
        (outcome, _) => outcome,
    }
}

/// Of requests at once, one is processed; the others are told to wait or get its answer.
pub(crate) fn concurrency(replies: &[Reply], evidence: Evidence) -> Outcome {
    let mut done: Vec<&Answer> = Vec::new();
    let mut conflicts = 0;
    for reply in replies {
        match reply {
            Err(failure) => return Outcome::Fail(failure.to_string()),
            Ok(answer) if answer.is_processed() => done.push(answer),
            Ok(answer) if answer.status == 409 => conflicts += 1,
            Ok(answer) => {
                return Outcome::Fail(format!("one was answered {}{}", answer.status, words_of(answer)));
            }
        }
    }
    let Some((one, others)) = done.split_first() else {
        return Outcome::Fail("all were answered 409: none was processed".to_owned());
    };
    let difference = others.iter().find_map(|other| difference(one, other));
    let is_twice = difference.is_some() || evidence.effects.is_some_and(|effects| effects > 1);
    if is_twice && evidence.retries_run && conflicts > 0 {
        // Some arrived when the first was done: that they were processed is told by another clause.
        return Outcome::Pass(format!("{conflicts} were answered 409; for the others see replay"));
    }
    if let Some(difference) = difference {
        return Outcome::Fail(format!("two were processed: {difference}"));
    }
    let seen = match (others.len(), conflicts) {
        (0, conflicts) => format!("one was processed, {conflicts} were answered 409"),
        (same, 0) => format!("one was processed, {same} got the same answer"),
        (same, conflicts) => {
            format!("one was processed, {same} got the same answer, {conflicts} were answered 409")
        }
    };
    let are_marked = done.iter().filter(|answer| !answer.is_replay()).count() <= 1;
    match evidence.effects {
        Some(1) => Outcome::Pass(seen),
        Some(count) => Outcome::Fail(format!("{count} effects of {} requests at once", replies.len())),
        None if others.is_empty() || evidence.answers_differ || are_marked => Outcome::Pass(seen),
        None => cannot_tell(),
    }
}

/// Another caller with the same key and request must not get the first one's answer.
pub(crate) fn scope(first: &Answer, other: &Reply, evidence: Evidence) -> Outcome {
    let other = match other {
        Ok(answer) => answer,
        Err(failure) => return Outcome::Fail(failure.to_string()),
    };
    if !other.is_processed() {
        return Outcome::Pass(format!("answered {}", other.status));
    }
    let is_same = difference(first, other).is_none();
    match evidence.effects {
        _ if other.is_replay() => {
            Outcome::Fail("it got the first one's answer, marked as a replay".to_owned())
        }
        _ if !is_same => Outcome::Pass("it got an answer of its own".to_owned()),
        Some(1) => Outcome::Pass("it was processed for itself".to_owned()),
        Some(_) => Outcome::Fail("it got the first one's answer, without an effect of its own".to_owned()),
        None if evidence.answers_differ => Outcome::Fail("it got the first one's answer".to_owned()),
        None => cannot_tell(),
    }
}

/// Every error that was seen must lead to documentation.
pub(crate) fn error_format(errors: &[Answer]) -> Outcome {
    if errors.is_empty() {
        return Outcome::Skipped("no error that the draft names was seen".to_owned());
    }
    match errors.iter().find(|answer| !has_link(answer) && !is_problem(answer)) {
        Some(answer) => {
            let kind = answer.header("content-type").unwrap_or("no content type");
            Outcome::Fail(format!("the {} has neither: {kind}{}", answer.status, words_of(answer)))
        }
        None => {
            let mut statuses: Vec<u16> = errors.iter().map(|answer| answer.status).collect();
            statuses.sort_unstable();
            statuses.dedup();
            let list: Vec<String> = statuses.iter().map(ToString::to_string).collect();
            Outcome::Pass(format!("seen on {}", list.join(", ")))
        }
    }
}

fn has_link(answer: &Answer) -> bool {
    let links = answer.headers.get_all("link");
    links.iter().filter_map(|value| value.to_str().ok()).any(|value| value.contains("describedby"))
}

fn is_problem(answer: &Answer) -> bool {
    let kind = answer.header("content-type").unwrap_or_default();
    let is_type =
        |value: &Value| value.as_str().is_some_and(|text| !text.is_empty() && text != "about:blank");
    kind.trim_start().to_ascii_lowercase().starts_with("application/problem+json")
        && serde_json::from_slice::<Value>(&answer.body)
            .is_ok_and(|body| body.get("type").is_some_and(is_type))
}

/// How a second answer differs from the first, in what a client sees.
fn difference(first: &Answer, second: &Answer) -> Option<String> {
    if first.status != second.status {
        return Some(format!("answered {}, then {}", first.status, second.status));
    }
    if first.body != second.body {
        return Some(format!("answered {:?}, then {:?}", first.glimpse(), second.glimpse()));
    }
    let differs = |name: &&str| first.headers.get(*name) != second.headers.get(*name);
    let name = ["content-type", "location"].into_iter().find(|name| differs(name))?;
    Some(format!("the header {name} is another"))
}

fn words_of(answer: &Answer) -> String {
    match answer.glimpse().as_str() {
        "" => String::new(),
        words => format!(" ({words})"),
    }
}

fn cannot_tell() -> Outcome {
    Outcome::Skipped("answers do not tell one request from another: give --effects-url".to_owned())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;
    use http::{HeaderMap, HeaderName, HeaderValue};

    use super::*;

    fn answer(status: u16, headers: &[(&'static str, &'static str)], body: &'static str) -> Answer {
        let line = |(name, value): &(&'static str, &'static str)| {
            (HeaderName::from_static(name), HeaderValue::from_static(value))
        };
        let headers = HeaderMap::from_iter(headers.iter().map(line));
        Answer { status, headers, body: Bytes::from_static(body.as_bytes()), took: Duration::ZERO }
    }

    fn plain(status: u16, body: &'static str) -> Answer {
        answer(status, &[], body)
    }

    const DIFFER: Evidence = Evidence { effects: None, answers_differ: true, retries_run: false };
    const BLIND: Evidence = Evidence { answers_differ: false, ..DIFFER };
    const COUNTED: fn(i64) -> Evidence = |effects| Evidence { effects: Some(effects), ..DIFFER };

    #[test]
    fn a_refusal_has_the_status_of_the_draft_and_no_effect() {
        assert_eq!(refusal(&Ok(plain(400, "")), 400, COUNTED(0)).name(), "pass");
        assert_eq!(refusal(&Ok(plain(422, "")), 400, COUNTED(0)).name(), "fail");
        assert_eq!(refusal(&Ok(plain(400, "")), 400, COUNTED(1)).name(), "fail");
        assert_eq!(refusal(&Err(Failure::TimedOut), 400, DIFFER).name(), "fail");
    }

    #[test]
    fn a_replay_is_the_same_answer_without_an_effect() {
        let first = plain(201, "1");
        assert_eq!(replay(&first, &Ok(plain(201, "1")), COUNTED(0)).name(), "pass");
        assert_eq!(replay(&first, &Ok(plain(201, "1")), COUNTED(1)).name(), "fail");
        assert_eq!(replay(&first, &Ok(plain(201, "2")), DIFFER).name(), "fail");
        assert_eq!(replay(&first, &Ok(plain(200, "1")), DIFFER).name(), "fail");
        let moved = answer(201, &[("location", "/2")], "1");
        assert_eq!(replay(&first, &Ok(moved), DIFFER).name(), "fail");
    }

    #[test]
    fn a_server_that_knows_no_used_key_is_not_blamed_twice() {
        let anyway = Evidence { retries_run: true, ..DIFFER };
        assert_eq!(mismatch(&Ok(plain(201, "2")), DIFFER).name(), "fail");
        assert_eq!(mismatch(&Ok(plain(201, "2")), anyway).name(), "skipped");
        assert_eq!(mismatch(&Ok(plain(409, "")), anyway).name(), "fail");
        assert_eq!(mismatch(&Ok(plain(422, "")), anyway).name(), "pass");
        let first = plain(201, "1");
        assert!(was_run(&first, &Ok(plain(201, "2")), DIFFER));
        assert!(was_run(&first, &Ok(plain(201, "1")), COUNTED(1)));
        assert!(!was_run(&first, &Ok(plain(200, "2")), COUNTED(0)), "another answer, but no effect");
        assert!(!was_run(&first, &Ok(plain(409, "")), DIFFER));
    }

    #[test]
    fn what_cannot_be_told_is_skipped() {
        let first = plain(201, "ok");
        assert_eq!(replay(&first, &Ok(plain(201, "ok")), BLIND).name(), "skipped");
        assert_eq!(scope(&first, &Ok(plain(201, "ok")), BLIND).name(), "skipped");
        let both = [Ok(plain(201, "ok")), Ok(plain(201, "ok"))];
        assert_eq!(concurrency(&both, BLIND).name(), "skipped");
        let marked = answer(201, &[("idempotency-replayed", "true")], "ok");
        assert_eq!(replay(&first, &Ok(marked.clone()), BLIND).name(), "pass");
        assert_eq!(scope(&first, &Ok(marked), BLIND).name(), "fail");
    }

    #[test]
    fn of_requests_at_once_one_is_processed() {
        let ok = |body| Ok(plain(201, body));
        let wait = || Ok(plain(409, ""));
        assert_eq!(concurrency(&[ok("1"), wait(), wait()], DIFFER).name(), "pass");
        assert_eq!(concurrency(&[ok("1"), ok("1"), wait()], COUNTED(1)).name(), "pass");
        assert_eq!(concurrency(&[ok("1"), ok("2"), wait()], DIFFER).name(), "fail");
        assert_eq!(concurrency(&[ok("1"), ok("1")], COUNTED(2)).name(), "fail");
        assert_eq!(concurrency(&[wait(), wait()], DIFFER).name(), "fail");
        assert_eq!(concurrency(&[ok("1"), Ok(plain(500, ""))], DIFFER).name(), "fail");
        assert_eq!(concurrency(&[ok("1"), Err(Failure::TimedOut)], DIFFER).name(), "fail");
        // Where retries are processed anyway, a 409 shows that what is in flight is known.
        let anyway = Evidence { retries_run: true, ..DIFFER };
        assert_eq!(concurrency(&[ok("1"), ok("2"), wait()], anyway).name(), "pass");
        assert_eq!(concurrency(&[ok("1"), ok("2")], anyway).name(), "fail");
    }

    #[test]
    fn another_caller_gets_nothing_of_the_first() {
        let first = plain(201, "1");
        assert_eq!(scope(&first, &Ok(plain(201, "1")), DIFFER).name(), "fail");
        assert_eq!(scope(&first, &Ok(plain(201, "1")), COUNTED(0)).name(), "fail");
        assert_eq!(scope(&first, &Ok(plain(201, "1")), COUNTED(1)).name(), "pass");
        assert_eq!(scope(&first, &Ok(plain(201, "2")), DIFFER).name(), "pass");
        assert_eq!(scope(&first, &Ok(plain(409, "")), DIFFER).name(), "pass");
    }

    #[test]
    fn every_error_leads_to_documentation() {
        let problem = answer(
            400,
            &[("content-type", "application/problem+json; charset=utf-8")],
            r#"{"type":"urn:x","title":"x"}"#,
        );
        let linked = answer(422, &[("link", "</x>; rel=\"describedby\"")], "");
        assert_eq!(
            error_format(&[problem.clone(), linked.clone()]),
            Outcome::Pass("seen on 400, 422".to_owned())
        );
        let untyped = answer(400, &[("content-type", "application/problem+json")], r#"{"title":"x"}"#);
        let json = answer(400, &[("content-type", "application/json")], r#"{"type":"urn:x"}"#);
        for bad in [untyped, json, plain(409, "busy")] {
            assert_eq!(error_format(&[problem.clone(), bad]).name(), "fail");
        }
        assert_eq!(error_format(&[]).name(), "skipped");
    }
}
