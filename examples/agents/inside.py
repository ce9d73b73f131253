"""The same world with semel inside it: a middleware instead of a gateway, and effects in PostgreSQL, in the transaction that keeps
the answer. Run it with `DATABASE=postgres://… uvicorn inside:app --port 3000`.

The world's code is unchanged. Two things are new: where its effects are written, and the line that wraps it.
"""

import os
from types import SimpleNamespace

from psycopg_pool import AsyncConnectionPool

import semel
import world
from semel import asgi

TABLE = "CREATE TABLE IF NOT EXISTS effect (id bigserial PRIMARY KEY, kind text NOT NULL, agent text, body text NOT NULL)"
ACTIONS = asgi.protect("POST|PUT|PATCH /api/{rest*}", name="api", profile="agents")
# Whoever registers has no token yet. The key alone says whose retry it is, so it must be a random UUID.
REGISTER = asgi.protect("POST /api/auth/agent", name="register", profile="agents")


class TransactionBooks:
    """What happened, written in the transaction of the request."""

    def __init__(self, pool):
        self._pool = pool

    async def add(self, scope, kind, agent, body):
        transaction = asgi.transaction(SimpleNamespace(scope=scope))
        insert = "INSERT INTO effect (kind, agent, body) VALUES (%s, %s, %s)"
        await transaction.execute(insert, (kind, agent, body))
        found = await transaction.execute("SELECT count(*) FROM effect WHERE kind = %s", (kind,))
        return (await found.fetchone())[0]

    async def counts(self):
        async with self._pool.connection() as connection:
            found = await connection.execute("SELECT kind, count(*) FROM effect GROUP BY kind")
            return dict(await found.fetchall())


class Open:
    """Opens the pool in the loop that serves, and makes the table."""

    def __init__(self, app, pool):
        self._app, self._pool = app, pool

    async def __call__(self, scope, receive, send):
        if scope["type"] != "lifespan":
            await self._app(scope, receive, send)
            return
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await self._pool.open(wait=True)
                async with self._pool.connection() as connection:
                    await connection.execute(TABLE)
            else:
                await self._pool.close()
            await send({"type": message["type"] + ".complete"})
            if message["type"] == "lifespan.shutdown":
                return


tokens = world.Tokens(world.secret())


def caller(scope):
    """Who acts: the agent that a verified token names."""
    if scope["path"] == "/api/auth/agent":
        return semel.Caller.shared("registration")
    return tokens.agent(dict(scope["headers"]).get(b"authorization", b""))


pool = AsyncConnectionPool(os.environ["DATABASE"], open=False)
app = Open(asgi.Once(world.World(TransactionBooks(pool), tokens), pool, [REGISTER, ACTIONS], caller), pool)
