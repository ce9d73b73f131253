"""What an answer means to a sender: the vectors of the contract, each as an answer that a message is given."""

import asyncio
import json

from support import TREE

from semel_outbox import AsyncOutbox, CoreError, Options
from semel_outbox._core import semel_core as core
from semel_outbox.host import Host


def read(name):
    return json.loads((TREE / "spec/vectors" / name).read_text())


VECTORS = read("classification.json")["vectors"]

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


def lab_with(profile):
    lab = core.Lab()
    return lab, AsyncOutbox(lab.open(Options(path="", profile=profile), Host(None, None, None, None)))


def test_every_code_is_found_where_the_contract_says():
    codes = read("classification.json")["codes"]
    assert len(codes) > 30

    async def play():
        lab, outbox = lab_with("ietf")
        for number, vector in enumerate(codes):
            lab.answers(json.dumps([{"status": 418, "body": vector["body"]}]))
            await outbox.send("POST", "https://api.example/orders", "{}", id=name(number))
        lab.advance(0)
        for number, vector in enumerate(codes):
            shown = "418" if vector["expect"] is None else f"418 {vector['expect']}"
            assert (await outbox.get(name(number))).reason == f"rejected: HTTP {shown}", vector["name"]

    asyncio.run(play())


def test_every_pause_is_what_the_schedule_says():
    """Of the profiles' own schedules; the laboratory draws one half."""
    pauses = {}
    for vector in read("schedules.json")["vectors"]:
        profile, _, attempt = vector["name"].partition(" attempt ")
        if profile in ("ietf", "walker", "scores", "feed") and (vector["cause"], vector["u"]) == ("failed", 0.5):
            pauses.setdefault(profile, {})[int(attempt.split()[0].strip(","))] = next(iter(vector["expect"].values()))
    assert sum(map(len, pauses.values())) > 35

    async def play(profile, wanted):
        lab, outbox = lab_with(profile)
        lab.answers(json.dumps([{"status": 500}] * max(wanted)))
        await outbox.send("POST", "https://api.example/orders", "{}", id=name(1))
        lab.advance(20 * 3_600_000)
        times = [at for _, at in json.loads(lab.seen())["sends"]]
        found = {attempt: times[attempt] - times[attempt - 1] for attempt in wanted}
        assert found == wanted, profile

    for profile, wanted in pauses.items():
        asyncio.run(play(profile, wanted))


def test_every_plain_key_is_taken_as_an_id_where_the_contract_takes_it():
    profiles = {"uuid4-lower": "walker", "token255": "feed", "printable255": "ietf", "any255": "scores"}

    async def play():
        held = 0
        for vector in read("keys.json")["vectors"]:
            policy, headers = vector["policy"], vector.get("headers")
            is_plain = len(policy["sources"]) == 1 and policy["syntax"] == "bare" and len(headers or []) == 1 and not policy["shared"]
            if not is_plain or policy["format"] not in profiles:
                continue
            (header, value), = headers
            if value != value.strip() or header.lower() != policy["sources"][0][len("header:") :].lower():
                continue
            _, outbox = lab_with(profiles[policy["format"]])
            try:
                taken = (await outbox.send("POST", "https://api.example/orders", "{}", id=value)).receipt.id
            except CoreError.Refused:
                taken = None
            assert (taken == value) == (vector["expect"].get("key") == value), vector["name"]
            held += 1
        assert held > 20

    asyncio.run(play())
