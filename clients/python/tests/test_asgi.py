"""The ASGI middleware: nothing is sent before COMMIT is confirmed, whatever the framework does around it."""

import asyncio
import contextlib
import json
import uuid

import psycopg
import pytest
from psycopg_pool import AsyncConnectionPool
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

import semel
from fastapi import BackgroundTasks, Depends, FastAPI, Request
from fastapi.responses import StreamingResponse
from semel import asgi
from service import sqlalchemy_url
from starlette.authentication import AuthCredentials, AuthenticationBackend, SimpleUser
from starlette.middleware.authentication import AuthenticationMiddleware


class Client:
    """Calls an application and notes, at each message of its answer, what another connection sees committed."""

    def __init__(self, app, database, run):
        self.app, self.database, self.run = app, database, run

    def effects(self):
        return self.database.execute("SELECT count(*) FROM once_effect WHERE run = %s", (self.run,)).fetchone()[0]

    async def post(self, path="/orders", key="", body=b"{}", headers=(), gone=None):
        lines = [(name.lower().encode(), value.encode()) for name, value in headers]
        if key:
            lines.append((b"idempotency-key", key.encode()))
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "path": path.partition("?")[0],
            "raw_path": path.encode(),
            "query_string": path.partition("?")[2].encode(),
            "headers": [(b"content-type", b"application/json"), (b"x-user", b"alice"), *lines],
            "scheme": "http",
            "server": ("test", 80),
            "client": ("test", 1),
            "root_path": "",
        }
        is_read, sent, seen = False, [], []

        async def receive():
            nonlocal is_read
            if not is_read:
                is_read = True
                return {"type": "http.request", "body": body, "more_body": False}
            await (gone or asyncio.Event()).wait()
            return {"type": "http.disconnect"}

        async def send(message):
            seen.append(self.effects())
            sent.append(message)

        await self.app(scope, receive, send)
        if not sent:
            return None
        answer = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        content = b"".join(message.get("body", b"") for message in sent[1:])
        return sent[0]["status"], answer, content, seen


@pytest.fixture
def run():
    return uuid.uuid4().hex


@pytest.fixture
def key():
    return str(uuid.uuid4())


def user(scope):
    return dict(scope["headers"]).get(b"x-user", b"").decode() or None


@contextlib.asynccontextmanager
async def client_of(app, postgres, run, pool=None, **options):
    with psycopg.connect(postgres, autocommit=True) as database:
        async with AsyncConnectionPool(postgres, min_size=1, max_size=4) as own:
            options.setdefault("caller", user)
            options.setdefault("routes", ["POST /orders"])
            app.add_middleware(asgi.Once, database=pool or own, **options)
            yield Client(app, database, run)


async def insert(transaction, run, name="a"):
    await transaction.execute("INSERT INTO once_effect VALUES (%s, %s)", (run, name))


def test_no_byte_is_sent_before_commit(postgres, run, key):
    app = FastAPI()

    @app.post("/orders", status_code=201)
    async def order(transaction=Depends(asgi.transaction)):
        await insert(transaction, run)
        return {"ok": True}

    async def check():
        async with client_of(app, postgres, run) as client:
            status, headers, body, seen = await client.post(key=key)
            assert (status, json.loads(body)) == (201, {"ok": True})
            assert seen == [1, 1], "the effect is committed when the first message goes out"
            assert headers["semel-guarantee"] == "atomic"
            status, headers, again, seen = await client.post(key=key)
            assert (status, again, headers["idempotency-replayed"]) == (201, body, "true")
            assert client.effects() == 1

    asyncio.run(check())


def test_the_exit_code_of_a_yield_dependency_is_in_the_transaction(postgres, run, key):
    """FastAPI runs it after the response since 0.118. Here the response is held, so that it is committed all the same."""
    app, order_of = FastAPI(), []

    async def audited(transaction=Depends(asgi.transaction)):
        yield transaction
        order_of.append("exit")
        # Long enough for an answer, or a COMMIT, that did not wait.
        await asyncio.sleep(0.1)
        await insert(transaction, run, "written on exit")

    @app.post("/orders")
    async def order(transaction=Depends(audited)):
        await insert(transaction, run)
        order_of.append("handler")
        return {}

    async def check():
        async with client_of(app, postgres, run) as client:
            status, _, _, seen = await client.post(key=key)
            assert (status, seen) == (200, [2, 2]), "both rows are committed before the first byte"
            assert order_of == ["handler", "exit"]

    asyncio.run(check())


def test_exit_code_that_fails_rolls_everything_back(postgres, run, key):
    app = FastAPI()

    async def failing(transaction=Depends(asgi.transaction)):
        yield transaction
        raise KeyError("on exit")

    @app.post("/orders")
    async def order(transaction=Depends(failing)):
        await insert(transaction, run)
        return {"ok": "a lie"}

    async def check():
        async with client_of(app, postgres, run) as client:
            with pytest.raises(KeyError):
                await client.post(key=key)
            assert client.effects() == 0

    asyncio.run(check())


