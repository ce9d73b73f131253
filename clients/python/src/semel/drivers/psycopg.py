"""psycopg 3, with a pool of psycopg_pool. Statements are never prepared, so that pgbouncer may stand in between."""

from __future__ import annotations

from typing import Any, Dict, Tuple

import psycopg
from psycopg.rows import dict_row

from . import number, plain


class Psycopg:
    """A ConnectionPool."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool

    def ask(self, sql: str, parameters: Tuple[Any, ...]) -> Dict[str, Any]:
        """Runs a statement in autocommit."""
        connection = self._pool.getconn()
        try:
            before = connection.autocommit
            connection.autocommit = True
            row = _cursor(connection).execute(number(sql), parameters, prepare=False).fetchone()
            connection.autocommit = before
            return plain(row)
        finally:
            self._pool.putconn(connection)

    def begin(self) -> "Session":
        """Takes a connection and begins."""
        connection = self._pool.getconn()
        try:
            return Session(self._pool, connection)
        except BaseException:
            connection.close()
            self._pool.putconn(connection)
            raise


class Session:
    """A transaction. psycopg itself forbids the handler commit() and rollback() in it."""

    def __init__(self, pool: Any, connection: Any) -> None:
        self._pool = pool
        self._transaction = connection.transaction()
        self._transaction.__enter__()
        self._is_open = True
        self.handle = connection

    def query(self, sql: str, parameters: Tuple[Any, ...]) -> Dict[str, Any]:
        """Runs a statement in the transaction."""
        return plain(_cursor(self.handle).execute(number(sql), parameters, prepare=False).fetchone())

    def flush(self) -> None:
        """Nothing waits here."""

    def commit(self) -> None:
        """Sends COMMIT."""
        self._is_open = False
        self._transaction.__exit__(None, None, None)

    def end(self, discard: bool) -> None:
        """Gives the connection back to the pool, which closes it unless it is idle."""
        try:
            if discard:
                self.handle.close()
            elif self._is_open:
                self._transaction.__exit__(psycopg.Rollback, psycopg.Rollback(), None)
        except Exception:  # noqa: BLE001
            self.handle.close()
        finally:
            self._is_open = False
            self._pool.putconn(self.handle)


class AsyncPsycopg:
    """An AsyncConnectionPool."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool

    async def ask(self, sql: str, parameters: Tuple[Any, ...]) -> Dict[str, Any]:
        """Runs a statement in autocommit."""
        connection = await self._pool.getconn()
        try:
            before = connection.autocommit
            await connection.set_autocommit(True)
            cursor = await _cursor(connection).execute(number(sql), parameters, prepare=False)
            row = await cursor.fetchone()
            await connection.set_autocommit(before)
            return plain(row)
        finally:
            await self._pool.putconn(connection)

    async def begin(self) -> "AsyncSession":
        """Takes a connection and begins."""
        connection = await self._pool.getconn()
        try:
            transaction = connection.transaction()
            await transaction.__aenter__()
        except BaseException:
            await connection.close()
            await self._pool.putconn(connection)
            raise
        return AsyncSession(self._pool, connection, transaction)


class AsyncSession:
    """A transaction. psycopg itself forbids the handler commit() and rollback() in it."""

    def __init__(self, pool: Any, connection: Any, transaction: Any) -> None:
        self._pool = pool
        self._transaction = transaction
        self._is_open = True
        self.handle = connection

    async def query(self, sql: str, parameters: Tuple[Any, ...]) -> Dict[str, Any]:
        """Runs a statement in the transaction."""
        cursor = await _cursor(self.handle).execute(number(sql), parameters, prepare=False)
        return plain(await cursor.fetchone())

    async def flush(self) -> None:
        """Nothing waits here."""

    async def commit(self) -> None:
        """Sends COMMIT."""
        self._is_open = False
        await self._transaction.__aexit__(None, None, None)

    async def end(self, discard: bool) -> None:
        """Gives the connection back to the pool, which closes it unless it is idle."""
        try:
            if discard:
                await self.handle.close()
            elif self._is_open:
                await self._transaction.__aexit__(psycopg.Rollback, psycopg.Rollback(), None)
        except Exception:  # noqa: BLE001
            await self.handle.close()
        finally:
            self._is_open = False
            await self._pool.putconn(self.handle)


def _cursor(connection: Any) -> Any:
    # Not the pool's own cursor factory, which may give rows of another form.
    kind = psycopg.AsyncCursor if isinstance(connection, psycopg.AsyncConnection) else psycopg.Cursor
    return kind(connection, row_factory=dict_row)
