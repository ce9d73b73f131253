"""`semel.django.once`: a decorator for views of Django. The view uses the object mapper as ever; COMMIT is the library's.

The view must be synchronous and must not run inside atomic(). A view that answers with a status that the profile keeps commits
together with the record of its answer; one that raises, or answers with a status that the profile releases, is rolled back.
"""

from __future__ import annotations

import asyncio
import functools
import secrets
from typing import Any, Callable, List, Optional, Tuple, Union

from django.db import transaction
from django.http import HttpResponse

from . import runners
from .answers import Answer, Outcome
from .call import HttpRequest, Route, caller_of, read_http
from .drivers.django import Django
from .keys import KEY_HEADERS
from .problems import Problem
from .profiles import Profile, profile_of
from .routes import SAFE_METHODS
from .verdicts import outcome_of
from .walk import State, walk, walk_unkeyed

View = Callable[..., Any]


def _user_of(request: Any) -> Optional[str]:
    user = getattr(request, "user", None)
    return str(user.pk) if user is not None and user.is_authenticated else None


def once(
    endpoint: str,
    caller: Callable[[Any], Any] = _user_of,
    profile: Union[str, Profile] = "ietf",
    using: str = "default",
    **options: Any,
) -> Callable[[View], View]:
    """Runs the view once for each caller and key. `caller` gives a `Caller` or a principal's name; by default the user's.

    Safe methods pass. Path parameters are those of the URL pattern, in the order of their names in it.
    """
    route = Route(endpoint, profile_of(profile), **options)

    def decorate(view: View) -> View:
        if asyncio.iscoroutinefunction(view):
            raise TypeError("semel.django.once takes synchronous views: Django's transactions are synchronous")

        @transaction.non_atomic_requests(using=using)
        @functools.wraps(view)
        def protected(request: Any, *args: Any, **kwargs: Any) -> Any:
            if request.method in SAFE_METHODS:
                return view(request, *args, **kwargs)
            return _respond(route, caller, using, view, request, args, kwargs)

        return protected

    return decorate


def _respond(
    route: Route, caller: Callable[[Any], Any], using: str, view: View, request: Any, args: Any, kwargs: Any
) -> HttpResponse:
    lines = _lines(request, route)
    given = request.headers.get("X-Request-Id", "")
    request_id = given if 0 < len(given) <= 128 else secrets.token_hex(8)
    made: List[HttpResponse] = []

    def handle(_connection: Any) -> Answer:
        made[:] = [_call(view, request, args, kwargs)]
        return _answer(made[0])

    try:
        params = [(str(name), str(value)) for name, value in kwargs.items()]
        asked = HttpRequest(request.method, params, request.META.get("QUERY_STRING", ""), lines, request.body)
        call = read_http(route, caller_of(caller(request)), asked, request_id)
        state = State(can_rerun=True)
        steps = walk(call, state) if call is not None else walk_unkeyed(route.profile, state)
        outcome = runners.run(steps, state, call, Django(using), handle)
    except Problem as problem:
        return _response(outcome_of(route, problem, request_id))
    if outcome.replayed or not made or outcome.body != made[0].content:
        return _response(outcome)
    # The view's own response, with its cookies and all that is never kept.
    for name, value in outcome.headers:
        if name.startswith("semel-"):
            made[0][name] = value.decode("latin-1")
    return made[0]


def _call(view: View, request: Any, args: Any, kwargs: Any) -> HttpResponse:
    response = view(request, *args, **kwargs)
    if hasattr(response, "render") and callable(response.render):
        response = response.render()
    if getattr(response, "streaming", False):
        raise Problem("not-settled", "an answer that is recorded with its effect cannot be a stream; give it whole")
    return response


def _answer(response: HttpResponse) -> Answer:
    headers: List[Tuple[str, bytes]] = [(name.lower(), value.encode("latin-1")) for name, value in response.items()]
    return Answer(response.status_code, headers, response.content)


def _response(outcome: Outcome) -> HttpResponse:
    response = HttpResponse(outcome.body, status=outcome.status)
    del response["content-type"]
    for name, value in outcome.headers:
        text = value.decode("latin-1")
        # Django keeps one value for each name; lines of one name are one list.
        response[name] = f"{response[name]}, {text}" if name in response else text
    return response


def _lines(request: Any, route: Route) -> List[Tuple[str, bytes]]:
    """The header lines. Servers of WSGI join lines of one name by commas: a key with one may be two keys, and is two here."""
    joined = {name.lower() for name in KEY_HEADERS}
    joined.update(source[len("header:") :].lower() for source in route.profile.key.sources if source.startswith("header:"))
    lines: List[Tuple[str, bytes]] = []
    for name, value in request.headers.items():
        pieces = value.split(",") if name.lower() in joined and not value.startswith('"') else [value]
        lines += [(name, piece.encode("latin-1")) for piece in pieces]
    return lines
