"""An independent reference for the rules of spec/contract.md, in Python 3.11.

It was written from the text of the contract alone, and shares nothing with the Rust code. It is meant to be read:
clear before fast. Where the contract can be read in more than one way, a comment that begins with "Reading:" says
which reading is taken here.

Other people's work does what a published standard defines: `rfc8785` canonicalises JSON, `http_sf` parses structured
fields, and Python's own `json`, `hashlib`, `hmac`, `uuid` and `datetime` do the rest.
"""

from __future__ import annotations

import datetime
import hashlib
import hmac
import ipaddress
import json
import re
import unicodedata
from fractions import Fraction

import http_sf
import rfc8785


class Problem(Exception):
    """One of the contract's problems, by its slug."""

    def __init__(self, slug: str):
        super().__init__(slug)
        self.slug = slug


class NotJson(Exception):
    """The bytes are not JSON in the contract's sense."""


# --------------------------------------------------------------------------------------------------------------- JSON

MAX_LEVELS = 127
MAX_INTEGER = 2**53


def parse_json(data: bytes, names_once: bool = False) -> tuple[object, bool]:
    """The document and whether it may be canonicalised; NotJson where it does not parse.

    Every number becomes a float. It may not be canonicalised when an object has two members of one name or an integer
    literal lies beyond 2^53. With names_once, a repeated member name is NotJson, since readers disagree on which counts.
    """
    canonical = True

    def integer(literal: str) -> float:
        nonlocal canonical
        value = fraction(literal)
        # More than 17 digits are beyond 2^53 in any case (JSON has no leading zeros).
        if len(literal.lstrip("-")) > 17 or abs(int(literal)) > MAX_INTEGER:
            canonical = False
        return value

    def fraction(literal: str) -> float:
        value = float(literal)
        if value in (float("inf"), float("-inf")):
            raise NotJson("a number beyond the range of a double")
        return value

    def constant(literal: str) -> None:
        raise NotJson(f"{literal} is not JSON")

    def members(pairs: list[tuple[str, object]]) -> dict[str, object]:
        nonlocal canonical
        document = dict(pairs)
        if len(document) != len(pairs):
            canonical = False
            if names_once:
                raise NotJson("a member name is repeated")
        return document

    try:
        text = data.decode("utf-8", errors="strict")
        # A byte order mark is not in the grammar of RFC 8259; Python's json refuses it in a text.
        document = json.loads(
            text, parse_int=integer, parse_float=fraction, parse_constant=constant, object_pairs_hook=members
        )
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError and JSONDecodeError are ValueErrors
        raise NotJson(str(error)) from None
    # Python's json leaves unpaired surrogates in; and the pairs hook hides them behind a later member of the same
    # name, so they are looked for in the text's own strings as well.
    if levels(document) > MAX_LEVELS or text_levels(text) > MAX_LEVELS:
        raise NotJson("too many levels")
    if has_unpaired_surrogate(document) or text_has_unpaired_surrogate(text):
        raise NotJson("an unpaired surrogate")
    return document, canonical


def levels(document: object) -> int:
    """How deeply arrays and objects are nested: `1` has 0 levels, `[]` has 1, `[{}]` has 2."""
    deepest, stack = 0, [(document, 0)]
    while stack:
        value, depth = stack.pop()
        if isinstance(value, (list, dict)):
            depth += 1
            stack.extend((child, depth) for child in (value.values() if isinstance(value, dict) else value))
        deepest = max(deepest, depth)
    return deepest


STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)


def text_levels(text: str) -> int:
    """The same, counted in a text that is known to be JSON."""
    depth = deepest = 0
    for mark in STRING.sub("", text):
        if mark in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif mark in "]}":
            depth -= 1
    return deepest


def has_surrogate(text: str) -> bool:
    return any(0xD800 <= ord(character) <= 0xDFFF for character in text)


def has_unpaired_surrogate(document: object) -> bool:
    stack = [document]
    while stack:
        value = stack.pop()
        if isinstance(value, str) and has_surrogate(value):
            return True
        if isinstance(value, list):
            stack.extend(value)
        if isinstance(value, dict):
            stack.extend(value.keys())
            stack.extend(value.values())
    return False


def text_has_unpaired_surrogate(text: str) -> bool:
    return any(has_surrogate(json.loads(literal)) for literal in STRING.findall(text))


