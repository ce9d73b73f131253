"""Transports of httpx that retry. The decisions are in `retrying`."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any, Optional

import httpx

from .retrying import Attempted, LogicalCall, Retrying, StillRunning


def _begin(settings: Retrying, request: httpx.Request) -> Optional[LogicalCall]:
    given = request.headers.get(settings.key_header)
    return settings.begin(request, request.method, str(request.url), given)


def _attempt_of(request: httpx.Request, logical: LogicalCall, body: bytes) -> httpx.Request:
    headers = httpx.Headers(request.headers)
    for name, value in logical.headers:
        headers[name] = value
    # A body that was streamed is whole by now, and is sent as such.
    if "transfer-encoding" in headers:
        del headers["transfer-encoding"]
        headers["content-length"] = str(len(body))
    return httpx.Request(request.method, request.url, headers=headers, content=body, extensions=request.extensions)


class HttpxTransport(httpx.BaseTransport):
    """Sends by another transport, and again by the schedule."""

    def __init__(self, settings: Retrying, transport: Any = None) -> None:
        self._settings = settings
        self._inner = transport or httpx.HTTPTransport()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """One logical call."""
        logical = _begin(self._settings, request)
        if logical is None:
            return self._inner.handle_request(request)
        body = request.read()
        while True:
            response: Optional[httpx.Response] = None
            error: Optional[httpx.TransportError] = None
            attempted = Attempted(None, {}, b"")
            try:
                response = self._inner.handle_request(_attempt_of(request, logical, body))
                content = b"" if response.is_success else response.read()
                attempted = Attempted(response.status_code, response.headers, content)
            except httpx.TransportError as raised:
                response, error = None, raised
            pause = logical.pause_after(attempted)
            if pause is None:
                if response is None:
                    raise error
                if logical.is_running(attempted):
                    response.read()
                    response.close()
                    response.request = request
                    raise StillRunning(logical.key, response)
                return response
            if response is not None:
                response.close()
            self._settings.sleep(pause)

    def close(self) -> None:
        """Closes the transport behind it."""
        self._inner.close()


class AsyncHttpxTransport(httpx.AsyncBaseTransport):
    """Sends by another transport, and again by the schedule."""

    def __init__(self, settings: Retrying, transport: Any = None) -> None:
        self._settings = settings
        self._inner = transport or httpx.AsyncHTTPTransport()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """One logical call."""
        logical = _begin(self._settings, request)
        if logical is None:
            return await self._inner.handle_async_request(request)
        body = await request.aread()
        while True:
            response: Optional[httpx.Response] = None
            error: Optional[httpx.TransportError] = None
            attempted = Attempted(None, {}, b"")
            try:
                response = await self._inner.handle_async_request(_attempt_of(request, logical, body))
                content = b"" if response.is_success else await response.aread()
                attempted = Attempted(response.status_code, response.headers, content)
            except httpx.TransportError as raised:
                response, error = None, raised
            pause = logical.pause_after(attempted)
            if pause is None:
                if response is None:
                    raise error
                if logical.is_running(attempted):
                    await response.aread()
                    await response.aclose()
                    response.request = request
                    raise StillRunning(logical.key, response)
                return response
            if response is not None:
                await response.aclose()
            await self._sleep(pause)

    async def _sleep(self, seconds: float) -> None:
        own = self._settings.sleep
        if inspect.iscoroutinefunction(own):
            await own(seconds)
        else:
            await asyncio.sleep(seconds)

    async def aclose(self) -> None:
        """Closes the transport behind it."""
        await self._inner.aclose()
