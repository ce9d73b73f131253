#!/usr/bin/env python3
"""A mesh of two members: a broker, a daemon for each of them, an agent, and a webhook.

    mesh.py           plays a story in which every process is killed, and says what everybody has at its end
    mesh.py --stay    starts everything and leaves it running, for two terminals
"""
import base64
import hashlib
import hmac
import http.server
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

from member import Daemon

HERE = Path(__file__).resolve().parent
SECRET = "whsec_" + base64.b64encode(b"a secret of the example, 32 bytes").decode()


def find_semel():
    """The program that SEMEL_BIN names, or the one in the path, or the one that Cargo makes of this repository."""
    named = os.environ.get("SEMEL_BIN") or shutil.which("semel")
    if named:
        return named
    if not shutil.which("cargo"):
        raise SystemExit("Rust is missing: install it as https://rustup.rs says, and start this again.")
    root = HERE.parent.parent
    if subprocess.run(["cargo", "build", "-p", "semel-cli"], cwd=root).returncode:
        raise SystemExit("semel could not be built; Cargo says why above")
    return str(Path(os.environ.get("CARGO_TARGET_DIR") or root / "target") / "debug" / "semel")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def until(what, look, patience=120):
    """Waits for something to come about."""
    end = time.monotonic() + patience
    while time.monotonic() < end:
        found = look()
        if found:
            return found
        time.sleep(0.1)
    raise SystemExit(f"{what} did not come about")


class Hook(http.server.BaseHTTPRequestHandler):
    """A service that the mesh tells of its news: checks the signature, and keeps each id once."""

    seen = {}

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        name, stamp = self.headers["webhook-id"], self.headers["webhook-timestamp"]
        signed = f"{name}.{stamp}.".encode() + body
        key = base64.b64decode(SECRET.removeprefix("whsec_"))
        right = "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
        is_signed = right in self.headers["webhook-signature"].split()
        if is_signed:
            Hook.seen[name] = json.loads(body)
        self.send_response(204 if is_signed else 401)
        self.end_headers()

    def log_message(self, *_):
        pass


