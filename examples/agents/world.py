"""A small world that agents live in: a plain ASGI service that knows nothing of keys or retries.

Every POST, PUT or PATCH has an effect each time it arrives, and GET /api/effects counts them. Whoever registers gets a token
that says who acts. Run it with `uvicorn world:app --port 3000`; semel stands in front of it and is not mentioned again in this file.
"""

import asyncio
import base64
import hashlib
import hmac
import json
import os
import re
import sqlite3
import threading
import time

# What has an effect, and under which name it is counted. The last row takes every other path.
ROUTES = [
    (r"/api/dwellers/(\w+)/act", "act"),
    (r"/api/dwellers/(\w+)/heartbeat", "heartbeat"),
    (r"/api/stories", "story"),
    (r"/api/proposals", "proposal"),
    (r"/api/review/(\w+)/(\w+)/feedback", "feedback"),
    (r"/api/auth/agent", "agent"),
    (r"/api/.*", "other"),
]


class Tokens:
    """Tokens that name an agent, signed with the world's secret (JWT, HS256)."""

    def __init__(self, secret):
        self._secret = secret

    def issue(self, agent):
        head, claims = {"alg": "HS256", "typ": "JWT"}, {"sub": agent, "exp": int(time.time()) + 86_400}
        signed = b".".join(self._text(json.dumps(part).encode()) for part in (head, claims))
        return (signed + b"." + self._sign(signed)).decode()

    def agent(self, line):
        """The agent that an Authorization line names, or None."""
        signed, _, signature = line.removeprefix(b"Bearer ").rpartition(b".")
        if not signed or not hmac.compare_digest(signature, self._sign(signed)):
            return None
        claims = signed.split(b".")[1]
        return json.loads(base64.urlsafe_b64decode(claims + b"=" * (-len(claims) % 4)))["sub"]

    def _sign(self, signed):
        return self._text(hmac.new(self._secret, signed, hashlib.sha256).digest())

    @staticmethod
    def _text(content):
        return base64.urlsafe_b64encode(content).rstrip(b"=")


class FileBooks:
    """What happened, in a file: every effect is a row, and is there when the call returns."""

    def __init__(self, path):
        self._lock = threading.Lock()
        self._database = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._database.execute("PRAGMA synchronous = FULL")
        self._database.execute("CREATE TABLE IF NOT EXISTS effect (id INTEGER PRIMARY KEY, kind TEXT, agent TEXT, body TEXT)")

    async def add(self, scope, kind, agent, body):
        """Writes an effect down, and gives its number among those of its kind."""
        with self._lock:
            insert = "INSERT INTO effect (kind, agent, body) VALUES (?, ?, ?)"
            self._database.execute(insert, (kind, agent, body))
            return self._database.execute("SELECT count(*) FROM effect WHERE kind = ?", (kind,)).fetchone()[0]

    async def counts(self):
        with self._lock:
            return dict(self._database.execute("SELECT kind, count(*) FROM effect GROUP BY kind").fetchall())


class World:
    """The service, over its books."""

    def __init__(self, books, tokens):
        self._books, self._tokens = books, tokens

    async def effect(self, scope, headers, body):
        """What a request does, each time."""
        name = next((name for pattern, name in ROUTES if re.fullmatch(pattern, scope["path"])), None)
        if name is None:
            return 404, {"error": "no such place"}
        agent = self._tokens.agent(headers.get(b"authorization", b""))
        if agent is None and name != "agent":
            return 401, {"error": "register, and send the token"}
        number = await self._books.add(scope, name, agent, body.decode())
        answer = {"id": number, "kind": name}
        if name == "agent":
            answer["token"] = self._tokens.issue(f"agent-{number}")
        return 201, answer

    async def __call__(self, scope, receive, send):
        if scope["type"] != "http":
            return
        body = await read(receive)
        headers = dict(scope["headers"])
        # An action may take its time.
        await asyncio.sleep(float(headers.get(b"x-work-seconds", b"0")))
        if scope["method"] == "GET":
            effects = await self._books.counts()
            status, answer = 200, {"effects": effects, "total": sum(effects.values())}
        else:
            status, answer = await self.effect(scope, headers, body)
        content = json.dumps(answer).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": content})


async def read(receive):
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            return body


def secret():
    """The world's secret, from a file that whoever verifies its tokens has too."""
    with open(os.environ.get("WORLD_SECRET", "world.secret"), "rb") as file:
        return file.read().rstrip(b"\r\n")


app = World(FileBooks(os.environ.get("WORLD_FILE", ":memory:")), Tokens(secret()))
