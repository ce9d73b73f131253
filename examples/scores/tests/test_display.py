"""The device: adjusted scores, the red dot, old servers, and a server that is away. `test.sh` gives the page of a running API."""

import json
import os
import pathlib
import sys
import unittest
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "device"))
from display import RED, Display, Patrol, Server, parse, render  # noqa: E402

EAGLES = {"id": "eagles", "name": "Eagles", "score": 100, "pendingDelta": 5, "hasPending": True}


class Scripted:
    """A server that gives these lists in turn; an error is raised."""

    def __init__(self, *answers):
        self.answers = list(answers)

    def __call__(self):
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return {"patrols": answer}


class TestDisplay(unittest.TestCase):
    # S2-87
    def test_a_score_is_shown_with_what_is_on_its_way(self):
        self.assertEqual(parse({"patrols": [EAGLES]})[0].adjusted, 105)
        self.assertIn(" 105 ", render(parse({"patrols": [EAGLES]}))[0])

    # S2-88, S2-103
    def test_a_red_dot_or_a_star_stands_behind_what_is_not_there_yet(self):
        quiet = {**EAGLES, "id": "owls", "name": "Owls", "pendingDelta": 0, "hasPending": False}
        eagles, owls = render(parse({"patrols": [quiet, EAGLES]}))
        self.assertTrue(eagles.startswith("Eagles") and RED in eagles and "●" in eagles)
        self.assertTrue(owls.startswith("Owls") and RED not in owls)
        low = render(parse({"patrols": [quiet, EAGLES]}), width=16, colours=False)
        self.assertEqual(low, ["Eagles     105 *", "Owls       100"])
        self.assertTrue(all(len(line) <= 16 for line in low))

    # S2-89
    def test_the_dot_goes_when_the_points_have_arrived(self):
        applied = {**EAGLES, "score": 105, "pendingDelta": 0, "hasPending": False}
        display = Display(Scripted([EAGLES], [applied]))
        first, second = display.poll(colours=False), display.poll(colours=False)
        self.assertTrue(first[0].endswith("105 *") and second[0].endswith("105"), (first, second))

    # S2-90
    def test_old_servers_and_broken_entries_are_understood(self):
        old = {"patrols": [{"id": "eagles", "name": "Eagles", "score": 100}]}
        self.assertEqual(parse(old), [Patrol("Eagles", 100, 0, False)])
        odd = {"patrols": [None, {"name": "no id"}, {"id": "x", "score": None, "pendingDelta": "5", "hasPending": 1, "new": {}}]}
        self.assertEqual(parse(odd), [Patrol("x", 0, 0, False)])
        for nothing in (None, [], {}, {"patrols": None}, "text"):
            self.assertEqual(parse(nothing), [])

    def test_while_the_server_is_away_the_last_list_stays_and_says_so(self):
        display = Display(Scripted([EAGLES], OSError("away"), ValueError("no JSON")), clock=lambda: 0.0)
        display.poll()
        for _ in range(2):
            lines = display.poll(colours=False)
            self.assertIn("105 *", lines[0])
            self.assertRegex(lines[-1], r"no connection, list of \d\d:\d\d")

    # S2-103: against the API that test.sh started.
    def test_the_device_signs_in_and_shows_the_list_of_a_running_server(self):
        base = os.environ["SCORES_URL"]
        server = Server(base, "7", "display", "campfire")
        lines = Display(server.patrols).poll(colours=False)
        self.assertEqual(len(lines), 4, lines)
        # The service holds a write back: the score has its dot, and both sides of the sum are right.
        before = {patrol.name: patrol for patrol in parse(server.patrols())}["Foxes"]
        self.outside("/habits", [{"limit": 6}])
        body = {"patrols": [{"id": "foxes", "name": "Foxes", "points": 5}]}
        self.call(base, server, "/api/sections/7/scores", body)
        foxes = {patrol.name: patrol for patrol in parse(server.patrols())}["Foxes"]
        self.assertEqual((foxes.score, foxes.adjusted, foxes.has_pending), (before.score, before.score + 5, True))

    @staticmethod
    def outside(path, body):
        url = os.environ["SCORES_EXTERNAL"] + path
        request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
        urllib.request.urlopen(request, timeout=10).close()

    @staticmethod
    def call(base, server, path, body):
        headers = {"Content-Type": "application/json", "X-Idempotency-Key": "device-1", "X-Sync-Mode": "interactive"}
        headers["Authorization"] = f"Bearer {server._session}"
        request = urllib.request.Request(base + path, json.dumps(body).encode(), headers)
        urllib.request.urlopen(request, timeout=20).close()


if __name__ == "__main__":
    unittest.main()
