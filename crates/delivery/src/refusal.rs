//! Reads what an answer says of a message's attempts: which refusal of a gate it is, whatever form its body has, and
//! whether it speaks for the attempts before it. Decides nothing about the next one.

use semel_contract::classify::{code_of, is_same_code};
use semel_contract::json::{Document, Json, Pointer};
use semel_contract::key::is_uuid;
use semel_contract::outcome::Told;
use semel_contract::planted::{self, Bug};
use semel_contract::problem::Kind;

use crate::message::Answer;

/// Where a gate's pages about its refusals are. Every refusal links to its own, also where its body has no code.
const PAGES: &str = "/.well-known/semel/problems/";

/// What an answer says of the effects of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effects {
    /// An attempt took effect, and its answer cannot be had any more.
    Taken,
    /// An attempt may have taken effect.
    Possible,
    /// It says nothing of earlier attempts: what was open stays open.
    Unsaid,
    /// It speaks for every attempt under the key: what it says is all that happened.
    All,
}

/// The refusal of a gate that this answer is: by its link, its type or its code.
pub fn kind_of(answer: &Answer) -> Option<Kind> {
    let links = answer.headers.iter().filter(|(name, _)| name.eq_ignore_ascii_case("link"));
    let linked = links.flat_map(|(_, value)| value.split(',')).find_map(linked_page);
    linked.or_else(|| kind_of_code(&code_of(&answer.body)?))
}

/// The kind whose page a link describes.
fn linked_page(link: &str) -> Option<Kind> {
    let (address, parameters) = link.trim().strip_prefix('<')?.split_once('>')?;
    let (_, slug) = address.split_once(PAGES)?;
    parameters.contains("describedby").then(|| Kind::ALL.iter().copied().find(|kind| kind.slug() == slug))?
}

/// The kind that a code names, as the presets write it.
fn kind_of_code(code: &str) -> Option<Kind> {
    let other = [
        ("idempotency-conflict", Kind::FingerprintMismatch),
        ("idempotency-key-reused", Kind::FingerprintMismatch),
        ("idempotency-in-flight", Kind::InFlight),
    ];
    let own = Kind::ALL.iter().map(|kind| (kind.slug(), *kind));
    own.chain(other).find(|(known, _)| is_same_code(known, code)).map(|(_, kind)| kind)
}

/// Whether the service itself has answered, as far as one can tell: a page for people in the place of a refusal comes from
/// something in between, unless the answer shows a gate's hand.
pub fn is_likely_from_service(answer: &Answer, kind: Option<Kind>) -> bool {
    let is_page = answer
        .header("content-type")
        .is_some_and(|kind| kind.get(..9).is_some_and(|start| start.eq_ignore_ascii_case("text/html")));
    (200..300).contains(&answer.status) || !is_page || knows_keys_again(answer) || kind.is_some()
}

/// What an answer says of the effects of the message with this id.
pub fn effects(answer: &Answer, kind: Option<Kind>, id: &str) -> Effects {
    match answer.header("semel-outcome") {
        Some("not-applied") => return Effects::Unsaid,
        Some("unknown" | Told::PENDING) => return Effects::Possible,
        Some(_) | None => {}
    }
    if planted::is(Bug::OutboxRefusalBelieved) && answer.status < 500 && knows_keys_again(answer) {
        return Effects::All;
    }
    match kind {
        // Many services lead on to what they have just made, and nothing is followed: it may have taken effect, replayed or not.
        _ if (300..400).contains(&answer.status) => Effects::Possible,
        // A kept failure says how the attempt ended, not that it had no effect.
        _ if is_replay(answer) && answer.status >= 500 => Effects::Possible,
        _ if is_replay(answer) && (answer.status < 300 || is_uuid(id)) => Effects::All,
        // A gate that hashes credentials may have known this key under another one: a refusal that it kept does not speak for
        // an effect there.
        _ if is_replay(answer) => Effects::Unsaid,
        Some(Kind::AnswerNotKept) => effects_of_unkept(answer),
        // An attempt under this key runs, ran, or is being written down.
        Some(
            Kind::InFlight
            | Kind::TooManyWaiters
            | Kind::OutcomeUnknown
            | Kind::Superseded
            | Kind::SettlementPending
            | Kind::NotSettled
            | Kind::UpstreamReset
            | Kind::UpstreamTimeout
            | Kind::HandlerTimeout,
        ) => Effects::Possible,
        // Said before or without a look at the key, or of a key under another credential or recipe.
        Some(_) => Effects::Unsaid,
        None if answer.status >= 500 && answer.status != 503 => Effects::Possible,
        // The key was looked up and was free, and a success stays on record: what is still on its way under this key finds it.
        // Any other answer may have freed the key again. Of keys that are not UUIDs a gate that hashes credentials cannot tell
        // whether another credential used them.
        None if (200..300).contains(&answer.status) && knows_keys_again(answer) && is_uuid(id) => {
            Effects::All
        }
        None => Effects::Unsaid,
    }
}

