"""The service of spec/once.md on this library, one for each driver. A process of its own: DATABASE_URL, PORT, and
DRIVER, one of DRIVERS. With STEP it stops at that step of a request and waits to be killed."""

import asyncio
import base64
import contextlib
import json
import os
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import semel
from semel import asgi
from semel.call import HttpRequest, Route
from semel.profiles import PRESETS
from semel.routes import Table, protect

DRIVERS = (
    "psycopg",
    "psycopg-async",
    "asyncpg",
    "sqlalchemy",
    "sqlalchemy-session",
    "sqlalchemy-async",
    "sqlalchemy-async-session",
    "sqlalchemy-async-psycopg",
    "django",
    "threads",
)
SYNC = ("psycopg", "sqlalchemy", "sqlalchemy-session")
#: Few connections, so that a waiter which held one would stop the service.
POOL = int(os.environ.get("POOL", "4"))

ROUTES = [protect(f"POST /{name}/orders/{{id}}", "create-order", profile) for name, profile in PRESETS.items()]


def script(text):
    """What the handler does, as statements that its driver runs: `yield (sql, parameters, is_swallowed)`."""
    control = json.loads(text)
    run, attempts = control["run"], control["attempts"]
    (number,) = yield "SELECT nextval(CAST(CAST({} AS text) AS regclass))", (run,), False
    attempt = attempts[min(number, len(attempts)) - 1]
    for name in attempt.get("effects", ()):
        yield "INSERT INTO once_effect (run, name) VALUES (CAST({} AS text), CAST({} AS text))", (run, name), False
    if "hold" in attempt:
        hold = "SELECT CAST(pg_advisory_xact_lock_shared(CAST({} AS bigint)) AS text)"
        yield hold, (attempt["hold"],), False
    for member in ("raise_sql", "swallow_sql"):
        if member in attempt:
            sql = "SELECT CAST(once_raise(CAST({} AS text)) AS text)"
            yield sql, (attempt[member],), member == "swallow_sql"
    if "statement" in attempt:
        yield attempt["statement"], (), False
    if "raise" in attempt:
        raise RuntimeError(attempt["raise"])
    answer = attempt["answer"]
    headers = [(name, value.encode("latin-1")) for name, value in answer.get("headers", ())]
    return semel.Answer(answer["status"], headers, content(answer))


def content(given):
    if "body_base64" in given:
        return base64.b64decode(given["body_base64"])
    if "body_repeat" in given:
        return (given["body_repeat"]["text"] * given["body_repeat"]["times"]).encode()
    return given.get("body", "").encode()


def play(text, execute):
    steps, result = script(text), None
    while True:
        try:
            sql, parameters, is_swallowed = steps.send(result)
        except StopIteration as done:
            return done.value
        try:
            result = execute(sql, parameters)
        except Exception:
            if not is_swallowed:
                raise
            result = None


async def play_async(text, execute):
    steps, result = script(text), None
    while True:
        try:
            sql, parameters, is_swallowed = steps.send(result)
        except StopIteration as done:
            return done.value
        try:
            result = await execute(sql, parameters)
        except Exception:
            if not is_swallowed:
                raise
            result = None


def spelled(sql, mark):
    from semel.drivers import number

    return number(sql, mark)


def executor(handle, is_async):
    """Runs a statement on whatever the driver hands out, and gives its first row."""
    kind = type(handle).__module__.split(".")[0]

    def psycopg_run(sql, parameters):
        cursor = handle.execute(spelled(sql, "%s"), parameters or None)
        return cursor.fetchone() if cursor.description else None

    async def psycopg_run_async(sql, parameters):
        cursor = await handle.execute(spelled(sql, "%s"), parameters or None)
        return await cursor.fetchone() if cursor.description else None

    async def asyncpg_run(sql, parameters):
        if not parameters:
            return await handle.execute(sql)
        row = await handle.fetchrow(spelled(sql, "$#"), *parameters)
        return None if row is None else tuple(row)

    def alchemy(sql, parameters):
        from sqlalchemy import text

        return text(spelled(sql, ":p#")), {f"p{place}": value for place, value in enumerate(parameters, 1)}

    def sqlalchemy_run(sql, parameters):
        result = handle.execute(*alchemy(sql, parameters))
        return result.first() if result.returns_rows else None

    async def sqlalchemy_run_async(sql, parameters):
        result = await handle.execute(*alchemy(sql, parameters))
        return result.first() if result.returns_rows else None

    if kind == "asyncpg":
        return asyncpg_run
    if kind == "sqlalchemy":
        return sqlalchemy_run_async if is_async else sqlalchemy_run
    return psycopg_run_async if is_async else psycopg_run


def sqlalchemy_url(url, driver):
    return "postgresql+" + driver + url[url.index("://") :]


def database_of(driver, url):
    """The pool, engine or session maker of a driver."""
    if driver in ("psycopg", "threads"):
        from psycopg_pool import ConnectionPool

        return ConnectionPool(url, min_size=1, max_size=POOL, open=True, timeout=30)
    if driver in ("sqlalchemy", "sqlalchemy-session"):
        from sqlalchemy import create_engine
        from sqlalchemy.orm import sessionmaker

        engine = create_engine(sqlalchemy_url(url, "psycopg"), pool_size=POOL, max_overflow=0)
        return engine if driver == "sqlalchemy" else sessionmaker(engine)
    raise ValueError(driver)


