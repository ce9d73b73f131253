"""psycopg 3, with a pool of psycopg_pool. Statements are never prepared, so that pgbouncer may stand in between."""

from __future__ import annotations

import asyncio
from typing import Any, Dict, Tuple

import psycopg
from psycopg.rows import dict_row

from . import NotCommitted, number, plain, refuse_rollback


class Psycopg:
    """A ConnectionPool."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool

    def ask(self, sql: str, parameters: Tuple[Any, ...]) -> Dict[str, Any]:
        """Runs a statement in autocommit."""
        connection = self._pool.getconn()
        before = connection.autocommit
        try:
            connection.autocommit = True
            return plain(_cursor(connection).execute(number(sql), parameters, prepare=False).fetchone())
        finally:
            self._give_back(connection, before)

    def _give_back(self, connection: Any, was_autocommit: bool) -> None:
        """Gives a connection back as it came: the pool looks at its transaction only, never at autocommit."""
        try:
            connection.autocommit = was_autocommit
        except Exception:  # noqa: BLE001 - whoever gets it next would take it for one of the other kind
            connection.close()
        finally:
            self._pool.putconn(connection)

    def begin(self) -> "Session":
        """Takes a connection; psycopg begins with the first statement."""
        connection = self._pool.getconn()
        try:
            return Session(self._pool, connection)
        except BaseException:
            connection.close()
            self._pool.putconn(connection)
            raise


class Session:
    """A transaction. commit() and rollback() are not the handler's."""

    def __init__(self, pool: Any, connection: Any) -> None:
        self._pool = pool
        self._was_autocommit = connection.autocommit
        self.handle = connection
        connection.autocommit = False
        connection.commit = connection.rollback = _refuse

    def query(self, sql: str, parameters: Tuple[Any, ...]) -> Dict[str, Any]:
        """Runs a statement in the transaction."""
        return plain(_cursor(self.handle).execute(number(sql), parameters, prepare=False).fetchone())

    def flush(self) -> None:
        """Nothing waits here."""

    def commit(self) -> None:
        """Sends COMMIT."""
        refuse_ended(self.handle)
        refuse_rollback(_cursor(self.handle).execute("COMMIT", prepare=False).statusmessage)

    def end(self, discard: bool) -> None:
        """Gives the connection back to the pool, which closes it unless it is idle."""
        try:
            del self.handle.commit, self.handle.rollback
            if discard:
                self.handle.close()
            else:
                self.handle.rollback()
                self.handle.autocommit = self._was_autocommit
        except Exception:  # noqa: BLE001
            self.handle.close()
        finally:
            self._pool.putconn(self.handle)


class AsyncPsycopg:
    """An AsyncConnectionPool."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool

    async def ask(self, sql: str, parameters: Tuple[Any, ...]) -> Dict[str, Any]:
        """Runs a statement in autocommit."""
        connection = await self._pool.getconn()
        before = connection.autocommit
        try:
            await connection.set_autocommit(True)
            cursor = await _cursor(connection).execute(number(sql), parameters, prepare=False)
            return plain(await cursor.fetchone())
        finally:
            # Also where the task is cancelled once more in the meantime.
            await asyncio.shield(self._give_back(connection, before))

    async def _give_back(self, connection: Any, was_autocommit: bool) -> None:
        """Gives a connection back as it came: the pool looks at its transaction only, never at autocommit."""
        try:
            await connection.set_autocommit(was_autocommit)
        except Exception:  # noqa: BLE001 - whoever gets it next would take it for one of the other kind
            await connection.close()
        finally:
            await self._pool.putconn(connection)

    async def begin(self) -> "AsyncSession":
        """Takes a connection; psycopg begins with the first statement."""
        connection = await self._pool.getconn()
        was_autocommit = connection.autocommit
        try:
            await connection.set_autocommit(False)
            return AsyncSession(self._pool, connection, was_autocommit)
        except BaseException:
            await asyncio.shield(self._give_back(connection, was_autocommit))
            raise


class AsyncSession:
    """A transaction. commit() and rollback() are not the handler's."""

    def __init__(self, pool: Any, connection: Any, was_autocommit: bool) -> None:
        self._pool = pool
        self._was_autocommit = was_autocommit
        self.handle = connection
        connection.commit = connection.rollback = _refuse

    async def query(self, sql: str, parameters: Tuple[Any, ...]) -> Dict[str, Any]:
        """Runs a statement in the transaction."""
        cursor = await _cursor(self.handle).execute(number(sql), parameters, prepare=False)
        return plain(await cursor.fetchone())

    async def flush(self) -> None:
        """Nothing waits here."""

    async def commit(self) -> None:
        """Sends COMMIT."""
        refuse_ended(self.handle)
        refuse_rollback((await _cursor(self.handle).execute("COMMIT", prepare=False)).statusmessage)

    async def end(self, discard: bool) -> None:
        """Gives the connection back to the pool, which closes it unless it is idle."""
        try:
            del self.handle.commit, self.handle.rollback
            if discard:
                await self.handle.close()
            else:
                await self.handle.rollback()
                await self.handle.set_autocommit(self._was_autocommit)
        except Exception:  # noqa: BLE001
            await self.handle.close()
        finally:
            await self._pool.putconn(self.handle)


def _refuse() -> None:
    raise psycopg.ProgrammingError("COMMIT and ROLLBACK are the library's: return an answer, or raise")


def refuse_ended(connection: Any) -> None:
    """Raises where there is no transaction to commit: psycopg would begin another."""
    if connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
        raise NotCommitted("the transaction ended before COMMIT was sent")


def _cursor(connection: Any) -> Any:
    # Not the pool's own cursor factory, which may give rows of another form.
    kind = psycopg.AsyncCursor if isinstance(connection, psycopg.AsyncConnection) else psycopg.Cursor
    return kind(connection, row_factory=dict_row)
