"""What a driver leaves behind: the application's own connections are as they were, whatever fails and whoever is cancelled."""

import asyncio
import threading
import time

import asyncpg
import psycopg_pool
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from semel.drivers import driver_of
from semel.drivers.threads import Threaded
from service import sqlalchemy_url

FAILING = "SELECT 1 / CAST({} AS integer) AS x"
SLOW = "SELECT pg_sleep(CAST(CAST({} AS text) AS double precision)) AS x"
UNTIL = 20


class Rolled(Exception):
    """The application fails in its own transaction."""


@pytest.fixture
def table(database):
    database.execute("DROP TABLE IF EXISTS public.kept")
    database.execute("CREATE TABLE public.kept (v integer)")
    return lambda: database.execute("SELECT count(*) FROM public.kept").fetchone()[0]


def in_psycopg(pool):
    with pool.connection() as connection:
        connection.execute("INSERT INTO kept VALUES (1)")
        raise Rolled


def in_sqlalchemy(engine):
    with engine.begin() as connection:
        connection.execute(sa.text("INSERT INTO kept VALUES (1)"))
        raise Rolled


async def in_async_psycopg(pool):
    async with pool.connection() as connection:
        await connection.execute("INSERT INTO kept VALUES (1)")
        raise Rolled


async def in_asyncpg(pool):
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute("INSERT INTO kept VALUES (1)")
        raise Rolled


async def in_async_sqlalchemy(engine):
    async with engine.begin() as connection:
        await connection.execute(sa.text("INSERT INTO kept VALUES (1)"))
        raise Rolled


@pytest.mark.parametrize("kind", ["psycopg", "sqlalchemy"])
def test_a_statement_that_fails_leaves_transactions_to_the_application(postgres, table, kind):
    if kind == "psycopg":
        pool, use, close = psycopg_pool.ConnectionPool(postgres, min_size=1, max_size=1, open=True), in_psycopg, "close"
    else:
        pool = sa.create_engine(sqlalchemy_url(postgres, "psycopg"), pool_size=1, max_overflow=0)
        use, close = in_sqlalchemy, "dispose"
    try:
        with pytest.raises(Exception, match="division by zero"):
            driver_of(pool)[0].ask(FAILING, (0,))
        with pytest.raises(Rolled):
            use(pool)
        assert table() == 0
    finally:
        getattr(pool, close)()


async def wait_for(is_so):
    until = time.monotonic() + UNTIL
    while not is_so():
        assert time.monotonic() < until, "waited in vain"
        await asyncio.sleep(0.005)


def sleepers(database):
    text = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'active' AND query LIKE '%pg_sleep%' AND pid <> pg_backend_pid()"
    return database.execute(text).fetchone()[0]


async def open_async(postgres, kind):
    if kind == "psycopg":
        pool = psycopg_pool.AsyncConnectionPool(postgres, min_size=1, max_size=1, open=False)
        await pool.open(wait=True)
        return pool, in_async_psycopg, pool.close
    if kind == "asyncpg":
        pool = await asyncpg.create_pool(postgres, min_size=1, max_size=1)
        return pool, in_asyncpg, pool.close
    engine = create_async_engine(sqlalchemy_url(postgres, kind.partition("+")[2]), pool_size=1, max_overflow=0)
    return engine, in_async_sqlalchemy, engine.dispose


ASYNC_KINDS = ["psycopg", "asyncpg", "sqlalchemy+psycopg", "sqlalchemy+asyncpg"]


@pytest.mark.parametrize("how", ["fails", "cancelled", "cancelled twice"])
@pytest.mark.parametrize("kind", ASYNC_KINDS)
def test_a_statement_that_fails_or_is_cancelled_leaves_transactions_to_the_application(postgres, database, table, kind, how):
    async def work():
        pool, use, close = await open_async(postgres, kind)
        driver = driver_of(pool)[0]
        try:
            if how == "fails":
                with pytest.raises(Exception, match="division by zero"):
                    await driver.ask(FAILING, (0,))
            else:
                task = asyncio.create_task(driver.ask(SLOW, ("20",)))
                await wait_for(lambda: sleepers(database) == 1)
                task.cancel()
                if how == "cancelled twice":
                    await asyncio.sleep(0)
                    task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            with pytest.raises(Rolled):
                await asyncio.wait_for(use(pool), UNTIL)
            assert table() == 0
        finally:
            await close()

    asyncio.run(work())


