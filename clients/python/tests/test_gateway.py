"""A semel gateway in front of a service on the same database: it passes its fence, and the library settles under it.

Runs where SEMEL_BIN names the semel program."""

import os
import subprocess
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest

import scenarios
from test_processes import effects, message, run  # noqa: F401 - a fixture
from test_scenarios import start

BINARY = os.environ.get("SEMEL_BIN")
DRIVERS = ("psycopg", "asyncpg") if BINARY else ()

CONFIG = """
store = "{store}"
identity = "trusted:X-User"
[gate]
listen = "127.0.0.1:{port}"
admin = "127.0.0.1:{admin}"
[gate.upstream]
url = "http://127.0.0.1:{upstream}"
host = "{host}"
[route.create-order]
match = "POST /ietf/orders/{{id}}"
key = "required"
guarantee = "atomic"
"""


@pytest.fixture(params=[(driver, host) for driver in DRIVERS for host in ("upstream", "client")])
def both(request, postgres, database, tmp_path):
    driver, host = request.param
    # Each gateway is the first on its database: none looks for keys as another configuration, or none, recorded them.
    database.execute("DELETE FROM semel.form; DELETE FROM semel.record")
    service = start(postgres, driver)
    port, admin = scenarios.free_port(), scenarios.free_port()
    file = tmp_path / "semel.toml"
    file.write_text(CONFIG.format(store=postgres, port=port, admin=admin, upstream=service.port, host=host))
    process = subprocess.Popen([BINARY, "serve", "gate", "--config", str(file)], stderr=subprocess.DEVNULL)
    gateway = scenarios.Service(postgres, address=f"http://127.0.0.1:{port}")
    gateway.counts_host = host == "client"
    # What the gateway answers is the record, which has neither large answers nor headers that are not kept.
    gateway.offers = {"header-lists", "reruns", "own-transaction", "frees-ended"}

    def is_up():
        assert process.poll() is None, "the gateway ended"
        try:
            return gateway.request("GET", "/ready", [], b"")[0] == 200
        except OSError:
            return False

    try:
        scenarios.wait_until(is_up, "the gateway serves")
        yield service, gateway
    finally:
        process.kill()
        process.wait()
        service.stop()


def test_a_gateway_and_the_library_make_one_record(both, database, run):  # noqa: F811
    service, gateway = both
    attempts = [{"effects": ["a"], "answer": {"status": 201, "headers": [["location", "/orders/1"]], "body": "ok"}}]
    key = str(uuid.uuid4())
    sent = message(run, key, attempts)
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda _: gateway.request(*sent), range(16)))
    assert {(status, body) for status, _, body in answers} == {(201, b"ok")}, answers
    assert all(("location", "/orders/1") in headers for _, headers, _ in answers)
    if not gateway.counts_host:
        # Past the gateway the service knows the same record.
        status, headers, body = service.request(*sent)
        assert (status, body) == (201, b"ok") and ("idempotency-replayed", "true") in headers
    assert effects(database, run) == 1
    states = database.execute("SELECT state, guarantee FROM semel.record WHERE key = %s", (key,)).fetchall()
    assert states == [(2, 1)], "settled, atomic, one record"


def test_a_record_of_the_library_is_replayed_by_the_gateway_unless_it_counts_the_host(both, database, run):  # noqa: F811
    service, gateway = both
    attempts = [{"effects": ["a"], "answer": {"status": 201, "body": "first"}}]
    sent = message(run, str(uuid.uuid4()), attempts)
    assert service.request(*sent)[2] == b"first"
    status, headers, body = gateway.request(*sent)
    # Where the gateway counts the host, what comes past it is another key.
    is_known = not gateway.counts_host
    assert (status, body) == (201, b"first") and (("idempotency-replayed", "true") in headers) == is_known
    assert effects(database, run) == (1 if is_known else 2)


def test_an_answer_that_rolls_back_frees_the_key_behind_a_gateway(both, database, run):  # noqa: F811
    _, gateway = both
    attempts = [
        {"effects": ["a"], "answer": {"status": 503, "body": "busy"}},
        {"effects": ["a"], "answer": {"status": 201, "body": "ok"}},
    ]
    sent = message(run, str(uuid.uuid4()), attempts)
    assert gateway.request(*sent)[0] == 503
    assert gateway.request(*sent)[::2] == (201, b"ok")
    assert effects(database, run) == 1


def test_the_scenarios_hold_through_a_gateway(both):
    _, gateway = both
    played, failures = 0, []
    for scenario in scenarios.SUITE["scenarios"]:
        steps = scenario["steps"]
        is_elsewhere = any("profile" in step.get("send", step.get("start", step)) for step in steps)
        # The operations speak of keys without a host.
        is_unknown = gateway.counts_host and any("sql" in step for step in steps)
        if is_elsewhere or is_unknown or not scenarios.can_run(scenario, gateway):
            continue
        played += 1
        try:
            scenarios.Run(scenario, gateway)()
        except AssertionError as error:
            failures.append(f"{scenario['name']}: {error}")
    assert not failures, "\n".join(failures)
    assert played >= 20
