"""`once`, `entered` and `serve` against real PostgreSQL: misuse, isolation, object mappers, cancellation, blocks."""

import re
import asyncio
import threading
import time
import uuid

import asyncpg
import psycopg
import psycopg_pool
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker

import semel
from service import sqlalchemy_url


class Base(DeclarativeBase):
    pass


class Thing(Base):
    __tablename__ = "thing"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]


@pytest.fixture(scope="module")
def pool(postgres):
    with psycopg_pool.ConnectionPool(postgres, min_size=1, max_size=8) as pool:
        with pool.connection() as connection:
            connection.execute("CREATE TABLE public.thing (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text NOT NULL)")
        yield pool


@pytest.fixture(scope="module")
def engine(postgres, pool):
    engine = sa.create_engine(sqlalchemy_url(postgres, "psycopg"))
    yield engine
    engine.dispose()


@pytest.fixture
def name():
    return uuid.uuid4().hex


@pytest.fixture
def call(name):
    return {"endpoint": "make-thing", "key": str(uuid.uuid4()), "caller": "alice", "payload": {"name": name}}


@pytest.fixture
def things(database, name):
    return lambda: database.execute("SELECT count(*) FROM thing WHERE name = %s", (name,)).fetchone()[0]


def insert(name):
    def run(transaction):
        transaction.execute("INSERT INTO thing (name) VALUES (%s)", (name,))
        return semel.Answer.json({"name": name}, 201)

    return run


def test_once_is_once(pool, call, name, things):
    first = semel.once(pool, insert(name), **call)
    again = semel.once(pool, insert(name), **call)
    assert (first.replayed, again.replayed) == (False, True)
    assert (first.status, first.body, first.fence) == (again.status, again.body, again.fence)
    assert things() == 1


def test_another_payload_is_refused(pool, call, name, things):
    semel.once(pool, insert(name), **call)
    with pytest.raises(semel.Problem) as caught:
        semel.once(pool, insert(name), **{**call, "payload": {"name": "other"}})
    assert caught.value.slug == "fingerprint-mismatch" and things() == 1


