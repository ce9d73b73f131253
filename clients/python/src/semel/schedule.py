"""When a sender tries again. Pure arithmetic: the caller brings the progress so far and a random number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Optional, Tuple, Union

from .times import DAY, HOUR, MINUTE, SECOND

#: The longest pause that a `Retry-After` can impose.
RETRY_AFTER_MAX_MS = DAY

FAILED, BLOCKED = "failed", "blocked"


class Progress(NamedTuple):
    """How far a message has come; attempts count the one that failed."""

    attempts: int
    attempts_in_burst: int
    burst_elapsed_ms: int
    age_ms: int


@dataclass(frozen=True)
class Schedule:
    """A retry schedule. `jitter` is None, a ratio, or `full`."""

    base_ms: int = SECOND
    factor: float = 2
    cap_ms: int = 5 * MINUTE
    jitter: Union[None, float, str] = "full"
    burst_attempts: Optional[int] = None
    burst_budget_ms: Optional[int] = None
    period_ms: int = 15 * MINUTE
    max_attempts: Optional[int] = None
    max_age_ms: Optional[int] = 23 * HOUR
    blocked_ms: int = 10 * MINUTE

    def next(self, progress: Progress, cause: Any, random: float) -> Tuple[str, Any]:
        """`("after", ms)`, `("period", ms)` or `("give-up", reason)`.

        `cause` is FAILED, BLOCKED, or the number of milliseconds that the receiver told us to wait.
        """
        if cause == BLOCKED:
            verdict = ("after", self.blocked_ms)
        elif cause == FAILED:
            verdict = self._after_failure(progress, random)
        else:
            # A receiver that says "at once" again and again must not be hammered for it.
            verdict = ("after", min(max(cause, self.base_ms), RETRY_AFTER_MAX_MS))
        if verdict[0] == "give-up":
            return verdict
        if self.max_age_ms is not None and progress.age_ms + verdict[1] > self.max_age_ms:
            return "give-up", "age"
        return verdict

    def _after_failure(self, progress: Progress, random: float) -> Tuple[str, Any]:
        if self.max_attempts is not None and progress.attempts >= self.max_attempts:
            return "give-up", "attempts"
        delay = self.delay(progress.attempts_in_burst, random)
        is_out_of_attempts = self.burst_attempts is not None and progress.attempts_in_burst >= self.burst_attempts
        is_out_of_time = (
            self.burst_budget_ms is not None and progress.burst_elapsed_ms + delay > self.burst_budget_ms
        )
        if is_out_of_attempts or is_out_of_time:
            return "period", self.period_ms
        return "after", delay

    def delay(self, attempt: int, random: float) -> int:
        """The delay after the n-th failure of a burst, counted from 1."""
        cap = float(self.cap_ms)
        nominal = min(float(self.base_ms), cap)
        # Multiplied step by step, as in every other language: a power gives other bits.
        for _ in range(1, attempt):
            if nominal >= cap or self.factor <= 1:
                break
            nominal = min(nominal * self.factor, cap)
        if self.jitter == "full":
            nominal *= random
        elif self.jitter is not None:
            ratio = float(self.jitter)
            nominal = min(nominal * (1 - ratio + 2 * ratio * random), cap)
        return int(max(nominal, 0))
