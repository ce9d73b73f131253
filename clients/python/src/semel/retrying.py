"""For clients: retries of an HTTP request under one key, by the contract's classification and schedule.

One logical call is one request that should take effect once. It has one key, made before the first attempt and kept over every
retry; with a name and a file, over restarts of the program too. Requests that have no effect (GET, HEAD, OPTIONS, TRACE) pass as
they are.
"""

from __future__ import annotations

import email.utils
import random
import time
import uuid
from typing import Any, Callable, Mapping, NamedTuple, Optional, Tuple, Union

from . import classify, schedule
from .journal import Journal, Kept
from .profiles import Profile, profile_of
from .routes import SAFE_METHODS
from .times import format_timestamp

#: Names the logical call of a request; None for a call of its own.
CallOf = Callable[[Any], Optional[str]]

PATIENCE_SECONDS = 60.0


class GaveUp(Exception):
    """The call is too old to be sent again under its key: the server may have forgotten it. Ask what became of it."""


class StillRunning(Exception):
    """Patience ended, and the last answer was a success that says no more than that an earlier attempt still runs. That one may
    come to nothing: make the same call again, with the same key.
    """

    #: The key of the call.
    key: str
    #: The answer of httpx or requests, read to its end.
    answer: Any

    def __init__(self, key: str, answer: Any) -> None:
        super().__init__(f"an earlier attempt still runs, and may come to nothing; call again with the same key ({key})")
        self.key = key
        self.answer = answer


class Attempted(NamedTuple):
    """What came of an attempt; no status where no answer came."""

    status: Optional[int]
    headers: Mapping[str, str]
    body: bytes


