"""The retrying transports: one key for a logical call, over every retry and over restarts."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest
import requests

import semel
from places import ROOT
from semel.journal import Journal
from semel.retrying import Attempted, LogicalCall, Retrying, _retry_after_ms
from semel.journal import Kept


class Server:
    """Answers by a script, and keeps what it was sent. `None` breaks the connection after the request was read."""

    def __init__(self, script):
        self.script = list(script)
        self.seen = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self):
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                outer.seen.append((self.command, self.path, dict(self.headers.items()), body))
                answer = outer.script.pop(0) if len(outer.script) > 1 else outer.script[0]
                if answer is None:
                    self.connection.close()
                    self.close_connection = True
                    return
                status, headers, content = answer
                self.send_response_only(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = do_PATCH = handle_any

            def log_message(self, *args):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/orders"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def keys(self, name="Idempotency-Key"):
        return [headers.get(name) for _, _, headers, _ in self.seen]


@pytest.fixture
def serve():
    servers = []

    def make(*script):
        servers.append(Server(script))
        return servers[-1]

    yield make
    for server in servers:
        server.server.shutdown()
        server.server.server_close()


def settings(**options):
    pauses = []
    made = semel.retrying(sleep=pauses.append, draw=lambda: 0.5, **options)
    return made, pauses


def by_httpx(made, method, url, **options):
    with httpx.Client(transport=made.httpx()) as client:
        response = client.request(method, url, **options)
        return response.status_code, response.content


def by_async_httpx(made, method, url, **options):
    async def ask():
        async def sleep(seconds):
            pauses(seconds)

        pauses, made.sleep = made.sleep, sleep
        async with httpx.AsyncClient(transport=made.async_httpx()) as client:
            response = await client.request(method, url, **options)
            return response.status_code, response.content

    return asyncio.run(ask())


def by_requests(made, method, url, **options):
    options = {("data" if name == "content" else name): value for name, value in options.items()}
    with requests.Session() as session:
        session.mount("http://", made.requests())
        response = session.request(method, url, **options)
        return response.status_code, response.content


CLIENTS = [by_httpx, by_async_httpx, by_requests]
OK = (201, {}, b"done")
IN_FLIGHT = (409, {"Link": '</.well-known/semel/problems/in-flight>; rel="describedby"', "Retry-After": "3"}, b"wait")


@pytest.mark.parametrize("send", CLIENTS)
def test_one_key_goes_with_every_attempt(serve, send):
    server = serve(None, (502, {}, b""), (503, {"Retry-After": "7"}, b""), IN_FLIGHT, OK)
    made, pauses = settings()
    assert send(made, "POST", server.url, content=b'{"a":1}') == (201, b"done")
    assert len(server.keys()) == 5 and len(set(server.keys())) == 1 and server.keys()[0]
    assert len({headers["Idempotency-First-Sent"] for _, _, headers, _ in server.seen}) == 1
    assert {body for *_, body in server.seen} == {b'{"a":1}'}
    # Half of a second, half of two, then what the server says, twice.
    assert pauses == [0.5, 1.0, 7.0, 3.0]


@pytest.mark.parametrize("send", CLIENTS)
def test_an_attempt_that_still_runs_is_asked_for_again(serve, send, tmp_path):
    runs = {"Semel-Outcome": "pending"}
    server = serve((202, {**runs, "Retry-After": "3"}, b"{}"), (202, runs, b"{}"), OK)
    made, pauses = settings(call="pay", file=str(tmp_path / "calls.db"))
    assert send(made, "POST", server.url, content=b"x") == (201, b"done")
    # As the server says; where it says nothing, the schedule's first step.
    assert (len(set(server.keys())), pauses) == (1, [3.0, 1.0])


@pytest.mark.parametrize("send", CLIENTS)
def test_a_call_whose_attempt_still_runs_is_neither_finished_nor_answered(serve, send, tmp_path):
    file = str(tmp_path / "calls.db")
    server = serve((202, {"Semel-Outcome": "pending"}, b'{"status":"working"}'))
    made, _ = settings(call="pay", file=file, patience=0)
    with pytest.raises(semel.StillRunning) as caught:
        send(made, "POST", server.url, content=b"x")
    assert server.keys() == [caught.value.key] and caught.value.key in str(caught.value)
    assert (caught.value.answer.status_code, caught.value.answer.json()) == (202, {"status": "working"})
    read = "SELECT finished_at FROM call"
    assert made.journal._connection.execute(read).fetchall() == [(None,)]
    server.script = [OK]
    assert send(made, "POST", server.url, content=b"x")[0] == 201
    assert made.journal._connection.execute(read).fetchone() != (None,) and len(set(server.keys())) == 1


@pytest.mark.parametrize("send", CLIENTS)
def test_a_refusal_that_says_pending_is_handed_out_when_patience_ends(serve, send):
    server = serve((409, {"Semel-Outcome": "pending"}, b"wait"))
    made, _ = settings(patience=0)
    assert send(made, "POST", server.url, content=b"x") == (409, b"wait")


@pytest.mark.parametrize("send", CLIENTS)
def test_two_requests_are_two_calls(serve, send):
    server = serve(OK)
    made, _ = settings()
    send(made, "POST", server.url, content=b"x")
    send(made, "POST", server.url, content=b"x")
    assert len(set(server.keys())) == 2


@pytest.mark.parametrize("send", CLIENTS)
def test_what_may_not_be_retried_is_not(serve, send):
    for answer in (
        (400, {}, b""),
        (401, {}, b""),
        (409, {"X-Should-Retry": "false"}, b"{}"),
        (409, {}, b'{"code":"fingerprint-mismatch"}'),
        (422, {}, b'{"type":"urn:semel:problem:fingerprint-mismatch"}'),
    ):
        server = serve(answer, OK)
        made, pauses = settings(profile="agents")
        assert send(made, "POST", server.url, content=b"x")[0] == answer[0]
        assert (len(server.seen), pauses) == (1, []), answer


@pytest.mark.parametrize("send", CLIENTS)
def test_a_request_without_effect_has_no_key_and_no_retry(serve, send):
    server = serve((503, {}, b""), OK)
    made, _ = settings()
    assert send(made, "GET", server.url)[0] == 503
    assert server.keys() == [None]


@pytest.mark.parametrize("send", CLIENTS)
def test_a_key_of_the_callers_own_is_kept(serve, send):
    server = serve((500, {}, b""), OK)
    made, _ = settings()
    send(made, "POST", server.url, content=b"x", headers={"Idempotency-Key": "mine"})
    assert server.keys() == ["mine", "mine"]


@pytest.mark.parametrize("send", CLIENTS)
def test_a_body_that_can_be_read_once_is_sent_whole_every_time(serve, send):
    def pieces():
        yield b"one"
        yield b"two"

    async def async_pieces():
        yield b"one"
        yield b"two"

    server = serve((500, {}, b""), OK)
    made, _ = settings()
    send(made, "POST", server.url, content=async_pieces() if send is by_async_httpx else pieces())
    assert [body for *_, body in server.seen] == [b"onetwo", b"onetwo"]


@pytest.mark.parametrize("send", CLIENTS)
def test_patience_has_an_end_and_the_last_answer_goes_out(serve, send):
    server = serve((503, {"Retry-After": "30"}, b"later"))
    made, pauses = settings(patience=20)
    assert send(made, "POST", server.url, content=b"x") == (503, b"later")
    assert pauses == []


def test_no_answer_at_all_is_raised_when_patience_ends(serve):
    server = serve(None)
    made, _ = settings(patience=0.1)
    with pytest.raises(httpx.TransportError):
        by_httpx(made, "POST", server.url, content=b"x")
    with pytest.raises(requests.ConnectionError):
        by_requests(made, "POST", server.url, content=b"x")


def test_a_named_call_keeps_its_key_over_restarts(serve, tmp_path):
    file = str(tmp_path / "calls.db")
    server = serve((500, {}, b""), (500, {}, b""), OK)
    for _ in range(3):
        made, _ = settings(call="invoice-17", file=file, patience=0)
        by_httpx(made, "POST", server.url, content=b"x")
        made.journal.close()
    assert len(set(server.keys())) == 1
    made, _ = settings(call="invoice-18", file=file, patience=0)
    by_httpx(made, "POST", server.url, content=b"x")
    assert len(set(server.keys())) == 2


def test_a_program_that_is_killed_goes_on_with_the_same_key(serve, tmp_path):
    """The request has arrived, the answer has not, and the process is gone."""
    server = serve(None, OK)
    program = f"""
