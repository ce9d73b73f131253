"""The contract's vectors: every rule that a library inside a service, or a sender, must share with all others."""

import base64
import dataclasses
import json

import pytest

from semel import classify, fingerprints, identity, outcome, staleness, times
from semel.fingerprints import Parts, Recipe
from semel.keys import KeyPolicy, is_random_uuid
from semel.problems import Problem
from semel.profiles import PRESETS
from semel.schedule import Progress, Schedule

from places import SPEC


def load(name, part="vectors"):
    return json.loads((SPEC / "vectors" / f"{name}.json").read_text())[part]


def bytes_of(vector, name="body"):
    if f"{name}_base64" in vector:
        return base64.b64decode(vector[f"{name}_base64"])
    return (vector[name] or "").encode()


def lines_of(vector):
    if "headers_base64" in vector:
        return [(name, base64.b64decode(value)) for name, value in vector["headers_base64"]]
    return [(name, value.encode()) for name, value in vector["headers"]]


def by_name(vector):
    return vector["name"]


@pytest.mark.parametrize("vector", load("keys"), ids=by_name)
def test_keys(vector):
    given = vector["policy"]
    policy = KeyPolicy(tuple(given["sources"]), given["syntax"], given["format"], given["presence"])
    try:
        found = policy.read(lines_of(vector), bytes_of(vector))
        if found is not None and given["shared"] and not is_random_uuid(found.key):
            raise Problem("key-too-weak")
        got = {"key": None} if found is None else found._asdict()
    except Problem as problem:
        got = {"problem": problem.slug}
    assert got == vector["expect"]


@pytest.mark.parametrize("vector", load("scopes"), ids=by_name)
def test_scopes(vector):
    if "identity" in vector:
        assert identity.principal_of(vector["identity"], vector["credential"].encode()) == vector["expect"]
    else:
        scope = identity.scope_of(vector["tenant"], vector["principal"], vector["endpoint"], vector.get("host"))
        assert scope.hex() == vector["expect"]


@pytest.mark.parametrize("vector", load("fingerprints"), ids=by_name)
def test_fingerprints(vector):
    recipe = Recipe(tuple(vector["inputs"]), tuple(vector["exclude"]), tuple(vector["include"]))
    params = [tuple(pair) for pair in vector["params"]]
    parts = Parts(vector["method"], vector["route"], params, vector["query"], vector["principal"] or "")
    secrets = [] if vector["secret_hex"] is None else [bytes.fromhex(vector["secret_hex"])]
    try:
        content = recipe.content(vector["content_type"], bytes_of(vector))
    except Problem as problem:
        assert {"problem": problem.slug} == vector["expect"]
        return
    first = recipe.fingerprints(parts, content, secrets)[0]
    assert first.version == (fingerprints.KEYED if secrets else fingerprints.PLAIN)
    assert vector["expect"] == {
        "form": content.form,
        "canonical": content.content.decode() if content.form == "json" else None,
        "fingerprint": first.digest.hex(),
        "payload_hash": content.payload_hash.hex(),
    }


def atomic_rows():
    return [vector for vector in load("dispositions") if vector["guarantee"] == "atomic"]


@pytest.mark.parametrize("vector", atomic_rows(), ids=by_name)
def test_what_a_handlers_answer_does_to_the_transaction(vector):
    event = vector["event"]
    if not isinstance(event, dict):
        assert vector["expect"] == "release", "a handler that raised, or was not reached, is rolled back"
        return
    profile, status = PRESETS[vector["profile"]], event["status"]
    # The library settles what it is given; `not-settled` is left to answers that cannot be settled.
    cannot_settle = status >= 500 or status in profile.released
    unsettled = outcome.NOT_SETTLED if cannot_settle else outcome.COMMIT
    expected = {"settle": outcome.COMMIT, "not-settled": unsettled, "release": outcome.ROLL_BACK}[vector["expect"]]
    assert outcome.disposition(profile, status, event["outcome"]) == expected


def test_every_profile_is_in_the_disposition_vectors():
    assert {vector["profile"] for vector in atomic_rows()} == set(PRESETS)


@pytest.mark.parametrize("vector", load("schedules"), ids=by_name)
def test_schedules(vector):
    given = dict(vector["schedule"])
    jitter = given.pop("jitter")
    jitter = jitter["ratio"] if isinstance(jitter, dict) else {"none": None, "full": "full"}[jitter]
    cause = vector["cause"]["told_ms"] if isinstance(vector["cause"], dict) else vector["cause"]
    kind, value = Schedule(jitter=jitter, **given).next(Progress(**vector["progress"]), cause, vector["u"])
    assert {{"after": "after_ms", "period": "period_ms", "give-up": "give_up"}[kind]: value} == vector["expect"]


