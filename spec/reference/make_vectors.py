"""Writes spec/vectors/*.json: `python make_vectors.py`. With --check it compares instead and exits 1 on a difference.

Inputs are listed here by hand. Expected values come from published standards, from third-party libraries and from
semel_reference.py; wherever a row below gives an expectation of its own (from the standard or from reading the
contract), the two must agree or nothing is written. The Rust code never writes a vector.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import itertools
import json
import math
import pathlib
import re
import struct
import sys
import uuid

import http_sf

sys.dont_write_bytecode = True
import semel_reference as semel

VECTORS = pathlib.Path(__file__).resolve().parent.parent / "vectors"
REFERENCE = "spec/contract.md by spec/reference/semel_reference.py"
HTTP_SF = f"http_sf {http_sf.__version__} (Python)"
SF_STRING = f"RFC 8941 section 4.2.5, by {HTTP_SF}"
SF_PARAMETERS = f"RFC 8941 section 4.2.3.2, by {HTTP_SF}"
JCS = "canonical text by rfc8785 0.1.4 (Python), SHA-256 by Python hashlib, rules by spec/reference/semel_reference.py"
RAW = "SHA-256 by Python hashlib over the bytes, rules by spec/reference/semel_reference.py"


def reading(text: str, source: str = REFERENCE) -> str:
    return f"{source}; reading: {text}"


def agree(name: str, got: object, want: object) -> None:
    if got != want:
        raise SystemExit(f"{name}: the reference says {got!r}, the list says {want!r}")


# ---------------------------------------------------------------------------------------------------------------- keys

KEY = "Idempotency-Key"
H = "header:Idempotency-Key"
U4 = "9f0b3c52-6c1d-4e0a-8b7e-2f4d5a6c7e81"
keys: list[dict] = []


def key(name, want, header=None, *, headers=None, body=None, syntax="both", format="printable255", sources=(H,),
        presence="required", shared=False, source=REFERENCE):
    """`want` is a key read bare, a (key, source, syntax) triple, None for not keyed, or "!slug" for a problem."""
    if headers is None:
        headers = [] if header is None else [(KEY, header)]
    policy = {"sources": list(sources), "syntax": syntax, "format": format, "presence": presence, "shared": shared}
    lines = [(line, value if isinstance(value, bytes) else value.encode("utf-8")) for line, value in headers]
    try:
        expect = semel.read_key(policy, lines, (body or "").encode("utf-8"))
    except semel.Problem as problem:
        expect = {"problem": problem.slug}
    if want is None:
        wanted = {"key": None}
    elif isinstance(want, tuple):
        wanted = dict(zip(("key", "source", "syntax"), want))
    elif want.startswith("!"):
        wanted = {"problem": want[1:]}
    else:
        wanted = {"key": want, "source": sources[0], "syntax": "bare"}
    agree(f"keys: {name}", expect, wanted)
    if format in ("uuid", "uuid4-lower") and "key" in expect:
        agree(f"keys: {name} (uuid)", str(uuid.UUID(expect["key"])), expect["key"].lower())
        if format == "uuid4-lower":
            agree(f"keys: {name} (version)", uuid.UUID(expect["key"]).version, 4)
    vector = {"name": name, "source": source, "policy": policy}
    try:
        vector["headers"] = [[line, value.decode("utf-8")] for line, value in lines]
    except UnicodeDecodeError:
        vector["headers_base64"] = [[line, base64.b64encode(value).decode()] for line, value in lines]
    vector |= {"body": body, "expect": expect}
    keys.append(vector)


def sf(text, source=H):
    return (text, source, "sf-string")


def make_keys():
    # -- bare, sf-string and both
    key("bare value under both", "abc", "abc")
    key("quoted value under both", sf("abc"), '"abc"', source=SF_STRING)
    key("bare value under bare", "abc", "abc", syntax="bare")
    key("quotes stay under bare", '"abc"', '"abc"', syntax="bare")
    key("unbalanced quote stays under bare", '"abc', '"abc', syntax="bare")
    key("backslash stays under bare", 'a\\"b', 'a\\"b', syntax="bare")
    key("parameters stay under bare", "abc;a=1", "abc;a=1", syntax="bare")
    key("parameters stay on a bare value under both", "abc;a=1", "abc;a=1")
    key("comma stays in a bare value", "abc, def", "abc, def")
    key("single quotes are bare under both", "'abc'", "'abc'")
    key("quoted value under sf-string", sf("abc"), '"abc"', syntax="sf-string", source=SF_STRING)
    key("spaces around a bare value", "abc", "  abc \t")
    key("spaces around a quoted value", sf("abc"), ' \t "abc"  ')
    key("tabs around a quoted value under sf-string", sf("abc"), '\t"abc"\t', syntax="sf-string")
    key("space inside a bare value stays", "a b", "a b")
    key("spaces inside the quotes stay", sf(" abc "), '" abc "', source=SF_STRING)
    key("case is kept", "AbC", "AbC")
    # -- RFC 8941 strings
    for syntax in ("sf-string", "both"):
        way = {"syntax": syntax, "source": SF_STRING}
        key(f"escaped quote, {syntax}", sf('a"b'), '"a\\"b"', **way)
        key(f"escaped backslash, {syntax}", sf("a\\b"), '"a\\\\b"', **way)
        key(f"escaped backslash before the closing quote, {syntax}", sf("a\\"), '"a\\\\"', **way)
        key(f"only an escaped quote, {syntax}", sf('"'), '"\\""', **way)
        key(f"bad escape, {syntax}", "!key-invalid", '"a\\nb"', **way)
        key(f"bad escape of a space, {syntax}", "!key-invalid", '"a\\ b"', **way)
        key(f"unicode escape is no escape, {syntax}", "!key-invalid", '"\\u0061"', **way)
        key(f"unterminated, {syntax}", "!key-invalid", '"abc', **way)
        key(f"a lone quote, {syntax}", "!key-invalid", '"', **way)
        key(f"ends in a backslash, {syntax}", "!key-invalid", '"abc\\', **way)
        key(f"closing quote is escaped, {syntax}", "!key-invalid", '"abc\\"', **way)
        key(f"tab inside the string, {syntax}", "!key-invalid", '"a\tb"', **way)
        key(f"control character inside the string, {syntax}", "!key-invalid", '"a\x01b"', **way)
        key(f"DEL inside the string, {syntax}", "!key-invalid", '"a\x7fb"', **way)
        key(f"non-ASCII inside the string, {syntax}", "!key-invalid", '"\u00e9"', format="any255", **way)
        key(f"not UTF-8 inside the string, {syntax}", "!key-invalid", b'"a\xffb"', format="any255", **way)
        key(f"empty string, {syntax}", "!key-invalid", '""', **way)
        key(f"garbage after the string, {syntax}", "!key-invalid", '"abc"x', **way)
        key(f"two strings, {syntax}", "!key-invalid", '"abc" "def"', **way)
        key(f"a list of strings, {syntax}", "!key-invalid", '"abc", "def"', **way)
        key(f"a list of one with a comma, {syntax}", "!key-invalid", '"abc",', **way)
        way["source"] = SF_PARAMETERS
        key(f"parameter without a value, {syntax}", sf("abc"), '"abc";a', **way)
        key(f"parameters of every type, {syntax}", sf("abc"), '"abc";a=1;b=-1.5;c="x;y";d=tok;e=:aGk=:;f=?0', **way)
        key(f"space after the semicolon, {syntax}", sf("abc"), '"abc";  a=1; b=2', **way)
        key(f"parameter twice, {syntax}", sf("abc"), '"abc";a=1;a=2', **way)
        key(f"parameter name with a star, {syntax}", sf("abc"), '"abc";*a_b-c.d*=1', **way)
        key(f"space before the semicolon, {syntax}", "!key-invalid", '"abc" ;a=1', **way)
        key(f"semicolon and nothing, {syntax}", "!key-invalid", '"abc";', **way)
        key(f"upper-case parameter, {syntax}", "!key-invalid", '"abc";A=1', **way)
        key(f"parameter begins with a digit, {syntax}", "!key-invalid", '"abc";1a', **way)
        key(f"parameter without its value, {syntax}", "!key-invalid", '"abc";a=', **way)
        key(f"parameter with a bad string, {syntax}", "!key-invalid", '"abc";a="x', **way)
        key(f"parameter with a list, {syntax}", "!key-invalid", '"abc";a=(1)', **way)
        key(f"tab after the semicolon, {syntax}", "!key-invalid", '"abc";\ta=1', **way)
        key(f"integer parameter of 16 digits, {syntax}", "!key-invalid", '"abc";a=1234567890123456', **way)
    item = {"syntax": "sf-string", "source": f"RFC 8941 section 4.2.3, by {HTTP_SF}"}
    key("token under sf-string", "!key-invalid", "abc", **item)
    key("integer under sf-string", "!key-invalid", "42", **item)
    key("decimal under sf-string", "!key-invalid", "4.5", **item)
    key("byte sequence under sf-string", "!key-invalid", ":aGVsbG8=:", **item)
    key("boolean under sf-string", "!key-invalid", "?1", **item)
    key("inner list under sf-string", "!key-invalid", '("abc")', **item)
    key("dictionary under sf-string", "!key-invalid", 'a="b"', **item)
    key("single quotes under sf-string", "!key-invalid", "'abc'", **item)
    key("uuid without quotes under sf-string", "!key-invalid", U4, format="uuid", **item)
    key("empty value under sf-string", "!key-invalid", "", **item)
    key("byte sequence is bare under both", ":aGVsbG8=:", ":aGVsbG8=:")
    key("integer is bare under both", "42", "42")
    # -- formats
    key("empty value under bare", "!key-invalid", "", syntax="bare")
    key("only spaces under bare", "!key-invalid", "   ", syntax="bare")
    key("empty value, optional", "!key-invalid", "", presence="optional")
    for name, one, bad in (("token255", "a", " "), ("printable255", "~", "\u00e9"), ("any255", "\U0001f600", "\x01")):
        key(f"{name} of 1", one, one, format=name, syntax="bare")
        key(f"{name} of 255", one * 255, one * 255, format=name, syntax="bare")
        key(f"{name} of 256", "!key-invalid", one * 256, format=name, syntax="bare")
        key(f"{name} with a character it has not", "!key-invalid", f"a{bad}b", format=name, syntax="bare")
        key(f"{name} of none", "!key-invalid", "", format=name, syntax="bare")
    key("255 inside quotes", sf("x" * 255), '"' + "x" * 255 + '"')
    key("256 inside quotes", "!key-invalid", '"' + "x" * 256 + '"')
    key("255 after unescaping", sf('"' * 255), '"' + '\\"' * 255 + '"', source=SF_STRING)
    key("printable255 begins at the space", sf(" "), '" "')
    key("printable255 has every printable character",
        ("".join(map(chr, range(0x21, 0x7F))), H, "bare"), "".join(map(chr, range(0x21, 0x7F))), syntax="bare")
    key("printable255 with a tab inside", "!key-invalid", "a\tb", syntax="bare")
    key("printable255 with DEL", "!key-invalid", "a\x7fb", syntax="bare")
    key("printable255 with bytes that are not UTF-8", "!key-invalid", b"a\xffb", syntax="bare")
    token = {"format": "token255", "syntax": "bare"}
    key("token255 has dash and underscore", "a-Z_09", "a-Z_09", **token)
    for mark in ".+/=~:,\"":
        key(f"token255 has no {mark}", "!key-invalid", f"a{mark}b", **token)
    key("token255 with a letter that is not ASCII", "!key-invalid", "\u00e4bc", **token)
    key("token255 with a digit that is not ASCII", "!key-invalid", "\u0661", **token)
    anything = {"format": "any255", "syntax": "bare"}
    key("any255 with umlauts", "schl\u00fcssel", "schl\u00fcssel", **anything)
    key("any255 of 255 two-byte characters", "\u00e9" * 255, "\u00e9" * 255, **anything)
    key("any255 of 256 two-byte characters", "!key-invalid", "\u00e9" * 256, **anything)
    key("any255 counts characters and not graphemes", "!key-invalid", "e\u0301" * 128, **anything)
    key("any255 with a C1 control", "!key-invalid", "a\u0085b", **anything)
    key("any255 ends its controls at U+009F", "!key-invalid", "a\u009fb", **anything)
    key("any255 with U+00A0", "a\u00a0b", "a\u00a0b", **anything)
    key("any255 with DEL", "!key-invalid", "a\x7fb", **anything)
    key("any255 with a tab inside", "!key-invalid", "a\tb", **anything)
    key("any255 with a zero-width space (Cf)", "a\u200bb", "a\u200bb", **anything)
    key("any255 is not normalised", "e\u0301", "e\u0301", **anything)
    key("any255 with bytes that are not UTF-8", "!key-invalid", b"a\xffb", **anything)
    key("any255 with truncated UTF-8", "!key-invalid", b"a\xc3", **anything)
    key("any255 with overlong UTF-8", "!key-invalid", b"a\xc0\xafb", **anything)
    key("any255 with an encoded surrogate", "!key-invalid", b"a\xed\xa0\x80b", **anything)
    key("only space and tab are white space around a value", "\u00a0abc\u00a0", "\u00a0abc\u00a0",
        source=reading("white space around a header value is RFC 9110's OWS, space and tab"), **anything)
    lower = {"format": "uuid4-lower", "source": f"{REFERENCE}; accepted ones checked with Python uuid"}
    key("uuid4-lower", U4, U4, **lower)
    key("uuid4-lower, the example of RFC 9562", "919108f7-52d1-4320-9bac-f847db4148a8",
        "919108f7-52d1-4320-9bac-f847db4148a8",
        **lower | {"source": "RFC 9562 appendix A.3, in lower case, checked with Python uuid"})
    key("uuid4-lower in quotes", sf(U4), f'"{U4}"', **lower)
    for nibble in "89ab":
        text = U4[:19] + nibble + U4[20:]
        key(f"uuid4-lower variant {nibble}", text, text, **lower)
    for nibble in "7cdef":
        key(f"uuid4-lower variant {nibble}", "!key-invalid", U4[:19] + nibble + U4[20:], **lower)
    for nibble in "1357f":
        key(f"uuid4-lower version {nibble}", "!key-invalid", U4[:14] + nibble + U4[15:], **lower)
    key("uuid4-lower in upper case", "!key-invalid", U4.upper(), **lower)
    key("uuid4-lower with one capital", "!key-invalid", U4.replace("f", "F", 1), **lower)
    key("uuid4-lower with a capital variant", "!key-invalid", U4[:19] + "A" + U4[20:], **lower)
    key("uuid4-lower of 35", "!key-invalid", U4[:-1], **lower)
    key("uuid4-lower of 37", "!key-invalid", U4 + "0", **lower)
    key("uuid4-lower with a digit that is no hex digit", "!key-invalid", U4[:-1] + "g", **lower)
    key("uuid4-lower without dashes", "!key-invalid", U4.replace("-", ""), **lower)
    key("uuid4-lower with a dash moved", "!key-invalid", "9f0b3c5-26c1d-4e0a-8b7e-2f4d5a6c7e81", **lower)
    key("uuid4-lower in braces", "!key-invalid", "{" + U4 + "}", **lower)
    key("uuid4-lower as a URN", "!key-invalid", "urn:uuid:" + U4, **lower)
    key("uuid4-lower and a comma", "!key-invalid", U4 + ",", **lower)
    any_uuid = {"format": "uuid", "source": f"{REFERENCE}; accepted ones checked with Python uuid"}
    key("uuid in lower case", U4, U4, **any_uuid)
    key("uuid in upper case", U4.upper(), U4.upper(), **any_uuid)
    key("uuid in mixed case", U4.replace("f", "F", 1), U4.replace("f", "F", 1), **any_uuid)
    key("uuid of version 1", "c232ab00-9414-11ec-b3c8-9f6bdeced846", "c232ab00-9414-11ec-b3c8-9f6bdeced846",
        **any_uuid | {"source": "RFC 9562 appendix A.1, in lower case, checked with Python uuid"})
    key("uuid of version 7", "017F22E2-79B0-7CC3-98C4-DC0C0C07398F", "017F22E2-79B0-7CC3-98C4-DC0C0C07398F",
        **any_uuid | {"source": "RFC 9562 appendix A.6, checked with Python uuid"})
    key("uuid nil", "00000000-0000-0000-0000-000000000000", "00000000-0000-0000-0000-000000000000", **any_uuid)
    key("uuid max", "ffffffff-ffff-ffff-ffff-ffffffffffff", "ffffffff-ffff-ffff-ffff-ffffffffffff", **any_uuid)
    key("uuid without dashes", "!key-invalid", U4.replace("-", ""), **any_uuid)
    key("uuid with underscores", "!key-invalid", U4.replace("-", "_"), **any_uuid)
    key("uuid of 35", "!key-invalid", U4[:-1], **any_uuid)
    key("uuid of 37", "!key-invalid", U4 + "0", **any_uuid)
    key("uuid with g", "!key-invalid", "g" + U4[1:], **any_uuid)
    key("uuid with digits that are not ASCII", "!key-invalid", "\u0661" + U4[1:], **any_uuid)
    ulid = {"format": "ulid"}
    key("ulid", "01ARZ3NDEKTSV4RRFFQ69G5FAV", "01ARZ3NDEKTSV4RRFFQ69G5FAV", **ulid)
    key("ulid in lower case", "01arz3ndektsv4rrffq69g5fav", "01arz3ndektsv4rrffq69g5fav", **ulid)
    key("ulid at its greatest", "7" + "Z" * 25, "7" + "Z" * 25, **ulid)
    key("ulid beyond its greatest", "!key-invalid", "8" + "0" * 25, **ulid)
    key("ulid of zeros", "0" * 26, "0" * 26, **ulid)
    key("ulid of 25", "!key-invalid", "0" * 25, **ulid)
    key("ulid of 27", "!key-invalid", "0" * 27, **ulid)
    for letter in "ILOUilou":
        key(f"ulid with {letter}", "!key-invalid", "0" * 25 + letter, **ulid)
    key("ulid with a dash", "!key-invalid", "0" * 25 + "-", **ulid)
    key("regex of the whole key", "order-17", "order-17", format="regex:order-[0-9]+")
    key("regex with something before", "!key-invalid", "an-order-17", format="regex:order-[0-9]+")
    key("regex with something after", "!key-invalid", "order-17x", format="regex:order-[0-9]+")
    key("regex with alternatives is anchored as a whole", "ab", "ab", format="regex:a|ab")
    key("regex with alternatives and something after", "!key-invalid", "abc", format="regex:a|ab")
    key("regex alternative in the middle is anchored too", "!key-invalid", "xb", format="regex:a|b")
    key("regex that takes 255", "a" * 255, "a" * 255, format="regex:a+")
    key("regex that would take 256", "!key-invalid", "a" * 256, format="regex:a+")
    key("regex that takes the empty key", "!key-invalid", '""', format="regex:a*")
    key("regex with anchors of its own", "abc", "abc", format="regex:^[a-c]+$")
    key("regex is case-sensitive", "!key-invalid", "ABC", format="regex:[a-c]+")
    key("regex on the unquoted key", sf("abc"), '"abc"', format="regex:[a-c]+")
    # -- lines, names and sources
    key("two equal lines", "!key-ambiguous", headers=[(KEY, "abc"), (KEY, "abc")])
    key("two different lines", "!key-ambiguous", headers=[(KEY, "abc"), (KEY, "def")])
    key("two lines in other case", "!key-ambiguous", headers=[(KEY, "abc"), ("idempotency-key", "abc")])
    key("two lines, optional", "!key-ambiguous", headers=[(KEY, "abc"), (KEY, "abc")], presence="optional")
    key("two lines, quoted and bare", "!key-ambiguous", headers=[(KEY, '"abc"'), (KEY, "abc")])
    key("two lines, one of them empty", "!key-ambiguous", headers=[(KEY, "abc"), (KEY, "")])
    key("name in lower case", "abc", headers=[("idempotency-key", "abc")])
    key("name in upper case", "abc", headers=[("IDEMPOTENCY-KEY", "abc")])
    key("policy name in lower case", ("abc", "header:idempotency-key", "bare"), headers=[(KEY, "abc")],
        sources=["header:idempotency-key"])
    key("other headers do not matter", "abc",
        headers=[("X-Idempotency-Key", "other"), (KEY, "abc"), ("Idempotency-Key-2", "other")])
    key("no header, required", "!key-missing")
    key("no header, optional", None, presence="optional")
    key("only another header, required", "!key-missing", headers=[("X-Idempotency-Key", "abc")])
    two = [H, "header:X-Idempotency-Key"]
    key("two sources agree", "abc", headers=[(KEY, "abc"), ("X-Idempotency-Key", "abc")], sources=two)
    key("two sources agree, lines in the other order", "abc", headers=[("X-Idempotency-Key", "abc"), (KEY, "abc")],
        sources=two)
    key("two sources disagree", "!key-ambiguous", headers=[(KEY, "abc"), ("X-Idempotency-Key", "abd")], sources=two)
    key("two sources disagree in case", "!key-ambiguous", headers=[(KEY, "abc"), ("X-Idempotency-Key", "ABC")],
        sources=two)
    key("two sources, quoted and bare, are one key", sf("abc"), headers=[(KEY, '"abc"'), ("X-Idempotency-Key", "abc")],
        sources=two)
    key("only the second source", ("abc", two[1], "bare"), headers=[("X-Idempotency-Key", "abc")], sources=two)
    key("second source doubled", "!key-ambiguous",
        headers=[(KEY, "abc"), ("X-Idempotency-Key", "abc"), ("X-Idempotency-Key", "abc")], sources=two)
    key("none of two sources, required", "!key-missing", sources=two)
    key("none of two sources, optional", None, sources=two, presence="optional")
    # -- JSON sources
    J = "json:/client_message_id"
    key("json source", ("m-1", J, "bare"), body='{"client_message_id":"m-1","text":"hi"}', sources=[J])
    key("json source with escapes in the text", ("m-1", J, "bare"), body='{"client_message_id":"\\u006d-1"}', sources=[J])
    key("json source is taken as it stands", ('"m-1"', J, "bare"), body='{"client_message_id":"\\"m-1\\""}', sources=[J])
    key("json source keeps its spaces", (" m ", J, "bare"), body='{"client_message_id":" m "}', sources=[J])
    key("json source ignores the header syntax", ("m-1", J, "bare"), body='{"client_message_id":"m-1"}', sources=[J],
        syntax="sf-string")
    key("json source, nested", ("k", "json:/a/b", "bare"), body='{"a":{"b":"k"}}', sources=["json:/a/b"])
    key("json source, array index", ("k1", "json:/a/1", "bare"), body='{"a":["k0","k1"]}', sources=["json:/a/1"])
    key("json source, array at the top", ("k0", "json:/0", "bare"), body='["k0"]', sources=["json:/0"])
    key("json source, index with a leading zero", "!key-missing", body='{"a":["k0","k1"]}', sources=["json:/a/01"],
        source=f"RFC 6901 section 4; {REFERENCE}")
    key("json source, index past the end", "!key-missing", body='{"a":["k0"]}', sources=["json:/a/1"])
    key("json source, index -", "!key-missing", body='{"a":["k0"]}', sources=["json:/a/-"],
        source=f"RFC 6901 section 4; {REFERENCE}")
    key("json source, number as a member name", ("k", "json:/0", "bare"), body='{"0":"k"}', sources=["json:/0"])
    key("json source, ~1", ("k", "json:/a~1b", "bare"), body='{"a/b":"k","a":{"b":"no"}}', sources=["json:/a~1b"],
        source=f"RFC 6901 section 5; {REFERENCE}")
    key("json source, ~0", ("k", "json:/m~0n", "bare"), body='{"m~n":"k"}', sources=["json:/m~0n"],
        source=f"RFC 6901 section 5; {REFERENCE}")
    key("json source, ~01 is ~1", ("k", "json:/~01", "bare"), body='{"~1":"k","/":"no"}', sources=["json:/~01"],
        source=f"RFC 6901 section 4; {REFERENCE}")
    key("json source, empty member name", ("k", "json:/", "bare"), body='{"":"k"}', sources=["json:/"],
        source=f"RFC 6901 section 5; {REFERENCE}")
    key("json source, member name with a space", ("k", "json:/ ", "bare"), body='{" ":"k"}', sources=["json:/ "],
        source=f"RFC 6901 section 5; {REFERENCE}")
    key("json source, missing, required", "!key-missing", body='{"text":"hi"}', sources=[J])
    key("json source, missing, optional", None, body='{"text":"hi"}', sources=[J], presence="optional")
    key("json source, name in other case is another name", "!key-missing", body='{"Client_Message_Id":"m"}', sources=[J])
    key("json source, through a text", "!key-missing", body='{"a":"b"}', sources=["json:/a/b"])
    key("json source, document is a number", "!key-missing", body="7", sources=[J])
    for what, text in (("number", "7"), ("true", "true"), ("null", "null"), ("object", "{}"), ("array", '["m"]')):
        key(f"json source is a {what}", "!key-invalid", body='{"client_message_id":' + text + "}", sources=[J])
    key("json source is a number, optional", "!key-invalid", body='{"client_message_id":7}', sources=[J],
        presence="optional")
    key("json source is empty", "!key-invalid", body='{"client_message_id":""}', sources=[J])
    key("json source of 256", "!key-invalid", body='{"client_message_id":"' + "x" * 256 + '"}', sources=[J])
    key("json source with a control character", "!key-invalid", body='{"client_message_id":"a\\u0000b"}', sources=[J],
        format="any255")
    key("json source with an emoji, any255", ("\U0001f600", J, "bare"), body='{"client_message_id":"\\ud83d\\ude00"}',
        sources=[J], format="any255")
    key("json source, body is not JSON", "!body-not-json", body="client_message_id=m-1", sources=[J])
    key("json source, body is truncated JSON", "!body-not-json", body='{"client_message_id":"m-1"', sources=[J])
    key("json source, body has an unpaired surrogate", "!body-not-json", body='{"client_message_id":"\\ud800"}',
        sources=[J])
    key("a pattern lets no control character through", "!key-invalid", body='{"client_message_id":"a\\u0000\\nb"}', sources=[J],
        format="regex:(?s).*")
    key("json source, empty body, required", "!key-missing", body="", sources=[J])
    key("json source, no body, required", "!key-missing", body=None, sources=[J])
    key("json source, empty body, optional", None, body="", sources=[J], presence="optional")
    key("json source, the key's member is repeated", "!body-not-json", sources=[J],
        body='{"client_message_id":"m-1","client_message_id":"m-2"}')
    key("json source, another member is repeated", "!body-not-json", sources=[J],
        body='{"client_message_id":"m-1","a":1,"a":2}')
    key("json source beside an integer beyond 2^53", ("m-1", J, "bare"), sources=[J],
        body='{"client_message_id":"m-1","a":12345678901234567890}')
    key("json source, body is not JSON, optional", "!body-not-json", body="hi", sources=[J], presence="optional",
        source=reading("a JSON source is needed also where the key is optional"))
    both = [H, J]
    key("header and json agree", "m-1", "m-1", body='{"client_message_id":"m-1"}', sources=both)
    key("quoted header and json agree", sf("m-1"), '"m-1"', body='{"client_message_id":"m-1"}', sources=both)
    key("json first and header agree", ("m-1", J, "bare"), '"m-1"', body='{"client_message_id":"m-1"}', sources=[J, H])
    key("header and json disagree", "!key-ambiguous", "m-1", body='{"client_message_id":"m-2"}', sources=both)
    key("header given, json missing", "m-1", "m-1", body="{}", sources=both)
    key("header missing, json given", ("m-1", J, "bare"), body='{"client_message_id":"m-1"}', sources=both)
    key("header given, body not JSON", "m-1", "m-1", body="hello", sources=both)
    key("header given, body empty", "m-1", "m-1", body=None, sources=both)
    key("header missing, body not JSON", "!body-not-json", body="hello", sources=both)
    key("header given, json not a string", "!key-invalid", "m-1", body='{"client_message_id":7}', sources=both,
        source=reading("all sources are read, so a bad one counts although another gave the key"))
    key("two json sources agree", ("k", "json:/a", "bare"), body='{"a":"k","b":"k"}', sources=["json:/a", "json:/b"])
    key("two json sources disagree", "!key-ambiguous", body='{"a":"k","b":"l"}', sources=["json:/a", "json:/b"])
    # -- shared identities
    share = {"shared": True, "format": "any255"}
    key("shared with a uuid 4", U4, U4, **share)
    key("shared with a uuid 4 in upper case", U4.upper(), U4.upper(), **share)
    key("shared with a quoted uuid 4", sf(U4), f'"{U4}"', **share)
    key("shared with a uuid 1", "!key-too-weak", "c232ab00-9414-11ec-b3c8-9f6bdeced846", **share)
    key("shared with a uuid 7", "!key-too-weak", "017f22e2-79b0-7cc3-98c4-dc0c0c07398f", **share)
    key("shared with a nil uuid", "!key-too-weak", "00000000-0000-0000-0000-000000000000", **share)
    key("shared with a word", "!key-too-weak", "order-17", **share)
    key("shared with a ulid", "!key-too-weak", "01ARZ3NDEKTSV4RRFFQ69G5FAV", **share)
    key("shared with a version 4 of another variant", "!key-too-weak", U4[:19] + "c" + U4[20:],
        **share, source=reading("a version 4 UUID has the variant 8, 9, a or b"))
    key("shared with a malformed key", "!key-invalid", "a\x7fb", **share)
    key("shared and uuid, with a word", "!key-invalid", "order-17", shared=True, format="uuid",
        source=reading("the format is checked before the strength"))
    key("shared, key missing", "!key-missing", **share)
    key("shared, optional, key missing", None, presence="optional", **share)


# -------------------------------------------------------------------------------------------------------------- scopes

scopes: list[dict] = []


def make_scopes():
    def one(name, tenant, principal, endpoint):
        scopes.append({"name": name, "source": "SHA-256 by Python hashlib, framing by spec/reference/semel_reference.py",
                       "tenant": tenant, "principal": principal, "endpoint": endpoint,
                       "expect": semel.scope(tenant, principal, endpoint)})

    def at(name, tenant, principal, endpoint, host):
        scopes.append({"name": name, "source": "SHA-256 by Python hashlib, framing by spec/reference/semel_reference.py",
                       "tenant": tenant, "principal": principal, "endpoint": endpoint, "host": host,
                       "expect": semel.scope(tenant, principal, endpoint, host)})

    one("nothing at all", None, None, None)
    one("tenant only", "acme", None, None)
    one("principal only", None, "alice", None)
    one("endpoint only", None, None, "create-order")
    one("tenant and principal", "acme", "alice", None)
    one("tenant and endpoint", "acme", None, "create-order")
    one("principal and endpoint", None, "alice", "create-order")
    one("all three", "acme", "alice", "create-order")
    one("endpoint by method and path", "acme", "alice", "POST /orders")
    one("principal of another name", "acme", "bob", "create-order")
    one("collision pair a|bc", "a", "bc", None)
    one("collision pair ab|c", "ab", "c", None)
    one("collision pair, principal a and endpoint bc", None, "a", "bc")
    one("collision pair, principal ab and endpoint c", None, "ab", "c")
    one("empty tenant", "", "alice", None)
    one("empty principal", None, "", "create-order")
    one("empty endpoint", None, "alice", "")
    one("all three empty", "", "", "")
    one("value that looks like framing", "ap\0\0\0\0\0\0\0\1b", None, None)
    one("the same value as another part", None, "acme", None)
    one("letters as values", "t", "p", "e")
    one("umlauts", "b\u00e4cker", "\u00e9milie", "bestellung-anlegen")
    one("decomposed umlauts differ", "ba\u0308cker", "e\u0301milie", "bestellung-anlegen")
    one("beyond the basic plane", "\U0001f600", "\U00010000", "\uffff")
    one("NUL inside", "a\0b", "c\0", "\0d")
    one("NUL only", "\0", None, None)
    one("case matters", "Acme", "Alice", "Create-Order")
    one("spaces matter", " acme", "alice ", "create-order")
    one("255 bytes", "x" * 255, None, None)
    one("256 bytes", "x" * 256, None, None)
    one("authorization principal", None, semel.principal_of("authorization", "Bearer a"), "create-order")
    one("shared principal", None, "shared:public", "create-order")
    at("a host", None, "alice", "create-order", "shop.example")
    at("another host", None, "alice", "create-order", "b.example")
    at("all four", "acme", "alice", "create-order", "shop.example")
    at("an empty host", None, "alice", "create-order", "")
    expected = [vector["expect"] for vector in scopes]
    agree("scopes: no two alike", len(set(expected)), len(expected))
    for spelling in ("Shop.Example", "shop.example:443", "SHOP.EXAMPLE:80", "shop.example.", "shop.example:8080"):
        at(f"a host is the same however it is written: {spelling}", None, "alice", "create-order", spelling)
        agree("scopes: hosts", scopes[-1]["expect"], semel.scope(None, "alice", "create-order", "shop.example"))
    for spelling in ("127.0.0.1", "10.0.0.2:7400", "[::1]:7400", "::1", "localhost:7400", "LOCALHOST"):
        at(f"an address names nobody: {spelling}", None, "alice", "create-order", spelling)
        agree("scopes: addresses", scopes[-1]["expect"], semel.scope(None, "alice", "create-order", ""))
    # Once by hand, so that the framing does not rest on one function.
    by_hand = b"".join([b"\0\0\0\0\0\0\0\x0dsemel.scope.1", b"t\0\0\0\0\0\0\0\x04acme", b"p\0\0\0\0\0\0\0\x05alice",
                        b"e\0\0\0\0\0\0\0\x0ccreate-order"])
    agree("scopes: by hand", semel.scope("acme", "alice", "create-order"), hashlib.sha256(by_hand).hexdigest())

    def identity(name, identity, credential):
        scopes.append({"name": name, "source": "spec/contract.md, SHA-256 by Python hashlib", "identity": identity,
                       "credential": credential, "expect": semel.principal_of(identity, credential)})

    identity("authorization, bearer", "authorization", "Bearer a")
    identity("authorization, scheme in lower case is another", "authorization", "bearer a")
    identity("authorization, basic", "authorization", "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==")
    identity("cookie sid", "cookie:sid", "a")
    identity("cookie of another name", "cookie:session", "a")
    identity("cookie with an equals sign", "cookie:sid", "a=b==")


# -------------------------------------------------------------------------------------------------------- fingerprints

fingerprints: list[dict] = []
FULL = ["method", "route", "params", "query", "body"]
NOTHING = object()


def fp(name, body=b"", form=None, canonical=NOTHING, *, source=None, inputs=("body",), exclude=(), include=(),
       secret=None, method="POST", route="create-order", params=(), query="", principal=None,
       content_type="application/json", problem=None):
    """`form` and `canonical` are expectations of the list's own; a canonical text alone means the form `json`."""
    if isinstance(body, str):
        body = body.encode("utf-8")
    vector = {"name": name, "source": source, "inputs": list(inputs), "exclude": list(exclude),
              "include": list(include), "secret_hex": secret, "method": method, "route": route,
              "params": [list(pair) for pair in params], "query": query, "principal": principal,
              "content_type": content_type}
    try:
        vector["body"] = body.decode("utf-8")
    except UnicodeDecodeError:
        vector["body_base64"] = base64.b64encode(body).decode()
    try:
        expect = semel.fingerprint(vector, body)
    except semel.Problem as caught:
        expect = {"problem": caught.slug}
    agree(f"fingerprints: {name}", expect.get("problem"), problem)
    if canonical is not NOTHING:
        agree(f"fingerprints: {name}", expect["canonical"], canonical)
        form = form or "json"
    if form is not None:
        agree(f"fingerprints: {name}", expect["form"], form)
    if source is None:
        vector["source"] = REFERENCE if problem else RAW if expect["form"] != "json" else JCS
    if secret is not None:
        vector["source"] += "; HMAC by Python hmac"
    vector["expect"] = expect
    fingerprints.append(vector)


