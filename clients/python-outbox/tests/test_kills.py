"""Processes that die while they send: nothing that was accepted is lost, nothing is doubled behind a gate, and order is kept."""

import os
import pathlib
import random
import re
import subprocess
import sys
import time

from support import Gate

from semel_outbox import Outbox

LONG, FAST = os.environ.get("SEMEL_TEST_LONG") == "1", os.environ.get("SEMEL_TEST_FAST") == "1"
KILLS = int(os.environ.get("SEMEL_TEST_KILLS", 200 if LONG else 3 if FAST else 10))
CHILD = pathlib.Path(__file__).with_name("child.py")


def test_a_killed_process_loses_nothing_and_doubles_nothing(tmp_path):
    seed = int(os.environ.get("SEMEL_TEST_SEED", time.time_ns()))
    print(f"seed {seed}")
    chance = random.Random(seed)
    path = tmp_path / "outbox.db"
    accepted = []
    with Gate() as gate:
        for run in range(KILLS):
            accepted += killed(path, gate.url, run, chance)
        with Outbox(path, base_url=gate.url, max_age_millis=3_600_000) as outbox:
            deadline = time.monotonic() + 300
            while any(lane.depth for lane in outbox.lanes()):
                assert time.monotonic() < deadline, outbox.lanes()
                outbox.kick()
                time.sleep(0.05)
        effects = list(gate.effects)
    assert len(effects) == len(set(effects)), "nothing is doubled"
    assert set(accepted) - set(effects) == set(), "nothing is lost"
    # Of the one that was being accepted as its process died nobody was told: it is there once, or not at all.
    following = {f"run-{run}-{sum(id.startswith(f'run-{run}-') for id in accepted)}" for run in range(KILLS)}
    assert set(effects) - set(accepted) - following == set(), "nothing else is there"
    for lane in range(3):
        numbers = [tuple(map(int, id.split("-")[1:])) for id in effects]
        of_lane = [(run, number) for run, number in numbers if number % 3 == lane]
        assert of_lane == sorted(of_lane), f"lane {lane} keeps its order"
    assert len(accepted) > KILLS, "the processes got to work"
    print(f"kills {KILLS}, accepted {len(accepted)}, effects {len(effects)}, sent again {gate.replays}")


def killed(path, url, run, chance):
    """What a process had accepted when it was killed."""
    child = subprocess.Popen([sys.executable, CHILD, path, url, str(run)], stdout=subprocess.PIPE, text=True)
    said, until = [], 1 + chance.randrange(60)
    while len(said) < until:
        line = child.stdout.readline()
        assert line, "the process ended by itself"
        said.append(line)
    time.sleep(chance.random() * 0.03)
    child.kill()
    said += child.stdout.readlines()
    child.wait()
    # A line that was cut off by the kill is another id.
    return [line.strip() for line in said if re.fullmatch(rf"run-{run}-\d+\n", line)]