import httpx, semel
made = semel.retrying(call="pay", file={str(tmp_path / "calls.db")!r})
print(httpx.Client(transport=made.httpx()).post({server.url!r}, content=b"x").status_code)
"""
    first = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.DEVNULL)
    until = time.monotonic() + 30
    while not server.seen and time.monotonic() < until:
        time.sleep(0.005)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.DEVNULL, timeout=60)
    assert len(server.seen) >= 2 and len(set(server.keys())) == 1


def test_calls_are_named_by_a_function_of_the_request(serve):
    server = serve(OK)
    made, _ = settings(call=lambda request: request.headers["X-Call"])
    for name in ("a", "b", "a"):
        by_httpx(made, "POST", server.url, content=b"x", headers={"X-Call": name})
    first, second, third = server.keys()
    assert first == third != second


def test_a_call_is_one_request(serve):
    server = serve(OK)
    made, _ = settings(call="pay")
    by_httpx(made, "POST", server.url, content=b"x")
    with pytest.raises(ValueError, match="another request"):
        by_httpx(made, "POST", server.url + "/2", content=b"x")
    with pytest.raises(ValueError, match="another key"):
        by_httpx(made, "POST", server.url, content=b"x", headers={"Idempotency-Key": "other"})


def test_a_call_that_is_too_old_is_never_sent_again(serve, tmp_path):
    server = serve(OK)
    journal = Journal(str(tmp_path / "calls.db"))
    old = time.time_ns() // 1_000_000 - 24 * 3_600_000
    journal._connection.execute("INSERT INTO call VALUES ('pay', 'k', ?, ?, NULL)", (f"POST {server.url}", old))
    journal.close()
    made, _ = settings(call="pay", file=str(tmp_path / "calls.db"))
    with pytest.raises(semel.GaveUp):
        by_httpx(made, "POST", server.url, content=b"x")
    assert server.seen == []


def test_the_key_goes_into_the_header_of_the_profile(serve):
    server = serve(OK)
    made, _ = settings(profile="agents")
    by_requests(made, "POST", server.url, content=b"x")
    assert server.keys("X-Idempotency-Key")[0]


def test_an_answer_that_may_come_once_is_final_the_second_time(serve):
    server = serve((422, {}, b'{"error":"whatever"}'))
    made, pauses = settings(profile="walker")
    assert by_httpx(made, "POST", server.url, content=b"x")[0] == 422
    assert len(server.seen) == 2 and len(pauses) == 1


def test_finished_calls_are_forgotten_after_their_time_and_open_ones_never(tmp_path):
    file = str(tmp_path / "calls.db")
    journal = Journal(file)
    journal.keep("open", "k1", "t")
    journal.keep("done", "k2", "t")
    journal.finish("done")
    long_ago = time.time_ns() // 1_000_000 - 91 * 86_400_000
    journal._connection.execute("UPDATE call SET finished_at = ? WHERE name = 'done'", (long_ago,))
    journal.close()
    again = Journal(file)
    assert again.keep("open", "new", "t").key == "k1"
    assert again.keep("done", "new", "t").key == "new"


def test_the_loop_of_the_guide_asks_again_while_the_first_attempt_runs(serve):
    guide = (ROOT / "docs" / "guides" / "clients.md").read_text()
    loop = guide.split("```python\n")[1].split("```")[0].split("\nkey = ")[0]
    server = serve((202, {"Semel-Outcome": "pending"}, b"{}"), IN_FLIGHT[:1] + ({"X-Should-Retry": "true"}, b""), OK)
    names = {}
    exec(loop, names)
    assert names["send_once"](server.url, {}, "demo") == (201, b"done", False)
    assert len(server.keys()) == 3 and len(set(server.keys())) == 1


def test_retry_after_is_read_in_both_forms():
    assert _retry_after_ms("42") == 42_000
    assert _retry_after_ms(" 0 ") == 0
    future = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() + 100))
    assert 98_000 <= _retry_after_ms(future) <= 101_000
    for bad in ("", "soon", "-1", "1.5", None):
        assert _retry_after_ms(bad) is None


def test_a_burst_ends_and_a_new_one_begins():
    made = Retrying(profile="scores", draw=lambda: 0.5, patience=10**9)
    call = LogicalCall(made, None, Kept("k", "t", time.time_ns() // 1_000_000))
    pauses = [call.pause_after(Attempted(500, {}, b"")) for _ in range(8)]
    assert pauses == [1, 2, 4, 8, 16, 300, 1, 2]


def test_json_of_problems_is_read_for_codes():
    made = Retrying(draw=lambda: 0.5)
    call = LogicalCall(made, None, Kept("k", "t", time.time_ns() // 1_000_000))
    body = json.dumps({"type": "urn:semel:problem:in-flight"}).encode()
    assert call.pause_after(Attempted(409, {}, body)) == 1.0
    assert call.pause_after(Attempted(409, {}, b"{}")) is None