# RFC 8785, appendix B: the bits of a double and its text.
APPENDIX_B = """
0000000000000000 0
8000000000000000 0
0000000000000001 5e-324
8000000000000001 -5e-324
7fefffffffffffff 1.7976931348623157e+308
ffefffffffffffff -1.7976931348623157e+308
4340000000000000 9007199254740992
c340000000000000 -9007199254740992
4430000000000000 295147905179352830000
44b52d02c7e14af5 9.999999999999997e+22
44b52d02c7e14af6 1e+23
44b52d02c7e14af7 1.0000000000000001e+23
444b1ae4d6e2ef4e 999999999999999700000
444b1ae4d6e2ef4f 999999999999999900000
444b1ae4d6e2ef50 1e+21
3eb0c6f7a0b5ed8c 9.999999999999997e-7
3eb0c6f7a0b5ed8d 0.000001
41b3de4355555553 333333333.3333332
41b3de4355555554 333333333.33333325
41b3de4355555555 333333333.3333333
41b3de4355555556 333333333.3333334
41b3de4355555557 333333333.33333343
becbf647612f3696 -0.0000033333333333333333
43143ff3c1cb0959 1424953923781206.2
"""

RFC_8785_3_2_2 = (
    '{\n  "numbers": [333333333.33333329, 1E30, 4.50,\n              2e-3, 0.000000000000000000000000001],\n'
    '  "string": "\\u20ac$\\u000F\\u000aA\'\\u0042\\u0022\\u005c\\\\\\"\\/",\n  "literals": [null, true, false]\n}'
)
RFC_8785_3_2_4 = bytes.fromhex(
    "7b 22 6c 69 74 65 72 61 6c 73 22 3a 5b 6e 75 6c 6c 2c 74 72 75 65 2c 66 61 6c 73 65 5d 2c 22 6e 75 6d 62 65 72"
    "73 22 3a 5b 33 33 33 33 33 33 33 33 33 2e 33 33 33 33 33 33 33 2c 31 65 2b 33 30 2c 34 2e 35 2c 30 2e 30 30 32"
    "2c 31 65 2d 32 37 5d 2c 22 73 74 72 69 6e 67 22 3a 22 e2 82 ac 24 5c 75 30 30 30 66 5c 6e 41 27 42 5c 22 5c 5c"
    "5c 5c 5c 22 2f 22 7d"
).decode("utf-8")
RFC_8785_3_2_3 = (
    '{\n  "\\u20ac": "Euro Sign",\n  "\\r": "Carriage Return",\n  "\\ufb33": "Hebrew Letter Dalet With Dagesh",\n'
    '  "1": "One",\n  "\\ud83d\\ude00": "Emoji: Grinning Face",\n  "\\u0080": "Control",\n'
    '  "\\u00f6": "Latin Small Letter O With Diaeresis"\n}'
)
RFC_8785_3_2_3_ORDER = (
    '{"\\r":"Carriage Return","1":"One","\u0080":"Control","\u00f6":"Latin Small Letter O With Diaeresis",'
    '"\u20ac":"Euro Sign","\U0001f600":"Emoji: Grinning Face","\ufb33":"Hebrew Letter Dalet With Dagesh"}'
)


