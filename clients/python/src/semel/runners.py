"""Run a walk: carry out its commands with a driver, blocking or asynchronous. No decisions.

A machine runs until the handler's turn comes (`advance` returns True) or the walk is over (False, and `outcome` is there).
Whoever uses one closes it, whatever happens: that rolls back, and gives connection and turn back.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from typing import Any, Callable, Optional

from . import turns, walk
from .answers import Answer, Outcome
from .call import Call
from .walk import Ask, Begin, Commit, End, Flush, Handle, Query, Sleep, State, Take

#: Gives the answer of a request; its one argument is the transaction.
Handler = Callable[[Any], Any]


class Machine:
    """A walk in this thread."""

    def __init__(self, steps: walk.Walk, state: State, call: Optional[Call], driver: Any) -> None:
        self._steps = steps
        self._state = state
        self._call = call
        self._driver = driver
        self._turns = turns.of_threads()
        self._holds_turn = False
        self._session: Any = None
        self.outcome: Optional[Outcome] = None

    @property
    def handle(self) -> Any:
        """The transaction, for the handler."""
        return self._session.handle

    def advance(self, result: Any = None, error: Optional[Exception] = None) -> bool:
        """Goes on with the result or the error of the last command until the handler is due or the walk is over."""
        while True:
            try:
                command = self._steps.throw(error) if error is not None else self._steps.send(result)
            except StopIteration as done:
                self.outcome = done.value
                return False
            if isinstance(command, Handle):
                return True
            try:
                result, error = self._do(command), None
            except Exception as raised:  # noqa: BLE001 - the walk decides what an error means
                result, error = None, raised

    def _do(self, command: Any) -> Any:
        if isinstance(command, Take):
            place = self._turns.take(self._call.id, command.until)
            self._holds_turn = place == walk.MINE
            return place
        if isinstance(command, Ask):
            return self._driver.ask(command.sql, command.parameters)
        if isinstance(command, Begin):
            self._session = self._driver.begin()
        elif isinstance(command, Query):
            return self._session.query(command.sql, command.parameters)
        elif isinstance(command, Flush):
            self._session.flush()
        elif isinstance(command, Commit):
            self._session.commit()
        elif isinstance(command, End):
            self._end(command.discard)
        elif isinstance(command, Sleep):
            time.sleep(command.seconds)
        else:
            raise AssertionError(f"no such command: {command!r}")
        return None

    def _end(self, discard: bool) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.end(discard)

    def close(self) -> None:
        """Gives back what is still held."""
        try:
            self._end(True)
        finally:
            if self._holds_turn:
                self._holds_turn = False
                self._turns.give(self._call.id, self._state.has_record)


def run(steps: walk.Walk, state: State, call: Optional[Call], driver: Any, handler: Handler) -> Outcome:
    """Runs a walk and its handler in this thread."""
    machine = Machine(steps, state, call, driver)
    try:
        is_due = machine.advance()
        while is_due:
            try:
                answer, error = Answer.of(handler(machine.handle)), None
            except Exception as raised:  # noqa: BLE001 - the walk rolls back and lets it go on
                answer, error = None, raised
            is_due = machine.advance(answer, error)
        return machine.outcome
    finally:
        machine.close()


class AsyncMachine:
    """A walk in this task. A task that is cancelled rolls back."""

    def __init__(self, steps: walk.Walk, state: State, call: Optional[Call], driver: Any) -> None:
        self._steps = steps
        self._state = state
        self._call = call
        self._driver = driver
        self._turns = turns.of_loop()
        self._holds_turn = False
        self._session: Any = None
        self.outcome: Optional[Outcome] = None

    @property
    def handle(self) -> Any:
        """The transaction, for the handler."""
        return self._session.handle

    async def advance(self, result: Any = None, error: Optional[Exception] = None) -> bool:
        """Goes on with the result or the error of the last command until the handler is due or the walk is over."""
        while True:
            try:
                command = self._steps.throw(error) if error is not None else self._steps.send(result)
            except StopIteration as done:
                self.outcome = done.value
                return False
            if isinstance(command, Handle):
                return True
            try:
                result, error = await self._do(command), None
            except Exception as raised:  # noqa: BLE001 - the walk decides what an error means
                result, error = None, raised

    async def _do(self, command: Any) -> Any:
        if isinstance(command, Take):
            place = await self._turns.take(self._call.id, command.until)
            self._holds_turn = place == walk.MINE
            return place
        if isinstance(command, Ask):
            return await self._driver.ask(command.sql, command.parameters)
        if isinstance(command, Begin):
            self._session = await self._driver.begin()
        elif isinstance(command, Query):
            return await self._session.query(command.sql, command.parameters)
        elif isinstance(command, Flush):
            await self._session.flush()
        elif isinstance(command, Commit):
            await self._session.commit()
        elif isinstance(command, End):
            await self._end(command.discard)
        elif isinstance(command, Sleep):
            await asyncio.sleep(command.seconds)
        else:
            raise AssertionError(f"no such command: {command!r}")
        return None

    async def _end(self, discard: bool) -> None:
        session, self._session = self._session, None
        if session is not None:
            await asyncio.shield(session.end(discard))

    async def close(self) -> None:
        """Gives back what is still held."""
        try:
            await self._end(True)
        finally:
            if self._holds_turn:
                self._holds_turn = False
                self._turns.give(self._call.id, self._state.has_record)


async def run_async(
    steps: walk.Walk, state: State, call: Optional[Call], driver: Any, handler: Handler
) -> Outcome:
    """Runs a walk and its handler in this task."""
    machine = AsyncMachine(steps, state, call, driver)
    try:
        is_due = await machine.advance()
        while is_due:
            try:
                given = handler(machine.handle)
                answer, error = Answer.of(await given if inspect.isawaitable(given) else given), None
            except Exception as raised:  # noqa: BLE001 - the walk rolls back and lets it go on
                answer, error = None, raised
            is_due = await machine.advance(answer, error)
        return machine.outcome
    finally:
        await machine.close()
