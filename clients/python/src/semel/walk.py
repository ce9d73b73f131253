"""The walk of one call, in one direction: turn, enter, handler, leave, COMMIT. Decides; does nothing itself.

It is a generator that yields commands and is sent their results, so that blocking and asynchronous drivers run the very same
code (`runners.py`). Errors of the database are thrown into it as they are; `failure_of` reads them.

What can go wrong, and what is done:

| where | error | what is done |
| --- | --- | --- |
| enter, handler, leave, COMMIT | 40001, 40P01 | rolled back; all again, at most five times; where the handler cannot be run again, `superseded` |
| enter, handler, leave | connection lost, 25P03, 57P0x | nothing was committed: `store-unavailable` |
| leave | anything else | rolled back: `not-settled`; after SM003 the handler had ended the transaction by itself, and the problem says so |
| COMMIT | 23xxx | rolled back by the database: the error goes on |
| COMMIT | SM0xx, 25xxx | rolled back by the database: `not-settled` |
| COMMIT | anything else | its result is not known: enter again on a new connection, and answer from the record |
"""

from __future__ import annotations

import random
import time
from typing import Any, Generator, List, NamedTuple, Optional, Tuple

from . import answers
from .answers import Answer
from .call import Call
from .failures import SOON_SECONDS, explain, failure_of, store_unavailable
from .outcome import COMMIT, NOT_SETTLED, disposition
from .problems import Problem
from .profiles import Profile
from .verdicts import Row, conclude, finish, say_in_flight

RUNS_MAX = 5
POLL_FIRST_SECONDS, POLL_LONGEST_SECONDS = 0.010, 0.250
#: An answer that is held until COMMIT has an end.
HELD_BYTES_MAX = 64 << 20

ROLLED_BACK = "the answer was not recorded, and its transaction was rolled back: "
OUTSIDE = "the handler ended its transaction by itself; what it committed since stands without a record: "

_COLUMNS = (
    "verdict, status, headers, body, fence, outcome_unknown, guarantee, fingerprint, created_at, expires_at, now,"
    " payload_hash"
)
_KEYED = "CAST({} AS bytea), CAST({} AS bytea), CAST({} AS text), CAST(CAST({} AS text) AS bytea[])"
_JSONB = "CAST(CAST({} AS text) AS jsonb)"
LOOK = f"SELECT {_COLUMNS} FROM semel.look({_KEYED}, {_JSONB})"
ENTER = f"SELECT {_COLUMNS} FROM semel.enter({_KEYED}, {_JSONB}, {_JSONB})"
LEAVE = (
    "SELECT verdict, fence FROM semel.leave(CAST({} AS bytea), CAST({} AS integer), CAST({} AS bytea), CAST({} AS bytea))"
)
ADMIT = f"SELECT verdict, retry_after_ms, remaining FROM semel.admit(CAST({{}} AS bytea), {_JSONB}, {_JSONB})"


class Take(NamedTuple):
    """Waits for this process's turn at the key. The result is MINE, LATE, or AGAIN: a record may stand now."""

    until: float


class Ask(NamedTuple):
    """Runs a statement by itself, on a connection that is given back at once."""

    sql: str
    parameters: Tuple[Any, ...]


class Begin(NamedTuple):
    """Takes a connection and begins a transaction."""


class Query(NamedTuple):
    """Runs a statement in the transaction."""

    sql: str
    parameters: Tuple[Any, ...]


class Handle(NamedTuple):
    """Runs the handler in the transaction. The result is its answer."""


class Flush(NamedTuple):
    """Sends what an object mapper has not sent yet."""


class Commit(NamedTuple):
    """Sends COMMIT."""


class End(NamedTuple):
    """Rolls back what is not committed and gives the connection back; `discard` closes it instead. Never fails."""

    discard: bool = False


class Sleep(NamedTuple):
    """Waits, holding nothing."""

    seconds: float


MINE, AGAIN, LATE = "mine", "again", "late"

Command = Any
Walk = Generator[Command, Any, Any]


