"""Everything that can be refused, and how a refusal is written on the wire in the form that a profile chose.

The list is the contract's (`spec/contract.md`, Problems). Decides nothing.
"""

from __future__ import annotations

import json
import math
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

SAME_KEY, NEW_KEY, NEVER = "same-key", "new-key", "never"


class Kind(NamedTuple):
    """What went wrong: the status it is answered with, what the client may do, and the problem in a few words."""

    status: int
    retry: str
    title: str


KINDS: Dict[str, Kind] = {
    "request-malformed": Kind(400, NEVER, "The request cannot be read"),
    "identity-missing": Kind(401, NEVER, "The request has no verified identity"),
    "identity-refused": Kind(403, NEVER, "The caller may not send this request"),
    "identity-unavailable": Kind(503, SAME_KEY, "The caller could not be verified"),
    "key-missing": Kind(400, NEVER, "An idempotency key is required"),
    "key-invalid": Kind(400, NEVER, "The idempotency key is malformed"),
    "key-ambiguous": Kind(400, NEVER, "More than one idempotency key was given"),
    "key-too-weak": Kind(400, NEVER, "The idempotency key could be guessed"),
    "header-missing": Kind(400, NEVER, "A required header is missing or malformed"),
    "body-not-json": Kind(400, NEVER, "The body must be JSON here"),
    "body-too-large": Kind(413, NEVER, "The body is too large"),
    "timestamp-invalid": Kind(400, NEVER, "A timestamp is missing or malformed"),
    "first-sent-in-future": Kind(400, NEVER, "The first attempt lies in the future"),
    "stale-action": Kind(422, NEVER, "The action is too old or too far in the future"),
    "too-old": Kind(422, NEVER, "The request was first sent too long ago"),
    "fingerprint-mismatch": Kind(422, NEW_KEY, "The key was used for a different request"),
    "in-flight": Kind(409, SAME_KEY, "A request with this key is being processed"),
    "too-many-waiters": Kind(409, SAME_KEY, "Too many requests wait for this key"),
    "outcome-unknown": Kind(409, SAME_KEY, "It is not known whether the first request took effect"),
    "superseded": Kind(409, SAME_KEY, "Another attempt holds this key now"),
    "key-sealed": Kind(409, NEW_KEY, "The key was cancelled"),
    "credential-changed": Kind(409, NEVER, "The key was used with another credential"),
    "answer-not-kept": Kind(409, NEVER, "The answer to this request was not kept"),
    "request-limited": Kind(429, SAME_KEY, "Too many requests"),
    "admission-limited": Kind(429, SAME_KEY, "Too many new keys"),
    "overloaded": Kind(503, SAME_KEY, "Too much work is in progress"),
    "store-unavailable": Kind(503, SAME_KEY, "The record store cannot be reached"),
    "not-settled": Kind(500, SAME_KEY, "The handler did not record its answer"),
}

FORMS = ("problem", "envelope", "error", "message", "text", "mesh")


class Wording(NamedTuple):
    """What a profile says differently about one kind: another code, another text."""

    code: Optional[str] = None
    text: Optional[str] = None


class Wire(NamedTuple):
    """How a profile writes problems."""

    form: str = "problem"
    wording: Dict[str, Wording] = {}
    stripe_headers: bool = False


class Rendered(NamedTuple):
    """A problem as it goes over the wire."""

    status: int
    headers: List[Tuple[str, str]]
    body: bytes


class Problem(Exception):
    """One refusal, with the words and fields of this case. Nothing was executed under it, unless its kind says so."""

    def __init__(
        self, slug: str, detail: str = "", retry_after: Optional[float] = None, **fields: Any
    ) -> None:
        kind = KINDS[slug]
        super().__init__(f"{kind.title}: {detail}" if detail else kind.title)
        self.slug = slug
        self.kind = kind
        self.detail = detail
        self.retry_after = retry_after
        self.fields = fields

    def render(self, wire: Wire, status: Optional[int] = None, request_id: str = "") -> Rendered:
        """Writes it. `status` is the profile's own, where it differs from the kind's."""
        status = self.kind.status if status is None else status
        if wire.form == "text":
            body, content_type = self._text(wire).encode("utf-8"), "text/plain; charset=utf-8"
        else:
            document = self._document(wire, status, request_id)
            body = json.dumps(document, ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode("utf-8")
            content_type = "application/problem+json" if wire.form == "problem" else "application/json"
        return Rendered(status, self._headers(wire, content_type), body)

    def _headers(self, wire: Wire, content_type: str) -> List[Tuple[str, str]]:
        should_retry = "true" if self.kind.retry == SAME_KEY else "false"
        headers = [
            ("content-type", content_type),
            ("link", f'</.well-known/semel/problems/{self.slug}>; rel="describedby"'),
            ("x-should-retry", should_retry),
        ]
        if self.retry_after is not None:
            headers.append(("retry-after", str(math.ceil(self.retry_after))))
        if wire.stripe_headers:
            headers.append(("stripe-should-retry", should_retry))
        return headers

    def _document(self, wire: Wire, status: int, request_id: str) -> Dict[str, Any]:
        own = wire.wording.get(self.slug, Wording())
        text = self._text(wire)
        if wire.form == "problem":
            return self._problem(status, request_id)
        if wire.form == "envelope":
            code = own.code or self.slug.upper().replace("-", "_")
            return {"error": code, "message": text, "details": self.fields, "requestId": request_id}
        if wire.form == "error":
            body: Dict[str, Any] = {"error": text}
            if self.retry_after is not None:
                body["retry_after"] = int(self.retry_after * 1000)
            return body
        if wire.form == "message":
            # Where a profile has its own words, what is particular to the request stands beside them.
            return {"message": text} if self.detail in text else {"message": text, "detail": self.detail}
        if wire.form == "mesh":
            code = own.code or self.slug.replace("-", "_")
            return {"reason": text, **self.fields, "error": code}
        raise ValueError(f"unknown form of problems {wire.form!r}: expected one of {', '.join(FORMS)}")

    def _problem(self, status: int, request_id: str) -> Dict[str, Any]:
        body: Dict[str, Any] = {
            "type": f"urn:semel:problem:{self.slug}",
            "title": self.kind.title,
            "status": status,
            "retry": self.kind.retry,
            "request_id": request_id,
        }
        if self.fields:
            body["details"] = self.fields
        if self.detail:
            body["detail"] = self.detail
        if self.retry_after is not None:
            body["retry_after"] = math.ceil(self.retry_after)
        return body

    def _text(self, wire: Wire) -> str:
        return wire.wording.get(self.slug, Wording()).text or str(self)