def make_fingerprints():
    sha = "; SHA-256 by Python hashlib"
    fp("RFC 8785 sample", RFC_8785_3_2_2, canonical=RFC_8785_3_2_4, source="RFC 8785 sections 3.2.2 and 3.2.4" + sha)
    fp("RFC 8785 sample, already canonical", RFC_8785_3_2_4, canonical=RFC_8785_3_2_4,
       source="RFC 8785 section 3.2.4" + sha)
    fp("RFC 8785 sample of sorting", RFC_8785_3_2_3, canonical=RFC_8785_3_2_3_ORDER,
       source="RFC 8785 section 3.2.3" + sha)
    for line in APPENDIX_B.split("\n"):
        if line:
            bits, text = line.split()
            literal = repr(struct.unpack(">d", bytes.fromhex(bits))[0])  # never an integer literal
            assert "." in literal or "e" in literal
            fp(f"RFC 8785 appendix B, {bits}", f"[{literal}]", canonical=f"[{text}]",
               source="RFC 8785 appendix B" + sha)
            if "e" in text or "." in text:
                fp(f"RFC 8785 appendix B, {bits}, its own text", f"[{text}]", canonical=f"[{text}]",
                   source="RFC 8785 appendix B" + sha)
    fp("RFC 8785 appendix B, NaN is not JSON", "[NaN]", "raw", None, source="RFC 8785 appendix B; " + RAW)
    fp("RFC 8785 appendix B, Infinity is not JSON", "[Infinity]", "raw", None, source="RFC 8785 appendix B; " + RAW)
    # -- published designs, where the body is the only input
    allocation = '{"allocations":[{"node":"a1","points":2}],"clientGeneratedAt":"2026-01-01T00:00:00Z"}'
    fp("allocation, body only", allocation, canonical=allocation)
    fp("allocation, spaced and reordered", '{ "clientGeneratedAt" : "2026-01-01T00:00:00Z",\n "allocations" : '
       '[ { "points" : 2, "node" : "a1" } ] }', canonical=allocation)
    fp("allocation without the time of submission", allocation[:-1] + ',"clientSubmittedAt":"2026-01-01T00:00:05Z"}',
       canonical=allocation, exclude=["/clientSubmittedAt"])
    post = '{"author_id":"u-17","body":"Gr\u00fc\u00dfe aus K\u00f6ln \U0001f600","media":[],"visibility":"public"}'
    fp("feed post, body only", '{"body":"Gr\u00fc\u00dfe aus K\u00f6ln \\ud83d\\ude00","visibility":"public",'
       '"media":[],"author_id":"u-17"}', canonical=post)
    fp("feed post, raw characters and escapes are alike", '{"body":"Gr\\u00fc\\u00dfe aus K\\u00f6ln \U0001f600",'
       '"visibility":"public","media":[ ],"author_id":"u-17"}', canonical=post)
    # -- structure
    fp("empty object", "{}", canonical="{}")
    fp("empty array", "[]", canonical="[]")
    fp("spaced empty object", " \t\r\n{ \n} ", canonical="{}")
    fp("nested objects are sorted at every level", '{"b":{"d":1,"c":{"f":2,"e":3}},"a":[{"z":1,"y":2}]}',
       canonical='{"a":[{"y":2,"z":1}],"b":{"c":{"e":3,"f":2},"d":1}}')
    fp("array order stays", "[3,1,2]", canonical="[3,1,2]")
    fp("another array order is another body", "[1,2,3]", canonical="[1,2,3]")
    fp("names are sorted as text and not as numbers", '{"10":1,"9":2,"1":3,"":4}', canonical='{"":4,"1":3,"10":1,"9":2}')
    fp("upper case sorts before lower case", '{"a":1,"B":2,"A":3,"b":4}', canonical='{"A":3,"B":2,"a":1,"b":4}')
    fp("a prefix sorts first", '{"aa":1,"a":2,"a ":3}', canonical='{"a":2,"a ":3,"aa":1}')
    fp("__proto__ is a name like any other", '{"z":1,"__proto__":{"b":1,"a":2},"toJSON":3,"constructor":4}',
       canonical='{"__proto__":{"a":2,"b":1},"constructor":4,"toJSON":3,"z":1}')
    for text in ("null", "true", "false", '"a"', '""', "7"):
        fp(f"document {text}", text, canonical=text)
    fp("members with null stay", '{"a":null}', canonical='{"a":null}')
    # -- texts
    fp("sorting by UTF-16: surrogate pair before U+FB33", '{"\ufb33":1,"\U0001f600":2}',
       canonical='{"\U0001f600":2,"\ufb33":1}')
    fp("sorting by UTF-16: U+10000 before U+FFFF and U+E000", '{"\uffff":1,"\ue000":2,"\U00010000":3,"\ud7ff":4}',
       canonical='{"\ud7ff":4,"\U00010000":3,"\ue000":2,"\uffff":1}')
    fp("sorting by UTF-16: second unit decides", '{"\U0001f601":1,"\U0001f600":2}',
       canonical='{"\U0001f600":2,"\U0001f601":1}')
    fp("escaped names sort by what they mean", '{"\\u0062":1,"a":2}', canonical='{"a":2,"b":1}')
    fp("every control character", '"' + "".join(f"\\u{i:04X}" for i in range(0x20)) + '"',
       canonical='"\\u0000\\u0001\\u0002\\u0003\\u0004\\u0005\\u0006\\u0007\\b\\t\\n\\u000b\\f\\r\\u000e\\u000f'
       '\\u0010\\u0011\\u0012\\u0013\\u0014\\u0015\\u0016\\u0017\\u0018\\u0019\\u001a\\u001b\\u001c\\u001d\\u001e\\u001f"',
       source="RFC 8785 section 3.2.2.2" + sha)
    fp("short escapes", '"\\b\\t\\n\\f\\r\\"\\\\\\/"', canonical='"\\b\\t\\n\\f\\r\\"\\\\/"',
       source="RFC 8785 section 3.2.2.2" + sha)
    fp("DEL and C1 controls are not escaped", '"\\u007f\\u0080\\u009f"', canonical='"\u007f\u0080\u009f"')
    fp("line and paragraph separators are not escaped", '"\\u2028\\u2029"', canonical='"\u2028\u2029"')
    fp("markup is not escaped", '"<a href=\'x\'>&</a>"', canonical='"<a href=\'x\'>&</a>"')
    fp("escaped pair becomes one character", '"\\uD83D\\uDE00"', canonical='"\U0001f600"')
    fp("last character there is", '"\\udbff\\udfff"', canonical='"\U0010ffff"')
    fp("composed and decomposed stay apart: composed", '"\u00e9"', canonical='"\u00e9"')
    fp("composed and decomposed stay apart: decomposed", '"e\u0301"', canonical='"e\u0301"')
    fp("U+FEFF inside a text", '"a\ufeffb"', canonical='"a\ufeffb"')
    # -- numbers
    for literal, text in (
        ("1", "1"), ("1.0", "1"), ("1e0", "1"), ("10e-1", "1"), ("1E+00", "1"), ("-1", "-1"), ("0", "0"), ("-0", "0"),
        ("-0.0", "0"), ("0e5", "0"), ("-0e-5", "0"), ("0.1", "0.1"), ("0.10", "0.1"), ("4.50", "4.5"), ("1e21", "1e+21"),
        ("1e20", "100000000000000000000"), ("123456789e12", "123456789000000000000"), ("1e-6", "0.000001"),
        ("1e-7", "1e-7"), ("0.0000001", "1e-7"), ("12.5e-8", "1.25e-7"), ("1e30", "1e+30"), ("1e+30", "1e+30"),
        ("1e23", "1e+23"), ("5e-324", "5e-324"), ("2.2250738585072014e-308", "2.2250738585072014e-308"),
        ("1.7976931348623157e308", "1.7976931348623157e+308"), ("0.1000000000000000055511151231257827", "0.1"),
        ("0.30000000000000004", "0.30000000000000004"), ("100", "100"), ("1e2", "100"), ("1.5e300", "1.5e+300"),
        ("9007199254740991", "9007199254740991"), ("-9007199254740991", "-9007199254740991"),
        ("9007199254740992", "9007199254740992"), ("-9007199254740992", "-9007199254740992"),
        ("9007199254740993.0", "9007199254740992"), ("9007199254740994.0", "9007199254740994"),
        ("1.8014398509481985e16", "18014398509481984"), ("9007199254740993e0", "9007199254740992"),
    ):
        fp(f"number {literal}", f"[{literal}]", canonical=f"[{text}]")
    fp("greatest literal that rounds to a double", "[1.7976931348623158e308]", canonical="[1.7976931348623157e+308]")
    fp("number too small for a double is zero", "[1e-400]", canonical="[0]",
       source=reading("a number that underflows is within the range of a double", JCS))
    for literal in ("9007199254740993", "-9007199254740993", "9223372036854775807", "-9223372036854775808",
                    "18446744073709551615", "18446744073709551616", "12345678901234567890", "100000000000000000000",
                    "295147905179352830000", "1" + "0" * 400):
        short = literal if len(literal) < 30 else "of 401 digits"
        fp(f"integer {short} stays raw", f"[{literal}]", "raw", None)
    fp("big integer deep inside stays raw", '{"a":[{"b":[1,{"c":9007199254740993}]}]}', "raw", None)
    fp("big integer in a text is no integer", '{"a":"9007199254740993"}', canonical='{"a":"9007199254740993"}')
    fp("big integer as a name is no integer", '{"9007199254740993":1}', canonical='{"9007199254740993":1}')
    for literal in ("1e400", "-1e400", "1.7976931348623159e308", "1e309"):
        fp(f"number {literal} is beyond a double", f"[{literal}]", "raw", None)
    # -- members of one name
    fp("two members of one name", '{"a":1,"a":2}', "raw", None)
    fp("two members of one name and value", '{"a":1,"a":1}', "raw", None)
    fp("two members of one name, nested", '{"x":[{"y":{"a":1,"b":2,"a":3}}]}', "raw", None)
    fp("two members of one name, one escaped", '{"a":1,"\\u0061":2}', "raw", None)
    fp("two members of one name, emoji and its escape", '{"\U0001f600":1,"\\ud83d\\ude00":2}', "raw", None)
    fp("two empty names", '{"":1,"":2}', "raw", None)
    fp("one name in two objects is no double", '[{"a":1},{"a":2},{"b":{"a":1}}]',
       canonical='[{"a":1},{"a":2},{"b":{"a":1}}]')
    fp("names that differ in case are no double", '{"a":1,"A":2}', canonical='{"A":2,"a":1}')
    fp("names that differ in normalisation are no double", '{"\u00e9":1,"e\u0301":2}',
       canonical='{"e\u0301":2,"\u00e9":1}')
    # -- depth
    fp("127 arrays", "[" * 127 + "]" * 127, canonical="[" * 127 + "]" * 127)
    fp("128 arrays", "[" * 128 + "]" * 128, "raw", None)
    fp("127 objects", '{"a":' * 127 + "1" + "}" * 127, canonical='{"a":' * 127 + "1" + "}" * 127)
    fp("128 objects", '{"a":' * 128 + "1" + "}" * 128, "raw", None)
    fp("127 of both with a value inside", '[{"a":' * 63 + "[1]" + "}]" * 63, canonical='[{"a":' * 63 + "[1]" + "}]" * 63)
    fp("128 of both", '[{"a":' * 64 + "1" + "}]" * 64, "raw", None)
    fp("many brackets side by side are not deep", "[" + ",".join(["[]"] * 200) + "]",
       canonical="[" + ",".join(["[]"] * 200) + "]")
    fp("brackets in a text are not deep", '"' + "[" * 200 + '"', canonical='"' + "[" * 200 + '"')
    # -- not JSON
    for name, text in (
        ("-Infinity", "[-Infinity]"), ("trailing comma in an array", "[1,]"), ("trailing comma in an object", '{"a":1,}'),
        ("truncated", '{"a":'), ("two documents", "{} {}"), ("garbage after the document", "{}x"),
        ("single quotes", "{'a':1}"), ("name without quotes", "{a:1}"), ("comment", "[1] // one"),
        ("leading zero", "[01]"), ("leading plus", "[+1]"), ("point without digits", "[1.]"), ("point first", "[.5]"),
        ("exponent without digits", "[1e]"), ("minus only", "[-]"), ("hexadecimal", "[0x10]"), ("True", "[True]"),
        ("digits that are not ASCII", "[\u0661]"), ("control character in a text", '["a\x01"]'),
        ("line feed in a text", '["a\nb"]'), ("bad escape", '["\\x41"]'), ("short unicode escape", '["\\u12"]'),
        ("form feed as white space", "\x0c[]"), ("no-break space as white space", "\u00a0[]"),
        ("NUL after the document", "[]\0"), ("whitespace only", " \r\n\t"), ("text", "hello"),
        ("lone high surrogate", '["\\ud800"]'), ("lone low surrogate", '["\\udc00"]'),
        ("surrogates in the wrong order", '["\\ude00\\ud83d"]'), ("high surrogate and a letter", '["\\ud83dx"]'),
        ("two high surrogates", '["\\ud83d\\ud83d\\ude00"]'), ("lone surrogate as a name", '{"\\ud800":1}'),
    ):
        fp(f"not JSON: {name}", text, "raw", None)
    fp("not JSON: byte order mark", "\ufeff{}", "raw", None,
       source=reading("RFC 8259's grammar has no byte order mark", RAW))
    fp("not JSON: truncated UTF-8", b'["\xe2\x82"]', "raw", None)
    fp("not JSON: UTF-8 cut off at the end", b'"\xc3', "raw", None)
    fp("not JSON: overlong UTF-8", b'["\xc0\xaf"]', "raw", None)
    fp("not JSON: encoded surrogate", b'["\xed\xa0\x80"]', "raw", None)
    fp("not JSON: Latin-1", b'["\xe9"]', "raw", None)
    fp("not JSON: UTF-16", '{"a":1}'.encode("utf-16-le"), "raw", None)
    fp("bytes that are no text", bytes(range(256)), "raw", None, content_type="application/octet-stream")
    fp("empty body", "", "none", None)
    fp("empty body without a type", "", "none", None, content_type=None)
    fp("empty body as text/plain", "", "none", None, content_type="text/plain")
    # -- content types
    spaced = '{ "b": 1, "a": 2 }'
    tidy = '{"a":2,"b":1}'
    for content_type in (None, "application/json", "application/JSON", "Application/Json; charset=UTF-8",
                         "application/json;charset=utf-8", "application/json ; charset=utf-8",
                         "application/problem+json", "application/problem+json; charset=utf-8",
                         "application/vnd.api+JSON", "application/ld+json; profile=\"a;b\"", "image/x+json"):
        fp(f"content type {content_type}", spaced, canonical=tidy, content_type=content_type)
    for content_type in ("text/plain", "text/plain; charset=utf-8", "text/json", "application/jsonp",
                         "application/x-json", "application/json-patch", "application/json5", "application/xml",
                         "application/octet-stream", "application/x-ndjson", "application/json+xml",
                         "text/plain; a=application/json", "text/plain; a=+json"):
        fp(f"content type {content_type} is raw", spaced, "raw", None, content_type=content_type)
    fp("no content type and not JSON", "a=1&b=2", "raw", None, content_type=None)
    fp("form", "a=1&b=2", "raw", None, content_type="application/x-www-form-urlencoded")
    fp("form in another order is another body", "b=2&a=1", "raw", None, content_type="application/x-www-form-urlencoded")
    fp("form that is a number is not JSON", "7", "raw", None, content_type="application/x-www-form-urlencoded")
    fp("multipart", '--x\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n--x--\r\n', "raw", None,
       content_type="multipart/form-data; boundary=x")
    # -- framing
    fp("full", '{"a":1}', canonical='{"a":1}', inputs=FULL)
    by_hand = b"".join([
        b"\0\0\0\0\0\0\0\x13semel.fingerprint.1", b"m\0\0\0\0\0\0\0\x04POST", b"r\0\0\0\0\0\0\0\x0ccreate-order",
        b"p\0\0\0\0\0\0\0\0", b"q\0\0\0\0\0\0\0\0", b'b\0\0\0\0\0\0\0\x08j{"a":1}',
    ])
    agree("fingerprints: by hand", fingerprints[-1]["expect"]["fingerprint"], hashlib.sha256(by_hand).hexdigest())
    fp("full, reordered body", ' {"a" : 1.0}', canonical='{"a":1}', inputs=FULL)
    agree("fingerprints: alike", fingerprints[-1]["expect"], fingerprints[-2]["expect"])
    fp("full, inputs listed in another order", '{"a":1}', canonical='{"a":1}', inputs=FULL[::-1])
    agree("fingerprints: alike", fingerprints[-1]["expect"], fingerprints[-2]["expect"])
    fp("full, principal given but not an input", '{"a":1}', canonical='{"a":1}', inputs=FULL, principal="alice")
    agree("fingerprints: alike", fingerprints[-1]["expect"], fingerprints[-2]["expect"])
    fp("full, another method", '{"a":1}', inputs=FULL, method="PATCH")
    fp("full, method in lower case is another", '{"a":1}', inputs=FULL, method="post")
    fp("full, another route", '{"a":1}', inputs=FULL, route="create-invoice")
    fp("full, a parameter", '{"a":1}', inputs=FULL, params=[("id", "7")])
    fp("full, percent-encoding in a parameter is untouched", '{"a":1}', inputs=FULL, params=[("id", "%37")])
    fp("full, two parameters", '{"a":1}', inputs=FULL, params=[("org", "a"), ("id", "bc")])
    fp("full, two parameters, the border moved", '{"a":1}', inputs=FULL, params=[("org", "ab"), ("id", "c")])
    fp("full, two parameters in another order", '{"a":1}', inputs=FULL, params=[("id", "bc"), ("org", "a")])
    fp("full, an empty parameter", '{"a":1}', inputs=FULL, params=[("id", "")])
    fp("full, a parameter that is not ASCII", '{"a":1}', inputs=FULL, params=[("name", "k\u00f6ln")])
    fp("full, a query", '{"a":1}', inputs=FULL, query="a=1&b=2")
    fp("full, a query in another order is another", '{"a":1}', inputs=FULL, query="b=2&a=1")
    fp("full, a query with encoding", '{"a":1}', inputs=FULL, query="q=%C3%A9+x&q=")
    fp("full, raw body", "hello", "raw", inputs=FULL, content_type="text/plain")
    fp("full, empty body", "", "none", inputs=FULL)
    fp("full, JSON text as text/plain is another", '{"a":1}', "raw", inputs=FULL, content_type="text/plain")
    fp("full with principal", '{"a":1}', inputs=semel.INPUTS, principal="alice")
    fp("full with an empty principal", '{"a":1}', inputs=semel.INPUTS, principal="")
    fp("full with a principal that is not ASCII", '{"a":1}', inputs=semel.INPUTS, principal="\u00e9milie \U0001f600")
    fp("everything at once", spaced, canonical=tidy, inputs=semel.INPUTS, principal="alice", method="PUT",
       route="PUT /orders/{id}", params=[("id", "7")], query="dry=1")
    fp("method only", '{"a":1}', inputs=["method"])
    fp("method and body", '{"a":1}', inputs=["method", "body"])
    fp("route and params without the body", '{"a":1}', inputs=["route", "params"], params=[("id", "7")])
    fp("query only", '{"a":1}', inputs=["query"], query="a=1")
    fp("principal and body", '{"a":1}', inputs=["principal", "body"], principal="alice")
    # -- keyed
    secret = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
    for name, value in (("32 bytes", secret), ("1 byte", "6b"), ("64 bytes", secret * 2), ("65 bytes", secret * 2 + "ff"),
                        ("200 bytes", "aa" * 200)):
        fp(f"keyed with {name}, full", '{"a":1}', canonical='{"a":1}', inputs=FULL, secret=value)
    fp("keyed, body only", '{ "a": 1 }', canonical='{"a":1}', secret=secret)
    fp("keyed, raw body only", "hello", "raw", secret=secret, content_type="text/plain")
    fp("keyed, empty body only", "", "none", secret=secret)
    fp("keyed, RFC 4231 case 1", "Hi There", "raw", secret="0b" * 20, content_type="text/plain",
       source="RFC 4231 section 4.2")
    agree("RFC 4231 case 1", fingerprints[-1]["expect"]["fingerprint"],
          "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7")
    fp("keyed, RFC 4231 case 2", "what do ya want for nothing?", "raw", secret=b"Jefe".hex(), content_type="text/plain",
       source="RFC 4231 section 4.3")
    agree("RFC 4231 case 2", fingerprints[-1]["expect"]["fingerprint"],
          "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843")
    # -- pointers
    doc = '{"a":1,"b":{"c":2,"d":[10,20,{"e":30}]},"m~n":3,"x/y":4,"":5," ":6}'
    canon = '{"":5," ":6,"a":1,"b":{"c":2,"d":[10,20,{"e":30}]},"m~n":3,"x/y":4}'
    fp("pointers, none", doc, canonical=canon)
    for pointers, text in (
        (["/a"], '{"":5," ":6,"b":{"c":2,"d":[10,20,{"e":30}]},"m~n":3,"x/y":4}'),
        (["/b/c"], '{"":5," ":6,"a":1,"b":{"d":[10,20,{"e":30}]},"m~n":3,"x/y":4}'),
        (["/b"], '{"":5," ":6,"a":1,"m~n":3,"x/y":4}'),
        (["/b/d/0"], '{"":5," ":6,"a":1,"b":{"c":2,"d":[null,20,{"e":30}]},"m~n":3,"x/y":4}'),
        (["/b/d/0", "/b/d/1"], '{"":5," ":6,"a":1,"b":{"c":2,"d":[null,null,{"e":30}]},"m~n":3,"x/y":4}'),
        (["/b/d/2"], '{"":5," ":6,"a":1,"b":{"c":2,"d":[10,20,null]},"m~n":3,"x/y":4}'),
        (["/b/d/2/e"], '{"":5," ":6,"a":1,"b":{"c":2,"d":[10,20,{}]},"m~n":3,"x/y":4}'),
        (["/b/d/2", "/b/d/2/e"], '{"":5," ":6,"a":1,"b":{"c":2,"d":[10,20,null]},"m~n":3,"x/y":4}'),
        (["/b/d/2/e", "/b/d/2"], '{"":5," ":6,"a":1,"b":{"c":2,"d":[10,20,null]},"m~n":3,"x/y":4}'),
        (["/b", "/b/c"], '{"":5," ":6,"a":1,"m~n":3,"x/y":4}'),
        (["/m~0n"], '{"":5," ":6,"a":1,"b":{"c":2,"d":[10,20,{"e":30}]},"x/y":4}'),
        (["/x~1y"], '{"":5," ":6,"a":1,"b":{"c":2,"d":[10,20,{"e":30}]},"m~n":3}'),
        (["/"], '{" ":6,"a":1,"b":{"c":2,"d":[10,20,{"e":30}]},"m~n":3,"x/y":4}'),
        (["/ "], '{"":5,"a":1,"b":{"c":2,"d":[10,20,{"e":30}]},"m~n":3,"x/y":4}'),
        (["/none"], canon), (["/b/none/deeper"], canon), (["/a/b"], canon), (["/b/d/3"], canon), (["/b/d/-"], canon),
        (["/b/d/00"], canon), (["/b/d/+0"], canon), (["/x/y"], canon), (["/A"], canon), (["/b/d/length"], canon),
    ):
        fp(f"exclude {' '.join(pointers)}", doc, canonical=text, exclude=pointers)
    for pointers, text in (
        (["/a"], '[["/a",1]]'),
        (["/b/c", "/a"], '[["/a",1],["/b/c",2]]'),
        (["/b/d/2"], '[["/b/d/2",{"e":30}]]'),
        (["/b/d/0"], '[["/b/d/0",10]]'),
        (["/b", "/b/c"], '[["/b",{"c":2,"d":[10,20,{"e":30}]}],["/b/c",2]]'),
        (["/m~0n", "/x~1y", "/", "/ "], '[["/",5],["/ ",6],["/m~0n",3],["/x~1y",4]]'),
        ([""], '[["",' + canon + "]]"),
        (["/a", ""], '[["",' + canon + '],["/a",1]]'),
        (["/none", "/a", "/b/d/3", "/b/d/-", "/b/d/01"], '[["/a",1]]'),
        (["/none"], "[]"),
    ):
        fp(f"include {' '.join(pointers) or '(the whole document)'}", doc, canonical=text, include=pointers)
    fp("include finds null", '{"a":null}', canonical='[["/a",null]]', include=["/a"])
    fp("include of a document that is a number", "7.0", canonical='[["",7]]', include=["", "/a"])
    fp("include of a document that is null", "null", canonical='[["",null]]', include=[""])
    fp("include of an array", "[1,2,3]", canonical='[["/0",1],["/2",3]]', include=["/2", "/0", "/3"])
    fp("include of the tenth is bytewise before the second", "[0,1,2,3,4,5,6,7,8,9,10]",
       canonical='[["/10",10],["/2",2]]', include=["/2", "/10"])
    fp("include orders pointers bytewise and not by UTF-16", '{"\uff5e":1,"\U00010000":2}',
       canonical='[["/\uff5e",1],["/\U00010000",2]]', include=["/\U00010000", "/\uff5e"])
    fp("include orders / before ~", '{"a":{"b":1},"a~":2}', canonical='[["/a/b",1],["/a~0",2]]', include=["/a~0", "/a/b"])
    fp("exclude inside include", doc, canonical='[["/b",{"d":[null,20,{"e":30}]}]]', exclude=["/b/c", "/b/d/0"],
       include=["/b"])
    fp("exclude takes away what include names", doc, canonical='[["/m~0n",3]]', exclude=["/a"], include=["/a", "/m~0n"])
    fp("exclude leaves null where include names an element", doc, canonical='[["/b/d/0",null]]', exclude=["/b/d/0"],
       include=["/b/d/0"])
    fp("exclude and include the same member", '{"a":1}', canonical="[]", exclude=["/a"], include=["/a"])
    fp("exclude the only member", '{"a":1}', canonical="{}", exclude=["/a"])
    fp("exclude from an array", "[1,2]", canonical="[null,2]", exclude=["/0"])
    fp("exclude from a number", "7", canonical="7", exclude=["/a"])
    fp("exclude a member of each kind", '{"a":1,"0":2}', canonical='{"a":1}', exclude=["/0"])
    fp("exclude and full framing", '{"a":1,"t":5}', canonical='{"a":1}', exclude=["/t"], inputs=FULL)
    fp("include and full framing", '{"a":1,"t":5}', canonical='[["/a",1]]', include=["/a"], inputs=FULL)
    fp("include, keyed", '{"a":1,"t":5}', canonical='[["/a",1]]', include=["/a"], inputs=FULL, secret=secret)
    fp("exclude with an empty body", "", "none", None, exclude=["/a"])
    fp("include with an empty body", "", "none", None, include=["/a"], inputs=FULL)
    for name, text, content_type in (
        ("text", "hello", "text/plain"), ("JSON as text/plain", '{"a":1}', "text/plain"),
        ("truncated JSON", '{"a":', "application/json"), ("two members of one name", '{"a":1,"a":2}', "application/json"),
        ("a big integer", '{"a":9007199254740993}', "application/json"), ("a lone surrogate", '["\\ud800"]', None),
        ("too deep", "[" * 128 + "]" * 128, "application/json"), ("form", "a=1", "application/x-www-form-urlencoded"),
        ("a number beyond a double", '{"b":1e400}', None),
    ):
        fp(f"exclude, but the body is {name}", text, problem="body-not-json", exclude=["/a"], content_type=content_type)
        fp(f"include, but the body is {name}", text, problem="body-not-json", include=["/a"], content_type=content_type)
    fp("exclude, but the body is white space", " \n", problem="body-not-json", exclude=["/a"],
       source=reading("white space is content"))
    fp("exclude does not help where it takes the big integer away", '{"a":9007199254740993,"b":1}', exclude=["/a"],
       problem="body-not-json", source=reading("the body as received must be canonical JSON, before the pointers"))
    fp("include does not help where the doubled member lies elsewhere", '{"a":1,"b":{"c":1,"c":2}}', include=["/a"],
       problem="body-not-json", source=reading("the body as received must be canonical JSON, before the pointers"))


