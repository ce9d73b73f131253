"""Run a walk: carry out its commands with a driver, blocking or asynchronous. No decisions."""

from __future__ import annotations

import asyncio
import inspect
import time
from typing import Any, Awaitable, Callable, Optional

from . import turns, walk
from .answers import Answer, Outcome
from .call import Call
from .walk import Ask, Begin, Commit, End, Flush, Handle, Query, Sleep, State, Take

#: Gives the answer of a request whose transaction is in its one argument.
Handler = Callable[[Any], Any]


def run(steps: walk.Walk, state: State, call: Optional[Call], driver: Any, handler: Handler) -> Outcome:
    """Runs a walk in this thread."""
    place = turns.of_threads()
    session: Any = None
    holds_turn = False
    result: Any = None
    error: Optional[Exception] = None
    try:
        while True:
            try:
                command = steps.throw(error) if error is not None else steps.send(result)
            except StopIteration as done:
                return done.value
            result, error = None, None
            try:
                if isinstance(command, Take):
                    result = place.take(call.id, command.until)
                    holds_turn = result == walk.MINE
                elif isinstance(command, Ask):
                    result = driver.ask(command.sql, command.parameters)
                elif isinstance(command, Begin):
                    session = driver.begin()
                elif isinstance(command, Query):
                    result = session.query(command.sql, command.parameters)
                elif isinstance(command, Handle):
                    result = Answer.of(handler(session.handle))
                elif isinstance(command, Flush):
                    session.flush()
                elif isinstance(command, Commit):
                    session.commit()
                elif isinstance(command, End):
                    ended, session = session, None
                    if ended is not None:
                        ended.end(command.discard)
                elif isinstance(command, Sleep):
                    time.sleep(command.seconds)
                else:
                    raise AssertionError(f"no such command: {command!r}")
            except Exception as raised:  # noqa: BLE001 - the walk decides what an error means
                error = raised
    finally:
        try:
            if session is not None:
                session.end(True)
        finally:
            if holds_turn:
                place.give(call.id, state.has_record)


async def run_async(
    steps: walk.Walk,
    state: State,
    call: Optional[Call],
    driver: Any,
    handler: Callable[[Any], Awaitable[Any]],
) -> Outcome:
    """Runs a walk in this task. A task that is cancelled rolls back."""
    place = turns.of_loop()
    session: Any = None
    holds_turn = False
    result: Any = None
    error: Optional[Exception] = None
    try:
        while True:
            try:
                command = steps.throw(error) if error is not None else steps.send(result)
            except StopIteration as done:
                return done.value
            result, error = None, None
            try:
                if isinstance(command, Take):
                    result = await place.take(call.id, command.until)
                    holds_turn = result == walk.MINE
                elif isinstance(command, Ask):
                    result = await driver.ask(command.sql, command.parameters)
                elif isinstance(command, Begin):
                    session = await driver.begin()
                elif isinstance(command, Query):
                    result = await session.query(command.sql, command.parameters)
                elif isinstance(command, Handle):
                    given = handler(session.handle)
                    result = Answer.of(await given if inspect.isawaitable(given) else given)
                elif isinstance(command, Flush):
                    await session.flush()
                elif isinstance(command, Commit):
                    await session.commit()
                elif isinstance(command, End):
                    ended, session = session, None
                    if ended is not None:
                        await asyncio.shield(ended.end(command.discard))
                elif isinstance(command, Sleep):
                    await asyncio.sleep(command.seconds)
                else:
                    raise AssertionError(f"no such command: {command!r}")
            except Exception as raised:  # noqa: BLE001 - the walk decides what an error means
                error = raised
    finally:
        try:
            if session is not None:
                await asyncio.shield(session.end(True))
        finally:
            if holds_turn:
                place.give(call.id, state.has_record)
