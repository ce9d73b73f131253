"""An agent: it registers, acts, and tells what became of it. One key for each action, kept in a file before the first attempt, so
that the same action has the same key after any time-out, 502 or crash of the agent.

    python agent.py --home ./ada register
    python agent.py --home ./ada act plant-7 POST /api/dwellers/7/act '{"action":"plant"}'

`plant-7` names the action. The same name again is the same action, however often and from however many processes it is sent.
"""

import argparse
import json
import pathlib
import sys

import httpx

import semel


class Waits(Exception):
    """The action has no final answer yet. Make the same call again later; its key is kept."""


class Agent:
    """An agent with a folder of its own: its token, and the keys of its actions."""

    def __init__(self, base, home, patience=60.0, timeout=10.0):
        self._base = base.rstrip("/")
        self._home = pathlib.Path(home)
        self._home.mkdir(parents=True, exist_ok=True)
        self._patience, self._timeout = patience, timeout

    def register(self, name):
        """Registers once, and keeps the token. Sent again it gets the same agent."""
        answer = self.act("register", "POST", "/api/auth/agent", {"name": name})
        new = self._home / "token.new"
        new.write_text(answer["token"])
        new.chmod(0o600)
        new.rename(self._home / "token")
        return answer

    def act(self, action, method, path, body):
        """Sends an action until it has its answer."""
        calls = semel.retrying(call=action, file=str(self._home / "keys.db"), profile="agents", patience=self._patience)
        with httpx.Client(transport=calls.httpx(), timeout=self._timeout) as client:
            try:
                answer = client.request(method, self._base + path, json=body, headers=self._credential())
            except httpx.TransportError as error:
                raise Waits(f"no answer ({error}): whether it happened is not known yet") from error
        if answer.status_code == 409 or answer.status_code >= 500:
            raise Waits(f"{answer.status_code}: {_words(answer)}")
        answer.raise_for_status()
        return answer.json()

    def _credential(self):
        token = self._home / "token"
        return {"Authorization": f"Bearer {token.read_text()}"} if token.exists() else {}


def _words(answer):
    """What an answer says, in words for a person."""
    link = answer.links.get("describedby", answer.links.get("type", {})).get("url", "")
    return " ".join(part for part in (answer.text.strip() or answer.reason_phrase, link) if part)


def main():
    """Runs one action. Exit codes: 0 done, 75 it waits (call again), 1 refused."""
    parser = argparse.ArgumentParser(description="Registers or acts, once.")
    parser.add_argument("--base", default="http://127.0.0.1:7400", help="where the world is, through semel")
    parser.add_argument("--home", required=True, help="where token and keys are kept")
    parser.add_argument("--patience", type=float, default=60.0, help="seconds until it gives control back")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("register").add_argument("--name", default="ada")
    act = commands.add_parser("act")
    for name in ("action", "method", "path", "body"):
        act.add_argument(name)
    flags = parser.parse_args()
    agent = Agent(flags.base, flags.home, flags.patience)
    try:
        if flags.command == "register":
            answer = agent.register(flags.name)
        else:
            answer = agent.act(flags.action, flags.method, flags.path, json.loads(flags.body))
    except Waits as waits:
        print(f"it waits: {waits}. The same command again goes on with the same key.", file=sys.stderr)
        sys.exit(75)
    except httpx.HTTPStatusError as error:
        sys.exit(f"refused: {error.response.status_code} {_words(error.response)}")
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