@pytest.mark.parametrize("kind", ASYNC_KINDS)
def test_a_begin_that_is_cancelled_gives_its_connection_back(postgres, table, kind):
    async def work():
        pool, use, close = await open_async(postgres, kind)
        driver = driver_of(pool)[0]
        try:
            for steps in range(25):
                task = asyncio.create_task(driver.begin())
                for _ in range(steps):
                    await asyncio.sleep(0)
                task.cancel()
                try:
                    await (await task).end(False)
                except asyncio.CancelledError:
                    pass
                with pytest.raises(Rolled):
                    await asyncio.wait_for(use(pool), UNTIL)
            assert table() == 0
        finally:
            await close()

    asyncio.run(work())


# ------------------------------------------------------------------------------------------------------------ threads


class Blocking:
    """A blocking driver whose calls wait for the test, and which notices two threads on one session."""

    def __init__(self):
        self.may_begin, self.may_answer = threading.Event(), threading.Event()
        self.log, self.busy, self.together = [], 0, 0
        self.handle = self

    def _do(self, name, event=None):
        self.busy += 1
        self.together = max(self.together, self.busy)
        self.log.append(name)
        if event is not None:
            assert event.wait(UNTIL)
        self.busy -= 1

    def begin(self):
        self.log.append("begin")
        assert self.may_begin.wait(UNTIL)
        return self

    def query(self, sql, parameters):
        self._do("query", self.may_answer)

    def commit(self):
        self._do("commit", self.may_answer)

    def end(self, discard):
        self._do("end")


@pytest.mark.parametrize("call", ["query", "commit"])
def test_a_session_in_threads_ends_after_the_call_that_runs(call):
    async def work():
        driver = Blocking()
        driver.may_begin.set()
        session = await Threaded(driver).begin()
        running = asyncio.create_task(session.query("", ()) if call == "query" else session.commit())
        await wait_for(lambda: call in driver.log)
        running.cancel()
        ending = asyncio.create_task(session.end(True))
        await asyncio.sleep(0.1)
        seen = list(driver.log)
        driver.may_answer.set()
        await asyncio.wait_for(ending, UNTIL)
        assert seen == ["begin", call] and driver.log == ["begin", call, "end"] and driver.together == 1

    asyncio.run(work())


def test_no_call_begins_on_a_session_that_ended():
    async def work():
        driver = Blocking()
        driver.may_begin.set()
        session = await Threaded(driver).begin()
        await session.end(False)
        with pytest.raises(RuntimeError, match="ended"):
            await session.query("", ())
        await session.end(False)
        assert driver.log == ["begin", "end"]

    asyncio.run(work())


def test_a_begin_in_a_thread_that_is_cancelled_ends_the_session_that_comes_late():
    async def work():
        driver = Blocking()
        beginning = asyncio.create_task(Threaded(driver).begin())
        await wait_for(lambda: driver.log)
        beginning.cancel()
        with pytest.raises(asyncio.CancelledError):
            await beginning
        driver.may_begin.set()
        await wait_for(lambda: driver.log == ["begin", "end"])

    asyncio.run(work())


def test_calls_in_threads_that_are_cancelled_leave_the_pool_whole(postgres):
    async def work(pool):
        driver = Threaded(driver_of(pool)[0])

        async def use():
            session = None
            try:
                session = await driver.begin()
                await session.query("SELECT CAST({} AS integer) AS x", (1,))
                await session.commit()
            finally:
                if session is not None:
                    await asyncio.shield(session.end(True))

        for at in range(60):
            task = asyncio.create_task(use())
            await asyncio.sleep(0.0003 * (at % 20))
            task.cancel()
            try:
                await task
            except asyncio.CancelledError:
                pass
        await wait_for(lambda: pool.get_stats()["pool_available"] == 2)

    with psycopg_pool.ConnectionPool(postgres, min_size=2, max_size=2, open=True) as pool:
        asyncio.run(work(pool))
