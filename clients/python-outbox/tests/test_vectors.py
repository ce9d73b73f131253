"""What an answer means to a sender: the vectors of the contract, each as an answer that a message is given."""

import asyncio
import json

from support import TREE

from semel_outbox import AsyncOutbox, Options
from semel_outbox._core import semel_core as core
from semel_outbox.host import Host

VECTORS = json.loads((TREE / "spec/vectors/classification.json").read_text())["vectors"]

# What becomes of a message after one such answer, and which event tells of it.
BECOMES = {
    "success": ("done", "done"),
    "retry": ("pending", "retry"),
    "retry-after": ("pending", "retry"),
    "auth": ("held", "held"),
    "rebuild": ("held", "rebuild"),
    "drop": ("dead", "dropped"),
    "dead": ("dead", "dead"),
}


async def met(vector):
    lab = core.Lab()
    outbox = AsyncOutbox(lab.open(Options(path="", profile=vector["profile"]), Host(None, None, None, None)))
    body = "" if vector["code"] is None else json.dumps({"code": vector["code"]})
    lab.answers(json.dumps(["lost" if vector["status"] is None else {"status": vector["status"], "body": body}]))
    id = "00000000-0000-4000-8000-000000000001"
    await outbox.send("POST", "https://api.example/orders", "{}", id=id)
    lab.advance(0)
    events = [event.kind for event in await outbox._core.events(0, 100, 0)]
    return (await outbox.get(id)).status.name.lower(), events[1]


def test_every_answer_means_what_the_contract_says():
    assert len(VECTORS) > 100
    wrong = []
    for vector in VECTORS:
        expect = vector["expect"]
        wanted = BECOMES[expect["class"]]
        if expect["reason"] == "stale-action":
            # It ends like one that was too old here.
            wanted = ("dead", "expired")
        found = asyncio.run(met(vector))
        if found != wanted:
            wrong.append((vector["name"], wanted, found))
    assert wrong == []
