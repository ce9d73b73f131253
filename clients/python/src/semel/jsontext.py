"""Reads JSON as the contract does, and writes it in the one form that is fingerprinted (RFC 8785).

Refuses what two readers could understand differently: repeated member names and integers beyond 2^53 stay raw.
"""

from __future__ import annotations

import json
import re
from typing import Any, List, Sequence, Tuple

LEVELS_MAX = 127
INTEGER_MAX = 2**53

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_INDEX = re.compile(r"0|[1-9][0-9]*")
_SURROGATE = re.compile("[\ud800-\udfff]")


class NotJson(ValueError):
    """The bytes are not JSON in the contract's sense."""


def parse(data: bytes, names_once: bool = False) -> Tuple[Any, bool]:
    """The document, every number a float, and whether it may be canonicalised.

    With `names_once` a repeated member name is not JSON, since readers disagree on which one counts.
    """
    canonical = True
    repeated = False

    def integer(literal: str) -> float:
        nonlocal canonical
        # More than 17 digits are beyond 2^53 in any case: JSON has no leading zeros.
        if len(literal.lstrip("-")) > 17 or abs(int(literal)) > INTEGER_MAX:
            canonical = False
        return fraction(literal)

    def fraction(literal: str) -> float:
        value = float(literal)
        if value in (float("inf"), float("-inf")):
            raise NotJson("a number beyond the range of a double")
        return value

    def constant(literal: str) -> None:
        raise NotJson(f"{literal} is not JSON")

    def members(pairs: List[Tuple[str, Any]]) -> dict:
        nonlocal canonical, repeated
        document = dict(pairs)
        if len(document) != len(pairs):
            canonical, repeated = False, True
        return document

    try:
        text = data.decode("utf-8")
        document = json.loads(
            text, parse_int=integer, parse_float=fraction, parse_constant=constant, object_pairs_hook=members
        )
    except (ValueError, RecursionError) as error:
        raise NotJson(str(error)) from None
    if repeated and names_once:
        raise NotJson("a member name is repeated")
    # A later member of the same name hides the earlier one, so its content is looked at in the text.
    deepest = _text_levels(text) if repeated else _levels(document)
    if deepest > LEVELS_MAX:
        raise NotJson("too many levels")
    if "\\u" in text and any(_SURROGATE.search(json.loads(literal)) for literal in _STRING.findall(text)):
        raise NotJson("an unpaired surrogate")
    return document, canonical


def _levels(document: Any) -> int:
    deepest, stack = 0, [(document, 0)]
    while stack:
        value, depth = stack.pop()
        if isinstance(value, (list, dict)):
            depth += 1
            stack.extend((child, depth) for child in (value.values() if isinstance(value, dict) else value))
        deepest = max(deepest, depth)
    return deepest


def _text_levels(text: str) -> int:
    depth = deepest = 0
    for mark in _STRING.sub("", text):
        if mark in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif mark in "]}":
            depth -= 1
    return deepest


def canonical_bytes(document: Any) -> bytes:
    """The document by RFC 8785. It came from `parse`, so its numbers are floats and its texts have no lone surrogates."""
    pieces: List[str] = []
    _write(document, pieces)
    return "".join(pieces).encode("utf-8")


def _write(value: Any, out: List[str]) -> None:
    if value is None:
        out.append("null")
    elif value is True:
        out.append("true")
    elif value is False:
        out.append("false")
    elif isinstance(value, str):
        out.append(json.dumps(value, ensure_ascii=False))
    elif isinstance(value, (int, float)):
        out.append(_number(float(value)))
    elif isinstance(value, (list, tuple)):
        for place, child in enumerate(value):
            out.append("," if place else "[")
            _write(child, out)
        out.append("]" if value else "[]")
    else:
        names = sorted(value, key=lambda name: name.encode("utf-16-be"))
        for place, name in enumerate(names):
            out.append("," if place else "{")
            out.append(json.dumps(name, ensure_ascii=False))
            out.append(":")
            _write(value[name], out)
        out.append("}" if value else "{}")


def _number(value: float) -> str:
    """As ECMAScript writes a number. Python finds the same shortest digits and spells them differently."""
    if value == 0:
        return "0"
    sign, text = ("-", repr(-value)) if value < 0 else ("", repr(value))
    mantissa, _, exponent = text.partition("e")
    whole, _, part = mantissa.partition(".")
    part = "" if part == "0" else part
    digits = (whole + part).lstrip("0")
    # The number is 0.DIGITS times ten to this power.
    point = len(whole) + int(exponent or 0) - (len(whole + part) - len(digits))
    digits = digits.rstrip("0")
    count = len(digits)
    if count <= point <= 21:
        return sign + digits + "0" * (point - count)
    if 0 < point <= 21:
        return sign + digits[:point] + "." + digits[point:]
    if -6 < point <= 0:
        return sign + "0." + "0" * -point + digits
    power = point - 1
    rest = "." + digits[1:] if count > 1 else ""
    return f"{sign}{digits[0]}{rest}e{'+' if power > 0 else '-'}{abs(power)}"


def pointer_tokens(pointer: str) -> List[str]:
    """The parts of an RFC 6901 pointer."""
    if pointer == "":
        return []
    if not pointer.startswith("/"):
        raise ValueError(f"not a JSON pointer: {pointer!r}; it begins with /")
    return [token.replace("~1", "/").replace("~0", "~") for token in pointer[1:].split("/")]


def _step(document: Any, token: str) -> Tuple[bool, Any]:
    if isinstance(document, dict) and token in document:
        return True, document[token]
    if isinstance(document, list) and _INDEX.fullmatch(token) and int(token) < len(document):
        return True, document[int(token)]
    return False, None


def resolve(document: Any, pointer: str) -> Tuple[bool, Any]:
    """Whether a pointer addresses something, and what."""
    for token in pointer_tokens(pointer):
        found, document = _step(document, token)
        if not found:
            return False, None
    return True, document


def apply_pointers(document: Any, exclude: Sequence[str], include: Sequence[str]) -> Any:
    """The document without what `exclude` addresses, then only what `include` addresses, as pairs."""
    for pointer in exclude:
        tokens = pointer_tokens(pointer)
        found, parent = True, document
        for token in tokens[:-1]:
            found, parent = _step(parent, token)
            if not found:
                break
        if not found or not _step(parent, tokens[-1])[0]:
            continue
        if isinstance(parent, dict):
            del parent[tokens[-1]]
        else:
            parent[int(tokens[-1])] = None
    if include:
        pairs = []
        for pointer in sorted(include, key=lambda text: text.encode("utf-8")):
            found, value = resolve(document, pointer)
            if found:
                pairs.append([pointer, value])
        return pairs
    return document
