"""Which route a request belongs to: `POST /orders/{id}/refund`. Matches paths as received; decodes nothing."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from typing import Any, List, NamedTuple, Optional, Sequence, Tuple, Union

from .call import Route
from .profiles import Profile, profile_of

SAFE_METHODS = ("GET", "HEAD", "OPTIONS", "TRACE")
ENDPOINT_BYTES_MAX = 255

_NAME = re.compile(r"\{([A-Za-z0-9_]+)(\*?)\}")


class Pattern(NamedTuple):
    """Methods (none means every method but the safe ones) and segments: a text, a name, or a name for all that is left."""

    methods: Tuple[str, ...]
    segments: Tuple[Tuple[str, str], ...]

    @classmethod
    def parse(cls, text: str) -> "Pattern":
        """Reads `POST /orders/{id}`, `PUT|PATCH /a`, `* /files/{path*}`."""

        def bad(why: str) -> ValueError:
            return ValueError(f'bad route {text!r}: {why}; expected something like "POST /orders/{{id}}"')

        given, space, path = text.partition(" ")
        if not space or not path.startswith("/"):
            raise bad("a method and a path that begins with / are needed")
        methods = () if given == "*" else tuple(given.split("|"))
        for method in methods:
            if not re.fullmatch("[A-Z]+", method):
                raise bad("methods are in capitals, joined by |, or *")
            if method in SAFE_METHODS:
                raise bad(f"{method} has no effect that a key could protect")
        segments = [_segment(part, bad) for part in path[1:].split("/")]
        if any(kind == "rest" for kind, _ in segments[:-1]):
            raise bad("{name*} takes all that is left, so it comes last")
        return cls(methods, tuple(segments))

    def match(self, method: str, path: str) -> Optional[List[Tuple[str, str]]]:
        """The parameters, when the pattern matches the whole path."""
        covers = method in self.methods if self.methods else method not in SAFE_METHODS
        if not covers or not path.startswith("/"):
            return None
        rest: Optional[str] = path[1:]
        params: List[Tuple[str, str]] = []
        for kind, name in self.segments:
            if rest is None:
                return None
            head, slash, tail = rest.partition("/")
            if kind == "rest":
                params.append((name, rest))
                rest = None
                continue
            if (kind == "text" and head != name) or (kind == "name" and not head):
                return None
            if kind == "name":
                params.append((name, head))
            rest = tail if slash else None
        return params if rest is None else None

    def rank(self) -> Tuple[Any, ...]:
        """The more particular pattern is asked first."""
        order = {"text": 0, "name": 1, "rest": 2}
        path = [(order[kind], name if kind == "text" else "") for kind, name in self.segments]
        return path, not self.methods


def _segment(part: str, bad: Any) -> Tuple[str, str]:
    match = _NAME.fullmatch(part)
    if match:
        return ("rest" if match[2] else "name"), match[1]
    if re.search(r"[{}?# ]", part):
        raise bad("braces enclose a whole segment: {name} or {name*}")
    return "text", part


class Protected(NamedTuple):
    """A route with its pattern. Without a name each method and path is an endpoint of its own."""

    pattern: Pattern
    route: Route
    by_path: bool = False

    def endpoint(self, method: str, path: str) -> Route:
        """The route under the name of its endpoint."""
        return replace(self.route, name=endpoint_of_path(method, path)) if self.by_path else self.route


def protect(
    pattern: str,
    name: Optional[str] = None,
    profile: Union[str, Profile] = "ietf",
    retry_window_ms: Optional[int] = None,
    **options: Any,
) -> Protected:
    """A route such as `POST /orders`, with a stable name. Without one it is named by its method and path pattern."""
    found = profile_of(profile)
    if retry_window_ms is not None:
        found = found.with_retry_window(retry_window_ms)
    return Protected(Pattern.parse(pattern), Route(name or pattern, found, **options))


def any_route(profile: Union[str, Profile] = "ietf") -> Protected:
    """Every method but the safe ones, on every path; a key is optional, and each path is an endpoint of its own."""
    found = profile_of(profile)
    found = replace(found, key=replace(found.key, presence="optional"))
    return Protected(Pattern.parse("* /{path*}"), Route("any", found), by_path=True)


class Table:
    """The routes of an application, the most particular first."""

    def __init__(self, routes: Sequence[Union[str, Protected]]) -> None:
        known = [protect(route) if isinstance(route, str) else route for route in routes]
        self._routes = sorted(known, key=lambda route: route.pattern.rank())

    def find(self, method: str, path: str) -> Optional[Tuple[Route, List[Tuple[str, str]]]]:
        """The route of a request and its path parameters."""
        for route in self._routes:
            params = route.pattern.match(method, path)
            if params is not None:
                return route.endpoint(method, path), params
        return None


def endpoint_of_path(method: str, path: str) -> str:
    """`POST /orders`; what is too long for a name is cut, and its hash takes the place of the rest."""
    endpoint = f"{method} {path}"
    encoded = endpoint.encode("utf-8")
    if len(encoded) <= ENDPOINT_BYTES_MAX:
        return endpoint
    digest = hashlib.sha256(encoded).digest()[:16].hex()
    cut = encoded[: ENDPOINT_BYTES_MAX - len(digest) - 1].decode("utf-8", errors="ignore")
    return f"{cut}#{digest}"
