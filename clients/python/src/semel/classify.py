"""What an answer means to a sender. One ordered table for each profile; the first rule that matches counts."""

from __future__ import annotations

import re
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

from . import jsontext


class Class(NamedTuple):
    """`success`, `retry`, `retry-after`, `auth`, `rebuild`, `drop` or `dead`; a `retry` may have an end."""

    name: str
    reason: Optional[str] = None
    max: Optional[int] = None
    then: Optional["Class"] = None


SUCCESS, RETRY, RETRY_AFTER = Class("success"), Class("retry"), Class("retry-after")
AUTH, REBUILD, REJECTED = Class("auth"), Class("rebuild"), Class("dead", "rejected")

_WAITING = ("in-flight", "too-many-waiters", "outcome-unknown", "superseded", "idempotency-in-flight")
_SPENT = (
    "fingerprint-mismatch",
    "key-sealed",
    "credential-changed",
    "answer-not-kept",
    "idempotency-conflict",
    "idempotency-key-reused",
)

#: Statuses, codes (None for any or none), class.
Rule = Tuple[Iterable[int], Optional[Sequence[str]], Class]

_BEFORE: List[Rule] = [(range(200, 300), None, SUCCESS), ((401,), None, AUTH)]
_AFTER: List[Rule] = [((408, 425, 429, 503), None, RETRY_AFTER), (range(500, 600), None, RETRY)]
_ANY_409: List[Rule] = [((409,), _SPENT, REJECTED), ((409,), None, RETRY_AFTER)]


def _drop(reason: str) -> Class:
    return Class("drop", reason)


_OWN: Dict[str, List[Rule]] = {
    "ietf": [((409,), _WAITING, RETRY_AFTER)],
    "stripe": _ANY_409,
    "agents": _ANY_409,
    "scores": _ANY_409,
    "walker": [
        ((409,), ("idempotency-conflict",), _drop("idempotency-conflict")),
        ((409,), ("already-allocated", "quest-already-completed", "quest-already-in-progress"), SUCCESS),
        ((409,), _WAITING, RETRY_AFTER),
        ((422,), ("stale-action",), _drop("stale-action")),
        ((422,), ("prerequisites-not-met",), _drop("prereq-slipped")),
        ((422,), ("insufficient-points",), _drop("points-changed")),
        ((422,), ("step-out-of-order", "ordering-violation"), REBUILD),
        ((422,), None, Class("retry", None, 1, _drop("unknown-422"))),
        ((400,), None, _drop("bad-request")),
    ],
    "feed": [*_ANY_409, ((422,), None, Class("dead", "conflicting-payload"))],
    "mesh": [
        ((403,), ("identity-refused",), AUTH),
        # A member that may not do this may do other things: its lanes do not wait for a new credential.
        ((403,), None, Class("retry", None, 3, Class("dead", "forbidden"))),
        ((409,), _WAITING, RETRY_AFTER),
    ],
}
RULES: Dict[str, List[Rule]] = {name: [*_BEFORE, *own, *_AFTER] for name, own in _OWN.items()}


def classify(profile: str, status: Optional[int], codes: Sequence[str] = ()) -> Class:
    """What an answer with this status and these codes means. No answer at all is always worth another try."""
    if status is None:
        return RETRY
    spelled = {code.lower().replace("_", "-") for code in codes}
    for statuses, wanted, result in RULES[profile]:
        if status in statuses and (wanted is None or spelled.intersection(wanted)):
            return result
    return REJECTED


def code_of(body: bytes) -> Optional[str]:
    """The code in an error body: the last segment of `type`, else `code`, else `error`, else `error.code`."""
    try:
        document, _ = jsontext.parse(body)
    except jsontext.NotJson:
        return None
    if not isinstance(document, dict):
        return None
    kind = document.get("type")
    if isinstance(kind, str) and kind != "about:blank":
        segment = re.split("[:/]", kind)[-1]
        if segment:
            return segment
    error = document.get("error")
    candidates: List[Any] = [document.get("code"), error]
    if isinstance(error, dict):
        candidates.append(error.get("code"))
    return next((text for text in candidates if isinstance(text, str)), None)


_PAGE = re.compile(r"<[^>]*/\.well-known/semel/problems/([a-z0-9-]+)>")


def codes_of(body: bytes, links: Sequence[str] = ()) -> List[str]:
    """The codes of an answer: that of its body, and that of the page to which its `Link` leads."""
    found = [code_of(body)]
    for link in links:
        if 'rel="describedby"' in link or "rel=describedby" in link:
            match = _PAGE.search(link)
            found.append(match[1] if match else None)
    return [code for code in found if code]


#: What `Semel-Outcome` says while another attempt of the same request still runs.
PENDING = "pending"


def judge(
    profile: str, status: Optional[int], codes: Sequence[str], should_retry: Optional[str], outcome: Optional[str] = None
) -> Class:
    """The class of an answer. One that only says that another attempt still runs is no answer yet, whatever its status; a 409
    that no code tells apart is not tried again where the server says so."""
    if status is not None and outcome == PENDING:
        return RETRY_AFTER
    found = classify(profile, status, codes)
    if status == 409 and found == RETRY_AFTER and not codes and (should_retry or "").strip().lower() == "false":
        return REJECTED
    return found
