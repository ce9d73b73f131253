//! What the upstream's answer to a write means. One table; it reads no clock and changes nothing.

use std::time::Duration;

use semel_contract::classify::{Class, Classify, code_of, is_same_code};
use semel_contract::profile::settings::values::Word;

use crate::limits::{CODE_CHARS_MAX, shorten};
use crate::refusal::{Effects, effects, is_pending, kind_of};
use crate::relay::recovery::Capability;
use crate::transport::Sent;

/// Whether a write was applied, as far as its answer tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It was.
    Applied,
    /// It was not, and may be tried again by the schedule.
    Failed(String),
    /// It was not: the upstream asks for a pause. Costs no attempt.
    Limited {
        /// For how long, where it says so.
        after: Option<Duration>,
    },
    /// It was not: the upstream blocks us. Costs no attempt.
    Blocked(String),
    /// It was not: the credential is refused.
    Unauthorized,
    /// It was not: the version is another than the one that was read.
    Conflict,
    /// It was not and never will be.
    Refused(String),
    /// Nobody knows.
    Ambiguous(String),
}

/// By what the answers of a target are read.
#[derive(Clone, Debug)]
pub struct Reading<'a> {
    /// What the target offers.
    pub tier: Capability,
    /// Answers that mean "blocked": a status, or the code in the body.
    pub blocked: &'a [String],
    /// The profile's table, for what is left.
    pub classify: &'a Classify,
}

/// What became of a write.
pub fn judge(reading: &Reading<'_>, sent: &Sent, retry_after: Option<Duration>) -> Verdict {
    let answer = match sent {
        Sent::Answered(answer) => answer,
        Sent::NotSent(why) => return Verdict::Failed(why.clone()),
        Sent::Broken(why) | Sent::TimedOut(why) => return Verdict::Ambiguous(why.clone()),
    };
    let code = code_of(&answer.body);
    let said = match &code {
        Some(code) => format!("{} {}", answer.status, shorten(code, CODE_CHARS_MAX)),
        None => answer.status.to_string(),
    };
    let is_blocked = |word: &String| {
        *word == answer.status.to_string() || code.as_deref().is_some_and(|code| is_same_code(word, code))
    };
    // What a gate before the service says of the batch's key counts, whatever the status usually means.
    let said_of_key = effects(answer, kind_of(answer), "");
    match answer.status {
        _ if reading.blocked.iter().any(is_blocked) => Verdict::Blocked(said),
        // An earlier attempt still runs, and may end without an effect.
        _ if is_pending(answer) => Verdict::Ambiguous(said),
        200..=299 => Verdict::Applied,
        _ if said_of_key == Effects::Taken => Verdict::Applied,
        _ if said_of_key == Effects::Possible => Verdict::Ambiguous(said),
        401 => Verdict::Unauthorized,
        429 => Verdict::Limited { after: retry_after },
        // These say that nothing was done.
        408 | 425 | 503 => match retry_after {
            Some(after) => Verdict::Limited { after: Some(after) },
            None => Verdict::Failed(said),
        },
        409 | 412 if reading.tier == Capability::CompareAndSet => Verdict::Conflict,
        400..=499 => match reading.classify.classify(Some(answer.status), code.as_deref()) {
            Class::Retry | Class::RetryAfter | Class::RetryAtMost(..) => Verdict::Failed(said),
            Class::Auth | Class::Success | Class::Rebuild | Class::Drop(_) | Class::Dead(_) => {
                Verdict::Refused(said)
            }
        },
        // It may have done its work before it failed or led elsewhere (a redirect is not followed), and other answers are
        // none.
        _ => Verdict::Ambiguous(said),
    }
}

/// What a pause holds up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    /// One principal's calls.
    #[default]
    Credential,
    /// All calls to the target.
    Target,
    /// All calls to its host, by whatever target.
    Host,
}

impl Word for Scope {
    const WORDS: &'static [(&'static str, Self)] =
        &[("credential", Scope::Credential), ("target", Scope::Target), ("host", Scope::Host)];
}