class State:
    """What the walk tells the one who runs it."""

    def __init__(self, can_rerun: bool) -> None:
        #: Whether the handler may be run again after a serialisation failure.
        self.can_rerun = can_rerun
        #: Whether a record stands, so that all who wait for the key may read it at once.
        self.has_record = False
        #: Whether the client has gone; a waiter that has gone never claims.
        self.is_gone = False


class Gone(Exception):
    """The client went away while it waited. Nothing was run for it."""


def walk(call: Call, state: State) -> Walk:
    """Runs a keyed call once. Returns its Outcome, or raises the refusal that the client gets."""
    profile = call.profile
    until = time.monotonic() + (profile.wait_ms / 1000 if profile.in_flight == "wait" else 0)
    while True:
        place = yield Take(until)
        if place == LATE:
            return say_in_flight(profile)
        if place == AGAIN:
            row = yield from _ask(call)
            if row["verdict"] not in ("execute", "in-flight"):
                return conclude(call, row)
            continue
        if state.is_gone:
            raise Gone
        return (yield from _attempt(call, state, until))


def walk_unkeyed(profile: Profile, state: State) -> Walk:
    """Runs a handler that needs no key and has none: in a transaction, without a record."""
    yield from _begin()
    answer: Answer = yield from _handle(state)
    if disposition(profile, answer.status, answer.told) == COMMIT:
        yield Flush()
        yield Commit()
    yield End()
    return finish(profile, answer, "none")


def _attempt(call: Call, state: State, until: float) -> Walk:
    """Everything that happens while this call has the process's turn at its key."""
    refusal: Optional[Answer] = None
    if call.profile.admission is not None or call.profile.guard is not None:
        row = yield from _ask(call)
        if row["verdict"] not in ("execute", "in-flight"):
            state.has_record = True
            return conclude(call, row)
        refusal = yield from _admit(call, row)
    runs, own_fence = 0, None
    while True:
        try:
            row = yield from _enter(call, state, until, refusal is not None)
            if row is None:
                return say_in_flight(call.profile)
            if row["verdict"] != "execute":
                state.has_record = True
                return conclude(call, row, own_fence)
            runs += 1
            if own_fence is not None and not state.can_rerun:
                yield End()
                raise store_unavailable("the transaction did not commit; send it again with the same key")
            answer = refusal if refusal is not None else (yield from _handle(state))
            outcome, own_fence = yield from _settle(call, state, answer, refusal is not None)
            if outcome is not None:
                return outcome
            # The result of COMMIT is not known. What stands is asked of the database, never remembered.
        except Problem:
            raise
        except Exception as error:  # noqa: BLE001 - errors of four drivers have no common base
            yield End()
            failure = failure_of(error)
            if failure is None or not failure.is_retryable:
                raise
            if runs >= RUNS_MAX or not state.can_rerun:
                raise Problem("superseded", "send it again with the same key", SOON_SECONDS) from error
            yield Sleep(0.005 * (2**runs) * random.random())


def _enter(call: Call, state: State, until: float, releases_nothing: bool) -> Walk:
    """The verdict of enter; None where the key was in flight for too long. This is the process's one poller of the key."""
    pause = POLL_FIRST_SECONDS
    while True:
        yield from _begin()
        try:
            row = yield Query(ENTER, call.enter_parameters(releases_nothing))
        except Exception as error:  # noqa: BLE001
            failure = failure_of(error)
            yield End(discard=failure is None or failure.is_away)
            raise explain(error, failure) from error
        if row["verdict"] == "execute":
            return row
        yield End()
        if row["verdict"] != "in-flight":
            return row
        while row["verdict"] == "in-flight":
            left = until - time.monotonic()
            if left <= 0:
                return None
            yield Sleep(min(pause, left))
            pause = min(pause * 2, POLL_LONGEST_SECONDS)
            if state.is_gone:
                raise Gone
            row = yield from _ask(call)
        if row["verdict"] != "execute":
            return row


