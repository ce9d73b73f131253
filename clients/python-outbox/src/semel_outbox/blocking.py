"""The outbox for blocking code: the one for asyncio, in a thread with a loop of its own."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Any, Coroutine, Iterator

from ._core import semel_core as core
from .asynchronous import AsyncOutbox


class Outbox:
    """A durable queue in one file. Its methods are those of `AsyncOutbox`, and may be called from any thread."""

    def __init__(self, path: str, **options: Any) -> None:
        self._process = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="semel-outbox-loop", daemon=True)
        self._thread.start()
        try:
            self._outbox = self._run(AsyncOutbox.open(path, **options))
        except BaseException:
            self._stop()
            raise

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        if os.getpid() != self._process:
            work.close()
            raise core.CoreError.Forked("this process was forked from the one that opened the outbox: open it again here")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def send(self, method: str, url: str, body: bytes | str = b"", **named: Any) -> core.Accepted:
        """Accepts a message. Once this returns, it outlives the process."""
        return self._run(self._outbox.send(method, url, body, **named))

    def wait(self, id: str, principal: str | None = None, operation: str | None = None) -> core.Receipt:
        """Waits until a message is finished: delivered, given up or taken back."""
        return self._run(self._outbox.wait(id, principal, operation))

    def get(self, id: str, principal: str | None = None, operation: str | None = None) -> core.Receipt | None:
        return self._run(self._outbox.get(id, principal, operation))

    def list(self, *given: Any, **named: Any) -> list[core.Receipt]:
        """Messages in the order of acceptance."""
        return self._run(self._outbox.list(*given, **named))

    def events(self, after: int = 0) -> Iterator[core.Event]:
        """Everything that happened after this event, and then what happens."""
        events = self._outbox.events(after)
        while True:
            yield self._run(events.__anext__())

    def lanes(self) -> list[core.LaneState]:
        return self._run(self._outbox.lanes())

    def retry(self, id: str, principal: str | None = None, operation: str | None = None) -> None:
        self._run(self._outbox.retry(id, principal, operation))

    def abort(self, id: str, why: str, principal: str | None = None, operation: str | None = None) -> None:
        self._run(self._outbox.abort(id, why, principal, operation))

    def requeue(self, id: str, *given: Any, **named: Any) -> core.Receipt:
        return self._run(self._outbox.requeue(id, *given, **named))

    def pause(self, lane: str) -> None:
        self._run(self._outbox.pause(lane))

    def resume(self, lane: str) -> None:
        self._run(self._outbox.resume(lane))

    def sign_in(self, principal: str) -> None:
        self._run(self._outbox.sign_in(principal))

    def sign_out(self, principal: str) -> None:
        self._run(self._outbox.sign_out(principal))

    def kick(self) -> None:
        self._run(self._outbox.kick())

    def confirm_clock(self, reason: str) -> None:
        self._run(self._outbox.confirm_clock(reason))

    def import_queue(self, file: str, table: str, routes: list[core.Route]) -> core.Imported:
        return self._run(self._outbox.import_queue(file, table, routes))

    def is_owner(self) -> bool:
        return self._run(self._outbox.is_owner())

    def close(self) -> None:
        """Begins nothing new and gives the file back. What is left is sent after the next start."""
        if os.getpid() == self._process and not self._loop.is_closed():
            self._run(self._outbox.close())
            self._stop()

    def __enter__(self) -> Outbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