def test_threads_of_one_process_run_one_handler(pool, call, name, things):
    runs = []

    def run(transaction):
        runs.append(1)
        time.sleep(0.05)
        return insert(name)(transaction)

    outcomes = []
    workers = [threading.Thread(target=lambda: outcomes.append(semel.once(pool, run, **call))) for _ in range(40)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(30)
    assert len(runs) == 1 and things() == 1
    assert len({outcome.body for outcome in outcomes}) == 1 and len(outcomes) == 40
    assert [outcome.replayed for outcome in outcomes].count(False) == 1


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_every_isolation_level_has_one_effect(postgres, pool, call, name, things, level):
    def configure(connection):
        connection.isolation_level = getattr(psycopg.IsolationLevel, level.replace(" ", "_"))

    with psycopg_pool.ConnectionPool(postgres, min_size=4, max_size=4, configure=configure) as own:
        seen = []

        def run(transaction):
            seen.append(transaction.execute("SHOW transaction_isolation").fetchone()[0])
            return insert(name)(transaction)

        outcomes = []
        workers = [threading.Thread(target=lambda: outcomes.append(semel.once(own, run, **call))) for _ in range(8)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(30)
    assert set(seen) == {level.lower()}
    assert len({outcome.body for outcome in outcomes}) == 1 and len(outcomes) == 8 and things() == 1


# ------------------------------------------------------------------------------------------------------------- misuse


def test_commit_by_the_handler_is_forbidden(pool, call, name, things):
    def run(transaction):
        insert(name)(transaction)
        transaction.commit()

    with pytest.raises(psycopg.ProgrammingError):
        semel.once(pool, run, **call)
    assert things() == 0


def test_a_swallowed_commit_makes_no_effect(pool, call, name, things):
    def run(transaction):
        insert(name)(transaction)
        try:
            transaction.execute("COMMIT")
        except psycopg.Error:
            pass
        return "a lie"

    with pytest.raises(semel.Problem) as caught:
        semel.once(pool, run, **call)
    assert caught.value.slug == "not-settled" and things() == 0


def test_a_handler_that_rolls_back_and_writes_again_makes_no_effect(pool, call, name, things):
    def run(transaction):
        transaction.execute("ROLLBACK")
        insert(name)(transaction)
        return "a lie"

    with pytest.raises(semel.Problem) as caught:
        semel.once(pool, run, **call)
    assert caught.value.slug == "not-settled" and things() == 0


def test_a_statement_that_fails_between_leave_and_commit_is_never_taken_for_a_commit(postgres, pool, call, name, things, monkeypatch):
    """COMMIT of a failed transaction is a rollback, and says so only in its tag."""
    from semel.drivers import psycopg as by_psycopg
    from semel.drivers import sqlalchemy as by_sqlalchemy

    statement = sa.text("INSERT INTO thing (name) VALUES (:name)")

    def insert_here(transaction):
        if isinstance(transaction, psycopg.Connection):
            return insert(name)(transaction)
        transaction.execute(statement, {"name": name})
        return "made"

    def fail_after_leave(kind):
        plain_query = kind.query

        def query(self, sql, parameters):
            row = plain_query(self, sql, parameters)
            if "semel.leave" in sql:
                raw = self.handle if isinstance(self.handle, psycopg.Connection) else self.handle.connection.driver_connection
                with pytest.raises(psycopg.Error):
                    raw.execute("SELECT 1/0")
            return row

        monkeypatch.setattr(kind, "query", query)

    fail_after_leave(by_psycopg.Session)
    fail_after_leave(by_sqlalchemy.Session)
    engine = sa.create_engine(sqlalchemy_url(postgres, "psycopg"))
    for database in (pool, engine):
        with pytest.raises(semel.Problem) as caught:
            semel.once(database, insert_here, **{**call, "key": str(uuid.uuid4())})
        assert caught.value.slug == "not-settled"
    engine.dispose()
    assert things() == 0


def test_a_stray_task_on_an_asynchronous_connection_is_never_taken_for_a_commit(postgres, pool, call, name, things):
    """A statement of a task that the handler left behind waits for the connection and fails just before COMMIT."""

    async def check(open_database, execute, fail):
        async with open_database() as database:
            strays = []

            async def run(transaction):
                async def stray():
                    with pytest.raises(Exception):
                        for _ in range(100):
                            await fail(transaction)
                            await asyncio.sleep(0)

                await execute(transaction)
                strays.append(asyncio.ensure_future(stray()))
                return "made"

            try:
                outcome = await semel.once(database, run, **{**call, "key": str(uuid.uuid4())})
            except (semel.Problem, Exception):  # noqa: B014 - whatever it says, it must not have had half an effect
                outcome = None
            await asyncio.gather(*strays, return_exceptions=True)
            return outcome

    import contextlib

    @contextlib.asynccontextmanager
    async def engine():
        made = create_async_engine(sqlalchemy_url(postgres, "psycopg"))
        yield made
        await made.dispose()

    def by_psycopg():
        return psycopg_pool.AsyncConnectionPool(postgres, min_size=1, max_size=2, open=False)

    statement = sa.text("INSERT INTO thing (name) VALUES (:name)")
    cases = [
        (by_psycopg, lambda c: c.execute("INSERT INTO thing (name) VALUES (%s)", (name,)), lambda c: c.execute("SELECT 1/0")),
        (engine, lambda c: c.execute(statement, {"name": name}), lambda c: c.execute(sa.text("SELECT 1/0"))),
        (
            lambda: asyncpg.create_pool(postgres, min_size=1, max_size=2),
            lambda c: c.execute("INSERT INTO thing (name) VALUES ($1)", name),
            lambda c: c.execute("SELECT 1/0"),
        ),
    ]
    expected = 0
    for case in cases:
        for _ in range(5):
            outcome = asyncio.run(check(*case))
            expected += outcome is not None
            assert things() == expected, "an answer and an effect, or neither"


def test_savepoints_of_the_handler_are_its_own(pool, call, name, things):
    def run(transaction):
        insert(name)(transaction)
        with pytest.raises(psycopg.Error), transaction.transaction():
            insert(name)(transaction)
            transaction.execute("SELECT 1/0")
        return "one"

    assert semel.once(pool, run, **call).json() == "one" and things() == 1


def test_an_ignored_replay_cannot_write(pool, call, name, things):
    semel.once(pool, insert(name), **call)
    with semel.entered(pool, **call) as block:
        assert block.outcome.replayed and block.transaction is None
    with pytest.raises(semel.Problem):
        with semel.entered(pool, **{**call, "payload": {}}):
            raise AssertionError("the block of a refused call does not run")
    assert things() == 1


def test_a_pool_in_autocommit_is_still_one_transaction(postgres, pool, call, name, things):
    with psycopg_pool.ConnectionPool(postgres, min_size=1, max_size=2, kwargs={"autocommit": True}) as own:

        def run(transaction):
            insert(name)(transaction)
            raise KeyError("bug")

        with pytest.raises(KeyError):
            semel.once(own, run, **call)
        assert things() == 0
        assert not semel.once(own, insert(name), **call).replayed
        assert semel.once(own, insert(name), **call).replayed
        with own.connection() as connection:
            assert connection.autocommit, "the connection goes back as it was"
    assert things() == 1


def test_an_answer_of_another_kind_is_refused_and_rolled_back(pool, call, name, things):
    def run(transaction):
        insert(name)(transaction)
        return object()

    with pytest.raises(TypeError, match="semel.Answer"):
        semel.once(pool, run, **call)
    assert things() == 0


def test_a_role_with_few_rights_is_enough(postgres, database, call, name, things, pool):
    database.execute(
        """DO $$ BEGIN CREATE ROLE semel_python_app LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$;
        GRANT semel_library TO semel_python_app; GRANT INSERT, SELECT ON thing TO semel_python_app"""
    )
    url = re.sub("//[^@/]*@", "//semel_python_app@", postgres, count=1)
    with psycopg_pool.ConnectionPool(url, min_size=1, max_size=2) as own:
        assert not semel.once(own, insert(name), **call).replayed
        assert semel.once(own, insert(name), **call).replayed
        with own.connection() as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("DELETE FROM semel.record")
    assert things() == 1


def test_a_store_that_is_away_says_so_and_runs_nothing(call):
    with psycopg_pool.ConnectionPool("postgres://postgres@127.0.0.1:1/x", min_size=0, max_size=1, timeout=0.2) as pool:
        with pytest.raises(semel.Problem) as caught:
            semel.once(pool, lambda transaction: pytest.fail("it ran"), **call)
    assert caught.value.slug == "store-unavailable"


# ------------------------------------------------------------------------------------------------------ with a block


def test_a_block_commits_its_answer(pool, call, name, things):
    with semel.entered(pool, **call) as block:
        insert(name)(block.transaction)
        block.answer = semel.Answer.json({"id": 1}, 201)
        assert things() == 0
    assert (block.outcome.status, block.outcome.replayed, things()) == (201, False, 1)
    assert semel.once(pool, insert(name), **call).body == block.outcome.body


def test_a_block_that_raises_is_rolled_back(pool, call, name, things):
    with pytest.raises(KeyError):
        with semel.entered(pool, **call) as block:
            insert(name)(block.transaction)
            raise KeyError("bug")
    assert things() == 0
    assert not semel.once(pool, insert(name), **call).replayed


def test_a_block_without_an_answer_is_rolled_back(pool, call, name, things):
    with pytest.raises(semel.Problem) as caught:
        with semel.entered(pool, **call) as block:
            insert(name)(block.transaction)
    assert caught.value.slug == "not-settled" and things() == 0


def test_a_block_says_that_it_cannot_be_run_again(pool, call, name, things):
    with pytest.raises(semel.Problem) as caught:
        with semel.entered(pool, **call) as block:
            insert(name)(block.transaction)
            block.transaction.execute("SELECT once_raise('40001')")
    assert caught.value.slug == "superseded" or isinstance(caught.value.__cause__, psycopg.errors.SerializationFailure)
    assert things() == 0


def test_the_right_kind_of_block_is_asked_for(pool, call):
    async def wrong():
        async with semel.entered(pool, **call):
            pass

    with pytest.raises(TypeError, match="`with`"):
        asyncio.run(wrong())


# ------------------------------------------------------------------------------------------------------- SQLAlchemy


def test_a_session_is_flushed_and_its_commit_is_the_librarys(engine, call, name, things):
    def run(session):
        session.add(Thing(name=name))
        session.commit()
        return "made"

    assert semel.once(sessionmaker(engine), run, **call).json() == "made"
    assert semel.once(sessionmaker(engine), run, **call).replayed and things() == 1


def test_a_session_that_was_not_flushed_is_flushed_before_the_record(engine, call, name, things):
    def run(session):
        session.add(Thing(name=name))
        return "made"

    semel.once(sessionmaker(engine), run, **call)
    assert things() == 1


def test_a_session_that_committed_and_then_failed_leaves_nothing(engine, call, name, things):
    def run(session):
        session.add(Thing(name=name))
        session.commit()
        raise KeyError("after commit()")

    with pytest.raises(KeyError):
        semel.once(sessionmaker(engine), run, **call)
    assert things() == 0


def test_a_session_that_rolled_back_cannot_answer(engine, call, name, things):
    def run(session):
        session.add(Thing(name=name))
        session.flush()
        session.rollback()
        return "a lie"

    with pytest.raises((semel.Problem, sa.exc.SQLAlchemyError, RuntimeError)):
        semel.once(sessionmaker(engine), run, **call)
    assert things() == 0
    assert not semel.once(sessionmaker(engine), lambda session: "free", **call).replayed


def test_a_connection_that_the_handler_committed_leaves_nothing(engine, call, name, things):
    def run(connection):
        connection.execute(sa.text("INSERT INTO thing (name) VALUES (:name)"), {"name": name})
        connection.commit()
        return "a lie"

    with pytest.raises((semel.Problem, sa.exc.SQLAlchemyError)):
        semel.once(engine, run, **call)
    assert things() == 0


def test_a_session_maker_without_an_engine_says_so(call):
    with pytest.raises(TypeError, match="bind="):
        semel.once(sessionmaker(), lambda session: None, **call)


# -------------------------------------------------------------------------------------------------------------- async


def test_tasks_of_one_loop_run_one_handler_and_a_cancelled_one_rolls_back(postgres, call, name, things, pool):
    async def check():
        async with asyncpg.create_pool(postgres, min_size=1, max_size=3) as own:
            began = asyncio.Event()

            async def stuck(transaction):
                await transaction.execute("INSERT INTO thing (name) VALUES ($1)", name)
                began.set()
                await asyncio.sleep(60)

            async def run(transaction):
                await transaction.execute("INSERT INTO thing (name) VALUES ($1)", name)
                return "made"

            first = asyncio.ensure_future(semel.once(own, stuck, **call))
            await began.wait()
            waiting = [asyncio.ensure_future(semel.once(own, run, **call)) for _ in range(20)]
            await asyncio.sleep(0.05)
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            outcomes = await asyncio.gather(*waiting)
            assert [outcome.replayed for outcome in outcomes].count(False) == 1
            assert len({outcome.body for outcome in outcomes}) == 1

    asyncio.run(check())
    assert things() == 1


def test_an_async_block(postgres, call, name, things, pool):
    async def check():
        engine = create_async_engine(sqlalchemy_url(postgres, "psycopg"))
        statement, values = sa.text("INSERT INTO thing (name) VALUES (:name)"), {"name": name}
        async with semel.entered(engine, **call) as block:
            await block.transaction.execute(statement, values)
            block.answer = "made"
        async with semel.entered(engine, **call) as again:
            assert again.outcome.replayed and again.outcome.body == block.outcome.body
        other = {**call, "key": str(uuid.uuid4())}
        with pytest.raises(KeyError):
            async with semel.entered(engine, **other) as block:
                await block.transaction.execute(statement, values)
                raise KeyError("bug")
        await engine.dispose()

    asyncio.run(check())
    assert things() == 1


def test_something_that_is_no_database_is_refused(call):
    with pytest.raises(TypeError, match="no driver"):
        semel.once(object(), lambda transaction: None, **call)
