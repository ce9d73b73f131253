"""Runs spec/once.json against a service.

    python scenarios.py --postgres URL --command 'node server.js'     starts the service through a proxy, with DATABASE_URL and PORT
    python scenarios.py --postgres URL --service http://127.0.0.1:8080   asks one that runs (no proxy, no process)

URL is that of a superuser, on a database with semel's functions. Exits 1 when a scenario fails.
"""

from __future__ import annotations

import argparse
import base64
import http.client
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
import uuid

import psycopg

from places import SPEC
from proxy import Proxy
from semel import identity
from semel.profiles import PRESETS

SUITE = json.loads((SPEC / "once.json").read_text())
PATIENCE = 30
#: What every library offers (spec/once.md).
LIBRARY = ("reruns", "own-transaction", "frees-ended", "first-answers", "large-answers", "tenants", "fence")


def prepare(postgres):
    """Makes the tables of the service."""
    with psycopg.connect(postgres, autocommit=True) as connection:
        if connection.execute("SELECT to_regclass('once_effect')").fetchone()[0] is None:
            for statement in SUITE["schema"]:
                connection.execute(statement)


class Service:
    """A service that runs, perhaps as a process of ours behind a proxy of ours."""

    def __init__(self, postgres, command=None, address=None, environment=(), database=None, offers=("header-lists",)):
        self.postgres = postgres
        self.offers = set(offers)
        self._command = command
        self._environment = {**os.environ, **dict(environment)}
        self._process = None
        if command is None:
            parts = urllib.parse.urlsplit(address)
            self.host, self.port = parts.hostname, parts.port
            return
        self.offers |= {"proxy", "process", *LIBRARY}
        parts = urllib.parse.urlsplit(database or postgres)
        self.proxy = Proxy((parts.hostname, parts.port or 5432))
        netloc = f"{parts.netloc.rpartition('@')[0] or 'postgres'}@127.0.0.1:{self.proxy.port}"
        self._environment["DATABASE_URL"] = urllib.parse.urlunsplit(parts._replace(netloc=netloc))
        self.host, self.port = "127.0.0.1", free_port()
        self._environment["PORT"] = str(self.port)
        self.start()

    def start(self):
        self._process = subprocess.Popen(self._command, env=self._environment, start_new_session=True)
        wait_until(self._is_ready, "the service is ready")

    def _is_ready(self):
        assert self._process.poll() is None, "the service ended"
        try:
            return self.request("GET", "/ready", [], b"")[0] == 200
        except OSError:
            return False

    def kill(self):
        """SIGKILL, at once."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def stop(self):
        if self._process is not None and self._process.poll() is None:
            self.kill()
        if self._command is not None:
            self.proxy.close()

    def request(self, method, path, headers, body):
        """The status, the header lines and the body of an answer."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=PATIENCE)
        try:
            connection.putrequest(method, path, skip_accept_encoding=True)
            for name, value in headers:
                connection.putheader(name, value)
            connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body)
            answer = connection.getresponse()
            return answer.status, [(name.lower(), value) for name, value in answer.getheaders()], answer.read()
        finally:
            connection.close()


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def wait_until(is_so, what):
    until = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < until, f"waited in vain until {what}"
        time.sleep(0.02)


def content(given, default=b""):
    if "body_base64" in given:
        return base64.b64decode(given["body_base64"])
    if "body_repeat" in given:
        return (given["body_repeat"]["text"] * given["body_repeat"]["times"]).encode()
    return given["body"].encode() if "body" in given else default


