"""Whether an action is too old, by the server's clock. A client's time is an assertion: the guard bounds honest clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

from . import jsontext
from .problems import Problem
from .times import DAY, HOUR, format_timestamp, parse_timestamp


@dataclass(frozen=True)
class Guard:
    """The bounds, and where the times stand in the body."""

    generated_at: str = "/clientGeneratedAt"
    submitted_at: Optional[str] = "/clientSubmittedAt"
    cap_ms: int = 7 * DAY
    grace_ms: int = 6 * HOUR
    submitted: str = "ignore"
    submitted_gap_ms: Optional[int] = None

    def judge(self, generated_at: int, submitted_at: Optional[int], now: int) -> str:
        """`fresh`, `stale`, `future` or `invalid`."""
        if submitted_at is not None:
            if self.submitted_gap_ms is not None and submitted_at - generated_at > self.submitted_gap_ms:
                return "invalid"
            is_off = abs(now - submitted_at) > self.grace_ms
            if self.submitted == "refuse" and (is_off or generated_at > submitted_at + self.grace_ms):
                return "invalid"
            if self.submitted == "correct" and is_off:
                generated_at += now - submitted_at
        age = now - generated_at
        if age > self.cap_ms + self.grace_ms:
            return "stale"
        return "future" if age < -self.grace_ms else "fresh"

    def age_days(self, generated_at: int, submitted_at: Optional[int], now: int) -> int:
        """Whole days of age, as the details report it."""
        if self.submitted == "correct" and submitted_at is not None and abs(now - submitted_at) > self.grace_ms:
            generated_at += now - submitted_at
        return (now - generated_at) // DAY

    def check(self, body: bytes, now: int) -> None:
        """Refuses an action that is too old or too far in the future."""
        generated_at = self.read(body)
        if generated_at is None:
            raise Problem("timestamp-invalid", f"{self.generated_at} is required")
        submitted_at = None
        if self.submitted_at is not None:
            try:
                submitted_at = _timestamp(body, self.submitted_at)
            except Problem:
                pass  # It is for the log unless the options say otherwise, so a bad one is as good as none.
        verdict = self.judge(generated_at, submitted_at, now)
        if verdict == "invalid":
            raise Problem("timestamp-invalid", "the times of the action and of its sending contradict each other or the server's clock")
        told = {"clientGeneratedAt": format_timestamp(generated_at), "serverNow": format_timestamp(now)}
        if verdict == "stale":
            raise Problem(
                "stale-action",
                "the action is older than allowed",
                **told,
                ageDays=self.age_days(generated_at, submitted_at, now),
                capDays=self.cap_ms // DAY,
                graceHours=self.grace_ms // HOUR,
            )
        if verdict == "future":
            raise Problem("stale-action", "the action lies in the future", **told, graceHours=self.grace_ms // HOUR)

    def read(self, body: bytes) -> Optional[int]:
        """When the user acted."""
        return _timestamp(body, self.generated_at)


def _timestamp(body: bytes, pointer: str) -> Optional[int]:
    try:
        document, _ = jsontext.parse(body, names_once=True)
    except jsontext.NotJson:
        return None
    there, value = jsontext.resolve(document, pointer)
    if not there:
        return None
    if not isinstance(value, str):
        raise Problem("timestamp-invalid", f"{pointer}: expected an RFC 3339 date-time as a string")
    millis = parse_timestamp(value)
    if millis is None:
        raise Problem("timestamp-invalid", f"{pointer}: expected an RFC 3339 date-time")
    return millis
