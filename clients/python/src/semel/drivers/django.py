"""Django's database connections. The handler uses the object mapper as ever; COMMIT is the library's."""

from __future__ import annotations

from typing import Any, Dict, Tuple

from django.db import connections, transaction

from . import number, plain, refuse_rollback


class Django:
    """The connection of an alias, in the thread that asks."""

    def __init__(self, alias: str) -> None:
        self._alias = alias

    def ask(self, sql: str, parameters: Tuple[Any, ...]) -> Dict[str, Any]:
        """Runs a statement in autocommit."""
        self._refuse_atomic()
        return _row(connections[self._alias], sql, parameters)

    def begin(self) -> "Session":
        """Begins the outermost transaction."""
        self._refuse_atomic()
        return Session(self._alias)

    def _refuse_atomic(self) -> None:
        if connections[self._alias].in_atomic_block:
            raise RuntimeError(
                "semel begins and commits the transaction itself, and this code already runs in one: take it out of "
                "atomic(), mark the view non_atomic_requests where ATOMIC_REQUESTS is set, and test with "
                "TransactionTestCase"
            )


class Session:
    """A transaction. Nested atomic() blocks of the handler are savepoints in it."""

    def __init__(self, alias: str) -> None:
        self._connection = connections[alias]
        self._atomic = transaction.atomic(using=alias)
        self._atomic.__enter__()
        self._is_open = True
        self.handle = self._connection

    def query(self, sql: str, parameters: Tuple[Any, ...]) -> Dict[str, Any]:
        """Runs a statement in the transaction."""
        return _row(self._connection, sql, parameters)

    def flush(self) -> None:
        """The object mapper sends everything at once; but a handler that was told to roll back cannot be committed."""
        if self._connection.needs_rollback:
            raise RuntimeError("the transaction is marked for rollback, yet the handler gave an answer to record")

    def commit(self) -> None:
        """Sends COMMIT, then runs the on_commit hooks. Django does not look at the answer of its own COMMIT."""
        with self._connection.cursor() as cursor:
            cursor.execute("COMMIT")
            refuse_rollback(cursor.cursor.statusmessage)
        self._is_open = False
        self._atomic.__exit__(None, None, None)

    def end(self, discard: bool) -> None:
        """Rolls back, or closes the connection; Django opens a new one when it needs one."""
        try:
            if self._is_open:
                self._is_open = False
                self._connection.needs_rollback = True
                self._atomic.__exit__(None, None, None)
            if discard:
                self._connection.close()
        except Exception:  # noqa: BLE001
            self._connection.close()


def _row(connection: Any, sql: str, parameters: Tuple[Any, ...]) -> Dict[str, Any]:
    with connection.cursor() as cursor:
        cursor.execute(number(sql), parameters)
        names = [column[0] for column in cursor.description]
        return plain(dict(zip(names, cursor.fetchone())))