# ----------------------------------------------------------------------------------------------------------- decisions

STANDINGS = ["absent", "claimed", "abandoned", "unknown", "settled", "unkept", "released", "sealed", "expired"]
AXES = {
    "standing": STANDINGS, "same": [True, False], "in_flight": ["wait", "reject", "accepted"],
    "on_unknown": ["hold", "probe", "forward", "rerun"], "failed_key": ["reclaim", "sealed"],
    "mismatch": ["refuse", "ignore"], "too_old": [False, True],
}


def make_decisions() -> tuple[list, list, list]:
    decisions = []
    for values in itertools.product(*AXES.values()):
        case = dict(zip(AXES, values))
        words = [case["standing"], "same" if case["same"] else "other", case["in_flight"], case["on_unknown"],
                 case["failed_key"], case["mismatch"], "too-old" if case["too_old"] else "in-time"]
        decisions.append({"name": "/".join(words)} | case | {"expect": semel.decide(**case)})
    agree("decisions: how many", len(decisions), 9 * 2 * 3 * 4 * 2 * 2 * 2)

    now = 1_767_225_600_000  # 2026-01-01T00:00:00Z
    standings = []

    def standing(name, want, record, source=REFERENCE):
        if record is not None:
            record = dict(zip(("state", "guarantee", "lease_until", "expires_at"), record))
        got = semel.standing(record, now)
        agree(f"standings: {name}", got, want)
        standings.append({"name": name, "source": source, "record": record, "now": now, "expect": got})

    standing("no record", "absent", None)
    for guarantee, lapsed in (("fenced", "unknown"), ("atomic", "abandoned")):
        standing(f"{guarantee} claim, lease in the future", "claimed", ("claimed", guarantee, now + 60_000, None))
        standing(f"{guarantee} claim, lease ends in 1 ms", "claimed", ("claimed", guarantee, now + 1, None))
        standing(f"{guarantee} claim, lease ends now", lapsed, ("claimed", guarantee, now, None))
        standing(f"{guarantee} claim, lease ended 1 ms ago", lapsed, ("claimed", guarantee, now - 1, None))
        standing(f"{guarantee} claim, lease ended long ago", lapsed, ("claimed", guarantee, 0, None))
        standing(f"{guarantee} claim never expires", "claimed", ("claimed", guarantee, now + 1, now - 1))
        standing(f"{guarantee} claim never expires, lapsed", lapsed, ("claimed", guarantee, now - 1, now - 1))
        standing(f"{guarantee} marked unknown", "unknown", ("unknown", guarantee, None, None))
        standing(f"{guarantee} marked unknown, lease in the future", "unknown", ("unknown", guarantee, now + 1, None))
        standing(f"{guarantee} marked unknown, lease lapsed", "unknown", ("unknown", guarantee, now - 1, None))
        standing(f"{guarantee} marked unknown never expires", "unknown", ("unknown", guarantee, None, now - 1))
        for state in ("settled", "unkept", "released", "sealed"):
            standing(f"{guarantee} {state}, expires later", state, (state, guarantee, None, now + DAY))
            standing(f"{guarantee} {state}, expires in 1 ms", state, (state, guarantee, None, now + 1))
            standing(f"{guarantee} {state}, expires now", "expired", (state, guarantee, None, now))
            standing(f"{guarantee} {state}, expired 1 ms ago", "expired", (state, guarantee, None, now - 1))
            standing(f"{guarantee} {state}, a lapsed lease does not matter", state, (state, guarantee, now - 1, now + 1))
            standing(f"{guarantee} {state}, a lease in the future does not matter", "expired",
                     (state, guarantee, now + 1, now))
            standing(f"{guarantee} {state}, without an expiry", state, (state, guarantee, None, None),
                     reading("a record without expires_at does not expire"))

    ages = []

    def age(name, want, first_sent, window, source=REFERENCE):
        got = semel.age(first_sent, window, now)
        agree(f"ages: {name}", got, want)
        ages.append({"name": name, "source": source, "first_sent": first_sent, "retry_window_ms": window, "now": now,
                     "expect": got})

    for label, window in (("24 h", DAY), ("7 d", 7 * DAY), ("23 h", 23 * HOUR)):
        age(f"{label}, sent now", "in-time", now, window)
        age(f"{label}, 1 ms before the bound", "in-time", now - window + 1, window)
        age(f"{label}, at the bound", "in-time", now - window, window)
        age(f"{label}, 1 ms past the bound", "too-old", now - window - 1, window)
        age(f"{label}, sent in 1970", "too-old", 0, window)
    age("first sent before 1970", "too-old", -1, DAY)
    age("first sent in the future", "in-time", now + 1, DAY,
        reading("this rule alone does not refuse it; first-sent-in-future is another problem"))
    age("first sent not known", "in-time", None, DAY, reading("what does not say when it was first sent is not too old"))
    return decisions, standings, ages


