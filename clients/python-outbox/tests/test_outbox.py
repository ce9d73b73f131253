"""What a program sees: blocking and asynchronous, one owner, forks, callers that go away, rebuilds, an older queue."""

import asyncio
import json
import multiprocessing
import sqlite3
import subprocess
import sys
import time
import uuid

import pytest
from support import TREE, Gate

from semel_outbox import AsyncOutbox, CoreError, NoticeKind, Options, Outbox, Rebuild, Route, Status
from semel_outbox._core import semel_core as core
from semel_outbox.asynchronous import message
from semel_outbox.host import Host


def until(condition, within=60):
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def test_a_message_is_accepted_and_delivered(tmp_path):
    with Gate() as gate, Outbox(tmp_path / "outbox.db", base_url=gate.url) as outbox:
        accepted = outbox.send("POST", "/orders", "{}")
        receipt = outbox.wait(accepted.receipt.id)
        assert (receipt.status, gate.effects) == (Status.DONE, [receipt.id])
        kinds = []
        for event in outbox.events():
            kinds.append(event.kind)
            if event.kind == "done":
                break
        assert kinds[0] == "queued"
        again = outbox.send("POST", "/orders", "{}", id=receipt.id)
        assert again.was_known
        with pytest.raises(CoreError.Refused) as refused:
            outbox.send("POST", "/orders", '{"n":2}', id=receipt.id)
        assert refused.value.code == "id-reused"


def test_a_second_process_hands_over_and_takes_the_owners_place(tmp_path):
    path = tmp_path / "outbox.db"
    with Gate() as gate:
        first, second = Outbox(path, base_url=gate.url), Outbox(path, base_url=gate.url)
        assert (first.is_owner(), second.is_owner()) == (True, False)
        accepted = second.send("POST", "/orders", "{}")
        assert second.wait(accepted.receipt.id).status == Status.DONE
        first.close()
        # Also where nobody calls: what waits must not wait for that.
        until(second.is_owner)
        accepted = second.send("POST", "/orders", "{}")
        assert second.wait(accepted.receipt.id).status == Status.DONE
        assert len(gate.effects) == 2
        second.close()


def test_a_message_of_a_process_that_is_gone_is_sent_by_the_owner(tmp_path):
    path = tmp_path / "outbox.db"
    program = (
        "import sys, os; from semel_outbox import Outbox\n"
        "outbox = Outbox(sys.argv[1], base_url=sys.argv[2])\n"
        "assert not outbox.is_owner()\n"
        "print(outbox.send('POST', '/orders', '{}').receipt.id, flush=True)\n"
        "os._exit(9)"
    )
    with Gate() as gate, Outbox(path, base_url=gate.url) as owner:
        ended = subprocess.run([sys.executable, "-c", program, path, gate.url], capture_output=True, text=True)
        assert ended.returncode == 9, ended.stderr
        assert owner.wait(ended.stdout.strip()).status == Status.DONE


def test_who_has_signed_out_is_parked_over_restarts_until_signing_in_again(tmp_path):
    path = tmp_path / "outbox.db"
    with Gate() as gate:
        with Outbox(path, base_url=gate.url) as outbox:
            outbox.sign_out("anna")
            parked = outbox.send("POST", "/orders", "{}", principal="anna").receipt.id
            until(lambda: outbox.get(parked).status == Status.HELD)
        first, second = Outbox(path, base_url=gate.url), Outbox(path, base_url=gate.url)
        # Behind hers, another's says that what was to be sent is sent; once by an owner after a restart, once by one that took over.
        first.wait(first.send("POST", "/orders", "{}", principal="ben").receipt.id)
        first.close()
        until(second.is_owner)
        second.wait(second.send("POST", "/orders", "{}", principal="ben").receipt.id)
        assert (second.get(parked).status, len(gate.effects)) == (Status.HELD, 2)
        second.sign_in("anna")
        assert second.wait(parked).status == Status.DONE
        second.close()


def in_child(outbox, path, url, told):
    try:
        outbox.send("POST", "/orders", "{}")
        told.put("sent")
    except CoreError.Forked:
        with Outbox(path, base_url=url) as mine:
            told.put(("forked", mine.is_owner(), mine.send("POST", "/orders", "{}").receipt.id))


def test_after_a_fork_the_child_refuses_and_may_open_it_again(tmp_path):
    path = tmp_path / "outbox.db"
    with Gate() as gate, Outbox(path, base_url=gate.url) as outbox:
        outbox.wait(outbox.send("POST", "/orders", "{}").receipt.id)
        context = multiprocessing.get_context("fork")
        told = context.Queue()
        child = context.Process(target=in_child, args=(outbox, path, gate.url, told))
        child.start()
        what, is_owner, id = told.get(timeout=60)
        child.join(60)
        assert (what, is_owner, child.exitcode) == ("forked", False, 0)
        assert outbox.wait(id).status == Status.DONE
        # The child's end has taken nothing from its parent.
        assert outbox.is_owner()
        with Outbox(path, base_url=gate.url) as other:
            assert not other.is_owner()


def test_a_cancelled_task_forgets_nothing(tmp_path):
    async def cancel():
        ids = [str(uuid.uuid4()) for _ in range(20)]
        async with await AsyncOutbox.open(tmp_path / "outbox.db", base_url=gate.url) as outbox:
            for id in ids:
                sending = asyncio.create_task(outbox.send("POST", "/orders", "{}", id=id, lane=id))
                # It runs up to where it waits for the library.
                await asyncio.sleep(0)
                sending.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await sending
            deadline = time.monotonic() + 30
            while set(gate.effects) != set(ids):
                assert time.monotonic() < deadline, "what was accepted is sent soon"
                await asyncio.sleep(0.02)

    with Gate() as gate:
        asyncio.run(cancel())