def test_a_session_of_the_users_own_on_the_transaction_is_committed_with_it(postgres, run, key):
    app = FastAPI()

    async def session(connection=Depends(asgi.transaction)):
        async with AsyncSession(bind=connection, join_transaction_mode="rollback_only") as made:
            yield made
            await made.commit()

    @app.post("/orders")
    async def order(made=Depends(session)):
        await made.execute(text("INSERT INTO once_effect VALUES (:run, 'a')"), {"run": run})
        return {}

    async def check():
        engine = create_async_engine(sqlalchemy_url(postgres, "asyncpg"))
        async with client_of(app, postgres, run, engine) as client:
            status, _, _, seen = await client.post(key=key)
            assert (status, seen) == (200, [1, 1])
        await engine.dispose()

    asyncio.run(check())


def test_the_transaction_cannot_be_used_after_its_end(postgres, run, key):
    app, leaked = FastAPI(), []

    @app.post("/orders")
    async def order(request: Request):
        leaked.append(request)
        await insert(asgi.transaction(request), run)
        return {}

    async def check():
        async with client_of(app, postgres, run) as client:
            await client.post(key=key)
            with pytest.raises(RuntimeError, match="has ended"):
                asgi.transaction(leaked[0])

    asyncio.run(check())


def test_hooks_run_after_commit_and_never_after_a_rollback_or_replay(postgres, run, key):
    app, ran = FastAPI(), []

    @app.post("/orders")
    async def order(request: Request, tasks: BackgroundTasks):
        await insert(asgi.transaction(request), run)
        asgi.after_commit(request, lambda: ran.append(("hook", client.effects())))
        asgi.after_commit(request, lambda: 1 / 0)
        asgi.after_commit(request, lambda: ran.append(("second hook", client.effects())))
        tasks.add_task(lambda: ran.append(("background", client.effects())))
        return app.state.answer

    async def check():
        nonlocal client
        async with client_of(app, postgres, run) as client:
            app.state.answer = {}
            await client.post(key=key)
            assert ran == [("background", 0), ("hook", 1), ("second hook", 1)]
            await client.post(key=key)
            assert len(ran) == 3, "a replay runs nothing"
            app.state.answer = semel_response(503)
            status, *_ = await client.post(key=str(uuid.uuid4()))
            # Background tasks are the framework's, and run before the transaction ends; hooks are not run at all.
            assert status == 503 and ran[3:] == [("background", 1)]

    client = None
    asyncio.run(check())


def semel_response(status):
    from fastapi import Response

    return Response(status_code=status)


def test_a_client_that_leaves_does_not_cancel_the_work(postgres, run, key):
    app, gate, gone = FastAPI(), asyncio.Event(), asyncio.Event()

    @app.post("/orders")
    async def order(transaction=Depends(asgi.transaction)):
        gone.set()
        await insert(transaction, run)
        await gate.wait()
        return {}

    async def check():
        async with client_of(app, postgres, run) as client:
            request = asyncio.ensure_future(client.post(key=key, gone=gone))
            await gone.wait()
            request.cancel()
            with pytest.raises(asyncio.CancelledError):
                await request
            gate.set()
            status, headers, *_ = await client.post(key=key)
            assert (status, headers["idempotency-replayed"], client.effects()) == (200, "true", 1)

    asyncio.run(check())


def test_a_waiter_whose_client_has_gone_never_claims(postgres, run, key):
    app, gate, began = FastAPI(), asyncio.Event(), asyncio.Event()
    runs = []

    @app.post("/orders")
    async def order(transaction=Depends(asgi.transaction)):
        runs.append(1)
        began.set()
        await gate.wait()
        return semel_response(503)

    async def check():
        async with client_of(app, postgres, run) as client:
            first = asyncio.ensure_future(client.post(key=key))
            await began.wait()
            gone = asyncio.Event()
            second = asyncio.ensure_future(client.post(key=key, gone=gone))
            await asyncio.sleep(0.05)
            gone.set()
            await asyncio.sleep(0.05)
            gate.set()
            assert (await first)[0] == 503
            assert await second is None and len(runs) == 1

    asyncio.run(check())


def test_streams_are_refused_and_rolled_back(postgres, run, key):
    app = FastAPI()

    @app.post("/orders")
    async def order(request: Request):
        await insert(asgi.transaction(request), run)

        async def events():
            yield b"data: 1\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    async def check():
        async with client_of(app, postgres, run) as client:
            status, headers, body, _ = await client.post(key=key)
            assert status == 500 and "not-settled" in headers["link"] and b"stream" in body
            assert client.effects() == 0

    asyncio.run(check())


def test_an_answer_in_pieces_is_kept_whole(postgres, run, key):
    app = FastAPI()

    @app.post("/orders")
    async def order(request: Request):
        await insert(asgi.transaction(request), run)

        async def pieces():
            for piece in (b"one ", b"two ", b"three"):
                yield piece

        return StreamingResponse(pieces(), media_type="text/plain")

    async def check():
        async with client_of(app, postgres, run) as client:
            assert (await client.post(key=key))[2] == b"one two three"
            assert (await client.post(key=key))[2] == b"one two three"

    asyncio.run(check())


