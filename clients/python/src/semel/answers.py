"""Answers: what a handler gives, what is kept of it, and how it is given again."""

from __future__ import annotations

import json
import struct
from typing import Any, Iterable, List, NamedTuple, Optional, Sequence, Tuple

from .profiles import Profile

#: Headers that are never kept: what belongs to one connection, one moment or one person.
NEVER_KEPT = frozenset(
    (
        "authorization",
        "connection",
        "content-length",
        "date",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "set-cookie",
        "set-cookie2",
        "te",
        "traceparent",
        "tracestate",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "www-authenticate",
        "authentication-info",
    )
)

#: Header lines of an answer: names in any case, values as bytes.
Headers = Sequence[Tuple[str, bytes]]


class Answer(NamedTuple):
    """A status, header lines and a body. `Answer.json({"id": 7}, 201)` is the usual way to make one."""

    status: int
    headers: Headers = ()
    body: bytes = b""

    @classmethod
    def json(cls, document: Any, status: int = 200, headers: Iterable[Tuple[str, Any]] = ()) -> "Answer":
        """An answer whose body is JSON."""
        lines = [("content-type", b"application/json"), *((name, _value(value)) for name, value in headers)]
        body = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
        return cls(status, lines, body)

    @classmethod
    def of(cls, given: Any) -> "Answer":
        """What a handler returned as an answer: an `Answer`, or a document that becomes JSON with status 200."""
        if isinstance(given, Answer):
            return cls(given.status, [(name.lower(), _value(value)) for name, value in given.headers], bytes(given.body))
        if isinstance(given, (dict, list, str, int, float, bool, type(None))):
            return cls.json(given)
        raise TypeError(f"a handler returns a semel.Answer or a JSON document, not {type(given).__name__}")

    def header(self, name: str) -> Optional[str]:
        """The first value of a header, as text."""
        for known, value in self.headers:
            if known.lower() == name:
                return value.decode("latin-1")
        return None

    @property
    def told(self) -> Optional[str]:
        """What the handler says of its effect by `Semel-Outcome`."""
        return self.header("semel-outcome")


def _value(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode("latin-1")


def filter_headers(headers: Headers) -> List[Tuple[str, bytes]]:
    """The header lines that are kept, with names in lower case."""
    lines = [(name.lower(), value) for name, value in headers]
    named = {
        name.strip().lower()
        for line, value in lines
        if line == "connection"
        for name in value.decode("latin-1").split(",")
    }
    return [
        (name, value)
        for name, value in lines
        if name not in NEVER_KEPT and not name.startswith("semel-") and name not in named
    ]


def pack(headers: Headers) -> bytes:
    """Packs header lines as records keep them: order, repetition and any bytes survive."""
    pieces = []
    for name, value in headers:
        encoded = name.encode("ascii")
        pieces += [struct.pack(">H", len(encoded)), encoded, struct.pack(">I", len(value)), value]
    return b"".join(pieces)


def unpack(packed: bytes) -> List[Tuple[str, bytes]]:
    """Reads what `pack`, or another of semel's writers, wrote."""
    headers, place = [], 0
    while place < len(packed):
        (length,) = struct.unpack_from(">H", packed, place)
        name = packed[place + 2 : place + 2 + length].decode("utf-8")
        place += 2 + length
        (length,) = struct.unpack_from(">I", packed, place)
        value = packed[place + 4 : place + 4 + length]
        place += 4 + length
        if place > len(packed):
            raise ValueError("packed headers end too early")
        headers.append((name, value))
    return headers


class Outcome(NamedTuple):
    """What came of a call: the answer, of this run or of the first, with the marks that go to the client."""

    status: int
    headers: Headers
    body: bytes
    #: Whether the answer was given again rather than made.
    replayed: bool = False
    #: `atomic`, or what a replayed record says of itself; `none` where there was no key.
    guarantee: str = "atomic"
    #: The number by which operators find the record; None where nothing was recorded.
    fence: Optional[str] = None

    def json(self) -> Any:
        """The body as a document."""
        return json.loads(self.body)


def marks(profile: Profile, guarantee: str) -> List[Tuple[str, bytes]]:
    """What is promised about a keyed answer."""
    lines = [("semel-guarantee", guarantee.encode("ascii"))]
    if guarantee != "none":
        lines.append(("semel-retention", str(profile.retry_window_ms // 1000).encode("ascii")))
    return lines


def replay(profile: Profile, answer: Answer, outcome_unknown: bool) -> Answer:
    """A record's answer, said again in the profile's form."""
    status, body = answer.status, answer.body
    headers = list(answer.headers)
    # What was refused or may not have taken effect is never dressed up as a success.
    if profile.duplicate_status is not None and not outcome_unknown and status < 400:
        status, body = profile.duplicate_status, _say_duplicate(body)
    if outcome_unknown:
        headers.append(("semel-outcome", b"unknown"))
    headers.append(("idempotency-replayed", b"true"))
    if profile.wire.stripe_headers:
        headers.append(("idempotent-replayed", b"true"))
    return Answer(status, headers, body)


def _say_duplicate(body: bytes) -> bytes:
    """A JSON object with the member that tells it from the first answer; everything else is left as it is spelled."""
    text = body.strip()
    try:
        document = json.loads(text)
    except ValueError:
        return body
    if not isinstance(document, dict) or "duplicate" in document:
        return body
    return b'{"duplicate":true}' if not document else text[:-1] + b',"duplicate":true}'