# ----------------------------------------------------------------------------------------------------- JSON pointers

INDEX = re.compile(r"0|[1-9][0-9]*")


def pointer_tokens(pointer: str) -> list[str]:
    """The reference tokens of an RFC 6901 pointer."""
    if pointer == "":
        return []
    if not pointer.startswith("/"):
        raise ValueError(f"not a JSON pointer: {pointer}")
    return [token.replace("~1", "/").replace("~0", "~") for token in pointer[1:].split("/")]


def step(document: object, token: str) -> tuple[bool, object]:
    if isinstance(document, dict) and token in document:
        return True, document[token]
    if isinstance(document, list) and INDEX.fullmatch(token) and int(token) < len(document):
        return True, document[int(token)]
    return False, None


def resolve(document: object, pointer: str) -> tuple[bool, object]:
    """Whether the pointer addresses something, and what."""
    for token in pointer_tokens(pointer):
        found, document = step(document, token)
        if not found:
            return False, None
    return True, document


def apply_pointers(document: object, exclude: list[str], include: list[str]) -> object:
    for pointer in exclude:
        *way, last = pointer_tokens(pointer)  # "" addresses no member and no element: the contract has no rule for it
        parent, found = document, True
        for token in way:
            found, parent = step(parent, token)
            if not found:
                break
        if not found or not step(parent, last)[0]:
            continue
        if isinstance(parent, dict):
            del parent[last]
        else:
            parent[int(last)] = None
    if include:
        pairs = []
        for pointer in sorted(include, key=lambda text: text.encode("utf-8")):
            found, value = resolve(document, pointer)
            if found:
                pairs.append([pointer, value])
        document = pairs
    return document


# ----------------------------------------------------------------------------------------------------------------- Key

UUID = re.compile(r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}")
UUID4_LOWER = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
TOKEN255 = re.compile(r"[A-Za-z0-9_-]{1,255}")
PRINTABLE255 = re.compile(r"[ -~]{1,255}")
ULID = re.compile(r"[0-7][0-9A-HJKMNP-TV-Za-hjkmnp-tv-z]{25}")


def format_accepts(name: str, key: str) -> bool:
    if key == "" or any(unicodedata.category(character) == "Cc" for character in key):
        return False
    if name == "uuid4-lower":
        return UUID4_LOWER.fullmatch(key) is not None
    if name == "uuid":
        return UUID.fullmatch(key) is not None
    if name == "token255":
        return TOKEN255.fullmatch(key) is not None
    if name == "printable255":
        return PRINTABLE255.fullmatch(key) is not None
    if name == "any255":
        return len(key) <= 255
    if name == "ulid":
        return ULID.fullmatch(key) is not None
    if name.startswith("regex:"):
        return len(key) <= 255 and re.fullmatch(name[len("regex:"):], key) is not None
    raise ValueError(f"no such format: {name}")


def structured_string(value: bytes) -> bytes:
    """The String of an RFC 8941 Item, its parameters ignored."""
    try:
        item, _parameters = http_sf.parse(value, tltype="item")
    except http_sf.StructuredFieldError:
        raise Problem("key-invalid") from None
    if type(item) is not str:  # Token and DisplayString are other types
        raise Problem("key-invalid")
    return item.encode("ascii")


def header_key(value: bytes, syntax: str) -> tuple[bytes, str]:
    """The unquoted key of a header value, and the syntax it was read by."""
    value = value.strip(b" \t")  # Reading: the white space of HTTP, which is space and tab (RFC 9110, 5.6.3)
    if syntax == "sf-string" or (syntax == "both" and value.startswith(b'"')):
        return structured_string(value), "sf-string"
    return value, "bare"


