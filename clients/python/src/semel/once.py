"""`once`: runs a function once under a key, its effect and its answer in one transaction of PostgreSQL."""

from __future__ import annotations

from typing import Any, Optional, Tuple, Union

from . import runners
from .answers import Answer
from .call import Call, HttpRequest, Route, caller_of, make_call
from .drivers import driver_of
from .identity import Caller
from .profiles import Profile, profile_of
from .walk import State, walk


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
) -> Call:
    """Reads a call. `payload` is what the key is for: bytes, or a document that is compared as JSON."""
    route = endpoint if isinstance(endpoint, Route) else Route(endpoint, profile_of(profile), was, secrets, hold_ms)
    if request is None:
        body = payload if isinstance(payload, (bytes, bytearray)) else Answer.json(payload).body
        request = HttpRequest(body=bytes(body))
    given = (request_id, client_tx_id, fence, first_sent)
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
