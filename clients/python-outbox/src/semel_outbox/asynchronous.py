"""The outbox for asyncio."""

from __future__ import annotations

import asyncio
import atexit
import weakref
from typing import AsyncIterator

from ._core import semel_core as core
from .host import Credentials, Host, Notified, Rebuilder

LIVE = {core.Status.PENDING, core.Status.INFLIGHT, core.Status.HELD}
LONGEST_WAIT_MILLIS = 60_000
EVENTS_WAIT_MILLIS = 30_000
EVENTS_AT_ONCE = 500


def message(
    method: str,
    url: str,
    body: bytes | str = b"",
    *,
    headers: dict[str, str] | None = None,
    id: str | None = None,
    lane: str | None = None,
    principal: str | None = None,
    logical_key: str | None = None,
    operation: str | None = None,
    generated_at_millis: int | None = None,
) -> core.Message:
    """A message, from plain values."""
    lines = [core.Header(name=name, value=value) for name, value in (headers or {}).items()]
    return core.Message(
        method=method,
        url=url,
        headers=lines,
        body=body.encode() if isinstance(body, str) else body,
        id=id,
        lane=lane,
        principal=principal,
        logical_key=logical_key,
        operation=operation,
        generated_at_millis=generated_at_millis,
    )


_OPEN: weakref.WeakSet[AsyncOutbox] = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    """The library's threads must not ask an interpreter that is being taken apart."""
    for outbox in list(_OPEN):
        outbox._core.stop_at_exit()


class AsyncOutbox:
    """A durable queue in one file.

    A message is accepted by the commit: a task that is cancelled while it sends does not take the message back.
    """

    def __init__(self, opened: core.Core) -> None:
        self._core = opened
        _OPEN.add(self)

    @classmethod
    async def open(
        cls,
        path: str,
        *,
        profile: str = "ietf",
        base_url: str | None = None,
        credentials: Credentials | None = None,
        rebuild: Rebuilder | None = None,
        notice: Notified | None = None,
        blocks_on_dead: bool = False,
        max_age_millis: int | None = None,
        attempt_timeout_millis: int | None = None,
        trust_file: str | None = None,
    ) -> AsyncOutbox:
        """Opens a file, or creates it, and begins to send.

        `credentials(principal, origin)` gives the credential of the moment, or None when nobody is signed in; without it, messages
        need none. `rebuild(held, behind)` says how a lane goes on whose steps are out of order. `notice` is told what a person should
        know, on a thread of the library. The first two may be asynchronous.
        """
        options = core.Options(
            path=str(path),
            profile=profile,
            base_url=base_url,
            needs_credentials=credentials is not None,
            blocks_on_dead=blocks_on_dead,
            max_age_millis=max_age_millis,
            attempt_timeout_millis=attempt_timeout_millis,
            trust_file=trust_file,
        )
        loop = asyncio.get_running_loop()
        host = Host(credentials, rebuild, notice, loop)
        return cls(await loop.run_in_executor(None, core.Core.open, options, host))

    async def send(self, method: str, url: str, body: bytes | str = b"", **named) -> core.Accepted:
        """Accepts a message. Once this returns, it outlives the process. See `message` for what may be named."""
        return await self._core.send(message(method, url, body, **named))

    async def wait(self, id: str, principal: str | None = None, operation: str | None = None) -> core.Receipt:
        """Waits until a message is finished: delivered, given up or taken back."""
        while True:
            receipt = await self._core.wait(id, principal, operation, LONGEST_WAIT_MILLIS)
            if receipt.status not in LIVE:
                return receipt

    async def get(self, id: str, principal: str | None = None, operation: str | None = None) -> core.Receipt | None:
        return await self._core.get(id, principal, operation)

    async def list(
        self, status: core.Status | None = None, lane: str | None = None, after: int = 0, limit: int = 1000
    ) -> list[core.Receipt]:
        """Messages in the order of acceptance."""
        return await self._core.list(status, lane, after, limit)

    async def events(self, after: int = 0) -> AsyncIterator[core.Event]:
        """Everything that happened after this event, and then what happens. Numbers outlive the process."""
        while True:
            for event in await self._core.events(after, EVENTS_AT_ONCE, EVENTS_WAIT_MILLIS):
                yield event
                after = event.number

    async def lanes(self) -> list[core.LaneState]:
        return await self._core.lanes()

    async def retry(self, id: str, principal: str | None = None, operation: str | None = None) -> None:
        """Tries a message that waits for its next attempt at once."""
        await self._core.retry(id, principal, operation)

    async def abort(self, id: str, why: str, principal: str | None = None, operation: str | None = None) -> None:
        """Takes a message back that is not being sent and was not delivered."""
        await self._core.abort(id, principal, operation, why)

    async def requeue(
        self,
        id: str,
        new_id: str | None = None,
        force: bool = False,
        principal: str | None = None,
        operation: str | None = None,
    ) -> core.Receipt:
        """Sends what waits or was given up again, under a new id."""
        return await self._core.requeue(id, principal, operation, new_id, force)

    async def pause(self, lane: str) -> None:
        await self._core.pause(lane)

    async def resume(self, lane: str) -> None:
        await self._core.resume(lane)

    async def sign_in(self, principal: str) -> None:
        """This principal has a fresh credential: what waits for it goes on."""
        await self._core.sign_in(principal)

    async def sign_out(self, principal: str) -> None:
        """This principal has left. Its messages are parked, never deleted."""
        await self._core.sign_out(principal)

    async def kick(self) -> None:
        """The network may be back: what waits for it is tried at once."""
        await self._core.kick()

    async def confirm_clock(self, reason: str) -> None:
        """A person says that the clock of the machine is right."""
        await self._core.confirm_clock(reason)

    async def import_queue(self, file: str, table: str, routes: list[core.Route]) -> core.Imported:
        """Makes messages of an older queue's rows; doing it again makes none twice."""
        return await self._core.import_queue(str(file), table, routes)

    async def is_owner(self) -> bool:
        """Whether this process owns the file."""
        return await self._core.is_owner()

    async def close(self) -> None:
        """Begins nothing new and gives the file back. What is left is sent after the next start."""
        await self._core.stop()

    async def __aenter__(self) -> AsyncOutbox:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