def read_key(policy: dict, headers: list[tuple[str, bytes]], body: bytes) -> dict:
    """What a request's key is: {"key", "source", "syntax"}, or {"key": None} where it is not keyed."""
    found: list[tuple[bytes, str, str]] = []

    lines = {}
    for source in policy["sources"]:
        kind, _, name = source.partition(":")
        if kind == "header":
            lines[source] = [value for line, value in headers if line.lower() == name.lower()]
            if len(lines[source]) > 1:
                raise Problem("key-ambiguous")
    header_gave_key = any(lines.values())

    document, is_json = None, True
    if any(source.startswith("json:") for source in policy["sources"]):
        try:
            document, _canonical = parse_json(body, names_once=True)
        except NotJson:
            is_json = False
            # Also where the key is optional. A body that is empty has no key in it, and that is all.
            if body and not header_gave_key:
                raise Problem("body-not-json") from None

    for source in policy["sources"]:
        kind, _, name = source.partition(":")
        if kind == "header":
            for value in lines[source]:
                key, syntax = header_key(value, policy["syntax"])
                found.append((key, source, syntax))
        elif is_json:
            there, value = resolve(document, name)
            if there:
                if not isinstance(value, str):
                    raise Problem("key-invalid")
                found.append((value.encode("utf-8"), source, "bare"))

    if not found:
        if policy["presence"] == "required":
            raise Problem("key-missing")
        return {"key": None}
    if len({key for key, _source, _syntax in found}) > 1:
        raise Problem("key-ambiguous")
    key_bytes, source, syntax = found[0]
    try:
        key = key_bytes.decode("utf-8", errors="strict")
    except UnicodeDecodeError:
        raise Problem("key-invalid") from None
    if not format_accepts(policy["format"], key):
        raise Problem("key-invalid")
    if policy["shared"] and UUID4_LOWER.fullmatch(key.lower()) is None:
        raise Problem("key-too-weak")
    return {"key": key, "source": source, "syntax": syntax}


# ------------------------------------------------------------------------------------------------- Identity and scope


def lp(content: bytes) -> bytes:
    return len(content).to_bytes(8, "big") + content


def host_of(text: str) -> str:
    name, colon, port = text.rpartition(":")
    if colon and port.isascii() and port.isdigit() and (":" not in name or name.endswith("]")):
        text = name
    text = text.removesuffix(".").lower()
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    if bare == "localhost":
        return ""
    try:
        ipaddress.ip_address(bare)
    except ValueError:
        return text
    return ""


def scope(tenant: str | None, principal: str | None, endpoint: str | None, host: str | None = None) -> str:
    message = lp(b"semel.scope.1")
    host = None if host is None else host_of(host)
    for letter, part in ((b"t", tenant), (b"p", principal), (b"e", endpoint), (b"h", host)):
        if part is not None:  # Reading: an empty text is a value; only an absent one has none
            message += letter + lp(part.encode("utf-8"))
    return hashlib.sha256(message).hexdigest()


def principal_of(identity: str, credential: str) -> str:
    """The principal of `authorization` and `cookie:NAME`."""
    return identity + ":" + hashlib.sha256(credential.encode("utf-8")).hexdigest()


# --------------------------------------------------------------------------------------------------------- Fingerprint

INPUTS = ["method", "route", "params", "query", "principal", "body"]
LETTERS = {"method": b"m", "route": b"r", "params": b"p", "query": b"q", "principal": b"s", "body": b"b"}
FORMS = {"none": b"n", "json": b"j", "raw": b"r"}


def content_type_is_json(content_type: str | None) -> bool:
    if content_type is None:
        return True
    essence = content_type.split(";")[0].strip(" \t").lower()
    return essence == "application/json" or essence.endswith("+json")


def body_form(content_type: str | None, body: bytes, exclude: list[str], include: list[str]) -> tuple[str, bytes]:
    """The form of a body (`none`, `json` or `raw`) and its content, after the pointers."""
    if body == b"":
        return "none", b""
    if content_type_is_json(content_type):
        try:
            document, canonical = parse_json(body)
        except NotJson:
            canonical = False
        if canonical:
            return "json", rfc8785.dumps(apply_pointers(document, exclude, include))
    if exclude or include:
        raise Problem("body-not-json")
    return "raw", body


def fingerprint(request: dict, body: bytes) -> dict:
    """{"form", "canonical", "fingerprint", "payload_hash"} of a request in the shape of vectors/fingerprints.json."""
    form, content = body_form(request["content_type"], body, request["exclude"], request["include"])
    inputs = [name for name in INPUTS if name in request["inputs"]]
    if inputs == ["body"]:
        message = content
    else:
        contents = {
            "method": request["method"].encode(),
            "route": request["route"].encode(),
            "params": b"".join(lp(name.encode()) + lp(value.encode()) for name, value in request["params"]),
            "query": request["query"].encode(),
            "body": FORMS[form] + content,
        }
        if "principal" in inputs:  # the contract has no rule for an absent principal here
            contents["principal"] = request["principal"].encode()
        message = lp(b"semel.fingerprint.1") + b"".join(LETTERS[name] + lp(contents[name]) for name in inputs)
    if request["secret_hex"] is None:
        digest = hashlib.sha256(message).hexdigest()
    else:
        digest = hmac.new(bytes.fromhex(request["secret_hex"]), message, hashlib.sha256).hexdigest()
    return {
        "form": form,
        "canonical": content.decode("utf-8") if form == "json" else None,
        "fingerprint": digest,
        "payload_hash": hashlib.sha256(content).hexdigest(),
    }


