"""One handler, and one poller, for each key and process. All others wait here, in memory, holding no connection.

A turn is given on in the order of asking. When the holder leaves a record behind, everybody who waits is let go at once to read
it: an answer always comes from the record, never from another request's memory.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
import weakref
from collections import deque
from typing import Deque, Dict

from .problems import Problem
from .walk import AGAIN, LATE, MINE

WAITERS_PER_KEY_MAX = 10_000
WAITERS_MAX = 100_000


def _too_many() -> Problem:
    return Problem("too-many-waiters", "", 1)


class _Place:
    def __init__(self, lock: threading.Lock) -> None:
        self.is_held = True
        self.waiting = 0
        self.records = 0
        self.changed = threading.Condition(lock)


class Turns:
    """Turns of threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._places: Dict[bytes, _Place] = {}
        self._waiting = 0

    def take(self, key: bytes, until: float) -> str:
        """MINE: the caller holds the turn, and must give it back. AGAIN: a record may stand. LATE: the time is over."""
        with self._lock:
            place = self._places.get(key)
            if place is None:
                self._places[key] = _Place(self._lock)
                return MINE
            if until <= time.monotonic():
                return LATE
            if place.waiting >= WAITERS_PER_KEY_MAX or self._waiting >= WAITERS_MAX:
                raise _too_many()
            place.waiting += 1
            self._waiting += 1
            try:
                return self._wait(place, until)
            finally:
                place.waiting -= 1
                self._waiting -= 1
                self._forget(key, place)

    def _wait(self, place: _Place, until: float) -> str:
        seen = place.records
        while True:
            if place.records != seen:
                return AGAIN
            if not place.is_held:
                place.is_held = True
                return MINE
            left = until - time.monotonic()
            if left <= 0:
                return LATE
            place.changed.wait(left)

    def give(self, key: bytes, has_record: bool) -> None:
        """Gives the turn back."""
        with self._lock:
            place = self._places[key]
            place.is_held = False
            if has_record:
                place.records += 1
                place.changed.notify_all()
            else:
                place.changed.notify()
            self._forget(key, place)

    def _forget(self, key: bytes, place: _Place) -> None:
        if not place.is_held and place.waiting == 0:
            self._places.pop(key, None)


class AsyncTurns:
    """Turns of the tasks of one event loop."""

    def __init__(self) -> None:
        self._places: Dict[bytes, Deque["asyncio.Future[str]"]] = {}
        self._waiting = 0

    async def take(self, key: bytes, until: float) -> str:
        """As `Turns.take`."""
        queue = self._places.get(key)
        if queue is None:
            self._places[key] = deque()
            return MINE
        left = until - time.monotonic()
        if left <= 0:
            return LATE
        if len(queue) >= WAITERS_PER_KEY_MAX or self._waiting >= WAITERS_MAX:
            raise _too_many()
        loop = asyncio.get_running_loop()
        mine: "asyncio.Future[str]" = loop.create_future()
        queue.append(mine)
        self._waiting += 1
        timer = loop.call_later(left, _resolve, mine, LATE)
        try:
            return await mine
        except asyncio.CancelledError:
            # The turn may have been handed over in the same moment: it is handed on.
            if mine.done() and not mine.cancelled() and mine.result() == MINE:
                self.give(key, False)
            raise
        finally:
            timer.cancel()
            self._waiting -= 1

    def give(self, key: bytes, has_record: bool) -> None:
        """Gives the turn back: to all who wait, where a record stands, else to the first of them."""
        queue = self._places[key]
        while queue:
            waiter = queue.popleft()
            if has_record:
                _resolve(waiter, AGAIN)
            elif _resolve(waiter, MINE):
                return
        del self._places[key]


def _resolve(waiter: "asyncio.Future[str]", result: str) -> bool:
    if waiter.done():
        return False
    waiter.set_result(result)
    return True


_threads = Turns()
_loops: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncTurns]" = weakref.WeakKeyDictionary()


def of_threads() -> Turns:
    """The turns of this process's threads."""
    return _threads


def of_loop() -> AsyncTurns:
    """The turns of the running event loop."""
    loop = asyncio.get_running_loop()
    if loop not in _loops:
        _loops[loop] = AsyncTurns()
    return _loops[loop]


def _begin_in_child() -> None:
    # A child has none of its parent's threads: a turn that one of them held would never be given back.
    global _threads
    _threads = Turns()
    _loops.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_in_child)