def test_authentication_comes_first(postgres, run, key):
    class Backend(AuthenticationBackend):
        async def authenticate(self, connection):
            name = connection.headers.get("authorization")
            return (AuthCredentials(), SimpleUser(name)) if name else None

    app = FastAPI()

    @app.post("/orders")
    async def order(transaction=Depends(asgi.transaction)):
        await insert(transaction, run)
        return {}

    SimpleUser.identity = property(lambda self: self.username)

    async def check():
        async with client_of(app, postgres, run, caller=asgi._user_of) as client:
            app.add_middleware(AuthenticationMiddleware, backend=Backend())
            status, headers, *_ = await client.post(key=key)
            assert status == 401 and "identity-missing" in headers["link"]
            status, *_ = await client.post(key=key, headers=[("Authorization", "bob")])
            assert status == 200 and client.effects() == 1

    asyncio.run(check())


def test_a_key_on_a_route_that_nothing_covers_is_not_silently_ignored(postgres, run, key):
    app = FastAPI()

    @app.post("/other")
    async def other(request: Request):
        with pytest.raises(RuntimeError, match="covers"):
            asgi.transaction(request)
        return {}

    async def check():
        async with client_of(app, postgres, run) as client:
            _, headers, *_ = await client.post("/other", key=key)
            assert headers["semel-guarantee"] == "none"
            _, headers, *_ = await client.post("/other")
            assert "semel-guarantee" not in headers

    asyncio.run(check())


def test_without_routes_every_request_that_carries_a_key_is_protected(postgres, run, key):
    app = FastAPI()

    @app.post("/any/{id}")
    async def any_one(transaction=Depends(asgi.transaction)):
        await insert(transaction, run)
        return {}

    async def check():
        async with client_of(app, postgres, run, routes=None) as client:
            for path, replayed in (("/any/1", False), ("/any/1", True), ("/any/2", False)):
                status, headers, *_ = await client.post(path, key=key)
                assert (status, headers.get("idempotency-replayed") == "true") == (200, replayed)
            status, headers, *_ = await client.post("/any/1")
            assert headers["semel-guarantee"] == "none"
            assert client.effects() == 3

    asyncio.run(check())


def test_a_request_that_breaks_off_runs_nothing(postgres, run, key):
    app = FastAPI()

    @app.post("/orders")
    async def order():
        raise AssertionError("half a request was run")

    async def check():
        async with client_of(app, postgres, run) as client:
            sent = []

            async def receive():
                return {"type": "http.disconnect"}

            async def send(message):
                sent.append(message)

            scope = {"type": "http", "method": "POST", "path": "/orders", "headers": [(b"x-user", b"a")]}
            await client.app(scope, receive, send)
            assert sent[0]["status"] == 400

    asyncio.run(check())


def test_routes_are_matched_as_received():
    from semel.routes import Pattern, Table, endpoint_of_path, protect

    refund = Pattern.parse("POST /orders/{id}/refund")
    assert refund.match("POST", "/orders/a%2Fb/refund") == [("id", "a%2Fb")]
    for method, path in (("GET", "/orders/7/refund"), ("POST", "/orders//refund"), ("POST", "/orders/7/refund/")):
        assert refund.match(method, path) is None
    for bad in ("/orders", "post /orders", "GET /orders", "POST orders", "POST /a{b}", "POST /{}", "POST /{a*}/b", "POST| /a"):
        with pytest.raises(ValueError):
            Pattern.parse(bad)
    table = Table(["* /api/{rest*}", "POST /api/{id}", protect("POST /api/new", "new")])
    assert table.find("POST", "/api/new")[0].name == "new"
    assert table.find("POST", "/api/7") == (table.find("POST", "/api/8")[0], [("id", "7")])
    assert table.find("DELETE", "/api/a/b")[1] == [("rest", "a/b")]
    assert table.find("GET", "/api/a") is None
    assert len(endpoint_of_path("POST", "/" + "é" * 300).encode()) <= 255


def test_answers_have_a_limit(postgres, run, key, monkeypatch):
    monkeypatch.setattr(asgi, "HELD_BYTES_MAX", 10)
    app = FastAPI()

    @app.post("/orders")
    async def order(transaction=Depends(asgi.transaction)):
        await insert(transaction, run)
        return "more than ten bytes"

    async def check():
        async with client_of(app, postgres, run) as client:
            status, headers, *_ = await client.post(key=key)
            assert status == 500 and "not-settled" in headers["link"] and client.effects() == 0

    asyncio.run(check())


def test_the_callers_check_may_be_awaited_and_may_refuse(postgres, run, key):
    app = FastAPI()

    @app.post("/orders")
    async def order():
        return {}

    async def caller(scope):
        raise semel.Problem("identity-refused", "not today")

    async def check():
        async with client_of(app, postgres, run, caller=caller) as client:
            assert (await client.post(key=key))[0] == 403

    asyncio.run(check())
