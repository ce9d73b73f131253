"""What a verdict of the database leads to: the recorded answer again, or a refusal. Pure."""

from __future__ import annotations

from typing import Any, Dict, Optional

from . import answers
from .answers import Answer, Outcome
from .call import Call, Route
from .failures import SOON_SECONDS
from .problems import Problem
from .profiles import Profile

UNKNOWN_RETRY_SECONDS = 30

#: One row of an SQL function, by column.
Row = Dict[str, Any]


def conclude(call: Call, row: Row, own_fence: Optional[str] = None) -> Outcome:
    """What a record leads to: its answer again, or a refusal."""
    verdict, profile = row["verdict"], call.profile
    if verdict == "replay":
        kept = Answer(row["status"], answers.unpack(row["headers"] or b""), row["body"] or b"")
        guarantee = row["guarantee"] or "atomic"
        if own_fence is not None and row["fence"] == own_fence:
            return finish(profile, kept, guarantee, own_fence)
        again = answers.replay(profile, kept, bool(row["outcome_unknown"]))
        return finish(profile, again, guarantee, row["fence"], replayed=True)
    raise _refuse(call, row)


def _refuse(call: Call, row: Row) -> Problem:
    verdict = row["verdict"]
    if verdict == "mismatch":
        return _mismatch(call, row)
    if verdict == "not-kept":
        return _not_kept(row)
    if verdict == "unknown":
        detail = "ask again later with the same key; a new key could do it twice"
        return Problem("outcome-unknown", detail, UNKNOWN_RETRY_SECONDS)
    if verdict == "credential-changed":
        detail = "this key was used for the same request with another credential; it is not run again"
        return Problem("credential-changed", detail)
    if verdict == "stale":
        return Problem("superseded", "", SOON_SECONDS)
    slugs = {"sealed": "key-sealed", "too-old": "too-old", "first-sent-in-future": "first-sent-in-future"}
    if verdict not in slugs:
        raise ValueError(f"the database gave a verdict that this version does not know: {verdict!r}")
    return Problem(slugs[verdict])


def _mismatch(call: Call, row: Row) -> Problem:
    detail = "the key was first used for a request with another method, path, query or body"
    fields: Dict[str, Any] = {}
    recorded = row["fingerprint"]
    if call.profile.reveal == "prefix8" and recorded:
        fields["request_fingerprint"] = recorded[1:9].hex()
    if call.profile.reveal == "payload-hashes" and call.payload_hash is not None:
        known = row.get("payload_hash")
        fields["expectedHash"] = known.hex() if known else None
        fields["receivedHash"] = call.payload_hash.hex()
    return Problem("fingerprint-mismatch", detail, None, **fields)


def _not_kept(row: Row) -> Problem:
    status = row["status"] or 0
    fields: Dict[str, Any] = {}
    if row["outcome_unknown"] or status >= 500:
        detail = "it ended in a server error; whether it took effect is not known"
    elif status >= 400:
        detail = "it was refused by the service, with an answer too large to keep"
    else:
        detail = "it took effect; do not send it again under another key"
    if row["outcome_unknown"]:
        fields["outcome"] = "unknown"
    if status:
        fields["originalStatus"] = status
    location = Answer(status, answers.unpack(row["headers"] or b"")).header("location")
    if location is not None:
        fields["location"] = location
    return Problem("answer-not-kept", detail, None, **fields)


def say_in_flight(profile: Profile) -> Outcome:
    if profile.in_flight == "accepted":
        # It is not an acknowledgement: the first attempt may still end without an effect.
        answer = Answer.json({"status": profile.claimed_name}, 202, [("semel-outcome", "pending"), ("retry-after", "1")])
        return finish(profile, answer, "atomic")
    raise Problem("in-flight", "", SOON_SECONDS)


def finish(
    profile: Profile, answer: Answer, guarantee: str, fence: Optional[str] = None, replayed: bool = False
) -> Outcome:
    headers = [*answer.headers, *answers.marks(profile, guarantee)]
    return Outcome(answer.status, headers, answer.body, replayed, guarantee, fence)


def outcome_of(route: Route, problem: Problem, request_id: str) -> Outcome:
    """A refusal in the form of the route's profile."""
    profile = route.profile
    rendered = problem.render(profile.wire, profile.status_of(problem.slug), request_id)
    headers = [(name, value.encode("latin-1")) for name, value in rendered.headers]
    if "outcome" in problem.fields:
        headers.append(("semel-outcome", b"unknown"))
    return Outcome(rendered.status, [*headers, *answers.marks(profile, "atomic")], rendered.body)
