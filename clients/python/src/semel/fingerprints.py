"""What a key was used for: 32 bytes over the parts of a request that a profile names. Pure."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from typing import NamedTuple, Optional, Sequence, Tuple

from . import jsontext
from .identity import lp
from .problems import Problem

INPUTS = ("method", "route", "params", "query", "principal", "body")
_LETTERS = {"method": b"m", "route": b"r", "params": b"p", "query": b"q", "principal": b"s", "body": b"b"}
_FORMS = {"none": b"n", "json": b"j", "raw": b"r"}

PLAIN, KEYED = 1, 2


class Content(NamedTuple):
    """A body as it is fingerprinted: `none`, `json` or `raw`, and its bytes after the pointers."""

    form: str
    content: bytes

    @property
    def payload_hash(self) -> bytes:
        """The plain hash of the body alone."""
        return hashlib.sha256(self.content).digest()


class Parts(NamedTuple):
    """What is fingerprinted beside the body."""

    method: str
    route: str
    params: Sequence[Tuple[str, str]] = ()
    query: str = ""
    principal: str = ""


class Fingerprint(NamedTuple):
    """A version (1 plain, 2 keyed) and 32 bytes."""

    version: int
    digest: bytes


@dataclass(frozen=True)
class Recipe:
    """What a request is recognised by."""

    inputs: Tuple[str, ...] = ("method", "route", "params", "query", "body")
    exclude: Tuple[str, ...] = ()
    include: Tuple[str, ...] = ()

    def content(self, content_type: Optional[str], body: bytes) -> Content:
        """The body in the form in which it counts."""
        if not body:
            return Content("none", b"")
        if _is_json(content_type):
            try:
                document, canonical = jsontext.parse(body)
            except jsontext.NotJson:
                canonical = False
            if canonical:
                document = jsontext.apply_pointers(document, self.exclude, self.include)
                return Content("json", jsontext.canonical_bytes(document))
        if self.exclude or self.include:
            raise Problem("body-not-json", "parts of the body are left out of the comparison, so it must be JSON")
        return Content("raw", body)

    def message(self, parts: Parts, content: Content) -> bytes:
        """The bytes that are hashed."""
        inputs = [name for name in INPUTS if name in self.inputs]
        if inputs == ["body"]:
            return content.content
        contents = {
            "method": parts.method.encode("utf-8"),
            "route": parts.route.encode("utf-8"),
            "params": b"".join(lp(name.encode("utf-8")) + lp(value.encode("utf-8")) for name, value in parts.params),
            "query": parts.query.encode("utf-8"),
            "principal": parts.principal.encode("utf-8"),
            "body": _FORMS[content.form] + content.content,
        }
        return lp(b"semel.fingerprint.1") + b"".join(_LETTERS[name] + lp(contents[name]) for name in inputs)

    def fingerprints(self, parts: Parts, content: Content, secrets: Sequence[bytes] = ()) -> Tuple[Fingerprint, ...]:
        """The fingerprint in every form that can be made here, the one that new records get first."""
        message = self.message(parts, content)
        keyed = [Fingerprint(KEYED, hmac.new(secret, message, hashlib.sha256).digest()) for secret in secrets]
        return (*keyed, Fingerprint(PLAIN, hashlib.sha256(message).digest()))


def _is_json(content_type: Optional[str]) -> bool:
    if content_type is None:
        return True
    essence = content_type.split(";")[0].strip(" \t").lower()
    return essence == "application/json" or essence.endswith("+json")