# -------------------------------------------------------------------------------------------------------- dispositions

PROFILES = ["ietf", "stripe", "walker", "agents", "scores", "feed", "mesh"]
STATUSES = [200, 201, 202, 204, 301, 303, 304, 400, 401, 403, 404, 408, 409, 410, 413, 422, 425, 429, 500, 501, 502, 503,
            504]
ON_ERROR, ON_UNKNOWN = ["replay", "release"], AXES["on_unknown"]


def make_dispositions() -> list:
    dispositions = []

    def one(profile, guarantee, on_error, on_unknown, event, label):
        expect = semel.disposition(profile, guarantee, on_error, on_unknown, event)
        dispositions.append({
            "name": "/".join([profile, guarantee, on_error, on_unknown, label]), "profile": profile,
            "guarantee": guarantee, "on_error": on_error, "on_unknown": on_unknown, "event": event, "expect": expect,
        })

    for profile, guarantee in itertools.product(PROFILES, ["fenced", "atomic"]):
        for status in STATUSES:
            every = list(itertools.product(ON_ERROR, ON_UNKNOWN)) if status >= 500 else [("replay", "hold")]
            for on_error, on_unknown in every:
                one(profile, guarantee, on_error, on_unknown, {"status": status, "outcome": None}, str(status))
        for status in (200, 303, 400, 409, 422, 500, 503):
            for outcome in ("applied", "not-applied"):
                one(profile, guarantee, "replay", "hold", {"status": status, "outcome": outcome}, f"{status}-{outcome}")
        one(profile, guarantee, "release", "rerun", {"status": 500, "outcome": "applied"}, "500-applied")
        one(profile, guarantee, "replay", "probe", {"status": 500, "outcome": "not-applied"}, "500-not-applied")
        one(profile, guarantee, "release", "rerun", {"status": 200, "outcome": None}, "200")
        one(profile, guarantee, "release", "rerun", {"status": 422, "outcome": None}, "422")
        one(profile, guarantee, "release", "probe", {"status": 409, "outcome": None}, "409")
        for on_error, on_unknown in itertools.product(ON_ERROR, ON_UNKNOWN):
            one(profile, guarantee, on_error, on_unknown, "not-sent", "not-sent")
            one(profile, guarantee, on_error, on_unknown, "cut-off", "cut-off")
    return dispositions


