"""The program's own answers, as the library asks for them: on its threads, where blocking is allowed."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any, Awaitable, Callable, Optional, Union

from ._core import semel_core as core

Credentials = Callable[[str, str], Union[Optional[core.Credential], Awaitable[Optional[core.Credential]]]]
Rebuilder = Callable[[core.Receipt, "list[core.Receipt]"], Union[core.Rebuild, Awaitable[core.Rebuild]]]
Notified = Callable[[core.Notice], Any]


class Host(core.Host):
    """Asks the program's functions. Those that are asynchronous run in `loop`, from which they may use what belongs to it."""

    def __init__(
        self,
        credentials: Credentials | None,
        rebuild: Rebuilder | None,
        notice: Notified | None,
        loop: asyncio.AbstractEventLoop | None,
    ) -> None:
        self._credentials = credentials
        self._rebuild = rebuild
        self._notice = notice
        self._loop = loop

    def credential(self, principal: str, origin: str) -> core.Credential | None:
        return self._answer(self._credentials, principal, origin)

    def rebuild(self, held: core.Receipt, behind: list[core.Receipt]) -> core.Rebuild:
        return self._answer(self._rebuild, held, behind) or core.Rebuild.WAIT()

    def notice(self, notice: core.Notice) -> None:
        if self._notice:
            self._notice(notice)

    def _answer(self, ask: Callable[..., Any] | None, *arguments: Any) -> Any:
        if ask is None:
            return None
        try:
            answer = ask(*arguments)
            if inspect.isawaitable(answer):
                answer = self._awaited(answer)
            return answer
        except Exception as error:
            raise core.HostError.Failed(f"{type(error).__name__}: {error}") from error

    def _awaited(self, answer: Awaitable[Any]) -> Any:
        async def ended() -> Any:
            return await answer

        if self._loop is None or self._loop.is_closed():
            return asyncio.run(ended())
        return asyncio.run_coroutine_threadsafe(ended(), self._loop).result()