/// The first request was carried out; `originalStatus` says how that ended.
fn effects_of_unkept(answer: &Answer) -> Effects {
    match original_status(&answer.body) {
        Some(status) if status >= 500 => Effects::Possible,
        Some(status) if status >= 400 => Effects::Unsaid,
        Some(_) | None => Effects::Taken,
    }
}

fn original_status(body: &[u8]) -> Option<u16> {
    let document = Document::parse(body).ok()?.root;
    let read = |pointer: &str| match document.get(&Pointer::parse(pointer).ok()?)? {
        Json::Number(number) => number.to_string().parse().ok(),
        Json::Null | Json::Bool(_) | Json::Text(_) | Json::Array(_) | Json::Object(_) => None,
    };
    read("/details/originalStatus").or_else(|| read("/originalStatus"))
}

/// Whether the answer is one that was kept under this very key.
fn is_replay(answer: &Answer) -> bool {
    let said = |name| answer.header(name).is_some_and(|value| !value.eq_ignore_ascii_case("false"));
    said("idempotency-replayed") || said("idempotent-replayed")
}

/// Whether the server shows that it answers a repeated key from its record.
pub fn knows_keys_again(answer: &Answer) -> bool {
    let guarantee = answer.header("semel-guarantee");
    guarantee.is_some_and(|level| level != "none")
        || is_replay(answer)
        || answer.header("semel-retention").is_some()
}

/// Whether the server says that an earlier attempt still runs. Whatever its status is, it is no acknowledgement: that attempt
/// may end without an effect.
pub fn is_pending(answer: &Answer) -> bool {
    answer.header("semel-outcome") == Some(Told::PENDING)
}

/// Whether the server says that the same request must not be sent again.
pub fn forbids_retry(answer: &Answer) -> bool {
    ["x-should-retry", "stripe-should-retry"]
        .iter()
        .any(|name| answer.header(name).is_some_and(|value| value.eq_ignore_ascii_case("false")))
}

#[cfg(test)]
mod tests {
    use semel_contract::problem::Problem;
    use semel_contract::profile::presets::PRESETS;

    use super::*;

    const UUID: &str = "00000000-0000-4000-8000-000000000001";

    /// What a gate of this preset answers, with the headers that it puts on every keyed answer.
    fn refused(profile: fn() -> semel_contract::profile::Profile, kind: Kind) -> Answer {
        let rendered = profile().wire.render(&Problem::from(kind), None, "r-1");
        let mut headers: Vec<_> =
            rendered.headers.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        headers.push(("semel-guarantee".to_owned(), "fenced".to_owned()));
        Answer { status: rendered.status, headers, body: rendered.body.into_bytes() }
    }

    #[test]
    fn every_refusal_is_recognised_in_every_form() {
        for (name, profile) in PRESETS {
            for kind in Kind::ALL {
                assert_eq!(kind_of(&refused(profile, *kind)), Some(*kind), "{name}");
            }
        }
    }