@pytest.mark.parametrize("vector", load("classification"), ids=by_name)
def test_classification(vector):
    codes = [] if vector["code"] is None else [vector["code"]]
    found = classify.classify(vector["profile"], vector["status"], codes)
    then = found.then and {"class": found.then.name, "reason": found.then.reason}
    assert {"class": found.name, "reason": found.reason, "max": found.max, "then": then} == vector["expect"]


@pytest.mark.parametrize("vector", load("classification", "codes"), ids=by_name)
def test_codes(vector):
    assert classify.code_of(bytes_of(vector)) == vector["expect"]


@pytest.mark.parametrize("vector", load("staleness"), ids=by_name)
def test_staleness(vector):
    fields = ("cap_ms", "grace_ms", "submitted", "submitted_gap_ms")
    guard = staleness.Guard(**{name: vector[name] for name in fields})
    times_of = (vector["generated_at"], vector["submitted_at"], vector["now"])
    got = {"verdict": guard.judge(*times_of)}
    if got["verdict"] == "stale":
        got["age_days"] = guard.age_days(*times_of)
        got["cap_days"] = guard.cap_ms // times.DAY
    if got["verdict"] in ("stale", "future"):
        got["grace_hours"] = guard.grace_ms // times.HOUR
    assert got == vector["expect"]


@pytest.mark.parametrize("vector", load("timestamps"), ids=by_name)
def test_timestamps(vector):
    assert times.parse_timestamp(vector["text"]) == vector["expect_ms"]


def contract_table():
    """The table of profiles in the contract's own text, by setting and profile."""
    lines = (SPEC / "contract.md").read_text().split("## Profiles")[1].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    names = [cell.strip("`") for cell in rows[0][1:]]
    return {row[0]: dict(zip(names, (cell.replace("`", "") for cell in row[1:]))) for row in rows[1:]}


def millis(text):
    units = {"d": times.DAY, "h": times.HOUR, "m": times.MINUTE, "s": times.SECOND}
    total, number = 0, ""
    for char in text:
        if char.isdigit():
            number += char
        else:
            total, number = total + int(number) * units[char], ""
    return total


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_those_of_the_contract(name):
    table, profile = contract_table(), PRESETS[name]
    told = {setting: values[name] for setting, values in table.items()}
    assert ", ".join(profile.key.sources) == told["key source"]
    assert profile.key.syntax == told["syntax"]
    assert profile.key.format == told["format"]
    assert profile.key.presence == told["presence"]
    assert " ".join(" ".join(pair) for pair in profile.key.require_headers) == told["also required"].replace("–", "")
    assert ", ".join(profile.scope) == told["scope"]
    assert str(profile.mismatch_status) == told["mismatch"].split()[0]
    reveal = {"none": "", "prefix8": "with 8 bytes", "payload-hashes": "with payload hashes"}[profile.reveal]
    assert reveal == told["mismatch"][4:]
    assert profile.in_flight == told["in flight"].split()[0]
    assert profile.wire.form == told["error form"]
    assert profile.retry_window_ms == millis(told["retry window"])
    assert profile.skew_ms == millis(told["skew"])
    assert profile.margin_ms == millis(told["margin"])
    assert profile.lifetime_ms == millis(told["record lives"])
    assert profile.anchor == told["counted from"]
    released = set(range(400, 500)) | {503} if told["released answers"] == "4xx, 503" else None
    assert profile.released == (released or {int(status) for status in told["released answers"].split(", ")})
    assert ", ".join(profile.methods) == told["methods"]
    assert (profile.guard is None) == (told["staleness guard"] == "–")
    assert (profile.admission is None) == (told["new keys at most"] == "–")
    assert profile.generator == told["minted keys"]
    duplicate = "verbatim" if profile.duplicate_status is None else f"duplicate {profile.duplicate_status}"
    assert duplicate == told["replay"]
    assert profile.schedule.max_age_ms == millis(told["max age"])
    burst = profile.schedule.burst_attempts
    assert (burst is None) == (told["burst, then every"] == "–")
    if burst is not None:
        attempts, period = told["burst, then every"].split(", ")
        assert (burst, profile.schedule.period_ms) == (int(attempts), millis(period))


def test_problems_are_those_of_the_contract():
    from semel.problems import KINDS

    rows = (SPEC / "contract.md").read_text().split("## Problems")[1].split("## Time")[0].splitlines()
    table = {}
    for row in rows:
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        if len(cells) == 4 and cells[0].startswith("`"):
            table[cells[0].strip("`")] = (int(cells[1]), cells[2], cells[3])
    for slug, kind in KINDS.items():
        assert (kind.status, kind.retry, kind.title) == table[slug], slug
        assert (SPEC / "problems" / f"{slug}.md").exists()


def test_a_window_set_by_hand_carries_the_margin_along():
    profile = PRESETS["ietf"].with_retry_window(7 * times.DAY)
    assert profile.margin_ms == times.DAY
    assert profile.lifetime_ms == 8 * times.DAY + 10 * times.MINUTE
    assert dataclasses.replace(profile, margin_ms=0).with_retry_window(2 * times.DAY).margin_ms == 0
