"""An adapter of requests that retries. The decisions are in `retrying`."""

from __future__ import annotations

from typing import Any, Optional

import requests
from requests.adapters import HTTPAdapter

from .retrying import Attempted, Retrying, StillRunning


class RequestsAdapter(HTTPAdapter):
    """Sends by HTTPAdapter, and again by the schedule. urllib3's own retries stay off: they know no keys."""

    def __init__(self, settings: Retrying, **options: Any) -> None:
        self._settings = settings
        super().__init__(**{**options, "max_retries": 0})

    def send(self, request: requests.PreparedRequest, *args: Any, **options: Any) -> requests.Response:
        """One logical call."""
        given = request.headers.get(self._settings.key_header)
        logical = self._settings.begin(request, request.method or "", request.url or "", given)
        if logical is None:
            return super().send(request, *args, **options)
        _make_whole(request)
        for name, value in logical.headers:
            request.headers[name] = value
        while True:
            response: Optional[requests.Response] = None
            error: Optional[Exception] = None
            attempted = Attempted(None, {}, b"")
            try:
                response = super().send(request, *args, **options)
                content = b"" if response.ok and response.status_code < 300 else response.content
                attempted = Attempted(response.status_code, response.headers, content)
            except (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError) as raised:
                response, error = None, raised
            pause = logical.pause_after(attempted)
            if pause is None:
                if response is None:
                    raise error
                if logical.is_running(attempted):
                    # Read now: whoever catches it gets no other chance.
                    _ = response.content
                    raise StillRunning(logical.key, response)
                return response
            if response is not None:
                response.close()
            self._settings.sleep(pause)


def _make_whole(request: requests.PreparedRequest) -> None:
    """A body that could be read only once is read now, so that every attempt sends the same bytes."""
    body = request.body
    if body is None or isinstance(body, (bytes, str)):
        return
    request.body = body.read() if hasattr(body, "read") else b"".join(body)
    request.headers.pop("Transfer-Encoding", None)
    request.headers["Content-Length"] = str(len(request.body))
