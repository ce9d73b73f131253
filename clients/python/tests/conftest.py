"""A database of its own for the run, with semel's functions.

SEMEL_TEST_POSTGRES is the URL of a superuser. SEMEL_BIN is the semel program, which migrates; without it the migrations of
this tree are applied one by one (SEMEL_TEST_MIGRATIONS names another folder of them).
"""

import os
import pathlib
import subprocess
import urllib.parse
import uuid

import psycopg
import pytest

import scenarios
from places import ROOT

MIGRATIONS = ROOT / "crates" / "store" / "src" / "postgres" / "migrations"
#: What the migrations expect to find; `semel migrate` makes it.
BOOK = """
CREATE SCHEMA semel;
CREATE TABLE semel.migration (
    number integer PRIMARY KEY, name text NOT NULL DEFAULT '', checksum text NOT NULL DEFAULT '',
    works_for integer NOT NULL DEFAULT 0, applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
)
"""


def pytest_configure(config):
    if "SEMEL_TEST_POSTGRES" not in os.environ:
        raise pytest.UsageError("SEMEL_TEST_POSTGRES is not set: the tests need the URL of a PostgreSQL superuser")


#: Files that take longest begin first, so that the workers end together.
LONGEST = ("test_scenarios", "test_processes", "test_pgbouncer", "test_asgi")


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: LONGEST.index(item.path.stem) if item.path.stem in LONGEST else len(LONGEST))


def is_long():
    return os.environ.get("SEMEL_TEST_LONG") == "1"


def migrate(url):
    if os.environ.get("SEMEL_BIN"):
        subprocess.run([os.environ["SEMEL_BIN"], "migrate", "--store", url], check=True, stdout=subprocess.DEVNULL)
        return
    folder = pathlib.Path(os.environ.get("SEMEL_TEST_MIGRATIONS", MIGRATIONS))
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(BOOK)
        for file in sorted(folder.glob("[0-9]*.sql")):
            connection.execute(file.read_text())


def renamed(url, database):
    return urllib.parse.urlunsplit(urllib.parse.urlsplit(url)._replace(path=f"/{database}"))


@pytest.fixture(scope="session")
def postgres():
    """The URL of a migrated database with the tables of spec/once.md."""
    server = os.environ["SEMEL_TEST_POSTGRES"]
    name = f"semel_python_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    url = renamed(server, name)
    try:
        migrate(url)
        scenarios.prepare(url)
        yield url
    finally:
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def database(postgres):
    """A connection to look at what was written."""
    with psycopg.connect(postgres, autocommit=True) as connection:
        yield connection
