"""Keeps the keys of logical calls in a file, so that a program that was restarted goes on with the same key.

A key is durable before the first byte of its request is sent. Calls that are finished are forgotten after KEPT_DAYS; calls that
are not are never forgotten, since nobody knows what became of them.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from typing import NamedTuple, Optional

KEPT_DAYS = 90
BUSY_SECONDS = 30

_SCHEMA = """
CREATE TABLE IF NOT EXISTS call (
    name        TEXT PRIMARY KEY,
    key         TEXT NOT NULL,
    target      TEXT NOT NULL,
    first_sent  INTEGER NOT NULL,
    finished_at INTEGER
)
"""


class Kept(NamedTuple):
    """What is known of a call: its key, the method and address it is for, and when it was first sent (milliseconds)."""

    key: str
    target: str
    first_sent: int


class Journal:
    """Keys by the names of calls; in a file, or in memory for the life of the process."""

    def __init__(self, file: Optional[str] = None) -> None:
        self._lock = threading.Lock()
        path = ":memory:" if file is None else os.fspath(file)
        self._connection = sqlite3.connect(path, timeout=BUSY_SECONDS, check_same_thread=False, isolation_level=None)
        self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.execute(_SCHEMA)
        before = _now() - KEPT_DAYS * 86_400_000
        self._connection.execute("DELETE FROM call WHERE finished_at < ?", (before,))

    def keep(self, name: str, key: str, target: str) -> Kept:
        """What is known of a call; where nothing is, this key from now on. Durable when it returns."""
        with self._lock:
            self._connection.execute(
                "INSERT INTO call (name, key, target, first_sent) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
                (name, key, target, _now()),
            )
            row = self._connection.execute("SELECT key, target, first_sent FROM call WHERE name = ?", (name,)).fetchone()
        return Kept(*row)

    def finish(self, name: str) -> None:
        """Notes that a call has its answer. Its key is still kept: the same call again gets the same answer."""
        with self._lock:
            self._connection.execute("UPDATE call SET finished_at = ? WHERE name = ?", (_now(), name))

    def close(self) -> None:
        """Closes the file."""
        self._connection.close()


def _now() -> int:
    return time.time_ns() // 1_000_000
