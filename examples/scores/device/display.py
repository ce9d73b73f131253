"""The display at the camp: a small device that shows each patrol's score with what is still on its way. Standard library only.

    python3 display.py http://127.0.0.1:3000 --leader display --password campfire

A red dot stands behind a score that the external service does not have yet. Old servers say nothing of what is on its way;
then the score is shown as it is. While the server is away, the last list stays, and a line says since when.
"""

import argparse
import json
import time
import urllib.error
import urllib.request
from typing import Any, Callable, List, NamedTuple, Optional

RED, PLAIN = "\x1b[31m", "\x1b[0m"
EVERY_SECONDS = 5.0


class Patrol(NamedTuple):
    """A patrol as the device shows it."""

    name: str
    score: int
    pending_delta: int
    has_pending: bool

    @property
    def adjusted(self) -> int:
        """The score with what is on its way."""
        return self.score + self.pending_delta


def whole(value: Any) -> int:
    """A whole number; anything else counts as nothing."""
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def parse(body: Any) -> List[Patrol]:
    """The patrols of a list, from this server or an older one. What cannot be shown is left out."""
    found = body.get("patrols") if isinstance(body, dict) else None
    patrols = []
    for entry in found if isinstance(found, list) else []:
        if not isinstance(entry, dict) or not isinstance(entry.get("id"), str):
            continue
        name = entry.get("name") if isinstance(entry.get("name"), str) else entry["id"]
        has_pending = entry.get("hasPending") is True
        patrols.append(Patrol(name, whole(entry.get("score")), whole(entry.get("pendingDelta")), has_pending))
    return patrols


def render(patrols: List[Patrol], width: int = 24, colours: bool = True) -> List[str]:
    """The lines of the display. Without colours the dot is a star."""
    dot = f"{RED}●{PLAIN}" if colours else "*"
    ranked = sorted(patrols, key=lambda patrol: (-patrol.adjusted, patrol.name))
    room = max(width - 8, 4)
    return [f"{p.name[:room]:<{room}}{p.adjusted:>6} {dot if p.has_pending else ' '}".rstrip() for p in ranked]


class Display:
    """What is on the display, and since when it is old."""

    def __init__(self, fetch: Callable[[], Any], clock: Callable[[], float] = time.time) -> None:
        self._fetch = fetch
        self._clock = clock
        self._patrols: List[Patrol] = []
        self._fresh_at: Optional[float] = None

    def poll(self, width: int = 24, colours: bool = True) -> List[str]:
        """Asks the server once, and gives the lines to show, whatever it said."""
        try:
            self._patrols = parse(self._fetch())
            self._fresh_at = self._clock()
            return render(self._patrols, width, colours)
        except (OSError, ValueError) as error:
            since = "no list yet" if self._fresh_at is None else time.strftime("list of %H:%M", time.localtime(self._fresh_at))
            why = "sign-in is over" if getattr(error, "code", None) == 401 else "no connection"
            return [*render(self._patrols, width, colours), f"({why}, {since})"]


class Server:
    """The score API. Signs in again when its session is over."""

    def __init__(self, base: str, section: str, leader: str, password: str) -> None:
        self._base, self._section = base.rstrip("/"), section
        self._login = {"leader": leader, "password": password}
        self._session = ""

    def patrols(self) -> Any:
        """The list, as the server gives it."""
        try:
            return self._call(f"/api/sections/{self._section}/scores")
        except urllib.error.HTTPError as error:
            if error.code != 401:
                raise
        self._session = self._call("/api/login", self._login)["session"]
        return self._call(f"/api/sections/{self._section}/scores")

    def _call(self, path: str, body: Optional[dict] = None) -> Any:
        content = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._base + path, content, {"Content-Type": "application/json"})
        if self._session:
            request.add_header("Authorization", f"Bearer {self._session}")
        with urllib.request.urlopen(request, timeout=5) as answer:
            return json.load(answer)


def main() -> None:
    """Shows the list until it is stopped."""
    parser = argparse.ArgumentParser(description="Shows the scores of a section.")
    parser.add_argument("server", help="such as http://127.0.0.1:3000")
    parser.add_argument("--section", default="7")
    parser.add_argument("--leader", default="display")
    parser.add_argument("--password", required=True)
    parser.add_argument("--width", type=int, default=24)
    parser.add_argument("--plain", action="store_true", help="no colours: a star for the dot")
    parser.add_argument("--once", action="store_true", help="show it once and end")
    flags = parser.parse_args()
    display = Display(Server(flags.server, flags.section, flags.leader, flags.password).patrols)
    while True:
        lines = display.poll(flags.width, not flags.plain)
        print("\n".join(lines if flags.once else ["\x1b[2J\x1b[H", *lines]), flush=True)
        if flags.once:
            return
        time.sleep(EVERY_SECONDS)


if __name__ == "__main__":
    main()
