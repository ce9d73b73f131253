"""Middleware for FastAPI, Starlette and any ASGI application. It stands after authentication.

The request's transaction is begun before the application is called and committed after the application has returned: whatever
the application does for the request, the exit code of `yield` dependencies included, is in it. Only then the answer is sent.
FastAPI runs the exit code of `yield` dependencies after the response since 0.118; here "after the response" is still before
COMMIT, and before the first byte goes out. Background tasks of Starlette run at that point too: give what must come after
COMMIT to `after_commit`.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import secrets
from typing import Any, Awaitable, Callable, Dict, List, Optional, Sequence, Set, Tuple, Union

from . import runners
from .answers import Answer, Outcome
from .call import Call, HttpRequest, Route, caller_of, read_http
from .drivers import driver_of
from .drivers.threads import Threaded
from .identity import Caller
from .keys import KEY_HEADERS, values_of
from .problems import Problem
from .routes import SAFE_METHODS, Protected, Table, any_route, protect
from .verdicts import outcome_of
from .walk import HELD_BYTES_MAX, Gone, State, walk, walk_unkeyed

try:
    from starlette.requests import HTTPConnection
except ImportError:  # pragma: no cover - the middleware itself needs no Starlette
    HTTPConnection = Any

__all__ = ["Once", "after_commit", "protect", "transaction"]

_log = logging.getLogger("semel")
_NAME = "semel.request"

Scope = Dict[str, Any]
Message = Dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
#: Says who sent a request, from its ASGI scope; may be a coroutine function.
CallerOf = Callable[[Scope], Any]


class _Request:
    """What the application may ask of the request that it runs in."""

    def __init__(self) -> None:
        self.handle: Any = None
        self.hooks: List[Callable[[], Any]] = []


def transaction(connection: HTTPConnection) -> Any:
    """The transaction of a request: a connection or session of the driver. Takes a Starlette request; a FastAPI dependency."""
    request = connection.scope.get(_NAME)
    if request is None or request.handle is None:
        raise RuntimeError("no route of semel.asgi.Once covers this request, or its transaction has ended")
    return request.handle


def after_commit(connection: HTTPConnection, hook: Callable[[], Any]) -> None:
    """Runs a function or coroutine function after COMMIT was confirmed and the answer sent; never after a rollback."""
    request = connection.scope.get(_NAME)
    if request is None:
        raise RuntimeError("no route of semel.asgi.Once covers this request")
    request.hooks.append(hook)


def _user_of(scope: Scope) -> Union[None, str]:
    """The user that Starlette's AuthenticationMiddleware has verified."""
    user = scope.get("user")
    return user.identity if user is not None and getattr(user, "is_authenticated", False) else None


class Once:
    """`app.add_middleware(semel.asgi.Once, database=pool, routes=["POST /orders"], caller=who)`.

    `database`: a psycopg, asyncpg or SQLAlchemy pool, engine or session maker; a blocking one is used from threads.
    `routes`: patterns, or what `protect` makes of them; without any, every request that carries a key is protected.
    `caller`: from the ASGI scope to a `Caller` or a principal's name; None refuses. The default is Starlette's user.
    """

    def __init__(
        self,
        app: Any,
        database: Any,
        routes: Optional[Sequence[Union[str, Protected]]] = None,
        caller: CallerOf = _user_of,
    ) -> None:
        self._app = app
        self._table = Table([any_route()] if routes is None else routes)
        self._caller = caller
        driver, is_async = driver_of(database)
        self._driver = driver if is_async else Threaded(driver)
        self._running: Set["asyncio.Task[Any]"] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in SAFE_METHODS:
            await self._app(scope, receive, send)
            return
        path = (scope.get("raw_path") or scope["path"].encode("utf-8")).decode("latin-1").partition("?")[0]
        found = self._table.find(scope["method"], path)
        lines = [(name.decode("latin-1"), value) for name, value in scope["headers"]]
        if found is None:
            has_key = any(values_of(lines, name) for name in KEY_HEADERS)
            await self._app(scope, receive, _say_unprotected(send) if has_key else send)
            return
        route, params = found
        given = values_of(lines, "x-request-id")
        request_id = given[0].decode("latin-1") if given and 0 < len(given[0]) <= 128 else secrets.token_hex(8)
        try:
            caller = await self._identify(scope)
            body = await _read_body(receive, lines, route.profile.max_body_bytes)
            query = scope.get("query_string", b"").decode("latin-1")
            request = HttpRequest(scope["method"], params, query, lines, body)
            call = read_http(route, caller, request, request_id)
        except Problem as problem:
            await _send_problem(send, route, problem, request_id)
            return
        await self._run(scope, receive, send, route, call, body, request_id)

    async def _identify(self, scope: Scope) -> Caller:
        given = self._caller(scope)
        return caller_of(await given if inspect.isawaitable(given) else given)

    async def _run(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        route: Route,
        call: Optional[Call],
        body: bytes,
        request_id: str,
    ) -> None:
        state = State(can_rerun=True)
        client = _Client(receive, body, state)
        request = _Request()

        async def handle(handle: Any) -> Answer:
            request.handle, request.hooks = handle, []
            inner = {**scope, _NAME: request}
            if isinstance(scope.get("state"), dict):
                inner["state"] = dict(scope["state"])
            try:
                return await _capture(self._app, inner, client.replay())
            finally:
                request.handle = None

        steps = walk(call, state) if call is not None else walk_unkeyed(route.profile, state)
        work = asyncio.ensure_future(runners.run_async(steps, state, call, self._driver, handle))
        # A client that disconnects does not cancel the work; the set keeps it from being collected.
        self._running.add(work)
        work.add_done_callback(self._running.discard)
        try:
            outcome = await asyncio.shield(work)
        except Gone:
            return
        except Problem as problem:
            await _send_problem(send, route, problem, request_id)
            return
        finally:
            client.stop()
        await _send_outcome(send, outcome)
        is_fresh = not outcome.replayed and (outcome.fence is not None if call is not None else outcome.status < 400)
        if is_fresh:
            await _run_hooks(request.hooks)


