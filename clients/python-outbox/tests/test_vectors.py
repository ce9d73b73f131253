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


async def met(profile, vectors):
    """What became of a message each, in one outbox; each is somebody's of its own."""
    lab = core.Lab()
    outbox = AsyncOutbox(lab.open(Options(path="", profile=profile), Host(None, None, None, None)))
    for number, vector in enumerate(vectors):
        body = "" if vector["code"] is None else json.dumps({"code": vector["code"]})
        lab.answers(json.dumps(["lost" if vector["status"] is None else {"status": vector["status"], "body": body}]))
        await outbox.send("POST", "https://api.example/orders", "{}", id=name(number), principal=f"p{number}")
    lab.advance(0)
    events = await outbox._core.events(0, 1000, 0)
    for number in range(len(vectors)):
        kinds = [event.kind for event in events if event.id == name(number)]
        yield (await outbox.get(name(number))).status.name.lower(), kinds[1]


def name(number):
    return f"00000000-0000-4000-8000-{number:012}"


def test_every_answer_means_what_the_contract_says():
    assert len(VECTORS) > 100

    async def play():
        wrong = []
        for profile in sorted({vector["profile"] for vector in VECTORS}):
            vectors = [vector for vector in VECTORS if vector["profile"] == profile]
            found = [one async for one in met(profile, vectors)]
            for vector, became in zip(vectors, found):
                expect = vector["expect"]
                # One that is stale ends like one that was too old here.
                wanted = ("dead", "expired") if expect["reason"] == "stale-action" else BECOMES[expect["class"]]
                if became != wanted:
                    wrong.append((vector["name"], wanted, became))
        assert wrong == []

    asyncio.run(play())
