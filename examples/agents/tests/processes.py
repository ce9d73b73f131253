"""What the tests start: the world, gateways, databases, agents, and weather between them. Every process ends with its test."""

import http.client
import http.server
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
import uuid

import psycopg

HERE = pathlib.Path(__file__).parent.parent
CLIENT = HERE.parent.parent / "clients" / "python" / "src"
PATIENCE = 60.0


def wait_for(what, condition):
    """Waits until a condition holds, and gives what it gave."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        found = condition()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError(f"waited too long for {what}")


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def is_open(port):
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
        return True
    except OSError:
        return False


class Process:
    """A process on a port, which can be killed as `kill -9` does, and started again."""

    def __init__(self, port, command, folder, environment):
        self.port, self._command, self._folder = port, command, folder
        self._environment = {**os.environ, "PYTHONPATH": f"{HERE}{os.pathsep}{CLIENT}", "PYTHONDONTWRITEBYTECODE": "1", **environment}
        self.start()

    @property
    def base(self):
        return f"http://127.0.0.1:{self.port}"

    def start(self):
        with open(self._folder / f"{self.port}.log", "ab") as log:
            self._process = subprocess.Popen(self._command, cwd=self._folder, env=self._environment, stdout=log, stderr=log)
        wait_for(f"{self._command[:4]} to listen (its log is in {self._folder})", lambda: is_open(self.port))

    def kill(self):
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()


def world(folder):
    """The service by itself."""
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "world:app", "--port", str(port), "--log-level", "warning"]
    return Process(port, command, folder, {"WORLD_FILE": str(folder / "world.db"), "WORLD_SECRET": str(folder / "world.secret")})


def inside(folder, database):
    """The service with the middleware inside it."""
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "inside:app", "--port", str(port), "--log-level", "warning"]
    return Process(port, command, folder, {"DATABASE": database, "WORLD_SECRET": str(folder / "world.secret")})


def gateway(folder, upstream):
    """semel in front of the service, as semel.toml says."""
    port, admin = free_port(), free_port()
    command = [os.environ["SEMEL_BIN"], "serve", "gate", "--config", str(HERE / "semel.toml"), "--upstream", upstream]
    command += ["--listen", f"127.0.0.1:{port}", "--admin", f"127.0.0.1:{admin}", "--access-log", "off"]
    command += ["--store", f"sqlite:{folder / 'semel.db'}"]
    process = Process(port, command, folder, {})
    process.admin = f"http://127.0.0.1:{admin}"
    return process


def secrets(folder):
    """What setup.sh makes for a run."""
    for name, text in (("world.secret", uuid.uuid4().hex), ("semel.keys", "one MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=\n")):
        (folder / name).write_text(text)
        (folder / name).chmod(0o600)


class Database:
    """A database of one test, with semel's schema in it."""

    def __init__(self):
        self._server = os.environ["SEMEL_TEST_POSTGRES"]
        self._name = f"agents_{uuid.uuid4().hex}"
        self._run(f"CREATE DATABASE {self._name}")
        self.url = f"{self._server.rpartition('/')[0]}/{self._name}"
        subprocess.run([os.environ["SEMEL_BIN"], "migrate", "--store", self.url], check=True, stdout=subprocess.DEVNULL)

    def drop(self):
        self._run(f"DROP DATABASE {self._name} WITH (FORCE)")

    def _run(self, statement):
        with psycopg.connect(self._server, autocommit=True) as connection:
            connection.execute(statement)


def effects(base):
    """How often each kind of action has happened."""
    with urllib.request.urlopen(f"{base}/api/effects", timeout=10) as answer:
        return json.load(answer)["effects"]


class Weather:
    """What may happen between an agent and a server: a script of faults, one for each request, and then fair weather.

    `lost` is lost before the server sees it; `502` and `silence` come after the server has answered. `hold` waits until it is told.
    """

    def __init__(self, port):
        self.script, self.keys, self.headers = [], [], {}
        self.held, self.go_on = threading.Event(), threading.Event()
        weather = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                weather.keys.append(self.headers.get("X-Idempotency-Key"))
                fault = weather.script.pop(0) if weather.script else "fair"
                self.close_connection = True
                if fault == "lost":
                    return
                answer = weather.forward(port, self.command, self.path, dict(self.headers), body)
                if fault == "hold":
                    weather.held.set()
                    weather.go_on.wait(PATIENCE)
                if fault == "silence":
                    time.sleep(2.5)
                    return
                status, headers, content = (502, [], b"<h1>Bad Gateway</h1>") if fault == "502" else answer
                try:
                    self.send_response(status)
                    for name, value in headers:
                        if name.lower() not in ("connection", "transfer-encoding", "content-length"):
                            self.send_header(name, value)
                    self.send_header("Content-Length", str(len(content)))
                    self.end_headers()
                    self.wfile.write(content)
                except OSError:
                    pass  # The agent has gone.

            do_PUT = do_PATCH = do_POST

            def log_message(self, *_):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.base = f"http://127.0.0.1:{self._server.server_address[1]}"

    def forward(self, port, method, path, headers, body):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        try:
            connection.request(method, path, body, {**headers, **self.headers})
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        except (OSError, http.client.HTTPException):
            return 502, [], b"<h1>Bad Gateway</h1>"
        finally:
            connection.close()

    def close(self):
        self.go_on.set()
        self._server.shutdown()
        self._server.server_close()


def agent_command(base, home, *words, patience=30):
    """An agent as a process."""
    command = [sys.executable, str(HERE / "agent.py"), "--base", base, "--home", str(home), "--patience", str(patience), *words]
    environment = {**os.environ, "PYTHONPATH": str(CLIENT), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
