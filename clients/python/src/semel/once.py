"""`once`: runs a function once under a key, its effect and its answer in one transaction of PostgreSQL."""

from __future__ import annotations

from typing import Any, Optional, Tuple, Union

from . import runners
from .answers import Answer, Outcome
from .call import Call, HttpRequest, Route, caller_of, make_call, read_http
from .drivers import driver_of
from .identity import Caller
from .problems import Problem
from .profiles import Profile, profile_of
from .verdicts import outcome_of
from .walk import State, walk, walk_unkeyed


def prepare(
    endpoint: Union[str, Route],
    key: str,
    caller: Union[str, Caller],
    payload: Any = b"",
    tenant: Optional[str] = None,
    profile: Union[str, Profile] = "ietf",
    request: Optional[HttpRequest] = None,
    was: Tuple[str, ...] = (),
    secrets: Tuple[bytes, ...] = (),
    hold_ms: int = 30_000,
    request_id: str = "",
    client_tx_id: Optional[str] = None,
    fence: Optional[str] = None,
    first_sent: Optional[int] = None,
    host: Optional[str] = None,
) -> Call:
    """Reads a call. `payload` is what the key is for: bytes, or a document that is compared as JSON. Behind a gateway `fence` and
    `host` are what it says in `Semel-Fence` and `Semel-Host`."""
    route = endpoint if isinstance(endpoint, Route) else Route(endpoint, profile_of(profile), was, secrets, hold_ms)
    if request is None:
        body = payload if isinstance(payload, (bytes, bytearray)) else Answer.json(payload).body
        request = HttpRequest(body=bytes(body))
    given = (request_id, client_tx_id, fence, first_sent, host)
    return make_call(route, caller_of(caller, tenant), key, request, *given)


def once(database: Any, run: Any, endpoint: Union[str, Route], key: str, caller: Union[str, Caller], **options: Any) -> Any:
    """Runs `run(transaction)` once for this caller, endpoint and key, and gives the same answer ever after.

    `run` gets the driver's own connection or session, in a transaction that this function begins and commits. It returns an
    `Answer` or a JSON document, and may be run again after a serialisation failure or a lost COMMIT that did not take effect.
    What it returns decides about the transaction by the table in `semel.outcome`.

    With an asynchronous pool, engine or session maker the result is awaited, and `run` is a coroutine function.

    Raises `Problem`, the refusal that a client would get; its own exceptions `run` raises after a rollback.
    """
    call = prepare(endpoint, key, caller, **options)
    driver, is_async = driver_of(database)
    state = State(can_rerun=True)
    if is_async:
        return runners.run_async(walk(call, state), state, call, driver, run)
    return runners.run(walk(call, state), state, call, driver, run)


def serve(
    database: Any,
    run: Any,
    route: Route,
    caller: Union[None, str, Caller],
    request: HttpRequest,
    request_id: str = "",
) -> Any:
    """Answers an HTTP request once, in any framework: reads its key, runs `run(transaction)`, and renders refusals too.

    The result is an `Outcome` (awaited, with an asynchronous database) that is sent as it is. An exception of `run` goes on
    after a rollback.
    """
    driver, is_async = driver_of(database)
    state = State(can_rerun=True)
    try:
        call = read_http(route, caller_of(caller), request, request_id)
    except Problem as problem:
        refused = outcome_of(route, problem, request_id)
        return _give(refused) if is_async else refused
    steps = walk(call, state) if call is not None else walk_unkeyed(route.profile, state)
    if is_async:
        return _serve_async(steps, state, call, driver, run, route, request_id)
    try:
        return runners.run(steps, state, call, driver, run)
    except Problem as problem:
        return outcome_of(route, problem, request_id)


async def _give(outcome: Outcome) -> Outcome:
    return outcome


async def _serve_async(
    steps: Any, state: State, call: Optional[Call], driver: Any, run: Any, route: Route, request_id: str
) -> Outcome:
    try:
        return await runners.run_async(steps, state, call, driver, run)
    except Problem as problem:
        return outcome_of(route, problem, request_id)


class Entered:
    """A call whose handler is the body of a `with` block: `with semel.entered(pool, …) as call:`.

    Where the key is known, `call.outcome` is there at once: return it, and write nothing (the database would refuse it).
    Otherwise use `call.transaction`, and set `call.answer` before the block ends. After the block `call.outcome` is the answer
    as it was committed or rolled back.

    A block cannot be run again: after a serialisation failure the refusal is `superseded`, and after a COMMIT that got lost
    and did not take effect `store-unavailable`. Send the request again then, or use `once`, which does it by itself.
    """

    def __init__(self, database: Any, call: Call) -> None:
        self._driver, self._is_async = driver_of(database)
        self._call = call
        self._machine: Any = None
        self.transaction: Any = None
        self.answer: Any = None
        self.outcome: Optional[Outcome] = None

    def _make(self, kind: Any, is_async: bool) -> Any:
        if self._is_async != is_async:
            raise TypeError(f"use `{'async with' if self._is_async else 'with'}` with this database")
        state = State(can_rerun=False)
        self._machine = kind(walk(self._call, state), state, self._call, self._driver)
        return self._machine

    def _result(self, error: Optional[BaseException]) -> Tuple[Optional[Answer], Optional[Exception]]:
        if isinstance(error, Exception):
            return None, error
        if self.answer is None:
            return None, Problem("not-settled", "the block ended without setting an answer")
        return Answer.of(self.answer), None

    def __enter__(self) -> "Entered":
        machine = self._make(runners.Machine, False)
        try:
            self.transaction = machine.handle if machine.advance() else None
        except BaseException:
            machine.close()
            raise
        self.outcome = machine.outcome
        return self

    def __exit__(self, kind: Any, error: Optional[BaseException], trace: Any) -> None:
        try:
            is_exception = error is None or isinstance(error, Exception)
            if self.transaction is not None and is_exception:
                self._machine.advance(*self._result(error))
                self.outcome = self._machine.outcome
        finally:
            self.transaction = None
            self._machine.close()

    async def __aenter__(self) -> "Entered":
        machine = self._make(runners.AsyncMachine, True)
        try:
            self.transaction = machine.handle if await machine.advance() else None
        except BaseException:
            await machine.close()
            raise
        self.outcome = machine.outcome
        return self

    async def __aexit__(self, kind: Any, error: Optional[BaseException], trace: Any) -> None:
        try:
            is_exception = error is None or isinstance(error, Exception)
            if self.transaction is not None and is_exception:
                await self._machine.advance(*self._result(error))
                self.outcome = self._machine.outcome
        finally:
            self.transaction = None
            await self._machine.close()


def entered(
    database: Any, endpoint: Union[str, Route], key: str, caller: Union[str, Caller], **options: Any
) -> Entered:
    """The same as `once` for the body of a `with` or `async with` block. See `Entered`."""
    return Entered(database, prepare(endpoint, key, caller, **options))
