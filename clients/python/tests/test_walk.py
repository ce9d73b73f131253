"""The walk by itself: a scripted database, no clock, no connection. Also the turns that keep a process to one handler."""

import asyncio
import threading
import time

import pytest

from semel import turns, walk
from semel.answers import Answer, filter_headers, pack, replay, unpack
from semel.call import Route, mint_key
from semel.failures import failure_of
from semel.keys import format_accepts
from semel.once import prepare
from semel.problems import Problem
from semel.profiles import PRESETS
from semel.turns import AsyncTurns, Turns
from semel.walk import AGAIN, LATE, MINE, End, Query, Sleep, State, Take

ROW = dict.fromkeys(
    "verdict status headers body fence outcome_unknown guarantee fingerprint created_at expires_at now".split()
)


def row(verdict, **columns):
    return {**ROW, "verdict": verdict, **columns}


class Db(Exception):
    def __init__(self, sqlstate):
        super().__init__(sqlstate)
        self.sqlstate = sqlstate


class Lost(ConnectionError):
    pass


def drive(script, profile="ietf", can_rerun=True, place=MINE):
    """Runs a walk by a script: command name to a list of results; an exception is thrown in. Gives outcome and log."""
    call = prepare("e", "k" if profile != "walker" else mint_key("uuid4"), "u", b"{}", profile=profile)
    state, log = State(can_rerun), []
    steps = walk.walk(call, state)
    script = {name: list(results) for name, results in script.items()}
    result, error = None, None
    while True:
        try:
            command = steps.throw(error) if error is not None else steps.send(result)
        except StopIteration as done:
            return done.value, log
        except Exception as raised:
            raised.log = log
            raise
        name = type(command).__name__
        if isinstance(command, Query):
            name = "Leave" if "semel.leave" in command.sql else "Enter"
        log.append(name if not isinstance(command, End) else ("Discard" if command.discard else "End"))
        result, error = None, None
        if isinstance(command, Sleep):
            log[-1] = ("Sleep", command.seconds)
        queue = script.get(name)
        if isinstance(command, Take) and not queue:
            result = place
        elif queue:
            result = queue.pop(0) if len(queue) > 1 else queue[0]
            if isinstance(result, Exception):
                result, error = None, result


GOOD = {
    "Enter": [row("execute", now=0)],
    "Handle": [Answer(201, [], b"done")],
    "Leave": [{"verdict": "settled", "fence": "7-0"}],
}


def test_the_usual_way_is_enter_handler_leave_commit():
    outcome, log = drive(GOOD)
    assert log == ["Take", "Begin", "Enter", "Handle", "Flush", "Leave", "Commit", "End"]
    assert (outcome.status, outcome.body, outcome.replayed, outcome.fence) == (201, b"done", False, "7-0")


def test_every_verdict_but_execute_ends_the_transaction_before_anything_else():
    slugs = {
        "mismatch": "fingerprint-mismatch",
        "not-kept": "answer-not-kept",
        "unknown": "outcome-unknown",
        "sealed": "key-sealed",
        "credential-changed": "credential-changed",
        "too-old": "too-old",
        "stale": "superseded",
        "first-sent-in-future": "first-sent-in-future",
    }
    for verdict, slug in slugs.items():
        with pytest.raises(Problem) as caught:
            drive({"Enter": [row(verdict, status=201)]})
        assert caught.value.slug == slug
        assert caught.value.log == ["Take", "Begin", "Enter", "End"]


def test_a_verdict_that_is_not_known_runs_nothing():
    with pytest.raises(ValueError):
        drive({"Enter": [row("a verdict of the future")]})


def test_waiting_polls_from_10_ms_doubling_to_250_and_holds_no_connection():
    in_flight = [row("in-flight")] * 9
    outcome, log = drive({**GOOD, "Enter": [row("in-flight"), row("execute")], "Ask": [*in_flight, row("execute")]})
    pauses = [entry[1] for entry in log if isinstance(entry, tuple)]
    assert pauses == [0.010, 0.020, 0.040, 0.080, 0.160, 0.250, 0.250, 0.250, 0.250, 0.250]
    # Between two looks nothing is held: the transaction was ended before the first pause.
    first = log.index(("Sleep", 0.010))
    assert log[:first] == ["Take", "Begin", "Enter", "End"]
    assert outcome.status == 201


