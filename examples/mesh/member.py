#!/usr/bin/env python3
"""A member of the mesh at a terminal, or an agent: speaks to its own daemon only, and needs no network of its own.

    member.py FOLDER            a person: lines go to the topic, "@bob hello" to one member
    member.py FOLDER --agent    an agent: answers every direct message, once, however often it is killed
"""
import http.client
import json
import socket
import sys
import threading
import time
from pathlib import Path
from urllib.parse import quote


class Daemon:
    """The member's own `semel serve outbox`, on its socket."""

    def __init__(self, folder):
        self.path = str(Path(folder) / "outbox.db.d" / "outbox.sock")

    def _connect(self):
        link = http.client.HTTPConnection("outbox", timeout=60)
        link.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        link.sock.settimeout(60)
        link.sock.connect(self.path)
        return link

    def call(self, method, path, body=None):
        """One request. A daemon that is down is waited for: what it took is on its disk, and ids make repeats harmless."""
        while True:
            try:
                link = self._connect()
                text = json.dumps(body) if body is not None else ""
                link.request(method, path, text, {"Content-Type": "application/json"})
                answer = link.getresponse()
                return answer.status, json.loads(answer.read() or b"null")
            except (OSError, http.client.HTTPException, ValueError):
                time.sleep(0.2)

    def send(self, to, body, message_id=None, wait=None):
        """Hands a message in. Once this returns it is on disk, and is sent until the broker has it."""
        envelope = {"to": to, "body": body}
        if message_id:
            envelope["client_message_id"] = message_id
        status, told = self.call("POST", "/v1/send", envelope)
        if status not in (200, 202):
            raise SystemExit(f"refused: {status} {told}")
        return self.wait(told["client_message_id"]) if wait else told

    def wait(self, message_id, states=("done", "dead")):
        """The receipt, once the message is finished."""
        while True:
            _, receipt = self.call("GET", f"/v1/messages/{quote(message_id, safe='')}")
            if receipt.get("state") in states:
                return receipt
            time.sleep(0.1)

    def waiting(self):
        """What was received and not acknowledged, and how the lines fare."""
        return self.call("GET", "/v1/inbox?limit=1000")[1]

    def acknowledge(self, message):
        """Says that a message was dealt with. Before this it comes again after a crash."""
        sender, name = quote(message["sender"], safe=""), quote(message["id"], safe="")
        self.call("POST", f"/v1/inbox/{sender}/{name}/ack")

    def messages(self):
        """Messages as they come, from the first that nobody acknowledged on; goes on after every break."""
        after = 0
        while True:
            try:
                link = self._connect()
                link.request("GET", f"/v1/inbox/events?after={after}")
                for line in link.getresponse():
                    if line.startswith(b"id:"):
                        after = int(line[3:])
                    elif line.startswith(b"data:"):
                        message = json.loads(line[5:])
                        if "sender" in message:
                            yield message
            except (OSError, http.client.HTTPException, ValueError):
                pass
            time.sleep(0.2)


def show(message):
    """One message, as a line."""
    where = "to you" if not message["line"].startswith("topic:") else message["line"]
    print(f"[{where}] {message['sender']}: {json.dumps(message.get('body', '(hidden)'))}", flush=True)


def answer(daemon, name):
    """An agent. Its answer's id is made of the question's: killed between answer and acknowledgement, it answers again, and
    the broker and every inbox know that answer."""
    for message in daemon.messages():
        is_question = not message["line"].startswith("topic:") and not message["id"].startswith("re:")
        if is_question:
            daemon.send({"member": message["sender"]}, {"you said": message.get("body")}, f"re:{message['id']}")
        show(message)
        daemon.acknowledge(message)


def listen(daemon):
    """A person's messages: shown, then acknowledged."""
    for message in daemon.messages():
        show(message)
        daemon.acknowledge(message)


def talk(daemon, topic):
    """A person's lines."""
    threading.Thread(target=listen, args=(daemon,), daemon=True).start()
    print(f'a line goes to {topic}, "@bob hello" to bob, /dead lists what was given up, /retry ID sends it again')
    for line in map(str.strip, sys.stdin):
        word, _, rest = line.partition(" ")
        if word == "/dead":
            _, page = daemon.call("GET", "/v1/messages?state=dead")
            for receipt in page["messages"]:
                print(f"{receipt['client_message_id']}: {receipt['last_error']}")
        elif word == "/retry":
            status, told = daemon.call("POST", f"/v1/messages/{quote(rest, safe='')}/requeue", {"auto": True})
            print(told["new"]["client_message_id"] if status == 200 else told["message"])
        elif word == "/why":
            for state in daemon.waiting()["lines"]:
                print(f"{state['line']} is {state['state']}{': ' + state['why'] if state['why'] else ''}")
        elif word.startswith("@") and rest:
            daemon.send({"member": word[1:]}, rest)
        elif line:
            daemon.send({"topic": topic}, line)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    own = Daemon(sys.argv[1])
    if "--agent" in sys.argv:
        answer(own, Path(sys.argv[1]).name)
    else:
        talk(own, "news")