# ----------------------------------------------------------------------------------------------------------- schedules

DAY, HOUR, MINUTE, SECOND = 86_400_000, 3_600_000, 60_000, 1_000
schedules: list[dict] = []


def preset(base, factor, cap, jitter, max_age, burst=None, period=None):
    return {"base_ms": base, "factor": factor, "cap_ms": cap, "jitter": jitter, "burst_attempts": burst,
            "burst_budget_ms": None, "period_ms": period, "max_attempts": None, "max_age_ms": max_age,
            "blocked_ms": 600_000}


IETF = preset(SECOND, 2, 5 * MINUTE, "full", 23 * HOUR)
WALKER = preset(5 * SECOND, 2, 5 * MINUTE, {"ratio": 0.25}, 7 * DAY, 12, 15 * MINUTE)
SCORES = preset(SECOND, 2, 16 * SECOND, "none", 23 * HOUR, 6, 5 * MINUTE)
FEED = preset(SECOND, 2, 32 * SECOND, "none", 23 * HOUR)
MESH = preset(SECOND, 2, 5 * MINUTE, "full", 6 * DAY)


def in_floats(schedule, n, u) -> set[int]:
    """The delay in doubles, in two orders of evaluation: a vector must not hang on the last bit of one."""
    base, factor, cap, jitter = schedule["base_ms"], schedule["factor"], schedule["cap_ms"], schedule["jitter"]
    try:
        power = float(factor) ** (n - 1)
    except OverflowError:
        power = math.inf
    nominal = min(float(cap), base * power) if base else 0.0
    if jitter == "none":
        return {int(nominal)}
    if jitter == "full":
        return {int(nominal * u)}
    r = jitter["ratio"]
    return {int(min(cap, nominal * (1 - r + 2 * r * u))), int(min(cap, nominal * (1 + r * (2 * u - 1))))}


def schedule(name, want, plan, *, n=1, attempts=None, elapsed=0, age=0, cause="failed", u=0.5, source=REFERENCE):
    progress = {"attempts": n if attempts is None else attempts, "attempts_in_burst": n, "burst_elapsed_ms": elapsed,
                "age_ms": age}
    expect = semel.next_attempt(plan, progress, cause, u)
    if isinstance(want, int):
        want = {"after_ms": want}
    agree(f"schedules: {name}", expect, want)
    if cause == "failed":
        agree(f"schedules: {name} in doubles", in_floats(plan, n, u), {semel.delay(plan, n, u)})
    schedules.append({"name": name, "source": source, "schedule": plan, "progress": progress, "cause": cause, "u": u,
                      "expect": expect})