def _settle(call: Call, state: State, answer: Answer, is_refusal: bool) -> Walk:
    """Carries out what the answer does to the transaction. No outcome: COMMIT was sent, its result is not known."""
    verdict = COMMIT if is_refusal else disposition(call.profile, answer.status, answer.told)
    if verdict == NOT_SETTLED:
        yield End()
        raise Problem("not-settled", f"an answer of {answer.status} cannot be recorded as applied")
    if verdict != COMMIT:
        yield End()
        return finish(call.profile, answer, "atomic"), None
    yield Flush()
    kept = answers.pack(answers.filter_headers(answer.headers))
    try:
        left = yield Query(LEAVE, (call.id, answer.status, kept, answer.body))
    except Exception as error:  # noqa: BLE001
        failure = failure_of(error)
        if failure is not None and failure.is_retryable:
            raise
        yield End(discard=True)
        if failure is not None and failure.is_away:
            raise store_unavailable("the connection was lost before COMMIT") from error
        said = str(error)
        is_outside = failure is not None and failure.sqlstate == "SM003" and "savepoint" not in said
        raise Problem("not-settled", (OUTSIDE if is_outside else ROLLED_BACK) + said) from error
    try:
        yield Commit()
    except Exception as error:  # noqa: BLE001
        if not (yield from _is_lost(error)):
            raise
        return None, left["fence"]
    state.has_record = True
    yield End()
    return finish(call.profile, answer, "atomic", left["fence"]), None


def _is_lost(error: Exception) -> Walk:
    """Whether a failed COMMIT may have taken effect all the same."""
    failure = failure_of(error)
    sqlstate = failure.sqlstate if failure is not None else None
    if sqlstate is not None and sqlstate.startswith(("40", "23")):
        return False
    if sqlstate is not None and sqlstate.startswith(("SM0", "25")):
        yield End(discard=True)
        raise Problem("not-settled", f"the database refused to commit: {error}") from error
    yield End(discard=True)
    return True


def _begin() -> Walk:
    try:
        yield Begin()
    except Exception as error:  # noqa: BLE001
        yield End(discard=True)
        raise explain(error, failure_of(error)) from error


def _handle(state: State) -> Walk:
    """The handler's answer. A connection that it lost is said in the contract's words; its other errors are its own."""
    try:
        answer = yield Handle()
    except Exception as error:  # noqa: BLE001
        failure = failure_of(error)
        if failure is not None and failure.is_retryable and state.can_rerun:
            raise
        yield End(discard=failure is not None and failure.is_away)
        if failure is not None and failure.sqlstate is not None and failure.is_away:
            raise store_unavailable("the connection was lost before COMMIT") from error
        raise
    if len(answer.body) > HELD_BYTES_MAX:
        yield End()
        raise Problem("not-settled", f"an answer of more than {HELD_BYTES_MAX} bytes cannot be held until COMMIT")
    return answer


def _ask(call: Call) -> Walk:
    try:
        return (yield Ask(LOOK, call.look_parameters()))
    except Exception as error:  # noqa: BLE001
        raise explain(error, failure_of(error)) from error


def _admit(call: Call, row: Row) -> Walk:
    """Charges a new key, and asks the guard. A refusal of the guard is recorded and replayed like an answer."""
    profile = call.profile
    limit = profile.admission
    if limit is not None:
        charge = "id-window" if limit.per_key else "new-key"
        rate = {
            "count": limit.count,
            "window_ms": limit.window_ms,
            "charge": charge,
            "attempts_per_id": limit.attempts_per_id,
        }
        told = yield Ask(ADMIT, call.admit_parameters({"admission": rate}))
        if told["verdict"] != "admitted":
            raise Problem(told["verdict"], "", max(SOON_SECONDS, -(-int(told["retry_after_ms"] or 0) // 1000)))
    if profile.guard is None:
        return None
    try:
        profile.guard.check(call.body, row["now"])
    except Problem as problem:
        if problem.slug != "stale-action":
            raise
        rendered = problem.render(profile.wire, None, call.about["request_id"])
        headers: List[Tuple[str, bytes]] = [(name, value.encode("latin-1")) for name, value in rendered.headers]
        return Answer(rendered.status, headers, rendered.body)
    return None
