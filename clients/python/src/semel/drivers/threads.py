"""A blocking driver under an event loop: each of its calls runs in a thread.

Calls that may wait for a free connection have threads of their own. Otherwise they could take every thread while those who hold
the connections need one to commit.

A thread goes on when the task that waits for it is cancelled. So a session lets one thread in at a time, its end waits for the
call that runs, and a session that comes after nobody waits for it any more is ended at once.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Dict, Tuple

THREADS_MAX = 32

_waiting = ThreadPoolExecutor(THREADS_MAX, "semel-begin")
_holding = ThreadPoolExecutor(THREADS_MAX, "semel-hold")


class Threaded:
    """A blocking driver, asked from an event loop."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver

    async def ask(self, sql: str, parameters: Tuple[Any, ...]) -> Dict[str, Any]:
        """Runs a statement in autocommit."""
        return await _run(_waiting, self._driver.ask, sql, parameters)

    async def begin(self) -> "ThreadedSession":
        """Takes a connection and begins."""
        beginning = _Beginning(self._driver)
        try:
            return ThreadedSession(await _run(_waiting, beginning.begin))
        except BaseException:
            beginning.abandon()
            raise


class _Beginning:
    """A session that is on its way from a thread to the task that asked for it."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver
        self._lock = threading.Lock()
        self._session: Any = None
        self._is_abandoned = False

    def begin(self) -> Any:
        """Runs in the thread."""
        session = self._driver.begin()
        with self._lock:
            self._session = session
            is_late = self._is_abandoned
        if is_late:
            session.end(False)
        return session

    def abandon(self) -> None:
        """Nobody waits any more: the session is ended, whether it is here already or comes later."""
        with self._lock:
            self._is_abandoned = True
            session = self._session
        if session is not None:
            _holding.submit(session.end, False)


class ThreadedSession:
    """A transaction of a blocking driver."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self._lock = threading.Lock()
        self._has_ended = False
        self.handle = session.handle

    async def query(self, sql: str, parameters: Tuple[Any, ...]) -> Dict[str, Any]:
        """Runs a statement in the transaction."""
        return await _run(_holding, self._call, self._session.query, sql, parameters)

    async def flush(self) -> None:
        """Sends what an object mapper has not sent yet."""
        await _run(_holding, self._call, self._session.flush)

    async def commit(self) -> None:
        """Sends COMMIT."""
        await _run(_holding, self._call, self._session.commit)

    async def end(self, discard: bool) -> None:
        """Gives the connection back, after the call that may still run."""
        await _run(_holding, self._end, discard)

    def _call(self, function: Any, *arguments: Any) -> Any:
        with self._lock:
            if self._has_ended:
                raise RuntimeError("the transaction has ended")
            return function(*arguments)

    def _end(self, discard: bool) -> None:
        with self._lock:
            if not self._has_ended:
                self._has_ended = True
                self._session.end(discard)


async def _run(executor: ThreadPoolExecutor, function: Any, *arguments: Any) -> Any:
    return await asyncio.get_running_loop().run_in_executor(executor, function, *arguments)
