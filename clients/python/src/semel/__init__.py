"""Semel: a request takes effect once, however often it is sent.

- `once`: runs a function once under a key, its effect and its answer in one transaction of PostgreSQL
- `entered`: the same for the body of a `with` block
- `semel.asgi.Once`: the same for the routes of FastAPI and Starlette
- `semel.django.once`: the same for views of Django
- `retrying`: for clients, transports of httpx and requests that keep one key over every retry
"""

from .answers import Answer, Outcome
from .call import HttpRequest, Route
from .identity import Caller
from .once import entered, once, serve
from .problems import Problem
from .profiles import PRESETS, Profile
from .retrying import GaveUp, StillRunning, retrying

__version__ = "0.1.0"

__all__ = [
    "Answer",
    "Caller",
    "GaveUp",
    "HttpRequest",
    "Outcome",
    "PRESETS",
    "Problem",
    "Profile",
    "Route",
    "StillRunning",
    "entered",
    "once",
    "retrying",
    "serve",
]
