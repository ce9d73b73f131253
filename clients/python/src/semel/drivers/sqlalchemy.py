"""SQLAlchemy 2, by an engine (the handler gets a Connection) or a session maker (the handler gets a Session).

A session takes part in the library's transaction: its commit() flushes and ends nothing, since COMMIT is the library's.
"""

from __future__ import annotations

from typing import Any, Dict, Tuple

from sqlalchemy import text
from sqlalchemy.engine import Engine
from sqlalchemy.ext.asyncio import AsyncEngine

from . import NotCommitted, number, plain, refuse_rollback

_JOINS = {"join_transaction_mode": "rollback_only"}


def _statement(sql: str) -> Any:
    return text(number(sql, ":p#"))


def _named(parameters: Tuple[Any, ...]) -> Dict[str, Any]:
    return {f"p{place}": value for place, value in enumerate(parameters, 1)}


def _engine_of(database: Any, kind: Any) -> Tuple[Any, Any]:
    """The engine, and the session maker where one was given."""
    if isinstance(database, kind):
        return database, None
    engine = database.kw.get("bind")
    if not isinstance(engine, kind):
        raise TypeError(f"the session maker needs bind= with a {kind.__name__}, so that semel can begin the transaction")
    return engine, database


class Sqlalchemy:
    """An Engine, or a sessionmaker that is bound to one."""

    def __init__(self, database: Any) -> None:
        self._engine, self._maker = _engine_of(database, Engine)

    def ask(self, sql: str, parameters: Tuple[Any, ...]) -> Dict[str, Any]:
        """Runs a statement in autocommit."""
        with self._engine.connect() as connection:
            connection = connection.execution_options(isolation_level="AUTOCOMMIT")
            return plain(dict(connection.execute(_statement(sql), _named(parameters)).mappings().one()))

    def begin(self) -> "Session":
        """Takes a connection and begins."""
        connection = self._engine.connect()
        try:
            return Session(connection, self._maker)
        except BaseException:
            connection.invalidate()
            connection.close()
            raise


class Session:
    """A transaction."""

    def __init__(self, connection: Any, maker: Any) -> None:
        self._connection = connection
        self._transaction = connection.begin()
        self._session = None if maker is None else maker(bind=connection, **_JOINS)
        self.handle = connection if self._session is None else self._session

    def query(self, sql: str, parameters: Tuple[Any, ...]) -> Dict[str, Any]:
        """Runs a statement in the transaction."""
        return plain(dict(self._connection.execute(_statement(sql), _named(parameters)).mappings().one()))

    def flush(self) -> None:
        """Sends what the session has not sent yet."""
        if self._session is not None:
            self._session.flush()

    def commit(self) -> None:
        """Sends COMMIT."""
        _refuse_ended(self._transaction)
        _commit_raw(self._connection.connection.driver_connection)
        self._transaction.commit()

    def end(self, discard: bool) -> None:
        """Closes the session and gives the connection back."""
        try:
            if discard:
                self._connection.invalidate()
            if self._session is not None:
                self._session.close()
            if self._transaction.is_active:
                self._transaction.rollback()
        except Exception:  # noqa: BLE001
            pass
        finally:
            try:
                self._connection.close()
            except Exception:  # noqa: BLE001
                self._connection.invalidate()


class AsyncSqlalchemy:
    """An AsyncEngine, or an async_sessionmaker that is bound to one."""

    def __init__(self, database: Any) -> None:
        self._engine, self._maker = _engine_of(database, AsyncEngine)

    async def ask(self, sql: str, parameters: Tuple[Any, ...]) -> Dict[str, Any]:
        """Runs a statement in autocommit."""
        async with self._engine.connect() as connection:
            connection = await connection.execution_options(isolation_level="AUTOCOMMIT")
            return plain(dict((await connection.execute(_statement(sql), _named(parameters))).mappings().one()))

    async def begin(self) -> "AsyncSession":
        """Takes a connection and begins."""
        connection = await self._engine.connect()
        try:
            transaction = await connection.begin()
        except BaseException:
            await connection.invalidate()
            await connection.close()
            raise
        return AsyncSession(connection, transaction, self._maker)


class AsyncSession:
    """A transaction."""

    def __init__(self, connection: Any, transaction: Any, maker: Any) -> None:
        self._connection = connection
        self._transaction = transaction
        self._session = None if maker is None else maker(bind=connection, **_JOINS)
        self.handle = connection if self._session is None else self._session

    async def query(self, sql: str, parameters: Tuple[Any, ...]) -> Dict[str, Any]:
        """Runs a statement in the transaction."""
        return plain(dict((await self._connection.execute(_statement(sql), _named(parameters))).mappings().one()))

    async def flush(self) -> None:
        """Sends what the session has not sent yet."""
        if self._session is not None:
            await self._session.flush()

    async def commit(self) -> None:
        """Sends COMMIT."""
        _refuse_ended(self._transaction)
        await _commit_raw_async((await self._connection.get_raw_connection()).driver_connection)
        await self._transaction.commit()

    async def end(self, discard: bool) -> None:
        """Closes the session and gives the connection back."""
        try:
            if discard:
                await self._connection.invalidate()
            if self._session is not None:
                await self._session.close()
            if self._transaction.is_active:
                await self._transaction.rollback()
        except Exception:  # noqa: BLE001
            pass
        finally:
            try:
                await self._connection.close()
            except Exception:  # noqa: BLE001
                await self._connection.invalidate()


def _refuse_ended(transaction: Any) -> None:
    if not transaction.is_active:
        raise NotCommitted("the handler ended the transaction that is the library's to commit")


def _is_psycopg(raw: Any) -> bool:
    return type(raw).__module__.split(".")[0] == "psycopg"


def _commit_raw(raw: Any) -> None:
    """Sends COMMIT by the driver itself, whose answer SQLAlchemy does not look at. Its own commit() then has nothing to do."""
    if _is_psycopg(raw):
        from .psycopg import refuse_ended

        refuse_ended(raw)
        refuse_rollback(raw.cursor().execute("COMMIT", prepare=False).statusmessage)
    elif hasattr(raw, "get_transaction_status"):  # psycopg2
        with raw.cursor() as cursor:
            cursor.execute("COMMIT")
            refuse_rollback(cursor.statusmessage)


async def _commit_raw_async(raw: Any) -> None:
    """The same. asyncpg needs none of it: it refuses a second statement while one runs, so that none comes in between."""
    if _is_psycopg(raw):
        from .psycopg import refuse_ended

        refuse_ended(raw)
        refuse_rollback((await raw.cursor().execute("COMMIT", prepare=False)).statusmessage)
