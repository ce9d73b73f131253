"""What a handler's answer does to the transaction: one table for every way into this library.

| the handler | the transaction |
| --- | --- |
| answered with a status that the profile releases | rolled back; the key is free, the answer goes out |
| answered 5xx | rolled back; the key is free, the answer goes out |
| answered `Semel-Outcome: not-applied` | rolled back; the key is free, the answer goes out |
| answered `Semel-Outcome: applied` with a status of the first two rows | rolled back; 500 `not-settled` goes out, since such an answer cannot be recorded with its effect |
| answered anything else | committed together with the record of the answer |
| raised | rolled back; the key is free, the exception goes on |

Checked against `spec/vectors/dispositions.json` (atomic rows). What the contract calls `not-settled` there, since the handler
did not settle it, is committed here where it can be: this library settles it.
"""

from __future__ import annotations

from typing import Optional

from .profiles import Profile

COMMIT, ROLL_BACK, NOT_SETTLED = "commit", "roll-back", "not-settled"


def disposition(profile: Profile, status: int, told: Optional[str] = None) -> str:
    """What becomes of the transaction of a handler that answered with this status. `told` is its `Semel-Outcome`."""
    if not 200 <= status <= 599:
        raise ValueError(f"a handler's answer has a status from 200 to 599, not {status}")
    if told == "not-applied":
        return ROLL_BACK
    if status >= 500 or status in profile.released:
        return NOT_SETTLED if told == "applied" else ROLL_BACK
    return COMMIT
