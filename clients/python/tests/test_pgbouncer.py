"""Behind pgbouncer in transaction mode: statements are unnamed, and everything that is kept is kept by the transaction.

Without a pgbouncer on the PATH or in /usr/sbin there is nothing to test here; `test.sh` installs it where it can, and says so where
it cannot (SEMEL_TEST_PGBOUNCER=missing).
"""

import os
import shutil
import socket
import subprocess
import urllib.parse

import pytest

import scenarios
from test_scenarios import run_all

PROGRAM = shutil.which("pgbouncer", path=os.environ.get("PATH", "") + ":/usr/sbin")
#: What waits, what is retried, what is lost: the rest does not depend on who is in between.
WORDS = ("retry", "waits", "rolls back", "serialisation", "COMMIT", "ROLLBACK", "large", "two people")

IS_MISSING = os.environ.get("SEMEL_TEST_PGBOUNCER") == "missing"
DRIVERS = () if IS_MISSING else ("psycopg", "asyncpg", "sqlalchemy-async-psycopg")


@pytest.fixture(scope="module")
def bouncer(postgres, tmp_path_factory):
    assert PROGRAM, "pgbouncer is not installed; test.sh installs it, or says SEMEL_TEST_PGBOUNCER=missing"
    parts = urllib.parse.urlsplit(postgres)
    port = scenarios.free_port()
    folder = tmp_path_factory.mktemp("pgbouncer")
    folder.chmod(0o755)
    file = folder / "pgbouncer.ini"
    password = f" password={parts.password}" if parts.password else ""
    target = f"host={parts.hostname} port={parts.port or 5432} dbname={parts.path[1:]} user={parts.username}{password}"
    file.write_text(
        f"[databases]\nbounced = {target}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
        "auth_type = any\npool_mode = transaction\ndefault_pool_size = 4\nmax_client_conn = 200\n"
        "ignore_startup_parameters = extra_float_digits\n"
    )
    file.chmod(0o644)
    for place in (folder, *folder.parents):
        if place != place.parent and os.stat(place).st_uid == os.getuid() and str(place).startswith("/tmp"):
            place.chmod(place.stat().st_mode | 0o055)
    # It refuses to run as root.
    user = ["-u", "nobody"] if os.getuid() == 0 else []
    process = subprocess.Popen([PROGRAM, "-q", *user, str(file)])

    def is_up():
        assert process.poll() is None, "pgbouncer ended"
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    try:
        scenarios.wait_until(is_up, "pgbouncer listens")
        yield f"postgres://{parts.username}@127.0.0.1:{port}/bounced"
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("driver", DRIVERS)
def test_scenarios_hold_behind_pgbouncer(postgres, bouncer, driver):
    def is_wanted(scenario):
        return any(word in scenario["name"] for word in WORDS)

    names, failures = run_all(postgres, driver, bouncer, is_wanted)
    assert len(names) >= 14
    assert not failures, "\n".join(failures)
