"""Drivers: how each database library begins, asks, commits and gives back. No decisions.

A driver has `ask(sql, parameters)`, which runs a statement by itself, and `begin()`, which gives a session:

- `handle`: what the handler gets,
- `query(sql, parameters)`: runs a statement in the transaction and gives its one row by column,
- `flush()`: sends what an object mapper has not sent yet,
- `commit()`: sends COMMIT, and raises unless the database says that it committed: in a transaction that has failed COMMIT is a
  rollback, and most libraries take no notice,
- `end(discard)`: rolls back what is not committed and gives the connection back, or closes it. Never raises.

`{}` stands for a parameter in a statement. Parameters are bytes, texts, numbers or None, which every library sends alike.
"""

from __future__ import annotations

from typing import Any, Dict, Optional, Tuple


def driver_of(database: Any) -> Tuple[Any, bool]:
    """The driver of a pool, an engine, a session maker or a Django connection, and whether it is asynchronous."""
    for kind in type(database).__mro__:
        top, name = kind.__module__.split(".")[0], kind.__name__
        if top == "psycopg_pool" and name in ("ConnectionPool", "NullConnectionPool"):
            from .psycopg import Psycopg

            return Psycopg(database), False
        if top == "psycopg_pool" and name in ("AsyncConnectionPool", "AsyncNullConnectionPool"):
            from .psycopg import AsyncPsycopg

            return AsyncPsycopg(database), True
        if top == "asyncpg" and name == "Pool":
            from .asyncpg import Asyncpg

            return Asyncpg(database), True
        if top == "sqlalchemy" and name in ("Engine", "sessionmaker"):
            from .sqlalchemy import Sqlalchemy

            return Sqlalchemy(database), False
        if top == "sqlalchemy" and name in ("AsyncEngine", "async_sessionmaker"):
            from .sqlalchemy import AsyncSqlalchemy

            return AsyncSqlalchemy(database), True
        if top == "django" and name in ("BaseDatabaseWrapper", "ConnectionProxy"):
            from .django import Django

            return Django(database.alias), False
    raise TypeError(
        f"semel has no driver for {type(database).__name__}: give it a psycopg_pool pool, an asyncpg pool, an SQLAlchemy "
        "engine or sessionmaker, or a Django connection"
    )


def number(sql: str, form: str = "%s") -> str:
    """A statement with its parameters in a driver's own spelling; `#` in the form is the parameter's number."""
    pieces = sql.split("{}")
    marks = [form.replace("#", str(place)) for place in range(1, len(pieces))]
    return "".join(piece + mark for piece, mark in zip(pieces, [*marks, ""]))


def plain(row: Optional[Dict[str, Any]]) -> Dict[str, Any]:
    """A row whose bytes are bytes; some libraries give views of memory."""
    if row is None:
        raise RuntimeError("the database gave no row where one was due")
    return {name: bytes(value) if isinstance(value, memoryview) else value for name, value in row.items()}


class NotCommitted(Exception):
    """COMMIT was answered by a rollback: a statement had failed, or the transaction was not there any more."""

    #: The class of invalid transaction states.
    sqlstate = "25P02"


def refuse_rollback(tag: Optional[str]) -> None:
    """Raises unless the database has answered COMMIT by COMMIT."""
    if tag != "COMMIT":
        raise NotCommitted(f"the database answered COMMIT by {tag}: something failed in the transaction")