# ------------------------------------------------------------------------------------------------------------ Decision


def standing(record: dict | None, now: int) -> str:
    if record is None:
        return "absent"
    state = record["state"]
    if state == "unknown":
        return "unknown"
    if state == "claimed":
        if record["lease_until"] > now:
            return "claimed"
        return "abandoned" if record["guarantee"] == "atomic" else "unknown"
    # Reading: a record without an `expires_at` does not expire.
    if record["expires_at"] is not None and record["expires_at"] <= now:
        return "expired"
    return state


def decide(
    standing: str, same: bool, in_flight: str, on_unknown: str, failed_key: str, mismatch: str, too_old: bool
) -> str:
    same = same or mismatch == "ignore"
    if standing == "absent":
        decision = "execute:new"
    elif standing == "expired":
        decision = "execute:take-over"
    elif standing == "sealed":
        decision = "refuse:key-sealed"
    elif not same:
        decision = "refuse:fingerprint-mismatch"
    elif standing == "claimed":
        decision = {"wait": "wait", "reject": "refuse:in-flight", "accepted": "accepted"}[in_flight]
    elif standing == "abandoned":
        decision = "execute:supersede"
    elif standing == "settled":
        decision = "replay"
    elif standing == "unkept":
        decision = "refuse:answer-not-kept"
    elif standing == "released":
        decision = {"reclaim": "execute:reclaim", "sealed": "refuse:key-sealed"}[failed_key]
    elif standing == "unknown":
        decision = {
            "hold": "refuse:outcome-unknown", "probe": "probe", "forward": "execute:forward", "rerun": "execute:rerun"
        }[on_unknown]
    else:
        raise ValueError(standing)
    if too_old and decision.startswith("execute:"):
        # What was run once already may have had its effect: too late to run it again, and nobody knows.
        ran = decision in ("execute:forward", "execute:rerun")
        decision = "refuse:outcome-unknown" if ran else "refuse:too-old"
    return decision


def age(first_sent: int | None, retry_window_ms: int, now: int) -> str:
    # Reading: an arrival that does not say when it was first sent is not too old by this rule.
    if first_sent is not None and now - first_sent > retry_window_ms:
        return "too-old"
    return "in-time"


# ---------------------------------------------------------------------------------------------------- What is recorded

IETF_RELEASE = {401, 403, 408, 409, 425, 429, 503}


def rule(profile: str, status: int) -> str | None:
    """The profile's rule for a status: `settle`, `release` or none."""
    if 200 <= status <= 399:
        return "settle"
    if 400 <= status <= 499:
        if profile in ("walker", "feed", "mesh"):
            return "release"
        return "release" if status in IETF_RELEASE else "settle"
    if 500 <= status <= 599:
        return "release" if status in IETF_RELEASE else None
    raise ValueError(status)


def disposition(profile: str, guarantee: str, on_error: str, on_unknown: str, event: str | dict) -> str:
    atomic = guarantee == "atomic"
    if event == "not-sent":
        return "release"
    if event == "cut-off":
        return "release" if atomic else "unknown"
    status, outcome = event["status"], event["outcome"]
    if outcome == "applied":
        # An effect that was not committed with its record is not atomic, whatever the handler says.
        return "not-settled" if atomic else "settle"
    if outcome == "not-applied":
        return "release"
    ruled = rule(profile, status)
    if 200 <= status <= 399 and ruled == "settle":
        return "not-settled" if atomic else "settle"
    if atomic and 500 <= status <= 599:
        return "release"
    if ruled is not None:
        return ruled
    if on_error == "release":
        return "release"
    return {"hold": "settle-unknown", "probe": "unknown", "forward": "release", "rerun": "release"}[on_unknown]


# ---------------------------------------------------------------------------------------------------------------- Time