class Mesh:
    """All processes, in one folder."""

    def __init__(self, folder):
        self.folder, self.port, self.processes = Path(folder), free_port(), {}
        self.semel = find_semel()
        self.hook = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hook)
        threading.Thread(target=self.hook.serve_forever, daemon=True).start()
        (self.folder / "broker").mkdir(parents=True)
        self.write("broker", "[broker]\nwebhooks = { allow_loopback = true }\n")
        self.start("broker")
        self.broker("meshes", "add", "team")
        self.broker("topics", "add", "news", "--mesh", "team")
        self.tokens = {}
        for name in ("alice", "bob"):
            role = "owner" if name == "alice" else "member"
            self.tokens[name] = self.broker("members", "add", name, "--mesh", "team", "--role", role).strip()
            self.broker("subscriptions", "add", name, "--mesh", "team", "--topic", "news")
            (self.folder / name).mkdir()
            (self.folder / name / "token").write_text(self.tokens[name])
            self.write(name, self.settings())
            self.start(name)
        secrets = self.folder / "broker" / "secrets"
        secrets.write_text(SECRET)
        url = f"http://127.0.0.1:{self.hook.server_port}/"
        self.broker("webhooks", "add", "hook", "--mesh", "team", "--topic", "news", "--url", url, "--secrets-file", str(secrets))

    def settings(self):
        return (
            f'[outbox]\nbroker = "http://127.0.0.1:{self.port}"\nmesh = "team"\n'
            '[[outbox.receive]]\ntopics = ["news"]\ndirect = true\ncredential = "file:token"\n'
        )

    def write(self, name, text):
        (self.folder / name / "semel.toml").write_text(text)

    def start(self, name):
        """Starts a process, and waits until it is ready."""
        words = {
            "broker": [self.semel, "serve", "broker", "--listen", f"127.0.0.1:{self.port}", "--admin", "127.0.0.1:0"],
            "agent": [sys.executable, str(HERE / "member.py"), str(self.folder / "bob"), "--agent"],
        }.get(name, [self.semel, "serve", "outbox"])
        home = self.folder / ("bob" if name == "agent" else name)
        with open(home / f"{name}.log", "ab") as log:
            process = subprocess.Popen(words, cwd=home, stdout=subprocess.PIPE, stderr=log, text=True)
        self.processes[name] = process
        if name != "agent" and "is ready" not in process.stdout.readline():
            raise SystemExit(f"{name} did not start: {(home / f'{name}.log').read_text()}")
        threading.Thread(target=lambda: [None for _ in process.stdout], daemon=True).start()

    def kill(self, name):
        """As a power cut would."""
        process = self.processes.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def restart(self, name):
        self.kill(name)
        self.start(name)

    def stop(self):
        for name in list(self.processes):
            self.kill(name)
        self.hook.shutdown()

    def broker(self, *words):
        """`semel broker …`, as an operator."""
        run = subprocess.run([self.semel, "broker", *words], cwd=self.folder / "broker", capture_output=True, text=True)
        if run.returncode:
            raise SystemExit(f"semel broker {' '.join(words)}: {run.stderr}")
        return run.stdout

    def ask(self, name, method, path, body=None):
        """The broker itself, as a member: what has no place in a queue, such as a search."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/v1/meshes/team{path}", method=method)
        request.add_header("Authorization", f"Bearer {self.tokens[name]}")
        if body is not None:
            request.data = json.dumps(body).encode()
            request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read() or b"null")


def play(mesh):
    """The story. Every step says what it shows."""
    alice, bob = Daemon(mesh.folder / "alice"), Daemon(mesh.folder / "bob")
    news, sent = {"topic": "news"}, []

    def publish(count, wait=False):
        for _ in range(count):
            receipt = alice.send(news, {"text": f"the tide is at {len(sent)}"}, f"news-{len(sent)}", wait)
            sent.append(receipt["client_message_id"])

    publish(3, wait=True)
    print("sent      3 messages, each appended once")
    mesh.kill("broker")
    publish(3)
    _, page = alice.call("GET", "/v1/messages?state=pending")
    print(f"offline   the broker is killed; {len(page['messages'])} more wait on alice's disk: {page['messages'][0]['waits_for']}")
    mesh.start("broker")
    for name in ("alice", "bob", "broker"):
        publish(3)
        mesh.restart(name)
        publish(3)
        print(f"killed    {name}, in the middle of it")
    mesh.start("agent")
    for n in range(6):
        alice.send({"member": "bob"}, f"question {n}", f"q-{n}")
        if n in (1, 3):
            mesh.restart("agent")
    answers = [f"re:q-{n}" for n in range(6)]

    def answered():
        got = [message["id"] for message in alice.waiting()["messages"]]
        return got if all(one in got for one in answers) and all(one in got for one in sent) else None

    got = until("every answer of the agent", answered)
    assert sorted(got) == sorted(answers + sent), "alice has each answer and each message of hers once"
    print("agent     killed twice; each of its 6 answers is there once")

    dead = alice.send({"topic": "storms"}, {"text": "a storm is coming"}, "storm-1", wait=True)
    print(f"dead      {dead['client_message_id']}: {dead['last_error']}")
    mesh.broker("topics", "add", "storms", "--mesh", "team", "--publish", "members")
    _, requeued = alice.call("POST", "/v1/messages/storm-1/requeue", {"auto": True})
    again = alice.wait(requeued["new"]["client_message_id"])
    assert again["state"] == "done" and again["supersedes"] == "storm-1", again
    print(f"requeued  as {again['client_message_id']}, and delivered")

    mesh.ask("alice", "POST", "/messages/news-0/moderation", {"reason": "wrong harbour"})
    history = mesh.ask("bob", "GET", "/topics/news/history?after=0&limit=1000")["messages"]
    hidden = [message["client_message_id"] for message in history if message.get("moderated")]
    assert hidden == ["news-0"] and [message["client_message_id"] for message in history] == in_order(history)
    assert sorted(message["client_message_id"] for message in history) == sorted(sent), "each is appended once"
    print("moderated news-0: its text is hidden, its id stays spent")
    until("the search", lambda: len(mesh.ask("bob", "GET", "/search?q=tide")["messages"]) >= len(sent) - 1)
    print(f"searched  {len(mesh.ask('bob', 'GET', '/search?q=tide')['messages'])} messages speak of the tide")
    until("the webhook", lambda: len(Hook.seen) >= len(sent))
    assert len(Hook.seen) == len(sent), "signed, and each id once"
    print(f"webhook   {len(Hook.seen)} messages, every one signed")

    inbox = until("bob's inbox", lambda: all_shown(mesh, sent))
    assert inbox == sorted(sent), "bob has seen each once"
    assert json.loads(mesh.broker("orphans", "--json"))["orphans"] == 0, "no row is without the others"
    print(f"at the end {len(sent)} messages, each once in every inbox, in the order of their line")


def in_order(history):
    """The ids of a history by their numbers."""
    number = lambda message: int(message["id"].split(".")[1])
    return [message["client_message_id"] for message in sorted(history, key=number)]


def all_shown(mesh, sent):
    """What bob's agent acknowledged: its inbox is empty of it, and knows it."""
    bob = Daemon(mesh.folder / "bob")
    if any(message["id"] in sent for message in bob.waiting()["messages"]):
        return None
    known = [bob.call("GET", f"/v1/inbox/alice/{name}") for name in sent]
    return sorted(told["id"] for status, told in known if status == 200) if all(s == 200 for s, _ in known) else None


def main():
    folder = tempfile.mkdtemp(prefix="mesh-")
    mesh = Mesh(folder)
    try:
        if "--stay" in sys.argv:
            print(f"a mesh is in {folder}; in two terminals:\n")
            for name in ("alice", "bob"):
                print(f"  python3 {HERE / 'member.py'} {mesh.folder / name}")
            print("\nCtrl-C ends it")
            signal.pause()
        play(mesh)
    except KeyboardInterrupt:
        pass
    finally:
        mesh.stop()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
