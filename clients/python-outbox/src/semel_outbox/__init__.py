"""An outbox for programs that are offline now and then: a message is on disk before its sender is told so, and is sent in its
lane's order, under one key, until the server has answered.

`Outbox` is for blocking code, `AsyncOutbox` for asyncio. One process owns the file; another one that opens it hands its messages
to the owner, and takes its place when it is gone. After a fork the child has to open it again.
"""

from ._core.semel_core import (
    Accepted,
    CoreError,
    Credential,
    Event,
    Header,
    HostError,
    Imported,
    LaneState,
    Message,
    Notice,
    NoticeKind,
    Options,
    Rebuild,
    Receipt,
    Route,
    Severity,
    Status,
)
from .asynchronous import AsyncOutbox
from .blocking import Outbox

__version__ = "0.1.0"

__all__ = [
    "Accepted",
    "AsyncOutbox",
    "CoreError",
    "Credential",
    "Event",
    "Header",
    "HostError",
    "Imported",
    "LaneState",
    "Message",
    "Notice",
    "NoticeKind",
    "Options",
    "Outbox",
    "Rebuild",
    "Receipt",
    "Route",
    "Severity",
    "Status",
]
