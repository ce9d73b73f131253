"""Profiles: everything in which routes may differ, as one value. The presets are those of `spec/contract.md`.

Only what a library inside the service needs is here: it has no leases, no probes, no sweeper.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Dict, FrozenSet, Optional, Tuple, Union

from .fingerprints import Recipe
from .keys import KeyPolicy
from .problems import Wire, Wording
from .schedule import Schedule
from .staleness import Guard
from .times import DAY, HOUR, MINUTE, SECOND

_TRANSIENT = frozenset((401, 403, 408, 409, 425, 429, 503))
_REFUSALS = frozenset(range(400, 500)) | {503}


@dataclass(frozen=True)
class Limit:
    """So many new keys in a window. With `per_key` each key is charged once in a window, however often it is tried."""

    count: int
    window_ms: int
    attempts_per_id: int = 100
    per_key: bool = True


@dataclass(frozen=True)
class Profile:
    """All settings of a route. Times are in milliseconds."""

    name: str = "ietf"
    key: KeyPolicy = KeyPolicy()
    scope: Tuple[str, ...] = ("tenant", "principal", "endpoint")
    #: None sees every request under one key as the same.
    fingerprint: Optional[Recipe] = Recipe()
    mismatch_status: int = 422
    #: What a mismatch shows: `none`, `prefix8` or `payload-hashes`.
    reveal: str = "none"
    #: `wait`, `reject` or `accepted`.
    in_flight: str = "wait"
    wait_ms: int = 25 * SECOND
    wire: Wire = Wire()
    retry_window_ms: int = DAY
    skew_ms: int = 5 * MINUTE
    margin_ms: int = HOUR
    #: From when a record's lifetime counts: `settled` or `created`.
    anchor: str = "settled"
    #: Statuses that roll the transaction back and leave the key free. Other answers below 500 commit with the record.
    released: FrozenSet[int] = _TRANSIENT
    #: The status of a replay that says `duplicate: true`; None repeats the first answer as it was.
    duplicate_status: Optional[int] = None
    methods: Tuple[str, ...] = ("POST", "PATCH")
    #: How a claim is shown to a client that is told 202.
    claimed_name: str = "in_progress"
    guard: Optional[Guard] = None
    #: Whether requests first sent before the retry window are refused; `uuid7` also reads the time in a key.
    age: Optional[str] = None
    admission: Optional[Limit] = None
    #: How keys are made for requests that bring none: `uuid4`, `uuid4-ms` or `ulid`.
    generator: str = "uuid4"
    max_body_bytes: int = 1 << 20
    max_response_bytes: int = 1 << 20
    #: For senders: the rules of classification before the common ones, and when to try again.
    schedule: Schedule = Schedule()

    @property
    def lifetime_ms(self) -> int:
        """How long a record lives from its anchor."""
        return self.retry_window_ms + 2 * self.skew_ms + self.margin_ms

    def with_retry_window(self, window_ms: int) -> "Profile":
        """The one number that users set; the margin follows it: clients that are away for days deserve one of a day."""
        margin = max(self.margin_ms, DAY) if window_ms > DAY and self.margin_ms else self.margin_ms
        return replace(self, retry_window_ms=window_ms, margin_ms=margin)

    def status_of(self, slug: str) -> Optional[int]:
        """The status of a problem, where this profile has one of its own."""
        return self.mismatch_status if slug == "fingerprint-mismatch" else None


_IETF = Profile()
_WALKER_WORDS = {
    "key-missing": Wording(code="IDEMPOTENCY_KEY_REQUIRED"),
    "key-invalid": Wording(code="IDEMPOTENCY_KEY_INVALID"),
    "key-ambiguous": Wording(code="IDEMPOTENCY_KEY_INVALID"),
    "key-too-weak": Wording(code="IDEMPOTENCY_KEY_INVALID"),
    "fingerprint-mismatch": Wording(code="IDEMPOTENCY_CONFLICT"),
    "in-flight": Wording(code="IDEMPOTENCY_IN_FLIGHT"),
}
_FEED_WORDS = {
    "key-missing": Wording(text="Missing Idempotency-Key header"),
    "key-invalid": Wording(text="Invalid Idempotency-Key format"),
    "key-ambiguous": Wording(text="Invalid Idempotency-Key format"),
    "fingerprint-mismatch": Wording(text="Idempotency key reused with different payload"),
    "in-flight": Wording(text="Request already being processed"),
}
_BARE = replace(_IETF.key, syntax="bare")
_BY_X = replace(_BARE, sources=("header:X-Idempotency-Key",))
_STRIPE = replace(
    _IETF,
    name="stripe",
    key=replace(_IETF.key, presence="optional"),
    mismatch_status=400,
    in_flight="reject",
    wire=Wire(stripe_headers=True),
    skew_ms=0,
    margin_ms=0,
    anchor="created",
    methods=("POST",),
)
_WALKER = replace(
    _IETF,
    name="walker",
    key=replace(_BARE, format="uuid4-lower"),
    scope=("principal", "endpoint"),
    fingerprint=Recipe(exclude=("/clientSubmittedAt",)),
    mismatch_status=409,
    reveal="payload-hashes",
    wire=Wire("envelope", _WALKER_WORDS),
    retry_window_ms=7 * DAY,
    skew_ms=6 * HOUR,
    margin_ms=12 * HOUR,
    anchor="created",
    released=_REFUSALS,
    methods=("POST",),
    guard=Guard(),
    schedule=Schedule(base_ms=5 * SECOND, jitter=0.25, burst_attempts=12, max_age_ms=7 * DAY),
)
_AGENTS = replace(
    _IETF,
    name="agents",
    key=replace(_BY_X, presence="optional"),
    scope=("tenant", "principal"),
    in_flight="reject",
    wire=Wire("text", {"in-flight": Wording(text="Request is being processed")}),
    skew_ms=0,
    margin_ms=0,
    anchor="created",
    methods=("POST", "PUT", "PATCH"),
)
_SCORES = replace(
    _IETF,
    name="scores",
    key=replace(_BY_X, format="any255"),
    scope=("tenant", "principal"),
    in_flight="accepted",
    wire=Wire("message", {"key-missing": Wording(text="Idempotency key required")}),
    retry_window_ms=23 * HOUR,
    skew_ms=0,
    margin_ms=HOUR,
    methods=("POST",),
    claimed_name="processing",
    schedule=Schedule(cap_ms=16 * SECOND, jitter=None, burst_attempts=6, period_ms=5 * MINUTE),
)
_FEED = replace(
    _IETF,
    name="feed",
    key=replace(_BARE, format="token255", require_headers=(("X-Client-Tx-Id", "token255"),)),
    scope=("principal", "endpoint"),
    in_flight="reject",
    wire=Wire("error", _FEED_WORDS),
    skew_ms=0,
    margin_ms=0,
    released=_REFUSALS,
    methods=("POST", "PUT", "PATCH", "DELETE"),
    claimed_name="processing",
    admission=Limit(1000, HOUR, per_key=False),
    generator="uuid4-ms",
    schedule=Schedule(cap_ms=32 * SECOND, jitter=None),
)
_MESH = replace(
    _IETF,
    name="mesh",
    key=replace(_BARE, sources=("json:/client_message_id", "header:Idempotency-Key"), presence="mint"),
    scope=("tenant",),
    fingerprint=Recipe(inputs=("method", "route", "params", "query", "principal", "body")),
    mismatch_status=409,
    reveal="prefix8",
    in_flight="accepted",
    wire=Wire("mesh", {"fingerprint-mismatch": Wording(code="idempotency_key_reused")}),
    retry_window_ms=6 * DAY,
    skew_ms=0,
    margin_ms=DAY,
    released=_REFUSALS,
    duplicate_status=200,
    methods=("POST",),
    claimed_name="inflight",
    generator="ulid",
    schedule=Schedule(max_age_ms=6 * DAY),
)

PRESETS: Dict[str, Profile] = {
    profile.name: profile for profile in (_IETF, _STRIPE, _WALKER, _AGENTS, _SCORES, _FEED, _MESH)
}


def profile_of(given: Union[str, Profile]) -> Profile:
    """The preset of a name, or the profile that was given."""
    if isinstance(given, Profile):
        return given
    if given not in PRESETS:
        raise ValueError(f"unknown profile {given!r}: expected one of {', '.join(PRESETS)}")
    return PRESETS[given]
