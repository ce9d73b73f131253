"""A blocking driver under an event loop: each of its calls runs in a thread.

Calls that may wait for a free connection have threads of their own. Otherwise they could take every thread while those who hold
the connections need one to commit.
"""

from __future__ import annotations

import asyncio
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
        return ThreadedSession(await _run(_waiting, self._driver.begin))


class ThreadedSession:
    """A transaction of a blocking driver."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self.handle = session.handle

    async def query(self, sql: str, parameters: Tuple[Any, ...]) -> Dict[str, Any]:
        """Runs a statement in the transaction."""
        return await _run(_holding, self._session.query, sql, parameters)

    async def flush(self) -> None:
        """Sends what an object mapper has not sent yet."""
        await _run(_holding, self._session.flush)

    async def commit(self) -> None:
        """Sends COMMIT."""
        await _run(_holding, self._session.commit)

    async def end(self, discard: bool) -> None:
        """Gives the connection back."""
        await _run(_holding, self._session.end, discard)


async def _run(executor: ThreadPoolExecutor, function: Any, *arguments: Any) -> Any:
    return await asyncio.get_running_loop().run_in_executor(executor, function, *arguments)
