"""One keyed request, read: who sent it, under which key, for what. Pure: it becomes the parameters of the SQL functions."""

from __future__ import annotations

import hashlib
import json
import os
import time
import uuid
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

from .fingerprints import Content, Fingerprint, Parts
from .identity import Caller, id_of, lp, scope_by
from .keys import Lines, check_key, is_random_uuid, values_of
from .problems import Problem
from .profiles import Profile, profile_of
from .times import parse_timestamp

FIRST_SENT = "Idempotency-First-Sent"
FENCE = "Semel-Fence"
#: The host that a gateway counts in the scopes of its keys.
HOST = "Semel-Host"
_UUID_CHARS = frozenset("0123456789abcdefABCDEF-")


@dataclass(frozen=True)
class Route:
    """What is told about a route: its stable name, and how its requests are protected.

    `was` are former names: keys that are known under one of them stay known. `secrets` key the fingerprints, newest first.
    `hold_ms` is how long the transaction may idle before the database ends it and the key is free again.
    """

    name: str
    profile: Profile = field(default_factory=lambda: profile_of("ietf"))
    was: Tuple[str, ...] = ()
    secrets: Tuple[bytes, ...] = ()
    hold_ms: int = 30_000


@dataclass(frozen=True)
class HttpRequest:
    """The parts of an HTTP request that count. Without HTTP, a payload is a POST with nothing else."""

    method: str = "POST"
    params: Sequence[Tuple[str, str]] = ()
    query: str = ""
    headers: Lines = ()
    body: bytes = b""

    @property
    def content_type(self) -> Optional[str]:
        """The media type, if exactly one line names it."""
        values = values_of(self.headers, "content-type")
        return values[0].decode("latin-1") if len(values) == 1 else None


@dataclass(frozen=True)
class Call:
    """A keyed request, as the database is asked about it."""

    route: Route
    caller: Caller
    key: str
    scope: bytes
    id: bytes
    fingerprints: Tuple[Fingerprint, ...]
    payload_hash: Optional[bytes]
    body: bytes
    about: Dict[str, Any]
    options: Dict[str, Any]

    @property
    def profile(self) -> Profile:
        """The route's profile."""
        return self.route.profile

    def look_parameters(self) -> Tuple[Any, ...]:
        """Parameters of `semel.look`."""
        return (self.id, self.scope, self.key, self._fingerprint_array(), json.dumps(self.options))

    def enter_parameters(self, releases_nothing: bool = False) -> Tuple[Any, ...]:
        """Parameters of `semel.enter`. A refusal of the guard is recorded whatever its status."""
        options = {**self.options, "releases": []} if releases_nothing else self.options
        about = json.dumps(self.about)
        return (self.id, self.scope, self.key, self._fingerprint_array(), about, json.dumps(options))

    def admit_parameters(self, limits: Dict[str, Any]) -> Tuple[Any, ...]:
        """Parameters of `semel.admit`."""
        about = {"principal": self.caller.principal, "tenant": self.caller.tenant}
        return (self.id, json.dumps(about), json.dumps(limits))

    def _fingerprint_array(self) -> str:
        # As the text of an array, which every driver sends alike.
        digits = (f'"\\\\x{encode_fingerprint(print_).hex()}"' for print_ in self.fingerprints)
        return "{" + ",".join(digits) + "}"


def encode_fingerprint(fingerprint: Fingerprint) -> bytes:
    """The version in one byte, then the 32 bytes."""
    return bytes((fingerprint.version,)) + fingerprint.digest


def read_http(route: Route, caller: Caller, request: HttpRequest, request_id: str = "") -> Optional[Call]:
    """Reads a request; None where it has no key and needs none."""
    profile = route.profile
    if len(request.body) > profile.max_body_bytes:
        raise Problem("body-too-large", f"at most {profile.max_body_bytes} bytes are taken here")
    found = profile.key.read(request.headers, request.body)
    if found is None and profile.key.presence != "mint":
        return None
    kept = dict(profile.key.read_required(request.headers))
    key = mint_key(profile.generator) if found is None else found.key
    fences = values_of(request.headers, FENCE)
    fence = fences[0].decode("latin-1") if len(fences) == 1 else None
    # Only together with a fence: without a gateway's claim nobody chooses where a key is looked up.
    hosts = values_of(request.headers, HOST) if fence is not None else []
    host = hosts[0].decode("latin-1") if len(hosts) == 1 else None
    first_sent = _read_first_sent(profile, request.headers, key)
    return make_call(
        route,
        caller,
        key,
        request,
        request_id=request_id,
        client_tx_id=kept.get("x-client-tx-id"),
        fence=fence,
        first_sent=first_sent,
        host=host,
    )


