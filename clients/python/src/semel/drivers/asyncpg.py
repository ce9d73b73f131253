"""asyncpg, with its own pool. Behind pgbouncer in transaction mode give the pool `statement_cache_size=0`."""

from __future__ import annotations

from typing import Any, Dict, Tuple

from . import number, plain


class Asyncpg:
    """A pool of asyncpg."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool

    async def ask(self, sql: str, parameters: Tuple[Any, ...]) -> Dict[str, Any]:
        """Runs a statement in autocommit."""
        async with self._pool.acquire() as connection:
            return plain(dict(await connection.fetchrow(number(sql, "$#"), *parameters)))

    async def begin(self) -> "Session":
        """Takes a connection and begins."""
        connection = await self._pool.acquire()
        try:
            transaction = connection.transaction()
            await transaction.start()
        except BaseException:
            _terminate(connection)
            await self._pool.release(connection)
            raise
        return Session(self._pool, connection, transaction)


class Session:
    """A transaction. The pool's proxy forbids its use after `end`."""

    def __init__(self, pool: Any, connection: Any, transaction: Any) -> None:
        self._pool = pool
        self._transaction = transaction
        self._is_open = True
        self.handle = connection

    async def query(self, sql: str, parameters: Tuple[Any, ...]) -> Dict[str, Any]:
        """Runs a statement in the transaction."""
        return plain(dict(await self.handle.fetchrow(number(sql, "$#"), *parameters)))

    async def flush(self) -> None:
        """Nothing waits here."""

    async def commit(self) -> None:
        """Sends COMMIT."""
        self._is_open = False
        await self._transaction.commit()

    async def end(self, discard: bool) -> None:
        """Gives the connection back to the pool, which has taken a lost one back already."""
        try:
            if discard:
                self.handle.terminate()
            elif self._is_open:
                await self._transaction.rollback()
        except Exception:  # noqa: BLE001
            _terminate(self.handle)
        self._is_open = False
        try:
            await self._pool.release(self.handle)
        except Exception:  # noqa: BLE001 - a connection that cannot be reset is closed
            _terminate(self.handle)


def _terminate(connection: Any) -> None:
    try:
        connection.terminate()
    except Exception:  # noqa: BLE001 - it is gone already
        pass