def test_waiting_ends_after_25_seconds(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(walk.time, "monotonic", lambda: now[0])
    real = walk.Sleep

    class Clocked(real):
        def __new__(cls, seconds):
            now[0] += seconds
            return real.__new__(cls, seconds)

    monkeypatch.setattr(walk, "Sleep", Clocked)
    with pytest.raises(Problem) as caught:
        drive({"Enter": [row("in-flight")], "Ask": [row("in-flight")]})
    assert caught.value.slug == "in-flight" and caught.value.retry_after == 1
    assert now[0] == pytest.approx(25.0)


def test_what_a_look_finds_while_waiting_is_answered_without_a_transaction():
    found = row("replay", status=201, headers=pack([("a", b"b")]), body=b"first", guarantee="atomic", fence="3-0")
    outcome, log = drive({"Enter": [row("in-flight")], "Ask": [found]})
    assert outcome.replayed and outcome.body == b"first"
    assert log.count("Begin") == 1


@pytest.mark.parametrize("state", ["40001", "40P01"])
@pytest.mark.parametrize("place", ["Handle", "Leave", "Commit"])
def test_serialisation_failures_run_the_handler_again(state, place):
    good = GOOD.get(place, [None])[0]
    outcome, log = drive({**GOOD, place: [Db(state), good]})
    assert log.count("Handle") == 2 and log.count("Enter") == 2
    assert outcome.status == 201


def test_serialisation_failures_have_an_end():
    with pytest.raises(Problem) as caught:
        drive({**GOOD, "Leave": [Db("40001")]})
    assert caught.value.slug == "superseded" and caught.value.log.count("Handle") == walk.RUNS_MAX


def test_a_block_is_not_run_again():
    for place in ("Handle", "Leave", "Commit"):
        with pytest.raises((Problem, Db)) as caught:
            drive({**GOOD, place: [Db("40001")]}, can_rerun=False)
        assert caught.value.log.count("Handle") == 1
        assert "End" in caught.value.log or "Discard" in caught.value.log


LOST = [Lost(), Db("08006"), Db("57P01"), Db("XX000"), RuntimeError("a hook after COMMIT")]


@pytest.mark.parametrize("error", LOST, ids=repr)
def test_a_lost_commit_is_answered_from_the_record_on_a_new_connection(error):
    mine = row("replay", status=201, headers=b"", body=b"kept", guarantee="atomic", fence="7-0")
    outcome, log = drive({**GOOD, "Commit": [error], "Enter": [row("execute"), mine]})
    place = log.index("Commit")
    assert log[place : place + 4] == ["Commit", "Discard", "Begin", "Enter"]
    assert (outcome.body, outcome.replayed) == (b"kept", False), "from the record, and it is our own"
    theirs = {**mine, "fence": "8-0", "body": b"theirs"}
    outcome, _ = drive({**GOOD, "Commit": [error], "Enter": [row("execute"), theirs]})
    assert (outcome.body, outcome.replayed) == (b"theirs", True)


def test_a_commit_that_did_not_take_effect_runs_the_handler_again():
    outcome, log = drive({**GOOD, "Commit": [Lost(), None]})
    assert log.count("Handle") == 2 and outcome.status == 201


def test_a_block_whose_commit_did_not_take_effect_says_so():
    with pytest.raises(Problem) as caught:
        drive({**GOOD, "Commit": [Lost()]}, can_rerun=False)
    assert caught.value.slug == "store-unavailable" and caught.value.log.count("Handle") == 1


def test_a_commit_that_the_database_refused_is_not_lost():
    with pytest.raises(Db):
        drive({**GOOD, "Commit": [Db("23505")]})
    for state in ("SM004", "25P02"):
        with pytest.raises(Problem) as caught:
            drive({**GOOD, "Commit": [Db(state)]})
        assert caught.value.slug == "not-settled" and caught.value.log.count("Enter") == 1


def test_an_answer_that_is_not_recorded_is_never_sent_as_a_success():
    for state in ("SM003", "SM005", "25P02", "22023"):
        with pytest.raises(Problem) as caught:
            drive({**GOOD, "Leave": [Db(state)]})
        assert caught.value.slug == "not-settled"
        assert ("stands without a record" in caught.value.detail) is (state == "SM003")
        assert "Commit" not in caught.value.log and caught.value.log[-1] == "Discard"


def test_a_savepoint_that_is_still_open_is_inside_of_the_transaction():
    error = Db("SM003")
    error.args = ("semel.leave inside a savepoint is refused",)
    with pytest.raises(Problem) as caught:
        drive({**GOOD, "Leave": [error]})
    assert "rolled back" in caught.value.detail


def test_a_connection_lost_before_commit_says_store_unavailable():
    for place in ("Begin", "Enter", "Leave"):
        with pytest.raises(Problem) as caught:
            drive({**GOOD, place: [Lost()]})
        assert caught.value.slug == "store-unavailable" and "Commit" not in caught.value.log
    with pytest.raises(Problem) as caught:
        drive({**GOOD, "Handle": [Db("25P03")]})
    assert caught.value.slug == "store-unavailable"


def test_a_handlers_own_error_goes_on_after_a_rollback():
    with pytest.raises(KeyError) as caught:
        drive({**GOOD, "Handle": [KeyError("bug")]})
    assert caught.value.log[-1] == "End" and "Commit" not in caught.value.log


def test_a_database_without_the_functions_says_what_to_do():
    with pytest.raises(RuntimeError, match="semel migrate"):
        drive({**GOOD, "Enter": [Db("42883")]})
    with pytest.raises(RuntimeError, match="semel_library"):
        drive({**GOOD, "Enter": [Db("42501")]})


def test_a_record_that_came_while_waiting_for_the_turn_is_read_without_a_lock():
    found = row("replay", status=200, headers=b"", body=b"x", guarantee="atomic", fence="1-0")
    outcome, log = drive({"Ask": [found]}, place=AGAIN)
    assert log == ["Take", "Ask"] and outcome.replayed


def test_a_waiter_that_has_gone_never_claims():
    call = prepare("e", "k", "u")
    state = State(True)
    steps = walk.walk(call, state)
    assert isinstance(next(steps), Take)
    state.is_gone = True
    with pytest.raises(walk.Gone):
        steps.send(MINE)


def test_a_new_key_is_charged_after_the_look_and_before_the_transaction():
    admitted = {"verdict": "admitted", "retry_after_ms": None, "remaining": 5}
    _, log = drive({**GOOD, "Ask": [row("execute", now=0), admitted]}, "feed")
    assert log[:5] == ["Take", "Ask", "Ask", "Begin", "Enter"]
    limited = {"verdict": "admission-limited", "retry_after_ms": 1500, "remaining": 0}
    with pytest.raises(Problem) as caught:
        drive({**GOOD, "Ask": [row("execute", now=0), limited]}, "feed")
    assert (caught.value.slug, caught.value.retry_after) == ("admission-limited", 2)
    assert "Begin" not in caught.value.log


def test_connection_errors_of_every_driver_are_known():
    import asyncpg
    import psycopg
    import psycopg_pool
    import sqlalchemy.exc

    away = [
        psycopg.OperationalError("the connection is closed"),
        psycopg_pool.PoolTimeout("no connection"),
        asyncpg.ConnectionDoesNotExistError("closed in the middle of operation"),
        asyncpg.InterfaceError("connection is closed"),
        ConnectionResetError(),
        TimeoutError(),
        sqlalchemy.exc.OperationalError("COMMIT", {}, psycopg.OperationalError("gone")),
        sqlalchemy.exc.TimeoutError("QueuePool limit"),
    ]
    for error in away:
        failure = failure_of(error)
        assert failure is not None and failure.is_away, repr(error)
    wrapped = sqlalchemy.exc.DBAPIError("x", {}, psycopg.errors.SerializationFailure())
    assert failure_of(wrapped).is_retryable
    assert failure_of(KeyError("x")) is None


# ------------------------------------------------------------------------------------------------------------- answers


def test_packed_headers_keep_order_repetition_and_any_bytes():
    headers = [("x-a", b"1"), ("x-b", b"\x00\xff\n"), ("x-a", b""), ("x-a", b"2" * 70000)]
    assert unpack(pack(headers)) == headers
    assert pack([("ab", b"xyz")]) == b"\x00\x02ab\x00\x00\x00\x03xyz"
    assert unpack(b"") == []
    with pytest.raises(Exception):
        unpack(pack(headers)[:-1])


def test_what_belongs_to_one_person_connection_or_moment_is_not_kept():
    headers = [("Set-Cookie", b"a"), ("X-Hop", b"1"), ("Connection", b"close, X-Hop"), ("Semel-Fence", b"1"), ("Vary", b"a")]
    assert filter_headers(headers) == [("vary", b"a")]


def test_a_duplicate_keeps_the_spelling_of_the_first_answer():
    mesh = PRESETS["mesh"]
    assert replay(mesh, Answer(201, (), b'{"b": 1.0, "a":2}'), False)[::2] == (200, b'{"b": 1.0, "a":2,"duplicate":true}')
    assert replay(mesh, Answer(201, (), b"{}"), False).body == b'{"duplicate":true}'
    assert replay(mesh, Answer(201, (), b'{"duplicate":false}'), False).body == b'{"duplicate":false}'
    assert replay(mesh, Answer(201, (), b"[1]"), False).body == b"[1]"
    unknown = replay(mesh, Answer(500, (), b"{}"), True)
    assert (unknown.status, unknown.body, unknown.header("semel-outcome")) == (500, b"{}", "unknown")


def test_minted_keys_have_their_formats():
    assert format_accepts("uuid4-lower", mint_key("uuid4"))
    assert format_accepts("ulid", mint_key("ulid"))
    assert format_accepts("token255", mint_key("uuid4-ms"))


def test_former_names_and_rotation_are_told_to_the_database():
    from semel.identity import Caller, scope_of

    caller = Caller.hashed("authorization", b"Bearer x")
    key = mint_key("uuid4")
    call = prepare(Route("new", was=("old",)), key, caller, b"{}")
    (former,) = call.options["formers"]
    assert former["scope"] == scope_of(None, caller.principal, "old").hex()
    assert len(former["fingerprints"][0]) == 66 and former["fingerprints"][0][:2] == "01"
    assert former["rotation"] != call.options["rotation"] and len(call.options["rotation"]) == 32
    assert "rotation" not in prepare("new", key, "alice").options


def test_shared_callers_need_random_keys():
    from semel.identity import Caller

    with pytest.raises(Problem, match="guessed"):
        prepare("e", "order-1", Caller.shared("all"))


# --------------------------------------------------------------------------------------------------------------- turns


def soon():
    return time.monotonic() + 20


def test_one_thread_has_the_turn_and_the_next_gets_it_when_nothing_was_recorded():
    place = Turns()
    assert place.take(b"k", soon()) == MINE
    assert place.take(b"other", soon()) == MINE
    assert place.take(b"k", time.monotonic()) == LATE
    got = []
    waiters = [threading.Thread(target=lambda: got.append(place.take(b"k", soon()))) for _ in range(3)]
    for waiter in waiters:
        waiter.start()
    until(lambda: place._places[b"k"].waiting == 3)
    place.give(b"k", False)
    until(lambda: got == [MINE])
    assert place._places[b"k"].waiting == 2, "the others go on waiting"
    place.give(b"k", True)
    for waiter in waiters:
        waiter.join(20)
    assert got == [MINE, AGAIN, AGAIN]
    place.give(b"other", False)
    assert place._places == {} and place._waiting == 0


def until(is_so):
    end = soon()
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.002)