class _Client:
    """The client's side of a request whose body was read: it is given to the application again, and watched for leaving."""

    def __init__(self, receive: Receive, body: bytes, state: State) -> None:
        self._body = body
        self._state = state
        self._gone = asyncio.Event()
        self._watch = asyncio.ensure_future(self._wait(receive))

    async def _wait(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._state.is_gone = True
        self._gone.set()

    def replay(self) -> Receive:
        """A `receive` that begins with the whole body. One for each run of the application."""
        is_read = False

        async def receive() -> Message:
            nonlocal is_read
            if not is_read:
                is_read = True
                return {"type": "http.request", "body": self._body, "more_body": False}
            await self._gone.wait()
            return {"type": "http.disconnect"}

        return receive

    def stop(self) -> None:
        self._watch.cancel()


async def _read_body(receive: Receive, lines: Sequence[Tuple[str, bytes]], limit: int) -> bytes:
    too_large = Problem("body-too-large", f"at most {limit} bytes are taken here")
    declared = values_of(lines, "content-length")
    # What the headers alone condemn is not read first.
    if declared and declared[0].isdigit() and int(declared[0]) > limit:
        raise too_large
    pieces: List[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Problem("request-malformed", "the request ended before its body did")
        pieces.append(message.get("body", b""))
        size += len(pieces[-1])
        if size > limit:
            raise too_large
        if not message.get("more_body", False):
            return b"".join(pieces)


async def _capture(app: Any, scope: Scope, receive: Receive) -> Answer:
    """The application's answer, whole. Returns after the application has returned."""
    status, headers, size, is_whole = 0, [], 0, False
    pieces: List[bytes] = []
    refusal: Optional[Problem] = None

    async def send(message: Message) -> None:
        nonlocal status, headers, size, is_whole, refusal
        if message["type"] == "http.response.start":
            status = message["status"]
            lines = message.get("headers", ())
            headers = [(bytes(name).decode("latin-1").lower(), bytes(value)) for name, value in lines]
            refusal = _refuse_stream(headers)
        elif message["type"] == "http.response.body":
            pieces.append(message.get("body", b""))
            size += len(pieces[-1])
            if size > HELD_BYTES_MAX:
                detail = f"an answer of more than {HELD_BYTES_MAX} bytes cannot be held until COMMIT"
                refusal = Problem("not-settled", detail)
            is_whole = not message.get("more_body", False)
        if refusal is not None:
            raise refusal

    try:
        await app(scope, receive, send)
    except Exception:
        # What was refused here is said here, however the application wraps the error.
        if refusal is not None:
            raise refusal from None
        raise
    if refusal is not None:
        raise refusal
    if not is_whole:
        raise Problem("not-settled", "the application returned before its answer was whole")
    return Answer(status, headers, b"".join(pieces))


def _refuse_stream(headers: Sequence[Tuple[str, bytes]]) -> Optional[Problem]:
    detail = "an answer that is recorded with its effect cannot be a stream; give it whole"
    is_stream = any(name == "content-type" and value.startswith(b"text/event-stream") for name, value in headers)
    return Problem("not-settled", detail) if is_stream else None


async def _send_outcome(send: Send, outcome: Outcome) -> None:
    headers = [(name.encode("latin-1"), value) for name, value in outcome.headers]
    if not any(name == b"content-length" for name, _ in headers) and outcome.status not in (204, 304):
        headers.append((b"content-length", str(len(outcome.body)).encode("ascii")))
    await send({"type": "http.response.start", "status": outcome.status, "headers": headers})
    await send({"type": "http.response.body", "body": outcome.body})


async def _send_problem(send: Send, route: Route, problem: Problem, request_id: str) -> None:
    await _send_outcome(send, outcome_of(route, problem, request_id))


def _say_unprotected(send: Send) -> Send:
    """A key on a route that nothing covers is not silently ignored: the answer says that it promises nothing."""

    async def marked(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", []), (b"semel-guarantee", b"none")]}
        await send(message)

    return marked


async def _run_hooks(hooks: Sequence[Callable[[], Any]]) -> None:
    for hook in hooks:
        try:
            given = hook()
            if inspect.isawaitable(given):
                await given
        except Exception:  # noqa: BLE001 - the answer is out; the next hook is no worse for it
            _log.exception("a hook that runs after COMMIT failed")
