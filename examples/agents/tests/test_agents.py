"""Agents and a world, with semel in front of it and inside it: answers that are lost, processes that are killed, and whole fleets."""

import concurrent.futures
import contextlib
import json
import os
import pathlib
import sqlite3
import subprocess
import sys
import tempfile
import unittest
import urllib.error
import urllib.request
import uuid

import processes
from processes import HERE, Database, Weather, agent_command, effects, wait_for

sys.path[:0] = [str(HERE), str(processes.CLIENT)]
from agent import Agent, Waits  # noqa: E402

ACT = ("POST", "/api/dwellers/7/act", {"action": "plant"})
WORDS = ("act", "plant-7", ACT[0], ACT[1], json.dumps(ACT[2]))


class Case(unittest.TestCase):
    """A folder, and processes that end with the test."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="semel-agents-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        processes.secrets(self.folder)

    def ends(self, process):
        self.addCleanup(process.kill)
        return process

    def behind_a_gateway(self):
        world = self.ends(processes.world(self.folder))
        return world, self.ends(processes.gateway(self.folder, world.base))

    def with_the_middleware(self):
        database = Database()
        self.addCleanup(database.drop)
        return self.ends(processes.inside(self.folder, database.url))

    def weather(self, port):
        weather = Weather(port)
        self.addCleanup(weather.close)
        return weather

    def agent(self, base, name="ada", **settings):
        return Agent(base, self.folder / name, **settings)

    def both_forms(self):
        """Each form with the service whose effects count: the gateway's address, the service's."""
        with self.subTest("gateway"):
            world, gateway = self.behind_a_gateway()
            yield gateway, world
        with self.subTest("middleware"):
            service = self.with_the_middleware()
            yield service, service


class TestRetries(Case):
    """Answers that are lost, and agents that are killed."""

    # S1-30, S1-01, S1-02: 502 and silence come after the effect.
    def test_the_agent_keeps_its_key_and_acts_once(self):
        for server, service in self.both_forms():
            weather = self.weather(server.port)
            agent = self.agent(weather.base, f"ada-{server.port}", timeout=1.0)
            agent.register("ada")
            del weather.keys[:]
            weather.script = ["lost", "502", "silence"]
            self.assertEqual(agent.act("plant-7", *ACT), {"id": 1, "kind": "act"})
            self.assertEqual((len(weather.keys), len(set(weather.keys)), effects(service.base)["act"]), (4, 1, 1))
            # Another action is another key; the same again is the same answer.
            self.assertEqual(agent.act("plant-8", *ACT)["id"], 2)
            self.assertEqual(agent.act("plant-7", *ACT)["id"], 1)
            self.assertEqual((len(set(weather.keys)), effects(service.base)["act"]), (2, 2))

    # S1-30: what the test above would see of an agent that makes a new key for each attempt.
    def test_an_agent_with_a_new_key_for_each_attempt_acts_again(self):
        world, gateway = self.behind_a_gateway()
        weather = self.weather(gateway.port)
        token = self.agent(gateway.base).register("ada")["token"]
        weather.script = ["502"]
        for _ in range(2):
            headers = {"Authorization": f"Bearer {token}", "X-Idempotency-Key": str(uuid.uuid4()), "Content-Type": "application/json"}
            request = urllib.request.Request(weather.base + ACT[1], json.dumps(ACT[2]).encode(), headers)
            with contextlib.suppress(urllib.error.HTTPError):
                urllib.request.urlopen(request, timeout=10).close()
        self.assertEqual(effects(world.base)["act"], 2)

    # S1-30: the agent's process is killed after the effect, before it has its answer.
    def test_an_agent_that_is_killed_goes_on_with_its_key(self):
        for server, service in self.both_forms():
            weather = self.weather(server.port)
            home = self.folder / f"home-{server.port}"
            Agent(server.base, home).register("ada")
            weather.script = ["hold"]
            first = agent_command(weather.base, home, *WORDS)
            self.assertTrue(weather.held.wait(processes.PATIENCE))
            first.kill()
            first.communicate()
            weather.go_on.set()
            second = agent_command(weather.base, home, *WORDS)
            said, _ = second.communicate(timeout=processes.PATIENCE)
            self.assertEqual((second.returncode, json.loads(said)), (0, {"id": 1, "kind": "act"}))
            self.assertEqual((len(weather.keys), len(set(weather.keys)), effects(service.base)["act"]), (2, 1, 1))


class TestCrashes(Case):
    """Every process is killed in its turn."""

    # S1-34: with the middleware no outcome is unknown: what was killed has happened or has not.
    def test_a_service_that_is_killed_with_the_middleware_has_acted_once(self):
        service = self.with_the_middleware()
        weather = self.weather(service.port)
        agent = self.agent(weather.base, timeout=5.0)
        agent.register("ada")
        weather.headers = {"X-Work-Seconds": "1"}
        with concurrent.futures.ThreadPoolExecutor() as pool:
            acting = pool.submit(agent.act, "plant-7", *ACT)
            wait_for("the action to begin", lambda: len(weather.keys) == 2)
            service.kill()
            weather.headers = {}
            service.start()
            self.assertEqual(acting.result(processes.PATIENCE), {"id": 1, "kind": "act"})
        self.assertEqual((effects(service.base)["act"], len(set(weather.keys[1:]))), (1, 1))

    # S1-34: behind a gateway the world may be killed after its effect: nobody guesses, and a person decides.
    def test_what_nobody_knows_is_said_and_decided_once(self):
        world, gateway = self.behind_a_gateway()
        home = self.folder / "ada"
        weather = self.weather(gateway.port)
        Agent(weather.base, home).register("ada")
        weather.headers = {"X-Work-Seconds": "2"}
        first = agent_command(weather.base, home, *WORDS, patience=1)
        wait_for("the claim", lambda: self.states(gateway) == ["claimed"])
        gateway.kill()
        self.assertNotEqual(first.wait(processes.PATIENCE), 0)
        _, why = first.communicate()
        self.assertIn("it waits", why, "the person sees that it waits")
        wait_for("the effect", lambda: effects(world.base).get("act") == 1)
        gateway.start()
        second = agent_command(weather.base, home, *WORDS, patience=2)
        _, why = second.communicate(timeout=processes.PATIENCE)
        self.assertEqual(second.returncode, 75, why)
        self.assertIn("409", why)
        body = self.folder / "answer.json"
        body.write_text('{"id": 1, "kind": "act"}')
        with sqlite3.connect(home / "keys.db") as keys:
            key = keys.execute("SELECT key FROM call WHERE name = 'plant-7'").fetchone()[0]
        resolve = [os.environ["SEMEL_BIN"], "gate", "resolve", key, "--as", "applied", "--status", "201", "--body-file", str(body)]
        resolve += ["--header", "Content-Type: application/json", "--reason", "it is in the world's books", "--admin", gateway.admin]
        done = subprocess.run(resolve, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        third = agent_command(weather.base, home, *WORDS)
        said, why = third.communicate(timeout=processes.PATIENCE)
        self.assertEqual((third.returncode, json.loads(said or "{}")), (0, {"id": 1, "kind": "act"}), why)
        self.assertEqual(effects(world.base)["act"], 1)

    # S1-34: the world is killed before its effect, and comes back.
    def test_a_world_that_is_away_loses_nothing(self):
        world, gateway = self.behind_a_gateway()
        agent = self.agent(gateway.base)
        agent.register("ada")
        world.kill()
        with self.assertRaises(Waits) as raised:
            self.agent(gateway.base, patience=1.0).act("plant-7", *ACT)
        self.assertIn("502", str(raised.exception))
        world.start()
        self.assertEqual(agent.act("plant-7", *ACT), {"id": 1, "kind": "act"})
        self.assertEqual(effects(world.base)["act"], 1)

    # S1-03, S1-33
    def test_a_fleet_that_retries_after_a_crash_does_not_fire_twice(self):
        service = self.with_the_middleware()
        token = self.agent(service.base).register("ada")["token"]
        paths = ["/api/dwellers/7/act", "/api/dwellers/7/heartbeat", "/api/stories", "/api/proposals", "/api/review/story/3/feedback"]
        agents = []
        for at in range(40):
            agent = self.agent(service.base, f"agent-{at}", timeout=5.0)
            (self.folder / f"agent-{at}" / "token").write_text(token)
            agents.append(agent)
        with concurrent.futures.ThreadPoolExecutor(40) as pool:
            acting = [pool.submit(agent.act, f"beat-{at}", "POST", paths[at % 5], {"at": at}) for at, agent in enumerate(agents)]
            wait_for("the wave to begin", lambda: any(done.done() for done in acting))
            service.kill()
            service.start()
            for done in acting:
                done.result(processes.PATIENCE)
        counts = effects(service.base)
        counts.pop("agent")
        self.assertEqual(counts, {"act": 8, "heartbeat": 8, "story": 8, "proposal": 8, "feedback": 8})

    def states(self, gateway):
        with urllib.request.urlopen(f"{gateway.admin}/v1/records", timeout=10) as answer:
            return [record["state"] for record in json.load(answer)["records"] if record["state"] != "settled"]


class TestRules(Case):
    """What a guide says, who an agent is, and how large it all is."""

    # S1-29
    def test_the_guide_for_agents_says_what_the_agent_does(self):
        guide = (HERE / "AGENTS.md").read_text()
        for word in ("X-Idempotency-Key", "One new UUID for each distinct action", "The same UUID", "`outcome-unknown`", "Why:"):
            self.assertIn(word, guide)
        _, gateway = self.behind_a_gateway()
        weather = self.weather(gateway.port)
        self.agent(weather.base).register("ada")
        self.assertEqual(uuid.UUID(weather.keys[0]).version, 4)

    # S1-27, G1-5: a registration is answered with a credential.
    def test_a_registration_is_repeated_to_its_key_alone_and_encrypted_where_it_is_kept(self):
        world, gateway = self.behind_a_gateway()
        weather = self.weather(gateway.port)
        weather.script = ["502"]
        token = self.agent(weather.base).register("ada")["token"]
        self.assertEqual(effects(world.base), {"agent": 1})
        kept = b"".join(file.read_bytes() for file in self.folder.glob("semel.db*"))
        self.assertIn(weather.keys[0].encode(), kept, "the record is here")
        self.assertNotIn(token.encode(), kept)
        self.assertNotIn(token.rpartition(".")[2].encode(), kept)
        self.assertEqual(self.post(gateway.base, "/api/auth/agent", "guessable", {"name": "ada"})[0], 400)

    # A new token of the same agent is the same caller; a forged one is nobody.
    def test_an_agent_is_who_its_verified_token_names(self):
        os.environ["WORLD_SECRET"] = str(self.folder / "world.secret")
        import world as service

        tokens = service.Tokens((self.folder / "world.secret").read_bytes())
        for server, counted in self.both_forms():
            key = str(uuid.uuid4())
            said = [self.post(server.base, ACT[1], key, ACT[2], token) for token in (tokens.issue("bob"), tokens.issue("bob"))]
            self.assertEqual([status for status, _ in said], [201, 201])
            self.assertEqual(said[0], said[1])
            forged = service.Tokens(b"another secret, of an attacker..").issue("bob")
            self.assertEqual(self.post(server.base, ACT[1], key, ACT[2], forged)[0], 401)
            self.assertEqual(self.post(server.base, ACT[1], key, ACT[2], tokens.issue("eve"))[0], 201, "her key is another")
            self.assertEqual(effects(counted.base)["act"], 2)

    # S1-39
    def test_the_integration_stays_small(self):
        lines = [len((HERE / name).read_text().splitlines()) for name in ("inside.py", "semel.toml")]
        self.assertLess(sum(lines), 200)
        own = sum(len((HERE / name).read_text().splitlines()) for name in ("world.py", "inside.py", "agent.py", "orders.py"))
        self.assertLess(own, 600)
        self.assertNotIn("semel", (HERE / "world.py").read_text().split('"""')[2])

    def post(self, base, path, key, body, token=None):
        headers = {"Content-Type": "application/json", "X-Idempotency-Key": key}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        request = urllib.request.Request(base + path, json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()


if __name__ == "__main__":
    unittest.main()