def make_call(
    route: Route,
    caller: Caller,
    key: str,
    request: HttpRequest,
    request_id: str = "",
    client_tx_id: Optional[str] = None,
    fence: Optional[str] = None,
    first_sent: Optional[int] = None,
    host: Optional[str] = None,
) -> Call:
    """A call of a key that was read already."""
    profile = route.profile
    caller.check()
    check_key(profile.key.format, key)
    if caller.credential == "shared" and not is_random_uuid(key):
        raise Problem("key-too-weak", "a shared identity demands a version 4 UUID as key")
    recipe = profile.fingerprint
    content = None if recipe is None else recipe.content(request.content_type, request.body)
    prints = _prints(route, route.name, caller, request, content)
    scope = scope_by(profile.scope, caller, route.name, host)
    payload_hash = content.payload_hash if content is not None and profile.reveal == "payload-hashes" else None
    about: Dict[str, Any] = {"endpoint": route.name, "principal": caller.principal, "request_id": request_id}
    if caller.tenant is not None:
        about["tenant"] = caller.tenant
    if client_tx_id is not None:
        about["client_tx_id"] = client_tx_id
    if payload_hash is not None:
        about["payload_hash"] = payload_hash.hex()
    generated_at = _generated_at(profile, request.body)
    if generated_at is not None:
        about["client_generated_at"] = generated_at
    options = _options(route, fence, first_sent)
    rotation = _rotation(route, route.name, caller, key, prints)
    if rotation is not None:
        options["rotation"] = rotation.hex()
    formers = [_former(route, name, caller, key, request, content, host) for name in route.was]
    if formers:
        options["formers"] = formers
    return Call(
        route, caller, key, scope, id_of(scope, key), prints, payload_hash, request.body, about, options
    )


def mint_key(generator: str) -> str:
    """A key for a request that brings none."""
    if generator == "ulid":
        value = (time.time_ns() // 1_000_000 << 80) | int.from_bytes(os.urandom(10), "big")
        digits = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
        return "".join(digits[value >> (5 * place) & 31] for place in range(25, -1, -1))
    key = str(uuid.uuid4())
    return f"{key}-{time.time_ns() // 1_000_000}" if generator == "uuid4-ms" else key


def _options(route: Route, fence: Optional[str], first_sent: Optional[int]) -> Dict[str, Any]:
    profile = route.profile
    options: Dict[str, Any] = {
        "lifetime_ms": profile.lifetime_ms,
        "anchor": profile.anchor,
        "max_response_bytes": profile.max_response_bytes,
        "releases": sorted(status for status in profile.released if status < 500),
        "hold_ms": route.hold_ms,
        "retry_window_ms": profile.retry_window_ms,
        "skew_ms": profile.skew_ms,
    }
    if fence is not None:
        options["fence"] = fence
    if first_sent is not None:
        options["first_sent"] = first_sent
    return options


def _prints(
    route: Route, name: str, caller: Caller, request: HttpRequest, content: Optional[Content]
) -> Tuple[Fingerprint, ...]:
    recipe = route.profile.fingerprint
    if recipe is None or content is None:
        return ()
    parts = Parts(request.method, name, request.params, request.query, caller.principal)
    return recipe.fingerprints(parts, content, route.secrets)


def _former(
    route: Route,
    name: str,
    caller: Caller,
    key: str,
    request: HttpRequest,
    content: Optional[Content],
    host: Optional[str],
) -> Dict[str, Any]:
    prints = _prints(route, name, caller, request, content)
    former: Dict[str, Any] = {
        "scope": scope_by(route.profile.scope, caller, name, host).hex(),
        "fingerprints": [encode_fingerprint(print_).hex() for print_ in prints],
    }
    rotation = _rotation(route, name, caller, key, prints)
    if rotation is not None:
        former["rotation"] = rotation.hex()
    return former


def _rotation(
    route: Route, name: str, caller: Caller, key: str, prints: Sequence[Fingerprint]
) -> Optional[bytes]:
    """What recognises the same request under another credential, where only a hash of the credential is known."""
    is_uuid = len(key) == 36 and _UUID_CHARS.issuperset(key) and [key[place] for place in (8, 13, 18, 23)] == ["-"] * 4
    if caller.credential != "hashed" or not is_uuid or not prints:
        return None
    # By the oldest secret, so that a new one does not hide what was recorded before it came.
    digest = prints[max(len(route.secrets) - 1, 0)].digest
    message = lp(name.encode("utf-8")) + lp(key.lower().encode("ascii")) + lp(digest)
    return hashlib.sha256(message).digest()[:16]


def _generated_at(profile: Profile, body: bytes) -> Optional[int]:
    """When the user acted, for the record. Whether that is acceptable is the guard's business."""
    try:
        return profile.guard.read(body) if profile.guard is not None else None
    except Problem:
        return None


def _read_first_sent(profile: Profile, lines: Lines, key: str) -> Optional[int]:
    if profile.age is None:
        return None
    values: List[bytes] = values_of(lines, FIRST_SENT)
    if len(values) > 1:
        raise Problem("timestamp-invalid", f"{FIRST_SENT} is given twice")
    if values:
        millis = parse_timestamp(values[0].decode("latin-1"))
        if millis is None:
            raise Problem("timestamp-invalid", f"{FIRST_SENT} is malformed: expected an RFC 3339 date-time")
        return millis
    is_uuid7 = profile.age == "uuid7" and len(key) == 36 and key[14] == "7" and _UUID_CHARS.issuperset(key)
    return int(key.replace("-", "")[:12], 16) if is_uuid7 else None


def caller_of(given: Union[None, str, Caller], tenant: Optional[str] = None) -> Caller:
    """The caller that was given, by itself or as a principal's name."""
    if given is None:
        raise Problem("identity-missing", "nobody has verified who is calling")
    return given if isinstance(given, Caller) else Caller.verified(given, tenant)
