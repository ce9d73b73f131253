"""Timestamps and durations as the contract writes them. Reads no clock."""

from __future__ import annotations

import datetime
import re
from typing import Optional

_DATE_TIME = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt ]([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]+))?"
    r"(?:[Zz]|([+-])([0-9]{2}):([0-9]{2}))"
)
_EPOCH_DAY = datetime.date(1970, 1, 1).toordinal()
_FIRST = (datetime.date(1, 1, 1).toordinal() - _EPOCH_DAY) * 86_400_000
_LAST = (datetime.date(9999, 12, 31).toordinal() + 1 - _EPOCH_DAY) * 86_400_000 - 1

SECOND, MINUTE, HOUR, DAY = 1000, 60_000, 3_600_000, 86_400_000


def parse_timestamp(text: str) -> Optional[int]:
    """An RFC 3339 date-time in milliseconds since 1970, or None for what is none."""
    match = _DATE_TIME.fullmatch(text)
    if match is None:
        return None
    year, month, day, hour, minute, second = (int(match[group]) for group in range(1, 7))
    if hour > 23 or minute > 59 or second > 60:
        return None
    try:
        days = datetime.date(year, month, day).toordinal() - _EPOCH_DAY
    except ValueError:
        return None
    millisecond = int(((match[7] or "") + "000")[:3])
    offset = 0
    if match[8]:
        if int(match[9]) > 23 or int(match[10]) > 59:
            return None
        offset = (int(match[9]) * 60 + int(match[10])) * (1 if match[8] == "+" else -1)
    # A second of 60 is the first of the next minute, by plain arithmetic.
    instant = (((days * 24 + hour) * 60 + minute - offset) * 60 + second) * 1000 + millisecond
    return instant if _FIRST <= instant <= _LAST else None


def format_timestamp(millis: int) -> str:
    """The same instant as text."""
    seconds, rest = divmod(millis, 1000)
    date = datetime.datetime(1970, 1, 1) + datetime.timedelta(seconds=seconds)
    part = f".{rest:03d}" if rest else ""
    return f"{date.isoformat(timespec='seconds')}{part}Z"
