"""Errors of the database, as far as the walk needs to know them. Drivers wrap them in different ways; all are looked through."""

from __future__ import annotations

import asyncio
from typing import NamedTuple, Optional

from .problems import Problem

SOON_SECONDS = 1


class Failure(NamedTuple):
    """An error of the database, as far as the walk needs to know it."""

    sqlstate: Optional[str]

    @property
    def is_retryable(self) -> bool:
        """Whether the same transaction may succeed when it is run again."""
        return self.sqlstate in ("40001", "40P01")

    @property
    def is_away(self) -> bool:
        """Whether the server, the connection or the pool went away."""
        state = self.sqlstate
        return state is None or state == "25P03" or state.startswith(("08", "53", "57P"))


def failure_of(error: Optional[BaseException]) -> Optional[Failure]:
    """What the database said; None where the error is none of its own. Wrappers are looked through."""
    depth = 0
    is_of_database = False
    while error is not None and depth < 10:
        state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
        if isinstance(state, str):
            return Failure(state)
        is_of_database = is_of_database or _is_connection_error(error)
        error = getattr(error, "orig", None) or error.__cause__
        depth += 1
    return Failure(None) if is_of_database else None


_DATABASE_MODULES = ("psycopg", "psycopg2", "psycopg_pool", "asyncpg", "sqlalchemy", "django")
_AWAY_NAMES = ("OperationalError", "InterfaceError", "PoolTimeout", "TooManyRequests", "PoolClosed", "TimeoutError")


def _is_connection_error(error: BaseException) -> bool:
    """Whether a driver lost its connection or could not get one. They say so in different ways."""
    if isinstance(error, (ConnectionError, TimeoutError, asyncio.TimeoutError)):
        return True
    kind = type(error)
    names = {base.__name__ for base in kind.__mro__}
    is_drivers = kind.__module__.split(".")[0] in _DATABASE_MODULES
    return is_drivers and (bool(names.intersection(_AWAY_NAMES)) or "Connection" in kind.__name__)


def store_unavailable(detail: str) -> Problem:
    return Problem("store-unavailable", detail, SOON_SECONDS)


def explain(error: Exception, failure: Optional[Failure]) -> Exception:
    """An error before the handler ran, in words that lead somewhere."""
    if failure is None:
        return error
    if failure.is_away:
        return store_unavailable("nothing was executed")
    if failure.sqlstate in ("42883", "3F000"):
        return RuntimeError("this database has no semel.enter; run `semel migrate --store postgres://…` first")
    if failure.sqlstate == "42501":
        return RuntimeError("the database user may not call semel.enter; GRANT semel_library TO it")
    return error