def test_turns_of_tasks_are_the_same():
    async def check():
        place = AsyncTurns()
        assert await place.take(b"k", soon()) == MINE
        assert await place.take(b"k", time.monotonic()) == LATE
        waiters = [asyncio.ensure_future(place.take(b"k", soon())) for _ in range(3)]
        await asyncio.sleep(0)
        place.give(b"k", False)
        assert await waiters[0] == MINE
        assert not waiters[1].done()
        place.give(b"k", True)
        assert [await waiter for waiter in waiters[1:]] == [AGAIN, AGAIN]
        assert place._places == {} and place._waiting == 0
        assert await place.take(b"k", soon()) == MINE
        assert await place.take(b"k", time.monotonic() + 0.02) == LATE

    asyncio.run(check())


def test_a_task_that_is_cancelled_hands_its_turn_on():
    async def check():
        place = AsyncTurns()
        await place.take(b"k", soon())
        first, second = (asyncio.ensure_future(place.take(b"k", soon())) for _ in range(2))
        await asyncio.sleep(0)
        place.give(b"k", False)
        first.cancel()
        assert await asyncio.wait_for(second, 20) == MINE

    asyncio.run(check())


def test_waiters_are_bounded(monkeypatch):
    monkeypatch.setattr(turns, "WAITERS_PER_KEY_MAX", 0)
    place = Turns()
    place.take(b"k", soon())
    with pytest.raises(Problem) as caught:
        place.take(b"k", soon())
    assert caught.value.slug == "too-many-waiters"


def test_a_child_process_begins_without_the_turns_of_its_parent():
    import os

    place = turns.of_threads()
    assert place.take(b"fork", soon()) == MINE
    child = os.fork()
    if child == 0:
        os._exit(0 if turns.of_threads().take(b"fork", time.monotonic()) == MINE else 1)
    assert os.waitpid(child, 0)[1] == 0
    place.give(b"fork", False)