DATE_TIME = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt ]([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]+))?"
    r"(?:[Zz]|([+-])([0-9]{2}):([0-9]{2}))"
)
EPOCH_DAY = datetime.date(1970, 1, 1).toordinal()


def timestamp(text: str) -> int | None:
    """An RFC 3339 date-time in milliseconds since 1970, or None."""
    match = DATE_TIME.fullmatch(text)
    if match is None:
        return None
    year, month, day, hour, minute, second = (int(match[group]) for group in range(1, 7))
    if hour > 23 or minute > 59 or second > 60:
        return None
    try:
        days = datetime.date(year, month, day).toordinal() - EPOCH_DAY
    except ValueError:
        return None
    millisecond = int(((match[7] or "") + "000")[:3])
    offset = 0
    if match[8]:
        if int(match[9]) > 23 or int(match[10]) > 59:
            return None
        offset = (int(match[9]) * 60 + int(match[10])) * (1 if match[8] == "+" else -1)
    # A second of 60 needs no case of its own: 60 seconds are the first of the next minute.
    instant = (((days * 24 + hour) * 60 + minute - offset) * 60 + second) * 1000 + millisecond
    first = (datetime.date(1, 1, 1).toordinal() - EPOCH_DAY) * 86_400_000
    last = (datetime.date(9999, 12, 31).toordinal() + 1 - EPOCH_DAY) * 86_400_000 - 1
    return instant if first <= instant <= last else None


# ----------------------------------------------------------------------------------------------------------- Staleness

DAY, HOUR = 86_400_000, 3_600_000