class Run:
    """One scenario against one service."""

    def __init__(self, scenario, service):
        self.scenario = scenario
        self.service = service
        self.run = f"once_run_{uuid.uuid4().hex}"
        # Locks of other runs on the same server are other locks.
        self.locks = int(uuid.uuid4().int % (1 << 40)) << 8
        self.names = {"key": str(uuid.uuid4()), "now": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
        self.answers = {}
        self.started = {}
        self.attempts = []
        self.request = {}

    def __call__(self):
        with psycopg.connect(self.service.postgres, autocommit=True) as self.connection:
            self.connection.execute(f"CREATE SEQUENCE {self.run}")
            try:
                for step in self.scenario["steps"]:
                    self.step(step)
                self.check_end()
            finally:
                for thread in self.started.values():
                    self.connection.execute("SELECT pg_advisory_unlock_all()")
                    thread.join(PATIENCE)
                self.connection.execute(f"DROP SEQUENCE {self.run}")

    def step(self, step):
        if "send" in step:
            given = self.send(step["send"])
            self.compare(given, step.get("expect", {}), step.get("as"))
        elif "start" in step:
            message = self.message(step["start"])

            def work():
                self.answers[step["as"]] = self.exchange(message)

            thread = threading.Thread(target=work, daemon=True)
            self.started[step["as"]] = thread
            thread.start()
        elif "finish" in step:
            self.started[step["finish"]].join(PATIENCE)
            assert step["finish"] in self.answers, f"{step['finish']} did not finish"
            self.compare(self.answers[step["finish"]], step.get("expect", {}), None)
        elif "lock" in step:
            self.connection.execute("SELECT pg_advisory_lock(%s)", (self.locks + step["lock"],))
        elif "unlock" in step:
            self.connection.execute("SELECT pg_advisory_unlock(%s)", (self.locks + step["unlock"],))
        elif "held" in step:
            wait_until(lambda: self.is_held(self.locks + step["held"]), "a handler waits for the lock")
        elif "sql" in step:
            result = self.operate(step["sql"], step.get("host"))
            if "as" in step:
                self.names[step["as"]] = result
        elif "commit" in step:
            point, then = {
                "lose-answer": ("after-commit", lambda: None),
                "cut-before": ("before-commit", lambda: None),
                "kill-after": ("after-commit", self.service.kill),
                "kill-before": ("before-commit", self.service.kill),
            }[step["commit"]]
            self.service.proxy.arm(point, then)
            self.armed = step["commit"]
        else:
            raise AssertionError(f"no such step: {step}")

    def is_held(self, lock):
        sql = "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND classid = %s AND objid = %s)"
        return self.connection.execute(sql, (lock >> 32, lock & 0xFFFFFFFF)).fetchone()[0]

    def operate(self, name, host=None):
        request = self.request
        profile = PRESETS[request.get("profile", "ietf")]
        caller = identity.Caller(request.get("user", "alice"), request.get("tenant"))
        scope = identity.scope_by(profile.scope, caller, "create-order", host)
        key = self.names["key"]
        values = {
            "id": identity.id_of(scope, key),
            "scope": scope,
            "key": key,
            "endpoint": "create-order",
            "principal": caller.principal,
        }
        sql = SUITE["operations"][name]
        for word in values:
            sql = sql.replace("{" + word + "}", f"%({word})s")
        cursor = self.connection.execute(sql, values)
        return cursor.fetchone()[0] if cursor.description else None

    def fill(self, text):
        for name, value in self.names.items():
            text = text.replace("{" + name + "}", str(value))
        return text

    def message(self, request):
        self.request = request
        self.attempts = request.get("attempts", self.attempts)
        attempts = [{**each, "hold": self.locks + each["hold"]} if "hold" in each else each for each in self.attempts]
        headers = [("X-Once", json.dumps({"run": self.run, "attempts": attempts}))]
        headers.append(("Content-Type", request.get("content_type", "application/json")))
        if request.get("user", "alice") is not None:
            headers.append(("X-User", request.get("user", "alice")))
        if request.get("tenant") is not None:
            headers.append(("X-Tenant", request["tenant"]))
        if request.get("key", "{key}") is not None:
            written = self.fill(request.get("key_as", request.get("key", "{key}")))
            headers.append((request.get("key_header", "Idempotency-Key"), written))
        headers += [(name, self.fill(value)) for name, value in request.get("headers", ())]
        path = f"/{request.get('profile', 'ietf')}{request.get('path', '/orders/1')}"
        path += f"?{request['query']}" if "query" in request else ""
        body = content(request, b'{"amount":5}')
        if "body" in request:
            body = self.fill(request["body"]).encode()
        return "POST", path, headers, body

    def exchange(self, message):
        try:
            return self.service.request(*message)
        except (OSError, http.client.HTTPException) as error:
            return error

    def send(self, request):
        answer = self.exchange(self.message(request))
        armed, self.armed = getattr(self, "armed", None), None
        if armed is not None:
            assert self.service.proxy.fired.wait(PATIENCE), "no COMMIT came by"
            if armed.startswith("kill"):
                self.service.start()
        return answer

    def compare(self, answer, expect, name):
        if expect.get("no_answer"):
            assert isinstance(answer, Exception), f"an answer came: {answer}"
            return
        assert not isinstance(answer, Exception), f"no answer came: {answer!r}"
        status, lines, body = answer
        if name is not None:
            self.answers[name] = answer
        headers = dict(reversed(lines))
        shown = f"{status} {lines} {body[:300]!r}"
        assert status == expect.get("status", status), shown
        if "replayed" in expect:
            assert (headers.get("idempotency-replayed") == "true") == expect["replayed"], shown
        if "guarantee" in expect:
            assert headers.get("semel-guarantee") == expect["guarantee"], shown
        if "problem" in expect:
            page = f'</.well-known/semel/problems/{expect["problem"]}>; rel="describedby"'
            assert headers.get("link") == page, shown
        if "should_retry" in expect:
            assert headers.get("x-should-retry") == expect["should_retry"], shown
        for known, value in expect.get("headers", {}).items():
            assert headers.get(known) == value, f"{known}: {shown}"
        if "lines" in expect:
            names = {pair[0] for pair in expect["lines"]}
            assert [list(pair) for pair in lines if pair[0] in names] == expect["lines"], shown
        for known in expect.get("absent", ()):
            assert known not in headers, shown
        if any(member in expect for member in ("body", "body_base64", "body_repeat")):
            assert body == content(expect), shown
        for member, value in expect.get("json", {}).items():
            assert json.loads(body)[member] == value, shown
        for member, value in expect.get("details", {}).items():
            assert json.loads(body)["details"][member] == value, shown
        if "same_as" in expect:
            first = self.answers[expect["same_as"]]
            assert (status, body) == (first[0], first[2]), f"{shown} is not {first}"

    def check_end(self):
        for name, count in self.scenario.get("effects", {}).items():
            sql = "SELECT count(*) FROM once_effect WHERE run = %s AND name = %s"
            found = self.connection.execute(sql, (self.run, name)).fetchone()[0]
            assert found == count, f"{found} effects {name}, expected {count}"
        if "runs" in self.scenario:
            sql = f"SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM {self.run}"
            runs = self.connection.execute(sql).fetchone()[0]
            assert runs == self.scenario["runs"], f"the handler ran {runs} times, expected {self.scenario['runs']}"


def can_run(scenario, service):
    return set(scenario.get("needs", ())) <= service.offers


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--postgres", required=True)
    parser.add_argument("--command")
    parser.add_argument("--service")
    parser.add_argument("--offers", default=",".join(("header-lists", *LIBRARY)))
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    prepare(given.postgres)
    command = shlex.split(given.command) if given.command else None
    service = Service(given.postgres, command, given.service, offers=given.offers.split(","))
    failed = 0
    try:
        for scenario in SUITE["scenarios"]:
            if not can_run(scenario, service) or given.only not in scenario["name"]:
                continue
            try:
                Run(scenario, service)()
                print(f"ok      {scenario['name']}", flush=True)
            except AssertionError as error:
                failed += 1
                print(f"FAILED  {scenario['name']}: {error}", flush=True)
    finally:
        service.stop()
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