def make_schedules():
    under = 0.9999999999999999  # the greatest double below 1
    # -- the presets' series
    for n, nominal in enumerate([5, 10, 20, 40, 80, 160, 300, 300, 300, 300, 300], 1):
        nominal *= SECOND
        schedule(f"walker attempt {n}, u 0.5", nominal, WALKER, n=n)
        schedule(f"walker attempt {n}, u 0", nominal * 3 // 4, WALKER, n=n, u=0)
        top = min(5 * MINUTE, nominal * 5 // 4 - 1)
        schedule(f"walker attempt {n}, u just under 1", top, WALKER, n=n, u=0.999999)
        schedule(f"walker attempt {n}, u 0.75", min(5 * MINUTE, nominal * 9 // 8), WALKER, n=n, u=0.75)
    for u in (0, 0.5, under):
        schedule(f"walker attempt 12, u {u}, the burst is over", {"period_ms": 15 * MINUTE}, WALKER, n=12, u=u)
    schedule("walker attempt 13 is the first of the next burst", 5_000, WALKER, n=1, attempts=13)
    schedule("walker attempt 24, the second burst is over", {"period_ms": 15 * MINUTE}, WALKER, n=12, attempts=24)
    for n, seconds in enumerate([1, 2, 4, 8, 16], 1):
        schedule(f"scores attempt {n}", seconds * SECOND, SCORES, n=n)
        schedule(f"scores attempt {n}, u does not matter", seconds * SECOND, SCORES, n=n, u=under)
    schedule("scores attempt 6, the burst is over", {"period_ms": 5 * MINUTE}, SCORES, n=6)
    schedule("scores attempt 7 is the first of the next burst", 1_000, SCORES, n=1, attempts=7)
    for n, seconds in enumerate([1, 2, 4, 8, 16, 32, 32, 32], 1):
        schedule(f"feed attempt {n}", seconds * SECOND, FEED, n=n)
    for n, seconds in enumerate([1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300], 1):
        schedule(f"ietf attempt {n}, u 0.5", seconds * 500, IETF, n=n)
        schedule(f"ietf attempt {n}, u 0", 0, IETF, n=n, u=0)
        schedule(f"ietf attempt {n}, u just under 1", seconds * SECOND - 1, IETF, n=n, u=0.999999999)
    schedule("ietf attempt 1, greatest u", 999, IETF, u=under)
    schedule("ietf attempt 4, u 0.3125", 2_500, IETF, n=4, u=0.3125)
    schedule("ietf attempt 1, u 0.1234", 123, IETF, u=0.12345)
    for n, seconds in enumerate([1, 2, 4], 1):
        schedule(f"mesh attempt {n}, u 0.25", seconds * 250, MESH, n=n, u=0.25)
    # -- arithmetic
    plain = preset(SECOND, 2, 5 * MINUTE, "none", None)
    for n in (9, 10, 64, 65, 1_000, 1_025, 100_000, 1_000_000):
        schedule(f"no jitter, attempt {n}", min(300_000, 1_000 * 2 ** (min(n, 20) - 1)), plain, n=n)
        schedule(f"full jitter, attempt {n}, u 0.5", min(300_000, 1_000 * 2 ** (min(n, 20) - 1)) // 2,
                 preset(SECOND, 2, 5 * MINUTE, "full", None), n=n)
        schedule(f"ratio, attempt {n}, u 0", min(300_000, 1_000 * 2 ** (min(n, 20) - 1)) * 3 // 4,
                 preset(SECOND, 2, 5 * MINUTE, {"ratio": 0.25}, None), n=n, u=0)
    schedule("factor 1", 1_000, plain | {"factor": 1}, n=50)
    schedule("factor 1, attempt 1000000", 1_000, plain | {"factor": 1}, n=1_000_000)
    schedule("factor 1.5, attempt 2", 1_500, plain | {"factor": 1.5}, n=2)
    schedule("factor 1.5, attempt 4", 3_375, plain | {"factor": 1.5}, n=4)
    schedule("factor 1.5, attempt 5 is cut down", 5_062, plain | {"factor": 1.5}, n=5)
    schedule("factor 3", 9_000, plain | {"factor": 3}, n=3)
    schedule("factor 10, attempt 1000000", 300_000, plain | {"factor": 10}, n=1_000_000)
    schedule("base above the cap", 300_000, plain | {"base_ms": 400_000})
    schedule("base at the cap", 300_000, plain | {"base_ms": 300_000})
    schedule("cap reached exactly", 16_000, plain | {"cap_ms": 16_000}, n=5)
    schedule("cap between two steps", 3_000, plain | {"cap_ms": 3_000}, n=3)
    schedule("base of 1 ms with full jitter", 0, preset(1, 2, 100, "full", None), u=0.999)
    schedule("base of 3 ms with ratio is cut down", 2, preset(3, 2, 100, {"ratio": 0.25}, None), u=0)
    schedule("ratio 0", 1_000, plain | {"jitter": {"ratio": 0}}, u=0.9)
    schedule("ratio 1, u 0", 0, plain | {"jitter": {"ratio": 1}}, u=0)
    schedule("ratio 1, u 0.75", 1_500, plain | {"jitter": {"ratio": 1}}, u=0.75)
    schedule("ratio 0.5, u 0.25", 750, plain | {"jitter": {"ratio": 0.5}}, u=0.25)
    schedule("ratio never passes the cap", 300_000, plain | {"jitter": {"ratio": 0.25}}, n=20, u=0.9)
    # -- told and blocked
    for what, told in (("0", 0), ("1 ms", 1), ("30 s", 30_000), ("24 h less 1 ms", DAY - 1), ("24 h", DAY)):
        schedule(f"told {what}", max(told, plain["base_ms"]), plain, cause={"told_ms": told})
    schedule("told 24 h and 1 ms", DAY, plain, cause={"told_ms": DAY + 1})
    schedule("told a year", DAY, plain, cause={"told_ms": 365 * DAY})
    schedule("told less than the schedule", 1_500, plain, n=10, cause={"told_ms": 1_500})
    schedule("told less than the base", plain["base_ms"], plain, n=10, cause={"told_ms": 10})
    schedule("told ignores jitter", 10_000, IETF, n=3, cause={"told_ms": 10_000}, u=0)
    schedule("told costs no attempt", 10_000, plain | {"max_attempts": 3}, n=3, cause={"told_ms": 10_000})
    schedule("told in a burst that is over", 10_000, WALKER, n=12, cause={"told_ms": 10_000})
    schedule("told past the burst's budget", 10_000, plain | {"burst_budget_ms": 5_000, "period_ms": 60_000},
             cause={"told_ms": 10_000})
    schedule("told past the greatest age", {"give_up": "age"}, IETF, age=23 * HOUR - 9_999, cause={"told_ms": 10_000})
    schedule("told up to the greatest age", 10_000, IETF, age=23 * HOUR - 10_000, cause={"told_ms": 10_000})
    schedule("told two days, the cut wait counts for the age", {"give_up": "age"}, IETF, age=0,
             cause={"told_ms": 2 * DAY})
    schedule("told two days, the cut wait fits the age", DAY, WALKER, age=0, cause={"told_ms": 2 * DAY})
    schedule("blocked", 600_000, plain, cause="blocked")
    schedule("blocked for another time", 60_000, plain | {"blocked_ms": 60_000}, cause="blocked")
    schedule("blocked costs no attempt", 600_000, plain | {"max_attempts": 3}, n=3, cause="blocked")
    schedule("blocked in a burst that is over", 600_000, WALKER, n=12, cause="blocked")
    schedule("blocked up to the greatest age", 600_000, IETF, age=23 * HOUR - 600_000, cause="blocked")
    schedule("blocked past the greatest age", {"give_up": "age"}, IETF, age=23 * HOUR - 599_999, cause="blocked")
    # -- most attempts
    schedule("one attempt below the most", 2_000, plain | {"max_attempts": 3}, n=2)
    schedule("the most attempts", {"give_up": "attempts"}, plain | {"max_attempts": 3}, n=3)
    schedule("more than the most attempts", {"give_up": "attempts"}, plain | {"max_attempts": 3}, n=4)
    schedule("one attempt is the most", {"give_up": "attempts"}, plain | {"max_attempts": 1}, n=1)
    schedule("the most attempts count over all bursts", {"give_up": "attempts"}, SCORES | {"max_attempts": 8}, n=2,
             attempts=8)
    schedule("the most attempts come before the burst", {"give_up": "attempts"}, SCORES | {"max_attempts": 6}, n=6)
    schedule("the most attempts come before the age", {"give_up": "attempts"}, IETF | {"max_attempts": 3}, n=3,
             age=24 * HOUR)
    schedule("the burst is over before the most attempts", {"period_ms": 300_000}, SCORES | {"max_attempts": 7}, n=6)
    # -- bursts
    schedule("burst of 1", {"period_ms": 60_000}, plain | {"burst_attempts": 1, "period_ms": 60_000})
    schedule("more attempts than the burst has", {"period_ms": 60_000}, plain | {"burst_attempts": 3, "period_ms": 60_000},
             n=4)
    budget = plain | {"burst_budget_ms": 10_000, "period_ms": 60_000}
    schedule("burst budget, delay ends within it", 1_000, budget, elapsed=8_999)
    schedule("burst budget, delay ends at it", 1_000, budget, elapsed=9_000)
    schedule("burst budget, delay ends past it", {"period_ms": 60_000}, budget, elapsed=9_001)
    schedule("burst budget, already past", {"period_ms": 60_000}, budget, elapsed=20_000)
    schedule("burst budget, the delay alone is longer", {"period_ms": 60_000}, budget, n=5)
    schedule("burst budget counts the jittered delay", 500, budget | {"jitter": "full"}, elapsed=9_500)
    schedule("burst budget counts the jittered delay, past", {"period_ms": 60_000}, budget | {"jitter": "full"},
             elapsed=9_501)
    schedule("burst budget and attempts, attempts end it", {"period_ms": 60_000}, budget | {"burst_attempts": 2}, n=2,
             elapsed=1_000)
    schedule("burst budget and attempts, budget ends it", {"period_ms": 60_000}, budget | {"burst_attempts": 5}, n=2,
             elapsed=9_000)
    schedule("burst budget and attempts, neither", 2_000, budget | {"burst_attempts": 5}, n=2, elapsed=1_000)
    schedule("the period has no jitter", {"period_ms": 60_000}, budget | {"jitter": {"ratio": 0.5}}, elapsed=20_000, u=0)
    # -- greatest age
    schedule("age at the bound", 1_000, plain | {"max_age_ms": 60_000}, age=59_000)
    schedule("age 1 ms past the bound", {"give_up": "age"}, plain | {"max_age_ms": 60_000}, age=59_001)
    schedule("age 1 ms within the bound", 1_000, plain | {"max_age_ms": 60_000}, age=58_999)
    schedule("age beyond the bound already", {"give_up": "age"}, plain | {"max_age_ms": 60_000}, age=120_000)
    schedule("no wait at the bound", 0, IETF, age=23 * HOUR, u=0)
    schedule("no wait past the bound", {"give_up": "age"}, IETF, age=23 * HOUR + 1, u=0)
    schedule("period up to the greatest age", {"period_ms": 900_000}, WALKER, n=12, age=7 * DAY - 900_000)
    schedule("period past the greatest age", {"give_up": "age"}, WALKER, n=12, age=7 * DAY - 899_999)
    schedule("no greatest age", 1_000, plain, age=10_000 * DAY)


# ------------------------------------------------------------------------------------------------------ classification

classification: list[dict] = []
codes: list[dict] = []


def classed(profile, status, code, want, max=None, then=None):
    """`want` is a class or class(reason)."""
    kind, _, reason = want.rstrip(")").partition("(")
    wanted = {"class": kind, "reason": reason or None, "max": max, "then": then}
    expect = semel.classify(profile, status, code)
    name = f"{profile}/{'none' if status is None else status}/{'-' if code is None else code}"
    agree(f"classification: {name}", expect, wanted)
    classification.append({"name": name, "source": REFERENCE, "profile": profile, "status": status, "code": code,
                           "expect": expect})


def make_classification():
    once = {"max": 1, "then": {"class": "drop", "reason": "unknown-422"}}
    for profile in PROFILES:
        walker, feed, mesh = profile == "walker", profile == "feed", profile == "mesh"
        patient = profile in ("stripe", "agents", "scores", "feed")  # any 409 waits
        classed(profile, None, None, "retry")
        for status in (200, 201, 202, 204, 206, 226, 299):
            classed(profile, status, None, "success")
        classed(profile, 200, "in-flight", "success")
        for status in (100, 199, 300, 301, 303, 304, 307, 399, 402, 404, 405, 410, 412, 413, 415, 424, 426, 428, 431, 451,
                       499):
            classed(profile, status, None, "dead(rejected)")
        classed(profile, 404, "in-flight", "dead(rejected)")
        classed(profile, 400, None, "drop(bad-request)" if walker else "dead(rejected)")
        classed(profile, 400, "key-invalid", "drop(bad-request)" if walker else "dead(rejected)")
        classed(profile, 401, None, "auth")
        classed(profile, 401, "identity-missing", "auth")
        if mesh:
            classed(profile, 403, None, "retry", max=3, then={"class": "dead", "reason": "forbidden"})
        else:
            classed(profile, 403, None, "dead(rejected)")
        classed(profile, 403, "identity-refused", "auth" if mesh else "dead(rejected)")
        for status in (408, 425, 429):
            classed(profile, status, None, "retry-after")
        classed(profile, 429, "request-limited", "retry-after")
        classed(profile, 503, None, "retry-after")
        classed(profile, 503, "settlement-pending", "retry-after")
        for status in (500, 501, 502, 504, 507, 511, 599):
            classed(profile, status, None, "retry")
        classed(profile, 500, "not-settled", "retry")
        for code in semel.WAITING:
            classed(profile, 409, code, "retry-after")
        for code in ("IN_FLIGHT", "In-Flight", "in_flight", "OUTCOME_UNKNOWN", "too_many-waiters", "Idempotency_In_Flight",
                     "SUPERSEDED"):
            classed(profile, 409, code, "retry-after")
        for code in (None, "conflict", "inflight", "in flight", "in-flight-", "settlement-pending", ""):
            classed(profile, 409, code, "retry-after" if patient else "dead(rejected)")
        for code in ("key-sealed", "answer-not-kept", "credential-changed", "fingerprint-mismatch", "KEY_SEALED",
                     "idempotency_key_reused"):
            classed(profile, 409, code, "dead(rejected)")
        classed(profile, 409, "idempotency-conflict", "drop(idempotency-conflict)" if walker else "dead(rejected)")
        classed(profile, 409, "already-allocated", "success" if walker else "retry-after" if patient else "dead(rejected)")
        for code in (None, "validation-failed", "fingerprint-mismatch", "too-old"):
            if walker:
                classed(profile, 422, code, "retry", **once)
            else:
                classed(profile, 422, code, "dead(conflicting-payload)" if feed else "dead(rejected)")
        if not walker:
            classed(profile, 422, "stale-action", "dead(conflicting-payload)" if feed else "dead(rejected)")
            classed(profile, 422, "in-flight", "dead(conflicting-payload)" if feed else "dead(rejected)")
    for code in ("IDEMPOTENCY_CONFLICT", "Idempotency-Conflict", "idempotency_conflict"):
        classed("walker", 409, code, "drop(idempotency-conflict)")
    for code in ("ALREADY_ALLOCATED", "quest-already-completed", "QUEST_ALREADY_COMPLETED", "quest-already-in-progress",
                 "QUEST_ALREADY_IN_PROGRESS", "Quest_Already-In_Progress"):
        classed("walker", 409, code, "success")
    for code in ("stale-action", "STALE_ACTION", "stale_action"):
        classed("walker", 422, code, "drop(stale-action)")
    for code in ("prerequisites-not-met", "PREREQUISITES_NOT_MET"):
        classed("walker", 422, code, "drop(prereq-slipped)")
    for code in ("insufficient-points", "INSUFFICIENT_POINTS"):
        classed("walker", 422, code, "drop(points-changed)")
    for code in ("step-out-of-order", "STEP_OUT_OF_ORDER", "ordering-violation", "ORDERING_VIOLATION"):
        classed("walker", 422, code, "rebuild")
    for code in ("already-allocated", "idempotency-conflict", "in-flight", "insufficient-energy", "staleaction", ""):
        classed("walker", 422, code, "retry", **once)
    for code in ("stale-action", "ordering-violation"):
        classed("walker", 409, code, "dead(rejected)")
        classed("walker", 400, code, "drop(bad-request)")

    def code(name, want, body, source=REFERENCE):
        got = semel.code_of(body.encode("utf-8"))
        agree(f"codes: {name}", got, want)
        codes.append({"name": name, "source": source, "body": body, "expect": got})

    code("type as a URN", "in-flight", '{"type":"urn:semel:problem:in-flight","title":"x","status":409}')
    code("type as a URL", "stale-action", '{"type":"https://api.example/problems/stale-action"}')
    code("type as a path", "in-flight", '{"type":"/problems/in-flight"}')
    code("type without a separator", "in-flight", '{"type":"in-flight"}')
    code("type, the last separator is a colon", "c", '{"type":"https://a.example/b:c"}')
    code("type, the last separator is a slash", "d", '{"type":"urn:a:b/c/d"}')
    code("type keeps a fragment", "problems#in-flight", '{"type":"https://a.example/problems#in-flight"}')
    code("type before code", "in-flight", '{"code":"other","type":"urn:semel:problem:in-flight","error":"third"}')
    code("type about:blank, code", "other", '{"type":"about:blank","code":"other"}')
    code("type about:blank, error", "third", '{"type":"about:blank","error":"third"}')
    code("type about:blank and nothing else", None, '{"type":"about:blank","title":"Conflict"}')
    code("blank at the end of another type", "blank", '{"type":"urn:about:blank","code":"other"}')
    code("code", "already-allocated", '{"code":"already-allocated"}')
    code("code before error", "first", '{"error":"second","code":"first"}')
    code("code before error.code", "first", '{"error":{"code":"second"},"code":"first"}')
    code("error as a text", "idempotency-conflict", '{"error":"idempotency-conflict","message":"x"}')
    code("error.code", "insufficient-points", '{"error":{"code":"insufficient-points","message":"x"}}')
    code("error.code only one level", None, '{"error":{"error":{"code":"x"}}}')
    code("error without a code", None, '{"error":{"message":"x"}}')
    code("error is null", None, '{"error":null}')
    code("error is a number", None, '{"error":7}')
    code("nothing of the kind", None, '{"message":"x"}')
    code("names in other case", None, '{"Code":"x","TYPE":"y","Error":"z"}')
    code("deeper members do not count", None, '{"data":{"code":"x","type":"y"}}')
    code("empty object", None, "{}")
    code("array", None, '[{"code":"x"}]')
    code("text document", None, '"in-flight"')
    code("null document", None, "null")
    code("empty body", None, "")
    code("not JSON", None, "in-flight")
    code("truncated JSON", None, '{"code":"in-flight"')
    code("HTML", None, "<html><body>409</body></html>")
    code("escapes in the code", "in-flight", '{"code":"in\\u002dflight"}')
    code("spelling is kept", "ALREADY_ALLOCATED", '{"code":"ALREADY_ALLOCATED"}',
         reading("a code is read in its own spelling and made alike when compared"))
    code("type is not a text", "other", '{"type":7,"code":"other"}',
         reading("a type that is not a text is as if absent"))


# ----------------------------------------------------------------------------------------------------------- staleness

staleness: list[dict] = []


def make_staleness():
    now = 1_767_225_600_000

    def one(name, want, age, *, cap=7 * DAY, grace=6 * HOUR, submitted="ignore", gap=None, sent=None, source=REFERENCE,
            at=now):
        """`age` and `sent` say how long before now the request was generated and submitted."""
        guard = {"cap_ms": cap, "grace_ms": grace, "submitted": submitted, "submitted_gap_ms": gap}
        generated_at, submitted_at = at - age, None if sent is None else at - sent
        expect = semel.staleness(guard, generated_at, submitted_at, at)
        if isinstance(want, str):
            agree(f"staleness: {name}", expect["verdict"], want)
        else:
            agree(f"staleness: {name}", expect, dict(zip(("verdict", "age_days", "cap_days", "grace_hours"), want)))
        staleness.append({"name": name, "source": source} | guard | {
            "generated_at": generated_at, "submitted_at": submitted_at, "now": at, "expect": expect})

    one("just made", "fresh", 0)
    one("1 ms old", "fresh", 1)
    one("1 d old", "fresh", DAY)
    one("7 d", "fresh", 7 * DAY)
    one("7 d and 1 ms", "fresh", 7 * DAY + 1)
    one("7 d and 5 h", "fresh", 7 * DAY + 5 * HOUR)
    one("7 d and 6 h less 1 ms", "fresh", 7 * DAY + 6 * HOUR - 1)
    one("7 d and 6 h", "fresh", 7 * DAY + 6 * HOUR)
    one("7 d, 6 h and 1 ms", ("stale", 7, 7, 6), 7 * DAY + 6 * HOUR + 1)
    one("7 d and 7 h", ("stale", 7, 7, 6), 7 * DAY + 7 * HOUR)
    one("8 d less 1 ms", ("stale", 7, 7, 6), 8 * DAY - 1)
    one("8 d", ("stale", 8, 7, 6), 8 * DAY)
    one("30 d", ("stale", 30, 7, 6), 30 * DAY)
    one("generated in 1970", ("stale", 20454, 7, 6), now)
    one("generated before 1970", ("stale", 20454, 7, 6), now + 1)
    one("1 ms ahead", "fresh", -1)
    one("1 h ahead", "fresh", -HOUR)
    one("6 h ahead", "fresh", -6 * HOUR)
    one("6 h and 1 ms ahead", "future", -6 * HOUR - 1)
    one("12 h ahead", "future", -12 * HOUR)
    one("a year ahead", "future", -365 * DAY)
    agree("staleness: future", staleness[-1]["expect"], {"verdict": "future", "grace_hours": 6})
    one("cap 1 d, no grace, at the bound", "fresh", DAY, cap=DAY, grace=0)
    one("cap 1 d, no grace, 1 ms more", ("stale", 1, 1, 0), DAY + 1, cap=DAY, grace=0)
    one("no grace, now", "fresh", 0, cap=DAY, grace=0)
    one("no grace, 1 ms ahead", "future", -1, cap=DAY, grace=0)
    one("cap 36 h counts as 1 d", ("stale", 1, 1, 1), 38 * HOUR, cap=36 * HOUR, grace=90 * MINUTE)
    one("cap 23 h counts as 0 d", ("stale", 0, 0, 0), 23 * HOUR + 31 * MINUTE, cap=23 * HOUR, grace=30 * MINUTE)
    one("grace 90 min counts as 1 h", "future", -91 * MINUTE, grace=90 * MINUTE)
    one("grace 90 min, at the bound", "fresh", -90 * MINUTE, grace=90 * MINUTE)
    one("no cap, no grace", ("stale", 0, 0, 0), 1, cap=0, grace=0)
    one("no cap, no grace, now", "fresh", 0, cap=0, grace=0)
    one("cap 365 d", "fresh", 365 * DAY + 6 * HOUR, cap=365 * DAY)
    # -- submitted = ignore
    one("ignore: an odd time of submission does not matter", "fresh", HOUR, sent=-30 * DAY)
    one("ignore: stale all the same", ("stale", 8, 7, 6), 8 * DAY, sent=8 * DAY)
    # -- submitted = refuse
    one("refuse: both clocks right", "fresh", HOUR, submitted="refuse", sent=0)
    one("refuse: submitted 6 h ago", "fresh", 7 * HOUR, submitted="refuse", sent=6 * HOUR)
    one("refuse: submitted 6 h and 1 ms ago", "invalid", 7 * HOUR, submitted="refuse", sent=6 * HOUR + 1)
    one("refuse: submitted 6 h ahead", "fresh", HOUR, submitted="refuse", sent=-6 * HOUR)
    one("refuse: submitted 6 h and 1 ms ahead", "invalid", HOUR, submitted="refuse", sent=-6 * HOUR - 1)
    one("refuse: generated 6 h after it was submitted", "fresh", -5 * HOUR, submitted="refuse", sent=HOUR)
    one("refuse: generated 6 h and 1 ms after it was submitted", "invalid", -5 * HOUR - 1, submitted="refuse", sent=HOUR)
    one("refuse: good times and still stale", ("stale", 8, 7, 6), 8 * DAY, submitted="refuse", sent=0)
    one("refuse: good times and still in the future", "future", -6 * HOUR - 1, submitted="refuse", sent=-1)
    # -- submitted = correct
    one("correct: clock right, nothing is added", "fresh", HOUR, submitted="correct", sent=0)
    one("correct: 6 h behind is not corrected", ("stale", 7, 7, 6), 7 * DAY + 6 * HOUR + 1, submitted="correct",
        sent=6 * HOUR)
    one("correct: 6 h and 1 ms behind is corrected", "fresh", 7 * DAY + 12 * HOUR + 1, submitted="correct",
        sent=6 * HOUR + 1)
    one("correct: corrected by exactly the difference, at the bound", "fresh", 10 * DAY + 7 * DAY + 6 * HOUR,
        submitted="correct", sent=10 * DAY)
    one("correct: corrected by exactly the difference, 1 ms more", ("stale", 7, 7, 6), 10 * DAY + 7 * DAY + 6 * HOUR + 1,
        submitted="correct", sent=10 * DAY)
    one("correct: a clock 30 d behind", "fresh", 30 * DAY + HOUR, submitted="correct", sent=30 * DAY)
    one("correct: a clock a year ahead", "fresh", -365 * DAY, submitted="correct", sent=-365 * DAY)
    one("correct: a clock a year ahead, made 7 d and 7 h before", ("stale", 7, 7, 6), -365 * DAY + 7 * DAY + 7 * HOUR,
        submitted="correct", sent=-365 * DAY)
    one("correct: 6 h ahead is not corrected", "fresh", -6 * HOUR, submitted="correct", sent=-6 * HOUR)
    one("correct: generated after it was submitted, still in the future", "future", 10 * DAY - 6 * HOUR - 1,
        submitted="correct", sent=10 * DAY)
    # -- submitted_gap
    one("gap: at the bound", "fresh", HOUR, gap=HOUR, sent=0)
    one("gap: 1 ms more", "invalid", HOUR + 1, gap=HOUR, sent=0)
    one("gap: generated after it was submitted", "fresh", 0, gap=HOUR, sent=HOUR)
    one("gap of 0, alike", "fresh", HOUR, gap=0, sent=HOUR)
    one("gap of 0, 1 ms before", "invalid", HOUR + 1, gap=0, sent=HOUR)
    one("gap counts from the time of submission", "fresh", 3 * HOUR, gap=HOUR, sent=2 * HOUR)
    one("gap and correct: the gap is taken between the request's own times", "fresh", 30 * DAY + HOUR, gap=HOUR,
        submitted="correct", sent=30 * DAY)
    one("gap and refuse, both good", "fresh", 2 * HOUR, gap=HOUR, submitted="refuse", sent=HOUR)
    one("gap wide, stale all the same", ("stale", 8, 7, 6), 8 * DAY, gap=30 * DAY, sent=0)
    one("no gap, stale all the same", ("stale", 8, 7, 6), 8 * DAY, sent=0)


# ---------------------------------------------------------------------------------------------------------- timestamps

timestamps: list[dict] = []


def by_datetime(text: str) -> int | None:
    """What Python's datetime makes of it, or None where datetime cannot express it."""
    match = re.fullmatch(r"(\d{4}-\d\d-\d\d).(\d\d:\d\d:\d\d)(?:\.(\d+))?(.*)", text, re.ASCII)
    if match is None or match[2].endswith(":60"):
        return None
    offset = match[4].upper().replace("Z", "+00:00")
    try:
        moment = datetime.datetime.fromisoformat(f"{match[1]}T{match[2]}.{((match[3] or '') + '000')[:3]}{offset}")
        return (moment - datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)) // datetime.timedelta(milliseconds=1)
    except (ValueError, OverflowError):
        return None


def make_timestamps():
    def one(text, *, name=None, ms=None, source=None):
        got = semel.timestamp(text)
        assert got is not None, text
        python = by_datetime(text)
        if python is not None:
            agree(f"timestamps: {text}", got, python)
        elif ms is None:
            raise SystemExit(f"timestamps: {text} has no second source")
        if ms is not None:
            agree(f"timestamps: {text}", got, ms)
        parts = [source or "spec/contract.md", "value by Python datetime" if python is not None else "value by hand"]
        timestamps.append({"name": name or text, "source": ", ".join(parts), "text": text, "expect_ms": got})

    def bad(name, text, source=REFERENCE):
        agree(f"timestamps: {name}", semel.timestamp(text), None)
        timestamps.append({"name": f"invalid: {name}", "source": source, "text": text, "expect_ms": None})

    example = "RFC 3339 section 5.8"
    one("1985-04-12T23:20:50.52Z", source=example)
    one("1996-12-19T16:39:57-08:00", source=example)
    one("1990-12-31T23:59:60Z", source=example, ms=662_688_000_000)
    one("1990-12-31T15:59:60-08:00", source=example, ms=662_688_000_000)
    one("1937-01-01T12:00:27.87+00:20", source=example)
    one("1996-12-20T00:39:57Z", source=example)
    one("1970-01-01T00:00:00Z", ms=0)
    one("1970-01-01T00:00:00.001Z", ms=1)
    one("1970-01-01T00:00:01Z", ms=1000)
    one("1969-12-31T23:59:59Z", ms=-1000)
    one("1969-12-31T23:59:59.999Z", ms=-1)
    one("2026-01-01T00:00:00Z", ms=1_767_225_600_000)
    one("2026-01-01t00:00:00z", name="lower case", ms=1_767_225_600_000)
    one("2026-01-01T00:00:00z", name="lower-case z only", ms=1_767_225_600_000)
    one("2026-01-01 00:00:00Z", name="space between date and time", ms=1_767_225_600_000)
    one("2026-01-01 00:00:00+00:00", name="space and offset", ms=1_767_225_600_000)
    one("2026-01-01T00:00:00+00:00", ms=1_767_225_600_000)
    one("2026-01-01T00:00:00-00:00", name="offset of minus zero", ms=1_767_225_600_000)
    one("2026-01-01T05:30:00+05:30", ms=1_767_225_600_000)
    one("2025-12-31T16:00:00-08:00", ms=1_767_225_600_000)
    one("2026-01-01T05:45:00+05:45", ms=1_767_225_600_000)
    one("2026-01-01T23:59:00+23:59", name="greatest offset", ms=1_767_225_600_000)
    one("2025-12-31T00:01:00-23:59", name="least offset", ms=1_767_225_600_000)
    one("2026-01-01T00:00:00+14:00")
    one("2026-01-01T00:00:00-12:00")
    one("2026-01-01T00:00:00.1Z", ms=1_767_225_600_100)
    one("2026-01-01T00:00:00.12Z", ms=1_767_225_600_120)
    one("2026-01-01T00:00:00.123Z", ms=1_767_225_600_123)
    one("2026-01-01T00:00:00.1239Z", name="digits below a millisecond are cut off", ms=1_767_225_600_123)
    one("2026-01-01T00:00:00.123456789Z", name="nanoseconds", ms=1_767_225_600_123)
    one("2026-01-01T00:00:00.9999999Z", name="no rounding up", ms=1_767_225_600_999)
    one("2026-01-01T00:00:00.0009Z", name="less than a millisecond", ms=1_767_225_600_000)
    one("2026-01-01T00:00:00." + "123" + "4" * 47 + "Z", name="fifty digits", ms=1_767_225_600_123)
    one("2026-01-01T00:00:00.000Z", ms=1_767_225_600_000)
    one("1969-12-31T23:59:59.9999Z", name="digits are cut off before 1970 too", ms=-1)
    one("1969-12-31T23:59:59.0001Z", name="digits are cut off before 1970 too, small", ms=-1000)
    one("2026-01-01T00:00:00.5+01:00", name="fraction and offset", ms=1_767_222_000_500)
    one("2016-12-31T23:59:60Z", name="leap second", ms=1_483_228_800_000)
    one("2016-12-31T23:59:60.5Z", name="leap second with a fraction", ms=1_483_228_800_500)
    one("2017-01-01T00:59:60+01:00", name="leap second with an offset", ms=1_483_228_800_000)
    one("2026-03-04T12:30:60Z", name="second 60 in any minute", ms=1_772_627_460_000,
        source=reading("a second of 60 is taken in any minute"))
    one("2024-02-29T00:00:00Z", name="leap day 2024")
    one("2000-02-29T00:00:00Z", name="leap day 2000")
    one("2000-03-01T00:00:00Z")
    one("2024-12-31T23:59:59.999Z")
    for month, last in enumerate([31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31], 1):
        one(f"2025-{month:02}-{last}T12:34:56Z", name=f"last day of month {month}")
    one("0001-01-01T00:00:00Z", name="first year", ms=-62_135_596_800_000)
    one("9999-12-31T23:59:59.999Z", name="last millisecond of the last year", ms=253_402_300_799_999)
    one("1582-10-10T00:00:00Z", name="proleptic Gregorian calendar")
    one("1900-03-01T00:00:00Z", name="the day after the leap day that 1900 did not have")
    one("2038-01-19T03:14:08Z", name="past 32 bits", ms=2_147_483_648_000)
    one("1901-12-13T20:45:51Z", name="before 32 bits", ms=-2_147_483_649_000)

    for name, text in (
        ("Feb 29 of 2025", "2025-02-29T00:00:00Z"), ("Feb 29 of 1900", "1900-02-29T00:00:00Z"),
        ("Feb 29 of 2100", "2100-02-29T00:00:00Z"), ("Feb 30", "2024-02-30T00:00:00Z"),
        ("April 31", "2026-04-31T00:00:00Z"), ("day 32", "2026-01-32T00:00:00Z"), ("day 0", "2026-01-00T00:00:00Z"),
        ("month 13", "2026-13-01T00:00:00Z"), ("month 0", "2026-00-01T00:00:00Z"), ("year 0", "0000-01-01T00:00:00Z"),
        ("hour 24", "2026-01-01T24:00:00Z"), ("minute 60", "2026-01-01T00:60:00Z"), ("second 61", "2026-01-01T00:00:61Z"),
        ("offset 24:00", "2026-01-01T00:00:00+24:00"), ("offset -24:00", "2026-01-01T00:00:00-24:00"),
        ("offset minute 60", "2026-01-01T00:00:00+01:60"), ("no offset", "2026-01-01T00:00:00"),
        ("no offset, with a fraction", "2026-01-01T00:00:00.123"), ("offset without a colon", "2026-01-01T00:00:00+0100"),
        ("offset without minutes", "2026-01-01T00:00:00+01"), ("offset of three parts", "2026-01-01T00:00:00+01:00:00"),
        ("Z and an offset", "2026-01-01T00:00:00Z+00:00"), ("offset by name", "2026-01-01T00:00:00 UTC"),
        ("space before the offset", "2026-01-01T00:00:00 +00:00"), ("space before Z", "2026-01-01T00:00:00 Z"),
        ("minus sign U+2212", "2026-01-01T00:00:00\u221201:00"), ("trailing garbage", "2026-01-01T00:00:00Zx"),
        ("trailing space", "2026-01-01T00:00:00Z "), ("leading space", " 2026-01-01T00:00:00Z"),
        ("trailing line feed", "2026-01-01T00:00:00Z\n"), ("trailing NUL", "2026-01-01T00:00:00Z\0"),
        ("digits that are not ASCII", "\u0662\u0660\u0662\u0666-01-01T00:00:00Z"),
        ("full-width digits", "2026-01-01T00:00:0\uff10Z"), ("fraction digits that are not ASCII", "2026-01-01T00:00:00.\u0661Z"),
        ("point without digits", "2026-01-01T00:00:00.Z"), ("comma as the point", "2026-01-01T00:00:00,5Z"),
        ("no seconds", "2026-01-01T00:00Z"), ("no time", "2026-01-01"), ("no time, with Z", "2026-01-01Z"),
        ("no date", "00:00:00Z"), ("basic form", "20260101T000000Z"), ("two-digit year", "26-01-01T00:00:00Z"),
        ("five-digit year", "12026-01-01T00:00:00Z"), ("signed year", "+2026-01-01T00:00:00Z"),
        ("negative year", "-2026-01-01T00:00:00Z"), ("one-digit month", "2026-1-01T00:00:00Z"),
        ("one-digit day", "2026-01-1T00:00:00Z"), ("one-digit hour", "2026-01-01T0:00:00Z"),
        ("one-digit offset hour", "2026-01-01T00:00:00+1:00"), ("underscore between date and time", "2026-01-01_00:00:00Z"),
        ("two spaces between date and time", "2026-01-01  00:00:00Z"), ("slashes", "2026/01/01T00:00:00Z"),
        ("week date", "2026-W01-4T00:00:00Z"), ("ordinal date", "2026-001T00:00:00Z"), ("signed second", "2026-01-01T00:00:+1Z"),
        ("seconds since 1970", "1767225600"), ("HTTP date", "Thu, 01 Jan 2026 00:00:00 GMT"), ("empty", ""), ("word", "now"),
        ("only Z", "Z"), ("in quotes", '"2026-01-01T00:00:00Z"'),
        ("suffix of RFC 9557", "2026-01-01T00:00:00Z[Europe/Berlin]"),
    ):
        bad(name, text)


# -------------------------------------------------------------------------------------------------------------- writing


def pretty(document: dict) -> str:
    return json.dumps(document, indent=1, ensure_ascii=True, allow_nan=False) + "\n"


def lines(document: dict) -> str:
    """The same, with one vector in a line."""
    parts = []
    for name, value in document.items():
        if isinstance(value, list):
            rows = ",\n".join("  " + json.dumps(row, ensure_ascii=True, allow_nan=False) for row in value)
            parts.append(f" {json.dumps(name)}: [\n{rows}\n ]")
        else:
            parts.append(f" {json.dumps(name)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def unique(file: str, *lists: list) -> None:
    for vectors in lists:
        names = [vector["name"] for vector in vectors]
        doubled = {name for name in names if names.count(name) > 1}
        if doubled:
            raise SystemExit(f"{file}: two vectors of one name: {sorted(doubled)}")


def files() -> dict[str, str]:
    made = {}

    def add(file, write, about, **arrays):
        unique(file, *(value for value in arrays.values() if isinstance(value, list)))
        made[file] = write({"about": about} | arrays)

    make_fingerprints()
    add("fingerprints.json", pretty, "The form of a body, its canonical text, and a request's fingerprint.",
        vectors=fingerprints)
    make_keys()
    add("keys.json", pretty, "What key a request has under a policy, and what is wrong with it.", vectors=keys)
    decisions, standings, ages = make_decisions()
    add("decisions.json", lines, "What an arrival may do: every cell of the table; how a standing is read off a record; "
        "when an arrival is too old.", source=REFERENCE, vectors=decisions, standings=standings, ages=ages)
    make_scopes()
    add("scopes.json", pretty, "The scope of a tenant, principal and endpoint; the principal of an identity.",
        vectors=scopes)
    add("dispositions.json", lines, "What is recorded when an attempt ends. The rules of the profiles: every profile "
        "settles 2xx and 3xx; stripe, agents and scores are as ietf; walker, feed and mesh release every 4xx, their 5xx "
        "are as ietf; on atomic every 5xx is released.", source=REFERENCE,
        vectors=make_dispositions())
    make_schedules()
    add("schedules.json", pretty, "When the next attempt is, or why there is none.", vectors=schedules)
    make_classification()
    add("classification.json", pretty, "What an answer means to a sender; how a code is read from a body.",
        vectors=classification, codes=codes)
    make_staleness()
    add("staleness.json", pretty, "Whether an action is fresh, stale, from the future or has impossible times.",
        vectors=staleness)
    make_timestamps()
    add("timestamps.json", pretty, "RFC 3339 date-times in milliseconds since 1970-01-01T00:00:00Z.", vectors=timestamps)
    return made


def main() -> int:
    check = sys.argv[1:] == ["--check"]
    if sys.argv[1:] and not check:
        raise SystemExit("usage: make_vectors.py [--check]")
    wrong = 0
    for file, text in files().items():
        path = VECTORS / file
        if not check:
            path.write_text(text, encoding="ascii", newline="\n")
        elif not path.exists() or path.read_bytes() != text.encode("ascii"):
            print(f"{file} differs", file=sys.stderr)
            wrong = 1
    return wrong


if __name__ == "__main__":
    sys.exit(main())