@contextlib.asynccontextmanager
async def async_database_of(driver, url):
    if driver == "psycopg-async":
        from psycopg_pool import AsyncConnectionPool

        async with AsyncConnectionPool(url, min_size=1, max_size=POOL, timeout=30) as pool:
            yield pool
    elif driver == "asyncpg":
        import asyncpg

        async with asyncpg.create_pool(url, min_size=1, max_size=POOL, statement_cache_size=0) as pool:
            yield pool
    elif driver == "threads":
        yield database_of(driver, url)
    else:
        from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

        dialect = "psycopg" if driver.endswith("psycopg") else "asyncpg"
        engine = create_async_engine(sqlalchemy_url(url, dialect), pool_size=POOL, max_overflow=0)
        yield async_sessionmaker(engine) if driver.endswith("session") else engine
        await engine.dispose()


def caller_of(user, tenant):
    return None if user is None else semel.Caller.verified(user, tenant)


async def serve_asgi(driver, url, port):
    """FastAPI with the middleware."""
    import uvicorn
    from fastapi import Depends, FastAPI, Request, Response

    app = FastAPI()

    @app.post("/{profile}/orders/{id}")
    async def order(request: Request, transaction=Depends(asgi.transaction)):
        is_blocking = driver == "threads"
        run = executor(transaction, not is_blocking)
        if is_blocking:
            answer = await asyncio.to_thread(play, request.headers["x-once"], run)
        else:
            answer = await play_async(request.headers["x-once"], run)
        response = Response(answer.body, answer.status)
        named = {name for name, _ in answer.headers}
        response.raw_headers = [pair for pair in response.raw_headers if pair[0].decode() not in named]
        response.raw_headers += [(name.encode(), value) for name, value in answer.headers]
        return response

    @app.get("/ready")
    async def ready():
        return {}

    def caller(scope):
        headers = {name: value.decode() for name, value in scope["headers"]}
        return caller_of(headers.get(b"x-user"), headers.get(b"x-tenant"))

    async with async_database_of(driver, url) as database:
        app.add_middleware(asgi.Once, database=database, routes=ROUTES, caller=caller)
        config = uvicorn.Config(app, port=port, log_level="error", h11_max_incomplete_event_size=1 << 20)
        await uvicorn.Server(config).serve()


def serve_threads(driver, url, port):
    """A plain threaded server with `semel.serve`, as a framework without an adapter would use it."""
    database, table = database_of(driver, url), Table(ROUTES)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            self.answer(200, [], b"{}")

        def do_POST(self):
            path, _, query = self.path.partition("?")
            route, params = table.find("POST", path)
            lines = [(name, value.encode("latin-1")) for name, value in self.headers.raw_items()]
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            request = HttpRequest("POST", params, query, lines, body)
            try:
                caller = caller_of(self.headers.get("X-User"), self.headers.get("X-Tenant"))
            except semel.Problem:
                caller = None
            try:
                outcome = semel.serve(database, self.run, route, caller, request)
                self.answer(outcome.status, outcome.headers, outcome.body)
            except Exception as error:
                self.answer(500, [], str(error).encode())

        def run(self, transaction):
            return play(self.headers["X-Once"], executor(transaction, False))

        def answer(self, status, headers, body):
            self.send_response_only(status)
            for name, value in headers:
                self.send_header(name, value.decode("latin-1"))
            if status != 204:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    class Server(ThreadingHTTPServer):
        request_queue_size = 512
        daemon_threads = True

    Server(("127.0.0.1", port), Handler).serve_forever()


def serve_django(url, port):
    """Django under a threaded WSGI server."""
    import socketserver
    import urllib.parse
    from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

    import django
    from django.conf import settings

    parts = urllib.parse.urlsplit(url)
    place = {"NAME": parts.path[1:], "USER": parts.username, "PASSWORD": parts.password or ""}
    place.update({"HOST": parts.hostname, "PORT": parts.port or 5432})
    settings.configure(
        DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", "ATOMIC_REQUESTS": True, **place}},
        ROOT_URLCONF=__name__,
        ALLOWED_HOSTS=["*"],
        DATA_UPLOAD_MAX_MEMORY_SIZE=1 << 24,
        LOGGING_CONFIG=None,
    )
    django.setup()
    from django.core.wsgi import get_wsgi_application
    from django.db import connection
    from django.http import HttpResponse, JsonResponse
    from django.urls import path

    from semel.django import once

    def execute(sql, parameters):
        with connection.cursor() as cursor:
            cursor.execute(spelled(sql, "%s"), parameters or None)
            return cursor.fetchone() if cursor.description else None

    def view_of(profile):
        @once("create-order", lambda request: caller_of(request.headers.get("X-User"), request.headers.get("X-Tenant")), profile)
        def order(request, id):
            answer = play(request.headers["X-Once"], execute)
            response = HttpResponse(answer.body, status=answer.status)
            for name, value in answer.headers:
                response[name] = value.decode("latin-1")
            return response

        return order

    global urlpatterns
    urlpatterns = [path(f"{name}/orders/<id>", view_of(profile)) for name, profile in PRESETS.items()]
    urlpatterns.append(path("ready", lambda request: JsonResponse({})))

    class Handler(WSGIRequestHandler):
        def log_message(self, *args):
            pass

    class Server(socketserver.ThreadingMixIn, WSGIServer):
        request_queue_size = 512
        daemon_threads = True

    server = Server(("127.0.0.1", port), Handler)
    server.set_app(get_wsgi_application())
    server.serve_forever()


def end_with_parent():
    """A test run that was killed leaves no service behind."""
    parent = os.getppid()

    def watch():
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def main():
    end_with_parent()
    driver, url, port = os.environ["DRIVER"], os.environ["DATABASE_URL"], int(os.environ["PORT"])
    if driver == "django":
        sys.modules["service"] = sys.modules[__name__]
        serve_django(url, port)
    elif driver in SYNC:
        serve_threads(driver, url, port)
    else:
        asyncio.run(serve_asgi(driver, url, port))


if __name__ == "__main__":
    main()