def staleness(guard: dict, generated_at: int, submitted_at: int | None, now: int) -> dict:
    cap, grace = guard["cap_ms"], guard["grace_ms"]
    if submitted_at is not None:
        # Reading: the options are looked at before the age, the gap with `generated_at` as it was sent.
        if guard["submitted_gap_ms"] is not None and submitted_at - generated_at > guard["submitted_gap_ms"]:
            return {"verdict": "invalid"}
        off = abs(now - submitted_at) > grace
        if guard["submitted"] == "refuse" and (off or generated_at > submitted_at + grace):
            return {"verdict": "invalid"}
        if guard["submitted"] == "correct" and off:
            generated_at += now - submitted_at
    age = now - generated_at
    if age > cap + grace:
        return {"verdict": "stale", "age_days": age // DAY, "cap_days": cap // DAY, "grace_hours": grace // HOUR}
    if age < -grace:
        return {"verdict": "future", "grace_hours": grace // HOUR}
    return {"verdict": "fresh"}


# ------------------------------------------------------------------------------------------------------------ Schedule


def nominal(schedule: dict, n: int) -> Fraction:
    cap, value, factor = (Fraction(str(schedule[name])) for name in ("cap_ms", "base_ms", "factor"))
    if factor == 1 or value == 0:
        return min(cap, value)
    for _ in range(n - 1):
        if value >= cap:
            break
        value *= factor
    return min(cap, value)


def delay(schedule: dict, n: int, u: float) -> int:
    """In exact arithmetic, cut down to whole milliseconds."""
    wait, draw, jitter = nominal(schedule, n), Fraction(str(u)), schedule["jitter"]
    if jitter == "full":
        wait *= draw
    elif jitter != "none":
        ratio = Fraction(str(jitter["ratio"]))
        wait = min(Fraction(schedule["cap_ms"]), wait * (1 - ratio + 2 * ratio * draw))
    return int(wait)


def next_attempt(schedule: dict, progress: dict, cause: str | dict, u: float) -> dict:
    if isinstance(cause, dict):
        result = {"after_ms": min(max(cause["told_ms"], schedule["base_ms"]), DAY)}
    elif cause == "blocked":
        result = {"after_ms": schedule["blocked_ms"]}
    elif schedule["max_attempts"] is not None and progress["attempts"] >= schedule["max_attempts"]:
        return {"give_up": "attempts"}
    else:
        wait = delay(schedule, progress["attempts_in_burst"], u)
        attempts, budget = schedule["burst_attempts"], schedule["burst_budget_ms"]
        if (attempts is not None and progress["attempts_in_burst"] >= attempts) or (
            budget is not None and progress["burst_elapsed_ms"] + wait > budget
        ):
            result = {"period_ms": schedule["period_ms"]}
        else:
            result = {"after_ms": wait}
    (wait,) = result.values()
    if schedule["max_age_ms"] is not None and progress["age_ms"] + wait > schedule["max_age_ms"]:
        return {"give_up": "age"}
    return result


# ------------------------------------------------------------------------------------------------------ Classification

WAITING = [
    "in-flight", "too-many-waiters", "outcome-unknown", "superseded", "idempotency-in-flight"
]
SPENT = [
    "fingerprint-mismatch", "key-sealed", "credential-changed", "answer-not-kept", "idempotency-conflict",
    "idempotency-key-reused",
]
ANY = None
SUCCESS, AUTH, RETRY, RETRY_AFTER, REBUILD = ("success",), ("auth",), ("retry",), ("retry-after",), ("rebuild",)
REJECTED = ("dead", "rejected")
OK, SERVER = range(200, 300), range(500, 600)

# For each profile the rules in order: statuses, codes (ANY for any or none), result.
IETF_RULES = [
    (OK, ANY, SUCCESS), ([401], ANY, AUTH), ([408, 425, 429, 503], ANY, RETRY_AFTER), ([409], WAITING, RETRY_AFTER),
    (SERVER, ANY, RETRY),
]
ANY_409 = [([409], SPENT, REJECTED), ([409], ANY, RETRY_AFTER)]
RULES = {
    "ietf": IETF_RULES,
    "stripe": ANY_409 + IETF_RULES,
    "agents": ANY_409 + IETF_RULES,
    "walker": [
        (OK, ANY, SUCCESS),
        ([409], ["idempotency-conflict"], ("drop", "idempotency-conflict")),
        ([409], ["already-allocated", "quest-already-completed", "quest-already-in-progress"], SUCCESS),
        ([409], WAITING, RETRY_AFTER),
        ([422], ["stale-action"], ("drop", "stale-action")),
        ([422], ["prerequisites-not-met"], ("drop", "prereq-slipped")),
        ([422], ["insufficient-points"], ("drop", "points-changed")),
        ([422], ["step-out-of-order", "ordering-violation"], REBUILD),
        ([422], ANY, ("retry", None, 1, {"class": "drop", "reason": "unknown-422"})),
        ([400], ANY, ("drop", "bad-request")),
        ([401], ANY, AUTH),
        ([408, 425, 429, 503], ANY, RETRY_AFTER),
        (SERVER, ANY, RETRY),
    ],
    "scores": [
        (OK, ANY, SUCCESS), ([401], ANY, AUTH), ([409], SPENT, REJECTED), ([408, 409, 425, 429, 503], ANY, RETRY_AFTER),
        (SERVER, ANY, RETRY),
    ],
    "feed": [
        (OK, ANY, SUCCESS), ([401], ANY, AUTH), ([409], SPENT, REJECTED), ([409], ANY, RETRY_AFTER),
        ([422], ANY, ("dead", "conflicting-payload")),
        ([408, 425, 429, 503], ANY, RETRY_AFTER), (SERVER, ANY, RETRY),
    ],
    "mesh": [
        (OK, ANY, SUCCESS), ([401], ANY, AUTH), ([403], ["identity-refused"], AUTH),
        ([403], ANY, ("retry", None, 3, {"class": "dead", "reason": "forbidden"})),
        ([408, 425, 429, 503], ANY, RETRY_AFTER), ([409], WAITING, RETRY_AFTER), (SERVER, ANY, RETRY),
    ],
}


def spelling(code: str) -> str:
    return code.lower().replace("_", "-")


def classify(profile: str, status: int | None, code: str | None) -> dict:
    result = RETRY if status is None else REJECTED
    for statuses, codes, answer in RULES[profile]:
        if status in statuses and (codes is ANY or (code is not None and spelling(code) in codes)):
            result = answer
            break
    padded = result + (None,) * (4 - len(result))
    return dict(zip(("class", "reason", "max", "then"), padded))


def code_of(body: bytes) -> str | None:
    """The code in an answer's body, in its own spelling."""
    try:
        document, _canonical = parse_json(body)
    except NotJson:
        return None
    if not isinstance(document, dict):
        return None
    kind = document.get("type")
    if isinstance(kind, str) and kind != "about:blank":
        return re.split("[:/]", kind)[-1]
    if isinstance(document.get("code"), str):
        return document["code"]
    error = document.get("error")
    if isinstance(error, str):
        return error
    if isinstance(error, dict) and isinstance(error.get("code"), str):
        return error["code"]
    return None