class LogicalCall:
    """One request on its way: its key, and when to try again."""

    def __init__(self, settings: "Retrying", name: Optional[str], kept: Kept) -> None:
        self._settings = settings
        self._name = name
        self._kept = kept
        self._began = time.monotonic()
        self._failures = self._burst_failures = 0
        self._burst_began = self._began
        self._last: Tuple[Any, ...] = ()
        self._same = 0

    @property
    def headers(self) -> Tuple[Tuple[str, str], ...]:
        """What goes with every attempt."""
        return (
            (self._settings.key_header, self._kept.key),
            ("Idempotency-First-Sent", format_timestamp(self._kept.first_sent)),
        )

    @property
    def key(self) -> str:
        """The key of every attempt."""
        return self._kept.key

    def pause_after(self, attempted: Attempted) -> Optional[float]:
        """Seconds until the next attempt; None where this answer is the last word, or patience has an end."""
        settings = self._settings
        links = [attempted.headers["link"]] if "link" in attempted.headers else []
        is_error = attempted.status is not None and not 200 <= attempted.status < 300
        codes = classify.codes_of(attempted.body, links) if is_error else []
        outcome = attempted.headers.get("semel-outcome")
        should_retry = attempted.headers.get("x-should-retry")
        found = classify.judge(settings.profile.name, attempted.status, codes, should_retry, outcome)
        found = self._count(found, (attempted.status, *codes))
        if found.name not in ("retry", "retry-after"):
            if self._name is not None and found.name == "success":
                settings.journal.finish(self._name)
            return None
        told = _retry_after_ms(attempted.headers.get("retry-after"))
        if found.name == "retry-after" and told is None and (attempted.status == 409 or outcome == classify.PENDING):
            # It is being worked on: that is no failure, and it will not take long.
            told = settings.profile.schedule.base_ms
        if found.name == "retry-after" and told is not None:
            return self._schedule(told, 0)
        return self._schedule(schedule.BLOCKED if "blocked" in codes else schedule.FAILED, told or 0)

    @staticmethod
    def is_running(attempted: Attempted) -> bool:
        """Whether a success says no more than that an earlier attempt still runs."""
        is_success = attempted.status is not None and 200 <= attempted.status < 300
        return is_success and attempted.headers.get("semel-outcome") == classify.PENDING

    def _count(self, found: classify.Class, answer: Tuple[Any, ...]) -> classify.Class:
        """What an answer means that may come so often and no more."""
        self._same = self._same + 1 if answer == self._last else 1
        self._last = answer
        is_spent = found.max is not None and self._same > found.max
        return (found.then or classify.REJECTED) if is_spent else found

    def _schedule(self, cause: Any, at_least_ms: int) -> Optional[float]:
        settings, now = self._settings, time.monotonic()
        if cause == schedule.FAILED:
            self._failures += 1
            self._burst_failures += 1
        progress = schedule.Progress(
            self._failures, self._burst_failures, int((now - self._burst_began) * 1000), self.age_ms()
        )
        kind, value = settings.profile.schedule.next(progress, cause, settings.draw())
        if kind == "give-up":
            return None
        seconds = max(value, at_least_ms) / 1000
        if kind == "period":
            self._burst_failures, self._burst_began = 0, now + seconds
        return None if now + seconds - self._began > settings.patience else seconds

    def age_ms(self) -> int:
        """How long ago it was first sent."""
        return max(time.time_ns() // 1_000_000 - self._kept.first_sent, 0)


class Retrying:
    """Settings of retried calls, and the transports made of them."""

    def __init__(
        self,
        call: Union[None, str, CallOf] = None,
        file: Optional[str] = None,
        profile: Union[str, Profile] = "ietf",
        patience: float = PATIENCE_SECONDS,
        sleep: Callable[[float], Any] = time.sleep,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._call = call
        self.profile = profile_of(profile)
        self.patience = patience
        self.sleep = sleep
        self.draw = draw
        self.journal = Journal(file)
        headers = [source[len("header:") :] for source in self.profile.key.sources if source.startswith("header:")]
        self.key_header = headers[0] if headers else "Idempotency-Key"

    def begin(self, request: Any, method: str, url: str, given_key: Optional[str]) -> Optional[LogicalCall]:
        """The logical call of a request; None for requests that have no effect."""
        if method.upper() in SAFE_METHODS:
            return None
        name = self._call(request) if callable(self._call) else self._call
        key = given_key or str(uuid.uuid4())
        target = f"{method.upper()} {url}"
        if name is None:
            kept = Kept(key, target, time.time_ns() // 1_000_000)
        else:
            kept = self.journal.keep(name, key, target)
        if kept.target != target:
            raise ValueError(
                f"the call {name!r} was begun as {kept.target}, and {target} is another request: a call is one request; "
                "give this one a name of its own"
            )
        if given_key is not None and kept.key != given_key:
            raise ValueError(f"the call {name!r} was begun with another key than the one in the request's header")
        logical = LogicalCall(self, name, kept)
        max_age = self.profile.schedule.max_age_ms
        if max_age is not None and logical.age_ms() > max_age:
            raise GaveUp(f"the call {name!r} was first sent {logical.age_ms() // 3_600_000} hours ago; ask what became of it")
        return logical

    def httpx(self, transport: Any = None) -> Any:
        """A transport for `httpx.Client(transport=…)`."""
        from .transports import HttpxTransport

        return HttpxTransport(self, transport)

    def async_httpx(self, transport: Any = None) -> Any:
        """A transport for `httpx.AsyncClient(transport=…)`."""
        from .transports import AsyncHttpxTransport

        return AsyncHttpxTransport(self, transport)

    def requests(self, **options: Any) -> Any:
        """An adapter for `session.mount("https://", …)`; options are those of HTTPAdapter."""
        from .requests_adapter import RequestsAdapter

        return RequestsAdapter(self, **options)


def retrying(
    call: Union[None, str, CallOf] = None,
    file: Optional[str] = None,
    profile: Union[str, Profile] = "ietf",
    patience: float = PATIENCE_SECONDS,
    **options: Any,
) -> Retrying:
    """Makes transports that send a request until it has its answer, under one key.

    `call` names the logical call: a text for one call, a function of the request for many, None for a call of its own for each
    request. With `file`, named calls keep their keys over restarts. `patience` is how many seconds a request may take with all
    its retries; then the last answer or error goes to the caller, who may make the same call again under the same name. An answer
    that says that an earlier attempt still runs is none: `StillRunning` is raised then.
    """
    return Retrying(call, file, profile, patience, **options)


def _retry_after_ms(text: Optional[str]) -> Optional[int]:
    """`Retry-After` as milliseconds: seconds, or a date."""
    if text is None:
        return None
    text = text.strip()
    if text.isascii() and text.isdigit():
        return min(int(text[:12]), 10**9) * 1000
    try:
        date = email.utils.parsedate_to_datetime(text)
    except (TypeError, ValueError):
        return None
    return max(int((date.timestamp() - time.time()) * 1000), 0)
