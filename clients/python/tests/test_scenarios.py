"""spec/once.json on every driver, against real PostgreSQL. Services of several drivers run at the same time."""

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

import scenarios
from places import PACKAGE
from service import DRIVERS

COMMAND = [sys.executable, str(PACKAGE / "tests" / "service.py")]


def start(postgres, driver, database=None):
    offers = () if driver == "django" else ("header-lists",)
    return scenarios.Service(postgres, COMMAND, environment={"DRIVER": driver}, database=database, offers=offers)


def run_all(postgres, driver, database=None, only=lambda scenario: True):
    """The names of the scenarios that ran, and what went wrong."""
    failures, names = [], []
    service = start(postgres, driver, database)
    try:
        for scenario in scenarios.SUITE["scenarios"]:
            if not scenarios.can_run(scenario, service) or not only(scenario):
                continue
            names.append(scenario["name"])
            try:
                scenarios.Run(scenario, service)()
            except AssertionError as error:
                failures.append(f"{driver}: {scenario['name']}: {error}")
    finally:
        service.stop()
    return names, failures


@pytest.fixture(scope="module")
def results(postgres):
    with ThreadPoolExecutor(3) as pool:
        futures = {driver: pool.submit(run_all, postgres, driver) for driver in DRIVERS}
        return {driver: future.result() for driver, future in futures.items()}


@pytest.mark.parametrize("driver", DRIVERS)
def test_every_scenario_holds(results, driver):
    names, failures = results[driver]
    assert not failures, "\n".join(failures)
    left_out = 1 if driver == "django" else 0
    assert len(names) == len(scenarios.SUITE["scenarios"]) - left_out


def test_the_runner_notices_what_is_not_so(postgres):
    """A replay that was not expected, an effect too few, a run too few."""
    scenario = {
        "name": "a lie",
        "steps": [
            {"send": {"attempts": [{"effects": ["a"], "answer": {"status": 201, "body": "ok"}}]}, "expect": {"status": 201}},
            {"send": {}, "expect": {"status": 201, "replayed": False}},
        ],
    }
    wrong = [
        {**scenario},
        {**scenario, "steps": scenario["steps"][:1], "effects": {"a": 2}},
        {**scenario, "steps": scenario["steps"][:1], "runs": 2},
    ]
    service = start(postgres, "psycopg")
    try:
        for each in wrong:
            with pytest.raises(AssertionError):
                scenarios.Run(each, service)()
    finally:
        service.stop()