impl Scope {
    /// The name under which the pause is kept.
    pub fn key(self, target: &str, principal: &str, origin: &str) -> String {
        match self {
            // Lengths first, so that no two pairs are one name.
            Scope::Credential => format!("credential:{}:{target}:{principal}", target.len()),
            Scope::Target => format!("target:{target}"),
            Scope::Host => format!("host:{origin}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use semel_contract::profile::presets;

    use super::*;
    use crate::message::Answer;

    fn of(tier: Capability, status: u16, body: &str, after: Option<u64>) -> Verdict {
        let classify = presets::scores().classify;
        let blocked = ["418".to_owned(), "api-blocked".to_owned()];
        let reading = Reading { tier, blocked: &blocked, classify: &classify };
        let answer = Answer { status, headers: Vec::new(), body: body.as_bytes().to_vec() };
        judge(&reading, &Sent::Answered(answer), after.map(Duration::from_secs))
    }

    #[test]
    fn every_kind_of_answer() {
        let back = Capability::ReadBack;
        let cases = [
            (200, "", None, Verdict::Applied),
            (204, "", None, Verdict::Applied),
            (302, "", None, Verdict::Ambiguous("302".into())),
            (303, "", None, Verdict::Ambiguous("303".into())),
            (400, "", None, Verdict::Refused("400".into())),
            (401, "", None, Verdict::Unauthorized),
            (404, "", None, Verdict::Refused("404".into())),
            (408, "", None, Verdict::Failed("408".into())),
            (409, "", None, Verdict::Failed("409".into())),
            (418, "", None, Verdict::Blocked("418".into())),
            (403, r#"{"code":"api-blocked"}"#, None, Verdict::Blocked("403 api-blocked".into())),
            (403, r#"{"code":"API_BLOCKED"}"#, None, Verdict::Blocked("403 API_BLOCKED".into())),
            (200, r#"{"error":"api-blocked"}"#, None, Verdict::Blocked("200 api-blocked".into())),
            (429, "", Some(120), Verdict::Limited { after: Some(Duration::from_secs(120)) }),
            (429, "", None, Verdict::Limited { after: None }),
            (503, "", Some(5), Verdict::Limited { after: Some(Duration::from_secs(5)) }),
            (503, "", None, Verdict::Failed("503".into())),
            (500, "", None, Verdict::Ambiguous("500".into())),
            (502, "", None, Verdict::Ambiguous("502".into())),
            (504, "", None, Verdict::Ambiguous("504".into())),
        ];
        for (status, body, after, wanted) in cases {
            assert_eq!(of(back, status, body, after), wanted, "{status} {body}");
        }
        assert_eq!(of(Capability::CompareAndSet, 412, "", None), Verdict::Conflict);
        assert_eq!(of(Capability::CompareAndSet, 409, "", None), Verdict::Conflict);
    }

    /// The attempt that still runs may end without an effect: its lane would lose what the batch holds.
    #[test]
    fn what_still_runs_at_a_gate_is_not_applied_yet() {
        let classify = presets::scores().classify;
        let reading = Reading { tier: Capability::ReadBack, blocked: &[], classify: &classify };
        let headers = [("Semel-Outcome", "pending"), ("Retry-After", "1")];
        let headers = headers.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
        let answer = Answer { status: 202, headers, body: Vec::new() };
        let judged = judge(&reading, &Sent::Answered(answer), Some(Duration::from_secs(1)));
        assert_eq!(judged, Verdict::Ambiguous("202".into()));
    }

    /// A gate that stands before the service runs a batch and cannot answer for it: a new batch would be a second effect.
    #[test]
    fn what_a_gate_says_of_the_key_counts_more_than_the_status() {
        let said = |kind: &str| format!(r#"{{"type":"urn:semel:problem:{kind}"}}"#);
        let cases = [
            (503, "settlement-pending", Verdict::Ambiguous("503 settlement-pending".into())),
            (409, "in-flight", Verdict::Ambiguous("409 in-flight".into())),
            (409, "outcome-unknown", Verdict::Ambiguous("409 outcome-unknown".into())),
            (409, "answer-not-kept", Verdict::Applied),
            (503, "store-unavailable", Verdict::Failed("503 store-unavailable".into())),
            (409, "key-sealed", Verdict::Refused("409 key-sealed".into())),
        ];
        for (status, kind, wanted) in cases {
            assert_eq!(of(Capability::ReadBack, status, &said(kind), None), wanted, "{kind}");
        }
    }

    /// A 503 says that nothing was done, unless it is the kept answer of an attempt.
    #[test]
    fn a_kept_503_does_not_say_that_nothing_was_done() {
        let classify = presets::scores().classify;
        let reading = Reading { tier: Capability::ReadBack, blocked: &[], classify: &classify };
        let headers = vec![("idempotency-replayed".to_owned(), "true".to_owned())];
        let kept = Sent::Answered(Answer { status: 503, headers, body: Vec::new() });
        assert_eq!(judge(&reading, &kept, None), Verdict::Ambiguous("503".into()));
    }

    #[test]
    fn a_text_of_the_service_has_an_end() {
        let body = format!(r#"{{"error":"{}"}}"#, "x".repeat(70_000));
        let Verdict::Refused(said) = of(Capability::ReadBack, 422, &body, None) else {
            panic!("it is refused")
        };
        assert!(said.chars().count() <= 104 && said.ends_with('…'), "{said}");
    }

    #[test]
    fn what_was_not_sent_failed_and_what_broke_off_is_not_known() {
        let classify = presets::scores().classify;
        let reading = Reading { tier: Capability::ReadBack, blocked: &[], classify: &classify };
        let why = || "why".to_owned();
        assert_eq!(judge(&reading, &Sent::NotSent(why()), None), Verdict::Failed(why()));
        assert_eq!(judge(&reading, &Sent::Broken(why()), None), Verdict::Ambiguous(why()));
        assert_eq!(judge(&reading, &Sent::TimedOut(why()), None), Verdict::Ambiguous(why()));
    }

    #[test]
    fn pauses_do_not_meet() {
        assert_ne!(Scope::Credential.key("a:1", "b", ""), Scope::Credential.key("a", "1:b", ""));
    }
}
