"""The idempotency key: where it stands in a request, how it is written, what it may look like."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass, field
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from . import jsontext
from .problems import Problem

#: Headers by which clients everywhere send keys. A key in one of them is never ignored.
KEY_HEADERS = ("Idempotency-Key", "X-Idempotency-Key")
KEY_CHARS_MAX = 255

#: Header lines as received: a name and the value's bytes.
Lines = Sequence[Tuple[str, bytes]]

_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_UUID4_LOWER = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")

_FORMATS: Dict[str, Tuple[Callable[[str], object], str]] = {
    "uuid4-lower": (_UUID4_LOWER.fullmatch, "a version 4 UUID in lower case with dashes"),
    "uuid": (_UUID.fullmatch, "a UUID with dashes"),
    "token255": (re.compile(r"[A-Za-z0-9_-]+").fullmatch, "1 to 255 letters, digits, dashes or underscores"),
    "printable255": (re.compile(r"[ -~]+").fullmatch, "1 to 255 printable ASCII characters"),
    "any255": (lambda key: True, "1 to 255 characters without control characters"),
    "ulid": (re.compile(r"[0-7][0-9A-HJKMNP-TV-Za-hjkmnp-tv-z]{25}").fullmatch, "a ULID"),
}


def _format(name: str) -> Tuple[Callable[[str], object], str]:
    if name.startswith("regex:"):
        pattern = name[len("regex:") :]
        return re.compile(pattern).fullmatch, f"at most 255 characters matching {pattern}"
    if name not in _FORMATS:
        raise ValueError(f"unknown key format {name!r}: expected {', '.join(_FORMATS)} or regex:PATTERN")
    return _FORMATS[name]


def format_accepts(name: str, text: str) -> bool:
    """Whether a text has this format. No format lets an empty text or a control character through."""
    if not 0 < len(text) <= KEY_CHARS_MAX or any(unicodedata.category(char) == "Cc" for char in text):
        return False
    return bool(_format(name)[0](text))


def check_key(format_name: str, text: str) -> str:
    """The key, or the refusal of a text that is none."""
    if not text:
        raise Problem("key-invalid", "the key is empty")
    if not format_accepts(format_name, text):
        raise Problem("key-invalid", f"the key must be {_format(format_name)[1]}")
    return text


def is_random_uuid(key: str) -> bool:
    """Whether the key carries the 122 random bits of a version 4 UUID."""
    return _UUID4_LOWER.fullmatch(key.lower()) is not None


class Found(NamedTuple):
    """A key, with where it stood and how it was written."""

    key: str
    source: str
    syntax: str


@dataclass(frozen=True)
class KeyPolicy:
    """How keys are read on a route."""

    sources: Tuple[str, ...] = ("header:Idempotency-Key",)
    syntax: str = "both"
    format: str = "printable255"
    presence: str = "required"
    #: Headers that must come with the key and are kept with the record: name and format.
    require_headers: Tuple[Tuple[str, str], ...] = field(default=())

    def read(self, lines: Lines, body: bytes) -> Optional[Found]:
        """The key of a request; None where there is none and none is required."""
        found: List[Found] = []
        headers = [source for source in self.sources if source.startswith("header:")]
        is_unread = False
        for source in self.sources:
            kind, _, name = source.partition(":")
            if kind == "header":
                self._add(found, self._read_header(lines, name))
            elif kind == "json":
                value, is_json = _read_body(body, name)
                is_unread = is_unread or not is_json
                if value is not None:
                    self._add(found, Found(value, source, "bare"))
            else:
                raise ValueError(f"unknown key source {source!r}: expected header:NAME or json:/POINTER")
        if not headers:
            for name in KEY_HEADERS:
                self._add(found, self._read_header(lines, name))
        if found:
            check_key(self.format, found[0].key)
            return found[0]
        if is_unread:
            raise Problem("body-not-json", "the key is read from the body, which must be JSON without repeated names")
        self._refuse_missing(lines)
        return None

    def read_required(self, lines: Lines) -> List[Tuple[str, str]]:
        """The headers that must come with a key, by their names in lower case."""
        kept = []
        for name, format_name in self.require_headers:
            values = values_of(lines, name)
            if len(values) > 1:
                raise Problem("header-missing", f"{name} is given twice")
            if not values:
                raise Problem("header-missing", f"{name} is required")
            try:
                text = values[0].decode("utf-8")
            except UnicodeDecodeError:
                raise Problem("header-missing", f"{name} must be text") from None
            if not format_accepts(format_name, text):
                raise Problem("header-missing", f"{name} must be {_format(format_name)[1]}")
            kept.append((name.lower(), text))
        return kept

    def _read_header(self, lines: Lines, name: str) -> Optional[Found]:
        values = values_of(lines, name)
        if len(values) > 1:
            raise Problem("key-ambiguous", f"{name} is given on more than one line")
        if not values:
            return None
        value = values[0]
        if self.syntax == "sf-string" or (self.syntax == "both" and value.startswith(b'"')):
            return Found(_structured_string(value), f"header:{name}", "sf-string")
        try:
            return Found(value.decode("utf-8"), f"header:{name}", "bare")
        except UnicodeDecodeError:
            raise Problem("key-invalid", "the key is not UTF-8 text") from None

    @staticmethod
    def _add(found: List[Found], value: Optional[Found]) -> None:
        if value is None:
            return
        if found and found[0].key != value.key:
            raise Problem("key-ambiguous", f"{found[0].source} and {value.source} give different keys")
        found.append(value)

    def _refuse_missing(self, lines: Lines) -> None:
        names = [
            f"the {name} header" if kind == "header" else f"the body at {name}"
            for kind, _, name in (source.partition(":") for source in self.sources)
        ]
        wanted = " or ".join(names)
        for name in KEY_HEADERS:
            if values_of(lines, name):
                raise Problem("key-missing", f"{name} is not read here: send the key in {wanted}")
        if self.presence == "required":
            raise Problem("key-missing", f"send a key in {wanted}")


def values_of(lines: Lines, name: str) -> List[bytes]:
    """The values of a header, each without the white space around it."""
    wanted = name.lower()
    return [value.strip(b" \t") for line, value in lines if line.lower() == wanted]


def _read_body(body: bytes, pointer: str) -> Tuple[Optional[str], bool]:
    """The text at a pointer, and whether the body could be read. An empty body has no key in it, and that is all."""
    if not body:
        return None, True
    try:
        document, _ = jsontext.parse(body, names_once=True)
    except jsontext.NotJson:
        return None, False
    there, value = jsontext.resolve(document, pointer)
    if there and not isinstance(value, str):
        raise Problem("key-invalid", f"the key at {pointer} must be a string")
    return (value if there else None), True


# An RFC 8941 Item whose bare item is a String, and its parameters, which are ignored.
_SF_STRING = r'"(?:[ !#-\[\]-~]|\\["\\])*"'
_SF_ITEM = "|".join(
    (
        r"-?[0-9]{1,12}\.[0-9]{1,3}(?![0-9.])",
        r"-?[0-9]{1,15}(?![0-9.])",
        _SF_STRING,
        r"[A-Za-z*][A-Za-z0-9!#$%&'*+.^_`|~:/-]*",
        r":[A-Za-z0-9+/=]*:",
        r"\?[01]",
    )
)
_SF = re.compile(rf"({_SF_STRING})(?:; *[a-z*][a-z0-9_.*-]*(?:=(?:{_SF_ITEM}))?)*")


def _structured_string(value: bytes) -> str:
    try:
        match = _SF.fullmatch(value.decode("ascii"))
    except UnicodeDecodeError:
        match = None
    if match is None:
        raise Problem("key-invalid", "the key is not an RFC 8941 string: it must be in double quotes")
    return re.sub(r"\\(.)", r"\1", match[1][1:-1])
