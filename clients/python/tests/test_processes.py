"""Two processes on one key, and processes that are killed at every step. SEMEL_TEST_OTHER is the command of a service in
another language (spec/once.md); without it the second process is another driver of this library."""

import json
import os
import shlex
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest

import scenarios
from conftest import is_long
from proxy import POINTS
from test_scenarios import COMMAND, start

REQUESTS = 200


def message(run, key, attempts, user="alice"):
    headers = [
        ("X-Once", json.dumps({"run": run, "attempts": attempts})),
        ("X-User", user),
        ("Idempotency-Key", key),
        ("Content-Type", "application/json"),
    ]
    return "POST", "/ietf/orders/1", headers, b'{"amount":5}'


@pytest.fixture
def run(database):
    name = f"once_run_{uuid.uuid4().hex}"
    database.execute(f"CREATE SEQUENCE {name}")
    yield name
    database.execute(f"DROP SEQUENCE {name}")


def effects(database, run):
    return database.execute("SELECT count(*) FROM once_effect WHERE run = %s", (run,)).fetchone()[0]


def other_service(postgres):
    command = os.environ.get("SEMEL_TEST_OTHER")
    if command:
        return scenarios.Service(postgres, shlex.split(command))
    return scenarios.Service(postgres, COMMAND, environment={"DRIVER": "asyncpg"})


def test_two_hundred_requests_of_one_key_over_two_processes_have_one_effect(postgres, database, run):
    services = [start(postgres, "psycopg"), other_service(postgres)]
    answer = {"status": 201, "headers": [["content-type", "application/json"]], "body": '{"id": 1,  "a":"\u00e9"}'}
    attempts = [{"effects": ["order"], "answer": answer}]
    sent = message(run, str(uuid.uuid4()), attempts)
    gate = threading.Barrier(REQUESTS)

    def send(place):
        gate.wait()
        return services[place % 2].request(*sent)

    try:
        with ThreadPoolExecutor(REQUESTS) as pool:
            answers = list(pool.map(send, range(REQUESTS)))
    finally:
        for service in services:
            service.stop()
    assert {(status, body) for status, _, body in answers} == {(201, answer["body"].encode())}
    assert effects(database, run) == 1
    fresh = [headers for _, headers, _ in answers if ("idempotency-replayed", "true") not in headers]
    assert len(fresh) == 1


#: Every moment of a request at which its process may die. `handler` is in the midst of the handler's statements.
MOMENTS = (*POINTS, "handler")
KILLED = ("psycopg", "asyncpg", "django") if is_long() else ("psycopg",)


@pytest.mark.parametrize("driver", KILLED)
def test_a_process_that_is_killed_leaves_effect_and_record_or_neither(postgres, database, driver):
    service = start(postgres, driver)
    keys = []
    try:
        for moment in MOMENTS:
            for _ in range(20 if is_long() else 3):
                keys.append(kill_and_retry(service, database, moment))
    finally:
        service.stop()
    states = database.execute("SELECT state, count(*) FROM semel.record WHERE key = ANY(%s) GROUP BY 1", (keys,)).fetchall()
    assert states == [(2, len(keys))], "every one is settled, none is unknown"


def kill_and_retry(service, database, moment):
    run = f"once_run_{uuid.uuid4().hex}"
    database.execute(f"CREATE SEQUENCE {run}")
    key, lock = str(uuid.uuid4()), uuid.uuid4().int % (1 << 62)
    attempts = [
        {"effects": ["a"], "answer": {"status": 201, "body": "first"}},
        {"effects": ["a"], "answer": {"status": 201, "body": "second"}},
    ]
    if moment == "handler":
        attempts[0]["hold"] = lock
        database.execute("SELECT pg_advisory_lock(%s)", (lock,))
    else:
        service.proxy.arm(moment, service.kill)
    sender = threading.Thread(target=lambda: swallow(service, message(run, key, attempts)))
    sender.start()
    if moment == "handler":
        scenarios.wait_until(lambda: is_waiting(database, lock), "the handler holds")
        service.kill()
        database.execute("SELECT pg_advisory_unlock(%s)", (lock,))
    else:
        assert service.proxy.fired.wait(30), f"nothing passed by at {moment}"
    sender.join(30)
    wait_for_orphans(database)
    records = database.execute("SELECT count(*) FROM semel.record WHERE key = %s", (key,)).fetchone()[0]
    assert (records, effects(database, run)) in ((0, 0), (1, 1)), moment
    assert records == (1 if moment == "after-commit" else 0), moment
    service.start()
    status, headers, body = service.request(*message(run, key, attempts))
    has_run_twice = moment not in ("before-enter", "after-enter", "after-commit")
    assert (status, body) == (201, b"second" if has_run_twice else b"first"), moment
    assert (("idempotency-replayed", "true") in headers) == (moment == "after-commit")
    assert effects(database, run) == 1
    database.execute(f"DROP SEQUENCE {run}")
    return key


def swallow(service, sent):
    try:
        service.request(*sent)
    except Exception:  # noqa: BLE001 - the service is killed under it
        pass


def is_waiting(database, lock):
    sql = "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND classid = %s AND objid = %s)"
    return database.execute(sql, (lock >> 32, lock & 0xFFFFFFFF)).fetchone()[0]


def wait_for_orphans(database):
    """Until the transactions of the killed process have ended."""
    sql = """SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
             AND state LIKE 'idle in transaction%%' OR (datname = current_database() AND state = 'active' AND pid <> pg_backend_pid())"""
    scenarios.wait_until(lambda: database.execute(sql).fetchone()[0] == 0, "orphaned transactions have ended")


def test_a_frozen_holder_delays_its_own_key_for_its_hold_time_only(postgres, database, run):
    """A holder that stops in its transaction is ended by the database; its late COMMIT fails, and the next one runs."""
    import psycopg_pool

    import semel

    key, other = str(uuid.uuid4()), str(uuid.uuid4())
    options = {"endpoint": "freeze", "caller": "alice", "hold_ms": 1500}
    with psycopg_pool.ConnectionPool(postgres, min_size=3, max_size=3) as pool:

        def work(transaction):
            transaction.execute("INSERT INTO once_effect VALUES (%s, 'ok')", (run,))
            return "in time"

        frozen = semel.entered(pool, key=key, **options)
        frozen.__enter__()
        frozen.transaction.execute("INSERT INTO once_effect VALUES (%s, 'frozen')", (run,))
        assert semel.once(pool, work, key=other, **options).json() == "in time", "another key does not wait"
        assert not is_ended(database, frozen)
        scenarios.wait_until(lambda: is_ended(database, frozen), "the holder was ended")
        frozen.answer = "late"
        with pytest.raises(semel.Problem) as caught:
            frozen.__exit__(None, None, None)
        assert caught.value.slug == "store-unavailable"
        after = semel.once(pool, work, key=key, **options)
        assert after.json() == "in time" and not after.replayed
    rows = database.execute("SELECT name FROM once_effect WHERE run = %s", (run,)).fetchall()
    assert rows == [("ok",), ("ok",)]


def is_ended(database, call):
    pid = call.transaction.info.backend_pid
    return database.execute("SELECT count(*) FROM pg_stat_activity WHERE pid = %s", (pid,)).fetchone()[0] == 0
