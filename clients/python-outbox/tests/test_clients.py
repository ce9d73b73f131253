"""Plays spec/clients.json, the scenarios that every client passes, through Python."""

import asyncio
import json

import pytest
from support import TREE

from semel_outbox import AsyncOutbox, CoreError, Credential, Header, Options
from semel_outbox._core import semel_core as core
from semel_outbox.host import Host

SPEC = json.loads((TREE / "spec/clients.json").read_text())
ENDS = {"done", "dead", "dropped", "expired", "aborted"}
KINDS = ENDS | {"queued", "held"}


class Run:
    def __init__(self, scenario):
        self.scenario = scenario
        self.lab = core.Lab()
        self.credential = None
        self.read = {"sends": 0, "credentials": 0, "events": 0}
        self.open()

    def open(self):
        settings = self.scenario.get("settings", {})
        options = Options(
            path="",
            profile=self.scenario.get("profile", "ietf"),
            needs_credentials=settings.get("credentials", False),
            blocks_on_dead=settings.get("on_dead") == "block",
        )
        host = Host(lambda principal, origin: self.credential, None, None, None)
        self.core = self.lab.open(options, host)
        self.outbox = AsyncOutbox(self.core)

    async def step(self, step):
        outbox, lab = self.outbox, self.lab
        if "send" in step:
            await self.send(step["send"], step["expect"])
        elif "abort" in step:
            try:
                await outbox.abort(step["abort"], "by a test")
                is_refused = False
            except CoreError.State:
                is_refused = True
            assert is_refused == (step.get("expect") == "refused")
        elif "expect" in step:
            await self.check(step["expect"])
        elif "answers" in step:
            lab.answers(json.dumps(step["answers"]))
        elif "network" in step:
            lab.network(step["network"] == "down")
        elif "advance_ms" in step:
            lab.advance(step["advance_ms"])
        elif "kill" in step:
            lab.kill()
        elif "kill_at" in step:
            lab.kill_at_arrival()
        elif "open" in step:
            self.open()
        elif "credential" in step:
            principal, value = step["credential"]["principal"], step["credential"]["value"]
            self.credential = Credential(principal=principal, headers=[Header(name="authorization", value=value)])
            await outbox.sign_in(principal)
        elif "pause" in step:
            await outbox.pause(step["pause"]["lane"])
        elif "resume" in step:
            await outbox.resume(step["resume"]["lane"])
        elif "retry" in step:
            await outbox.retry(step["retry"])
        elif "requeue" in step:
            await outbox.requeue(step["requeue"], step["new_id"])
        elif "server_clock_ahead_ms" in step:
            lab.server_clock_ahead(step["server_clock_ahead_ms"])
        elif "clock_jump_ms" in step:
            lab.clock_jump(step["clock_jump_ms"])
        else:
            raise AssertionError(f"no such step: {step}")

    async def send(self, send, expect):
        named = {name: send[name] for name in ("id", "lane", "principal", "logical_key") if name in send}
        try:
            accepted = await self.outbox.send(
                "POST", SPEC["url"], send.get("body", "{}"), headers={"content-type": "application/json"}, **named
            )
            said = {"alias_of": accepted.alias_of} if accepted.alias_of else "accepted"
        except CoreError.Refused as refused:
            said = {"refused": refused.code}
        assert said == expect

    async def check(self, expect):
        seen = json.loads(self.lab.seen())
        events = await self.core.events(0, 1000, 0)
        told = [[event.kind, id] for event in events if event.kind in KINDS for id in event.ids or [event.id] if id]

        def since(name, everything):
            start, self.read[name] = self.read[name], len(everything)
            return everything[start:]

        for name, wanted in expect.items():
            if name in ("sends", "credentials"):
                found = since(name, seen[name])
            elif name == "effects":
                found = seen[name]
            elif name == "events":
                found = since(name, told)
            elif name == "events_of":
                found = {id: [kind for kind, of in told if of == id] for id in wanted}
            elif name == "ends":
                found = [one for one in told if one[0] in ENDS]
            elif name == "messages":
                found = {id: await self.shown(id, fields) for id, fields in wanted.items()}
            else:
                raise AssertionError(f"nothing checks {name}")
            assert found == wanted, name

    async def shown(self, id, fields):
        receipt = await self.outbox.get(id)
        everything = {
            "status": receipt.status.name.lower(),
            "attempts": receipt.attempts,
            "possibly_delivered": receipt.possibly_delivered,
        }
        return {name: everything[name] for name in fields}


@pytest.mark.parametrize("scenario", SPEC["scenarios"], ids=lambda scenario: scenario["name"])
def test_scenario(scenario):
    async def play():
        run = Run(scenario)
        for step in scenario["steps"]:
            await run.step(step)

    asyncio.run(play())


def test_there_are_scenarios_to_play():
    assert len(SPEC["scenarios"]) >= 37