ANSWER = {"STEP_OUT_OF_ORDER": 422, "STALE_ACTION": 422, "IDEMPOTENCY_CONFLICT": 409}


def walker(rebuild=None):
    lab, notices = core.Lab(), []
    options = Options(path="", profile="walker")
    outbox = AsyncOutbox(lab.open(options, Host(None, rebuild, notices.append, None)))
    return lab, outbox, notices


def refuse(lab, *codes):
    lab.answers(json.dumps([{"status": ANSWER[code], "body": json.dumps({"error": code})} for code in codes]))


def test_a_rebuild_may_be_asynchronous_and_ask_the_server():
    async def play():
        async def rebuild(held, behind):
            await asyncio.sleep(0.01)
            return Rebuild.REPLACE(drop=[one.number for one in behind], instead=[message("POST", held.url, "{}", lane=held.lane)])

        lab, outbox, notices = walker(rebuild)
        refuse(lab, "STEP_OUT_OF_ORDER")
        await outbox.pause("default")
        old = [(await outbox.send("POST", "https://api.example/step", "{}")).receipt for _ in range(2)]
        await outbox.resume("default")
        lab.advance(0)
        assert [(await outbox.get(one.id)).status for one in old] == [Status.ABORTED, Status.ABORTED]
        assert len(json.loads(lab.seen())["effects"]) == 1
        assert [notice.kind for notice in notices] == [NoticeKind.REBUILT]

    asyncio.run(play())


def test_what_expires_is_told_once_a_drain_whoever_found_it():
    async def found_here():
        lab, outbox, _ = walker()
        lab.network(True)
        for _ in range(3):
            await outbox.send("POST", "https://api.example/step", "{}")
        lab.kill()
        lab.advance(8 * 86_400_000)
        notices = []
        reopened = lab.open(Options(path="", profile="walker"), Host(None, None, notices.append, None))
        lab.advance(0)
        assert await reopened.is_owner()
        return notices, await reopened.events(0, 1000, 0)

    async def found_by_the_server():
        lab, outbox, notices = walker()
        refuse(lab, *["STALE_ACTION"] * 3)
        await outbox.pause("default")
        for _ in range(3):
            await outbox.send("POST", "https://api.example/step", "{}")
        await outbox.resume("default")
        lab.advance(0)
        return notices, await outbox._core.events(0, 1000, 0)

    for play in (found_here, found_by_the_server):
        notices, events = asyncio.run(play())
        assert [(notice.kind, len(notice.receipts)) for notice in notices] == [(NoticeKind.EXPIRED, 3)]
        (expired,) = [event for event in events if event.kind == "expired"]
        assert expired.ids == [receipt.id for receipt in notices[0].receipts]
        assert expired.message_numbers == [receipt.number for receipt in notices[0].receipts]


def test_both_ids_and_both_times_are_stored_and_sent():
    async def play():
        lab, outbox, _ = walker()
        sent = await outbox.send(
            "POST", "https://api.example/step", "{}", headers={"content-type": "application/json"},
            principal="w1", operation="advance", generated_at_millis=1_767_225_000_000,
        )
        receipt = await outbox.get(sent.receipt.id, "w1", "advance")
        assert (receipt.generated_at_millis, len(receipt.tx_id)) == (1_767_225_000_000, 36)
        lab.advance(0)
        seen = json.loads(lab.seen())
        assert json.loads(seen["bodies"][0]) == {"clientGeneratedAt": "2025-12-31T23:50:00Z"}
        assert seen["sends"][0][0] == receipt.id

    asyncio.run(play())


def test_an_older_queue_is_imported_once_and_whole(tmp_path):
    older = tmp_path / "older.db"
    connection = sqlite3.connect(older)
    connection.executescript((TREE / "clients/core/tests/offline_actions.sql").read_text())
    connection.close()

    async def play():
        lab, outbox, _ = walker()
        kinds = {"tree.allocate": "/tree", "quest.advance": "/quest/{questId}/advance", "quest.complete": "/quest/{questId}"}
        routes = [Route(action_type=kind, method="POST", url="https://api.example" + url) for kind, url in kinds.items()]
        first = await outbox.import_queue(older, "offline_actions", routes)
        second = await outbox.import_queue(older, "offline_actions", routes)
        assert (first.imported, first.known, second.imported, second.known) == (4, 0, 0, 4)
        rows = await outbox.list()
        assert rows[0].id == "0f8fad5b-d9cb-469f-a165-70867728950e"
        assert len({row.id for row in rows}) == 4
        assert rows[1].generated_at_millis == 1767225660000
        assert rows[1].url == "https://api.example/quest/q7/advance"
        with pytest.raises(CoreError.Unavailable):
            await outbox.import_queue(older, "offline_actions", routes[:1])

    asyncio.run(play())


def test_the_example_of_the_guide_runs(tmp_path):
    guide = (TREE / "docs/guides/outbox-python.md").read_text()
    example = guide.split("```python\n")[1].split("```")[0]
    with Gate() as gate:
        names = {"API": gate.url, "PATH": str(tmp_path / "orders.db"), "current_token": lambda: "t-1"}
        exec(example, names)
        assert names["receipt"].status == Status.DONE
        assert gate.effects == [names["receipt"].id]


def test_the_example_of_the_readme_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    readme = (TREE / "clients/python-outbox/README.md").read_text()
    example = readme.split("```python\n")[1].split("```")[0]
    with Gate() as gate:
        assert "https://api.example" in example
        names = {}
        exec(example.replace("https://api.example", gate.url), names)
        assert names["receipt"].status == Status.DONE
        assert gate.effects == [names["receipt"].id]
        assert (tmp_path / "orders.db").exists()