    /// A refusal never says that earlier attempts had no effect.
    #[test]
    fn no_refusal_speaks_for_earlier_attempts() {
        for (name, profile) in PRESETS {
            for kind in Kind::ALL {
                let answer = refused(profile, *kind);
                let said = effects(&answer, kind_of(&answer), UUID);
                assert_ne!(said, Effects::All, "{name} {}", kind.slug());
            }
        }
    }

    #[test]
    fn an_answer_that_was_not_kept_says_what_happened() {
        let unkept = |body: &str| {
            let answer = Answer { status: 409, headers: Vec::new(), body: body.into() };
            effects(&answer, kind_of(&answer), UUID)
        };
        let said = |status: u16| {
            format!(
                r#"{{"type":"urn:semel:problem:answer-not-kept","details":{{"originalStatus":{status}}}}}"#
            )
        };
        assert_eq!(unkept(&said(201)), Effects::Taken);
        assert_eq!(unkept(&said(422)), Effects::Unsaid, "it was refused, as far as that attempt goes");
        assert_eq!(unkept(&said(500)), Effects::Possible);
        assert_eq!(unkept(r#"{"error":"ANSWER_NOT_KEPT"}"#), Effects::Taken);
    }

    #[test]
    fn a_kept_failure_does_not_say_that_nothing_took_effect() {
        for status in [500, 502, 503, 504] {
            let headers = vec![("Idempotency-Replayed".to_owned(), "true".to_owned())];
            let answer = Answer { status, headers, body: Vec::new() };
            assert_eq!(effects(&answer, kind_of(&answer), UUID), Effects::Possible, "{status}");
        }
    }

    #[test]
    fn a_kept_answer_speaks_for_every_attempt_and_a_fresh_success_where_the_key_is_told_apart() {
        let answer = |status, header: (&str, &str)| Answer {
            status,
            headers: vec![(header.0.to_owned(), header.1.to_owned())],
            body: br#"{"code":"no-such-thing"}"#.to_vec(),
        };
        let replayed = answer(422, ("Idempotency-Replayed", "true"));
        assert_eq!(effects(&replayed, None, UUID), Effects::All);
        let done = answer(201, ("Idempotency-Replayed", "true"));
        assert_eq!(effects(&done, None, "order-1"), Effects::All);
        // Under another credential this key, which is no UUID, was another key, and may have taken effect.
        assert_eq!(effects(&replayed, None, "order-1"), Effects::Unsaid);
        let first = answer(422, ("Idempotency-Replayed", "false"));
        assert_eq!(effects(&first, None, UUID), Effects::Unsaid, "it says that it is none");
        let fresh = answer(201, ("Semel-Guarantee", "fenced"));
        assert_eq!(effects(&fresh, None, UUID), Effects::All);
        assert_eq!(effects(&fresh, None, "order-1"), Effects::Unsaid);
        assert_eq!(effects(&answer(201, ("X-Other", "1")), None, UUID), Effects::Unsaid);
    }

    #[test]
    fn an_answer_that_leads_elsewhere_may_come_after_an_effect() {
        for (status, header) in
            [(303, ("X-Other", "1")), (303, ("Idempotency-Replayed", "true")), (301, ("X-Other", "1"))]
        {
            let headers = vec![(header.0.to_owned(), header.1.to_owned())];
            let answer = Answer { status, headers, body: Vec::new() };
            assert_eq!(effects(&answer, None, UUID), Effects::Possible, "{status} {header:?}");
        }
    }

    /// The gate may have freed the key after a refusal by the service: an earlier attempt that is still on its way would run.
    #[test]
    fn a_fresh_refusal_by_the_service_does_not_speak_for_what_is_still_on_its_way() {
        for status in [400, 403, 404, 409, 422, 429, 503] {
            let headers = vec![("Semel-Guarantee".to_owned(), "fenced".to_owned())];
            let answer = Answer { status, headers, body: Vec::new() };
            assert_eq!(effects(&answer, None, UUID), Effects::Unsaid, "{status}");
        }
    }
}
